/*-------------------------------------------------------------------------
 *
 * brake.c
 *	  cyclone.pause and cyclone.resume, and what the view says of guards.
 *
 * A role that may cancel a VACUUM's statement may pause it, and let it go on.  A
 * superuser's pause of all holds VACUUMs that begin later, too: otherwise each autovacuum
 * would have to be paused anew.  The pause of another role holds only those that run.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "declared_rows.h"
#include "guards/guards.h"
#include "guards/guards_state.h"
#include "library.h"
#include "clock.h"
#include "settings.h"

/* The view says that WAL holds a vacuum if it did so within this time. */
#define LATELY_NS			((uint64) NS_PER_S)

#define GUARD_COLUMNS		9

/* The guard that holds a vacuum just now, with its figures */
typedef struct GuardState
{
	Guard		guard;
	Oid			paused_by;
	int			standby;		/* its walsender; 0: none */
	double		figure;			/* seconds of the pause or of lag, bytes of
								 * WAL a second, or bytes that are free */
	double		bound;			/* the same at most; of what is free at least */
	char	   *wal_holder;		/* what retains WAL; NULL: that isn't it */
} GuardState;

PG_FUNCTION_INFO_V1(pg_cyclone_guards);
PG_FUNCTION_INFO_V1(pg_cyclone_pause);
PG_FUNCTION_INFO_V1(pg_cyclone_pause_all);
PG_FUNCTION_INFO_V1(pg_cyclone_resume);
PG_FUNCTION_INFO_V1(pg_cyclone_resume_all);

static bool find_hold(GuardedVacuum *vacuum, GuardState *state);
static bool waited_lately(GuardedVacuum *vacuum, Guard guard);
static bool may_see(Oid owner);
static bool may_brake(GuardedVacuum *vacuum);
static bool pause_vacuum(GuardedVacuum *vacuum, int pid, uint64 now);
static bool resume_vacuum(GuardedVacuum *vacuum, int pid);

/* pg_cyclone_pause -- cyclone.pause(pid): was the VACUUM told to pause? */
Datum
pg_cyclone_pause(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	GuardedVacuum *vacuum;
	bool		is_locked;

	refuse_without_preloading();
	vacuum = guards_find_vacuum(&pid);
	if (vacuum == NULL)
		PG_RETURN_BOOL(false);
	guards_check_privileges(vacuum, pid);
	is_locked = vacuum->is_locked;
	if (!pause_vacuum(vacuum, pid, now_ns()))
	{
		ereport(WARNING,
				(errmsg("VACUUM of process %d cannot be paused", pid),
				 errdetail("It has just ended, or is needed to prevent transaction ID wraparound.")));
		PG_RETURN_BOOL(false);
	}
	if (is_locked)
		ereport(WARNING,
				(errmsg("the table stays locked while VACUUM is paused"),
				 errdetail("VACUUM FULL has locked it against all others until it ends.")));
	PG_RETURN_BOOL(true);
}

/* pg_cyclone_resume -- cyclone.resume(pid): was it paused, and may go on now? */
Datum
pg_cyclone_resume(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	GuardedVacuum *vacuum;

	refuse_without_preloading();
	vacuum = guards_find_vacuum(&pid);
	if (vacuum == NULL)
		PG_RETURN_BOOL(false);
	guards_check_privileges(vacuum, pid);
	PG_RETURN_BOOL(resume_vacuum(vacuum, pid));
}

/* pg_cyclone_pause_all -- cyclone.pause(): how many VACUUMs were told to pause. */
Datum
pg_cyclone_pause_all(PG_FUNCTION_ARGS)
{
	int			paused = 0;
	uint64		now = now_ns();

	refuse_without_preloading();
	if (guards_shared == NULL)
		PG_RETURN_INT32(0);
	if (superuser())
	{
		LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
		pg_atomic_write_u32(&guards_shared->general_pause_by, GetUserId());
		pg_atomic_write_u64(&guards_shared->general_pause_at, now);
		pg_write_barrier();
		pg_atomic_write_u64(&guards_shared->general_pause_until,
							now + (uint64) cyclone_max_pause * NS_PER_S);
		LWLockRelease(guards_shared->lock);
		ereport(NOTICE,
				(errmsg("VACUUMs that begin within %d s are paused, too", cyclone_max_pause),
				 errhint("SELECT cyclone.resume() ends that.")));
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		GuardedVacuum *vacuum = &guards_shared->vacuums[i];
		int			pid = vacuum->pid;

		if (pid != 0 && may_brake(vacuum) && pause_vacuum(vacuum, pid, now))
			paused++;
	}
	PG_RETURN_INT32(paused);
}

