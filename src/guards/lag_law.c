/*-------------------------------------------------------------------------
 *
 * lag_law.c
 *	  How much WAL vacuums may write a second so that standbys don't lag by more than
 *	  a bound.
 *
 * README.md has the law, and why it is one of the backlog.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "guards/guards_state.h"

/* The wanted part of the backlog that the bound allows */
#define PART				0.4
/* The part of the bound in which a difference is made good */
#define TIME_PART			0.35
/* A standby that has more than this to do, in seconds, has a backlog. */
#define BUSY_SECONDS		0.3
/* An unknown standby is taken for a slow one; the guess grows at this rate. */
#define FIRST_SPEED			(4.0 * 1024 * 1024)
#define GROWTH_A_SECOND		1.0
/* Measured speeds are averaged over this time, in seconds. */
#define AVERAGE_SECONDS		1.0
/* This much is always written, or a standby would have nothing to report. */
#define LEAST_RATE			(32.0 * 1024)

static void learn_speed(LagLaw *law, const LagSeen *seen);

/*
 * lag_law_step
 *		Return how much vacuums may write a second from now on, given the figures of the
 *		last step.
 */
double
lag_law_step(LagLaw *law, const LagSeen *seen)
{
	double		rate;

	Assert(seen->seconds > 0 && seen->bound > 0);
	if (law->speed <= 0)
		law->speed = FIRST_SPEED;
	law->unreported += seen->seconds;
	if (seen->replayed > 0)
		learn_speed(law, seen);
	if (seen->replayed > 0 || seen->backlog <= 0)
		law->unreported = 0;

	if (seen->lag >= seen->bound)
		return 0;
	rate = law->speed + (PART * seen->bound * law->speed - seen->backlog) / (TIME_PART * seen->bound);
	return Max(rate, LEAST_RATE);
}

/* learn_speed -- the standby has told of progress: how fast has it been since it last did? */
static void
learn_speed(LagLaw *law, const LagSeen *seen)
{
	double		part = Min(law->unreported / AVERAGE_SECONDS, 1);
	double		replayed = seen->replayed / law->unreported;

	if (seen->backlog > law->speed * BUSY_SECONDS)
		law->speed += (replayed - law->speed) * part;
	else if (replayed * 2 > law->speed)
		law->speed *= 1 + GROWTH_A_SECOND * Min(law->unreported, 1);
	law->speed = Max(law->speed, LEAST_RATE);
}
