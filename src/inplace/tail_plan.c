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
 * The tail is taken out of the map before rows are moved, so that new ones are
 * not put there.  They come all the same from sessions that still have such a
 * page in mind, and if there is no room elsewhere they are put behind the end of
 * the table, which then can't be cut off.  So some room in front is left to
 * them: at first for as many rows as there are pages that others have changed
 * during the VACUUM before, and then, if the table has grown nonetheless, for
 * twice as much as it has grown by.
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

/* At first no more than that part of the table is left to others */
#define MOST_ROOM_FRACTION	32

/* What the map doesn't tell apart */
#define FSM_STEP	(BLCKSZ / 256)

static int64 room_for_others(Inplace *job, Relation rel, Size row);
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
	int64		room;

	unit = is_toast ? TOAST_PART_SIZE : average_row(job, rel);
	room = -room_for_others(job, rel, unit);
	job->npages = back;
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

/*
 * room_for_others
 *		How much room in front had best not be filled, in bytes; see above.
 *
 * Less and less, if the table doesn't grow.
 */
static int64
room_for_others(Inplace *job, Relation rel, Size row)
{
	BlockNumber npages = job->pass.old_pages;

	if (job->npages == 0)
	{
		BlockNumber unchanged;
		int64		changed;

		visibilitymap_count(rel, &unchanged, NULL);
		changed = RelationGetNumberOfBlocks(rel) - (int64) unchanged;
		job->room_for_others = Min(2 * Max(changed, 0) * row,
								   npages / MOST_ROOM_FRACTION * (int64) BLCKSZ);
	}
	else
	{
		int64		grown = Max((int64) npages - job->npages, 0);

		job->room_for_others = Max(2 * grown * BLCKSZ, job->room_for_others / 2);
	}
	return job->room_for_others;
}

/* average_row -- how much room a row takes. */
static Size
average_row(Inplace *job, Relation rel)
{
	BlockNumber npages = RelationGetNumberOfBlocks(rel);
	int64		used = 0;

	for (BlockNumber blkno = 0; blkno < npages; blkno++)
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
 * That the map forgets that the page is all-visible needs no WAL, nor a lock on
 * the page: it may, and nobody else can make it all-visible.
 */
void
tail_hide_block(Relation rel, BlockNumber blkno, Buffer *vmbuffer)
{
	if (visibilitymap_get_status(rel, blkno, vmbuffer) != 0)
	{
		visibilitymap_pin(rel, blkno, vmbuffer);
		visibilitymap_clear(rel, blkno, *vmbuffer, VISIBILITYMAP_VALID_BITS);
	}
	if (GetRecordedFreeSpace(rel, blkno) > 0)
		RecordPageWithFreeSpace(rel, blkno, 0);
}

/*
 * tail_hide
 *		Offer no room in the tail any more.
 */
void
tail_hide(Inplace *job, Relation rel)
{
	Buffer		vmbuffer = InvalidBuffer;

	for (BlockNumber blkno = job->tail_start; blkno < job->npages; blkno++)
	{
		delay_point();
		tail_hide_block(rel, blkno, &vmbuffer);
	}
	if (BufferIsValid(vmbuffer))
		ReleaseBuffer(vmbuffer);
	FreeSpaceMapVacuumRange(rel, job->tail_start, job->npages);
}

/*
 * tail_note_room
 *		Note in the map what room there is in what remains of the tail, for the
 *		next plan.  It isn't offered until tail_offer_room is called.
 */
void
tail_note_room(Inplace *job, Relation rel)
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
}

/*
 * tail_offer_room
 *		Offer the room noted from this block on.
 */
void
tail_offer_room(Relation rel, BlockNumber start)
{
	FreeSpaceMapVacuumRange(rel, start, InvalidBlockNumber);
}
