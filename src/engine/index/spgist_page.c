/*-------------------------------------------------------------------------
 *
 * spgist_page.c
 *	  What vacuum does to one page of an SP-GiST index.
 *
 * On a leaf page all TIDs are looked up in the dead-TID store in one go; then the
 * tuples of dead TIDs are taken out of their chains in one change of the page.  Old
 * redirects become placeholders.  The places that young redirects and inner tuples lead
 * to become pending (scan->pending); each redirect and inner tuple is followed just
 * once (scan->base.followed).  Why that is right is in README.md.
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
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/index_kind.h"
#include "engine/index/spgist_page.h"

static void follow_nodes(SpgistScan *scan, Buffer buffer, OffsetNumber offset);
static void follow_redirect(SpgistScan *scan, Buffer buffer, OffsetNumber offset);
static bool is_to_follow(SpgistScan *scan, Buffer buffer, OffsetNumber offset);
static void add_pending_place(SpgistScan *scan, const ItemPointerData *place);
static void look_at_leaf(SpgistScan *scan, Buffer buffer);
static void note_next(SpgistScan *scan, Buffer buffer, OffsetNumber offset,
					  OffsetNumber next);
static void plan_chain(SpgistScan *scan, Buffer buffer, OffsetNumber head);
static void apply_plan(SpgistScan *scan, Buffer buffer);
static XLogRecPtr log_plan(SpgistScan *scan, Buffer buffer);
static OffsetNumber find_old_redirects(SpgistScan *scan, Buffer buffer, OffsetNumber *old,
									   int *nold);
static bool is_old_redirect(SpgistScan *scan, const SpGistDeadTupleData *tuple);
static void *tuple_at(const SpgistScan *scan, Buffer buffer, OffsetNumber offset);

/*
 * spgist_follow_inner_tuple
 *		Make pending what an inner tuple leads to, or the place that it has moved to.
 *		It may be gone, as README.md says.
 */
void
spgist_follow_inner_tuple(SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	Page		page = BufferGetPage(buffer);
	SpGistInnerTuple tuple;

	Assert(CritSectionCount == 0);
	Assert(scan->base.index == scan->base.vacuum->indexes[scan->base.number]);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(!SpGistPageIsLeaf(page));
	if (offset < FirstOffsetNumber || offset > PageGetMaxOffsetNumber(page))
		return;

	tuple = tuple_at(scan, buffer, offset);
	if (tuple->tupstate == SPGIST_REDIRECT)
		follow_redirect(scan, buffer, offset);
	else if (tuple->tupstate == SPGIST_LIVE && is_to_follow(scan, buffer, offset))
		follow_nodes(scan, buffer, offset);
}

/*
 * follow_nodes
 *		Make pending what the downlinks of a live inner tuple lead to.
 *
 * It is an error if the nodes aren't all in the tuple.
 */
static void
follow_nodes(SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	SpGistInnerTuple tuple = tuple_at(scan, buffer, offset);
	Size		size = ItemIdGetLength(PageGetItemId(BufferGetPage(buffer), offset));
	SpGistNodeTuple node;
	int			i;

	SGITITERATE(tuple, i, node)
	{
		Size		start = (char *) node - (char *) tuple;

		if (start + SGNTHDRSZ > size || IndexTupleSize(node) < SGNTHDRSZ)
			index_report_page(scan->base.index, BufferGetBlockNumber(buffer));
		if (ItemPointerIsValid(&node->t_tid))
			add_pending_place(scan, &node->t_tid);
	}
}

/*
 * follow_redirect
 *		Make pending what a redirect on a locked page leads to, if it is young.
 *
 * An old redirect may be replaced by something else later.  If it had been followed,
 * that would not be followed.
 */
static void
follow_redirect(SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	SpGistDeadTuple redirect = tuple_at(scan, buffer, offset);

	Assert(redirect->tupstate == SPGIST_REDIRECT);
	if (TransactionIdFollowsOrEquals(redirect->xid, scan->spgist->start_xmin) &&
		is_to_follow(scan, buffer, offset))
		add_pending_place(scan, &redirect->pointer);
}

/*
 * is_to_follow
 *		Is what is at this place still to be followed?  If so, the caller follows it.
 */
static bool
is_to_follow(SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	uint64		tid = (uint64) BufferGetBlockNumber(buffer) << 16 | offset;
	bool		found;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	if (scan->base.followed == NULL)
		scan->base.followed = followed_create(CurrentMemoryContext, 64, NULL);
	(void) followed_insert(scan->base.followed, tid, &found);
	return !found;
}

/* add_pending_place -- make a place pending. */
static void
add_pending_place(SpgistScan *scan, const ItemPointerData *place)
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

/*
 * spgist_clean_root
 *		Delete the tuples of dead TIDs from a root that is a leaf page.  They form no
 *		chains.
 */
