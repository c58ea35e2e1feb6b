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

#include "commands/vacuum.h"
#include "nodes/execnodes.h"
#include "pace/pace.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "utils/rel.h"

/* Why rows of the tail stayed where they are, in one pass */
typedef struct MoveObstacles
{
	int64		locked;			/* others hold or change them */
	int64		uncommitted;	/* others are inserting them */
	int64		recently_dead;	/* a snapshot may need them */
} MoveObstacles;

/* The state of compacting one table */
typedef struct Inplace
{
	Oid			relid;
	const VacuumParams *params;
	BufferAccessStrategy ring;
	PaceShared *pace;			/* while rows are moved */

	/* the pass in hand */
	BlockNumber npages;
	BlockNumber tail_start;		/* where the table could end */
	BlockNumber source;			/* all blocks from here on have been visited */
	BlockNumber target;			/* no block before has room */
	MoveObstacles obstacles;
	int64		rows_moved;
	TransactionId last_xid;		/* that moved a row */
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
} IndexEntries;

/* tail_plan.c */
extern void tail_plan(Inplace *job, Relation rel);
extern void tail_offer_room(Inplace *job, Relation rel);

/* row_move.c */
extern bool row_move_batch(Inplace *job);

/* page_change.c */
extern int	page_room(Page page, Size reserve, const HeapTuple *tuples, int ntuples,
					  bool *fits);
extern void page_put(Relation rel, Buffer buffer, Buffer vmbuffer,
					 HeapTuple *tuples, int ntuples);
extern void page_mark_moved(Relation rel, Buffer buffer, Buffer vmbuffer,
							TransactionId xid, CommandId cid, const OffsetNumber *offsets,
							HeapTuple *new_versions, int ntuples);

/* index_entries.c */
extern IndexEntries *index_entries_open(Relation rel);
extern void index_entries_add(IndexEntries *entries, HeapTuple tuple);
extern void index_entries_close(IndexEntries *entries);

/* horizon.c */
extern void horizon_wait(Inplace *job);
extern char *horizon_holder(Oid relid);

/* index_shrink.c */
extern void index_shrink(Oid relid, MemoryContext context);

#endif							/* CYCLONE_INPLACE_H */
