/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  Clocks that processes share: up to which moment they have paid for what they used.
 *
 * The budgets of the pace and the guards use them.
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

/* At most this much of an unused budget is kept. */
#define CREDIT_NS			(50 * (uint64) NS_PER_MS)

/*
 * now_ns
 *		Nanoseconds since some moment, the same for all processes.
 *
 * The server's own clock isn't: since version 19 each session chooses its source
 * (timing_clock_source), and each source begins at another moment.
 */
static inline uint64
now_ns(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64) now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* clock_pay -- move a clock on by a price in ns; returns the moment until which the caller sleeps. */
static inline uint64
clock_pay(pg_atomic_uint64 *paid_until, uint64 now, uint64 price)
{
	uint64		before = pg_atomic_read_u64(paid_until);
	uint64		until;

	do
	{
		until = Max(before, now - CREDIT_NS) + price;
	} while (!pg_atomic_compare_exchange_u64(paid_until, &before, until));
	return until;
}

/* write_double -- write a number atomically. */
static inline void
write_double(pg_atomic_uint64 *place, double value)
{
	uint64		bits;

	memcpy(&bits, &value, sizeof(bits));
	pg_atomic_write_u64(place, bits);
}

/* read_double -- read a number that write_double has written. */
static inline double
read_double(pg_atomic_uint64 *place)
{
	uint64		bits = pg_atomic_read_u64(place);
	double		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

#endif							/* CYCLONE_CLOCK_H */
