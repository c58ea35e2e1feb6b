/*-------------------------------------------------------------------------
 *
 * latency_reports.c
 *	  Tells nodes how long statements take on this server.
 *
 * Who uses a cluster waits for what its coordinator sees: the network, the
 * coordinator's own work, and the slowest of the nodes that a statement
 * touches.  A node sees none of that.  So while a VACUUM of a cluster with a
 * latency target runs, a background worker of the server where it was said (the
 * reporter) measures what that server's sessions see, and twice a second tells
 * all nodes.  Their VACUUMs hold back by that, together (pace/target.c).
 *
 * A VACUUM has a random number, which its nodes get with their command.  Who
 * doesn't know it can't report, so anyone may call the procedure
 * report_latency: it does something only for those to whom that VACUUM is.
 *
 * The session that says the VACUUM can't report itself, as it waits in Citus
 * for the nodes.  The reporter runs as the same user.  It ends with the VACUUM,
 * or soon after the session, however that ends.  If it fails, or can't be
 * started, the nodes judge for themselves.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "cluster/citus.h"
#include "cluster/latency_reports.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "pace/latency.h"
#include "pace/pace_settings.h"
#include "pace/target.h"

#define REPORTER_LIBRARY	"pg_cyclone"

/* How often to report, in ms */
#define REPORT_MS			500
/* How long to wait for a connection to a node, and for all of a report */
#define CONNECT_MS			1000
#define REPORT_TIMEOUT_MS	5000

/* After so many reports those nodes are tried again that couldn't be reached. */
#define REPORTS_WITHOUT		20

/* What a reporter must know, in bgw_extra */
typedef struct Report
{
	Oid			database;
	Oid			user;
	int			leader_pid;
	int			of;				/* LatencyOf */
	uint64		judge;
} Report;

static BackgroundWorkerHandle *reporter = NULL;

/* A reporter's: nodes that couldn't be told, "name:port", and how many reports they have missed */
static List *unreachable = NIL;
static int	reports_without = 0;

PG_FUNCTION_INFO_V1(pg_cyclone_report_latency);
extern PGDLLEXPORT void pg_cyclone_reporter_main(Datum arg);

static uint64 choose_number(void);
static void request_end(SIGNAL_ARGS);
static void report(const Report *report, MemoryContext context, uint32 *before, bool *has_failed);
static void send_report(const char *command);
static List *nodes_to_tell(void);
static void note_unreachable(const CitusNode *node);
static char *make_command(const Report *report, uint32 *before);
static void append_counts(StringInfo text, const uint32 *counts);
static void read_counts(ArrayType *array, uint32 *counts);

/*
 * latency_reports_begin
 *		Begin to report to the nodes; returns the number by which they know this
 *		VACUUM, or 0 if that isn't possible.
 *
 * There must be no other that this session reports for.  latency_reports_end must
 * be called, after an error, too.
 */
uint64
latency_reports_begin(void)
{
	Report		told = {
		.database = MyDatabaseId,
		.user = GetUserId(),
		.leader_pid = MyProcPid,
		.of = cyclone_latency_of,
		.judge = choose_number()
	};
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_library_name = REPORTER_LIBRARY,
		.bgw_function_name = "pg_cyclone_reporter_main",
		.bgw_type = "pg_cyclone reporter",
	};
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	bool		registered;

	StaticAssertStmt(sizeof(Report) <= BGW_EXTRALEN, "a report must fit into bgw_extra");
	Assert(reporter == NULL);
	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_cyclone reporter for PID %d", MyProcPid);
	memcpy(worker.bgw_extra, &told, sizeof(told));
	registered = RegisterDynamicBackgroundWorker(&worker, &reporter);
	MemoryContextSwitchTo(old);
	latency_forget_running();
	if (registered)
		return told.judge;
	reporter = NULL;
	ereport(WARNING,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("each node keeps to the latency target by what it sees itself, as no background worker is free to tell it more"),
			 errhint("Consider increasing \"max_worker_processes\".")));
	return 0;
}

