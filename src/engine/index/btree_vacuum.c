/*-------------------------------------------------------------------------
 *
 * btree_vacuum.c
 *	  Bulk deletion in btrees, by any number of processes in one index.
 *
 * The members of a team claim ranges of an index's blocks and visit each page
 * in them.  On a leaf page all TIDs, posting lists included, are gathered and
 * looked up in the dead-TID store in one go; then the page is changed once.
 * Changes of a page, and their WAL, are nbtree's own
 * (_bt_delitems_vacuum, _bt_pagedel).
 *
 * README.md says why no entry of a dead item is left, and for which cleanup locks a process
 * waits.  test/pytest/test_btree_splits.py has sessions split pages meanwhile.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/indexfsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "audit/audit.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/index/btree_delete.h"
#include "engine/index/index_kind.h"
#include "machine/wal_writer.h"
#include "own_wait_event.h"
#include "pace/pace.h"

/* With this number of duties due, the stream is interrupted to do them. */
#define MAX_DUTIES			DEBUG_LIMIT(max_duties, 1024)

/*
 * How often to try to lock a page that is pinned, before its visit is
 * put off, and how long to wait between two tries
 */
#define DUTY_TRIES			DEBUG_LIMIT(max_duty_tries, 20)
#define RETRY_MS			1

/* What the team shares of a btree */
typedef struct BtreeShared
{
	uint16		cycle_id;		/* written by the leader before the phase */
} BtreeShared;

/* One process's part of one index */
typedef struct BtreeScan
{
	KindScan	base;
	uint16		cycle_id;

	BlockList	duties;			/* right siblings to visit */
	BlockList  *put_off;		/* right siblings to wait for in the end; NULL
								 * if that is now */
	BlockList  *empty_pages;	/* found so far, to be deleted later */

	/* the TIDs of the page in hand, and which of them are dead */
	bool		items_are_sound;
	int			ntids;
	ItemPointerData tids[MaxTIDsPerBTreePage];
	bool		dead[MaxTIDsPerBTreePage];
} BtreeScan;

static void btree_begin(TableVacuum *vacuum, int number, int nmembers);
static void btree_vacuum(TableVacuum *vacuum, int number);
static void btree_do_duties(TableVacuum *vacuum, int number);
static void btree_end(TableVacuum *vacuum, int number);
static BtreeScan *btree_make_scan(TableVacuum *vacuum, int number, bool wait);
static void btree_free_scan(BtreeScan *scan);
static bool has_many_duties(KindScan *base);
static void btree_visit_page(KindScan *base, Buffer buffer);
static void visit_chain(BtreeScan *scan, BlockNumber blkno);
static Buffer read_due_page(BtreeScan *scan, BlockNumber blkno);
static Buffer lock_due_page(BtreeScan *scan, BlockNumber blkno);
static int	btree_clean_leaf(BtreeScan *scan, Buffer buffer, BlockNumber *duty);
static void gather_tids(BtreeScan *scan, Buffer buffer, OffsetNumber minoff,
						OffsetNumber maxoff);
static void check_posting_list(BtreeScan *scan, Buffer buffer, OffsetNumber off);
static void btree_delete_dead_tids(BtreeScan *scan, Buffer buffer,
								   OffsetNumber minoff, OffsetNumber maxoff);
static BTVacuumPosting plan_posting(BtreeScan *scan, IndexTuple posting,
									OffsetNumber off, int first_tid, int ndead);

const IndexKind btree_kind = {
	.name = "btree",
	.is_registered = true,
	.shared_size = sizeof(BtreeShared),
	.bulk_delete = {
		.begin = btree_begin,
		.work = btree_vacuum,
		.is_done = index_blocks_are_claimed,
		.more_work = btree_do_duties,
		.end = btree_end,
		.finish = index_finish_stats,
	},
	.has_empty_pages = btree_has_empty_pages,
	.delete_pages = btree_delete_pages,
};

/*
 * btree_begin
 *		Register an index as being vacuumed, and make its blocks available.
 *
 * From now on all members have the cycle ID, so a page that is not there yet is
 * found from the page that it is split from.
 */
