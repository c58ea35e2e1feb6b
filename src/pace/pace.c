/*-------------------------------------------------------------------------
 *
 * pace.c
 *	  How fast a vacuum may go: cost-based delay, with one budget for all of
 *	  its processes, and the latency target that moves the budget.
 *
 * The budget
 * ----------
 * A budget is a cost a second.  The settings give one, vacuum_cost_limit for
 * each vacuum_cost_delay; a latency target gives another one, which
 * controller.c moves; the smaller one counts.  The server's delay point makes
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
 * In the vacuum routines of other index types the server's own delay point is
 * called.  Processes that are in there (pace_begin_server_code) have its
 * settings adjusted so that each takes its share of the budget, and the others
 * leave them that share.  A timer keeps these settings up to date.
 *
 * Ticks
 * -----
 * A few times a second one of the processes, whichever comes first, measures
 * what the vacuum costs and how long statements take, and lets the controller
 * move the budget (tick).  No process has this for a duty, so that the pace is
 * kept while any of them is at work, or the leader waits for it.  As a tick
 * may come from the timer's signal handler, it takes no lock, allocates no
 * memory and raises no error.
 *
 * Settings
 * --------
 * The leader takes over changed settings as soon as the server is told to
 * reload its files (pace_settings.c); the others notice by the version number
 * of the shared block.  The parameters themselves stay as they are until the
 * end of the command, when the server reloads the files.
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
#include "catalog/pg_authid.h"
#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timeout.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "pace/clock.h"
#include "pace/controller.h"
#include "pace/latency.h"
#include "pace/pace.h"
#include "pace/pace_settings.h"

#define NS_A_TICK			(NS_PER_S / 4)
/* In the server's code, not so often: it cuts the nap short that it is in. */
#define SERVER_CODE_TICK_MS 500
/* If there was no tick for so long, what it could measure says nothing. */
#define GAP_SECONDS			2.0
/* To the controller no more than this has passed between two. */
#define LONGEST_STEP		0.5
/* Who has been running for so long, and for ten targets, is slow by nature. */
#define LONG_STATEMENT_MS	5000.0

/*
 * It is no use to sleep for less, nor good to sleep for longer at a time.  Who
 * wakes up may take the core from somebody, so with a target that is done less
 * often.  What that alone is worth has not been measured.
 */
#define LEAST_NAP_NS		((uint64) NS_PER_MS)
#define LEAST_NAP_WITH_TARGET_NS (5 * (uint64) NS_PER_MS)
/* In the time of the least nap the budget is looked at twice, to be exact. */
#define CHARGES_A_NAP		2
#define LONGEST_NAP_MS		100
/* Of an unused budget so much remains. */
#define CREDIT_NS			(50 * (uint64) NS_PER_MS)

/* The budget is looked at once for so much cost, or less. */
#define LEAST_CHARGE		1
#define GREATEST_CHARGE		2000

/* A nap is for the cost of this much time, or for so much if that is more. */
#define SECONDS_A_NAP		0.005
#define LEAST_COST_A_NAP	25.0
/* As in the server: so many times the limit is paid for at most. */
#define GREATEST_OVERRUN	4

/* What the server's delay point is told if there is no bound */
#define UNBOUNDED_LIMIT		100000000
#define UNBOUNDED_DELAY		0.001

/* Statements weigh less as time goes by: each tick by this factor. */
#define WINDOW_FADING		0.6
#define WINDOW_FADING_SPARSE 0.85
#define WINDOW_IS_SPARSE	100
#define WINDOW_FADING_DENSE 0.3
#define WINDOW_IS_DENSE		1000

/* backend_flush_after, as bgwriter_flush_after is by default, but twice as often */
#define FLUSH_AFTER			"256kB"

/* So many transactions have ended if none has, but statements of theirs */
#define LEAST_PRESENCE		0.01

#define PACE_COLUMNS		12

/* What the view shows of a vacuum; written by whoever ticks. */
typedef struct PaceSlot
{
	pg_atomic_uint32 pid;		/* of the leader; 0 if the slot is not in use */
	pg_atomic_uint32 user_id;
	pg_atomic_uint32 database;
	pg_atomic_uint32 relid;
	pg_atomic_uint32 limited_by;	/* PaceLimit */
	pg_atomic_uint32 latency_of;	/* LatencyOf */
	/* doubles, NaN for null */
	pg_atomic_uint64 target_ms;
	pg_atomic_uint64 percentile;
	pg_atomic_uint64 latency_ms;
	pg_atomic_uint64 budget;
	pg_atomic_uint64 rate;
	pg_atomic_uint64 asleep;
} PaceSlot;

typedef enum PaceLimit
{
	PACE_LIMIT_NOTHING,
	PACE_LIMIT_COST_DELAY,
	PACE_LIMIT_LATENCY,
	PACE_LIMIT_LEARNING,
	PACE_LIMIT_FLOOR,
	PACE_LIMIT_FAILSAFE,
} PaceLimit;

