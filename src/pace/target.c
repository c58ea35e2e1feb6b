/*-------------------------------------------------------------------------
 *
 * target.c
 *	  A latency target, and the budget that keeps to it, of all VACUUMs of the
 *	  server that have it.
 *
 * What users feel doesn't depend on how many VACUUMs there are.  So those with
 * the same target, whoever has started them, autovacuum or sessions, share one
 * budget: one clock that says until when all is paid for that any of their
 * processes has cost, one measurement of how long statements take, and one
 * controller that moves the budget.  Who asks for more gets more, as among
 * the processes of one VACUUM.  What a page costs is the same for all of them
 * (target.h), and no setting: or what one user sets would hold the others back,
 * or spoil what was learned of the machine.
 *
 * A target is known by its value, percentile, and what it is about.  There is
 * room for as many as there can be leaders.  When its last VACUUM has left, it
 * is kept for a while, for the next one to go on with: so autovacuum doesn't
 * begin anew, and learn anew, with each table.
 * A place is used again only when all others have been, so a worker that
 * outlives its failed leader for a moment takes its leave from where it was.
 *
 * VACUUMs that a cluster's coordinator has sent have a target of their own for
 * each user: the coordinator tells its processes, in addition, how much they may
 * cost (cluster/cluster_pace.c), and the lesser one of the two budgets holds.
 * What it has said holds for a while; if nothing more comes, only what is
 * measured here counts.
 *
 * Ticks
 * -----
 * A few times a second one of the processes, whichever comes first, measures
 * what they cost and how long statements take, and lets the controller move
 * the budget (tick).  No process has this for a duty.  As a tick may come from
 * a timer's signal handler, it takes no lock, allocates no memory and raises no
 * error.  Joining and leaving is done under a lock, by leaders.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "pace/clock.h"
#include "pace/target.h"

#define TRANCHE				"pg_cyclone latency targets"

/* If there was no tick for so long, what it could measure says nothing. */
#define GAP_SECONDS			2.0
/* To the controller no more than this has passed between two. */
#define LONGEST_STEP		0.5
/* Who has been running for so long, and for ten targets, is slow by nature. */
#define LONG_STATEMENT_MS	5000.0

/* Statements weigh less as time goes by: each tick by this factor, by how many there are. */
#define WINDOW_FADING		0.6
#define WINDOW_FADING_FEW	0.95
#define WINDOW_HAS_FEW		45
#define WINDOW_FADING_SPARSE 0.85
#define WINDOW_IS_SPARSE	100
#define WINDOW_FADING_DENSE 0.3
#define WINDOW_IS_DENSE		1000

/* So many transactions have ended if none has, but statements of theirs */
#define LEAST_PRESENCE		0.01

/* How long that holds what the coordinator of a cluster has said */
#define TOLD_NS				(8 * (uint64) NS_PER_S)

/* How long a target is kept that no VACUUM has */
#define KEPT_NS				(60 * (uint64) NS_PER_S)

struct LatencyTarget
{
	/* changed under the lock, while no VACUUM has it */
	double		value;			/* ms, or LATENCY_TARGET_AUTO */
	double		percentile;
	int			of;				/* LatencyOf */
	Oid			cluster_user;
	/* changed under the lock */
	int			vacuums;
	uint64		left_at;		/* when the last one left */

	/* written by all processes of those VACUUMs */
	pg_atomic_uint64 paid_until;
	pg_atomic_uint64 spent;		/* cost */
	pg_atomic_uint64 slept;		/* ns */
	pg_atomic_uint64 others_ran;	/* likewise */
	pg_atomic_uint64 others_waited;
	pg_atomic_uint32 at_work;	/* processes */
	pg_atomic_uint32 in_server_code;	/* so many of them */
	pg_atomic_uint64 next_tick;
	pg_atomic_uint32 ticking;	/* is someone in the middle of it? */