static void
btree_begin(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	BtreeShared *btree = index_area(vacuum, number);

	Assert(is_leader(vacuum));

	btree->cycle_id = _bt_start_vacuum(vacuum->indexes[number]);
	Assert(btree->cycle_id != 0);
	index_begin_blocks(vacuum, number, BTREE_METAPAGE + 1, nmembers);

	shared->stats.estimated_count = false;
	shared->stats.num_index_tuples = 0;
	shared->stats.pages_deleted = 0;
	shared->stats.pages_free = 0;
}

/* btree_end -- an index isn't being vacuumed any more. */
static void
btree_end(TableVacuum *vacuum, int number)
{
	Assert(is_leader(vacuum));
	_bt_end_vacuum(vacuum->indexes[number]);
}

/*
 * btree_vacuum
 *		One process's part of an index: claim ranges until none is left, or this
 *		process is to be parked.
 *
 * Empty pages are added to the process's empty_pages.  Pages that it has to visit,
 * but that were pinned for too long, are added to its put_off:
 * btree_do_duties has to be called in this process.
 */
static void
btree_vacuum(TableVacuum *vacuum, int number)
{
	BtreeScan  *scan = btree_make_scan(vacuum, number, false);

	do
	{
		index_visit_blocks(&scan->base);
		if (scan->duties.count >= MAX_DUTIES)
			DEBUG_POINT("btree-duties");
		while (scan->duties.count > 0)
			visit_chain(scan, scan->duties.blocks[--scan->duties.count]);
	} while (scan->base.next < scan->base.end ||
			 (!scan->base.gives_up &&
			  (!index_blocks_are_claimed(vacuum, number) ||
			   index_claim_growth(vacuum, number, &scan->base.next, &scan->base.end))));

	if (scan->put_off->count > 0)
		index_want_more_work(vacuum, number);
	btree_free_scan(scan);
}

/*
 * btree_do_duties
 *		Visit the pages that this process has put off, and wait for them.
 *
 * No member may be in btree_vacuum at this index, so none has a page of it
 * pinned; and the index is still registered, so splits show.  Waits for members
 * that do the same, and for sessions that have a page pinned.
 */
static void
btree_do_duties(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	BlockList  *put_off = &vacuum->put_off[number];
	BtreeScan  *scan;

	if (put_off->count == 0)
		return;

	scan = btree_make_scan(vacuum, number, true);
	(void) index_take_turn(shared, true);
	while (put_off->count > 0)
	{
		failsafe_notice(vacuum);
		visit_chain(scan, put_off->blocks[--put_off->count]);
	}
	index_end_turn(shared);

	Assert(scan->duties.count == 0);
	btree_free_scan(scan);
}

/*
 * btree_make_scan
 *		Make what a process needs to visit pages of an index, and to wait for them
 *		or not; palloc'd.
 */
static BtreeScan *
btree_make_scan(TableVacuum *vacuum, int number, bool wait)
{
	BtreeScan  *scan = kind_scan_make(vacuum, number, sizeof(BtreeScan));

	scan->cycle_id = ((BtreeShared *) index_area(vacuum, number))->cycle_id;
	scan->put_off = wait ? NULL : &vacuum->put_off[number];
	scan->empty_pages = &vacuum->empty_pages[number];
	scan->base.visit = btree_visit_page;
	scan->base.is_enough = has_many_duties;

	/* pages that are split meanwhile have to show it */
	Assert(scan->cycle_id != 0);
	Assert(vacuum->dead_tids != NULL);
	return scan;
}

/* btree_free_scan -- tell what was done, and free it. */
static void
btree_free_scan(BtreeScan *scan)
{
	if (scan->empty_pages->count > 0)
		index_note_empty_pages(scan->base.vacuum);
	block_list_free(&scan->duties);
	kind_scan_free(&scan->base);
}

/* has_many_duties -- are they to be done before the visits go on?  The scan's is_enough. */
static bool
has_many_duties(KindScan *base)
{
	return ((BtreeScan *) base)->duties.count >= MAX_DUTIES;
}

