/*-------------------------------------------------------------------------
 *
 * gist_vacuum.c
 *	  Bulk deletion and cleanup in GiST indexes, by any number of processes in one
 *	  index.
 *
 * The members of a team claim ranges of an index's blocks and visit each page
 * in them.  On a leaf page all TIDs are looked up in the dead-TID store in one
 * go; then the page is changed once.  Locks, changes of a page and their
 * WAL are those of gistbulkdelete, the server's own routine, in which one process
 * does all this in physical order.
 *
 * README.md says why no entry of a dead item is left, and how empty pages are deleted.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gist_private.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/indexfsm.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"

#include "audit/audit.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/index/index_kind.h"
#include "engine/phases.h"
#include "guards/guards.h"
#include "machine/wal_writer.h"
#include "pace/pace.h"
#include "relation_size.h"

#define WORD_BITS	32

/* What the team shares of one index */
typedef struct GistShared
{
	/* written by the leader before each phase over the index */
	GistNSN		start_nsn;

	uint32		nwords;			/* of each bitmap; constant */

	/* written by all members */
	pg_atomic_uint32 empty_leaves;	/* bits that are set */
	pg_atomic_uint32 deletion_begun;	/* by some member, which is at it or
										 * through */

	/* two bitmaps, one after the other: internal pages, empty leaf pages */
	pg_atomic_uint32 words[FLEXIBLE_ARRAY_MEMBER];
} GistShared;

/* One process's part of one index */
typedef struct GistScan
{
	KindScan	base;
	GistShared *gist;

	/* the TIDs of the page in hand, and which of them are dead */
	ItemPointerData tids[MaxIndexTuplesPerPage];
	bool		dead[MaxIndexTuplesPerPage];
} GistScan;

static Size gist_bitmaps_size(Relation index);
static void gist_setup(TableVacuum *vacuum, int number);
static void gist_begin_pass(TableVacuum *vacuum, int number);
static void gist_finish_pass(TableVacuum *vacuum, int number);
static bool gist_has_empty_pages(TableVacuum *vacuum, int number, bool wait);
static void gist_delete_pages(TableVacuum *vacuum, int number, bool wait);
static KindScan *gist_make_scan(TableVacuum *vacuum, int number);
static void gist_visit_page(KindScan *base, Buffer buffer);
static void follow_chain(GistScan *scan, BlockNumber blkno);
static int	gist_clean_leaf(GistScan *scan, Buffer buffer, BlockNumber *right);
static bool shows_split(const GistScan *scan, Page page);
static void gist_delete_dead_tids(GistScan *scan, Buffer buffer, int ndead);
static void look_for_invalid_tuples(Relation index, BlockNumber blkno, Page page);
static pg_atomic_uint32 *bitmap_word(GistShared *gist, bool empty_leaf,
									 BlockNumber blkno);
static bool note_page(GistShared *gist, bool empty_leaf, BlockNumber blkno);
static bool forget_page(GistShared *gist, bool empty_leaf, BlockNumber blkno);
static bool was_empty(GistShared *gist, BlockNumber blkno);
static int	find_empty_children(Relation index, GistShared *gist, Buffer parent,
								BlockNumber *children);
static bool delete_children(TableVacuum *vacuum, int number, BlockNumber blkno, bool wait,
							IndexBulkDeleteResult *stats);
static bool delete_leaf(Relation index, Buffer parent, Buffer leaf);
static OffsetNumber find_downlink(Relation index, Buffer parent, BlockNumber child);
static void unlink_leaf(Relation index, Buffer parent, OffsetNumber downlink,
						Buffer leaf);

const IndexKind gist_kind = {
	.name = "gist",
	.shared_size = offsetof(GistShared, words),
	.more_shared_size = gist_bitmaps_size,
	.setup = gist_setup,
	.bulk_delete = {
		.begin = index_begin_pass,
		.work = index_pass,
		.is_done = index_blocks_are_claimed,
		.finish = index_finish_pass,
	},
	.cleanup = {
		.begin = index_begin_pass,
		.work = index_pass,
		.is_done = index_blocks_are_claimed,
		.finish = index_finish_pass,
	},
	.first_block = GIST_ROOT_BLKNO,
	.last_block = GIST_ROOT_BLKNO,
	.begin_pass = gist_begin_pass,
	.finish_pass = gist_finish_pass,
	.make_scan = gist_make_scan,
	.free_scan = kind_scan_free,
	.has_empty_pages = gist_has_empty_pages,
	.delete_pages = gist_delete_pages,
};