/* pg_cyclone_resume_all -- cyclone.resume(): how many were paused, and may go on now. */
Datum
pg_cyclone_resume_all(PG_FUNCTION_ARGS)
{
	int			resumed = 0;

	refuse_without_preloading();
	if (guards_shared == NULL)
		PG_RETURN_INT32(0);
	for (int i = 0; i < MaxBackends; i++)
	{
		GuardedVacuum *vacuum = &guards_shared->vacuums[i];
		int			pid = vacuum->pid;

		if (pid != 0 && may_brake(vacuum) && resume_vacuum(vacuum, pid))
			resumed++;
	}
	if (superuser())
	{
		LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
		pg_atomic_write_u64(&guards_shared->general_pause_until, 0);
		LWLockRelease(guards_shared->lock);
	}
	PG_RETURN_INT32(resumed);
}

/* find_hold -- which guard holds a vacuum just now?  False if none does. */
static bool
find_hold(GuardedVacuum *vacuum, GuardState *state)
{
	uint64		until = guards_paused_until(vacuum);
	uint64		rate = pg_atomic_read_u64(&guards_shared->wal_rate);
	bool		is_urgent = pg_atomic_read_u32(&vacuum->is_urgent) != 0;

	memset(state, 0, sizeof(*state));
	if (until != 0 && !is_urgent)
	{
		uint64		now = now_ns();
		uint64		at;

		/* who has paused it, and since when, was written before until */
		pg_read_barrier();
		at = pg_atomic_read_u64(guards_paused_at(vacuum));
		state->guard = GUARD_PAUSE;
		state->paused_by = pg_atomic_read_u32(guards_paused_by(vacuum));
		state->figure = now > at ? (double) (now - at) / NS_PER_S : 0;
		state->bound = until > at ? (double) (until - at) / NS_PER_S : 0;
		return true;
	}
	if (pg_atomic_read_u32(&vacuum->disk_stops) != DISK_NONE && !is_urgent)
	{
		pg_read_barrier();
		state->guard = GUARD_DISK;
		state->wal_holder = guards_disk_holder(vacuum);
		state->figure = pg_atomic_read_u64(&vacuum->disk_free);
		state->bound = pg_atomic_read_u64(&vacuum->disk_bound);
		return true;
	}
	if ((pg_atomic_read_u32(&guards_shared->lag_stops) != 0 && !is_urgent) ||
		waited_lately(vacuum, GUARD_LAG))
	{
		pg_read_barrier();
		state->guard = GUARD_LAG;
		state->standby = pg_atomic_read_u32(&guards_shared->lag_pid);
		state->figure = read_double(&guards_shared->lag_ms) / 1000;
		state->bound = pg_atomic_read_u32(&guards_shared->max_lag_ms) / 1000.0;
		return true;
	}
	if (rate != 0 && waited_lately(vacuum, GUARD_WAL_RATE))
	{
		state->guard = GUARD_WAL_RATE;
		state->figure = read_double(&guards_shared->measured_rate);
		state->bound = rate;
		return true;
	}
	return false;
}

/* waited_lately -- has a guard kept a vacuum waiting just now? */
static bool
waited_lately(GuardedVacuum *vacuum, Guard guard)
{
	Assert(guard < NUM_GUARDS);
	return now_ns() < pg_atomic_read_u64(&vacuum->waited_at[guard]) + LATELY_NS;
}

/*
 * guards_find_vacuum
 *		The vacuum that a process leads or works for, and its leader's number; a warning,
 *		and NULL, if there is none, as for pg_cancel_backend.
 *
 * A caller that has checked the user's rights must look again, under the lock, whether
 * that process still leads it.
 */
GuardedVacuum *
guards_find_vacuum(int *pid)
{
	PGPROC	   *proc = BackendPidGetProc(*pid);
	PGPROC	   *leader = proc != NULL && proc->lockGroupLeader != NULL ? proc->lockGroupLeader : proc;

	/*
	 * The number may belong to another process now, which then leads none, or
	 * has another pid.
	 */
	if (leader != NULL && guards_shared != NULL)
	{
		GuardedVacuum *vacuum = &guards_shared->vacuums[GetNumberFromPGProc(leader)];
		int			leader_pid = leader->pid;

		if (leader_pid != 0 && vacuum->pid == leader_pid)
		{
			*pid = leader_pid;
			return vacuum;
		}
	}
	ereport(WARNING,
			(errmsg("PID %d is not a VACUUM of pg_cyclone", *pid),
			 errhint("The view cyclone.pace has those that are running.")));
	return NULL;
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

/* guards_check_privileges -- raise an error if this user may not pause a vacuum. */
void
guards_check_privileges(GuardedVacuum *vacuum, int pid)
{
	Assert(vacuum != NULL && pid != 0);

	if (!may_brake(vacuum))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change how VACUUM of process %d goes on", pid),
				 errdetail("Only roles that may cancel its statement may do that: see pg_cancel_backend.")));
}

