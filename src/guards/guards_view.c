/*-------------------------------------------------------------------------
 *
 * guards_view.c
 *	  What cyclone.pace says of guards: which one holds a vacuum just now.
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
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "compat.h"
#include "guards/guards_state.h"
#include "library.h"

/* A rate of WAL holds a vacuum if it did so within this time. */
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
	double		bound;			/* of that, at most; of what is free at least */
	char	   *wal_holder;		/* what retains WAL; NULL: that isn't it */
} GuardState;

PG_FUNCTION_INFO_V1(pg_cyclone_guards);

static bool find_hold(GuardedVacuum *vacuum, GuardState *state);
static bool was_held_lately(GuardedVacuum *vacuum, Guard guard);
static bool may_see(Oid owner);

/* find_hold -- which guard holds a vacuum just now?  False if none does. */
static bool
find_hold(GuardedVacuum *vacuum, GuardState *state)
{
	GuardPause *pause = guards_pause_of(vacuum);
	DiskHolder	holder = pg_atomic_read_u32(&vacuum->disk_stops);
	GuardHurry	hurry = vacuum->readers_wait ? HURRY_WRAPAROUND : guards_hurry_of(vacuum);

	memset(state, 0, sizeof(*state));
	/* figures were written before what is looked at here */
	pg_read_barrier();
	if (pause != NULL && hurry < HURRY_NO_WAITING)
	{
		double		now = now_ns();
		double		since = pg_atomic_read_u64(&pause->since);
		double		until = pg_atomic_read_u64(&pause->until);

		state->guard = GUARD_PAUSE;
		state->paused_by = pg_atomic_read_u32(&pause->by);
		state->figure = Max(now - since, 0) / NS_PER_S;
		state->bound = Max(until - since, 0) / NS_PER_S;
	}
	else if (holder != DISK_NONE && hurry < HURRY_WRAPAROUND)
	{
		state->guard = GUARD_DISK;
		state->wal_holder = disk_holder_name(holder);
		state->figure = pg_atomic_read_u64(&vacuum->disk_free);
		state->bound = pg_atomic_read_u64(&vacuum->disk_bound);
	}
	else if (was_held_lately(vacuum, GUARD_LAG))
	{
		state->guard = GUARD_LAG;
		state->standby = pg_atomic_read_u32(&guards_shared->lag_pid);
		state->figure = read_double(&guards_shared->lag_ms) / 1000;
		state->bound = pg_atomic_read_u32(&guards_shared->max_lag_ms) / 1000.0;
	}
	else if (was_held_lately(vacuum, GUARD_WAL_RATE))
	{
		state->guard = GUARD_WAL_RATE;
		state->figure = read_double(&guards_shared->measured_rate);
		state->bound = pg_atomic_read_u64(&guards_shared->wal_rate);
	}
	else
		return false;
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
	static const char *const names[] = {"paused", "WAL rate", "replica lag", "disk space"};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	StaticAssertStmt(lengthof(names) == NUM_GUARDS, "a guard has no name");
	refuse_without_preloading();
	library_begin_rows(fcinfo, GUARD_COLUMNS);

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
