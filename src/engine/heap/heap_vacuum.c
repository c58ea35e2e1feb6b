/*-------------------------------------------------------------------------
 *
 * heap_vacuum.c
 *	  Heap vacuum: the second pass, which frees the dead items.
 *
 * No index entry points at the items in the dead-TID store any more, so they
 * become unused, and their pages perhaps all-visible.  The members claim
 * ranges of blocks; in a range only the pages that the store has items of
 * are read.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/visibilitymap.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/read_stream.h"

#include "audit/audit.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/heap/heap_page.h"
#include "engine/heap/page_check.h"
#include "engine/phases.h"
#include "guards/guards.h"
#include "machine/wal_writer.h"
#include "pace/pace.h"
#include "report/progress.h"

/*
 * The blocks that a page of the visibility map stands for are a lane, or nearly
 * so: a multiple of the chunks that the store has.  Each page that becomes
 * all-visible takes an exclusive lock on the map's page, so the members work
 * in different lanes, as far as there are as many.
 */
#define LANE_BLOCKS			(510 * DEAD_TIDS_CHUNK_BLOCKS)

/* A member takes at most this many blocks at a time, few of them read. */
#define MAX_SLOT_BLOCKS		4096
/* and of as many under a budget, as one that is to be parked finishes them first */
#define MAX_PACED_BLOCKS	512

/* One process's pass in one round */
typedef struct HeapVacuum
{
	TableVacuum *vacuum;
	void		(*other_work) (TableVacuum *vacuum, bool wait);
	BlockNumber next;			/* of the range in hand */
	BlockNumber end;
	BlockNumber passed;			/* not yet told */
	BlockNumber passed_in_all;
} HeapVacuum;

static BlockNumber next_dead_page(ReadStream *stream, void *private_data,
								  void *per_buffer_data);
static uint64 divide_up(uint64 whole, uint64 part);
static bool claim_slot(HeapVacuum *pass);
static void free_dead_items(TableVacuum *vacuum, Buffer buffer,
							DeadTidsPage *dead, Buffer vmbuffer);
static void check_dead_items(const TableVacuum *vacuum, Page page, const DeadTidsPage *dead);
static uint8 bits_when_freed(TableVacuum *vacuum, Buffer buffer, const DeadTidsPage *dead,
							 TransactionId *newest_xmin);
static int	used_items(Page page);
static void do_other_work(HeapVacuum *pass, bool wait);
static void report_freeing_progress(HeapVacuum *pass);

/*
 * heap_vacuum_begin_round
 *		Leader: prepare a pass over the blocks that have dead items.
 */
void
heap_vacuum_begin_round(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;

	uint64		lanes;

	/* no index has an entry of what is freed now */
	Assert(is_leader(vacuum));
	Assert(shared->do_index_vacuuming && shared->num_index_scans > 0);
	Assert(!VacuumFailsafeActive);
	Assert(dead_tids_count(vacuum->dead_tids) > 0);

	/* one process: from one end to the other */
	shared->reap_lane_blocks = shared->reap_slot_blocks = Max(shared->rel_pages, 1);
	shared->reap_lanes = 1;
	if (shared->nmembers > 1)
	{
		BlockNumber slot_blocks = shared->rel_pages / (8 * shared->nmembers);
		BlockNumber most = pace_is_bounded() ? MAX_PACED_BLOCKS : MAX_SLOT_BLOCKS;

		slot_blocks = Min(slot_blocks, most);
		slot_blocks -= slot_blocks % DEAD_TIDS_CHUNK_BLOCKS;
		shared->reap_slot_blocks = Max(slot_blocks, DEAD_TIDS_CHUNK_BLOCKS);
		shared->reap_lane_blocks = LANE_BLOCKS;
		shared->reap_lanes = shared->nmembers;
	}
	lanes = divide_up(shared->rel_pages, shared->reap_lane_blocks);
	shared->reap_lanes = Max(Min(shared->reap_lanes, lanes), 1);
	lanes = divide_up(lanes, shared->reap_lanes) * shared->reap_lanes;
	ranges_init(&shared->reap_slots, 0,
				lanes * divide_up(shared->reap_lane_blocks, shared->reap_slot_blocks),
				1, 1, shared->nmembers);
	pg_atomic_write_u64(&shared->blocks_vacuumed, 0);
	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_VACUUM_HEAP);
}