	/* written under the lock, by those whom the coordinator sends */
	pg_atomic_uint64 told_budget;	/* a double */
	pg_atomic_uint64 told_until;	/* 0: nothing was told */

	/* written by whoever ticks; read by all */
	pg_atomic_uint32 version;	/* of the budget */
	pg_atomic_uint64 budget;	/* a double, like the following ones */
	pg_atomic_uint64 latency_ms;
	pg_atomic_uint64 target_ms;
	pg_atomic_uint32 limit;		/* ControllerLimit */
	pg_atomic_uint32 out_of_reach;

	/* for ticks alone */
	Controller	controller;
	uint64		tick_time;
	uint64		spent_before;
	uint64		slept_before;
	CoreTimes	others_before;
	double		statements;		/* or transactions, ended in the last tick */
	uint32		all_statements; /* so far, if the target is about transactions */
	bool		is_busy;		/* has any of these ended in the last tick? */
	uint32		counts[LATENCY_BUCKETS];
	float		window[LATENCY_BUCKETS];
};

static LatencyTarget *targets = NULL;	/* number_of_targets() of them */
static LWLock *lock = NULL;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void request_shmem(void);
static void startup_shmem(void);
static int	number_of_targets(void);
static void leave(LatencyTarget *target);
static bool is_kept(const LatencyTarget *target, uint64 now);
static void begin_anew(LatencyTarget *target, const PaceSettings *settings,
					   LatencyTarget *before);
static void resume(LatencyTarget *target);
static void tick(LatencyTarget *target, uint64 now);
static void read_window(LatencyTarget *target);
static double control(LatencyTarget *target, double elapsed, double seconds, double rate,
					  double awake, const CoreTimes *others);
static CoreTimes core_times(LatencyTarget *target);
static void publish(LatencyTarget *target, double latency_ms);

/*
 * target_init
 *		Ask for shared memory.  Call while the library is preloaded.
 */
void
target_init(void)
{
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

/*
 * target_join
 *		A VACUUM has the target of these settings now: find it, or make it.
 *
 * It leaves the one that it had before, unless that is NULL; a new one takes from
 * that what is known of the machine.  In the end target_leave must be called.
 * There is always room, as a leader has no more than one but in here.
 */
LatencyTarget *
target_join(const PaceSettings *settings, LatencyTarget *before)
{
	LatencyTarget *found = NULL;
	LatencyTarget *free = NULL;
	uint64		now = now_ns();

	Assert(settings->latency_target != LATENCY_TARGET_OFF);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < number_of_targets() && found == NULL; i++)
	{
		LatencyTarget *target = &targets[i];

		if (target->value == settings->latency_target &&
			target->percentile == settings->latency_percentile &&
			target->of == settings->latency_of &&
			target->cluster_user == settings->cluster_user && is_kept(target, now))
			found = target;
		else if (target->vacuums == 0 && (free == NULL || target->left_at < free->left_at))
			free = target;
	}
	if (found == NULL)
	{
		found = free;
		begin_anew(found, settings, before);
	}
	else if (found->vacuums == 0)
		resume(found);
	found->vacuums++;
	if (before != NULL)
		leave(before);
	LWLockRelease(lock);
	return found;
}

/* target_leave -- a VACUUM that has joined is through, or has no target any more. */
void
target_leave(LatencyTarget *target)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	leave(target);
	LWLockRelease(lock);
}

/* target_number -- what other processes find it by. */
int
target_number(const LatencyTarget *target)
{
	return target - targets;
}

/* target_by_number -- the opposite. */
LatencyTarget *
target_by_number(int number)
{
	Assert(number >= 0 && number < number_of_targets());
	return &targets[number];
}

/*
 * target_begin_server_code
 *		One of them is in code that keeps to its share by itself.
 */
void
target_begin_server_code(LatencyTarget *target)
{
	pg_atomic_fetch_add_u32(&target->in_server_code, 1);
}

/* target_end_server_code -- it has left it. */
void
target_end_server_code(LatencyTarget *target)
{
	pg_atomic_fetch_sub_u32(&target->in_server_code, 1);
}

