/*-------------------------------------------------------------------------
 *
 * cluster_pace.c
 *	  One latency target for all nodes that a VACUUM is sent to.
 *
 * Users wait for statements that they send to the coordinator, and those may
 * touch many nodes.  What a node sees of them is only its part.  So the
 * coordinator judges the target, by what its own clients wait for (the sessions
 * that servers of the cluster open here don't count), with the law that any
 * latency target has (pace/target.c), and all nodes have the same budget at the
 * same time, in cost a second.  In addition each node keeps to the target by
 * what it sees itself; the lesser budget holds.
 *
 * The process that has sent the VACUUM waits inside of Citus.  So a background
 * worker does this while it waits: a few times a second it measures, and tells
 * each node the budget, by the function follow_pace.  The answer is what the
 * VACUUM has cost there so far, which the law has to know.  As rate of the
 * cluster counts that of the node that is fastest, so that a budget is one that
 * somebody uses.
 *
 * What a node was told holds for some seconds (target.c).  If the worker can't
 * be had, dies or doesn't get through to a node, then the node goes by itself
 * again; the client is warned at the end if that was so.
 *
 * Citus opens a new connection for each command, so with many nodes they are
 * told less often.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/wait_event.h"

#include "cluster/citus.h"
#include "cluster/cluster_pace.h"
#include "compat.h"
#include "library.h"
#include "pace/clock.h"
#include "pace/latency.h"
#include "pace/pace.h"
#include "pace/pace_settings.h"
#include "server_check.h"
#include "team/attempt.h"

/* How often nodes are told: so often, or later by so much for each of them */
#define LEAST_INTERVAL_MS	250
#define INTERVAL_MS_A_NODE	15
/* The law looks at nothing older than 2 s (target.c). */
#define GREATEST_INTERVAL_MS 1500
#define LEAST_WAIT_MS		50
/*
 * Citus need not connect for longer, nor a node take longer to answer; and one
 * that couldn't be told is left out for so long.  Twice all that is less than
 * the time for which holds what was told before.
 */
#define CONNECT_MS			1000
#define ANSWER_MS			1500
#define PAUSE_NS			((uint64) NS_PER_S)
/* So long the leader waits for the worker to end by itself. */
#define END_MS				1000
#define END_STEP_MS			10
/* If no node has been told anything in so many ms there is a warning. */
#define MS_WITHOUT_WARNING	3000

/* What leader and worker share */
typedef struct ClusterPace
{
	/* constant */
	Oid			database;
	Oid			user;
	int			leader_pid;
	int			target;			/* its number */
	double		value;			/* as it was given to the nodes */
	int			nnodes;

	pg_atomic_uint32 is_over;	/* the worker is to end */
	pg_atomic_uint32 times;		/* that nodes were told */
	pg_atomic_uint32 failures;	/* that one couldn't be */
	char		nodes[FLEXIBLE_ARRAY_MEMBER];	/* port, space, name, and zero
												 * for each */
} ClusterPace;

/* A node, as the worker sees it */
typedef struct PacedNode
{
	CitusNode	node;
	bool		is_known;		/* are the following? */
	double		spent;			/* as last told */
	double		slept;
	uint64		pause_until;	/* leave it out */
} PacedNode;

/* The VACUUM that this process has sent; NULL: none, or it has no target */
static dsm_segment *segment = NULL;
static BackgroundWorkerHandle *worker_handle = NULL;
static LatencyTarget *led = NULL;
static uint64 began_at;
static char *no_memory;			/* why there is no segment; NULL: there is */

PG_FUNCTION_INFO_V1(pg_cyclone_follow_pace);

PGDLLEXPORT void pg_cyclone_cluster_pace_main(Datum main_arg);