/* latency_reports_end -- the VACUUM is over; harmless if nobody reports for it. */
void
latency_reports_end(void)
{
	if (reporter == NULL)
		return;
	TerminateBackgroundWorker(reporter);
	pfree(reporter);
	reporter = NULL;
}

/* choose_number -- one that nobody can guess, and not 0. */
static uint64
choose_number(void)
{
	uint64		number = 0;

	while (number == 0)
	{
		if (!pg_strong_random(&number, sizeof(number)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
	}
	return number;
}

/*
 * pg_cyclone_reporter_main
 *		All that a reporter does.
 */
void
pg_cyclone_reporter_main(Datum arg)
{
	Report		told;
	MemoryContext context;
	uint32	   *before;
	bool		has_failed = false;
	uint32		wait_event;

	/* a short VACUUM may be over before this has begun: then nothing is to be cancelled */
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	memcpy(&told, MyBgworkerEntry->bgw_extra, sizeof(told));
	BackgroundWorkerInitializeConnectionByOid(told.database, told.user, BGWORKER_BYPASS_ROLELOGINCHECK);
	pqsignal(SIGTERM, request_end);
	pgstat_report_activity(STATE_RUNNING, "reporting latency to the nodes of a cluster");
	wait_event = WaitEventExtensionNew("CycloneReporter");

	context = AllocSetContextCreate(TopMemoryContext, "Cyclone report", ALLOCSET_DEFAULT_SIZES);
	before = MemoryContextAllocZero(TopMemoryContext, sizeof(uint32) * LATENCY_BUCKETS);
	latency_prepare();
	latency_watch();
	latency_read(told.of, before);
	while (!ShutdownRequestPending && BackendPidGetProc(told.leader_pid) != NULL)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, REPORT_MS, wait_event);
		ResetLatch(MyLatch);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (!ShutdownRequestPending)
			report(&told, context, before, &has_failed);
	}
	proc_exit(0);
}

/*
 * request_end
 *		The handler of SIGTERM: end, quietly, also while nodes are waited for.
 */
static void
request_end(SIGNAL_ARGS)
{
	ShutdownRequestPending = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/*
 * report
 *		Tell the nodes what has happened since it was told before; if that fails, say
 *		so in the log, once.
 */
static void
report(const Report *report, MemoryContext context, uint32 *before, bool *has_failed)
{
	StartTransactionCommand();
	MemoryContextReset(context);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		send_report(make_command(report, before));
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		disable_timeout(STATEMENT_TIMEOUT, false);
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		QueryCancelPending = false;
		if (!*has_failed && !ShutdownRequestPending)
			ereport(LOG,
					(errmsg("could not report to the nodes of a cluster how long statements take: %s", error->message),
					 errdetail("They keep to their latency target by what they see themselves.")));
		*has_failed = true;
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(TopMemoryContext);
}

/*
 * send_report
 *		Send a command to all nodes, of which one that is down doesn't keep the others
 *		from getting it.
 */
static void
send_report(const char *command)
{
	int			level = NewGUCNestLevel();
	List	   *nodes;
	List	   *commands = NIL;
	List	   *answers;

	enable_timeout_after(STATEMENT_TIMEOUT, REPORT_TIMEOUT_MS);
	PushActiveSnapshot(GetTransactionSnapshot());
	nodes = nodes_to_tell();
	for (int i = 0; i < list_length(nodes); i++)
		commands = lappend(commands, unconstify(char *, command));
	citus_limit_connecting(CONNECT_MS);
	answers = nodes != NIL ? citus_run(nodes, commands) : NIL;
	for (int i = 0; i < list_length(answers); i++)
	{
		if (!((CitusAnswer *) list_nth(answers, i))->success)
			note_unreachable(list_nth(nodes, i));
	}
	PopActiveSnapshot();
	disable_timeout(STATEMENT_TIMEOUT, false);
	AtEOXact_GUC(true, level);
}

/*
 * nodes_to_tell
 *		The active nodes, CitusNodes, but for those that couldn't be told of late: to
 *		wait for such a node in each report would make all of them late.
 */
static List *
nodes_to_tell(void)
{
	List	   *nodes = NIL;

	if (unreachable != NIL && ++reports_without >= REPORTS_WITHOUT)
	{
		list_free_deep(unreachable);
		unreachable = NIL;
	}
	foreach_ptr(CitusNode, node, citus_nodes())
	{
		bool		may_be_told = node->is_active;

		foreach_ptr(char, name, unreachable)
		{
			if (strcmp(name, psprintf("%s:%d", node->name, node->port)) == 0)
				may_be_told = false;
		}
		if (may_be_told)
			nodes = lappend(nodes, node);
	}
	return nodes;
}

/* note_unreachable -- leave this node out for a while. */
static void
note_unreachable(const CitusNode *node)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	if (unreachable == NIL)
		reports_without = 0;
	unreachable = lappend(unreachable, psprintf("%s:%d", node->name, node->port));
	MemoryContextSwitchTo(old);
}

