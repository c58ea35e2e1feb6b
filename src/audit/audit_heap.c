/*-------------------------------------------------------------------------
 *
 * audit_heap.c
 *	  Pages of the heap, judged a second time: see audit.c.
 *
 * The caller has the page locked exclusively, so the audit sees the same page as the
 * engine.  Only a row whose transaction had not ended may have changed its fate
 * since, and of such rows the engine makes no statement.
 *
 * Asking the server may set hint bits, as reading the page may at any time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "storage/bufmgr.h"

#include "audit/audit.h"
#include "engine/heap/page_check.h"

/* About as many skipped pages a VACUUM reads, however large the table */
#define SKIPPED_SAMPLE	64

/* What is to become of an item; in the order of fate_names */
typedef enum ItemFate
{
	FATE_STAYS,
	FATE_FROZEN,
	FATE_DEAD,
	FATE_UNUSED,
} ItemFate;

static const char *const fate_names[] = {
	"the item stays as it is", "the row is frozen", "the item becomes dead", "the item becomes unused",
};

/* What is found on a page */
typedef struct PageAudit
{
	TableVacuum *vacuum;
	Page		page;
	AuditPlace	place;
	int			nlive;
	int			nkept;			/* items that keep a table from being cut off */
	int			nfrozen;
	int			ndead;			/* dead items there will be */
	OffsetNumber dead[MaxHeapTuplesPerPage];
	bool		all_visible;
	bool		all_frozen;
	TransactionId newest_xmin;
	TransactionId latest_xid_removed;
	HeapPageFreeze freeze;
} PageAudit;

static void audit_skipped_page(TableVacuum *vacuum, BlockNumber blkno);
static HeapTupleHeader audited_row(const PageAudit *audit, OffsetNumber off);
static void begin_heap_page(PageAudit *audit, TableVacuum *vacuum, Buffer buffer);
static void end_heap_page(PageAudit *audit, TransactionId oldest_xid, MultiXactId oldest_multi);
static void note_fates(PageAudit *audit, const OffsetNumber *offsets, int noffsets,
					   ItemFate fate, uint8 *fates);
static void expect_fate(PageAudit *audit, ItemFate planned, ItemFate right);
static void audit_tuple(PageAudit *audit, ItemId item, ItemFate fate, const PagePlan *plan);
static void audit_freezing(PageAudit *audit, HeapTupleHeader tuple, const PagePlan *plan);
static void compare_freezing(PageAudit *audit, const HeapTupleFreeze *planned,
							 const HeapTupleFreeze *server);
static bool note_visibility(PageAudit *audit, ItemId item);
static void compare_numbers(PageAudit *audit, const char *what, int64 engine, int64 right);
static void compare_dead_items(PageAudit *audit, const OffsetNumber *dead, int ndead);

/*
 * audit_before_prune
 *		Before a simple page is changed: does the plan do what the server would do?
 */