/*
 * btree_visit_page
 *		Visit a page of a range of our own, and release it.
 *
 * A free page is recorded when its lock is released.  A process that waits for
 * the free space map with a lock can't be interrupted, and if the member that reads the
 * map fails, that member waits for us.
 */
static void
btree_visit_page(KindScan *base, Buffer buffer)
{
	BtreeScan  *scan = (BtreeScan *) base;
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	Page		page = BufferGetPage(buffer);
	bool		have_cleanup_lock;
	bool		is_free = false;
	BTPageOpaque opaque;

	DEBUG_POINT("btree-page");
	have_cleanup_lock = ConditionalLockBufferForCleanup(buffer);
	if (!have_cleanup_lock)
		LockBuffer(buffer, BUFFER_LOCK_SHARE);

	for (;;)
	{
		if (PageIsNew(page))
		{
			scan->base.stats.pages_deleted++;
			is_free = true;
			break;
		}
		_bt_checkpage(scan->base.index, buffer);
		opaque = BTPageGetOpaque(page);

		if (P_ISDELETED(opaque))
		{
			scan->base.stats.pages_deleted++;
			is_free = BTPageIsRecyclable(page, scan->base.vacuum->rel);
		}
		else if (P_ISHALFDEAD(opaque))
		{
			/* an earlier vacuum was interrupted */
			block_list_add(scan->empty_pages, blkno);
		}
		else if (P_ISLEAF(opaque))
		{
			BlockNumber duty;
			int			nlive;

			/* The lock is released, so look again at what page this is. */
			if (!have_cleanup_lock)
			{
				LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
				LockBufferForCleanup(buffer);
				have_cleanup_lock = true;
				continue;
			}
			nlive = btree_clean_leaf(scan, buffer, &duty);
			scan->base.stats.num_index_tuples += nlive;
			if (duty != P_NONE)
				block_list_add(&scan->duties, duty);
		}
		break;
	}
	UnlockReleaseBuffer(buffer);

	if (is_free)
	{
		RecordFreeIndexPage(scan->base.index, blkno);
		scan->base.stats.pages_free++;
	}
}

/*
 * visit_chain
 *		Visit the pages that a page's tuples may have moved to, until the chain
 *		ends.
 *
 * Unless we may wait, a page that can't be locked soon is put off, and the
 * rest of the chain with it.  The caller has no page of the index pinned.
 */
static void
visit_chain(BtreeScan *scan, BlockNumber blkno)
{
	while (blkno != P_NONE)
	{
		Buffer		buffer;
		Page		page;
		BTPageOpaque opaque;

		delay_point();
		failsafe_notice(scan->base.vacuum);
		DEBUG_POINT("btree-chain");

		buffer = lock_due_page(scan, blkno);
		if (!BufferIsValid(buffer))
		{
			DEBUG_POINT("btree-duty-put-off");
			block_list_add(scan->put_off, blkno);
			return;
		}
		page = BufferGetPage(buffer);
		blkno = P_NONE;
		if (!PageIsNew(page))
		{
			_bt_checkpage(scan->base.index, buffer);
			opaque = BTPageGetOpaque(page);

			/* Without the ID it has been visited, and the rest with it. */
			if (P_ISLEAF(opaque) && !P_ISDELETED(opaque) && !P_ISHALFDEAD(opaque) &&
				opaque->btpo_cycleid == scan->cycle_id)
				(void) btree_clean_leaf(scan, buffer, &blkno);
		}
		UnlockReleaseBuffer(buffer);
	}
}

/* read_due_page -- pin a page that we have to visit, perhaps of another member's range. */
static Buffer
read_due_page(BtreeScan *scan, BlockNumber blkno)
{
	Assert(blkno > BTREE_METAPAGE);
	return ReadBufferExtended(scan->base.index, MAIN_FORKNUM, blkno, RBM_NORMAL,
							  vacuum_strategy(scan->base.vacuum));
}

/*
 * lock_due_page
 *		Pin a page that we have to visit, and get a cleanup lock on it.
 *
 * If we may not wait, as another member may have it pinned or wait for it,
 * try for a moment; without success return InvalidBuffer, with no pin.
 */
