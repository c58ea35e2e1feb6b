/*-------------------------------------------------------------------------
 *
 * simple_page.c
 *	  Pruning and freezing pages that are simple.
 *
 * Most pages hold only kinds of items of which each can be judged by itself: README.md says
 * which.  We do to such a page what the server would do, by the server's own functions for
 * changing and logging a page.  Where the server has one WAL record for a page's changes and
 * its bits in the visibility map, these are set here, too; else heap_page.c sets them.
 *
 * A sample of pages is judged by the server's routines, too, before anything is done.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"

#include "compat.h"
#include "debug_point.h"
#include "audit/audit.h"
#include "engine/heap/page_check.h"
#include "engine/heap/simple_page.h"

/* What judge_page finds on a page */
typedef struct Judgement
{
	/* live tuples */
	int			nlive;
	bool		all_visible;	/* all of them, to everyone */
	bool		all_frozen;
	bool		must_freeze;	/* is an XID older than FreezeLimit? */
	TransactionId oldest_unfrozen;	/* of the whole table so far */
	TransactionId newest_xmin;	/* of those visible to all */

	/* dead tuples, to become dead items, or unused where no index is */
	int			ndead_tuples;
	TransactionId latest_xid_removed;

	bool		items_are_sound;	/* by page_check_rows */

	/* line pointers to change; with indexes the former, without the latter */
	int			nnowdead;
	OffsetNumber nowdead[MaxHeapTuplesPerPage];
	int			nnowunused;
	OffsetNumber nowunused[MaxHeapTuplesPerPage];
} Judgement;

static TransactionId horizon_of_freezing(const TableVacuum *vacuum,
										 const Judgement *judgement);
static void audit_plan(TableVacuum *vacuum, Buffer buffer, const Judgement *judgement,
					   const HeapTupleFreeze *frozen, int nfrozen, const PruneResult *result);
static void fill_result(const Judgement *judgement, int nfrozen, PruneResult *result);
static bool judge_page(TableVacuum *vacuum, Buffer buffer, Judgement *judgement,
					   PruneResult *result);
static void misjudge_live(TableVacuum *vacuum, Page page, Judgement *judgement,
						  PruneResult *result);
static inline void begin_judgement(Judgement *judgement, TransactionId oldest_unfrozen);
static inline void judge_dead(Judgement *judgement, HeapTupleHeader tuple,
							  OffsetNumber off, bool has_indexes);
static inline void judge_xmin(Judgement *judgement, const struct VacuumCutoffs *cutoffs,
							  TransactionId xmin);
static bool was_deleted_for_all(const struct VacuumCutoffs *cutoffs,
								HeapTupleHeader tuple, TransactionId *known_dead);
static bool redirects_are_sound(Page page, OffsetNumber maxoff);
static bool freezing_is_opportune(Relation rel, Buffer buffer,
								  const Judgement *judgement,
								  bool do_prune, bool do_hint);
static bool is_logged_in_full(Buffer buffer);
static int	plan_freezing(TableVacuum *vacuum, Buffer buffer,
						  const Judgement *judgement,
						  HeapTupleFreeze *frozen, bool *all_frozen);
static uint8 bits_to_set_along(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
							   const PruneResult *result);
static void change_page(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
						Judgement *judgement, HeapTupleFreeze *frozen, int nfrozen,
						TransactionId freeze_horizon, uint8 bits);
static void reverse_items(OffsetNumber *offsets, int noffsets);

/*
 * simple_page_prune
 *		If the page is simple, prune and freeze it as the server would, fill in
 *		*result, with deadoffsets sorted, and return true; else return false,
 *		with nothing changed.
 *
 * The oldest XIDs left, in the counters, are brought up to date.
 */
