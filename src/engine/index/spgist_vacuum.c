/*-------------------------------------------------------------------------
 *
 * spgist_vacuum.c
 *	  Bulk deletion and cleanup in SP-GiST indexes, by any number of processes in
 *	  one index.
 *
 * The members of a team claim ranges of an index's blocks and visit each page
 * in them.  On a leaf page all TIDs are looked up in the dead-TID store in one
 * go; then the page is changed once.  What is locked, what is done to a page and
 * how it is logged is as in spgbulkdelete, the server's own routine, which makes
 * one process do all this in physical order.
 *
 * Order
 * -----
 * Leaf tuples form chains, each on one page and led to by a downlink from an
 * inner tuple to its head.  A chain moves to another page as a whole, or is
 * replaced by an inner tuple with several chains below it, some on the same page
 * and some on another one.  Either way a redirect takes the place of its head,
 * with the transaction ID of whoever did it, and leads to the new head or to the
 * inner tuple.  An inner tuple may be changed in its place, and may move, which
 * leaves a redirect, too, but no leaf tuple moves then.
 *
 * Let the start xmin be the xmin of the VACUUM's snapshot.  Who moves something
 * after the snapshot was taken has a transaction ID that is not below it; call a
 * redirect with such an ID young.  No young redirect is removed while we are at
 * it: only vacuum does that, and we leave them all to the next one, even if
 * everyone has forgotten their transactions.  (The server's routine asks for that
 * only.)  An inner tuple is never deleted.  A chain keeps its head's place as long
 * as it has tuples, and when it has none that place holds a dead tuple.  So a
 * tuple that has moved since we began has a trail: the redirect that its first
 * move left, which leads to the place of a head or of an inner tuple, that place
 * when it has become a redirect, or the downlink, and so on to where the tuple is.
 * A trail only grows, at its end or by places in between, and none of its places is
 * taken by something else, for the whole vacuum.
 *
 * Some young redirects were made before we began, by a transaction that still
 * runs.  These may lead to a place that has been left by an older transaction, and
 * has been reused.  They lead nowhere, or astray, and both does no harm: what
 * moved before we began is where it is, and what moves later leaves a redirect
 * there.  (The server's routine raises an error if one leads to a placeholder.)
 *
 * A visit to a leaf page happens under one exclusive lock.  It (1) deletes the
 * tuples of dead TIDs and (2) makes the targets of all young redirects on the
 * page pending for the visitor.  To do what is pending is to visit that page, if
 * it is a leaf page; and if it is an inner page, to make pending the target of
 * each downlink of that tuple, or of the young redirect that it has become, under
 * one lock.  Call either to follow the redirect, or the inner tuple.  Each visitor
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
 *	 the lock that who changes it needs.  If it has been followed before, at its
 *	 place or when there was a redirect already, it was on the same trails then.
 * - To go by where redirects lead to, and to visit each such place once, would not
 *	 do.  A young redirect from before we began may lead to a placeholder.  When that
 *	 has been visited for its sake something may move there, and the redirect which
 *	 that leaves leads there, too.  (The server's routine doesn't follow it.)
 * - The roots, of the tree and of that for NULLs, are special: when one that is a
 *	 leaf page splits all its tuples move to other pages, and there is no redirect.
 *	 So they must be visited before any other page is, which the leader does
 *	 before it makes the ranges available (begin_blocks).  An inner page never
 *	 becomes a leaf page again.
 * - No page is deleted; one that is empty, and free to be taken, may be taken at
 *	 any time, but that is to move something to it, as above.
 *
 * The start xmin is the leader's.  Members have it from the shared block.
 *
 * The order in which a member does what is pending doesn't matter, nor who does
 * it.  It ends even if others go on moving things: each place where something has
 * been followed is so once, makes a limited number of places pending then, and
 * nothing else makes any; and an index has only so many.
 *
 * test/pytest/test_spgist_model.py explores every order of events in a small
 * index, with these rules and with weaker ones.
 *
 * Locks
 * -----
 * No cleanup locks: scans of SP-GiST indexes don't rely on pins, at least the
 * server's own vacuum takes none.  Visitors lock one page at a time, so they are
 * in nobody's way.
 *
 * Counts
 * ------
 * A block has just one visit as part of a range, and only those count its tuples.
 *
 * Pages with free space
 * ---------------------
 * Whoever inserts looks first at the pages that were used last, which each process
 * remembers for itself; the index's metapage has what is told there.  Each member
 * remembers the emptiest pages that it has seen, and the leader tells the metapage
 * once, in the end.  (That is not logged, and needn't be right.)
 *
 * Cleanup
 * -------
 * Without bulk deletion before it, cleanup visits all pages likewise, for old
 * redirects, free pages and the count, but deletes nothing, so nothing is pending.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/spgist_private.h"
#include "access/spgxlog.h"
#include "access/transam.h"
#include "access/xloginsert.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/indexfsm.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/audit.h"
#include "engine/index/index_kind.h"
#include "engine/phases.h"
#include "pace/pace.h"

/* Where redirects and inner tuples are that have been followed */
typedef struct FollowedPlace
{
	uint64		tid;			/* block number and offset: see is_to_follow */
	char		status;			/* the hash table's */
} FollowedPlace;

