/*-------------------------------------------------------------------------
 *
 * rewrite_audit.c
 *	  Rows that VACUUM FULL or REPACK has copied, compared with their copies.
 *
 * As in engine/audit.c, cyclone.audit is the share of pages.  When a page of the old
 * heap has been copied, and while it is still locked, HeapTupleSatisfiesVacuum judges
 * each of its rows, and tuple_fate must have come to the same.  A row that a snapshot may
 * still see must have a copy, unless it was left to the leader, as linked with other
 * versions or too big, or is a chunk that no row needs.  Any other row must have none.
 * Row and copy are compared column by column, and so is their visibility; and the values
 * that a copy needs of the TOAST table must be noted as needed.  Of what is left to the
 * leader, it compares a random sample; of a row that was too big, whose values have moved
 * just now, only which values are needed.
 *
 * The number of rows is compared for all pages: what was found to be kept, row by
 * row, with what is on the pages that were written.
 *
 * Asking the server may set hint bits in the old file, as reading it may at any time.
 *
 * All this happens before the new files are the table's, so a failure costs nothing
 * but the work.  New btrees come last (audit_btree.c), before the transaction commits.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#include "engine/audit.h"
#include "rewrite/rewrite.h"

/* What was made of the rows of a page, by their old items */
struct RewriteAudit
{
	MemoryContext context;
	OffsetNumber maxoff;
	bool		has_fate[MaxOffsetNumber + 1];
	TupleFate	fates[MaxOffsetNumber + 1];
	bool		is_left[MaxOffsetNumber + 1];	/* to the leader, or as an
												 * orphan */
	HeapTupleHeader copies[MaxOffsetNumber + 1];	/* NULL: none */
	Size		lengths[MaxOffsetNumber + 1];
};

static void prepare(TableRewrite *rewrite);
static void audit_row(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
					  HeapTuple tuple, HTSV_Result verdict);
static TupleFate fate_of(HTSV_Result verdict);
static bool may_be_left(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple);
static void compare_needed_values(TableRewrite *rewrite, const AuditPlace *place,
								  HeapTupleHeader copy, Size length);
static void compare_copy(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
						 HeapTuple old, HeapTupleHeader copy, Size length);
static bool columns_differ(TableRewrite *rewrite, RewriteHeap heap, HeapTuple old, HeapTuple copy);
static bool value_differs(Datum old, Datum copied, Form_pg_attribute attr);
static void compare_visibility(TableRewrite *rewrite, const AuditPlace *place,
							   HeapTupleHeader old, HeapTupleHeader copy, bool is_deleted);
static void fail(TableRewrite *rewrite, const AuditPlace *place,
				 const char *engine, const char *audit);

/* prepare -- before the first audit of this process. */
static void
prepare(TableRewrite *rewrite)
{
	if (rewrite->audit != NULL)
		return;
	audit_prepare();
	rewrite->audit = MemoryContextAlloc(TopTransactionContext, sizeof(struct RewriteAudit));
	rewrite->audit->context = AllocSetContextCreate(TopTransactionContext, "Audited rows",
													ALLOCSET_DEFAULT_SIZES);
}

/*
 * rewrite_audit_begin_page
 *		Is this page one of the sample?  Then rewrite->audit_page is where copies are
 *		noted, otherwise it is NULL.
 */
void
rewrite_audit_begin_page(TableRewrite *rewrite, Page page)
{
	rewrite->audit_page = NULL;
	if (likely(!audit_is_due()) || PageIsNew(page) ||
		PageGetMaxOffsetNumber(page) > MaxOffsetNumber)
		return;
	prepare(rewrite);
	rewrite->audit_page = rewrite->audit;
	rewrite->audit->maxoff = PageGetMaxOffsetNumber(page);
	memset(rewrite->audit->copies, 0,
		   (rewrite->audit->maxoff + 1) * sizeof(HeapTupleHeader));
	memset(rewrite->audit->has_fate, 0, (rewrite->audit->maxoff + 1) * sizeof(bool));
	memset(rewrite->audit->is_left, 0, (rewrite->audit->maxoff + 1) * sizeof(bool));
}

