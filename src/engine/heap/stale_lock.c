/*-------------------------------------------------------------------------
 *
 * stale_lock.c
 *	  Row locks of ended transactions from before relfrozenxid.
 *
 * The server can leave such a lock on a row, and takes it for damage from then
 * on: each VACUUM that looks at the page fails with "found xmax ... from before
 * relfrozenxid ...", and relfrozenxid never advances again.  This is how:
 *
 * - One transaction locks a row FOR KEY SHARE.  A second one updates it, which
 *	 need not wait, and gives the lock's XID to the new version, as its xmax.
 * - The first transaction ends, and a VACUUM begins.  Its OldestXmin, and with
 *	 FREEZE the new relfrozenxid, is past the first transaction's XID.
 * - The second transaction updates the row again.  HeapTupleSatisfiesUpdate finds
 *	 that the lock on its version is over, but sets no hint, so heap_update takes
 *	 it for one to be carried on.  The newest version may come to a page that the
 *	 VACUUM has passed already.
 *
 * Nothing is wrong with the row.  So such a lock is removed, in the way that the
 * server freezes one: any lock from before OldestXmin, whatever became of its
 * transaction, as a lock ends with it.  Everything else in xmax says something
 * about the row: XIDs of updates and deletions, MultiXactIds.  If they
 * are too old that is damage, and the server's error stands; so is an old xmin.
 *
 * The commit log may have been truncated past the transaction, but isn't needed: a
 * transaction before OldestXmin has ended.  OldestXmin may have gone backwards since
 * relfrozenxid was set, as a standby or replication slot came that holds it back.
 * Then the server is asked whether the transaction is in progress.
 *
 * The order of XIDs is cyclic, so "before" is right for XIDs less than 2^31
 * apart.  Those compared here are.  When the lock was carried on, its XID, that of the
 * update, and both values of relfrozenxid were among the transactions that the server had
 * to know apart.  And relfrozenxid stays between the lock and the update until the lock
 * has been removed or the row is gone.  To go past the update's XID, which is the row's
 * xmin, a VACUUM would have to freeze that, on the very page that no VACUUM gets through.
 *
 * MultiXactIds don't get there.  They are carried on in the same way, but a transaction
 * that asks for the members of one holds relminmxid back until it ends.
 *
 * No cleanup lock is needed, as no tuple moves: xmax may change at any time for sessions
 * that have the page pinned.  A standby need not wait for queries, as every snapshot sees
 * the same with and without the lock.
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
