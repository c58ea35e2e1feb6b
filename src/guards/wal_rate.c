/*-------------------------------------------------------------------------
 *
 * wal_rate.c
 *	  How much WAL all vacuums of the server write a second.
 *
 * All processes of all vacuums move one clock, as they do for the cost budgets, by
 * the bytes that they have written since they were last here, images included.  They
 * sleep until the clock says that their bytes are paid for.  Where pages are pinned they
 * sleep for no longer than LONGEST_NAP_MS at a time, and for the rest at the next points.
 *
 * The rate is the lesser one of cyclone.max_wal_rate and what standbys can follow
 * (lag.c).  It is the server's, so it is in shared memory; each leader writes there
 * what its parameters say, when it begins and after each reload.  If the rate
 * changes, what is not paid for yet is priced anew: no process waits for hours at a
 * rate that was in force for a moment.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "guards/guards.h"
#include "guards/guards_state.h"
#include "clock.h"

/* The shortest nap that is of use, and the longest at a time */
#define LEAST_NAP_NS		((uint64) NS_PER_MS)
#define LONGEST_NAP_MS		100
/* WAL that takes less time at that rate isn't looked at, up to this number of bytes. */
#define CHARGE_SECONDS		0.002
#define GREATEST_CHARGE		(256 * 1024.0)
/* No debt takes longer to pay, so the clock never overflows. */
#define LONGEST_DEBT_NS		1e18
/* The view's figure of WAL is measured over this time. */
#define MEASURE_NS			((uint64) NS_PER_S)

static bool is_exempt(Guard guard);
static double rate_in_force(Guard *guard);
static void price_anew(double rate, uint64 now);
static void pay(double rate, uint64 now, double bytes);
static void price_all_anew(double rate, uint64 now);
static void measure(uint64 now);

/*
 * wal_rate_is_due
 *		Has this process written as much as is worth a look at the clock, or not paid
 *		for what it wrote?
 */
bool
wal_rate_is_due(void)
{
	Guard		guard;
	double		rate = rate_in_force(&guard);
	uint64		written = guards_wal_bytes() - guarded.wal_bytes;

	Assert(guarded.vacuum != NULL);

	if ((isinf(rate) && pg_atomic_read_u32(&guards_shared->max_lag_ms) == 0) || is_exempt(guard))
	{
		guarded.wal_bytes += written;
		guarded.wal_paid_until = 0;
		return false;
	}
	return guarded.wal_paid_until != 0 || written > Min(rate * CHARGE_SECONDS, GREATEST_CHARGE);
}

/* wal_rate_account -- account for what this process has written. */
void
wal_rate_account(uint64 now)
{
	uint64		written = guards_wal_bytes() - guarded.wal_bytes;
	Guard		guard;
	double		rate = rate_in_force(&guard);

	Assert(guarded.vacuum != NULL);
	price_anew(rate, now);
	guarded.wal_bytes += written;
	if (written > 0 && !isinf(rate))
		pay(rate, now, written);
	pg_atomic_fetch_add_u64(&guards_shared->wal_written, written);
	measure(now);
	/* less than the least nap is slept with what comes next */
	if (guarded.wal_paid_until < now + LEAST_NAP_NS)
		guarded.wal_paid_until = 0;
	else
		pg_atomic_write_u64(&guarded.vacuum->waited_at[guard], now);
}

/*
 * wal_rate_sleep
 *		Sleep until this process's WAL is paid for, or for a moment only if it has pages
 *		pinned.
 */
void
wal_rate_sleep(void)
{
	Assert(guarded.vacuum != NULL);
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	while (guarded.wal_paid_until != 0 && !guards_hold_is_due())
	{
		uint64		now = now_ns();
		Guard		guard;
		double		rate = rate_in_force(&guard);

		price_anew(rate, now);
		if (isinf(rate) || is_exempt(guard) || guarded.wal_paid_until < now + LEAST_NAP_NS)
		{
			guarded.wal_paid_until = 0;
			break;
		}
		guards_begin_hold(guard);
		guards_nap(Min((guarded.wal_paid_until - now) / NS_PER_MS, LONGEST_NAP_MS), guard);
		pg_atomic_write_u64(&guarded.vacuum->waited_at[guard], now_ns());
		guards_end_hold(guard);
		if (guarded.pins > 0)
			break;
		if (guarded.while_held != NULL)
			guarded.while_held();
		guards_look_at_standbys(now_ns());
	}
}

