/*-------------------------------------------------------------------------
 *
 * set_pace.c
 *	  cyclone.set_pace: another pace for a running vacuum.
 *
 * It overrides the settings of the vacuum's session, and its options, until the
 * statement ends.  The leader is told as it is of a reload of the configuration: it
 * works out its settings anew, and asks here what is set.  So it is in force where and
 * when a reload would be.
 *
 * A role that may cancel the statement may do that.  A vacuum in a hurry isn't changed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>
#include <signal.h>

#include "commands/vacuum.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"

#include "guards/guards.h"
#include "guards/guards_state.h"
#include "library.h"
#include "pace/pace.h"

PG_FUNCTION_INFO_V1(pg_cyclone_set_pace);

static SetPace read_arguments(FunctionCallInfo fcinfo);
static double check_number(double value, double least, double greatest, const char *name);

/* pg_cyclone_set_pace -- cyclone.set_pace(pid, ...): was the VACUUM told? */
Datum
pg_cyclone_set_pace(PG_FUNCTION_ARGS)
{
	int			pid = PG_ARGISNULL(0) ? 0 : PG_GETARG_INT32(0);
	SetPace		wanted;
	GuardedVacuum *vacuum;
	bool		is_there;

	refuse_without_preloading();
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	wanted = read_arguments(fcinfo);
	vacuum = guards_find_vacuum(&pid);
	if (vacuum == NULL)
		PG_RETURN_BOOL(false);
	guards_check_privileges(vacuum, pid);

	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	is_there = vacuum->pid == pid;
	if (is_there)
	{
		SetPace    *set = &vacuum->set_pace;

		if (!set->is_set)
			*set = (SetPace)
		{
			.latency_target = NAN,.cost_delay = NAN,.workers = -1
		};
		set->is_set = true;
		if (!isnan(wanted.latency_target))
			set->latency_target = wanted.latency_target;
		if (!isnan(wanted.cost_delay))
			set->cost_delay = wanted.cost_delay;
		if (wanted.cost_limit > 0)
			set->cost_limit = wanted.cost_limit;
		if (wanted.workers >= 0)
			set->workers = wanted.workers;
		(void) kill(pid, SIGHUP);
	}
	LWLockRelease(guards_shared->lock);
	PG_RETURN_BOOL(is_there);
}

/* read_arguments -- what is to be set; an error if that can't be. */
static SetPace
read_arguments(FunctionCallInfo fcinfo)
{
	SetPace		wanted = {.latency_target = NAN,.cost_delay = NAN,.workers = -1};
	const char *problem;

	if (!PG_ARGISNULL(1) &&
		!pace_parse_latency_target(text_to_cstring(PG_GETARG_TEXT_PP(1)), &wanted.latency_target, &problem))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						"latency_target", text_to_cstring(PG_GETARG_TEXT_PP(1))),
				 errhint("%s", _(problem))));
	if (!PG_ARGISNULL(2))
		wanted.cost_delay = check_number(PG_GETARG_FLOAT8(2), 0, 100, "cost_delay");
	if (!PG_ARGISNULL(3))
		wanted.cost_limit = check_number(PG_GETARG_INT32(3), 1, 10000, "cost_limit");
	if (!PG_ARGISNULL(4))
		wanted.workers = check_number(PG_GETARG_INT32(4), 0, 1024, "workers");
	return wanted;
}

/* check_number -- an error if it isn't in these bounds. */
static double
check_number(double value, double least, double greatest, const char *name)
{
	if (!(value >= least && value <= greatest))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%g is outside the valid range for parameter \"%s\" (%g to %g)",
						value, name, least, greatest)));
	return value;
}

/* guards_pace_is_set -- is any of it set for the vacuum that this process leads? */
bool
guards_pace_is_set(void)
{
	return guarded.vacuum != NULL && guarded.vacuum->set_pace.is_set;
}

/* guards_apply_pace -- override these settings of the vacuum that this process leads. */
void
guards_apply_pace(double *cost_delay, int *cost_limit, double *latency_target)
{
	SetPace		set;

	if (!guards_pace_is_set() || VacuumFailsafeActive ||
		pg_atomic_read_u32(&guarded.vacuum->is_in_a_hurry) != 0)
		return;
	LWLockAcquire(guards_shared->lock, LW_SHARED);
	set = guarded.vacuum->set_pace;
	LWLockRelease(guards_shared->lock);
	if (!isnan(set.latency_target))
		*latency_target = set.latency_target;
	if (!isnan(set.cost_delay))
		*cost_delay = set.cost_delay;
	if (set.cost_limit > 0)
		*cost_limit = set.cost_limit;
}

/* guards_workers -- how many workers it may have at work, by what is set. */
uint32
guards_workers(void)
{
	return !guards_pace_is_set() || VacuumFailsafeActive || guarded.vacuum->set_pace.workers < 0 ?
		PG_UINT32_MAX : (uint32) guarded.vacuum->set_pace.workers;
}
