/*-------------------------------------------------------------------------
 *
 * gin_vacuum.c
 *	  Bulk deletion in GIN indexes, by any number of processes in one index.
 *
 * The leaves of the entry tree are cut into stretches, which members claim; large posting
 * trees are cut into pieces in the same way.  gin_tree.c finds the way in these trees and
 * deletes pages, gin_page.c takes dead TIDs out of a leaf page.  This file says which
 * process does what; README.md, why all entries of dead items are found.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/lmgr.h"
#include "storage/spin.h"
#include "utils/memutils.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/gin_page.h"
#include "engine/index/gin_tree.h"
#include "engine/index/gin_vacuum.h"
#include "engine/index/index_kind.h"
#include "engine/index/link_walk.h"
#include "machine/wal_writer.h"
#include "own_wait_event.h"
#include "pace/pace.h"
#include "relation_size.h"
#include "report/progress.h"
#include "team/team.h"

/* Into how many stretches the entry tree is cut at most */
#define MAX_STRETCHES		512

/*
 * A posting tree with this number of leaves is large (1 MB), and cut into pieces of
 * a quarter of that, or into longer ones if there were too many.
 */
#define LARGE_TREE_LEAVES	DEBUG_LIMIT(max_tree_pages, 128)
#define PIECES_A_LARGE_TREE	4
#define MAX_PIECES			64

/* How many large trees are shared out at a time */
#define MAX_LARGE_TREES		16

/* A large posting tree, cut into pieces */
typedef struct LargeTree
{
	bool		in_use;
	bool		has_empty_pages;	/* as far as it has been visited */
	BlockNumber root;
	int			npieces;
	int			nclaimed;
	int			ndone;
	BlockNumber starts[MAX_PIECES]; /* the first leaf of each */
} LargeTree;

/* What the team shares of a GIN index */
typedef struct GinShared
{
	/* written by the leader before the phase */
	int			nmembers;
	BlockNumber stretches[MAX_STRETCHES];	/* the first leaf of each;
											 * invalid: the leftmost one, as
											 * it is then */

	pg_atomic_uint32 at_stretches;	/* members that visit or claim some */
	ConditionVariable changed;	/* there are trees, or no member is at
								 * stretches */
	slock_t		mutex;			/* protects the rest */
	LargeTree	trees[MAX_LARGE_TREES];
} GinShared;

static void gin_setup(TableVacuum *vacuum, int number);
static void gin_begin(TableVacuum *vacuum, int number, int nmembers);
static void gin_vacuum(TableVacuum *vacuum, int number);
static bool gin_is_done(TableVacuum *vacuum, int number);
static void cut_entry_tree(TableVacuum *vacuum, int number, GinShared *shared);
static GinTree tree_of(const GinScan *scan, BlockNumber root, uint16 flags);
static bool visit_stretches(GinScan *scan);
static void walk_entry_leaves(GinScan *scan, uint64 start, uint64 end);
static void vacuum_posting_tree(GinScan *scan, BlockNumber root);
static bool share_out_tree(GinScan *scan, const GinTree *tree);
static bool add_large_tree(GinShared *shared, BlockNumber root, const GinCuts *cuts);
static bool do_piece(GinScan *scan);
static LargeTree *claim_piece(GinShared *shared, BlockNumber *start, BlockNumber *end);
static void finish_piece(GinScan *scan, LargeTree *tree, bool has_empty_pages);
static bool has_pieces(GinShared *shared);
static bool wait_for_piece(GinShared *shared);
static bool walk_posting_leaves(GinScan *scan, const GinTree *tree, BlockNumber start,
								BlockNumber end);
static BlockNumber right_leaf(LinkWalk *walk, Buffer buffer);
static void log_missed_leaf(GinScan *scan, BlockNumber blkno);
static void delete_empty_pages(GinScan *scan, const GinTree *tree);
static void page_is_done(GinScan *scan);

