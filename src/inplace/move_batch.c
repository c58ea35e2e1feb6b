/*-------------------------------------------------------------------------
 *
 * move_batch.c
 *	  The transactions that move rows, what they may move, and what becomes of it.
 *
 * A move is an update that changes nothing.  Until we commit others wait for us, so each
 * batch is a transaction of a few milliseconds.  README.md says what moves, and why a moved
 * row is the same row to everyone.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/multixact.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "debug_point.h"
#include "guards/guards.h"
#include "inplace/inplace.h"
#include "inplace/move_batch.h"
#include "inplace/subscription.h"
#include "others.h"
#include "report/progress.h"

/* How long others may wait for a row, unless that row alone takes longer */
#define BATCH_MS	5

/* How often, and for how long, to look again at subscriptions that are changing */
#define LOOK_MS		20
#define WAIT_MS		10000

/* For the context of errors */
typedef struct RowInHand
{
	const char *table;
	HeapTuple	row;
} RowInHand;

static void open_table(MoveBatch *batch);
static bool lists_are_in_the_way(MoveBatch *batch);
static bool may_move(Inplace *job);
static void wait_for_subscriptions(Inplace *job);
static void begin_subtransaction(MoveBatch *batch);
static void end_subtransaction(MoveBatch *batch);
static void forget_undone(MoveBatch *batch);
static void close_table(MoveBatch *batch);
static void name_row(void *arg);
static double ms_since(instr_time start);

/* move_batch_begin -- see move_batch.h. */
bool
move_batch_begin(MoveBatch *batch, Inplace *job)
{
	bool		empty_lists;

	Assert(!IsTransactionState());
	Assert(!job->is_stopped);

	StartTransactionCommand();
	DEBUG_POINT("inplace-pause");
	if (guards_disk_is_short())
	{
		job->is_stopped = job->disk_is_short = true;
		CommitTransactionCommand();
		return false;
	}
	delay_point();
	if (job->waited_ms > 0)
		others_nap(LOOK_MS);
	XactIsoLevel = XACT_SERIALIZABLE;
	XactReadOnly = false;
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);

	memset(batch, 0, sizeof(MoveBatch));
	batch->job = job;
	batch->context = CurrentMemoryContext;
	open_table(batch);
	empty_lists = lists_are_in_the_way(batch);
	/* last, as others may wait for us from here on */
	if (empty_lists || !may_move(job))
	{
		close_table(batch);
		transaction_end();
		if (empty_lists)
			pending_lists_empty(job);
		return false;
	}

	batch->row_context = AllocSetContextCreate(CurrentMemoryContext, "Moved rows",
											   ALLOCSET_DEFAULT_SIZES);
	batch->cid = GetCurrentCommandId(true);
	batch->before = job->moved;
	/* a session may lock what we update, and make us a member of a MultiXact */
	MultiXactIdSetOldestMember();
	batch->is_watched = job->subscriptions != SUBSCRIPTION_NONE;
	batch->can_be_undone = batch->entries->has_exclusion || batch->is_watched;
	batch->is_short = batch->entries->has_exclusion && job->next_visit < job->one_by_one;
	if (batch->can_be_undone)
		begin_subtransaction(batch);
	INSTR_TIME_SET_CURRENT(batch->start);
	return true;
}

/* open_table -- with its indexes, as its owner. */
static void
open_table(MoveBatch *batch)
{
	batch->rel = table_open(batch->job->relid, RowExclusiveLock);
	/* which keeps the place of the table in a tree of partitions, too */
	Assert(CheckRelationLockedByMe(batch->rel, ShareUpdateExclusiveLock, true));
	become_owner(batch->rel, &batch->saved_user);
	pace_write_steadily();
	batch->entries = index_entries_open(batch->rel);
	batch->reserve = RelationGetTargetPageFreeSpace(batch->rel, HEAP_DEFAULT_FILLFACTOR);
}

/*
 * lists_are_in_the_way
 *		Are pending lists to be emptied before this batch?
 *
 * That is done once, as others may be at it, or fill the lists faster than we come to the
 * batch.
 */
static bool
lists_are_in_the_way(MoveBatch *batch)
{
	Inplace    *job = batch->job;

	job->lists_are_empty = !job->lists_are_empty && pending_lists_are_long(batch->entries);
	return job->lists_are_empty;
}

/*
 * may_move
 *		May rows be moved in this transaction, as far as subscriptions go?
 */
static bool
may_move(Inplace *job)
{
	job->subscriptions = subscription_keep_away(job->relid);
	switch (job->subscriptions)
	{
		case SUBSCRIPTION_NONE:
		case SUBSCRIPTION_ELSEWHERE:
			return true;
		case SUBSCRIPTION_HERE:
			job->is_stopped = true;
			break;
		case SUBSCRIPTION_AT_WORK:
		case SUBSCRIPTION_CHANGING:
			wait_for_subscriptions(job);
			break;
	}
	return false;
}

