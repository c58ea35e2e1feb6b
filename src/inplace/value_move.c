/*-------------------------------------------------------------------------
 *
 * value_move.c
 *	  Moving values from the end of a TOAST table to free space before it.
 *
 * The rows of a TOAST table can't be moved as others are: a session that reads a
 * value takes each version of its parts that it finds, and would find them
 * twice.  So a value is moved by storing it once more, as it is, compressed or
 * not, and giving the row that points at it a new version that points at
 * the new one.  The old value is deleted with the old version, by the same
 * transaction, as in any update of a value.
 *
 * A pass reads the table once to find the rows that point at such values.  The tail of the TOAST table is taken out of the
 * free space map before, so that the server, which stores the values, puts them elsewhere.
 *
 * Logical decoding hears nothing of it: new parts of values are not marked for
 * it, and it doesn't care for deleted ones.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/hio.h"
#include "access/table.h"
#include "access/toast_internals.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "varatt.h"

#include "debug_point.h"
#include "inplace/inplace.h"
#include "inplace/move_batch.h"
#include "inplace/page_change.h"

/* A row with values to be moved, and its pointers at them, old and new */
typedef struct ValueMove
{
	MoveBatch	batch;
	Relation	toast_rel;
	bool		is_full;		/* is there no room in the TOAST table? */
	Buffer		map;			/* pages of the visibility map */
	Buffer		target_map;
	HeapTuple	row;			/* a copy, with new pointers in the end */
	int			npointers;
	struct varlena *old[MaxTupleAttributeNumber];
	struct varlena *new[MaxTupleAttributeNumber];
} ValueMove;

static void note_values(Inplace *toast, Relation rel);
static Oid	value_of_part(Relation rel, Buffer buffer, OffsetNumber off);
static bool look_through_page(ValueMove *move, Inplace *toast, BlockNumber blkno);
static List *find_rows(ValueMove *move, Inplace *toast, Buffer buffer, int64 *nlocked);
static int	find_pointers(ValueMove *move, Inplace *toast, HeapTuple row, struct varlena **pointers);
static bool move_values(ValueMove *move, Inplace *toast, Buffer buffer);
static bool replace_row(ValueMove *move, Buffer buffer, HeapTuple old);

/*
 * value_move_plan
 *		Note which values are in the tail of a TOAST table, and keep others away
 *		from there.  job is the table's.
 *
 * In a transaction, with the pace to be kept, and both tables locked for the
 * session: the TOAST table is still what tail_plan saw.
 */
void
value_move_plan(Inplace *job, Inplace *toast)
{
	Relation	rel;

	Assert(IsTransactionState());
	rel = table_open(toast->relid, ShareUpdateExclusiveLock);
	Assert(RelationGetNumberOfBlocks(rel) >= toast->npages);
	note_values(toast, rel);
	tail_hide(toast, rel);
	table_close(rel, NoLock);

	rel = table_open(job->relid, ShareUpdateExclusiveLock);
	toast->look_through = RelationGetNumberOfBlocks(rel);
	table_close(rel, NoLock);
}

/*
 * note_values
 *		List the values with parts in the tail; if they are too many, make it
 *		shorter.
 */
