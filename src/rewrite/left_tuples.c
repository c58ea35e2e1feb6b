/*-------------------------------------------------------------------------
 *
 * left_tuples.c
 *	  The tuples that the team leaves to the leader.
 *
 * heap_copy.c says which these are.  The leader passes over the blocks that
 * have some as often as it needs to, and finds the same each time: the old
 * heap does not change, nor does a tuple's fate (tuple_fate.c).  So nothing is
 * kept in memory from one pass to the next, except what update_chains.c sorts.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "debug_point.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "rewrite/rewrite.h"

/* A page with tuples for the leader, as it was under lock */
typedef struct LeftPage
{
	PGAlignedBlock image;
	TupleFate	fates[MaxOffsetNumber];
	uint16		infomasks[MaxOffsetNumber];
} LeftPage;

/* The copying of rows that are too big */
typedef struct BigRows
{
	TableRewrite *rewrite;
	int64		ntuples;
} BigRows;

static void read_left_page(TableRewrite *rewrite, BlockNumber blkno, LeftPage *page);
static void copy_if_big(void *state, HeapTuple tuple, TupleFate fate, uint16 infomask);

/* left_tuples_visit -- call the routine with each tuple of the blocks that have some left. */
void
left_tuples_visit(TableRewrite *rewrite, LeftTupleRoutine routine, void *state)
{
	HeapCopyShared *copy = &rewrite->shared->heaps[REWRITE_TABLE];
	Relation	rel = rewrite->old_heaps[REWRITE_TABLE];
	LeftPage   *page = palloc_object(LeftPage);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "Left tuples",
												  ALLOCSET_DEFAULT_SIZES);
	BlockNumber blkno = 0;
	int64		done = 0;

	Assert(rewrite_is_leader(rewrite) && rewrite->new_pages != NULL);
	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));

	while ((blkno = heap_copy_next_left_block(rewrite->shared, copy, blkno)) != InvalidBlockNumber)
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		OffsetNumber maxoff;
		HeapTupleData tuple;

		rewrite->place = rel;
		rewrite->blkno = blkno;
		rewrite->offnum = InvalidOffsetNumber;
		read_left_page(rewrite, blkno, page);
		maxoff = PageGetMaxOffsetNumber((Page) page->image.data);
		tuple_copy_begin_page(rewrite, (Page) page->image.data);
		for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		{
			rewrite->offnum = off;
			if (!tuple_copy_find(rel, (Page) page->image.data, blkno, off, &tuple))
				continue;
			routine(state, &tuple, page->fates[off - 1], page->infomasks[off - 1]);
			new_pages_flush(rewrite->new_pages);
		}
		rewrite->place = NULL;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);

		blkno++;
		progress_blocks_done(++done);
		DEBUG_POINT("update-chains");
		delay_point();
	}
	MemoryContextDelete(context);
	pfree(page);
}

/* read_left_page -- copy a page, and find the fates of its tuples. */
static void
read_left_page(TableRewrite *rewrite, BlockNumber blkno, LeftPage *page)
{
	Relation	rel = rewrite->old_heaps[REWRITE_TABLE];
	TransactionId oldest_xmin = rewrite->shared->heaps[REWRITE_TABLE].oldest_xmin;
	Buffer		buffer = ReadBuffer(rel, blkno);
	OffsetNumber maxoff;
	HeapTupleData tuple;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	maxoff = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	Assert(maxoff <= MaxOffsetNumber);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		if (tuple_copy_find(rel, BufferGetPage(buffer), blkno, off, &tuple))
			page->fates[off - 1] = tuple_fate(rel, &tuple, buffer, oldest_xmin,
											  &page->infomasks[off - 1]);
	memcpy(page->image.data, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
}

/* left_tuples_copy_big -- copy the rows that are too big and not linked with others. */
void
left_tuples_copy_big(TableRewrite *rewrite, const RewriteCounters *sum)
{
	BigRows		rows = {.rewrite = rewrite};

	Assert(rewrite_is_leader(rewrite));
	Assert(sum->tuples_too_big > 0);

	progress_phase(PROGRESS_REWRITE_COPY_CHAINS,
				   heap_copy_left_blocks(rewrite->shared, &rewrite->shared->heaps[REWRITE_TABLE]));
	left_tuples_visit(rewrite, copy_if_big, &rows);
	if (rows.ntuples != sum->tuples_too_big)
		elog(ERROR, "found %lld rows of table \"%s\" too big where there were %lld before",
			 (long long) rows.ntuples,
			 RelationGetRelationName(rewrite->old_heaps[REWRITE_TABLE]), (long long) sum->tuples_too_big);
}

/* copy_if_big -- copy a row that is too big, and none of the others. */
static void
copy_if_big(void *state, HeapTuple tuple, TupleFate fate, uint16 infomask)
{
	BigRows    *rows = state;
	TableRewrite *rewrite = rows->rewrite;
	HeapTupleHeader written;
	HeapTuple	copy;

	if (fate == TUPLE_DEAD || !tuple_copy_is_too_big(tuple_copy_length(rewrite, tuple)) ||
		tuple_is_in_chain(tuple, fate, infomask, rewrite->shared->heaps[REWRITE_TABLE].oldest_xmin))
		return;
	copy = tuple_copy_make_smaller(rewrite, tuple_copy(rewrite, tuple, infomask));
	written = new_pages_add(rewrite->new_pages, copy->t_data, copy->t_len);
	heap_copy_note_values(rewrite, copy);
	audit_rewrite_by_leader(rewrite, tuple, written, copy->t_len);
	heap_freetuple(copy);
	rows->ntuples++;
}
