/*-------------------------------------------------------------------------
 *
 * heap_page.c
 *	  The heap scan's verdict on one page.
 *
 * A page is pruned, frozen where that is due, and its bits in the visibility
 * map are brought up to date.  simple_page.c prunes and freezes pages that are
 * easy to judge, and the server's heap_page_prune_and_freeze all others.
 *
 * We wait a moment for a page that other processes have pinned, as one may be writing
 * it to make room in the shared buffers: another member of the team for example.  If
 * we don't get the cleanup lock in the end, we only look at the page, under a shared
 * lock.  An aggressive vacuum waits for the lock if it must freeze something.
 *
 * Before anything looks for XIDs to freeze, we remove row locks that the server would
 * take for damage (stale_lock.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "access/xloginsert.h"
#include "commands/vacuum.h"
#include "common/int.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/latch.h"

#include "compat.h"
#include "debug_point.h"
#include "audit/audit.h"
#include "engine/heap/heap_page.h"
#include "engine/heap/page_check.h"
#include "engine/heap/simple_page.h"
#include "engine/heap/stale_lock.h"
#include "own_wait_event.h"

/*
 * How often to try again to lock a page that is pinned: after 1, 2, 4, ... ms,
 * in all 127.  If there are more processes than cores, the one that has pinned it may
 * have to wait that long to run again.
 */
#define PIN_RETRIES			7

/*
 * A process waits for pinned pages of one table for this many ms, and for a millisecond
 * more for this many pages that it has scanned.  Without a bound, sessions that stand still
 * on many pages would stop it, and it would follow a slower scan page by page, which it
 * can overtake.
 */
#define PIN_WAIT_MS			DEBUG_LIMIT(max_pin_ms, 1000)
#define PAGES_PER_WAIT_MS	1024

/* Counts of a page that isn't changed */
typedef struct PageTally
{
	int			dead_items;
	int			live;
	int			recently_dead;
	int			missed;			/* dead tuples */
	bool		has_items;		/* that keep the table from being truncated
								 * there */
} PageTally;

static bool lock_for_cleanup_soon(TableVacuum *vacuum, Buffer buffer);
static bool handle_new_page(TableVacuum *vacuum, Buffer buffer,
							PageVerdict *verdict);
static bool handle_empty_page(TableVacuum *vacuum, Buffer buffer,
							  Buffer vmbuffer, bool have_cleanup_lock,
							  PageVerdict *verdict);
static void heal_page(TableVacuum *vacuum, Buffer buffer, bool have_cleanup_lock);
static bool look_at_pinned_page(TableVacuum *vacuum, Buffer buffer,
								PageVerdict *verdict);
static void tally_tuple(PageTally *tally, HeapTuple tuple, TransactionId oldest_xmin,
						Buffer buffer);
static void count_unchanged_page(TableVacuum *vacuum, BlockNumber blkno, PageTally *tally,
								 PageVerdict *verdict);
static void clean_page(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
					   bool vm_all_visible, PageVerdict *verdict);
static void update_visibility_map(TableVacuum *vacuum, Buffer buffer,
								  Buffer vmbuffer, bool vm_all_visible,
								  const PruneResult *result,
								  PageVerdict *verdict);
static void set_visibility_map(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
							   const PruneResult *result, PageVerdict *verdict);
static void count_vm_change(VacuumCounters *counters, uint8 old_bits,
							bool all_frozen, PageVerdict *verdict);
static inline bool is_live(TableVacuum *vacuum, Buffer buffer, OffsetNumber off,
						   ItemId itemid, HeapTupleHeader header);
static int	compare_offsets(const void *a, const void *b);

/*
 * heap_page_scan
 *		Do the first pass's work on one page.
 */
