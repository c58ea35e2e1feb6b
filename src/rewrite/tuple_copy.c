/*-------------------------------------------------------------------------
 *
 * tuple_copy.c
 *	  The copy of a tuple of a heap that is copied.
 *
 * A tuple is copied as it stands, unless it has values of dropped columns, or
 * lacks columns that were added since: then it is formed anew, as the new table
 * will have no missing values to fill in.  Values in the TOAST table stay there.
 *
 * A tuple's length is what its item says.  The server reads tuples by what is in
 * them, so to it a wrong length is no damage.  Nor is it to us: a tuple that may be
 * longer than its item says is formed anew, too (tuple_copy_begin_page).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"

#include "compat.h"
#include "engine/heap/stale_lock.h"
#include "rewrite/rewrite.h"

/* Of marks for places on a page */
#define BITS_A_WORD		64

static bool items_fill_page(Page page);
static bool is_cut(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple);
static void check_copied_item(Relation rel, Page page, ItemId item, BlockNumber blkno,
							  OffsetNumber off);

/* tuple_copy -- return a copy of a tuple of the table, palloc'd. */
HeapTuple
tuple_copy(TableRewrite *rewrite, HeapTuple tuple, uint16 infomask)
{
	HeapTuple	copied = tuple_copy_must_be_reformed(rewrite, REWRITE_TABLE, tuple) ?
		tuple_copy_reform(rewrite, REWRITE_TABLE, tuple) : heap_copytuple(tuple);

	tuple_copy_prepare_header(rewrite, REWRITE_TABLE, copied->t_data, tuple->t_data, infomask);
	return copied;
}

/*
 * tuple_copy_length
 *		How long that copy will be.
 */
Size
tuple_copy_length(TableRewrite *rewrite, HeapTuple tuple)
{
	HeapTuple	reformed;
	Size		len;

	if (!tuple_copy_must_be_reformed(rewrite, REWRITE_TABLE, tuple))
		return tuple->t_len;
	reformed = tuple_copy_reform(rewrite, REWRITE_TABLE, tuple);
	len = reformed->t_len;
	heap_freetuple(reformed);
	return len;
}

/* tuple_copy_is_too_big -- is a tuple of that length too big for a page? */
bool
tuple_copy_is_too_big(Size len)
{
	return MAXALIGN(len) > MaxHeapTupleSize;
}

/*
 * tuple_copy_make_smaller
 *		Compress values of a tuple that is too big, or move them out, as if it were
 *		inserted.
 *
 * PostgreSQL's VACUUM FULL does so with every tuple of more than about 2 kB.
 * It fetches all values from the old TOAST table, to store them in the new one.
 * To us the tuple is an update of itself, so values stored there before stay where
 * they are: their chunks are copied later on.  Values that are stored now get ids
 * that are free in both tables.  Their chunks go to the beginning of the new table,
 * by way of shared buffers; the copied chunks will come behind them
 * (new_blocks_go_on_behind).  That is allowed in the leader of a team, as our
 * transaction has its ID.
 */
HeapTuple
tuple_copy_make_smaller(TableRewrite *rewrite, HeapTuple copied)
{
	Relation	new_heap = rewrite->new_heaps[REWRITE_TABLE];
	HeapTuple	smaller;

	Assert(rewrite_is_leader(rewrite));
	Assert(tuple_copy_is_too_big(copied->t_len));
	Assert(CheckRelationLockedByMe(new_heap, AccessExclusiveLock, true));

	/* pointers name the old TOAST table, which gets the new one's files */
	Assert(!OidIsValid(new_heap->rd_toastoid));
	PG_TRY();
	{
		new_heap->rd_toastoid = rewrite->shared->heaps[REWRITE_TOAST].old_relid;
		smaller = heap_toast_insert_or_update(new_heap, copied, copied,
											  HEAP_INSERT_SKIP_FSM | HEAP_INSERT_NO_LOGICAL);
	}
	PG_FINALLY();
	{
		new_heap->rd_toastoid = InvalidOid;
	}
	PG_END_TRY();

	if (tuple_copy_is_too_big(smaller->t_len))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("row is too big: size %zu, maximum size %zu",
						MAXALIGN(smaller->t_len), (Size) MaxHeapTupleSize)));
	heap_freetuple(copied);
	return smaller;
}

/*
 * tuple_copy_begin_page
 *		Are the lengths of a page's items right?
 *
 * On a sound page the items fill all that isn't free, up to MAXALIGN, and none
 * overlap.  Most pages have them in falling order, which is quickly seen.
 */
