/*-------------------------------------------------------------------------
 *
 * tail_plan.c
 *	  Where a table could end, and keeping new rows away from what comes after.
 *
 * The tail is what fits into the free space before it.  The free space map tells
 * that; the VACUUM before has brought it up to date.  It knows 1/256 of a page, and
 * rows have their sizes, so this is an estimate; each pass makes its own.
 *
 * The tail is taken out of the map before rows are moved, so that new ones are
 * not put there.  They come all the same from sessions that still have such a
 * page in mind, and if there is no room elsewhere they are put behind the end of
 * the table, which then can't be cut off.  So some room in front is left to
 * them: at first for as many rows as there are pages that others have changed
 * during the VACUUM before, and then, if the table has grown nonetheless, for
 * twice as much as it has grown by.
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/visibilitymap.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"
#include "storage/lmgr.h"

#include "inplace/inplace.h"
#include "inplace/page_change.h"

/* At first other sessions are left no more than this fraction of the table. */
#define MOST_ROOM_FRACTION	32

/* The layout of the visibility map, which visibilitymap.c keeps to itself */
#define MAP_BYTE_BLOCKS	(BITS_PER_BYTE / BITS_PER_HEAPBLOCK)
#define MAP_PAGE_BLOCKS	((BLCKSZ - MAXALIGN(SizeOfPageHeaderData)) * MAP_BYTE_BLOCKS)

/* The free space map counts in steps of this many bytes. */
#define FSM_STEP	(BLCKSZ / 256)

static BlockNumber find_tail(Relation rel, BlockNumber npages, Size unit, int64 room);
static Size usable_space(Size space, Size unit, Size reserve);
static int64 room_for_others(Inplace *job, Relation rel, Size row);
static Size average_row(Inplace *job, Relation rel);
static Size used_bytes(Relation rel, BlockNumber blkno);
static void forget_visibility(Relation rel, BlockNumber start, BlockNumber end);
static void clear_bits(Relation rel, Buffer vmbuffer, int start, int nblocks);
static uint8 map_bits(int block);

/*
 * tail_plan
 *		Set job->npages and job->tail_start, and what a report may say of them.
 *
 * In a transaction, with the table locked.
 */
void
tail_plan(Inplace *job, Relation rel)
{
	BlockNumber npages = RelationGetNumberOfBlocks(rel);
	bool		is_toast = rel->rd_rel->relkind == RELKIND_TOASTVALUE;
	Size		row = average_row(job, rel);
	Size		unit = is_toast ? TOAST_PART_SIZE : row;
	int64		others = room_for_others(job, rel, unit);

	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	job->row_size = row;
	/* if they would need all there is, leave them less */
	while ((job->tail_start = find_tail(rel, npages, unit, -others)) == npages && others >= BLCKSZ)
		others /= 4;
	job->room_for_others = others;
	job->npages = npages;
	Assert(job->tail_start <= job->npages);
}

/*
 * find_tail
 *		Return where the table could end, with this much room in addition, which may be
 *		negative.
 */
static BlockNumber
find_tail(Relation rel, BlockNumber npages, Size unit, int64 room)
{
	Size		reserve = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	bool		is_toast = rel->rd_rel->relkind == RELKIND_TOASTVALUE;
	BlockNumber front = 0;
	BlockNumber back = npages;

	while (front < back)
	{
		Size		used = used_bytes(rel, back - 1);

		CHECK_FOR_INTERRUPTS();

		/*
		 * Parts of values are large, and small ones may take the room of
		 * large ones.  It is better to begin with a tail that is too short
		 * than to leave the very end of the table where it is.
		 */
		if (is_toast && used > 0)
			used = (used / unit + 2) * unit;
		if (room >= (int64) used)
		{
			room -= used;
			back--;
		}
		else
			room += usable_space(GetRecordedFreeSpace(rel, front++), unit, reserve);
	}
	return back;
}

/*
 * usable_space
 *		How much of a page's space whole rows would take.
 *
 * The first may go into the reserve, if the page is as good as empty.
 */