/*
 * heap_vacuum_phase
 *		One process's part of the second pass.
 *
 * There may be other work that only some processes can do at a time.  other_work
 * does this process's part of it; if it may not wait, only the part that can be done
 * at once.
 */
void
heap_vacuum_phase(TableVacuum *vacuum,
				  void (*other_work) (TableVacuum *vacuum, bool wait))
{
	HeapVacuum	pass = {.vacuum = vacuum,.other_work = other_work};
	Buffer		vmbuffer = InvalidBuffer;
	ReadStream *stream;

	Assert(CritSectionCount == 0);
	Assert(vacuum->dead_tids != NULL && vacuum->shared->do_index_vacuuming);
	Assert(vacuum->shared->num_index_scans > 0);
	progress_phase(PROGRESS_VACUUM_PHASE_VACUUM_HEAP, vacuum->shared->rel_pages);
	set_place(vacuum, PLACE_HEAP_VACUUM, InvalidBlockNumber);
	do_other_work(&pass, false);

	stream = read_stream_begin_relation(READ_STREAM_MAINTENANCE |
										COMPAT_READ_STREAM_BATCHING,
										vacuum_strategy(vacuum), vacuum->rel,
										MAIN_FORKNUM, next_dead_page, &pass,
										sizeof(DeadTidsPage));
	guards_begin_pins();
	for (;;)
	{
		Buffer		buffer;
		void	   *per_buffer_data;
		Size		free_space;

		delay_point();
		failsafe_notice(vacuum);

		buffer = read_stream_next_buffer(stream, &per_buffer_data);
		if (!BufferIsValid(buffer))
			buffer = guards_resume_stream(stream, &per_buffer_data, &vmbuffer);
		if (!BufferIsValid(buffer))
			break;
		set_place(vacuum, PLACE_HEAP_VACUUM, BufferGetBlockNumber(buffer));
		DEBUG_POINT("heap-vacuum");

		visibilitymap_pin(vacuum->rel, vacuum->blkno, &vmbuffer);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		free_dead_items(vacuum, buffer, per_buffer_data, vmbuffer);
		free_space = PageGetHeapFreeSpace(BufferGetPage(buffer));
		UnlockReleaseBuffer(buffer);
		record_free_space(vacuum, vacuum->blkno, free_space);
		ring_pages_visited(vacuum->ring_pages, vacuum->rel, vacuum->blkno, buffer);

		vacuum->counters.heap_vacuumed_pages++;
		if (pass.passed >= PROGRESS_BLOCKS)
		{
			report_freeing_progress(&pass);
			do_other_work(&pass, false);
		}
	}
	guards_end_pins();
	read_stream_end(stream);

	if (BufferIsValid(vmbuffer))
		ReleaseBuffer(vmbuffer);
	report_freeing_progress(&pass);
	do_other_work(&pass, true);
	set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
}

/*
 * next_dead_page
 *		The read stream's callback: the next page with dead items, and these items.
 *
 * Waits for no lock, and for no other process.  Of I/O it does what file_cache.c does.
 */
static BlockNumber
next_dead_page(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	HeapVacuum *pass = private_data;
	TableVacuum *vacuum = pass->vacuum;
	DeadTidsPage *dead = per_buffer_data;

	if (guards_cut_stream())
		return InvalidBlockNumber;
	for (;;)
	{
		if (dead_tids_next_page(vacuum->dead_tids, pass->next, pass->end, dead))
		{
			Assert(dead->blkno >= pass->next && dead->blkno < pass->end);
			Assert(dead->noffsets > 0);
			pass->passed += dead->blkno + 1 - pass->next;
			pass->next = dead->blkno + 1;
			before_heap_read(vacuum, dead->blkno);
			return dead->blkno;
		}
		pass->passed += pass->end - pass->next;
		pass->next = pass->end;

		if (!claim_slot(pass))
			return InvalidBlockNumber;
	}
}