void
tuple_copy_begin_page(TableRewrite *rewrite, Page page)
{
	PageHeader	header = (PageHeader) page;
	OffsetNumber maxoff = PageIsNew(page) ? 0 : PageGetMaxOffsetNumber(page);
	Size		begin = header->pd_special;
	bool		in_order = true;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);

		if (!ItemIdIsNormal(item))
			continue;
		in_order &= ItemIdGetOffset(item) + MAXALIGN(ItemIdGetLength(item)) == begin;
		begin = ItemIdGetOffset(item);
	}
	rewrite->lengths_are_doubtful = !(in_order && begin == header->pd_upper) &&
		!items_fill_page(page);
}

/* toggle_border -- mark a place on a page, or remove its mark. */
static inline void
toggle_border(uint64 *borders, Size place)
{
	borders[place / MAXIMUM_ALIGNOF / BITS_A_WORD] ^=
		UINT64CONST(1) << place / MAXIMUM_ALIGNOF % BITS_A_WORD;
}

/*
 * items_fill_page
 *		Do the items of a page, in any order, lie side by side and fill all that
 *		isn't free?
 *
 * Each begin and each end toggles a mark.  If only the marks at the two ends of all
 * items remain, the items lead from one to the other, on their way or on detours.
 * With the right sum of lengths there are no detours.
 */
static bool
items_fill_page(Page page)
{
	PageHeader	header = (PageHeader) page;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	uint64		borders[BLCKSZ / MAXIMUM_ALIGNOF / BITS_A_WORD + 1] = {0};
	uint64		left = 0;
	Size		total = 0;

	if (header->pd_upper != MAXALIGN(header->pd_upper) ||
		header->pd_special != MAXALIGN(header->pd_special) ||
		header->pd_upper > header->pd_special || header->pd_special > BLCKSZ)
		return false;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		Size		begin = ItemIdGetOffset(item);
		Size		end = begin + MAXALIGN(ItemIdGetLength(item));

		if (!ItemIdIsNormal(item))
			continue;
		if (begin != MAXALIGN(begin) || end > BLCKSZ)
			return false;
		toggle_border(borders, begin);
		toggle_border(borders, end);
		total += end - begin;
	}
	toggle_border(borders, header->pd_upper);
	toggle_border(borders, header->pd_special);
	for (int i = 0; i < lengthof(borders); i++)
		left |= borders[i];
	return left == 0 && total == header->pd_special - header->pd_upper;
}

/* tuple_copy_find -- point *tuple at that item of a page, if it is a tuple. */
bool
tuple_copy_find(Relation rel, Page page, BlockNumber blkno, OffsetNumber off,
				HeapTuple tuple)
{
	ItemId		item;

	Assert(OffsetNumberIsValid(off) && off <= PageGetMaxOffsetNumber(page));
	item = PageGetItemId(page, off);

	if (!ItemIdIsNormal(item))
		return false;
	check_copied_item(rel, page, item, blkno, off);
	ItemPointerSet(&tuple->t_self, blkno, off);
	tuple->t_tableOid = RelationGetRelid(rel);
	/* the item may say more than the page has */
	tuple->t_len = Min(ItemIdGetLength(item), BLCKSZ - ItemIdGetOffset(item));
	/* which may have a length of 0 */
	tuple->t_data = (HeapTupleHeader) ((char *) page + ItemIdGetOffset(item));
	return true;
}

/*
 * tuple_copy_prepare_header
 *		Give a copy the visibility of the original, frozen as far as it can be.
 */
