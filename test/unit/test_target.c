/*-------------------------------------------------------------------------
 *
 * test_target.c
 *	  Who has the latency target, and what it shows: pace/target.c.
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
#include "pace/target.c"
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

/* s_lock -- nobody else has it. */
int
s_lock(volatile slock_t *of, const char *file, int line, const char *function)
{
	return 0;
}

/* where the server says what a process waits for */
static uint32 wait_event = 0;
uint32	   *my_wait_event_info = &wait_event;

/* pg_usleep -- who waits for the tick waits until it ends. */
void
pg_usleep(long microseconds)
{
	CHECK(++nwaits == 1);
	target->controller.budget = 12345;
	budget_end_tick(&target->time);
}

/* begin -- no VACUUM has the target, nor had it. */
static void
begin(void)
{
	target_shmem_init();
	nwaits = 0;
}

/*
 * test_nobody_joins_during_a_tick
 *		A worker ticks the target that its cancelled leader has left.  Who has it again waits
 *		for the end of that, or the tick would go on with halves of both.
 */
static void
test_nobody_joins_during_a_tick(void)
{
	BudgetUse	use;
	TargetState state;

	begin();
	target_join();
	target_leave();
	target->left_at -= 2 * NS_PER_S;
	CHECK(budget_begin_tick(&target->time, now_ns() + NS_A_TICK, &use));
	target_join();
	CHECK_EQ(nwaits, 1);
	target_state(true, &state);
	CHECK_EQ(state.budget, FIRST_BUDGET);
	CHECK_EQ(state.vacuums, 1);
	/* others tick again */
	CHECK(budget_begin_tick(&target->time, now_ns() + 2 * NS_A_TICK, &use));
	budget_end_tick(&target->time);
	target_state(false, &state);
	CHECK(isinf(state.budget) && isinf(state.unrested));
	CHECK_EQ(state.vacuums, 0);
}

/*
 * test_what_was_learned_is_kept_for_a_while
 *		At once for all of it, then for what rests have taught, and in the end for nothing.
 */
static void
test_what_was_learned_is_kept_for_a_while(void)
{
	begin();
	target_join();
	target->controller.budget = target->controller.in_force = 0.5;
	target->controller.nrests = 7;
	target_join();
	target_leave();
	target_leave();
	target_join();
	CHECK_EQ(target->controller.budget, 0.5);
	target_leave();
	target->left_at -= 59 * (uint64) NS_PER_S;
	target_join();
	CHECK_EQ(target->controller.budget, FIRST_BUDGET);
	CHECK_EQ(target->controller.nrests, 7);
	target_leave();
	target->left_at -= 80 * (uint64) NS_PER_S;
	target_join();
	CHECK_EQ(target->controller.nrests, 0);
}

/* test_the_law_hears_of_what_was_looked_at -- and of nothing else. */
static void
test_the_law_hears_of_what_was_looked_at(void)
{
	uint64		now = now_ns();
	NeighboursTimes times = {.looked = NS_PER_S / 5,.ran = NS_PER_S / 10};

	begin();
	target_join();
	target_tick_if_due(now + 2 * NS_A_TICK);
	CHECK_EQ(target->controller.load_for, 0);
	target_note_others(&times);
	target_note_others(&times);
	target_tick_if_due(now + 3 * NS_A_TICK + NS_PER_MS);
	CHECK(target->controller.load > 0);
	CHECK_BETWEEN(0.24, target->controller.load_for, 0.27);
}

/*
 * test_other_processes_find_it
 *		That one process has made.
 */
static void
test_other_processes_find_it(void)
{
	begin();
	target_join();
	made = target;
	target_shmem_init();
	made = NULL;
	target_join();
	CHECK_EQ(target->vacuums, 2);
}

/*
 * test_what_is_owed_changes_with_the_budget
 *		What is still to be paid takes that many times as long; and no tick comes at the
 *		same moment as the one before.
 */
static void
test_what_is_owed_changes_with_the_budget(void)
{
	Budget		budget;
	BudgetUse	use;
	uint64		now;

	budget_init(&budget);
	now = budget.tick_time;
	pg_atomic_write_u64(&budget.paid_until, now + 1000);
	budget_change_rate(&budget, now, 3);
	CHECK_EQ(pg_atomic_read_u64(&budget.paid_until), now + 3000);
	budget_change_rate(&budget, now + 3000, 3);
	CHECK_EQ(pg_atomic_read_u64(&budget.paid_until), now + 3000);
	pg_atomic_write_u64(&budget.next_tick, now);
	CHECK(!budget_begin_tick(&budget, now, &use));
	CHECK(budget_begin_tick(&budget, now + 2 * NS_A_TICK, &use));
	budget_end_tick(&budget);
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_nobody_joins_during_a_tick);
	UNIT_RUN(test_what_was_learned_is_kept_for_a_while);
	UNIT_RUN(test_the_law_hears_of_what_was_looked_at);
	UNIT_RUN(test_other_processes_find_it);
	UNIT_RUN(test_what_is_owed_changes_with_the_budget);
	return unit_end();
}