static Buffer
lock_due_page(BtreeScan *scan, BlockNumber blkno)
{
	static uint32 wait_event = 0;
	int			tries = DUTY_TRIES;

	Assert(!scan->base.has_stream);
	if (scan->put_off == NULL)
	{
		Buffer		buffer = read_due_page(scan, blkno);

		LockBufferForCleanup(buffer);
		return buffer;
	}

	for (;;)
	{
		Buffer		buffer = read_due_page(scan, blkno);

		if (ConditionalLockBufferForCleanup(buffer))
			return buffer;
		ReleaseBuffer(buffer);

		CHECK_FOR_INTERRUPTS();
		if (--tries <= 0)
			return InvalidBuffer;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 RETRY_MS, own_wait_event(&wait_event, "CycloneBtreePagePin"));
		ResetLatch(MyLatch);
	}
}

/*
 * btree_clean_leaf
 *		Delete the entries of dead TIDs from a leaf page; return how many TIDs
 *		are left.
 *
 * The caller holds a cleanup lock.  *duty becomes the block that we have to visit
 * next, or P_NONE.
 */
static int
btree_clean_leaf(BtreeScan *scan, Buffer buffer, BlockNumber *duty)
{
	Page		page = BufferGetPage(buffer);
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber minoff = P_FIRSTDATAKEY(opaque);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	bool		was_split = opaque->btpo_cycleid == scan->cycle_id;
	int			ndead;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(P_ISLEAF(opaque) && !P_ISDELETED(opaque) && !P_ISHALFDEAD(opaque));

	*duty = P_NONE;
	if (was_split && !(opaque->btpo_flags & BTP_SPLIT_END) && !P_RIGHTMOST(opaque))
		*duty = opaque->btpo_next;

	if (DEBUG_FAULT("leaf"))
		return 0;
	gather_tids(scan, buffer, minoff, maxoff);
	ndead = audit_match(scan->base.vacuum, scan->base.index, buffer, scan->tids, scan->ntids, scan->dead);

	if (ndead > 0)
	{
		/* clears the cycle ID too */
		btree_delete_dead_tids(scan, buffer, minoff, maxoff);
		audit_deleted(scan->base.vacuum, scan->base.index, buffer);
		scan->base.stats.tuples_removed += ndead;
	}
	else if (was_split)
	{
		/* not logged: after a crash there is no vacuum it belongs to */
		opaque->btpo_cycleid = 0;
		MarkBufferDirtyHint(buffer, true);
	}

	/* a later visitor must see that we have been here */
	Assert(opaque->btpo_cycleid != scan->cycle_id);
	Assert(ndead <= scan->ntids);

	if (ndead == scan->ntids)
		block_list_add(scan->empty_pages, BufferGetBlockNumber(buffer));
	return scan->ntids - ndead;
}

/* gather_tids -- copy the TIDs of all items of a leaf page, in order. */
static void
gather_tids(BtreeScan *scan, Buffer buffer, OffsetNumber minoff, OffsetNumber maxoff)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	ItemId		first = PageGetItemId(page, minoff);
	ItemPointer tid = scan->tids;

	if (maxoff > MaxIndexTuplesPerPage)
		index_report_page(scan->base.index, blkno);
	scan->items_are_sound = index_items_are_sound(page);
	for (OffsetNumber off = minoff; !scan->items_are_sound && off <= maxoff; off++)
		(void) index_tuple_at(scan->base.index, blkno, page, off);

	for (ItemId item = first, end = first + (maxoff - minoff + 1); item < end; item++)
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, item);

		if (likely(!BTreeTupleIsPosting(tuple)))
			*tid++ = tuple->t_tid;
		else
		{
			int			nposting = BTreeTupleGetNPosting(tuple);

			/* each item behind has a TID or more, too */
			if ((tid - scan->tids) + nposting + (end - item - 1) > MaxTIDsPerBTreePage)
				index_report_page(scan->base.index, blkno);
			check_posting_list(scan, buffer, minoff + (item - first));
			memcpy(tid, BTreeTupleGetPosting(tuple), nposting * sizeof(ItemPointerData));
			tid += nposting;
		}
	}
	scan->ntids = tid - scan->tids;
}

