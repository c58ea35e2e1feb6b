/*-------------------------------------------------------------------------
 *
 * update_chains.c
 *	  Copying those versions of rows that are linked with others.
 *
 * An old version of a row that a snapshot may still see points at the newer
 * one, so the place of the newer one must be known before the old one is
 * written, wherever in the table the two are.  There are few of them as a
 * rule: of rows that were updated since the oldest snapshot was taken.  So
 * the team only marks the blocks that have some, and the leader takes them to
 * the server's own rewriting facility afterwards, which adds pages to the new
 * heap, and values to the new TOAST table unless they are there already.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/rewriteheap.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"

#include "debug_point.h"
#include "rewrite/rewrite.h"
#include "rewrite/tuple_fate.h"

/* This pass over the marked blocks */
typedef struct ChainPass
{
	TableRewrite *rewrite;
	RewriteState state;
	MemoryContext context;		/* of a page's tuples */
} ChainPass;

static void rewrite_page(ChainPass *pass, Buffer buffer);
static void rewrite_tuple(ChainPass *pass, HeapTuple tuple, TupleFate fate, uint16 infomask);

/*
 * update_chains_rewrite
 *		Leader, when the team is gone and the new TOAST table has its index: copy
 *		what was left out of these blocks of the table.
 *
 * Returns whether there was something to do.
 */
bool
update_chains_rewrite(TableRewrite *rewrite, const BlockNumber *blocks, int64 nblocks)
{
	RewriteShared *shared = rewrite->shared;
	HeapCopyShared *copy = &shared->heaps[REWRITE_TABLE];
	ChainPass	pass = {.rewrite = rewrite};

	if (nblocks == 0)
		return false;

	pass.context = AllocSetContextCreate(CurrentMemoryContext, "Update chains",
										 ALLOCSET_DEFAULT_SIZES);
	pass.state = begin_heap_rewrite(rewrite->old_heaps[REWRITE_TABLE],
									rewrite->new_heaps[REWRITE_TABLE],
									copy->oldest_xmin, shared->freeze_limit,
									shared->multi_cutoff);
	for (int64 i = 0; i < nblocks; i++)
	{
		Buffer		buffer = ReadBuffer(rewrite->old_heaps[REWRITE_TABLE], blocks[i]);
		MemoryContext old = MemoryContextSwitchTo(pass.context);

		rewrite->place = rewrite->old_heaps[REWRITE_TABLE];
		rewrite->blkno = blocks[i];
		rewrite_page(&pass, buffer);
		MemoryContextSwitchTo(old);
		MemoryContextReset(pass.context);
		ReleaseBuffer(buffer);
		DEBUG_POINT("update-chains");
		CHECK_FOR_INTERRUPTS();
	}
	rewrite->place = NULL;
	end_heap_rewrite(pass.state);
	MemoryContextDelete(pass.context);
	return true;
}

/*
 * rewrite_page
 *		Hand those tuples of a page that are linked to the server's facility.
 *
 * It may fetch values, and write some, so the page is not locked meanwhile:
 * nobody changes it, but for hint bits.
 */
static void
rewrite_page(ChainPass *pass, Buffer buffer)
{
	Relation	rel = pass->rewrite->old_heaps[REWRITE_TABLE];
	TransactionId oldest_xmin = pass->rewrite->shared->heaps[REWRITE_TABLE].oldest_xmin;
	Page		page = BufferGetPage(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	HeapTupleData tuple;

	tuple.t_tableOid = RelationGetRelid(rel);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		TupleFate	fate;
		uint16		infomask;
		bool		is_in_chain;

		if (!ItemIdIsNormal(item))
			continue;
		ItemPointerSet(&tuple.t_self, BufferGetBlockNumber(buffer), off);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		fate = tuple_fate(rel, &tuple, buffer, oldest_xmin, &infomask);
		is_in_chain = tuple_is_in_chain(&tuple, fate, infomask, oldest_xmin);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		if (is_in_chain)
			rewrite_tuple(pass, &tuple, fate, infomask);
	}
}

/*
 * rewrite_tuple
 *		Hand over one tuple.
 */
static void
rewrite_tuple(ChainPass *pass, HeapTuple tuple, TupleFate fate, uint16 infomask)
{
	RewriteCounters *counters = &pass->rewrite->counters[REWRITE_TABLE];
	HeapTuple	hinted;

	if (fate == TUPLE_DEAD)
	{
		/* an older version that was taken for recently dead is dead as well */
		if (rewrite_heap_dead_tuple(pass->state, tuple))
		{
			counters->tuples_removed++;
			counters->tuples_recently_dead--;
		}
		return;
	}

	hinted = heap_copytuple(tuple);
	hinted->t_data->t_infomask = infomask;
	rewrite_heap_tuple(pass->state, hinted,
					   heap_copy_reform(pass->rewrite, REWRITE_TABLE, hinted));
}
