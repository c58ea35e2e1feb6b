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
 * The pages of the pending list are found in one walk along it, for all that are asked
 * about in a round.  Meanwhile the lock on the metapage that a cleanup of the list takes
 * keeps all others from removing pages.  So no page is locked while the walk goes on to
 * the next one, and it can be cancelled.  Sessions add pages at the end.  An entry of a
 * dead row is never on one that was added later, as nobody can make such an entry any
 * more.  So the answer stays right.  As others may wait for the lock, the walk doesn't
 * sleep.  Members don't wait for each other.
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
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"

#include "debug_point.h"
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

static BlockNumber next_pending(TableVacuum *vacuum, int number, BlockNumber blkno);
static uint8 *make_bits(BlockNumber nblocks);
static void set_bit(uint8 *bits, BlockNumber nblocks, BlockNumber blkno);
static void begin_walk(LeafWalk *walk, TableVacuum *vacuum, int number, BlockNumber root, uint16 flags);
static bool next_leaf(LeafWalk *walk);
static BlockNumber first_child(const LeafWalk *walk);
static void copy_page(LeafWalk *walk, BlockNumber blkno);
static void note_leaves(TableVacuum *vacuum, int number, BlockNumber root, uint8 *leaves);

/*
 * audit_gin_pending
 *		The pages of the pending list: a bit for each block that the index had when the
 *		phase began.  palloc'd.  The caller has nothing locked.
 */
uint8 *
audit_gin_pending(TableVacuum *vacuum, int number)
{
	Relation	index = vacuum->indexes[number];
	LinkWalk	links = {.index = index};
	BlockNumber nblocks = vacuum_index(vacuum->shared, number)->audit_blocks;
	uint8	   *pending = make_bits(nblocks);
	BlockNumber next;

	Assert(CritSectionCount == 0);
	Assert(index->rd_indam->ambulkdelete == ginbulkdelete);

	LockPage(index, GIN_METAPAGE_BLKNO, ShareLock);
	for (BlockNumber blkno = GIN_METAPAGE_BLKNO; blkno != InvalidBlockNumber; blkno = next)
	{
		CHECK_FOR_INTERRUPTS();
		DEBUG_POINT("audit-gin-list");
		next = next_pending(vacuum, number, blkno);
		if (blkno != GIN_METAPAGE_BLKNO)
			set_bit(pending, nblocks, blkno);
		if (next != InvalidBlockNumber)
			(void) link_walk_step(&links, blkno, next, ERROR);
	}
	UnlockPage(index, GIN_METAPAGE_BLKNO, ShareLock);
	return pending;
}

/* next_pending -- the page of the pending list that comes after this one, or after the metapage. */
static BlockNumber
next_pending(TableVacuum *vacuum, int number, BlockNumber blkno)
{
	Relation	index = vacuum->indexes[number];
	BlockNumber next;
	Buffer		buffer;

	/* no page is locked, or this process couldn't be cancelled */
	Assert(InterruptHoldoffCount == 0);
	before_index_read(vacuum, number, blkno);
	buffer = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, vacuum_strategy(vacuum));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (blkno == GIN_METAPAGE_BLKNO)
		next = GinPageGetMeta(BufferGetPage(buffer))->head;
	else
	{
		gin_check_page(index, buffer, GIN_LIST);
		next = GinPageGetOpaque(BufferGetPage(buffer))->rightlink;
	}
	UnlockReleaseBuffer(buffer);
	return next;
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
	uint8	   *leaves = make_bits(vacuum_index(vacuum->shared, number)->audit_blocks);
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
		set_bit(leaves, nblocks, walk->blkno);
	while (next_leaf(walk));
	pfree(walk);
}

/* make_bits -- a bit for each of these blocks; palloc'd. */
static uint8 *
make_bits(BlockNumber nblocks)
{
	return MemoryContextAllocExtended(CurrentMemoryContext, nblocks / 8 + 1,
									  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

/* set_bit -- set that of a block, which may be a later one. */
static void
set_bit(uint8 *bits, BlockNumber nblocks, BlockNumber blkno)
{
	if (blkno < nblocks)
		bits[blkno / 8] |= 1 << blkno % 8;
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
