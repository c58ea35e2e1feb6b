/*-------------------------------------------------------------------------
 *
 * move_audit.c
 *	  A sample of moved rows, looked at before their batch commits.
 *
 * As in engine/audit.c, cyclone.audit is how likely it is that a row is one of the sample.
 * When all entries of a batch have been made, both of its versions are read once more:
 * the old one must be updated by us and point at the new one, which nobody has
 * changed; they must have the same values, byte for byte, but for values in the
 * TOAST table that have been moved, which are compared themselves.  Then each btree and
 * hash index is asked for the new version's entry.  Indexes of other kinds can't be asked for a
 * single entry.
 *
 * If that fails the batch is undone, in a worker, too, and the table is left to the
 * server: autovacuum/table_log.c.  That ends the moves of all (may_move, movers.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/hash.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "engine/audit.h"
#include "engine/index/index_kind.h"
#include "inplace/move_batch.h"
#include "inplace/page_change.h"

/* A row of the sample */
typedef struct MovedRow
{
	ItemPointerData old;
	ItemPointerData new;
} MovedRow;

struct MoveAudit
{
	MemoryContext context;		/* for the row in hand */
	int			nrows;
	int			size;
	MovedRow   *rows;
	PGAlignedBlock page;		/* of the version read last */
};

static void audit_row(MoveBatch *batch, const MovedRow *row);
static HeapTuple read_version(MoveBatch *batch, const ItemPointerData *place);
static void compare_versions(MoveBatch *batch, HeapTuple old, HeapTuple new);
static bool value_differs(Datum old, Datum new, Form_pg_attribute attr);
static bool is_in_index(IndexEntries *entries, int i, HeapTuple tuple);
static bool is_in_btree(Relation rel, Relation index, IndexTuple entry, ItemPointer tid);
static bool page_has_entry(Relation index, BTScanInsert key, Buffer buffer, ItemPointer tid);
static bool is_in_hash(Relation rel, Relation index, Datum value, ItemPointer tid);
static void fail(MoveBatch *batch, const ItemPointerData *place,
				 const char *engine, const char *audit);

/*
 * move_audit_note
 *		A row has moved from an old place to a new one: remember it, if it is one of the
 *		sample.
 *
 * Pages may be locked.
 */
void
move_audit_note(MoveBatch *batch, const ItemPointerData *old, const ItemPointerData *new)
{
	struct MoveAudit *audit = batch->audit;

	/* it allocates memory */
	Assert(CritSectionCount == 0);
	if (likely(!audit_is_due()))
		return;
	if (audit == NULL)
	{
		audit = MemoryContextAllocZero(batch->context, sizeof(struct MoveAudit));
		audit->size = MaxHeapTuplesPerPage;
		audit->rows = MemoryContextAlloc(batch->context, audit->size * sizeof(MovedRow));
		audit->context = AllocSetContextCreate(batch->context, "Audited row",
											   ALLOCSET_DEFAULT_SIZES);
		batch->audit = audit;
	}
	if (audit->nrows == audit->size)
	{
		audit->size *= 2;
		audit->rows = repalloc_array(audit->rows, MovedRow, audit->size);
	}
	audit->rows[audit->nrows].old = *old;
	audit->rows[audit->nrows++].new = *new;
}

/*
 * move_audit_batch
 *		Before a batch commits, whose entries have all been made: look at its sample.
 */
void
move_audit_batch(MoveBatch *batch)
{
	struct MoveAudit *audit = batch->audit;
	MemoryContext old;

	if (audit == NULL)
		return;
	audit_prepare();
	old = MemoryContextSwitchTo(audit->context);
	for (int i = 0; i < audit->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		audit_row(batch, &audit->rows[i]);
		MemoryContextReset(audit->context);
	}
	MemoryContextSwitchTo(old);
	batch->job->moved.audited += audit->nrows;
	audit->nrows = 0;
}

/* audit_row -- one row of it. */
static void
audit_row(MoveBatch *batch, const MovedRow *row)
{
	IndexEntries *entries = batch->entries;
	HeapTuple	old = read_version(batch, &row->old);
	HeapTuple	new = read_version(batch, &row->new);

	if (HeapTupleHeaderGetUpdateXid(old->t_data) != batch->xid ||
		!ItemPointerEquals(&old->t_data->t_ctid, unconstify(ItemPointerData *, &row->new)))
		fail(batch, &row->old, "the old version points at the new one", "it doesn't");

	/*
	 * a session that checks a foreign key locks the latest version of a row,
	 * and may have locked this one already
	 */
	if (HeapTupleHeaderGetRawXmin(new->t_data) != batch->xid ||
		!((new->t_data->t_infomask & HEAP_XMAX_INVALID) ||
		  HEAP_XMAX_IS_LOCKED_ONLY(new->t_data->t_infomask)) ||
		!ItemPointerEquals(&new->t_data->t_ctid, &new->t_self))
		fail(batch, &row->new, "the new version is ours, and the latest one", "it isn't");
	compare_versions(batch, old, new);
	for (int i = 0; i < entries->nindexes; i++)
		if (!is_in_index(entries, i, new))
			fail(batch, &row->new,
				 psprintf("index \"%s\" has an entry of the new version",
						  RelationGetRelationName(entries->indexes[i])), "it isn't found");
}

