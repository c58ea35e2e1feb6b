/*-------------------------------------------------------------------------
 *
 * lag_law.c
 *	  How much WAL vacuums may write a second so that standbys don't lag by more than
 *	  a bound.
 *
 * Lag tells too late.  Who writes ten times as fast as a standby replays sees it lag
 * by a second after a second, and has written what it will be busy with for ten.  So
 * what counts is the backlog, the bytes that it has not replayed, and how fast it
 * replays: their quotient is the lag that there will be even if nothing more is
 * written.  The law keeps the backlog at a part of what the bound allows:
 *
 *		rate = speed + (PART * bound * speed - backlog) / time
 *
 * At the wanted backlog that is the standby's own speed; it falls smoothly beyond, and
 * is nothing at the bound.  What others write is taken off.
 *
 * How fast a standby is can be seen only while it has a backlog.  While it has none
 * it is thought to be somewhat faster than what it was given, so the rate goes up
 * until it has one, or until vacuums write as fast as they can.
 *
 * Nothing here knows of the server: test/pytest/test_guards_law.py simulates it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "guards/lag_law.h"

/* So much of the backlog that the bound allows is wanted. */
#define PART				0.5
/* In this part of the bound a difference is made good. */
#define TIME_PART			0.5
/* A standby that has more than this to do, in seconds, has a backlog. */
#define BUSY_SECONDS		0.3
/* What is not known yet is a slow standby; and so fast does the guess grow. */
#define FIRST_SPEED			(4.0 * 1024 * 1024)
#define GROWTH_A_SECOND		1.0
/* Measured speeds are averaged over so long. */
#define AVERAGE_SECONDS		1.0
/* So little is always written, lest a standby has nothing to answer to. */
#define LEAST_RATE			(32.0 * 1024)

/*
 * lag_law_step
 *		What vacuums may write a second from now on, after so many seconds in which this
 *		was seen.
 */
double
lag_law_step(LagLaw *law, const LagSeen *seen)
{
	double		part = Min(seen->seconds / AVERAGE_SECONDS, 1);
	double		replayed = seen->replayed / seen->seconds;
	double		others = Max(seen->written - seen->ours, 0) / seen->seconds;
	double		rate;

	if (law->speed <= 0)
		law->speed = FIRST_SPEED;
	if (seen->backlog > law->speed * BUSY_SECONDS)
		law->speed += (replayed - law->speed) * part;
	else if (replayed * 2 > law->speed)
		law->speed *= 1 + GROWTH_A_SECOND * Min(seen->seconds, 1);
	law->speed = Max(law->speed, LEAST_RATE);
	law->others += (others - law->others) * part;

	if (seen->lag >= seen->bound)
		return 0;
	rate = law->speed + (PART * seen->bound * law->speed - seen->backlog) / (TIME_PART * seen->bound);
	return Max(rate - law->others, LEAST_RATE);
}
