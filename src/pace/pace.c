/*-------------------------------------------------------------------------
 *
 * pace.c
 *	  How fast a vacuum may go: cost-based delay, with one budget for all of
 *	  its processes, and the adaptive delay that adds to it.  Here a process
 *	  joins the vacuum of a table, pays for its pages and sleeps.
 *
 * A process does its work and calls delay_point between two pages, with no lock on
 * one.  There it pays for what it has used, and sleeps until that is paid for: of the
 * cost that the settings allow, or of the time awake that an adaptive delay adds
 * (pace_process.c).  The server's delay point makes each process sleep in proportion
 * to its own cost, so n processes cost n times the budget.  It doesn't count the time
 * between two naps, so one process costs less than the budget.  Here the processes share
 * a clock (budget.c).  guards_point (guards/guards.c) sees to all else that holds them.
 *
 * pace_private.h says what the other files are for.
 *
 * The failsafe switches all of this off, as it does with the server's delay.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/vacuum.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "pace/pace_private.h"

static PaceSummary summary;

static double pace_slept_seconds(void);
static void pace_add_to_summary(void);
static void pace_pay(uint64 now);
static void pace_nap(uint64 until);
static void pace_look_and_tick(uint64 now);

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
 *		The leader initializes the shared block, which is zeroed, for a table, and joins.
 *		readers_wait: no other session can even read the table.
 */
void
pace_create(PaceShared *shared, Oid relid, bool readers_wait)
{
	Assert(pace_command.is_running && OidIsValid(relid));
	SpinLockInit(&shared->mutex);
	pg_atomic_init_u32(&shared->version, 0);
	pg_atomic_init_u32(&shared->failsafe, VacuumFailsafeActive);
	budget_init(&shared->cost);
	budget_init(&shared->time);
	pg_atomic_init_u32(&shared->with_server, 0);
	shared->in_a_hurry = pace_command.in_a_hurry;
	shared->relid = relid;
	shared->leader = MyProcNumber;
	parking_set_up(&shared->parking, MyProcNumber, 0);
	pace_command.launch = NULL;

	my_pace.shared = shared;
	process_publish(&pace_command.settings);
	guards_begin_table(relid, readers_wait, pace_command.in_a_hurry);
	pace_join(shared);
	view_begin_row(shared);
}

/* pace_join -- this process keeps to the budget from now on. */
void
pace_join(PaceShared *shared)
{
	pace_prepare_process();
	neighbours_join();
	my_pace.shared = shared;
	if (!pace_is_leader())
		guards_join(shared->leader);
	guards_skip_wal();
	/* the server's way of sharing a budget isn't ours */
	VacuumSharedCostBalance = NULL;
	VacuumActiveNWorkers = NULL;
	process_take_budget();
	process_reset(now_ns());
}

/* pace_leave -- this process is done with the table. */
void
pace_leave(void)
{
	if (my_pace.shared == NULL)
		return;
	/* after an error in there */
	pace_show_reloads();
	if (pace_is_leader())
		pace_add_to_summary();
	process_be_adaptive(false);
	my_pace.in_server_code = my_pace.with_server = false;
	if (pace_is_leader())
	{
		pace_command.launch = NULL;
		view_end_row();
	}
	else
	{
		guards_leave();
		neighbours_leave();
	}
	my_pace.shared = NULL;
	VacuumCostBalance = 0;
	if (!VacuumFailsafeActive)
		VacuumUpdateCosts();
}

/* pace_join_as_builder -- it builds indexes: other VACUUMs don't make way for it, and it has no budget. */
void
pace_join_as_builder(void)
{
	pace_prepare_process();
	neighbours_join();
}

/* pace_leave_as_builder -- it takes part no more. */
void
pace_leave_as_builder(void)
{
	neighbours_leave();
}

/* pace_slept_seconds -- how long processes have slept for the budgets of this table, in all. */
static double
pace_slept_seconds(void)
{
	Assert(my_pace.shared != NULL);
	return (double) pg_atomic_read_u64(&my_pace.shared->cost.slept) / NS_PER_S;
}

/* pace_report -- say how the pace of the table was. */
void
pace_report(TableResult *result)
{
	result->slept_seconds = pace_slept_seconds();
	/* a reload may have ended that */
	result->was_paced = VacuumCostActive || result->slept_seconds > 0;
	result->has_adaptive_delay = my_pace.is_adaptive;
}

/* pace_begin_summary -- begin to sum up the tables that this process leads. */
void
pace_begin_summary(void)
{
	memset(&summary, 0, sizeof(summary));
	guards_begin_run();
}

