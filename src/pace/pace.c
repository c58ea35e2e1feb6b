/*-------------------------------------------------------------------------
 *
 * pace.c
 *	  How fast a vacuum may go: cost-based delay, with one budget for all of
 *	  its processes, and the latency target that moves the budget.
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
 * In the vacuum routines of other index types the server's own delay point is
 * called.  Processes that are in there (pace_begin_server_code) have its
 * settings adjusted so that each takes its share of the budget, and the others
 * leave them that share.  A timer keeps these settings up to date.
 *
 * Ticks
 * -----
 * A few times a second one of the processes, whichever comes first, measures
 * what the vacuum costs, for the view (tick), and likewise sees to its target.
 * No process has this for a duty, so that the pace is kept while any of them is
 * at work, or the leader waits for it.  As a tick may come from the timer's
 * signal handler, it takes no lock, allocates no memory and raises no error.
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
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "postmaster/autovacuum.h"
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
#include "debug_point.h"
#include "declared_rows.h"
#include "pace/clock.h"
#include "pace/latency.h"
#include "pace/neighbours.h"
#include "pace/pace.h"
#include "pace/pace_settings.h"
#include "pace/parking.h"
#include "pace/priority.h"
#include "pace/target.h"

/* In the server's code, not so often: it cuts the nap short that it is in. */
#define SERVER_CODE_TICK_MS 500

/*
 * It is no use to sleep for less, nor good to sleep for longer at a time.  Who
 * wakes up may take the core from somebody, so with a target that is done less
 * often.  What that alone is worth has not been measured.
 */
#define LEAST_NAP_NS		((uint64) NS_PER_MS)
#define LEAST_NAP_WITH_TARGET_NS (5 * (uint64) NS_PER_MS)
/*
 * What one process costs a second without any delay, about: 5 million for 5
 * million rows with two indexes, in 2.5 s by two processes (2 cores).
 */
#define COST_OF_A_PROCESS	1e6
/* Under a budget no more blocks are taken at a time: a cost of ten thousand or so. */
#define GREATEST_PIECE		512
/* Every so many pages the leader looks at the clock, if it is time to look around. */
#define CALLS_A_LOOK		16
/* Who can't use this part of a budget in the server's code needs help. */
#define STARVED_TIMES		2
/* In the time of the least nap the budget is looked at twice, to be exact. */
#define CHARGES_A_NAP		2
#define LONGEST_NAP_MS		100

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

/* backend_flush_after, as bgwriter_flush_after is by default, but twice as often */
#define FLUSH_AFTER			"256kB"

#define PACE_COLUMNS		13

/* What the view shows of a vacuum; written by whoever ticks. */
typedef struct PaceSlot
{
	pg_atomic_uint32 pid;		/* of the leader; 0 if the slot is not in use */
	pg_atomic_uint32 user_id;
	pg_atomic_uint32 database;
	pg_atomic_uint32 relid;
	pg_atomic_uint32 limited_by;	/* PaceLimit */
	pg_atomic_uint32 latency_of;	/* LatencyOf */
	pg_atomic_uint32 shared_by; /* so many VACUUMs have the target */
	/* doubles, NaN for null */
	pg_atomic_uint64 target_ms;
	pg_atomic_uint64 percentile;
	pg_atomic_uint64 latency_ms;
	pg_atomic_uint64 budget;
	pg_atomic_uint64 rate;
	pg_atomic_uint64 asleep;
} PaceSlot;

/* Pages, by what was done with them */
typedef struct PageCounts
{
	int64		hit;
	int64		miss;
	int64		dirty;
} PageCounts;

typedef enum PaceLimit
{
	PACE_LIMIT_NOTHING,
	PACE_LIMIT_COST_DELAY,
	PACE_LIMIT_LATENCY,
	PACE_LIMIT_LEARNING,
	PACE_LIMIT_FLOOR,
	PACE_LIMIT_FAILSAFE,
} PaceLimit;

struct PaceShared
{
	/* written by the leader; then version */
	pg_atomic_uint32 version;
	pg_atomic_uint32 cost_limit;
	pg_atomic_uint32 page_hit;
	pg_atomic_uint32 page_miss;
	pg_atomic_uint32 page_dirty;
	pg_atomic_uint64 cost_delay;	/* ms; a double, like the following ones */
	pg_atomic_uint64 latency_target;
	pg_atomic_uint64 latency_percentile;
	pg_atomic_uint32 latency_of;
	pg_atomic_uint32 target;	/* its number plus one; 0: none */
	pg_atomic_uint32 failsafe;	/* is it on, as far as someone has noticed? */
	bool		in_a_hurry;		/* these never change: does no budget count? */
	Oid			relid;
	int			leader;			/* its slot */
	char		padding[PG_CACHE_LINE_SIZE];

