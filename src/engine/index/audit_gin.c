/*-------------------------------------------------------------------------
 *
 * audit_gin.c
 *	  Which pages with TIDs does anything lead to in a GIN index?
 *
 * audit_index.c asks this when it has found an entry of a dead row on a page of the
 * pending list, or on a leaf of a posting tree.
 *
 * A session fills new pages of the pending list first, and then links them with the
 * list.  It makes a posting tree first, and then the entry that leads there.  If it fails
 * in between the pages are left over: by a serialization failure, on a full disk, or as
 * the server crashes.  Nothing leads to them, no scan reads them, and nobody ever removes
 * them.  Their TIDs are those of rows that are dead from the beginning, or have entries
 * elsewhere.  No VACUUM comes to them, be it ours or the server's; so what is there is no
 * fault of VACUUM.
 *
 * Pages of the pending list may be removed while somebody walks along it.  So the next
 * one is locked before the last one is released, as by scans.
 *
 * To find the leaves of all posting trees is to walk along the leaves of the entry tree,
 * and along those of each posting tree.  Each page is copied under a shared lock, and no
 * other page is locked at that time.  Splits don't matter: a leaf keeps its place in the
 * chain, and a new one is beside the point, as nobody inserts into a tree that is left
 * over.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "storage/bufmgr.h"

#include "engine/audit.h"
#include "engine/index/gin_check.h"
#include "engine/index/index_kind.h"
#include "engine/index/link_walk.h"
#include "pace/pace.h"

/* A walk along the leaves of a tree */
typedef struct LeafWalk
{
	TableVacuum *vacuum;
	int			number;			/* of the index */
	Relation	index;
	uint16		flags;			/* of its inner pages: GIN_DATA or 0 */
	LinkWalk	links;
	BlockNumber blkno;			/* of the leaf in hand */
	PGAlignedBlock image;		/* its copy */
} LeafWalk;

static void begin_walk(LeafWalk *walk, TableVacuum *vacuum, int number, BlockNumber root, uint16 flags);
static bool next_leaf(LeafWalk *walk);
static BlockNumber first_child(const LeafWalk *walk);
static void copy_page(LeafWalk *walk, BlockNumber blkno);
static void note_leaves(TableVacuum *vacuum, int number, BlockNumber root, uint8 *leaves);

/*
 * audit_gin_is_pending
 *		Is this page in the pending list?  The caller has nothing locked.
 */
bool
audit_gin_is_pending(TableVacuum *vacuum, int number, BlockNumber blkno)
{
	Relation	index = vacuum->indexes[number];
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);
	BlockNumber last = GIN_METAPAGE_BLKNO;
	Buffer		buffer = ReadBufferExtended(index, MAIN_FORKNUM, last, RBM_NORMAL,
											vacuum_strategy(vacuum));
	BlockNumber next;
	BlockNumber steps = 0;

	Assert(CritSectionCount == 0);
	Assert(index->rd_indam->ambulkdelete == ginbulkdelete);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	next = GinPageGetMeta(BufferGetPage(buffer))->head;
	while (next != InvalidBlockNumber && next != blkno)
	{
		Buffer		next_buffer;

		/*
		 * no link_walk_step: a page that was passed may have been removed,
		 * and come to the list again
		 */
		if (next == last || ++steps > nblocks)
			gin_report_corruption(index, last);
		next_buffer = ReadBufferExtended(index, MAIN_FORKNUM, next, RBM_NORMAL,
										 vacuum_strategy(vacuum));
		LockBuffer(next_buffer, BUFFER_LOCK_SHARE);
		UnlockReleaseBuffer(buffer);
		buffer = next_buffer;
		last = next;
		gin_check_page(index, buffer, GIN_LIST);
		next = GinPageGetOpaque(BufferGetPage(buffer))->rightlink;
	}
	UnlockReleaseBuffer(buffer);
	return next == blkno;
}

/*
 * audit_gin_leaves
 *		The leaves of all posting trees that keys lead to: a bit for each block that the
 *		index had when the phase began.  palloc'd.  The caller has nothing locked.
 */
