/*-------------------------------------------------------------------------
 *
 * audit_rows.c
 *	  Versions of a row, compared; a sample of rows that FULL INPLACE has moved, before
 *	  their batch commits.
 *
 * cyclone.audit is how likely it is that a row is one of the sample.  When the batch is
 * complete, both versions of such a row are read once more.  The old one must be updated
 * by us and point at the new one, which must be ours and the latest.  Both must have the
 * same values.  Entries in indexes are made by the server's own routine, and are not
 * looked at.
 *
 * If that fails the batch is undone, and the table is left to the server.
 *
 * Values are compared byte by byte: no function of a type or an operator class is called.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#include "audit/audit.h"
#include "engine/heap/page_check.h"

/* A row of the sample */
typedef struct MovedRow
{
	ItemPointerData old;
	ItemPointerData new;
} MovedRow;

struct MoveAudit
{
	MemoryContext context;		/* for the row in hand */
	Relation	rel;
	TransactionId xid;			/* of the batch */
	BufferAccessStrategy ring;
	int			nrows;
	int			size;
	MovedRow   *rows;
};

static void audit_moved_row(const MoveAudit *audit, const MovedRow *row);
static HeapTuple read_moved_version(const MoveAudit *audit, const ItemPointerData *place);
static bool value_differs(Datum old, Datum new, Form_pg_attribute attr, bool values_move);
static void fail_moved_row(const MoveAudit *audit, const ItemPointerData *place,
						   const char *engine, const char *found);

/*
 * audit_moves_note
 *		A row has moved from an old place to a new one: remember it, if it is one of the
 *		sample.  *audit is NULL before the first one, and is made in context.
 *
 * Pages may be locked.  Allocates memory, so not in a critical section.
 */
void
audit_moves_note(MoveAudit **audit, MemoryContext context,
				 const ItemPointerData *old, const ItemPointerData *new)
{
	MoveAudit  *rows = *audit;

	Assert(ItemPointerIsValid(old) && ItemPointerIsValid(new));
	Assert(CritSectionCount == 0);
	if (likely(!audit_is_due()))
		return;
	if (rows == NULL)
	{
		rows = *audit = MemoryContextAllocZero(context, sizeof(MoveAudit));
		rows->size = MaxHeapTuplesPerPage;
		rows->rows = MemoryContextAlloc(context, rows->size * sizeof(MovedRow));
		rows->context = AllocSetContextCreate(context, "Audited row", ALLOCSET_DEFAULT_SIZES);
	}
	if (rows->nrows == rows->size)
	{
		rows->size *= 2;
		rows->rows = repalloc_array(rows->rows, MovedRow, rows->size);
	}
	rows->rows[rows->nrows].old = *old;
	rows->rows[rows->nrows++].new = *new;
}

/*
 * audit_moves_check
 *		Before transaction xid commits, which has moved rows of rel: look at those that
 *		were noted, and forget them.  Returns how many there were.  audit may be NULL.
 */
int
audit_moves_check(MoveAudit *audit, Relation rel, TransactionId xid, BufferAccessStrategy ring)
{
	MemoryContext old;
	int			nrows;

	Assert(CritSectionCount == 0);
	if (audit == NULL)
		return 0;
	Assert(TransactionIdIsCurrentTransactionId(xid));
	audit->rel = rel;
	audit->xid = xid;
	audit->ring = ring;
	old = MemoryContextSwitchTo(audit->context);
	for (int i = 0; i < audit->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		audit_moved_row(audit, &audit->rows[i]);
		MemoryContextReset(audit->context);
	}
	MemoryContextSwitchTo(old);
	nrows = audit->nrows;
	audit->nrows = 0;
	return nrows;
}

/* audit_moved_row -- look at one of them. */
static void
audit_moved_row(const MoveAudit *audit, const MovedRow *row)
{
	HeapTuple	old = read_moved_version(audit, &row->old);
	HeapTuple	new = read_moved_version(audit, &row->new);
	TupleDesc	desc = RelationGetDescr(audit->rel);

	if (HeapTupleHeaderGetUpdateXid(old->t_data) != audit->xid ||
		!ItemPointerEquals(&old->t_data->t_ctid, unconstify(ItemPointerData *, &row->new)))
		fail_moved_row(audit, &row->old, "the old version points at the new one", "it doesn't");

	/*
	 * a session that checks a foreign key locks the latest version of a row,
	 * and may have locked this one already
	 */
	if (HeapTupleHeaderGetRawXmin(new->t_data) != audit->xid ||
		!((new->t_data->t_infomask & HEAP_XMAX_INVALID) ||
		  HEAP_XMAX_IS_LOCKED_ONLY(new->t_data->t_infomask)) ||
		!ItemPointerEquals(&new->t_data->t_ctid, &new->t_self))
		fail_moved_row(audit, &row->new, "the new version is ours, and the latest one", "it isn't");
	if (audit_rows_differ(old, desc, new, desc, true))
		fail_moved_row(audit, &row->new, "the new version has the row's values",
					   psprintf("they differ from those at (%u,%u)",
								ItemPointerGetBlockNumber(&row->old),
								ItemPointerGetOffsetNumber(&row->old)));
}