static void
note_values(Inplace *toast, Relation rel)
{
	Size		limit = Min((Size) maintenance_work_mem * 1024, MaxAllocSize) / sizeof(Oid);
	Size		size = 1024;
	int			nunique = 0;

	if (toast->values != NULL)
		pfree(toast->values);
	toast->values = MemoryContextAlloc(toast->context, size * sizeof(Oid));
	toast->nvalues = 0;
	tail_begin_reading(toast, rel);
	for (BlockNumber blkno = toast->npages; blkno > toast->tail_start; blkno--)
	{
		Buffer		buffer;
		Page		page;

		delay_point();
		if (toast->nvalues + MaxHeapTuplesPerPage > size)
		{
			if (size >= limit)
			{
				toast->tail_start = blkno;
				break;
			}
			size = Max(Min(size * 2, limit), toast->nvalues + MaxHeapTuplesPerPage);
			toast->values = repalloc(toast->values, size * sizeof(Oid));
		}

		file_cache_before_read(toast->file_cache, rel, toast->file_cache_map, blkno - 1);
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, blkno - 1, RBM_NORMAL, toast->ring);
		page = BufferGetPage(buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		page_check_items(rel, buffer);
		for (OffsetNumber off = FirstOffsetNumber;
			 !PageIsNew(page) && off <= PageGetMaxOffsetNumber(page); off++)
		{
			if (ItemIdIsNormal(PageGetItemId(page, off)))
			{
				Oid			value = value_of_part(rel, buffer, off);

				if (toast->nvalues == 0 || toast->values[toast->nvalues - 1] != value)
					toast->values[toast->nvalues++] = value;
			}
		}
		UnlockReleaseBuffer(buffer);
	}
	tail_end_reading(toast);

	qsort(toast->values, toast->nvalues, sizeof(Oid), oid_cmp);
	for (int i = 0; i < toast->nvalues; i++)
		if (i == 0 || toast->values[i] != toast->values[i - 1])
			toast->values[nunique++] = toast->values[i];
	toast->nvalues = nunique;
}

/*
 * value_of_part
 *		Return the value that a row of a TOAST table is a part of.  Raises an error if
 *		the row is too short to say so.
 *
 * The page is locked, and its items have been checked.
 */
static Oid
value_of_part(Relation rel, Buffer buffer, OffsetNumber off)
{
	Page		page = BufferGetPage(buffer);
	ItemId		item = PageGetItemId(page, off);
	HeapTupleHeader header = (HeapTupleHeader) PageGetItem(page, item);
	Oid			value;

	if (header->t_hoff + sizeof(Oid) > ItemIdGetLength(item))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("tuple (%u,%u) of relation \"%s\" is not one of a TOAST table",
						BufferGetBlockNumber(buffer), off, RelationGetRelationName(rel))));
	/* chunk_id is the first column, and never null; t_hoff may be any number */
	memcpy(&value, (char *) header + header->t_hoff, sizeof(Oid));
	return value;
}

/*
 * value_move_some
 *		Move the values of some rows, in a transaction of its own; false if there
 *		is no more to look through, or no room.
 *
 * job is the table's, and counts the rows.
 */
bool
value_move_some(Inplace *job, Inplace *toast)
{
	ValueMove	move = {0};
	bool		more;

	Assert(!IsTransactionState());

	if (!move_batch_begin(&move.batch, job))
		return !job->is_stopped;
	move.toast_rel = table_open(toast->relid, RowExclusiveLock);
	/* at least one page, or row, however slow we are */
	do
	{
		CHECK_FOR_INTERRUPTS();
		more = job->next_visit < job->end_visits;
		/* not again for values that had to be left to other sessions */
		if (more && (look_through_page(&move, toast, job->next_visit) || move.batch.is_in_the_way))
			move_batch_visited(&move.batch);
		more = more && !move.is_full;
	} while (more && move_batch_goes_on(&move.batch));
	if (BufferIsValid(move.map))
		ReleaseBuffer(move.map);
	if (BufferIsValid(move.target_map))
		ReleaseBuffer(move.target_map);
	table_close(move.toast_rel, NoLock);

	/*
	 * a batch that was undone keeps its room until the next VACUUM, so others
	 * find none
	 */
	return move_batch_end(&move.batch) ? !move.is_full : more;
}

/*
 * look_through_page
 *		Move the values of the rows on one page; false if there may be more of
 *		them, but no time or no room.
 */
