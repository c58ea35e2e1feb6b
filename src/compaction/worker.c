/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The process that compacts the tables of one database that are due.
 *
 * A visit: forget what is about dropped tables, sample those tables of which a sample
 * may show that they are due, and then, as long as there is one, compact the one that
 * is due first.  The view cyclone.compaction says which one that is, and is asked anew
 * each time.
 *
 * A table is compacted by a VACUUM statement, handed to ProcessUtility as if a client
 * had sent it.  So it does what the command does: with the same hooks around it, and
 * with the locks and the rights of the command, which works as the table's owner.  It
 * doesn't wait for the table's lock.  An error ends the work at that table, and goes to
 * the log.
 *
 * The worker notes in cyclone.compaction_state that VACUUM begins, and that it is done,
 * each in a transaction of its own.  A run that has begun and not ended, with no worker
 * at it, was killed, or the server with it.  Its table has to wait for a while, or it could
 * bring the server down again and again.  By a note on disk the crash counts among
 * those for which autovacuum leaves a table, or all, to PostgreSQL (running_notes.c).
 * A run that the server's shutdown has ended is one that was stopped.
 *
 * While VACUUM works, or pages are read for a sample, none of the extension's objects is
 * locked (objects.c), so the extension can be dropped or updated at any time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "executor/instrument.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parser.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "autovacuum/running_notes.h"
#include "autovacuum/table_log.h"
#include "bloat/bloat.h"
#include "compaction/compaction.h"
#include "compaction/decision.h"
#include "compaction/objects.h"
#include "compaction/table_locks.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "history/history.h"
#include "inplace/table_inplace.h"
#include "library.h"
#include "own_worker.h"
#include "scope.h"
#include "settings.h"

/* The most tables that are sampled in a visit */
#define MAX_SAMPLES		20

/* A table that is sampled or due */
typedef struct Table
{
	Oid			relid;
	char	   *name;			/* with its schema, in quotes where it needs
								 * them */
	char	   *latency_target;
	double		would_win;		/* bytes */
	double		cooldown;		/* seconds */
	TimestampTz must_end;		/* 0: never */
	bool		has_usual_hours;	/* cyclone.compaction_window's */
	int			backoff;
	double		since_last;		/* seconds since the last complete run; -1:
								 * there was none */
	int64		size;			/* bytes; -1: not known */
	bool		is_locked;		/* by another session */
	bool		is_skipped;		/* by VACUUM, as it was locked meanwhile */
	const char *why_not;		/* it can't be compacted, or NULL */
} Table;

/* How the run at a table ended */
typedef struct RunResult
{
	CompactionOutcome outcome;
	char	   *error;			/* or NULL */
	double		seconds;
	int64		won;
	int64		wal;
} RunResult;

PGDLLEXPORT void pg_cyclone_compaction_worker(Datum arg);

static CompactionSlot *slot;
static MemoryContext visit_context;
static WalUsage wal_counted;	/* up to here */
static uint64 wal_of_table;		/* at the table in hand, or the last one */

static bool take_slot(int number, Oid *database);
static void leave_slot(int code, Datum arg);
static void visit(void);
static bool is_wanted(void);
static void tidy_up(void);
static List *tables_to_sample(bool *is_any_due);
static void sample_table(Table *table);
static void prepare_sample(Table *table);
static void read_sample(Table *table);
static void note_sample(const Table *table);
static Table *next_due(void);
static void read_hours(Table *table, HeapTuple row, TupleDesc desc, int hours, int window_ends);
static double double_of(HeapTuple row, TupleDesc desc, int column, double otherwise);
static void compact_table(Table *table);
static void prepare_run(Table *table);
static const char *why_not_possible(Oid relid);
static void run(Table *table, void (*routine) (Table *), RunResult *result);
static void measure(const Table *table, TimestampTz start, RunResult *result);
static void run_vacuum(Table *table);
static void at_table(const Table *table);
static bool at_no_table(void);
static void count_wal(void);
static int64 size_of(Oid relid);
static void note_begin(const Table *table);
static void note_end(const Table *table, const RunResult *result);
static void note_locked(const Table *table);

/* pg_cyclone_compaction_worker -- the entry of the process; arg is the number of its slot. */
void
pg_cyclone_compaction_worker(Datum arg)
{
	Oid			database;

	refuse_without_preloading();
	if (!take_slot(DatumGetInt32(arg), &database))
		proc_exit(0);
	own_worker_begin(database, 0);
	visit_context = AllocSetContextCreate(TopMemoryContext, "Compaction worker", ALLOCSET_DEFAULT_SIZES);
	history_started_by_compaction();
	visit();
	proc_exit(0);
}

