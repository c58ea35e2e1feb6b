/*-------------------------------------------------------------------------
 *
 * pace.c
 *	  How fast a vacuum may go: cost-based delay, with one budget for all of
 *	  its processes, and the latency target that moves the budget.  Here a process
 *	  joins the vacuum of a table, pays for its pages and sleeps.
 *
 * The budget
 * ----------
 * A budget is a cost a second.  The settings give one, vacuum_cost_limit for
 * each vacuum_cost_delay; a latency target gives another one, which all VACUUMs
 * of the server with that target share (target.c).  What a page costs of the
 * former is the user's to say, vacuum_cost_page_hit and its like; of the latter,
 * which is not the user's alone, it costs what target.h says.  So pages are
 * counted, both are charged for them, side by side, and the one that makes a
 * process sleep for longer counts.  The server's delay point makes
 * each process sleep in proportion to its own cost, so n processes cost n
 * times the budget, and doesn't count the time between two naps, so one
 * process costs less.  Here the processes share a clock instead, paid_until:
 * the time at which all that they have cost is paid for.  Who has cost
 * something moves it on, and sleeps until then.  So the rate is exact however
 * many they are, however long naps or pages take.  As in the server, a cost
 * that exceeds the limit several times, in one go, is not paid in full, so
 * that no nap gets too long; and what wasn't spent isn't saved up, but for a
 * moment's worth.
 *
 * Where the rest is
 * -----------------
 * pace_command.c	the command: from settings to the budget in force, and reloads
 * pace_budget.c	what settings and target mean for this process; what pages cost
 * pace_team.c		how many processes may be at work
 * pace_tick.c		measures what the vacuum costs
 * pace_view.c		the view cyclone.pace
 * server_code.c	routines that call the server's own delay point
 * pace_state.h		what these files share
 *
 * The failsafe switches all of this off, as it does with the server's delay.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/parallel.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "guards/guards.h"
#include "pace/clock.h"
#include "pace/pace_state.h"

/* Every so many pages the leader looks at the clock, if it is time to look around. */
#define CALLS_A_LOOK		16
#define LONGEST_NAP_MS		100

Pace		my_pace;

static PaceSummary summary;
static GuardTimes held_before;

static void add_to_summary(void);
static void pay_for_pages(void);
static double share_of_others(int at_work, int in_server_code);
static void nap(uint64 until);
static void clear_at_exit(int code, Datum arg);

/* pace_is_worker -- does this process keep to the budget of another one's VACUUM? */
bool
pace_is_worker(void)
{
	return my_pace.shared != NULL && !pace_command.is_running;
}

/* pace_shared_size -- how big the shared block is. */
Size
pace_shared_size(void)
{
	return sizeof(PaceShared);
}

/*
 * pace_create
 *		The leader initializes the shared block, which is zeroed, for a table.  Is that
 *		locked against all others?  Can its processes be told from others, whose waits
 *		for cores count?
 */
