/*-------------------------------------------------------------------------
 *
 * lag.c
 *	  Looking at standbys, and at how far they are behind.
 *
 * Four times a second one of the processes of vacuums, whichever comes first, notes where
 * the WAL is (a mark), and asks each walsender what its standby has replayed, or its
 * subscriber has confirmed.  The marks tell when the WAL was at that place: since then the
 * standby is behind.  The server's own measure says nothing of a standby that stands still;
 * it counts only for what was written before the first mark.
 *
 * Each walsender has a law of its own (lag_law.c), and the lowest rate counts.  At the bound
 * vacuums stand still, until that standby has replayed all that had been written when they
 * stopped, or for twice the bound (longest_stop).  What it lags by then is not due to them:
 * they go on slowly until it has caught up.  README.md argues that.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"

#define LOOK_NS				(NS_PER_S / 4)
/* After this time without a look the marks are worth nothing. */
#define GAP_NS				(5 * (uint64) NS_PER_S)
/* Vacuums stand still for a standby for no longer than this, or twice the bound. */
#define LONGEST_STOP_MS		10000

static int	look_at_all(uint64 now, uint32 max_lag_ms);
static bool look_at_one(LagStandby *standby, WalSnd *walsnd, uint64 now, LagSeen *seen);
static double rate_for(LagStandby *standby, const LagSeen *seen, uint64 now, XLogRecPtr flushed);
static double seconds_behind(const LagWatch *watch, uint64 now, XLogRecPtr replayed, TimeOffset server_lag);

/* guards_look_at_standbys -- look, unless a process has just looked, or is looking. */
void
guards_look_at_standbys(uint64 now)
{
	GuardsShared *shared = guards_shared;
	int			others = 0;

	Assert(CritSectionCount == 0 && !LWLockHeldByMe(shared->lock));

	if (now < pg_atomic_read_u64(&shared->next_look) || !LWLockConditionalAcquire(shared->lock, LW_EXCLUSIVE))
		return;
	if (now >= pg_atomic_read_u64(&shared->next_look))
	{
		pg_atomic_write_u64(&shared->next_look, now + LOOK_NS);
		others = look_at_all(now, pg_atomic_read_u32(&shared->max_lag_ms));
	}
	LWLockRelease(shared->lock);
	if (others != 0)
		ereport(LOG,
				(errmsg("VACUUM goes on slowly although the standby or subscriber of process %d lags by more than \"cyclone.max_replica_lag\"",
						others),
				 errdetail("VACUUM has stood still, and it lags nevertheless: because of what others write, or on purpose, or as it is at rest."),
				 errhint("See pg_stat_replication. If it has a recovery_min_apply_delay, set \"cyclone.max_replica_lag\" to more than that.")));
}

/*
 * look_at_all
 *		How far are they behind, and what may vacuums write?  Returns the walsender of one
 *		whose lag is found not to be due to vacuums, or 0.
 */
static int
look_at_all(uint64 now, uint32 max_lag_ms)
{
	GuardsShared *shared = guards_shared;
	LagWatch   *watch = &shared->lag_watch;
	bool		is_first = watch->time == 0 || now > watch->time + GAP_NS;
	LagSeen		seen = {
		.bound = max_lag_ms / 1000.0,
		.seconds = (double) (is_first ? LOOK_NS : now - watch->time) / NS_PER_S
	};
	double		least = INFINITY,
				lag = 0;
	int			slowest = 0,
				others = 0;

	if (max_lag_ms == 0 || RecoveryInProgress())
	{
		write_double(&shared->lag_rate, INFINITY);
		watch->time = 0;
		return 0;
	}
	watch->time = now;
	watch->flushed = GetFlushRecPtr(NULL);
	if (is_first)
		watch->nmarks = 0;
	/* marks are to reach back for twice the bound */
	if (watch->nmarks == 0 ||
		now >= watch->mark_time[(watch->nmarks - 1) % LAG_MARKS] + (uint64) (2 * seen.bound * NS_PER_S / LAG_MARKS))
	{
		watch->mark_time[watch->nmarks % LAG_MARKS] = now;
		watch->mark_flushed[watch->nmarks++ % LAG_MARKS] = watch->flushed;
	}
	for (int i = 0; i < max_wal_senders; i++)
	{
		LagStandby *standby = &shared->standbys[i];
		double		rate;

		if (!look_at_one(standby, &WalSndCtl->walsnds[i], now, &seen))
			continue;
		if (is_first)
			seen.replayed = 0;
		rate = rate_for(standby, &seen, now, watch->flushed);
		if (rate < least)
		{
			least = rate;
			lag = seen.lag;
			slowest = standby->pid;
		}
		if (standby->is_others && !standby->is_told && others == 0)
		{
			standby->is_told = true;
			others = standby->pid;
		}
	}
	pg_atomic_write_u32(&shared->lag_pid, slowest);
	write_double(&shared->lag_ms, lag * 1000);
	pg_write_barrier();
	write_double(&shared->lag_rate, least);
	return others;
}