/* rewrite_audit_fate -- of such a page, note the fate of an item. */
void
rewrite_audit_fate(TableRewrite *rewrite, OffsetNumber off, TupleFate fate)
{
	if (likely(rewrite->audit_page == NULL))
		return;
	Assert(off >= FirstOffsetNumber && off <= rewrite->audit_page->maxoff);
	rewrite->audit_page->has_fate[off] = true;
	rewrite->audit_page->fates[off] = fate;
}

/* rewrite_audit_left -- of such a page, note that an item is left to the leader, or left out as an orphan. */
void
rewrite_audit_left(TableRewrite *rewrite, OffsetNumber off)
{
	if (likely(rewrite->audit_page == NULL))
		return;
	Assert(off >= FirstOffsetNumber && off <= rewrite->audit_page->maxoff);
	rewrite->audit_page->is_left[off] = true;
}

/* rewrite_audit_note -- of such a page, note the copy of an item. */
void
rewrite_audit_note(TableRewrite *rewrite, OffsetNumber off, HeapTupleHeader copy, Size length)
{
	if (likely(rewrite->audit_page == NULL))
		return;
	Assert(off >= FirstOffsetNumber && off <= rewrite->audit_page->maxoff);
	rewrite->audit_page->copies[off] = copy;
	rewrite->audit_page->lengths[off] = length;
}

