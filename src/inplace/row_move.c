/*-------------------------------------------------------------------------
 *
 * row_move.c
 *	  Moving rows from the end of a table into free space at its beginning.
 *
 * A move is an update that changes nothing: the old version gets our
 * transaction as its xmax and points at the new one, which others who hold the
 * old one's row number follow, as with any update.  Until we commit they wait
 * for us, so each batch is a transaction of a few milliseconds.  No key
 * changes, so those who check foreign keys don't wait.  What is not
 * like an update: the place is ours to choose, no trigger fires, no value is
 * looked at, values in the TOAST table stay where they are as both versions
 * point at them, nothing is counted as an update, and logical decoding hears
 * nothing.
 *
 * Only rows that every transaction agrees on are moved: committed, and neither
 * deleted, changed nor locked by anyone still running.  That is the server's
 * own HeapTupleSatisfiesUpdate, under the page's exclusive lock, so nobody can
 * come in between.  All others stay, for the next pass.
 *
 * The two pages are locked in the order of their block numbers, as the server does.
 * page_change.c has the changes to each, and their WAL.
 *
 * The transactions are serializable.  A serializable transaction that read the
 * old version may not see that another changes the new one, as what it has
 * read is noted by row number; but it sees that we changed the old one, and
 * that is enough to break any cycle that goes through the two.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/multixact.h"
#include "access/table.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"
#include "storage/predicate.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "debug_point.h"
#include "inplace/inplace.h"
#include "report/progress.h"
#include "transaction.h"

/* So long may others wait for a row, apart from one page's work. */
#define BATCH_MS	5

/* One batch */
typedef struct MoveBatch
{
	Inplace    *job;
	Relation	rel;
	IndexEntries *entries;
	Size		reserve;
	TransactionId xid;
	CommandId	cid;
	Buffer		source_map;		/* pages of the visibility map */
	Buffer		target_map;
	MemoryContext page_context;

	/* the page in hand: copies of the rows that could be moved */
	Buffer		source;
	int			nrows;
	HeapTuple	rows[MaxHeapTuplesPerPage];
	OffsetNumber offsets[MaxHeapTuplesPerPage];
	bool		fits[MaxHeapTuplesPerPage];
} MoveBatch;

static void prepare_to_move(void);
static bool vacate_page(MoveBatch *batch, BlockNumber blkno);
static Size smallest_row(Buffer buffer);
static Buffer next_target(MoveBatch *batch, Size room, BlockNumber limit);
static int	move_rows(MoveBatch *batch, Buffer target, bool *all_fit);
static void find_rows(MoveBatch *batch, MoveObstacles *obstacles);
static HeapTuple new_version(MoveBatch *batch, HeapTuple old);
static bool time_is_up(instr_time start);

/*
 * row_move_batch
 *		Move the rows of a few pages, in a transaction of its own.
 *
 * Returns whether the pass has more to do.  The caller is outside any
 * transaction, and has the table locked for the session.  The pace is kept at the
 * beginning, when nobody waits for us, and in a transaction, as an interrupt
 * outside of any would not end the session's lock.
 */
bool
row_move_batch(Inplace *job)
{
	MoveBatch  *batch;
	SavedUser	saved;
	instr_time	start;
	bool		more = true;

	StartTransactionCommand();
	delay_point();
	DEBUG_POINT("inplace-pause");
	prepare_to_move();
	batch = palloc0_object(MoveBatch);
	batch->job = job;
	batch->rel = table_open(job->relid, RowExclusiveLock);
	become_owner(batch->rel, &saved);
	batch->entries = index_entries_open(batch->rel);
	batch->reserve = RelationGetTargetPageFreeSpace(batch->rel, HEAP_DEFAULT_FILLFACTOR);
	batch->page_context = AllocSetContextCreate(CurrentMemoryContext, "Moved rows",
												ALLOCSET_DEFAULT_SIZES);
	/* someone may lock what we update, and make us a member of a MultiXact */
	MultiXactIdSetOldestMember();
	batch->cid = GetCurrentCommandId(true);

	INSTR_TIME_SET_CURRENT(start);
	while (more && !time_is_up(start))
	{
		CHECK_FOR_INTERRUPTS();
		more = job->source > job->tail_start && vacate_page(batch, job->source - 1);
		if (more)
			progress_blocks_done(job->npages - --job->source);
	}

	if (TransactionIdIsValid(batch->xid))
		job->last_xid = batch->xid;
	if (BufferIsValid(batch->source_map))
		ReleaseBuffer(batch->source_map);
	if (BufferIsValid(batch->target_map))
		ReleaseBuffer(batch->target_map);
	index_entries_close(batch->entries);
	become_user_again(&saved);
	table_close(batch->rel, NoLock);
	DEBUG_POINT("inplace-batch");
	end_transaction();
	return more;
}

