/*-------------------------------------------------------------------------
 *
 * pace_view.c
 *	  The view cyclone.pace: what is known of the pace of each vacuum.
 *
 * Each leader has a slot in shared memory, with a row while it vacuums a table.
 * Whoever ticks fills it in (pace_show).  Readers take no lock: the numbers of a
 * row may be of two ticks.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_authid.h"
#include "commands/vacuum.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "declared_rows.h"
#include "library.h"
#include "pace/clock.h"
#include "pace/latency.h"
#include "pace/pace_state.h"

#define PACE_COLUMNS		13

/* What the view shows of a vacuum; written by whoever ticks. */
typedef struct PaceSlot
{
	pg_atomic_uint32 pid;		/* of the leader; 0 if the slot is not in use */
	pg_atomic_uint32 user_id;
	pg_atomic_uint32 database;
	pg_atomic_uint32 relid;
	pg_atomic_uint32 limited_by;	/* PaceLimit */
	pg_atomic_uint32 latency_of;	/* LatencyOf */
	pg_atomic_uint32 shared_by; /* so many VACUUMs have the target */
	/* doubles, NaN for null */
	pg_atomic_uint64 target_ms;
	pg_atomic_uint64 percentile;
	pg_atomic_uint64 latency_ms;
	pg_atomic_uint64 budget;
	pg_atomic_uint64 rate;
	pg_atomic_uint64 asleep;
} PaceSlot;

typedef enum PaceLimit
{
	PACE_LIMIT_NOTHING,
	PACE_LIMIT_COST_DELAY,
	PACE_LIMIT_LATENCY,
	PACE_LIMIT_LEARNING,
	PACE_LIMIT_FLOOR,
	PACE_LIMIT_CLUSTER,
	PACE_LIMIT_FAILSAFE,
} PaceLimit;

static PaceSlot *slots = NULL;	/* MaxBackends of them, by leader */

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

PG_FUNCTION_INFO_V1(pg_cyclone_pace);

static bool target_sets_pace(PaceShared *shared, double budget);
static PaceLimit find_limit(const TargetState *target, bool by_target);
static void request_shmem(void);
static void startup_shmem(void);

/*
 * pace_init
 *		Ask for shared memory.  Call while the library is preloaded.
 */
void
pace_init(void)
{
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

/*
 * pace_begin_row
 *		The leader's VACUUM of a table has a row in the view from now on.
 */
void
pace_begin_row(PaceShared *shared)
{
	PaceSlot   *slot = &slots[MyProcNumber];

	pg_atomic_write_u32(&slot->user_id, GetSessionUserId());
	pg_atomic_write_u32(&slot->database, MyDatabaseId);
	pg_atomic_write_u32(&slot->relid, shared->relid);
	pace_show(shared, 0, 0, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->pid, MyProcPid);
}

/* pace_end_row -- it has none any more; harmless if it had none. */
void
pace_end_row(void)
{
	pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);
}

/*
 * pace_show
 *		Fill in what the view shows; budget and rate are those of what sets the pace.
 */
void
pace_show(PaceShared *shared, double rate, double target_rate, double asleep)
{
	PaceSlot   *slot = &slots[shared->leader];
	TargetState target = {.latency_ms = NAN,.budget = INFINITY};
	bool		by_target;
	double		budget;

	if (my_pace.target != NULL)
		target_state(my_pace.target, &target);
	by_target = target_sets_pace(shared, target.budget);
	budget = by_target ? target.budget : budget_of_settings(&my_pace.settings);
	write_double(&slot->target_ms, target.target_ms > 0 ? target.target_ms : NAN);
	write_double(&slot->percentile,
				 my_pace.target != NULL ? my_pace.settings.latency_percentile : NAN);
	pg_atomic_write_u32(&slot->latency_of, my_pace.settings.latency_of);
	pg_atomic_write_u32(&slot->shared_by, target.vacuums);
	write_double(&slot->latency_ms, target.latency_ms);
	write_double(&slot->budget, isinf(budget) ? NAN : budget);
	write_double(&slot->rate, !VacuumCostActive ? NAN : by_target ? target_rate : rate);
	write_double(&slot->asleep, asleep);
	pg_atomic_write_u32(&slot->limited_by, find_limit(&target, by_target));
}

/*
 * target_sets_pace
 *		Is it the target, whose budget this is, or the settings?
 */
static bool
target_sets_pace(PaceShared *shared, double budget)
{
	double		of_settings = budget_of_settings(&my_pace.settings);

	if (my_pace.target == NULL || isinf(of_settings))
		return my_pace.target != NULL;
	return !isinf(budget) && budget * read_double(&shared->exchange) < of_settings;
}

