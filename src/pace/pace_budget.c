/*-------------------------------------------------------------------------
 *
 * pace_budget.c
 *	  The budgets in force, what they mean for this process, and what its pages
 *	  cost of them.
 *
 * The leader publishes the settings in the shared block, and raises its version.
 * Each process takes them from there when it sees that (budget_take), and works
 * out the rates, and after what cost of its own it is to look at them again.
 * Pages are counted by the server; what they cost is the difference to what has
 * been accounted for (budget_account).
 *
 * A timer's signal handler calls all of this but budget_publish (server_code.c),
 * so it takes no lock, allocates no memory and raises no error.
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
#include "pace/clock.h"
#include "pace/pace_state.h"

/* In the time of the least nap the budget is looked at twice, to be exact. */
#define CHARGES_A_NAP		2

/* The budget is looked at once for so much cost, or less. */
#define LEAST_CHARGE		1
#define GREATEST_CHARGE		2000

/* A nap is for the cost of this much time, or for so much if that is more. */
#define SECONDS_A_NAP		0.005
#define LEAST_COST_A_NAP	35.0

static int64 pages_written = 0; /* by this process, past shared buffers */

static int	charge_for_a_nap(double rate, uint64 least_nap, double at_work);
static double dearest_page(const PaceSettings *settings);

/* budget_publish -- the leader tells all which settings are in force. */
void
budget_publish(const PaceSettings *settings)
{
	PaceShared *shared = my_pace.shared;

	pg_atomic_write_u32(&shared->cost_limit, settings->cost_limit);
	pg_atomic_write_u32(&shared->page_hit, settings->page_hit);
	pg_atomic_write_u32(&shared->page_miss, settings->page_miss);
	pg_atomic_write_u32(&shared->page_dirty, settings->page_dirty);
	write_double(&shared->cost_delay, settings->cost_delay);
	write_double(&shared->latency_target, settings->latency_target);
	write_double(&shared->latency_percentile, settings->latency_percentile);
	pg_atomic_write_u32(&shared->latency_of, settings->latency_of);
	pg_atomic_write_u32(&shared->target, pace_command.latency_target == NULL ? 0 :
						target_number(pace_command.latency_target) + 1);
	/* until it is measured: of a page of each kind */
	write_double(&shared->exchange,
				 (double) (settings->page_hit + settings->page_miss + settings->page_dirty) /
				 (TARGET_COST_HIT + TARGET_COST_MISS + TARGET_COST_DIRTY));
	pg_atomic_fetch_add_u32(&shared->version, 1);
}

/*
 * budget_take
 *		Work out what the settings and the budget in force mean for this process.
 */
void
budget_take(void)
{
	PaceShared *shared = my_pace.shared;
	PaceSettings *settings = &my_pace.settings;
	bool		was_active = VacuumCostActive;

	my_pace.version = pg_atomic_read_u32(&shared->version);
	pg_read_barrier();

	settings->cost_limit = pg_atomic_read_u32(&shared->cost_limit);
	settings->page_hit = pg_atomic_read_u32(&shared->page_hit);
	settings->page_miss = pg_atomic_read_u32(&shared->page_miss);
	settings->page_dirty = pg_atomic_read_u32(&shared->page_dirty);
	settings->cost_delay = read_double(&shared->cost_delay);
	settings->latency_target = read_double(&shared->latency_target);
	settings->latency_percentile = read_double(&shared->latency_percentile);
	settings->latency_of = pg_atomic_read_u32(&shared->latency_of);

	budget_take_target(VacuumFailsafeActive ? 0 : pg_atomic_read_u32(&shared->target));
	budget_set_page_costs(my_pace.target != NULL);
	my_pace.charge = GREATEST_CHARGE;
	my_pace.rate_of_settings = budget_of_settings(settings);
	if (!isinf(my_pace.rate_of_settings))
	{
		/*
		 * in what the server counts for us, with a target, it takes less to
		 * be due
		 */
		double		dearness = my_pace.target == NULL ? 1 : dearest_page(settings);

		my_pace.greatest_cost = (double) settings->cost_limit * GREATEST_OVERRUN;
		my_pace.charge = charge_for_a_nap(my_pace.rate_of_settings, LEAST_NAP_NS,
										  pg_atomic_read_u32(&shared->at_work) * dearness);
	}
	my_pace.rate_of_target = INFINITY;
	if (my_pace.target != NULL)
	{
		my_pace.target_version = target_version(my_pace.target);
		pg_read_barrier();
		my_pace.rate_of_target = target_budget(my_pace.target);
	}
	if (!isinf(my_pace.rate_of_target))
	{
		/* at least a page */
		my_pace.greatest_target_cost = GREATEST_OVERRUN *
			Max(LEAST_COST_A_NAP, my_pace.rate_of_target * SECONDS_A_NAP);
		my_pace.charge = Min(my_pace.charge,
							 charge_for_a_nap(my_pace.rate_of_target, LEAST_NAP_WITH_TARGET_NS,
											  target_at_work(my_pace.target)));
	}

	/* with a target, even if nothing bounds it now, what it costs is counted */
	if (!VacuumFailsafeActive)
		VacuumCostActive = budget_is_counted();
	/* what came before is not to be paid for */
	if (VacuumCostActive && !was_active)
		budget_count_pages(&my_pace.accounted);
	pace_bound_team();
}

/*
 * budget_take_target
 *		This process spends of another target's budget from now on: that of this
 *		number less one, or of none if it is 0.  Takes no lock, and raises no error.
 */