/*
 * look_at_one
 *		How has a standby got on since the last look?  False if there is none, or it doesn't
 *		tell, or isn't streaming: one that catches up after it was away has its slot, or its
 *		archive.
 */
static bool
look_at_one(LagStandby *standby, WalSnd *walsnd, uint64 now, LagSeen *seen)
{
	LagWatch   *watch = &guards_shared->lag_watch;
	bool		is_physical;
	int			pid;
	XLogRecPtr	replayed;
	TimeOffset	server_lag;

	SpinLockAcquire(&walsnd->mutex);
	is_physical = walsnd->kind == REPLICATION_KIND_PHYSICAL;
	pid = walsnd->state == WALSNDSTATE_STREAMING ? walsnd->pid : 0;
	/* what a subscriber has confirmed it needs no more */
	replayed = is_physical ? walsnd->apply : walsnd->flush;
	server_lag = is_physical ? walsnd->applyLag : walsnd->flushLag;
	SpinLockRelease(&walsnd->mutex);
	if (XLogRecPtrIsInvalid(replayed))
		pid = 0;
	if (pid != standby->pid)
	{
		memset(standby, 0, sizeof(*standby));
		standby->replayed = replayed;
	}
	standby->pid = pid;
	seen->replayed = replayed > standby->replayed ? replayed - standby->replayed : 0;
	seen->backlog = watch->flushed > replayed ? watch->flushed - replayed : 0;
	seen->lag = seconds_behind(watch, now, replayed, server_lag);
	standby->replayed = replayed;
	return pid != 0;
}

/* rate_for -- how much vacuums may write for the sake of this standby; 0: they stand still. */
static double
rate_for(LagStandby *standby, const LagSeen *seen, uint64 now, XLogRecPtr flushed)
{
	double		rate = lag_law_step(&standby->law, seen);
	double		longest_ms = DEBUG_LIMIT(longest_hold, Max(LONGEST_STOP_MS, 2000 * seen->bound));
	bool		is_through = standby->replayed >= standby->stop_end;

	if (seen->lag < seen->bound && (is_through || !standby->is_others))
	{
		standby->stop_start = 0;
		standby->is_others = standby->is_told = false;
		return rate;
	}
	if (!standby->is_others && standby->stop_start == 0)
	{
		standby->stop_start = now;
		standby->stop_end = flushed;
		return 0;
	}
	standby->is_others = standby->is_others || is_through ||
		now >= standby->stop_start + (uint64) (longest_ms * NS_PER_MS);
	return standby->is_others ? SLOW_RATE : 0;
}

/*
 * seconds_behind
 *		For how long has there been WAL behind that place?  Between two marks it is taken
 *		to have grown evenly.
 */
static double
seconds_behind(const LagWatch *watch, uint64 now, XLogRecPtr replayed, TimeOffset server_lag)
{
	uint64		first = watch->nmarks > LAG_MARKS ? watch->nmarks - LAG_MARKS : 0;
	uint64		next_time = now;
	XLogRecPtr	next_place = watch->flushed;

	if (replayed >= watch->flushed)
		return 0;
	for (uint64 i = watch->nmarks; i > first; i--)
	{
		uint64		time = watch->mark_time[(i - 1) % LAG_MARKS];
		XLogRecPtr	place = watch->mark_flushed[(i - 1) % LAG_MARKS];

		if (place <= replayed)
		{
			double		part = next_place > place ? (double) (replayed - place) / (next_place - place) : 0;

			return (now - time - part * (next_time - time)) / NS_PER_S;
		}
		next_time = time;
		next_place = place;
	}
	return Max((double) (now - next_time) / NS_PER_S,
			   server_lag > 0 ? (double) server_lag / USECS_PER_SEC : 0);
}
