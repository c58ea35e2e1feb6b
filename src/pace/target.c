/*-------------------------------------------------------------------------
 *
 * target.c
 *	  A latency target, and the budget that keeps to it, of all VACUUMs of the
 *	  server that have it.
 *
 * All VACUUMs together slow users down.  So those with the same target, of autovacuum
 * and of sessions, share one budget, one measurement, and one controller that moves the
 * budget.  The budget is of time awake, in processes, whatever the cost settings are.
 *
 * A target is known by its value and percentile.  There is room for as many as there
 * can be leaders.  When its last VACUUM has left, it is kept for a while for the next
 * one: so autovacuum doesn't learn anew with each table.  A worker that outlives its failed
 * leader for a moment may still use the target that was left, and tick.  The place that was
 * left longest ago is used first, and none is made another target during a tick.
 *
 * A tick (budget.c) has the controller take a step.  Leaders join and leave under a lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "own_wait_event.h"
#include "pace/pace_private.h"

#define TRANCHE				"pg_cyclone latency targets"

/* The most seconds that the controller is told have passed between two ticks: one came late. */
#define LONGEST_STEP		(2.0 * NS_A_TICK / NS_PER_S)
/* How long a target is kept that no VACUUM has: for as long as rests say what they do */
#define KEPT_NS				((uint64) (RESTS * (RESTS + 2) * MOMENT * NS_PER_S))

struct LatencyTarget
{
	/* changed under the lock, while no VACUUM has it */
	double		value;			/* ms, or LATENCY_TARGET_AUTO */
	double		percentile;
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
	uint32		counts[LATENCY_BUCKETS];	/* of statements so far */
	uint32		window[LATENCY_BUCKETS];	/* since the window was forgotten */
	double		window_seconds;
	double		latency_ms;		/* the percentile, as last measured */
};

/* One for each leader, and for the leader that changes from one to another under the lock */
#define NUMBER_OF_TARGETS	(MaxBackends + 1)

static LatencyTarget *targets = NULL;
static LWLock *lock = NULL;

static void leave(LatencyTarget *target);
static void begin_anew(LatencyTarget *target, const PaceSettings *settings);
static void resume(LatencyTarget *target);
static void wait_for_tick(LatencyTarget *target);
static void skip_what_was(LatencyTarget *target, uint64 now);
static void control(LatencyTarget *target, uint64 now, const BudgetUse *use);
static void collect_votes(LatencyTarget *target, ControllerInput *input);
static void forget_window(LatencyTarget *target);
static void show_percentile(LatencyTarget *target);
static NeighboursTimes take_times(LatencyTarget *target);
static void publish(LatencyTarget *target, uint64 now);

/*
 * target_join
 *		A VACUUM has the target of these settings now: find it, or make it.  It leaves
 *		the one that it had before, unless that is NULL.
 *
 * There is always room, as a leader has more than one target only in here.
 */
LatencyTarget *
target_join(const PaceSettings *settings, LatencyTarget *before)
{
	LatencyTarget *found = NULL;
	LatencyTarget *free = NULL;
	uint64		now = now_ns();

	Assert(settings_have_target(settings));
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < NUMBER_OF_TARGETS && found == NULL; i++)
	{
		LatencyTarget *target = &targets[i];

		if (target->value == settings->latency_target &&
			target->percentile == settings->latency_percentile &&
			(target->vacuums > 0 || (target->left_at > 0 && now < target->left_at + KEPT_NS)))
			found = target;
		else if (target->vacuums == 0 && (free == NULL || target->left_at < free->left_at))
			free = target;
	}
	if (found == NULL)
	{
		found = free;
		begin_anew(found, settings);
	}
	else if (found->vacuums == 0)
		resume(found);
	found->vacuums++;
	if (before != NULL)
		leave(before);
	LWLockRelease(lock);
	return found;
}

/* target_leave -- a VACUUM that has joined ends, or has no target any more. */
void
target_leave(LatencyTarget *target)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	leave(target);
	LWLockRelease(lock);
}

/* target_time -- the time awake of all processes with it. */
Budget *
target_time(LatencyTarget *target)
{
	return &target->time;
}

/* target_version -- changes whenever the budget does. */
uint32
target_version(LatencyTarget *target)
{
	return pg_atomic_read_u32(&target->version);
}

