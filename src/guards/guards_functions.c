/*-------------------------------------------------------------------------
 *
 * guards_functions.c
 *	  cyclone.pause and cyclone.resume, and what cyclone.pace says of guards.
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
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"
#include "library.h"

/* A rate of WAL holds a vacuum if it did so within this time. */
#define LATELY_NS			((uint64) NS_PER_S)

#define GUARD_COLUMNS		8

PG_FUNCTION_INFO_V1(pg_cyclone_pause);
PG_FUNCTION_INFO_V1(pg_cyclone_resume);
PG_FUNCTION_INFO_V1(pg_cyclone_guards);

static bool change_one(int pid, bool pauses);
static int	change_all(bool pauses);
static bool change_vacuum(GuardedVacuum *vacuum, int pid, bool pauses, uint64 now);
static void begin_pause(GuardPause *pause, uint64 now);
static GuardedVacuum *find_vacuum(int *pid);
static bool may_brake(GuardedVacuum *vacuum);
static bool find_hold(GuardedVacuum *vacuum, Datum *values, bool *nulls);
static bool was_held_lately(GuardedVacuum *vacuum, Guard guard);
static bool may_see(Oid owner);

/*
 * pg_cyclone_pause
 *		cyclone.pause(pid): was the VACUUM told to pause?  cyclone.pause(): how many were?
 */
Datum
pg_cyclone_pause(PG_FUNCTION_ARGS)
{
	refuse_without_preloading();
	if (PG_NARGS() == 0)
		PG_RETURN_INT32(change_all(true));
	PG_RETURN_BOOL(change_one(PG_GETARG_INT32(0), true));
}

/*
 * pg_cyclone_resume
 *		cyclone.resume(pid): was it paused, and may go on now?  cyclone.resume(): how many
 *		were?
 */
Datum
pg_cyclone_resume(PG_FUNCTION_ARGS)
{
	refuse_without_preloading();
	if (PG_NARGS() == 0)
		PG_RETURN_INT32(change_all(false));
	PG_RETURN_BOOL(change_one(PG_GETARG_INT32(0), false));
}

/* change_one -- pause a vacuum, or let it go on; false if it can't be paused, or wasn't. */
static bool
change_one(int pid, bool pauses)
{
	GuardedVacuum *vacuum = find_vacuum(&pid);

	if (vacuum == NULL)
		return false;
	if (change_vacuum(vacuum, pid, pauses, now_ns()))
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
	uint64		now = now_ns();
	int			changed = 0;

	if (guards_shared == NULL)
		return 0;
	if (superuser())
	{
		LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
		if (pauses)
			begin_pause(&guards_shared->general_pause, now);
		else
			pg_atomic_write_u64(&guards_shared->general_pause.until, 0);
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

		if (pid != 0 && may_brake(vacuum) && change_vacuum(vacuum, pid, pauses, now))
			changed++;
	}
	return changed;
}

/* change_vacuum -- returns false if it has ended since, can't be paused, or wasn't. */
static bool
change_vacuum(GuardedVacuum *vacuum, int pid, bool pauses, uint64 now)
{
	bool		can_wait = !guards_is_needed(vacuum) && !guards_worker_is_needed(vacuum);
	bool		changes;

	Assert(pid != 0);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	changes = vacuum->pid == pid && !vacuum->readers_wait &&
		(pauses ? can_wait : guards_hurry_of(vacuum) < HURRY_NO_WAITING && guards_is_paused(vacuum));
	if (changes && pauses)
		begin_pause(&vacuum->pause, now);
	else if (changes)
	{
		pg_atomic_write_u64(&vacuum->pause.until, 0);
		SetLatch(&GetPGProcByNumber(vacuum - guards_shared->vacuums)->procLatch);
	}
	LWLockRelease(guards_shared->lock);
	return changes;
}

/* begin_pause -- from now on, or for longer if there is one already.  Under the lock. */
static void
begin_pause(GuardPause *pause, uint64 now)
{
	pg_atomic_write_u32(&pause->by, GetUserId());
	/* one that has run out has no part in this one */
	if (pg_atomic_read_u64(&pause->until) <= now)
		pg_atomic_write_u64(&pause->since, now);
	pg_write_barrier();
	pg_atomic_write_u64(&pause->until,
						now + (uint64) DEBUG_LIMIT(longest_hold, LONGEST_PAUSE * 1000) * NS_PER_MS);
}

/*
 * find_vacuum
 *		The vacuum that a process leads or works for, and its leader's number; a warning,
 *		and NULL, if there is none, as for pg_cancel_backend.  An error if this user may not
 *		pause it.
 *
 * Whether that process still leads it is to be looked at again, under the lock.
 */