/* take_slot -- returns false if another worker has it, or the database isn't to be visited any more. */
static bool
take_slot(int number, Oid *database)
{
	bool		is_free;

	Assert(number >= 0 && number < COMPACTION_MAX_WORKERS);
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	slot = &compaction_shared->slots[number];
	*database = slot->database;
	is_free = slot->pid == 0 && OidIsValid(*database);
	/* tidy_up relies on being alone in the database */
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
		is_free &= compaction_shared->slots[i].pid == 0 || compaction_shared->slots[i].database != *database;
	if (is_free)
	{
		slot->pid = MyProcPid;
		slot->relid = InvalidOid;
		pg_atomic_fetch_add_u32(&compaction_shared->workers, 1);
	}
	else if (slot->pid == 0)
	{
		/* no worker comes any more, so the launcher can have it at once */
		slot->launched = 0;
		slot->database = InvalidOid;
	}
	LWLockRelease(compaction_shared->lock);
	if (is_free)
		before_shmem_exit(leave_slot, (Datum) 0);
	return is_free;
}

/* leave_slot -- when the process ends. */
static void
leave_slot(int code, Datum arg)
{
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	Assert(slot->pid == MyProcPid);
	if (OidIsValid(slot->relid))
		count_wal();
	slot->pid = 0;
	slot->launched = 0;
	slot->database = slot->relid = InvalidOid;
	pg_atomic_fetch_sub_u32(&compaction_shared->workers, 1);
	LWLockRelease(compaction_shared->lock);
}

/* visit -- sample and compact the tables of this database, as far as is due. */
static void
visit(void)
{
	TimestampTz start = GetCurrentTimestamp();
	List	   *tables;
	bool		is_any_due;
	Table	   *table;

	if (!is_wanted())
		return;
	tidy_up();
	tables = tables_to_sample(&is_any_due);
	foreach_ptr(Table, one, tables)
	{
		if (!is_wanted())
			return;
		sample_table(one);
	}
	/* mostly there is nothing to do, and the view is all that a visit costs */
	if (tables == NIL && !is_any_due)
		return;
	while (is_wanted() && !TimestampDifferenceExceeds(start, GetCurrentTimestamp(), COMPACTION_VISIT_MS) &&
		   (table = next_due()) != NULL)
		compact_table(table);
}

/* is_wanted -- is compaction on? */
static bool
is_wanted(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	return cyclone_compaction && settings_enabled();
}

/*
 * tidy_up
 *		Forget dropped tables, and note how runs have ended that have not said so, as we are
 *		alone here: they were stopped by a shutdown of the server, or else killed.
 */
static void
tidy_up(void)
{
	Oid			types[] = {BOOLOID};
	Datum		values[] = {BoolGetDatum(compaction_shared->was_shut_down)};

	objects_begin(OBJECTS_SOON_MS);
	objects_run_sql("DELETE FROM cyclone.compaction_state s"
					" WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s.relid)",
					0, NULL, NULL, NULL);
	/* a row may be an open transaction's: its table's owner writes it */
	objects_run_sql("DELETE FROM cyclone.compaction_policies p WHERE p.relation IN"
					" (SELECT q.relation FROM cyclone.compaction_policies q WHERE q.relation IS NOT NULL"
					" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = q.relation) FOR UPDATE SKIP LOCKED)",
					0, NULL, NULL, NULL);
	objects_run_sql("UPDATE cyclone.compaction_state SET ended_at = now(), began_at = NULL, error = NULL,"
					" outcome = CASE WHEN $1 AND began_at < pg_postmaster_start_time() THEN 'stopped' ELSE 'killed' END,"
					" failures = failures + CASE WHEN $1 AND began_at < pg_postmaster_start_time() THEN 0 ELSE 1 END"
					" WHERE began_at IS NOT NULL",
					1, types, values, NULL);

	/*
	 * if the clock was set back, a pause would last for as long as it was
	 * wrong
	 */
	objects_run_sql("UPDATE cyclone.compaction_state SET ended_at = least(ended_at, now()),"
					" done_at = least(done_at, now()), sampled_at = least(sampled_at, now())"
					" WHERE greatest(ended_at, done_at, sampled_at) > now() + interval '1 minute'",
					0, NULL, NULL, NULL);
	objects_end();
}

