/*-------------------------------------------------------------------------
 *
 * move_audit.c
 *	  A sample of moved rows, looked at before their batch commits.
 *
 * As in engine/audit.c, cyclone.audit is how likely it is that a row is one of the
 * sample.  When all entries of a batch have been made, both versions of such a row are
 * read once more: the old one must be updated by us and point at the new one, which
 * nobody has changed; they must have the same values, byte for byte, but for values in
 * the TOAST table that have been moved, which are compared themselves.  Then each index
 * is asked for the new version's entry:
 *
 * - a btree for the key with its TID, on the leaf page where that would be;
 * - a hash index by a scan for the key, unless it isn't equal to itself.  It ends after
 *	 MOST_ENTRIES, as others wait for the batch;
 * - of a BRIN index the summary of the new block's range: adding the row to it must
 *	 change nothing.  If adding it twice changes it twice, that says nothing.
 *
 * What can't be asked is counted.  So is each entry of a GIN, GiST or SP-GiST index.  In
 * GIN a scan would read all rows with the keys.  In GiST a scan for an equal value may read
 * much of the index, and may not find a row that a scan by another operator would: a NaN in
 * one row hides others.
 *
 * If that fails the batch is undone, in a worker, too, and the table is left to the
 * server: autovacuum/table_log.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/brin_internal.h"
#include "access/brin_revmap.h"
#include "access/brin_tuple.h"
#include "access/detoast.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "engine/audit.h"
#include "engine/index/index_kind.h"
#include "inplace/move_batch.h"
#include "inplace/page_change.h"

/* After as many entries of equal rows as this, a search is given up */
#define MOST_ENTRIES	10000

/* What an index says of an entry that should be there */
typedef enum EntryState
{
	ENTRY_FOUND,				/* or there is to be none */
	ENTRY_MISSING,
	ENTRY_NOT_ASKED,			/* as it can't be */
} EntryState;

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
};

static void audit_row(MoveBatch *batch, const MovedRow *row);
static HeapTuple read_version(MoveBatch *batch, const ItemPointerData *place);
static void compare_versions(MoveBatch *batch, HeapTuple old, HeapTuple new);
static bool value_differs(Datum old, Datum new, Form_pg_attribute attr);
static EntryState find_entry(IndexEntries *entries, int i, HeapTuple tuple);
static EntryState ask_index(Relation rel, Relation index, Datum *values, bool *isnull,
							ItemPointer tid);
static EntryState find_in_btree(Relation rel, Relation index, IndexTuple entry, ItemPointer tid);
static bool page_has_entry(Relation index, BTScanInsert key, Buffer buffer, ItemPointer tid);
static EntryState find_in_hash(Relation rel, Relation index, Datum value, ItemPointer tid);
static EntryState find_in_brin(Relation index, const Datum *values, const bool *isnull,
							   ItemPointer tid);
static bool add_to_summary(Relation index, BrinDesc *desc, BrinMemTuple *summary,
						   const Datum *values, const bool *isnull);
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

	Assert(TransactionIdIsValid(batch->xid));
	Assert(ItemPointerIsValid(old) && ItemPointerIsValid(new));

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

	Assert(CritSectionCount == 0);

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
	{
		EntryState	state = find_entry(entries, i, new);

		if (state == ENTRY_MISSING)
			fail(batch, &row->new,
				 psprintf("index \"%s\" has an entry of the new version",
						  RelationGetRelationName(entries->indexes[i])), "it isn't found");
		batch->job->moved.entries_not_asked += state == ENTRY_NOT_ASKED;
	}
}

