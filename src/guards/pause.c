/*-------------------------------------------------------------------------
 *
 * pause.c
 *	  cyclone.pause and cyclone.resume.
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
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"

#include "clock.h"
#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"
#include "library.h"

PG_FUNCTION_INFO_V1(pg_cyclone_pause);
PG_FUNCTION_INFO_V1(pg_cyclone_pause_all);
PG_FUNCTION_INFO_V1(pg_cyclone_resume);
PG_FUNCTION_INFO_V1(pg_cyclone_resume_all);

static GuardedVacuum *find_vacuum(int *pid);
static bool may_brake(GuardedVacuum *vacuum);
static void begin_pause(GuardPause *pause, uint64 now);
static bool pause_vacuum(GuardedVacuum *vacuum, int pid, uint64 now);
static bool resume_vacuum(GuardedVacuum *vacuum, int pid, uint64 now);
static int	for_all_vacuums(bool (*change) (GuardedVacuum *vacuum, int pid, uint64 now), uint64 now);

/* pg_cyclone_pause -- cyclone.pause(pid): was the VACUUM told to pause? */
Datum
pg_cyclone_pause(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	GuardedVacuum *vacuum;

	refuse_without_preloading();
	vacuum = find_vacuum(&pid);
	if (vacuum == NULL)
		PG_RETURN_BOOL(false);
	if (pause_vacuum(vacuum, pid, now_ns()))
		PG_RETURN_BOOL(true);
	ereport(WARNING,
			(errmsg("VACUUM of process %d cannot be paused", pid),
			 errdetail("It has just ended, or keeps readers out, as VACUUM FULL does, or is needed to prevent transaction ID wraparound."),
			 errhint("If it is in the way, cancel it.")));
	PG_RETURN_BOOL(false);
}

/* pg_cyclone_resume -- cyclone.resume(pid): was it paused, and may go on now? */
Datum
pg_cyclone_resume(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	GuardedVacuum *vacuum;

	refuse_without_preloading();
	vacuum = find_vacuum(&pid);
	PG_RETURN_BOOL(vacuum != NULL && resume_vacuum(vacuum, pid, now_ns()));
}

/* pg_cyclone_pause_all -- cyclone.pause(): how many VACUUMs were told to pause. */
Datum
pg_cyclone_pause_all(PG_FUNCTION_ARGS)
{
	uint64		now = now_ns();

	refuse_without_preloading();
	if (guards_shared == NULL)
		PG_RETURN_INT32(0);
	if (superuser())
	{
		LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
		begin_pause(&guards_shared->general_pause, now);
		LWLockRelease(guards_shared->lock);
		ereport(NOTICE,
				(errmsg("VACUUMs that begin within %d s are paused, too", LONGEST_PAUSE),
				 errhint("SELECT cyclone.resume() ends that.")));
	}
	PG_RETURN_INT32(for_all_vacuums(pause_vacuum, now));
}

/* pg_cyclone_resume_all -- cyclone.resume(): how many were paused, and may go on now. */
Datum
pg_cyclone_resume_all(PG_FUNCTION_ARGS)
{
	int			resumed;

	refuse_without_preloading();
	if (guards_shared == NULL)
		PG_RETURN_INT32(0);
	resumed = for_all_vacuums(resume_vacuum, now_ns());
	if (superuser())
	{
		LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
		pg_atomic_write_u64(&guards_shared->general_pause.until, 0);
		LWLockRelease(guards_shared->lock);
	}
	PG_RETURN_INT32(resumed);
}

/* for_all_vacuums -- pause or resume all that this user may; returns how many that was true of. */
static int
for_all_vacuums(bool (*change) (GuardedVacuum *vacuum, int pid, uint64 now), uint64 now)
{
	int			changed = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		GuardedVacuum *vacuum = &guards_shared->vacuums[i];
		int			pid = vacuum->pid;

		if (pid != 0 && may_brake(vacuum) && change(vacuum, pid, now))
			changed++;
	}
	return changed;
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

/* pause_vacuum -- returns false if it has ended since, or can't wait. */
static bool
pause_vacuum(GuardedVacuum *vacuum, int pid, uint64 now)
{
	bool		can_wait = !guards_is_needed(vacuum) && !guards_worker_is_needed(vacuum);

	Assert(pid != 0);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	can_wait = can_wait && vacuum->pid == pid && !vacuum->readers_wait;
	if (can_wait)
		begin_pause(&vacuum->pause, now);
	LWLockRelease(guards_shared->lock);
	return can_wait;
}

/* resume_vacuum -- let it go on.  Returns false if it has ended since, or wasn't paused. */
static bool
resume_vacuum(GuardedVacuum *vacuum, int pid, uint64 now)
{
	bool		was_paused;

	Assert(pid != 0);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	was_paused = vacuum->pid == pid && !vacuum->readers_wait &&
		guards_hurry_of(vacuum) < HURRY_NO_WAITING && guards_is_paused(vacuum);
	if (was_paused)
	{
		pg_atomic_write_u64(&vacuum->pause.until, 0);
		SetLatch(&GetPGProcByNumber(vacuum - guards_shared->vacuums)->procLatch);
	}
	LWLockRelease(guards_shared->lock);
	return was_paused;
}
