/*-------------------------------------------------------------------------
 *
 * gin_tree.c
 *	  Finding one's way in the trees of a GIN index, and deleting pages.
 *
 * README.md says what stays true of a page when its lock is released, and in which order
 * pages are locked.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "access/ginxlog.h"
#include "access/transam.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/predicate.h"
#include "utils/rel.h"

#include "compat.h"
#include "engine/index/gin_page.h"
#include "engine/index/gin_tree.h"
#include "engine/index/index_kind.h"
#include "engine/index/link_walk.h"
#include "engine/phases.h"
#include "pace/pace.h"

/* No tree is as high, but a corrupt one may seem to be. */
#define MAX_LEVELS			32

/* Deletion of empty pages in a posting tree */
typedef struct PageDeletion
{
	const GinTree *tree;
	BlockNumber ndeleted;
	/* by level, from the root: the last page passed that stays, locked */
	Buffer		left[MAX_LEVELS];
} PageDeletion;

/* A page on the way down to the one in hand, all of them locked */
typedef struct PageOnPath
{
	const struct PageOnPath *parent;	/* NULL: root */
	Buffer		buffer;
	int			level;			/* 0: root */
	bool		is_deletable;	/* if it were empty */
} PageOnPath;

static Buffer read_tree_page(const GinTree *tree, BlockNumber blkno);
static Buffer visit_page(const GinTree *tree, BlockNumber blkno);
static bool children_fit(const GinTree *tree, Page page);
static int	count_children(const GinTree *tree, Page page, BlockNumber blkno);
static BlockNumber child_block(const GinTree *tree, BlockNumber blkno, Page page, int child);
static bool downlinks_fit(const GinTree *tree, Page page);
static bool copy_page_above_leaves(const GinTree *tree, BlockNumber *blkno, Page copy);
static bool copy_inner_page(const GinTree *tree, BlockNumber blkno, Page copy);
static void add_leaf(GinCuts *cuts, BlockNumber blkno);
static void pass_children(PageDeletion *deletion, const PageOnPath *page);
static bool pass_child(PageDeletion *deletion, const PageOnPath *parent, OffsetNumber off);
static bool is_locked(const PageDeletion *deletion, const PageOnPath *path, BlockNumber blkno);
static bool may_delete(const PageDeletion *deletion, Buffer buffer, int level);
static void delete_posting_page(PageDeletion *deletion, const PageOnPath *parent, OffsetNumber off,
								Buffer buffer, Buffer left);

/* read_tree_page -- pin a page of a tree. */
static Buffer
read_tree_page(const GinTree *tree, BlockNumber blkno)
{
	return ReadBufferExtended(tree->index, MAIN_FORKNUM, blkno, RBM_NORMAL,
							  vacuum_strategy(tree->vacuum));
}

/*
 * visit_page
 *		Read a page that a walk comes to, with nothing locked.
 *
 * Pages that are looked at for the deletion of others are read while some are locked.
 * What that leaves in the page cache is dropped after cleanup, which reads all pages.
 */
static Buffer
visit_page(const GinTree *tree, BlockNumber blkno)
{
	before_index_read(tree->vacuum, tree->number, blkno);
	return read_tree_page(tree, blkno);
}

/*
 * children_fit
 *		Can an inner page have as many children as it says?
 *
 * A page of the entry tree has at least one.  A page of a posting tree may have none:
 * the server may leave the last page of a level without any if a crash has interrupted
 * a split.
 */
static bool
children_fit(const GinTree *tree, Page page)
{
	if (tree->flags & GIN_DATA)
		return GinPageGetOpaque(page)->maxoff <= GinDataPageMaxDataSize / sizeof(PostingItem);
	return PageGetMaxOffsetNumber(page) > 0 &&
		PageGetMaxOffsetNumber(page) <= BLCKSZ / sizeof(ItemIdData);
}

/* count_children -- how many children has an inner page?  An error if they don't fit. */
static int
count_children(const GinTree *tree, Page page, BlockNumber blkno)
{
	if (!children_fit(tree, page))
		index_report_page(tree->index, blkno);
	return (tree->flags & GIN_DATA) ? GinPageGetOpaque(page)->maxoff : PageGetMaxOffsetNumber(page);
}

/* child_block -- which page does a downlink of the inner page blkno lead to? */
static BlockNumber
child_block(const GinTree *tree, BlockNumber blkno, Page page, int child)
{
	OffsetNumber off = FirstOffsetNumber + child;

	if (tree->flags & GIN_DATA)
		return PostingItemGetBlockNumber(GinDataPageGetPostingItem(page, off));
	return GinGetDownlink(index_tuple_at(tree->index, blkno, page, off));
}