const IndexKind gin_kind = {
	.name = "gin",
	.shared_size = sizeof(GinShared),
	.setup = gin_setup,
	.bulk_delete = {
		.begin = gin_begin,
		.work = gin_vacuum,
		.is_done = gin_is_done,
		.finish = index_leave_stats,
	},
};

/* gin_is_ours -- is bulk deletion in this index done here? */
bool
gin_is_ours(Relation index)
{
	GinStatsData stats;

	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));

	if (index->rd_indam->ambulkdelete != ginbulkdelete || relation_blocks(index) == 0)
		return false;
	ginGetStats(index, &stats);
	return stats.ginVersion == GIN_CURRENT_VERSION;
}

/*
 * gin_empty_pending_list
 *		Move what the index has in its pending list to where bulk deletion looks.
 *
 * ginbulkdelete does so only in its first call.  Since then entries may have come into
 * the list whose rows this round has found dead, as their insertion was rolled back.
 * They would lead to other rows later.  As in the server, autovacuum leaves what comes
 * into the list meanwhile: those are entries of rows that were not found dead.
 */
void
gin_empty_pending_list(Relation index, bool is_autovacuum, IndexBulkDeleteResult *stats)
{
	GinState	state;

	Assert(CritSectionCount == 0);
	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));

	initGinState(&state, index);
	ginInsertCleanup(&state, !is_autovacuum, false, true, stats);
}

/* gin_setup -- initialize what is shared of an index. */
static void
gin_setup(TableVacuum *vacuum, int number)
{
	GinShared  *shared = index_area(vacuum, number);

	pg_atomic_init_u32(&shared->at_stretches, 0);
	ConditionVariableInit(&shared->changed);
	SpinLockInit(&shared->mutex);
}

/*
 * gin_begin
 *		Empty the pending list, and make the leaves of the entry tree available.
 */
static void
gin_begin(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);
	GinShared  *shared = index_area(vacuum, number);

	Assert(is_leader(vacuum));
	/* a round leaves no work to the next one */
	Assert(pg_atomic_read_u32(&shared->at_stretches) == 0);

	pace_begin_server_code();
	gin_empty_pending_list(vacuum->indexes[number], vacuum->shared->is_autovacuum,
						   &index->stats);
	pace_end_server_code();

	shared->nmembers = nmembers;
	cut_entry_tree(vacuum, number, shared);

	/* the pages of all rounds are counted, but TIDs anew */
	index->stats.estimated_count = false;
	index->stats.num_index_tuples = 0;
}

/* cut_entry_tree -- make stretches; one if there are no other members. */
static void
cut_entry_tree(TableVacuum *vacuum, int number, GinShared *shared)
{
	GinTree		tree = {
		.vacuum = vacuum,
		.number = number,
		.index = vacuum->indexes[number],
		.root = GIN_ROOT_BLKNO,
	};
	GinCuts		cuts = {
		.distance = 1,
		.max_count = MAX_STRETCHES,
		.blocks = shared->stretches,
	};

	if (shared->nmembers > 1)
		gin_find_cuts(&tree, &cuts);
	if (cuts.count == 0)
		shared->stretches[cuts.count++] = InvalidBlockNumber;
	ranges_init(&vacuum_index(vacuum->shared, number)->ranges, 0, cuts.count,
				1, MAX_STRETCHES, shared->nmembers);
}

/*
 * gin_vacuum
 *		One process's part of an index: do stretches, and pieces of posting trees,
 *		until there are none.
 */
static void
gin_vacuum(TableVacuum *vacuum, int number)
{
	GinScan    *scan = kind_scan_make(vacuum, number, sizeof(GinScan));

	Assert(vacuum->dead_tids != NULL);
	scan->shared = index_area(vacuum, number);
	scan->context = AllocSetContextCreate(CurrentMemoryContext, "cyclone GIN page",
										  ALLOCSET_DEFAULT_SIZES);

	do
	{
		while (do_piece(scan))
			continue;
	} while (visit_stretches(scan) || wait_for_piece(scan->shared));

	progress_blocks_done(scan->base.pages_done);
	MemoryContextDelete(scan->context);
	kind_scan_free(&scan->base);
}

