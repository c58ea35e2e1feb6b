/*-------------------------------------------------------------------------
 *
 * dry_run.c
 *	  VACUUM (DRY_RUN): what a VACUUM would do, without doing it.
 *
 * All figures are estimates.  Which pages are scanned the visibility map says.  Rows, dead
 * items, WAL and sizes after FULL come from a sample of pages, as in cyclone.bloat: up to
 * MOST_PAGES of the table, and for FULL as many of each index.  A smaller table is read
 * whole, so its rows are counted.  How long it takes is known from past runs in
 * cyclone.history: the time that they worked, for each page that they visited.
 *
 * Nothing is written: no page becomes dirty, and nothing goes to WAL.  All of it is in the
 * caller's transaction, also on a standby.  The lock on a table is AccessShareLock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/visibilitymap.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"

#include "autovacuum/table_log.h"
#include "bloat/bloat.h"
#include "command/distributed.h"
#include "command/heap_seam.h"
#include "command/relations.h"
#include "dry_run/dry_run.h"
#include "engine/server_rules.h"
#include "history/history_rows.h"
#include "horizon/horizon.h"
#include "inplace/table_inplace.h"
#include "relation_size.h"
#include "report/pretty_bytes.h"
#include "rewrite/disk_space.h"
#include "rewrite/table_rewrite.h"
#include "scope.h"
#include "settings.h"

/* Pages of a relation that are read at most */
#define MOST_PAGES			10000

/* Pages of an index that are looked at to learn when they were last logged in full */
#define INDEX_LOOKS			50

/* The bytes of a WAL record beside its data, of one for an index entry, and the share of an index page in use */
#define RECORD_BYTES		60
#define ENTRY_BYTES			100
#define IMAGE_SHARE			0.7

/* The estimates for a table */
typedef struct DryRun
{
	HistoryKind kind;
	const char *reason;			/* why PostgreSQL would do it, or NULL */
	BlockNumber pages;
	BlockNumber pages_scanned;
	BloatEstimate heap;
	int			nindexes;
	double		index_pages;
	double		index_images;	/* of these, would be logged in full */
	int			index_scans;
	double		pages_after;	/* of FULL, as are the next two */
	double		bytes_freed;	/* given back, by indexes, too */
	double		disk_bytes;		/* needed in addition meanwhile */
	double		wal_bytes;
	double		seconds;
	int			nruns;			/* past ones, on which that is based */
	bool		runs_are_own;	/* of this table? */
	char	   *holder;			/* what holds dead rows back, or NULL */
} DryRun;

static void dry_run_target(const VacuumRelation *target, Oid relid, const VacuumParams *params,
						   const List *past);
static bool estimate_vacuum(Relation rel, const VacuumParams *params, DryRun *run);
static void choose_engine(Relation rel, DryRun *run);
static void estimate_indexes(Relation rel, const VacuumParams *params, DryRun *run);
static double index_images(Relation index);
static void estimate_full(Relation rel, const VacuumParams *params, const List *sample,
						  DryRun *run);
static double wal_of_entries(const DryRun *run, double entries);
static void estimate_time(Oid relid, const List *past, DryRun *run);
static void tell_client(Relation rel, const DryRun *run);

/* dry_run_statement -- in a transaction: tells the client what a VACUUM with these options would do. */
void
dry_run_statement(const VacuumStmt *stmt, const VacuumOptions *options)
{
	const VacuumParams *params = &options->params;
	bits32		flags = params->options;
	List	   *past = history_rows_past();

	if (flags & VACOPT_ANALYZE)
		vacuum_options_refuse("DRY_RUN", "ANALYZE");
	if (flags & VACOPT_ONLY_DATABASE_STATS)
		vacuum_options_refuse("DRY_RUN", "ONLY_DATABASE_STATS");
	foreach_node(VacuumRelation, target, relations_list(stmt->rels, flags, CurrentMemoryContext))
		dry_run_target(target, target->oid, params, past);
}

/*
 * dry_run_target
 *		Tells what a VACUUM of a relation would do, and of its TOAST table, if it has one.
 *		Leaves out a relation that is gone or locked, or that VACUUM would leave out.
 *
 * Without a target it is a TOAST table, for which the privileges on its table suffice.
 */