void
audit_before_prune(TableVacuum *vacuum, Buffer buffer, const PagePlan *plan)
{
	const PruneResult *result = plan->result;
	const bool	has_indexes = vacuum->nindexes > 0;
	PageAudit	audit;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	uint8		fates[MaxHeapTuplesPerPage + 1] = {FATE_STAYS};
	TransactionId oldest_xid;

	Assert(CritSectionCount == 0);
	Assert(vacuum->page_is_audited);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(plan->nnowdead >= 0 && plan->nnowunused >= 0 && plan->nfrozen >= 0);
	/* damage is no matter of verdicts */
	page_check_before_change(vacuum->rel, buffer,
							 has_indexes ? plan->nowdead : plan->nowunused,
							 has_indexes ? plan->nnowdead : plan->nnowunused);
	begin_heap_page(&audit, vacuum, buffer);
	note_fates(&audit, plan->nowdead, plan->nnowdead, FATE_DEAD, fates);
	note_fates(&audit, plan->nowunused, plan->nnowunused, FATE_UNUSED, fates);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(audit.page, off);
		bool		is_dead = ItemIdIsDead(item);

		audit.place.off = off;
		if (ItemIdIsNormal(item))
			audit_tuple(&audit, item, fates[off], plan);
		else
			expect_fate(&audit, fates[off], is_dead && !has_indexes ? FATE_UNUSED : FATE_STAYS);
		if (fates[off] == FATE_DEAD || (is_dead && has_indexes))
			audit.dead[audit.ndead++] = off;
	}
	audit.place.off = InvalidOffsetNumber;
	audit.all_visible &= audit.ndead == 0;
	audit.all_frozen &= audit.all_visible;

	/* any other plan is out of order, or for no row that stays */
	compare_numbers(&audit, "frozen rows", plan->nfrozen, audit.nfrozen);
	compare_dead_items(&audit, result->deadoffsets, result->lpdead_items);
	compare_numbers(&audit, "the page is all-visible", result->all_visible, audit.all_visible);
	compare_numbers(&audit, "the page is all-frozen", result->all_frozen, audit.all_frozen);
	compare_numbers(&audit, "live rows", result->live_tuples, audit.nlive);
	compare_numbers(&audit, "something keeps the table from being cut off", result->hastup, audit.nkept > 0);
	compare_numbers(&audit, "newest XID of a removed row", plan->latest_xid_removed, audit.latest_xid_removed);
	if (audit.all_visible && !audit.all_frozen)
		compare_numbers(&audit, "newest xmin", result->vm_conflict_horizon, audit.newest_xmin);
	if (plan->nfrozen == 0)
		compare_numbers(&audit, "rows must be frozen", false, audit.freeze.freeze_required);

	oldest_xid = plan->nfrozen > 0 ? audit.freeze.FreezePageRelfrozenXid :
		audit.freeze.NoFreezePageRelfrozenXid;
	end_heap_page(&audit, oldest_xid, plan->nfrozen > 0 ? audit.freeze.FreezePageRelminMxid :
				  audit.freeze.NoFreezePageRelminMxid);
}

/*
 * audit_noted
 *		The server has pruned a page, and left its report in pruned; or, if that is NULL, the
 *		engine has only looked at it, as others have it pinned.  Are these its dead items?
 *		Does the engine know of its oldest IDs?  Is the report on visibility right, before the
 *		map is changed, or need the page not be changed?
 *
 * Any lock on the page will do.
 */
void
audit_noted(TableVacuum *vacuum, Buffer buffer, const OffsetNumber *dead, int ndead,
			const PruneResult *pruned)
{
	PageAudit	audit;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	bool		checks_visibility = pruned != NULL && pruned->all_visible && !pruned->map_done;
	bool		must_freeze = false;

	Assert(CritSectionCount == 0);
	Assert(vacuum->page_is_audited);
	Assert(compat_is_locked(buffer));
	Assert(ndead >= 0 && ndead <= MaxHeapTuplesPerPage);
	begin_heap_page(&audit, vacuum, buffer);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(audit.page, off);
		HeapTupleHeader tuple;

		audit.place.off = off;
		if (ItemIdIsDead(item) && (pruned != NULL || vacuum->nindexes > 0))
			audit.dead[audit.ndead++] = off;
		if (!ItemIdIsNormal(item))
			continue;
		tuple = audited_row(&audit, off);
		must_freeze |= heap_tuple_should_freeze(tuple, &vacuum->shared->cutoffs,
												&audit.freeze.NoFreezePageRelfrozenXid,
												&audit.freeze.NoFreezePageRelminMxid);
		if (!checks_visibility)
			continue;
		audit.all_visible &= note_visibility(&audit, item);
		audit.all_frozen &= !heap_tuple_needs_eventual_freeze(tuple);
	}
	audit.place.off = InvalidOffsetNumber;

	compare_dead_items(&audit, dead, ndead);
	if (checks_visibility)
	{
		compare_numbers(&audit, "the page is all-visible", true, audit.all_visible && audit.ndead == 0);
		compare_numbers(&audit, "the page is all-frozen", pruned->all_frozen, audit.all_frozen);
	}
	if (pruned == NULL && vacuum->shared->aggressive)
		compare_numbers(&audit, "rows must be frozen", false, must_freeze);
	end_heap_page(&audit, audit.freeze.NoFreezePageRelfrozenXid, audit.freeze.NoFreezePageRelminMxid);
}