/* What a tick starts from; handed on from table to table of a command */
typedef struct PaceControl
{
	Controller	controller;
	bool		has_warned;
	double		told_target;	/* the settings that the controller knows of */
	double		told_percentile;
	int			told_of;
	uint64		tick_time;
	uint64		next_tick;
	uint64		spent;
	uint64		slept;
	double		statements;		/* or transactions, ended in the last tick */
	uint32		all_statements; /* so far, if the target is about transactions */
	bool		is_busy;		/* has any of these ended in the last tick? */
	uint32		counts[LATENCY_BUCKETS];
	float		window[LATENCY_BUCKETS];
} PaceControl;

struct PaceShared
{
	/* written by the leader, and the budget by whoever ticks; then version */
	pg_atomic_uint32 version;
	pg_atomic_uint32 cost_limit;
	pg_atomic_uint32 page_hit;
	pg_atomic_uint32 page_miss;
	pg_atomic_uint32 page_dirty;
	pg_atomic_uint64 cost_delay;	/* ms; a double, like the following ones */
	pg_atomic_uint64 latency_target;
	pg_atomic_uint64 latency_percentile;
	pg_atomic_uint32 latency_of;
	pg_atomic_uint64 budget;	/* the controller's; cost a second */
	pg_atomic_uint32 failsafe;	/* is it on, as far as someone has noticed? */
	Oid			relid;			/* these never change */
	int			leader;			/* its slot */
	char		padding[PG_CACHE_LINE_SIZE];

	/* written by all */
	pg_atomic_uint64 paid_until;
	pg_atomic_uint64 spent;		/* cost */
	pg_atomic_uint64 slept;		/* ns */
	pg_atomic_uint32 at_work;	/* processes */
	pg_atomic_uint32 in_server_code;	/* so many of them */
	pg_atomic_uint64 next_tick;
	pg_atomic_uint32 ticking;	/* is someone in the middle of it? */

	/* written by whoever ticks */
	PaceControl control;
};

/* This process's view of the budget */
typedef struct Pace
{
	PaceShared *shared;			/* NULL: this process isn't vacuuming */
	uint32		version;		/* of the settings below */
	PaceSettings settings;
	double		rate;			/* cost a second; INFINITY if unbounded */
	uint64		least_nap;		/* ns */
	double		greatest_cost;	/* to be paid for in one go */
	int			charge;			/* look at the budget when so much is due */
	bool		at_work;
	volatile bool in_server_code;
	BufferUsage usage;			/* as far as it is accounted for */
} Pace;

/* The command that this process leads */
typedef struct PaceCommand
{
	bool		is_running;
	bool		has_target;		/* as an option, which overrides the setting */
	double		target;
	bool		reload_owed;	/* to the server, which was told to */
	int			page_hit;		/* the parameters, to be put back */
	int			page_miss;
	int			page_dirty;
	PaceSettings settings_at_start; /* the parameters' */
	PaceSettings settings;		/* in force */
	bool		has_control;
	PaceControl control;
} PaceCommand;

static Pace pace;
static PaceCommand command;
static PaceSlot *slots = NULL;	/* MaxBackends of them, by leader */
static TimeoutId server_code_timeout;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void prepare_process(void);
static bool is_leader(void);
static void publish_settings(const PaceSettings *settings);
static void take_settings(void);
static void tell_server_code(void);
static void account_for_server_code(void);
static void tick_in_server_code(void);
static void reload_settings(void);
static bool has_target(const PaceSettings *settings);
static void charge_cost(int64 cost);
static void nap(uint64 until);
static void tick_if_due(uint64 now);
static void tick(uint64 now);
static double control(PaceShared *shared, double seconds, double rate, double awake);
static void read_window(PaceShared *shared);
static void tell_target(PaceShared *shared);
static void show(const PaceShared *shared, double rate, double asleep, double latency_ms);
static PaceLimit find_limit(const PaceShared *shared, double of_settings);
static double rate_of_settings(const PaceSettings *settings);
static void warn_if_out_of_reach(void);
static void clear_at_exit(int code, Datum arg);
static void request_shmem(void);
static void startup_shmem(void);
static void write_double(pg_atomic_uint64 *place, double value);
static double read_double(pg_atomic_uint64 *place);

PG_FUNCTION_INFO_V1(pg_cyclone_pace);

/*
 * pace_init
 *		Ask for shared memory.  Call while the library is preloaded.
 */
