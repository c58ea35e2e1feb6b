/*-------------------------------------------------------------------------
 *
 * test_parking.c
 *	  How many workers a budget feeds, and others leave cores for: the laws of
 *	  pace/parking.c and neighbours/neighbours.c.
 *
 * test_parking.py tests them in a server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "debug_point.h"

/* what another process does while this one works out how many it feeds */
#undef DEBUG_LIMIT
#define DEBUG_LIMIT(name, usual)	(before_##name(), (usual))
#define before_cores()		((void) 0)
#define before_parking()	((void) 0)
static void before_fed(void);

#include "neighbours/neighbours.c"
#include "pace/parking.c"
#include "unit.h"

#define WORKERS		7

int			MaxBackends = 3;	/* a leader and two workers, which are parked */
static PGPROC procs[3];
static PROC_HDR all = {.allProcs = procs};
PROC_HDR   *ProcGlobal = &all;
static int	nwoken = 0;

/* SetLatch -- a worker is woken. */
void
SetLatch(Latch *latch)
{
	nwoken++;
}

#define MOST_TICKS	100

static uint32 history[MOST_TICKS];	/* workers that were wanted after each
									 * tick */
static Parking parking;
static bool other_lifts_bound = false;

/* before_fed -- see the top. */
static void
before_fed(void)
{
	if (other_lifts_bound)
		parking_set_bound(&parking, false, INFINITY);
}

/*
 * simulate
 *		A team whose budget feeds this many processes, and another number of them from
 *		tick 20 to 60.
 */
static void
simulate(double budget, double budget_then, int ticks, uint32 wanted)
{
	for (int tick = 0; tick < ticks; tick++)
	{
		uint32		taken = Min(wanted, WORKERS);
		double		now = tick >= 20 && tick < 60 ? budget_then : budget;
		double		busy = Min(now * (0.95 + 0.1 * unit_chance()), 1 + taken);

		wanted = Min(parking_law(wanted, taken, 1 + taken - busy), WORKERS);
		history[tick] = wanted;
	}
}

/*
 * test_as_many_as_the_budget_feeds
 *		However it begins: no fewer than can use the budget, and no process more than
 *		that and one for the rounding; and nobody comes and goes.
 */
UNIT_TEST(test_as_many_as_the_budget_feeds)
{
	static const double budgets[] = {0.01, 0.3, 0.8, 1.5, 2.4, 3.5, 20};

	for (int i = 0; i < lengthof(budgets); i++)
		for (int first = 0; first <= WORKERS; first += WORKERS)
			for (int seed = 1; seed <= 20; seed++)
			{
				unit_case("budget %g, %d at first, seed %d", budgets[i], first, seed);
				unit_seed(seed);
				simulate(budgets[i], budgets[i], 60, first);
				CHECK(budgets[i] <= history[20] + 1.1 || history[20] == WORKERS);
				CHECK(history[20] <= budgets[i] + 0.5);
				for (int tick = 21; tick < 60; tick++)
					CHECK_EQ(history[tick], history[20]);
			}
}

/*
 * test_the_budget_changes
 *		From a process's share to that of nearly three, and back: four ticks a second,
 *		and it takes no more than two.
 */
UNIT_TEST(test_the_budget_changes)
{
	simulate(0.5, 2.6, 100, 0);
	CHECK_EQ(history[19], 0);
	CHECK_EQ(history[28], 2);
	CHECK_EQ(history[59], 2);
	CHECK_EQ(history[68], 0);
	CHECK_EQ(history[99], 0);
}

/* test_nobody_is_called_before_those_who_were_called_are_there -- none may be had. */
UNIT_TEST(test_nobody_is_called_before_those_who_were_called_are_there)
{
	uint32		wanted = 0;

	for (int tick = 0; tick < 10; tick++)
		wanted = parking_law(wanted, 0, 0);
	CHECK_EQ(wanted, 1);
	CHECK_EQ(parking_law(PARKING_ALL, 3, 0), PARKING_ALL);
	CHECK_EQ(parking_law(PARKING_ALL, PARKING_ALL, 0), PARKING_ALL);
	CHECK_EQ(parking_law(0, 0, 5), 0);	/* nor less than nobody */
	CHECK_EQ(parking_law(1, 1, 1.2), 1);
	CHECK_EQ(parking_law(1, 1, 1.3), 0);
}

