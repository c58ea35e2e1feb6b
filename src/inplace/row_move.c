/*-------------------------------------------------------------------------
 *
 * row_move.c
 *	  Moving rows from the end of a table into free space at its beginning.
 *
 * Rows move page by page from the end, into the first pages with room from the
 * beginning; move_batch.c has the rules.  None of these is in the tail, even if other
 * sessions have noted room there: a row that came there would have to move once more.
 * Values in the TOAST table stay where they are, as both versions point at them.  The two pages are
 * locked in the order of their block numbers, as the server does; page_change.c has
 * the changes to each.  If a batch has no time for all rows of a page, the next one
 * goes on there.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#include "debug_point.h"
#include "inplace/inplace.h"
#include "inplace/move_batch.h"
#include "inplace/page_change.h"

/* What became of a page that was to be vacated */
typedef enum PageEnd
{
	PAGE_DONE,
	PAGE_NO_TIME,				/* the next batch goes on with it */
	PAGE_NO_ROOM,				/* nor is there any for others */
} PageEnd;

/* The page in hand */
typedef struct RowMove
{
	MoveBatch	batch;
	Buffer		source_map;		/* pages of the visibility map */
	Buffer		target_map;

	Buffer		source;
	int			nrows;			/* that could be moved */
	HeapTuple	rows[MaxHeapTuplesPerPage];
	OffsetNumber offsets[MaxHeapTuplesPerPage];
	bool		fits[MaxHeapTuplesPerPage];
} RowMove;

static PageEnd vacate_page(RowMove *move, BlockNumber blkno);
static bool move_to_page(RowMove *move, Buffer target);
static Size smallest_row(Relation rel, Buffer buffer);
static Buffer next_target(RowMove *move, Size room);
static int	move_rows(RowMove *move, Buffer target, bool *all_moved, bool *is_full);
static int	leave_rows(RowMove *move, int nfit);
static void find_rows(RowMove *move, int64 *in_use);

/*
 * row_move_some
 *		Move the rows of a few pages, in a transaction of its own.
 *
 * Returns whether the pass has more to do.
 */
bool
row_move_some(Inplace *job)
{
	RowMove		move = {0};
	PageEnd		end;

	Assert(!IsTransactionState());

	if (!move_batch_begin(&move.batch, job))
		return !job->is_stopped;
	/* at least a row, however slow we are */
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (job->next_visit >= job->end_visits)
			end = PAGE_NO_ROOM;
		else if ((end = vacate_page(&move, job->npages - 1 - job->next_visit)) == PAGE_DONE)
			move_batch_visited(&move.batch);
	} while (end == PAGE_DONE && move_batch_goes_on(&move.batch));

	if (BufferIsValid(move.source_map))
		ReleaseBuffer(move.source_map);
	if (BufferIsValid(move.target_map))
		ReleaseBuffer(move.target_map);
	/* what is undone has given back its room */
	return move_batch_end(&move.batch) || end != PAGE_NO_ROOM;
}

/*
 * vacate_page
 *		Move what can be moved from a block, as far as time and room go.
 */
static PageEnd
vacate_page(RowMove *move, BlockNumber blkno)
{
	MoveBatch  *batch = &move->batch;
	Inplace    *job = batch->job;
	Size		room;
	PageEnd		end = PAGE_DONE;

	Assert(blkno >= job->tail_start && blkno < job->npages);
	Assert(IsSubTransaction() == batch->can_be_undone);

	file_cache_before_read(job->file_cache, batch->rel, job->file_cache_map, blkno);
	move->source = ReadBufferExtended(batch->rel, MAIN_FORKNUM, blkno, RBM_NORMAL, job->ring);
	visibilitymap_pin(batch->rel, blkno, &move->source_map);
	room = smallest_row(batch->rel, move->source);

	if (room > 0)
		do
		{
			Buffer		target = next_target(move, room);

			if (!BufferIsValid(target))
				end = PAGE_NO_ROOM;
			else if (move_to_page(move, target) || batch->is_in_the_way)
				end = PAGE_DONE;
			else
				end = PAGE_NO_TIME;
			CHECK_FOR_INTERRUPTS();
		} while (end == PAGE_NO_TIME && move_batch_goes_on(batch));
	ReleaseBuffer(move->source);

	/* not for new rows, see tail_plan.c */
	if (end == PAGE_DONE)
		tail_hide_block(batch->rel, blkno);
	return end;
}