void
pace_create(PaceShared *shared, Oid relid, bool is_locked, bool watches_others)
{
	uint64		now = now_ns();

	pg_atomic_init_u32(&shared->version, 0);
	pg_atomic_init_u32(&shared->cost_limit, 0);
	pg_atomic_init_u32(&shared->page_hit, 0);
	pg_atomic_init_u32(&shared->page_miss, 0);
	pg_atomic_init_u32(&shared->page_dirty, 0);
	pg_atomic_init_u64(&shared->cost_delay, 0);
	pg_atomic_init_u64(&shared->latency_target, 0);
	pg_atomic_init_u64(&shared->latency_percentile, 0);
	pg_atomic_init_u32(&shared->latency_of, 0);
	pg_atomic_init_u32(&shared->target, 0);
	pg_atomic_init_u32(&shared->failsafe, VacuumFailsafeActive);
	pg_atomic_init_u64(&shared->paid_until, now);
	pg_atomic_init_u64(&shared->spent, 0);
	pg_atomic_init_u64(&shared->target_cost, 0);
	pg_atomic_init_u64(&shared->slept, 0);
	pg_atomic_init_u32(&shared->at_work, 0);
	pg_atomic_init_u32(&shared->in_server_code, 0);
	pg_atomic_init_u64(&shared->next_tick, now + NS_A_TICK);
	pg_atomic_init_u32(&shared->ticking, 0);
	pg_atomic_init_u32(&shared->has_warned, pace_command.has_warned);
	pg_atomic_init_u64(&shared->exchange, 0);
	shared->tick_time = now;
	shared->spent_before = 0;
	shared->target_cost_before = 0;
	shared->slept_before = 0;
	shared->in_a_hurry = pace_command.in_a_hurry;
	shared->watches_others = watches_others;
	shared->relid = relid;
	shared->leader = MyProcNumber;
	parking_set_up(&shared->parking, MyProcNumber, 0);
	pace_command.launch = NULL;

	my_pace.shared = shared;
	budget_publish(&pace_command.settings);
	guards_begin_table(relid, is_locked);
	pace_join(shared);
	pace_begin_row(shared);
}

/*
 * pace_join
 *		This process keeps to the budget from now on.
 */
void
pace_join(PaceShared *shared)
{
	pace_prepare_process();
	my_pace.shared = shared;
	if (!pace_is_leader())
		guards_join(shared->leader);
	guards_skip_wal();
	VacuumCostBalance = 0;
	budget_count_pages(&my_pace.accounted);
	my_pace.mix = (PageCounts)
	{
		.hit = 1,.miss = 1,.dirty = 1
	};
	/* the server's way of sharing a budget isn't ours */
	VacuumSharedCostBalance = NULL;
	VacuumActiveNWorkers = NULL;
	budget_take();
}

/*
 * pace_leave
 *		This process is done with the table.
 */
void
pace_leave(void)
{
	if (my_pace.shared == NULL)
		return;
	/* after an error in there: the timer must not find what is gone */
	if (my_pace.in_server_code)
		server_code_abandon();
	if (pace_is_leader())
		add_to_summary();
	budget_take_target(0);
	my_pace.in_server_code = false;
	if (pace_is_leader())
	{
		pace_command.launch = NULL;
		pace_command.has_warned = pg_atomic_read_u32(&my_pace.shared->has_warned);
		pace_end_row();
	}
	else
		guards_leave();
	budget_set_page_costs(false);
	my_pace.shared = NULL;
	VacuumCostBalance = 0;
	if (!VacuumFailsafeActive)
		VacuumUpdateCosts();
}

/*
 * pace_report
 *		The leader, before it leaves: what the pace has meant for the table.
 */
void
pace_report(TableResult *result)
{
	/* or it was, until a reload */
	result->was_paced = VacuumCostActive || pg_atomic_read_u64(&my_pace.shared->slept) > 0;
	result->slept_seconds = (double) pg_atomic_read_u64(&my_pace.shared->slept) / NS_PER_S;
	result->has_latency_target = my_pace.target != NULL;
	if (my_pace.target != NULL)
	{
		TargetState state;

		target_state(my_pace.target, &state);
		result->latency_target_ms = state.target_ms;
	}
}

/* pace_begin_summary -- begin to sum up. */
void
pace_begin_summary(void)
{
	memset(&summary, 0, sizeof(summary));
	held_before = guards_held();
}

/* pace_summary -- what it has come to since, of tables that this process led. */
const PaceSummary *
pace_summary(void)
{
	summary.held = guards_held_since(&held_before);
	return &summary;
}

/* add_to_summary -- the leader is about to leave a table. */
static void
add_to_summary(void)
{
	TargetState state;

	summary.is_known = true;
	summary.slept_seconds += (double) pg_atomic_read_u64(&my_pace.shared->slept) / NS_PER_S;
	summary.has_target = my_pace.target != NULL;
	if (my_pace.target == NULL)
		return;
	target_state(my_pace.target, &state);
	summary.target_ms = state.target_ms;
	summary.latency_ms = state.latency_ms;
}

