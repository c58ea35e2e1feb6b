/*-------------------------------------------------------------------------
 *
 * pace_process.c
 *	  A vacuum, and this process in it: what it may spend.
 *
 * There are two budgets, and the one that makes a process sleep for longer counts.
 * Cost-based delay is a cost a second for the processes of one vacuum: the settings say
 * what a page costs, and the server counts the pages.  A latency target is a number of
 * processes at work on average, for all vacuums that share it; they use it by being
 * awake.  The nearer to wraparound a table is, the less either holds back its vacuum
 * (pace_set_need).
 *
 * The leader publishes settings in the shared block, and raises its version.  A process
 * that sees a new version takes the settings from there (process_take_budget).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "miscadmin.h"

#include "compat.h"
#include "debug_point.h"
#include "pace/pace_private.h"

/* Under a budget, the time between two looks at it: at the least one it buys the least nap. */
#define SLICE_NS			((uint64) (LEAST_BUDGET * LEAST_NAP_NS))
/* As in the server: at most this many times the limit is paid for at once. */
#define GREATEST_OVERRUN	4

Pace		my_pace;
PaceCommand pace_command;

static int64 pages_written = 0; /* by this process, past shared buffers */

static uint64 process_pay_own_clock(uint64 now, double most);
static uint64 process_pay_from(Budget *budget, uint64 now, double price, double most, uint64 latest);
static double process_cost_so_far(void);

/* process_publish -- the leader tells its workers which settings are in force. */
void
process_publish(const PaceSettings *settings)
{
	PaceShared *shared = my_pace.shared;

	Assert(pace_is_leader() && pace_command.has_joined == settings->has_target);
	SpinLockAcquire(&shared->mutex);
	shared->settings = *settings;
	SpinLockRelease(&shared->mutex);
	pg_atomic_fetch_add_u32(&shared->version, 1);
}

/*
 * pace_set_need
 *		How much this vacuum is needed, from 0 to 1, so that wraparound doesn't come
 *		nearer: from the floor of a latency target to full speed.  For the leader; does
 *		nothing before pace_create.
 *
 * It may always have this many processes at work, whatever a target or the cost delay
 * allow: between the floor and the most that it can have, evenly on a logarithmic scale.
 */
void
pace_set_need(double need)
{
	double		most,
				least;

	if (my_pace.shared == NULL)
		return;
	most = my_pace.shared->parking.most + 1;
	least = LEAST_BUDGET * pow(most / LEAST_BUDGET, Min(Max(need, 0), 1));
	if (least == my_pace.shared->least)
		return;
	SpinLockAcquire(&my_pace.shared->mutex);
	my_pace.shared->least = least;
	SpinLockRelease(&my_pace.shared->mutex);
	pg_atomic_fetch_add_u32(&my_pace.shared->version, 1);
}

/* process_take_budget -- work out what the settings and the budget in force mean for this process. */
void
process_take_budget(void)
{
	PaceShared *shared = my_pace.shared;
	PaceSettings *settings = &my_pace.settings;
	bool		was_active = VacuumCostActive;
	double		due = process_cost_so_far() - my_pace.accounted;
	TargetState target;

	my_pace.version = pg_atomic_read_u32(&shared->version);
	SpinLockAcquire(&shared->mutex);
	*settings = shared->settings;
	my_pace.least = shared->least;
	SpinLockRelease(&shared->mutex);
	my_pace.accounted = (int64) (process_cost_so_far() - due);
	VacuumCostPageHit = settings->page_hit;
	VacuumCostPageMiss = settings->page_miss;
	VacuumCostPageDirty = settings->page_dirty;

	process_take_target(settings->has_target && !VacuumFailsafeActive);
	my_pace.rate = settings_rate(settings);
	my_pace.target_version = target_version();
	target_state(my_pace.has_target, &target);
	my_pace.budget = target.budget;
	my_pace.slice = isinf(my_pace.budget) && isinf(my_pace.rate) ? LEAST_NAP_NS : SLICE_NS;

	/* with a target, cost is counted even if nothing bounds it now */
	if (!VacuumFailsafeActive)
		VacuumCostActive = process_is_counted();
	/* what was used before isn't paid for */
	if (VacuumCostActive && !was_active)
		process_reset(now_ns());
	process_bound_team();
}

/* process_is_counted -- is what this process uses accounted for? */
bool
process_is_counted(void)
{
	return !isinf(my_pace.rate) || my_pace.settings.has_target;
}

/* process_take_target -- this process spends of the target's budget from now on, or doesn't. */
void
process_take_target(bool has_target)
{
	if (my_pace.at_work && has_target != my_pace.has_target)
		pg_atomic_fetch_add_u32(&target_time()->at_work, has_target ? 1 : -1);
	my_pace.has_target = has_target;
}

/* process_budget_has_changed -- has the vacuum's budget, or its target's, since it was taken? */
bool
process_budget_has_changed(void)
{
	return pg_atomic_read_u32(&my_pace.shared->version) != my_pace.version ||
		(my_pace.has_target && target_version() != my_pace.target_version);
}