/*
 * audit_map
 *		Is the page's own bit set if the map's is?  The caller has the map's page pinned.
 *
 * If it isn't, the map's bits are cleared, which is always right, before that is reported.
 */
void
audit_map(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer)
{
	AuditPlace	place = {.rel = vacuum->rel,.buffer = buffer,.blkno = BufferGetBlockNumber(buffer)};
	bool		is_visible = PageIsAllVisible(BufferGetPage(buffer));
	uint8		bits;

	Assert(CritSectionCount == 0);
	Assert(place.blkno < vacuum->shared->rel_pages);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(visibilitymap_pin_ok(place.blkno, vmbuffer));
	bits = visibilitymap_get_status(vacuum->rel, place.blkno, &vmbuffer);
	if (bits == 0 || (is_visible && bits != VISIBILITYMAP_ALL_FROZEN))
		return;
	compat_clear_wrong_map(vacuum->rel, place.blkno, vmbuffer);
	if (!is_visible)
		audit_fail(vacuum, &place, "the page is all-visible, by its bit in the map",
				   "it isn't, by the page's own");
	audit_fail(vacuum, &place, "the page is all-frozen, by its bits in the map",
			   "it isn't all-visible");
}

/*
 * audit_before_free
 *		Before a page's dead items are freed: are they in the store, and will these
 *		bits be right?
 */
void
audit_before_free(TableVacuum *vacuum, Buffer buffer, const DeadTidsPage *dead,
				  uint8 bits, TransactionId newest_xmin)
{
	PageAudit	audit;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	int			nfreed = 0;

	Assert(CritSectionCount == 0);
	Assert(vacuum->dead_tids != NULL);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(dead->blkno == BufferGetBlockNumber(buffer));
	Assert(dead->noffsets > 0 && dead->noffsets <= MaxHeapTuplesPerPage);
	Assert((bits & ~VISIBILITYMAP_VALID_BITS) == 0);
	begin_heap_page(&audit, vacuum, buffer);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(audit.page, off);
		bool		is_freed = nfreed < dead->noffsets && dead->offsets[nfreed] == off;

		audit.place.off = off;
		nfreed += is_freed;
		if (is_freed && !(ItemIdIsDead(item) && dead_tids_contains(vacuum->dead_tids, dead->blkno, off)))
			audit_fail(vacuum, &audit.place, fate_names[FATE_UNUSED],
					   ItemIdIsDead(item) ? "it isn't in the store" : "it isn't dead");
		if (!is_freed && ItemIdIsDead(item))
			audit.all_visible = false;
		if (bits == 0 || !ItemIdIsNormal(item))
			continue;
		audit.all_visible &= note_visibility(&audit, item);
		audit.all_frozen &=
			!heap_tuple_needs_eventual_freeze(audited_row(&audit, off));
	}
	audit.place.off = InvalidOffsetNumber;
	compare_numbers(&audit, "items to be freed", dead->noffsets, nfreed);
	if (bits != 0)
	{
		compare_numbers(&audit, "the page is all-visible", true, audit.all_visible);
		compare_numbers(&audit, "the page is all-frozen", (bits & VISIBILITYMAP_ALL_FROZEN) != 0,
						audit.all_frozen);
		if (!audit.all_frozen)
			compare_numbers(&audit, "newest xmin", newest_xmin, audit.newest_xmin);
	}
	vacuum->counters.audited_heap_pages++;
}