	/* written by all */
	pg_atomic_uint64 paid_until;	/* of the settings' budget */
	pg_atomic_uint64 spent;		/* cost by the settings */
	pg_atomic_uint64 target_cost;	/* cost to a latency target, if there is
									 * one or not */
	pg_atomic_uint64 slept;		/* ns */
	pg_atomic_uint32 at_work;	/* processes */
	pg_atomic_uint32 in_server_code;	/* so many of them */
	pg_atomic_uint64 next_tick;
	pg_atomic_uint32 ticking;	/* is someone in the middle of it? */

	pg_atomic_uint32 has_warned;	/* that the target is out of reach */

	Parking		parking;		/* of its workers, if it may have any */

	/* written by whoever ticks, and with the settings */
	pg_atomic_uint64 exchange;	/* a double: by the settings, what costs a
								 * target 1 */
	/* written by whoever ticks */
	uint64		tick_time;
	uint64		spent_before;
	uint64		target_cost_before;
	uint64		slept_before;
};

/* This process's view of the budget */
typedef struct Pace
{
	PaceShared *shared;			/* NULL: this process isn't vacuuming */
	uint32		version;		/* of the settings below */
	PaceSettings settings;
	LatencyTarget *target;		/* NULL: none */
	uint32		target_version; /* of its budget below */
	double		rate_of_settings;	/* cost a second; INFINITY if unbounded */
	double		rate_of_target;
	double		greatest_cost;	/* by the settings, to be paid for in one go */
	double		greatest_target_cost;	/* likewise, to the target */
	int			charge;			/* look at the budgets when so much is due */
	uint32		calls;			/* of the delay point */
	bool		at_work;
	volatile bool in_server_code;
	volatile bool keeps_timer_out;	/* while it changes what the timer would */
	PageCounts	accounted;		/* of this process so far, and accounted for */
	PageCounts	mix;			/* of late */
} Pace;

/* The command that this process leads */
typedef struct PaceCommand
{
	bool		is_running;
	bool		in_a_hurry;		/* no budget counts */
	bool		has_target;		/* as an option, which overrides the setting */
	double		target;
	bool		reload_owed;	/* to the server, which was told to */
	PaceParameters parameters;	/* to be put back */
	PaceSettings settings_at_start; /* the parameters' */
	PaceSettings settings;		/* in force */
	LatencyTarget *latency_target;	/* NULL: none */
	TimestampTz statement;		/* in which it is run, maybe one of many */
	bool		has_warned;		/* in there, that it is out of reach */
	void		(*launch) (void *); /* workers; NULL: there are none to launch */
	void	   *launch_argument;
	bool		workers_asked_for;	/* by PARALLEL n, for the table in hand */
} PaceCommand;

static Pace pace;
static PaceCommand command;
static PaceSummary summary;
static volatile sig_atomic_t reload_was_hidden = false;
static PaceSlot *slots = NULL;	/* MaxBackends of them, by leader */
static int64 pages_written = 0; /* by this process, past shared buffers */
static TimeoutId server_code_timeout;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void add_to_summary(void);
static void prepare_process(void);
static bool is_leader(void);
static void publish_settings(const PaceSettings *settings);
static void change_target(void);
static void leave_target(void);
static void take_settings(void);
static void take_target(uint32 number);
static bool settings_have_changed(void);
static void bound_team(void);
static void launch_workers(void);
static void look_around(uint64 now);
static void make_room(void);
static void set_page_costs(bool of_target);
static int	charge_for_a_nap(double rate, uint64 least_nap, double at_work);
static double dearest_page(const PaceSettings *settings);
static void tell_server_code(void);
static bool target_is_tighter(int at_work, int at_work_for_target);
static void count_pages(PageCounts *pages);
static int64 cost_by_settings(const PageCounts *pages);
static int64 cost_to_target(const PageCounts *pages);
static void account(int64 *cost, int64 *target_cost);
static void tick_in_server_code(void);
static void reload_settings(void);
static void hide_reloads(void);
static void show_reloads(void);
static void note_hidden_reload(SIGNAL_ARGS);
static void adapt_settings(PaceSettings *settings);
static void rebalance(void);
static bool has_target(const PaceSettings *settings);
static void pay_for_pages(void);
static double share_of_others(int at_work, int in_server_code);
static void nap(uint64 until);
static void tick_if_due(uint64 now);
static void tick(uint64 now);
static void show(PaceShared *shared, double rate, double target_rate, double asleep);
static bool target_sets_pace(PaceShared *shared, double budget);
static PaceLimit find_limit(const TargetState *target, bool by_target);
static double rate_of_settings(const PaceSettings *settings);
static void warn_if_out_of_reach(void);
static void clear_at_exit(int code, Datum arg);
static void request_shmem(void);
static void startup_shmem(void);

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
	TimestampTz statement = GetCurrentStatementStartTimestamp();
	bool		has_warned = command.has_warned &&
		(command.statement == statement || AmAutoVacuumWorkerProcess());

	Assert(!command.is_running && pace.shared == NULL);
	prepare_process();
	latency_prepare();

	memset(&command, 0, sizeof(command));
	command.is_running = true;
	command.statement = statement;
	command.has_warned = has_warned;
	if (latency_target != NULL)
	{
		command.has_target = true;
		command.target = *latency_target;
	}
	pace_settings_save(&command.parameters);
	pace_settings_current(&command.settings_at_start);
	command.settings = command.settings_at_start;
	adapt_settings(&command.settings);
	if (has_target(&command.settings))
		latency_watch();
	change_target();
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
	if (pace.in_server_code)
		disable_timeout(server_code_timeout, false);
	show_reloads();
	command.is_running = false;
	command.launch = NULL;
	leave_target();
	pace.in_server_code = false;
	pace.keeps_timer_out = false;
	pace.at_work = false;
	pace.shared = NULL;
	priority_restore();
	latency_unwatch();
	pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);

	pace_settings_restore(&command.parameters);
	if (command.reload_owed)
		ConfigReloadPending = true;
	command.reload_owed = false;
}