/* gist_bitmaps_size -- how much memory do the bitmaps of this index take? */
static Size
gist_bitmaps_size(Relation index)
{
	Size		words = relation_blocks(index) / WORD_BITS + 1;

	return mul_size(2 * sizeof(pg_atomic_uint32), words);
}

/* gist_setup -- initialize what the team shares; nothing is noted. */
static void
gist_setup(TableVacuum *vacuum, int number)
{
	GistShared *gist = index_area(vacuum, number);
	Size		bytes = vacuum_index(vacuum->shared, number)->area_size -
		offsetof(GistShared, words);

	Assert(bytes > 0 && bytes % (2 * sizeof(pg_atomic_uint32)) == 0);
	gist->nwords = bytes / (2 * sizeof(pg_atomic_uint32));
	pg_atomic_init_u32(&gist->empty_leaves, 0);
	pg_atomic_init_u32(&gist->deletion_begun, 0);
	for (uint32 i = 0; i < 2 * gist->nwords; i++)
		pg_atomic_init_u32(&gist->words[i], 0);
}

/* gist_begin_pass -- remember the start NSN; nothing is noted. */
static void
gist_begin_pass(TableVacuum *vacuum, int number)
{
	GistShared *gist = index_area(vacuum, number);
	Relation	index = vacuum->indexes[number];

	gist_setup(vacuum, number);
	gist->start_nsn = RelationNeedsWAL(index) ? GetInsertRecPtr() : compat_fake_lsn(index);
}

/* gist_finish_pass -- leader: delete the pages that were found empty in cleanup. */
static void
gist_finish_pass(TableVacuum *vacuum, int number)
{
	if (vacuum->shared->in_cleanup && gist_has_empty_pages(vacuum, number, true))
		gist_delete_pages(vacuum, number, true);
}

/*
 * gist_has_empty_pages
 *		Were empty leaf pages found that no member has begun to delete?
 */
static bool
gist_has_empty_pages(TableVacuum *vacuum, int number, bool wait)
{
	GistShared *gist = index_area(vacuum, number);

	return pg_atomic_read_u32(&gist->empty_leaves) > 0 &&
		pg_atomic_read_u32(&gist->deletion_begun) == 0;
}

/*
 * gist_delete_pages
 *		Take the leaf pages that any members found empty out of the tree, unless
 *		another member does.
 *
 * No member may be visiting pages of the index any more.  Unless it may wait, this
 * process has pages of the heap pinned, which are in the way of a pause; so when a
 * pause is due it leaves the rest for later.
 */
static void
gist_delete_pages(TableVacuum *vacuum, int number, bool wait)
{
	GistShared *gist = index_area(vacuum, number);
	IndexBulkDeleteResult stats = {0};
	bool		go_on = wait || !guards_hold_is_due();

	if (!go_on || pg_atomic_exchange_u32(&gist->deletion_begun, 1) != 0)
		return;

	for (uint32 word = 0; go_on && word < gist->nwords; word++)
	{
		uint32		bits = pg_atomic_read_u32(&gist->words[word]);

		for (; go_on && bits != 0 && pg_atomic_read_u32(&gist->empty_leaves) > 0; bits &= bits - 1)
		{
			BlockNumber blkno = word * WORD_BITS + pg_rightmost_one_pos32(bits);

			delay_point();
			failsafe_notice(vacuum);
			wal_keep_pace();
			go_on = delete_children(vacuum, number, blkno, wait, &stats);
			if (go_on)
				(void) forget_page(gist, false, blkno);
		}
	}
	index_add_stats(vacuum_index(vacuum->shared, number), &stats);

	/* this process comes back for the rest, unless another one does before */
	if (!go_on)
		pg_atomic_write_membarrier_u32(&gist->deletion_begun, 0);
}

/* gist_make_scan -- make what a process needs to visit pages of an index; palloc'd. */
static KindScan *
gist_make_scan(TableVacuum *vacuum, int number)
{
	GistScan   *scan = kind_scan_make(vacuum, number, sizeof(GistScan));

	scan->gist = index_area(vacuum, number);
	scan->base.visit = gist_visit_page;
	Assert(vacuum->dead_tids != NULL || vacuum->shared->in_cleanup);
	return &scan->base;
}

/*
 * gist_visit_page
 *		Visit a pinned page of a range of our own, or the root; release it, and visit
 *		those that its entries may have moved to.
 *
 * A free page is recorded when its lock is released: a process that waits for the
 * free space map with a lock can't be interrupted.
 */