static bool
look_through_page(ValueMove *move, Inplace *toast, BlockNumber blkno)
{
	MoveBatch  *batch = &move->batch;
	Buffer		buffer;
	MemoryContext old;
	bool		through = true;
	int			nmoved = 0;
	int64		nlocked = 0;

	Assert(IsSubTransaction() == batch->can_be_undone);
	file_cache_before_read(batch->job->file_cache, batch->rel, batch->job->file_cache_map, blkno);
	buffer = ReadBufferExtended(batch->rel, MAIN_FORKNUM, blkno, RBM_NORMAL, batch->job->ring);
	old = MemoryContextSwitchTo(batch->row_context);
	foreach_ptr(HeapTupleData, row, find_rows(move, toast, buffer, &nlocked))
	{
		CHECK_FOR_INTERRUPTS();
		/* the server would make the TOAST table longer */
		move->is_full = GetPageWithFreeSpace(move->toast_rel, TOAST_PART_SIZE) == InvalidBlockNumber;
		through = !move->is_full && (nmoved == 0 || move_batch_goes_on(batch));
		if (!through)
			break;
		nmoved++;
		move->row = row;
		if (!move_values(move, toast, buffer))
			nlocked++;
	}
	/* or else they are counted when we come again */
	if (through)
		batch->job->moved.in_use += nlocked;
	/* the pin has kept the rows where they were found */
	ReleaseBuffer(buffer);
	MemoryContextSwitchTo(old);
	MemoryContextReset(batch->row_context);
	return through;
}

/*
 * find_rows
 *		List copies of the rows on a page that point at one of the values, and may
 *		be moved as it looks; and count those that others have locked or changed.
 */
