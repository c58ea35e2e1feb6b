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

#include <math.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"

#define LOOK_NS				(NS_PER_S / 4)
/* After this time without a look the marks are worth nothing. */
#define GAP_NS				(5 * (uint64) NS_PER_S)
/* Vacuums stand still for a standby for no longer than this, or twice the bound. */
#define LONGEST_STOP_MS		10000

/* What a walsender says of its standby */
typedef struct LagAnswer
{
	int			pid;
	XLogRecPtr	replayed;		/* by a subscriber: confirmed */
	TimeOffset	lag;			/* us, as the server measures it; or negative */
} LagAnswer;

static int	look_at_all(uint64 now, uint32 max_lag_ms);
static bool look_at_one(LagStandby *standby, WalSnd *walsnd, uint64 now, XLogRecPtr flushed,
						bool is_first, LagSeen *seen);
static void note_mark(LagWatch *watch, uint64 now, XLogRecPtr flushed, double bound);
static bool ask_walsender(WalSnd *walsnd, LagAnswer *answer);
static double rate_for(LagStandby *standby, const LagSeen *seen, uint64 now, XLogRecPtr flushed);
static uint64 longest_stop(double bound);
static double seconds_behind(const LagWatch *watch, uint64 now, XLogRecPtr flushed,
							 const LagAnswer *answer);

