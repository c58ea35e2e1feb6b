/*-------------------------------------------------------------------------
 *
 * btree_build.c
 *	  Building btrees, each whole or in parts by several processes.
 *
 * The server's parallel build shares out reading the table and sorting, but one
 * process merges what they have sorted, and fills all pages.  Here each process
 * builds a part of the index, of the keys in a range:
 *
 *	 1. The leader takes a sample of the rows (btree_sample.c), which shows where
 *		to divide the index into parts of about the same size
 *		(btree_build_begin).
 *	 2. Each process gets the entries of its part, sorts them (btree_sort.c), and
 *		fills leaf pages with them (btree_load.c).  Either all processes have
 *		collected the entries of all parts before (btree_collect.c), or, if there
 *		is no memory for these, each process reads the whole table.
 *	 3. The leader joins the parts, and fills the few pages above the leaves
 *		(btree_build_end; see btree_level.c).
 *
 * An index of one part is built by one process from beginning to end.
 *
 * The bounds between parts are entries, too (btree_entry.c).
 *
 * concurrent_build.c has its own first step, and fills pages by btree_build_pages.
 *
 * Otherwise only for plain indexes (see plain_index.c), and like the server when it
 * rebuilds the indexes of a table that VACUUM FULL has written: without a check
 * for duplicates.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "access/nbtree.h"
#include "access/parallel.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/btree_build.h"
#include "index_build/btree_build_private.h"
#include "index_build/btree_level.h"
#include "index_build/entry_sort.h"
#include "report/progress.h"

/* For btree_level_join */
typedef struct PartsToJoin
{
	BtreeBuild *build;
	SharedFileSet *files;
	BufFile    *only;			/* if there is one part */
} PartsToJoin;

static void join(BtreeBuild *build, SharedFileSet *files, BufFile *only, Relation heap,
				 Relation index);
static void build_part(PartSort *sort, SharedFileSet *files, Relation heap);
static void new_btree_begin(NewBtree *btree, BtreeBuild *build, Relation heap, Relation index);
static char *file_name(const BtreeBuild *build, int part);
static BtreeEnds *ends_of(void *state, int part);
static BufFile *downlinks_of(void *state, int part);

/* btree_build_size -- how much shared memory a build of nparts parts takes. */
Size
btree_build_size(const BtreeSample *sample, int nparts)
{
	Assert(nparts == 1 || (nparts > 1 && sample != NULL));
	return MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds)) +
		(nparts - 1) * (sample ? sample->largest : 0);
}

/* btree_build_begin -- prepare what the processes share that build parts. */
void
btree_build_begin(BtreeBuild *build, const BtreeSample *sample, int nparts, Relation index)
{
	char	   *place;
	int64		passed = 0;
	int			next = 1;

	Assert(nparts == 1 || (nparts > 1 && sample != NULL));
	Assert(nparts == 1 || (sample->nrows > 0 && sample->weight > 0));
	Assert(new_blocks_are_ours(index));

	build->relid = RelationGetRelid(index);
	build->nparts = nparts;
	build->separators = MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds));
	pg_atomic_init_u32(&build->parts_done, 0);
	for (int i = 0; i < nparts; i++)
		build->parts[i].npages = 0;

	/* a separator is the first of its part, and may be that of the next, too */
	place = (char *) build + build->separators;
	for (int i = 0; nparts > 1 && i < sample->nrows; i++)
	{
		IndexTuple	entry = sample->rows[i].entry;

		passed += sample->rows[i].weight;
		for (; next < nparts && passed > sample->weight * next / nparts; next++)
		{
			memcpy(place, entry, IndexTupleSize(entry));
			place += MAXALIGN(IndexTupleSize(entry));
		}
	}
	Assert(next == nparts);

	/*
	 * the metapage is written last, but is the first block; it is there if
	 * the index is divided anew
	 */
	if (RelationGetNumberOfBlocks(index) > 1)
		elog(ERROR, "index \"%s\" is not empty", RelationGetRelationName(index));
	new_blocks_init(&build->blocks);
	new_blocks_go_on_behind(index, &build->blocks);
	if (RelationGetNumberOfBlocks(index) == 0)
		(void) new_blocks_take(index, &build->blocks, 1);
}

/* btree_build_parts -- build parts of different indexes, with one pass over the table. */
void
btree_build_parts(BtreePart *parts, int nparts, SharedFileSet *files, Relation heap)
{
	TablePass	pass = {.heap = heap,.nsorts = nparts};
	instr_time	start;

	Assert(nparts > 0);
	Assert(parts[0].collection == NULL || nparts == 1);
	Assert(CheckRelationLockedByMe(heap, ShareLock, true));
	Assert(files != NULL || parts[0].build->nparts == 1);
	pass.slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	pass.nblocks = RelationGetNumberOfBlocks(heap);
	pass.sorts = palloc0_array(PartSort, nparts);
	for (int i = 0; i < nparts; i++)
		btree_sort_begin(&pass, &parts[i], &pass.sorts[i]);

	INSTR_TIME_SET_CURRENT(start);
	if (parts[0].collection == NULL)
	{
		btree_sort_share_memory(&pass);
		btree_sort_rows(&pass);
	}
	else if (!pass.sorts[0].is_given_up)
		btree_collect_take(parts[0].collection, &pass.sorts[0]);
	for (int i = 0; i < nparts; i++)
		parts[i].seconds = seconds_since(start) / nparts;
	for (int i = 0; i < nparts; i++)
	{
		if (pass.sorts[i].is_given_up)
			continue;
		INSTR_TIME_SET_CURRENT(start);
		progress_index(RelationGetRelid(parts[i].index), 0);
		if (parts[i].collection == NULL)
			parts[i].counts.heap_tuples = pass.rows;
		build_part(&pass.sorts[i], files, heap);
		parts[i].seconds += seconds_since(start);
	}
	for (int i = 0; i < nparts; i++)
		if (pass.sorts[i].is_given_up)
		{
			double		wasted = parts[i].seconds;

			btree_entry_maker_end(&pass.sorts[i].maker);
			parts[i].by_code = false;
			parts[i].collection = NULL;
			parts[i].counts.index_tuples = 0;
			btree_build_parts(&parts[i], 1, files, heap);
			parts[i].seconds += wasted;
		}
	ExecDropSingleTupleTableSlot(pass.slot);
}

