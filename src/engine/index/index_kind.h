/*-------------------------------------------------------------------------
 *
 * index_kind.h
 *	  Kinds of indexes that a team vacuums together, and what they have in
 *	  common.
 *
 * A kind is an access method whose bulk deletion, or whose cleanup, is ours:
 * any number of processes work in one index.  index_vacuum.c calls a kind's
 * routines in an order that is told here, and knows nothing else of it.  All
 * other indexes are vacuumed by their access method's own routines, by one
 * process each.
 *
 * A process finds an index's kind by itself, so no address of a function is in
 * shared memory.
 *
 * Pins ahead
 * ----------
 * A read stream keeps pages pinned that are not yet visited, while its process
 * waits for something, or sleeps.  The server knows of no deadlock of processes
 * that wait for each other's pins, so there must be none.  A pin is in the way of
 * a cleanup lock, and of nothing else.  These wait for cleanup locks on an index's
 * pages:
 *
 * - Sessions: none.  That of a hash index that splits, or goes on with a split,
 *	 takes such a lock if it can be had at once, and else does without.  Sessions
 *	 at the other kinds need none.
 * - The server's own VACUUM, CREATE INDEX or REINDEX, of the same table: not
 *	 while we have our lock on it.  Replay: not where VACUUM runs.
 * - Members in bulk deletion of a btree or a hash index.  With a stream they only
 *	 wait for pages of their own ranges, which are one member's.  For any other page
 *	 they wait when all members are through with their ranges, so there are no
 *	 streams, and in turns; or don't wait, but try (btree_vacuum.c).
 * - A member at the root of a GIN posting tree whose leaves have all been visited
 *	 (gin_vacuum.c).  There are no streams in GIN indexes.
 *
 * Visits to GiST and SP-GiST indexes take no cleanup locks.  Nobody waits for
 * another index's pins: a member has none in an index when it goes on to the next
 * one, is parked, or waits for its turn.  While pages are deleted (delete_pages)
 * it may have some of the heap, for which nobody waits in that phase.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_KIND_H
#define CYCLONE_INDEX_KIND_H

#include "access/genam.h"

#include "engine/phases.h"

/*
 * One of the two things that are done to an index: bulk deletion, or cleanup.
 *
 * begin, work in every member, more_work in every member as long as somebody
 * asks for it, end, conclude, finish; routines that are NULL are left out.  "number" is
 * the index's, of vacuum->indexes.
 */
typedef struct IndexWork
{
	/*
	 * Leader, while no other member is at work: make the work available to
	 * nmembers.  Also resets what the shared area has of an earlier round.
	 */
	void		(*begin) (TableVacuum *vacuum, int number, int nmembers);

	/*
	 * A member's part: claim something and do it, until nothing is left to
	 * claim.  Members come at any time, or never, and nobody waits for them.
	 * Returns how many pages it has visited, for VERBOSE.  Adds what it has
	 * done to the index's stats (index_add_stats).
	 */
	BlockNumber (*work) (TableVacuum *vacuum, int number);

	/* Has all been claimed?  When the phase has ended, then all is done. */
	bool		(*is_done) (TableVacuum *vacuum, int number);

	/*
	 * A member's part of what could only be done when all members had
	 * returned from work.  It is called if any member has called
	 * index_want_more_work, which this routine may do again, then in another
	 * phase; but one that the leader does alone is called just once.  If the
	 * failsafe is on, it is called all the same.
	 */
	void		(*more_work) (TableVacuum *vacuum, int number);

	/*
	 * Leader, after the last phase, or after an error, even in begin.  Must
	 * not fail.
	 */
	void		(*end) (TableVacuum *vacuum, int number);

	/*
	 * Leader, when all is done, and before the heap is vacuumed: what is to
	 * be done once, at the end.
	 */
	void		(*conclude) (TableVacuum *vacuum, int number);

	/*
	 * Leader, after that, and after delete_pages: complete the index's stats.
	 */
	void		(*finish) (TableVacuum *vacuum, int number);
} IndexWork;

typedef struct IndexKind
{
	const char *name;			/* of the access method */

	/* the server has room for one that is begun a backend */
	bool		is_registered;

	/*
	 * How much shared memory, beside IndexShared, each index gets
	 * (index_area): so much, and what a routine says of this index, if there
	 * is one.  It comes zeroed and MAXALIGNed; a routine that the leader
	 * calls once, before the team is launched, initializes it, and is not
	 * told how much it is but by area_size of IndexShared.
	 */
	Size		shared_size;
	Size		(*more_shared_size) (Relation index);
	void		(*setup) (TableVacuum *vacuum, int number);

	/* without a routine "work", the access method's own is called */
	IndexWork	bulk_delete;
	IndexWork	cleanup;

	/*
	 * Deletion of empty pages, while the heap is vacuumed: each member is
	 * asked now and then, and at last with wait = true, when there is nothing
	 * else to do, if it has any to delete now.  index_note_empty_pages has to
	 * be called in bulk deletion by somebody who finds one.
	 */
	bool		(*has_empty_pages) (TableVacuum *vacuum, int number, bool wait);
	void		(*delete_pages) (TableVacuum *vacuum, int number, bool wait);
} IndexKind;

/* The pages of ranges that a process claims one by one: see index_visit_blocks */
typedef struct IndexBlocks
{
	TableVacuum *vacuum;
	int			number;			/* of the index */
	void		(*visit) (void *scan, Buffer buffer);	/* releases the page */
	bool		(*is_enough) (void *scan);	/* for now? NULL: never */
	void	   *scan;			/* what these two are told */

	/* what is left of the range in hand */
	BlockNumber next;
	BlockNumber end;

	bool		gives_up;		/* its place, as the budget feeds fewer */
	bool		has_stream;		/* which may keep pages pinned */
	BlockNumber pages_done;
} IndexBlocks;

extern const IndexKind btree_kind;
extern const IndexKind gist_kind;
extern const IndexKind spgist_kind;
extern const IndexKind hash_kind;
extern const IndexKind gin_kind;

extern const IndexKind *index_kind(Relation index);

/* What kinds tell index_vacuum.c */
extern void index_want_more_work(TableVacuum *vacuum, int number);
extern void index_note_empty_pages(TableVacuum *vacuum);

/* What kinds have in common */
extern void index_add_stats(IndexShared *index, const IndexBulkDeleteResult *stats);
extern void index_report_overfull(Relation index, BlockNumber blkno);
extern void index_cap_tuples(TableVacuum *vacuum, int number);
extern void index_fill_info(const TableVacuum *vacuum, int number, IndexVacuumInfo *info);
extern BlockNumber index_current_size(Relation index);
extern void index_begin_blocks(TableVacuum *vacuum, int number, BlockNumber first,
							   int nmembers);
extern void index_visit_blocks(IndexBlocks *blocks);
extern bool index_claim_range(IndexShared *index, bool *gives_up, uint64 *start, uint64 *end);
extern bool index_claim_growth(TableVacuum *vacuum, int number,
							   BlockNumber *start, BlockNumber *end);
extern bool index_blocks_are_claimed(TableVacuum *vacuum, int number);
extern bool index_take_turn(IndexShared *index, bool wait);
extern void index_end_turn(IndexShared *index);
extern void index_check_items(Relation index, Buffer buffer);

/* index_area -- a kind's own shared memory for an index. */
static inline void *
index_area(const TableVacuum *vacuum, int number)
{
	const IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(index->area_start > 0);
	return (char *) vacuum->shared + index->area_start;
}

#endif							/* CYCLONE_INDEX_KIND_H */