/* target_in_server_code -- how many are in there. */
int
target_in_server_code(LatencyTarget *target)
{
	return pg_atomic_read_u32(&target->in_server_code);
}

/* target_begin_work -- a process more spends of the budget. */
void
target_begin_work(LatencyTarget *target)
{
	pg_atomic_fetch_add_u32(&target->at_work, 1);
}

/* target_end_work -- a process less. */
void
target_end_work(LatencyTarget *target)
{
	pg_atomic_fetch_sub_u32(&target->at_work, 1);
}

/* target_at_work -- how many processes spend of it. */
int
target_at_work(LatencyTarget *target)
{
	return Max((int) pg_atomic_read_u32(&target->at_work), 1);
}

/* target_version -- changes whenever the budget does. */
uint32
target_version(LatencyTarget *target)
{
	return pg_atomic_read_u32(&target->version);
}

/* target_budget -- what all may cost a second; INFINITY: no bound. */
double
target_budget(LatencyTarget *target)
{
	return read_double(&target->budget);
}

/*
 * target_pay
 *		A process has cost so much time (ns) of the budget; returns until when it is
 *		to sleep for that.
 */
uint64
target_pay(LatencyTarget *target, uint64 now, uint64 price)
{
	return pay(&target->paid_until, now, price);
}

/* target_note_cost -- a process has cost so much. */
void
target_note_cost(LatencyTarget *target, int64 cost)
{
	pg_atomic_fetch_add_u64(&target->spent, cost);
}

/* target_note_sleep -- it has slept for that long. */
void
target_note_sleep(LatencyTarget *target, uint64 ns)
{
	pg_atomic_fetch_add_u64(&target->slept, ns);
}

/* target_wants_core_waits -- is it of use to know how long others wait for a core? */
bool
target_wants_core_waits(const LatencyTarget *target)
{
	return target->value == LATENCY_TARGET_AUTO;
}

/* target_note_core_waits -- others have waited for so long. */
void
target_note_core_waits(LatencyTarget *target, const CoreTimes *since)
{
	pg_atomic_fetch_add_u64(&target->others_ran, since->ran);
	pg_atomic_fetch_add_u64(&target->others_waited, since->waited);
}

/*
 * target_tick_if_due
 *		Measure and control, unless it was done a moment ago.
 */
void
target_tick_if_due(LatencyTarget *target, uint64 now)
{
	uint64		due = pg_atomic_read_u64(&target->next_tick);
	uint32		nobody = 0;

	if (now < due ||
		!pg_atomic_compare_exchange_u64(&target->next_tick, &due, now + NS_A_TICK) ||
		!pg_atomic_compare_exchange_u32(&target->ticking, &nobody, 1))
		return;

	tick(target, now);
	pg_memory_barrier();
	pg_atomic_write_u32(&target->ticking, 0);
}

/* target_state -- what it says of itself. */
void
target_state(LatencyTarget *target, TargetState *state)
{
	state->target_ms = read_double(&target->target_ms);
	state->latency_ms = read_double(&target->latency_ms);
	state->budget = read_double(&target->budget);
	state->limit = pg_atomic_read_u32(&target->limit);
	state->vacuums = target->vacuums;
}

/* target_is_out_of_reach -- is it missed although VACUUM hardly moves? */
bool
target_is_out_of_reach(LatencyTarget *target)
{
	return pg_atomic_read_u32(&target->out_of_reach) != 0;
}

/*
 * target_tell
 *		The coordinator that has sent VACUUMs with this target says what they may cost
 *		a second, from their next tick on, and asks what they have cost so far.
 *
 * Returns false if no such VACUUM runs here.
 */