/* pace_command_is_running -- has a VACUUM begun that has not ended? */
bool
pace_command_is_running(void)
{
	return command.is_running;
}

/* pace_is_worker -- does this process keep to the budget of another one's VACUUM? */
bool
pace_is_worker(void)
{
	return pace.shared != NULL && !command.is_running;
}

/*
 * pace_hurry
 *		The command that has begun keeps to no budget, whatever the settings say.
 */
void
pace_hurry(void)
{
	command.in_a_hurry = true;
	adapt_settings(&command.settings);
	latency_unwatch();
	change_target();
}

/*
 * pace_processes_fed
 *		How many processes the command's settings would keep busy; with a latency
 *		target, which moves the budget, any number.
 */
int
pace_processes_fed(void)
{
	double		rate = rate_of_settings(&command.settings);

	return isinf(rate) ? INT_MAX : (int) Min(ceil(rate / COST_OF_A_PROCESS), INT_MAX);
}

/*
 * pace_workers_now
 *		How many workers the command's budget, or target, would feed just now; for
 *		teams that don't change until they are through.
 */
int
pace_workers_now(void)
{
	double		rate = rate_of_settings(&command.settings);
	uint32		fed = PARKING_ALL;

	if (command.latency_target != NULL)
		rate = Min(rate, target_budget(command.latency_target));
	if (!isinf(rate))
		fed = (uint32) Min(Max(ceil(rate / COST_OF_A_PROCESS) - 1, 0), PARKING_ALL);
	return (int) DEBUG_LIMIT(fed, fed);
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
	pg_atomic_init_u32(&shared->has_warned, command.has_warned);
	pg_atomic_init_u64(&shared->exchange, 0);
	shared->tick_time = now;
	shared->spent_before = 0;
	shared->target_cost_before = 0;
	shared->slept_before = 0;
	shared->in_a_hurry = command.in_a_hurry;
	shared->relid = relid;
	shared->leader = MyProcNumber;
	parking_create(&shared->parking, MyProcNumber, 0);
	command.launch = NULL;

	pg_atomic_write_u32(&slot->user_id, GetSessionUserId());
	pg_atomic_write_u32(&slot->database, MyDatabaseId);
	pg_atomic_write_u32(&slot->relid, relid);

	pace.shared = shared;
	publish_settings(&command.settings);
	pace_join(shared);
	show(shared, 0, 0, 0);
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
	count_pages(&pace.accounted);
	pace.mix = (PageCounts)
	{
		.hit = 1,.miss = 1,.dirty = 1
	};
	/* the server's way of sharing a budget isn't ours */
	VacuumSharedCostBalance = NULL;
	VacuumActiveNWorkers = NULL;
	if (!VacuumFailsafeActive && !shared->in_a_hurry)
		priority_lower();
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
	priority_restore();
	if (is_leader())
		add_to_summary();
	take_target(0);
	if (is_leader())
	{
		command.launch = NULL;
		command.has_warned = pg_atomic_read_u32(&pace.shared->has_warned);
		pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);
	}
	set_page_costs(false);
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
	/* or it was, until a reload */
	result->was_paced = VacuumCostActive || pg_atomic_read_u64(&pace.shared->slept) > 0;
	result->slept_seconds = (double) pg_atomic_read_u64(&pace.shared->slept) / NS_PER_S;
	result->has_latency_target = pace.target != NULL;
	if (pace.target != NULL)
	{
		TargetState state;

		target_state(pace.target, &state);
		result->latency_target_ms = state.target_ms;
	}
}