/* pace_begin_work -- this process takes part in a phase. */
void
pace_begin_work(void)
{
	pg_atomic_fetch_add_u32(&my_pace.shared->at_work, 1);
	my_pace.at_work = true;
	if (my_pace.target != NULL)
		target_begin_work(my_pace.target);
}

/* pace_end_work -- it is through with it. */
void
pace_end_work(void)
{
	pg_atomic_fetch_sub_u32(&my_pace.shared->at_work, 1);
	if (my_pace.target != NULL)
		target_end_work(my_pace.target);
	my_pace.at_work = false;
}

/*
 * pace_give_up
 *		This process keeps to no budget any more: the failsafe is on.
 */
void
pace_give_up(void)
{
	VacuumCostActive = false;
	VacuumCostBalance = 0;
	if (my_pace.shared == NULL)
		return;
	pg_atomic_write_u32(&my_pace.shared->failsafe, 1);
	/* others go on to spend of it */
	budget_take_target(0);
	my_pace.rate_of_target = INFINITY;
	pace_bound_team();
	parking_set_room(&my_pace.shared->parking, PARKING_ALL);
	pace_show(my_pace.shared, 0, 0, 0);
}

/*
 * delay_point
 *		Sleep if it is time to, and serve interrupts.  No lock may be held.
 */
void
delay_point(void)
{
	CHECK_FOR_INTERRUPTS();

	if (unlikely(ConfigReloadPending))
		pace_reload();
	if (unlikely(budget_has_changed()))
		budget_take();
	if (unlikely(++my_pace.calls % CALLS_A_LOOK == 0))
		pace_look_around(now_ns());
	if (unlikely(pace_command.launch != NULL) && parking_wants_workers(&my_pace.shared->parking))
		pace_launch_workers();
	guards_point();

	/*
	 * who has pages pinned that are in the way of a pause is not to sleep
	 * over them
	 */
	if (VacuumCostActive && VacuumCostBalance >= my_pace.charge && !guards_hold_is_due())
	{
		VacuumCostBalance = 0;
		pay_for_pages();
	}
}

/*
 * pay_for_pages
 *		Account for what this process has cost, and sleep until it is paid for.
 */
static void
pay_for_pages(void)
{
	PaceShared *shared = my_pace.shared;
	uint64		now = now_ns();
	uint64		until = 0;
	uint64		until_by_target = 0;
	int64		cost,
				target_cost;

	budget_account(&cost, &target_cost);
	pace_rebalance();
	pace_look_around(now);
	pace_tick_if_due(now);
	pace_warn_if_out_of_reach();
	if (budget_has_changed())
		budget_take();

	if (!isinf(my_pace.rate_of_settings))
		until = pay(&shared->paid_until, now,
					Min(cost, my_pace.greatest_cost) * NS_PER_S / my_pace.rate_of_settings *
					share_of_others(pg_atomic_read_u32(&shared->at_work),
									pg_atomic_read_u32(&shared->in_server_code)));
	if (!isinf(my_pace.rate_of_target))
		until_by_target = target_pay(my_pace.target, now,
									 Min(target_cost, my_pace.greatest_target_cost) * NS_PER_S /
									 my_pace.rate_of_target *
									 share_of_others(target_at_work(my_pace.target),
													 target_in_server_code(my_pace.target)));

	if (until >= now + LEAST_NAP_NS || until_by_target >= now + LEAST_NAP_WITH_TARGET_NS)
		nap(Max(until, until_by_target));
}

/*
 * share_of_others
 *		Those in the server's code take their share of a budget on their own, and the
 *		others leave it to them: by how much their price goes up.
 */
static double
share_of_others(int at_work, int in_server_code)
{
	return in_server_code == 0 ? 1 : (double) at_work / Max(at_work - in_server_code, 1);
}

