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
 * next VACUUM.  They are on the list of pages for the next VACUUM anyway, should
 * there be no more of this one.  New rows come all the same from
 * sessions that still have such a page in mind.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"

#include "inplace/inplace.h"

/* What the map doesn't tell apart */
#define FSM_STEP	(BLCKSZ / 256)

/*
 * tail_plan
 *		Set job->npages and job->tail_start.
 */
void
tail_plan(Inplace *job, Relation rel)
{
	Size		reserve = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	BlockNumber front = 0;
	BlockNumber back = RelationGetNumberOfBlocks(rel);
	int64		room = 0;
	Size		unit;

	/*
	 * Parts of values are large: what doesn't take a whole one is no room, and
	 * small parts may take the room of large ones.  It is better to begin with a
	 * tail that is too short than to leave the very end of the table where it is.
	 */
	unit = rel->rd_rel->relkind == RELKIND_TOASTVALUE ? TOAST_PART_SIZE : 1;
	job->npages = back;
	while (front < back)
	{
		Size		used = BLCKSZ - SizeOfPageHeaderData -
			Min(GetRecordedFreeSpace(rel, back - 1), BLCKSZ - SizeOfPageHeaderData);

		CHECK_FOR_INTERRUPTS();
		if (used < FSM_STEP)
			used = 0;
		else if (unit > 1)
			used = (used / unit + 2) * unit;
		if (room >= (int64) used)
		{
			room -= used;
			back--;
		}
		else
		{
			Size		space = GetRecordedFreeSpace(rel, front++);

			if (space > reserve)
				room += (space - reserve) / unit * unit;
		}
	}
	job->tail_start = back;
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
		Buffer		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL, job->ring);
		Page		page = BufferGetPage(buffer);
		Size		space;

		CHECK_FOR_INTERRUPTS();
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		space = PageIsNew(page) ? 0 : PageGetHeapFreeSpace(page);
		UnlockReleaseBuffer(buffer);
		RecordPageWithFreeSpace(rel, blkno, space);
	}
	if (npages > job->tail_start)
		FreeSpaceMapVacuumRange(rel, job->tail_start, npages);
}