/*
 * wait_for_subscriptions
 *		Before the next batch; not at all if that is of no use any more.
 */
static void
wait_for_subscriptions(Inplace *job)
{
	OthersFound others = others_look(others_with_lock(job->relid, AccessExclusiveLock));

	job->waited_ms += LOOK_MS;
	if (others.end == OTHERS_WAIT_FOR_US)
		job->makes_way_for = others.pid;
	job->is_stopped = others.end == OTHERS_WAIT_FOR_US || job->waited_ms >= DEBUG_LIMIT(horizon_wait, WAIT_MS);
}

/* begin_subtransaction -- so that the batch can be undone, and its cost known. */
static void
begin_subtransaction(MoveBatch *batch)
{
	batch->outer_context = CurrentMemoryContext;
	batch->outer_owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(batch->outer_context);
}

/* move_batch_goes_on -- see move_batch.h. */
bool
move_batch_goes_on(const MoveBatch *batch)
{
	const Inplace *job = batch->job;
	double		row_ms = 0;

	Assert(IsTransactionState());

	if (batch->is_in_the_way || batch->is_short)
		return false;
	/* as long as nothing has moved nobody waits */
	if (job->moved.rows > batch->before.rows)
		row_ms = job->row_ms;
	return ms_since(batch->start) + row_ms < DEBUG_LIMIT(batch_ms, BATCH_MS);
}

/* ms_since -- how long that is ago. */
static double
ms_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_MILLISEC(now);
}

/* move_batch_rows_left -- see move_batch.h. */
int
move_batch_rows_left(const MoveBatch *batch)
{
	double		row_ms = batch->job->row_ms;
	double		left = 0;

	Assert(IsTransactionState());

	if (row_ms > 0)
		left = (DEBUG_LIMIT(batch_ms, BATCH_MS) - ms_since(batch->start)) / row_ms;
	return (int) Min(Max(left, 1), MaxHeapTuplesPerPage);
}

/* move_batch_learn -- see move_batch.h. */
void
move_batch_learn(MoveBatch *batch, int nrows, instr_time start)
{
	double		row_ms = ms_since(start) / nrows;

	Assert(nrows > 0);
	batch->job->row_ms = Max(row_ms, batch->job->row_ms * 7 / 8);
}

/* move_batch_visited -- see move_batch.h. */
void
move_batch_visited(MoveBatch *batch)
{
	Inplace    *job = batch->job;

	Assert(job->next_visit < job->end_visits);
	job->next_visit++;
	progress_blocks_done(++job->moved.blocks);
}

/* move_batch_end -- see move_batch.h. */
bool
move_batch_end(MoveBatch *batch)
{
	Inplace    *job = batch->job;
	BlockNumber next_visit;

	Assert(IsSubTransaction() == batch->can_be_undone);
	DEBUG_POINT("inplace-audit");
	if (!batch->is_in_the_way)
		batch->job->moved.audited +=
			audit_moves_check(batch->audit, batch->rel, batch->xid, batch->job->ring);
	index_entries_finish(batch->entries);
	DEBUG_POINT("inplace-look");
	/* when nothing is left to be written: see subscription.c */
	batch->is_too_late = batch->is_watched && TransactionIdIsValid(batch->xid) &&
		subscription_is_at_work(job->relid);
	next_visit = job->next_visit;
	if (batch->can_be_undone)
		end_subtransaction(batch);
	Assert(!IsSubTransaction());
	if (!batch->is_too_late)
		job->waited_ms = 0;
	/* 0 if it was undone */
	if (pgstat_should_count_relation(batch->rel))
		batch->rel->pgstat_info->counts.changed_tuples +=
			job->moved.rows - batch->before.rows;
	if (TransactionIdIsValid(batch->xid))
		job->moved.last_xid = batch->xid;
	close_table(batch);
	DEBUG_POINT("inplace-batch");
	Assert(subscription_is_kept_away());
	transaction_end();
	return job->next_visit < next_visit;
}

/* close_table -- the opposite of open_table, but for the locks. */
static void
close_table(MoveBatch *batch)
{
	index_entries_close(batch->entries);
	become_user_again(&batch->saved_user);
	table_close(batch->rel, NoLock);
}

/* end_subtransaction -- with what was done in it; or without, so that it has to be done again. */
static void
end_subtransaction(MoveBatch *batch)
{
	if (batch->is_in_the_way || batch->is_too_late)
	{
		RollbackAndReleaseCurrentSubTransaction();
		batch->xid = InvalidTransactionId;
		forget_undone(batch);
	}
	else
		ReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(batch->outer_context);
	CurrentResourceOwner = batch->outer_owner;
}

/*
 * forget_undone
 *		Count nothing of a batch that was undone, and see to what becomes of its
 *		visits.
 *
 * If the batch was in the way, its visits are made again, one at a time, to find out
 * which one can't be made.  If that is known, it leaves out that one.
 */
