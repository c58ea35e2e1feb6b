/*-------------------------------------------------------------------------
 *
 * inplace.h
 *	  What the parts of VACUUM (FULL INPLACE) share.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INPLACE_H
#define CYCLONE_INPLACE_H

#include "access/heaptoast.h"
#include "access/tableam.h"
#include "commands/vacuum.h"
#include "nodes/execnodes.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "utils/rel.h"

#include "engine/state.h"
#include "engine/table_vacuum.h"
#include "pace/pace.h"
#include "team/ranges.h"
#include "transaction.h"

/* Why rows of the tail stayed where they are, in one pass */
typedef struct MoveObstacles
{
	int64		locked;			/* others hold or change them */
	int64		uncommitted;	/* others are inserting them */
} MoveObstacles;

/* The room that a part of a value takes, of those that are cut into several */
#define TOAST_PART_SIZE		(MAXALIGN(EXTERN_TUPLE_MAX_SIZE) + sizeof(ItemIdData))

/* What subscriptions of logical replication have to do with a table */
typedef enum SubscriptionVerdict
{
	SUBSCRIPTION_NONE,			/* nothing, as the database has none */
	SUBSCRIPTION_ELSEWHERE,		/* nothing, any more or ever */
	SUBSCRIPTION_AT_WORK,		/* the same, but a worker of one writes to it */
	SUBSCRIPTION_HERE,			/* one writes to it */
	SUBSCRIPTION_CHANGING,		/* that can't be told at this moment */
} SubscriptionVerdict;

/* Why no more rows were to be moved, after the last pass */
typedef enum PlanEnd
{
	PLAN_GOES_ON,
	PLAN_NO_ROOM,				/* too few rows fit in front */
	PLAN_NO_PROGRESS,			/* others undo what is won */
	PLAN_TOO_OLD,				/* the table has to be frozen first */
	PLAN_STOPPED,				/* they mustn't be moved any more */
} PlanEnd;

/* What one process, or all, moved in one pass */
typedef struct MoveCounts
{
	int64		rows;
	int64		blocks;			/* vacated, or looked through for values */
	int64		undone;			/* rows that were moved, and moved back */
	MoveObstacles obstacles;
	int64		audited;		/* rows, before they were committed */
	TransactionId last_xid;		/* that moved a row */
} MoveCounts;

/* How the processes that move rows share out a pass */
typedef struct MoveShares
{
	/*
	 * What to visit, in this order: the tail's blocks, counted from its end;
	 * for values, the blocks of the table whose rows may have them.
	 */
	Ranges		visits;
	pg_atomic_uint32 target;	/* who has room to fill next */
} MoveShares;

/* The state of compacting one table, in one process */
typedef struct Inplace
{
	Oid			relid;
	VacuumParams params;
	BufferAccessStrategy ring;
	MemoryContext context;		/* for what outlives transactions */

	BlockNumber first_pages;	/* size at the beginning */
	CompactionPass pass;		/* for the last VACUUM, and by it */
	bool		is_alone;		/* are there to be no workers any more? */
	int64		rows_moved;		/* in all passes, by all */
	int64		rows_undone;	/* likewise, and moved back */
	int64		rows_audited;
	TransactionId last_xid;		/* the last to move something out of it */

	/* as this process saw it last; is it to move no more for that reason? */
	SubscriptionVerdict subscriptions;
	int			waited_ms;		/* until it can be told */
	bool		is_stopped;
	bool		disk_is_short;	/* that is why */

	/* the plan of the pass in hand */
	int64		room_for_others;	/* in bytes, that is not filled */
	BlockNumber npages;
	BlockNumber tail_start;		/* where the table could end */
	PlanEnd		end;
	Size		row_size;		/* on average */
	int64		free_bytes;		/* in the whole table */

	/* of a TOAST table: the values with parts in its tail, in order */
	Oid		   *values;
	int			nvalues;
	BlockNumber look_through;	/* so many blocks of the table, for their rows */

	/* this process's part of it; in the end the leader's has that of all */
	MoveShares *shares;
	uint64		next_visit;
	uint64		end_visits;
	uint64		one_by_one;		/* visits before that are to be made one a
								 * batch */
	BlockNumber target;			/* to be filled, if it is valid */
	BlockList	refill;			/* to be filled before others */
	double		row_ms;			/* that a row takes to move; 0 if none has
								 * been moved */
	bool		lists_are_empty;	/* pending lists, just now, as far as
									 * others let us */
	MoveCounts	moved;
} Inplace;

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

/* tail_plan.c */
extern void tail_plan(Inplace *job, Relation rel);
extern void tail_hide_block(Relation rel, BlockNumber blkno);
extern void tail_hide(Inplace *job, Relation rel);
extern void tail_note_room(Inplace *job, Relation rel);
extern void tail_offer_room(Relation rel, BlockNumber start);

/* movers.c */
extern bool movers_run(Inplace *job, Inplace *toast, int *planned, int *launched);

/* visits.c */
extern bool visits_next(Inplace *job, BlockNumber *number);
extern void visits_done(Inplace *job);

/* subscription.c */
extern bool subscription_writes_to(Oid relid);
extern SubscriptionVerdict subscription_keep_away(Oid relid);
extern bool subscription_is_at_work(Oid relid);
#ifdef USE_ASSERT_CHECKING
extern bool subscription_is_kept_away(void);
#endif

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

/* row_move.c */
extern bool row_move_some(Inplace *job);

/* value_move.c */
extern void value_move_plan(Inplace *job, Inplace *toast);
extern bool value_move_some(Inplace *job, Inplace *toast);

/* page_change.c */
extern void page_check_header(Relation rel, Buffer buffer);
extern void page_check_items(Relation rel, Buffer buffer);
extern Size page_space_needed(Size row, Size reserve);
extern int	page_room(Page page, Size reserve, const HeapTuple *tuples, int ntuples,
					  bool *fits);
extern void page_put(Relation rel, Buffer buffer, Buffer vmbuffer,
					 HeapTuple *tuples, int ntuples);
extern void page_mark_moved(Relation rel, Buffer buffer, Buffer vmbuffer,
							TransactionId xid, CommandId cid, const OffsetNumber *offsets,
							HeapTuple *new_versions, int ntuples);

/* index_entries.c */
extern IndexEntries *index_entries_open(Relation rel);
extern bool index_entries_add(IndexEntries *entries, HeapTuple tuple);
extern void index_entries_finish(IndexEntries *entries);
extern void index_entries_close(IndexEntries *entries);

/* pending_lists.c */
extern bool pending_lists_are_long(const IndexEntries *entries);
extern void pending_lists_empty(Inplace *job);

/* old_versions.c */
extern void horizon_wait(Oid relid, TransactionId last_xid);

/* index_shrink.c */
extern void index_shrink(Oid relid, MemoryContext context);

#endif							/* CYCLONE_INPLACE_H */
