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
static Budget of_all;

/* adaptive_time -- of all with an adaptive delay. */
Budget *
adaptive_time(void)
{
	return &of_all;
}

static double shown;			/* the rate in the view */

/* view_show -- note it. */
void
view_show(PaceShared *of, double cost, double asleep)
{
	shown = cost;
}

/* parking_adjust -- it has no workers. */
void
parking_adjust(Parking *parking, double asleep)
{
}

/* adaptive_tick_if_due -- nor an adaptive delay. */
void
adaptive_tick_if_due(uint64 now)
{
}

/* begin -- a VACUUM with this many workers at most, and this budget of cost a second. */
static void
begin(int workers, double rate)
{
	memset(&shared, 0, sizeof(shared));
	memset(&my_pace, 0, sizeof(my_pace));
	budget_init(&shared.cost);
	budget_init(&shared.time);
	budget_init(&of_all);
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
 *		For its VACUUM, and for all with an adaptive delay; and before there is a budget nothing
 *		is done.
 */
UNIT_TEST(test_who_is_at_work_is_counted)
{
	begin(1, INFINITY);
	my_pace.is_adaptive = true;
	pace_begin_work();
	CHECK_EQ(pg_atomic_read_u32(&shared.cost.at_work), 1);
	CHECK_EQ(pg_atomic_read_u32(&of_all.at_work), 1);
	pace_end_work();
	CHECK_EQ(pg_atomic_read_u32(&shared.cost.at_work), 0);
	CHECK_EQ(pg_atomic_read_u32(&of_all.at_work), 0);
	my_pace.shared = NULL;
	shared.needed = 7;
	pace_set_need(1);
	CHECK_EQ(shared.needed, 7);
}

/* test_what_the_server_makes_sleep_is_not_known -- so a cost of nothing isn't shown while a process leaves that to the server. */
UNIT_TEST(test_what_the_server_makes_sleep_is_not_known)
{
	begin(1, 1e5);
	pg_atomic_write_u32(&shared.with_server, 1);
	pace_tick_if_due(now_ns() + 2 * NS_A_TICK);
	CHECK(isnan(shown));
	pg_atomic_write_u32(&shared.with_server, 0);
	pace_tick_if_due(now_ns() + 4 * NS_A_TICK);
	CHECK_EQ(shown, 0);
}

/* What VACUUMs may do, and what may happen meanwhile */
typedef struct Course
{
	int			processes;
	bool		are_vacuums;	/* is each of them a VACUUM of its own? */
	double		added;
	double		needed;
	bool		changes;		/* are these factors, of which there is now all, now nothing? */
	bool		is_shared;		/* have others mostly used up what is added? */
	bool		is_even;		/* is all work alike? */
} Course;

#define PIECES	20000
#define TEAM	3
/* of even work, and of any on average: ns, and cost */
#define EVEN_TIME	(32 * NS_PER_US)
#define EVEN_COST	11

static uint64 begins[2][PIECES];

/*
 * course_run
 *		Work by chance, the same for all courses, by a cost delay of 200 a 2 ms and what is
 *		added.  The first process that is awake does the next piece.  Notes when each begins.
 */
static void
course_run(Course course, uint64 seed, uint64 *begins)
{
	static PaceShared others[TEAM];
	uint64		start = now_ns();
	uint64		awake_at[TEAM];

	begin(course.processes - 1, 1e5);
	unit_seed(seed);
	for (int i = 0; i < TEAM; i++)
	{
		awake_at[i] = start;
		others[i] = shared;
	}
	for (int piece = 0; piece < PIECES; piece++)
	{
		int			next = 0;
		uint64		takes = course.is_even ? EVEN_TIME : unit_number(5, 59) * NS_PER_US;
		int			cost = course.is_even ? EVEN_COST : unit_number(0, 2 * EVEN_COST);
		double		part = course.changes ? piece / 500 % 3 / 2.0 : 1;
		uint64		now,
					until;

		for (int i = 1; i < course.processes; i++)
			if (awake_at[i] < awake_at[next])
				next = i;
		begins[piece] = awake_at[next] - start;
		now = awake_at[next] + takes;
		my_pace.shared = course.are_vacuums ? &others[next] : &shared;
		my_pace.added = course.added * part;
		my_pace.needed = course.needed * part;
		my_pace.awake_since = awake_at[next];
		my_pace.accounted = (int64) process_cost_so_far() - cost;
		if (course.is_shared && piece % 7 != 0)
			pg_atomic_write_u64(&of_all.paid_until, now + piece % 5 * NS_PER_S);
		until = process_pay(now);
		awake_at[next] = until >= now + LEAST_NAP_NS ? until : now;
	}
}

/*
 * test_nobody_sleeps_for_longer_than_by_the_cost_delay
 *		Whatever is added, taken away again, or used up by others: each piece of work begins
 *		when it would by the cost delay alone, or earlier, but for the least nap.
 */
UNIT_TEST(test_nobody_sleeps_for_longer_than_by_the_cost_delay)
{
	static const double parts[] = {0, 1e-12, 0.001, 0.1, 1, 1e9};

	for (int i = 0; i < lengthof(parts) * 2 * 3 * TEAM; i++)
	{
		Course		course = {
			.processes = i % TEAM + 1,.changes = i / TEAM % 3 == 1,.is_shared = i / TEAM % 3 == 2,
			.added = parts[i / TEAM / 3 / 2],.needed = i / TEAM / 3 % 2 == 0 ? 0 : 0.05
		};

		unit_case("%d processes, %g added, %g needed, changes %d, shared %d",
				  course.processes, course.added, course.needed, course.changes, course.is_shared);
		course_run((Course) {course.processes}, i + 1, begins[0]);
		course_run(course, i + 1, begins[1]);
		for (int piece = 0; piece < PIECES; piece++)
			CHECK(begins[1][piece] <= begins[0][piece] + 2 * LEAST_NAP_NS);
	}
}

/*
 * test_budgets_add_up
 *		All that the cost delay allows, that the adaptive delay adds, and that is needed.  Each VACUUM
 *		has the first and the last, and all of them share what is added.
 */
UNIT_TEST(test_budgets_add_up)
{
	static const double cases[][2] = {{0, 0}, {0.1, 0}, {0.02, 0}, {0, 0.1}, {0.1, 0.2}};

	for (int i = 0; i < lengthof(cases) * 2 * TEAM; i++)
	{
		const double *parts = cases[i / 2 / TEAM];
		Course		course = {i % TEAM + 1, i / TEAM % 2 == 1, parts[0], parts[1],.is_even = true};
		int			vacuums = course.are_vacuums ? course.processes : 1;
		double		pieces = vacuums * 1e5 / EVEN_COST + (parts[0] + vacuums * parts[1]) * NS_PER_S / EVEN_TIME;

		unit_case("%d processes, %d VACUUMs, %g added, %g needed", course.processes, vacuums, parts[0], parts[1]);
		course_run(course, i + 1, begins[0]);
		CHECK_BETWEEN(0.95, begins[0][PIECES - 1] / (double) NS_PER_S * pieces / PIECES, 1.05);
	}
}