void
spgist_clean_root(SpgistScan *scan, Buffer buffer)
{
	OffsetNumber deletable[MaxIndexTuplesPerPage];
	Page		page = BufferGetPage(buffer);
	spgxlogVacuumRoot record;
	int			ndead = 0;

	Assert(CritSectionCount == 0);
	Assert(scan->base.index == scan->base.vacuum->indexes[scan->base.number]);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(SpGistBlockIsRoot(BufferGetBlockNumber(buffer)) && SpGistPageIsLeaf(page));
	look_at_leaf(scan, buffer);
	if (scan->ntids != PageGetMaxOffsetNumber(page))
		index_report_page(scan->base.index, BufferGetBlockNumber(buffer));
	for (int i = 0; i < scan->ntids; i++)
		if (scan->dead[i])
			deletable[ndead++] = scan->offsets[i];

	scan->base.stats.num_index_tuples += scan->ntids - ndead;
	scan->base.stats.tuples_removed += ndead;
	if (ndead == 0)
		return;

	index_check_items(scan->base.index, buffer);
	START_CRIT_SECTION();
	PageIndexMultiDelete(page, deletable, ndead);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(scan->base.index))
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
 * spgist_clean_leaf
 *		Delete the tuples of dead TIDs from a leaf page that is no root; make the
 *		targets of its young redirects pending.
 *
 * A chain's head stays in its place, as a downlink leads there.
 */
void
spgist_clean_leaf(SpgistScan *scan, Buffer buffer, bool count)
{
	LeafPlan   *plan = &scan->plan;
	int			ndead = 0;

	Assert(CritSectionCount == 0);
	Assert(scan->base.index == scan->base.vacuum->indexes[scan->base.number]);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(!SpGistBlockIsRoot(BufferGetBlockNumber(buffer)) && SpGistPageIsLeaf(BufferGetPage(buffer)));
	look_at_leaf(scan, buffer);
	for (int i = 0; i < scan->ntids; i++)
		ndead += scan->dead[i];
	if (count)
		scan->base.stats.num_index_tuples += scan->ntids - ndead;
	scan->base.stats.tuples_removed += ndead;
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
		index_report_page(scan->base.index, BufferGetBlockNumber(buffer));
	apply_plan(scan, buffer);
}

/*
 * look_at_leaf
 *		Find out which tuples a leaf page has, which of their TIDs are dead, and how
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
		SpGistLeafTuple tuple = tuple_at(scan, buffer, off);

		if (tuple->tupstate == SPGIST_LIVE)
		{
			scan->tids[scan->ntids] = tuple->heapPtr;
			scan->offsets[scan->ntids++] = off;
			note_next(scan, buffer, off, SGLT_GET_NEXTOFFSET(tuple));
		}
		else if (tuple->tupstate == SPGIST_REDIRECT && !scan->base.vacuum->shared->in_cleanup)
			follow_redirect(scan, buffer, off);
	}

	if (!scan->base.vacuum->shared->in_cleanup)
		(void) dead_tids_match(scan->base.vacuum->dead_tids, scan->tids, scan->ntids, scan->dead);
	else
		memset(scan->dead, 0, sizeof(bool) * scan->ntids);
}

/* note_next -- note which tuple comes next in a tuple's chain, if any. */
static void
note_next(SpgistScan *scan, Buffer buffer, OffsetNumber offset, OffsetNumber next)
{
	if (next == InvalidOffsetNumber)
		return;
	if (next > PageGetMaxOffsetNumber(BufferGetPage(buffer)) ||
		scan->before[next] != InvalidOffsetNumber)
		index_report_page(scan->base.index, BufferGetBlockNumber(buffer));
	scan->before[next] = offset;
}

/*
 * plan_chain
 *		Plan how to take the deletable tuples out of a chain.
 *
 * The first tuple that stays moves to the head's place, unless it is the head.  If none
 * stays, the head becomes a dead tuple in its place.
 */
