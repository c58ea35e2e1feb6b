/*-------------------------------------------------------------------------
 *
 * dry_run.c
 *	  VACUUM (DRY_RUN): what a VACUUM would do, without doing it.
 *
 * The function cyclone.dry_run is here, too.  All of it is in the caller's transaction,
 * also on a standby.  The lock on a table is AccessShareLock: it lets other sessions read
 * and write, and keeps the table from being truncated while it is read.
 *
 * dry_run_heap.c says which pages of the table are read, and why nothing is written.  Of
 * indexes only the size is needed.  For FULL, up to MOST_PAGES pages of the table and of
 * each index are read once more to estimate their sizes afterwards, as in cyclone.bloat.
 *
 * Rows and pages are counted as VACUUM would count them now.  The rest are estimates:
 * passes over the indexes, by the memory for dead items, WAL, disk space, and times.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/relation.h"
#include "access/heapam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "autovacuum/table_log.h"
#include "bloat/bloat.h"
#include "command/distributed.h"
#include "command/heap_seam.h"
#include "command/relations.h"
#include "declared_rows.h"
#include "dry_run/dry_run.h"
#include "engine/phases.h"
#include "engine/server_rules.h"
#include "history/history_rows.h"
#include "horizon/horizon.h"
#include "inplace/table_inplace.h"
#include "library.h"
#include "relation_size.h"
#include "report/pretty_bytes.h"
#include "rewrite/disk_space.h"
#include "rewrite/table_rewrite.h"
#include "scope.h"
#include "server_check.h"
#include "settings.h"

#define DRY_RUN_COLUMNS		24

/* Pages that are read to estimate the size of a relation after FULL */
#define MOST_PAGES			10000

/* The share of a page that its full image has, and the bytes of a record beside that */
#define IMAGE_SHARE			0.7
#define RECORD_BYTES		60

static const char *const operation_names[] = {
	"VACUUM", "VACUUM", "FULL REWRITE", "FULL INPLACE",
};

static void run_targets(List *targets, const VacuumParams *params, ReturnSetInfo *result);
static Oid	run_one(VacuumRelation *target, Oid relid, const VacuumParams *params,
					ReturnSetInfo *result);
static bool is_permitted(Oid relid, const VacuumParams *params);
static bool is_table(Relation rel);
static void rehearse(Relation rel, VacuumParams *params, DryRun *run);
static void choose_engine(Relation rel, DryRun *run);
static void plan_indexes(const VacuumParams *params, int nindexes, Relation *indexes, DryRun *run);
static void plan_space(Relation rel, const VacuumParams *params, int nindexes,
					   Relation *indexes, DryRun *run);
static void plan_space_of_full(Relation rel, const VacuumParams *params, int nindexes,
							   Relation *indexes, DryRun *run);
static double pages_of_rewritten(Oid toast_relid, int64 *pages_before);
static double pages_of_rebuilt(Relation index, const BloatEstimate *heap, pg_prng_state *prng);
static double seconds_of(const DryRun *run);
static void tell(Relation rel, const DryRun *run);
static void tell_indexes(StringInfo buf, const DryRun *run);
static void tell_costs(StringInfo buf, const DryRun *run);
static void put_row(ReturnSetInfo *result, Relation rel, const DryRun *run);

PG_FUNCTION_INFO_V1(pg_cyclone_dry_run);

/* dry_run_statement -- see dry_run.h. */
void
dry_run_statement(const VacuumStmt *stmt, const VacuumOptions *options)
{
	const VacuumParams *params = &options->params;

	if (params->options & (VACOPT_ANALYZE | VACOPT_ONLY_DATABASE_STATS))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("VACUUM option DRY_RUN cannot be used with %s",
						(params->options & VACOPT_ANALYZE) ? "ANALYZE" : "ONLY_DATABASE_STATS"),
				 errhint("Leave %s out.",
						 (params->options & VACOPT_ANALYZE) ? "ANALYZE" : "ONLY_DATABASE_STATS")));
	run_targets(relations_list(stmt->rels, params->options, CurrentMemoryContext), params, NULL);
}

