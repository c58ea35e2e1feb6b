/*-------------------------------------------------------------------------
 *
 * pace_process.c
 *	  A vacuum, and this process in it: what it may spend.
 *
 * There are three budgets, and they add up.  Cost-based delay is a cost a second for the
 * processes of one vacuum: the settings say what a page costs, and the server counts the
 * pages.  An adaptive delay adds a number of processes at work on average, for all vacuums
 * that have it; they use it by being awake.  The nearer to wraparound a table is, the more
 * processes its own vacuum has besides (pace_set_need).
 *
 * A piece of work is paid for from the budget that is through with it first, and from no
 * other.  The cost delay is always asked, and its clock is never later than it would be by
 * itself, as it only pays for a part.  So whatever the other budgets are, even nothing,
 * nobody sleeps for longer than by the cost delay alone.
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

/* Under a budget, the time between two looks at it.  Chosen: a budget of 0.02 processes buys the least nap with it. */
#define SLICE_NS			(20 * (uint64) NS_PER_US)
/* Of the cost delay, what is added to it, as the vacuum is needed */
#define BUDGETS				3
/* No budget that takes longer to pay is asked. */
#define LONGEST_PRICE		((double) NS_PER_S * SECS_PER_HOUR)
/* As in the server: at most this many times the limit is paid for at once. */
#define GREATEST_OVERRUN	4

Pace		my_pace;
PaceCommand pace_command;

static int64 pages_written = 0; /* by this process, past shared buffers */

static uint64 process_pay_first(uint64 now, Budget *const *budgets, const double *prices);
static double process_cost_so_far(void);

/* process_publish -- the leader tells its workers which settings are in force. */
void
process_publish(const PaceSettings *settings)
{
	PaceShared *shared = my_pace.shared;

	Assert(pace_is_leader() && pace_command.has_joined == settings->is_adaptive);
	SpinLockAcquire(&shared->mutex);
	shared->settings = *settings;
	SpinLockRelease(&shared->mutex);
	pg_atomic_fetch_add_u32(&shared->version, 1);
}

/*
 * pace_set_need
 *		How much this vacuum is needed, from 0 to 1, so that wraparound doesn't come
 *		nearer.  For the leader; does nothing before pace_create.
 *
 * It may have this many processes at work beyond the other two budgets: from none to
 * the most that it can have.  With FLOOR_BUDGET, which stands for the cost delay, they rise
 * evenly on a logarithmic scale.
 */
void
pace_set_need(double need)
{
	double		most,
				needed;

	if (my_pace.shared == NULL)
		return;
	most = my_pace.shared->parking.most + 1;
	needed = FLOOR_BUDGET * (pow(most / FLOOR_BUDGET + 1, Min(Max(need, 0), 1)) - 1);
	if (needed == my_pace.shared->needed)
		return;
	SpinLockAcquire(&my_pace.shared->mutex);
	my_pace.shared->needed = needed;
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
	AdaptiveState adaptive;

	my_pace.version = pg_atomic_read_u32(&shared->version);
	SpinLockAcquire(&shared->mutex);
	*settings = shared->settings;
	my_pace.needed = shared->needed;
	SpinLockRelease(&shared->mutex);
	my_pace.accounted = (int64) (process_cost_so_far() - due);
	VacuumCostPageHit = settings->page_hit;
	VacuumCostPageMiss = settings->page_miss;
	VacuumCostPageDirty = settings->page_dirty;

	process_be_adaptive(settings->is_adaptive && !VacuumFailsafeActive);
	my_pace.rate = settings_rate(settings);
	my_pace.adaptive_version = adaptive_version();
	adaptive_state(my_pace.is_adaptive, &adaptive);
	my_pace.added = adaptive.added;
	my_pace.slice = process_is_bounded() ? SLICE_NS : LEAST_NAP_NS;

	/* with an adaptive delay, cost is counted even if nothing bounds it now */
	if (!VacuumFailsafeActive)
		VacuumCostActive = !isinf(my_pace.rate);
	/* what was used before isn't paid for */
	if (VacuumCostActive && !was_active)
		process_reset(now_ns());
	process_bound_team();
}

/* process_is_bounded -- has this process a budget? */
bool
process_is_bounded(void)
{
	return !isinf(my_pace.rate + my_pace.added);
}

/* process_be_adaptive -- this process spends of what is added from now on, or doesn't. */
void
process_be_adaptive(bool is_adaptive)
{
	if (my_pace.at_work && is_adaptive != my_pace.is_adaptive)
		pg_atomic_fetch_add_u32(&adaptive_time()->at_work, is_adaptive ? 1 : -1);
	my_pace.is_adaptive = is_adaptive;
}

/* process_budget_has_changed -- has the vacuum's budget, or what is added to it, since it was taken? */
bool
process_budget_has_changed(void)
{
	return pg_atomic_read_u32(&my_pace.shared->version) != my_pace.version ||
		(my_pace.is_adaptive && adaptive_version() != my_pace.adaptive_version);
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

	/* those that leave it to the server take their share by themselves */
	int			at_work = pg_atomic_read_u32(&shared->cost.at_work);
	int			with_server = pg_atomic_read_u32(&shared->with_server);
	double		share = with_server == 0 ? 1 : (double) at_work / Max(at_work - with_server, 1);
	Budget	   *const budgets[BUDGETS] = {&shared->cost, adaptive_time(), &shared->time};
	const double prices[BUDGETS] = {
		Min(cost, (double) my_pace.settings.cost_limit * GREATEST_OVERRUN) * NS_PER_S / my_pace.rate * share,
		my_pace.added > 0 ? price / my_pace.added : INFINITY,
		my_pace.needed > 0 ? price / my_pace.needed : INFINITY,
	};

	Assert(cost >= 0);
	my_pace.accounted = cost_now;
	my_pace.awake_since = now;
	pg_atomic_fetch_add_u64(&shared->cost.used, cost);
	pg_atomic_fetch_add_u64(&shared->time.used, (uint64) awake);
	if (my_pace.is_adaptive)
		pg_atomic_fetch_add_u64(&adaptive_time()->used, (uint64) price);
	return process_pay_first(now, budgets, prices);
}

/* process_pay_first -- pay these prices (ns) from the budget that is through with its own first; until when to sleep. */
static uint64
process_pay_first(uint64 now, Budget *const *budgets, const double *prices)
{
	for (;;)
	{
		pg_atomic_uint64 *clock = NULL;
		uint64		before = 0;
		uint64		until = PG_UINT64_MAX;

		for (int i = 0; i < BUDGETS; i++)
		{
			uint64		paid_until = pg_atomic_read_u64(&budgets[i]->paid_until);
			uint64		offer;

			Assert(prices[i] >= 0);
			if (prices[i] >= LONGEST_PRICE)
				continue;
			offer = Max(paid_until, now - CREDIT_NS) + (uint64) prices[i];
			if (offer >= until)
				continue;
			clock = &budgets[i]->paid_until;
			before = paid_until;
			until = offer;
		}
		/* the cost delay has an offer; if another process has paid meanwhile, compare again */
		if (pg_atomic_compare_exchange_u64(clock, &before, until))
			return until;
	}
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
	double		fed = my_pace.rate / COST_OF_A_PROCESS + my_pace.added + my_pace.needed;
	bool		failsafe = VacuumFailsafeActive || pg_atomic_read_u32(&my_pace.shared->failsafe) != 0;

	Assert(my_pace.shared != NULL);
	parking_set_bound(&my_pace.shared->parking, !isinf(fed) && !failsafe, fed);
}