/* gin_lock_leaf -- pin a leaf page, and lock it exclusively. */
Buffer
gin_lock_leaf(const GinTree *tree, BlockNumber blkno)
{
	Buffer		buffer;

	Assert(tree->flags == GIN_DATA || tree->flags == 0);
	Assert(BlockNumberIsValid(blkno));

	buffer = visit_page(tree, blkno);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	gin_check_page(tree->index, buffer, tree->flags | GIN_LEAF);
	return buffer;
}

/* gin_lock_first_leaf -- pin the leftmost leaf page, and lock it exclusively. */
Buffer
gin_lock_first_leaf(const GinTree *tree)
{
	BlockNumber blkno = tree->root;
	LinkWalk	walk = {.index = tree->index};

	Assert(BlockNumberIsValid(tree->root));
	Assert(tree->flags == GIN_DATA || tree->flags == 0);

	for (;;)
	{
		Buffer		buffer = visit_page(tree, blkno);
		Page		page = BufferGetPage(buffer);
		BlockNumber child;

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		if (!PageIsNew(page) && GinPageIsLeaf(page))
		{
			LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
			LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
			/* a root may have been split in between */
			if (GinPageIsLeaf(page))
			{
				gin_check_page(tree->index, buffer, tree->flags | GIN_LEAF);
				return buffer;
			}
		}
		gin_check_page(tree->index, buffer, tree->flags);
		if (count_children(tree, page, blkno) == 0)
			index_report_page(tree->index, blkno);
		child = child_block(tree, blkno, page, 0);
		link_walk_step(&walk, blkno, child, ERROR);
		blkno = child;
		UnlockReleaseBuffer(buffer);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * gin_find_cuts
 *		Find leaves at which the chain of leaves can be cut, the leftmost leaf
 *		among them: cuts->max_count at most, evenly, and at least cuts->distance
 *		leaves from each other.  None if the root is a leaf.
 *
 * This looks at all downlinks to leaves, by a walk along the level above them.
 * It just doesn't find leaves that a split makes meanwhile.
 *
 * A tree without cuts is vacuumed along its leaves only.  So there are no cuts if inner
 * pages, or links between them, are damaged: the server's routine doesn't need these
 * pages either.
 */
void
gin_find_cuts(const GinTree *tree, GinCuts *cuts)
{
	PGAlignedBlock copy;
	Page		page = (Page) copy.data;
	LinkWalk	walk = {.index = tree->index};
	BlockNumber blkno;

	Assert(BlockNumberIsValid(tree->root));
	Assert(cuts->max_count > 1 && cuts->distance > 0);
	Assert(cuts->blocks != NULL);
	cuts->nleaves = 0;
	cuts->count = 0;

	if (!copy_page_above_leaves(tree, &blkno, page))
		return;
	for (;;)
	{
		int			nchildren = count_children(tree, page, blkno);
		BlockNumber right = GinPageGetOpaque(page)->rightlink;

		for (int i = 0; i < nchildren; i++)
			add_leaf(cuts, child_block(tree, blkno, page, i));
		if (right == InvalidBlockNumber)
			return;
		delay_point();
		failsafe_notice(tree->vacuum);
		if (!link_walk_step(&walk, blkno, right, LOG) || !copy_inner_page(tree, right, page))
			break;
		blkno = right;
	}
	cuts->nleaves = 0;
	cuts->count = 0;
}

/*
 * copy_page_above_leaves
 *		Copy the leftmost page of the level above the leaves; return false if there
 *		is none.
 */
static bool
copy_page_above_leaves(const GinTree *tree, BlockNumber *blkno, Page copy)
{
	PGAlignedBlock child_copy;
	Page		child = (Page) child_copy.data;
	LinkWalk	walk = {.index = tree->index};

	*blkno = tree->root;
	if (!copy_inner_page(tree, *blkno, copy))
		return false;
	for (;;)
	{
		BlockNumber next;

		if (count_children(tree, copy, *blkno) == 0)
			index_report_page(tree->index, *blkno);
		next = child_block(tree, *blkno, copy, 0);
		link_walk_step(&walk, *blkno, next, ERROR);
		if (!copy_inner_page(tree, next, child))
			return true;		/* a visit there will see whether it's a leaf */
		memcpy(copy, child, BLCKSZ);
		*blkno = next;
		CHECK_FOR_INTERRUPTS();
	}
}

/* downlinks_fit -- are all downlinks of an inner page on it? */
static bool
downlinks_fit(const GinTree *tree, Page page)
{
	if (tree->flags & GIN_DATA)
		return true;
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		if (!index_tuple_begins(page, PageGetItemId(page, off)))
			return false;
	return true;
}

/* copy_inner_page -- copy a page; return false if it is no sound inner page of the tree. */
static bool
copy_inner_page(const GinTree *tree, BlockNumber blkno, Page copy)
{
	Buffer		buffer = visit_page(tree, blkno);
	Page		page = BufferGetPage(buffer);
	bool		is_inner;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	is_inner = gin_page_is(buffer, tree->flags) && children_fit(tree, page) && downlinks_fit(tree, page);
	if (is_inner)
		memcpy(copy, page, BLCKSZ);
	UnlockReleaseBuffer(buffer);
	return is_inner;
}

/* add_leaf -- count a leaf, and make it a cut if it is far enough from the last one. */
static void
add_leaf(GinCuts *cuts, BlockNumber blkno)
{
	if (cuts->nleaves++ % cuts->distance != 0)
		return;

	/* if there is no room for another cut, keep every second one */
	if (cuts->count == cuts->max_count)
	{
		cuts->distance *= 2;
		cuts->count = (cuts->count + 1) / 2;
		for (int i = 1; i < cuts->count; i++)
			cuts->blocks[i] = cuts->blocks[2 * i];
		if ((cuts->nleaves - 1) % cuts->distance != 0)
			return;
	}
	cuts->blocks[cuts->count++] = blkno;
}

/*
 * gin_delete_empty_pages
 *		Take empty pages out of a posting tree.
 */
void
gin_delete_empty_pages(const GinTree *tree, IndexBulkDeleteResult *stats)
{
	PageDeletion deletion = {.tree = tree};
	PageOnPath	root = {.buffer = read_tree_page(tree, tree->root)};

	Assert(CritSectionCount == 0);
	Assert(tree->flags == GIN_DATA);

	LockBufferForCleanup(root.buffer);
	if (!GinPageIsLeaf(BufferGetPage(root.buffer)))
	{
		gin_check_page(tree->index, root.buffer, tree->flags);
		pass_children(&deletion, &root);
	}
	for (int level = 0; level < MAX_LEVELS; level++)
		if (BufferIsValid(deletion.left[level]))
			UnlockReleaseBuffer(deletion.left[level]);
	UnlockReleaseBuffer(root.buffer);

	stats->pages_newly_deleted += deletion.ndeleted;
	stats->pages_deleted += deletion.ndeleted;
}

/* pass_children -- delete what is empty below a page. */
static void
pass_children(PageDeletion *deletion, const PageOnPath *page)
{
	Page		contents = BufferGetPage(page->buffer);
	OffsetNumber off = FirstOffsetNumber;

	(void) count_children(deletion->tree, contents, BufferGetBlockNumber(page->buffer));
	if (page->level + 1 >= MAX_LEVELS)
		index_report_page(deletion->tree->index, BufferGetBlockNumber(page->buffer));

	/* when one is deleted, the next one takes its place */
	while (off <= GinPageGetOpaque(contents)->maxoff)
		if (!pass_child(deletion, page, off))
			off++;
}

/*
 * pass_child
 *		Delete what is empty at or below a child of a page; return true if the child
 *		itself is deleted.  Otherwise it is now the left sibling of the next one.
 */
static bool
pass_child(PageDeletion *deletion, const PageOnPath *parent, OffsetNumber off)
{
	const GinTree *tree = deletion->tree;
	PageOnPath	child = {.parent = parent,.level = parent->level + 1};
	Page		parent_page = BufferGetPage(parent->buffer);
	Buffer	   *left = &deletion->left[child.level];
	Page		page;
	BlockNumber blkno = child_block(tree, BufferGetBlockNumber(parent->buffer), parent_page,
									off - FirstOffsetNumber);
	bool		is_empty;

	if (is_locked(deletion, parent, blkno))
		index_report_page(tree->index, BufferGetBlockNumber(parent->buffer));
	child.buffer = read_tree_page(tree, blkno);
	LockBuffer(child.buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(child.buffer);
	gin_check_page(tree->index, child.buffer,
				   tree->flags | (!PageIsNew(page) && GinPageIsLeaf(page) ? GIN_LEAF : 0));

	child.is_deletable = may_delete(deletion, child.buffer, child.level) &&
		(parent->is_deletable || GinPageGetOpaque(parent_page)->maxoff > 1);
	if (GinPageIsLeaf(page))
		is_empty = GinDataLeafPageIsEmpty(page);
	else
	{
		pass_children(deletion, &child);
		is_empty = GinPageGetOpaque(page)->maxoff == 0;
	}

	if (is_empty && child.is_deletable)
	{
		delete_posting_page(deletion, parent, off, child.buffer, *left);
		UnlockReleaseBuffer(child.buffer);
		return true;
	}
	if (BufferIsValid(*left))
		UnlockReleaseBuffer(*left);
	*left = child.buffer;
	return false;
}

/* is_locked -- have we locked this block already, on the path or as a left sibling? */
static bool
is_locked(const PageDeletion *deletion, const PageOnPath *path, BlockNumber blkno)
{
	for (; path != NULL; path = path->parent)
		if (BufferGetBlockNumber(path->buffer) == blkno)
			return true;
	for (int level = 0; level < MAX_LEVELS; level++)
		if (BufferIsValid(deletion->left[level]) &&
			BufferGetBlockNumber(deletion->left[level]) == blkno)
			return true;
	return false;
}

/*
 * may_delete
 *		May a page be taken out of its level, if it is empty?
 *
 * It must have a left sibling, which is locked, and a right one.  Neither it nor its
 * left sibling may have been split without a downlink for the new page.
 */
static bool
may_delete(const PageDeletion *deletion, Buffer buffer, int level)
{
	Buffer		left = deletion->left[level];
	Page		page = BufferGetPage(buffer);
	Page		left_page;

	if (!BufferIsValid(left) || GinPageRightMost(page) || GinPageIsIncompleteSplit(page))
		return false;
	left_page = BufferGetPage(left);
	return !GinPageIsIncompleteSplit(left_page) &&
		GinPageGetOpaque(left_page)->rightlink == BufferGetBlockNumber(buffer);
}

/*
 * delete_posting_page
 *		Take a page out of the tree: remove its parent's downlink and its left
 *		sibling's link to it.  All three are locked.
 */
static void
delete_posting_page(PageDeletion *deletion, const PageOnPath *parent, OffsetNumber off,
					Buffer buffer, Buffer left)
{
	Relation	index = deletion->tree->index;
	Page		page = BufferGetPage(buffer);
	Page		parent_page = BufferGetPage(parent->buffer);
	Page		left_page = BufferGetPage(left);
	BlockNumber right = GinPageGetOpaque(page)->rightlink;

	Assert(compat_buffer_is_locked_exclusively(buffer) && compat_buffer_is_locked_exclusively(left) &&
		   compat_buffer_is_locked_exclusively(parent->buffer));
	Assert(PostingItemGetBlockNumber(GinDataPageGetPostingItem(parent_page, off)) ==
		   BufferGetBlockNumber(buffer));

	/* later insertions of what belongs here go to the right sibling */
	PredicateLockPageCombine(index, BufferGetBlockNumber(buffer), right);

	START_CRIT_SECTION();
	GinPageGetOpaque(left_page)->rightlink = right;
	GinPageDeletePostingItem(parent_page, off);
	/* its own link stays, for scans that are on their way to it */
	GinPageSetDeleted(page);
	GinPageSetDeleteXid(page, ReadNextTransactionId());
	MarkBufferDirty(parent->buffer);
	MarkBufferDirty(left);
	MarkBufferDirty(buffer);

	if (RelationNeedsWAL(index))
	{
		ginxlogDeletePage record = {
			.parentOffset = off,
			.rightLink = right,
			.deleteXid = GinPageGetDeleteXid(page),
		};
		XLogRecPtr	lsn;

		/* leaves may have no valid pd_lower, if they are very old */
		XLogBeginInsert();
		XLogRegisterBuffer(0, buffer, 0);
		XLogRegisterBuffer(1, parent->buffer, REGBUF_STANDARD);
		XLogRegisterBuffer(2, left, 0);
		XLogRegisterData((char *) &record, sizeof(record));
		lsn = XLogInsert(RM_GIN_ID, XLOG_GIN_DELETE_PAGE);
		PageSetLSN(page, lsn);
		PageSetLSN(parent_page, lsn);
		PageSetLSN(left_page, lsn);
	}
	END_CRIT_SECTION();
	deletion->ndeleted++;
}
