/*-------------------------------------------------------------------------
 *
 * audit_rewrite.c
 *	  Rows that VACUUM FULL or REPACK has copied, compared with their copies.
 *
 * When a page of the old heap has been copied, and while it is still locked,
 * HeapTupleSatisfiesVacuum judges each of its rows, and tuple_fate must have come to the
 * same.  A row that a snapshot may still see must have a copy, unless it was left to the
 * leader, or is a chunk that no row needs; any other row must have none.  Values and
 * visibility of row and copy are compared.  Of what is left to the leader, it compares a
 * random sample.  The number of rows is compared for all pages.
 *
 * All this happens before the new files are the table's, so a failure costs nothing
 * but the work.  New btrees come last (audit_new_btree.c), before the transaction
 * commits.
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

#include "audit/audit.h"
#include "rewrite/rewrite.h"

/* What was made of a row */
typedef struct CopiedRow
{
	bool		has_fate;
	TupleFate	fate;
	bool		is_left;		/* to the leader, or as an orphan */
	HeapTupleHeader copy;		/* NULL: none */
	Size		length;
} CopiedRow;

/* The page in hand */
struct RewriteAudit
{
	MemoryContext context;
	OffsetNumber maxoff;
	CopiedRow	rows[MaxOffsetNumber + 1];	/* by their old items */
};

static void prepare_rewrite_audit(TableRewrite *rewrite);
static void audit_copied_row(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
							 HeapTuple tuple, HTSV_Result verdict);
static TupleFate fate_of(HTSV_Result verdict);
static bool may_be_left(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple);
static void compare_copy(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
						 HeapTuple old, HeapTupleHeader copy, Size length);
static void compare_visibility(TableRewrite *rewrite, const AuditPlace *place,
							   HeapTupleHeader old, HeapTupleHeader copy, bool is_deleted);
static void fail_copy(TableRewrite *rewrite, const AuditPlace *place,
					  const char *engine, const char *audit);

/* prepare_rewrite_audit -- before the first audit of this process. */
static void
prepare_rewrite_audit(TableRewrite *rewrite)
{
	if (rewrite->audit != NULL)
		return;
	rewrite->audit = MemoryContextAlloc(TopTransactionContext, sizeof(struct RewriteAudit));
	rewrite->audit->context = AllocSetContextCreate(TopTransactionContext, "Audited rows",
													ALLOCSET_DEFAULT_SIZES);
}

/*
 * audit_rewrite_begin_page
 *		Is this page one of the sample?  Then rewrite->audit_page is where copies are
 *		noted, otherwise it is NULL.
 */
void
audit_rewrite_begin_page(TableRewrite *rewrite, Page page)
{
	rewrite->audit_page = NULL;
	if (likely(!audit_is_due()) || PageIsNew(page) ||
		PageGetMaxOffsetNumber(page) > MaxOffsetNumber)
		return;
	prepare_rewrite_audit(rewrite);
	rewrite->audit_page = rewrite->audit;
	rewrite->audit->maxoff = PageGetMaxOffsetNumber(page);
	memset(rewrite->audit->rows, 0, (rewrite->audit->maxoff + 1) * sizeof(CopiedRow));
}

/* audit_rewrite_fate -- of such a page, note the fate of an item. */
void
audit_rewrite_fate(TableRewrite *rewrite, OffsetNumber off, TupleFate fate)
{
	if (likely(rewrite->audit_page == NULL))
		return;
	Assert(off >= FirstOffsetNumber && off <= rewrite->audit_page->maxoff);
	rewrite->audit_page->rows[off].has_fate = true;
	rewrite->audit_page->rows[off].fate = fate;
}

/* audit_rewrite_note -- of such a page, note the copy of an item; NULL: left to the leader, or left out as an orphan. */
void
audit_rewrite_note(TableRewrite *rewrite, OffsetNumber off, HeapTupleHeader copy, Size length)
{
	if (likely(rewrite->audit_page == NULL))
		return;
	Assert(off >= FirstOffsetNumber && off <= rewrite->audit_page->maxoff);
	rewrite->audit_page->rows[off].is_left = copy == NULL;
	rewrite->audit_page->rows[off].copy = copy;
	rewrite->audit_page->rows[off].length = length;
}

/* audit_rewrite_page -- judge the rows of a page of the sample once more. */
void
audit_rewrite_page(TableRewrite *rewrite, RewriteHeap heap, Buffer buffer)
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
			if (rewrite->audit_page->rows[off].copy != NULL)
				fail_copy(rewrite, &place, "the row is kept", "the item has no row");
			continue;
		}
		/* its length is what heap_copy.c makes of it */
		(void) tuple_copy_find(rel, BufferGetPage(buffer), place.blkno, off, &tuple);
		audit_copied_row(rewrite, heap, &place, &tuple,
						 HeapTupleSatisfiesVacuum(&tuple, oldest_xmin, buffer));
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(rewrite->audit_page->context);
	rewrite->audit_page = NULL;
	rewrite->counters[heap].audited_pages++;
}