/* pace_begin_summary -- begin to sum up. */
void
pace_begin_summary(void)
{
	memset(&summary, 0, sizeof(summary));
}

/* pace_summary -- what it has come to since, of tables that this process led. */
const PaceSummary *
pace_summary(void)
{
	return &summary;
}

/* add_to_summary -- the leader is about to leave a table. */
static void
add_to_summary(void)
{
	TargetState state;

	summary.is_known = true;
	summary.slept_seconds += (double) pg_atomic_read_u64(&pace.shared->slept) / NS_PER_S;
	summary.has_target = pace.target != NULL;
	if (pace.target == NULL)
		return;
	target_state(pace.target, &state);
	summary.target_ms = state.target_ms;
	summary.latency_ms = state.latency_ms;
}

/*
 * pace_allow_workers
 *		The leader may have so many workers, to be launched by this routine: at once
 *		if the budget feeds any, else at a delay point as soon as it does.
 *
 * If the user has asked for so many, others who want the cores don't count.
 */
void
pace_allow_workers(int most, bool asked_for, void (*launch) (void *), void *argument)
{
	Assert(is_leader() && command.launch == NULL);
	command.workers_asked_for = asked_for;
	if (most == 0)
		return;
	parking_create(&pace.shared->parking, MyProcNumber, most);
	bound_team();
	command.launch = launch;
	command.launch_argument = argument;
	(void) neighbours_look(now_ns());
	make_room();
	if (parking_wants_workers(&pace.shared->parking))
		launch_workers();
}

/*
 * pace_piece
 *		How many blocks to take at a time, at most, if usually it is so many: under a
 *		budget few, as who is to be parked finishes what it has taken.
 */
uint32
pace_piece(uint32 usual)
{
	return isinf(pace.rate_of_settings) && isinf(pace.rate_of_target) ? usual :
		Min(usual, GREATEST_PIECE);
}

/*
 * pace_take_place
 *		Has this worker a place at work, or can it take one?  If not, its latch will
 *		be set when there may be one.
 */
bool
pace_take_place(bool at_any_rate)
{
	Assert(!is_leader());
	return parking_take_place(&pace.shared->parking, at_any_rate);
}

/* pace_has_place -- has this worker one? */
bool
pace_has_place(void)
{
	return parking_has_place();
}

/*
 * pace_give_place
 *		Before this process takes its next piece of work: are there too many for the
 *		budget?  If so it has given up its place, and is to end its part of the phase.
 */
bool
pace_give_place(void)
{
	return !is_leader() && parking_give_place(&pace.shared->parking);
}

/*
 * look_around
 *		The leader sees to it that others find a core, unless it was a moment ago.
 */
static void
look_around(uint64 now)
{
	if (is_leader() && pace.shared->parking.most > 0 && neighbours_look(now))
		make_room();
}

/* make_room -- let the team be as large as others leave cores for. */
static void
make_room(void)
{
	bool		takes_all = command.workers_asked_for || command.in_a_hurry ||
		VacuumFailsafeActive || pg_atomic_read_u32(&pace.shared->failsafe) != 0;

	parking_set_room(&pace.shared->parking, takes_all ? PARKING_ALL : neighbours_room());
}

/* launch_workers -- launch them, only once. */
static void
launch_workers(void)
{
	void		(*launch) (void *) = command.launch;

	command.launch = NULL;
	launch(command.launch_argument);
}

/* pace_begin_work -- this process takes part in a phase. */
void
pace_begin_work(void)
{
	pg_atomic_fetch_add_u32(&pace.shared->at_work, 1);
	pace.at_work = true;
	if (pace.target != NULL)
		target_begin_work(pace.target);
}

/* pace_end_work -- it is through with it. */
void
pace_end_work(void)
{
	pg_atomic_fetch_sub_u32(&pace.shared->at_work, 1);
	if (pace.target != NULL)
		target_end_work(pace.target);
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
	priority_restore();
	if (pace.shared == NULL)
		return;
	pg_atomic_write_u32(&pace.shared->failsafe, 1);
	/* others go on to spend of it */
	take_target(0);
	pace.rate_of_target = INFINITY;
	bound_team();
	parking_set_room(&pace.shared->parking, PARKING_ALL);
	show(pace.shared, 0, 0, 0);
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
	if (unlikely(settings_have_changed()))
		take_settings();
	if (unlikely(++pace.calls % CALLS_A_LOOK == 0))
		look_around(now_ns());
	if (unlikely(command.launch != NULL) && parking_wants_workers(&pace.shared->parking))
		launch_workers();
	if (VacuumCostActive && VacuumCostBalance >= pace.charge)
	{
		VacuumCostBalance = 0;
		pay_for_pages();
	}
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
	rebalance();
	look_around(now_ns());
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
	hide_reloads();
	pg_atomic_fetch_add_u32(&pace.shared->in_server_code, 1);
	if (pace.target != NULL)
		target_begin_server_code(pace.target);
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
	if (likely(!ConfigReloadPending && !reload_was_hidden))
		return;
	pace.keeps_timer_out = true;
	reload_settings();
	tell_server_code();
	pace.keeps_timer_out = false;
}