/*
 * prepare_to_move
 *		Make the current transaction, just begun, one that moves rows.
 *
 * Nothing is lost if its commit is: the old versions are there until a VACUUM
 * removes them, and that is logged after it.
 */
static void
prepare_to_move(void)
{
	XactIsoLevel = XACT_SERIALIZABLE;
	XactReadOnly = false;
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * vacate_page
 *		Move what can be moved from a block; false if there is no room any more.
 */
static bool
vacate_page(MoveBatch *batch, BlockNumber blkno)
{
	Inplace    *job = batch->job;
	Size		room;
	bool		all_fit = false;

	batch->source = ReadBufferExtended(batch->rel, MAIN_FORKNUM, blkno, RBM_NORMAL, job->ring);
	visibilitymap_pin(batch->rel, blkno, &batch->source_map);
	room = smallest_row(batch->source);

	while (room > 0 && !all_fit)
	{
		Buffer		target = next_target(batch, room, blkno);
		BlockNumber target_block;
		MemoryContext old;
		int			nmoved;
		Size		space;

		if (!BufferIsValid(target))
			break;
		target_block = BufferGetBlockNumber(target);
		visibilitymap_pin(batch->rel, target_block, &batch->target_map);

		old = MemoryContextSwitchTo(batch->page_context);
		LockBuffer(target, BUFFER_LOCK_EXCLUSIVE);
		LockBuffer(batch->source, BUFFER_LOCK_EXCLUSIVE);
		nmoved = move_rows(batch, target, &all_fit);
		LockBuffer(batch->source, BUFFER_LOCK_UNLOCK);
		space = PageGetHeapFreeSpace(BufferGetPage(target));
		UnlockReleaseBuffer(target);
		MemoryContextSwitchTo(old);

		job->rows_moved += nmoved;
		for (int i = 0; i < batch->nrows; i++)
			if (batch->fits[i])
				index_entries_add(batch->entries, batch->rows[i]);
		MemoryContextReset(batch->page_context);

		/* what doesn't fit here goes to the next page, and so do all others */
		if (!all_fit)
		{
			RecordPageWithFreeSpace(batch->rel, target_block, space);
			job->target = target_block + 1;
		}
		CHECK_FOR_INTERRUPTS();
	}
	ReleaseBuffer(batch->source);

	if (room > 0 && !all_fit)
		return false;
	/* not for new rows, see tail_plan.c */
	RecordPageWithFreeSpace(batch->rel, blkno, 0);
	return true;
}

/*
 * smallest_row
 *		How much room the smallest row on a page needs, 0 if there is none.
 */
static Size
smallest_row(Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	Size		smallest = 0;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	for (OffsetNumber off = FirstOffsetNumber;
		 !PageIsNew(page) && off <= PageGetMaxOffsetNumber(page); off++)
	{
		ItemId		item = PageGetItemId(page, off);

		if (ItemIdIsNormal(item) &&
			(smallest == 0 || MAXALIGN(ItemIdGetLength(item)) < smallest))
			smallest = MAXALIGN(ItemIdGetLength(item));
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return smallest;
}

/*
 * next_target
 *		Return the first page with that much room, before limit, pinned; or none.
 */
static Buffer
next_target(MoveBatch *batch, Size room, BlockNumber limit)
{
	Inplace    *job = batch->job;

	for (; job->target < limit; job->target++)
	{
		CHECK_FOR_INTERRUPTS();
		if (GetRecordedFreeSpace(batch->rel, job->target) >= room + batch->reserve)
			return ReadBufferExtended(batch->rel, MAIN_FORKNUM, job->target, RBM_NORMAL,
									  job->ring);
	}
	return InvalidBuffer;
}

/*
 * move_rows
 *		Move rows to one page, as many as fit; return how many.
 *
 * Both pages are exclusively locked.  Sets all_fit if no row is left that
 * another page could take.
 */
static int
move_rows(MoveBatch *batch, Buffer target, bool *all_fit)
{
	HeapTuple	moved[MaxHeapTuplesPerPage];
	OffsetNumber offsets[MaxHeapTuplesPerPage];
	int			nmoved = 0;
	int			nfit;
	MoveObstacles obstacles = {0};

	find_rows(batch, &obstacles);
	if (PageIsNew(BufferGetPage(target)))
	{
		memset(batch->fits, false, sizeof(batch->fits));
		*all_fit = batch->nrows == 0;
		return 0;
	}
	nfit = page_room(BufferGetPage(target), batch->reserve, batch->rows, batch->nrows,
					 batch->fits);
	*all_fit = nfit == batch->nrows;
	if (*all_fit)
	{
		batch->job->obstacles.locked += obstacles.locked;
		batch->job->obstacles.uncommitted += obstacles.uncommitted;
		batch->job->obstacles.recently_dead += obstacles.recently_dead;
	}
	if (nfit == 0)
		return 0;

	if (!TransactionIdIsValid(batch->xid))
		batch->xid = GetCurrentTransactionId();
	for (int i = 0; i < batch->nrows; i++)
	{
		if (!batch->fits[i])
			continue;
		batch->rows[i] = new_version(batch, batch->rows[i]);
		moved[nmoved] = batch->rows[i];
		offsets[nmoved++] = batch->offsets[i];
	}

	page_put(batch->rel, target, batch->target_map, moved, nmoved);
	DEBUG_POINT("inplace-half");
	page_mark_moved(batch->rel, batch->source, batch->source_map, batch->xid, batch->cid,
					offsets, moved, nmoved);
	return nmoved;
}

/*
 * find_rows
 *		List the rows on the source page that may be moved, and count others.
 *
 * The tuples listed are those in the page.
 */
static void
find_rows(MoveBatch *batch, MoveObstacles *obstacles)
{
	Page		page = BufferGetPage(batch->source);
	BlockNumber blkno = BufferGetBlockNumber(batch->source);

	batch->nrows = 0;
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		ItemId		item = PageGetItemId(page, off);
		HeapTuple	row;

		if (!ItemIdIsNormal(item))
			continue;
		row = palloc0_object(HeapTupleData);
		row->t_data = (HeapTupleHeader) PageGetItem(page, item);
		row->t_len = ItemIdGetLength(item);
		row->t_tableOid = batch->job->relid;
		ItemPointerSet(&row->t_self, blkno, off);

		switch (HeapTupleSatisfiesUpdate(row, batch->cid, batch->source))
		{
			case TM_Ok:
				/* of a VACUUM FULL before 9.0, whose xmin isn't the whole truth */
				if (row->t_data->t_infomask & HEAP_MOVED)
					obstacles->locked++;
				else
				{
					CheckForSerializableConflictIn(batch->rel, &row->t_self, blkno);
					batch->rows[batch->nrows] = row;
					batch->offsets[batch->nrows++] = off;
				}
				break;
			case TM_Invisible:
				/* being inserted, or by a transaction that failed */
				if (TransactionIdIsInProgress(HeapTupleHeaderGetXmin(row->t_data)))
					obstacles->uncommitted++;
				break;
			case TM_BeingModified:
				obstacles->locked++;
				break;
			case TM_SelfModified:
				break;
			case TM_Updated:
			case TM_Deleted:
				obstacles->recently_dead++;
				break;
			case TM_WouldBlock:
				elog(ERROR, "unexpected verdict on a row");
		}
	}
}

/*
 * new_version
 *		Return a copy of a row as the version that our transaction makes of it.
 */
static HeapTuple
new_version(MoveBatch *batch, HeapTuple old)
{
	HeapTuple	tuple = heap_copytuple(old);
	HeapTupleHeader header = tuple->t_data;

	header->t_infomask &= ~(HEAP_XACT_MASK | HEAP_MOVED);
	header->t_infomask2 &= ~HEAP2_XACT_MASK;
	header->t_infomask |= HEAP_UPDATED | HEAP_XMAX_INVALID;
	HeapTupleHeaderSetXmin(header, batch->xid);
	HeapTupleHeaderSetCmin(header, batch->cid);
	HeapTupleHeaderSetXmax(header, InvalidTransactionId);
	return tuple;
}

/* time_is_up -- has the batch taken long enough? */
static bool
time_is_up(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_MILLISEC(now) >= BATCH_MS;
}