/* rewrite_audit_page -- judge the rows of a page of the sample once more. */
void
rewrite_audit_page(TableRewrite *rewrite, RewriteHeap heap, Buffer buffer)
{
	Relation	rel = rewrite->old_heaps[heap];
	TransactionId oldest_xmin = rewrite->shared->heaps[heap].oldest_xmin;
	AuditPlace	place = {.rel = rel,.buffer = buffer,.blkno = BufferGetBlockNumber(buffer)};
	MemoryContext old;

	Assert(BufferIsValid(buffer));

	if (likely(rewrite->audit_page == NULL))
		return;
	old = MemoryContextSwitchTo(rewrite->audit_page->context);
	for (OffsetNumber off = FirstOffsetNumber; off <= rewrite->audit_page->maxoff; off++)
	{
		ItemId		item = PageGetItemId(BufferGetPage(buffer), off);
		HeapTupleData tuple;

		place.off = off;
		if (!ItemIdIsNormal(item))
		{
			if (rewrite->audit_page->copies[off] != NULL)
				fail(rewrite, &place, "the row is kept", "the item has no row");
			continue;
		}
		/* its length is what heap_copy.c makes of it */
		(void) tuple_copy_find(rel, BufferGetPage(buffer), place.blkno, off, &tuple);
		audit_row(rewrite, heap, &place, &tuple,
				  HeapTupleSatisfiesVacuum(&tuple, oldest_xmin, buffer));
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(rewrite->audit_page->context);
	rewrite->audit_page = NULL;
	rewrite->counters[heap].audited_pages++;
}

/* audit_row -- has a row of a page a copy if it should have one, and is that right? */
static void
audit_row(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
		  HeapTuple tuple, HTSV_Result verdict)
{
	static const char *const fate_names[] = {
		"the row is dead", "the row is deleted, and may be seen", "the row is live",
	};
	const struct RewriteAudit *page = rewrite->audit_page;
	HeapTupleHeader copy = page->copies[place->off];
	TupleFate	fate = fate_of(verdict);

	if (!page->has_fate[place->off])
		fail(rewrite, place, "there is no row", fate_names[fate]);
	if (page->fates[place->off] != fate)
		fail(rewrite, place, fate_names[page->fates[place->off]], fate_names[fate]);
	if (fate == TUPLE_DEAD)
	{
		if (copy != NULL)
			fail(rewrite, place, "the row is kept", "it is dead");
		return;
	}
	if (copy == NULL)
	{
		if (!page->is_left[place->off] || !may_be_left(rewrite, heap, tuple))
			fail(rewrite, place, "the row is left out", "it isn't dead");
		return;
	}
	compare_copy(rewrite, heap, place, tuple, copy, page->lengths[place->off]);
	/* of a row whose xmin isn't known to have committed, xmax says nothing */
	if (verdict != HEAPTUPLE_INSERT_IN_PROGRESS)
		compare_visibility(rewrite, place, tuple->t_data, copy, fate == TUPLE_RECENTLY_DEAD);
	if (heap == REWRITE_TABLE)
		compare_needed_values(rewrite, place, copy, page->lengths[place->off]);
}

/* fate_of -- what does a row's state mean for a rewrite? */
static TupleFate
fate_of(HTSV_Result verdict)
{
	if (verdict == HEAPTUPLE_DEAD)
		return TUPLE_DEAD;
	return verdict == HEAPTUPLE_RECENTLY_DEAD || verdict == HEAPTUPLE_DELETE_IN_PROGRESS ?
		TUPLE_RECENTLY_DEAD : TUPLE_LIVE;
}

/*
 * may_be_left
 *		May a row have been left to the leader, as linked with others or too big; or, in
 *		a TOAST table, left out as one that no row needs?
 */
static bool
may_be_left(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple)
{
	HeapTupleHeader header = tuple->t_data;

	return heap == REWRITE_TOAST || (header->t_infomask & HEAP_UPDATED) != 0 ||
		(!(header->t_infomask & HEAP_XMAX_INVALID) &&
		 !ItemPointerEquals(&header->t_ctid, &tuple->t_self)) ||
		tuple_copy_is_too_big(tuple_copy_length(rewrite, tuple));
}

/* rewrite_audit_by_leader -- compare a row that was left to the leader with its copy, if chance says so. */
void
rewrite_audit_by_leader(TableRewrite *rewrite, HeapTuple old, HeapTupleHeader copy, Size length)
{
	AuditPlace	place = {
		.rel = rewrite->old_heaps[REWRITE_TABLE],
		.blkno = ItemPointerGetBlockNumber(&old->t_self),
		.off = ItemPointerGetOffsetNumber(&old->t_self)
	};
	MemoryContext context;

	Assert(rewrite_is_leader(rewrite));
	Assert(copy != NULL && length > 0);
	/* its context is used here */
	Assert(rewrite->audit_page == NULL);

	if (likely(!audit_is_due()))
		return;
	prepare(rewrite);
	context = MemoryContextSwitchTo(rewrite->audit->context);
	if (!tuple_copy_is_too_big(tuple_copy_length(rewrite, old)))
		compare_copy(rewrite, REWRITE_TABLE, &place, old, copy, length);
	compare_needed_values(rewrite, &place, copy, length);
	MemoryContextSwitchTo(context);
	MemoryContextReset(rewrite->audit->context);
}

/* rewrite_audit_count -- have the pages that were written as many rows as were to be kept? */
void
rewrite_audit_count(TableRewrite *rewrite, RewriteHeap heap, int64 kept)
{
	HeapCopyShared *copy = &rewrite->shared->heaps[heap];
	int64		written = pg_atomic_read_u64(&copy->new_blocks.rows);
	AuditPlace	place = {.rel = rewrite->old_heaps[heap],.blkno = InvalidBlockNumber};

	Assert(rewrite_is_leader(rewrite));
	Assert(kept >= 0);

	if (cyclone_audit <= 0)
		return;
	audit_prepare();
	if (written != kept)
		fail(rewrite, &place, psprintf(INT64_FORMAT " rows are kept", kept),
			 psprintf("there are " INT64_FORMAT " in the new file", written));
	if (RelationGetNumberOfBlocks(rewrite->new_heaps[heap]) !=
		pg_atomic_read_u32(&copy->new_blocks.nblocks))
		fail(rewrite, &place, psprintf("the new file has %u blocks",
									   pg_atomic_read_u32(&copy->new_blocks.nblocks)),
			 psprintf("it has %u", RelationGetNumberOfBlocks(rewrite->new_heaps[heap])));
}

/*
 * rewrite_audit_indexes
 *		Are new btrees in order, also those of the TOAST table?
 *
 * An invalid index of a TOAST table is none of them: the server's rewrite, too, leaves it
 * as it is.
 */
int64
rewrite_audit_indexes(Oid relid, const char *command)
{
	Relation	rel = table_open(relid, AccessExclusiveLock);
	Oid			toast_relid = rel->rd_rel->reltoastrelid;
	int64		naudited = 0;

	foreach_oid(index_relid, RelationGetIndexList(rel))
	{
		Relation	index = index_open(index_relid, AccessExclusiveLock);

		if (index->rd_index->indisvalid)
			naudited += audit_new_btree(index, rel, command);
		index_close(index, NoLock);
	}
	table_close(rel, NoLock);
	if (OidIsValid(toast_relid))
		naudited += rewrite_audit_indexes(toast_relid, command);
	return naudited;
}

/* compare_copy -- has a copy the columns of its row? */
static void
compare_copy(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
			 HeapTuple old, HeapTupleHeader copy, Size length)
{
	HeapTupleData copied = {.t_data = copy,.t_len = length};

	/* most are the same bytes, from the bitmap of nulls on */
	if (old->t_len == length && old->t_data->t_hoff == copy->t_hoff &&
		memcmp(old->t_data->t_bits, copy->t_bits, length - SizeofHeapTupleHeader) == 0 &&
		HeapTupleHeaderGetNatts(old->t_data) == HeapTupleHeaderGetNatts(copy) &&
		HeapTupleHasNulls(old) == HeapTupleHasNulls(&copied))
		return;
	if (columns_differ(rewrite, heap, old, &copied))
		fail(rewrite, place, "the row is copied", "its copy has other values");
}

/* compare_needed_values -- are the values in the TOAST table that a copy points at noted as needed? */
static void
compare_needed_values(TableRewrite *rewrite, const AuditPlace *place,
					  HeapTupleHeader copy, Size length)
{
	TupleDesc	desc = RelationGetDescr(rewrite->old_heaps[REWRITE_TABLE]);
	HeapTupleData tuple = {.t_data = copy,.t_len = length};
	Datum	   *values;
	bool	   *nulls;

	if (!HeapTupleHasExternal(&tuple) || rewrite->shared->value_ids_start == 0)
		return;
	values = palloc_array(Datum, desc->natts);
	nulls = palloc_array(bool, desc->natts);
	heap_deform_tuple(&tuple, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		struct varlena *value = (struct varlena *) DatumGetPointer(values[i]);
		struct varatt_external pointer;

		if (nulls[i] || TupleDescAttr(desc, i)->attlen != -1 || !VARATT_IS_EXTERNAL_ONDISK(value))
			continue;
		VARATT_EXTERNAL_GET_POINTER(pointer, value);
		if (!value_ids_include(rewrite_value_ids(rewrite->shared), pointer.va_valueid))
			fail(rewrite, place, psprintf("no row needs value %u of the TOAST table", pointer.va_valueid),
				 "this row does");
	}
}

/* columns_differ -- has a copy that was formed anew other values than its row? */
static bool
columns_differ(TableRewrite *rewrite, RewriteHeap heap, HeapTuple old, HeapTuple copy)
{
	TupleDesc	desc = RelationGetDescr(rewrite->old_heaps[heap]);
	TupleDesc	new_desc = RelationGetDescr(rewrite->new_heaps[heap]);
	Datum	   *values = palloc_array(Datum, desc->natts);
	bool	   *nulls = palloc_array(bool, desc->natts);
	Datum	   *copied_values = palloc_array(Datum, desc->natts);
	bool	   *copied_nulls = palloc_array(bool, desc->natts);
	bool		differ = desc->natts != new_desc->natts;

	if (differ)
		return true;
	heap_deform_tuple(old, desc, values, nulls);
	heap_deform_tuple(copy, new_desc, copied_values, copied_nulls);
	for (int i = 0; i < desc->natts && !differ; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);

		if (attr->attisdropped)
			continue;
		differ = nulls[i] != copied_nulls[i] ||
			(!nulls[i] && value_differs(values[i], copied_values[i], attr));
	}
	return differ;
}