static List *
find_rows(ValueMove *move, Inplace *toast, Buffer buffer, int64 *nlocked)
{
	Page		page = BufferGetPage(buffer);
	List	   *rows = NIL;
	struct varlena **pointers = palloc_array(struct varlena *, MaxTupleAttributeNumber);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page_check_items(move->batch.rel, buffer);
	for (OffsetNumber off = FirstOffsetNumber;
		 !PageIsNew(page) && off <= PageGetMaxOffsetNumber(page); off++)
	{
		ItemId		item = PageGetItemId(page, off);
		HeapTupleData row;

		if (!ItemIdIsNormal(item))
			continue;
		row.t_data = (HeapTupleHeader) PageGetItem(page, item);
		row.t_len = ItemIdGetLength(item);
		row.t_tableOid = move->batch.job->relid;
		ItemPointerSet(&row.t_self, BufferGetBlockNumber(buffer), off);
		if (!HeapTupleHasExternal(&row) ||
			find_pointers(move, toast, &row, pointers) == 0)
			continue;
		switch (move_batch_judge(&move->batch, &row, buffer))
		{
			case TM_Ok:
				rows = lappend(rows, heap_copytuple(&row));
				break;
			case TM_BeingModified:
				(*nlocked)++;
				break;
			default:
				break;
		}
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return rows;
}

/*
 * find_pointers
 *		Find where a row points at one of the values; return how many times.
 *
 * Columns that were dropped count, as their values are still there.
 */
static int
find_pointers(ValueMove *move, Inplace *toast, HeapTuple row, struct varlena **pointers)
{
	TupleDesc	desc = RelationGetDescr(move->batch.rel);
	Datum		values[MaxTupleAttributeNumber];
	bool		nulls[MaxTupleAttributeNumber];
	int			natts = HeapTupleHeaderGetNatts(row->t_data);
	int			npointers = 0;

	heap_deform_tuple(row, desc, values, nulls);
	for (int i = 0; i < Min(natts, desc->natts); i++)
	{
		struct varlena *value = (struct varlena *) DatumGetPointer(values[i]);
		struct varatt_external pointer;

		if (nulls[i] || TupleDescAttr(desc, i)->attlen != -1 || !VARATT_IS_EXTERNAL_ONDISK(value))
			continue;
		VARATT_EXTERNAL_GET_POINTER(pointer, value);
		if (pointer.va_toastrelid == toast->relid &&
			bsearch(&pointer.va_valueid, toast->values, toast->nvalues, sizeof(Oid), oid_cmp) != NULL)
			pointers[npointers++] = value;
	}
	return npointers;
}

/*
 * move_values
 *		Store the values of move->row anew, and replace the row.
 *
 * The new values come first, as long as nobody has to wait.  If the row has
 * been changed or locked meanwhile they are deleted again, and it returns false.
 */
static bool
move_values(ValueMove *move, Inplace *toast, Buffer buffer)
{
	Relation	rel = move->batch.rel;
	HeapTuple	old = heap_copytuple(move->row);
	bool		replaced;

	move->npointers = find_pointers(move, toast, move->row, move->new);
	find_pointers(move, toast, old, move->old);
	for (int i = 0; i < move->npointers; i++)
	{
		struct varlena *value = detoast_external_attr(move->old[i]);
		Datum		stored = toast_save_datum(rel, PointerGetDatum(value), NULL,
											  HEAP_INSERT_NO_LOGICAL);

		/* one pointer is as long as another */
		Assert(VARSIZE_EXTERNAL(DatumGetPointer(stored)) == VARSIZE_EXTERNAL(move->new[i]));
		memcpy(move->new[i], DatumGetPointer(stored), VARSIZE_EXTERNAL(move->new[i]));
		pfree(value);
		CHECK_FOR_INTERRUPTS();
	}
	DEBUG_POINT("inplace-value");

	replaced = replace_row(move, buffer, old);
	if (!replaced)
	{
		/* or else we couldn't see them */
		CommandCounterIncrement();
		move->batch.cid = GetCurrentCommandId(true);
	}
	for (int i = 0; i < move->npointers; i++)
		toast_delete_datum(rel, PointerGetDatum(replaced ? move->old[i] : move->new[i]), false);
	return replaced;
}

/*
 * replace_row
 *		Make move->row the new version of the old row, if that is still what it
 *		was.
 */
static bool
replace_row(ValueMove *move, Buffer buffer, HeapTuple old)
{
	MoveBatch  *batch = &move->batch;
	OffsetNumber off = ItemPointerGetOffsetNumber(&old->t_self);
	HeapTuple	new_version;
	HeapTupleData row;
	Buffer		target;
	Page		page;
	ItemId		item;
	bool		is_same;

	move_batch_assign_xid(batch);
	new_version = move_batch_new_version(batch, move->row);

	/* this locks both pages, and pins what is needed of the visibility map */
	target = RelationGetBufferForTuple(batch->rel, new_version->t_len, buffer, 0, NULL,
									   &move->target_map, &move->map, 1);
	page = BufferGetPage(buffer);
	item = PageGetItemId(page, off);
	is_same = off <= PageGetMaxOffsetNumber(page) && ItemIdIsNormal(item) &&
		ItemIdGetLength(item) == old->t_len;
	if (is_same)
	{
		row.t_data = (HeapTupleHeader) PageGetItem(page, item);
		row.t_len = old->t_len;
		row.t_tableOid = old->t_tableOid;
		row.t_self = old->t_self;
		is_same = HeapTupleHeaderGetRawXmin(row.t_data) == HeapTupleHeaderGetRawXmin(old->t_data) &&
			move_batch_judge(batch, &row, buffer) == TM_Ok;
	}
	if (is_same)
	{
		page_check_header(batch->rel, target);
		move_batch_check_readers(batch, &old->t_self);
		page_put(batch->rel, target, move->target_map, &new_version, 1);
		DEBUG_POINT("inplace-half");
		page_mark_moved(batch->rel, buffer, move->map, batch->xid, batch->cid, &off,
						&new_version, 1);
		audit_moves_note(&batch->audit, batch->context, &old->t_self, &new_version->t_self);
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	if (target != buffer)
		UnlockReleaseBuffer(target);
	if (!is_same)
		return false;

	move_batch_count(batch, 1);
	move_batch_add_entries(batch, new_version);
	return true;
}