/*
 * pg_cyclone_dry_run
 *		A row for a table, for each of its partitions, and for their TOAST tables.
 */
Datum
pg_cyclone_dry_run(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	VacuumStmt *stmt = makeNode(VacuumStmt);
	VacuumOptions options;
	List	   *targets = NIL;

	refuse_without_preloading();
	server_refuse_if_unfit("cyclone.dry_run");
	declared_rows_begin(fcinfo, DRY_RUN_COLUMNS);
	if (get_rel_name(relid) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));

	stmt->is_vacuumcmd = true;
	if (!PG_ARGISNULL(1))
		stmt->options = lappend(stmt->options,
								makeDefElem("full", (Node *) makeString(text_to_cstring(PG_GETARG_TEXT_PP(1))), -1));
	if (!PG_ARGISNULL(2) && PG_GETARG_BOOL(2))
		stmt->options = lappend(stmt->options, makeDefElem("freeze", NULL, -1));
	if (!vacuum_options_read(stmt, &options))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("FULL takes INPLACE, REWRITE, or a Boolean value")));

	foreach_oid(member, find_all_inheritors(relid, NoLock, NULL))
	{
		if (member == relid || get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
			targets = lappend(targets, makeVacuumRelation(NULL, member, NIL));
	}
	run_targets(targets, &options.params, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* run_targets -- rehearse all of them; put rows into the result, or tell the client if it is NULL. */
static void
run_targets(List *targets, const VacuumParams *params, ReturnSetInfo *result)
{
	foreach_node(VacuumRelation, target, targets)
	{
		Oid			toast_relid = run_one(target, target->oid, params, result);

		/* FULL has it with the table */
		if (OidIsValid(toast_relid) && (params->options & VACOPT_PROCESS_TOAST) &&
			!(params->options & (VACOPT_FULL | VACOPT_INPLACE)))
			(void) run_one(NULL, toast_relid, params, result);
	}
}

/*
 * run_one
 *		Rehearse the VACUUM of a relation, and return its TOAST table, if it has one.
 *		Leaves out a relation that is gone or locked, or that VACUUM would leave out.
 *
 * Without a target it is a TOAST table, for which the privileges on its table suffice.
 * Privileges are checked before the lock is asked for, so that no user without them stands
 * in its queue; and once more under the lock, as they may have been revoked.
 */
static Oid
run_one(VacuumRelation *target, Oid relid, const VacuumParams *params, ReturnSetInfo *result)
{
	Relation	rel;
	DryRun		run = {0};
	VacuumParams resolved = *params;
	Oid			toast_relid;

	Assert(OidIsValid(relid));
	CHECK_FOR_INTERRUPTS();
	if (target != NULL && !is_permitted(relid, params))
		return InvalidOid;
	if (params->options & VACOPT_SKIP_LOCKED)
	{
		if (!ConditionalLockRelationOid(relid, AccessShareLock))
		{
			const char *name = get_rel_name(relid);

			if (name != NULL)
				ereport(WARNING,
						(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						 errmsg("skipping vacuum of \"%s\" --- lock not available", name)));
			return InvalidOid;
		}
	}
	else
		LockRelationOid(relid, AccessShareLock);
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(relid, AccessShareLock);
		return InvalidOid;
	}
	toast_relid = rel->rd_rel->reltoastrelid;
	if ((target == NULL ||
		 vacuum_is_permitted_for_relation(relid, rel->rd_rel, params->options)) && is_table(rel))
	{
		relations_apply_reloptions(rel, &resolved);
		/* the table itself may be left out */
		if (target == NULL || (params->options & VACOPT_PROCESS_MAIN))
		{
			rehearse(rel, &resolved, &run);
			if (result != NULL)
				put_row(result, rel, &run);
			else
				tell(rel, &run);
		}
	}
	else
		toast_relid = InvalidOid;
	relation_close(rel, AccessShareLock);
	return toast_relid;
}

/*
 * is_permitted
 *		May the user VACUUM a relation that isn't locked yet?  Warns if not, but not of one
 *		that is gone.
 */
static bool
is_permitted(Oid relid, const VacuumParams *params)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		is_so;

	if (!HeapTupleIsValid(tuple))
		return false;
	is_so = vacuum_is_permitted_for_relation(relid, (Form_pg_class) GETSTRUCT(tuple),
											 params->options);
	ReleaseSysCache(tuple);
	return is_so;
}