/* find_limit -- what keeps the vacuum from going faster? */
static PaceLimit
find_limit(const TargetState *target, bool by_target)
{
	if (pg_atomic_read_u32(&my_pace.shared->failsafe))
		return PACE_LIMIT_FAILSAFE;
	if (!by_target)
		return isinf(budget_of_settings(&my_pace.settings)) ? PACE_LIMIT_NOTHING : PACE_LIMIT_COST_DELAY;
	if (isinf(target->budget))
		return PACE_LIMIT_NOTHING;
	switch (target->limit)
	{
		case LIMIT_NOTHING:
			return PACE_LIMIT_NOTHING;
		case LIMIT_LATENCY:
			return PACE_LIMIT_LATENCY;
		case LIMIT_LEARNING:
			return PACE_LIMIT_LEARNING;
		case LIMIT_FLOOR:
			return PACE_LIMIT_FLOOR;
		case LIMIT_CLUSTER:
			return PACE_LIMIT_CLUSTER;
	}
	return PACE_LIMIT_NOTHING;
}

/*
 * pg_cyclone_pace
 *		The rows of cyclone.pace.  As in cyclone.progress, who may not see the
 *		statistics of the command's user sees only that it runs.
 */
Datum
pg_cyclone_pace(PG_FUNCTION_ARGS)
{
	static const char *const limit_names[] = {
		"nothing", "cost delay", "latency target", "learning the target",
		"floor", "coordinator", "nothing (failsafe)",
	};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	refuse_without_preloading();
	begin_rows(fcinfo, PACE_COLUMNS);

	for (int i = 0; slots != NULL && i < MaxBackends; i++)
	{
		PaceSlot   *slot = &slots[i];
		uint32		pid = pg_atomic_read_u32(&slot->pid);
		Oid			user_id;
		Datum		values[PACE_COLUMNS] = {0};
		bool		nulls[PACE_COLUMNS] = {0};
		int			column = 0;

		if (pid == 0)
			continue;
		pg_read_barrier();

		user_id = pg_atomic_read_u32(&slot->user_id);
		values[column++] = Int32GetDatum(pid);
		values[column++] = ObjectIdGetDatum(pg_atomic_read_u32(&slot->database));
		if (has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
			has_privs_of_role(GetUserId(), user_id))
		{
			pg_atomic_uint64 *const numbers[] = {
				&slot->target_ms, &slot->percentile, &slot->latency_ms,
				&slot->budget, &slot->rate, &slot->asleep,
			};

			values[column++] = ObjectIdGetDatum(pg_atomic_read_u32(&slot->relid));
			for (int k = 0; k < lengthof(numbers); k++, column++)
			{
				double		number = read_double(numbers[k]);

				nulls[column] = isnan(number);
				values[column] = Float8GetDatum(number);
			}
			/* of what, if it is about a latency */
			nulls[column] = nulls[column - lengthof(numbers) + 1];
			values[column++] = CStringGetTextDatum(cyclone_latency_of_options[pg_atomic_read_u32(&slot->latency_of)].name);
			/* so is who shares it */
			nulls[column] = nulls[column - 1];
			values[column++] = Int32GetDatum(pg_atomic_read_u32(&slot->shared_by));
			values[column++] = CStringGetTextDatum(limit_names[pg_atomic_read_u32(&slot->limited_by)]);
			values[column++] = ObjectIdGetDatum(user_id);
		}
		else
			while (column < PACE_COLUMNS)
				nulls[column++] = true;

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* request_shmem -- how much shared memory the slots need. */
static void
request_shmem(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(mul_size(sizeof(PaceSlot), MaxBackends));
}

/* startup_shmem -- find the slots, or make them. */
static void
startup_shmem(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	slots = ShmemInitStruct("pg_cyclone pace", mul_size(sizeof(PaceSlot), MaxBackends), &found);
	for (int i = 0; !found && i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&slots[i].pid, 0);
		pg_atomic_init_u32(&slots[i].user_id, InvalidOid);
		pg_atomic_init_u32(&slots[i].database, InvalidOid);
		pg_atomic_init_u32(&slots[i].relid, InvalidOid);
		pg_atomic_init_u32(&slots[i].limited_by, PACE_LIMIT_NOTHING);
		pg_atomic_init_u32(&slots[i].latency_of, LATENCY_OF_STATEMENTS);
		pg_atomic_init_u32(&slots[i].shared_by, 0);
		pg_atomic_init_u64(&slots[i].target_ms, 0);
		pg_atomic_init_u64(&slots[i].percentile, 0);
		pg_atomic_init_u64(&slots[i].latency_ms, 0);
		pg_atomic_init_u64(&slots[i].budget, 0);
		pg_atomic_init_u64(&slots[i].rate, 0);
		pg_atomic_init_u64(&slots[i].asleep, 0);
	}
	LWLockRelease(AddinShmemInitLock);
}