bool
target_tell(Oid cluster_user, double value, double budget, TargetCosts *costs)
{
	bool		found = false;

	memset(costs, 0, sizeof(*costs));
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < number_of_targets(); i++)
	{
		LatencyTarget *target = &targets[i];

		if (target->vacuums == 0 || target->cluster_user != cluster_user || target->value != value)
			continue;
		write_double(&target->told_budget, budget);
		pg_write_barrier();
		pg_atomic_write_u64(&target->told_until, now_ns() + TOLD_NS);
		costs->spent += pg_atomic_read_u64(&target->spent);
		costs->slept += pg_atomic_read_u64(&target->slept);
		costs->at_work += pg_atomic_read_u32(&target->at_work);
		found = true;
	}
	LWLockRelease(lock);
	return found;
}

/* leave -- a VACUUM less has the target.  Under the lock. */
static void
leave(LatencyTarget *target)
{
	Assert(target->vacuums > 0);
	target->vacuums--;
	target->left_at = now_ns();
}

/* is_kept -- has a VACUUM the target, or had it lately?  Under the lock. */
static bool
is_kept(const LatencyTarget *target, uint64 now)
{
	return target->vacuums > 0 ||
		(target->left_at > 0 && now < target->left_at + KEPT_NS);
}

/*
 * begin_anew
 *		Make it the target of these settings.  Under the lock; no VACUUM has it.
 *
 * A worker whose leader has left it may not have noticed yet, so it is not for us
 * to change how many are at work.
 */
static void
begin_anew(LatencyTarget *target, const PaceSettings *settings, LatencyTarget *before)
{
	uint64		now = now_ns();
	uint32		nobody = 0;

	target->value = settings->latency_target;
	target->percentile = settings->latency_percentile;
	target->of = settings->latency_of;
	target->cluster_user = settings->cluster_user;
	pg_atomic_write_u64(&target->told_until, 0);

	controller_init(&target->controller, 0);
	/* not in the midst of a tick */
	if (before != NULL && pg_atomic_compare_exchange_u32(&before->ticking, &nobody, 1))
	{
		target->controller = before->controller;
		pg_memory_barrier();
		pg_atomic_write_u32(&before->ticking, 0);
		if (target->of != before->of)
			controller_forget_load(&target->controller);
	}
	controller_set_target(&target->controller,
						  target->value == LATENCY_TARGET_AUTO ? 0 : target->value);
	pg_atomic_write_u64(&target->paid_until, now);
	pg_atomic_write_u64(&target->spent, 0);
	pg_atomic_write_u64(&target->slept, 0);
	target->tick_time = now;
	target->spent_before = 0;
	target->slept_before = 0;
	(void) core_times(target);
	target->statements = 0;
	target->all_statements = 0;
	target->is_busy = false;
	/* nobody may have looked at them for long */
	latency_read(target->of, target->counts);
	memset(target->window, 0, sizeof(target->window));
	publish(target, NAN);
	pg_atomic_write_u64(&target->next_tick, now + NS_A_TICK);
}

/*
 * resume
 *		A VACUUM has a target again that was kept.  Under the lock.
 *
 * After no more than a moment, as between two tables, it goes on as if nothing
 * had happened.  After more than that nobody has measured what happened, and the
 * load may be another one, so it begins slowly; without debts of the last one,
 * which may have been cancelled; and not with a tick, which would take the first
 * page's cost for a rate.
 */
static void
resume(LatencyTarget *target)
{
	uint64		now = now_ns();

	if (now <= target->left_at + NS_A_TICK)
		return;
	controller_restart(&target->controller);
	pg_atomic_write_u64(&target->paid_until, now);
	target->tick_time = now;
	target->spent_before = pg_atomic_read_u64(&target->spent);
	target->slept_before = pg_atomic_read_u64(&target->slept);
	(void) core_times(target);
	latency_read(target->of, target->counts);
	memset(target->window, 0, sizeof(target->window));
	publish(target, NAN);
	pg_atomic_write_u64(&target->next_tick, now + NS_A_TICK);
}

/*
 * tick
 *		Measure, and move the budget.  Raises no error, as the others would wait
 *		for this process to end it.
 */
