/*-------------------------------------------------------------------------
 *
 * test_adaptive.c
 *	  Who has an adaptive delay, and what it shows: pace/adaptive.c.
 *
 * test_pace.py tests it in a server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/shmem.h"

#include "pace/budget.c"
#include "pace/controller.c"
#include "pace/adaptive.c"
#include "unit.h"

static LWLockPadded only_lock;
static bool is_locked = false;
static int	nwaits = 0;			/* for its tick */
static void *made = NULL;		/* by another process, for all */

/* LWLockAcquire -- nobody else has it. */
bool
LWLockAcquire(LWLock *of, LWLockMode mode)
{
	is_locked = true;
	return true;
}

/* LWLockRelease -- nobody waits for it. */
void
LWLockRelease(LWLock *of)
{
	is_locked = false;
}

/* LWLockHeldByMeInMode -- there is but one. */
bool
LWLockHeldByMeInMode(LWLock *of, LWLockMode mode)
{
	return is_locked;
}

/* GetNamedLWLockTranche -- likewise. */
LWLockPadded *
GetNamedLWLockTranche(const char *name)
{
	return &only_lock;
}

/* RequestNamedLWLockTranche -- it is there. */
void
RequestNamedLWLockTranche(const char *name, int number)
{
}

/* ShmemInitStruct -- memory that isn't shared, or what another process has made. */
void *
ShmemInitStruct(const char *name, Size size, bool *found)
{
	*found = made != NULL;
	return made != NULL ? made : palloc(size);
}

/* where the server says what a process waits for */
static uint32 wait_event = 0;
uint32	   *my_wait_event_info = &wait_event;

/* pg_usleep -- who waits for the tick waits until it ends. */
void
pg_usleep(long microseconds)
{
	CHECK(++nwaits == 1);
	adaptive->controller.budget = 12345;
	budget_end_tick(&adaptive->time);
}

/* begin -- no VACUUM has it, nor had it. */
static void
begin(void)
{
	adaptive_shmem_init();
	nwaits = 0;
}

/*
 * test_nobody_joins_during_a_tick
 *		A worker ticks that its cancelled leader has left alone.  The next leader waits for the
 *		end of that, or the tick would go on with halves of both.
 */
UNIT_TEST(test_nobody_joins_during_a_tick)
{
	BudgetUse	use;
	AdaptiveState state;

	begin();
	adaptive_join();
	adaptive_leave();
	adaptive->left_at -= 2 * NS_PER_S;
	CHECK(budget_begin_tick(&adaptive->time, now_ns() + NS_A_TICK, &use));
	adaptive_join();
	CHECK_EQ(nwaits, 1);
	adaptive_state(true, &state);
	CHECK_EQ(state.added, 0);
	CHECK_EQ(state.vacuums, 1);
	/* others tick again */
	CHECK(budget_begin_tick(&adaptive->time, now_ns() + 2 * NS_A_TICK, &use));
	budget_end_tick(&adaptive->time);
	adaptive_state(false, &state);
	CHECK_EQ(state.added, 0);
	CHECK_EQ(state.unrested, 0);
	CHECK_EQ(state.vacuums, 0);
}

/*
 * test_what_was_learned_is_kept_for_a_while
 *		At once for all of it, then for what rests have taught, and in the end for nothing.
 */
UNIT_TEST(test_what_was_learned_is_kept_for_a_while)
{
	begin();
	adaptive_join();
	adaptive->controller.budget = adaptive->controller.in_force = 0.5;
	adaptive->controller.nrests = 7;
	adaptive_join();
	adaptive_leave();
	adaptive_leave();
	adaptive_join();
	CHECK_EQ(adaptive->controller.budget, 0.5);
	adaptive_leave();
	adaptive->left_at -= 59 * (uint64) NS_PER_S;
	adaptive_join();
	CHECK_EQ(adaptive->controller.budget, FLOOR_BUDGET);
	CHECK_EQ(adaptive->controller.nrests, 7);
	adaptive_leave();
	adaptive->left_at -= 80 * (uint64) NS_PER_S;
	adaptive_join();
	CHECK_EQ(adaptive->controller.nrests, 0);
}

/* test_the_law_hears_of_what_was_looked_at -- and of nothing else; what it finds is told. */
UNIT_TEST(test_the_law_hears_of_what_was_looked_at)
{
	uint64		now = now_ns();
	NeighboursTimes times = {.looked = NS_PER_S / 5,.ran = NS_PER_S / 10,.waited = NS_PER_S / 20};
	AdaptiveState state;

	begin();
	adaptive_join();
	adaptive_tick_if_due(now + 2 * NS_A_TICK);
	CHECK_EQ(adaptive->controller.load_for, 0);
	adaptive_note_others(&times);
	adaptive_note_others(&times);
	adaptive_tick_if_due(now + 3 * NS_A_TICK + NS_PER_MS);
	CHECK(adaptive->controller.load > 0);
	CHECK_BETWEEN(0.24, adaptive->controller.load_for, 0.27);
	adaptive_state(true, &state);
	CHECK_EQ(state.limit, LIMIT_LEARNING);
	CHECK(isnan(state.others_take) && isnan(state.others_would_take));
	for (int tick = 0; tick < 80; tick++)
	{
		adaptive_note_others(&times);
		now += NS_A_TICK + NS_PER_MS;
		adaptive_tick_if_due(now + 3 * NS_A_TICK);
	}
	adaptive_state(true, &state);
	CHECK_EQ(state.limit, LIMIT_OTHERS);
	CHECK(state.added > 0);
	CHECK_BETWEEN(1.4999, state.others_take, 1.5001);
	CHECK_BETWEEN(1.4999, state.others_would_take, 1.5001);
	CHECK_BETWEEN(0.7, state.others_at_work, 0.8);
}

/*
 * test_other_processes_find_it
 *		That one process has made.
 */
UNIT_TEST(test_other_processes_find_it)
{
	begin();
	adaptive_join();
	made = adaptive;
	adaptive_shmem_init();
	made = NULL;
	adaptive_join();
	CHECK_EQ(adaptive->vacuums, 2);
}

/* test_no_tick_comes_twice -- at the same moment as the one before. */
UNIT_TEST(test_no_tick_comes_twice)
{
	Budget		budget;
	BudgetUse	use;
	uint64		now;

	budget_init(&budget);
	now = budget.tick_time;
	pg_atomic_write_u64(&budget.next_tick, now);
	CHECK(!budget_begin_tick(&budget, now, &use));
	CHECK(budget_begin_tick(&budget, now + 2 * NS_A_TICK, &use));
	budget_end_tick(&budget);
}