/*
 * audit_skipped
 *		These blocks are skipped: note the oldest IDs on a sample of them, which a new
 *		relfrozenxid must not pass (audit_age).
 *
 * They would not be read otherwise, so the sample is small, unless all pages are
 * audited.  No buffer is locked.
 */
void
audit_skipped(TableVacuum *vacuum, BlockNumber start, BlockNumber end)
{
	double		gap;

	Assert(end <= vacuum->shared->rel_pages);
	if (cyclone_audit <= 0 || VacuumFailsafeActive)
		return;
	gap = cyclone_audit < 1 ?
		Max(1 / cyclone_audit, (double) vacuum->shared->rel_pages / SKIPPED_SAMPLE) : 1;
	for (double blkno = start + gap * pg_prng_double(&pg_global_prng_state); blkno < end; blkno += gap)
	{
		CHECK_FOR_INTERRUPTS();
		audit_skipped_page(vacuum, (BlockNumber) blkno);
	}
}

/*
 * audit_skipped_page
 *		One of them.
 *
 * If the map says that it is all-frozen, and it isn't, that is damage.  PostgreSQL's VACUUM
 * doesn't look there, and this one goes on with a warning.  A page that can't be read ends
 * it, as one that isn't skipped does; so none is read in the failsafe.
 */
static void
audit_skipped_page(TableVacuum *vacuum, BlockNumber blkno)
{
	Buffer		buffer = ReadBufferExtended(vacuum->rel, MAIN_FORKNUM, blkno, RBM_NORMAL,
											vacuum_strategy(vacuum));
	Page		page = BufferGetPage(buffer);
	Buffer		vmbuffer = InvalidBuffer;
	VacuumCounters *counters = &vacuum->counters;
	OffsetNumber maxoff;
	bool		is_frozen;
	bool		is_damaged = false;

	/* the map's page is pinned before the lock is taken */
	visibilitymap_pin(vacuum->rel, blkno, &vmbuffer);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	is_frozen = (visibilitymap_get_status(vacuum->rel, blkno, &vmbuffer) & VISIBILITYMAP_ALL_FROZEN) != 0;
	maxoff = PageIsNew(page) ? 0 : PageGetMaxOffsetNumber(page);
	for (OffsetNumber off = FirstOffsetNumber; off <= Min(maxoff, MaxHeapTuplesPerPage); off++)
	{
		ItemId		item = PageGetItemId(page, off);
		HeapTupleHeader row = (HeapTupleHeader) ((char *) page + ItemIdGetOffset(item));

		if (!ItemIdIsNormal(item) || !page_check_fits(item))
			continue;
		if (is_frozen)
			is_damaged |= heap_tuple_needs_eventual_freeze(row);
		else
			(void) heap_tuple_should_freeze(row, &vacuum->shared->cutoffs,
											&counters->audited_relfrozenxid,
											&counters->audited_relminmxid);
	}
	UnlockReleaseBuffer(buffer);
	ReleaseBuffer(vmbuffer);
	counters->audited_heap_pages++;
	if (is_damaged)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of table \"%s\" is all-frozen in the visibility map, and has rows that aren't frozen",
						blkno, RelationGetRelationName(vacuum->rel)),
				 errhint("Please run VACUUM (DISABLE_PAGE_SKIPPING, FREEZE) on the table, and look for the cause.")));
}

/* audited_row -- the row that an item of the page leads to. */
static HeapTupleHeader
audited_row(const PageAudit *audit, OffsetNumber off)
{
	return page_check_row_at(audit->place.rel, audit->place.buffer, audit->page, off);
}