/* target_budget -- how many processes may be at work on average; INFINITY: no bound, or no target. */
double
target_budget(LatencyTarget *target)
{
	TargetState state;

	target_state(target, &state);
	return state.budget;
}

/* target_is_in_ms -- is it about statements? */
bool
target_is_in_ms(const LatencyTarget *target)
{
	return target->value != LATENCY_TARGET_AUTO;
}

/* target_note_others -- add the times of other sessions. */
void
target_note_others(LatencyTarget *target, const NeighboursTimes *times)
{
	SpinLockAcquire(&target->mutex);
	target->others.looked += times->looked;
	target->others.ran += times->ran;
	target->others.waited += times->waited;
	target->others.cores_are_unknown |= times->cores_are_unknown;
	SpinLockRelease(&target->mutex);
}

/* target_tick_if_due -- measure and control, unless it was done a moment ago. */
void
target_tick_if_due(LatencyTarget *target, uint64 now)
{
	BudgetUse	use;

	if (!budget_begin_tick(&target->time, now, &use))
		return;
	control(target, now, &use);
	budget_end_tick(&target->time);
}

/* target_state -- what it tells views and reports; NULL: that there is none. */
void
target_state(LatencyTarget *target, TargetState *state)
{
	*state = (TargetState)
	{
		.latency_ms = NAN,.budget = INFINITY,.unrested = INFINITY
	};
	if (target == NULL)
		return;
	SpinLockAcquire(&target->mutex);
	*state = target->state;
	SpinLockRelease(&target->mutex);
	state->vacuums = target->vacuums;
}

/* leave -- one VACUUM less has the target.  Under the lock. */
static void
leave(LatencyTarget *target)
{
	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	Assert(target->vacuums > 0);
	target->vacuums--;
	target->left_at = now_ns();
}

/*
 * begin_anew
 *		Make it the target of these settings.  Under the lock; no VACUUM has it.
 *
 * A worker whose leader has left the target may not have noticed yet.  So the number of
 * processes at work stays: each takes itself off.
 */
static void
begin_anew(LatencyTarget *target, const PaceSettings *settings)
{
	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	Assert(target->vacuums == 0);
	wait_for_tick(target);
	target->value = settings->latency_target;
	target->percentile = settings->latency_percentile;
	controller_init(&target->controller, target_is_in_ms(target) ? target->value : 0);
	skip_what_was(target, now_ns());
	budget_end_tick(&target->time);
}

/*
 * resume
 *		A VACUUM has a target again that was kept.  Under the lock.
 *
 * After a moment, as between two tables, it goes on as if nothing had happened.  After
 * more than that, what happened since wasn't measured.  So it begins slowly, and without
 * debts of the last VACUUM, which may have been cancelled.
 */
static void
resume(LatencyTarget *target)
{
	uint64		now = now_ns();

	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	Assert(target->vacuums == 0);
	if (now <= target->left_at + NS_A_TICK)
		return;
	wait_for_tick(target);
	controller_resume(&target->controller);
	skip_what_was(target, now);
	budget_end_tick(&target->time);
}

/* wait_for_tick -- have no process tick until budget_end_tick; a tick takes microseconds, but for one that is stopped in it. */
static void
wait_for_tick(LatencyTarget *target)
{
	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	for (int i = 0; i < 1000 && !budget_claim_tick(&target->time); i++)
		own_wait_sleep(WAIT_EVENT_VACUUM_DELAY, 1);
}

/* skip_what_was -- begin to measure from now on. */
static void
skip_what_was(LatencyTarget *target, uint64 now)
{
	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	budget_restart(&target->time, now);
	(void) take_times(target);
	latency_read(target->counts);
	forget_window(target);
	target->latency_ms = NAN;
	publish(target, now);
}

/* control -- have the controller take a step. Raises no error, as then no process would tick any more. */
static void
control(LatencyTarget *target, uint64 now, const BudgetUse *use)
{
	NeighboursTimes times = take_times(target);
	ControllerInput input = {
		.seconds = Min(use->seconds, LONGEST_STEP),
		.elapsed = use->seconds,
		.percent = target->percentile,
		.awake = use->used / NS_PER_S,
		.looked = (double) times.looked / NS_PER_S,
		.others_ran = (double) times.ran / NS_PER_S,
		.others_waited = (double) times.waited / NS_PER_S,
		.cores_are_unknown = times.cores_are_unknown,
	};

	Assert(pg_atomic_read_u32(&target->time.ticking) == 1);
	if (target_is_in_ms(target))
		collect_votes(target, &input);
	if (use->seconds >= PATIENCE)
		forget_window(target);
	/* if no leader has looked since, nothing has changed */
	else if (target_is_in_ms(target) || times.looked > 0)
		controller_step(&target->controller, &input);
	publish(target, now);
}