static void
dry_run_target(const VacuumRelation *target, Oid relid, const VacuumParams *params,
			   const List *past)
{
	VacuumParams resolved = *params;
	Relation	rel;
	Oid			toast_relid = InvalidOid;
	DryRun		run = {0};

	CHECK_FOR_INTERRUPTS();
	rel = vacuum_open_relation(relid, target != NULL ? target->relation : NULL,
							   params->options, false, AccessShareLock);
	if (rel == NULL)
		return;
	if (rel->rd_tableam != GetHeapamTableAmRoutine())
	{
		if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
			ereport(WARNING,
					(errmsg("skipping \"%s\" --- a dry run knows heaps only",
							RelationGetRelationName(rel))));
	}
	else if (!RELATION_IS_OTHER_TEMP(rel) &&
			 (RelationIsPermanent(rel) || !RecoveryInProgress()) &&
			 (target == NULL || vacuum_is_permitted_for_relation(relid, rel->rd_rel, params->options)))
	{
		toast_relid = rel->rd_rel->reltoastrelid;
		relations_apply_reloptions(rel, &resolved);
		/* the table itself may be left out */
		if ((target == NULL || (params->options & VACOPT_PROCESS_MAIN)) &&
			estimate_vacuum(rel, &resolved, &run))
		{
			estimate_time(relid, past, &run);
			tell_client(rel, &run);
		}
	}
	relation_close(rel, AccessShareLock);
	/* FULL has it with the table */
	if (OidIsValid(toast_relid) && (params->options & VACOPT_PROCESS_TOAST) &&
		!(params->options & (VACOPT_FULL | VACOPT_INPLACE)))
		dry_run_target(NULL, toast_relid, params, past);
}

/*
 * estimate_vacuum
 *		Estimates the VACUUM of a heap, which is locked.  Returns false, with a warning, if
 *		the heap can't be read.
 */
static bool
estimate_vacuum(Relation rel, const VacuumParams *params, DryRun *run)
{
	struct VacuumCutoffs cutoffs;
	BlockNumber visible,
				frozen;
	bool		aggressive;
	List	   *sample;

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));

	run->kind = (params->options & VACOPT_FULL) ? HISTORY_REWRITE :
		(params->options & VACOPT_INPLACE) ? HISTORY_INPLACE : HISTORY_VACUUM;
	choose_engine(rel, run);
	aggressive = vacuum_get_cutoffs(rel, params, &cutoffs) ||
		(params->options & VACOPT_DISABLE_PAGE_SKIPPING) != 0;
	run->pages = run->pages_scanned = RelationGetNumberOfBlocks(rel);
	if (run->kind == HISTORY_VACUUM && !(params->options & VACOPT_DISABLE_PAGE_SKIPPING))
	{
		visibilitymap_count(rel, &visible, &frozen);
		run->pages_scanned -= Min(aggressive ? frozen : visible, run->pages);
	}
	sample = bloat_of_table(rel, MOST_PAGES, run->kind != HISTORY_VACUUM);
	run->heap = ((RelationBloat *) linitial(sample))->estimate;
	if (!run->heap.known)
		return false;
	if (RelationNeedsWAL(rel))
		run->wal_bytes = run->heap.vacuum_wal + (aggressive ? run->heap.freeze_wal : 0);
	estimate_indexes(rel, params, run);
	if (run->kind != HISTORY_VACUUM)
		estimate_full(rel, params, sample, run);
	if (run->heap.held_rows > 0)
		run->holder = horizon_describe_oldest(rel, cutoffs.OldestXmin);
	list_free_deep(sample);
	return true;
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
	else if (run->kind == HISTORY_VACUUM ? table_log_audit_has_failed(&key) : table_log_has_alarm(rel))
		run->reason = "an audit has failed on it";
	else if (!scope_has_table(rel))
		run->reason = "by cyclone.databases or cyclone.tables";
	else if (distributed_table_is_for_other(RelationGetRelid(rel), &is_what))
		run->reason = psprintf("it is %s", is_what);
	else if (run->kind == HISTORY_REWRITE && !table_rewrite_is_possible(rel))
		run->reason = "it is a catalog, or has values by default that may be too large for its rows";
	else if (run->kind == HISTORY_INPLACE && !table_inplace_is_possible(rel, &run->reason))
		run->kind = HISTORY_VACUUM;
}

