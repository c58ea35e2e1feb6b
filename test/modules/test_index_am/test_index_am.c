/*-------------------------------------------------------------------------
 *
 * test_index_am.c
 *	  An index access method as others make them: its entries are rows of a table.
 *
 * So in VACUUM it runs queries, assigns transaction IDs and begins a
 * subtransaction, none of which parallel mode allows; and it declares that it can't
 * be vacuumed in parallel.  There are no scans, but its entries can be read in
 * public.test_index_am_entries.  VACUUM waits where it can get the advisory lock
 * 51967 only, which a test may hold.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/vacuum.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "nodes/pathnodes.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"

#define TABLE "public.test_index_am_entries"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(test_index_am_handler);

/* run -- run a statement on an index, and maybe a TID. */
static uint64
run(const char *statement, Relation index, ItemPointer tid)
{
	Oid			types[] = {OIDOID, TIDOID};
	Datum		values[] = {ObjectIdGetDatum(RelationGetRelid(index)), PointerGetDatum(tid)};

	if (SPI_execute_with_args(statement, tid == NULL ? 1 : 2, types, values, NULL, false, 0) < 0)
		elog(ERROR, "test_index_am: %s failed", statement);
	return SPI_processed;
}

/* add_entry -- add an entry; a callback for tables that are scanned, too. */
static void
add_entry(Relation index, ItemPointer tid, Datum *values, bool *isnull, bool is_alive, void *state)
{
	run("INSERT INTO " TABLE " VALUES ($1, $2)", index, tid);
}

/* build -- build the index. */
static IndexBuildResult *
build(Relation heap, Relation index, IndexInfo *index_info)
{
	IndexBuildResult *result = palloc0_object(IndexBuildResult);

	SPI_connect();
	run("DELETE FROM " TABLE " WHERE index = $1", index, NULL);
	result->heap_tuples = table_index_build_scan(heap, index, index_info, true, false,
												 add_entry, NULL, NULL);
	result->index_tuples = result->heap_tuples;
	SPI_finish();
	return result;
}

/* build_empty -- for unlogged tables: there is no file to be made. */
static void
build_empty(Relation index)
{
}

/* insert -- add an entry. */
static bool
insert(Relation index, Datum *values, bool *isnull, ItemPointer tid, Relation heap,
	   IndexUniqueCheck check, bool unchanged, IndexInfo *index_info)
{
	SPI_connect();
	add_entry(index, tid, values, isnull, true, NULL);
	SPI_finish();
	return false;
}

/* bulk_delete -- delete all entries of dead rows, in a subtransaction. */
static IndexBulkDeleteResult *
bulk_delete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
			IndexBulkDeleteCallback callback, void *state)
{
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext context = CurrentMemoryContext;
	SPITupleTable *entries;

	if (stats == NULL)
		stats = palloc0_object(IndexBulkDeleteResult);

	SPI_connect();
	SPI_execute("SELECT pg_advisory_xact_lock(51967)", false, 0);
	run("SELECT tid FROM " TABLE " WHERE index = $1", info->index, NULL);
	entries = SPI_tuptable;
	BeginInternalSubTransaction(NULL);
	for (uint64 i = 0; i < entries->numvals; i++)
	{
		bool		isnull;
		ItemPointer tid = (ItemPointer)
			DatumGetPointer(SPI_getbinval(entries->vals[i], entries->tupdesc, 1, &isnull));

		if (callback(tid, state))
			stats->tuples_removed +=
				run("DELETE FROM " TABLE " WHERE index = $1 AND tid = $2", info->index, tid);
	}
	ReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	SPI_finish();
	return stats;
}

/* cleanup -- count the entries. */
static IndexBulkDeleteResult *
cleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	if (info->analyze_only)
		return stats;
	if (stats == NULL)
		stats = palloc0_object(IndexBulkDeleteResult);
	(void) GetCurrentTransactionId();
	SPI_connect();
	stats->num_index_tuples = run("SELECT FROM " TABLE " WHERE index = $1", info->index, NULL);
	SPI_finish();
	return stats;
}

/* estimate -- no plan uses it. */
static void
estimate(PlannerInfo *root, IndexPath *path, double loop_count, Cost *startup_cost,
		 Cost *total_cost, Selectivity *selectivity, double *correlation, double *pages)
{
	*startup_cost = *total_cost = 1e10;
	*selectivity = 1;
	*correlation = 0;
	*pages = 1;
}

/* options -- it has none. */
static bytea *
options(Datum reloptions, bool validate)
{
	return NULL;
}

/* validate_class -- any will do. */
static bool
validate_class(Oid class)
{
	return true;
}

/* begin_scan -- no scan ever returns anything. */
static IndexScanDesc
begin_scan(Relation index, int nkeys, int norderbys)
{
	return RelationGetIndexScan(index, nkeys, norderbys);
}

/* rescan -- nor again. */
static void
rescan(IndexScanDesc scan, ScanKey keys, int nkeys, ScanKey orderbys, int norderbys)
{
}

/* end_scan -- there is nothing to give back. */
static void
end_scan(IndexScanDesc scan)
{
}

/* test_index_am_handler -- the handler: the routines, and what it can do. */
Datum
test_index_am_handler(PG_FUNCTION_ARGS)
{
	MemoryContext context = MemoryContextSwitchTo(TopMemoryContext);
	IndexAmRoutine *routine = makeNode(IndexAmRoutine);

	/* 19 keeps it, older servers copy and free it */
	MemoryContextSwitchTo(context);
	routine->amstrategies = 1;
	routine->amparallelvacuumoptions = VACUUM_OPTION_NO_PARALLEL;
	routine->ambuild = build;
	routine->ambuildempty = build_empty;
	routine->aminsert = insert;
	routine->ambulkdelete = bulk_delete;
	routine->amvacuumcleanup = cleanup;
	routine->amcostestimate = estimate;
	routine->amoptions = options;
	routine->amvalidate = validate_class;
	routine->ambeginscan = begin_scan;
	routine->amrescan = rescan;
	routine->amendscan = end_scan;
	PG_RETURN_POINTER(routine);
}
