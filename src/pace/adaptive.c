/*-------------------------------------------------------------------------
 *
 * adaptive.c
 *	  What all VACUUMs of the server with an adaptive delay may do beyond
 *	  their cost delays.
 *
 * All VACUUMs together slow users down.  So those with an adaptive delay, of autovacuum and of
 * sessions, share one budget, one measurement, and one controller that moves the budget.
 * The budget is of time awake, in processes, whatever the cost settings are.  Each VACUUM
 * has its cost delay's budget besides (pace_process.c).
 *
 * When the last VACUUM has left, what was learned is kept for a while for the next one: so
 * autovacuum doesn't learn anew with each table.  A worker that outlives its failed leader
 * for a moment may still use what was left, and tick.
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

#define TRANCHE				"pg_cyclone adaptive delay"

/* The most seconds that the controller is told have passed between two ticks: one came late. */
#define LONGEST_STEP		(2.0 * NS_A_TICK / NS_PER_S)

typedef struct AdaptiveDelay
{
	/* changed under the lock */
	int			vacuums;
	uint64		left_at;		/* when the last one left */

	/* written by all processes of those VACUUMs */
	Budget		time;			/* awake */
	pg_atomic_uint32 version;	/* of the budget */
	slock_t		mutex;			/* of the following, but for vacuums in there */
	NeighboursTimes others;		/* since the last tick */
	AdaptiveState state;

	/* for ticks alone */
	Controller	controller;
} AdaptiveDelay;

static AdaptiveDelay *adaptive = NULL;
static LWLock *lock = NULL;

static void adaptive_resume(uint64 now);
static NeighboursTimes adaptive_take_times(void);
static void adaptive_publish(void);

/* adaptive_join -- a VACUUM has an adaptive delay now. */
void
adaptive_join(void)
{
	uint64		now = now_ns();

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (adaptive->vacuums++ == 0 && now > adaptive->left_at + NS_A_TICK)
		adaptive_resume(now);
	LWLockRelease(lock);
}

/* adaptive_leave -- a VACUUM that has joined ends, or has no adaptive delay any more. */
void
adaptive_leave(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	Assert(adaptive->vacuums > 0);
	adaptive->vacuums--;
	adaptive->left_at = now_ns();
	LWLockRelease(lock);
}

/* adaptive_time -- the time awake of all processes with it. */
Budget *
adaptive_time(void)
{
	return &adaptive->time;
}

/* adaptive_version -- changes whenever the budget does. */
uint32
adaptive_version(void)
{
	return pg_atomic_read_u32(&adaptive->version);
}

/* adaptive_note_others -- add the times of other sessions. */
void
adaptive_note_others(const NeighboursTimes *times)
{
	SpinLockAcquire(&adaptive->mutex);
	adaptive->others.looked += times->looked;
	adaptive->others.ran += times->ran;
	adaptive->others.waited += times->waited;
	adaptive->others.cores_are_unknown |= times->cores_are_unknown;
	SpinLockRelease(&adaptive->mutex);
}

/*
 * adaptive_tick_if_due
 *		Have the controller take a step, unless that was a moment ago.  Raises no error, as
 *		then no process would tick any more.
 */
void
adaptive_tick_if_due(uint64 now)
{
	BudgetUse	use;
	NeighboursTimes times;

	if (!budget_begin_tick(&adaptive->time, now, &use))
		return;
	times = adaptive_take_times();
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

		controller_step(&adaptive->controller, &input);
	}
	adaptive_publish();
	budget_end_tick(&adaptive->time);
}

/* adaptive_state -- see pace_private.h. */
void
adaptive_state(bool is_adaptive, AdaptiveState *state)
{
	*state = (AdaptiveState)
	{
		.others_take = NAN,.others_would_take = NAN
	};
	if (!is_adaptive)
		return;
	SpinLockAcquire(&adaptive->mutex);
	*state = adaptive->state;
	SpinLockRelease(&adaptive->mutex);
	state->vacuums = adaptive->vacuums;
}

/*
 * adaptive_resume
 *		A VACUUM has an adaptive delay again.  Under the lock.
 *
 * After a moment, as between two tables, it goes on as if nothing had happened.  This is
 * for when it was longer, and what happened since wasn't measured: it begins slowly, and
 * without debts of the last VACUUM, which may have been cancelled.
 *
 * No process ticks meanwhile.  A tick takes microseconds, but for one that is stopped in it,
 * for which no process waits for long.
 */
static void
adaptive_resume(uint64 now)
{
	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	for (int i = 0; i < 1000 && !budget_claim_tick(&adaptive->time); i++)
		own_wait_sleep(WAIT_EVENT_VACUUM_DELAY, 1);
	controller_resume(&adaptive->controller, (double) (now - adaptive->left_at) / NS_PER_S);
	budget_restart(&adaptive->time, now);
	(void) adaptive_take_times();
	adaptive_publish();
	budget_end_tick(&adaptive->time);
}

/* adaptive_take_times -- other sessions' times since the last call. */
static NeighboursTimes
adaptive_take_times(void)
{
	NeighboursTimes times;

	SpinLockAcquire(&adaptive->mutex);
	times = adaptive->others;
	memset(&adaptive->others, 0, sizeof(adaptive->others));
	SpinLockRelease(&adaptive->mutex);
	return times;
}

/* adaptive_publish -- let all processes see the controller's result. */
static void
adaptive_publish(void)
{
	const Controller *controller = &adaptive->controller;
	AdaptiveState state = {
		.added = controller_added(controller),
		.unrested = controller->alone ? INFINITY : Max(controller->budget, controller->in_force) - FLOOR_BUDGET,
		.others_at_work = controller->load,
		.others_take = controller_takes(controller),
		.others_would_take = controller_would_take(controller),
		.limit = controller->limit,
	};
	double		before;

	Assert(state.added >= 0);
	SpinLockAcquire(&adaptive->mutex);
	before = adaptive->state.added;
	adaptive->state = state;
	SpinLockRelease(&adaptive->mutex);
	if (state.added != before)
		pg_atomic_fetch_add_u32(&adaptive->version, 1);
}

/* adaptive_shmem_size -- how much shared memory it needs; asks for its lock. */
Size
adaptive_shmem_size(void)
{
	RequestNamedLWLockTranche(TRANCHE, 1);
	return sizeof(AdaptiveDelay);
}

/* adaptive_shmem_init -- make it, or find it. */
void
adaptive_shmem_init(void)
{
	bool		found;

	adaptive = ShmemInitStruct("pg_cyclone adaptive delay", sizeof(AdaptiveDelay), &found);
	lock = &(GetNamedLWLockTranche(TRANCHE))->lock;
	if (found)
		return;
	memset(adaptive, 0, sizeof(AdaptiveDelay));
	budget_init(&adaptive->time);
	pg_atomic_init_u32(&adaptive->version, 0);
	SpinLockInit(&adaptive->mutex);
	controller_init(&adaptive->controller);
}
