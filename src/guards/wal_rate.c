/*-------------------------------------------------------------------------
 *
 * wal_rate.c
 *	  How much WAL vacuums write, and how much all of them may write a second.
 *
 * All processes of all vacuums move one clock, as they do for the cost budgets, by the
 * bytes that they have written since they were last here, images included, and sleep until
 * the clock says that these are paid for.  They pay for as much at a time as the rate allows
 * in SLICE_MS.  So a change of the rate is in force at once, and no process sleeps for hours
 * at a rate that was in force for a moment.  Where pages are pinned a process pays for one
 * slice, and for the rest at the next points.
 *
 * The rate is the lesser one of cyclone.max_wal_rate and what standbys can follow (lag.c).
 * It is the server's, so it is in shared memory; each leader writes there what its
 * parameters say, when it begins and after each reload.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/vacuum.h"
#include "miscadmin.h"

#include "guards/guards_state.h"

/* For so much time at that rate a process pays at once. */
#define SLICE_MS			100
/* The shortest nap that is of use */
#define LEAST_NAP_NS		((uint64) NS_PER_MS)
/* WAL that takes less time at that rate isn't looked at, up to this number of bytes. */
#define CHARGE_SECONDS		0.002
#define GREATEST_CHARGE		(256 * 1024.0)

static double rate_in_force(void);
static bool pay_slice(double rate, uint64 now);

/* rate_in_force -- in bytes a second, INFINITY if there is none, 0 if nothing is to be written. */
static double
rate_in_force(void)
{
	uint64		wal_rate = pg_atomic_read_u64(&guards_shared->wal_rate);

	if (VacuumFailsafeActive || guards_hurry_of(guarded.vacuum) >= HURRY_ALL)
		return INFINITY;
	return fmin(wal_rate == 0 ? INFINITY : wal_rate, guards_lag_rate());
}

/* wal_rate_is_due -- has this process written as much as is worth a look at the clock, or to sleep still? */
bool
wal_rate_is_due(void)
{
	uint64		unpaid = guards_unpaid_wal();
	double		rate;

	if (unpaid == 0 && guarded.wal_until == 0)
		return false;
	rate = rate_in_force();
	return guarded.wal_until != 0 || unpaid > Min(rate * CHARGE_SECONDS, GREATEST_CHARGE);
}

/* pay_slice -- pay for the next slice; false if there is nothing to pay for, or vacuums stand still. */
static bool
pay_slice(double rate, uint64 now)
{
	uint64		unpaid = guards_unpaid_wal();
	uint64		slice = isinf(rate) ? unpaid : Min(unpaid, (uint64) (rate * SLICE_MS / 1000) + 1);

	guarded.wal_until = 0;
	if (slice == 0 || rate <= 0)
		return false;
	guarded.wal_paid += slice;
	if (isinf(rate))
		return false;
	guarded.wal_until = clock_pay(&guards_shared->wal_paid_until, now,
								  (uint64) (slice * (double) NS_PER_S / rate));
	return true;
}

/*
 * wal_rate_is_ahead
 *		Where this process doesn't sleep, in the server's code or at its end: pay for a
 *		slice.  Has it written more than is paid for?
 */
bool
wal_rate_is_ahead(uint64 now)
{
	return wal_rate_is_due() &&
		(guarded.wal_until > now || (pay_slice(rate_in_force(), now) && guarded.wal_until > now));
}

/*
 * wal_rate_pay
 *		Sleep until this process's WAL is paid for, or for a moment only if it has pages
 *		pinned.
 *
 * Does nothing while vacuums stand still, which is for hold_while_due to do.
 */
void
wal_rate_pay(void)
{
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	while (!guards_hold_is_due())
	{
		uint64		now = now_ns();
		double		rate = rate_in_force();

		/* less than the least nap is slept with what comes next */
		if (guarded.wal_until < now + LEAST_NAP_NS || isinf(rate))
		{
			if (!pay_slice(rate, now))
				return;
			continue;
		}
		guards_nap(Min((guarded.wal_until - now) / NS_PER_MS, SLICE_MS),
				   rate < guards_lag_rate() ? GUARD_WAL_RATE : GUARD_LAG);
		if (guarded.pins > 0)
			return;
		guards_look_at_standbys(now_ns());
	}
}