/* begin_heap_page -- nothing is known of a page yet. */
static void
begin_heap_page(PageAudit *audit, TableVacuum *vacuum, Buffer buffer)
{
	const struct VacuumCutoffs *cutoffs = &vacuum->shared->cutoffs;

	Assert(compat_is_locked(buffer));
	audit->vacuum = vacuum;
	audit->page = BufferGetPage(buffer);
	audit->place = (AuditPlace)
	{
		.rel = vacuum->rel,.buffer = buffer,.blkno = BufferGetBlockNumber(buffer)
	};
	audit->nlive = audit->nkept = audit->nfrozen = audit->ndead = 0;
	audit->all_visible = audit->all_frozen = true;
	audit->newest_xmin = audit->latest_xid_removed = InvalidTransactionId;
	audit->freeze = (HeapPageFreeze)
	{
		.FreezePageRelfrozenXid = cutoffs->OldestXmin,.FreezePageRelminMxid = cutoffs->OldestMxact,
			.NoFreezePageRelfrozenXid = cutoffs->OldestXmin,.NoFreezePageRelminMxid = cutoffs->OldestMxact
	};
}

/*
 * end_heap_page
 *		These are the oldest IDs left on a page: does the engine know of them?
 */
static void
end_heap_page(PageAudit *audit, TransactionId oldest_xid, MultiXactId oldest_multi)
{
	VacuumCounters *counters = &audit->vacuum->counters;

	if (TransactionIdPrecedes(oldest_xid, counters->new_relfrozenxid))
		compare_numbers(audit, "oldest XID left", counters->new_relfrozenxid, oldest_xid);
	if (MultiXactIdPrecedes(oldest_multi, counters->new_relminmxid))
		compare_numbers(audit, "oldest MultiXactId left", counters->new_relminmxid, oldest_multi);
	if (TransactionIdPrecedes(oldest_xid, counters->audited_relfrozenxid))
		counters->audited_relfrozenxid = oldest_xid;
	if (MultiXactIdPrecedes(oldest_multi, counters->audited_relminmxid))
		counters->audited_relminmxid = oldest_multi;
	counters->audited_heap_pages++;
}

/*
 * note_fates
 *		Note what is planned for these items.  Each may be named once, in ascending
 *		order, as the WAL record wants it.
 */
static void
note_fates(PageAudit *audit, const OffsetNumber *offsets, int noffsets, ItemFate fate, uint8 *fates)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(audit->page);

	for (int i = 0; i < noffsets; i++)
	{
		audit->place.off = offsets[i];
		if (offsets[i] < FirstOffsetNumber || offsets[i] > maxoff ||
			(i > 0 && offsets[i] <= offsets[i - 1]) || fates[offsets[i]] != FATE_STAYS)
			audit_fail(audit->vacuum, &audit->place, fate_names[fate],
					   "it isn't there, is named twice, or out of order");
		fates[offsets[i]] = fate;
	}
}

/* expect_fate -- does the engine plan what is right? */
static void
expect_fate(PageAudit *audit, ItemFate planned, ItemFate right)
{
	if (planned != right)
		audit_fail(audit->vacuum, &audit->place, fate_names[planned], fate_names[right]);
}

/* audit_tuple -- does the engine plan what is right for an item that has a row? */
static void
audit_tuple(PageAudit *audit, ItemId item, ItemFate fate, const PagePlan *plan)
{
	HeapTupleHeader tuple = audited_row(audit, audit->place.off);

	if (!note_visibility(audit, item))
	{
		/* others would be a link in a chain, which simple pages don't have */
		bool		stands_alone = !HeapTupleHeaderIsHotUpdated(tuple) && !HeapTupleHeaderIsHeapOnly(tuple);

		expect_fate(audit, fate, !stands_alone ? FATE_STAYS :
					audit->vacuum->nindexes > 0 ? FATE_DEAD : FATE_UNUSED);
		HeapTupleHeaderAdvanceConflictHorizon(tuple, &audit->latest_xid_removed);
		return;
	}
	expect_fate(audit, fate, FATE_STAYS);
	audit->nkept++;
	audit_freezing(audit, tuple, plan);
}

