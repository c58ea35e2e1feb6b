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

#define GUARD_COLUMNS		8

PG_FUNCTION_INFO_V1(pg_cyclone_guards);

static bool find_hold(GuardedVacuum *vacuum, Datum *values, bool *nulls);
static bool was_held_lately(GuardedVacuum *vacuum, Guard guard);
static bool may_see(Oid owner);

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
	char	   *who = NULL;
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