/*
 * nap
 *		Sleep until this time, or until settings or budget change.  What isn't
 *		paid by then is paid later.
 */
static void
nap(uint64 until)
{
	uint64		now = now_ns();
	uint32		version = my_pace.version;
	uint32		target_version = my_pace.target_version;

	while (now < until && !guards_hold_is_due())
	{
		uint64		start = now;
		long		ms = Min((until - now + NS_PER_MS - 1) / NS_PER_MS, LONGEST_NAP_MS);

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, WAIT_EVENT_VACUUM_DELAY);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();

		now = now_ns();
		pg_atomic_fetch_add_u64(&my_pace.shared->slept, now - start);
		if (my_pace.target != NULL)
			target_note_sleep(my_pace.target, now - start);
		compat_report_delay(now - start);
		if (ConfigReloadPending)
			pace_reload();
		if (budget_has_changed())
			budget_take();
		pace_look_around(now);
		pace_tick_if_due(now);
		if (budget_has_changed())
			budget_take();
		pace_warn_if_out_of_reach();
		if (my_pace.version != version || my_pace.target_version != target_version)
			break;
	}
}

/*
 * pace_while_waiting
 *		The leader waits for the others: do what they can't, or may not get to.
 *		To be called a few times a second, with no lock held.
 */
void
pace_while_waiting(void)
{
	if (ConfigReloadPending)
		pace_reload();
	pace_rebalance();
	pace_look_around(now_ns());
	if (VacuumCostActive && !VacuumFailsafeActive)
		pace_tick_if_due(now_ns());
	pace_warn_if_out_of_reach();
}

/*
 * pace_warn_if_out_of_reach
 *		Say so once a statement, in whichever process, or once in an autovacuum
 *		worker's life.
 */
void
pace_warn_if_out_of_reach(void)
{
	uint32		not_yet = 0;
	TargetState target;

	/* from other workers the client hears nothing */
	if (!pace_is_leader() && !IsParallelWorker())
		return;
	if (my_pace.target == NULL || !target_is_out_of_reach(my_pace.target) ||
		!pg_atomic_compare_exchange_u32(&my_pace.shared->has_warned, &not_yet, 1))
		return;
	target_state(my_pace.target, &target);
	ereport(WARNING,
			(errmsg("latency target of %g ms is missed although VACUUM hardly moves",
					target.target_ms),
			 errdetail("The %gth percentile of the latency of %s stays above it for reasons other than this VACUUM, which goes on at its slowest pace.",
					   my_pace.settings.latency_percentile,
					   cyclone_latency_of_options[my_pace.settings.latency_of].name),
			 errhint("Set \"cyclone.latency_target\" to \"auto\" or to a higher value; a running VACUUM notices if it is set in postgresql.conf and reloaded.")));
}

/*
 * pace_prepare_process
 *		Do once in each process what can't be done in the middle of a command,
 *		nor be taken back.
 */
void
pace_prepare_process(void)
{
	static bool is_prepared = false;

	if (is_prepared)
		return;
	before_shmem_exit(clear_at_exit, (Datum) 0);
	server_code_prepare();
	is_prepared = true;
}

/*
 * clear_at_exit
 *		A process that dies leaves no row behind, and its timer doesn't touch
 *		what is no longer there.  A worker doesn't count as being at work, or in the
 *		server's code.
 */
static void
clear_at_exit(int code, Datum arg)
{
	my_pace.keeps_timer_out = true;
	if (my_pace.in_server_code && my_pace.shared != NULL && !pace_is_leader())
		pg_atomic_fetch_sub_u32(&my_pace.shared->in_server_code, 1);
	if (my_pace.at_work && my_pace.shared != NULL && !pace_is_leader())
		pace_end_work();
	if (my_pace.shared != NULL && !pace_is_leader())
		parking_leave(&my_pace.shared->parking);
	pace_leave_target();
	my_pace.in_server_code = false;
	pace_end_row();
	guards_end_command();
}
