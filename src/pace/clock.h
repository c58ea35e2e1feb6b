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

#include <time.h>

#include "port/atomics.h"
#include "portability/instr_time.h"

/* Ticks come that often. */
#define NS_A_TICK			(NS_PER_S / 4)
/* Of an unused budget so much remains. */
#define CREDIT_NS			(50 * (uint64) NS_PER_MS)

/* now_ns -- nanoseconds since some moment. */
static inline uint64
now_ns(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_NANOSEC(now);
}

/*
 * coarse_now_ns
 *		The same with the resolution of the kernel's ticks, some milliseconds: for
 *		what happens millions of times a second, as reading it costs next to nothing.
 */
static inline uint64
coarse_now_ns(void)
{
#ifdef CLOCK_MONOTONIC_COARSE
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return now.tv_sec * (uint64) NS_PER_S + now.tv_nsec;
#else
	return now_ns();
#endif
}

/*
 * pay
 *		Move a clock that processes share, which says until when all is paid for,
 *		on by the time (ns) that something costs; returns what it says then.
 */
static inline uint64
pay(pg_atomic_uint64 *paid_until, uint64 now, uint64 price)
{
	uint64		before = pg_atomic_read_u64(paid_until);
	uint64		until;

	do
	{
		until = Max(before, now - CREDIT_NS) + price;
	} while (!pg_atomic_compare_exchange_u64(paid_until, &before, until));
	return until;
}

/* write_double -- atomically. */
static inline void
write_double(pg_atomic_uint64 *place, double value)
{
	uint64		bits;

	memcpy(&bits, &value, sizeof(bits));
	pg_atomic_write_u64(place, bits);
}

/* read_double -- likewise. */
static inline double
read_double(pg_atomic_uint64 *place)
{
	uint64		bits = pg_atomic_read_u64(place);
	double		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

#endif							/* CYCLONE_CLOCK_H */
