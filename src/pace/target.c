/*-------------------------------------------------------------------------
 *
 * target.c
 *	  The latency target auto: what all VACUUMs of the server that have it may do beyond
 *	  their cost delays.
 *
 * All VACUUMs together slow users down.  So those with the target, of autovacuum and of
 * sessions, share one budget, one measurement, and one controller that moves the budget.
 * The budget is of time awake, in processes, whatever the cost settings are.  Each VACUUM
 * has its cost delay's budget besides (pace_process.c).
 *
 * When the last VACUUM has left, what was learned is kept for a while for the next one: so
 * autovacuum doesn't learn anew with each table.  A worker that outlives its failed leader
 * for a moment may still use the target that was left, and tick.
 *
 * A tick (budget.c) has the controller take a step.  Leaders join and leave under a lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "own_wait_event.h"
#include "pace/pace_private.h"

#define TRANCHE				"pg_cyclone latency target"

/* The most seconds that the controller is told have passed between two ticks: one came late. */
#define LONGEST_STEP		(2.0 * NS_A_TICK / NS_PER_S)

typedef struct LatencyTarget
{
	/* changed under the lock */
	int			vacuums;
	uint64		left_at;		/* when the last one left */

	/* written by all processes of those VACUUMs */
	Budget		time;			/* awake */
	pg_atomic_uint32 version;	/* of the budget */
	slock_t		mutex;			/* of the following, but for vacuums in there */
	NeighboursTimes others;		/* since the last tick */
	TargetState state;

	/* for ticks alone */
	Controller	controller;
} LatencyTarget;

static LatencyTarget *target = NULL;
static LWLock *lock = NULL;

static void target_resume(uint64 now);
static NeighboursTimes target_take_times(void);
static void target_publish(void);

/* target_join -- a VACUUM has the target now. */
void
target_join(void)
{
	uint64		now = now_ns();

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (target->vacuums++ == 0 && now > target->left_at + NS_A_TICK)
		target_resume(now);
	LWLockRelease(lock);
}

/* target_leave -- a VACUUM that has joined ends, or has no target any more. */
void
target_leave(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	Assert(target->vacuums > 0);
	target->vacuums--;
	target->left_at = now_ns();
	LWLockRelease(lock);
}

/* target_time -- the time awake of all processes with it. */
Budget *
target_time(void)
{
	return &target->time;
}

/* target_version -- changes whenever the budget does. */
uint32
target_version(void)
{
	return pg_atomic_read_u32(&target->version);
}

/* target_note_others -- add the times of other sessions. */
void
target_note_others(const NeighboursTimes *times)
{
	SpinLockAcquire(&target->mutex);
	target->others.looked += times->looked;
	target->others.ran += times->ran;
	target->others.waited += times->waited;
	target->others.cores_are_unknown |= times->cores_are_unknown;
	SpinLockRelease(&target->mutex);
}

/*
 * target_tick_if_due
 *		Have the controller take a step, unless that was a moment ago.  Raises no error, as
 *		then no process would tick any more.
 */
void
target_tick_if_due(uint64 now)
{
	BudgetUse	use;
	NeighboursTimes times;

	if (!budget_begin_tick(&target->time, now, &use))
		return;
	times = target_take_times();
	/* if no leader has looked since, nothing has changed */
	if (times.looked > 0)
	{
		ControllerInput input = {
			.seconds = Min(use.seconds, LONGEST_STEP),
			.elapsed = use.seconds,
			.awake = use.used / NS_PER_S,
			.looked = (double) times.looked / NS_PER_S,
			.others_ran = (double) times.ran / NS_PER_S,
			.others_waited = (double) times.waited / NS_PER_S,
			.cores_are_unknown = times.cores_are_unknown,
		};

		controller_step(&target->controller, &input);
	}
	target_publish();
	budget_end_tick(&target->time);
}

/* target_state -- see pace_private.h. */
void
target_state(bool has_target, TargetState *state)
{
	*state = (TargetState)
	{
		.others_take = NAN,.others_would_take = NAN
	};
	if (!has_target)
		return;
	SpinLockAcquire(&target->mutex);
	*state = target->state;
	SpinLockRelease(&target->mutex);
	state->vacuums = target->vacuums;
}

/*
 * target_resume
 *		A VACUUM has the target again.  Under the lock.
 *
 * After a moment, as between two tables, it goes on as if nothing had happened.  This is
 * for when it was longer, and what happened since wasn't measured: it begins slowly, and
 * without debts of the last VACUUM, which may have been cancelled.
 *
 * No process ticks meanwhile.  A tick takes microseconds, but for one that is stopped in it,
 * for which no process waits for long.
 */
static void
target_resume(uint64 now)
{
	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	for (int i = 0; i < 1000 && !budget_claim_tick(&target->time); i++)
		own_wait_sleep(WAIT_EVENT_VACUUM_DELAY, 1);
	controller_resume(&target->controller, (double) (now - target->left_at) / NS_PER_S);
	budget_restart(&target->time, now);
	(void) target_take_times();
	target_publish();
	budget_end_tick(&target->time);
}

/* target_take_times -- other sessions' times since the last call. */
static NeighboursTimes
target_take_times(void)
{
	NeighboursTimes times;

	SpinLockAcquire(&target->mutex);
	times = target->others;
	memset(&target->others, 0, sizeof(target->others));
	SpinLockRelease(&target->mutex);
	return times;
}

/* target_publish -- let all processes see the controller's result. */
static void
target_publish(void)
{
	const Controller *controller = &target->controller;
	TargetState state = {
		.added = controller_added(controller),
		.unrested = controller->alone ? INFINITY : Max(controller->budget, controller->in_force) - FLOOR_BUDGET,
		.others_at_work = controller->load,
		.others_take = controller_takes(controller),
		.others_would_take = controller_would_take(controller),
		.limit = controller->limit,
	};
	double		before;

	Assert(state.added >= 0);
	SpinLockAcquire(&target->mutex);
	before = target->state.added;
	target->state = state;
	SpinLockRelease(&target->mutex);
	if (state.added != before)
		pg_atomic_fetch_add_u32(&target->version, 1);
}

/* target_shmem_size -- how much shared memory it needs; asks for its lock. */
Size
target_shmem_size(void)
{
	RequestNamedLWLockTranche(TRANCHE, 1);
	return sizeof(LatencyTarget);
}

/* target_shmem_init -- make it, or find it. */
void
target_shmem_init(void)
{
	bool		found;

	target = ShmemInitStruct("pg_cyclone latency target", sizeof(LatencyTarget), &found);
	lock = &(GetNamedLWLockTranche(TRANCHE))->lock;
	if (found)
		return;
	memset(target, 0, sizeof(LatencyTarget));
	budget_init(&target->time);
	pg_atomic_init_u32(&target->version, 0);
	SpinLockInit(&target->mutex);
	controller_init(&target->controller);
}