static void
forget_undone(MoveBatch *batch)
{
	Inplace    *job = batch->job;
	int64		undone = job->moved.undone + job->moved.rows - batch->before.rows;

	batch->before.undone = job->moved.undone = undone;
	if (batch->is_short && !batch->is_too_late)
	{
		job->moved.rows = batch->before.rows;
		job->moved.in_use++;
		return;
	}
	if (batch->is_too_late)
	{
		job->subscriptions = SUBSCRIPTION_AT_WORK;
		wait_for_subscriptions(job);
	}
	else
		job->one_by_one = job->next_visit;
	/* nor are rows in use to be counted twice */
	job->next_visit -= job->moved.blocks - batch->before.blocks;
	job->moved = batch->before;
}

/* move_batch_abandon -- see move_batch.h. */
void
move_batch_abandon(void)
{
	MemoryContext error_context = CurrentMemoryContext;

	while (IsSubTransaction())
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(error_context);
}

/* move_batch_judge -- see move_batch.h. */
TM_Result
move_batch_judge(MoveBatch *batch, HeapTuple row, Buffer buffer)
{
	RowInHand	in_hand = {.table = RelationGetRelationName(batch->rel),.row = row};
	ErrorContextCallback callback = {
		.previous = error_context_stack,
		.callback = name_row,
		.arg = &in_hand
	};
	TM_Result	verdict;

	Assert(row->t_data != NULL && ItemPointerIsValid(&row->t_self));
	Assert(BufferIsValid(buffer));

	error_context_stack = &callback;
	verdict = HeapTupleSatisfiesUpdate(row, batch->cid, buffer);
	error_context_stack = callback.previous;

	/* of a VACUUM FULL before 9.0, whose xmin isn't the whole truth */
	if (verdict == TM_Ok && (row->t_data->t_infomask & HEAP_MOVED))
		return TM_BeingModified;
	return verdict;
}

/* name_row -- the context of an error: the row that is to be moved, or indexed. */
static void
name_row(void *arg)
{
	const RowInHand *in_hand = arg;
	ItemPointer place = &in_hand->row->t_self;

	errcontext("while moving rows of block %u, offset %u, of relation \"%s\"",
			   ItemPointerGetBlockNumber(place), ItemPointerGetOffsetNumber(place),
			   in_hand->table);
}

/* move_batch_check_readers -- see move_batch.h. */
void
move_batch_check_readers(MoveBatch *batch, const ItemPointerData *place)
{
	Assert(CritSectionCount == 0);
	Assert(ItemPointerIsValid(place));
	CheckForSerializableConflictIn(batch->rel, unconstify(ItemPointerData *, place),
								   ItemPointerGetBlockNumber(place));
}

/* move_batch_assign_xid -- see move_batch.h. */
void
move_batch_assign_xid(MoveBatch *batch)
{
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);

	if (TransactionIdIsValid(batch->xid))
		return;
	/* or a search of a change could miss what is changed here */
	Assert(subscription_is_kept_away());
	batch->xid = GetCurrentTransactionId();
}

/* move_batch_new_version -- see move_batch.h. */
HeapTuple
move_batch_new_version(MoveBatch *batch, HeapTuple old)
{
	HeapTuple	tuple = heap_copytuple(old);
	HeapTupleHeader header = tuple->t_data;

	Assert(TransactionIdIsValid(batch->xid));
	header->t_infomask &= ~(HEAP_XACT_MASK | HEAP_MOVED);
	header->t_infomask2 &= ~HEAP2_XACT_MASK;
	header->t_infomask |= HEAP_UPDATED | HEAP_XMAX_INVALID;
	HeapTupleHeaderSetXmin(header, batch->xid);
	HeapTupleHeaderSetCmin(header, batch->cid);
	HeapTupleHeaderSetXmax(header, InvalidTransactionId);
	if (DEBUG_FAULT("inplace-differs"))
		((char *) header)[tuple->t_len - 1] ^= 1;
	return tuple;
}

/* move_batch_count -- see move_batch.h. */
void
move_batch_count(MoveBatch *batch, int nrows)
{
	Assert(nrows >= 0);
	batch->job->moved.rows += nrows;
	if (pgstat_should_count_relation(batch->rel))
		batch->rel->pgstat_info->counts.delta_dead_tuples += nrows;
}

/* move_batch_add_entries -- see move_batch.h. */
void
move_batch_add_entries(MoveBatch *batch, HeapTuple row)
{
	RowInHand	in_hand = {.table = RelationGetRelationName(batch->rel),.row = row};
	ErrorContextCallback callback = {
		.previous = error_context_stack,
		.callback = name_row,
		.arg = &in_hand
	};

	/* an access method waits for pages, and raises errors */
	Assert(CritSectionCount == 0 && TransactionIdIsValid(batch->xid));
	error_context_stack = &callback;
	if (!index_entries_add(batch->entries, row))
		batch->is_in_the_way = true;
	error_context_stack = callback.previous;
}
