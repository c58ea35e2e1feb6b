/*-------------------------------------------------------------------------
 *
 * server_code.c
 *	  The pace of routines that call the server's own delay point.
 *
 * The vacuum routines of other index types call the server's delay point, not ours.
 * While they delete they ask for each entry whether it is dead.  There this process
 * pays for what it has used, as at a delay point of ours.  A page is locked then, so it
 * doesn't sleep there, but has the server's next delay point sleep until that is paid
 * for (pace_in_server_code).  If a guard holds it, it sleeps at each of the server's delay
 * points.  In cleanup the routines don't ask.  There the server makes the process sleep
 * for its share of the budget, as it was when cleanup began, and the other processes leave it that
 * share; guards don't hold it there.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/vacuum.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"

#include "pace/pace_private.h"

/* The server's cost limit for one sleep: it sleeps in proportion, and what pages cost is nothing beside it. */
#define ONCE				100000000
/* The delay (ms) if a guard holds the process, after a page or so each time */
#define WAITING_DELAY		((double) NS_A_TICK / NS_PER_MS)

static void server_code_leave_it_to_server(void);
static double server_code_add(double ns, double more);
static void server_code_have_it_sleep(double ms, int limit);

/* pace_begin_server_code -- this process is about to run a routine that calls the server's own delay point. */
void
pace_begin_server_code(void)
{
	Assert(my_pace.shared != NULL && !my_pace.in_server_code);
	pace_hide_reloads();
	my_pace.in_server_code = my_pace.with_server = true;
	my_pace.calls = 0;
	pg_atomic_fetch_add_u32(&my_pace.shared->with_server, 1);
	server_code_leave_it_to_server();
}

/*
 * pace_in_server_code
 *		It is in there; call for each entry.
 *
 * A lock on a page may be held, and reading files takes time.  But configuration files
 * are read only after a reload, and the files with other sessions' times are small, and
 * read ten times a second.
 */
void
pace_in_server_code(void)
{
	uint64		now;
	uint64		until;
	bool		waits;

	if (likely(++my_pace.calls % CALLS_A_LOOK != 0) || !my_pace.in_server_code)
		return;
	if (my_pace.with_server)
	{
		my_pace.with_server = false;
		pg_atomic_fetch_sub_u32(&my_pace.shared->with_server, 1);
		process_reset(now_ns());
		server_code_have_it_sleep(0, ONCE);
	}
	pace_reload_if_due();
	waits = guards_wait_in_server_code();
	if (!VacuumFailsafeActive)
		VacuumCostActive = waits || !isinf(my_pace.rate);
	if (waits)
		server_code_have_it_sleep(WAITING_DELAY, my_pace.settings.cost_limit);
	if (!VacuumCostActive || waits)
		return;
	if (process_budget_has_changed())
		process_take_budget();
	now = now_ns();

	/* not before the server's delay point has come, nor for little to pay */
	if (now >= my_pace.awake_since + my_pace.slice)
	{
		pace_look_around(now);
		pace_tick_if_due(now);
		until = process_pay(now);
		/* no latch wakes it in there: the rest is paid later */
		until = Min(until, now + NS_A_TICK);
		server_code_have_it_sleep(0, ONCE);
		if (until < now + LEAST_NAP_NS)
			return;
		my_pace.awake_since = until;
		pg_atomic_fetch_add_u64(&my_pace.shared->cost.slept, until - now);
	}
	/* a signal ends the server's sleep, and it sleeps for the rest */
	if (now + LEAST_NAP_NS <= my_pace.awake_since && VacuumCostBalance < ONCE)
		server_code_have_it_sleep((double) (my_pace.awake_since - now) / NS_PER_MS, ONCE);
}

/* pace_end_server_code -- it has returned. */
void
pace_end_server_code(void)
{
	Assert(my_pace.shared != NULL && my_pace.in_server_code);
	if (my_pace.with_server)
		pg_atomic_fetch_sub_u32(&my_pace.shared->with_server, 1);
	my_pace.in_server_code = my_pace.with_server = false;
	if (!VacuumFailsafeActive)
		VacuumCostActive = !isinf(my_pace.rate);
	process_reset(now_ns());
	pace_show_reloads();
	pace_reload_if_due();
}

/*
 * server_code_leave_it_to_server
 *		Have the server's delay point give this process its share of the budgets.
 *
 * The server sleeps by cost, so the time awake that a budget allows is converted by what
 * the cost of this vacuum has taken so far.  Budgets add up: so does, for each, how often a
 * second it would have the server sleep for a cost of 1.
 */
static void
server_code_leave_it_to_server(void)
{
	uint32		at_work = pg_atomic_read_u32(&my_pace.shared->cost.at_work);
	uint32		sharing = pg_atomic_read_u32(&adaptive_time()->at_work);
	double		cost = pg_atomic_read_u64(&my_pace.shared->cost.used);
	double		ns_a_cost = (pg_atomic_read_u64(&my_pace.shared->time.used) + NS_PER_S) / (cost + COST_OF_A_PROCESS);
	double		ns;
	AdaptiveState adaptive;

	/* for all of it, so not by a rest that takes a second */
	adaptive_state(my_pace.is_adaptive, &adaptive);
	ns = server_code_add(INFINITY, NS_PER_S / my_pace.rate * Max(at_work, 1));
	ns = server_code_add(ns, ns_a_cost * (Max(sharing, 1) / adaptive.unrested - 1));
	ns = server_code_add(ns, ns_a_cost * (Max(at_work, 1) / my_pace.needed - 1));
	if (ns <= 0)
	{
		server_code_have_it_sleep(0, ONCE);
		return;
	}

	/*
	 * as often as the server does; an autovacuum worker's limit comes back
	 * after each sleep
	 */
	vacuum_cost_limit = my_pace.settings.cost_limit;
	if (!AmAutoVacuumWorkerProcess())
		vacuum_cost_limit = (int) Min(vacuum_cost_limit, Max(NEIGHBOURS_LOOK_NS / ns, 1));
	vacuum_cost_delay = vacuum_cost_limit * ns / NS_PER_MS;
}

/* server_code_add -- how long to sleep with both of two budgets that have one sleep for so long. */
static double
server_code_add(double ns, double more)
{
	return more <= 0 ? 0 : isinf(ns) ? more : isinf(more) ? ns : ns * more / (ns + more);
}

/* server_code_have_it_sleep -- for this time, at the server's next delay point; and again at each such cost. */
static void
server_code_have_it_sleep(double ms, int limit)
{
	Assert(ms >= 0 && limit > 0);
	vacuum_cost_limit = limit;
	vacuum_cost_delay = ms;
	/* it sleeps in proportion to this */
	VacuumCostBalance = ms > 0 ? vacuum_cost_limit : 0;
}