static GuardedVacuum *
find_vacuum(int *pid)
{
	PGPROC	   *proc = BackendPidGetProc(*pid);
	PGPROC	   *leader = proc != NULL && proc->lockGroupLeader != NULL ? proc->lockGroupLeader : proc;
	GuardedVacuum *vacuum = NULL;
	int			leader_pid = leader != NULL ? leader->pid : 0;

	/*
	 * the number may belong to another process now, which then leads none, or
	 * has another pid
	 */
	if (leader_pid != 0 && guards_shared != NULL)
		vacuum = &guards_shared->vacuums[GetNumberFromPGProc(leader)];
	if (vacuum == NULL || vacuum->pid != leader_pid)
	{
		ereport(WARNING,
				(errmsg("PID %d is not a VACUUM of pg_cyclone", *pid),
				 errhint("The view cyclone.pace has those that are running.")));
		return NULL;
	}
	*pid = leader_pid;
	if (!may_brake(vacuum))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change how VACUUM of process %d goes on", *pid),
				 errdetail("Only roles that may cancel its statement may do that: see pg_cancel_backend.")));
	return vacuum;
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

/*
 * find_hold
 *		Set what the view says of the guard that holds a vacuum just now: its name, its
 *		figure and bound, who holds it, and the walsender of the standby.  False if none does.
 */
static bool
find_hold(GuardedVacuum *vacuum, Datum *values, bool *nulls)
{
	DiskHolder	holder = pg_atomic_read_u32(&vacuum->disk_stops);
	GuardHurry	hurry = vacuum->readers_wait ? HURRY_WRAPAROUND : guards_hurry_of(vacuum);
	const char *name;
	const char *who = NULL;
	double		figure,
				bound;
	int			standby = 0;

	/* figures were written before what is looked at here */
	pg_read_barrier();
	if (guards_is_paused(vacuum) && hurry < HURRY_NO_WAITING)
	{
		double		since = pg_atomic_read_u64(&vacuum->pause.since);
		double		now = now_ns();
		double		until = pg_atomic_read_u64(&vacuum->pause.until);

		name = "paused";
		figure = Max(now - since, 0) / NS_PER_S;
		bound = Max(until - since, 0) / NS_PER_S;
		who = GetUserNameFromId(pg_atomic_read_u32(&vacuum->pause.by), true);
	}
	else if (holder != DISK_NONE && hurry < HURRY_WRAPAROUND)
	{
		name = "disk space";
		figure = pg_atomic_read_u64(&vacuum->disk_free);
		bound = pg_atomic_read_u64(&vacuum->disk_bound);
		who = disk_holder_name(holder);
	}
	else if (was_held_lately(vacuum, GUARD_LAG))
	{
		name = "replica lag";
		figure = read_double(&guards_shared->lag_ms) / 1000;
		bound = pg_atomic_read_u32(&guards_shared->max_lag_ms) / 1000.0;
		standby = pg_atomic_read_u32(&guards_shared->lag_pid);
	}
	else if (was_held_lately(vacuum, GUARD_WAL_RATE))
	{
		name = "WAL rate";
		/* it is at its bound, or it would not be held */
		figure = bound = pg_atomic_read_u64(&guards_shared->wal_rate);
	}
	else
		return false;
	values[0] = CStringGetTextDatum(name);
	values[1] = Float8GetDatum(figure);
	values[2] = Float8GetDatum(bound);
	nulls[3] = who == NULL;
	if (who != NULL)
		values[3] = CStringGetTextDatum(who);
	nulls[4] = standby == 0;
	values[4] = Int32GetDatum(standby);
	return true;
}

/* was_held_lately -- has a guard kept a vacuum waiting just now? */
static bool
was_held_lately(GuardedVacuum *vacuum, Guard guard)
{
	Assert(guard < NUM_GUARDS);
	return now_ns() < pg_atomic_read_u64(&vacuum->held_until[guard]) + LATELY_NS;
}

/*
 * pg_cyclone_guards
 *		The rows of cyclone.guard_rows.  As in cyclone.pace, a role that may not see the
 *		statistics of the command's user doesn't see why it is held.
 */
Datum
pg_cyclone_guards(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	refuse_without_preloading();
	library_begin_rows(fcinfo, GUARD_COLUMNS);

	/* there are no places on a server that the library doesn't fit */
	for (int i = 0; guards_shared != NULL && i < MaxBackends; i++)
	{
		GuardedVacuum *vacuum = &guards_shared->vacuums[i];
		const PGPROC *proc = GetPGProcByNumber(i);
		int			pid = vacuum->pid;
		Oid			relid = pg_atomic_read_u32(&vacuum->relid);
		Datum		values[GUARD_COLUMNS] = {0};
		bool		nulls[GUARD_COLUMNS] = {0};

		if (pid == 0 || !may_see(proc->roleId) || !find_hold(vacuum, &values[3], &nulls[3]))
			continue;
		values[0] = Int32GetDatum(pid);
		values[1] = ObjectIdGetDatum(proc->databaseId);
		values[2] = ObjectIdGetDatum(relid);
		nulls[2] = !OidIsValid(relid);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* may_see -- may this user see what sessions of a role are doing? */
static bool
may_see(Oid owner)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		(OidIsValid(owner) && has_privs_of_role(GetUserId(), owner));
}