#define SH_PREFIX followed
#define SH_ELEMENT_TYPE FollowedPlace
#define SH_KEY_TYPE uint64
#define SH_KEY tid
#define SH_HASH_KEY(table, key) ((uint32) murmurhash64(key))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* What the team shares of one index */
typedef struct SpgistShared
{
	TransactionId start_xmin;	/* written by the leader, in begin_blocks */
	bool		deletes;		/* or is it cleanup? likewise */
	bool		has_nothing_to_do;	/* cleanup after bulk deletion; likewise */
} SpgistShared;

/* How to take tuples out of their chains on one page; see plan_chain */
typedef struct LeafPlan
{
	uint16		ndead;			/* heads of chains of which nothing is left */
	uint16		nplaceholder;	/* others to be replaced by placeholders */
	uint16		nmove;			/* to be moved to their head's place */
	uint16		nchain;			/* whose next one changes */
	OffsetNumber dead[MaxIndexTuplesPerPage];
	OffsetNumber placeholder[MaxIndexTuplesPerPage];
	OffsetNumber move_from[MaxIndexTuplesPerPage];
	OffsetNumber move_to[MaxIndexTuplesPerPage];
	OffsetNumber chain[MaxIndexTuplesPerPage];
	OffsetNumber chain_next[MaxIndexTuplesPerPage];
} LeafPlan;

/* One process's part of one index */
typedef struct SpgistScan
{
	TableVacuum *vacuum;
	int			number;
	IndexShared *shared;
	SpgistShared *spgist;
	Relation	index;
	SpGistState state;			/* what the server's routines want */
	IndexBulkDeleteResult stats;	/* what this process did */

	IndexBlocks blocks;			/* the pages of our own ranges */

	/* places to be visited: palloc'd, NULL at first */
	ItemPointerData *pending;
	int			npending;
	int			pending_size;
	followed_hash *followed;	/* since there was nothing pending; or NULL */

	/*
	 * the TIDs of the page in hand, where they are, and which of them are
	 * dead
	 */
	int			ntids;
	ItemPointerData tids[MaxIndexTuplesPerPage];
	OffsetNumber offsets[MaxIndexTuplesPerPage];
	bool		dead[MaxIndexTuplesPerPage];

	/* by offset: the one before it in its chain, and is it to be deleted? */
	OffsetNumber before[MaxIndexTuplesPerPage + 1];
	bool		deletable[MaxIndexTuplesPerPage + 1];
	LeafPlan	plan;
} SpgistScan;

