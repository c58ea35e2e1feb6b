/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  A clock that all processes share, for the pace of a vacuum.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CLOCK_H
#define CYCLONE_CLOCK_H

#include "portability/instr_time.h"

/* now_ns -- nanoseconds since some moment. */
static inline uint64
now_ns(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_NANOSEC(now);
}

#endif							/* CYCLONE_CLOCK_H */
