/*-------------------------------------------------------------------------
 *
 * brin_vacuum.c
 *	  Cleanup of BRIN indexes, by any number of processes in one index.
 *
 * A BRIN index has no entries of dead TIDs to delete.  What takes time is to
 * summarize, in cleanup, the page ranges that have no summary yet: all tuples
 * of these ranges in the heap are read.  The members of a team claim page
 * ranges by their number, and summarize those that need it with the server's
 * brin_summarize_range, just as a session could.  Only full ranges are, as in
 * the server's vacuum; the one at the end of the table may still grow.
 *
 * Why several may do so at once: a range's summary is computed beside sessions
 * that insert into the range, and change the summary meanwhile; first comes a
 * placeholder, which they find.  Each range has one member.  What different
 * ranges have in common, the pages of the index and its map of ranges, is
 * locked as when sessions enlarge summaries; and the lock on the extension of
 * the index conflicts within a team, too.  The lock that brin_summarize_range
 * takes on the table, so that a range has one process, is the VACUUM's own, and
 * doesn't conflict within a team.
 *
 * Before that the leader looks for pages of the index that were lost in a
 * crash, and writes down what is free (brin_begin_cleanup).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/brin_pageops.h"
#include "access/brin_revmap.h"
#include "catalog/pg_am.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"

#include "debug_point.h"
#include "engine/index_kind.h"
#include "pace/pace.h"

/* Page ranges are claimed by at most this many. */
#define RANGE_RANGES		64

/* What the team shares of a BRIN index; written by the leader */
typedef struct BrinShared
{
	BlockNumber pages_per_range;
} BrinShared;

static void brin_begin_cleanup(TableVacuum *vacuum, int number, int nmembers);
static BlockNumber brin_cleanup(TableVacuum *vacuum, int number);
static void brin_finish_cleanup(TableVacuum *vacuum, int number);
static bool is_summarized(BrinRevmap *revmap, BlockNumber blkno, Buffer *buffer);
static void summarize(Relation index, BlockNumber blkno);

const IndexKind brin_kind = {
	.name = "brin",
	.is_as_big_as_heap = true,
	.shared_size = sizeof(BrinShared),
	.cleanup = {
		.begin = brin_begin_cleanup,
		.work = brin_cleanup,
		.is_done = index_blocks_are_claimed,
		.finish = brin_finish_cleanup,
	},
};

/*
 * brin_is_ours
 *		Is cleanup of this index, whose access method's routine is the server's,
 *		done here?
 *
 * Not if brin_summarize_range would refuse it, or look away.
 */
bool
brin_is_ours(Relation index)
{
	return index->rd_rel->relam == BRIN_AM_OID && index->rd_index->indisvalid;
}

/*
 * brin_begin_cleanup
 *		Clean up the index's pages, and make the page ranges available.
 */
static void
brin_begin_cleanup(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	BrinShared *brin = index_area(vacuum, number);
	Relation	index = vacuum->indexes[number];
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);
	BrinRevmap *revmap = brinRevmapInitialize(index, &brin->pages_per_range);

	brinRevmapTerminate(revmap);
	for (BlockNumber blkno = 0; blkno < nblocks; blkno++)
	{
		Buffer		buffer;

		delay_point();
		buffer = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL,
									vacuum_strategy(vacuum));
		brin_page_cleanup(index, buffer);
		ReleaseBuffer(buffer);
	}
	FreeSpaceMapVacuum(index);

	/* the server's, too, is of before the summaries that are yet to come */
	shared->stats.num_pages = nblocks;
	shared->stats.num_index_tuples = 0;
	/* partial ranges are left out */
	ranges_init(&shared->ranges, 0,
				RelationGetNumberOfBlocks(vacuum->rel) / brin->pages_per_range,
				1, RANGE_RANGES, nmembers);
}

/*
 * brin_cleanup
 *		One process's part of a cleanup: claim page ranges until none is left,
 *		and summarize those that aren't.
 *
 * Its stats are how many ranges have a summary.
 */
static BlockNumber
brin_cleanup(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	BrinShared *brin = index_area(vacuum, number);
	IndexBulkDeleteResult stats = {0};
	BlockNumber pages_per_range;
	BrinRevmap *revmap = brinRevmapInitialize(vacuum->indexes[number], &pages_per_range);
	Buffer		buffer = InvalidBuffer;
	BlockNumber nsummarized = 0;
	uint64		start,
				end;

	Assert(pages_per_range == brin->pages_per_range);
	while (ranges_claim(&shared->ranges, &start, &end))
	{
		for (uint64 range = start; range < end; range++)
		{
			BlockNumber blkno = range * brin->pages_per_range;

			delay_point();
			DEBUG_POINT("brin-range");
			stats.num_index_tuples++;
			if (is_summarized(revmap, blkno, &buffer))
				continue;
			summarize(vacuum->indexes[number], blkno);
			nsummarized++;
		}
	}

	if (BufferIsValid(buffer))
		ReleaseBuffer(buffer);
	brinRevmapTerminate(revmap);
	index_add_stats(shared, &stats);
	return nsummarized * brin->pages_per_range;
}

/* brin_finish_cleanup -- now the index has statistics. */
static void
brin_finish_cleanup(TableVacuum *vacuum, int number)
{
	vacuum_index(vacuum->shared, number)->has_stats = true;
}

/*
 * is_summarized
 *		Has the page range that begins with this block a summary?
 *
 * *buffer stays pinned, so that it needn't be looked for the next time.
 */
static bool
is_summarized(BrinRevmap *revmap, BlockNumber blkno, Buffer *buffer)
{
	OffsetNumber offset;

	if (brinGetTupleForHeapBlock(revmap, blkno, buffer, &offset, NULL,
								 BUFFER_LOCK_SHARE) == NULL)
		return false;
	LockBuffer(*buffer, BUFFER_LOCK_UNLOCK);
	return true;
}

/*
 * summarize
 *		Have the server summarize a page range; it naps no more within one than
 *		in its own vacuum.
 */
static void
summarize(Relation index, BlockNumber blkno)
{
	Assert(brin_is_ours(index));
	(void) DirectFunctionCall2(brin_summarize_range,
							   ObjectIdGetDatum(RelationGetRelid(index)),
							   Int64GetDatum(blkno));
}
