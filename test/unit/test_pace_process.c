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
static Budget of_target;

/* target_time -- of the only target. */
Budget *
target_time(void)
{
	return &of_target;
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
	budget_init(&of_target);
	shared.parking.most = workers;
	my_pace.shared = &shared;
	my_pace.rate = rate;
	my_pace.settings.page_miss = 2;
	my_pace.settings.cost_limit = 200;
}

/* needed_at -- how many processes may be at work beyond all budgets, at this age of the table. */
static double
needed_at(double age)
{
	pace_set_need(need_of_age(age, 200000000, 1600000000));
	return shared.needed;
}

/*
 * test_what_is_needed_rises_smoothly
 *		From nothing at autovacuum_freeze_max_age to all processes at vacuum_failsafe_age: with
 *		the floor, with each million transactions by the same small part, so nowhere does it leap.
 */
UNIT_TEST(test_what_is_needed_rises_smoothly)
{
	for (int workers = 0; workers <= 255; workers = 2 * workers + 1)
	{
		double		before;

		unit_case("%d workers", workers);
		begin(workers, INFINITY);
		CHECK_EQ(needed_at(0), 0);
		CHECK_EQ(needed_at(-5), 0);
		before = needed_at(200e6);
		CHECK_EQ(before, 0);
		for (double age = 201e6; age <= 1600e6; age += 1e6)
		{
			double		needed = needed_at(age);

			CHECK_BETWEEN(1.001, (FLOOR_BUDGET + needed) / (FLOOR_BUDGET + before), 1.006);
			before = needed;
		}
		CHECK_BETWEEN((workers + 1) * 0.999, before, (workers + 1) * 1.001);
		CHECK_EQ(needed_at(2e9), before);
	}
}

/*
 * test_the_failsafe_may_come_at_once
 *		As with the server, not before 1.05 times autovacuum_freeze_max_age.  What is needed
 *		rises before that, too.
 */
UNIT_TEST(test_the_failsafe_may_come_at_once)
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
UNIT_TEST(test_what_workers_have_used_is_not_paid_twice)
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
UNIT_TEST(test_all_processes_have_one_clock)
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
UNIT_TEST(test_who_is_at_work_is_counted)
{
	begin(1, INFINITY);
	my_pace.has_target = true;
	pace_begin_work();
	CHECK_EQ(pg_atomic_read_u32(&shared.cost.at_work), 1);
	CHECK_EQ(pg_atomic_read_u32(&of_target.at_work), 1);
	pace_end_work();
	CHECK_EQ(pg_atomic_read_u32(&shared.cost.at_work), 0);
	CHECK_EQ(pg_atomic_read_u32(&of_target.at_work), 0);
	my_pace.shared = NULL;
	shared.needed = 7;
	pace_set_need(1);
	CHECK_EQ(shared.needed, 7);
}

/* What a VACUUM may do, and what may happen meanwhile */
typedef struct Course
{
	int			processes;
	double		added;
	double		needed;
	bool		changes;		/* are these factors, of which there is now all, now nothing? */
	bool		is_shared;		/* have others mostly used up what is added? */
	bool		is_even;		/* does each piece of work take 30 us, and a cost
								 * of 11? */
} Course;

#define PIECES	20000
#define TEAM	3

/*
 * course_run
 *		Pages by chance, by a cost delay of 200 a 2 ms and what is added; the same pages for
 *		all courses.  Notes when each piece of work begins, which is the first process's that
 *		is awake.  Returns the seconds that all takes.
 */
static double
course_run(Course course, uint64 seed, uint64 *begins)
{
	uint64		start = now_ns();
	uint64		free_at[TEAM];
	Pace		processes[TEAM];

	begin(course.processes - 1, 1e5);
	unit_seed(seed);
	pg_atomic_write_u32(&shared.cost.at_work, course.processes);
	my_pace.added = course.added;
	my_pace.needed = course.needed;
	for (int i = 0; i < course.processes; i++)
	{
		free_at[i] = start;
		processes[i] = my_pace;
	}
	for (int piece = 0; piece < PIECES; piece++)
	{
		int			next = 0;
		int			takes = (course.is_even ? 30 : unit_number(5, 60)) * NS_PER_US;
		int			cost = course.is_even ? 11 : unit_number(0, 22);
		double		part = course.changes ? piece / 500 % 3 / 2.0 : 1;
		uint64		now,
					until;

		for (int i = 1; i < course.processes; i++)
			if (free_at[i] < free_at[next])
				next = i;
		begins[piece] = free_at[next] - start;
		my_pace = processes[next];
		my_pace.added = course.added * part;
		my_pace.needed = course.needed * part;
		my_pace.awake_since = free_at[next];
		my_pace.settings.page_hit = cost;
		my_pace.accounted = (int64) process_cost_so_far() - cost;
		now = free_at[next] + takes;
		if (course.is_shared && piece % 7 != 0)
			pg_atomic_write_u64(&of_target.paid_until, now + piece % 5 * NS_PER_S);
		until = process_pay(now);
		free_at[next] = until >= now + LEAST_NAP_NS ? until : now;
		processes[next] = my_pace;
	}
	return begins[PIECES - 1] / (double) NS_PER_S;
}

/*
 * test_nobody_sleeps_for_longer_than_by_the_cost_delay
 *		Whatever is added, takes it away again, or uses it up: each piece of work begins when
 *		it would by the cost delay alone, or earlier, but for the least nap.
 */
UNIT_TEST(test_nobody_sleeps_for_longer_than_by_the_cost_delay)
{
	static uint64 alone[PIECES];
	static uint64 with[PIECES];
	static const double parts[] = {0, 1e-12, 0.001, 0.1, 1, INFINITY};

	for (int i = 0; i < lengthof(parts) * 2 * 3 * TEAM; i++)
	{
		Course		course = {
			.processes = i % TEAM + 1,.changes = i / TEAM % 3 == 1,.is_shared = i / TEAM % 3 == 2,
			.added = parts[i / TEAM / 3 / 2],.needed = i / TEAM / 3 % 2 == 0 ? 0 : 0.05
		};

		if (isinf(course.added) && course.changes)
			course.added = 1e9;
		unit_case("%d processes, %g added, %g needed, changes %d, shared %d",
				  course.processes, course.added, course.needed, course.changes, course.is_shared);
		(void) course_run((Course) {.processes = course.processes}, i + 1, alone);
		(void) course_run(course, i + 1, with);
		for (int piece = 0; piece < PIECES; piece++)
			CHECK(with[piece] <= alone[piece] + 2 * LEAST_NAP_NS);
	}
}

/*
 * test_budgets_add_up
 *		What the cost delay allows, what the target adds and what is needed: all of each.
 */
UNIT_TEST(test_budgets_add_up)
{
	static uint64 begins[PIECES];
	static const struct
	{
		double		added;
		double		needed;
	}			cases[] = {{0, 0}, {0.1, 0}, {0.02, 0}, {0, 0.1}, {0.1, 0.2}};

	for (int i = 0; i < lengthof(cases); i++)
		for (int processes = 1; processes <= TEAM; processes++)
		{
			Course		course = {processes, cases[i].added, cases[i].needed,.is_even = true};
			double		pieces = 1e5 / 11 + (cases[i].added + cases[i].needed) / 30e-6;

			unit_case("%g added, %g needed, %d processes", cases[i].added, cases[i].needed, processes);
			CHECK_BETWEEN(0.95, course_run(course, i + 1, begins) * pieces / PIECES, 1.05);
		}
}