bool
simple_page_prune(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer, PruneResult *result)
{
	Page		page = BufferGetPage(buffer);
	VacuumCounters *counters = &vacuum->counters;
	Judgement	judgement;
	HeapTupleFreeze frozen[MaxHeapTuplesPerPage];
	TransactionId freeze_horizon = InvalidTransactionId;
	int			nfrozen = 0;
	bool		do_prune,
				do_hint;

	/*
	 * not that it is a cleanup lock: sessions may pin the page again, and
	 * wait
	 */
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(visibilitymap_pin_ok(BufferGetBlockNumber(buffer), vmbuffer));
	Assert(PageGetMaxOffsetNumber(page) <= MaxHeapTuplesPerPage);
	Assert(TransactionIdIsNormal(vacuum->counters.new_relfrozenxid));
	Assert(result != NULL && CritSectionCount == 0);

	if (!judge_page(vacuum, buffer, &judgement, result))
		return false;

	if (DEBUG_FAULT("live-row") || (!is_leader(vacuum) && DEBUG_FAULT("worker-live-row")))
		misjudge_live(vacuum, page, &judgement, result);
	do_prune = judgement.nnowdead > 0 || judgement.nnowunused > 0;
	do_hint = ((PageHeader) page)->pd_prune_xid != InvalidTransactionId ||
		PageIsFull(page);

	if (judgement.must_freeze ||
		freezing_is_opportune(vacuum->rel, buffer, &judgement, do_prune, do_hint))
		nfrozen = plan_freezing(vacuum, buffer, &judgement, frozen,
								&judgement.all_frozen);
	if (nfrozen < 0)
		return false;
	if (nfrozen > 0)
		freeze_horizon = horizon_of_freezing(vacuum, &judgement);
	else
		counters->new_relfrozenxid = judgement.oldest_unfrozen;
	fill_result(&judgement, nfrozen, result);
	if (vacuum->page_is_audited)
		audit_plan(vacuum, buffer, &judgement, frozen, nfrozen, result);

	if (do_prune || do_hint || nfrozen > 0)
	{
		uint8		bits = 0;

		if (do_prune || nfrozen > 0)
			bits = bits_to_set_along(vacuum, buffer, vmbuffer, result);
		if (bits != 0)
		{
			uint8		old_bits = visibilitymap_get_status(vacuum->rel, BufferGetBlockNumber(buffer),
															&vmbuffer);

			if (TransactionIdFollows(result->vm_conflict_horizon, freeze_horizon))
				freeze_horizon = result->vm_conflict_horizon;
			result->map_done = true;
			result->newly_visible = (old_bits & VISIBILITYMAP_ALL_VISIBLE) == 0;
			result->newly_frozen = result->all_frozen && (old_bits & VISIBILITYMAP_ALL_FROZEN) == 0;
		}
		change_page(vacuum, buffer, vmbuffer, &judgement, frozen, nfrozen, freeze_horizon, bits);
	}

	return true;
}

/*
 * horizon_of_freezing
 *		The newest XID that a standby's snapshots must see as committed, if tuples of
 *		the page are frozen.
 */
static TransactionId
horizon_of_freezing(const TableVacuum *vacuum, const Judgement *judgement)
{
	TransactionId horizon = vacuum->shared->cutoffs.OldestXmin;

	if (judgement->all_visible && judgement->all_frozen)
		return judgement->newest_xmin;
	TransactionIdRetreat(horizon);
	return horizon;
}

/* audit_plan -- have a second look at what is about to be done. */
static void
audit_plan(TableVacuum *vacuum, Buffer buffer, const Judgement *judgement,
		   const HeapTupleFreeze *frozen, int nfrozen, const PruneResult *result)
{
	PagePlan	plan = {
		.nowdead = judgement->nowdead,.nnowdead = judgement->nnowdead,
		.nowunused = judgement->nowunused,.nnowunused = judgement->nnowunused,
		.frozen = frozen,.nfrozen = nfrozen,
		.latest_xid_removed = judgement->latest_xid_removed,
		.result = result
	};

	audit_before_prune(vacuum, buffer, &plan);
}

/*
 * fill_result
 *		Fill in *result, which has the dead items already.
 */