/*
 * test_a_bound_that_was_lifted_binds_nobody
 *		One process still takes the old budget while another takes that there is none.  Soon
 *		the first one learns it, too.
 */
UNIT_TEST(test_a_bound_that_was_lifted_binds_nobody)
{
	parked_for = palloc0(3 * sizeof(pg_atomic_uint32));
	for (int i = 0; i < 2; i++)
	{
		unit_case("%s", i == 0 ? "one after the other" : "at the same time");
		parking_set_up(&parking, 0, WORKERS);
		other_lifts_bound = i == 1;
		parking_set_bound(&parking, true, 2.5);
		other_lifts_bound = false;
		if (i == 0)
			CHECK_EQ(pg_atomic_read_u32(&parking.wanted), 2);
		pg_atomic_write_u32(&parked_for[1], 1);
		pg_atomic_write_u32(&parked_for[2], 1);
		nwoken = 0;
		parking_adjust(&parking, 5);
		parking_set_bound(&parking, false, INFINITY);
		CHECK_BETWEEN(3, nwoken, 4);
		CHECK_EQ(pg_atomic_read_u32(&parking.wanted), PARKING_ALL);
		parking_adjust(&parking, 5);
		CHECK_EQ(pg_atomic_read_u32(&parking.wanted), PARKING_ALL);
	}
}

/* test_others_have_as_many_cores_as_they_want -- but the leader goes on. */
UNIT_TEST(test_others_have_as_many_cores_as_they_want)
{
	static const struct
	{
		double		others;
		int			cores;
		uint32		room;
	}			cases[] = {
		{0, 2, PARKING_ALL}, {0.01, 1, PARKING_ALL}, {0.3, 2, 0}, {0.3, 4, 2},
		{1, 4, 2}, {1.1, 4, 1}, {9, 4, 0}, {3.2, 64, 59},
	};

	for (int i = 0; i < lengthof(cases); i++)
	{
		unit_case("%g others, %d cores", cases[i].others, cases[i].cores);
		CHECK_EQ(neighbours_law(cases[i].others, cases[i].cores), cases[i].room);
	}
}

/*
 * average_of
 *		The average of others after these looks, the first ones of a session; the
 *		looks repeat themselves.  No average before is more than the most.
 */
static double
average_of(const char *looks, int nlooks, double seconds, double most)
{
	NeighboursSeen seen = {0};
	int			length = (int) strlen(looks);

	for (int i = 0; i < nlooks; i++)
	{
		/* the last one stands for all that follow */
		neighbours_note(&seen, looks[Min(i, length - 1)] - '0', i == 0 ? 1e6 : seconds);
		CHECK(seen.average <= most);
	}
	return seen.average;
}

/*
 * test_no_single_look_at_others_decides
 *		Neither the first one, nor one by the timer in the server's code, nor one after
 *		a pause; but who is there for long is seen soon.
 */
UNIT_TEST(test_no_single_look_at_others_decides)
{
	static const double seconds[] = {0.05, 0.5, 60};

	CHECK_EQ(average_of("9000", 4, 0.05, 0), 0);
	for (int i = 0; i < lengthof(seconds); i++)
		CHECK_EQ(average_of("000900900", 9, seconds[i], 0), 0);
	CHECK_BETWEEN(2.9999, average_of("3", 3, 0.05, 3), 3);	/* all that is known */
	CHECK_BETWEEN(1.9999, average_of("222022", 6, 0.05, 2), 2); /* nor does one of
																 * nobody */
	CHECK(average_of("0001", 23, 0.05, 1) > 0.8);	/* a second */
	CHECK(average_of("0001", 7, 0.5, 1) > 0.8); /* two seconds in the server's
												 * code */
}
