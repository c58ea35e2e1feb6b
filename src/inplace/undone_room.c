/*-------------------------------------------------------------------------
 *
 * undone_room.c
 *	  Getting back the room of rows whose move was undone.
 *
 * The new versions of a batch that is rolled back are dead at once, but they fill
 * the pages that they came to.  Those would be full until the next
 * VACUUM, and the pass would find too little room for the rows that it has planned for.  So
 * they are pruned, and filled once more.  An item of four bytes
 * remains for each row, until that VACUUM has removed its index entries.
 *
 * A page that others have pinned is left as it is: that room is lost for the pass.
 * So is that of values in a TOAST table, as the server has chosen the pages there.  The
 * report says how many rows were moved in vain.
 *
 * The list of a batch lives in its transaction, that of pages to be filled once more in
 * job->context.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"
#include "utils/memutils.h"

#include "compat.h"
#include "engine/block_list.h"
#include "inplace/inplace.h"
#include "inplace/move_batch.h"

static bool prune_page(MoveBatch *batch, BlockNumber blkno);

/* undone_room_note -- the batch has put rows on this page. */
void
undone_room_note(MoveBatch *batch, BlockNumber blkno)
{
	BlockList  *filled = &batch->filled;
	MemoryContext old;

	Assert(BlockNumberIsValid(blkno));
	/* a batch that can't be undone needs no list */
	if (!batch->can_be_undone ||
		(filled->count > 0 && filled->blocks[filled->count - 1] == blkno))
		return;
	old = MemoryContextSwitchTo(batch->outer_context);
	block_list_add(filled, blkno);
	MemoryContextSwitchTo(old);
}

/*
 * undone_room_reclaim
 *		Have the pages filled once more that the batch has put rows on, after these
 *		were rolled back; in the batch's transaction.
 */
void
undone_room_reclaim(MoveBatch *batch)
{
	Inplace    *job = batch->job;
	MemoryContext old = MemoryContextSwitchTo(job->context);

	Assert(!IsSubTransaction());
	/* the first one first, as it is taken from the end */
	while (batch->filled.count > 0)
	{
		BlockNumber blkno = batch->filled.blocks[--batch->filled.count];

		CHECK_FOR_INTERRUPTS();
		if (prune_page(batch, blkno) && blkno != job->target)
			block_list_add(&job->refill, blkno);
	}
	MemoryContextSwitchTo(old);
}

/* undone_room_take -- return a page to be filled once more; invalid if there is none. */
BlockNumber
undone_room_take(Inplace *job)
{
	return job->refill.count > 0 ? job->refill.blocks[--job->refill.count] : InvalidBlockNumber;
}

/*
 * prune_page
 *		Make dead row versions on a page give back their room, and offer it; return
 *		false if others have the page pinned.
 */
static bool
prune_page(MoveBatch *batch, BlockNumber blkno)
{
	Buffer		buffer = ReadBufferExtended(batch->rel, MAIN_FORKNUM, blkno, RBM_NORMAL,
											batch->job->ring);
	Buffer		vmbuffer = InvalidBuffer;
	bool		is_locked;
	Size		space = 0;

	visibilitymap_pin(batch->rel, blkno, &vmbuffer);
	is_locked = ConditionalLockBufferForCleanup(buffer);
	if (is_locked)
	{
		compat_prune(batch->rel, buffer, vmbuffer);
		space = PageGetHeapFreeSpace(BufferGetPage(buffer));
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(vmbuffer);
	ReleaseBuffer(buffer);
	if (is_locked)
		RecordPageWithFreeSpace(batch->rel, blkno, space);
	return is_locked;
}
