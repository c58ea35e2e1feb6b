/*-------------------------------------------------------------------------
 *
 * test_lag_law.c
 *	  The law that bounds the lag of standbys, in simulation: a standby replays what
 *	  was written, and tells of it late.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "guards/lag_law.c"
#include "unit.h"

#define MB			(1024.0 * 1024.0)
#define FINE		0.05		/* seconds of a step of the simulation */
#define LOOK		5			/* steps from one look to the next */
#define SECONDS		300
#define STEPS		6000		/* SECONDS / FINE */
#define SPEED		(40 * MB)	/* of what vacuums write without a bound */
#define NOISE		0.2

typedef struct Standby
{
	double		speed;			/* bytes that it replays a second */
	double		slow_speed;		/* for a minute, if it isn't 0 */
	double		every;			/* seconds from one report to the next */
	double		delay;			/* seconds until a report is known */
} Standby;

/* What came of a simulation */
static double greatest_lag;
static double vacuum_rate;

/* replayed_within -- how much a standby replays in a step. */
static double
replayed_within(const Standby *standby, double time)
{
	bool		is_slow = standby->slow_speed > 0 && time > 100 && time < 160;

	return (is_slow ? standby->slow_speed : standby->speed) * FINE * (1 + NOISE * (2 * unit_chance() - 1));
}

/* simulate -- vacuums write as they may, others so much a second. */
static void
simulate(const Standby *standby, double bound, double others)
{
	static double written_at[STEPS + 1];
	static double reported_at[STEPS + 1];
	LagLaw		law = {0};
	LagSeen		seen = {.seconds = LOOK * FINE,.bound = bound};
	double		rate = lag_law_step(&law, &seen);
	double		ours = 0,
				written = 0,
				replayed = 0,
				next_report = 0,
				last_known = 0;
	int			done = 0,		/* the last step whose WAL is all replayed */
				known_done = 0; /* as far as reports tell */

	greatest_lag = 0;
	for (int step = 1; step <= STEPS; step++)
	{
		double		time = step * FINE;
		double		mine = Min(rate, SPEED) * FINE;
		double		known;

		ours += mine;
		written += mine + others * FINE;
		written_at[step] = written;
		replayed = Min(written, replayed + replayed_within(standby, time));
		reported_at[step] = reported_at[step - 1];
		if (time >= next_report)
		{
			reported_at[step] = replayed;
			next_report = time + standby->every;
		}
		while (done < step && written_at[done + 1] <= replayed)
			done++;
		if (replayed < written)
			greatest_lag = Max(greatest_lag, (step - done) * FINE);
		if (step % LOOK != 0)
			continue;

		known = reported_at[Max(0, step - (int) (standby->delay / FINE))];
		while (known_done < step && written_at[known_done + 1] <= known)
			known_done++;
		seen.lag = known < written ? (step - known_done) * FINE : 0;
		seen.backlog = written - known;
		seen.replayed = known - last_known;
		rate = lag_law_step(&law, &seen);
		last_known = known;
	}
	vacuum_rate = ours / SECONDS;
}

/*
 * test_lag_stays_within_its_bound -- and hardly anything is lost: 80 % of the best
 * constant rate, of standbys of half, equal and double the speed of vacuums.
 */
UNIT_TEST(test_lag_stays_within_its_bound)
{
	const double factors[] = {0.5, 1, 2},
				bounds[] = {5, 10, 60},
				delays[] = {0.05, 0.2, 1},
				shares[] = {0, 0.2, 0.5, 0.8};

	for (int f = 0; f < lengthof(factors); f++)
		for (int b = 0; b < lengthof(bounds); b++)
			for (int d = 0; d < lengthof(delays); d++)
				for (int s = 0; s < lengthof(shares); s++)
					for (uint64 seed = 0; seed < 3; seed++)
					{
						Standby		standby = {.speed = factors[f] * SPEED,.delay = delays[d]};
						double		others = shares[s] * standby.speed;

						unit_case("factor %g, bound %g s, delay %g s, others' share %g", factors[f], bounds[b], delays[d], shares[s]);
						unit_seed(seed);
						simulate(&standby, bounds[b], others);
						CHECK_BETWEEN(0, greatest_lag, (others > 0 ? 0.8 : 0.5) * bounds[b]);
						CHECK_BETWEEN(0.8 * Min(SPEED, standby.speed - others), vacuum_rate, SPEED);
					}
}

/* test_a_standby_that_becomes_slower_and_faster_again -- a fifth of the speed of vacuums for a minute, and then twice that speed. */
UNIT_TEST(test_a_standby_that_becomes_slower_and_faster_again)
{
	const Standby standby = {.speed = 2 * SPEED,.slow_speed = SPEED / 5,.delay = 0.2};

	for (uint64 seed = 0; seed < 3; seed++)
	{
		unit_seed(seed);
		simulate(&standby, 10, 0);
		CHECK_BETWEEN(0, greatest_lag, 12);
		CHECK_BETWEEN(0.8 * (SPEED * 240 + SPEED / 5 * 60) / SECONDS, vacuum_rate, SPEED);
	}
}

/* test_a_follower_that_confirms_seldom -- up to nearly the bound apart: nearly as much as of one that reports at once. */
UNIT_TEST(test_a_follower_that_confirms_seldom)
{
	const double factors[] = {0.5, 1, 2},
				everies[] = {1, 2.5, 5, 8};

	for (int f = 0; f < lengthof(factors); f++)
		for (int e = 0; e < lengthof(everies); e++)
		{
			const Standby standby = {.speed = factors[f] * SPEED,.every = everies[e],.delay = 0.2};

			unit_case("factor %g, every %g s", factors[f], everies[e]);
			unit_seed(1);
			simulate(&standby, 10, 0);
			CHECK_BETWEEN(0, greatest_lag, 12);
			CHECK_BETWEEN(0.8 * Min(SPEED, standby.speed), vacuum_rate, SPEED);
		}
}

/* test_a_follower_that_stands_still_after_a_report -- its speed before is no reason to write on. */
UNIT_TEST(test_a_follower_that_stands_still_after_a_report)
{
	LagLaw		law = {.speed = SPEED,.unreported = 5};
	const LagSeen seen = {.seconds = LOOK * FINE,.bound = 10,.lag = 8,.backlog = 10 * SPEED};

	CHECK_EQ(lag_law_step(&law, &seen), 32 * 1024);
	CHECK_EQ(law.speed, SPEED);
	CHECK_EQ(law.unreported, 5 + LOOK * FINE);
}

/* test_a_standby_that_stands_still_stops_vacuum -- but for what had been written before; and it goes on when the standby does. */
UNIT_TEST(test_a_standby_that_stands_still_stops_vacuum)
{
	LagLaw		law = {0};
	LagSeen		seen = {.seconds = LOOK * FINE,.bound = 10};

	(void) lag_law_step(&law, &seen);
	seen.backlog = 100 * MB;
	seen.lag = 10;
	CHECK_EQ(lag_law_step(&law, &seen), 0);
	seen.lag = 9.9;
	CHECK_BETWEEN(1, lag_law_step(&law, &seen), SPEED);
}