uint8 *
audit_gin_leaves(TableVacuum *vacuum, int number)
{
	LeafWalk   *walk = palloc_object(LeafWalk);
	Size		size = vacuum_index(vacuum->shared, number)->audit_blocks / 8 + 1;
	uint8	   *leaves = MemoryContextAllocExtended(CurrentMemoryContext, size,
													MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	Page		page = (Page) walk->image.data;

	Assert(CritSectionCount == 0);
	Assert(vacuum->indexes[number]->rd_indam->ambulkdelete == ginbulkdelete);

	begin_walk(walk, vacuum, number, GIN_ROOT_BLKNO, 0);
	do
	{
		for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		{
			IndexTuple	tuple = index_whole_tuple_at(walk->index, walk->blkno, page, off);

			if (GinIsPostingTree(tuple))
				note_leaves(vacuum, number, GinGetPostingTree(tuple), leaves);
		}
	} while (next_leaf(walk));
	pfree(walk);
	return leaves;
}

/* note_leaves -- note those of one posting tree. */
static void
note_leaves(TableVacuum *vacuum, int number, BlockNumber root, uint8 *leaves)
{
	LeafWalk   *walk = palloc_object(LeafWalk);
	BlockNumber nblocks = vacuum_index(vacuum->shared, number)->audit_blocks;

	begin_walk(walk, vacuum, number, root, GIN_DATA);
	do
	{
		if (walk->blkno < nblocks)
			leaves[walk->blkno / 8] |= 1 << walk->blkno % 8;
	} while (next_leaf(walk));
	pfree(walk);
}

/* begin_walk -- go down to the leftmost leaf of a tree. */
static void
begin_walk(LeafWalk *walk, TableVacuum *vacuum, int number, BlockNumber root, uint16 flags)
{
	walk->vacuum = vacuum;
	walk->number = number;
	walk->index = vacuum->indexes[number];
	walk->flags = flags;
	walk->links = (LinkWalk)
	{
		.index = walk->index
	};

	copy_page(walk, root);
	while (!GinPageIsLeaf((Page) walk->image.data))
	{
		BlockNumber child = first_child(walk);

		(void) link_walk_step(&walk->links, walk->blkno, child, ERROR);
		copy_page(walk, child);
	}
	walk->links.steps = 0;
}

/* next_leaf -- go on to the right; return false at the end. */
static bool
next_leaf(LeafWalk *walk)
{
	BlockNumber right = GinPageGetOpaque((Page) walk->image.data)->rightlink;

	if (right == InvalidBlockNumber)
		return false;
	(void) link_walk_step(&walk->links, walk->blkno, right, ERROR);
	copy_page(walk, right);
	if (!GinPageIsLeaf((Page) walk->image.data))
		gin_report_corruption(walk->index, walk->blkno);
	return true;
}

/* first_child -- where the first downlink of an inner page leads to. */
static BlockNumber
first_child(const LeafWalk *walk)
{
	Page		page = (Page) walk->image.data;
	int			nchildren = walk->flags == GIN_DATA ? GinPageGetOpaque(page)->maxoff : PageGetMaxOffsetNumber(page);

	if (nchildren == 0)
		gin_report_corruption(walk->index, walk->blkno);
	if (walk->flags == GIN_DATA)
		return PostingItemGetBlockNumber(GinDataPageGetPostingItem(page, FirstOffsetNumber));
	return GinGetDownlink(index_whole_tuple_at(walk->index, walk->blkno, page, FirstOffsetNumber));
}

/* copy_page -- copy a page of the tree. */
static void
copy_page(LeafWalk *walk, BlockNumber blkno)
{
	Buffer		buffer;

	delay_point();
	failsafe_notice(walk->vacuum);
	before_index_read(walk->vacuum, walk->number, blkno);
	buffer = ReadBufferExtended(walk->index, MAIN_FORKNUM, blkno, RBM_NORMAL,
								vacuum_strategy(walk->vacuum));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (!gin_page_is(buffer, walk->flags | GIN_LEAF))
		gin_check_page(walk->index, buffer, walk->flags);
	memcpy(walk->image.data, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	walk->blkno = blkno;
}
