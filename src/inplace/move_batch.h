/*-------------------------------------------------------------------------
 *
 * move_batch.h
 *	  A transaction that moves some rows, and what it consists of.
 *
 * For those that move rows or values.  What a pass is to do, and how far it is, is
 * in inplace.h.
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
	bool		is_in_the_way;	/* of somebody else: to be undone */
	bool		is_too_late;	/* a worker may miss what it moves: likewise */
	bool		is_short;		/* as a longer one was in the way? */
	MemoryContext outer_context;	/* outside the subtransaction */
	ResourceOwner outer_owner;
	BlockList	filled;			/* by it, if it can be undone */
	MoveCounts	before;			/* what had been moved until then */
	MemoryContext context;		/* for as long as it lasts */
	struct MoveAudit *audit;	/* NULL until a row is audited */
	instr_time	start;
} MoveBatch;

/* move_batch.c */
extern bool move_batch_begin(MoveBatch *batch, Inplace *job);
extern bool move_batch_goes_on(const MoveBatch *batch);
extern int	move_batch_rows_left(const MoveBatch *batch);
extern void move_batch_learn(MoveBatch *batch, int nrows, instr_time start);
extern bool move_batch_end(MoveBatch *batch);
extern void move_batch_abandon(void);
extern TM_Result move_batch_judge(MoveBatch *batch, HeapTuple row, Buffer buffer);
extern void move_batch_check_readers(MoveBatch *batch, const ItemPointerData *place);
extern void move_batch_assign_xid(MoveBatch *batch);
extern HeapTuple move_batch_new_version(MoveBatch *batch, HeapTuple old);
extern void move_batch_count(MoveBatch *batch, int nrows);
extern void move_batch_add_entries(MoveBatch *batch, HeapTuple row);

/* move_audit.c */
extern void move_audit_note(MoveBatch *batch, const ItemPointerData *old,
							const ItemPointerData *new);
extern void move_audit_batch(MoveBatch *batch);

/* undone_room.c */
extern void undone_room_note(MoveBatch *batch, BlockNumber blkno);
extern void undone_room_reclaim(MoveBatch *batch);
extern BlockNumber undone_room_take(Inplace *job);

/* index_entries.c */
extern IndexEntries *index_entries_open(Relation rel);
extern bool index_entries_add(IndexEntries *entries, HeapTuple tuple);
extern void index_entries_finish(IndexEntries *entries);
extern void index_entries_close(IndexEntries *entries);

/* pending_lists.c */
extern bool pending_lists_are_long(const IndexEntries *entries);
extern void pending_lists_empty(Inplace *job);

#endif							/* CYCLONE_MOVE_BATCH_H */