/*
 * value_differs
 *		Is it another value?
 *
 * In a row that was formed anew, the same value may have a shorter header, or be
 * compressed.  A value that is stored elsewhere keeps its pointer.
 */
static bool
value_differs(Datum old, Datum copied, Form_pg_attribute attr)
{
	struct varlena *values[] = {
		(struct varlena *) DatumGetPointer(old), (struct varlena *) DatumGetPointer(copied)
	};

	if (attr->attlen != -1 || VARATT_IS_EXTERNAL(values[0]) || VARATT_IS_EXTERNAL(values[1]))
		return !datumIsEqual(old, copied, attr->attbyval, attr->attlen);
	for (int i = 0; i < 2; i++)
		values[i] = pg_detoast_datum_packed(values[i]);
	return VARSIZE_ANY_EXHDR(values[0]) != VARSIZE_ANY_EXHDR(values[1]) ||
		memcmp(VARDATA_ANY(values[0]), VARDATA_ANY(values[1]), VARSIZE_ANY_EXHDR(values[0])) != 0;
}

/*
 * compare_visibility
 *		Has a copy the visibility of its row, and is it frozen if it is old enough?
 *
 * An xmax that is a multixact may have become another one.
 */
static void
compare_visibility(TableRewrite *rewrite, const AuditPlace *place,
				   HeapTupleHeader old, HeapTupleHeader copy, bool is_deleted)
{
	TransactionId xmin = HeapTupleHeaderGetRawXmin(old);
	bool		is_frozen = HeapTupleHeaderXminFrozen(old) ||
		(TransactionIdIsNormal(xmin) && TransactionIdPrecedes(xmin, rewrite->shared->freeze_limit));

	if (old->t_infomask & (HEAP_MOVED | HEAP_XMAX_IS_MULTI))
		return;
	if (HeapTupleHeaderGetRawXmin(copy) != xmin)
		fail(rewrite, place, psprintf("xmin of the copy is %u", HeapTupleHeaderGetRawXmin(copy)),
			 psprintf("that of the row is %u", xmin));
	if (HeapTupleHeaderXminFrozen(copy) != is_frozen)
		fail(rewrite, place, is_frozen ? "the copy isn't frozen" : "the copy is frozen",
			 is_frozen ? "it is old enough" : "it isn't old enough");
	if ((!(copy->t_infomask & HEAP_XMAX_INVALID) && !HEAP_XMAX_IS_LOCKED_ONLY(copy->t_infomask)) != is_deleted)
		fail(rewrite, place, is_deleted ? "the copy is live" : "the copy is deleted",
			 is_deleted ? "the row is deleted" : "the row is live");
	if (is_deleted && HeapTupleHeaderGetRawXmax(copy) != HeapTupleHeaderGetRawXmax(old))
		fail(rewrite, place, psprintf("xmax of the copy is %u", HeapTupleHeaderGetRawXmax(copy)),
			 psprintf("that of the row is %u", HeapTupleHeaderGetRawXmax(old)));
}

/*
 * fail
 *		Two verdicts on a row differ: raise an error.  Releases the page's lock, if the
 *		place has one.
 */
static void
fail(TableRewrite *rewrite, const AuditPlace *place, const char *engine, const char *audit)
{
	const RewriteShared *shared = rewrite->shared;
	const HeapCopyShared *copy = &shared->heaps[REWRITE_TABLE];

	audit_raise(place, "VACUUM (FULL)",
				psprintf("member %d of %d, old blocks %u, OldestXmin %u, freeze limit %u, multi cutoff %u, relfrozenxid %u, relminmxid %u",
						 rewrite->member, shared->nmembers, copy->old_blocks, copy->oldest_xmin,
						 shared->freeze_limit, shared->multi_cutoff, copy->relfrozenxid,
						 copy->relminmxid),
				engine, audit);
}