static void spgist_begin(TableVacuum *vacuum, int number, int nmembers);
static void spgist_begin_cleanup(TableVacuum *vacuum, int number, int nmembers);
static void begin_blocks(TableVacuum *vacuum, int number, int nmembers, bool deletes);
static BlockNumber spgist_vacuum(TableVacuum *vacuum, int number);
static void spgist_finish(TableVacuum *vacuum, int number);
static void spgist_finish_cleanup(TableVacuum *vacuum, int number);
static SpgistScan *make_scan(TableVacuum *vacuum, int number);
static void free_scan(SpgistScan *scan);
static void visit_in_range(void *scan, Buffer buffer);
static void check_page(Relation index, Buffer buffer);
static void visit_page(SpgistScan *scan, Buffer buffer);
static void visit_pending(SpgistScan *scan);
static void visit_places(SpgistScan *scan, const ItemPointerData *places, int nplaces);
static void follow_inner_tuple(SpgistScan *scan, Buffer buffer, OffsetNumber offset);
static void follow_redirect(SpgistScan *scan, Buffer buffer, OffsetNumber offset);
static bool is_to_follow(SpgistScan *scan, Buffer buffer, OffsetNumber offset);
static void add_pending(SpgistScan *scan, const ItemPointerData *place);
static int	compare_places(const void *a, const void *b);
static void clean_root(SpgistScan *scan, Buffer buffer);
static void clean_leaf(SpgistScan *scan, Buffer buffer, bool count);
static void look_at_leaf(SpgistScan *scan, Buffer buffer);
static void note_next(SpgistScan *scan, Buffer buffer, OffsetNumber offset,
					  OffsetNumber next);
static void plan_chain(SpgistScan *scan, Buffer buffer, OffsetNumber head);
static void apply_plan(SpgistScan *scan, Buffer buffer);
static XLogRecPtr log_plan(SpgistScan *scan, Buffer buffer);
static void clean_redirects(SpgistScan *scan, Buffer buffer);
static OffsetNumber find_old_redirects(SpgistScan *scan, Page page, OffsetNumber *old,
									   int *nold);
static bool is_old_redirect(SpgistScan *scan, const SpGistDeadTupleData *tuple);
static void report_corruption(Relation index, BlockNumber blkno);

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

/*
 * spgist_begin_cleanup
 *		The leader's part before cleanup: if bulk deletion has gone over the index,
 *		there is only something to be claimed, so that somebody reports on it.
 */
static void
spgist_begin_cleanup(TableVacuum *vacuum, int number, int nmembers)
{
	SpgistShared *spgist = index_area(vacuum, number);
	IndexShared *shared = vacuum_index(vacuum->shared, number);

	if (!shared->has_stats)
	{
		begin_blocks(vacuum, number, nmembers, false);
		return;
	}
	spgist->has_nothing_to_do = true;
	ranges_init(&shared->ranges, 0, 1, 1, 1, 1);
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
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	SpgistScan *scan;

	Assert(is_leader(vacuum));
	Assert(ActiveSnapshotSet());

	spgist->start_xmin = GetActiveSnapshot()->xmin;
	spgist->deletes = deletes;
	spgist->has_nothing_to_do = false;

	shared->stats.estimated_count = false;
	shared->stats.num_index_tuples = 0;
	shared->stats.pages_deleted = 0;

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
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	SpgistScan *scan;
	BlockNumber pages_done;
	uint64		start,
				end;

	if (spgist->has_nothing_to_do)
	{
		(void) ranges_claim(&shared->ranges, &start, &end);
		return 0;
	}

	scan = make_scan(vacuum, number);
	do
		index_visit_blocks(&scan->blocks);
	while (index_claim_growth(vacuum, number, &scan->blocks.next, &scan->blocks.end));

	/* who leaves owes nothing */
	Assert(scan->npending == 0);
	pages_done = scan->blocks.pages_done;
	free_scan(scan);
	return pages_done;
}

/*
 * spgist_finish
 *		Leader, when all of the index has been visited.
 */
static void
spgist_finish(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	Relation	index = vacuum->indexes[number];

	SpGistUpdateMetaPage(index);
	/* make what was put into the free space map findable */
	if (shared->stats.pages_deleted > 0)
		IndexFreeSpaceMapVacuum(index);

	/* as the server's routine has it: empty pages are free at once */
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

	if (!spgist->has_nothing_to_do)
		spgist_finish(vacuum, number);
	index_cap_tuples(vacuum, number);
}