void
pace_init(void)
{
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

/*
 * pace_begin_command
 *		A VACUUM begins, with this latency target (in ms, or a special value)
 *		unless it is NULL: then it is as the settings say.
 */
void
pace_begin_command(const double *latency_target)
{
	prepare_process();
	latency_prepare();

	memset(&command, 0, sizeof(command));
	command.is_running = true;
	if (latency_target != NULL)
	{
		command.has_target = true;
		command.target = *latency_target;
	}
	command.page_hit = VacuumCostPageHit;
	command.page_miss = VacuumCostPageMiss;
	command.page_dirty = VacuumCostPageDirty;

	pace_settings_current(&command.settings_at_start);
	command.settings = command.settings_at_start;
	if (command.has_target)
		command.settings.latency_target = command.target;
	if (has_target(&command.settings))
		latency_watch();
}

/*
 * pace_end_command
 *		It has ended, or failed; harmless if it never began.
 */
void
pace_end_command(void)
{
	if (!command.is_running)
		return;
	command.is_running = false;
	if (pace.in_server_code)
		disable_timeout(server_code_timeout, false);
	pace.in_server_code = false;
	pace.shared = NULL;
	latency_unwatch();
	pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);

	VacuumCostPageHit = command.page_hit;
	VacuumCostPageMiss = command.page_miss;
	VacuumCostPageDirty = command.page_dirty;
	if (command.reload_owed)
		ConfigReloadPending = true;
	command.reload_owed = false;
}

/*
 * pace_write_steadily
 *		With a latency target, have the kernel write what we write soon.
 *
 * It would gather that for half a minute, and then write so much at once that
 * commits of others wait: what the vacuum does must show in their latency while
 * it does it, or it can't be held back.  Undone with the caller's nest level of
 * settings; workers that are launched from now on do the same.
 */
void
pace_write_steadily(void)
{
	if (has_target(&command.settings) && backend_flush_after == 0)
		(void) set_config_option("backend_flush_after", FLUSH_AFTER, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
}

/* pace_shared_size -- how big the shared block is. */
Size
pace_shared_size(void)
{
	return sizeof(PaceShared);
}

/*
 * pace_create
 *		The leader initializes the shared block, which is zeroed, for a table.
 */
void
pace_create(PaceShared *shared, Oid relid)
{
	PaceSlot   *slot = &slots[MyProcNumber];

	pg_atomic_init_u32(&shared->version, 0);
	pg_atomic_init_u32(&shared->cost_limit, 0);
	pg_atomic_init_u32(&shared->page_hit, 0);
	pg_atomic_init_u32(&shared->page_miss, 0);
	pg_atomic_init_u32(&shared->page_dirty, 0);
	pg_atomic_init_u64(&shared->cost_delay, 0);
	pg_atomic_init_u64(&shared->latency_target, 0);
	pg_atomic_init_u64(&shared->latency_percentile, 0);
	pg_atomic_init_u32(&shared->latency_of, 0);
	pg_atomic_init_u64(&shared->budget, 0);
	pg_atomic_init_u32(&shared->failsafe, VacuumFailsafeActive);
	pg_atomic_init_u64(&shared->paid_until, 0);
	pg_atomic_init_u64(&shared->spent, 0);
	pg_atomic_init_u64(&shared->slept, 0);
	pg_atomic_init_u32(&shared->at_work, 0);
	pg_atomic_init_u32(&shared->in_server_code, 0);
	pg_atomic_init_u64(&shared->next_tick, 0);
	pg_atomic_init_u32(&shared->ticking, 0);
	shared->relid = relid;
	shared->leader = MyProcNumber;

	if (command.has_control)
		shared->control = command.control;
	else
	{
		controller_init(&shared->control.controller, 0);
		shared->control.told_target = LATENCY_TARGET_OFF;
		shared->control.tick_time = now_ns();
		shared->control.next_tick = shared->control.tick_time + NS_A_TICK;
	}
	write_double(&shared->budget, shared->control.controller.budget);
	pg_atomic_write_u64(&shared->next_tick, shared->control.next_tick);
	pg_atomic_write_u64(&shared->paid_until, now_ns());

	pg_atomic_write_u32(&slot->user_id, GetSessionUserId());
	pg_atomic_write_u32(&slot->database, MyDatabaseId);
	pg_atomic_write_u32(&slot->relid, relid);

	pace.shared = shared;
	publish_settings(&command.settings);
	pace_join(shared);
	tell_target(shared);
	show(shared, 0, 0, NAN);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->pid, MyProcPid);
}

/*
 * pace_join
 *		This process keeps to the budget from now on.
 */
void
pace_join(PaceShared *shared)
{
	prepare_process();
	pace.shared = shared;
	VacuumCostBalance = 0;
	/* the server's way of sharing a budget isn't ours */
	VacuumSharedCostBalance = NULL;
	VacuumActiveNWorkers = NULL;
	take_settings();
}

/*
 * pace_leave
 *		This process is done with the table.
 */
