/*-------------------------------------------------------------------------
 *
 * tables.c
 *	  The tables of a database, each with the decision on it, and the view of them.
 *
 * The worker does what is decided here, and the view cyclone.compaction shows it.
 * Facts come from the catalogs, the counters, the table's label and what is remembered of
 * it.  Sizes are those that the last VACUUM or ANALYZE has left in pg_class.  A table with
 * its TOAST table and the indexes of both is put together in one pass over pg_class and one
 * over pg_index, so that no relation is opened or locked.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "autovacuum/table_log.h"
#include "bloat/bloat.h"
#include "compaction/compaction.h"
#include "debug_point.h"
#include "horizon/horizon.h"
#include "inplace/subscription.h"
#include "library.h"
#include "scope.h"
#include "server_check.h"
#include "settings.h"

/* So many kilobytes must be freed at least */
#define LEAST_KB	(128 * 1024)

/* A transaction that holds the horizon for longer than that is likely to stay. */
#define HELD_MS		300000

#define HOUR_MS		3600000

#define VIEW_COLUMNS	19

/* A relation of pg_class */
typedef struct RelationSize
{
	Oid			relid;			/* the key */
	Oid			toast;			/* its TOAST table, if any */
	double		pages;			/* with its indexes, when those are added */
	double		rows;
	bool		is_table;		/* that may be compacted */
} RelationSize;

/* Facts that are the same for all tables */
typedef struct CommonFacts
{
	TimestampTz now;
	CompactionStates states;
	CompactionFacts facts;
	Oid			running;		/* the table that the worker is at, if any */
	TimestampTz running_since;
} CommonFacts;

PG_FUNCTION_INFO_V1(pg_cyclone_compaction_rows);

static void put_row(const CompactionTable *table, ReturnSetInfo *result);
static HTAB *read_sizes(void);
static void add_indexes(HTAB *sizes);
static void gather_common(CommonFacts *common);
static double horizon_held_since(TimestampTz now);
static CompactionTable *judge_table(const RelationSize *size, double pages, const CommonFacts *common);
static bool breaker_is_open(Oid relid);
static void read_state(CompactionTable *table, const CommonFacts *common);
static double pause_seconds(TimestampTz since, TimestampTz now);