/* make_scan -- what a process needs to visit pages of an index; palloc'd. */
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
	Assert(vacuum->dead_tids != NULL || !scan->spgist->deletes);
	Assert(CheckRelationLockedByMe(scan->index, RowExclusiveLock, true));
	return scan;
}

/* free_scan -- tell what was done, and forget it. */
static void
free_scan(SpgistScan *scan)
{
	index_add_stats(scan->shared, &scan->stats);
	if (scan->pending != NULL)
		pfree(scan->pending);
	if (scan->followed != NULL)
		followed_destroy(scan->followed);
	pfree(scan->state.deadTupleStorage);
	pfree(scan);
}

/* visit_in_range -- visit a pinned page of a range of our own, and release it. */
static void
visit_in_range(void *scan, Buffer buffer)
{
	Assert(!SpGistBlockIsFixed(BufferGetBlockNumber(buffer)));
	DEBUG_POINT("spgist-page");
	visit_page(scan, buffer);
}

/* check_page -- is this page, which is locked and not new, of an SP-GiST index? */
static void
check_page(Relation index, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);

	if (PageGetSpecialSize(page) != MAXALIGN(sizeof(SpGistPageOpaqueData)) ||
		SpGistPageGetOpaque(page)->spgist_page_id != SPGIST_PAGE_ID ||
		PageGetMaxOffsetNumber(page) > MaxIndexTuplesPerPage)
		report_corruption(index, BufferGetBlockNumber(buffer));
}

/*
 * visit_page
 *		Visit a pinned page of a range of our own, or a root; release it, and visit
 *		what is pending then.
 *
 * That a page is free is recorded when its lock is gone: who waits for the free
 * space map with a lock can't be interrupted.
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
		check_page(scan->index, buffer);
		if (SpGistPageIsLeaf(page) && SpGistBlockIsRoot(blkno))
			clean_root(scan, buffer);
		else if (SpGistPageIsLeaf(page))
			clean_leaf(scan, buffer, true);
		if (!SpGistPageIsLeaf(page) || !SpGistBlockIsRoot(blkno))
			clean_redirects(scan, buffer);
	}

	/* roots are never free, nor a place for others' tuples */
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
 * They are visited in batches, in the order of their blocks, and each page once a
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
 *		Visit a page where there are places that are pending: all those that are in
 *		this batch.
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
		check_page(scan->index, buffer);
		if (!SpGistPageIsLeaf(page))
		{
			for (int i = 0; i < nplaces; i++)
				follow_inner_tuple(scan, buffer, ItemPointerGetOffsetNumber(&places[i]));
		}
		else if (SpGistBlockIsRoot(blkno))
			report_corruption(scan->index, blkno);
		else
		{
			clean_leaf(scan, buffer, false);
			clean_redirects(scan, buffer);
			SpGistSetLastUsedPage(scan->index, buffer);
		}
	}
	UnlockReleaseBuffer(buffer);
}

/*
 * follow_inner_tuple
 *		Make pending what an inner tuple on a locked page leads to, or the place
 *		that it has moved to.  It may be gone: see the top of this file.
 */
static void
follow_inner_tuple(SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	Page		page = BufferGetPage(buffer);
	SpGistInnerTuple tuple;
	SpGistNodeTuple node;
	int			i;

	if (offset < FirstOffsetNumber || offset > PageGetMaxOffsetNumber(page))
		return;

	tuple = (SpGistInnerTuple) PageGetItem(page, PageGetItemId(page, offset));
	if (tuple->tupstate == SPGIST_REDIRECT)
		follow_redirect(scan, buffer, offset);
	else if (tuple->tupstate == SPGIST_LIVE && is_to_follow(scan, buffer, offset))
	{
		SGITITERATE(tuple, i, node)
		{
			if (ItemPointerIsValid(&node->t_tid))
				add_pending(scan, &node->t_tid);
		}
	}
}