static void
fill_result(const Judgement *judgement, int nfrozen, PruneResult *result)
{
	Assert(judgement->nlive + judgement->ndead_tuples <= MaxHeapTuplesPerPage);
	Assert(result->lpdead_items >= judgement->nnowdead);
	result->ndeleted = judgement->ndead_tuples;
	result->nnewlpdead = judgement->nnowdead;
	result->nfrozen = nfrozen;
	result->live_tuples = judgement->nlive;
	result->recently_dead_tuples = 0;
	result->all_visible = judgement->all_visible && result->lpdead_items == 0;
	result->all_frozen = result->all_visible && judgement->all_frozen;
	result->vm_conflict_horizon = result->all_frozen ?
		InvalidTransactionId : judgement->newest_xmin;
	result->hastup = judgement->nlive > 0;
	result->map_done = false;
}

/*
 * judge_page
 *		Is the page simple?  If so, fill in *judgement, and the dead items that
 *		there will be in *result.
 *
 * This is the hottest loop of a vacuum.  It goes backwards because most pages
 * store their tuples in that order: memory is then read forwards, which CPUs foresee.
 * Rows side by side mostly come from the same transaction, hence last_xmin and
 * known_dead.
 */
static bool
judge_page(TableVacuum *vacuum, Buffer buffer, Judgement *judgement,
		   PruneResult *result)
{
	Page		page = BufferGetPage(buffer);
	const struct VacuumCutoffs *cutoffs = &vacuum->shared->cutoffs;
	const bool	has_indexes = vacuum->nindexes > 0;
	const OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	TransactionId last_xmin = InvalidTransactionId;
	TransactionId known_dead = InvalidTransactionId;
	bool		has_redirects = false;
	int			nlive = 0;
	int			ndead_items = 0;

	begin_judgement(judgement, vacuum->counters.new_relfrozenxid);
	judgement->items_are_sound = page_check_rows(vacuum->rel, buffer);
	for (OffsetNumber off = maxoff; off >= FirstOffsetNumber; off--)
	{
		ItemId		itemid = PageGetItemId(page, off);
		HeapTupleHeader tuple;
		TransactionId xmin;

		if (!ItemIdIsNormal(itemid))
		{
			if (ItemIdIsRedirected(itemid))
				has_redirects = true;
			else if (ItemIdIsDead(itemid) && has_indexes)
				result->deadoffsets[ndead_items++] = off;
			else if (ItemIdIsDead(itemid))
				judgement->nowunused[judgement->nnowunused++] = off;
			continue;
		}

		tuple = (HeapTupleHeader) PageGetItem(page, itemid);
		if ((tuple->t_infomask & (HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID |
								  HEAP_XMAX_IS_MULTI | HEAP_MOVED)) !=
			(HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID))
		{
			if (!was_deleted_for_all(cutoffs, tuple, &known_dead))
				return false;

			judge_dead(judgement, tuple, off, has_indexes);
			if (has_indexes)
				result->deadoffsets[ndead_items++] = off;
			continue;
		}

		/* An XID left over by an aborted deletion may have to be frozen. */
		if (HeapTupleHeaderGetRawXmax(tuple) != InvalidTransactionId)
			return false;
		nlive++;

		xmin = HeapTupleHeaderGetRawXmin(tuple);
		if (xmin == last_xmin || HeapTupleHeaderXminFrozen(tuple) ||
			!TransactionIdIsNormal(xmin))
			continue;
		last_xmin = xmin;

		if (TransactionIdPrecedes(xmin, cutoffs->relfrozenxid))
			return false;
		judge_xmin(judgement, cutoffs, xmin);
	}
	judgement->nlive = nlive;

	if (has_redirects && !redirects_are_sound(page, maxoff))
		return false;

	reverse_items(judgement->nowdead, judgement->nnowdead);
	reverse_items(judgement->nowunused, judgement->nnowunused);
	reverse_items(result->deadoffsets, ndead_items);
	result->lpdead_items = ndead_items;
	return true;
}

/* misjudge_live -- for tests: call the last row of the page dead, if it is live. */
static void
misjudge_live(TableVacuum *vacuum, Page page, Judgement *judgement, PruneResult *result)
{
	OffsetNumber off = PageGetMaxOffsetNumber(page);
	ItemId		item = PageGetItemId(page, off);

	if (!ItemIdIsNormal(item) ||
		(HeapTupleHeaderGetRawXmax((HeapTupleHeader) PageGetItem(page, item)) != InvalidTransactionId))
		return;
	judge_dead(judgement, (HeapTupleHeader) PageGetItem(page, item), off, vacuum->nindexes > 0);
	judgement->nlive--;
	if (vacuum->nindexes > 0)
		result->deadoffsets[result->lpdead_items++] = off;
}