/* pace_end_server_code -- it has returned. */
void
pace_end_server_code(void)
{
	int64		cost,
				target_cost;

	disable_timeout(server_code_timeout, false);
	/* no timer comes any more */
	account(&cost, &target_cost);
	set_page_costs(pace.target != NULL);
	pg_atomic_fetch_sub_u32(&pace.shared->in_server_code, 1);
	if (pace.target != NULL)
		target_end_server_code(pace.target);
	pace.in_server_code = false;
	VacuumCostBalance = 0;
	show_reloads();
	if (ConfigReloadPending)
		reload_settings();
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

	begin_rows(fcinfo, PACE_COLUMNS);

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
			/* so is who shares it */
			nulls[column] = nulls[column - 1];
			values[column++] = Int32GetDatum(pg_atomic_read_u32(&slot->shared_by));
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
	pg_atomic_write_u32(&shared->target, command.latency_target == NULL ? 0 :
						target_number(command.latency_target) + 1);
	/* until it is measured: of a page of each kind */
	write_double(&shared->exchange,
				 (double) (settings->page_hit + settings->page_miss + settings->page_dirty) /
				 (TARGET_COST_HIT + TARGET_COST_MISS + TARGET_COST_DIRTY));
	pg_atomic_fetch_add_u32(&shared->version, 1);
}

/*
 * change_target
 *		The leader joins the target that its settings have now, and leaves the one
 *		before.
 */
static void
change_target(void)
{
	LatencyTarget *before = command.latency_target;

	if (has_target(&command.settings))
		command.latency_target = target_join(&command.settings, before);
	else if (before != NULL)
	{
		command.latency_target = NULL;
		target_leave(before);
	}
}

/* leave_target -- the leader, and the VACUUM with it, has no target any more. */
static void
leave_target(void)
{
	take_target(0);
	if (command.latency_target != NULL)
		target_leave(command.latency_target);
	command.latency_target = NULL;
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
	bool		was_active = VacuumCostActive;

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

	take_target(VacuumFailsafeActive ? 0 : pg_atomic_read_u32(&shared->target));
	set_page_costs(pace.target != NULL);
	pace.charge = GREATEST_CHARGE;
	pace.rate_of_settings = rate_of_settings(settings);
	if (!isinf(pace.rate_of_settings))
	{
		/*
		 * in what the server counts for us, with a target, it takes less to
		 * be due
		 */
		double		dearness = pace.target == NULL ? 1 : dearest_page(settings);

		pace.greatest_cost = (double) settings->cost_limit * GREATEST_OVERRUN;
		pace.charge = charge_for_a_nap(pace.rate_of_settings, LEAST_NAP_NS,
									   pg_atomic_read_u32(&shared->at_work) * dearness);
	}
	pace.rate_of_target = INFINITY;
	if (pace.target != NULL)
	{
		pace.target_version = target_version(pace.target);
		pg_read_barrier();
		pace.rate_of_target = target_budget(pace.target);
	}
	if (!isinf(pace.rate_of_target))
	{
		/* at least a page */
		pace.greatest_target_cost = GREATEST_OVERRUN *
			Max(LEAST_COST_A_NAP, pace.rate_of_target * SECONDS_A_NAP);
		pace.charge = Min(pace.charge,
						  charge_for_a_nap(pace.rate_of_target, LEAST_NAP_WITH_TARGET_NS,
										   target_at_work(pace.target)));
	}

	/* with a target, even if nothing bounds it now, what it costs is counted */
	if (!VacuumFailsafeActive)
		VacuumCostActive = !isinf(pace.rate_of_settings) || has_target(settings);
	/* what came before is not to be paid for */
	if (VacuumCostActive && !was_active)
		count_pages(&pace.accounted);
	bound_team();
}

/*
 * bound_team
 *		Tell the team whether there is a budget, and how many processes it is likely to
 *		feed.  Ticks find out.
 */
static void
bound_team(void)
{
	double		rate = Min(pace.rate_of_settings, pace.rate_of_target);
	bool		failsafe = VacuumFailsafeActive || pg_atomic_read_u32(&pace.shared->failsafe) != 0;

	parking_set_bound(&pace.shared->parking, !isinf(rate) && !failsafe, rate / COST_OF_A_PROCESS);
}

/*
 * set_page_costs
 *		Have the server count in VacuumCostBalance what pages cost to a target, or by
 *		the settings.
 *
 * In our own code this only says when to look at the budgets; in the server's,
 * the delay point goes by it.  May be called by a signal handler.
 */