/* is_table -- is a relation one that VACUUM takes?  Warns if it is none at all. */
static bool
is_table(Relation rel)
{
	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_MATVIEW:
		case RELKIND_TOASTVALUE:
			if (RELATION_IS_OTHER_TEMP(rel))
				return false;
			if (rel->rd_rel->relam == HEAP_TABLE_AM_OID)
				return true;
			ereport(INFO,
					(errmsg("\"%s\" is left to PostgreSQL, as its access method isn't heap: nothing is known of it",
							RelationGetRelationName(rel))));
			return false;
		case RELKIND_PARTITIONED_TABLE:
			return false;
		default:
			ereport(WARNING,
					(errmsg("skipping \"%s\" --- cannot vacuum non-tables or special system tables",
							RelationGetRelationName(rel))));
			return false;
	}
}

/* rehearse -- find out all about the VACUUM of a heap, which is locked. */
static void
rehearse(Relation rel, VacuumParams *params, DryRun *run)
{
	int			nindexes;
	Relation   *indexes;
	double		live;

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));

	run->kind = (params->options & VACOPT_FULL) ? HISTORY_REWRITE :
		(params->options & VACOPT_INPLACE) ? HISTORY_INPLACE : HISTORY_VACUUM;
	choose_engine(rel, run);
	vac_open_indexes(rel, AccessShareLock, &nindexes, &indexes);
	run->nindexes = nindexes;
	for (int i = 0; i < nindexes; i++)
		run->index_pages += relation_blocks(indexes[i]);

	dry_run_heap(rel, params, run);
	/* of pages that are skipped VACUUM doesn't know it, either */
	live = vac_estimate_reltuples(rel, run->pages, run->pages_scanned, run->rows_live);
	run->rows_remaining = (int64) Max(live, 0) + run->rows_dead;
	plan_indexes(params, nindexes, indexes, run);
	plan_space(rel, params, nindexes, indexes, run);
	vac_close_indexes(nindexes, indexes, AccessShareLock);
	Assert(run->pages_scanned <= run->pages && run->pages_after <= run->pages);
	dry_run_time(rel, run);
	if (run->rows_dead > 0)
		run->holder = horizon_describe_oldest(rel, run->oldest_xmin);
}

/* choose_engine -- would the engine do it?  If not, why? */
static void
choose_engine(Relation rel, DryRun *run)
{
	TableKey	key = table_log_key(rel);
	const char *is_what;

	if (!settings_enabled())
		run->reason = "cyclone.enabled is off";
	else if (run->kind == HISTORY_VACUUM && !heap_seam_is_set())
		run->reason = "heap's table access method could not be changed";
	else if (table_log_audit_has_failed(&key))
		run->reason = "an audit has failed on it";
	else if (!scope_has_table(rel))
		run->reason = "by cyclone.databases or cyclone.tables";
	else if (distributed_table_is_for_other(RelationGetRelid(rel), &is_what))
		run->reason = psprintf("it is %s", is_what);
	else if (run->kind == HISTORY_REWRITE && !table_rewrite_is_possible(rel))
		run->reason = "it is a catalog, or has values by default that may be too large for its rows";
	else if (run->kind == HISTORY_INPLACE && !table_inplace_is_possible(rel, &run->reason))
		run->kind = HISTORY_VACUUM;
	run->by_engine = run->reason == NULL;
}

/* plan_indexes -- how often would indexes be passed over to delete entries? */
static void
plan_indexes(const VacuumParams *params, int nindexes, Relation *indexes, DryRun *run)
{
	Size		limit = (Size) maintenance_work_mem * 1024;

	if (run->kind != HISTORY_VACUUM)
		run->index_scans = -1;
	else if (nindexes == 0 || run->dead_items == 0 ||
			 params->index_cleanup == VACOPTVALUE_DISABLED ||
			 (params->index_cleanup == VACOPTVALUE_AUTO &&
			  run->dead_item_pages < (BlockNumber) (run->pages * BYPASS_PAGES_FRACTION) &&
			  run->dead_item_bytes < BYPASS_STORE_BYTES))
		run->index_scans = 0;
	else
		run->index_scans = 1 + (run->dead_item_bytes - 1) / limit;
}