/* audit_copied_row -- has a row of a page a copy if it should have one, and is that right? */
static void
audit_copied_row(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
				 HeapTuple tuple, HTSV_Result verdict)
{
	static const char *const fate_names[] = {
		"the row is dead", "the row is deleted, and may be seen", "the row is live",
	};
	const CopiedRow *row = &rewrite->audit_page->rows[place->off];
	TupleFate	fate = fate_of(verdict);

	if (!row->has_fate)
		fail_copy(rewrite, place, "there is no row", fate_names[fate]);
	if (row->fate != fate)
		fail_copy(rewrite, place, fate_names[row->fate], fate_names[fate]);
	if (fate == TUPLE_DEAD && row->copy != NULL)
		fail_copy(rewrite, place, "the row is kept", "it is dead");
	if (fate != TUPLE_DEAD && row->copy == NULL &&
		(!row->is_left || !may_be_left(rewrite, heap, tuple)))
		fail_copy(rewrite, place, "the row is left out", "it isn't dead");
	if (row->copy == NULL)
		return;
	compare_copy(rewrite, heap, place, tuple, row->copy, row->length);
	/* of a row whose xmin isn't known to have committed, xmax says nothing */
	if (verdict != HEAPTUPLE_INSERT_IN_PROGRESS)
		compare_visibility(rewrite, place, tuple->t_data, row->copy, fate == TUPLE_RECENTLY_DEAD);
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

/* audit_rewrite_by_leader -- compare a row that was left to the leader with its copy, if chance says so. */
void
audit_rewrite_by_leader(TableRewrite *rewrite, HeapTuple old, HeapTupleHeader copy, Size length)
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
	prepare_rewrite_audit(rewrite);
	context = MemoryContextSwitchTo(rewrite->audit->context);
	if (!tuple_copy_is_too_big(tuple_copy_length(rewrite, old)))
		compare_copy(rewrite, REWRITE_TABLE, &place, old, copy, length);
	MemoryContextSwitchTo(context);
	MemoryContextReset(rewrite->audit->context);
}

/* audit_rewrite_count -- have the pages that were written as many rows as were to be kept? */
void
audit_rewrite_count(TableRewrite *rewrite, RewriteHeap heap, int64 kept)
{
	HeapCopyShared *copy = &rewrite->shared->heaps[heap];
	int64		written = pg_atomic_read_u64(&copy->new_blocks.rows);
	AuditPlace	place = {.rel = rewrite->old_heaps[heap],.blkno = InvalidBlockNumber};

	Assert(rewrite_is_leader(rewrite));
	Assert(kept >= 0);

	if (cyclone_audit <= 0)
		return;
	if (written != kept)
		fail_copy(rewrite, &place, psprintf(INT64_FORMAT " rows are kept", kept),
				  psprintf("there are " INT64_FORMAT " in the new file", written));
	if (RelationGetNumberOfBlocks(rewrite->new_heaps[heap]) !=
		pg_atomic_read_u32(&copy->new_blocks.nblocks))
		fail_copy(rewrite, &place, psprintf("the new file has %u blocks",
											pg_atomic_read_u32(&copy->new_blocks.nblocks)),
				  psprintf("it has %u", RelationGetNumberOfBlocks(rewrite->new_heaps[heap])));
}

/*
 * audit_rewrite_indexes
 *		Are new btrees in order, and has each row an entry, also in the TOAST table?
 *
 * An invalid index of a TOAST table is none of them: the server's rewrite, too, leaves it
 * as it is.
 */
int64
audit_rewrite_indexes(Oid relid, const char *command)
{
	Relation	rel = table_open(relid, AccessExclusiveLock);
	Oid			toast_relid = rel->rd_rel->reltoastrelid;
	int64		naudited = 0;

	foreach_oid(index_relid, RelationGetIndexList(rel))
	{
		Relation	index = index_open(index_relid, AccessExclusiveLock);

		if (index->rd_index->indisvalid)
			naudited += audit_new_btree(index, rel, true, command);
		index_close(index, NoLock);
	}
	table_close(rel, NoLock);
	if (OidIsValid(toast_relid))
		naudited += audit_rewrite_indexes(toast_relid, command);
	return naudited;
}

/* compare_copy -- has a copy the columns of its row? */
static void
compare_copy(TableRewrite *rewrite, RewriteHeap heap, const AuditPlace *place,
			 HeapTuple old, HeapTupleHeader copy, Size length)
{
	HeapTupleData copied = {.t_data = copy,.t_len = length};

	if (audit_rows_differ(old, RelationGetDescr(rewrite->old_heaps[heap]),
						  &copied, RelationGetDescr(rewrite->new_heaps[heap]), false))
		fail_copy(rewrite, place, "the row is copied", "its copy has other values");
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
		fail_copy(rewrite, place, psprintf("xmin of the copy is %u", HeapTupleHeaderGetRawXmin(copy)),
				  psprintf("that of the row is %u", xmin));
	if (HeapTupleHeaderXminFrozen(copy) != is_frozen)
		fail_copy(rewrite, place, is_frozen ? "the copy isn't frozen" : "the copy is frozen",
				  is_frozen ? "it is old enough" : "it isn't old enough");
	if ((!(copy->t_infomask & HEAP_XMAX_INVALID) && !HEAP_XMAX_IS_LOCKED_ONLY(copy->t_infomask)) != is_deleted)
		fail_copy(rewrite, place, is_deleted ? "the copy is live" : "the copy is deleted",
				  is_deleted ? "the row is deleted" : "the row is live");
	if (is_deleted && HeapTupleHeaderGetRawXmax(copy) != HeapTupleHeaderGetRawXmax(old))
		fail_copy(rewrite, place, psprintf("xmax of the copy is %u", HeapTupleHeaderGetRawXmax(copy)),
				  psprintf("that of the row is %u", HeapTupleHeaderGetRawXmax(old)));
}

/*
 * fail_copy
 *		Two verdicts on a row differ: raise an error.  Releases the page's lock, if the
 *		place has one.
 */
static void
fail_copy(TableRewrite *rewrite, const AuditPlace *place, const char *engine, const char *audit)
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
