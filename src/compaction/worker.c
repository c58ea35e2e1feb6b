/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The process that compacts the tables of one database that are due.
 *
 * In a visit it takes, as long as there is one and a minute hasn't passed, the largest table
 * that is to be sampled, or else the one that is due first, as tables.c has them.
 *
 * A table is compacted by a VACUUM statement, handed to ProcessUtility as if a client had
 * sent it.  So it does what the command does: with the same hooks around it, and with the
 * locks and the rights of the command, which works as the table's owner.  An error ends the
 * work at that table, and goes to the log.
 *
 * One table doesn't keep the worker from all others: it doesn't wait for the table's lock,
 * and for other sessions' transactions only for seconds, whatever is set for the database.
 * The launcher ends a turn that takes too long.
 *
 * By a note on disk a crash counts among those for which autovacuum leaves a table, or all,
 * to PostgreSQL (running_notes.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parser.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "autovacuum/running_notes.h"
#include "autovacuum/table_log.h"
#include "bloat/bloat.h"
#include "compaction/compaction.h"
#include "debug_point.h"
#include "history/history.h"
#include "inplace/table_inplace.h"
#include "library.h"
#include "others.h"
#include "settings.h"

/* How long it waits for other transactions in one step of a run, in ms */
#define OTHERS_WAIT_MS	DEBUG_LIMIT(compaction_patience, 5000)

/* If a result can't be noted, as on a full disk, no table is taken for this time, an hour */
#define NO_NOTE_MS		DEBUG_LIMIT(compaction_hour, 3600 * 1000)

/* What the work at a table has come to */
typedef struct WorkResult
{
	CompactionOutcome outcome;	/* OUTCOME_NONE: of a sample that was taken */
	bool		was_begun;		/* else the table was locked when we came */
	double		size;			/* bytes before a run; -1: not known, or of a
								 * sample */
	char	   *error;			/* or NULL */
} WorkResult;

PGDLLEXPORT void pg_cyclone_compaction_worker(Datum arg);

static MemoryContext visit_context;

/* The table in hand, NULL if there is none, and since when */
static CompactionTable *in_hand = NULL;
static TimestampTz in_hand_since;

static void leave_place(int code, Datum arg);
static void note_end(int code, Datum arg);
static void visit_database(void);
static bool is_wanted(void);
static CompactionTable *next_table(void);
static void work_at_table(CompactionTable *table);
static void sample_table(CompactionTable *table);
static void compact_table(Oid relid, WorkResult *result);
static void run_vacuum(Oid relid);
static CompactionOutcome next_turn(Oid relid);
static void begin_turn(Oid relid);
static bool lock_whole_table(Oid relid, LOCKMODE mode);
static bool others_stay(Oid relid);
static double size_of_table(Oid relid);
static void note_run(CompactionTable *table, const WorkResult *result);

/* pg_cyclone_compaction_worker -- the entry of the process; arg is the database. */
void
pg_cyclone_compaction_worker(Datum arg)
{
	bool		is_free;

	refuse_without_preloading();
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	is_free = compaction_shared->pid == 0;
	if (is_free)
	{
		compaction_shared->pid = MyProcPid;
		compaction_shared->database = DatumGetObjectId(arg);
		begin_turn(InvalidOid);
	}
	LWLockRelease(compaction_shared->lock);
	if (!is_free)
		proc_exit(0);
	/* the last one comes first */
	before_shmem_exit(leave_place, (Datum) 0);
	before_shmem_exit(note_end, (Datum) 0);
	own_worker_begin(DatumGetObjectId(arg), 0);
	SetConfigOption("cyclone.index_wait", psprintf("%d", OTHERS_WAIT_MS), PGC_SUSET, PGC_S_OVERRIDE);
	visit_context = AllocSetContextCreate(TopMemoryContext, "Compaction worker", ALLOCSET_DEFAULT_SIZES);
	history_started_by_compaction();
	visit_database();
	proc_exit(0);
}

/* leave_place -- the process ends: the next one may begin, and reads what was noted. */
static void
leave_place(int code, Datum arg)
{
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	Assert(compaction_shared->pid == MyProcPid);
	compaction_shared->pid = 0;
	compaction_shared->relid = InvalidOid;
	LWLockRelease(compaction_shared->lock);
}

/*
 * note_end
 *		The process ends: at a table, by a shutdown or pg_terminate_backend, whose run counts as
 *		one that was stopped.
 */
static void
note_end(int code, Datum arg)
{
	const WorkResult result = {.outcome = OUTCOME_STOPPED,.was_begun = true,.size = -1};

	MemoryContextSwitchTo(TopMemoryContext);
	if (in_hand != NULL)
		note_run(in_hand, &result);
}

/* visit_database -- sample and compact the tables of this database, as far as is due. */
static void
visit_database(void)
{
	TimestampTz start = GetCurrentTimestamp();
	CompactionTable *table;
	bool		has_extension;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	has_extension = OidIsValid(get_extension_oid("pg_cyclone", true));
	compaction_states_tidy();
	CommitTransactionCommand();
	while (has_extension && is_wanted() &&
		   !TimestampDifferenceExceeds(start, GetCurrentTimestamp(), DEBUG_LIMIT(compaction_visit, COMPACTION_VISIT_MS)) &&
		   (table = next_table()) != NULL)
	{
		work_at_table(table);
		MemoryContextReset(visit_context);
	}
}

/* is_wanted -- is compaction on, and could the last result be noted? */
static bool
is_wanted(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	return cyclone_compaction && settings_enabled() &&
		GetCurrentTimestamp() >= (TimestampTz) pg_atomic_read_u64(&compaction_shared->not_before);
}

/*
 * next_table
 *		The table that is to be sampled or compacted next, in memory that lasts until that is
 *		done; NULL if there is none.
 */
static CompactionTable *
next_table(void)
{
	CompactionTable *found = NULL;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(visit_context);
	foreach_ptr(CompactionTable, table, compaction_tables())
	{
		CompactionReason reason = table->verdict.reason;

		if (reason != COMPACTION_NOT_SAMPLED && reason != COMPACTION_DUE)
			continue;
		/* of both kinds the one with the greatest figure, but samples come first */
		if (found == NULL ||
			(reason == found->verdict.reason ? table->verdict.figure > found->verdict.figure :
			 reason == COMPACTION_NOT_SAMPLED))
			found = table;
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(visit_context);
	return found;
}

/*
 * work_at_table
 *		Sample or compact a table, in transactions of their own, and note the result.  An error
 *		goes to the log, and into the result.
 *
 * An error releases the locks that are held for the session, as it comes in a transaction
 * (table_inplace.c).
 */
static void
work_at_table(CompactionTable *table)
{
	TableKey	key = {.database = MyDatabaseId,.relid = table->relid};
	WorkResult *result = palloc0_object(WorkResult);
	CompactionOutcome told_as;
	uint32		failures;

	Assert(!IsTransactionState());
	result->was_begun = true;
	result->size = -1;
	in_hand = table;
	in_hand_since = GetCurrentTimestamp();
	(void) next_turn(table->relid);
	PG_TRY();
	{
		(void) table_log_breaker_is_open(&key, &failures);
		if (!running_notes_begin(&key, failures))
			ereport(ERROR,
					(errcode(ERRCODE_IO_ERROR),
					 errmsg("there is no note on disk for the case of a crash")));
		if (table->verdict.reason == COMPACTION_NOT_SAMPLED)
			sample_table(table);
		else
			compact_table(table->relid, result);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(visit_context);
		HOLD_INTERRUPTS();
		EmitErrorReport();
		error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
		result->outcome = error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
			error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? OUTCOME_GAVE_WAY : OUTCOME_FAILED;
		result->error = error->message;
	}
	PG_END_TRY();
	running_notes_end();
	told_as = next_turn(InvalidOid);
	if (told_as != OUTCOME_NONE && result->outcome == OUTCOME_GAVE_WAY)
		result->outcome = told_as;
	if (told_as == OUTCOME_FAILED && result->outcome == OUTCOME_FAILED)
		result->error = "it took too long";
	MemoryContextSwitchTo(visit_context);
	debug_query_string = NULL;
	PortalContext = NULL;
	note_run(table, result);
	in_hand = NULL;
	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * sample_table
 *		Estimate what VACUUM (FULL INPLACE) would win of a table; without a figure if it is
 *		locked, or can't be read.  The outcome remains that of no run.
 */
static void
sample_table(CompactionTable *table)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, psprintf("sample of relation %u", table->relid));
	table->state.would_free = bloat_could_free(table->relid);
	table->state.sampled_at = GetCurrentTimestamp();
	table->state.sampled_bytes = table->facts.bytes;
	table->state.sampled_changes = table->facts.changes;
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * compact_table
 *		Run VACUUM, if the table can be locked at once, and no transaction is there that stays.
 *
 * As long as a transaction has the table open, neither can its end be cut off nor can
 * another index take the place of an old one.  So nothing is begun then.
 */
static void
compact_table(Oid relid, WorkResult *result)
{
	uint64		compacted = table_inplace_count();

	result->was_begun = false;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	if (lock_whole_table(relid, ShareUpdateExclusiveLock) && !others_stay(relid))
	{
		result->was_begun = true;
		result->size = size_of_table(relid);
	}
	CommitTransactionCommand();
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	compaction_shared->bytes = Max(result->size, 0);
	LWLockRelease(compaction_shared->lock);
	if (result->was_begun)
		run_vacuum(relid);
	/* another session may have locked it just then */
	result->was_begun = table_inplace_count() > compacted;
	result->outcome = result->was_begun ? OUTCOME_DONE : OUTCOME_GAVE_WAY;
}

/* run_vacuum -- the statement, as if a client had sent it. */
static void
run_vacuum(Oid relid)
{
	PlannedStmt *pstmt;
	VacuumStmt *stmt;
	char	   *name;
	char	   *sql;
	QueryCompletion qc;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	DEBUG_POINT("compaction-run");

	/*
	 * what the server makes for the statement outlives the transactions of
	 * VACUUM
	 */
	PortalContext = AllocSetContextCreate(visit_context, "Compaction portal", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(PortalContext);
	name = get_rel_name(relid);
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	sql = psprintf("VACUUM (FULL INPLACE, SKIP_LOCKED, ADAPTIVE_DELAY) %s",
				   quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), name));
	debug_query_string = sql;
	pgstat_report_activity(STATE_RUNNING, sql);
	stmt = castNode(VacuumStmt, linitial_node(RawStmt, raw_parser(sql, RAW_PARSE_DEFAULT))->stmt);
	/* its name may change */
	linitial_node(VacuumRelation, stmt->rels)->oid = relid;
	pstmt = makeNode(PlannedStmt);
	pstmt->commandType = CMD_UTILITY;
	pstmt->canSetTag = true;
	pstmt->utilityStmt = (Node *) stmt;

	InitializeQueryCompletion(&qc);
	ProcessUtility(pstmt, sql, false, PROCESS_UTILITY_TOPLEVEL, NULL, NULL, None_Receiver, &qc);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * next_turn
 *		Say that we are at this table, or at none; returns as what the launcher has ended the
 *		turn before, if it has.  A cancellation that has come since is of no use any more.
 */
static CompactionOutcome
next_turn(Oid relid)
{
	CompactionOutcome told_as;

	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	Assert(compaction_shared->pid == MyProcPid);
	told_as = compaction_shared->told_as;
	begin_turn(relid);
	LWLockRelease(compaction_shared->lock);
	QueryCancelPending = false;
	return told_as;
}

/* begin_turn -- in shared memory, under the lock. */
static void
begin_turn(Oid relid)
{
	compaction_shared->relid = relid;
	compaction_shared->started = GetCurrentTimestamp();
	compaction_shared->bytes = 0;
	compaction_shared->told = 0;
	compaction_shared->told_as = OUTCOME_NONE;
}

/*
 * lock_whole_table
 *		Lock a table and its TOAST table, and see that none of their indexes is locked against
 *		readers and writers, without waiting; false if that can't be done, or the table is gone.
 *
 * The owner of a table may lock one of its indexes alone, for as long as a transaction goes
 * on.  Autovacuum vacuums a TOAST table by itself, and a run without it may win next to
 * nothing.
 */
static bool
lock_whole_table(Oid relid, LOCKMODE mode)
{
	Relation	rel;
	Oid			toast;
	bool		are_locked = true;

	if (!ConditionalLockRelationOid(relid, mode))
		return false;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		return false;
	foreach_oid(index, RelationGetIndexList(rel))
		are_locked = are_locked && ConditionalLockRelationOid(index, Min(mode, RowExclusiveLock));
	toast = rel->rd_rel->reltoastrelid;
	relation_close(rel, NoLock);
	return are_locked && (!OidIsValid(toast) || lock_whole_table(toast, mode));
}

/* others_stay -- is there a transaction that has had the table open for longer than we wait? */
static bool
others_stay(Oid relid)
{
	return others_for_longer_than(others_with_lock(relid, AccessExclusiveLock),
								  OTHERS_WAIT_MS, false).end != OTHERS_GONE;
}

/* size_of_table -- the total size; -1 if the table is gone or somebody has locked a part of it. */
static double
size_of_table(Oid relid)
{
	return !lock_whole_table(relid, AccessShareLock) ? -1 :
		(double) DatumGetInt64(DirectFunctionCall1(pg_total_relation_size, ObjectIdGetDatum(relid)));
}

/*
 * note_run
 *		Note what a sample has shown, or how it or a run has ended, and when the table may be
 *		tried again.
 *
 * After a run the table is to be sampled again, unless another session had locked it when
 * we came.  A run that has freed little while a transaction had the table open all the time
 * gave way.
 */
static void
note_run(CompactionTable *table, const WorkResult *result)
{
	CompactionState *state = &table->state;
	CompactionRun run = {
		.outcome = result->outcome,
		.was_begun = result->was_begun,
		.expected = state->would_free,
		.pause = state->pause,
		.rested = table->rested
	};

	if (result->size >= 0)
	{
		double		size;

		StartTransactionCommand();
		size = size_of_table(table->relid);
		run.freed = size >= 0 ? result->size - size : 0;
		if (run.outcome == OUTCOME_DONE && run.freed < run.expected / 2 && others_stay(table->relid))
			run.outcome = OUTCOME_GAVE_WAY;
		CommitTransactionCommand();
		MemoryContextSwitchTo(visit_context);
	}
	if (run.outcome != OUTCOME_NONE)
	{
		state->outcome = run.outcome;
		state->ended_at = GetCurrentTimestamp();
		state->pause = compaction_pause(&run);
		state->freed = run.freed;
		state->total_freed += run.freed;
		state->seconds = (double) (state->ended_at - in_hand_since) / USECS_PER_SEC;
		strlcpy(state->error, result->error != NULL ? result->error : "", sizeof(state->error));
		if (run.was_begun)
			state->sampled_at = 0;
	}
	if (run.outcome == OUTCOME_DONE)
	{
		state->runs++;
		state->pace = state->seconds / Max(result->size, 1);
	}
	/* or nothing would keep the table from being tried again at once */
	if (!compaction_states_put(state))
		pg_atomic_write_u64(&compaction_shared->not_before,
							TimestampTzPlusMilliseconds(GetCurrentTimestamp(), NO_NOTE_MS));
}