/* estimate_indexes -- how often a VACUUM passes over the indexes to delete entries, and its WAL. */
static void
estimate_indexes(Relation rel, const VacuumParams *params, DryRun *run)
{
	const BloatEstimate *heap = &run->heap;
	double		store_bytes = heap->dead_item_pages * sizeof(BlockNumber) +
		heap->dead_items * sizeof(OffsetNumber);
	Relation   *indexes;

	vac_open_indexes(rel, AccessShareLock, &run->nindexes, &indexes);
	for (int i = 0; i < run->nindexes; i++)
	{
		run->index_pages += relation_blocks(indexes[i]);
		run->index_images += index_images(indexes[i]);
	}
	vac_close_indexes(run->nindexes, indexes, AccessShareLock);

	if (run->kind != HISTORY_VACUUM || run->nindexes == 0 || heap->dead_items == 0 ||
		params->index_cleanup == VACOPTVALUE_DISABLED ||
		(params->index_cleanup == VACOPTVALUE_AUTO && store_bytes < BYPASS_STORE_BYTES &&
		 heap->dead_item_pages < floor(run->pages * BYPASS_PAGES_FRACTION)))
		return;
	run->index_scans = 1 + floor((store_bytes - 1) / ((double) maintenance_work_mem * 1024));
	if (RelationNeedsWAL(rel))
		run->wal_bytes += wal_of_entries(run, heap->dead_items);
}

/*
 * index_images
 *		How many pages of an index would be logged in full if they changed, by a look at
 *		some of them.
 *
 * One that is being built is written past the shared buffers, and must not be read.
 */
static double
index_images(Relation index)
{
	BlockNumber pages = relation_blocks(index);
	BlockNumber looks = Min(pages, INDEX_LOOKS);
	XLogRecPtr	redo = GetRedoRecPtr();
	double		images = 0;

	if (!index->rd_index->indisvalid || !fullPageWrites)
		return 0;
	for (BlockNumber i = 0; i < looks; i++)
	{
		Buffer		buffer = ReadBuffer(index, (BlockNumber) ((uint64) i * pages / looks));

		images += BufferGetLSNAtomic(buffer) <= redo;
		ReleaseBuffer(buffer);
	}
	return looks > 0 ? images * pages / looks : 0;
}

/* estimate_full -- sizes after FULL, disk space and WAL. */
static void
estimate_full(Relation rel, const VacuumParams *params, const List *sample, DryRun *run)
{
	const BloatEstimate *heap = &run->heap;
	bool		rewrites = run->kind == HISTORY_REWRITE;
	double		after = 0;
	double		largest = 0;
	double		rebuilt = 0;

	foreach_ptr(const RelationBloat, row, sample)
	{
		const BloatEstimate *estimate = &row->estimate;
		double		pages = !estimate->known ? estimate->pages :
			Min(rewrites ? estimate->rewritten_pages : estimate->inplace_pages, estimate->pages);

		if (foreach_current_index(row) == 0)
			run->pages_after = pages;
		/* FULL INPLACE only vacuums it */
		if (row->relkind == RELKIND_TOASTVALUE && !rewrites)
			break;
		if (row->relkind == RELKIND_INDEX && !rewrites)
		{
			Relation	index = index_open(row->relid, AccessShareLock);
			bool		is_left = !estimate->known || !index_shrink_is_worthwhile(index, pages) ||
				params->index_cleanup == VACOPTVALUE_DISABLED;

			index_close(index, AccessShareLock);
			if (is_left)
				continue;
		}
		run->bytes_freed += (estimate->pages - pages) * BLCKSZ;
		after += pages;
		if (row->relkind == RELKIND_INDEX)
		{
			largest = Max(largest, pages);
			rebuilt += pages;
		}
	}
	/* FULL INPLACE builds one index after the other */
	run->disk_bytes = (rewrites ? after + largest * SORT_SHARE : largest) * BLCKSZ;
	if (!RelationNeedsWAL(rel) || (rewrites && !XLogIsNeeded()))
		run->wal_bytes = 0;
	else if (rewrites)
		run->wal_bytes = after * BLCKSZ;
	else
	{
		double		share = 1 - run->pages_after / Max(run->pages, 1);
		double		moved = heap->live_rows * share;

		/*
		 * VACUUM, rows that move from pages at the end, their entries, and
		 * the indexes that are built anew
		 */
		run->wal_bytes = Max(heap->vacuum_wal, heap->live_bytes * heap->image_share) +
			heap->live_bytes * share + moved * (RECORD_BYTES + run->nindexes * ENTRY_BYTES) +
			wal_of_entries(run, heap->dead_items + moved) + rebuilt * BLCKSZ;
	}
}

