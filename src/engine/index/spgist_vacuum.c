/*-------------------------------------------------------------------------
 *
 * spgist_vacuum.c
 *	  Bulk deletion and cleanup in SP-GiST indexes, by any number of processes in
 *	  one index.
 *
 * The members of a team claim ranges of an index's blocks and visit each page
 * in them.  On a leaf page all TIDs are looked up in the dead-TID store in one
 * go; then the page is changed once.  Locks, changes of a page and their WAL
 * are those of spgbulkdelete, the server's own routine, in which one process does
 * all this in physical order.
 *
 * Order
 * -----
 * Leaf tuples form chains.  Each is on one page, and a downlink of an
 * inner tuple leads to its head.  A chain moves to another page as a whole, or is
 * replaced by an inner tuple with several chains below it, some on the same page
 * and some on another one.  Either way a redirect takes the place of its head,
 * with the transaction ID of the session that did it, and leads to the new head or
 * to the inner tuple.  An inner tuple may be changed in its place.  It may move, too,
 * and leave a redirect, but no leaf tuple moves then.
 *
 * Let the start xmin be the xmin of the VACUUM's snapshot.  A session that moves
 * something after the snapshot was taken has a transaction ID that is not below it;
 * call a redirect with such an ID young.  No young redirect is removed during this
 * vacuum: only vacuum does that, and we leave them all to the next one, even if no
 * snapshot still needs their transactions.  (The server's routine asks for nothing
 * else.)  An inner tuple is never deleted.  A chain keeps its head's place as long as
 * it has tuples, and when it has none that place holds a dead tuple.  So a tuple that
 * has moved since we began has a trail.  It begins with the redirect that the tuple's
 * first move left.  That leads to the place of a head or of an inner tuple.  From there
 * the redirect that this place has become leads on, or the downlink, and so on to where
 * the tuple is.  A trail only grows, at its end or by places in between, and nothing
 * else takes one of its places, for the whole vacuum.
 *
 * Some young redirects were made before we began, by a transaction that still
 * runs.  Such a redirect may lead to a place that an older transaction has left, and
 * that has been reused.  It leads nowhere, or astray, and both do no harm: a tuple that
 * moved before we began is where it is, and one that moves later leaves a redirect
 * there.  (The server's routine raises an error if one leads to a placeholder.)
 *
 * A visit to a leaf page happens under one exclusive lock.  It (1) deletes the
 * tuples of dead TIDs and (2) makes the targets of all young redirects on the
 * page pending for the visitor.  If a pending place is on a leaf page, that page is
 * visited.  If it is on an inner page, the target of each downlink of the tuple
 * there is made pending, under one lock; so is that of the young redirect that the
 * tuple may have become.  We call both to follow the redirect, or the inner tuple.  Each visitor
 * does what is pending before it goes on to the next page (visit_pending), and
 * until then it follows each redirect and each inner tuple just once (scan->followed).
 * Claim: when all ranges are visited and nothing is pending, no tuple of a dead TID
 * is left.
 *
 * Call a tuple of a dead TID covered if (a) its page is in a range yet to be
 * visited, or (b) a place of its trail is pending for some member, or (c) a redirect
 * of its trail is on a page that is yet to be visited or pending.
 *
 * - At the start (a) covers all, as nobody can insert a new tuple for a dead TID.
 * - A tuple that is covered by (a), when it moves to a page that was visited, has
 *	 left the redirect that covers it by (c).
 * - What is covered by (b) or (c) stays so when it moves, as its trail keeps its
 *	 places.
 * - A visit to a page deletes its own tuples of dead TIDs.  Those whose trails have
 *	 a redirect there are covered by (b) from the moment when that is followed: now,
 *	 or before.  If before, it was on their trails then, as it has been since it
 *	 was made.
 * - To follow an inner tuple replaces one place of a trail by the next one, under
 *	 the lock that a change of it needs.  If it has been followed before, at its
 *	 place or when there was a redirect already, it was on the same trails then.
 * - It is not enough to remember the places that redirects lead to, and to visit each
 *	 such place once.  A young redirect from before we began may lead to a placeholder.
 *	 After a visit to that, something may move there, and leaves another redirect that
 *	 leads there.  (The server's routine doesn't follow it.)
 * - The roots, of the tree and of that for NULLs, are special: when one that is a
 *	 leaf page splits, all its tuples move to other pages, and there is no redirect.
 *	 So they must be visited before any other page.  The leader does so
 *	 before it makes the ranges available (begin_blocks).  An inner page never
 *	 becomes a leaf page again.
 * - No page is deleted.  An empty page may be taken at any time, but only to move
 *	 something to it, as above.
 *
 * The start xmin is the leader's.  Members have it from the shared block.
 *
 * The order in which a member does what is pending doesn't matter, nor does it matter
 * which member does it.  It ends even if others go on moving things: what is at a place
 * is followed once, makes a limited number of places pending then, and
 * nothing else makes any pending; and an index has a limited number of places.
 *
 * test/pytest/test_spgist_model.py explores every order of events in a small
 * index, with these rules and with weaker ones.
 *
 * Locks
 * -----
 * No cleanup locks: like the server's own vacuum, we take for granted that scans of
 * SP-GiST indexes don't rely on pins.  Visitors lock one page at a time, so they are
 * in nobody's way.
 *
 * Counts
 * ------
 * A block has just one visit as part of a range, and only that one counts its tuples.
 *
 * Pages with free space
 * ---------------------
 * An insertion looks first at the pages that were used last, which each process
 * remembers for itself; a process may also note them in the index's metapage.  Each
 * member remembers the emptiest pages that it has seen, and the leader notes its own in
 * the metapage once, in the end.  (That is not logged, and needn't be right.)
 *
 * Cleanup
 * -------
 * Without bulk deletion before it, cleanup visits all pages in the same way, to remove
 * old redirects, to find free pages and to count tuples.  It deletes no tuple, so nothing
 * is pending.
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

static void spgist_begin(TableVacuum *vacuum, int number, int nmembers);
static void spgist_begin_cleanup(TableVacuum *vacuum, int number, int nmembers);
static void begin_blocks(TableVacuum *vacuum, int number, int nmembers, bool deletes);
static BlockNumber spgist_vacuum(TableVacuum *vacuum, int number);
static void spgist_finish(TableVacuum *vacuum, int number);
static void spgist_finish_cleanup(TableVacuum *vacuum, int number);
static SpgistScan *make_scan(TableVacuum *vacuum, int number);
static void free_scan(SpgistScan *scan);
static void visit_in_range(void *scan, Buffer buffer);
static void visit_page(SpgistScan *scan, Buffer buffer);
static void visit_pending(SpgistScan *scan);
static void visit_places(SpgistScan *scan, const ItemPointerData *places, int nplaces);
static int	compare_places(const void *a, const void *b);

const IndexKind spgist_kind = {
	.name = "spgist",
	.shared_size = sizeof(SpgistShared),
	.bulk_delete = {
		.begin = spgist_begin,
		.work = spgist_vacuum,
		.is_done = index_blocks_are_claimed,
		.finish = spgist_finish,
	},
	.cleanup = {
		.begin = spgist_begin_cleanup,
		.work = spgist_vacuum,
		.is_done = index_blocks_are_claimed,
		.finish = spgist_finish_cleanup,
	},
};

/* spgist_begin -- the leader's part before bulk deletion. */
static void
spgist_begin(TableVacuum *vacuum, int number, int nmembers)
{
	begin_blocks(vacuum, number, nmembers, true);
}

