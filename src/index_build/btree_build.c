/*-------------------------------------------------------------------------
 *
 * btree_build.c
 *	  Building btrees whose entries are sorted as integers, each whole or in parts.
 *
 * A whole index is built by one process, several by one pass over the table
 * (btree_sort.c).  An index whose entries have room in shared memory is built in parts, of
 * the keys in a range each: README.md has the steps.
 *
 * concurrent_build.c has its own first step, and fills pages by btree_build_pages.
 *
 * Otherwise only for plain indexes (plain_index.c), and like the server when it
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

#include "compat.h"
#include "debug_point.h"
#include "index_build/btree_build.h"
#include "index_build/btree_build_private.h"
#include "index_build/btree_level.h"
#include "index_build/entry_sort.h"
#include "report/progress.h"

static void join_btree(BtreeBuild *build, SharedFileSet *files, BufFile *only, Relation heap,
					   Relation index);
static void build_part(PartSort *sort, SharedFileSet *files, Relation heap);
static void new_btree_begin(NewBtree *btree, BtreeBuild *build, Relation heap, Relation index);
static char *downlinks_name(const BtreeBuild *build, int part);

/* btree_build_size -- how much shared memory a build of at most nparts parts takes. */
Size
btree_build_size(int nparts)
{
	Assert(nparts > 0);
	return MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds)) +
		(nparts - 1) * ENTRY_MAX_WORDS * sizeof(uint64);
}

/* btree_build_begin -- prepare what the processes share that build parts. */
void
btree_build_begin(BtreeBuild *build, const BtreeSample *sample, int nparts, Relation index)
{
	int64		passed = 0;
	int			next = 1;

	Assert(nparts == 1 || (nparts > 1 && sample->nrows > 0 && sample->weight > 0));
	Assert(new_blocks_are_ours(index));

	build->relid = RelationGetRelid(index);
	build->nparts = nparts;
	build->separators = MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds));
	pg_atomic_init_u32(&build->parts_done, 0);
	for (int i = 0; i < nparts; i++)
		build->parts[i].npages = 0;

	/* a separator is the first of its part, and may be that of the next, too */
	for (int i = 0; nparts > 1 && i < sample->nrows; i++)
	{
		passed += sample->rows[i].weight;
		for (; next < nparts && passed > sample->weight * next / nparts; next++)
			entries_copy(btree_separators(build) + (next - 1) * sample->nwords,
						 sample->rows[i].entry, sample->nwords);
	}
	Assert(next == nparts);

	if (RelationGetNumberOfBlocks(index) > 0)
		elog(ERROR, "index \"%s\" is not empty", RelationGetRelationName(index));
	new_blocks_init(&build->blocks);
	/* the metapage is written last, but is the first block */
	if (nparts > 1)
		(void) new_blocks_take(index, &build->blocks, 1);
}

/* btree_build_whole -- build different indexes, with one pass over the table. */
void
btree_build_whole(BtreePart *parts, int nparts, Relation heap)
{
	TablePass	pass = {.heap = heap,.nsorts = nparts};
	instr_time	start;

	pass.sorts = palloc0_array(PartSort, nparts);
	for (int i = 0; i < nparts; i++)
		btree_sort_begin(&pass.sorts[i], &parts[i]);

	INSTR_TIME_SET_CURRENT(start);
	btree_sort_rows(&pass);
	for (int i = 0; i < nparts; i++)
	{
		parts[i].seconds = seconds_since(start) / nparts;
		parts[i].counts.heap_tuples = pass.rows;
	}
	for (int i = 0; i < nparts; i++)
		if (!parts[i].is_given_up)
			build_part(&pass.sorts[i], NULL, heap);
}

/* btree_build_collected -- build a part of which the entries were collected. */
void
btree_build_collected(BtreePart *part, SharedFileSet *files, Relation heap)
{
	PartSort	sort = {0};
	instr_time	start;

	Assert(part->build->nparts > 1);
	INSTR_TIME_SET_CURRENT(start);
	btree_sort_begin(&sort, part);
	btree_collect_take(part->collection, &sort);
	part->seconds = seconds_since(start);
	build_part(&sort, files, heap);
}

/* build_part -- fill the pages of a part, and count it. */
static void
build_part(PartSort *sort, SharedFileSet *files, Relation heap)
{
	BtreePart  *part = sort->part;
	BtreeBuild *build = part->build;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	progress_index(RelationGetRelid(part->index), 0);
	btree_build_pages(sort, files, heap);
	part->seconds += seconds_since(start);
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

	DEBUG_POINT("rewrite-entry-sort");
	entry_sort_perform(sort->sort);
	if (sort->tuples != NULL)
		entry_sort_end_ties(sort->sort, btree_sort_compare_ties, sort);

	if (is_whole)
		(void) new_blocks_take(part->index, &build->blocks, 1);
	new_btree_begin(&btree, build, heap, part->index);
	downlinks = is_whole ? BufFileCreateTemp(false) :
		BufFileCreateFileSet(&files->fs, downlinks_name(build, part->number));
	level = btree_level_begin_leaves(&btree, downlinks, &build->parts[part->number]);
	btree_load_leaves(&btree, sort, level);
	DEBUG_POINT("rewrite-btree-part");
	btree_level_end_leaves(level);
	if (!is_whole)
	{
		BufFileExportFileSet(downlinks);
		BufFileClose(downlinks);
	}
	entry_sort_end(sort->sort);
	if (sort->tuples != NULL)
		MemoryContextDelete(sort->tuples);

	if (is_whole)
		join_btree(build, NULL, downlinks, heap, part->index);
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
		join_btree(build, files, NULL, heap, index);
}

/*
 * join_btree
 *		Link the leaves of all parts, and fill the levels above.  A single part has its file
 *		of downlinks open.
 */
static void
join_btree(BtreeBuild *build, SharedFileSet *files, BufFile *only, Relation heap, Relation index)
{
	BufFile   **downlinks = palloc0_array(BufFile *, build->nparts);
	NewBtree	btree;

	DEBUG_POINT("rewrite-btree-join");
	new_btree_begin(&btree, build, heap, index);
	for (int i = 0; i < build->nparts; i++)
	{
		downlinks[i] = only ? only :
			BufFileOpenFileSet(&files->fs, downlinks_name(build, i), O_RDONLY, false);
		if (BufFileSeek(downlinks[i], 0, 0, SEEK_SET) != 0)
			elog(ERROR, "could not rewind a temporary file");
	}
	btree_level_join(&btree, build->nparts, build->parts, downlinks);
	for (int i = 0; i < build->nparts; i++)
		BufFileClose(downlinks[i]);
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

/* downlinks_name -- of the file that a part's downlinks are in. */
static char *
downlinks_name(const BtreeBuild *build, int part)
{
	return psprintf("%u.%d", build->relid, part);
}
