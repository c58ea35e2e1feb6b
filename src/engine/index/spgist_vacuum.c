/*-------------------------------------------------------------------------
 *
 * spgist_vacuum.c
 *	  Bulk deletion and cleanup in SP-GiST indexes, by any number of processes in
 *	  one index.
 *
 * The members of a team claim ranges of an index's blocks and visit each page
 * in them (spgist_page.c).  Places that redirects and inner tuples lead to become pending,
 * and are visited before the member goes on.  README.md says why no tuple of a dead item is
 * left.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/spgist_private.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/indexfsm.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/index_kind.h"
#include "engine/index/spgist_page.h"
#include "engine/phases.h"
#include "pace/pace.h"

static void spgist_begin_pass(TableVacuum *vacuum, int number);
static void spgist_finish_pass(TableVacuum *vacuum, int number);
static KindScan *spgist_make_scan(TableVacuum *vacuum, int number);
static void spgist_free_scan(KindScan *base);
static void spgist_visit_page(KindScan *base, Buffer buffer);
static void visit_pending(SpgistScan *scan);
static void visit_places(SpgistScan *scan, const ItemPointerData *places, int nplaces);
static int	compare_places(const void *a, const void *b);

const IndexKind spgist_kind = {
	.name = "spgist",
	.shared_size = sizeof(SpgistShared),
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
	.first_block = SPGIST_ROOT_BLKNO,
	.last_block = SPGIST_LAST_FIXED_BLKNO,
	.begin_pass = spgist_begin_pass,
	.finish_pass = spgist_finish_pass,
	.make_scan = spgist_make_scan,
	.free_scan = spgist_free_scan,
};

/* spgist_begin_pass -- remember the start xmin. */
static void
spgist_begin_pass(TableVacuum *vacuum, int number)
{
	SpgistShared *spgist = index_area(vacuum, number);

	Assert(ActiveSnapshotSet());
	spgist->start_xmin = GetActiveSnapshot()->xmin;
}

/* spgist_finish_pass -- leader: update the metapage; like the server's routine: empty pages are free at once. */
static void
spgist_finish_pass(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);

	SpGistUpdateMetaPage(vacuum->indexes[number]);
	shared->stats.pages_newly_deleted = shared->stats.pages_deleted;
	shared->stats.pages_free = shared->stats.pages_deleted;
}

/* spgist_make_scan -- make what a process needs to visit pages of an index; palloc'd. */
static KindScan *
spgist_make_scan(TableVacuum *vacuum, int number)
{
	SpgistScan *scan = kind_scan_make(vacuum, number, sizeof(SpgistScan));

	scan->spgist = index_area(vacuum, number);
	scan->base.visit = spgist_visit_page;
	initSpGistState(&scan->state, scan->base.index);

	Assert(TransactionIdIsNormal(scan->spgist->start_xmin));
	Assert(vacuum->dead_tids != NULL || vacuum->shared->in_cleanup);
	return &scan->base;
}

/* spgist_free_scan -- tell what was done, and free it. */
static void
spgist_free_scan(KindScan *base)
{
	SpgistScan *scan = (SpgistScan *) base;

	/* nothing that is pending is left undone */
	Assert(scan->npending == 0);
	if (scan->pending != NULL)
		pfree(scan->pending);
	pfree(scan->state.deadTupleStorage);
	kind_scan_free(base);
}

/*
 * spgist_visit_page
 *		Visit a pinned page of a range of our own, or a root; release it, and visit
 *		what is pending then.
 *
 * A free page is recorded when its lock is released: a process that waits for the
 * free space map with a lock can't be interrupted.
 */
static void
spgist_visit_page(KindScan *base, Buffer buffer)
{
	SpgistScan *scan = (SpgistScan *) base;
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	Page		page = BufferGetPage(buffer);
	bool		is_free = false;

	if (!SpGistBlockIsFixed(blkno))
		DEBUG_POINT("spgist-page");
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	if (!PageIsNew(page))
	{
		spgist_check_page(scan->base.index, buffer);
		if (SpGistPageIsLeaf(page) && SpGistBlockIsRoot(blkno))
			spgist_clean_root(scan, buffer);
		else if (SpGistPageIsLeaf(page))
			spgist_clean_leaf(scan, buffer, true);
		if (!SpGistPageIsLeaf(page) || !SpGistBlockIsRoot(blkno))
			spgist_clean_redirects(scan, buffer);
	}

	/* roots are never free, and no chain moves to them */
	if (!SpGistBlockIsRoot(blkno))
	{
		is_free = PageIsNew(page) || PageIsEmpty(page);
		if (!is_free)
			SpGistSetLastUsedPage(scan->base.index, buffer);
	}
	UnlockReleaseBuffer(buffer);

	if (is_free)
	{
		RecordFreeIndexPage(scan->base.index, blkno);
		scan->base.stats.pages_deleted++;
	}
	visit_pending(scan);
}

/*
 * visit_pending
 *		Visit the places that are pending, and those that they lead to.
 *
 * They are visited in batches, in the order of their blocks, each page once in a
 * batch.  The caller has no page of the index locked.
 */
static void
visit_pending(SpgistScan *scan)
{
	while (scan->npending > 0)
	{
		ItemPointerData *batch = scan->pending;
		int			nbatch = scan->npending;
		int			next;

		scan->pending = NULL;
		scan->npending = scan->pending_size = 0;

		qsort(batch, nbatch, sizeof(ItemPointerData), compare_places);
		for (int i = 0; i < nbatch; i = next)
		{
			BlockNumber blkno = ItemPointerGetBlockNumber(&batch[i]);

			for (next = i + 1; next < nbatch; next++)
				if (ItemPointerGetBlockNumber(&batch[next]) != blkno)
					break;
			delay_point();
			failsafe_notice(scan->base.vacuum);
			DEBUG_POINT("spgist-pending");
			visit_places(scan, &batch[i], next - i);
		}
		pfree(batch);
	}
	if (scan->base.followed != NULL)
		followed_destroy(scan->base.followed);
	scan->base.followed = NULL;
}

/*
 * visit_places
 *		Visit a page, for all pending places of this batch that are there.
 */
static void
visit_places(SpgistScan *scan, const ItemPointerData *places, int nplaces)
{
	BlockNumber blkno = ItemPointerGetBlockNumber(&places[0]);
	Buffer		buffer;
	Page		page;

	buffer = ReadBufferExtended(scan->base.index, MAIN_FORKNUM, blkno, RBM_NORMAL,
								vacuum_strategy(scan->base.vacuum));
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(buffer);

	if (PageIsNew(page) || SpGistPageIsDeleted(page))
	{
		/*
		 * nothing leads to such a page, but the server's routine allows for
		 * it
		 */
	}
	else
	{
		spgist_check_page(scan->base.index, buffer);
		if (!SpGistPageIsLeaf(page))
		{
			for (int i = 0; i < nplaces; i++)
				spgist_follow_inner_tuple(scan, buffer, ItemPointerGetOffsetNumber(&places[i]));
		}
		else if (SpGistBlockIsRoot(blkno))
			index_report_page(scan->base.index, blkno);
		else
		{
			spgist_clean_leaf(scan, buffer, false);
			spgist_clean_redirects(scan, buffer);
			SpGistSetLastUsedPage(scan->base.index, buffer);
		}
	}
	UnlockReleaseBuffer(buffer);
}

/* compare_places -- for qsort */
static int
compare_places(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}