/*
 * gin_is_done
 *		Has all been claimed, and can no more posting trees be found?
 *
 * With few entry pages, most of the work may be found when all stretches are
 * claimed.
 */
static bool
gin_is_done(TableVacuum *vacuum, int number)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);
	GinShared  *shared = index_area(vacuum, number);

	/*
	 * in this order: a process is counted before it claims stretches, and
	 * adds trees before it is through
	 */
	if (ranges_position(&index->ranges) < index->ranges.end)
		return false;
	pg_read_barrier();
	if (pg_atomic_read_u32(&shared->at_stretches) > 0)
		return false;
	pg_read_barrier();
	return !has_pieces(shared);
}

/* tree_of -- describe a tree of the index. */
static GinTree
tree_of(const GinScan *scan, BlockNumber root, uint16 flags)
{
	GinTree		tree = {
		.vacuum = scan->base.vacuum,
		.number = scan->base.number,
		.index = scan->base.index,
		.root = root,
		.flags = flags,
	};

	return tree;
}

/*
 * visit_stretches
 *		Claim stretches and visit them; return false if there were none.
 *
 * As long as this process is counted at stretches, other members know that there may be
 * more pieces of posting trees.
 */
static bool
visit_stretches(GinScan *scan)
{
	GinShared  *shared = scan->shared;
	uint64		start,
				end;
	bool		claimed;

	pg_atomic_fetch_add_u32(&shared->at_stretches, 1);
	claimed = ranges_claim(&scan->base.shared->ranges, &start, &end);
	if (claimed)
		walk_entry_leaves(scan, start, end);
	Assert(pg_atomic_read_u32(&shared->at_stretches) > 0);
	if (pg_atomic_sub_fetch_u32(&shared->at_stretches, 1) == 0)
		ConditionVariableBroadcast(&shared->changed);
	return claimed;
}

/*
 * walk_entry_leaves
 *		Visit the leaves of some stretches, and the posting trees of each.
 */
static void
walk_entry_leaves(GinScan *scan, uint64 start, uint64 end)
{
	GinShared  *shared = scan->shared;
	BlockNumber next = shared->stretches[start];
	BlockNumber stop = InvalidBlockNumber;
	LinkWalk	walk = {.index = scan->base.index};

	Assert(start < end && end <= scan->base.shared->ranges.end);
	if (end < scan->base.shared->ranges.end)
		stop = shared->stretches[end];

	do
	{
		GinTree		tree = tree_of(scan, GIN_ROOT_BLKNO, 0);
		Buffer		buffer;

		delay_point();
		failsafe_notice(scan->base.vacuum);
		DEBUG_POINT("gin-page");

		buffer = next == InvalidBlockNumber ? gin_lock_first_leaf(&tree) : gin_lock_leaf(&tree, next);
		gin_clean_entry_leaf(scan, buffer);
		next = right_leaf(&walk, buffer);
		UnlockReleaseBuffer(buffer);
		page_is_done(scan);

		for (int i = 0; i < scan->nroots; i++)
			vacuum_posting_tree(scan, scan->roots[i]);
	} while (next != stop && next != InvalidBlockNumber);

	if (next != stop)
		log_missed_leaf(scan, stop);
}

/*
 * vacuum_posting_tree
 *		Vacuum a posting tree, or share it out to all members.
 */
static void
vacuum_posting_tree(GinScan *scan, BlockNumber root)
{
	GinTree		tree = tree_of(scan, root, GIN_DATA);

	if (scan->shared->nmembers > 1 && share_out_tree(scan, &tree))
		return;
	if (walk_posting_leaves(scan, &tree, InvalidBlockNumber, InvalidBlockNumber))
		delete_empty_pages(scan, &tree);
}

