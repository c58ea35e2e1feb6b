/*-------------------------------------------------------------------------
 *
 * lag.c
 *	  Looking at standbys, and at how far they are behind.
 *
 * Four times a second one of the processes of vacuums, whichever comes first, notes
 * where the WAL is (a mark).  It asks each walsender what its standby has replayed, or
 * its subscriber has confirmed.  The marks tell when the WAL was at that place: since
 * then the standby is behind.  The server itself measures how long the most recent replay
 * took (pg_stat_replication), which says nothing of a standby that stands still.  That
 * counts only for what was written before the first mark.
 *
 * The standby that lags most sets the rate (lag_law.c).  One whose connection is
 * gone doesn't count, nor does one that catches up after it was away: it has its
 * slot, or its archive.
 *
 * Some lag on purpose.  A standby with a recovery_min_apply_delay replays what was
 * written that long ago, so to hold a vacuum would show there only after the delay.  So
 * the bound is on how far it is behind in receiving, as that fills the network and keeps
 * WAL for its slot.  Such a standby doesn't tell its primary of the delay.  To guess the
 * delay from lag that stays the same is not safe: a slow standby's lag stays the same,
 * too, as it is kept at the bound here.  So cyclone.delayed_standbys names such standbys.
 *
 * Vacuums wait in vain for a standby whose replay is paused.  So a standby for which they
 * have stood still as long as a pause may last counts no more until its lag is below the
 * bound.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xlog.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/procarray.h"
#include "storage/spin.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "compat.h"
#include "guards/guards.h"
#include "guards/guards_state.h"
#include "clock.h"

#define LOOK_NS				(NS_PER_S / 4)
/* After this time without a look the marks are worth nothing. */
#define GAP_NS				(5 * (uint64) NS_PER_S)

/* One walsender's figures */
typedef struct Standby
{
	int			pid;
	bool		is_physical;
	bool		is_sync;
	XLogRecPtr	received;		/* and flushed; by a subscriber: confirmed */
	TimeOffset	receive_lag;	/* us, as the server measures it; or negative */
	XLogRecPtr	replayed;		/* from here on: what counts */
	TimeOffset	replay_lag;
	double		lag;			/* s */
} Standby;

static int	look(uint64 now, uint32 max_lag_ms);
static void mark(LagWatch *watch, uint64 now, XLogRecPtr flushed, double bound);
static bool find_slowest(LagWatch *watch, uint64 now, XLogRecPtr flushed, double bound,
						 Standby *slowest);
static bool ask(WalSnd *walsnd, const char *lag_of, const char *delayed, Standby *standby);
static bool is_waited_for_in_vain(LagWatch *watch, const Standby *standby, double bound);
static bool note_stop(LagWatch *watch, uint64 now, int pid);
static bool counts(const char *lag_of, const Standby *standby);
static bool is_named(const char *list, int pid);
static const char *name_of(int pid);
static double seconds_behind(const LagWatch *watch, uint64 now, XLogRecPtr flushed,
							 XLogRecPtr replayed, TimeOffset servers);

/*
 * guards_look_at_standbys
 *		Look, unless a process has just looked, or no bound is set.
 */