/*
 * process_pay
 *		Account for what this process has used since the last time; returns until when it
 *		is to sleep.
 *
 * As in the server, a cost of several times the limit at once isn't paid in full, so that
 * no nap gets too long.
 */
uint64
process_pay(uint64 now)
{
	PaceShared *shared = my_pace.shared;
	int64		cost_now = (int64) process_cost_so_far();
	int64		cost = cost_now - my_pace.accounted;

	/* longer than that it has waited, for a lock perhaps, and used nothing */
	double		awake = now > my_pace.awake_since ? Min(now - my_pace.awake_since, NEIGHBOURS_LOOK_NS) : 0;
	double		price = awake * DEBUG_LIMIT(price, 1);
	uint64		until = 0,
				until_by_target = 0;

	/* as much as it is needed */
	double		most = my_pace.least > LEAST_BUDGET ? price / my_pace.least : INFINITY;
	uint64		latest = isinf(most) ? PG_UINT64_MAX : process_pay_own_clock(now, most);

	Assert(cost >= 0);
	my_pace.accounted = cost_now;
	my_pace.awake_since = now;
	pg_atomic_fetch_add_u64(&shared->cost.used, cost);
	pg_atomic_fetch_add_u64(&shared->time.used, (uint64) awake);
	if (my_pace.has_target)
		pg_atomic_fetch_add_u64(&target_time()->used, (uint64) price);

	if (!isinf(my_pace.rate))
	{
		/* those that leave it to the server take their share by themselves */
		int			at_work = pg_atomic_read_u32(&shared->cost.at_work);
		int			with_server = pg_atomic_read_u32(&shared->with_server);
		double		share = with_server == 0 ? 1 : (double) at_work / Max(at_work - with_server, 1);

		until = process_pay_from(&shared->cost, now,
								 Min(cost, (double) my_pace.settings.cost_limit * GREATEST_OVERRUN) * NS_PER_S / my_pace.rate * share,
								 most, latest);
	}
	if (!isinf(my_pace.budget))
		until_by_target = process_pay_from(target_time(), now, price / my_pace.budget, most, latest);
	if (pg_atomic_read_u32(&shared->by_target) != (until_by_target > until))
		pg_atomic_write_u32(&shared->by_target, until_by_target > until);
	return Max(until, until_by_target);
}

/* process_pay_own_clock -- it may be ignored for long, so no more is owed than a slice for each process. */
static uint64
process_pay_own_clock(uint64 now, double most)
{
	pg_atomic_uint64 *paid_until = &my_pace.shared->time.paid_until;
	uint32		at_work = pg_atomic_read_u32(&my_pace.shared->cost.at_work);
	uint64		bound = now + (uint64) (most * Max(at_work, 1));
	uint64		before = pg_atomic_read_u64(paid_until);

	if (before > bound)
		(void) pg_atomic_compare_exchange_u64(paid_until, &before, bound);
	return clock_pay(paid_until, now, most);
}

/* process_pay_from -- until when to sleep for a budget; a vacuum that needs more doesn't use it, but its own clock. */
static uint64
process_pay_from(Budget *budget, uint64 now, double price, double most, uint64 latest)
{
	Assert(price >= 0);
	if (price < most)
	{
		uint64		until = clock_pay(&budget->paid_until, now, price);

		latest = Min(until, latest);
	}
	return latest;
}

/* process_reset -- what this process has used so far isn't paid for. */
void
process_reset(uint64 now)
{
	my_pace.accounted = (int64) process_cost_so_far();
	my_pace.awake_since = now;
	VacuumCostBalance = 0;
}

/*
 * process_cost_so_far
 *		What this process has cost so far, by the settings, as the server's cost balance
 *		would have it.
 */
static double
process_cost_so_far(void)
{
	const BufferUsage *usage = &pgBufferUsage;
	const PaceSettings *settings = &my_pace.settings;

	/* dirty pages of temporary tables cost nothing */
	return (double) (usage->shared_blks_hit + usage->local_blks_hit) * settings->page_hit +
		(double) (usage->shared_blks_read + usage->local_blks_read) * settings->page_miss +
		(double) (usage->shared_blks_dirtied + pages_written) * settings->page_dirty;
}

/* pace_pages_written -- past shared buffers, by this process, which costs as much as making them dirty. */
void
pace_pages_written(int number)
{
	Assert(number >= 0);
	pages_written += number;
}

/* process_bound_team -- tell the team whether there is a budget, and how many processes it is likely to feed. */
void
process_bound_team(void)
{
	double		fed = Max(Min(my_pace.rate / COST_OF_A_PROCESS, my_pace.budget), my_pace.least);
	bool		failsafe = VacuumFailsafeActive || pg_atomic_read_u32(&my_pace.shared->failsafe) != 0;

	Assert(my_pace.shared != NULL);
	parking_set_bound(&my_pace.shared->parking, !isinf(fed) && !failsafe, fed);
}
