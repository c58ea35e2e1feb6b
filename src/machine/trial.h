/*-------------------------------------------------------------------------
 *
 * trial.h
 *	  Whether the system lets us make a call.
 *
 * See trial.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TRIAL_H
#define CYCLONE_TRIAL_H

/* In the postmaster, while the library is preloaded: did a child survive the call?  No errors. */
extern bool trial_survived(bool (*call) (void), bool *result);

#endif							/* CYCLONE_TRIAL_H */
