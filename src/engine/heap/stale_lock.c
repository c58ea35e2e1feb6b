/*-------------------------------------------------------------------------
 *
 * stale_lock.c
 *	  Row locks of ended transactions from before relfrozenxid.
 *
 * The server can leave such a lock on a row, and takes it for damage from then
 * on: each VACUUM that looks at the page fails with "found xmax ... from before
 * relfrozenxid ...", and relfrozenxid never advances again.  README.md says how that comes,
 * why nothing is wrong with the row, and which locks may be removed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "compat.h"
#include "engine/heap/page_check.h"
#include "engine/heap/stale_lock.h"

static void plan_removal(HeapTupleHeader tuple, OffsetNumber off, HeapTupleFreeze *plan);

/*
 * stale_lock_forget
 *		Remove the lock from a tuple that is in no page yet, or not yet logged.
 */
void
stale_lock_forget(HeapTupleHeader tuple)
{
	HeapTupleFreeze plan;

	Assert(HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_infomask));
	plan_removal(tuple, InvalidOffsetNumber, &plan);
	HeapTupleHeaderSetXmax(tuple, plan.xmax);
	tuple->t_infomask = plan.t_infomask;
	tuple->t_infomask2 = plan.t_infomask2;
}

/*
 * stale_locks_on_page
 *		Are there any?
 */
bool
stale_locks_on_page(Page page, const struct VacuumCutoffs *cutoffs)
{
	const TransactionId relfrozenxid = cutoffs->relfrozenxid;
	const TransactionId oldest_xmin = cutoffs->OldestXmin;

	Assert(TransactionIdIsNormal(cutoffs->OldestXmin) && TransactionIdIsNormal(cutoffs->relfrozenxid));
	/* backwards, as simple_page.c says */
	for (OffsetNumber off = PageGetMaxOffsetNumber(page); off >= FirstOffsetNumber; off--)
	{
		ItemId		itemid = PageGetItemId(page, off);

		/* one that leads elsewhere is found where the page is judged */
		if (ItemIdIsNormal(itemid) && page_check_fits(itemid) &&
			unlikely(has_stale_lock((HeapTupleHeader) ((char *) page + ItemIdGetOffset(itemid)),
									relfrozenxid, oldest_xmin)))
			return true;
	}
	return false;
}

/*
 * stale_locks_remove
 *		Remove all on a page, and log that.
 */
int
stale_locks_remove(Relation rel, Buffer buffer, const struct VacuumCutoffs *cutoffs)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	HeapTupleFreeze plans[MaxHeapTuplesPerPage];
	int			nplans = 0;

	Assert(CritSectionCount == 0);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(maxoff <= MaxHeapTuplesPerPage);
	Assert(TransactionIdIsNormal(cutoffs->OldestXmin) && TransactionIdIsNormal(cutoffs->relfrozenxid));

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		itemid = PageGetItemId(page, off);
		HeapTupleHeader tuple;

		if (!ItemIdIsNormal(itemid))
			continue;
		tuple = page_check_row_at(rel, buffer, page, off);
		if (has_stale_lock(tuple, cutoffs->relfrozenxid, cutoffs->OldestXmin))
			plan_removal(tuple, off, &plans[nplans++]);
	}
	if (nplans == 0)
		return 0;
	/* an item of a damaged page may lead to another page */
	page_check_before_change(rel, buffer, NULL, 0);

	START_CRIT_SECTION();
	heap_freeze_prepared_tuples(buffer, plans, nplans);
	MarkBufferDirty(buffer);
	Assert(BufferIsDirty(buffer));
	if (RelationNeedsWAL(rel))
		compat_log_prune(rel, buffer, InvalidBuffer, 0, InvalidTransactionId,
						 false, /* no cleanup lock needed */
						 PRUNE_VACUUM_SCAN,
						 plans, nplans,
						 NULL, 0,	/* dead */
						 NULL, 0);	/* unused */
	END_CRIT_SECTION();
	return nplans;
}

/*
 * plan_removal
 *		Plan to leave nothing in xmax, as the server does when it freezes that.
 */
static void
plan_removal(HeapTupleHeader tuple, OffsetNumber off, HeapTupleFreeze *plan)
{
	plan->xmax = InvalidTransactionId;
	plan->t_infomask2 = tuple->t_infomask2 & ~(HEAP_HOT_UPDATED | HEAP_KEYS_UPDATED);
	plan->t_infomask = (tuple->t_infomask & ~HEAP_XMAX_BITS) | HEAP_XMAX_INVALID;
	plan->frzflags = 0;
	plan->checkflags = 0;
	plan->offset = off;
}
