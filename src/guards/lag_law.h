/*-------------------------------------------------------------------------
 *
 * lag_law.h
 *	  How much WAL vacuums may write a second so that standbys don't lag by more than
 *	  a bound.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LAG_LAW_H
#define CYCLONE_LAG_LAW_H

/* The law's memory of the standby that lags most; zeroed at first */
typedef struct LagLaw
{
	double		speed;			/* bytes that it replays a second */
	double		others;			/* bytes that others write a second */
	double		unreported;		/* seconds since it last told of progress */
} LagLaw;

/* The figures since the last step */
typedef struct LagSeen
{
	double		seconds;
	double		bound;			/* s */
	double		lag;			/* s */
	double		backlog;		/* bytes, now */
	double		replayed;		/* bytes, since then */
	double		written;		/* likewise, by all */
	double		ours;			/* of these */
} LagSeen;

/* Returns bytes a second.  Knows nothing of the server. */
extern double lag_law_step(LagLaw *law, const LagSeen *seen);

#endif							/* CYCLONE_LAG_LAW_H */