/* pg_cyclone_compaction_rows -- a row for each table that the user may see. */
Datum
pg_cyclone_compaction_rows(PG_FUNCTION_ARGS)
{
	server_refuse_if_unfit("cyclone.compaction");
	library_begin_rows(fcinfo, VIEW_COLUMNS);
	foreach_ptr(CompactionTable, table, compaction_tables())
		put_row(table, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* put_row -- hand a row to the executor, its columns in their order. */
static void
put_row(const CompactionTable *table, ReturnSetInfo *result)
{
	const CompactionVerdict *verdict = &table->verdict;
	const CompactionState *state = &table->state;
	const CompactionReasonText *text = &compaction_reasons[verdict->reason];
	bool		has_figure = !isnan(verdict->figure);
	bool		is_due = verdict->reason == COMPACTION_DUE;
	bool		is_to_wait = verdict->reason == COMPACTION_PAUSE || verdict->reason == COMPACTION_WINDOW;
	bool		has_run = state->ended_at != 0;
	TimestampTz now = GetCurrentTimestamp();
	Datum		values[VIEW_COLUMNS];
	bool		nulls[VIEW_COLUMNS];
	int			i = 0;

#define PUT(is_there, value) (nulls[i] = !(is_there), values[i] = nulls[i] ? (Datum) 0 : (value), i++)
	PUT(true, ObjectIdGetDatum(table->relid));
	PUT(true, CStringGetTextDatum(text->name));
	PUT(has_figure, Float8GetDatum(verdict->figure));
	PUT(has_figure, CStringGetTextDatum(text->unit));
	PUT(is_due || (is_to_wait && has_figure),
		TimestampTzGetDatum(is_due ? now : now + (TimestampTz) (verdict->figure * USECS_PER_SEC)));
	PUT(true, Int64GetDatum((int64) table->facts.bytes));
	PUT(state->sampled_at != 0 && state->would_free >= 0, Int64GetDatum((int64) state->would_free));
	PUT(state->sampled_at != 0, TimestampTzGetDatum(state->sampled_at));
	PUT(table->facts.is_running,
		TimestampTzGetDatum(now - (TimestampTz) (table->facts.running_since * USECS_PER_SEC)));
	PUT(has_run, TimestampTzGetDatum(state->ended_at));
	PUT(has_run, CStringGetTextDatum(compaction_outcome_name(state->outcome)));
	PUT(has_run, Int64GetDatum((int64) state->freed));
	PUT(has_run, Float8GetDatum(state->seconds));
	PUT(true, Int64GetDatum(state->runs));
	PUT(true, Int64GetDatum((int64) state->total_freed));
	PUT(has_run, Float8GetDatum(state->pause));
	PUT(table->label != NULL, CStringGetTextDatum(table->label));
	PUT(true, Float8GetDatum(table->facts.threshold));
	PUT(state->error[0] != '\0', CStringGetTextDatum(state->error));
#undef PUT
	Assert(i == VIEW_COLUMNS);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* compaction_tables -- see compaction.h. */
List *
compaction_tables(void)
{
	HTAB	   *sizes = read_sizes();
	List	   *tables = NIL;
	CommonFacts common;
	HASH_SEQ_STATUS scan;
	RelationSize *size;

	add_indexes(sizes);
	gather_common(&common);
	hash_seq_init(&scan, sizes);
	while ((size = hash_seq_search(&scan)) != NULL)
	{
		RelationSize *toast;

		if (!size->is_table || !bloat_may_be_told(size->relid))
			continue;
		toast = OidIsValid(size->toast) ? hash_search(sizes, &size->toast, HASH_FIND, NULL) : NULL;
		tables = lappend(tables, judge_table(size, size->pages + (toast != NULL ? toast->pages : 0), &common));
	}
	hash_destroy(sizes);
	return tables;
}

/* read_sizes -- all relations of pg_class that have pages. */
static HTAB *
read_sizes(void)
{
	HASHCTL		control = {.keysize = sizeof(Oid),.entrysize = sizeof(RelationSize),.hcxt = CurrentMemoryContext};
	HTAB	   *sizes = hash_create("sizes of relations", 1024, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);
		RelationSize *size;

		if (!RELKIND_HAS_STORAGE(form->relkind) || form->relkind == RELKIND_SEQUENCE)
			continue;
		size = hash_search(sizes, &form->oid, HASH_ENTER, NULL);
		size->toast = form->reltoastrelid;
		size->pages = (BlockNumber) form->relpages;
		size->rows = Max(form->reltuples, 0);
		size->is_table = (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW) &&
			form->relpersistence != RELPERSISTENCE_TEMP && form->oid >= FirstNormalObjectId;
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return sizes;
}

/* add_indexes -- to the sizes of their tables. */
static void
add_indexes(HTAB *sizes)
{
	Relation	pg_index = table_open(IndexRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_index, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);
		RelationSize *index = hash_search(sizes, &form->indexrelid, HASH_FIND, NULL);
		RelationSize *table = hash_search(sizes, &form->indrelid, HASH_FIND, NULL);

		if (index != NULL && table != NULL)
			table->pages += index->pages;
	}
	systable_endscan(scan);
	table_close(pg_index, AccessShareLock);
}

/* gather_common -- find out what is the same for all tables. */
static void
gather_common(CommonFacts *common)
{
	common->now = GetCurrentTimestamp();
	common->states = compaction_states_read();
	common->facts = (CompactionFacts) {
		.is_standby = RecoveryInProgress(),
		.is_on = cyclone_compaction && settings_enabled(),
		.least = DEBUG_LIMIT(compaction_least, LEAST_KB) * 1024.0,
		.held_since = horizon_held_since(common->now),
		.window_opens = compaction_opens_in(common->now)
	};
	LWLockAcquire(compaction_shared->lock, LW_SHARED);
	common->running = compaction_shared->database == MyDatabaseId ? compaction_shared->relid : InvalidOid;
	common->running_since = compaction_shared->started;
	LWLockRelease(compaction_shared->lock);
}

/*
 * horizon_held_since
 *		For how many seconds a holder that is likely to stay has kept VACUUM from
 *		removing rows of this database's tables; 0 if there is none.
 *
 * A connected standby doesn't count: it needs rows for as long as its queries run, and
 * how long that is isn't known here.
 */
static double
horizon_held_since(TimestampTz now)
{
	double		longest = 0;

	if (RecoveryInProgress())
		return 0;
	foreach_ptr(HorizonHolder, holder, horizon_holders(BOOTSTRAP_SUPERUSERID))
	{
		double		seconds = (double) (now - holder->since) / USECS_PER_SEC;
		bool		is_standbys = holder->kind == HOLDER_STANDBY ||
			(holder->kind == HOLDER_SLOT && holder->pid != 0);

		if (holder->since != 0 && !is_standbys && holder->pid != MyProcPid &&
			TransactionIdIsValid(horizon_of(holder, SCOPE_DATABASE, MyDatabaseId)) &&
			seconds * 1000 >= DEBUG_LIMIT(compaction_held, HELD_MS))
			longest = Max(longest, seconds);
	}
	return longest;
}

/*
 * judge_table -- gather what is known of one, and decide.
 *
 * Subscriptions are looked for only if it is large enough to be compacted, as that is a
 * look at catalogs for each table.
 */
static CompactionTable *
judge_table(const RelationSize *size, double pages, const CommonFacts *common)
{
	CompactionTable *table = palloc0_object(CompactionTable);
	CompactionFacts *facts = &table->facts;
	PgStat_StatTabEntry *counters;

	table->relid = size->relid;
	table->facts = common->facts;
	table->label = compaction_label_of(size->relid, &facts->is_wanted, &facts->threshold);
	facts->bytes = pages * BLCKSZ;
	facts->rows = size->rows;
	facts->is_left = !scope_has(size->relid) ||
		(facts->bytes >= facts->least && subscription_writes_to(size->relid));
	facts->breaker_is_open = table_log_all_are_left() || breaker_is_open(size->relid) || breaker_is_open(size->toast);
	counters = pgstat_fetch_stat_tabentry(table->relid);
	facts->changes = counters == NULL ? 0 :
		(double) (counters->tuples_updated + counters->tuples_deleted);
	read_state(table, common);
	facts->is_running = common->running == size->relid;
	facts->running_since = (double) (common->now - common->running_since) / USECS_PER_SEC;
	table->verdict = compaction_decide(facts);
	return table;
}

/* breaker_is_open -- that of autovacuum for a table, or a TOAST table, if there is one. */
static bool
breaker_is_open(Oid relid)
{
	TableKey	key = {.database = MyDatabaseId,.relid = relid};
	uint32		failures;

	return OidIsValid(relid) && table_log_breaker_is_open(&key, &failures);
}

/* read_state -- what is remembered of it. */
static void
read_state(CompactionTable *table, const CommonFacts *common)
{
	CompactionFacts *facts = &table->facts;
	const CompactionState *state = compaction_states_find(&common->states, table->relid);

	table->state.relid = table->relid;
	if (state == NULL)
		return;
	table->state = *state;
	facts->is_sampled = state->sampled_at != 0;
	facts->sampled_since = pause_seconds(state->sampled_at, common->now);
	facts->would_free = Max(state->would_free, 0);
	/* a sample without a figure is out of date as soon as possible */
	facts->sampled_bytes = state->would_free >= 0 ? state->sampled_bytes : 0;
	facts->sampled_changes = state->sampled_changes;
	facts->pace = state->pace;
	table->rested = pause_seconds(state->ended_at, common->now);
	facts->pause_left = state->pause - table->rested;
}

/* pause_seconds -- seconds since a moment; for a test an hour may take less. */
static double
pause_seconds(TimestampTz since, TimestampTz now)
{
	double		seconds = (double) (now - since) / USECS_PER_SEC;

	return Max(seconds, 0) * HOUR_MS / DEBUG_LIMIT(compaction_hour, HOUR_MS);
}