/*
 * share_out_tree
 *		Share out the leaves of a posting tree; return false if that isn't worthwhile
 *		or possible.
 */
static bool
share_out_tree(GinScan *scan, const GinTree *tree)
{
	BlockNumber blocks[MAX_PIECES];
	GinCuts		cuts = {
		.distance = Max(LARGE_TREE_LEAVES / PIECES_A_LARGE_TREE, 1),
		.max_count = MAX_PIECES,
		.blocks = blocks,
	};

	gin_find_cuts(tree, &cuts);
	if (cuts.nleaves < LARGE_TREE_LEAVES || cuts.count < 2)
		return false;

	/* if there is no room for it, do pieces of other trees until there is */
	while (!add_large_tree(scan->shared, tree->root, &cuts))
		if (!do_piece(scan))
			return false;
	ConditionVariableBroadcast(&scan->shared->changed);
	return true;
}

/* add_large_tree -- put a tree where all see it, if there is room. */
static bool
add_large_tree(GinShared *shared, BlockNumber root, const GinCuts *cuts)
{
	LargeTree  *tree = NULL;

	Assert(cuts->count >= 2 && cuts->count <= MAX_PIECES);
	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < MAX_LARGE_TREES && tree == NULL; i++)
		if (!shared->trees[i].in_use)
			tree = &shared->trees[i];
	if (tree != NULL)
	{
		tree->in_use = true;
		tree->has_empty_pages = false;
		tree->root = root;
		tree->npieces = cuts->count;
		tree->nclaimed = 0;
		tree->ndone = 0;
		memcpy(tree->starts, cuts->blocks, cuts->count * sizeof(BlockNumber));
	}
	SpinLockRelease(&shared->mutex);
	return tree != NULL;
}

/* do_piece -- do a piece of a large tree; return false if there is none. */
static bool
do_piece(GinScan *scan)
{
	BlockNumber start,
				end;
	LargeTree  *large = claim_piece(scan->shared, &start, &end);
	GinTree		tree;

	if (large == NULL)
		return false;
	DEBUG_POINT("gin-piece");
	tree = tree_of(scan, large->root, GIN_DATA);
	finish_piece(scan, large, walk_posting_leaves(scan, &tree, start, end));
	return true;
}

/*
 * claim_piece
 *		Take a piece of a tree, of the leaves from *start to before *end; return
 *		NULL if there is none.  The tree stays until the piece is finished.
 */
static LargeTree *
claim_piece(GinShared *shared, BlockNumber *start, BlockNumber *end)
{
	LargeTree  *found = NULL;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < MAX_LARGE_TREES && found == NULL; i++)
	{
		LargeTree  *tree = &shared->trees[i];

		if (!tree->in_use || tree->nclaimed == tree->npieces)
			continue;
		found = tree;
		*start = tree->starts[tree->nclaimed++];
		*end = tree->nclaimed < tree->npieces ? tree->starts[tree->nclaimed] : InvalidBlockNumber;
	}
	SpinLockRelease(&shared->mutex);
	return found;
}

/* finish_piece -- a piece is done; if it was a tree's last one, delete the tree's empty pages. */
static void
finish_piece(GinScan *scan, LargeTree *large, bool has_empty_pages)
{
	GinShared  *shared = scan->shared;
	bool		is_last;

	SpinLockAcquire(&shared->mutex);
	Assert(large->in_use && large->ndone < large->nclaimed);
	large->has_empty_pages |= has_empty_pages;
	is_last = ++large->ndone == large->npieces;
	has_empty_pages = large->has_empty_pages;
	SpinLockRelease(&shared->mutex);

	if (!is_last)
		return;
	if (has_empty_pages)
	{
		GinTree		tree = tree_of(scan, large->root, GIN_DATA);

		delete_empty_pages(scan, &tree);
	}
	SpinLockAcquire(&shared->mutex);
	large->in_use = false;
	SpinLockRelease(&shared->mutex);
}