void
pace_leave(void)
{
	if (pace.shared == NULL)
		return;
	if (is_leader())
	{
		command.has_control = true;
		command.control = pace.shared->control;
		command.control.next_tick = pg_atomic_read_u64(&pace.shared->next_tick);
		/*
		 * What it has cost since the last tick goes into the next one: the
		 * counters begin at zero then, and these, unsigned, below it.
		 */
		command.control.spent -= pg_atomic_read_u64(&pace.shared->spent);
		command.control.slept -= pg_atomic_read_u64(&pace.shared->slept);
		pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);
	}
	pace.shared = NULL;
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
	result->was_paced = VacuumCostActive;
	result->slept_seconds = (double) pg_atomic_read_u64(&pace.shared->slept) / NS_PER_S;
	result->has_latency_target = has_target(&pace.settings);
	result->latency_target_ms = pace.shared->control.controller.target_ms;
}

/* pace_begin_work -- this process takes part in a phase. */
void
pace_begin_work(void)
{
	pg_atomic_fetch_add_u32(&pace.shared->at_work, 1);
	pace.at_work = true;
}

/* pace_end_work -- it is through with it. */
void
pace_end_work(void)
{
	pg_atomic_fetch_sub_u32(&pace.shared->at_work, 1);
	pace.at_work = false;
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
	if (pace.shared == NULL)
		return;
	pg_atomic_write_u32(&pace.shared->failsafe, 1);
	show(pace.shared, 0, 0, NAN);
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
		reload_settings();
	if (unlikely(pg_atomic_read_u32(&pace.shared->version) != pace.version))
		take_settings();
	if (VacuumCostActive && VacuumCostBalance >= pace.charge)
	{
		int64		cost = VacuumCostBalance;

		VacuumCostBalance = 0;
		charge_cost(cost);
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
		reload_settings();
	if (VacuumCostActive && !VacuumFailsafeActive)
		tick_if_due(now_ns());
	warn_if_out_of_reach();
}

/*
 * pace_begin_server_code
 *		This process is about to run a routine that calls the server's own
 *		delay point.
 */
void
pace_begin_server_code(void)
{
	pg_atomic_fetch_add_u32(&pace.shared->in_server_code, 1);
	pace.usage = pgBufferUsage;
	tell_server_code();
	pace.in_server_code = true;
	enable_timeout_every(server_code_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SERVER_CODE_TICK_MS),
						 SERVER_CODE_TICK_MS);
}

/*
 * pace_in_server_code
 *		It is in there; call often.
 *
 * A lock on a page may be held, and it isn't nice to read files then; but it
 * is for once, when someone has asked for it, and there is no other chance.
 */
void
pace_in_server_code(void)
{
	if (unlikely(ConfigReloadPending))
		reload_settings();
}

/* pace_end_server_code -- it has returned. */
void
pace_end_server_code(void)
{
	disable_timeout(server_code_timeout, false);
	pace.in_server_code = false;
	account_for_server_code();
	pg_atomic_fetch_sub_u32(&pace.shared->in_server_code, 1);
	VacuumCostBalance = 0;
	warn_if_out_of_reach();
}

/*
 * pg_cyclone_pace
 *		The rows of cyclone.pace.  As in cyclone.progress, who may not see the
 *		statistics of the command's user sees only that it runs.
 */