static void
tick(LatencyTarget *target, uint64 now)
{
	uint64		spent = pg_atomic_read_u64(&target->spent);
	uint64		slept = pg_atomic_read_u64(&target->slept);
	double		seconds = (double) (now - target->tick_time) / NS_PER_S;
	double		rate,
				asleep,
				latency_ms = NAN;
	int			at_work = target_at_work(target);
	CoreTimes	others;

	if (now <= target->tick_time)
		return;
	others = core_times(target);
	rate = (spent - target->spent_before) / seconds;
	asleep = (slept - target->slept_before) / seconds / NS_PER_S / at_work;
	target->spent_before = spent;
	target->slept_before = slept;
	target->tick_time = now;

	read_window(target);
	if (seconds < GAP_SECONDS)
		latency_ms = control(target, seconds, Min(seconds, LONGEST_STEP), rate,
							 Max(1 - asleep, 0) * at_work, &others);
	else
		memset(target->window, 0, sizeof(target->window));
	publish(target, latency_ms);
}

/*
 * read_window
 *		Add the statements, or transactions, since the last tick to the window.
 */
static void
read_window(LatencyTarget *target)
{
	static uint32 counts[LATENCY_BUCKETS];
	double		total = 0;
	double		fading;

	for (int i = 0; i < LATENCY_BUCKETS; i++)
		total += target->window[i];
	fading = total < WINDOW_HAS_FEW ? WINDOW_FADING_FEW :
		total < WINDOW_IS_SPARSE ? WINDOW_FADING_SPARSE :
		total > WINDOW_IS_DENSE ? WINDOW_FADING_DENSE : WINDOW_FADING;

	/* in the midst of a transaction its session isn't idle */
	target->is_busy = false;
	if (latency_is_of_transactions(target->of))
	{
		uint32		all = 0;

		latency_read(latency_is_of_clients(target->of) ?
					 LATENCY_OF_CLIENTS_STATEMENTS : LATENCY_OF_STATEMENTS, counts);
		for (int i = 0; i < LATENCY_BUCKETS; i++)
			all += counts[i];
		target->is_busy = all != target->all_statements;
		target->all_statements = all;
	}

	latency_read(target->of, counts);
	target->statements = 0;
	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		uint32		grown = counts[i] - target->counts[i];

		target->counts[i] = counts[i];
		target->window[i] = target->window[i] * fading + grown;
		target->statements += grown;
	}
}

/*
 * control
 *		Move the budget by what statements have taken; return their percentile.
 *
 * So much time has passed, of which no more than `seconds` counts.
 */
static double
control(LatencyTarget *target, double elapsed, double seconds, double rate, double awake,
		const CoreTimes *others)
{
	static float window[LATENCY_BUCKETS];
	static float late[LATENCY_BUCKETS];
	Controller *controller = &target->controller;
	double		late_ms = controller->target_ms > 0 ? controller->target_ms : INFINITY;
	int			nrunning;
	int			nlate;
	bool		all_hang;
	ControllerInput input = {
		.seconds = seconds,
		.elapsed = elapsed,
		.rate = rate,
		.awake = awake,
		.others_ran = (double) others->ran / NS_PER_S,
		.others_waited = (double) others->waited / NS_PER_S,
		.percent = target->percentile,
		.ended = target->statements,
		.are_transactions = latency_is_of_transactions(target->of),
	};

	memset(late, 0, sizeof(late));
	nlate = latency_add_running(target->of, late_ms, Max(LONG_STATEMENT_MS, 10 * controller->target_ms),
								late, &nrunning);

	/*
	 * Those that are late are in the window only for now.  If nothing ends
	 * any more, for longer than it takes one of them, and all that run are
	 * late by far, what has ended before tells nothing.
	 */
	all_hang = target->statements == 0 && controller_misses_statements(controller) &&
		nlate == nrunning &&
		latency_count_above(late, controller_far_ms(controller)) >= nlate;
	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		window[i] = late[i] + (nlate > 0 && all_hang ? 0 : target->window[i]);
		input.samples += window[i];
	}
	input.percentile_ms = latency_percentile(window, input.percent);
	input.late = latency_count_above(window, controller_late_ms(controller));
	input.statements = target->statements + nlate;
	if (target->is_busy)
		input.statements = Max(input.statements, LEAST_PRESENCE);
	input.some_run = nrunning > 0;

	controller_step(controller, &input);
	if (controller->forget_window)
		memset(target->window, 0, sizeof(target->window));
	return input.percentile_ms;
}

