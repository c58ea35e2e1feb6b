/*-------------------------------------------------------------------------
 *
 * index_kind.h
 *	  Kinds of indexes that a team vacuums together, and what they have in
 *	  common.
 *
 * A kind is an access method whose bulk deletion, or whose cleanup, is ours:
 * any number of processes work in one index.  index_vacuum.c calls a kind's
 * routines in the order that IndexWork gives, and knows nothing else of it.  All
 * other indexes are vacuumed by their access method's own routines, by one
 * process each.
 *
 * A kind has a number, so no address of a function is in shared memory.
 *
 * README.md says why a read stream's pins on pages ahead are in no process's way.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_KIND_H
#define CYCLONE_INDEX_KIND_H

#include "access/genam.h"
#include "access/itup.h"
#include "common/hashfn.h"
#include "storage/bufpage.h"

#include "engine/phases.h"

/*
 * One of the two things that are done to an index: bulk deletion, or cleanup.
 *
 * The order: begin, work in every member, more_work in every member as long as a
 * member asks for it, end, conclude, finish.  Routines that are NULL are left out.
 * "number" is the index's, of vacuum->indexes.
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
	 * claim.  Members come at any time, or never, and no process waits for
	 * them. Adds what it has done to the index's stats (index_add_stats).
	 */
	void		(*work) (TableVacuum *vacuum, int number);

	/* Has all been claimed?  If so, all is done when the phase has ended. */
	bool		(*is_done) (TableVacuum *vacuum, int number);

	/*
	 * Leader, between phases: all members have returned from work, or from
	 * more_work, which will be called.  Not for an index that the leader does
	 * alone.
	 */
	void		(*prepare_more) (TableVacuum *vacuum, int number);

	/*
	 * A member's part of what could only be done when all members had
	 * returned from work.  It is called if any member has called
	 * index_want_more_work.  This routine may call that, too, and is called
	 * again in another phase then; but for an index that the leader does
	 * alone it is called just once.  It is called even if the failsafe is on.
	 */
	void		(*more_work) (TableVacuum *vacuum, int number);

	/*
	 * Leader, after the last phase, or after an error, even in begin.  Must
	 * not fail.
	 */
	void		(*end) (TableVacuum *vacuum, int number);

	/* Leader, once, when all is done, and before the heap is vacuumed. */
	void		(*conclude) (TableVacuum *vacuum, int number);

	/* Leader, after that, and after delete_pages: complete the index's stats. */
	void		(*finish) (TableVacuum *vacuum, int number);
} IndexWork;

typedef struct IndexKind
{
	const char *name;			/* of the access method */

	/* the server has room for one index a backend that is begun */
	bool		is_registered;

	/*
	 * How much shared memory each index gets beside IndexShared (index_area):
	 * shared_size, and what more_shared_size says of this index.  It comes
	 * zeroed and MAXALIGNed.  The leader calls setup once, before the team is
	 * launched, to initialize it; area_size of IndexShared is its size.
	 */
	Size		shared_size;
	Size		(*more_shared_size) (Relation index);
	void		(*setup) (TableVacuum *vacuum, int number);

	/* without a routine "work" the access method's own is called */
	IndexWork	bulk_delete;
	IndexWork	cleanup;

	/*
	 * Of a kind that visits all blocks of an index, for bulk deletion or for
	 * cleanup (index_begin_pass): the leader notes what the pass goes by, and
	 * visits these blocks first; finish_pass, which may be missing, is its
	 * own, too.  A process makes its scan, and frees it.
	 */
	BlockNumber first_block;
	BlockNumber last_block;
	void		(*begin_pass) (TableVacuum *vacuum, int number);
	void		(*finish_pass) (TableVacuum *vacuum, int number);
	struct KindScan *(*make_scan) (TableVacuum *vacuum, int number);
	void		(*free_scan) (struct KindScan *scan);

	/*
	 * Deletion of empty pages, while the heap is vacuumed.  Each member is
	 * asked now and then if it has any to delete now; with wait = true when
	 * there is nothing else to do.  A member that finds one in bulk deletion
	 * calls index_note_empty_pages.
	 */
	bool		(*has_empty_pages) (TableVacuum *vacuum, int number, bool wait);
	void		(*delete_pages) (TableVacuum *vacuum, int number, bool wait);
} IndexKind;

/* A page, or a place on one, whose entries have moved, and that has been followed */
typedef struct FollowedPlace
{
	uint64		tid;			/* block number, and offset if that matters */
	char		status;			/* the hash table's */
} FollowedPlace;

#define SH_PREFIX followed
#define SH_ELEMENT_TYPE FollowedPlace
#define SH_KEY_TYPE uint64
#define SH_KEY tid
#define SH_HASH_KEY(table, key) ((uint32) murmurhash64(key))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* One process's part of one index; what a kind has of its own comes behind it */
typedef struct KindScan
{
	TableVacuum *vacuum;
	int			number;			/* of the index */
	IndexShared *shared;
	Relation	index;
	IndexBulkDeleteResult stats;	/* what this process did */

	/* for index_visit_blocks */
	void		(*visit) (struct KindScan *scan, Buffer buffer);	/* releases the page */
	bool		(*is_enough) (struct KindScan *scan);	/* for now? NULL: never */
	bool		(*skips) (struct KindScan *scan, BlockNumber blkno);	/* NULL: none */

	/* what is left of the range in hand, of blocks or buckets */
	BlockNumber next;
	BlockNumber end;

	bool		gives_up;		/* its place, as the budget feeds fewer */
	bool		has_stream;		/* which may keep pages pinned */
	BlockNumber pages_done;

	followed_hash *followed;	/* of a kind that follows some; NULL: none */
} KindScan;

