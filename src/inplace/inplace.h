/*-------------------------------------------------------------------------
 *
 * inplace.h
 *	  VACUUM (FULL INPLACE) of one table: its state, and the steps that it
 *	  consists of.
 *
 * For the plan of passes (table_inplace.c), and for each step.  A batch of moves is
 * in move_batch.h, a change of a page in page_change.h, what subscriptions have to do
 * with it in subscription.h.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INPLACE_H
#define CYCLONE_INPLACE_H

#include "commands/vacuum.h"
#include "storage/block.h"
#include "utils/rel.h"

#include "engine/state.h"
#include "engine/table_vacuum.h"
#include "inplace/subscription.h"
#include "machine/file_cache.h"
#include "pace/pace.h"

/* Why no pass comes after the last one */
typedef enum PlanEnd
{
	PLAN_GOES_ON,
	PLAN_NO_ROOM,				/* too few rows fit in front */
	PLAN_NO_PROGRESS,			/* others take the room that is freed */
	PLAN_TOO_OLD,				/* the table has to be frozen first */
	PLAN_STOPPED,				/* rows mustn't be moved any more */
} PlanEnd;

/* What was moved in one pass */
typedef struct MoveCounts
{
	int64		rows;
	int64		blocks;			/* vacated, or looked through for values */
	int64		undone;			/* rows that were moved, and moved back */
	int64		in_use;			/* rows that stayed, as others have locked,
								 * changed or inserted them */
	int64		audited;		/* rows, before they were committed */
	TransactionId last_xid;		/* that moved a row */
} MoveCounts;

/* The state of compacting one table */
typedef struct Inplace
{
	Oid			relid;
	VacuumParams params;
	BufferAccessStrategy ring;
	MemoryContext context;		/* for what outlives transactions */

	BlockNumber first_pages;	/* size at the beginning */
	CompactionPass pass;		/* for the last VACUUM, and by it */
	PaceShared *pace;			/* while a step keeps to it */
	int64		rows_moved;		/* in all passes */
	int64		rows_undone;	/* in all passes, and moved back */
	int64		rows_audited;
	TransactionId last_xid;		/* the last to move something out of it */

	/* as it was seen last */
	SubscriptionVerdict subscriptions;
	int			waited_ms;		/* for a verdict that lets rows be moved */
	bool		is_stopped;		/* are no more rows to be moved? */
	bool		disk_is_short;	/* that is why */
	int			makes_way_for;	/* so is this process, if it isn't 0 */

	/* the plan of the pass in hand */
	int64		room_for_others;	/* in bytes, left to other sessions */
	BlockNumber npages;
	BlockNumber tail_start;		/* where the table could end */
	PlanEnd		end;
	Size		row_size;		/* on average */
	int64		free_bytes;		/* in the whole table */

	/* of a TOAST table: the values with parts in its tail, in order */
	Oid		   *values;
	int			nvalues;
	BlockNumber look_through;	/* blocks of the table whose rows may have
								 * them */

	/* while pages are read; NULL if the page cache doesn't matter */
	FileCache  *file_cache;
	FileCacheMap *file_cache_map;

	/*
	 * The pass visits, in this order, the tail's blocks, counted from its
	 * end; for values, the blocks of the table whose rows may have them.  A
	 * visit whose batch is undone is made again.
	 */
	BlockNumber next_visit;
	BlockNumber end_visits;
	BlockNumber one_by_one;		/* each visit before this one has a batch of
								 * its own */
	BlockNumber target;			/* the page to be filled */
	double		row_ms;			/* that a row takes to move; 0 if none has
								 * been moved */
	bool		lists_are_empty;	/* were pending lists just emptied, as far
									 * as others let us? */
	MoveCounts	moved;
} Inplace;

/* tail_plan.c */
extern void tail_plan(Inplace *job, Relation rel);
extern void tail_hide_block(Relation rel, BlockNumber blkno);
extern void tail_hide(Inplace *job, Relation rel);
extern void tail_note_room(Inplace *job, Relation rel);
extern void tail_begin_reading(Inplace *job, Relation rel);
extern void tail_end_reading(Inplace *job);

/* row_move.c */
extern bool row_move_some(Inplace *job);

/* value_move.c */
extern void value_move_plan(Inplace *job, Inplace *toast);
extern bool value_move_some(Inplace *job, Inplace *toast);

/* old_versions.c */
extern void old_versions_wait(const Inplace *job, Inplace *mover);

/* index_shrink.c */
extern int64 index_shrink(Oid relid, bool may_queue, MemoryContext context);

#endif							/* CYCLONE_INPLACE_H */