void
heap_page_scan(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
			   bool vm_all_visible, PageVerdict *verdict)
{
	bool		have_cleanup_lock;

	Assert(CritSectionCount == 0);
	Assert(BufferIsLocal(buffer) || (!compat_is_locked(buffer) && !compat_is_locked(vmbuffer)));
	Assert(BufferGetBlockNumber(buffer) < vacuum->shared->rel_pages);
	Assert(visibilitymap_pin_ok(BufferGetBlockNumber(buffer), vmbuffer));

	have_cleanup_lock = lock_for_cleanup_soon(vacuum, buffer);
	vacuum->page_is_audited = audit_is_due();
	verdict->cleaned = false;
	verdict->newly_all_frozen = false;
	verdict->ndeleted = 0;
	verdict->ndead = 0;

	if (!have_cleanup_lock)
		LockBuffer(buffer, BUFFER_LOCK_SHARE);

	if (handle_new_page(vacuum, buffer, verdict) ||
		handle_empty_page(vacuum, buffer, vmbuffer, have_cleanup_lock, verdict))
		return;
	page_check_count(vacuum->rel, buffer);

	if (!have_cleanup_lock)
	{
		heal_page(vacuum, buffer, false);
		if (!look_at_pinned_page(vacuum, buffer, verdict))
		{
			Assert(vacuum->shared->aggressive);
			LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
			LockBufferForCleanup(buffer);
			have_cleanup_lock = true;
		}
	}
	if (have_cleanup_lock)
		clean_page(vacuum, buffer, vmbuffer, vm_all_visible, verdict);

	verdict->free_space = PageGetHeapFreeSpace(BufferGetPage(buffer));
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
}

/*
 * lock_for_cleanup_soon
 *		Get a cleanup lock on a page, and return true, unless sessions keep it pinned for
 *		longer than a moment, or this process has waited too long for such pages.
 *
 * Earlier knowledge of the page may not be true any more.
 */
static bool
lock_for_cleanup_soon(TableVacuum *vacuum, Buffer buffer)
{
	static uint32 wait_event = 0;
	uint64		wait_limit;

	if (ConditionalLockBufferForCleanup(buffer))
		return true;
	wait_limit = PIN_WAIT_MS + vacuum->counters.scanned_pages / PAGES_PER_WAIT_MS;
	if (vacuum->pin_wait_ms >= wait_limit || VacuumFailsafeActive)
		return false;

	for (int i = 0; i < PIN_RETRIES; i++)
	{
		DEBUG_POINT("heap-page-pinned");
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 1L << i, own_wait_event(&wait_event, "CycloneHeapPagePin"));
		ResetLatch(MyLatch);
		vacuum->pin_wait_ms += 1 << i;
		if (ConditionalLockBufferForCleanup(buffer))
			return true;
	}
	return false;
}

/*
 * handle_new_page
 *		If the page was never initialized, see to it that the free space map
 *		knows it, release the lock and return true.
 *
 * Such pages stay out of the visibility map: a promoted standby, where the
 * free space map says nothing of them, must be able to find them again.
 */
static bool
handle_new_page(TableVacuum *vacuum, Buffer buffer, PageVerdict *verdict)
{
	BlockNumber blkno = BufferGetBlockNumber(buffer);

	Assert(compat_is_locked(buffer));
	if (!PageIsNew(BufferGetPage(buffer)))
		return false;

	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	verdict->free_space = GetRecordedFreeSpace(vacuum->rel, blkno);
	if (verdict->free_space == 0)
		verdict->free_space = BLCKSZ - SizeOfPageHeaderData;
	return true;
}

/*
 * handle_empty_page
 *		If the page has no line pointers, mark it all-visible and all-frozen,
 *		release the lock and return true.
 *
 * If false is returned the page is still locked, though if the caller had
 * only a shared lock it may have become an exclusive one.
 */
static bool
handle_empty_page(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
				  bool have_cleanup_lock, PageVerdict *verdict)
{
	Page		page = BufferGetPage(buffer);

	Assert(compat_is_locked(buffer));
	if (!PageIsEmpty(page))
		return false;

	if (!have_cleanup_lock)
	{
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		if (!PageIsEmpty(page))
			return false;
	}

	if (!PageIsAllVisible(page) && !is_in_tail(vacuum, BufferGetBlockNumber(buffer)))
	{
		Assert(compat_buffer_is_locked_exclusively(buffer));

		/*
		 * A backend may have failed between initializing the page and logging
		 * it.  Recovery would then find an uninitialized page when it replays
		 * the record of the visibility map, and panic: log the page first.  A
		 * record that is the page's, too, has its image in this case.
		 */
		if (!COMPAT_MAP_IN_PAGE_RECORD && RelationNeedsWAL(vacuum->rel) &&
			PageGetLSN(page) == InvalidXLogRecPtr)
		{
			START_CRIT_SECTION();
			MarkBufferDirty(buffer);
			log_newpage_buffer(buffer, true);
			END_CRIT_SECTION();
		}

		PageSetAllVisible(page);
		MarkBufferDirty(buffer);
		compat_visibilitymap_set(vacuum->rel, BufferGetBlockNumber(buffer),
								 buffer, vmbuffer, InvalidTransactionId,
								 VISIBILITYMAP_ALL_VISIBLE | VISIBILITYMAP_ALL_FROZEN);

		vacuum->counters.vm_new_visible_pages++;
		vacuum->counters.vm_new_visible_frozen_pages++;
	}

	verdict->free_space = PageGetHeapFreeSpace(page);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return true;
}