/* audit_freezing -- is a row that stays frozen if the server would freeze it, and in the same way? */
static void
audit_freezing(PageAudit *audit, HeapTupleHeader tuple, const PagePlan *plan)
{
	const struct VacuumCutoffs *cutoffs = &audit->vacuum->shared->cutoffs;
	HeapTupleFreeze server;
	bool		totally_frozen;
	bool		may_freeze;
	bool		is_planned = audit->nfrozen < plan->nfrozen &&
		plan->frozen[audit->nfrozen].offset == audit->place.off;

	if (plan->nfrozen == 0)
	{
		if (heap_tuple_should_freeze(tuple, cutoffs, &audit->freeze.NoFreezePageRelfrozenXid,
									 &audit->freeze.NoFreezePageRelminMxid))
			audit->freeze.freeze_required = true;
		audit->all_frozen &= !heap_tuple_needs_eventual_freeze(tuple);
		return;
	}
	may_freeze = heap_prepare_freeze_tuple(tuple, cutoffs, &audit->freeze,
										   &server, &totally_frozen);
	expect_fate(audit, is_planned ? FATE_FROZEN : FATE_STAYS, may_freeze ? FATE_FROZEN : FATE_STAYS);
	audit->all_frozen &= totally_frozen;
	if (may_freeze)
		compare_freezing(audit, &plan->frozen[audit->nfrozen++], &server);
}

/* compare_freezing -- is the plan for a row the server's? */
static void
compare_freezing(PageAudit *audit, const HeapTupleFreeze *planned, const HeapTupleFreeze *server)
{
	compare_numbers(audit, "xmax of a frozen row", planned->xmax, server->xmax);
	compare_numbers(audit, "infomask of a frozen row", planned->t_infomask, server->t_infomask);
	compare_numbers(audit, "infomask2 of a frozen row", planned->t_infomask2, server->t_infomask2);
	compare_numbers(audit, "flags of a freeze plan", planned->frzflags, server->frzflags);
}

/*
 * note_visibility
 *		What does the server say of a row?  Returns false if it is dead to all.
 */
static bool
note_visibility(PageAudit *audit, ItemId item)
{
	const TransactionId oldest_xmin = audit->vacuum->shared->cutoffs.OldestXmin;
	HeapTupleData tuple;
	TransactionId xmin;
	HTSV_Result verdict;

	ItemPointerSet(&tuple.t_self, audit->place.blkno, audit->place.off);
	tuple.t_data = audited_row(audit, audit->place.off);
	tuple.t_len = ItemIdGetLength(item);
	tuple.t_tableOid = RelationGetRelid(audit->vacuum->rel);
	verdict = HeapTupleSatisfiesVacuum(&tuple, oldest_xmin, audit->place.buffer);
	if (verdict == HEAPTUPLE_DEAD)
		return false;
	if (verdict != HEAPTUPLE_LIVE || !HeapTupleHeaderXminCommitted(tuple.t_data))
	{
		audit->all_visible = false;
		return true;
	}

	audit->nlive++;
	xmin = HeapTupleHeaderGetXmin(tuple.t_data);
	if (!TransactionIdPrecedes(xmin, oldest_xmin))
		audit->all_visible = false;
	else if (TransactionIdIsNormal(xmin) && TransactionIdFollows(xmin, audit->newest_xmin))
		audit->newest_xmin = xmin;
	return true;
}

/* compare_numbers -- are two numbers the same, or truth values? */
static void
compare_numbers(PageAudit *audit, const char *what, int64 engine, int64 right)
{
	if (engine != right)
		audit_fail(audit->vacuum, &audit->place,
				   psprintf("%s: " INT64_FORMAT, what, engine), psprintf(INT64_FORMAT, right));
}

/* compare_dead_items -- are the dead items of a page those that are to be stored? */
static void
compare_dead_items(PageAudit *audit, const OffsetNumber *dead, int ndead)
{
	compare_numbers(audit, "dead items", ndead, audit->ndead);
	for (int i = 0; i < audit->ndead; i++)
		compare_numbers(audit, "place of a dead item", dead[i], audit->dead[i]);
}