/* divide_up -- in how many parts of that size, the last one maybe short, is the whole? */
static uint64
divide_up(uint64 whole, uint64 part)
{
	return (whole + part - 1) / part;
}

/*
 * claim_slot
 *		Take the next blocks; return false if there are none, or this process is not
 *		to go on, as the budget feeds fewer.
 *
 * Slots are numbered across as many lanes as there are members, and then on in
 * the next lanes.
 */
static bool
claim_slot(HeapVacuum *pass)
{
	VacuumShared *shared = pass->vacuum->shared;
	const uint64 slots_a_lane = divide_up(shared->reap_lane_blocks, shared->reap_slot_blocks);
	uint64		slot,
				end;

	Assert(pass->next >= pass->end);
	while (!pace_give_place() && ranges_claim(&shared->reap_slots, &slot, &end))
	{
		uint64		group = slot / (shared->reap_lanes * slots_a_lane);
		uint64		in_group = slot % (shared->reap_lanes * slots_a_lane);
		uint64		lane = group * shared->reap_lanes + in_group % shared->reap_lanes;
		uint64		lane_start = lane * shared->reap_lane_blocks;
		uint64		lane_end = lane_start + shared->reap_lane_blocks;
		uint64		start = lane_start + in_group / shared->reap_lanes * shared->reap_slot_blocks;

		end = Min(Min(start + shared->reap_slot_blocks, lane_end), shared->rel_pages);
		if (start < end)
		{
			/* a chunk of the store has one reader */
			Assert(start % DEAD_TIDS_CHUNK_BLOCKS == 0);
			Assert(end % DEAD_TIDS_CHUNK_BLOCKS == 0 || end == shared->rel_pages);
			pass->next = start;
			pass->end = end;
			return true;
		}
	}
	return false;
}

/*
 * free_dead_items
 *		Make a page's dead items unused, and the page all-visible if it is.
 *
 * The caller holds an exclusive lock, and a pin on the page's part of the
 * visibility map.
 */
static void
free_dead_items(TableVacuum *vacuum, Buffer buffer, DeadTidsPage *dead,
				Buffer vmbuffer)
{
	Page		page = BufferGetPage(buffer);
	TransactionId newest_xmin;
	uint8		bits;
	uint8		bits_along = 0; /* of them, in the record that frees items */
	bool		audits = audit_is_due();

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(BufferGetBlockNumber(buffer) == vacuum->blkno && dead->blkno == vacuum->blkno);
	Assert(visibilitymap_pin_ok(vacuum->blkno, vmbuffer));
	Assert(dead->noffsets > 0 && dead->noffsets <= MaxHeapTuplesPerPage);

	/* it may have been read again, and damaged, since the first pass */
	page_check_count(vacuum->rel, buffer);
	check_dead_items(vacuum, page, dead);

	/* before the critical section, as this may read from disk */
	bits = bits_when_freed(vacuum, buffer, dead, &newest_xmin);
	if (audits)
		audit_before_free(vacuum, buffer, dead, bits, newest_xmin);
	if (COMPAT_MAP_IN_PAGE_RECORD)
		bits_along = bits;
	if (bits_along != 0)
		compat_lock_map(vmbuffer);

	START_CRIT_SECTION();

	for (int i = 0; i < dead->noffsets; i++)
		ItemIdSetUnused(PageGetItemId(page, dead->offsets[i]));
	PageTruncateLinePointerArray(page);
	if (bits_along != 0)
		compat_set_locked_map(vacuum->rel, buffer, vmbuffer, bits_along);
	MarkBufferDirty(buffer);

	if (RelationNeedsWAL(vacuum->rel))
		compat_log_prune(vacuum->rel, buffer, vmbuffer, bits_along,
						 bits_along != 0 ? newest_xmin : InvalidTransactionId,
						 false, /* no cleanup lock needed */
						 PRUNE_VACUUM_CLEANUP,
						 NULL, 0,	/* frozen */
						 NULL, 0,	/* dead */
						 dead->offsets, dead->noffsets);

	END_CRIT_SECTION();

	if (bits_along != 0)
		compat_unlock_map(vmbuffer);
	else if (bits != 0)
	{
		/* If we crash before, a later vacuum will set the bits. */
		Assert(BufferIsLocal(buffer) || BufferIsDirty(buffer));
		PageSetAllVisible(page);
		compat_visibilitymap_set(vacuum->rel, vacuum->blkno, buffer, vmbuffer,
								 newest_xmin, bits);
	}
	if (bits != 0)
		vacuum->counters.vm_new_visible_pages++;
	if ((bits & VISIBILITYMAP_ALL_FROZEN) != 0)
		vacuum->counters.vm_new_visible_frozen_pages++;
	if (audits)
		audit_map(vacuum, buffer, vmbuffer);
}