/* begin_judgement -- of a page on which nothing has been looked at yet. */
static inline void
begin_judgement(Judgement *judgement, TransactionId oldest_unfrozen)
{
	judgement->all_visible = true;
	judgement->all_frozen = true;
	judgement->must_freeze = false;
	judgement->oldest_unfrozen = oldest_unfrozen;
	judgement->newest_xmin = InvalidTransactionId;
	judgement->ndead_tuples = 0;
	judgement->latest_xid_removed = InvalidTransactionId;
	judgement->nnowdead = 0;
	judgement->nnowunused = 0;
}

/* judge_dead -- a tuple is dead to all: what becomes of its line pointer? */
static inline void
judge_dead(Judgement *judgement, HeapTupleHeader tuple, OffsetNumber off, bool has_indexes)
{
	/* most are dead by the same transaction as the last one */
	if (HeapTupleHeaderGetRawXmax(tuple) != judgement->latest_xid_removed)
		HeapTupleHeaderAdvanceConflictHorizon(tuple, &judgement->latest_xid_removed);
	judgement->ndead_tuples++;
	if (has_indexes)
		judgement->nowdead[judgement->nnowdead++] = off;
	else
		judgement->nowunused[judgement->nnowunused++] = off;
}

/*
 * judge_xmin
 *		What a live tuple's XID, which is not yet frozen, means for its page.
 */
static inline void
judge_xmin(Judgement *judgement, const struct VacuumCutoffs *cutoffs, TransactionId xmin)
{
	if (TransactionIdPrecedes(xmin, cutoffs->FreezeLimit))
		judgement->must_freeze = true;
	if (TransactionIdPrecedes(xmin, judgement->oldest_unfrozen))
		judgement->oldest_unfrozen = xmin;
	judgement->all_frozen = false;
	if (!TransactionIdPrecedes(xmin, cutoffs->OldestXmin))
		judgement->all_visible = false;
	else if (TransactionIdFollows(xmin, judgement->newest_xmin))
		judgement->newest_xmin = xmin;
}

/*
 * was_deleted_for_all
 *		Is this a dead tuple that stands for itself: a row version of no HOT
 *		chain, deleted by a transaction that committed before OldestXmin?
 *
 * *known_dead is the last such transaction, so that the commit log isn't asked
 * for each tuple.
 */
static bool
was_deleted_for_all(const struct VacuumCutoffs *cutoffs,
					HeapTupleHeader tuple, TransactionId *known_dead)
{
	TransactionId xmax;

	if ((tuple->t_infomask & (HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID |
							  HEAP_XMAX_IS_MULTI | HEAP_MOVED)) != HEAP_XMIN_COMMITTED ||
		(tuple->t_infomask2 & (HEAP_HOT_UPDATED | HEAP_ONLY_TUPLE)) != 0 ||
		HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_infomask))
		return false;

	xmax = HeapTupleHeaderGetRawXmax(tuple);
	if (xmax == *known_dead)
		return true;
	if (!TransactionIdIsNormal(xmax) ||
		!TransactionIdPrecedes(xmax, cutoffs->OldestXmin) ||
		TransactionIdPrecedes(xmax, cutoffs->relfrozenxid))
		return false;

	/* in this order, as a commit is logged before it shows */
	if ((tuple->t_infomask & HEAP_XMAX_COMMITTED) == 0 &&
		(TransactionIdIsInProgress(xmax) || !TransactionIdDidCommit(xmax)))
		return false;

	*known_dead = xmax;
	return true;
}

/*
 * redirects_are_sound
 *		Does each redirection lead to a heap-only tuple, and no two to the same?
 *
 * Of the tuples on the page that are heap-only, all are live: a dead one would
 * have made the page not simple.
 */
