/*-------------------------------------------------------------------------
 *
 * test_pace_process.c
 *	  What a process of a VACUUM may spend: pace/pace_process.c.  How much of that the age of
 *	  its table adds: engine/failsafe.c.
 *
 * test_pace.py and test_wraparound.py test them in a server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "engine/failsafe.c"
#include "pace/budget.c"
#include "pace/pace_process.c"
#include "pace/pace_team.c"
#include "unit.h"

/* How the server's clock is read since version 19: see unit.c */
extern bool timing_tsc_enabled;
extern uint64 ticks_per_ns_scaled;

BufferUsage pgBufferUsage;
int			VacuumCostBalance = 0;

static PaceShared shared;

/* target_time -- no target is used here. */
Budget *
target_time(void)
{
	return &shared.time;
}

/* s_lock -- nobody else has it. */
int
s_lock(volatile slock_t *lock, const char *file, int line, const char *function)
{
	return 0;
}

/* begin -- a VACUUM with this many workers at most, and this budget of cost a second. */
static void
begin(int workers, double rate)
{
	memset(&shared, 0, sizeof(shared));
	memset(&my_pace, 0, sizeof(my_pace));
	budget_init(&shared.cost);
	budget_init(&shared.time);
	shared.parking.most = workers;
	my_pace.shared = &shared;
	my_pace.rate = rate;
	my_pace.budget = INFINITY;
	my_pace.settings.page_miss = 2;
	my_pace.settings.cost_limit = 200;
}

/* least_at -- how many processes may be at work at any rate, at this age of the table. */
static double
least_at(double age)
{
	pace_set_need(need_of_age(age, 200000000, 1600000000));
	return shared.least;
}

/*
 * test_the_least_rises_smoothly
 *		From the floor at autovacuum_freeze_max_age to all processes at vacuum_failsafe_age:
 *		with each million transactions by the same small part, so nowhere does it leap.
 */
static void
test_the_least_rises_smoothly(void)
{
	for (int workers = 0; workers <= 255; workers = 2 * workers + 1)
	{
		double		before;

		unit_case("%d workers", workers);
		begin(workers, INFINITY);
		CHECK_EQ(least_at(0), LEAST_BUDGET);
		CHECK_EQ(least_at(-5), LEAST_BUDGET);
		before = least_at(200e6);
		CHECK_EQ(before, LEAST_BUDGET);
		for (double age = 201e6; age <= 1600e6; age += 1e6)
		{
			double		least = least_at(age);

			CHECK_BETWEEN(1.002, least / before, 1.007);
			before = least;
		}
		CHECK_BETWEEN((workers + 1) * 0.999, before, (workers + 1) * 1.001);
		CHECK_EQ(least_at(2e9), before);
	}
}

/*
 * test_the_failsafe_may_come_at_once
 *		As with the server, not before 1.05 times autovacuum_freeze_max_age.  The least
 *		rises before that, too.
 */
static void
test_the_failsafe_may_come_at_once(void)
{
	CHECK_EQ(need_of_age(99, 100, 0), 0);
	CHECK_EQ(need_of_age(100, 100, 0), 0);
	CHECK_BETWEEN(0.39, need_of_age(102, 100, 0), 0.41);
	CHECK_EQ(need_of_age(105, 100, 0), 1);
	CHECK_EQ(need_of_age(2e9, PG_INT32_MAX, PG_INT32_MAX), 0);
}

/*
 * test_what_workers_have_used_is_not_paid_twice
 *		When a team pauses, the server adds to the leader's pages those of its workers, who
 *		have paid for them.
 */
static void
test_what_workers_have_used_is_not_paid_twice(void)
{
	begin(1, 1e5);
	pace_begin_work();
	pgBufferUsage.shared_blks_read += 10;
	(void) process_pay(now_ns());
	CHECK_EQ(pg_atomic_read_u64(&shared.cost.used), 20);
	pace_end_work();
	pgBufferUsage.shared_blks_read += 1000000;
	pace_begin_work();
	pgBufferUsage.shared_blks_read += 5;
	(void) process_pay(now_ns());
	CHECK_EQ(pg_atomic_read_u64(&shared.cost.used), 30);
}

/*
 * test_all_processes_have_one_clock
 *		Whatever clock a session has chosen, as PostgreSQL 19 lets it: what another one has
 *		paid until is a time of this one, too.
 */
static void
test_all_processes_have_one_clock(void)
{
	for (int i = 0; i < 2; i++)
	{
		struct timespec before,
					after;
		uint64		now;

		timing_tsc_enabled = i == 1;
		ticks_per_ns_scaled = i == 1 ? 1 << 13 : 0;
		clock_gettime(CLOCK_MONOTONIC, &before);
		now = now_ns();
		clock_gettime(CLOCK_MONOTONIC, &after);
		timing_tsc_enabled = false;
		ticks_per_ns_scaled = 0;
		CHECK_BETWEEN(before.tv_sec * 1e9 + before.tv_nsec, now, after.tv_sec * 1e9 + after.tv_nsec);
	}
}

/*
 * test_who_is_at_work_is_counted
 *		For its VACUUM, and for the target that it has; and before there is a budget nothing
 *		is done.
 */
static void
test_who_is_at_work_is_counted(void)
{
	begin(1, INFINITY);
	my_pace.has_target = true;
	pace_begin_work();
	CHECK_EQ(pg_atomic_read_u32(&shared.cost.at_work), 1);
	CHECK_EQ(pg_atomic_read_u32(&shared.time.at_work), 1);
	pace_end_work();
	CHECK_EQ(pg_atomic_read_u32(&shared.cost.at_work), 0);
	CHECK_EQ(pg_atomic_read_u32(&shared.time.at_work), 0);
	my_pace.shared = NULL;
	shared.least = 7;
	pace_set_need(1);
	CHECK_EQ(shared.least, 7);
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_all_processes_have_one_clock);
	UNIT_RUN(test_the_least_rises_smoothly);
	UNIT_RUN(test_the_failsafe_may_come_at_once);
	UNIT_RUN(test_what_workers_have_used_is_not_paid_twice);
	UNIT_RUN(test_who_is_at_work_is_counted);
	return unit_end();
}
