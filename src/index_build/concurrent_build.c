/*-------------------------------------------------------------------------
 *
 * concurrent_build.c
 *	  Building a btree while sessions write to its table.
 *
 * As the server's index_concurrently_build does, with our sort and pages.  README.md says
 * what differs from VACUUM FULL, and why no session needs the pages meanwhile.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/nbtree.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/btree_build_private.h"
#include "index_build/concurrent_build.h"
#include "index_build/entry_sort.h"
#include "index_build/key_code.h"

static void sort_entry(Relation index, ItemPointer tid, Datum *values, bool *isnull,
					   bool is_alive, void *state);

/* concurrent_build_is_possible -- can we build this index? */
bool
concurrent_build_is_possible(Relation index, const IndexInfo *info)
{
	KeyCode    *code;

	if (index->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		info->ii_Expressions != NIL || info->ii_Predicate != NIL)
		return false;
	code = key_code_begin(index);
	return code != NULL && !key_code_has_tuples(code);
}

/* concurrent_build -- fill an index with entries of the rows that a snapshot sees. */
void
concurrent_build(Relation heap, Relation index, IndexInfo *info)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "concurrent index build",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	BtreeBuild *build = palloc0(btree_build_size(1));
	BtreePart	part = {.build = build,.index = index,.info = info};
	PartSort	sort = {.part = &part};
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber first = 0;
	Size		entry_size;
	Size		most;

	Assert(CheckRelationLockedByMe(heap, ShareUpdateExclusiveLock, true));
	Assert(!index->rd_index->indisready && !index->rd_index->indisvalid && info->ii_Concurrent);
	Assert(ActiveSnapshotSet());
	btree_build_begin(build, NULL, 1, index);
	sort.code = key_code_begin(index);
	Assert(!key_code_has_tuples(sort.code));
	/* half of the memory is for a second array */
	entry_size = key_code_words(sort.code) * sizeof(uint64);
	most = Min((Size) maintenance_work_mem * 1024 / 2 / entry_size,
			   (Size) nblocks * MaxHeapTuplesPerPage);
	sort.sort = entry_sort_begin(key_code_words(sort.code), 0, Max(most, 1));
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE, PROGRESS_BTREE_PHASE_INDEXBUILD_TABLESCAN);
	(void) table_index_build_scan(heap, index, info, true, true, sort_entry, &sort, NULL);

	PopActiveSnapshot();
	InvalidateCatalogSnapshotConditionally();
	DEBUG_POINT("shrink-scanned");
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE, PROGRESS_BTREE_PHASE_LEAF_LOAD);
	btree_build_pages(&sort, NULL, heap);
	/* a session may have read pages before we had written them */
	DropRelationBuffers(RelationGetSmgr(index), &fork, 1, &first);
	compat_vac_update_relstats(index, RelationGetNumberOfBlocks(index), part.counts.index_tuples,
							   0, 0, false, InvalidTransactionId, InvalidMultiXactId, NULL, NULL, true);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* sort_entry -- for table_index_build_scan: sort the entry of a row. */
static void
sort_entry(Relation index, ItemPointer tid, Datum *values, bool *isnull, bool is_alive, void *state)
{
	PartSort   *sort = state;
	uint64		entry[ENTRY_MAX_WORDS];

	Assert(is_alive);
	key_code_encode(sort->code, values, isnull, tid, entry);
	entry_sort_put(sort->sort, entry);
	sort->part->counts.index_tuples++;
}