Datum
pg_cyclone_pace(PG_FUNCTION_ARGS)
{
	static const char *const limit_names[] = {
		"nothing", "cost delay", "latency target", "learning the target",
		"floor", "nothing (failsafe)",
	};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);

	for (int i = 0; slots != NULL && i < MaxBackends; i++)
	{
		PaceSlot   *slot = &slots[i];
		uint32		pid = pg_atomic_read_u32(&slot->pid);
		Oid			user_id;
		Datum		values[PACE_COLUMNS] = {0};
		bool		nulls[PACE_COLUMNS] = {0};
		int			column = 0;

		if (pid == 0)
			continue;
		pg_read_barrier();

		user_id = pg_atomic_read_u32(&slot->user_id);
		values[column++] = Int32GetDatum(pid);
		values[column++] = ObjectIdGetDatum(pg_atomic_read_u32(&slot->database));
		if (has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
			has_privs_of_role(GetUserId(), user_id))
		{
			pg_atomic_uint64 *const numbers[] = {
				&slot->target_ms, &slot->percentile, &slot->latency_ms,
				&slot->budget, &slot->rate, &slot->asleep,
			};

			values[column++] = ObjectIdGetDatum(pg_atomic_read_u32(&slot->relid));
			for (int k = 0; k < lengthof(numbers); k++, column++)
			{
				double		number = read_double(numbers[k]);

				nulls[column] = isnan(number);
				values[column] = Float8GetDatum(number);
			}
			/* of what, if it is about a latency */
			nulls[column] = nulls[column - lengthof(numbers) + 1];
			values[column++] = CStringGetTextDatum(cyclone_latency_of_options[pg_atomic_read_u32(&slot->latency_of)].name);
			values[column++] = CStringGetTextDatum(limit_names[pg_atomic_read_u32(&slot->limited_by)]);
			values[column++] = ObjectIdGetDatum(user_id);
		}
		else
			while (column < PACE_COLUMNS)
				nulls[column++] = true;

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * prepare_process
 *		Do once in each process what can't be done in the middle of a command,
 *		nor be taken back.
 */
static void
prepare_process(void)
{
	static bool is_prepared = false;

	if (is_prepared)
		return;
	before_shmem_exit(clear_at_exit, (Datum) 0);
	server_code_timeout = RegisterTimeout(USER_TIMEOUT, tick_in_server_code);
	is_prepared = true;
}

/* is_leader -- does this process lead the vacuum that it takes part in? */
static bool
is_leader(void)
{
	return command.is_running;
}

/* publish_settings -- the leader tells all which settings are in force. */
static void
publish_settings(const PaceSettings *settings)
{
	PaceShared *shared = pace.shared;

	pg_atomic_write_u32(&shared->cost_limit, settings->cost_limit);
	pg_atomic_write_u32(&shared->page_hit, settings->page_hit);
	pg_atomic_write_u32(&shared->page_miss, settings->page_miss);
	pg_atomic_write_u32(&shared->page_dirty, settings->page_dirty);
	write_double(&shared->cost_delay, settings->cost_delay);
	write_double(&shared->latency_target, settings->latency_target);
	write_double(&shared->latency_percentile, settings->latency_percentile);
	pg_atomic_write_u32(&shared->latency_of, settings->latency_of);
	pg_atomic_fetch_add_u32(&shared->version, 1);
}

/*
 * take_settings
 *		Work out what the settings and the budget in force mean for this process.
 */
static void
take_settings(void)
{
	PaceShared *shared = pace.shared;
	PaceSettings *settings = &pace.settings;
	double		budget;
	int			at_work = Max(pg_atomic_read_u32(&shared->at_work), 1);

	pace.version = pg_atomic_read_u32(&shared->version);
	pg_read_barrier();

	settings->cost_limit = pg_atomic_read_u32(&shared->cost_limit);
	settings->page_hit = pg_atomic_read_u32(&shared->page_hit);
	settings->page_miss = pg_atomic_read_u32(&shared->page_miss);
	settings->page_dirty = pg_atomic_read_u32(&shared->page_dirty);
	settings->cost_delay = read_double(&shared->cost_delay);
	settings->latency_target = read_double(&shared->latency_target);
	settings->latency_percentile = read_double(&shared->latency_percentile);
	settings->latency_of = pg_atomic_read_u32(&shared->latency_of);
	VacuumCostPageHit = settings->page_hit;
	VacuumCostPageMiss = settings->page_miss;
	VacuumCostPageDirty = settings->page_dirty;

	pace.rate = rate_of_settings(settings);
	pace.least_nap = LEAST_NAP_NS;
	pace.greatest_cost = (double) settings->cost_limit * GREATEST_OVERRUN;
	budget = has_target(settings) ? read_double(&shared->budget) : INFINITY;
	if (budget < pace.rate)
	{
		pace.rate = budget;
		pace.least_nap = LEAST_NAP_WITH_TARGET_NS;
		/* at least a page, whatever it costs */
		pace.greatest_cost = settings->page_hit + settings->page_miss + settings->page_dirty;
		pace.greatest_cost = Max(pace.greatest_cost, LEAST_COST_A_NAP);
		pace.greatest_cost = Max(pace.greatest_cost, budget * SECONDS_A_NAP) * GREATEST_OVERRUN;
	}
	pace.charge = GREATEST_CHARGE;
	if (!isinf(pace.rate))
	{
		double		a_nap = pace.rate * pace.least_nap / NS_PER_S / at_work;

		pace.charge = (int) Min(Max(a_nap / CHARGES_A_NAP, LEAST_CHARGE), GREATEST_CHARGE);
	}

	/* with a target, even if nothing bounds it now, what it costs is counted */
	if (!VacuumFailsafeActive)
		VacuumCostActive = !isinf(pace.rate) || has_target(settings);
}

/*
 * tell_server_code
 *		Have the server's delay point give this process its share.
 */
static void
tell_server_code(void)
{
	int			at_work = Max(pg_atomic_read_u32(&pace.shared->at_work), 1);

	if (isinf(pace.rate))
	{
		vacuum_cost_limit = UNBOUNDED_LIMIT;
		vacuum_cost_delay = UNBOUNDED_DELAY;
	}
	else
	{
		vacuum_cost_limit = Max(Min(pace.greatest_cost / GREATEST_OVERRUN, UNBOUNDED_LIMIT), 1);
		vacuum_cost_delay = vacuum_cost_limit / pace.rate * 1000 * at_work;
	}
}

/* account_for_server_code -- add what the server's code has cost since. */
static void
account_for_server_code(void)
{
	int64		cost = (pgBufferUsage.shared_blks_hit - pace.usage.shared_blks_hit) * VacuumCostPageHit +
		(pgBufferUsage.shared_blks_read - pace.usage.shared_blks_read) * VacuumCostPageMiss +
		(pgBufferUsage.shared_blks_dirtied - pace.usage.shared_blks_dirtied) * VacuumCostPageDirty;

	pace.usage = pgBufferUsage;
	pg_atomic_fetch_add_u64(&pace.shared->spent, cost);
}

/*
 * tick_in_server_code
 *		The timer's signal handler: adapt the server's delay point.
 */
static void
tick_in_server_code(void)
{
	if (!pace.in_server_code || VacuumFailsafeActive)
		return;
	if (pg_atomic_read_u32(&pace.shared->version) != pace.version)
		take_settings();
	account_for_server_code();
	if (VacuumCostActive)
		tick_if_due(now_ns());
	tell_server_code();
}

/*
 * reload_settings
 *		The server was told to reload its files.
 *
 * Only the leader hears of it.  The reload itself is due after the command.
 */
static void
reload_settings(void)
{
	if (!is_leader())
		return;

	ConfigReloadPending = false;
	command.reload_owed = true;
	command.settings = command.settings_at_start;
	pace_settings_reread(&command.settings);
	if (command.has_target)
		command.settings.latency_target = command.target;

	if (has_target(&command.settings))
		latency_watch();
	else
		latency_unwatch();
	publish_settings(&command.settings);
	take_settings();
	/* if nothing bounds it any more, no tick will */
	show(pace.shared, NAN, 0, NAN);
}

/* has_target -- is there a latency target, given or to be learned? */
static bool
has_target(const PaceSettings *settings)
{
	return settings->latency_target != LATENCY_TARGET_OFF;
}

/*
 * charge_cost
 *		Account for what this process has cost, and sleep until it is paid for.
 */
static void
charge_cost(int64 cost)
{
	PaceShared *shared = pace.shared;
	uint64		now = now_ns();
	uint64		paid_until,
				until;
	uint64		price;
	uint32		at_work,
				in_server_code;

	pg_atomic_fetch_add_u64(&shared->spent, cost);
	tick_if_due(now);
	warn_if_out_of_reach();
	if (pg_atomic_read_u32(&shared->version) != pace.version)
		take_settings();
	if (isinf(pace.rate))
		return;

	price = Min(cost, pace.greatest_cost) / pace.rate * NS_PER_S;
	/* those in the server's code take their share on their own */
	in_server_code = pg_atomic_read_u32(&shared->in_server_code);
	if (in_server_code > 0)
	{
		at_work = pg_atomic_read_u32(&shared->at_work);
		price = price * at_work / Max((int64) at_work - in_server_code, 1);
	}

	paid_until = pg_atomic_read_u64(&shared->paid_until);
	do
	{
		until = Max(paid_until, now - CREDIT_NS) + price;
	} while (!pg_atomic_compare_exchange_u64(&shared->paid_until, &paid_until, until));

	if (until >= now + pace.least_nap)
		nap(until);
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
	uint32		version = pace.version;

	while (now < until)
	{
		uint64		start = now;
		long		ms = Min((until - now + NS_PER_MS - 1) / NS_PER_MS, LONGEST_NAP_MS);

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, WAIT_EVENT_VACUUM_DELAY);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();

		now = now_ns();
		pg_atomic_fetch_add_u64(&pace.shared->slept, now - start);
		compat_report_delay(now - start);
		if (ConfigReloadPending)
			reload_settings();
		if (pg_atomic_read_u32(&pace.shared->version) != pace.version)
			take_settings();
		tick_if_due(now);
		if (pg_atomic_read_u32(&pace.shared->version) != pace.version)
			take_settings();
		warn_if_out_of_reach();
		if (pace.version != version)
			break;
	}
}