/* read_version -- a copy of what is at that place now; that of its page stays in batch->audit. */
static HeapTuple
read_version(MoveBatch *batch, const ItemPointerData *place)
{
	Page		page = (Page) batch->audit->page.data;
	OffsetNumber off = ItemPointerGetOffsetNumber(place);
	Buffer		buffer = ReadBufferExtended(batch->rel, MAIN_FORKNUM,
											ItemPointerGetBlockNumber(place), RBM_NORMAL,
											batch->job->ring);
	ItemId		item;
	HeapTupleData tuple = {.t_self = *place,.t_tableOid = RelationGetRelid(batch->rel)};

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page_check_items(batch->rel, buffer);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	item = PageGetItemId(page, off);
	if (PageIsNew(page) || off > PageGetMaxOffsetNumber(page) || !ItemIdIsNormal(item))
		fail(batch, place, "a version is there", "none is");
	tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
	tuple.t_len = ItemIdGetLength(item);
	return heap_copytuple(&tuple);
}

/* compare_versions -- have both the same columns, and values? */
static void
compare_versions(MoveBatch *batch, HeapTuple old, HeapTuple new)
{
	TupleDesc	desc = RelationGetDescr(batch->rel);
	bool		differ = old->t_len != new->t_len ||
		old->t_data->t_hoff != new->t_data->t_hoff ||
		HeapTupleHeaderGetNatts(old->t_data) != HeapTupleHeaderGetNatts(new->t_data) ||
		HeapTupleHasNulls(old) != HeapTupleHasNulls(new);
	Datum	   *values[2];
	bool	   *nulls[2];

	if (!differ && memcmp(old->t_data->t_bits, new->t_data->t_bits,
						  old->t_len - SizeofHeapTupleHeader) == 0)
		return;
	for (int i = 0; i < 2; i++)
	{
		values[i] = palloc_array(Datum, desc->natts);
		nulls[i] = palloc_array(bool, desc->natts);
		heap_deform_tuple(i == 0 ? old : new, desc, values[i], nulls[i]);
	}
	for (int i = 0; i < desc->natts && !differ; i++)
		differ = nulls[0][i] != nulls[1][i] ||
			(!nulls[0][i] && value_differs(values[0][i], values[1][i], TupleDescAttr(desc, i)));
	if (differ)
		fail(batch, &new->t_self, "the new version has the row's values",
			 psprintf("they differ from those at (%u,%u)", ItemPointerGetBlockNumber(&old->t_self),
					  ItemPointerGetOffsetNumber(&old->t_self)));
}

/* value_differs -- is it other bytes, wherever they are stored? */
static bool
value_differs(Datum old, Datum new, Form_pg_attribute attr)
{
	struct varlena *values[] = {
		(struct varlena *) DatumGetPointer(old), (struct varlena *) DatumGetPointer(new)
	};

	if (attr->attlen != -1 || !VARATT_IS_EXTERNAL_ONDISK(values[0]) ||
		!VARATT_IS_EXTERNAL_ONDISK(values[1]))
		return !datumIsEqual(old, new, attr->attbyval, attr->attlen);
	for (int i = 0; i < 2; i++)
		values[i] = detoast_external_attr(values[i]);
	return VARSIZE_ANY(values[0]) != VARSIZE_ANY(values[1]) ||
		memcmp(values[0], values[1], VARSIZE_ANY(values[0])) != 0;
}

/*
 * is_in_index
 *		Does an index have an entry of a version that should be there?  True if it
 *		can't be asked.
 */