void
budget_take_target(uint32 number)
{
	LatencyTarget *before = my_pace.target;
	LatencyTarget *now = number == 0 ? NULL : target_by_number(number - 1);

	if (now == before)
		return;
	my_pace.target = now;
	if (now != NULL && my_pace.at_work)
		target_begin_work(now);
	if (now != NULL && my_pace.in_server_code)
		target_begin_server_code(now);
	if (before != NULL && my_pace.in_server_code)
		target_end_server_code(before);
	if (before != NULL && my_pace.at_work)
		target_end_work(before);
}

/* budget_has_changed -- or the target's budget? */
bool
budget_has_changed(void)
{
	return pg_atomic_read_u32(&my_pace.shared->version) != my_pace.version ||
		(my_pace.target != NULL && target_version(my_pace.target) != my_pace.target_version);
}

/* budget_of_settings -- the budget of cost-based delay, in cost a second. */
double
budget_of_settings(const PaceSettings *settings)
{
	return settings->cost_delay > 0 ?
		settings->cost_limit / settings->cost_delay * 1000 : INFINITY;
}

/* budget_is_counted -- does it matter what pages cost? */
bool
budget_is_counted(void)
{
	return !isinf(my_pace.rate_of_settings) || budget_has_target(&my_pace.settings);
}

/* budget_has_target -- is there a latency target, given or to be learned? */
bool
budget_has_target(const PaceSettings *settings)
{
	return settings->latency_target != LATENCY_TARGET_OFF;
}

/*
 * budget_account
 *		Account for what this process has cost since it was last called, and say what
 *		that is by the settings and to a target.  May be called by a signal handler.
 */
void
budget_account(int64 *cost, int64 *target_cost)
{
	PageCounts	now;
	PageCounts	pages;

	budget_count_pages(&now);
	pages.hit = now.hit - my_pace.accounted.hit;
	pages.miss = now.miss - my_pace.accounted.miss;
	pages.dirty = now.dirty - my_pace.accounted.dirty;
	my_pace.accounted = now;
	if (pages.hit + pages.miss + pages.dirty > 0)
		my_pace.mix = pages;

	*cost = budget_cost_by_settings(&pages);
	*target_cost = budget_cost_to_target(&pages);
	pg_atomic_fetch_add_u64(&my_pace.shared->spent, *cost);
	pg_atomic_fetch_add_u64(&my_pace.shared->target_cost, *target_cost);
	if (my_pace.target != NULL)
		target_note_cost(my_pace.target, *target_cost);
}

/*
 * budget_count_pages
 *		What this process has done with pages so far, as the server's cost balance
 *		would have it.
 */
void
budget_count_pages(PageCounts *pages)
{
	pages->hit = pgBufferUsage.shared_blks_hit + pgBufferUsage.local_blks_hit;
	pages->miss = pgBufferUsage.shared_blks_read + pgBufferUsage.local_blks_read;
	/* those of temporary tables cost nothing */
	pages->dirty = pgBufferUsage.shared_blks_dirtied + pages_written;
}

/*
 * pace_pages_written
 *		This process has written so many pages past shared buffers, which costs as
 *		much as making them dirty.
 */
void
pace_pages_written(int number)
{
	pages_written += number;
	if (VacuumCostActive)
		VacuumCostBalance += number * VacuumCostPageDirty;
}

/* budget_cost_by_settings -- what pages cost by the settings. */
int64
budget_cost_by_settings(const PageCounts *pages)
{
	return pages->hit * my_pace.settings.page_hit + pages->miss * my_pace.settings.page_miss +
		pages->dirty * my_pace.settings.page_dirty;
}

/* budget_cost_to_target -- what they cost of the budget of a latency target. */
int64
budget_cost_to_target(const PageCounts *pages)
{
	return pages->hit * TARGET_COST_HIT + pages->miss * TARGET_COST_MISS +
		pages->dirty * TARGET_COST_DIRTY;
}

/*
 * budget_set_page_costs
 *		Have the server count in VacuumCostBalance what pages cost to a target, or by
 *		the settings.
 *
 * In our own code this only says when to look at the budgets; in the server's,
 * the delay point goes by it.  May be called by a signal handler.
 */
void
budget_set_page_costs(bool of_target)
{
	VacuumCostPageHit = of_target ? TARGET_COST_HIT : my_pace.settings.page_hit;
	VacuumCostPageMiss = of_target ? TARGET_COST_MISS : my_pace.settings.page_miss;
	VacuumCostPageDirty = of_target ? TARGET_COST_DIRTY : my_pace.settings.page_dirty;
}

/*
 * charge_for_a_nap
 *		After how much of its own cost a process is to look at a budget: a part of
 *		what so many processes may cost during the least nap.
 */
static int
charge_for_a_nap(double rate, uint64 least_nap, double at_work)
{
	double		a_nap = rate * least_nap / NS_PER_S / Max(at_work, 1);

	return (int) Min(Max(a_nap / CHARGES_A_NAP, LEAST_CHARGE), GREATEST_CHARGE);
}

/* dearest_page -- how much more than to a target may a page cost by the settings? */
static double
dearest_page(const PaceSettings *settings)
{
	double		hit = (double) settings->page_hit / TARGET_COST_HIT;
	double		miss = (double) settings->page_miss / TARGET_COST_MISS;
	double		dirty = (double) settings->page_dirty / TARGET_COST_DIRTY;

	return Max(Max(hit, miss), dirty);
}
