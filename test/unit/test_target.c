/*-------------------------------------------------------------------------
 *
 * test_target.c
 *	  Who has a latency target, and what it shows: pace/target.c.
 *
 * test_target.py tests it in a server.
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

int			MaxBackends = 3;

static LWLockPadded only_lock;
static bool is_locked = false;
static LatencyTarget *ticked = NULL;	/* by a worker that outlives its
										 * leader */
static int	nwaits = 0;			/* for its tick */
static void *made = NULL;		/* by another process, for all */
static int	nstatements = 0;	/* of 2 ms, since the last look */
static double counted_late_ms = 0;	/* from when on running ones are late */

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

/* mul_size -- no size here is large. */
Size
mul_size(Size one, Size other)
{
	return one * other;
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
	CHECK(ticked != NULL && ++nwaits == 1);
	ticked->controller.budget = 12345;
	budget_end_tick(&ticked->time);
}

/* latency_read -- see nstatements; they are all in one bucket. */
void
latency_read(uint32 *counts)
{
	static uint32 so_far = 0;

	so_far += nstatements;
	nstatements = 0;
	memset(counts, 0, LATENCY_BUCKETS * sizeof(uint32));
	counts[100] = so_far;
}

/* latency_count_running -- none runs; but see who is asked for. */
int
latency_count_running(double late_ms, double long_ms, uint32 *counts, int *nrunning)
{
	counted_late_ms = late_ms;
	*nrunning = 0;
	return 0;
}

/* latency_count_above -- none is late. */
double
latency_count_above(const uint32 *counts, double ms)
{
	return 0;
}

/* latency_percentile -- the number of statements, so that the test sees of how many it is. */
double
latency_percentile(const uint32 *counts, double percent)
{
	return counts[100];
}

/* begin -- no target is used, nor has been. */
static void
begin(void)
{
	target_shmem_init();
	nwaits = 0;
}

/* join -- a VACUUM has this target now. */
static LatencyTarget *
join(double ms, double percentile, LatencyTarget *before)
{
	PaceSettings settings = {.latency_target = ms,.latency_percentile = percentile};

	return target_join(&settings, before);
}

/*
 * test_no_target_changes_during_a_tick
 *		A worker ticks the target that its cancelled leader has left.  Whoever makes another
 *		one of it, or has it again, waits for the end of that, or the tick would go on with
 *		halves of both.
 */
static void
test_no_target_changes_during_a_tick(void)
{
	for (int is_again = 0; is_again < 2; is_again++)
	{
		BudgetUse	use;
		LatencyTarget *now;

		unit_case("%s", is_again ? "has it again" : "another one");
		begin();
		/* all places are used, so that there is no other */
		for (int i = 0; i < MaxBackends; i++)
			(void) join(100 + i, 95, NULL);
		ticked = join(20, 95, NULL);
		target_leave(ticked);
		ticked->left_at -= 2 * NS_PER_S;
		CHECK(budget_begin_tick(&ticked->time, now_ns() + NS_A_TICK, &use));
		now = join(is_again ? 20 : 30, 95, NULL);
		CHECK(now == ticked);
		CHECK_EQ(nwaits, 1);
		CHECK_EQ(target_budget(now), FIRST_BUDGET);
		/* others tick again */
		CHECK(budget_begin_tick(&now->time, now_ns() + 2 * NS_A_TICK, &use));
		budget_end_tick(&now->time);
	}
}

/*
 * test_a_target_is_kept_for_a_while
 *		For the next VACUUM, which has the same place; not for one whose percentile is another.
 */
static void
test_a_target_is_kept_for_a_while(void)
{
	LatencyTarget *target;

	begin();
	target = join(20, 95, NULL);
	target_leave(target);
	CHECK(join(20, 99, NULL) != target);
	CHECK(join(20, 95, NULL) == target);
	CHECK(join(20, 95, NULL) == target);
	CHECK(join(20, 99, target) != target);
	CHECK_EQ(target->vacuums, 1);
	target_leave(target);
	target->left_at -= 59 * (uint64) NS_PER_S;
	CHECK(join(20, 95, NULL) == target);
	target_leave(target);
	target->left_at -= KEPT_NS;
	CHECK(join(20, 95, NULL) != target);
}

/*
 * test_enough_statements_are_shown
 *		A percentile is of so many that one at least is beyond it; the more there are,
 *		the fewer ticks it is of.
 */
static void
test_enough_statements_are_shown(void)
{
	static const struct
	{
		double		percentile;
		int			a_tick;
		double		shown;		/* of how many, after the first ticks */
	}			cases[] = {
		{95, 19, 38}, {95, 20, 20}, {95, 1000, 1000}, {99.9, 400, 1200}, {50, 2, 2}
	};

	for (int i = 0; i < lengthof(cases); i++)
	{
		LatencyTarget *target;
		TargetState state;
		uint64		now = now_ns();

		unit_case("percentile %g, %d a tick", cases[i].percentile, cases[i].a_tick);
		begin();
		target = join(20, cases[i].percentile, NULL);
		for (int tick = 0; tick < 100; tick++)
		{
			now += NS_A_TICK;
			nstatements = cases[i].a_tick;
			target_tick_if_due(target, now);
			target_state(target, &state);
			if (!isnan(state.latency_ms))
				break;
		}
		CHECK_EQ(state.latency_ms, cases[i].shown);
		CHECK_EQ(state.vacuums, 1);
		/* after a gap it begins anew, and the law hears of nothing */
		nstatements = 1;
		target->controller.load = 7;
		target_tick_if_due(target, now + 10 * (uint64) NS_PER_S);
		CHECK_EQ(target->controller.load, 7);
		CHECK_EQ(target->window[100], 0);
		CHECK(isinf(target_budget(NULL)));
	}
}

/*
 * test_other_processes_find_the_targets
 *		That one process has made.
 */
static void
test_other_processes_find_the_targets(void)
{
	LatencyTarget *target;

	begin();
	target = join(20, 95, NULL);
	made = targets;
	target_shmem_init();
	made = NULL;
	CHECK(join(20, 95, NULL) == target);
	CHECK_EQ(target->vacuums, 2);
}

/*
 * test_a_silence_is_no_idleness
 *		If none ends for long, those that run and are late are counted, at the time from which
 *		on they are.
 */
static void
test_a_silence_is_no_idleness(void)
{
	LatencyTarget *target;
	uint64		now;

	begin();
	target = join(20, 95, NULL);
	now = now_ns();
	for (int tick = 0; tick < 40; tick++)
	{
		now += NS_A_TICK;
		nstatements = tick < 8 ? 100 : 0;
		counted_late_ms = 0;
		target_tick_if_due(target, now);
		if (tick < 8)
			CHECK(isinf(counted_late_ms));
		if (tick >= 16)
			CHECK(!isinf(counted_late_ms));
	}
	CHECK_EQ(counted_late_ms, controller_late_ms(&target->controller));
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
	UNIT_RUN(test_no_target_changes_during_a_tick);
	UNIT_RUN(test_a_target_is_kept_for_a_while);
	UNIT_RUN(test_enough_statements_are_shown);
	UNIT_RUN(test_other_processes_find_the_targets);
	UNIT_RUN(test_a_silence_is_no_idleness);
	UNIT_RUN(test_what_is_owed_changes_with_the_budget);
	return unit_end();
}