/*
 * tables_to_sample
 *		List the tables of which a sample may show that they are due, the largest
 *		first.  *is_any_due says whether one is due already.
 */
static List *
tables_to_sample(bool *is_any_due)
{
	List	   *tables = NIL;

	*is_any_due = false;
	objects_begin(OBJECTS_SOON_MS);
	objects_run_sql("SELECT relation::oid, reason = 'due', hours, window_ends FROM cyclone.compaction_details"
					" WHERE reason IN ('not sampled yet', 'due') ORDER BY size DESC",
					0, NULL, NULL, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		MemoryContext old = MemoryContextSwitchTo(visit_context);
		bool		is_null;

		if (DatumGetBool(SPI_getbinval(row, desc, 2, &is_null)))
			*is_any_due = true;
		else if (list_length(tables) < MAX_SAMPLES)
		{
			Table	   *table = palloc0_object(Table);

			table->relid = DatumGetObjectId(SPI_getbinval(row, desc, 1, &is_null));
			table->size = -1;
			table->since_last = -1;
			read_hours(table, row, desc, 3, 4);
			tables = lappend(tables, table);
		}
		MemoryContextSwitchTo(old);
	}
	objects_end();
	return tables;
}

/*
 * sample_table
 *		Estimate what VACUUM (FULL INPLACE) would win of a table, and note it.
 *
 * A session that wants the table ends the sample.  So does the end of the window.
 */
static void
sample_table(Table *table)
{
	RunResult	result = {.outcome = OUTCOME_DONE};

	Assert(OidIsValid(table->relid));
	run(table, prepare_sample, &result);
	if (result.outcome == OUTCOME_DONE)
		run(table, read_sample, &result);
	HOLD_CANCEL_INTERRUPTS();
	if (result.outcome == OUTCOME_DONE)
		note_sample(table);
	else
		note_end(table, &result);
	QueryCancelPending = false;
	RESUME_CANCEL_INTERRUPTS();
}

/* prepare_sample -- note that it begins. */
static void
prepare_sample(Table *table)
{
	objects_begin(OBJECTS_SOON_MS);
	note_begin(table);
	objects_end();
}

/* read_sample -- read the pages; without a figure if the table is locked, or can't be read. */
static void
read_sample(Table *table)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, psprintf("sample of relation %u", table->relid));
	table->would_win = bloat_could_win(table->relid);
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* note_sample -- note its result. */
static void
note_sample(const Table *table)
{
	Oid			types[] = {OIDOID, FLOAT8OID};
	Datum		values[] = {ObjectIdGetDatum(table->relid), Float8GetDatum(table->would_win)};

	objects_begin(OBJECTS_LATE_MS);
	objects_run_sql("INSERT INTO cyclone.compaction_state AS s (relid, sampled_at, sampled_size, sampled_changes, would_win)"
					" SELECT relation, now(), size, changes, CASE WHEN $2 >= 0 THEN $2 END FROM cyclone.compaction_details WHERE relation = $1"
					" ON CONFLICT (relid) DO UPDATE SET began_at = NULL, sampled_at = excluded.sampled_at, sampled_size = excluded.sampled_size,"
					" sampled_changes = excluded.sampled_changes, would_win = excluded.would_win",
					2, types, values, NULL);
	objects_end();
}

/* next_due -- the table that is to be compacted next; NULL if none is due. */
static Table *
next_due(void)
{
	Table	   *table = NULL;

	objects_begin(OBJECTS_SOON_MS);
	objects_run_sql("SELECT k.relation::oid, format('%I.%I', n.nspname, c.relname), k.latency_target,"
					" k.would_win::float8, date_part('epoch', k.cooldown), k.window_ends,"
					" s.backoff::float8,"
					" date_part('epoch', now() - s.done_at), k.hours"
					" FROM cyclone.compaction_details k JOIN pg_class c ON c.oid = k.relation"
					" JOIN pg_namespace n ON n.oid = c.relnamespace"
					" LEFT JOIN cyclone.compaction_state s ON s.relid = c.oid"
					" WHERE k.reason = 'due' ORDER BY k.figure DESC LIMIT 1",
					0, NULL, NULL, NULL);
	if (SPI_processed > 0)
	{
		MemoryContext old = MemoryContextSwitchTo(visit_context);
		HeapTuple	row = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		is_null;

		table = palloc0_object(Table);
		table->relid = DatumGetObjectId(SPI_getbinval(row, desc, 1, &is_null));
		table->name = TextDatumGetCString(SPI_getbinval(row, desc, 2, &is_null));
		table->latency_target = TextDatumGetCString(SPI_getbinval(row, desc, 3, &is_null));
		table->would_win = double_of(row, desc, 4, 0);
		table->cooldown = double_of(row, desc, 5, 0);
		table->backoff = (int) double_of(row, desc, 7, 0);
		table->since_last = double_of(row, desc, 8, -1);
		read_hours(table, row, desc, 9, 6);
		MemoryContextSwitchTo(old);
	}
	objects_end();
	return table;
}

