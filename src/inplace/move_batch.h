/*-------------------------------------------------------------------------
 *
 * move_batch.h
 *	  A transaction that moves some rows, and what it consists of.
 *
 * For those that move rows or values.  inplace.h has the task of a pass, and its
 * progress.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_MOVE_BATCH_H
#define CYCLONE_MOVE_BATCH_H

#include "access/tableam.h"
#include "nodes/execnodes.h"
#include "portability/instr_time.h"
#include "storage/buf.h"
#include "utils/rel.h"

#include "audit/audit.h"
#include "inplace/inplace.h"
#include "transaction.h"

/* The indexes of a table, for entries of moved rows */
typedef struct IndexEntries
{
	Relation	rel;
	int			nindexes;
	Relation   *indexes;
	IndexInfo **infos;
	ExprState **predicates;		/* NULL where there is none */
	EState	   *estate;
	TupleTableSlot *slot;
	bool		has_exclusion;	/* is one of an exclusion constraint? */
	TupleTableSlot *other_slot; /* for rows that it may exclude, if so */
} IndexEntries;

/* A transaction that moves some rows */
typedef struct MoveBatch
{
	Inplace    *job;
	Relation	rel;
	IndexEntries *entries;
	Size		reserve;		/* to be left free on each page */
	TransactionId xid;			/* invalid until a row is moved */
	CommandId	cid;
	MemoryContext row_context;	/* for the rows in hand */
	SavedUser	saved_user;
	bool		is_watched;		/* is it to look for workers of subscriptions? */
	bool		can_be_undone;	/* are we in a subtransaction? */
	bool		is_in_the_way;	/* of another session: to be undone */
	bool		is_too_late;	/* a worker may miss what it moves: to be undone */
	bool		is_short;		/* as a longer one was in the way? */
	MemoryContext outer_context;	/* outside the subtransaction */
	ResourceOwner outer_owner;
	MoveCounts	before;			/* what had been moved until then */
	MemoryContext context;		/* for as long as it lasts */
	MoveAudit  *audit;			/* NULL until a row is audited */
	instr_time	start;
} MoveBatch;

/* move_batch.c */

/*
 * Start a transaction to move rows, and open the table.  The caller is outside any
 * transaction, and has the table locked for the session.  Returns false, outside any
 * transaction again, if rows must not be moved now: for good if job->is_stopped is
 * set, else the caller tries again.
 */
extern bool move_batch_begin(MoveBatch *batch, Inplace *job);

/* Is there time for more in this batch, and any use in it? */
extern bool move_batch_goes_on(const MoveBatch *batch);

/*
 * Return for how many rows of a page there is time in this batch: for one at least,
 * and for no more than one as long as it isn't known how long a row takes.
 */
extern int	move_batch_rows_left(const MoveBatch *batch);

/*
 * nrows rows, at least one, have been moved since start, with their index entries.  A
 * longer time than expected is believed at once, a shorter one bit by bit.
 */
extern void move_batch_learn(MoveBatch *batch, int nrows, instr_time start);

/* A visit is done: it counts when its batch is committed. */
extern void move_batch_visited(MoveBatch *batch);

/*
 * Close the batch and commit it; or undo all of it, if it is in the way of others.
 * Returns whether visits are to be made once more for that reason.
 */
extern bool move_batch_end(MoveBatch *batch);

/*
 * After an error, and before it is passed on: end a batch's subtransaction.  The
 * transaction's own abort would end nothing else, and leave the session in it.  The
 * memory context of the error stays.
 */
extern void move_batch_abandon(void);

/*
 * May a row be moved?  Only if the answer is TM_Ok.  The tuple is in the page, which
 * is at least share-locked.  A caller that moves the row has the page exclusively
 * locked from this call on.
 */
extern TM_Result move_batch_judge(MoveBatch *batch, HeapTuple row, Buffer buffer);

/*
 * Tell serializable transactions that the row at this place is about to move.  To be
 * called for each row that moves, and no other, with its page exclusively locked until
 * it has moved.  Raises an error if the row must not move.
 */
extern void move_batch_check_readers(MoveBatch *batch, const ItemPointerData *place);

/* Give the transaction an XID.  To be called before pages are locked. */
extern void move_batch_assign_xid(MoveBatch *batch);

/*
 * Return a copy of a row as the version that our transaction makes of it.  The
 * transaction has an XID.
 */
extern HeapTuple move_batch_new_version(MoveBatch *batch, HeapTuple old);

/*
 * nrows rows have moved.  Each leaves a dead version: the old one if the transaction
 * commits, else the new one.
 */
extern void move_batch_count(MoveBatch *batch, int nrows);

/*
 * Make a row's entries in the indexes, at its new place.  If that is in the way of
 * others, the batch doesn't go on.
 */
extern void move_batch_add_entries(MoveBatch *batch, HeapTuple row);

/* index_entries.c */
extern IndexEntries *index_entries_open(Relation rel);
extern bool index_entries_add(IndexEntries *entries, HeapTuple tuple);
extern void index_entries_finish(IndexEntries *entries);
extern void index_entries_close(IndexEntries *entries);

/* pending_lists.c */
extern bool pending_lists_are_long(const IndexEntries *entries);
extern void pending_lists_empty(Inplace *job);

#endif							/* CYCLONE_MOVE_BATCH_H */
