/*-------------------------------------------------------------------------
 *
 * rewrite.h
 *	  The state of one table's rewrite: what the team shares, and what each
 *	  process has for itself.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_REWRITE_H
#define CYCLONE_REWRITE_H

#include "access/htup.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

#include "machine/file_cache.h"
#include "pace/pace.h"
#include "rewrite/new_pages.h"
#include "rewrite/tuple_fate.h"
#include "rewrite/value_ids.h"
#include "team/ranges.h"

/* The heaps that are copied, in this order, and the team's phases */
typedef enum RewriteHeap
{
	REWRITE_TABLE,
	REWRITE_TOAST,
} RewriteHeap;

#define NUM_REWRITE_HEAPS	(REWRITE_TOAST + 1)

/* What was found and done: by one member, or the sum */
typedef struct RewriteCounters
{
	int64		tuples_kept;	/* live or recently dead */
	int64		tuples_removed;
	int64		tuples_recently_dead;
	int64		tuples_in_chains;	/* kept or removed, and left to the leader */
	int64		tuples_too_big; /* kept, after the leader has made values
								 * smaller */
	int64		tuples_orphaned;	/* of the TOAST table: removed, as no row
									 * needs them */
	int64		audited_pages;
} RewriteCounters;

/* One heap that is copied, as the team sees it */
typedef struct HeapCopyShared
{
	/* constant once the team is launched */
	bool		is_wanted;		/* the table may have no TOAST table */
	Oid			old_relid;
	Oid			new_relid;
	BlockNumber old_blocks;
	TransactionId oldest_xmin;
	TransactionId relfrozenxid; /* of the old one */
	MultiXactId relminmxid;
	Size		left_blocks_start;	/* a bit for each old block: see
									 * heap_copy.c */
	bool		preserves_cache;	/* does the page cache matter? */
	Size		file_cache_start;	/* then the old heap's FileCacheMap */

	Ranges		ranges;			/* of old blocks */
	NewBlocksShared new_blocks;

	/* for progress; all members bring them up to date now and then */
	pg_atomic_uint64 blocks_done;
	pg_atomic_uint64 tuples_kept;

	/*
	 * row locks left out of copies, by all members: see
	 * engine/heap/stale_lock.c
	 */
	pg_atomic_uint64 stale_locks;
} HeapCopyShared;

/* One member of the team, as the leader sees it between phases */
typedef struct RewriteMemberShared
{
	/* 0 until the member takes part in a phase for the first time */
	pg_atomic_uint32 joined;

	/* written by the member at the end of each phase */
	RewriteCounters counters[NUM_REWRITE_HEAPS];
	BlockNumber phase_pages;	/* old pages copied in this phase */
	bool		has_leftover;	/* the page that it didn't fill */
	PGAlignedBlock leftover;
} RewriteMemberShared;

typedef struct RewriteShared
{
	/* constant once the team is launched */
	int			leader_pid;
	int			nmembers;		/* planned workers and the leader */
	TransactionId freeze_limit; /* becomes relfrozenxid */
	MultiXactId multi_cutoff;	/* becomes relminmxid */
	Size		members_start;
	Size		value_ids_start;	/* 0 if there is no TOAST table */
	Size		pace_start;

	HeapCopyShared heaps[NUM_REWRITE_HEAPS];
} RewriteShared;