/*
 * follow_redirect
 *		Make pending what a redirect on a locked page leads to, if it is young.
 *
 * An old one that is followed might make way to something else later, which then
 * would not be.
 */
static void
follow_redirect(SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	Page		page = BufferGetPage(buffer);
	SpGistDeadTuple redirect = (SpGistDeadTuple) PageGetItem(page, PageGetItemId(page, offset));

	Assert(redirect->tupstate == SPGIST_REDIRECT);
	if (TransactionIdFollowsOrEquals(redirect->xid, scan->spgist->start_xmin) &&
		is_to_follow(scan, buffer, offset))
		add_pending(scan, &redirect->pointer);
}

/*
 * is_to_follow
 *		Has what is at this place yet to be followed?  Then the caller does so.
 */
static bool
is_to_follow(SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	uint64		tid = (uint64) BufferGetBlockNumber(buffer) << 16 | offset;
	bool		found;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	if (scan->followed == NULL)
		scan->followed = followed_create(CurrentMemoryContext, 64, NULL);
	(void) followed_insert(scan->followed, tid, &found);
	return !found;
}

/* add_pending -- make a place pending. */
static void
add_pending(SpgistScan *scan, const ItemPointerData *place)
{
	if (scan->npending == scan->pending_size)
	{
		scan->pending_size = Max(scan->pending_size * 2, 64);
		scan->pending = scan->pending == NULL ?
			palloc_array(ItemPointerData, scan->pending_size) :
			repalloc_huge(scan->pending, scan->pending_size * sizeof(ItemPointerData));
	}
	scan->pending[scan->npending++] = *place;
}

/* compare_places -- for qsort */
static int
compare_places(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}

/*
 * clean_root
 *		Delete the tuples of dead TIDs from a root that is a leaf page, locked
 *		exclusively.  They form no chains.
 */
static void
clean_root(SpgistScan *scan, Buffer buffer)
{
	OffsetNumber deletable[MaxIndexTuplesPerPage];
	Page		page = BufferGetPage(buffer);
	spgxlogVacuumRoot record;
	int			ndead = 0;

	look_at_leaf(scan, buffer);
	if (scan->ntids != PageGetMaxOffsetNumber(page))
		report_corruption(scan->index, BufferGetBlockNumber(buffer));
	for (int i = 0; i < scan->ntids; i++)
		if (scan->dead[i])
			deletable[ndead++] = scan->offsets[i];

	scan->stats.num_index_tuples += scan->ntids - ndead;
	scan->stats.tuples_removed += ndead;
	if (ndead == 0)
		return;

	index_check_items(scan->index, buffer);
	START_CRIT_SECTION();
	PageIndexMultiDelete(page, deletable, ndead);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(scan->index))
	{
		record.nDelete = ndead;
		STORE_STATE(&scan->state, record.stateSrc);
		XLogBeginInsert();
		XLogRegisterData((char *) &record, SizeOfSpgxlogVacuumRoot);
		XLogRegisterData((char *) deletable, sizeof(OffsetNumber) * ndead);
		XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
		PageSetLSN(page, XLogInsert(RM_SPGIST_ID, XLOG_SPGIST_VACUUM_ROOT));
	}
	END_CRIT_SECTION();
}

/*
 * clean_leaf
 *		Delete the tuples of dead TIDs from a leaf page, locked exclusively, that is
 *		no root; make the targets of its young redirects pending.
 *
 * Heads of chains stay where they are, as a downlink leads there.
 */