/* plan_space -- the table's size afterwards, disk space needed meanwhile, and WAL. */
static void
plan_space(Relation rel, const VacuumParams *params, int nindexes, Relation *indexes,
		   DryRun *run)
{
	double		wal = run->heap_wal;

	run->pages_after = run->pages;
	if (run->kind != HISTORY_VACUUM)
	{
		plan_space_of_full(rel, params, nindexes, indexes, run);
		return;
	}
	if (params->truncate != VACOPTVALUE_DISABLED &&
		heap_truncate_is_worthwhile(run->pages, run->nonempty_pages))
		run->pages_after = run->nonempty_pages;
	run->bytes_freed = (int64) (run->pages - run->pages_after) * BLCKSZ;

	/*
	 * pages of an index with entries of dead items, if these are spread at
	 * random; the same share of them is logged in full as of the table's
	 */
	for (int i = 0; i < nindexes && run->index_scans > 0 && RelationNeedsWAL(rel); i++)
	{
		double		pages = relation_blocks(indexes[i]);
		double		touched = pages * (1 - exp(-(double) run->dead_items / Max(pages, 1)));

		wal += touched * (RECORD_BYTES + BLCKSZ * IMAGE_SHARE *
						  run->pages_to_log / Max(run->pages_scanned, 1)) +
			run->dead_items * sizeof(OffsetNumber);
	}
	run->wal_bytes = wal;
}

/*
 * plan_space_of_full
 *		The same for FULL.  How much WAL FULL INPLACE writes only past runs know.
 */
static void
plan_space_of_full(Relation rel, const VacuumParams *params, int nindexes, Relation *indexes,
				   DryRun *run)
{
	bool		rewrites = run->kind == HISTORY_REWRITE;
	BloatEstimate heap = {0};
	pg_prng_state prng;
	int64		before = run->pages;
	double		after;
	double		largest = 0;

	pg_prng_seed(&prng, pg_prng_uint64(&pg_global_prng_state));
	if (run->pages > 0)
		heap_bloat(rel, Min(run->pages, MOST_PAGES), &prng, &heap);
	after = !heap.known ? run->pages :
		rewrites ? heap.rewritten_pages : heap.inplace_pages;
	after = Min(ceil(after), run->pages);
	run->pages_after = after;
	if (OidIsValid(rel->rd_rel->reltoastrelid) && rewrites)
		after += pages_of_rewritten(rel->rd_rel->reltoastrelid, &before);
	for (int i = 0; i < nindexes; i++)
	{
		double		pages = rewrites || params->index_cleanup != VACOPTVALUE_DISABLED ?
			pages_of_rebuilt(indexes[i], &heap, &prng) : 0;

		/* FULL INPLACE leaves the others as they are */
		if (!rewrites && (pages == 0 || !index_shrink_is_worthwhile(indexes[i], pages)))
			continue;
		before += relation_blocks(indexes[i]);
		after += pages;
		largest = Max(largest, pages);
	}
	run->bytes_freed = Max(before - after, 0) * BLCKSZ;
	/* FULL INPLACE builds one index after the other */
	run->disk_bytes = (rewrites ? after + largest * SORT_SHARE : largest) * BLCKSZ;
	run->wal_bytes = !RelationNeedsWAL(rel) ? 0 : rewrites ? after * BLCKSZ : -1;
	if (!rewrites)
		run->rows_frozen = -1;
}

/* pages_of_rewritten -- the size of a TOAST table that is written anew; adds its present size to *pages_before. */
static double
pages_of_rewritten(Oid toast_relid, int64 *pages_before)
{
	Relation	rel = relation_open(toast_relid, AccessShareLock);
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	BloatEstimate estimate = {0};
	pg_prng_state prng;

	pg_prng_seed(&prng, pg_prng_uint64(&pg_global_prng_state));
	if (pages > 0)
		heap_bloat(rel, Min(pages, MOST_PAGES), &prng, &estimate);
	relation_close(rel, AccessShareLock);
	*pages_before += pages;
	return estimate.known ? Min(ceil(estimate.rewritten_pages), pages) : pages;
}