/*
 * heal_page
 *		Remove stale row locks, if there are any on the page.
 *
 * The caller holds the cleanup lock, or any other lock, which in that case may
 * have become an exclusive one, with the page changed in between.
 */
static void
heal_page(TableVacuum *vacuum, Buffer buffer, bool have_cleanup_lock)
{
	const struct VacuumCutoffs *cutoffs = &vacuum->shared->cutoffs;

	Assert(compat_is_locked(buffer));
	Assert(!have_cleanup_lock || compat_buffer_is_locked_exclusively(buffer));
	if (likely(!stale_locks_on_page(BufferGetPage(buffer), cutoffs)))
		return;
	if (!have_cleanup_lock)
	{
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	}
	vacuum->counters.stale_locks += stale_locks_remove(vacuum->rel, buffer, cutoffs);
}

/*
 * look_at_pinned_page
 *		Count a page's tuples, and collect its dead items, without changing it.
 *
 * The caller holds a shared lock.  Returns false, with nothing counted, if
 * this vacuum is aggressive and must freeze something on the page.
 */
static bool
look_at_pinned_page(TableVacuum *vacuum, Buffer buffer, PageVerdict *verdict)
{
	VacuumCounters *counters = &vacuum->counters;
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	TransactionId relfrozenxid = counters->new_relfrozenxid;
	MultiXactId relminmxid = counters->new_relminmxid;
	PageTally	tally = {0};

	Assert(compat_is_locked(buffer));
	Assert(maxoff <= MaxHeapTuplesPerPage);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		itemid = PageGetItemId(page, off);
		HeapTupleData tuple;

		vacuum->offnum = off;
		if (!ItemIdIsUsed(itemid))
			continue;
		if (ItemIdIsDead(itemid))
		{
			/* no obstacle to truncation: it will be unused before that */
			verdict->dead[tally.dead_items++] = off;
			continue;
		}
		tally.has_items = true;
		if (ItemIdIsRedirected(itemid))
			continue;

		ItemPointerSet(&tuple.t_self, blkno, off);
		tuple.t_data = page_check_row_at(vacuum->rel, buffer, page, off);
		tuple.t_len = ItemIdGetLength(itemid);
		tuple.t_tableOid = RelationGetRelid(vacuum->rel);

		if (heap_tuple_should_freeze(tuple.t_data, &vacuum->shared->cutoffs,
									 &relfrozenxid, &relminmxid) &&
			vacuum->shared->aggressive)
		{
			vacuum->offnum = InvalidOffsetNumber;
			return false;
		}

		tally_tuple(&tally, &tuple, vacuum->shared->cutoffs.OldestXmin, buffer);
	}
	vacuum->offnum = InvalidOffsetNumber;

	/* These hold relfrozenxid back for the IDs that stay on the page. */
	if (!DEBUG_FAULT("look-age"))
	{
		counters->new_relfrozenxid = relfrozenxid;
		counters->new_relminmxid = relminmxid;
	}
	count_unchanged_page(vacuum, blkno, &tally, verdict);
	if (DEBUG_FAULT("look-dead") && verdict->ndead > 0)
		verdict->ndead--;
	if (vacuum->page_is_audited)
		audit_noted(vacuum, buffer, verdict->dead, verdict->ndead, NULL);
	return true;
}

/*
 * tally_tuple
 *		Count a tuple of a page that isn't changed, by what it is to VACUUM.
 *
 * The caller holds a lock on the page.
 */