/*
 * move_to_page
 *		Move rows to one page, whose pin is given up, with their index entries;
 *		return whether no row is left that another page could take.
 */
static bool
move_to_page(RowMove *move, Buffer target)
{
	MoveBatch  *batch = &move->batch;
	BlockNumber target_block = BufferGetBlockNumber(target);
	MemoryContext old;
	instr_time	start;
	bool		all_moved;
	bool		is_full;
	int			nmoved;
	Size		space;

	Assert(BufferIsValid(target) && BufferIsValid(move->source));
	visibilitymap_pin(batch->rel, target_block, &move->target_map);
	move_batch_assign_xid(batch);
	INSTR_TIME_SET_CURRENT(start);

	/* the order in which the server locks two pages, too */
	Assert(target_block < BufferGetBlockNumber(move->source));
	old = MemoryContextSwitchTo(batch->row_context);
	LockBuffer(target, BUFFER_LOCK_EXCLUSIVE);
	LockBuffer(move->source, BUFFER_LOCK_EXCLUSIVE);
	nmoved = move_rows(move, target, &all_moved, &is_full);
	LockBuffer(move->source, BUFFER_LOCK_UNLOCK);
	space = PageGetHeapFreeSpace(BufferGetPage(target));
	UnlockReleaseBuffer(target);
	MemoryContextSwitchTo(old);

	move_batch_count(batch, nmoved);
	for (int i = 0; i < move->nrows && !batch->is_in_the_way; i++)
		if (move->fits[i])
			move_batch_add_entries(batch, move->rows[i]);
	MemoryContextReset(batch->row_context);
	if (nmoved > 0)
		move_batch_learn(batch, nmoved, start);

	/* what doesn't fit here goes to the next page, and so do all others */
	if (is_full)
	{
		RecordPageWithFreeSpace(batch->rel, target_block, space);
		batch->job->target++;
	}
	return all_moved;
}

/*
 * smallest_row
 *		How much room the smallest row on a page needs, 0 if there is none.
 */