static dsm_segment *make_segment(List *nodes, double latency_target);
static bool launch(void);
static void end_worker(dsm_segment *detached, Datum arg);
static void wait_for_end(ClusterPace *shared);
static void tell(ClusterPace *shared, bool is_stopped, bool verbose);
static List *read_nodes(const ClusterPace *shared);
static bool leader_is_there(const ClusterPace *shared);
static bool try_exchange(ClusterPace *shared, LatencyTarget *target, List *nodes, double seconds);
static bool exchange(ClusterPace *shared, LatencyTarget *target, List *nodes, double seconds);
static List *ask(const ClusterPace *shared, LatencyTarget *target, List *asked);
static bool read_costs(const char *text, double *spent, double *slept, double *at_work);
static uint32 wait_event_pace(void);

/*
 * cluster_pace_begin
 *		A VACUUM with this latency target is about to be sent to these CitusNodes.
 *
 * cluster_pace_end must be called, after an error, too; that is harmless if this
 * wasn't.  In a transaction.
 */
void
cluster_pace_begin(List *nodes, double latency_target)
{
	Assert(led == NULL);
	if (latency_target == LATENCY_TARGET_OFF || nodes == NIL)
		return;
	led = pace_begin_coordination(latency_target);
	began_at = now_ns();
	no_memory = NULL;
	segment = make_segment(nodes, latency_target);
	if (segment == NULL)
		return;
	/* whatever ends this process, or the transaction, ends the worker */
	on_dsm_detach(segment, end_worker, (Datum) 0);
	if (!launch())
	{
		dsm_detach(segment);
		segment = NULL;
	}
}

/*
 * cluster_pace_end
 *		The nodes have answered, or it has failed.  Says how it was if all is well.
 */
void
cluster_pace_end(bool failed, bool verbose)
{
	ClusterPace *shared = segment == NULL ? NULL : dsm_segment_address(segment);

	if (led == NULL)
		return;
	if (!failed)
	{
		pid_t		pid;
		bool		is_stopped = shared != NULL &&
			GetBackgroundWorkerPid(worker_handle, &pid) == BGWH_STOPPED;

		/* it may be in the midst of a tick; after an error we can't wait */
		if (shared != NULL)
			wait_for_end(shared);
		tell(shared, is_stopped, verbose);
	}
	if (segment != NULL)
		dsm_detach(segment);
	segment = NULL;
	led = NULL;
	pace_end_command();
}

/* make_segment -- what the worker needs, or NULL if there is no memory for it. */
static dsm_segment *
make_segment(List *nodes, double latency_target)
{
	Size		size = offsetof(ClusterPace, nodes);
	dsm_segment *made;
	ClusterPace *shared;
	char	   *at;

	foreach_ptr(CitusNode, node, nodes)
		size += strlen(node->name) + 16;
	made = attempt_create_segment(size, &no_memory);
	if (made == NULL)
		return NULL;
	shared = dsm_segment_address(made);
	shared->database = MyDatabaseId;
	shared->user = GetUserId();
	shared->leader_pid = MyProcPid;
	shared->target = target_number(led);
	shared->value = latency_target;
	shared->nnodes = list_length(nodes);
	pg_atomic_init_u32(&shared->is_over, 0);
	pg_atomic_init_u32(&shared->times, 0);
	pg_atomic_init_u32(&shared->failures, 0);
	at = shared->nodes;
	foreach_ptr(CitusNode, node, nodes)
		at += sprintf(at, "%d %s", node->port, node->name) + 1;
	return made;
}