static void
set_page_costs(bool of_target)
{
	VacuumCostPageHit = of_target ? TARGET_COST_HIT : pace.settings.page_hit;
	VacuumCostPageMiss = of_target ? TARGET_COST_MISS : pace.settings.page_miss;
	VacuumCostPageDirty = of_target ? TARGET_COST_DIRTY : pace.settings.page_dirty;
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

/*
 * take_target
 *		This process spends of another target's budget from now on: that of this
 *		number less one, or of none if it is 0.  Takes no lock, and raises no error.
 */
static void
take_target(uint32 number)
{
	LatencyTarget *before = pace.target;
	LatencyTarget *now = number == 0 ? NULL : target_by_number(number - 1);

	if (now == before)
		return;
	pace.target = now;
	if (now != NULL && pace.at_work)
		target_begin_work(now);
	if (now != NULL && pace.in_server_code)
		target_begin_server_code(now);
	if (before != NULL && pace.in_server_code)
		target_end_server_code(before);
	if (before != NULL && pace.at_work)
		target_end_work(before);
}

/* settings_have_changed -- or the target's budget? */
static bool
settings_have_changed(void)
{
	return pg_atomic_read_u32(&pace.shared->version) != pace.version ||
		(pace.target != NULL && target_version(pace.target) != pace.target_version);
}

/*
 * tell_server_code
 *		Have the server's delay point give this process its share of the budget that
 *		is tighter, as far as the pages of late tell.  Raises no error.
 */
static void
tell_server_code(void)
{
	int			at_work = Max(pg_atomic_read_u32(&pace.shared->at_work), 1);
	int			at_work_for_target = pace.target != NULL ? target_at_work(pace.target) : 1;
	bool		by_target = target_is_tighter(at_work, at_work_for_target);
	double		rate = by_target ? pace.rate_of_target : pace.rate_of_settings;
	double		greatest = by_target ? pace.greatest_target_cost : pace.greatest_cost;

	set_page_costs(by_target);

	/*
	 * An autovacuum worker's delay point sets the limit anew, after each nap.
	 * So it stays as it was set last; the server's routine for that may raise
	 * an error, and this may be a signal handler's.
	 */
	if (AmAutoVacuumWorkerProcess())
		Assert(vacuum_cost_limit > 0);
	else if (isinf(rate))
		vacuum_cost_limit = UNBOUNDED_LIMIT;
	else
		vacuum_cost_limit = Max(Min(greatest / GREATEST_OVERRUN, UNBOUNDED_LIMIT), 1);

	if (isinf(rate))
		vacuum_cost_delay = UNBOUNDED_DELAY;
	else
		vacuum_cost_delay = vacuum_cost_limit / rate * 1000 *
			(by_target ? at_work_for_target : at_work);
}

/*
 * target_is_tighter
 *		Would pages like those of late make a process sleep for longer by the target
 *		than by the settings?  There are so many processes.
 */
static bool
target_is_tighter(int at_work, int at_work_for_target)
{
	/* nothing is what a page costs without a bound */
	double		time = cost_by_settings(&pace.mix) / pace.rate_of_settings * at_work;
	double		time_by_target = cost_to_target(&pace.mix) / pace.rate_of_target * at_work_for_target;

	return time_by_target > time;
}

/*
 * count_pages
 *		What this process has done with pages so far, as the server's cost balance
 *		would have it.
 */
static void
count_pages(PageCounts *pages)
{
	pages->hit = pgBufferUsage.shared_blks_hit + pgBufferUsage.local_blks_hit;
	pages->miss = pgBufferUsage.shared_blks_read + pgBufferUsage.local_blks_read;
	/* those of temporary tables cost nothing */
	pages->dirty = pgBufferUsage.shared_blks_dirtied + pages_written;
}

/* cost_by_settings -- what pages cost by the settings. */
static int64
cost_by_settings(const PageCounts *pages)
{
	return pages->hit * pace.settings.page_hit + pages->miss * pace.settings.page_miss +
		pages->dirty * pace.settings.page_dirty;
}

/* cost_to_target -- what they cost of the budget of a latency target. */
static int64
cost_to_target(const PageCounts *pages)
{
	return pages->hit * TARGET_COST_HIT + pages->miss * TARGET_COST_MISS +
		pages->dirty * TARGET_COST_DIRTY;
}

/*
 * account
 *		Account for what this process has cost since it was last called, and say what
 *		that is by the settings and to a target.  May be called by a signal handler.
 */
static void
account(int64 *cost, int64 *target_cost)
{
	PageCounts	now;
	PageCounts	pages;

	count_pages(&now);
	pages.hit = now.hit - pace.accounted.hit;
	pages.miss = now.miss - pace.accounted.miss;
	pages.dirty = now.dirty - pace.accounted.dirty;
	pace.accounted = now;
	if (pages.hit + pages.miss + pages.dirty > 0)
		pace.mix = pages;

	*cost = cost_by_settings(&pages);
	*target_cost = cost_to_target(&pages);
	pg_atomic_fetch_add_u64(&pace.shared->spent, *cost);
	pg_atomic_fetch_add_u64(&pace.shared->target_cost, *target_cost);
	if (pace.target != NULL)
		target_note_cost(pace.target, *target_cost);
}

/*
 * tick_in_server_code
 *		The timer's signal handler: adapt the server's delay point.
 */
static void
tick_in_server_code(void)
{
	int64		cost,
				target_cost;

	if (!pace.in_server_code || pace.keeps_timer_out || VacuumFailsafeActive)
		return;
	if (settings_have_changed())
		take_settings();
	account(&cost, &target_cost);
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
	reload_was_hidden = false;
	command.reload_owed = true;
	command.settings = command.settings_at_start;
	pace_settings_reread(&command.settings);
	adapt_settings(&command.settings);

	if (has_target(&command.settings))
		latency_watch();
	else
		latency_unwatch();
	change_target();
	publish_settings(&command.settings);
	take_settings();
	/* if nothing bounds it any more, no tick will */
	show(pace.shared, NAN, NAN, 0);
}

/*
 * hide_reloads
 *		An autovacuum worker's delay point in the server's code would read the files
 *		and set the parameters by itself, and fail: not in parallel mode.  So have
 *		it not hear of a reload.
 */
static void
hide_reloads(void)
{
	if (!is_leader() || !AmAutoVacuumWorkerProcess())
		return;
	pqsignal(SIGHUP, note_hidden_reload);
	if (ConfigReloadPending)
		reload_settings();
}

/* show_reloads -- as before; what was hidden is for our delay point. */
static void
show_reloads(void)
{
	if (!is_leader() || !AmAutoVacuumWorkerProcess())
		return;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	if (reload_was_hidden)
		ConfigReloadPending = true;
	reload_was_hidden = false;
}

/* note_hidden_reload -- the signal handler meanwhile. */
static void
note_hidden_reload(SIGNAL_ARGS)
{
	reload_was_hidden = true;
	SetLatch(MyLatch);
}

/* adapt_settings -- let the command's own wishes override the settings. */
static void
adapt_settings(PaceSettings *settings)
{
	if (command.has_target)
		settings->latency_target = command.target;
	if (command.in_a_hurry)
	{
		settings->cost_delay = 0;
		settings->latency_target = LATENCY_TARGET_OFF;
	}
}

/*
 * rebalance
 *		The leader, if it is an autovacuum worker, takes over its share of the cost
 *		limit, which depends on how many of them there are.
 */
static void
rebalance(void)
{
	if (!is_leader() || VacuumFailsafeActive || !pace_settings_rebalance(&command.settings))
		return;
	publish_settings(&command.settings);
	take_settings();
}

/* has_target -- is there a latency target, given or to be learned? */
static bool
has_target(const PaceSettings *settings)
{
	return settings->latency_target != LATENCY_TARGET_OFF;
}

/*
 * pay_for_pages
 *		Account for what this process has cost, and sleep until it is paid for.
 */
static void
pay_for_pages(void)
{
	PaceShared *shared = pace.shared;
	uint64		now = now_ns();
	uint64		until = 0;
	uint64		until_by_target = 0;
	int64		cost,
				target_cost;

	account(&cost, &target_cost);
	rebalance();
	look_around(now);
	tick_if_due(now);
	warn_if_out_of_reach();
	if (settings_have_changed())
		take_settings();

	if (!isinf(pace.rate_of_settings))
		until = pay(&shared->paid_until, now,
					Min(cost, pace.greatest_cost) * NS_PER_S / pace.rate_of_settings *
					share_of_others(pg_atomic_read_u32(&shared->at_work),
									pg_atomic_read_u32(&shared->in_server_code)));
	if (!isinf(pace.rate_of_target))
		until_by_target = target_pay(pace.target, now,
									 Min(target_cost, pace.greatest_target_cost) * NS_PER_S /
									 pace.rate_of_target *
									 share_of_others(target_at_work(pace.target),
													 target_in_server_code(pace.target)));

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
	uint32		version = pace.version;
	uint32		target_version = pace.target_version;

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
		if (pace.target != NULL)
			target_note_sleep(pace.target, now - start);
		compat_report_delay(now - start);
		if (ConfigReloadPending)
			reload_settings();
		if (settings_have_changed())
			take_settings();
		tick_if_due(now);
		if (settings_have_changed())
			take_settings();
		warn_if_out_of_reach();
		if (pace.version != version || pace.target_version != target_version)
			break;
	}
}