/* read_version -- return a copy of the version that is at that place now. */
static HeapTuple
read_version(MoveBatch *batch, const ItemPointerData *place)
{
	OffsetNumber off = ItemPointerGetOffsetNumber(place);
	Buffer		buffer = ReadBufferExtended(batch->rel, MAIN_FORKNUM,
											ItemPointerGetBlockNumber(place), RBM_NORMAL,
											batch->job->ring);
	Page		page = BufferGetPage(buffer);
	HeapTupleData tuple = {.t_self = *place,.t_tableOid = RelationGetRelid(batch->rel)};
	HeapTuple	copy = NULL;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (page_check_row(batch->rel, buffer, off))
	{
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, off));
		tuple.t_len = ItemIdGetLength(PageGetItemId(page, off));
		copy = heap_copytuple(&tuple);
	}
	UnlockReleaseBuffer(buffer);
	if (copy == NULL)
		fail(batch, place, "a version is there", "none is");
	return copy;
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

/* find_entry -- does an index have an entry of a version that should be there? */
static EntryState
find_entry(IndexEntries *entries, int i, HeapTuple tuple)
{
	IndexInfo  *info = entries->infos[i];
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	EntryState	state = ENTRY_FOUND;
	MemoryContext old;

	if (!info->ii_ReadyForInserts)
		return ENTRY_FOUND;
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(entries->estate));
	ExecStoreHeapTuple(tuple, entries->slot, false);
	if (entries->predicates[i] == NULL ||
		ExecQual(entries->predicates[i], GetPerTupleExprContext(entries->estate)))
	{
		FormIndexDatum(info, entries->slot, entries->estate, values, isnull);
		state = ask_index(entries->rel, entries->indexes[i], values, isnull, &tuple->t_self);
	}
	ExecClearTuple(entries->slot);
	MemoryContextSwitchTo(old);
	ResetPerTupleExprContext(entries->estate);
	return state;
}

/* ask_index -- the same, when it is known what the entry is. */
static EntryState
ask_index(Relation rel, Relation index, Datum *values, bool *isnull, ItemPointer tid)
{
	switch (index->rd_rel->relam)
	{
		case BTREE_AM_OID:
			return find_in_btree(rel, index,
								 index_form_tuple(RelationGetDescr(index), values, isnull), tid);
		case HASH_AM_OID:
			return isnull[0] ? ENTRY_FOUND : find_in_hash(rel, index, values[0], tid);
		case BRIN_AM_OID:
			return find_in_brin(index, values, isnull, tid);
		default:
			return ENTRY_NOT_ASKED;
	}
}

/*
 * find_in_btree
 *		The same for a btree, whose entries are in the order of keys and TIDs; not for
 *		one from before PostgreSQL 12, which would have to be searched.
 */