/* One process's state */
typedef struct TableRewrite
{
	RewriteShared *shared;
	int			member;			/* 0: the leader */

	/* the relations, locked and open; of the TOAST table they may be NULL */
	Relation	old_heaps[NUM_REWRITE_HEAPS];
	Relation	new_heaps[NUM_REWRITE_HEAPS];

	/* dropped columns, whose values are left out */
	int			ndropped;
	AttrNumber *dropped;

	/* room for the values of a row of the table, or of its TOAST table */
	Datum	   *values;
	bool	   *nulls;

	/* of the page in hand: may the lengths of its items be wrong? */
	bool		lengths_are_doubtful;

	/* during a phase; the leader's also until it has copied what is left */
	NewPages   *new_pages;

	RewriteCounters counters[NUM_REWRITE_HEAPS];
	BlockNumber phase_pages;
	int			last_phase;		/* the last one that it was in, plus one */

	/*
	 * see audit_rewrite.c; audit_page is NULL unless the page in hand is
	 * audited
	 */
	struct RewriteAudit *audit;
	struct RewriteAudit *audit_page;

	/* for error messages */
	Relation	place;			/* NULL: nowhere in particular */
	BlockNumber blkno;
	OffsetNumber offnum;		/* may be invalid */
} TableRewrite;

/* What the leader does with a tuple that may have been left to it */
typedef void (*LeftTupleRoutine) (void *state, HeapTuple tuple, TupleFate fate, uint16 infomask);

/*
 * heap_copy.c
 *
 * heap_copy_open is called by each process, for heaps that the leader has locked.  The
 * leader calls the rest, except heap_copy_phase, which each member calls, and
 * heap_copy_note_values.
 *
 * Before there is a team: heap_copy_init_shared when the constants are filled in and
 * the rest is zeroed.  At left_blocks_start there are heap_copy_shared_size bytes.
 *
 * heap_copy_phase copies blocks until there are no more, or until this member is parked.
 * It leaves the leader's new_pages open.  After the phase comes heap_copy_take_over; then
 * left_tuples_copy_big and update_chains_copy, if the counters say so; then
 * heap_copy_finish.  Blocks with tuples for the leader are counted and found by
 * heap_copy_left_blocks and heap_copy_next_left_block, which returns InvalidBlockNumber
 * behind the last one.
 *
 * heap_copy_note_values is called for each tuple that the new table gets.
 */
extern void heap_copy_open(TableRewrite *rewrite, RewriteHeap heap);
extern Size heap_copy_shared_size(const HeapCopyShared *copy);
extern void heap_copy_init_shared(RewriteShared *shared, HeapCopyShared *copy);
extern void heap_copy_phase(TableRewrite *rewrite, RewriteHeap heap);
extern void heap_copy_take_over(TableRewrite *rewrite);
extern void heap_copy_finish(TableRewrite *rewrite, RewriteHeap heap);
extern void heap_copy_note_values(TableRewrite *rewrite, HeapTuple tuple);
extern int64 heap_copy_left_blocks(RewriteShared *shared, HeapCopyShared *copy);
extern BlockNumber heap_copy_next_left_block(RewriteShared *shared, HeapCopyShared *copy,
											 BlockNumber blkno);
extern void heap_copy_show_progress(TableRewrite *rewrite, RewriteHeap heap);

/*
 * tuple_copy.c
 *
 * tuple_copy_begin_page comes first for each page, then tuple_copy_find for its items:
 * it returns false for an item that is no tuple, and a damaged one is an error.  The
 * page is locked, or a copy.
 *
 * A tuple that tuple_copy_must_be_reformed is copied by tuple_copy_reform, and any other
 * as it stands.  tuple_copy_prepare_header then gives the copy the visibility of the
 * original, frozen as far as it can be; infomask is what tuple_fate said.  tuple_copy
 * does all that for a tuple of the table, and tuple_copy_length is the length of its copy.
 *
 * tuple_copy_make_smaller is for the leader, before the TOAST table is copied, and for
 * a copy that tuple_copy_is_too_big.  It frees the copy, and returns one that fits on a
 * page; if that can't be, it raises an error, as PostgreSQL does.
 */
extern HeapTuple tuple_copy(TableRewrite *rewrite, HeapTuple tuple, uint16 infomask);
extern Size tuple_copy_length(TableRewrite *rewrite, HeapTuple tuple);
extern bool tuple_copy_is_too_big(Size len);
extern HeapTuple tuple_copy_make_smaller(TableRewrite *rewrite, HeapTuple copied);
extern void tuple_copy_begin_page(TableRewrite *rewrite, Page page);
extern bool tuple_copy_find(Relation rel, Page page, BlockNumber blkno, OffsetNumber off,
							HeapTuple tuple);