/* pace_summary -- their sum since then. */
const PaceSummary *
pace_summary(void)
{
	summary.held = guards_held();
	return &summary;
}

/* pace_add_to_summary -- the leader is about to leave a table. */
static void
pace_add_to_summary(void)
{
	summary.is_known = true;
	summary.slept_seconds += pace_slept_seconds();
}

/* pace_give_up -- this process keeps to no budget any more: the failsafe is on. */
void
pace_give_up(void)
{
	VacuumCostActive = false;
	VacuumCostBalance = 0;
	if (my_pace.shared == NULL)
		return;
	pg_atomic_write_u32(&my_pace.shared->failsafe, 1);
	/* other VACUUMs still spend of that budget */
	process_be_adaptive(false);
	my_pace.added = INFINITY;
	process_bound_team();
	parking_set_room(&my_pace.shared->parking, PARKING_ALL);
	view_show(my_pace.shared, 0, 0);
}

/* delay_point -- sleep if it is time to, and serve interrupts. */
void
delay_point(void)
{
	Assert(my_pace.shared != NULL);
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	CHECK_FOR_INTERRUPTS();

	if (unlikely(ConfigReloadPending))
		pace_reload();
	if (unlikely(process_budget_has_changed()))
		process_take_budget();
	if (unlikely(++my_pace.calls % CALLS_A_LOOK == 0))
		pace_look_around(now_ns());
	if (unlikely(pace_command.launch != NULL) && parking_wants_workers(&my_pace.shared->parking))
		pace_launch_workers();
	guards_point();

	/*
	 * A process that is to be paused, and still has pages pinned, doesn't
	 * sleep over them.
	 */
	if (VacuumCostActive && !guards_hold_is_due())
	{
		uint64		now = now_ns();

		if (now >= my_pace.awake_since + my_pace.slice)
			pace_pay(now);
	}
}

/* pace_pay -- account for what this process has used, and sleep until that is paid for. */
static void
pace_pay(uint64 now)
{
	uint64		until;

	Assert(VacuumCostActive && my_pace.shared != NULL);
	VacuumCostBalance = 0;
	pace_rebalance();
	pace_look_and_tick(now);
	until = process_pay(now);
	if (until >= now + LEAST_NAP_NS)
		pace_nap(until);
}

/* pace_look_and_tick -- do what is due a few times a second. */
static void
pace_look_and_tick(uint64 now)
{
	pace_look_around(now);
	pace_tick_if_due(now);
	if (process_budget_has_changed())
		process_take_budget();
}

/* pace_nap -- sleep until this time, or until settings or budget change. The rest is paid later. */
static void
pace_nap(uint64 until)
{
	uint64		now = now_ns();
	uint32		version = my_pace.version;
	uint32		adaptive_version = my_pace.adaptive_version;
	uint64		most = pace_is_leader() && my_pace.is_adaptive ? NEIGHBOURS_GLANCE_NS : NEIGHBOURS_LOOK_NS;

	while (now < until && my_pace.version == version && my_pace.adaptive_version == adaptive_version &&
		   !guards_hold_is_due())
	{
		uint64		start = now;
		long		ms = Min((until - now + NS_PER_MS - 1) / NS_PER_MS, most / NS_PER_MS);

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, WAIT_EVENT_VACUUM_DELAY);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();

		now = now_ns();
		my_pace.awake_since = now;
		pg_atomic_fetch_add_u64(&my_pace.shared->cost.slept, now - start);
		compat_report_delay(now - start);
		pace_reload_if_due();
		pace_look_and_tick(now);
	}
}

/*
 * pace_while_waiting
 *		The leader waits for its workers: do what only a leader can do, and what workers
 *		may not get to.  To be called a few times a second, with no lock held.
 */
void
pace_while_waiting(void)
{
	Assert(my_pace.shared != NULL);
	pace_reload_if_due();
	pace_rebalance();
	pace_look_around(now_ns());
	if (VacuumCostActive && !VacuumFailsafeActive)
		pace_tick_if_due(now_ns());
}

/* pace_shmem_request -- reserve shared memory for the pace. */
void
pace_shmem_request(void)
{
	RequestAddinShmemSpace(add_size(adaptive_shmem_size(), add_size(parking_shmem_size(), view_shmem_size())));
}

/* pace_shmem_init -- find it, or make it. */
void
pace_shmem_init(void)
{
	adaptive_shmem_init();
	parking_shmem_init();
	view_shmem_init();
}