/*
 * collect_votes
 *		Count the statements that have ended since the last tick, and those that run and
 *		are late, if they vote already.
 */
static void
collect_votes(LatencyTarget *target, ControllerInput *input)
{
	static uint32 counts[LATENCY_BUCKETS];
	const Controller *controller = &target->controller;
	int			nrunning,
				nlate;

	latency_read(counts);
	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		uint32		grown = counts[i] - target->counts[i];

		target->counts[i] = counts[i];
		counts[i] = grown;
		input->ended += grown;
	}
	input->votes = input->ended;
	nlate = latency_count_running(controller_misses_statements(controller) && input->ended == 0 ?
								  controller_late_ms(controller) : INFINITY,
								  Max(1000 * PATIENCE, LONG_TARGETS * controller->target_ms),
								  counts, &nrunning);
	input->votes += nlate;
	input->some_run = nrunning > 0;
	input->late = latency_count_above(counts, controller_late_ms(controller));
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		target->window[i] += counts[i];
	target->window_seconds += input->elapsed;
	show_percentile(target);
}

/* forget_window -- begin a new window of statements. */
static void
forget_window(LatencyTarget *target)
{
	memset(target->window, 0, sizeof(target->window));
	target->window_seconds = 0;
}

/* show_percentile -- of the window, as soon as it has enough statements; begin a new one when it is full. */
static void
show_percentile(LatencyTarget *target)
{
	double		beyond = 0;		/* as many statements should be */
	bool		is_full;

	for (int i = 0; i < LATENCY_BUCKETS; i++)
		beyond += target->window[i];
	beyond *= 1 - target->percentile / 100;
	is_full = beyond >= RESTS || target->window_seconds >= PATIENCE;
	if (is_full || beyond >= 1)
		target->latency_ms = latency_percentile(target->window, target->percentile);
	if (is_full)
		forget_window(target);
}

/* take_times -- other sessions' times since the last call. */
static NeighboursTimes
take_times(LatencyTarget *target)
{
	NeighboursTimes times;

	SpinLockAcquire(&target->mutex);
	times = target->others;
	memset(&target->others, 0, sizeof(target->others));
	SpinLockRelease(&target->mutex);
	return times;
}

/* publish -- let all processes see the controller's result. */
static void
publish(LatencyTarget *target, uint64 now)
{
	const Controller *controller = &target->controller;
	TargetState state = {
		.target_ms = controller->target_ms,
		.latency_ms = target->latency_ms,
		.budget = controller_budget(controller),
		.unrested = controller->alone ? INFINITY : Max(controller->budget, controller->in_force),
		.limit = controller->limit,
		.is_out_of_reach = controller_target_is_out_of_reach(controller),
	};
	double		before;

	Assert(state.budget > 0);
	SpinLockAcquire(&target->mutex);
	before = target->state.budget;
	target->state = state;
	SpinLockRelease(&target->mutex);
	if (state.budget == before)
		return;
	budget_change_rate(&target->time, now, isinf(before) ? 1 : before / state.budget);
	pg_atomic_fetch_add_u32(&target->version, 1);
}

/* target_shmem_size -- how much shared memory they need; asks for their lock. */
Size
target_shmem_size(void)
{
	RequestNamedLWLockTranche(TRANCHE, 1);
	return mul_size(sizeof(LatencyTarget), NUMBER_OF_TARGETS);
}

/* target_shmem_init -- make them, or find them. */
void
target_shmem_init(void)
{
	Size		size = mul_size(sizeof(LatencyTarget), NUMBER_OF_TARGETS);
	bool		found;

	targets = ShmemInitStruct("pg_cyclone latency targets", size, &found);
	lock = &(GetNamedLWLockTranche(TRANCHE))->lock;
	if (found)
		return;
	memset(targets, 0, size);
	for (int i = 0; i < NUMBER_OF_TARGETS; i++)
	{
		LatencyTarget *target = &targets[i];

		budget_init(&target->time);
		pg_atomic_init_u32(&target->version, 0);
		SpinLockInit(&target->mutex);
	}
}