/* tick_if_due -- measure, and see to the target, unless it was done a moment ago. */
static void
tick_if_due(uint64 now)
{
	PaceShared *shared = pace.shared;
	uint64		due = pg_atomic_read_u64(&shared->next_tick);
	uint32		nobody = 0;

	if (pace.target != NULL)
		target_tick_if_due(pace.target, now);
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
	PaceShared *shared = pace.shared;
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
				   rate < pace.rate_of_settings / STARVED_TIMES &&
				   target_rate < pace.rate_of_target / STARVED_TIMES);
	show(shared, rate, target_rate, Min(asleep / at_work, 1));
}

/*
 * show
 *		Fill in what the view shows; budget and rate are those of what sets the pace.
 */
static void
show(PaceShared *shared, double rate, double target_rate, double asleep)
{
	PaceSlot   *slot = &slots[shared->leader];
	TargetState target = {.latency_ms = NAN,.budget = INFINITY};
	bool		by_target;
	double		budget;

	if (pace.target != NULL)
		target_state(pace.target, &target);
	by_target = target_sets_pace(shared, target.budget);
	budget = by_target ? target.budget : rate_of_settings(&pace.settings);
	write_double(&slot->target_ms, target.target_ms > 0 ? target.target_ms : NAN);
	write_double(&slot->percentile,
				 pace.target != NULL ? pace.settings.latency_percentile : NAN);
	pg_atomic_write_u32(&slot->latency_of, pace.settings.latency_of);
	pg_atomic_write_u32(&slot->shared_by, target.vacuums);
	write_double(&slot->latency_ms, target.latency_ms);
	write_double(&slot->budget, isinf(budget) ? NAN : budget);
	write_double(&slot->rate, !VacuumCostActive ? NAN : by_target ? target_rate : rate);
	write_double(&slot->asleep, asleep);
	pg_atomic_write_u32(&slot->limited_by, find_limit(&target, by_target));
}