/* pages_of_rebuilt -- the size of an index that is built anew; its present size if that isn't known. */
static double
pages_of_rebuilt(Relation index, const BloatEstimate *heap, pg_prng_state *prng)
{
	BlockNumber pages = relation_blocks(index);
	BloatEstimate estimate = {0};

	if (pages == 0 || !index->rd_index->indisvalid)
		return pages;
	if (index_bloat_is_known(index->rd_rel->relam))
		return index_rebuilt_pages(index, Min(pages, MOST_PAGES), prng);
	if (index->rd_rel->relam == BTREE_AM_OID && heap->known)
		btree_bloat(index, Min(pages, MOST_PAGES), prng, heap, &estimate);
	return estimate.known ? ceil(estimate.rewritten_pages) : pages;
}

/* seconds_of -- how long all phases take; -1 if one isn't known. */
static double
seconds_of(const DryRun *run)
{
	double		sum = 0;

	if (run->nruns == 0)
		return -1;
	for (int i = 0; i < HISTORY_PHASES; i++)
	{
		if (run->phase_seconds[i] < 0)
			return -1;
		sum += run->phase_seconds[i];
	}
	return sum;
}

/* tell -- say it in words, as VERBOSE does. */
static void
tell(Relation rel, const DryRun *run)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, _("dry run: %s of table \"%s.%s.%s\" by %s"),
					 operation_names[run->kind], get_database_name(MyDatabaseId),
					 get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel),
					 run->by_engine ? "pg_cyclone" : "PostgreSQL");
	if (run->reason != NULL)
		appendStringInfo(&buf, ": %s", run->reason);
	appendStringInfo(&buf, _("\npages: %u scanned, %u skipped, %u remain of %u\n"),
					 run->pages_scanned, run->pages - run->pages_scanned, run->pages_after,
					 run->pages);
	appendStringInfo(&buf, _("tuples: %lld removed, %lld remain, %lld are dead but not yet removable\n"),
					 (long long) run->rows_removed, (long long) run->rows_remaining,
					 (long long) run->rows_dead);
	if (run->kind == HISTORY_REWRITE)
		appendStringInfo(&buf, _("frozen: %lld tuples\n"), (long long) run->rows_frozen);
	else if (run->rows_frozen >= 0)
		appendStringInfo(&buf, _("frozen: %u pages, with %lld tuples to be frozen\n"),
						 run->pages_frozen, (long long) run->rows_frozen);
	if (run->rows_dead > 0)
		appendStringInfo(&buf, "%s\n", run->holder == NULL ?
						 _("horizon: the removal of dead rows is not held back any more") :
						 psprintf(_("horizon: the removal of dead rows is held back by %s"), run->holder));
	tell_indexes(&buf, run);
	tell_costs(&buf, run);
	ereport(INFO, (errmsg_internal("%s", buf.data)));
	pfree(buf.data);
}

/* tell_indexes -- a line on the indexes, where VACUUM passes over them. */
static void
tell_indexes(StringInfo buf, const DryRun *run)
{
	if (run->index_scans < 0 || run->nindexes == 0)
		return;
	if (run->index_scans > 0)
		appendStringInfo(buf, _("index scans: %d, of %d indexes with %s"), run->index_scans,
						 run->nindexes, pretty_bytes((int64) run->index_pages * BLCKSZ));
	else
		appendStringInfoString(buf, run->dead_items > 0 ?
							   _("index scans: none, they are bypassed") : _("index scans: none"));
	appendStringInfo(buf, _("; %u pages have %lld dead item identifiers\n"),
					 run->dead_item_pages, (long long) run->dead_items);
}