/* launch -- start the worker, if the server has room for one. */
static bool
launch(void)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_function_name = "pg_cyclone_cluster_pace_main",
		.bgw_type = "pg_cyclone pace",
		.bgw_notify_pid = MyProcPid,
		.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment)),
	};
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	bool		is_registered;

	strlcpy(worker.bgw_library_name, library_path(), sizeof(worker.bgw_library_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_cyclone pace for PID %d", MyProcPid);
	is_registered = RegisterDynamicBackgroundWorker(&worker, &worker_handle);
	MemoryContextSwitchTo(old);
	return is_registered;
}

/* end_worker -- the leader detaches from the segment, for whatever reason. */
static void
end_worker(dsm_segment *detached, Datum arg)
{
	ClusterPace *shared = dsm_segment_address(detached);

	pg_atomic_write_u32(&shared->is_over, 1);
	if (worker_handle == NULL)
		return;
	TerminateBackgroundWorker(worker_handle);
	pfree(worker_handle);
	worker_handle = NULL;
}

/*
 * wait_for_end
 *		Have the worker end, by itself if it can, as to terminate one is news for the
 *		server's log; wait for it.
 */
static void
wait_for_end(ClusterPace *shared)
{
	pid_t		pid;
	BgwHandleStatus status;

	pg_atomic_write_u32(&shared->is_over, 1);
	for (int ms = 0; ms < END_MS; ms += END_STEP_MS)
	{
		PGPROC	   *proc;

		status = GetBackgroundWorkerPid(worker_handle, &pid);
		if (status == BGWH_STOPPED || status == BGWH_POSTMASTER_DIED)
			return;
		proc = status == BGWH_STARTED ? BackendPidGetProc(pid) : NULL;
		if (proc != NULL)
			SetLatch(&proc->procLatch);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 END_STEP_MS, wait_event_pace());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	/* it may be waiting for a node that doesn't answer */
	TerminateBackgroundWorker(worker_handle);
	(void) WaitForBackgroundWorkerShutdown(worker_handle);
}

/*
 * tell
 *		Say how the target was kept to; shared is NULL without a worker.
 */
static void
tell(ClusterPace *shared, bool is_stopped, bool verbose)
{
	uint32		times = shared == NULL ? 0 : pg_atomic_read_u32(&shared->times);
	uint32		failures = shared == NULL ? 0 : pg_atomic_read_u32(&shared->failures);
	TargetState state;

	target_state(led, &state);
	if (shared == NULL || is_stopped ||
		(times == 0 && now_ns() - began_at > MS_WITHOUT_WARNING * (uint64) NS_PER_MS))
		ereport(WARNING,
				(errmsg("the latency target was kept to by what each node saw, not by what clients waited for here"),
				 no_memory != NULL ?
				 errdetail("There was no shared memory for the background worker that tells the nodes what they may cost: %s.", no_memory) :
				 shared == NULL ?
				 errdetail("No background worker was free to tell the nodes what they may cost.") :
				 errdetail("The background worker that tells the nodes what they may cost did not get through to them; the server's log says more."),
				 shared == NULL && no_memory == NULL ?
				 errhint("You might need to increase \"%s\".", "max_worker_processes") : 0));
	else if (failures > 0)
		ereport(WARNING,
				(errmsg("nodes could not be told %u times what they may cost, and kept to the latency target by what they saw themselves",
						failures)));
	if (target_is_out_of_reach(led))
		ereport(WARNING,
				(errmsg("latency target of %g ms is missed although VACUUM hardly moves",
						state.target_ms),
				 errdetail("Clients of this server wait for longer for reasons other than this VACUUM.")));
	if (isnan(state.latency_ms) || state.target_ms <= 0)
		ereport(verbose ? INFO : DEBUG1,
				(errmsg("latency target of the cluster: the nodes were told %u times what they may cost; no statements of clients to measure",
						times)));
	else
		ereport(verbose ? INFO : DEBUG1,
				(errmsg("latency target of the cluster: the nodes were told %u times what they may cost; statements of clients took %.1f ms at last, target %.1f ms",
						times, state.latency_ms, state.target_ms)));
}

/*
 * pg_cyclone_follow_pace
 *		The function follow_pace(target, budget): VACUUMs with this target that the
 *		caller has sent here by a coordinator may cost that much a second.
 *
 * Returns what they have cost so far, how long they have slept, in seconds, and
 * how many processes are at work; null if there are none.
 */
Datum
pg_cyclone_follow_pace(PG_FUNCTION_ARGS)
{
	double		budget = PG_GETARG_FLOAT8(1);
	TargetCosts costs;
	Datum		values[3];

	refuse_without_preloading();
	latency_forget_statement();
	/* from less, which no law comes to, it would not recover for years */
	if (!IsUnderPostmaster || isnan(budget) || budget < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a budget must be at least 1")));
	/* where we are of no use there are no targets */
	if (!server_fits() || !target_tell(GetUserId(), PG_GETARG_FLOAT8(0), budget, &costs))
		PG_RETURN_NULL();
	values[0] = Float8GetDatum((double) costs.spent);
	values[1] = Float8GetDatum((double) costs.slept / NS_PER_S);
	values[2] = Float8GetDatum((double) costs.at_work);
	PG_RETURN_ARRAYTYPE_P(construct_array(values, lengthof(values), FLOAT8OID,
										  sizeof(float8), true, TYPALIGN_DOUBLE));
}

/*
 * pg_cyclone_cluster_pace_main
 *		The worker: measure, and tell the nodes, until it is terminated, or its
 *		leader has died.
 */
void
pg_cyclone_cluster_pace_main(Datum main_arg)
{
	dsm_segment *attached;
	ClusterPace *shared;
	LatencyTarget *target;
	List	   *nodes;
	int			interval;
	uint64		before;
	bool		is_measured = false;

	refuse_without_preloading();
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	CurrentMemoryContext = AllocSetContextCreate(TopMemoryContext, "Cyclone cluster pace",
												 ALLOCSET_DEFAULT_SIZES);

	/* if it is gone, so is the leader */
	attached = dsm_attach(DatumGetUInt32(main_arg));
	if (attached == NULL)
		return;
	shared = dsm_segment_address(attached);
	target = target_by_number(shared->target);
	nodes = read_nodes(shared);
	interval = Min(Max(LEAST_INTERVAL_MS, INTERVAL_MS_A_NODE * shared->nnodes), GREATEST_INTERVAL_MS);

	BackgroundWorkerInitializeConnectionByOid(shared->database, shared->user,
											  BGWORKER_BYPASS_ROLELOGINCHECK);
	before = now_ns();
	while (pg_atomic_read_u32(&shared->is_over) == 0 && leader_is_there(shared))
	{
		uint64		now = now_ns();
		int			spent_ms;

		pgstat_report_activity(STATE_RUNNING, "telling nodes what VACUUM may cost");
		/* a rate of 0 at the start would be none */
		if (is_measured)
			target_tick_if_due(target, now);
		is_measured |= try_exchange(shared, target, nodes, (double) (now - before) / NS_PER_S);
		before = now;
		pgstat_report_stat(false);
		pgstat_report_activity(STATE_IDLE, NULL);

		spent_ms = (int) ((now_ns() - now) / NS_PER_MS);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Max(interval - spent_ms, LEAST_WAIT_MS), wait_event_pace());
		ResetLatch(MyLatch);
		/* that is why it is terminated, and then there is nothing to be said */
		if (pg_atomic_read_u32(&shared->is_over) != 0)
			break;
		CHECK_FOR_INTERRUPTS();
	}
}

/* read_nodes -- the nodes of a segment, PacedNodes, in the current memory context. */
static List *
read_nodes(const ClusterPace *shared)
{
	const char *at = shared->nodes;
	List	   *nodes = NIL;

	for (int i = 0; i < shared->nnodes; i++)
	{
		PacedNode  *paced = palloc0_object(PacedNode);
		char	   *name;

		paced->node.port = strtol(at, &name, 10);
		paced->node.name = pstrdup(name + 1);
		nodes = lappend(nodes, paced);
		at += strlen(at) + 1;
	}
	return nodes;
}

/* leader_is_there -- or has it died, without an end? */
static bool
leader_is_there(const ClusterPace *shared)
{
	return BackendPidGetProc(shared->leader_pid) != NULL;
}

/*
 * try_exchange
 *		The same as exchange, but an error, as when a node doesn't answer in time, is
 *		for the log only, and the first of several.  Nodes that did answer know
 *		what they were told.
 */
static bool
try_exchange(ClusterPace *shared, LatencyTarget *target, List *nodes, double seconds)
{
	MemoryContext context = CurrentMemoryContext;
	static bool has_failed = false;
	volatile bool is_measured = false;

	PG_TRY();
	{
		is_measured = exchange(shared, target, nodes, seconds);
		has_failed = false;
	}
	PG_CATCH();
	{
		disable_timeout(STATEMENT_TIMEOUT, false);
		HOLD_INTERRUPTS();
		if (!has_failed)
			EmitErrorReport();
		has_failed = true;
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		pg_atomic_fetch_add_u32(&shared->failures, 1);
	}
	PG_END_TRY();
	/* the timeout's, if it came too late */
	QueryCancelPending = false;
	MemoryContextSwitchTo(context);
	return is_measured;
}

/*
 * exchange
 *		Tell the nodes the budget, and take note of what the fastest of them has cost
 *		in so many seconds.  Returns whether one has told that.
 */
static bool
exchange(ClusterPace *shared, LatencyTarget *target, List *nodes, double seconds)
{
	List	   *asked = NIL;
	List	   *answers;
	TargetState state;
	double		most_spent = 0;
	double		least_asleep = 1;
	bool		is_measured = false;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	foreach_ptr(PacedNode, paced, nodes)
	{
		if (paced->pause_until <= now_ns())
			asked = lappend(asked, paced);
	}
	answers = ask(shared, target, asked);

	for (int i = 0; i < list_length(asked); i++)
	{
		PacedNode  *paced = list_nth(asked, i);
		const CitusAnswer *answer = list_nth(answers, i);
		double		spent,
					slept,
					at_work;

		if (!answer->success)
		{
			pg_atomic_fetch_add_u32(&shared->failures, 1);
			paced->pause_until = now_ns() + PAUSE_NS;
			paced->is_known = false;
			continue;
		}
		pg_atomic_fetch_add_u32(&shared->times, 1);
		if (!read_costs(answer->result, &spent, &slept, &at_work))
		{
			/* it is through, or has not begun */
			paced->is_known = false;
			continue;
		}
		if (paced->is_known && spent >= paced->spent && slept >= paced->slept)
		{
			double		asleep = (slept - paced->slept) / seconds / Max(at_work, 1);

			most_spent = Max(most_spent, spent - paced->spent);
			least_asleep = Min(least_asleep, asleep);
			is_measured = true;
		}
		paced->is_known = true;
		paced->spent = spent;
		paced->slept = slept;
	}
	CommitTransactionCommand();

	/*
	 * the nodes have told it of all VACUUMs with this target, and so tell
	 * others here
	 */
	target_state(target, &state);
	target_note_cost(target, (int64) (most_spent / Max(state.vacuums, 1)));
	target_note_sleep(target, (uint64) (Min(least_asleep, 1) * seconds * NS_PER_S / Max(state.vacuums, 1)));
	return is_measured;
}

/* ask -- tell these PacedNodes the budget; returns their answers. */
static List *
ask(const ClusterPace *shared, LatencyTarget *target, List *asked)
{
	int			level;
	List	   *nodes = NIL;
	List	   *commands = NIL;
	List	   *answers;
	char	   *command = psprintf("SELECT cyclone.follow_pace('%.17g', %s)", shared->value,
								   quote_literal_cstr(float8out_internal(target_budget(target))));

	if (asked == NIL)
		return NIL;
	foreach_ptr(PacedNode, paced, asked)
	{
		nodes = lappend(nodes, &paced->node);
		commands = lappend(commands, command);
	}
	level = NewGUCNestLevel();
	citus_limit_connecting(CONNECT_MS);
	PushActiveSnapshot(GetTransactionSnapshot());
	enable_timeout_after(STATEMENT_TIMEOUT, CONNECT_MS + ANSWER_MS);
	answers = citus_run(nodes, commands);
	disable_timeout(STATEMENT_TIMEOUT, false);
	PopActiveSnapshot();
	AtEOXact_GUC(true, level);
	return answers;
}

/* read_costs -- read an answer of follow_pace; false if it is null. */
static bool
read_costs(const char *text, double *spent, double *slept, double *at_work)
{
	return sscanf(text, "{%lf,%lf,%lf}", spent, slept, at_work) == 3;
}

/* wait_event_pace -- waiting to tell the nodes again. */
static uint32
wait_event_pace(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("CycloneClusterPace");
	return event;
}