static void
clean_leaf(SpgistScan *scan, Buffer buffer, bool count)
{
	LeafPlan   *plan = &scan->plan;
	int			ndead = 0;

	look_at_leaf(scan, buffer);
	for (int i = 0; i < scan->ntids; i++)
		ndead += scan->dead[i];
	if (count)
		scan->stats.num_index_tuples += scan->ntids - ndead;
	scan->stats.tuples_removed += ndead;
	if (ndead == 0)
		return;

	plan->ndead = plan->nplaceholder = plan->nmove = plan->nchain = 0;
	for (int i = 0; i < scan->ntids; i++)
		scan->deletable[scan->offsets[i]] = scan->dead[i];
	for (int i = 0; i < scan->ntids; i++)
		if (scan->before[scan->offsets[i]] == InvalidOffsetNumber)
			plan_chain(scan, buffer, scan->offsets[i]);

	/* each is in a chain, and in one only */
	if (plan->ndead + plan->nplaceholder + plan->nmove != ndead)
		report_corruption(scan->index, BufferGetBlockNumber(buffer));
	apply_plan(scan, buffer);
	audit_deleted(scan->vacuum, scan->number, buffer);
}

/*
 * look_at_leaf
 *		See which tuples a leaf page has, which of their TIDs are dead, and how
 *		they are chained; make the targets of young redirects pending.
 */
static void
look_at_leaf(SpgistScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(SpGistPageIsLeaf(page) && maxoff <= MaxIndexTuplesPerPage);

	scan->ntids = 0;
	memset(scan->before, 0, (maxoff + 1) * sizeof(OffsetNumber));
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		SpGistLeafTuple tuple = (SpGistLeafTuple) PageGetItem(page, PageGetItemId(page, off));

		if (tuple->tupstate == SPGIST_LIVE)
		{
			scan->tids[scan->ntids] = tuple->heapPtr;
			scan->offsets[scan->ntids++] = off;
			note_next(scan, buffer, off, SGLT_GET_NEXTOFFSET(tuple));
		}
		else if (tuple->tupstate == SPGIST_REDIRECT && scan->spgist->deletes)
			follow_redirect(scan, buffer, off);
	}

	if (scan->spgist->deletes)
		(void) audit_match(scan->vacuum, scan->number, buffer, scan->tids, scan->ntids, scan->dead);
	else
		memset(scan->dead, 0, sizeof(bool) * scan->ntids);
}

/* note_next -- a tuple on a leaf page is followed by another one in its chain, or by none. */
static void
note_next(SpgistScan *scan, Buffer buffer, OffsetNumber offset, OffsetNumber next)
{
	if (next == InvalidOffsetNumber)
		return;
	if (next > PageGetMaxOffsetNumber(BufferGetPage(buffer)) ||
		scan->before[next] != InvalidOffsetNumber)
		report_corruption(scan->index, BufferGetBlockNumber(buffer));
	scan->before[next] = offset;
}

/*
 * plan_chain
 *		Plan how to take the deletable tuples out of a chain.
 *
 * The first one that stays moves to the head's place, unless it has it.  If none
 * stays, the head becomes a dead tuple there.
 */
static void
plan_chain(SpgistScan *scan, Buffer buffer, OffsetNumber head)
{
	Page		page = BufferGetPage(buffer);
	LeafPlan   *plan = &scan->plan;
	OffsetNumber last = InvalidOffsetNumber;	/* that stays, where it will
												 * be */
	bool		gap = false;	/* were some after it deleted? */
	OffsetNumber next;

	for (OffsetNumber off = head; off != InvalidOffsetNumber; off = next)
	{
		SpGistLeafTuple tuple = (SpGistLeafTuple) PageGetItem(page, PageGetItemId(page, off));

		if (tuple->tupstate != SPGIST_LIVE)
			report_corruption(scan->index, BufferGetBlockNumber(buffer));
		next = SGLT_GET_NEXTOFFSET(tuple);

		if (scan->deletable[off])
		{
			if (off != head)
				plan->placeholder[plan->nplaceholder++] = off;
			gap = true;
			continue;
		}
		if (last == InvalidOffsetNumber && off != head)
		{
			plan->move_from[plan->nmove] = off;
			plan->move_to[plan->nmove++] = head;
			last = head;
		}
		else
		{
			if (last != InvalidOffsetNumber && gap)
			{
				plan->chain[plan->nchain] = last;
				plan->chain_next[plan->nchain++] = off;
			}
			last = off;
		}
		gap = false;
	}

	if (last == InvalidOffsetNumber)
		plan->dead[plan->ndead++] = head;
	else if (gap)
	{
		plan->chain[plan->nchain] = last;
		plan->chain_next[plan->nchain++] = InvalidOffsetNumber;
	}
}