/* spgist_begin_cleanup -- the leader's part before cleanup. */
static void
spgist_begin_cleanup(TableVacuum *vacuum, int number, int nmembers)
{
	begin_blocks(vacuum, number, nmembers, false);
}

/*
 * begin_blocks
 *		Remember the start xmin, visit the roots, and make the other blocks
 *		available.
 *
 * In this order: see the top of this file.
 */
static void
begin_blocks(TableVacuum *vacuum, int number, int nmembers, bool deletes)
{
	SpgistShared *spgist = index_area(vacuum, number);
	SpgistScan *scan;

	Assert(is_leader(vacuum));

	if (!index_begin_pass(vacuum, number, &spgist->pass, deletes))
		return;
	Assert(ActiveSnapshotSet());
	spgist->start_xmin = GetActiveSnapshot()->xmin;

	scan = make_scan(vacuum, number);
	for (BlockNumber root = SPGIST_ROOT_BLKNO; root <= SPGIST_LAST_FIXED_BLKNO; root++)
		visit_page(scan, ReadBufferExtended(scan->index, MAIN_FORKNUM, root,
											RBM_NORMAL, vacuum_strategy(vacuum)));
	free_scan(scan);

	index_begin_blocks(vacuum, number, SPGIST_LAST_FIXED_BLKNO + 1, nmembers);
}

/*
 * spgist_vacuum
 *		One process's part of an index: claim ranges until none is left.
 */
static BlockNumber
spgist_vacuum(TableVacuum *vacuum, int number)
{
	SpgistShared *spgist = index_area(vacuum, number);
	SpgistScan *scan;
	BlockNumber pages_done;

	if (spgist->pass.has_nothing_to_do)
	{
		index_claim_nothing(vacuum, number);
		return 0;
	}

	scan = make_scan(vacuum, number);
	pages_done = index_visit_all_blocks(&scan->blocks);
	/* nothing that is pending is left undone */
	Assert(scan->npending == 0);
	free_scan(scan);
	return pages_done;
}

