/*-------------------------------------------------------------------------
 *
 * pace_view.c
 *	  The view cyclone.pace: what is known of the pace of each vacuum.
 *
 * Each leader has a slot in shared memory, with a row while it vacuums a table.
 * Whoever ticks fills it in (view_show).  Readers take no lock: the numbers of a
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
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "declared_rows.h"
#include "library.h"
#include "pace/pace_private.h"

#define PACE_COLUMNS		13

/* What the view shows of a vacuum; written by whoever ticks. */
typedef struct PaceSlot
{
	pg_atomic_uint32 pid;		/* of the leader; 0 if the slot is not in use */
	pg_atomic_uint32 user_id;
	pg_atomic_uint32 database;
	pg_atomic_uint32 relid;
	pg_atomic_uint32 limited_by;	/* PaceLimit */
	pg_atomic_uint32 by_waits;	/* does the target go by others' waits? */
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
	PACE_LIMIT_FAILSAFE,
} PaceLimit;

static PaceSlot *slots = NULL;	/* MaxBackends of them, by leader */

PG_FUNCTION_INFO_V1(pg_cyclone_pace);

static PaceLimit find_limit(const TargetState *target, bool by_target);

/*
 * view_begin_row
 *		The leader's VACUUM of a table has a row in the view from now on.
 */
void
view_begin_row(PaceShared *shared)
{
	PaceSlot   *slot = &slots[MyProcNumber];

	pg_atomic_write_u32(&slot->user_id, GetSessionUserId());
	pg_atomic_write_u32(&slot->database, MyDatabaseId);
	pg_atomic_write_u32(&slot->relid, shared->relid);
	view_show(shared, 0, 0, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->pid, MyProcPid);
}

/* view_end_row -- it has none any more; harmless if it had none. */
void
view_end_row(void)
{
	pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);
}

/*
 * view_show
 *		Fill in what the view shows: what processes cost a second by the settings, how
 *		many were at work, and how much of their time they slept.
 */
void
view_show(PaceShared *shared, double cost, double awake, double asleep)
{
	PaceSlot   *slot = &slots[shared->leader];
	TargetState target = {.latency_ms = NAN,.budget = INFINITY};
	bool		by_target = my_pace.target != NULL &&
		(isinf(my_pace.rate) || pg_atomic_read_u32(&shared->by_target) != 0);
	double		budget;

	if (my_pace.target != NULL)
		target_state(my_pace.target, &target);
	budget = by_target ? Max(target.budget, my_pace.least > LEAST_BUDGET ? my_pace.least : 0) : my_pace.rate;
	write_double(&slot->target_ms, target.target_ms > 0 ? target.target_ms : NAN);
	write_double(&slot->percentile,
				 my_pace.target != NULL ? my_pace.settings.latency_percentile : NAN);
	pg_atomic_write_u32(&slot->by_waits, target.target_ms == 0);
	pg_atomic_write_u32(&slot->shared_by, target.vacuums);
	write_double(&slot->latency_ms, target.latency_ms);
	write_double(&slot->budget, isinf(budget) ? NAN : budget);
	write_double(&slot->rate, !VacuumCostActive ? NAN : by_target ? awake : cost);
	write_double(&slot->asleep, asleep);
	pg_atomic_write_u32(&slot->limited_by, find_limit(&target, by_target));
}

/* find_limit -- what keeps the vacuum from going faster? */
static PaceLimit
find_limit(const TargetState *target, bool by_target)
{
	if (pg_atomic_read_u32(&my_pace.shared->failsafe))
		return PACE_LIMIT_FAILSAFE;
	if (!by_target)
		return isinf(my_pace.rate) ? PACE_LIMIT_NOTHING : PACE_LIMIT_COST_DELAY;
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
		"floor", "nothing (failsafe)",
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
			values[column++] = CStringGetTextDatum(pg_atomic_read_u32(&slot->by_waits) ? "waits" : "statements");
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

/* view_shmem_size -- how much shared memory the slots need. */
Size
view_shmem_size(void)
{
	return mul_size(sizeof(PaceSlot), MaxBackends);
}

/* view_shmem_init -- find the slots, or make them. */
void
view_shmem_init(void)
{
	bool		found;

	slots = ShmemInitStruct("pg_cyclone pace", view_shmem_size(), &found);
	for (int i = 0; !found && i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&slots[i].pid, 0);
		pg_atomic_init_u32(&slots[i].user_id, InvalidOid);
		pg_atomic_init_u32(&slots[i].database, InvalidOid);
		pg_atomic_init_u32(&slots[i].relid, InvalidOid);
		pg_atomic_init_u32(&slots[i].limited_by, PACE_LIMIT_NOTHING);
		pg_atomic_init_u32(&slots[i].by_waits, 0);
		pg_atomic_init_u32(&slots[i].shared_by, 0);
		pg_atomic_init_u64(&slots[i].target_ms, 0);
		pg_atomic_init_u64(&slots[i].percentile, 0);
		pg_atomic_init_u64(&slots[i].latency_ms, 0);
		pg_atomic_init_u64(&slots[i].budget, 0);
		pg_atomic_init_u64(&slots[i].rate, 0);
		pg_atomic_init_u64(&slots[i].asleep, 0);
	}
}