/* tick_if_due -- measure and control, unless it was done a moment ago. */
static void
tick_if_due(uint64 now)
{
	PaceShared *shared = pace.shared;
	uint64		due = pg_atomic_read_u64(&shared->next_tick);
	uint32		nobody = 0;

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
 *		Measure, and move the budget.  Raises no error, as the others would wait
 *		for this process to end it.
 */
static void
tick(uint64 now)
{
	PaceShared *shared = pace.shared;
	PaceControl *state = &shared->control;
	uint64		spent = pg_atomic_read_u64(&shared->spent);
	uint64		slept = pg_atomic_read_u64(&shared->slept);
	double		seconds = (double) (now - state->tick_time) / NS_PER_S;
	double		rate,
				asleep,
				latency_ms = NAN;
	int			at_work = Max(pg_atomic_read_u32(&shared->at_work), 1);

	if (now <= state->tick_time)
		return;
	rate = (spent - state->spent) / seconds;
	asleep = (slept - state->slept) / seconds / NS_PER_S / at_work;
	state->spent = spent;
	state->slept = slept;
	state->tick_time = now;

	tell_target(shared);
	if (has_target(&pace.settings))
	{
		read_window(shared);
		if (seconds < GAP_SECONDS)
			latency_ms = control(shared, Min(seconds, LONGEST_STEP), rate, Max(1 - asleep, 0) * at_work);
		else
			memset(state->window, 0, sizeof(state->window));
	}
	show(shared, rate, Min(asleep, 1), latency_ms);
}

/*
 * read_window
 *		Add the statements, or transactions, since the last tick to the window.
 */
static void
read_window(PaceShared *shared)
{
	static uint32 counts[LATENCY_BUCKETS];
	PaceControl *state = &shared->control;
	double		total = 0;
	double		fading;

	for (int i = 0; i < LATENCY_BUCKETS; i++)
		total += state->window[i];
	fading = total < WINDOW_IS_SPARSE ? WINDOW_FADING_SPARSE :
		total > WINDOW_IS_DENSE ? WINDOW_FADING_DENSE : WINDOW_FADING;

	/* in the midst of a transaction its session isn't idle */
	state->is_busy = false;
	if (pace.settings.latency_of != LATENCY_OF_STATEMENTS)
	{
		uint32		all = 0;

		latency_read(LATENCY_OF_STATEMENTS, counts);
		for (int i = 0; i < LATENCY_BUCKETS; i++)
			all += counts[i];
		state->is_busy = all != state->all_statements;
		state->all_statements = all;
	}

	latency_read(pace.settings.latency_of, counts);
	state->statements = 0;
	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		uint32		grown = counts[i] - state->counts[i];

		state->counts[i] = counts[i];
		state->window[i] = state->window[i] * fading + grown;
		state->statements += grown;
	}
}