static void
tally_tuple(PageTally *tally, HeapTuple tuple, TransactionId oldest_xmin, Buffer buffer)
{
	switch (HeapTupleSatisfiesVacuum(tuple, oldest_xmin, buffer))
	{
		case HEAPTUPLE_DELETE_IN_PROGRESS:
		case HEAPTUPLE_LIVE:
			tally->live++;
			break;
		case HEAPTUPLE_DEAD:
			tally->missed++;
			break;
		case HEAPTUPLE_RECENTLY_DEAD:
			tally->recently_dead++;
			break;
		case HEAPTUPLE_INSERT_IN_PROGRESS:
			break;
	}
}

/*
 * count_unchanged_page
 *		Add the counts of a page that wasn't changed to the counters.
 */
static void
count_unchanged_page(TableVacuum *vacuum, BlockNumber blkno, PageTally *tally,
					 PageVerdict *verdict)
{
	VacuumCounters *counters = &vacuum->counters;

	if (vacuum->nindexes == 0)
	{
		/* There is no second pass to remove dead items. */
		if (tally->dead_items > 0)
			tally->has_items = true;
		tally->missed += tally->dead_items;
		tally->dead_items = 0;
	}
	else if (tally->dead_items > 0)
	{
		counters->lpdead_item_pages++;
		counters->lpdead_items += tally->dead_items;
	}
	verdict->ndead = tally->dead_items;
	counters->live_tuples += tally->live;
	counters->recently_dead_tuples += tally->recently_dead;
	counters->missed_dead_tuples += tally->missed;
	if (tally->missed > 0)
		counters->missed_dead_pages++;
	if (tally->has_items)
		counters->nonempty_pages = Max(counters->nonempty_pages, blkno + 1);
}

/*
 * clean_page
 *		Prune and freeze a page as needed, count the rest, and update its bits in the
 *		visibility map.
 *
 * The caller holds a cleanup lock.
 */
static void
clean_page(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
		   bool vm_all_visible, PageVerdict *verdict)
{
	VacuumCounters *counters = &vacuum->counters;
	PruneResult result;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	if (!simple_page_prune(vacuum, buffer, vmbuffer, &result))
	{
		/* not on simple pages, where no row is locked */
		heal_page(vacuum, buffer, true);
		page_check_before_change(vacuum->rel, buffer, NULL, 0);
		compat_prune_and_freeze(vacuum->rel, buffer, vmbuffer, true, vacuum->vistest,
								vacuum->nindexes == 0 ? HEAP_PAGE_PRUNE_MARK_UNUSED_NOW : 0,
								&vacuum->shared->cutoffs, &vacuum->offnum,
								&counters->new_relfrozenxid,
								&counters->new_relminmxid, &result);
		if (result.lpdead_items > 1)
			qsort(result.deadoffsets, result.lpdead_items,
				  sizeof(OffsetNumber), compare_offsets);
		if (vacuum->page_is_audited)
			audit_noted(vacuum, buffer, result.deadoffsets, result.lpdead_items, &result);
	}

	if (result.nfrozen > 0)
		counters->new_frozen_tuple_pages++;
	if (result.lpdead_items > 0)
		counters->lpdead_item_pages++;
	counters->tuples_deleted += result.ndeleted;
	counters->tuples_frozen += result.nfrozen;
	counters->lpdead_items += result.lpdead_items;
	counters->live_tuples += result.live_tuples;
	counters->recently_dead_tuples += result.recently_dead_tuples;
	if (result.hastup)
		counters->nonempty_pages = Max(counters->nonempty_pages,
									   BufferGetBlockNumber(buffer) + 1);

	Assert(result.lpdead_items >= 0 && result.lpdead_items <= MaxHeapTuplesPerPage);
	verdict->cleaned = true;
	verdict->ndeleted = result.ndeleted;
	verdict->ndead = result.lpdead_items;
	memcpy(verdict->dead, result.deadoffsets,
		   result.lpdead_items * sizeof(OffsetNumber));

	if (!result.map_done)
		update_visibility_map(vacuum, buffer, vmbuffer, vm_all_visible,
							  &result, verdict);
	else
	{
		verdict->newly_all_frozen = result.newly_frozen;
		if (result.newly_visible)
			counters->vm_new_visible_pages++;
		if (result.newly_visible && result.newly_frozen)
			counters->vm_new_visible_frozen_pages++;
		else if (result.newly_frozen)
			counters->vm_new_frozen_pages++;
	}
	if (DEBUG_FAULT("page-bit"))
		PageClearAllVisible(BufferGetPage(buffer));
	if (vacuum->page_is_audited)
		audit_map(vacuum, buffer, vmbuffer);
}