/*
 * pause_vacuum
 *		Pause it from now on, or for longer if it is paused.  Returns false if it has ended
 *		since, or can't wait.
 *
 * A pause of all may hold it already.  Then it has been paused since that one began.
 */
static bool
pause_vacuum(GuardedVacuum *vacuum, int pid, uint64 now)
{
	bool		can_wait = !guards_is_urgent(vacuum);

	Assert(pid != 0);
	Assert(vacuum >= guards_shared->vacuums && vacuum < guards_shared->vacuums + MaxBackends);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	can_wait = can_wait && vacuum->pid == pid;
	if (can_wait)
	{
		pg_atomic_write_u32(&vacuum->paused_by, GetUserId());
		if (pg_atomic_read_u64(&vacuum->paused_until) == 0)
			pg_atomic_write_u64(&vacuum->paused_at,
								now < guards_paused_until(vacuum) ?
								pg_atomic_read_u64(guards_paused_at(vacuum)) : now);
		pg_write_barrier();
		pg_atomic_write_u64(&vacuum->paused_until,
							now + (uint64) cyclone_max_pause * NS_PER_S);
	}
	LWLockRelease(guards_shared->lock);
	return can_wait;
}

/* resume_vacuum -- let it go on.  Returns false if it has ended since, wasn't paused, or is in an emergency. */
static bool
resume_vacuum(GuardedVacuum *vacuum, int pid)
{
	bool		can_wait = !guards_is_urgent(vacuum);
	bool		was_paused;

	Assert(pid != 0);
	Assert(vacuum >= guards_shared->vacuums && vacuum < guards_shared->vacuums + MaxBackends);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	was_paused = can_wait && vacuum->pid == pid && guards_paused_until(vacuum) != 0;
	if (was_paused)
	{
		pg_atomic_write_u64(&vacuum->paused_until, 0);
		pg_atomic_write_u32(&vacuum->ignores_general_pause, 1);
		SetLatch(&GetPGProcByNumber(vacuum - guards_shared->vacuums)->procLatch);
	}
	LWLockRelease(guards_shared->lock);
	return was_paused;
}

/*
 * pg_cyclone_guards
 *		The rows of cyclone.guard_rows.  As in cyclone.pace, a role that may not see the
 *		statistics of the command's user doesn't see why it is held.
 */
Datum
pg_cyclone_guards(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"paused", "WAL rate", "replica lag", "disk space"};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	StaticAssertStmt(lengthof(names) == NUM_GUARDS, "a guard has no name");
	refuse_without_preloading();
	declared_rows_begin(fcinfo, GUARD_COLUMNS);

	/* there are no places on a server that the library doesn't fit */
	for (int i = 0; guards_shared != NULL && i < MaxBackends; i++)
	{
		GuardedVacuum *vacuum = &guards_shared->vacuums[i];
		const PGPROC *proc = GetPGProcByNumber(i);
		int			pid = vacuum->pid;
		GuardState	state;
		Datum		values[GUARD_COLUMNS] = {0};
		bool		nulls[GUARD_COLUMNS] = {0};
		int			column = 0;

		if (pid == 0 || !find_hold(vacuum, &state) || !may_see(proc->roleId))
			continue;
		values[column++] = Int32GetDatum(pid);
		values[column++] = ObjectIdGetDatum(proc->databaseId);
		nulls[column] = !OidIsValid(pg_atomic_read_u32(&vacuum->relid));
		values[column++] = ObjectIdGetDatum(pg_atomic_read_u32(&vacuum->relid));
		values[column++] = CStringGetTextDatum(names[state.guard]);
		values[column++] = Float8GetDatum(state.figure);
		values[column++] = Float8GetDatum(state.bound);
		nulls[column] = !OidIsValid(state.paused_by);
		values[column++] = ObjectIdGetDatum(state.paused_by);
		nulls[column] = state.standby == 0;
		values[column++] = Int32GetDatum(state.standby);
		nulls[column] = state.wal_holder == NULL;
		if (state.wal_holder != NULL)
			values[column] = CStringGetTextDatum(state.wal_holder);
		column++;
		Assert(column == GUARD_COLUMNS);
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