/* guards_look_at_standbys -- look, unless a process has just looked. */
void
guards_look_at_standbys(uint64 now)
{
	GuardsShared *shared = guards_shared;
	uint64		due = pg_atomic_read_u64(&shared->next_look);
	uint32		nobody = 0;
	volatile int others = 0;

	Assert(CritSectionCount == 0 && !LWLockHeldByMe(shared->lock));

	if (now < due || !pg_atomic_compare_exchange_u64(&shared->next_look, &due, now + LOOK_NS) ||
		!pg_atomic_compare_exchange_u32(&shared->looking, &nobody, 1))
		return;
	PG_TRY();
	{
		others = look_at_all(now, pg_atomic_read_u32(&shared->max_lag_ms));
	}
	PG_FINALLY();
	{
		pg_atomic_write_u32(&shared->looking, 0);
	}
	PG_END_TRY();

	/*
	 * Only now, as this process may be terminated here: while it is looking,
	 * no other process looks.
	 */
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
	uint64		ours = pg_atomic_read_u64(&shared->wal_written);
	XLogRecPtr	flushed;
	LagSeen		seen = {.bound = max_lag_ms / 1000.0};
	double		least = INFINITY,
				lag = 0;
	int			slowest = 0,
				others = 0;
	bool		is_first;

	Assert(pg_atomic_read_u32(&shared->looking) == 1);
	if (max_lag_ms == 0 || RecoveryInProgress())
	{
		write_double(&shared->lag_rate, 0);
		pg_atomic_write_u32(&shared->lag_stops, 0);
		watch->time = 0;
		return 0;
	}
	/* another process has looked later, while this one was on its way */
	if (now <= watch->time)
		return 0;
	is_first = watch->time == 0 || now > watch->time + GAP_NS;
	if (is_first)
		watch->nmarks = 0;
	flushed = GetFlushRecPtr(NULL);
	note_mark(watch, now, flushed, seen.bound);
	for (int i = 0; i < max_wal_senders; i++)
	{
		LagStandby *standby = &shared->standbys[i];
		double		rate;

		if (!look_at_one(standby, &WalSndCtl->walsnds[i], now, flushed, is_first, &seen))
			continue;
		rate = rate_for(standby, &seen, now, flushed);
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
	watch->time = now;
	watch->flushed = flushed;
	watch->ours = ours;
	pg_atomic_write_u32(&shared->lag_pid, slowest);
	write_double(&shared->lag_ms, lag * 1000);
	pg_write_barrier();
	pg_atomic_write_u32(&shared->lag_stops, least <= 0);
	write_double(&shared->lag_rate, isinf(least) ? 0 : least);
	return others;
}

/* look_at_one -- how has a standby got on since the last look?  False if there is none, or it doesn't tell. */
static bool
look_at_one(LagStandby *standby, WalSnd *walsnd, uint64 now, XLogRecPtr flushed, bool is_first,
			LagSeen *seen)
{
	LagWatch   *watch = &guards_shared->lag_watch;
	uint64		ours = pg_atomic_read_u64(&guards_shared->wal_written);
	LagAnswer	answer;

	if (!ask_walsender(walsnd, &answer))
	{
		standby->pid = 0;
		return false;
	}
	seen->lag = seconds_behind(watch, now, flushed, &answer);
	seen->backlog = flushed > answer.replayed ? flushed - answer.replayed : 0;
	seen->seconds = (double) LOOK_NS / NS_PER_S;
	seen->replayed = seen->written = seen->ours = 0;
	if (standby->pid != answer.pid)
		memset(standby, 0, sizeof(*standby));
	else if (!is_first)
	{
		seen->seconds = (double) (now - watch->time) / NS_PER_S;
		seen->replayed = answer.replayed > standby->replayed ? answer.replayed - standby->replayed : 0;
		seen->written = flushed - watch->flushed;
		seen->ours = Min(ours - watch->ours, seen->written);
	}
	standby->pid = answer.pid;
	standby->replayed = answer.replayed;
	return true;
}

/* note_mark -- note where the WAL is; marks are to reach back for twice the bound. */
static void
note_mark(LagWatch *watch, uint64 now, XLogRecPtr flushed, double bound)
{
	uint64		distance = Max(LOOK_NS, (uint64) (2 * bound * NS_PER_S / LAG_MARKS));

	Assert(bound > 0);
	if (watch->nmarks > 0 && now < watch->mark_time[(watch->nmarks - 1) % LAG_MARKS] + distance)
		return;
	watch->mark_time[watch->nmarks % LAG_MARKS] = now;
	watch->mark_flushed[watch->nmarks % LAG_MARKS] = flushed;
	watch->nmarks++;
}

/*
 * ask_walsender
 *		How far is its standby?  False if it doesn't tell, or isn't streaming: one that
 *		catches up after it was away has its slot, or its archive.
 */
static bool
ask_walsender(WalSnd *walsnd, LagAnswer *answer)
{
	bool		is_physical;

	SpinLockAcquire(&walsnd->mutex);
	is_physical = walsnd->kind == REPLICATION_KIND_PHYSICAL;
	answer->pid = walsnd->state == WALSNDSTATE_STREAMING ? walsnd->pid : 0;
	/* what a subscriber has confirmed it needs no more */
	answer->replayed = is_physical ? walsnd->apply : walsnd->flush;
	answer->lag = is_physical ? walsnd->applyLag : walsnd->flushLag;
	SpinLockRelease(&walsnd->mutex);
	return answer->pid != 0 && !XLogRecPtrIsInvalid(answer->replayed);
}

/* rate_for -- how much vacuums may write for the sake of this standby; 0: they stand still. */
static double
rate_for(LagStandby *standby, const LagSeen *seen, uint64 now, XLogRecPtr flushed)
{
	double		rate = lag_law_step(&standby->law, seen);
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
		now >= standby->stop_start + longest_stop(seen->bound);
	return standby->is_others ? SLOW_RATE : 0;
}

/* longest_stop -- for how long vacuums stand still for a standby, in ns. */
static uint64
longest_stop(double bound)
{
	return (uint64) DEBUG_LIMIT(longest_hold, Max(LONGEST_STOP_MS, 2000 * bound)) * NS_PER_MS;
}

/*
 * seconds_behind
 *		For how long has there been WAL behind that place?  Between two marks it is taken
 *		to have grown evenly.
 */
static double
seconds_behind(const LagWatch *watch, uint64 now, XLogRecPtr flushed, const LagAnswer *answer)
{
	uint64		first = watch->nmarks > LAG_MARKS ? watch->nmarks - LAG_MARKS : 0;
	uint64		next_time = now;
	XLogRecPtr	next_place = flushed;
	XLogRecPtr	replayed = answer->replayed;

	if (replayed >= flushed)
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
			   answer->lag > 0 ? (double) answer->lag / USECS_PER_SEC : 0);
}

/*
 * lag_rate_in_force
 *		How much WAL standbys let this process's vacuum write, in bytes a second: INFINITY
 *		for no bound, 0 for nothing.  What was seen some time ago is no reason to crawl.
 */
double
lag_rate_in_force(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	double		rate = read_double(&guards_shared->lag_rate);
	bool		stops = pg_atomic_read_u32(&guards_shared->lag_stops) != 0;

	if ((rate <= 0 && !stops) || guards_hurry_of(vacuum) >= HURRY_NO_WAITING ||
		now_ns() > pg_atomic_read_u64(&guards_shared->next_look) + LOOK_COUNTS_NS)
		return INFINITY;
	if (vacuum->readers_wait)
		return Max(rate, SLOW_RATE);
	return stops ? 0 : rate;
}
