/*-------------------------------------------------------------------------
 *
 * guards_functions.c
 *	  cyclone.pause and cyclone.resume, and what the view cyclone.pace says of guards.
 *
 * A role that may cancel a VACUUM's statement may pause it, and let it go on.  A
 * superuser's pause of all holds VACUUMs that begin later, too: otherwise each autovacuum
 * would have to be paused anew.  The pause of another role holds only those that run.
 *
 * VACUUM FULL can't be paused, as its lock keeps readers out.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"

#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"
#include "library.h"

/* A rate of WAL holds a vacuum if it did so within this time. */
#define LATELY_NS			((uint64) NS_PER_S)

PG_FUNCTION_INFO_V1(pg_cyclone_pause);
PG_FUNCTION_INFO_V1(pg_cyclone_resume);

static Datum change_pauses(FunctionCallInfo fcinfo, bool pauses);
static bool change_one(int pid, bool pauses);
static int	change_all(bool pauses);
static bool change_vacuum(GuardedVacuum *vacuum, int pid, bool pauses);
static void set_pause(GuardPause *pause, bool pauses);
static bool may_brake(GuardedVacuum *vacuum);
static bool was_held_lately(GuardedVacuum *vacuum, Guard guard);

/* pg_cyclone_pause -- cyclone.pause(pid): was the VACUUM told to pause?  cyclone.pause(): how many were? */
Datum
pg_cyclone_pause(PG_FUNCTION_ARGS)
{
	return change_pauses(fcinfo, true);
}

/* pg_cyclone_resume -- cyclone.resume(pid): was it paused, and may go on now?  cyclone.resume(): how many were? */
Datum
pg_cyclone_resume(PG_FUNCTION_ARGS)
{
	return change_pauses(fcinfo, false);
}

/* change_pauses -- of the VACUUM whose process is the argument, or of all if there is none. */
static Datum
change_pauses(FunctionCallInfo fcinfo, bool pauses)
{
	refuse_without_preloading();
	if (PG_NARGS() == 0)
		PG_RETURN_INT32(change_all(pauses));
	PG_RETURN_BOOL(change_one(PG_GETARG_INT32(0), pauses));
}

/*
 * change_one
 *		Pause the vacuum that a process leads or works for, or let it go on.  False, with a
 *		warning as of pg_cancel_backend, if it can't be paused, and false if it wasn't paused.
 */
static bool
change_one(int pid, bool pauses)
{
	PGPROC	   *leader = BackendPidGetProc(pid);
	GuardedVacuum *vacuum = NULL;

	if (leader != NULL && leader->lockGroupLeader != NULL)
		leader = leader->lockGroupLeader;
	if (leader != NULL && guards_shared != NULL)
		vacuum = &guards_shared->vacuums[GetNumberFromPGProc(leader)];
	/* change_vacuum looks again, under the lock */
	if (vacuum == NULL || vacuum->pid == 0 || vacuum->pid != leader->pid)
	{
		ereport(WARNING,
				(errmsg("PID %d is not a VACUUM of pg_cyclone", pid),
				 errhint("The view cyclone.pace has those that are running.")));
		return false;
	}
	pid = leader->pid;
	if (!may_brake(vacuum))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change how VACUUM of process %d goes on", pid),
				 errdetail("Only roles that may cancel its statement may do that: see pg_cancel_backend.")));
	if (change_vacuum(vacuum, pid, pauses))
		return true;
	if (pauses)
		ereport(WARNING,
				(errmsg("VACUUM of process %d cannot be paused", pid),
				 errdetail("It has just ended, or keeps readers out, as VACUUM FULL does, or is needed to prevent transaction ID wraparound."),
				 errhint("If it is in the way, cancel it.")));
	return false;
}

/*
 * change_all
 *		The same for all that this user may, and, for a superuser, those to come.  Returns of
 *		how many it was true.
 */
static int
change_all(bool pauses)
{
	int			changed = 0;

	if (guards_shared == NULL)
		return 0;
	if (superuser())
	{
		LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
		set_pause(&guards_shared->general_pause, pauses);
		LWLockRelease(guards_shared->lock);
		if (pauses)
			ereport(NOTICE,
					(errmsg("VACUUMs that begin within %d s are paused, too", LONGEST_PAUSE),
					 errhint("SELECT cyclone.resume() ends that.")));
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		GuardedVacuum *vacuum = &guards_shared->vacuums[i];
		int			pid = vacuum->pid;

		if (pid != 0 && may_brake(vacuum) && change_vacuum(vacuum, pid, pauses))
			changed++;
	}
	return changed;
}