void
tuple_copy_prepare_header(TableRewrite *rewrite, RewriteHeap heap, HeapTupleHeader copied,
						  HeapTupleHeader original, uint16 infomask)
{
	RewriteShared *shared = rewrite->shared;
	HeapCopyShared *copy = &shared->heaps[heap];
	TransactionId xmin = HeapTupleHeaderGetRawXmin(original);
	TransactionId xmax = HeapTupleHeaderGetRawXmax(original);

	Assert(copied != original);
	copied->t_choice.t_heap = original->t_choice.t_heap;
	copied->t_infomask &= ~HEAP_XACT_MASK;
	copied->t_infomask |= infomask & HEAP_XACT_MASK;
	/* it isn't in a HOT chain any more */
	copied->t_infomask2 &= ~HEAP2_XACT_MASK;
	ItemPointerSetInvalid(&copied->t_ctid);

	/* for most tuples, what heap_freeze_tuple does */
	if (xmax == InvalidTransactionId && !(infomask & HEAP_MOVED))
	{
		if ((infomask & HEAP_XMIN_FROZEN) == HEAP_XMIN_FROZEN)
			return;
		if ((infomask & (HEAP_XMIN_FROZEN | HEAP_XMAX_INVALID)) == (HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID) &&
			TransactionIdPrecedes(xmin, shared->freeze_limit) &&
			!TransactionIdPrecedes(xmin, copy->relfrozenxid))
		{
			copied->t_infomask |= HEAP_XMIN_FROZEN;
			return;
		}
	}
	/* heap_freeze_tuple would take that for damage */
	if (unlikely(has_stale_lock(copied, copy->relfrozenxid, copy->oldest_xmin)))
	{
		stale_lock_forget(copied);
		pg_atomic_fetch_add_u64(&copy->stale_locks, 1);
	}
	(void) heap_freeze_tuple(copied, copy->relfrozenxid, copy->relminmxid,
							 shared->freeze_limit, shared->multi_cutoff);
}

/* tuple_copy_must_be_reformed -- can't the tuple be copied as it stands? */
bool
tuple_copy_must_be_reformed(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple)
{
	Assert(rewrite != NULL && tuple->t_data != NULL);

	if (unlikely(rewrite->lengths_are_doubtful ||
				 tuple->t_len < Max(tuple->t_data->t_hoff, SizeofHeapTupleHeader) ||
				 is_cut(rewrite, heap, tuple)))
		return true;
	if (heap == REWRITE_TOAST)
		return false;
	if (unlikely(HeapTupleHeaderGetNatts(tuple->t_data) !=
				 RelationGetNumberOfAttributes(rewrite->old_heaps[REWRITE_TABLE]) ||
				 (tuple->t_data->t_infomask & HEAP_HASOID_OLD)))
		return true;
	for (int i = 0; i < rewrite->ndropped; i++)
		if (!HeapTupleHasNulls(tuple) ||
			!att_isnull(rewrite->dropped[i] - 1, tuple->t_data->t_bits))
			return true;
	return false;
}

/*
 * is_cut
 *		Does the tuple go on behind its length, in what should be padding?
 *
 * If the padding is zero nothing is lost, as it will be zero in the new place.
 */
static bool
is_cut(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(rewrite->old_heaps[heap]);
	const char *end = (const char *) tuple->t_data + MAXALIGN(tuple->t_len);
	const char *padding = (const char *) tuple->t_data + tuple->t_len;

	while (padding < end && *padding == 0)
		padding++;
	if (padding == end)
		return false;
	heap_deform_tuple(tuple, desc, rewrite->values, rewrite->nulls);
	return tuple->t_data->t_hoff +
		heap_compute_data_size(desc, rewrite->values, rewrite->nulls) > tuple->t_len;
}

/* tuple_copy_reform -- form a tuple anew: complete, without values of dropped columns. */
HeapTuple
tuple_copy_reform(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple)
{
	Assert(rewrite->values != NULL && rewrite->nulls != NULL);

	heap_deform_tuple(tuple, RelationGetDescr(rewrite->old_heaps[heap]),
					  rewrite->values, rewrite->nulls);
	for (int i = 0; heap == REWRITE_TABLE && i < rewrite->ndropped; i++)
		rewrite->nulls[rewrite->dropped[i] - 1] = true;
	return heap_form_tuple(RelationGetDescr(rewrite->new_heaps[heap]),
						   rewrite->values, rewrite->nulls);
}

/*
 * check_copied_item
 *		Raise an error unless a tuple, and its values, begin on its page.  A page has no
 *		more items than MaxHeapTuplesPerPage, which new_pages_add relies on.
 */
static void
check_copied_item(Relation rel, Page page, ItemId item, BlockNumber blkno, OffsetNumber off)
{
	Size		begin = ItemIdGetOffset(item);

	if (unlikely(off > MaxHeapTuplesPerPage ||
				 begin < SizeOfPageHeaderData ||
				 begin + SizeofHeapTupleHeader > BLCKSZ ||
				 begin + ((HeapTupleHeader) ((char *) page + begin))->t_hoff > BLCKSZ))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of relation \"%s\" has a corrupted item %u",
						blkno, RelationGetRelationName(rel), off)));
}