/*
 * target_sets_pace
 *		Is it the target, whose budget this is, or the settings?
 */
static bool
target_sets_pace(PaceShared *shared, double budget)
{
	double		of_settings = rate_of_settings(&pace.settings);

	if (pace.target == NULL || isinf(of_settings))
		return pace.target != NULL;
	return !isinf(budget) && budget * read_double(&shared->exchange) < of_settings;
}

/* find_limit -- what keeps the vacuum from going faster? */
static PaceLimit
find_limit(const TargetState *target, bool by_target)
{
	if (pg_atomic_read_u32(&pace.shared->failsafe))
		return PACE_LIMIT_FAILSAFE;
	if (!by_target)
		return isinf(rate_of_settings(&pace.settings)) ? PACE_LIMIT_NOTHING : PACE_LIMIT_COST_DELAY;
	if (isinf(target->budget))
		return PACE_LIMIT_NOTHING;
	switch (target->limit)
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
	return PACE_LIMIT_NOTHING;
}

/* rate_of_settings -- the budget of cost-based delay, in cost a second. */
static double
rate_of_settings(const PaceSettings *settings)
{
	return settings->cost_delay > 0 ?
		settings->cost_limit / settings->cost_delay * 1000 : INFINITY;
}

/*
 * warn_if_out_of_reach
 *		Say so once a statement, in whichever process, or once in an autovacuum
 *		worker's life.
 */
static void
warn_if_out_of_reach(void)
{
	uint32		not_yet = 0;
	TargetState target;

	/* from other workers the client hears nothing */
	if (!is_leader() && !IsParallelWorker())
		return;
	if (pace.target == NULL || !target_is_out_of_reach(pace.target) ||
		!pg_atomic_compare_exchange_u32(&pace.shared->has_warned, &not_yet, 1))
		return;
	target_state(pace.target, &target);
	ereport(WARNING,
			(errmsg("latency target of %g ms is missed although VACUUM hardly moves",
					target.target_ms),
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
	pace.keeps_timer_out = true;
	if (pace.at_work && pace.shared != NULL && !is_leader())
		pace_end_work();
	if (pace.shared != NULL && !is_leader())
		parking_leave(&pace.shared->parking);
	leave_target();
	pace.in_server_code = false;
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
		pg_atomic_init_u32(&slots[i].shared_by, 0);
		pg_atomic_init_u64(&slots[i].target_ms, 0);
		pg_atomic_init_u64(&slots[i].percentile, 0);
		pg_atomic_init_u64(&slots[i].latency_ms, 0);
		pg_atomic_init_u64(&slots[i].budget, 0);
		pg_atomic_init_u64(&slots[i].rate, 0);
		pg_atomic_init_u64(&slots[i].asleep, 0);
	}
	LWLockRelease(AddinShmemInitLock);
}