/* read_hours -- when its window ends, by these columns of a row. */
static void
read_hours(Table *table, HeapTuple row, TupleDesc desc, int hours, int window_ends)
{
	bool		is_null;
	Datum		value = SPI_getbinval(row, desc, window_ends, &is_null);

	table->must_end = is_null ? 0 : DatumGetTimestampTz(value);
	table->has_usual_hours =
		strcmp(TextDatumGetCString(SPI_getbinval(row, desc, hours, &is_null)), cyclone_compaction_window) == 0;
}

/* double_of -- a column of a row; the last argument if it is null. */
static double
double_of(HeapTuple row, TupleDesc desc, int column, double otherwise)
{
	bool		is_null;
	Datum		value = SPI_getbinval(row, desc, column, &is_null);

	return is_null ? otherwise : DatumGetFloat8(value);
}

/*
 * compact_table
 *		Compact one table, and note the result.
 *
 * A cancellation that comes when it is done is of no use any more: it is held off until
 * the end is noted, and then forgotten.
 */
static void
compact_table(Table *table)
{
	RunResult	result = {.outcome = OUTCOME_DONE};
	TimestampTz start = GetCurrentTimestamp();
	bool		is_prepared;

	Assert(table->name != NULL && table->latency_target != NULL);
	run(table, prepare_run, &result);
	is_prepared = result.outcome == OUTCOME_DONE && !table->is_locked && table->why_not == NULL;
	if (is_prepared)
	{
		run(table, run_vacuum, &result);
		table->is_locked = result.outcome == OUTCOME_DONE && table->is_skipped;
	}
	else if (table->why_not != NULL)
	{
		result.outcome = OUTCOME_FAILED;
		result.error = pstrdup(_(table->why_not));
	}
	HOLD_CANCEL_INTERRUPTS();
	if (is_prepared)
		measure(table, start, &result);
	if (table->is_locked && result.outcome == OUTCOME_DONE)
		note_locked(table);
	else
		note_end(table, &result);
	QueryCancelPending = false;
	RESUME_CANCEL_INTERRUPTS();
}

/* prepare_run -- look at the table once more, and, if it can be compacted, note that a run begins. */
static void
prepare_run(Table *table)
{
	table->size = -1;
	objects_begin(OBJECTS_SOON_MS);
	table->is_locked = !compaction_lock_table(table->relid, ShareUpdateExclusiveLock);
	if (!table->is_locked)
		table->why_not = why_not_possible(table->relid);
	if (!table->is_locked && table->why_not == NULL)
		note_begin(table);
	objects_end();
	table->size = size_of(table->relid);
}