/* is_exempt -- has this vacuum no time for that guard? */
static bool
is_exempt(Guard guard)
{
	Assert(guard < NUM_GUARDS && guarded.vacuum != NULL);
	return VacuumFailsafeActive || pg_atomic_read_u32(&guarded.vacuum->is_in_a_hurry) != 0 ||
		(guard == GUARD_LAG && pg_atomic_read_u32(&guarded.vacuum->is_urgent) != 0);
}

/* rate_in_force -- in bytes a second, INFINITY if there is none; and which guard sets it. */
static double
rate_in_force(Guard *guard)
{
	uint64		wal_rate = pg_atomic_read_u64(&guards_shared->wal_rate);
	double		lag_rate = read_double(&guards_shared->lag_rate);
	double		rate = wal_rate == 0 ? INFINITY : wal_rate;

	*guard = GUARD_WAL_RATE;
	/* what was seen some time ago is no reason to crawl */
	if (lag_rate > 0 && lag_rate < rate &&
		now_ns() < pg_atomic_read_u64(&guards_shared->next_look) + LOOK_COUNTS_NS)
	{
		*guard = GUARD_LAG;
		rate = lag_rate;
	}
	return rate;
}

/* price_anew -- what isn't paid for yet, by all and by this process, if the rate has changed. */
static void
price_anew(double rate, uint64 now)
{
	uint64		until;

	SpinLockAcquire(&guards_shared->wal_mutex);
	price_all_anew(rate, now);
	until = guards_shared->wal_paid_until;
	SpinLockRelease(&guards_shared->wal_mutex);
	guarded.wal_paid_until = Min(guarded.wal_paid_until, until);
}

/* pay -- for bytes that this process has written. */
static void
pay(double rate, uint64 now, double bytes)
{
	uint64	   *until = &guards_shared->wal_paid_until;

	Assert(rate > 0 && !isinf(rate) && bytes >= 0);
	SpinLockAcquire(&guards_shared->wal_mutex);
	/* a process with an older rate may have come in between */
	price_all_anew(rate, now);
	*until = Max(*until, now - CREDIT_NS) + (uint64) Min(bytes * NS_PER_S / rate, LONGEST_DEBT_NS);
	guarded.wal_paid_until = *until;
	SpinLockRelease(&guards_shared->wal_mutex);
}

/*
 * price_all_anew
 *		Have all that isn't paid for yet at this rate.  Under the mutex, so that no debt is
 *		added meanwhile at another one: at 1 byte a second, which is what vacuums have that
 *		stand still, some kB would be worth hours.
 */
static void
price_all_anew(double rate, uint64 now)
{
	GuardsShared *shared = guards_shared;
	double		before = shared->priced_at;

	Assert(rate > 0);
	if (rate == before)
		return;
	shared->priced_at = rate;
	if (shared->wal_paid_until > now && before > 0 && !isinf(before))
		shared->wal_paid_until = now +
			(uint64) Min((shared->wal_paid_until - now) * (before / rate), LONGEST_DEBT_NS);
}

/* measure -- how much all vacuums write a second, for the view. */
static void
measure(uint64 now)
{
	GuardsShared *shared = guards_shared;
	uint64		before = pg_atomic_read_u64(&shared->measured_at);
	uint64		written,
				written_before;

	if (now < before + MEASURE_NS ||
		!pg_atomic_compare_exchange_u64(&shared->measured_at, &before, now))
		return;
	written = pg_atomic_read_u64(&shared->wal_written);
	written_before = pg_atomic_exchange_u64(&shared->measured_before, written);
	write_double(&shared->measured_rate, (double) (written - written_before) * NS_PER_S / (now - before));
}
