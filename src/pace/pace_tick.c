/*-------------------------------------------------------------------------
 *
 * pace_tick.c
 *	  Ticks: what a vacuum costs, measured a few times a second.
 *
 * One of the processes, whichever comes first, measures what the vacuum costs, for
 * the view and for the number of workers, and likewise sees to its target
 * (target.c).  No process has this for a duty, so that the pace is kept while any
 * of them is at work, or the leader waits for it.  As a tick may come from the
 * timer's signal handler, it takes no lock, allocates no memory and raises no
 * error.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "pace/clock.h"
#include "pace/pace_state.h"

/* Who can't use this part of a budget in the server's code needs help. */
#define STARVED_TIMES		2

static void tick(uint64 now);

/* pace_tick_if_due -- measure, and see to the target, unless it was done a moment ago. */
void
pace_tick_if_due(uint64 now)
{
	PaceShared *shared = my_pace.shared;
	uint64		due = pg_atomic_read_u64(&shared->next_tick);
	uint32		nobody = 0;

	if (my_pace.target != NULL)
		target_tick_if_due(my_pace.target, now);
	if (now < due ||
		!pg_atomic_compare_exchange_u64(&shared->next_tick, &due, now + NS_A_TICK) ||
		!pg_atomic_compare_exchange_u32(&shared->ticking, &nobody, 1))
		return;

	tick(now);
	pg_memory_barrier();
	pg_atomic_write_u32(&shared->ticking, 0);
}

/*
 * tick
 *		Measure, for the view.  Raises no error, as the others would wait for this
 *		process to end it.
 */
static void
tick(uint64 now)
{
	PaceShared *shared = my_pace.shared;
	uint64		spent = pg_atomic_read_u64(&shared->spent);
	uint64		target_cost = pg_atomic_read_u64(&shared->target_cost);
	uint64		slept = pg_atomic_read_u64(&shared->slept);
	double		seconds = (double) (now - shared->tick_time) / NS_PER_S;
	double		rate,
				target_rate,
				asleep;
	int			at_work = Max(pg_atomic_read_u32(&shared->at_work), 1);
	bool		in_server_code = pg_atomic_read_u32(&shared->in_server_code) > 0;

	if (now <= shared->tick_time)
		return;
	rate = (spent - shared->spent_before) / seconds;
	target_rate = (target_cost - shared->target_cost_before) / seconds;
	if (target_rate > 0)
		write_double(&shared->exchange, rate / target_rate);
	asleep = (slept - shared->slept_before) / seconds / NS_PER_S;
	shared->spent_before = spent;
	shared->target_cost_before = target_cost;
	shared->slept_before = slept;
	shared->tick_time = now;
	/* naps in the server's code aren't counted */
	parking_adjust(&shared->parking, in_server_code ? NAN : asleep,
				   rate < my_pace.rate_of_settings / STARVED_TIMES &&
				   target_rate < my_pace.rate_of_target / STARVED_TIMES);
	pace_show(shared, rate, target_rate, Min(asleep / at_work, 1));
}