/* has_pieces -- is there a piece to claim? */
static bool
has_pieces(GinShared *shared)
{
	bool		found = false;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < MAX_LARGE_TREES && !found; i++)
		found = shared->trees[i].in_use &&
			shared->trees[i].nclaimed < shared->trees[i].npieces;
	SpinLockRelease(&shared->mutex);
	return found;
}

/*
 * wait_for_piece
 *		With no stretch left, wait until there is a piece to claim; return false
 *		when there can be no more.
 */
static bool
wait_for_piece(GinShared *shared)
{
	static uint32 wait_event = 0;
	bool		found;

	for (;;)
	{
		/*
		 * in this order: a process at a stretch adds trees before it is
		 * through
		 */
		bool		may_come = pg_atomic_read_u32(&shared->at_stretches) > 0;

		pg_read_barrier();
		found = has_pieces(shared);
		if (found || !may_come)
			break;
		team_sleep(&shared->changed, own_wait_event(&wait_event, "CycloneGinStretches"));
	}
	ConditionVariableCancelSleep();
	return found;
}

/*
 * walk_posting_leaves
 *		Visit the leaves of a posting tree from start to before end, or to the
 *		last one; is one of them empty?
 *
 * If start is invalid, it is the leftmost leaf.
 */
static bool
walk_posting_leaves(GinScan *scan, const GinTree *tree, BlockNumber start, BlockNumber end)
{
	BlockNumber next = start;
	bool		has_empty_pages = false;
	LinkWalk	walk = {.index = scan->base.index};

	do
	{
		Buffer		buffer;

		delay_point();
		failsafe_notice(scan->base.vacuum);
		DEBUG_POINT("gin-posting-page");

		buffer = next == InvalidBlockNumber ? gin_lock_first_leaf(tree) : gin_lock_leaf(tree, next);
		has_empty_pages |= gin_clean_posting_leaf(scan, buffer);
		next = right_leaf(&walk, buffer);
		UnlockReleaseBuffer(buffer);
		page_is_done(scan);
	} while (next != end && next != InvalidBlockNumber);

	if (next != end)
		log_missed_leaf(scan, end);
	return has_empty_pages;
}

/* right_leaf -- where a locked leaf's link to the right leads to. */
static BlockNumber
right_leaf(LinkWalk *walk, Buffer buffer)
{
	BlockNumber next = GinPageGetOpaque(BufferGetPage(buffer))->rightlink;

	if (next != InvalidBlockNumber)
		link_walk_step(walk, BufferGetBlockNumber(buffer), next, ERROR);
	return next;
}

/*
 * log_missed_leaf
 *		The leaf where another walk begins isn't to the right of where this one did,
 *		as downlinks say.
 *
 * No leaf has been missed.  The first walk begins with the leftmost leaf.  Each walk has come
 * to where the next one begins, but this one to the end of the chain.
 */
static void
log_missed_leaf(GinScan *scan, BlockNumber blkno)
{
	ereport(LOG,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("links between leaves of index \"%s\" do not lead to block %u, and downlinks do",
					RelationGetRelationName(scan->base.index), blkno),
			 errhint("Please REINDEX it.")));
}

/* delete_empty_pages -- take them out of a posting tree whose leaves have all been visited. */
static void
delete_empty_pages(GinScan *scan, const GinTree *tree)
{
	DEBUG_POINT("gin-empty-pages");
	delay_point();
	gin_delete_empty_pages(tree, &scan->base.stats);
}

/* page_is_done -- count a leaf page that has been visited. */
static void
page_is_done(GinScan *scan)
{
	if (++scan->base.pages_done % PROGRESS_BLOCKS == 0)
	{
		progress_blocks_done(scan->base.pages_done);
		wal_keep_pace();
	}
}