/*
 * check_dead_items
 *		Raise an error if something about to be freed is no dead item.
 *
 * Only a vacuum frees dead items, and we hold the lock that keeps another VACUUM out.  To
 * free anything else would lose a row.
 */
static void
check_dead_items(const TableVacuum *vacuum, Page page, const DeadTidsPage *dead)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	for (int i = 0; i < dead->noffsets; i++)
	{
		if (dead->offsets[i] > maxoff ||
			!ItemIdIsDead(PageGetItemId(page, dead->offsets[i])))
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg_internal("item %u of block %u in relation \"%s\" is no longer dead",
									 dead->offsets[i], vacuum->blkno, vacuum->relname)));
		/* as the record, and those who replay it, take them */
		Assert(i == 0 || dead->offsets[i - 1] < dead->offsets[i]);
	}
}

/*
 * bits_when_freed
 *		Which bits of the visibility map will be right for a page when these dead items
 *		are unused?  0 if none.
 *
 * The caller holds an exclusive lock.  *newest_xmin is what heap_page_all_visible
 * says.
 */
static uint8
bits_when_freed(TableVacuum *vacuum, Buffer buffer, const DeadTidsPage *dead,
				TransactionId *newest_xmin)
{
	bool		all_frozen;

	/* a page to be cut off that has nothing else */
	if (is_in_tail(vacuum, vacuum->blkno) &&
		used_items(BufferGetPage(buffer)) == dead->noffsets)
		return 0;
	if (!heap_page_all_visible(vacuum, buffer, dead->noffsets, newest_xmin, &all_frozen))
		return 0;
	Assert(!all_frozen || !TransactionIdIsValid(*newest_xmin));
	return VISIBILITYMAP_ALL_VISIBLE | (all_frozen ? VISIBILITYMAP_ALL_FROZEN : 0);
}

/* used_items -- how many items of a page are in use, if only as dead ones. */
static int
used_items(Page page)
{
	int			nused = 0;

	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		if (ItemIdIsUsed(PageGetItemId(page, off)))
			nused++;
	return nused;
}

/* do_other_work -- if there is any, and show that this pass goes on after it. */
static void
do_other_work(HeapVacuum *pass, bool wait)
{
	pass->other_work(pass->vacuum, wait);
	progress_phase(PROGRESS_VACUUM_PHASE_VACUUM_HEAP, pass->vacuum->shared->rel_pages);
	progress_blocks_done(pass->passed_in_all);
}

/* report_freeing_progress -- tell how far we are. */
static void
report_freeing_progress(HeapVacuum *pass)
{
	TableVacuum *vacuum = pass->vacuum;
	uint64		passed;

	wal_keep_pace();
	passed = pg_atomic_add_fetch_u64(&vacuum->shared->blocks_vacuumed, pass->passed);
	pass->passed_in_all += pass->passed;
	pass->passed = 0;
	progress_blocks_done(pass->passed_in_all);
	if (is_leader(vacuum))
		pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_VACUUMED, passed);
}