/* change_vacuum -- returns false if it has ended since, can't be paused, or wasn't. */
static bool
change_vacuum(GuardedVacuum *vacuum, int pid, bool pauses)
{
	bool		can_wait = !guards_is_needed(vacuum) && !guards_worker_is_needed(vacuum);
	bool		changes;

	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	changes = vacuum->pid == pid && !vacuum->readers_wait &&
		(pauses ? can_wait : guards_hurry_of(vacuum) < HURRY_NO_WAITING && guards_is_paused(vacuum));
	if (changes)
		set_pause(&vacuum->pause, pauses);
	LWLockRelease(guards_shared->lock);
	return changes;
}

/* set_pause -- from now on, also if there is one already; or end it.  Under the lock. */
static void
set_pause(GuardPause *pause, bool pauses)
{
	uint64		longest = (uint64) DEBUG_LIMIT(longest_hold, LONGEST_PAUSE * 1000) * NS_PER_MS;

	pg_atomic_write_u32(&pause->by, GetUserId());
	pg_atomic_write_u64(&pause->until, pauses ? now_ns() + longest : 0);
}

/* may_brake -- may this user cancel the vacuum, and so pause it? */
static bool
may_brake(GuardedVacuum *vacuum)
{
	Oid			owner = GetPGProcByNumber(vacuum - guards_shared->vacuums)->roleId;

	Assert(vacuum >= guards_shared->vacuums && vacuum < guards_shared->vacuums + MaxBackends);
	if (superuser())
		return true;
	if (vacuum->is_autovacuum)
		return compat_may_signal_autovacuum(GetUserId());
	if (!OidIsValid(owner) || superuser_arg(owner))
		return false;
	return has_privs_of_role(GetUserId(), owner) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND);
}

/* guards_find_hold -- see guards.h. */
void
guards_find_hold(int leader, GuardHold *hold)
{
	GuardedVacuum *vacuum = &guards_shared->vacuums[leader];
	DiskHolder	holder = pg_atomic_read_u32(&vacuum->disk_stops);
	GuardHurry	hurry = vacuum->readers_wait ? HURRY_WRAPAROUND : guards_hurry_of(vacuum);

	memset(hold, 0, sizeof(*hold));
	hold->relid = pg_atomic_read_u32(&vacuum->relid);
	/* figures were written before what is looked at here */
	pg_read_barrier();
	if (vacuum->pid == 0)
		return;
	if (guards_is_paused(vacuum) && hurry < HURRY_NO_WAITING)
	{
		double		left = (double) pg_atomic_read_u64(&vacuum->pause.until) - (double) now_ns();

		hold->limited_by = "paused";
		hold->bound = LONGEST_PAUSE;
		hold->figure = Max(LONGEST_PAUSE - left / NS_PER_S, 0);
		hold->held_by = GetUserNameFromId(pg_atomic_read_u32(&vacuum->pause.by), true);
	}
	else if (holder != DISK_NONE && hurry < HURRY_WRAPAROUND)
	{
		hold->limited_by = "disk space";
		hold->figure = pg_atomic_read_u64(&vacuum->disk_free);
		hold->bound = pg_atomic_read_u64(&vacuum->disk_bound);
		hold->held_by = disk_holder_name(holder);
	}
	else if (was_held_lately(vacuum, GUARD_LAG))
	{
		hold->limited_by = "replica lag";
		hold->figure = read_double(&guards_shared->lag_ms) / 1000;
		hold->bound = pg_atomic_read_u32(&guards_shared->max_lag_ms) / 1000.0;
		hold->standby_pid = pg_atomic_read_u32(&guards_shared->lag_pid);
	}
	else if (was_held_lately(vacuum, GUARD_WAL_RATE))
	{
		hold->limited_by = "WAL rate";
		/* it is at its bound, or it would not be held */
		hold->figure = hold->bound = pg_atomic_read_u64(&guards_shared->wal_rate);
	}
}

/* was_held_lately -- has a guard kept a vacuum waiting just now? */
static bool
was_held_lately(GuardedVacuum *vacuum, Guard guard)
{
	return now_ns() < pg_atomic_read_u64(&vacuum->held_until[guard]) + LATELY_NS;
}