/* read_moved_version -- return a copy of the version that is at that place now. */
static HeapTuple
read_moved_version(const MoveAudit *audit, const ItemPointerData *place)
{
	OffsetNumber off = ItemPointerGetOffsetNumber(place);
	Buffer		buffer = ReadBufferExtended(audit->rel, MAIN_FORKNUM,
											ItemPointerGetBlockNumber(place), RBM_NORMAL,
											audit->ring);
	Page		page = BufferGetPage(buffer);
	HeapTupleData tuple = {.t_self = *place,.t_tableOid = RelationGetRelid(audit->rel)};
	HeapTuple	copy = NULL;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (off <= PageGetMaxOffsetNumber(page) && ItemIdIsNormal(PageGetItemId(page, off)) &&
		ItemIdGetOffset(PageGetItemId(page, off)) + ItemIdGetLength(PageGetItemId(page, off)) <= BLCKSZ)
	{
		tuple.t_data = page_check_row_at(audit->rel, buffer, page, off);
		tuple.t_len = ItemIdGetLength(PageGetItemId(page, off));
		copy = heap_copytuple(&tuple);
	}
	UnlockReleaseBuffer(buffer);
	if (copy == NULL)
		fail_moved_row(audit, place, "a version is there", "none is");
	return copy;
}

/* fail_moved_row -- there are two verdicts on a row.  The report has its page as it is now. */
static void
fail_moved_row(const MoveAudit *audit, const ItemPointerData *place,
			   const char *engine, const char *found)
{
	AuditPlace	at = {
		.rel = audit->rel,.blkno = ItemPointerGetBlockNumber(place),
		.off = ItemPointerGetOffsetNumber(place)
	};

	at.buffer = ReadBuffer(audit->rel, at.blkno);
	LockBuffer(at.buffer, BUFFER_LOCK_SHARE);
	audit_raise(&at, "VACUUM (FULL INPLACE)", psprintf("XID %u", audit->xid), engine, found);
}

/* audit_rows_differ -- see audit.h.  Leaves memory behind. */
bool
audit_rows_differ(HeapTuple old, TupleDesc old_desc, HeapTuple new, TupleDesc new_desc,
				  bool values_move)
{
	Datum	   *values[2];
	bool	   *nulls[2];
	bool		differ = old_desc->natts != new_desc->natts;

	/* most are the same bytes, from the bitmap of nulls on */
	if (!differ && old->t_len == new->t_len && old->t_data->t_hoff == new->t_data->t_hoff &&
		HeapTupleHeaderGetNatts(old->t_data) == HeapTupleHeaderGetNatts(new->t_data) &&
		HeapTupleHasNulls(old) == HeapTupleHasNulls(new) &&
		memcmp(old->t_data->t_bits, new->t_data->t_bits, old->t_len - SizeofHeapTupleHeader) == 0)
		return false;
	for (int i = 0; i < 2; i++)
	{
		values[i] = palloc_array(Datum, old_desc->natts);
		nulls[i] = palloc_array(bool, old_desc->natts);
	}
	if (!differ)
	{
		heap_deform_tuple(old, old_desc, values[0], nulls[0]);
		heap_deform_tuple(new, new_desc, values[1], nulls[1]);
	}
	for (int i = 0; i < old_desc->natts && !differ; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(old_desc, i);

		if (!attr->attisdropped)
			differ = nulls[0][i] != nulls[1][i] ||
				(!nulls[0][i] && value_differs(values[0][i], values[1][i], attr, values_move));
	}
	return differ;
}

/*
 * value_differs
 *		Is it another value?
 *
 * In a row that was formed anew, the same value may have a shorter header, or be
 * compressed.
 */
static bool
value_differs(Datum old, Datum new, Form_pg_attribute attr, bool values_move)
{
	struct varlena *values[] = {
		(struct varlena *) DatumGetPointer(old), (struct varlena *) DatumGetPointer(new)
	};

	if (attr->attlen != -1)
		return !datumIsEqual(old, new, attr->attbyval, attr->attlen);
	if (VARATT_IS_EXTERNAL(values[0]) || VARATT_IS_EXTERNAL(values[1]))
	{
		if (!values_move || !VARATT_IS_EXTERNAL_ONDISK(values[0]) || !VARATT_IS_EXTERNAL_ONDISK(values[1]))
			return !datumIsEqual(old, new, attr->attbyval, attr->attlen);
		/* compressed as they are */
		for (int i = 0; i < 2; i++)
			values[i] = detoast_external_attr(values[i]);
		return VARSIZE_ANY(values[0]) != VARSIZE_ANY(values[1]) ||
			memcmp(values[0], values[1], VARSIZE_ANY(values[0])) != 0;
	}
	for (int i = 0; i < 2; i++)
		values[i] = pg_detoast_datum_packed(values[i]);
	return VARSIZE_ANY_EXHDR(values[0]) != VARSIZE_ANY_EXHDR(values[1]) ||
		memcmp(VARDATA_ANY(values[0]), VARDATA_ANY(values[1]), VARSIZE_ANY_EXHDR(values[0])) != 0;
}