/*
 * update_visibility_map
 *		Make the page's bits in the map, and on the page, right.
 *
 * The caller holds a cleanup lock.  The bit of the map may never be set while
 * the page's own is not.
 */
static void
update_visibility_map(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
					  bool vm_all_visible, const PruneResult *result,
					  PageVerdict *verdict)
{
	Relation	rel = vacuum->rel;
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	uint8		old_bits;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(visibilitymap_pin_ok(blkno, vmbuffer));
	Assert(!result->all_visible || result->lpdead_items == 0);

	/* an empty page of the tail gets no bits, as it is to be cut off */
	if (!vm_all_visible && result->all_visible && (result->hastup || !is_in_tail(vacuum, blkno)))
		set_visibility_map(vacuum, buffer, vmbuffer, result, verdict);
	else if (vm_all_visible && !PageIsAllVisible(page) &&
			 visibilitymap_get_status(rel, blkno, &vmbuffer) != 0)
	{
		/*
		 * The map's bit from before the lock could be out of date; this
		 * answer isn't.
		 */
		elog(WARNING, "page is not marked all-visible but visibility map bit is set in relation \"%s\" page %u",
			 vacuum->relname, blkno);
		compat_clear_wrong_map(rel, blkno, vmbuffer);
	}
	else if (result->lpdead_items > 0 && PageIsAllVisible(page))
	{
		/*
		 * Tuples on such a page that some snapshots seem not to see prove
		 * nothing, as our horizon is conservative.  Dead items are wrong
		 * there.
		 */
		elog(WARNING, "page containing LP_DEAD items is marked as all-visible in relation \"%s\" page %u",
			 vacuum->relname, blkno);
		PageClearAllVisible(page);
		MarkBufferDirty(buffer);
		compat_clear_wrong_map(rel, blkno, vmbuffer);
	}
	else if (vm_all_visible && result->all_visible && result->all_frozen &&
			 !VM_ALL_FROZEN(rel, blkno, &vmbuffer))
	{
		/*
		 * As above: the page may be as it was read, if a crash lost the bit
		 * of the map but not the freezing.
		 */
		PageSetAllVisible(page);
		MarkBufferDirty(buffer);

		/* Freezing the tuples has logged all that a standby must wait for. */
		Assert(!TransactionIdIsValid(result->vm_conflict_horizon));
		old_bits = compat_visibilitymap_set(rel, blkno, buffer, vmbuffer,
											InvalidTransactionId,
											VISIBILITYMAP_ALL_VISIBLE |
											VISIBILITYMAP_ALL_FROZEN);
		count_vm_change(&vacuum->counters, old_bits, true, verdict);
	}
}

/*
 * set_visibility_map
 *		Set the bits of a page that is all-visible, and may be all-frozen.
 *
 * The caller holds a cleanup lock.
 */
static void
set_visibility_map(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
				   const PruneResult *result, PageVerdict *verdict)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	uint8		bits = VISIBILITYMAP_ALL_VISIBLE;
	uint8		old_bits;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(result->all_visible && visibilitymap_pin_ok(blkno, vmbuffer));
	if (result->all_frozen)
		bits |= VISIBILITYMAP_ALL_FROZEN;

	/* a reader of the page may have set them since they were looked at */
	if (PageIsAllVisible(page) &&
		(visibilitymap_get_status(vacuum->rel, blkno, &vmbuffer) & bits) == bits)
		return;

	/*
	 * The page is dirtied even if it says all-visible already (which is
	 * rare), because with checksums the change of the map may log it.
	 */
	PageSetAllVisible(page);
	MarkBufferDirty(buffer);
	old_bits = compat_visibilitymap_set(vacuum->rel, blkno, buffer, vmbuffer,
										result->vm_conflict_horizon, bits);
	count_vm_change(&vacuum->counters, old_bits, result->all_frozen, verdict);
}