static void
gist_visit_page(KindScan *base, Buffer buffer)
{
	GistScan   *scan = (GistScan *) base;
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	BlockNumber right = InvalidBlockNumber;
	Page		page = BufferGetPage(buffer);
	bool		is_free;

	if (blkno != GIST_ROOT_BLKNO)
		DEBUG_POINT("gist-page");
	LockBuffer(buffer, GIST_EXCLUSIVE);
	if (!PageIsNew(page))
		gistcheckpage(scan->base.index, buffer);

	is_free = gistPageRecyclable(page);
	if (is_free || GistPageIsDeleted(page))
		scan->base.stats.pages_deleted++;
	else if (GistPageIsLeaf(page))
		scan->base.stats.num_index_tuples += gist_clean_leaf(scan, buffer, &right);
	else
	{
		look_for_invalid_tuples(scan->base.index, blkno, page);
		(void) note_page(scan->gist, false, blkno);
	}
	UnlockReleaseBuffer(buffer);

	if (is_free)
	{
		RecordFreeIndexPage(scan->base.index, blkno);
		scan->base.stats.pages_free++;
	}
	follow_chain(scan, right);
}

/*
 * follow_chain
 *		Visit the pages that a page's entries may have moved to, until the chain
 *		ends.
 *
 * The caller has no page of the index locked.
 */
static void
follow_chain(GistScan *scan, BlockNumber blkno)
{
	while (blkno != InvalidBlockNumber)
	{
		BlockNumber right = InvalidBlockNumber;
		Buffer		buffer;
		Page		page;
		bool		found;

		if (scan->base.followed != NULL && followed_lookup(scan->base.followed, blkno) != NULL)
			return;

		delay_point();
		failsafe_notice(scan->base.vacuum);
		DEBUG_POINT("gist-chain");

		buffer = ReadBufferExtended(scan->base.index, MAIN_FORKNUM, blkno, RBM_NORMAL,
									vacuum_strategy(scan->base.vacuum));
		LockBuffer(buffer, GIST_EXCLUSIVE);
		page = BufferGetPage(buffer);
		if (!PageIsNew(page))
		{
			gistcheckpage(scan->base.index, buffer);
			if (GistPageIsLeaf(page) && !GistPageIsDeleted(page))
			{
				(void) gist_clean_leaf(scan, buffer, &right);
				if (scan->base.followed == NULL)
					scan->base.followed = followed_create(CurrentMemoryContext, 64, NULL);
				(void) followed_insert(scan->base.followed, blkno, &found);
			}
		}
		UnlockReleaseBuffer(buffer);
		blkno = right;
	}
}

/*
 * gist_clean_leaf
 *		Delete the entries of dead TIDs from a leaf page; return how many entries
 *		are left.
 *
 * The caller holds an exclusive lock.  *right becomes the block that we have to visit
 * next, or InvalidBlockNumber.
 */
static int
gist_clean_leaf(GistScan *scan, Buffer buffer, BlockNumber *right)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	int			ntids = PageGetMaxOffsetNumber(page);
	int			ndead = 0;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(GistPageIsLeaf(page) && !GistPageIsDeleted(page));

	if (ntids > MaxIndexTuplesPerPage)
		index_report_page(scan->base.index, blkno);

	*right = InvalidBlockNumber;
	if (!scan->base.vacuum->shared->in_cleanup)
	{
		if (shows_split(scan, page))
			*right = GistPageGetOpaque(page)->rightlink;
		for (int i = 0; i < ntids; i++)
		{
			OffsetNumber off = FirstOffsetNumber + i;

			scan->tids[i] = index_tuple_at(scan->base.index, blkno, page, off)->t_tid;
		}
		ndead = dead_tids_match(scan->base.vacuum->dead_tids, scan->tids, ntids, scan->dead);
		if (ndead > 0)
			gist_delete_dead_tids(scan, buffer, ndead);
	}

	/* the root has no downlink that could be deleted */
	if (ndead == ntids && blkno != GIST_ROOT_BLKNO && note_page(scan->gist, true, blkno))
	{
		pg_atomic_fetch_add_u32(&scan->gist->empty_leaves, 1);
		index_note_empty_pages(scan->base.vacuum);
	}
	return ntids - ndead;
}

/* shows_split -- may entries have moved from this locked page to the right since we began? */
static bool
shows_split(const GistScan *scan, Page page)
{
	return GistFollowRight(page) || GistPageGetNSN(page) > scan->gist->start_nsn;
}

/*
 * gist_delete_dead_tids
 *		Delete the entries that are marked in scan->dead from a locked page.
 */