/* build_part -- fill the pages of a part, and count it. */
static void
build_part(PartSort *sort, SharedFileSet *files, Relation heap)
{
	BtreePart  *part = sort->part;
	BtreeBuild *build = part->build;

	btree_build_pages(sort, files, heap);
	btree_entry_maker_end(&sort->maker);
	if (pg_atomic_add_fetch_u32(&build->parts_done, 1) == build->nparts)
	{
		uint32		ndone = pg_atomic_add_fetch_u32(part->ndone, 1);

		if (!IsParallelWorker())
			pgstat_progress_update_param(PROGRESS_REPACK_INDEX_REBUILD_COUNT, ndone);
	}
}

/*
 * btree_build_pages
 *		Sort the entries of a part, which are all there, and fill its leaf pages.
 */
void
btree_build_pages(PartSort *sort, SharedFileSet *files, Relation heap)
{
	BtreePart  *part = sort->part;
	BtreeBuild *build = part->build;
	bool		is_whole = build->nparts == 1;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pages of a btree",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	BufFile    *downlinks;
	BtreeLevel *level;
	NewBtree	btree;

	if (sort->code == NULL)
		tuplesort_performsort(sort->server_sort);
	else
	{
		DEBUG_POINT("rewrite-entry-sort");
		entry_sort_perform(sort->sort);
		if (sort->tuples != NULL)
			entry_sort_end_ties(sort->sort, btree_sort_compare_ties, sort);
	}

	new_btree_begin(&btree, build, heap, part->index);
	downlinks = is_whole ? BufFileCreateTemp(false) :
		BufFileCreateFileSet(&files->fs, file_name(build, part->number));
	level = btree_level_begin_leaves(&btree, downlinks, &build->parts[part->number]);
	btree_load_leaves(&btree, sort, level);
	DEBUG_POINT("rewrite-btree-part");
	btree_level_end_leaves(level, part->number == build->nparts - 1);
	if (!is_whole)
	{
		BufFileExportFileSet(downlinks);
		BufFileClose(downlinks);
	}
	if (sort->code != NULL)
		entry_sort_end(sort->sort);
	else
		tuplesort_end(sort->server_sort);
	if (sort->tuples != NULL)
		MemoryContextDelete(sort->tuples);

	if (is_whole)
		join(build, NULL, downlinks, heap, part->index);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* btree_build_end -- make a btree of all parts. */
void
btree_build_end(BtreeBuild *build, SharedFileSet *files, Relation heap, Relation index)
{
	Assert(CheckRelationLockedByMe(heap, ShareLock, true));
	Assert(build->relid == RelationGetRelid(index));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));
	if (pg_atomic_read_u32(&build->parts_done) != build->nparts)
		elog(ERROR, "parts of index \"%s\" are missing", RelationGetRelationName(index));
	/* the process that built a single part has joined it */
	if (build->nparts > 1)
		join(build, files, NULL, heap, index);
}

/* join -- make a btree of all parts. */
static void
join(BtreeBuild *build, SharedFileSet *files, BufFile *only, Relation heap, Relation index)
{
	PartsToJoin state = {build, files, only};
	NewBtree	btree;

	DEBUG_POINT("rewrite-btree-join");
	new_btree_begin(&btree, build, heap, index);
	btree_level_join(&btree, build->nparts, ends_of, downlinks_of, &state);
	/* a file with downlinks is closed by now */
	if (only != NULL && build->parts[0].npages < 2)
		BufFileClose(only);
	new_blocks_sync(index, &build->blocks);
}

/* new_btree_begin -- what this process needs to know to fill pages. */
static void
new_btree_begin(NewBtree *btree, BtreeBuild *build, Relation heap, Relation index)
{
	btree->heap = heap;
	btree->index = index;
	btree->key = _bt_mkscankey(index, NULL);
	btree->key->allequalimage = _bt_allequalimage(index, false);
	btree->blocks = &build->blocks;
}

/* file_name -- of a part's downlinks. */
static char *
file_name(const BtreeBuild *build, int part)
{
	return psprintf("%u.%d", build->relid, part);
}

/* ends_of -- for btree_level_join. */
static BtreeEnds *
ends_of(void *state, int part)
{
	PartsToJoin *join = state;

	return &join->build->parts[part];
}

/* downlinks_of -- the same. */
static BufFile *
downlinks_of(void *state, int part)
{
	PartsToJoin *join = state;

	if (join->only != NULL)
	{
		if (BufFileSeek(join->only, 0, 0, SEEK_SET) != 0)
			elog(ERROR, "could not rewind a temporary file");
		return join->only;
	}
	return BufFileOpenFileSet(&join->files->fs, file_name(join->build, part), O_RDONLY, false);
}