extern const IndexKind btree_kind;
extern const IndexKind gist_kind;
extern const IndexKind spgist_kind;
extern const IndexKind hash_kind;
extern const IndexKind gin_kind;
extern const IndexKind hnsw_kind;

/*
 * index_kind says which kind an index is of, NULL for none of these; it is asked once in a
 * VACUUM, by the leader, as an answer may depend on the catalogs.  Members go by the kind's
 * number, which is -1 for none.
 */
extern const IndexKind *index_kind(Relation index, const char **reason);
extern int	index_kind_number(const IndexKind *kind);
extern const IndexKind *index_numbered_kind(int number);

/* What kinds tell index_vacuum.c, in any member */
extern void index_want_more_work(TableVacuum *vacuum, int number);
extern void index_note_empty_pages(TableVacuum *vacuum);

/*
 * What kinds have in common.  index_add_stats adds what one process did to what all
 * did; index_cap_tuples is the leader's, after cleanup.  index_report_page and
 * index_report_item raise an error.  index_current_size waits for the lock on the index's
 * extension.
 */
extern void index_add_stats(IndexShared *index, const IndexBulkDeleteResult *stats);
extern void index_report_page(Relation index, BlockNumber blkno);
extern void index_report_item(Relation index, BlockNumber blkno, ItemId item);
extern void index_cap_tuples(TableVacuum *vacuum, int number);
extern void index_fill_info(const TableVacuum *vacuum, int number, IndexVacuumInfo *info);
extern BlockNumber index_current_size(Relation index);

/*
 * kind_scan_make makes what a process needs in one index, of a kind's size, palloc'd and
 * zeroed but for its beginning; kind_scan_free tells what was done, and frees it.
 */
extern void *kind_scan_make(TableVacuum *vacuum, int number, Size size);
extern void kind_scan_free(KindScan *scan);

/*
 * Ranges of blocks.  The leader begins; each member visits or claims.  No page is
 * locked when index_visit_blocks or index_claim_growth is called, and none pinned that
 * another member may wait for.
 */
extern void index_begin_blocks(TableVacuum *vacuum, int number, BlockNumber first,
							   int nmembers);
extern void index_visit_blocks(KindScan *scan);
extern bool index_claim_range(IndexShared *index, bool *gives_up, uint64 *start, uint64 *end);
extern bool index_claim_growth(TableVacuum *vacuum, int number,
							   BlockNumber *start, BlockNumber *end);
extern bool index_blocks_are_claimed(TableVacuum *vacuum, int number);

/* Passes over all blocks: begin, work and finish of a kind that has begin_pass */
extern void index_begin_pass(TableVacuum *vacuum, int number, int nmembers);
extern void index_pass(TableVacuum *vacuum, int number);
extern void index_finish_pass(TableVacuum *vacuum, int number);

/*
 * The leader's finish: index_finish_stats of a kind that records free pages completes the
 * statistics; index_leave_stats leaves that to the access method's own cleanup.
 */
extern void index_leave_stats(TableVacuum *vacuum, int number);
extern void index_finish_stats(TableVacuum *vacuum, int number);

/*
 * Turns.  A member that waits for its turn has no page locked, and none pinned that
 * another member may wait for.
 */
extern bool index_take_turn(IndexShared *index, bool wait);
extern void index_end_turn(IndexShared *index);

/*
 * index_items_are_sound: the page isn't new, and is locked.  If it says so, each line
 * pointer leads to a tuple's header, and items can be deleted.  index_check_items raises an
 * error if line pointers of a page can't be right.  The page is locked exclusively, and the
 * critical section in which items are deleted begins later.
 */
extern bool index_items_are_sound(Page page);
extern void index_check_items(Relation index, Buffer buffer);

/* index_area -- a kind's own shared memory for an index. */
static inline void *
index_area(const TableVacuum *vacuum, int number)
{
	const IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(index->area_start > 0);
	return (char *) vacuum->shared + index->area_start;
}

/* index_tuple_begins -- does a line pointer lead to where a tuple may begin on its page? */
static inline bool
index_tuple_begins(Page page, ItemId item)
{
	return ItemIdHasStorage(item) &&
		ItemIdGetOffset(item) + sizeof(IndexTupleData) <= ((PageHeader) page)->pd_special;
}

/*
 * index_tuple_at
 *		A tuple of a page, or of a copy of one; an error unless its header is on
 *		the page.
 *
 * Nothing is known of what comes behind the header, nor is what it says.  This is
 * for loops over all items of an index, and costs a third of a nanosecond.
 */
static inline IndexTuple
index_tuple_at(Relation index, BlockNumber blkno, Page page, OffsetNumber off)
{
	ItemId		item = PageGetItemId(page, off);

	if (unlikely(!index_tuple_begins(page, item)))
		index_report_item(index, blkno, item);
	return (IndexTuple) PageGetItem(page, item);
}

/* index_whole_tuple_at -- a tuple of a page, if all that the line pointer names is on it. */
static inline IndexTuple
index_whole_tuple_at(Relation index, BlockNumber blkno, Page page, OffsetNumber off)
{
	ItemId		item = PageGetItemId(page, off);

	if (unlikely(ItemIdGetLength(item) < sizeof(IndexTupleData) ||
				 ItemIdGetOffset(item) < SizeOfPageHeaderData ||
				 ItemIdGetOffset(item) + ItemIdGetLength(item) > ((PageHeader) page)->pd_special))
		index_report_item(index, blkno, item);
	return index_tuple_at(index, blkno, page, off);
}

#endif							/* CYCLONE_INDEX_KIND_H */