static Size
smallest_row(Relation rel, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	Size		smallest = 0;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page_check_items(rel, buffer);
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
 *		Return the page that is being filled, or the next one that has that much room,
 *		pinned; InvalidBuffer if there is none before the tail.
 */
static Buffer
next_target(RowMove *move, Size room)
{
	MoveBatch  *batch = &move->batch;
	Inplace    *job = batch->job;

	Assert(room > 0);
	for (; job->target < job->tail_start; job->target++)
	{
		CHECK_FOR_INTERRUPTS();
		if (GetRecordedFreeSpace(batch->rel, job->target) >=
			page_space_needed(room, batch->reserve))
		{
			file_cache_before_read(job->file_cache, batch->rel, job->file_cache_map,
								   job->target);
			return ReadBufferExtended(batch->rel, MAIN_FORKNUM, job->target, RBM_NORMAL,
									  job->ring);
		}
	}
	return InvalidBuffer;
}

/*
 * move_rows
 *		Move rows to one page, as many as fit and there is time for; return how many.
 *
 * Both pages are exclusively locked, and their pages of the visibility map
 * pinned.  Sets all_moved if no row is left that another page could take, is_full
 * if there are some, and this one takes no more of them.
 */
static int
move_rows(RowMove *move, Buffer target, bool *all_moved, bool *is_full)
{
	MoveBatch  *batch = &move->batch;
	HeapTuple	moved[MaxHeapTuplesPerPage];
	OffsetNumber offsets[MaxHeapTuplesPerPage];
	int			nmoved = 0;
	int			nfit = 0;
	int			nchosen;
	int64		in_use = 0;

	find_rows(move, &in_use);
	memset(move->fits, false, sizeof(move->fits));
	if (!PageIsNew(BufferGetPage(target)))
	{
		page_check_header(batch->rel, target);
		nfit = page_room(BufferGetPage(target), batch->reserve, move->rows, move->nrows,
						 move->fits);
	}
	nchosen = leave_rows(move, nfit);
	*all_moved = nchosen == move->nrows;
	*is_full = nchosen == nfit && !*all_moved;
	if (*all_moved)
		batch->job->moved.in_use += in_use;
	if (nchosen == 0)
		return 0;

	for (int i = 0; i < move->nrows; i++)
	{
		if (!move->fits[i])
			continue;
		move_batch_check_readers(batch, &move->rows[i]->t_self);
		move->rows[i] = move_batch_new_version(batch, move->rows[i]);
		moved[nmoved] = move->rows[i];
		offsets[nmoved++] = move->offsets[i];
	}
	Assert(nmoved == nchosen);
	page_put(batch->rel, target, move->target_map, moved, nmoved);
	DEBUG_POINT("inplace-half");
	page_mark_moved(batch->rel, move->source, move->source_map, batch->xid, batch->cid,
					offsets, moved, nmoved);
	for (int i = 0; i < nmoved; i++)
	{
		ItemPointerData old;

		ItemPointerSet(&old, BufferGetBlockNumber(move->source), offsets[i]);
		audit_moves_note(&batch->audit, batch->context, &old, &moved[i]->t_self);
	}
	return nmoved;
}

/*
 * leave_rows
 *		Of the nfit rows that fit, leave those that there is no time for; return how
 *		many remain, at least one if there was one.
 */
static int
leave_rows(RowMove *move, int nfit)
{
	int			most = move_batch_rows_left(&move->batch);

	Assert(nfit >= 0 && nfit <= move->nrows);
	for (int i = move->nrows - 1; i >= 0 && nfit > most; i--)
		if (move->fits[i])
		{
			move->fits[i] = false;
			nfit--;
		}
	return nfit;
}

/*
 * find_rows
 *		List the rows on the source page that may be moved, and count those that
 *		others have to do with.
 *
 * The tuples listed are those in the page, which is exclusively locked.
 */
static void
find_rows(RowMove *move, int64 *in_use)
{
	Page		page = BufferGetPage(move->source);
	BlockNumber blkno = BufferGetBlockNumber(move->source);

	Assert(CritSectionCount == 0);
	move->nrows = 0;
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		ItemId		item = PageGetItemId(page, off);
		HeapTuple	row;

		if (!ItemIdIsNormal(item))
			continue;
		row = palloc0_object(HeapTupleData);
		row->t_data = (HeapTupleHeader) PageGetItem(page, item);
		row->t_len = ItemIdGetLength(item);
		row->t_tableOid = move->batch.job->relid;
		ItemPointerSet(&row->t_self, blkno, off);

		switch (move_batch_judge(&move->batch, row, move->source))
		{
			case TM_Ok:
				move->rows[move->nrows] = row;
				move->offsets[move->nrows++] = off;
				break;
			case TM_Invisible:
				Assert(!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(row->t_data)));
				/* being inserted, or by a transaction that failed */
				if (TransactionIdIsInProgress(HeapTupleHeaderGetXmin(row->t_data)))
					(*in_use)++;
				break;
			case TM_BeingModified:
				(*in_use)++;
				break;
			case TM_SelfModified:
			case TM_Updated:
			case TM_Deleted:
				break;
			case TM_WouldBlock:
				elog(ERROR, "unexpected verdict on a row");
		}
	}
}