static Size
usable_space(Size space, Size unit, Size reserve)
{
	Assert(unit > 0 && unit <= MaxHeapTupleSize);
	if (space < page_space_needed(unit, reserve))
		return 0;
	return space < unit + reserve ? unit : (space - reserve) / unit * unit;
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

/*
 * average_row
 *		How much room a row takes; also sum up what is free.
 *
 * Where most rows are dead, but still needed, that is more than a row can take:
 * then let it be as much as that.
 */
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
	job->free_bytes = npages * (int64) (BLCKSZ - SizeOfPageHeaderData) - used;
	return Min(Max(used / Max(job->pass.live_tuples, 1), 1), MaxHeapTupleSize);
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
 *		Offer no more room in a block.
 */
void
tail_hide_block(Relation rel, BlockNumber blkno)
{
	if (GetRecordedFreeSpace(rel, blkno) > 0)
		RecordPageWithFreeSpace(rel, blkno, 0);
}

/*
 * tail_hide
 *		Offer no room in the tail any more.  Have the next VACUUM, ours or another, look
 *		at all of the tail, so that it offers the room again.
 */
void
tail_hide(Inplace *job, Relation rel)
{
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	Assert(job->tail_start <= job->npages);
	forget_visibility(rel, job->tail_start, job->npages);
	for (BlockNumber blkno = job->tail_start; blkno < job->npages; blkno++)
	{
		delay_point();
		tail_hide_block(rel, blkno);
	}
	FreeSpaceMapVacuumRange(rel, job->tail_start, job->npages);
}

/*
 * forget_visibility
 *		Take blocks out of the visibility map.
 *
 * Their pages needn't be locked.  Another session may make one all-visible again, as
 * PostgreSQL 19 does when it prunes a page that it reads: then the page is so, and all
 * that is lost is that the next VACUUM may skip it.  A page that isn't in the map may be
 * marked all-visible, but not the other way round.
 *
 * The change must be logged, under the lock under which it is made: a session that
 * changes a page logs whether it took the page out of the map, and replay must not find
 * the page there if the session didn't have to.
 */
static void
forget_visibility(Relation rel, BlockNumber start, BlockNumber end)
{
	Buffer		vmbuffer = InvalidBuffer;

	for (uint64 first = start; first < end;)
	{
		uint64		next = Min((first / MAP_PAGE_BLOCKS + 1) * MAP_PAGE_BLOCKS, end);

		delay_point();
		/* finds the page of the map, if there is one */
		(void) visibilitymap_get_status(rel, first, &vmbuffer);
		if (BufferIsValid(vmbuffer))
		{
			LockBuffer(vmbuffer, BUFFER_LOCK_EXCLUSIVE);
			clear_bits(rel, vmbuffer, first % MAP_PAGE_BLOCKS, next - first);
			UnlockReleaseBuffer(vmbuffer);
			vmbuffer = InvalidBuffer;
		}
		first = next;
	}
}

/*
 * clear_bits
 *		Clear both bits of nblocks blocks on a page of the visibility map, which
 *		the caller has locked exclusively.
 *
 * The page is logged as a whole, as the server has no record for this.  Its
 * layout isn't the standard one: there is something in the hole.
 */
static void
clear_bits(Relation rel, Buffer vmbuffer, int start, int nblocks)
{
	uint8	   *map = (uint8 *) PageGetContents(BufferGetPage(vmbuffer));
	bool		any = false;

	Assert(start >= 0 && nblocks > 0 && start + nblocks <= MAP_PAGE_BLOCKS);
	for (int i = start; i < start + nblocks && !any; i++)
		any = (map[i / MAP_BYTE_BLOCKS] & map_bits(i)) != 0;
	if (!any)
		return;

	START_CRIT_SECTION();
	for (int i = start; i < start + nblocks; i++)
		map[i / MAP_BYTE_BLOCKS] &= ~map_bits(i);
	MarkBufferDirty(vmbuffer);
	if (RelationNeedsWAL(rel))
		log_newpage_buffer(vmbuffer, false);
	END_CRIT_SECTION();
}

/* map_bits -- the bits of a block in its byte. */
static uint8
map_bits(int block)
{
	return VISIBILITYMAP_VALID_BITS << (block % MAP_BYTE_BLOCKS * BITS_PER_HEAPBLOCK);
}

/*
 * tail_note_room
 *		Note in the map what room there is in what remains of the tail, for the
 *		next plan.
 *
 * Until the map is vacuumed from there on sessions that look for room find little of it:
 * only what shares a page of the map with room that is offered.
 */
void
tail_note_room(Inplace *job, Relation rel)
{
	BlockNumber npages = RelationGetNumberOfBlocks(rel);

	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));

	tail_begin_reading(job, rel);
	for (BlockNumber blkno = job->tail_start; blkno < npages; blkno++)
	{
		Buffer		buffer;
		Page		page;
		Size		space;

		delay_point();
		file_cache_before_read(job->file_cache, rel, job->file_cache_map, blkno);
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL, job->ring);
		page = BufferGetPage(buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		space = PageIsNew(page) ? 0 : PageGetHeapFreeSpace(page);
		UnlockReleaseBuffer(buffer);
		RecordPageWithFreeSpace(rel, blkno, space);
	}
	tail_end_reading(job);
}

/*
 * tail_begin_reading
 *		Pages of a relation will be read by this process alone, for a plan: those that
 *		aren't in the page cache are not to stay there.
 */
void
tail_begin_reading(Inplace *job, Relation rel)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);

	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	Assert(job->file_cache == NULL);
	if (!file_cache_is_wanted(rel, nblocks, nblocks))
		return;
	job->file_cache = file_cache_begin(GetAccessStrategyBufferCount(job->ring));
	job->file_cache_map = palloc(file_cache_map_size(nblocks));
	file_cache_map_init(job->file_cache_map, nblocks);
}

/* tail_end_reading -- they have been. */
void
tail_end_reading(Inplace *job)
{
	Assert(job->file_cache == NULL || job->file_cache_map != NULL);

	if (job->file_cache == NULL)
		return;
	file_cache_end(job->file_cache);
	pfree(job->file_cache_map);
	job->file_cache = NULL;
	job->file_cache_map = NULL;
}