extern bool tuple_copy_must_be_reformed(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple);
extern HeapTuple tuple_copy_reform(TableRewrite *rewrite, RewriteHeap heap, HeapTuple tuple);
extern void tuple_copy_prepare_header(TableRewrite *rewrite, RewriteHeap heap, HeapTupleHeader copied,
									  HeapTupleHeader original, uint16 infomask);

/*
 * left_tuples.c, for the leader after the phase of the table
 *
 * left_tuples_visit calls the routine with each tuple of the blocks that have some for
 * the leader, in order, also with tuples that were copied or are dead.  No lock on a page
 * is held meanwhile, and what the routine allocates is freed after each page.  Full
 * pages of the new heap are written after each tuple.
 */
extern void left_tuples_visit(TableRewrite *rewrite, LeftTupleRoutine routine, void *state);
extern void left_tuples_copy_big(TableRewrite *rewrite, const RewriteCounters *sum);

/*
 * audit_rewrite.c
 *
 * Of a page of the old heap, which is locked all the time: audit_rewrite_begin_page before
 * its tuples are copied; audit_rewrite_fate for each tuple; then audit_rewrite_note for its
 * copy, which isn't written yet, or NULL if it is left to the leader, or is a
 * chunk that no row needs; and audit_rewrite_page at the end.
 *
 * The leader calls audit_rewrite_by_leader for each row that was left to it, when the
 * row's values are noted, and its copy isn't written yet.  It calls audit_rewrite_count
 * when a new heap is complete, and audit_rewrite_indexes when the table has its new files
 * and all indexes, and all of them are locked exclusively.  The latter returns how many
 * pages were looked at.
 */
extern void audit_rewrite_begin_page(TableRewrite *rewrite, Page page);
extern void audit_rewrite_fate(TableRewrite *rewrite, OffsetNumber off, TupleFate fate);
extern void audit_rewrite_note(TableRewrite *rewrite, OffsetNumber off, HeapTupleHeader copy,
							   Size length);
extern void audit_rewrite_page(TableRewrite *rewrite, RewriteHeap heap, Buffer buffer);
extern void audit_rewrite_by_leader(TableRewrite *rewrite, HeapTuple old, HeapTupleHeader copy,
									Size length);
extern void audit_rewrite_count(TableRewrite *rewrite, RewriteHeap heap, int64 kept);
extern int64 audit_rewrite_indexes(Oid relid, const char *command);

/*
 * update_chains.c: the leader, after the phase of the table, copies its linked versions.
 * Counters are corrected for versions that turn out to be dead.  The new heap may have
 * had other tuples from the leader before, and may get more afterwards.
 */
extern void update_chains_copy(TableRewrite *rewrite, RewriteCounters *sum);

/* rewrite_is_leader -- is this process the leader? */
static inline bool
rewrite_is_leader(const TableRewrite *rewrite)
{
	return rewrite->member == 0;
}

/* rewrite_member -- a member's part of the shared block. */
static inline RewriteMemberShared *
rewrite_member(const RewriteShared *shared, int member)
{
	Assert(member >= 0 && member < shared->nmembers);
	return (RewriteMemberShared *) ((char *) shared + shared->members_start) + member;
}

/* rewrite_value_ids -- the values that rows point at, in the shared block. */
static inline ValueIds *
rewrite_value_ids(RewriteShared *shared)
{
	return (ValueIds *) ((char *) shared + shared->value_ids_start);
}

/* rewrite_pace -- the team's budget, in the shared block. */
static inline PaceShared *
rewrite_pace(RewriteShared *shared)
{
	return (PaceShared *) ((char *) shared + shared->pace_start);
}

#endif							/* CYCLONE_REWRITE_H */