static EntryState
find_in_btree(Relation rel, Relation index, IndexTuple entry, ItemPointer tid)
{
	BTScanInsert key = _bt_mkscankey(index, entry);
	Buffer		buffer;
	bool		found = false;

	if (!key->heapkeyspace)
		return ENTRY_NOT_ASKED;
	key->scantid = tid;
	compat_bt_search(index, rel, key, &buffer);
	if (BufferIsValid(buffer))
	{
		found = page_has_entry(index, key, buffer, tid);
		_bt_relbuf(index, buffer);
	}
	return found ? ENTRY_FOUND : ENTRY_MISSING;
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

/*
 * find_in_hash
 *		The same for a hash index, by a scan for all entries of the key.
 *
 * It isn't counted as a scan: indexes that aren't used are found by that.
 */
static EntryState
find_in_hash(Relation rel, Relation index, Datum value, ItemPointer tid)
{
	Oid			type = index->rd_opcintype[0];
	Oid			collation = index->rd_indcollation[0];
	Oid			equals = get_opfamily_member(index->rd_opfamily[0], type, type,
											 HTEqualStrategyNumber);
	RegProcedure function = OidIsValid(equals) ? get_opcode(equals) : InvalidOid;
	ScanKeyData key;
	SnapshotData dirty;
	IndexScanDesc scan;
	EntryState	state = ENTRY_NOT_ASKED;
	int			nentries = 0;

	if (!OidIsValid(function) ||
		!DatumGetBool(OidFunctionCall2Coll(function, collation, value, value)))
		return ENTRY_NOT_ASKED;
	ScanKeyEntryInitialize(&key, 0, 1, HTEqualStrategyNumber, InvalidOid, collation, function,
						   value);
	InitDirtySnapshot(dirty);
	scan = compat_index_beginscan(rel, index, &dirty, 1);
	index_rescan(scan, &key, 1, NULL, 0);
	while (state == ENTRY_NOT_ASKED && nentries++ < MOST_ENTRIES)
	{
		ItemPointer entry = index_getnext_tid(scan, ForwardScanDirection);

		CHECK_FOR_INTERRUPTS();
		if (entry == NULL)
			state = ENTRY_MISSING;
		else if (ItemPointerEquals(entry, tid))
			state = ENTRY_FOUND;
	}
	index_endscan(scan);
	if (pgstat_should_count_relation(index))
		index->pgstat_info->counts.numscans--;
	return state;
}

/*
 * find_in_brin
 *		The same for a BRIN index: is the row in the summary of its range, if there is
 *		one?  One that is being made will have the row.
 */
static EntryState
find_in_brin(Relation index, const Datum *values, const bool *isnull, ItemPointer tid)
{
	BlockNumber range;
	BrinRevmap *revmap = brinRevmapInitialize(index, &range);
	BlockNumber blkno = ItemPointerGetBlockNumber(tid);
	Buffer		buffer = InvalidBuffer;
	EntryState	state = ENTRY_FOUND;
	OffsetNumber off;
	Size		size;
	BrinTuple  *stored = brinGetTupleForHeapBlock(revmap, blkno - blkno % range, &buffer, &off,
												  &size, BUFFER_LOCK_SHARE);

	if (stored != NULL)
	{
		BrinDesc   *desc = brin_build_desc(index);
		BrinMemTuple *summary;

		stored = brin_copy_tuple(stored, size, NULL, NULL);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		summary = brin_deform_tuple(desc, stored, NULL);
		if (summary->bt_placeholder)
			state = ENTRY_NOT_ASKED;
		else if (add_to_summary(index, desc, summary, values, isnull))
			state = add_to_summary(index, desc, summary, values, isnull) ?
				ENTRY_NOT_ASKED : ENTRY_MISSING;
		brin_free_desc(desc);
	}
	if (BufferIsValid(buffer))
		ReleaseBuffer(buffer);
	brinRevmapTerminate(revmap);
	return state;
}

/* add_to_summary -- add a row to a summary, in memory.  Does that change it? */
static bool
add_to_summary(Relation index, BrinDesc *desc, BrinMemTuple *summary, const Datum *values,
			   const bool *isnull)
{
	bool		changes = summary->bt_empty_range;

	for (int k = 0; k < desc->bd_tupdesc->natts; k++)
	{
		BrinValues *column = &summary->bt_columns[k];

		if (desc->bd_info[k]->oi_regular_nulls && isnull[k])
		{
			changes |= !column->bv_hasnulls && !column->bv_allnulls;
			column->bv_hasnulls = true;
		}
		else
			changes |= DatumGetBool(FunctionCall4Coll(index_getprocinfo(index, k + 1, BRIN_PROCNUM_ADDVALUE),
													  index->rd_indcollation[k],
													  PointerGetDatum(desc), PointerGetDatum(column),
													  values[k], BoolGetDatum(isnull[k])));
	}
	summary->bt_empty_range = false;
	return changes;
}

/* fail -- there are two verdicts on a moved row.  The report has its page as it is now. */
static void
fail(MoveBatch *batch, const ItemPointerData *place, const char *engine, const char *audit)
{
	AuditPlace	at = {
		.rel = batch->rel,.blkno = ItemPointerGetBlockNumber(place),
		.off = ItemPointerGetOffsetNumber(place)
	};

	at.buffer = ReadBuffer(batch->rel, at.blkno);
	LockBuffer(at.buffer, BUFFER_LOCK_SHARE);
	audit_raise(&at, "VACUUM (FULL INPLACE)",
				psprintf("XID %u, command %u, rows moved in this pass " INT64_FORMAT ", indexes %d",
						 batch->xid, batch->cid, batch->job->moved.rows, batch->entries->nindexes),
				engine, audit);
}