/*
 * control
 *		Move the budget by what statements have taken; return their percentile.
 */
static double
control(PaceShared *shared, double seconds, double rate, double awake)
{
	static float window[LATENCY_BUCKETS];
	PaceControl *state = &shared->control;
	Controller *controller = &state->controller;
	ControllerInput input = {
		.seconds = seconds,
		.rate = rate,
		.awake = awake,
		.percent = pace.settings.latency_percentile,
		.statements = state->statements,
	};

	/* those that are late are in the window only for now */
	memcpy(window, state->window, sizeof(window));
	if (controller->target_ms > 0)
		input.statements += latency_add_running(pace.settings.latency_of, controller->target_ms,
												Max(LONG_STATEMENT_MS, 10 * controller->target_ms),
												window);
	if (state->is_busy)
		input.statements = Max(input.statements, LEAST_PRESENCE);
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		input.samples += window[i];
	input.percentile_ms = latency_percentile(window, input.percent);

	controller_step(controller, &input);
	if (controller->forget_window)
		memset(state->window, 0, sizeof(state->window));
	if (controller->budget != read_double(&shared->budget))
	{
		write_double(&shared->budget, controller->budget);
		pg_atomic_fetch_add_u32(&shared->version, 1);
	}
	return input.percentile_ms;
}

/* tell_target -- tell the controller of the target, if it or what it is about has changed. */
static void
tell_target(PaceShared *shared)
{
	PaceControl *state = &shared->control;
	double		target = pace.settings.latency_target;
	double		percentile = pace.settings.latency_percentile;
	int			of = pace.settings.latency_of;

	if (target == state->told_target && percentile == state->told_percentile && of == state->told_of)
		return;
	/* nobody may have looked at them for long */
	if (state->told_target == LATENCY_TARGET_OFF || of != state->told_of)
	{
		latency_read(of, state->counts);
		memset(state->window, 0, sizeof(state->window));
	}
	if (of != state->told_of)
		controller_forget_load(&state->controller);
	state->told_target = target;
	state->told_percentile = percentile;
	state->told_of = of;
	if (target != LATENCY_TARGET_OFF)
		controller_set_target(&state->controller,
							  target == LATENCY_TARGET_AUTO ? 0 : target);
}

