/*-------------------------------------------------------------------------
 *
 * tail_plan.c
 *	  Where a table could end, and keeping new rows away from what comes after.
 *
 * By the free space map, which the VACUUM before has brought up to date: the
 * tail is what fits into the free space before it.  The map knows
 * 1/256 of a page, and rows have their sizes, so this is an estimate; each
 * pass makes its own.
 *
 * Blocks that have been vacated are taken out of the map, so that new rows are
 * not put there, until what remains of the tail is known after the
 * next VACUUM.  New rows come all the same from sessions that still have such a
 * page in mind.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/visibilitymap.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"

#include "inplace/inplace.h"

/* What the map doesn't tell apart */
#define FSM_STEP	(BLCKSZ / 256)

static Size average_row(Inplace *job, Relation rel);
static Size used_bytes(Relation rel, BlockNumber blkno);

/*
 * tail_plan
 *		Set job->npages and job->tail_start.
 */
void
tail_plan(Inplace *job, Relation rel)
{
	Size		reserve = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	bool		is_toast = rel->rd_rel->relkind == RELKIND_TOASTVALUE;
	BlockNumber front = 0;
	BlockNumber back = RelationGetNumberOfBlocks(rel);
	Size		unit;
	int64		room = 0;

	job->npages = back;
	unit = is_toast ? TOAST_PART_SIZE : average_row(job, rel);
	while (front < back)
	{
		Size		used = used_bytes(rel, back - 1);

		CHECK_FOR_INTERRUPTS();

		/*
		 * Parts of values are large, and small ones may take the room of large
		 * ones.  It is better to begin with a tail that is too short than to
		 * leave the very end of the table where it is.
		 */
		if (is_toast && used > 0)
			used = (used / unit + 2) * unit;
		if (room >= (int64) used)
		{
			room -= used;
			back--;
		}
		else
		{
			Size		space = GetRecordedFreeSpace(rel, front++);

			/* what doesn't take a whole row is no room */
			if (space > reserve)
				room += (space - reserve) / unit * unit;
		}
	}
	job->tail_start = back;
}

/* average_row -- how much room a row takes. */
static Size
average_row(Inplace *job, Relation rel)
{
	int64		used = 0;

	for (BlockNumber blkno = 0; blkno < job->npages; blkno++)
	{
		CHECK_FOR_INTERRUPTS();
		used += used_bytes(rel, blkno);
	}
	return Max(used / Max(job->pass.live_tuples, 1), 1);
}

/* used_bytes -- how much of a page is taken, or not known to be free. */
static Size
used_bytes(Relation rel, BlockNumber blkno)
{
	Size		space = GetRecordedFreeSpace(rel, blkno);

	return space + SizeOfPageHeaderData + FSM_STEP > BLCKSZ ? 0 :
		BLCKSZ - SizeOfPageHeaderData - space;
}

/*
 * tail_hide_block
 *		Offer no more room in a block, but have the next VACUUM look at it, ours or
 *		another, that will offer it again.
 *
 * That the map forgets that the page is all-visible needs no WAL: it may.
 */
void
tail_hide_block(Relation rel, BlockNumber blkno, Buffer *vmbuffer)
{
	if (visibilitymap_get_status(rel, blkno, vmbuffer) != 0)
	{
		Buffer		buffer = ReadBuffer(rel, blkno);

		visibilitymap_pin(rel, blkno, vmbuffer);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		visibilitymap_clear(rel, blkno, *vmbuffer, VISIBILITYMAP_VALID_BITS);
		UnlockReleaseBuffer(buffer);
	}
	if (GetRecordedFreeSpace(rel, blkno) > 0)
		RecordPageWithFreeSpace(rel, blkno, 0);
}

/*
 * tail_offer_room
 *		Offer the room in what remains of the tail again.
 */
void
tail_offer_room(Inplace *job, Relation rel)
{
	BlockNumber npages = RelationGetNumberOfBlocks(rel);

	for (BlockNumber blkno = job->tail_start; blkno < npages; blkno++)
	{
		Buffer		buffer;
		Page		page;
		Size		space;

		delay_point();
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL, job->ring);
		page = BufferGetPage(buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		space = PageIsNew(page) ? 0 : PageGetHeapFreeSpace(page);
		UnlockReleaseBuffer(buffer);
		RecordPageWithFreeSpace(rel, blkno, space);
	}
	if (npages > job->tail_start)
		FreeSpaceMapVacuumRange(rel, job->tail_start, npages);
}