static bool
is_in_index(IndexEntries *entries, int i, HeapTuple tuple)
{
	Relation	index = entries->indexes[i];
	IndexInfo  *info = entries->infos[i];
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	bool		found = true;
	MemoryContext old;

	if (!info->ii_ReadyForInserts ||
		(index->rd_rel->relam != BTREE_AM_OID && index->rd_rel->relam != HASH_AM_OID))
		return true;
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(entries->estate));
	ExecStoreHeapTuple(tuple, entries->slot, false);
	if (entries->predicates[i] == NULL ||
		ExecQual(entries->predicates[i], GetPerTupleExprContext(entries->estate)))
	{
		FormIndexDatum(info, entries->slot, entries->estate, values, isnull);
		if (index->rd_rel->relam == BTREE_AM_OID)
			found = is_in_btree(entries->rel, index,
								index_form_tuple(RelationGetDescr(index), values, isnull),
								&tuple->t_self);
		else if (!isnull[0])
			found = is_in_hash(entries->rel, index, values[0], &tuple->t_self);
	}
	ExecClearTuple(entries->slot);
	MemoryContextSwitchTo(old);
	ResetPerTupleExprContext(entries->estate);
	return found;
}

/*
 * is_in_btree
 *		The same for a btree, whose entries are in the order of keys and TIDs; not for
 *		one from before PostgreSQL 12, which would have to be searched.
 */
static bool
is_in_btree(Relation rel, Relation index, IndexTuple entry, ItemPointer tid)
{
	BTScanInsert key = _bt_mkscankey(index, entry);
	Buffer		buffer;
	bool		found = false;

	if (!key->heapkeyspace)
		return true;
	key->scantid = tid;
	compat_bt_search(index, rel, key, &buffer);
	if (BufferIsValid(buffer))
	{
		found = page_has_entry(index, key, buffer, tid);
		_bt_relbuf(index, buffer);
	}
	return found;
}

/* page_has_entry -- does the leaf page on which it would be have it? */
static bool
page_has_entry(Relation index, BTScanInsert key, Buffer buffer, ItemPointer tid)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	OffsetNumber low = P_FIRSTDATAKEY(BTPageGetOpaque(page));
	OffsetNumber high = PageGetMaxOffsetNumber(page) + 1;
	IndexTuple	tuple;

	/* the first one that doesn't come before it */
	while (low < high)
	{
		OffsetNumber middle = low + (high - low) / 2;

		if (_bt_compare(index, key, page, middle) > 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low > PageGetMaxOffsetNumber(page) || _bt_compare(index, key, page, low) != 0)
		return false;
	tuple = index_whole_tuple_at(index, blkno, page, low);
	if (!BTreeTupleIsPosting(tuple))
		return ItemPointerEquals(&tuple->t_tid, tid);
	if (BTreeTupleGetPostingOffset(tuple) + BTreeTupleGetNPosting(tuple) * sizeof(ItemPointerData) >
		ItemIdGetLength(PageGetItemId(page, low)))
		index_report_item(index, blkno, PageGetItemId(page, low));
	for (int i = 0; i < BTreeTupleGetNPosting(tuple); i++)
		if (ItemPointerEquals(BTreeTupleGetPostingN(tuple, i), tid))
			return true;
	return false;
}

/* is_in_hash -- the same for a hash index, by a scan for all entries of the value. */
static bool
is_in_hash(Relation rel, Relation index, Datum value, ItemPointer tid)
{
	Oid			type = index->rd_opcintype[0];
	Oid			equals = get_opfamily_member(index->rd_opfamily[0], type, type,
											 HTEqualStrategyNumber);
	ScanKeyData key;
	SnapshotData dirty;
	IndexScanDesc scan;
	ItemPointer found;

	if (!OidIsValid(equals))
		return true;
	ScanKeyEntryInitialize(&key, 0, 1, HTEqualStrategyNumber, InvalidOid,
						   index->rd_indcollation[0], get_opcode(equals), value);
	InitDirtySnapshot(dirty);
	scan = compat_index_beginscan(rel, index, &dirty, 1);
	index_rescan(scan, &key, 1, NULL, 0);
	while ((found = index_getnext_tid(scan, ForwardScanDirection)) != NULL &&
		   !ItemPointerEquals(found, tid))
		CHECK_FOR_INTERRUPTS();
	index_endscan(scan);
	return found != NULL;
}

/* fail -- there are two verdicts on a moved row. */
static void
fail(MoveBatch *batch, const ItemPointerData *place, const char *engine, const char *audit)
{
	AuditPlace	at = {
		.rel = batch->rel,.page = (Page) batch->audit->page.data,
		.blkno = ItemPointerGetBlockNumber(place),.off = ItemPointerGetOffsetNumber(place)
	};

	audit_raise(&at, "VACUUM (FULL INPLACE)",
				psprintf("XID %u, command %u, rows moved in this pass " INT64_FORMAT ", indexes %d",
						 batch->xid, batch->cid, batch->job->moved.rows, batch->entries->nindexes),
				engine, audit);
}