/* core_times -- how long others have run, and waited for a core, since the last call. */
static CoreTimes
core_times(LatencyTarget *target)
{
	CoreTimes	before = target->others_before;

	target->others_before.ran = pg_atomic_read_u64(&target->others_ran);
	target->others_before.waited = pg_atomic_read_u64(&target->others_waited);
	return (CoreTimes)
	{
		.ran = target->others_before.ran - before.ran,
			.waited = target->others_before.waited - before.waited
	};
}

/* publish -- let all see what the controller has come to, or the coordinator. */
static void
publish(LatencyTarget *target, double latency_ms)
{
	const Controller *controller = &target->controller;
	double		budget = controller->budget;
	ControllerLimit limit = controller->limit;

	if (now_ns() < pg_atomic_read_u64(&target->told_until))
	{
		double		told;

		pg_read_barrier();
		told = read_double(&target->told_budget);
		if (told < budget)
		{
			budget = told;
			limit = LIMIT_CLUSTER;
		}
	}
	write_double(&target->latency_ms, latency_ms);
	write_double(&target->target_ms, controller->target_ms);
	pg_atomic_write_u32(&target->limit, limit);
	pg_atomic_write_u32(&target->out_of_reach, controller_target_is_out_of_reach(controller));
	if (budget != read_double(&target->budget))
	{
		write_double(&target->budget, budget);
		pg_atomic_fetch_add_u32(&target->version, 1);
	}
}

/*
 * number_of_targets
 *		One for each leader, and one for who is about to change from one to another,
 *		under the lock.
 */
static int
number_of_targets(void)
{
	return MaxBackends + 1;
}

/* request_shmem -- how much shared memory we need. */
static void
request_shmem(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(mul_size(sizeof(LatencyTarget), number_of_targets()));
	RequestNamedLWLockTranche(TRANCHE, 1);
}

/* startup_shmem -- make it, or find it. */
static void
startup_shmem(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	targets = ShmemInitStruct("pg_cyclone latency targets",
							  mul_size(sizeof(LatencyTarget), number_of_targets()), &found);
	lock = &(GetNamedLWLockTranche(TRANCHE))->lock;
	for (int i = 0; !found && i < number_of_targets(); i++)
	{
		LatencyTarget *target = &targets[i];

		memset(target, 0, sizeof(LatencyTarget));
		pg_atomic_init_u64(&target->paid_until, 0);
		pg_atomic_init_u64(&target->spent, 0);
		pg_atomic_init_u64(&target->slept, 0);
		pg_atomic_init_u64(&target->others_ran, 0);
		pg_atomic_init_u64(&target->others_waited, 0);
		pg_atomic_init_u32(&target->at_work, 0);
		pg_atomic_init_u32(&target->in_server_code, 0);
		pg_atomic_init_u64(&target->next_tick, 0);
		pg_atomic_init_u32(&target->ticking, 0);
		pg_atomic_init_u64(&target->told_budget, 0);
		pg_atomic_init_u64(&target->told_until, 0);
		pg_atomic_init_u32(&target->version, 0);
		pg_atomic_init_u64(&target->budget, 0);
		pg_atomic_init_u64(&target->latency_ms, 0);
		pg_atomic_init_u64(&target->target_ms, 0);
		pg_atomic_init_u32(&target->limit, 0);
		pg_atomic_init_u32(&target->out_of_reach, 0);
	}
	LWLockRelease(AddinShmemInitLock);
}