static void
gist_delete_dead_tids(GistScan *scan, Buffer buffer, int ndead)
{
	Page		page = BufferGetPage(buffer);
	int			ntids = PageGetMaxOffsetNumber(page);
	OffsetNumber deletable[MaxIndexTuplesPerPage];
	int			ndeletable = 0;
	XLogRecPtr	lsn;

	/* without a branch that a processor can't predict */
	for (int i = 0; i < ntids; i++)
	{
		deletable[ndeletable] = FirstOffsetNumber + i;
		ndeletable += scan->dead[i];
	}
	Assert(ndeletable == ndead && ndead > 0);

	index_check_items(scan->base.index, buffer);
	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	PageIndexMultiDelete(page, deletable, ndeletable);
	compat_gist_mark_tuples_deleted(page);
	if (RelationNeedsWAL(scan->base.index))
		lsn = gistXLogUpdate(buffer, deletable, ndeletable, NULL, 0, InvalidBuffer);
	else
		lsn = compat_fake_lsn(scan->base.index);
	PageSetLSN(page, lsn);
	END_CRIT_SECTION();

	scan->base.stats.tuples_removed += ndeletable;
}

/*
 * look_for_invalid_tuples
 *		Log each tuple of an internal page that only servers up to 9.0 made, in the
 *		words of the server's routine.
 */
static void
look_for_invalid_tuples(Relation index, BlockNumber blkno, Page page)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		IndexTuple	tuple = index_tuple_at(index, blkno, page, off);

		if (GistTupleIsInvalid(tuple))
			ereport(LOG,
					(errmsg("index \"%s\" contains an inner tuple marked as invalid",
							RelationGetRelationName(index)),
					 errdetail("This is caused by an incomplete page split at crash recovery before upgrading to PostgreSQL 9.1."),
					 errhint("Please REINDEX it.")));
	}
}

/*
 * bitmap_word
 *		Where the bit of a block is, in the bitmap of internal pages or of empty
 *		leaf pages; NULL if there is none.
 */
static pg_atomic_uint32 *
bitmap_word(GistShared *gist, bool empty_leaf, BlockNumber blkno)
{
	uint32		word = blkno / WORD_BITS;

	if (word >= gist->nwords)
		return NULL;
	return &gist->words[empty_leaf ? gist->nwords + word : word];
}

/*
 * note_page
 *		Note that a block is an empty leaf page, or an internal page; return false
 *		if that is noted already, or can't be.
 */
static bool
note_page(GistShared *gist, bool empty_leaf, BlockNumber blkno)
{
	pg_atomic_uint32 *word = bitmap_word(gist, empty_leaf, blkno);
	uint32		bit = (uint32) 1 << blkno % WORD_BITS;

	return word != NULL && (pg_atomic_fetch_or_u32(word, bit) & bit) == 0;
}

/* forget_page -- the reverse of note_page: return false if it isn't noted. */
static bool
forget_page(GistShared *gist, bool empty_leaf, BlockNumber blkno)
{
	pg_atomic_uint32 *word = bitmap_word(gist, empty_leaf, blkno);
	uint32		bit = (uint32) 1 << blkno % WORD_BITS;

	return word != NULL && (pg_atomic_fetch_and_u32(word, ~bit) & bit) != 0;
}

/* was_empty -- is it noted that the block is an empty leaf page? */
static bool
was_empty(GistShared *gist, BlockNumber blkno)
{
	pg_atomic_uint32 *word = bitmap_word(gist, true, blkno);

	return word != NULL && (pg_atomic_read_u32(word) >> blkno % WORD_BITS & 1) != 0;
}

/*
 * delete_children
 *		Delete the children of an internal page that were found empty, if they
 *		still are; return false if some are left because a pause is due.
 *
 * A child is locked before its parent, as insertions do it.
 */
static bool
delete_children(TableVacuum *vacuum, int number, BlockNumber blkno, bool wait,
				IndexBulkDeleteResult *stats)
{
	Relation	index = vacuum->indexes[number];
	GistShared *gist = index_area(vacuum, number);
	bool		go_on = true;
	BlockNumber children[MaxIndexTuplesPerPage];
	Buffer		parent;
	int			nchildren;

	parent = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL,
								vacuum_strategy(vacuum));
	LockBuffer(parent, GIST_SHARE);
	gistcheckpage(index, parent);
	nchildren = find_empty_children(index, gist, parent, children);
	LockBuffer(parent, GIST_UNLOCK);

	/* the parent's page is pinned */
	guards_begin_pins();
	for (int i = 0; i < nchildren; i++)
	{
		Buffer		leaf;

		delay_point();
		failsafe_notice(vacuum);
		DEBUG_POINT("gist-page-deletion");
		go_on = wait || !guards_hold_is_due();
		if (!go_on)
			break;
		leaf = ReadBufferExtended(index, MAIN_FORKNUM, children[i], RBM_NORMAL,
								  vacuum_strategy(vacuum));
		LockBuffer(leaf, GIST_EXCLUSIVE);
		gistcheckpage(index, leaf);
		LockBuffer(parent, GIST_EXCLUSIVE);
		if (delete_leaf(index, parent, leaf))
		{
			stats->pages_newly_deleted++;
			stats->pages_deleted++;
		}
		LockBuffer(parent, GIST_UNLOCK);
		UnlockReleaseBuffer(leaf);
		if (forget_page(gist, true, children[i]))
			pg_atomic_fetch_sub_u32(&gist->empty_leaves, 1);
	}
	guards_end_pins();
	ReleaseBuffer(parent);
	return go_on;
}