/* tell_costs -- lines on disk space, WAL and time. */
static void
tell_costs(StringInfo buf, const DryRun *run)
{
	double		seconds = seconds_of(run);
	const char *separator = "";

	appendStringInfo(buf, _("disk space: %s given back"), pretty_bytes(run->bytes_freed));
	if (run->disk_bytes > 0)
		appendStringInfo(buf, _(", %s needed meanwhile"), pretty_bytes(run->disk_bytes));
	appendStringInfoString(buf, run->wal_bytes < 0 ? _("\nWAL: not known\n") :
						   psprintf(_("\nWAL: about %s\n"), pretty_bytes(run->wal_bytes)));
	if (run->nruns == 0)
	{
		appendStringInfoString(buf, _("time: not known, as cyclone.history has no such run"));
		return;
	}
	if (seconds >= 0)
		appendStringInfo(buf, _("time: about %.3f s ("), seconds);
	else
		appendStringInfoString(buf, _("time: not known ("));
	for (int i = 0; i < HISTORY_PHASES && history_phase_name(run->kind, i) != NULL; i++)
		if (run->phase_seconds[i] > 0)
		{
			appendStringInfo(buf, "%s%s %.3f s", separator, history_phase_name(run->kind, i),
							 run->phase_seconds[i]);
			separator = ", ";
		}
	appendStringInfo(buf, run->runs_are_own ? _("), as the last %d runs on it have it") :
					 _("), as the last %d runs on other tables have it"), run->nruns);
}

/* put_row -- the same as a row of the function. */
static void
put_row(ReturnSetInfo *result, Relation rel, const DryRun *run)
{
	Datum		values[DRY_RUN_COLUMNS] = {0};
	bool		nulls[DRY_RUN_COLUMNS] = {0};
	double		seconds = seconds_of(run);
	StringInfoData phases;
	int			n = 0;

	initStringInfo(&phases);
	for (int i = 0; i < HISTORY_PHASES && history_phase_name(run->kind, i) != NULL; i++)
		if (run->nruns > 0 && run->phase_seconds[i] > 0)
			appendStringInfo(&phases, "%s\"%s\": %.6f", phases.len > 0 ? ", " : "",
							 history_phase_name(run->kind, i), run->phase_seconds[i]);

	values[n++] = ObjectIdGetDatum(RelationGetRelid(rel));
	values[n++] = CStringGetTextDatum(operation_names[run->kind]);
	values[n++] = CStringGetTextDatum(run->by_engine ? "engine" : "server");
	nulls[n] = run->reason == NULL;
	values[n++] = run->reason != NULL ? CStringGetTextDatum(run->reason) : (Datum) 0;
	values[n++] = BoolGetDatum(run->aggressive);
	values[n++] = Int64GetDatum(run->pages);
	values[n++] = Int64GetDatum(run->pages_scanned);
	values[n++] = Int64GetDatum(run->pages_after);
	values[n++] = Int64GetDatum(run->rows_removed);
	values[n++] = Int64GetDatum(run->rows_remaining);
	values[n++] = Int64GetDatum(run->rows_dead);
	nulls[n] = run->holder == NULL;
	values[n++] = run->holder != NULL ? CStringGetTextDatum(run->holder) : (Datum) 0;
	nulls[n] = run->rows_frozen < 0;
	values[n++] = Int64GetDatum(run->rows_frozen);
	nulls[n] = run->kind != HISTORY_VACUUM;
	values[n++] = Int64GetDatum(run->pages_frozen);
	values[n++] = Int64GetDatum(run->dead_items);
	values[n++] = Int64GetDatum(run->dead_item_pages);
	nulls[n] = run->index_scans < 0;
	values[n++] = Int32GetDatum(run->index_scans);
	values[n++] = Int64GetDatum(run->bytes_freed);
	values[n++] = Int64GetDatum(run->disk_bytes);
	nulls[n] = run->wal_bytes < 0;
	values[n++] = Int64GetDatum(run->wal_bytes);
	nulls[n] = seconds < 0;
	values[n++] = Float8GetDatum(seconds);
	nulls[n] = run->nruns == 0;
	values[n++] = DirectFunctionCall1(jsonb_in, CStringGetDatum(psprintf("{%s}", phases.data)));
	values[n++] = Int32GetDatum(run->nruns);
	values[n++] = BoolGetDatum(run->runs_are_own);
	Assert(n == DRY_RUN_COLUMNS);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}