/*
 * apply_plan
 *		Do with a leaf page as planned, in the order in which replay does it.
 */
static void
apply_plan(SpgistScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	LeafPlan   *plan = &scan->plan;

	index_check_items(scan->index, buffer);
	START_CRIT_SECTION();
	spgPageIndexMultiDelete(&scan->state, page, plan->dead, plan->ndead,
							SPGIST_DEAD, SPGIST_DEAD,
							InvalidBlockNumber, InvalidOffsetNumber);
	spgPageIndexMultiDelete(&scan->state, page, plan->placeholder, plan->nplaceholder,
							SPGIST_PLACEHOLDER, SPGIST_PLACEHOLDER,
							InvalidBlockNumber, InvalidOffsetNumber);

	/* a tuple moves by its line pointer, and gets the one of what goes */
	for (int i = 0; i < plan->nmove; i++)
	{
		ItemId		from = PageGetItemId(page, plan->move_from[i]);
		ItemId		to = PageGetItemId(page, plan->move_to[i]);
		ItemIdData	old = *to;

		*to = *from;
		*from = old;
	}
	spgPageIndexMultiDelete(&scan->state, page, plan->move_from, plan->nmove,
							SPGIST_PLACEHOLDER, SPGIST_PLACEHOLDER,
							InvalidBlockNumber, InvalidOffsetNumber);

	for (int i = 0; i < plan->nchain; i++)
	{
		ItemId		id = PageGetItemId(page, plan->chain[i]);
		SpGistLeafTuple tuple = (SpGistLeafTuple) PageGetItem(page, id);

		Assert(tuple->tupstate == SPGIST_LIVE);
		SGLT_SET_NEXTOFFSET(tuple, plan->chain_next[i]);
	}

	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(scan->index))
		PageSetLSN(page, log_plan(scan, buffer));
	END_CRIT_SECTION();
}

/* log_plan -- log what apply_plan has done; within a critical section. */
static XLogRecPtr
log_plan(SpgistScan *scan, Buffer buffer)
{
	LeafPlan   *plan = &scan->plan;
	spgxlogVacuumLeaf record;

	record.nDead = plan->ndead;
	record.nPlaceholder = plan->nplaceholder;
	record.nMove = plan->nmove;
	record.nChain = plan->nchain;
	STORE_STATE(&scan->state, record.stateSrc);

	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfSpgxlogVacuumLeaf);
	XLogRegisterData((char *) plan->dead, sizeof(OffsetNumber) * plan->ndead);
	XLogRegisterData((char *) plan->placeholder, sizeof(OffsetNumber) * plan->nplaceholder);
	XLogRegisterData((char *) plan->move_from, sizeof(OffsetNumber) * plan->nmove);
	XLogRegisterData((char *) plan->move_to, sizeof(OffsetNumber) * plan->nmove);
	XLogRegisterData((char *) plan->chain, sizeof(OffsetNumber) * plan->nchain);
	XLogRegisterData((char *) plan->chain_next, sizeof(OffsetNumber) * plan->nchain);
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
	return XLogInsert(RM_SPGIST_ID, XLOG_SPGIST_VACUUM_LEAF);
}

/*
 * clean_redirects
 *		Make placeholders of the old redirects on a page, locked exclusively, and
 *		delete the placeholders at its end, which keep no offset as it is.
 */