/*
 * check_posting_list
 *		Raise an error if an item's posting list isn't all within the item, or has no
 *		TID.
 *
 * With empty lists the number of a page's TIDs wouldn't tell whether there are
 * posting lists.  nbtree makes none with fewer than two TIDs, and puts each behind
 * the key's last aligned byte.
 */
static void
check_posting_list(BtreeScan *scan, Buffer buffer, OffsetNumber off)
{
	Page		page = BufferGetPage(buffer);
	ItemId		item = PageGetItemId(page, off);
	IndexTuple	tuple = (IndexTuple) PageGetItem(page, item);
	Size		size = IndexTupleSize(tuple);
	Size		start = BTreeTupleGetPostingOffset(tuple);
	int			nposting = BTreeTupleGetNPosting(tuple);

	if (nposting < 1 || start < sizeof(IndexTupleData) || start != MAXALIGN(start) ||
		start > size || nposting * sizeof(ItemPointerData) > size - start ||
		size > ItemIdGetLength(item) ||
		ItemIdGetOffset(item) + size > ((PageHeader) page)->pd_special)
		index_report_page(scan->base.index, BufferGetBlockNumber(buffer));
}

/*
 * btree_delete_dead_tids
 *		Delete the items whose TIDs are all dead, and shorten the posting lists
 *		that have some dead ones, in one change of the page.
 */
static void
btree_delete_dead_tids(BtreeScan *scan, Buffer buffer, OffsetNumber minoff, OffsetNumber maxoff)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber deletable[MaxIndexTuplesPerPage];
	BTVacuumPosting updatable[MaxIndexTuplesPerPage];
	int			ndeletable = 0;
	int			nupdatable = 0;
	int			tid = 0;
	bool		has_postings = scan->ntids != maxoff - minoff + 1;

	if (unlikely(!scan->items_are_sound))
		index_check_items(scan->base.index, buffer);
	/* The usual case, without a branch that a processor can't predict. */
	if (!has_postings)
		for (; tid < scan->ntids; tid++)
		{
			deletable[ndeletable] = minoff + tid;
			ndeletable += scan->dead[tid];
		}

	for (OffsetNumber off = minoff; has_postings && off <= maxoff; off++)
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, off));
		int			ntids = BTreeTupleIsPosting(tuple) ? BTreeTupleGetNPosting(tuple) : 1;
		int			ndead = 0;

		for (int i = 0; i < ntids; i++)
			ndead += scan->dead[tid + i];
		if (ndead == ntids)
			deletable[ndeletable++] = off;
		else if (ndead > 0)
			updatable[nupdatable++] = plan_posting(scan, tuple, off, tid, ndead);
		tid += ntids;
	}

	/* each item was looked at, and something is to be logged */
	Assert(tid == scan->ntids);
	Assert(ndeletable + nupdatable > 0);
	Assert(ndeletable + nupdatable <= maxoff - minoff + 1);
	Assert(compat_buffer_is_locked_exclusively(buffer));

	_bt_delitems_vacuum(scan->base.index, buffer, deletable, ndeletable,
						updatable, nupdatable);

	for (int i = 0; i < nupdatable; i++)
		pfree(updatable[i]);
}

/* plan_posting -- how to shorten a posting list; palloc'd. */
static BTVacuumPosting
plan_posting(BtreeScan *scan, IndexTuple posting, OffsetNumber off,
			 int first_tid, int ndead)
{
	BTVacuumPosting plan = palloc(offsetof(BTVacuumPostingData, deletetids) +
								  ndead * sizeof(uint16));
	int			nposting = BTreeTupleGetNPosting(posting);

	/* a list without any TID left is deleted instead */
	Assert(BTreeTupleIsPosting(posting));
	Assert(ndead > 0 && ndead < nposting);
	Assert(first_tid + nposting <= scan->ntids);

	plan->itup = posting;
	plan->updatedoffset = off;
	plan->ndeletedtids = 0;
	for (int i = 0; i < nposting; i++)
		if (scan->dead[first_tid + i])
			plan->deletetids[plan->ndeletedtids++] = i;
	Assert(plan->ndeletedtids == ndead);
	return plan;
}
