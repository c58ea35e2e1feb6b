/*-------------------------------------------------------------------------
 *
 * audit_moves.c
 *	  A sample of rows that FULL INPLACE has moved, before their batch commits.
 *
 * cyclone.audit is how likely it is that a row is one of the sample.  When the batch is
 * complete, both versions of such a row are read once more.  The old one must be updated
 * by us and point at the new one, which must be ours and the latest.  Both must have the
 * same values.  Entries in indexes are made by the server's own routine, and are not
 * looked at.
 *
 * If that fails the batch is undone, and the table is left to the server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
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