static void
clean_redirects(SpgistScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	SpGistPageOpaque opaque = SpGistPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	OffsetNumber old[MaxIndexTuplesPerPage];
	OffsetNumber tail[MaxIndexTuplesPerPage];
	spgxlogVacuumRedirect record = {0};
	OffsetNumber first;
	int			nold;

	first = find_old_redirects(scan, page, old, &nold);
	if (nold == 0 && first == InvalidOffsetNumber)
		return;

	record.nToPlaceholder = nold;
	record.firstPlaceholder = first;
	record.isCatalogRel = RelationIsAccessibleInLogicalDecoding(scan->vacuum->rel);
	record.snapshotConflictHorizon = InvalidTransactionId;

	index_check_items(scan->index, buffer);
	START_CRIT_SECTION();
	for (int i = 0; i < nold; i++)
	{
		SpGistDeadTuple tuple = (SpGistDeadTuple) PageGetItem(page, PageGetItemId(page, old[i]));

		if (!TransactionIdIsValid(record.snapshotConflictHorizon) ||
			TransactionIdPrecedes(record.snapshotConflictHorizon, tuple->xid))
			record.snapshotConflictHorizon = tuple->xid;
		tuple->tupstate = SPGIST_PLACEHOLDER;
		ItemPointerSetInvalid(&tuple->pointer);
	}
	Assert(opaque->nRedirection >= nold);
	opaque->nRedirection -= nold;
	opaque->nPlaceholder += nold;

	if (first != InvalidOffsetNumber)
	{
		int			ntail = maxoff - first + 1;

		for (int i = 0; i < ntail; i++)
			tail[i] = first + i;
		Assert(opaque->nPlaceholder >= ntail);
		opaque->nPlaceholder -= ntail;
		PageIndexMultiDelete(page, tail, ntail);
	}

	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(scan->index))
	{
		XLogBeginInsert();
		XLogRegisterData((char *) &record, SizeOfSpgxlogVacuumRedirect);
		XLogRegisterData((char *) old, sizeof(OffsetNumber) * nold);
		XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
		PageSetLSN(page, XLogInsert(RM_SPGIST_ID, XLOG_SPGIST_VACUUM_REDIRECT));
	}
	END_CRIT_SECTION();
}

/*
 * find_old_redirects
 *		Find the old redirects on a page; return the first offset from which there
 *		will be placeholders only, or InvalidOffsetNumber if there are none at the
 *		end.
 */
static OffsetNumber
find_old_redirects(SpgistScan *scan, Page page, OffsetNumber *old, int *nold)
{
	int			redirects = SpGistPageGetOpaque(page)->nRedirection;
	OffsetNumber first = InvalidOffsetNumber;
	bool		in_tail = true;

	*nold = 0;
	for (OffsetNumber off = PageGetMaxOffsetNumber(page);
		 off >= FirstOffsetNumber && (in_tail || redirects > 0); off--)
	{
		SpGistDeadTuple tuple = (SpGistDeadTuple) PageGetItem(page, PageGetItemId(page, off));
		bool		placeholder = tuple->tupstate == SPGIST_PLACEHOLDER;

		if (tuple->tupstate == SPGIST_REDIRECT)
		{
			redirects--;
			if (is_old_redirect(scan, tuple))
			{
				old[(*nold)++] = off;
				placeholder = true;
			}
		}
		in_tail = in_tail && placeholder;
		if (in_tail)
			first = off;
	}
	return first;
}

/*
 * is_old_redirect
 *		Can a redirect go?
 *
 * Not one that has come about since we began, as what it leads to must be found;
 * nor one that a scan may need that began before it.  One without a transaction
 * ID is of REINDEX CONCURRENTLY, which no scan was beside.
 */
static bool
is_old_redirect(SpgistScan *scan, const SpGistDeadTupleData *tuple)
{
	return !TransactionIdIsValid(tuple->xid) ||
		(TransactionIdPrecedes(tuple->xid, scan->spgist->start_xmin) &&
		 compat_is_removable_xid(scan->vacuum->vistest, tuple->xid));
}

/* report_corruption -- a page of the index isn't what it should be. */
static void
report_corruption(Relation index, BlockNumber blkno)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" contains corrupted page at block %u",
					RelationGetRelationName(index), blkno),
			 errhint("Please REINDEX it.")));
}