static bool
redirects_are_sound(Page page, OffsetNumber maxoff)
{
	bool		reached[MaxHeapTuplesPerPage + 1] = {0};

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		itemid = PageGetItemId(page, off);
		OffsetNumber target;

		if (!ItemIdIsRedirected(itemid))
			continue;
		target = ItemIdGetRedirect(itemid);
		if (target < FirstOffsetNumber || target > maxoff || reached[target])
			return false;
		itemid = PageGetItemId(page, target);
		if (!ItemIdIsNormal(itemid) ||
			!HeapTupleHeaderIsHeapOnly((HeapTupleHeader) PageGetItem(page, itemid)))
			return false;
		reached[target] = true;
	}
	return true;
}

/*
 * freezing_is_opportune
 *		Freeze although nothing requires it?
 *
 * The server does when all of the page would become frozen, and the page gets
 * logged in full for another reason.
 */
static bool
freezing_is_opportune(Relation rel, Buffer buffer, const Judgement *judgement,
					  bool do_prune, bool do_hint)
{
	if (!judgement->all_visible || judgement->all_frozen || !RelationNeedsWAL(rel))
		return false;
	if (do_prune)
		return is_logged_in_full(buffer);
	return do_hint && XLogHintBitIsNeeded() && is_logged_in_full(buffer);
}

/*
 * is_logged_in_full
 *		Will the page, which is locked, be logged in full as it is changed?
 *
 * A process learns when the last checkpoint began, and whether pages are logged in full at
 * all, with the first record that it inserts.  Until then the server's routine says no, so
 * both are asked for here.
 */
static bool
is_logged_in_full(Buffer buffer)
{
	XLogRecPtr	redo;
	bool		known_to_log;

	GetFullPageWriteInfo(&redo, &known_to_log);
	if (known_to_log)
		return XLogCheckBufferNeedsBackup(buffer);
	return fullPageWrites && PageGetLSN(BufferGetPage(buffer)) <= GetRedoRecPtr();
}

/*
 * plan_freezing
 *		Plan how to freeze the live tuples; return how many plans there are.
 *
 * There is nothing to freeze but xmin, and what stays unfrozen is not older
 * than OldestXmin, so that relfrozenxid is not held back.  *all_frozen says if
 * the page is all frozen once the plans are carried out.  Returns -1 if the
 * commit log denies what a hint bit says: that is for the server to report.
 */
static int
plan_freezing(TableVacuum *vacuum, Buffer buffer, const Judgement *judgement,
			  HeapTupleFreeze *frozen, bool *all_frozen)
{
	Page		page = BufferGetPage(buffer);
	const TransactionId oldest_xmin = vacuum->shared->cutoffs.OldestXmin;
	const OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	const OffsetNumber *removed = vacuum->nindexes > 0 ?
		judgement->nowdead : judgement->nowunused;
	int			nremoved = judgement->nnowdead + judgement->nnowunused;
	int			next_removed = 0;
	int			nfrozen = 0;
	TransactionId known_committed = InvalidTransactionId;

	*all_frozen = true;
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		itemid = PageGetItemId(page, off);
		HeapTupleHeader tuple;
		TransactionId xmin;

		if (next_removed < nremoved && removed[next_removed] == off)
		{
			next_removed++;
			continue;
		}
		if (!ItemIdIsNormal(itemid))
			continue;
		tuple = (HeapTupleHeader) PageGetItem(page, itemid);
		xmin = HeapTupleHeaderGetXmin(tuple);
		if (!TransactionIdIsNormal(xmin))
			continue;

		if (xmin != known_committed)
		{
			if (!TransactionIdPrecedes(xmin, oldest_xmin) && !DEBUG_FAULT("freeze"))
			{
				*all_frozen = false;
				continue;
			}
			if (!TransactionIdDidCommit(xmin))
				return -1;
			known_committed = xmin;
		}
		frozen[nfrozen].xmax = InvalidTransactionId;
		frozen[nfrozen].t_infomask2 = tuple->t_infomask2;
		frozen[nfrozen].t_infomask = tuple->t_infomask | HEAP_XMIN_FROZEN;
		frozen[nfrozen].frzflags = 0;
		frozen[nfrozen].checkflags = 0;
		frozen[nfrozen].offset = off;
		nfrozen++;
	}
	Assert(next_removed == nremoved);
	return nfrozen;
}