/* why_not_possible -- why the table, which is locked, can't be compacted; NULL if it can. */
static const char *
why_not_possible(Oid relid)
{
	Relation	rel = try_relation_open(relid, NoLock);
	const char *why_not = NULL;

	if (rel == NULL)
		return gettext_noop("The table is gone.");
	if (rel->rd_tableam == NULL || rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		why_not = gettext_noop("It is not a heap.");
	else if (!scope_has_table(rel))
		why_not = gettext_noop("It is left to PostgreSQL, by cyclone.databases or cyclone.tables.");
	else
		(void) table_inplace_is_possible(rel, &why_not);
	relation_close(rel, NoLock);
	return why_not;
}

/*
 * run
 *		Run a routine at a table, in transactions of its own.  An error goes to the log,
 *		and into the result.
 *
 * An error releases the locks that are held for the session, as it comes in a transaction
 * (table_inplace.c).
 */
static void
run(Table *table, void (*routine) (Table *), RunResult *result)
{
	TableKey	key = {.database = MyDatabaseId,.relid = table->relid};
	uint32		failures;

	Assert(!IsTransactionState());

	(void) table_log_breaker_is_open(&key, &failures);
	if (!running_notes_begin(&key, failures))
	{
		result->outcome = OUTCOME_FAILED;
		result->error = pstrdup(_("There is no note on disk for the case of a crash."));
		return;
	}
	at_table(table);
	PG_TRY();
	{
		routine(table);
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
		result->outcome = error->sqlerrcode == ERRCODE_QUERY_CANCELED ? OUTCOME_GAVE_WAY : OUTCOME_FAILED;
		result->error = error->message;
	}
	PG_END_TRY();
	running_notes_end();
	if (at_no_table() && result->outcome == OUTCOME_GAVE_WAY)
		result->outcome = OUTCOME_STOPPED;
	MemoryContextSwitchTo(visit_context);
	debug_query_string = NULL;
	if (PortalContext != NULL)
		MemoryContextDelete(PortalContext);
	PortalContext = NULL;
}

/* run_vacuum -- the statement, as if a client had sent it. */
static void
run_vacuum(Table *table)
{
	PlannedStmt *pstmt;
	VacuumStmt *stmt;
	char	   *sql;
	QueryCompletion qc;
	uint64		compacted = table_inplace_count();

	Assert(!IsTransactionState());
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	DEBUG_POINT("compaction-run");

	/*
	 * what the server makes for the statement outlives the transactions of
	 * VACUUM
	 */
	PortalContext = AllocSetContextCreate(visit_context, "Compaction portal", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(PortalContext);
	sql = psprintf("VACUUM (FULL INPLACE, SKIP_LOCKED, LATENCY_TARGET %s) %s",
				   quote_literal_cstr(table->latency_target), table->name);
	debug_query_string = sql;
	pgstat_report_activity(STATE_RUNNING, sql);
	stmt = castNode(VacuumStmt, linitial_node(RawStmt, raw_parser(sql, RAW_PARSE_DEFAULT))->stmt);
	/* its name may have changed */
	linitial_node(VacuumRelation, stmt->rels)->oid = table->relid;
	pstmt = makeNode(PlannedStmt);
	pstmt->commandType = CMD_UTILITY;
	pstmt->canSetTag = true;
	pstmt->utilityStmt = (Node *) stmt;

	InitializeQueryCompletion(&qc);
	ProcessUtility(pstmt, sql, false, PROCESS_UTILITY_TOPLEVEL, NULL, NULL, None_Receiver, &qc);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	table->is_skipped = table_inplace_count() == compacted;
}

/* at_table -- say that we are at this table, and when we have to leave it. */
static void
at_table(const Table *table)
{
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	Assert(slot->pid == MyProcPid && !OidIsValid(slot->relid));
	slot->relid = table->relid;
	slot->started = GetCurrentTimestamp();
	slot->must_end = table->must_end;
	slot->has_usual_hours = table->has_usual_hours;
	slot->stopped = false;
	LWLockRelease(compaction_shared->lock);
	wal_counted = pgWalUsage;
	(void) guards_take_wal();
}

/* at_no_table -- say that we are at none; returns whether the launcher has stopped us. */
static bool
at_no_table(void)
{
	bool		was_stopped;

	Assert(slot->pid == MyProcPid);
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	slot->relid = InvalidOid;
	was_stopped = slot->stopped;
	count_wal();
	LWLockRelease(compaction_shared->lock);
	return was_stopped;
}

/*
 * count_wal
 *		What was written at a table is the day's.  Under the lock.
 *
 * What the workers of VACUUM have written is ours only if no error has ended it.  The guards
 * know of theirs at any time, but of nothing besides VACUUM.
 */
static void
count_wal(void)
{
	uint64		by_vacuum = guards_take_wal();
	WalUsage	written = {0};

	WalUsageAccumDiff(&written, &pgWalUsage, &wal_counted);
	wal_of_table = Max(written.wal_bytes, by_vacuum);
	compaction_wal_add(wal_of_table);
}

/* measure -- the figures of a run. */
static void
measure(const Table *table, TimestampTz start, RunResult *result)
{
	int64		size = size_of(table->relid);

	result->won = table->size >= 0 && size >= 0 ? table->size - size : 0;
	result->seconds = (double) (GetCurrentTimestamp() - start) / USECS_PER_SEC;
	result->wal = (int64) wal_of_table;
}

/* size_of -- the total size; -1 if the table is gone or somebody has locked a part of it.  Outside of any transaction. */
static int64
size_of(Oid relid)
{
	int64		size = -1;

	StartTransactionCommand();
	if (compaction_lock_table(relid, AccessShareLock))
		size = DatumGetInt64(DirectFunctionCall1(pg_total_relation_size, ObjectIdGetDatum(relid)));
	CommitTransactionCommand();
	MemoryContextSwitchTo(visit_context);
	return size;
}

/* note_begin -- note that work at it begins, by which a crash is recognized. */
static void
note_begin(const Table *table)
{
	Oid			types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(table->relid)};

	objects_run_sql("INSERT INTO cyclone.compaction_state (relid, began_at) VALUES ($1, now())"
					" ON CONFLICT (relid) DO UPDATE SET began_at = excluded.began_at",
					1, types, values, NULL);
}

/*
 * note_end
 *		Note how the run has ended.  The table is to be sampled again.
 */
static void
note_end(const Table *table, const RunResult *result)
{
	bool		is_done = result->outcome == OUTCOME_DONE;
	bool		is_failure = is_done ? false :
		result->outcome == OUTCOME_STOPPED ? compaction_stop_was_in_vain((double) result->won, result->seconds) :
		result->outcome == OUTCOME_GAVE_WAY ? result->won <= 0 : true;
	Oid			types[] = {OIDOID, TEXTOID, TEXTOID, INT8OID, FLOAT8OID, INT8OID, INT8OID, INT4OID, BOOLOID, BOOLOID};
	Datum		values[] = {
		ObjectIdGetDatum(table->relid),
		CStringGetTextDatum(compaction_outcome_name(result->outcome)),
		result->error != NULL ? CStringGetTextDatum(result->error) : (Datum) 0,
		Int64GetDatum(result->won),
		Float8GetDatum(result->seconds),
		Int64GetDatum(result->wal),
		Int64GetDatum(table->size),
		Int32GetDatum(compaction_backoff(table->backoff, (double) result->won, table->would_win,
										 table->since_last, table->cooldown)),
		BoolGetDatum(is_done),
		BoolGetDatum(is_failure),
	};
	char		nulls[lengthof(types) + 1] = "          ";

	if (result->error == NULL)
		nulls[2] = 'n';
	objects_begin(OBJECTS_LATE_MS);
	objects_run_sql("INSERT INTO cyclone.compaction_state AS s"
					" (relid, ended_at, outcome, error, won, seconds, wal, runs, total_won, failures, backoff, done_at,"
					" last_seconds, last_size)"
					" VALUES ($1, now(), $2, $3, $4, $5, $6, CASE WHEN $9 THEN 1 ELSE 0 END, $4, CASE WHEN $10 THEN 1 ELSE 0 END,"
					" CASE WHEN $9 THEN $8 ELSE 0 END, CASE WHEN $9 THEN now() END,"
					" CASE WHEN $9 THEN $5 END, CASE WHEN $9 THEN $7 END)"
					" ON CONFLICT (relid) DO UPDATE SET began_at = NULL, ended_at = excluded.ended_at,"
					" outcome = excluded.outcome, error = excluded.error, won = excluded.won, seconds = excluded.seconds,"
					" wal = excluded.wal, runs = s.runs + excluded.runs,"
					" total_won = s.total_won + excluded.total_won,"
					" failures = CASE WHEN $10 THEN s.failures + 1 WHEN $9 OR excluded.won > 0 THEN 0 ELSE s.failures END,"
					" backoff = CASE WHEN $9 THEN excluded.backoff ELSE s.backoff END,"
					" done_at = coalesce(excluded.done_at, s.done_at),"
					" last_seconds = coalesce(excluded.last_seconds, s.last_seconds),"
					" last_size = coalesce(excluded.last_size, s.last_size), sampled_at = NULL, would_win = NULL",
					lengthof(types), types, values, nulls);
	objects_end();
}

/*
 * note_locked
 *		Note that another session had locked the table when the run was to begin.  The
 *		sample is as good as before.  That is no failure, by which the pause would double:
 *		autovacuum may be at a table each time that we come.
 */
static void
note_locked(const Table *table)
{
	Oid			types[] = {OIDOID, TEXTOID};
	Datum		values[] = {
		ObjectIdGetDatum(table->relid),
		CStringGetTextDatum(compaction_outcome_name(OUTCOME_GAVE_WAY))
	};

	objects_begin(OBJECTS_LATE_MS);
	objects_run_sql("UPDATE cyclone.compaction_state SET began_at = NULL, ended_at = now(), outcome = $2, error = NULL"
					" WHERE relid = $1",
					2, types, values, NULL);
	objects_end();
}