/* spgist_finish -- update the metapage, and complete the statistics. */
static void
spgist_finish(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	Relation	index = vacuum->indexes[number];

	Assert(is_leader(vacuum));

	SpGistUpdateMetaPage(index);
	/* make what was put into the free space map findable */
	if (shared->stats.pages_deleted > 0)
		IndexFreeSpaceMapVacuum(index);

	/* like the server's routine: empty pages are free at once */
	shared->has_stats = true;
	shared->stats.num_pages = RelationGetNumberOfBlocks(index);
	shared->stats.pages_newly_deleted = shared->stats.pages_deleted;
	shared->stats.pages_free = shared->stats.pages_deleted;
}

/* spgist_finish_cleanup -- leader, after cleanup. */
static void
spgist_finish_cleanup(TableVacuum *vacuum, int number)
{
	SpgistShared *spgist = index_area(vacuum, number);

	if (!spgist->pass.has_nothing_to_do)
		spgist_finish(vacuum, number);
	index_cap_tuples(vacuum, number);
}

/* make_scan -- make what a process needs to visit pages of an index; palloc'd. */
static SpgistScan *
make_scan(TableVacuum *vacuum, int number)
{
	SpgistScan *scan = palloc0_object(SpgistScan);

	scan->vacuum = vacuum;
	scan->number = number;
	scan->shared = vacuum_index(vacuum->shared, number);
	scan->spgist = index_area(vacuum, number);
	scan->index = vacuum->indexes[number];
	scan->blocks.vacuum = vacuum;
	scan->blocks.number = number;
	scan->blocks.visit = visit_in_range;
	scan->blocks.scan = scan;
	initSpGistState(&scan->state, scan->index);

	Assert(TransactionIdIsNormal(scan->spgist->start_xmin));
	Assert(vacuum->dead_tids != NULL || !scan->spgist->pass.deletes);
	Assert(CheckRelationLockedByMe(scan->index, RowExclusiveLock, true));
	return scan;
}

/* free_scan -- tell what was done, and free it. */
static void
free_scan(SpgistScan *scan)
{
	/* nothing that was claimed is left */
	Assert(!scan->blocks.has_stream && scan->blocks.next >= scan->blocks.end);
	index_add_stats(scan->shared, &scan->stats);
	if (scan->pending != NULL)
		pfree(scan->pending);
	if (scan->followed != NULL)
		followed_destroy(scan->followed);
	pfree(scan->state.deadTupleStorage);
	pfree(scan);
}

/* visit_in_range -- the IndexBlocks' visit. */
static void
visit_in_range(void *scan, Buffer buffer)
{
	Assert(!SpGistBlockIsFixed(BufferGetBlockNumber(buffer)));
	DEBUG_POINT("spgist-page");
	visit_page(scan, buffer);
}

/*
 * visit_page
 *		Visit a pinned page of a range of our own, or a root; release it, and visit
 *		what is pending then.
 *
 * A free page is recorded when its lock is released: a process that waits for the
 * free space map with a lock can't be interrupted.
 */
static void
visit_page(SpgistScan *scan, Buffer buffer)
{
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	Page		page = BufferGetPage(buffer);
	bool		is_free = false;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	if (!PageIsNew(page))
	{
		spgist_check_page(scan->index, buffer);
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
			SpGistSetLastUsedPage(scan->index, buffer);
	}
	UnlockReleaseBuffer(buffer);

	if (is_free)
	{
		RecordFreeIndexPage(scan->index, blkno);
		scan->stats.pages_deleted++;
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
			failsafe_notice(scan->vacuum);
			DEBUG_POINT("spgist-pending");
			visit_places(scan, &batch[i], next - i);
		}
		pfree(batch);
	}
	if (scan->followed != NULL)
		followed_destroy(scan->followed);
	scan->followed = NULL;
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

	buffer = ReadBufferExtended(scan->index, MAIN_FORKNUM, blkno, RBM_NORMAL,
								vacuum_strategy(scan->vacuum));
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
		spgist_check_page(scan->index, buffer);
		if (!SpGistPageIsLeaf(page))
		{
			for (int i = 0; i < nplaces; i++)
				spgist_follow_inner_tuple(scan, buffer, ItemPointerGetOffsetNumber(&places[i]));
		}
		else if (SpGistBlockIsRoot(blkno))
			spgist_report_corruption(scan->index, blkno);
		else
		{
			spgist_clean_leaf(scan, buffer, false);
			spgist_clean_redirects(scan, buffer);
			SpGistSetLastUsedPage(scan->index, buffer);
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