/* show -- fill in what the view shows. */
static void
show(const PaceShared *shared, double rate, double asleep, double latency_ms)
{
	PaceSlot   *slot = &slots[shared->leader];
	double		of_settings = rate_of_settings(&pace.settings);
	double		target = NAN,
				budget = of_settings;

	if (has_target(&pace.settings))
	{
		if (shared->control.controller.target_ms > 0)
			target = shared->control.controller.target_ms;
		budget = Min(budget, shared->control.controller.budget);
	}
	write_double(&slot->target_ms, target);
	write_double(&slot->percentile,
				 has_target(&pace.settings) ? pace.settings.latency_percentile : NAN);
	pg_atomic_write_u32(&slot->latency_of, pace.settings.latency_of);
	write_double(&slot->latency_ms, latency_ms);
	write_double(&slot->budget, isinf(budget) ? NAN : budget);
	write_double(&slot->rate, VacuumCostActive ? rate : NAN);
	write_double(&slot->asleep, asleep);
	pg_atomic_write_u32(&slot->limited_by, find_limit(shared, of_settings));
}

/* find_limit -- what keeps the vacuum from going faster? */
static PaceLimit
find_limit(const PaceShared *shared, double of_settings)
{
	if (pg_atomic_read_u32(&pace.shared->failsafe))
		return PACE_LIMIT_FAILSAFE;
	if (has_target(&pace.settings) && shared->control.controller.budget < of_settings)
	{
		switch (shared->control.controller.limit)
		{
			case LIMIT_NOTHING:
				return PACE_LIMIT_NOTHING;
			case LIMIT_LATENCY:
				return PACE_LIMIT_LATENCY;
			case LIMIT_LEARNING:
				return PACE_LIMIT_LEARNING;
			case LIMIT_FLOOR:
				return PACE_LIMIT_FLOOR;
		}
	}
	return isinf(of_settings) ? PACE_LIMIT_NOTHING : PACE_LIMIT_COST_DELAY;
}

/* rate_of_settings -- the budget of cost-based delay, in cost a second. */
static double
rate_of_settings(const PaceSettings *settings)
{
	return settings->cost_delay > 0 ?
		settings->cost_limit / settings->cost_delay * 1000 : INFINITY;
}

/* warn_if_out_of_reach -- say so once a command, in whichever process. */
static void
warn_if_out_of_reach(void)
{
	PaceShared *shared = pace.shared;

	/* from other workers the client hears nothing */
	if (!is_leader() && !IsParallelWorker())
		return;
	if (shared->control.has_warned || !has_target(&pace.settings) ||
		!controller_target_is_out_of_reach(&shared->control.controller))
		return;
	shared->control.has_warned = true;
	ereport(WARNING,
			(errmsg("latency target of %g ms is missed although VACUUM hardly moves",
					shared->control.controller.target_ms),
			 errdetail("The %gth percentile of the latency of %s stays above it for reasons other than this VACUUM, which goes on at its slowest pace.",
					   pace.settings.latency_percentile,
					   cyclone_latency_of_options[pace.settings.latency_of].name),
			 errhint("Set \"cyclone.latency_target\" to \"auto\" or to a higher value; a running VACUUM notices if it is set in postgresql.conf and reloaded.")));
}

/*
 * clear_at_exit
 *		A process that dies leaves no row behind, and its timer doesn't touch
 *		what is no longer there.  A worker doesn't count as being at work.
 */
static void
clear_at_exit(int code, Datum arg)
{
	pace.in_server_code = false;
	if (pace.at_work && pace.shared != NULL && !is_leader())
		pace_end_work();
	pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);
}

/* request_shmem -- how much shared memory the slots need. */
static void
request_shmem(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(mul_size(sizeof(PaceSlot), MaxBackends));
}

/* startup_shmem -- find the slots, or make them. */
static void
startup_shmem(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	slots = ShmemInitStruct("pg_cyclone pace", mul_size(sizeof(PaceSlot), MaxBackends), &found);
	for (int i = 0; !found && i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&slots[i].pid, 0);
		pg_atomic_init_u32(&slots[i].user_id, InvalidOid);
		pg_atomic_init_u32(&slots[i].database, InvalidOid);
		pg_atomic_init_u32(&slots[i].relid, InvalidOid);
		pg_atomic_init_u32(&slots[i].limited_by, PACE_LIMIT_NOTHING);
		pg_atomic_init_u32(&slots[i].latency_of, LATENCY_OF_STATEMENTS);
		pg_atomic_init_u64(&slots[i].target_ms, 0);
		pg_atomic_init_u64(&slots[i].percentile, 0);
		pg_atomic_init_u64(&slots[i].latency_ms, 0);
		pg_atomic_init_u64(&slots[i].budget, 0);
		pg_atomic_init_u64(&slots[i].rate, 0);
		pg_atomic_init_u64(&slots[i].asleep, 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* write_double -- atomically. */
static void
write_double(pg_atomic_uint64 *place, double value)
{
	uint64		bits;

	memcpy(&bits, &value, sizeof(bits));
	pg_atomic_write_u64(place, bits);
}

/* read_double -- likewise. */
static double
read_double(pg_atomic_uint64 *place)
{
	uint64		bits = pg_atomic_read_u64(place);
	double		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}
