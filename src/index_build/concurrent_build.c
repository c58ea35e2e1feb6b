/*-------------------------------------------------------------------------
 *
 * concurrent_build.c
 *	  Building a btree while others write to its table.
 *
 * The server's index_concurrently_build scans the table with a snapshot, sorts, and fills the
 * file; what others write meanwhile is added later, when the index is validated.  This does
 * the same.  The scan is the server's own (table_index_build_scan), so which rows have
 * entries, and under which of the TIDs of a chain of HOT updates, is not decided here.  The
 * entries are sorted as integers, and the pages are made, as in VACUUM FULL: see
 * key_code.c, entry_sort.c, btree_load.c, btree_level.c.  One process does it all.
 *
 * What differs from VACUUM FULL:
 *
 * - Rows change and go away meanwhile.  So an entry has to say all: see
 *	 key_code_stands_alone.  Expressions and predicates are left to the server, too: no
 *	 code runs here but the server's.
 * - The TIDs of a page come in any order, as those of chains are their roots', and a scan
 *	 may begin in the middle of the table.  So entries are sorted by TID as well.
 * - In a unique index equal keys are an error, as in the server's build, and there are no
 *	 posting lists, which could only be of nulls.
 * - The file was made by an earlier transaction.  So its pages are logged, whatever
 *	 wal_level is.  Until ours commits, the catalog says that the index is neither to be used
 *	 nor to be maintained, so nobody needs the pages.  But sessions have it open, and
 *	 pageinspect or pg_prewarm may read any page: one that has its block, and isn't written
 *	 yet, is in shared buffers as a page of zeroes then.  So all pages are dropped from there
 *	 when the file is complete.  One that is read in the midst of being written may be torn.
 *	 With checksums that is an error of whoever reads it, and not in shared buffers; without,
 *	 it goes like those of zeroes.
 * - The snapshot would hold back VACUUM elsewhere, so it ends with the scan, before the sort.
 *	 If a row goes away after that, its entry leads to a dead item, as usual: no item is
 *	 reused before the table's next VACUUM, which our lock forbids.
 *
 * After an error, or a crash, the file has some pages, and the catalog still says that it is
 * not to be used.
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

/* The bits of an entry that are behind its TID */
#define BITS_BEHIND_TID		1

static EntrySort *begin_sort(const KeyCode *code, Relation heap);
static void sort_entry(Relation index, ItemPointer tid, Datum *values, bool *isnull,
					   bool is_alive, void *state);
static void drop_buffers(Relation index);

/* concurrent_build_is_possible -- can we build this index? */
bool
concurrent_build_is_possible(Relation index, const IndexInfo *info)
{
	KeyCode    *code;

	if (index->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		info->ii_Expressions != NIL || info->ii_Predicate != NIL)
		return false;
	code = key_code_begin(index);
	return code != NULL && key_code_stands_alone(code);
}

/* concurrent_build -- fill an index with entries of the rows that a snapshot sees. */
void
concurrent_build(Relation heap, Relation index, IndexInfo *info)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "concurrent index build",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	BtreeBuild *build = palloc0(btree_build_size(NULL, 1));
	BtreePart	part = {.build = build,.index = index,.info = info,.by_code = true};
	PartSort	sort = {.part = &part};

	Assert(CheckRelationLockedByMe(heap, ShareUpdateExclusiveLock, true));
	Assert(!index->rd_index->indisready && !index->rd_index->indisvalid && info->ii_Concurrent);
	Assert(ActiveSnapshotSet());
	btree_build_begin(build, NULL, 1, index);
	sort.code = key_code_begin(index);
	sort.sort = begin_sort(sort.code, heap);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE, PROGRESS_BTREE_PHASE_INDEXBUILD_TABLESCAN);
	(void) table_index_build_scan(heap, index, info, true, true, sort_entry, &sort, NULL);

	PopActiveSnapshot();
	InvalidateCatalogSnapshotConditionally();
	DEBUG_POINT("shrink-scanned");
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE, PROGRESS_BTREE_PHASE_LEAF_LOAD);
	btree_build_pages(&sort, NULL, heap);
	drop_buffers(index);
	compat_vac_update_relstats(index, RelationGetNumberOfBlocks(index), part.counts.index_tuples,
							   0, 0, false, InvalidTransactionId, InvalidMultiXactId, NULL, NULL, true);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* begin_sort -- with all memory that we may have, half of it for a second array. */
static EntrySort *
begin_sort(const KeyCode *code, Relation heap)
{
	Size		size = key_code_words(code) * sizeof(uint64);
	Size		capacity = (Size) maintenance_work_mem * 1024 / 2 / size;
	Size		most = (Size) RelationGetNumberOfBlocks(heap) * MaxHeapTuplesPerPage;

	Assert(key_code_stands_alone(code));
	return entry_sort_begin(key_code_words(code), BITS_BEHIND_TID, Max(Min(capacity, most), 1));
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

/*
 * drop_buffers
 *		Drop pages of the index from shared buffers, which somebody may have read before
 *		we had written them.
 */
static void
drop_buffers(Relation index)
{
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber first = 0;

	Assert(new_blocks_are_ours(index));
	DropRelationBuffers(RelationGetSmgr(index), &fork, 1, &first);
}