/*
 * bits_to_set_along
 *		Which bits of the visibility map are to be set by the record that logs the
 *		change of the page?
 *
 * 0 if there are none to set, if the server sets them by a record of their own,
 * or if something is wrong that heap_page.c is to see.
 */
static uint8
bits_to_set_along(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer, const PruneResult *result)
{
	uint8		bits = VISIBILITYMAP_ALL_VISIBLE | (result->all_frozen ? VISIBILITYMAP_ALL_FROZEN : 0);
	uint8		old_bits;

	if (!COMPAT_MAP_IN_PAGE_RECORD || !result->all_visible ||
		(!result->hastup && is_in_tail(vacuum, BufferGetBlockNumber(buffer))))
		return 0;
	old_bits = visibilitymap_get_status(vacuum->rel, BufferGetBlockNumber(buffer), &vmbuffer);
	if ((old_bits & bits) == bits || (old_bits != 0 && !PageIsAllVisible(BufferGetPage(buffer))))
		return 0;
	return bits;
}

/*
 * change_page
 *		Carry out the judgement and the freeze plans, set these bits in the visibility
 *		map, and log it.
 */
static void
change_page(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer, Judgement *judgement,
			HeapTupleFreeze *frozen, int nfrozen, TransactionId freeze_horizon, uint8 bits)
{
	PageHeader	header = (PageHeader) BufferGetPage(buffer);
	bool		do_prune = judgement->nnowdead > 0 || judgement->nnowunused > 0;

	if (unlikely(!judgement->items_are_sound) && (do_prune || nfrozen > 0))
		page_check_before_change(vacuum->rel, buffer,
								 vacuum->nindexes > 0 ? judgement->nowdead : judgement->nowunused,
								 vacuum->nindexes > 0 ? judgement->nnowdead : judgement->nnowunused);
	Assert(bits == 0 || do_prune || nfrozen > 0);
	Assert(nfrozen >= 0 && nfrozen <= MaxHeapTuplesPerPage);
	Assert(judgement->nnowdead == 0 || judgement->nnowunused == 0);
	if (bits != 0)
		compat_lock_map(vmbuffer);
	START_CRIT_SECTION();

	/* No tuple that stays is dead, or being deleted. */
	header->pd_prune_xid = InvalidTransactionId;
	PageClearFull((Page) header);

	if (do_prune)
		heap_page_prune_execute(buffer, false, NULL, 0,
								judgement->nowdead, judgement->nnowdead,
								judgement->nowunused, judgement->nnowunused);
	if (nfrozen > 0)
		heap_freeze_prepared_tuples(buffer, frozen, nfrozen);
	if (bits != 0)
		compat_set_locked_map(vacuum->rel, buffer, vmbuffer, bits);

	if (do_prune || nfrozen > 0)
	{
		MarkBufferDirty(buffer);
		if (RelationNeedsWAL(vacuum->rel))
		{
			TransactionId horizon = judgement->latest_xid_removed;

			Assert(compat_buffer_is_locked_exclusively(buffer) && BufferIsDirty(buffer));

			if (TransactionIdFollows(freeze_horizon, horizon))
				horizon = freeze_horizon;
			compat_log_prune(vacuum->rel, buffer, vmbuffer, bits, horizon, true,
							 PRUNE_VACUUM_SCAN, frozen, nfrozen,
							 judgement->nowdead, judgement->nnowdead,
							 judgement->nowunused, judgement->nnowunused);
		}
	}
	else
		MarkBufferDirtyHint(buffer, true);

	END_CRIT_SECTION();
	if (bits != 0)
		compat_unlock_map(vmbuffer);
}

/* reverse_items -- from descending to ascending order. */
static void
reverse_items(OffsetNumber *offsets, int noffsets)
{
	for (int i = 0, j = noffsets - 1; i < j; i++, j--)
	{
		OffsetNumber swap = offsets[i];

		offsets[i] = offsets[j];
		offsets[j] = swap;
	}
}