/*
 * count_vm_change
 *		Count the bits that are newly set in the visibility map.
 */
static void
count_vm_change(VacuumCounters *counters, uint8 old_bits, bool all_frozen,
				PageVerdict *verdict)
{
	if ((old_bits & VISIBILITYMAP_ALL_VISIBLE) == 0)
	{
		counters->vm_new_visible_pages++;
		if (all_frozen)
			counters->vm_new_visible_frozen_pages++;
		verdict->newly_all_frozen = all_frozen;
	}
	else if ((old_bits & VISIBILITYMAP_ALL_FROZEN) == 0 && all_frozen)
	{
		counters->vm_new_frozen_pages++;
		verdict->newly_all_frozen = true;
	}
}

/*
 * heap_page_all_visible
 *		Is every tuple on the page visible to all, now and in future, and are
 *		there no dead items, but for as many as the caller is about to free?
 *
 * If so, *newest_xmin is the newest XID that inserted one of them, and *all_frozen
 * says if all are frozen.
 */
bool
heap_page_all_visible(TableVacuum *vacuum, Buffer buffer, int ndead_freed,
					  TransactionId *newest_xmin, bool *all_frozen)
{
	TransactionId oldest_xmin = vacuum->shared->cutoffs.OldestXmin;
	Page		page = BufferGetPage(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	TransactionId last_xmin = InvalidTransactionId;
	OffsetNumber off;

	Assert(TransactionIdIsNormal(vacuum->shared->cutoffs.OldestXmin));
	Assert(compat_is_locked(buffer));
	Assert(maxoff <= MaxHeapTuplesPerPage);
	Assert(ndead_freed >= 0);

	*newest_xmin = InvalidTransactionId;
	*all_frozen = true;

	for (off = maxoff; off >= FirstOffsetNumber; off--)
	{
		ItemId		itemid = PageGetItemId(page, off);
		HeapTupleHeader tuple;
		TransactionId xmin;

		if (!ItemIdIsNormal(itemid))
		{
			if (ItemIdIsDead(itemid) && --ndead_freed < 0)
				break;
			continue;
		}

		tuple = page_check_row_at(vacuum->rel, buffer, page, off);
		if (!is_live(vacuum, buffer, off, itemid, tuple))
			break;
		if (*all_frozen && heap_tuple_needs_eventual_freeze(tuple))
			*all_frozen = false;

		/* Rows side by side mostly come from the same transaction. */
		xmin = HeapTupleHeaderGetXmin(tuple);
		if (xmin == last_xmin)
			continue;
		last_xmin = xmin;
		if (!TransactionIdPrecedes(xmin, oldest_xmin))
			break;
		if (TransactionIdIsNormal(xmin) && TransactionIdFollows(xmin, *newest_xmin))
			*newest_xmin = xmin;
	}
	vacuum->offnum = InvalidOffsetNumber;

	if (off >= FirstOffsetNumber)
		*all_frozen = false;
	return off < FirstOffsetNumber;
}

/*
 * is_live
 *		Is this tuple live to all who see its inserting transaction, which is
 *		known to have committed?
 *
 * Only a commit that is hinted counts, as standbys know of no other.  If the commit is
 * hinted, and there is no deletion, we need not ask the server.
 */
static inline bool
is_live(TableVacuum *vacuum, Buffer buffer, OffsetNumber off, ItemId itemid,
		HeapTupleHeader header)
{
	HeapTupleData tuple;

	if ((header->t_infomask & (HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID)) ==
		(HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID))
		return true;

	vacuum->offnum = off;
	ItemPointerSet(&tuple.t_self, BufferGetBlockNumber(buffer), off);
	tuple.t_data = header;
	tuple.t_len = ItemIdGetLength(itemid);
	tuple.t_tableOid = RelationGetRelid(vacuum->rel);
	return HeapTupleSatisfiesVacuum(&tuple, vacuum->shared->cutoffs.OldestXmin,
									buffer) == HEAPTUPLE_LIVE &&
		HeapTupleHeaderXminCommitted(header);
}

/* compare_offsets -- qsort comparator. */
static int
compare_offsets(const void *a, const void *b)
{
	return pg_cmp_u16(*(const OffsetNumber *) a, *(const OffsetNumber *) b);
}