static void
plan_chain(SpgistScan *scan, Buffer buffer, OffsetNumber head)
{
	LeafPlan   *plan = &scan->plan;
	OffsetNumber last = InvalidOffsetNumber;	/* that stays, where it will
												 * be */
	bool		gap = false;	/* were some after it deleted? */
	OffsetNumber next;

	for (OffsetNumber off = head; off != InvalidOffsetNumber; off = next)
	{
		SpGistLeafTuple tuple = tuple_at(scan, buffer, off);

		if (tuple->tupstate != SPGIST_LIVE)
			index_report_page(scan->base.index, BufferGetBlockNumber(buffer));
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

/* apply_plan -- change a leaf page as planned, in the order in which replay does it. */
static void
apply_plan(SpgistScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	LeafPlan   *plan = &scan->plan;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	index_check_items(scan->base.index, buffer);
	START_CRIT_SECTION();
	spgPageIndexMultiDelete(&scan->state, page, plan->dead, plan->ndead,
							SPGIST_DEAD, SPGIST_DEAD,
							InvalidBlockNumber, InvalidOffsetNumber);
	spgPageIndexMultiDelete(&scan->state, page, plan->placeholder, plan->nplaceholder,
							SPGIST_PLACEHOLDER, SPGIST_PLACEHOLDER,
							InvalidBlockNumber, InvalidOffsetNumber);

	/* to move a tuple is to swap its line pointer with the head's */
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
	if (RelationNeedsWAL(scan->base.index))
		PageSetLSN(page, log_plan(scan, buffer));
	END_CRIT_SECTION();
}

/* log_plan -- log what apply_plan has done, in its critical section. */
static XLogRecPtr
log_plan(SpgistScan *scan, Buffer buffer)
{
	LeafPlan   *plan = &scan->plan;
	spgxlogVacuumLeaf record;

	Assert(CritSectionCount > 0);
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
 * spgist_clean_redirects
 *		Make placeholders of the old redirects on a page, and delete the placeholders
 *		at its end: no other tuple's offset depends on them.
 */
void
spgist_clean_redirects(SpgistScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	SpGistPageOpaque opaque = SpGistPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	OffsetNumber old[MaxIndexTuplesPerPage];
	OffsetNumber tail[MaxIndexTuplesPerPage];
	spgxlogVacuumRedirect record = {0};
	OffsetNumber first;
	int			nold;
	int			ntail;

	Assert(CritSectionCount == 0);
	Assert(scan->base.index == scan->base.vacuum->indexes[scan->base.number]);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	first = find_old_redirects(scan, buffer, old, &nold);
	if (nold == 0 && first == InvalidOffsetNumber)
		return;

	/* the page's own counts go by what is done, and may be damaged */
	ntail = first == InvalidOffsetNumber ? 0 : maxoff - first + 1;
	if (opaque->nRedirection < nold || opaque->nPlaceholder + nold < ntail)
		index_report_page(scan->base.index, BufferGetBlockNumber(buffer));

	record.nToPlaceholder = nold;
	record.firstPlaceholder = first;
	record.isCatalogRel = RelationIsAccessibleInLogicalDecoding(scan->base.vacuum->rel);
	record.snapshotConflictHorizon = InvalidTransactionId;

	index_check_items(scan->base.index, buffer);
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
	opaque->nRedirection -= nold;
	opaque->nPlaceholder += nold;

	if (ntail > 0)
	{
		for (int i = 0; i < ntail; i++)
			tail[i] = first + i;
		opaque->nPlaceholder -= ntail;
		PageIndexMultiDelete(page, tail, ntail);
	}

	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(scan->base.index))
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
 *		Find the old redirects on a page; return the first offset from which on there
 *		will be placeholders only, or InvalidOffsetNumber if none will be at the end.
 */
static OffsetNumber
find_old_redirects(SpgistScan *scan, Buffer buffer, OffsetNumber *old, int *nold)
{
	Page		page = BufferGetPage(buffer);
	int			redirects = SpGistPageGetOpaque(page)->nRedirection;
	OffsetNumber first = InvalidOffsetNumber;
	bool		in_tail = true;

	*nold = 0;
	for (OffsetNumber off = PageGetMaxOffsetNumber(page);
		 off >= FirstOffsetNumber && (in_tail || redirects > 0); off--)
	{
		SpGistDeadTuple tuple = tuple_at(scan, buffer, off);
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
 *		Can a redirect be removed?
 *
 * Not one that was made since we began, as we must find what it leads to; nor one that
 * a scan may need that began before it.  One without a transaction ID was made by
 * REINDEX CONCURRENTLY, while no scan used the index.
 */
static bool
is_old_redirect(SpgistScan *scan, const SpGistDeadTupleData *tuple)
{
	return !TransactionIdIsValid(tuple->xid) ||
		(TransactionIdPrecedes(tuple->xid, scan->spgist->start_xmin) &&
		 compat_is_removable_xid(scan->base.vacuum->vistest, tuple->xid));
}

/*
 * tuple_at
 *		A tuple of a locked page; an error unless all of it is on the page, and a dead
 *		tuple or a placeholder fits into its place, as the server's code sees to.
 */
static void *
tuple_at(const SpgistScan *scan, Buffer buffer, OffsetNumber offset)
{
	Page		page = BufferGetPage(buffer);
	ItemId		item = PageGetItemId(page, offset);

	if (ItemIdGetLength(item) < SGDTSIZE || ItemIdGetOffset(item) < SizeOfPageHeaderData ||
		ItemIdGetOffset(item) + ItemIdGetLength(item) > ((PageHeader) page)->pd_special)
	{
		/* names the line pointer, if it can't be right */
		index_check_items(scan->base.index, buffer);
		index_report_page(scan->base.index, BufferGetBlockNumber(buffer));
	}
	return PageGetItem(page, item);
}

/* spgist_check_page -- raise an error unless this is a page of an SP-GiST index. */
void
spgist_check_page(Relation index, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);

	Assert(CritSectionCount == 0);
	Assert(compat_buffer_is_locked_exclusively(buffer) && !PageIsNew(page));

	if (PageGetSpecialSize(page) != MAXALIGN(sizeof(SpGistPageOpaqueData)) ||
		SpGistPageGetOpaque(page)->spgist_page_id != SPGIST_PAGE_ID ||
		PageGetMaxOffsetNumber(page) > MaxIndexTuplesPerPage)
		index_report_page(index, BufferGetBlockNumber(buffer));
}