/* wal_of_entries -- how much WAL the deletion of entries writes, if they are spread at random. */
static double
wal_of_entries(const DryRun *run, double entries)
{
	double		touched = run->index_pages *
		(1 - exp(-entries * run->nindexes / Max(run->index_pages, 1)));
	double		image = BLCKSZ * IMAGE_SHARE * (1 - run->heap.dead_roots);

	return touched * (RECORD_BYTES + image * run->index_images / Max(run->index_pages, 1)) +
		entries * run->nindexes * sizeof(OffsetNumber);
}

/*
 * estimate_time
 *		How long it takes at the rate of the table's past runs of the same kind, or else of
 *		those on other tables.
 */
static void
estimate_time(Oid relid, const List *past, DryRun *run)
{
	double		seconds[2] = {0};
	double		pages[2] = {0};
	int			nruns[2] = {0};

	foreach_ptr(const PastRun, row, past)
	{
		bool		is_own = row->relid == relid;

		if (row->kind != run->kind)
			continue;
		nruns[is_own]++;
		seconds[is_own] += row->seconds;
		pages[is_own] += row->pages;
	}
	run->runs_are_own = nruns[true] > 0;
	run->nruns = nruns[run->runs_are_own];
	run->seconds = (run->pages_scanned + (run->index_scans + 1) * run->index_pages) *
		Max(seconds[run->runs_are_own], 0) / Max(pages[run->runs_are_own], 1);
}

/* tell_client -- says it in words, as VERBOSE does. */
static void
tell_client(Relation rel, const DryRun *run)
{
	const BloatEstimate *heap = &run->heap;
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, _("dry run: %s of table \"%s.%s.%s\" by %s%s%s\n"),
					 run->kind == HISTORY_VACUUM ? "VACUUM" :
					 run->kind == HISTORY_REWRITE ? "FULL REWRITE" : "FULL INPLACE",
					 get_database_name(MyDatabaseId),
					 get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel),
					 run->reason == NULL ? "pg_cyclone" : "PostgreSQL",
					 run->reason == NULL ? "" : ": ", run->reason == NULL ? "" : run->reason);
	appendStringInfo(&buf, _("pages: %u scanned, %u skipped\n"
							 "tuples: %.0f removed, %.0f remain, %.0f are dead but not yet removable\n"),
					 run->pages_scanned, run->pages - run->pages_scanned,
					 heap->dead_rows, heap->live_rows + heap->held_rows, heap->held_rows);
	if (run->holder != NULL)
		appendStringInfo(&buf, _("horizon: the removal of dead rows is held back by %s\n"), run->holder);
	if (run->kind == HISTORY_VACUUM && run->nindexes > 0)
		appendStringInfo(&buf, _("index scans: %d, of %d indexes with %s; %.0f pages have %.0f dead item identifiers\n"),
						 run->index_scans, run->nindexes,
						 pretty_bytes((int64) (run->index_pages * BLCKSZ)),
						 heap->dead_item_pages, heap->dead_items);
	if (run->kind != HISTORY_VACUUM)
		appendStringInfo(&buf, _("disk space: %s given back, %s needed meanwhile; %.0f of %u pages remain\n"),
						 pretty_bytes((int64) run->bytes_freed), pretty_bytes((int64) run->disk_bytes),
						 run->pages_after, run->pages);
	appendStringInfo(&buf, _("WAL: about %s\n"), pretty_bytes((int64) run->wal_bytes));
	if (run->nruns == 0)
		appendStringInfoString(&buf, _("time: not known, as cyclone.history has no such run"));
	else
		appendStringInfo(&buf, _("time: about %.3f s without sleep and pauses, as past runs on %s (%d) have it"),
						 run->seconds, run->runs_are_own ? _("it") : _("other tables"), run->nruns);
	ereport(INFO, (errmsg_internal("%s", buf.data)));
	pfree(buf.data);
}