void
guards_look_at_standbys(uint64 now)
{
	GuardsShared *shared = guards_shared;
	uint64		due = pg_atomic_read_u64(&shared->next_look);
	uint32		nobody = 0;
	volatile int given_up = 0;

	Assert(CritSectionCount == 0 && !LWLockHeldByMe(shared->lock));

	if (now < due || !pg_atomic_compare_exchange_u64(&shared->next_look, &due, now + LOOK_NS) ||
		!pg_atomic_compare_exchange_u32(&shared->looking, &nobody, 1))
		return;
	PG_TRY();
	{
		given_up = look(now, pg_atomic_read_u32(&shared->max_lag_ms));
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
	if (given_up != 0)
		ereport(LOG,
				(errmsg("VACUUM does not wait for the standby or subscriber of process %d any more", given_up),
				 errdetail("It has lagged by more than \"cyclone.max_replica_lag\" for as long as \"cyclone.max_pause\" allows, although VACUUM stood still."),
				 errhint("If it has a recovery_min_apply_delay, name it in \"cyclone.delayed_standbys\"; if it is not to count, name the others in \"cyclone.lag_of\".")));
}

/*
 * look
 *		How far are they behind, and what may vacuums write?  Returns the walsender of one
 *		that they wait for no more from now on, or 0.
 */
static int
look(uint64 now, uint32 max_lag_ms)
{
	GuardsShared *shared = guards_shared;
	LagWatch   *watch = &shared->lag_watch;
	uint64		ours = pg_atomic_read_u64(&shared->wal_written);
	XLogRecPtr	flushed;
	Standby		slowest = {0};
	LagSeen		seen = {0};
	double		rate = 0;
	bool		gives_up;

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
	if (watch->time == 0 || now > watch->time + GAP_NS)
	{
		watch->nmarks = 0;
		watch->pid = 0;
	}
	flushed = GetFlushRecPtr(NULL);
	seen.bound = max_lag_ms / 1000.0;
	mark(watch, now, flushed, seen.bound);
	if (find_slowest(watch, now, flushed, seen.bound, &slowest))
	{
		seen.lag = slowest.lag;
		seen.backlog = flushed > slowest.replayed ? flushed - slowest.replayed : 0;
		/* nobody knows yet how fast another standby is: the law begins anew */
		if (watch->pid != slowest.pid)
		{
			memset(&watch->law, 0, sizeof(watch->law));
			seen.seconds = (double) LOOK_NS / NS_PER_S;
		}
		else
		{
			seen.seconds = (double) (now - watch->time) / NS_PER_S;
			seen.replayed = slowest.replayed > watch->replayed ? slowest.replayed - watch->replayed : 0;
			seen.written = flushed - watch->flushed;
			seen.ours = Min(ours - watch->ours, seen.written);
		}
		rate = lag_law_step(&watch->law, &seen);
	}
	gives_up = note_stop(watch, now, slowest.pid != 0 && rate <= 0 ? slowest.pid : 0);
	watch->time = now;
	watch->flushed = flushed;
	watch->replayed = slowest.replayed;
	watch->pid = slowest.pid;
	watch->ours = ours;
	pg_atomic_write_u32(&shared->lag_pid, slowest.pid);
	write_double(&shared->lag_ms, seen.lag * 1000);
	pg_write_barrier();
	/* 0: they stand still, or nothing holds them */
	pg_atomic_write_u32(&shared->lag_stops, slowest.pid != 0 && rate <= 0);
	write_double(&shared->lag_rate, slowest.pid != 0 && rate <= 0 ? 1 : rate);
	return gives_up ? slowest.pid : 0;
}

/* mark -- note where the WAL is; marks are to reach back for twice the bound. */
static void
mark(LagWatch *watch, uint64 now, XLogRecPtr flushed, double bound)
{
	uint64		distance = Max(LOOK_NS, (uint64) (2 * bound * NS_PER_S / LAG_MARKS));

	Assert(bound > 0);
	if (watch->nmarks > 0 && now < watch->mark_time[(watch->nmarks - 1) % LAG_MARKS] + distance)
		return;
	watch->mark_time[watch->nmarks % LAG_MARKS] = now;
	watch->mark_flushed[watch->nmarks % LAG_MARKS] = flushed;
	watch->nmarks++;
}

/* find_slowest -- of those that count, the one that lags most; false if none does. */
static bool
find_slowest(LagWatch *watch, uint64 now, XLogRecPtr flushed, double bound, Standby *slowest)
{
	char		lag_of[STANDBYS_SIZE];
	char		delayed[STANDBYS_SIZE];

	Assert(!LWLockHeldByMe(guards_shared->lock));
	LWLockAcquire(guards_shared->lock, LW_SHARED);
	strlcpy(lag_of, guards_shared->lag_of, sizeof(lag_of));
	strlcpy(delayed, guards_shared->delayed, sizeof(delayed));
	LWLockRelease(guards_shared->lock);

	slowest->pid = 0;
	for (int i = 0; i < max_wal_senders; i++)
	{
		Standby		standby;

		if (!ask(&WalSndCtl->walsnds[i], lag_of, delayed, &standby))
			continue;
		standby.lag = seconds_behind(watch, now, flushed, standby.replayed, standby.replay_lag);
		if (!is_waited_for_in_vain(watch, &standby, bound) &&
			(slowest->pid == 0 || standby.lag > slowest->lag))
			*slowest = standby;
	}
	return slowest->pid != 0;
}

/* is_waited_for_in_vain -- was a standby waited for in vain, and is it still behind? */
static bool
is_waited_for_in_vain(LagWatch *watch, const Standby *standby, double bound)
{
	for (int i = 0; i < LAG_IN_VAIN; i++)
	{
		if (watch->in_vain[i] != standby->pid)
			continue;
		if (standby->lag >= bound)
			return true;
		watch->in_vain[i] = 0;
	}
	return false;
}

/*
 * note_stop
 *		This walsender's standby makes vacuums stand still; 0: none does.  Has it done
 *		so for longer than cyclone.max_pause?
 */
static bool
note_stop(LagWatch *watch, uint64 now, int pid)
{
	Assert(pid >= 0);
	if (pid == 0 || pid != watch->pid || watch->stop_start == 0)
	{
		watch->stop_start = pid == 0 ? 0 : now;
		return false;
	}
	if (now < watch->stop_start + (uint64) cyclone_max_pause * NS_PER_S)
		return false;
	watch->stop_start = 0;
	watch->in_vain[watch->nin_vain++ % LAG_IN_VAIN] = pid;
	return true;
}

/* ask -- how far is a walsender's standby?  False if it doesn't count, or doesn't tell. */
static bool
ask(WalSnd *walsnd, const char *lag_of, const char *delayed, Standby *standby)
{
	SpinLockAcquire(&walsnd->mutex);
	standby->pid = walsnd->state == WALSNDSTATE_STREAMING ? walsnd->pid : 0;
	standby->is_physical = walsnd->kind == REPLICATION_KIND_PHYSICAL;
	standby->is_sync = walsnd->sync_standby_priority > 0;
	standby->received = walsnd->flush;
	standby->receive_lag = walsnd->flushLag;
	standby->replayed = walsnd->apply;
	standby->replay_lag = walsnd->applyLag;
	SpinLockRelease(&walsnd->mutex);
	if (standby->pid == 0 || !counts(lag_of, standby))
		return false;
	/* what a subscriber has confirmed it needs no more */
	if (!standby->is_physical || is_named(delayed, standby->pid))
	{
		standby->replayed = standby->received;
		standby->replay_lag = standby->receive_lag;
	}
	return !XLogRecPtrIsInvalid(standby->replayed);
}

/* counts -- is a standby one of those in cyclone.lag_of? */
static bool
counts(const char *lag_of, const Standby *standby)
{
	if (pg_strcasecmp(lag_of, "all") == 0)
		return true;
	if (pg_strcasecmp(lag_of, "sync") == 0)
		return standby->is_sync;
	return is_named(lag_of, standby->pid);
}

/* is_named -- is a walsender's application name in this list? */
static bool
is_named(const char *list, int pid)
{
	char	   *copy = pstrdup(list);
	List	   *names;
	bool		found = false;

	if (SplitGUCList(copy, ',', &names))
		foreach_ptr(char, name, names)
			found = found || pg_strcasecmp(name, name_of(pid)) == 0;
	list_free(names);
	pfree(copy);
	return found;
}

/* name_of -- a walsender's application name. */
static const char *
name_of(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	PgBackendStatus *status = NULL;

	if (proc != NULL)
	{
		/* a new one may have come since */
		pgstat_clear_backend_activity_snapshot();
		status = pgstat_get_beentry_by_proc_number(GetNumberFromPGProc(proc));
	}
	return status != NULL ? status->st_appname : "";
}

/*
 * seconds_behind
 *		For how long has there been WAL behind that place?  Between two marks it is taken
 *		to have grown evenly.
 */
static double
seconds_behind(const LagWatch *watch, uint64 now, XLogRecPtr flushed, XLogRecPtr replayed,
			   TimeOffset servers)
{
	uint64		first = watch->nmarks > LAG_MARKS ? watch->nmarks - LAG_MARKS : 0;
	uint64		next_time = now;
	XLogRecPtr	next_place = flushed;

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
	return Max((double) (now - next_time) / NS_PER_S, servers > 0 ? (double) servers / USECS_PER_SEC : 0);
}
