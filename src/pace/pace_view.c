/*-------------------------------------------------------------------------
 *
 * pace_view.c
 *	  The view cyclone.pace: the pace of each vacuum, and what guard holds it.
 *
 * Each leader has a slot in shared memory, with a pace while it vacuums a table.
 * The process that ticks fills it in (view_show).  A guard (guards.c) also holds those
 * that have none, between two passes.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "guards/guards.h"
#include "library.h"
#include "pace/pace_private.h"

#define PACE_COLUMNS		16

/* What keeps a vacuum from going faster, in the words of the view */
static const char *const limit_names[] = {
	[LIMIT_NOTHING] = "nothing",
	[LIMIT_OTHERS] = "other sessions",
	[LIMIT_LEARNING] = "learning",
	[LIMIT_FLOOR] = "floor",
#define LIMIT_COST_DELAY	(LIMIT_FLOOR + 1)
	[LIMIT_COST_DELAY] = "cost delay",
#define LIMIT_FAILSAFE		(LIMIT_FLOOR + 2)
	[LIMIT_FAILSAFE] = "nothing (failsafe)",
};

/* What the view shows of a vacuum's pace; numbers are NAN for null */
typedef struct PaceRow
{
	bool		is_in_use;
	double		budget;
	double		rate;
	double		asleep;
	AdaptiveState adaptive;		/* vacuums is 0 if it hasn't one */
	int			limited_by;
} PaceRow;

/* Written by the leader, and by the process that ticks */
typedef struct PaceSlot
{
	slock_t		mutex;
	PaceRow		row;
} PaceSlot;

static PaceSlot *slots = NULL;	/* MaxBackends of them, by leader */

PG_FUNCTION_INFO_V1(pg_cyclone_pace);

static int	view_find_limit(const AdaptiveState *adaptive);
static void view_set_numbers(const double *numbers, int number, Datum *values, bool *nulls);
static void view_set_row(const PaceRow *row, const GuardHold *hold, Datum *values, bool *nulls);

/* view_begin_row -- the leader's VACUUM of a table has a row from now on. */
void
view_begin_row(PaceShared *shared)
{
	PaceSlot   *slot = &slots[MyProcNumber];

	Assert(shared->leader == MyProcNumber);
	view_show(shared, NAN, 0);
	SpinLockAcquire(&slot->mutex);
	slot->row.is_in_use = true;
	SpinLockRelease(&slot->mutex);
}

/* view_end_row -- it has none any more; does nothing if it had none. */
void
view_end_row(void)
{
	SpinLockAcquire(&slots[MyProcNumber].mutex);
	slots[MyProcNumber].row.is_in_use = false;
	SpinLockRelease(&slots[MyProcNumber].mutex);
}

/*
 * view_show
 *		Fill in what the view shows: what processes cost a second by the settings, and how
 *		much of their time they slept.
 */
void
view_show(PaceShared *shared, double cost, double asleep)
{
	PaceSlot   *slot = &slots[shared->leader];
	AdaptiveState adaptive;
	int			limit;

	Assert(shared->leader >= 0 && shared->leader < MaxBackends);
	adaptive_state(my_pace.is_adaptive, &adaptive);
	limit = view_find_limit(&adaptive);
	SpinLockAcquire(&slot->mutex);
	slot->row.budget = isinf(my_pace.rate) ? NAN : my_pace.rate;
	slot->row.rate = !VacuumCostActive ? NAN : cost;
	slot->row.asleep = asleep;
	slot->row.adaptive = adaptive;
	slot->row.limited_by = limit;
	SpinLockRelease(&slot->mutex);
}

/* view_find_limit -- what keeps the vacuum from going faster? */
static int
view_find_limit(const AdaptiveState *adaptive)
{
	Assert(my_pace.shared != NULL);
	if (pg_atomic_read_u32(&my_pace.shared->failsafe))
		return LIMIT_FAILSAFE;
	if (my_pace.is_adaptive)
		return isinf(adaptive->added) ? LIMIT_NOTHING : (int) adaptive->limit;
	return isinf(my_pace.rate) ? LIMIT_NOTHING : LIMIT_COST_DELAY;
}

/*
 * pg_cyclone_pace
 *		The rows of cyclone.pace.  As in cyclone.progress, a role that may not see the
 *		statistics of the command's user sees only that it runs.
 */
Datum
pg_cyclone_pace(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	refuse_without_preloading();
	library_begin_rows(fcinfo, PACE_COLUMNS);

	for (int i = 0; slots != NULL && i < MaxBackends; i++)
	{
		const PGPROC *leader = GetPGProcByNumber(i);
		PaceRow		row;
		GuardHold	hold;
		Datum		values[PACE_COLUMNS] = {0};
		bool		nulls[PACE_COLUMNS];

		guards_find_hold(i, &hold);
		SpinLockAcquire(&slots[i].mutex);
		row = slots[i].row;
		SpinLockRelease(&slots[i].mutex);
		if (!row.is_in_use && hold.limited_by == NULL)
			continue;

		memset(nulls, true, sizeof(nulls));
		values[0] = Int32GetDatum(leader->pid);
		values[1] = ObjectIdGetDatum(leader->databaseId);
		nulls[0] = nulls[1] = false;
		if (library_may_see(GetUserId(), leader->roleId))
			view_set_row(&row, &hold, &values[2], &nulls[2]);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* view_set_row -- set the columns from relid on, which were null. */
static void
view_set_row(const PaceRow *row, const GuardHold *hold, Datum *values, bool *nulls)
{
	bool		is_held = hold->limited_by != NULL;
	bool		is_adaptive = row->is_in_use && row->adaptive.vacuums > 0;
	const double numbers[] = {
		is_held ? hold->figure : NAN, is_held ? hold->bound : NAN,
		row->is_in_use ? row->budget : NAN, row->is_in_use ? row->rate : NAN, row->is_in_use ? row->asleep : NAN
	};
	const double figures[] = {
		row->adaptive.added, row->adaptive.others_at_work, row->adaptive.others_take, row->adaptive.others_would_take
	};

	Assert(row->limited_by >= 0 && row->limited_by < lengthof(limit_names));
	values[0] = ObjectIdGetDatum(hold->relid);
	nulls[0] = !OidIsValid(hold->relid);
	values[1] = CStringGetTextDatum(is_held ? hold->limited_by : limit_names[row->limited_by]);
	nulls[1] = false;
	view_set_numbers(numbers, lengthof(numbers), &values[2], &nulls[2]);
	nulls[7] = hold->held_by == NULL;
	if (hold->held_by != NULL)
		values[7] = CStringGetTextDatum(hold->held_by);
	nulls[8] = hold->standby_pid == 0;
	values[8] = Int32GetDatum(hold->standby_pid);
	nulls[9] = !is_adaptive;
	values[9] = Int32GetDatum(row->adaptive.vacuums);
	if (is_adaptive)
		view_set_numbers(figures, lengthof(figures), &values[10], &nulls[10]);
}

/* view_set_numbers -- set columns to these numbers, unless one isn't known, or has no bound. */
static void
view_set_numbers(const double *numbers, int number, Datum *values, bool *nulls)
{
	for (int i = 0; i < number; i++)
	{
		nulls[i] = isnan(numbers[i]) || isinf(numbers[i]);
		values[i] = Float8GetDatum(numbers[i]);
	}
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
		SpinLockInit(&slots[i].mutex);
		slots[i].row.is_in_use = false;
	}
}