/*
 * make_command
 *		The command that tells what has happened since *before, which becomes now.
 */
static char *
make_command(const Report *report, uint32 *before)
{
	static uint32 statements_before[LATENCY_BUCKETS];
	uint32		counts[LATENCY_BUCKETS];
	uint32		grown[LATENCY_BUCKETS];
	uint32		running[LATENCY_BUCKETS];
	float		late[LATENCY_BUCKETS] = {0};
	bool		is_busy;
	StringInfoData text;

	latency_read(report->of, counts);
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		grown[i] = counts[i] - before[i];
	memcpy(before, counts, sizeof(counts));

	latency_add_running(report->of, 0, INFINITY, late);
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		running[i] = (uint32) late[i];

	latency_read(LATENCY_OF_STATEMENTS, counts);
	is_busy = memcmp(counts, statements_before, sizeof(counts)) != 0;
	memcpy(statements_before, counts, sizeof(counts));

	initStringInfo(&text);
	appendStringInfo(&text, "CALL cyclone.report_latency(" INT64_FORMAT ", '{", (int64) report->judge);
	append_counts(&text, grown);
	appendStringInfoString(&text, "}', '{");
	append_counts(&text, running);
	appendStringInfo(&text, "}', %s)", is_busy ? "true" : "false");
	return text.data;
}

/* append_counts -- append the counters that aren't 0: a number and its count, in turn. */
static void
append_counts(StringInfo text, const uint32 *counts)
{
	bool		is_first = true;

	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		if (counts[i] == 0)
			continue;
		appendStringInfo(text, "%s%d,%u", is_first ? "" : ",", i, Min(counts[i], (uint32) PG_INT32_MAX));
		is_first = false;
	}
}

/*
 * pg_cyclone_report_latency
 *		The procedure report_latency(judge, ended, running, busy), on a node.
 *
 * Nothing happens if no VACUUM here knows the number.
 */
Datum
pg_cyclone_report_latency(PG_FUNCTION_ARGS)
{
	uint32		ended[LATENCY_BUCKETS] = {0};
	uint32		running[LATENCY_BUCKETS] = {0};

	for (int i = 0; i < PG_NARGS(); i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("arguments must not be null")));
	}
	read_counts(PG_GETARG_ARRAYTYPE_P(1), ended);
	read_counts(PG_GETARG_ARRAYTYPE_P(2), running);
	(void) target_report((uint64) PG_GETARG_INT64(0), ended, running, PG_GETARG_BOOL(3));
	PG_RETURN_VOID();
}

/* read_counts -- the opposite of append_counts; raises an error if that isn't possible. */
static void
read_counts(ArrayType *array, uint32 *counts)
{
	Datum	   *values;
	bool	   *nulls;
	int			nvalues;

	deconstruct_array_builtin(array, INT4OID, &values, &nulls, &nvalues);
	for (int i = 0; i < nvalues; i += 2)
	{
		int			bucket = i + 1 < nvalues && !nulls[i] && !nulls[i + 1] ? DatumGetInt32(values[i]) : -1;

		if (bucket < 0 || bucket >= LATENCY_BUCKETS || DatumGetInt32(values[i + 1]) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid counts of latencies"),
					 errhint("Only pg_cyclone itself should call this, in the same version on all nodes.")));
		counts[bucket] = DatumGetInt32(values[i + 1]);
	}
}