/*
 * find_empty_children
 *		Find the downlinks of an internal page, locked in any mode, that lead to
 *		pages that were found empty; return how many.
 */
static int
find_empty_children(Relation index, GistShared *gist, Buffer parent, BlockNumber *children)
{
	Page		page = BufferGetPage(parent);
	BlockNumber blkno = BufferGetBlockNumber(parent);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	int			nchildren = 0;

	/* an internal page stays one */
	Assert(!GistPageIsLeaf(page) && !GistPageIsDeleted(page));

	maxoff = Min(maxoff, MaxIndexTuplesPerPage);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		IndexTuple	tuple = index_tuple_at(index, blkno, page, off);
		BlockNumber child = ItemPointerGetBlockNumber(&tuple->t_tid);

		if (was_empty(gist, child))
			children[nchildren++] = child;
	}
	return nchildren;
}

/*
 * delete_leaf
 *		Delete a leaf page, if it is empty and this is its parent; both are
 *		locked exclusively.
 */
static bool
delete_leaf(Relation index, Buffer parent, Buffer leaf)
{
	Page		parent_page = BufferGetPage(parent);
	Page		leaf_page = BufferGetPage(leaf);
	OffsetNumber downlink;

	Assert(compat_buffer_is_locked_exclusively(parent) && compat_buffer_is_locked_exclusively(leaf));
	Assert(!GistPageIsLeaf(parent_page) && !GistPageIsDeleted(parent_page));

	if (!GistPageIsLeaf(leaf_page) || GistPageIsDeleted(leaf_page) ||
		GistFollowRight(leaf_page) ||
		PageGetMaxOffsetNumber(leaf_page) != InvalidOffsetNumber)
		return false;

	/* insertions can't do with an internal page that has no downlink */
	if (PageGetMaxOffsetNumber(parent_page) <= FirstOffsetNumber)
		return false;

	downlink = find_downlink(index, parent, BufferGetBlockNumber(leaf));
	if (downlink == InvalidOffsetNumber)
		return false;
	unlink_leaf(index, parent, downlink, leaf);
	return true;
}

/* find_downlink -- where on a page is the downlink to a block? */
static OffsetNumber
find_downlink(Relation index, Buffer parent, BlockNumber child)
{
	Page		page = BufferGetPage(parent);
	BlockNumber blkno = BufferGetBlockNumber(parent);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		IndexTuple	tuple = index_tuple_at(index, blkno, page, off);

		if (ItemPointerGetBlockNumber(&tuple->t_tid) == child)
			return off;
	}
	return InvalidOffsetNumber;
}

/*
 * unlink_leaf
 *		Delete a leaf page and its downlink; both pages are locked exclusively.
 *
 * A scan that has read the downlink may still come to the page.  So the page carries
 * the next transaction ID, and is not recycled as long as a snapshot may see an
 * older one.
 */
static void
unlink_leaf(Relation index, Buffer parent, OffsetNumber downlink, Buffer leaf)
{
	FullTransactionId next_xid = ReadNextFullTransactionId();
	XLogRecPtr	lsn;

	index_check_items(index, parent);
	START_CRIT_SECTION();
	MarkBufferDirty(leaf);
	GistPageSetDeleted(BufferGetPage(leaf), next_xid);
	MarkBufferDirty(parent);
	PageIndexTupleDelete(BufferGetPage(parent), downlink);
	if (RelationNeedsWAL(index))
		lsn = gistXLogPageDelete(leaf, next_xid, parent, downlink);
	else
		lsn = compat_fake_lsn(index);
	PageSetLSN(BufferGetPage(parent), lsn);
	PageSetLSN(BufferGetPage(leaf), lsn);
	END_CRIT_SECTION();
}
