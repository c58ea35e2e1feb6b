/*-------------------------------------------------------------------------
 *
 * heap_scan.c
 *	  The heap scan: which blocks to look at, in which process.
 *
 * The members of the team claim ranges of blocks in ascending order and scan
 * them, each with a read stream of its own.  heap_page_scan does the work on
 * a page.  This file has the rest: skipping, the dead-TID store, the free space
 * map, and the failsafe.  skip_policy.c says which block need not be looked at.
 *
 * README.md says what a team may skip, and how a round of the scan ends.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
#include "engine/heap/skip_policy.h"
#include "engine/phases.h"
#include "engine/server_rules.h"
#include "guards/guards.h"
#include "machine/prefetch.h"
#include "machine/wal_writer.h"
#include "pace/pace.h"
#include "report/progress.h"

/* The server's rules */
#define FSM_VACUUM_BLOCKS \
	((BlockNumber) (((uint64) 8 * 1024 * 1024 * 1024) / BLCKSZ))
#define FAILSAFE_CHECK_BLOCKS \
	((BlockNumber) (((uint64) 4 * 1024 * 1024 * 1024) / BLCKSZ))

/*
 * A range that is left over: its first block, the chunk that it ends before,
 * and whether the run of blocks around its end is to be skipped.
 */
#define MAKE_REMAINDER(start, end, skip_end) \
	((uint64) (start) << 32 | \
	 ((uint64) (end) + DEAD_TIDS_CHUNK_BLOCKS - 1) / DEAD_TIDS_CHUNK_BLOCKS << 1 | (skip_end))
#define REMAINDER_START(remainder)		((BlockNumber) ((remainder) >> 32))
#define REMAINDER_END_CHUNK(remainder)	((uint32) (remainder) >> 1)
#define REMAINDER_SKIP_END(remainder)		(((remainder) & 1) != 0)

/* One process's scan in one round */
typedef struct HeapScan
{
	TableVacuum *vacuum;
	Buffer		vmbuffer;		/* of the pages being scanned */
	BlockNumber passed;			/* blocks scanned or skipped, not yet told */

	/* why the stream ended, if not for lack of blocks */
	bool		store_refused;
	bool		gives_up;		/* to be parked */
	bool		ring_given_up;

	/* the callback's */
	bool		stream_has_ring;
	Buffer		choice_vmbuffer;
	bool		skip_start;		/* the run at the start of the range */
	bool		run_known;
	BlockNumber run_end;		/* behind the skippable blocks at scan_next */
	uint8		run_end_flags;	/* of that block, if it is in the range */
} HeapScan;

static void scan_stream(HeapScan *scan);
static void finish_page(HeapScan *scan, BlockNumber blkno, uint8 flags,
						PageVerdict *verdict);
static void set_scan_block(TableVacuum *vacuum, BlockNumber blkno);
static void report_scan_progress(HeapScan *scan, BlockNumber scan_block);
static void vacuum_fsm_now_and_then(TableVacuum *vacuum);
static BlockNumber next_heap_block(ReadStream *stream, void *private_data,
								   void *per_buffer_data);
static void leave_remainder(TableVacuum *vacuum);
static bool take_remainder(TableVacuum *vacuum);
static bool claim_range(HeapScan *scan);
static bool is_cut_in_long_run(HeapScan *scan, BlockNumber end);
static bool choose_block(HeapScan *scan, BlockNumber *blkno, uint8 *flags);
static void find_run(HeapScan *scan);
static BlockChoice judge_block(HeapScan *scan, BlockNumber blkno, uint8 *flags);

/*
 * heap_scan_begin
 *		Leader: make all blocks available.
 */
void
heap_scan_begin(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;

	Assert(is_leader(vacuum));

	ranges_init(&shared->scan_ranges, 0, shared->rel_pages,
				DEAD_TIDS_CHUNK_BLOCKS, SCAN_RANGE_BLOCKS, shared->nmembers);
}

/*
 * heap_scan_first_unscanned
 *		Leader: the first block that is still to be scanned.
 *
 * Other members may be scanning.  They say where they are before they claim a range, and
 * leave the rest of one before they say that they are nowhere.  So we look at the
 * position of the ranges first, then at where they are, then at their remainders.
 */
BlockNumber
heap_scan_first_unscanned(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;
	BlockNumber first = ranges_position(&shared->scan_ranges);

	Assert(is_leader(vacuum));

	first = Min(first, shared->rel_pages);
	pg_read_barrier();
	for (int i = 0; i < shared->nmembers; i++)
	{
		MemberShared *member = vacuum_member(shared, i);

		if (pg_atomic_read_u32(&member->joined))
		{
			BlockNumber scanned = pg_atomic_read_u32(&member->scan_block);

			first = Min(first, scanned);
		}
	}
	pg_read_barrier();
	for (int i = 0; i < shared->nmembers; i++)
	{
		uint64		remainder = pg_atomic_read_u64(&vacuum_member(shared, i)->scan_remainder);

		if (remainder != 0)
			first = Min(first, REMAINDER_START(remainder));
	}
	return first;
}

/*
 * heap_scan_is_left
 *		Leader, between phases: is there a range to be claimed, or the rest of one?
 */
bool
heap_scan_is_left(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;

	Assert(is_leader(vacuum));

	if (ranges_position(&shared->scan_ranges) < shared->rel_pages)
		return true;
	for (int i = 0; i < shared->nmembers; i++)
		if (pg_atomic_read_u64(&vacuum_member(shared, i)->scan_remainder) != 0)
			return true;
	return false;
}

/*
 * heap_scan_phase
 *		One process's part of a round of the heap scan.
 */
void
heap_scan_phase(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;
	HeapScan	scan = {0};

	Assert(CritSectionCount == 0);
	Assert(vacuum->scan_next >= vacuum->scan_end);
	scan.vacuum = vacuum;
	scan.vmbuffer = InvalidBuffer;
	scan.choice_vmbuffer = InvalidBuffer;

	progress_phase(PROGRESS_VACUUM_PHASE_SCAN_HEAP, shared->rel_pages);
	set_place(vacuum, PLACE_HEAP_SCAN, InvalidBlockNumber);
	if (!shared->scan_goes_on)
		vacuum->scan_passed = 0;
	set_scan_block(vacuum, ranges_position(&shared->scan_ranges));
	if (vacuum->dead_tids != NULL)
		dead_tids_begin_collecting(vacuum->dead_tids);

	do
	{
		scan_stream(&scan);
		if (vacuum->dead_tids != NULL)
		{
			dead_tids_end_collecting(vacuum->dead_tids);
			audit_collected(vacuum);
		}
		/* Was it only that too many blocks were read ahead? */
		if (scan.store_refused)
			scan.store_refused = !dead_tids_reserve(vacuum->dead_tids, vacuum->scan_next);
	} while (vacuum->scan_next < vacuum->scan_end && !scan.store_refused && !scan.gives_up);
	if (scan.store_refused)
		pg_atomic_write_u32(&shared->store_is_full, 1);

	if (BufferIsValid(scan.vmbuffer))
		ReleaseBuffer(scan.vmbuffer);
	leave_remainder(vacuum);
	report_scan_progress(&scan, InvalidBlockNumber);
	set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
}

/*
 * leave_remainder
 *		Leave the rest of this process's range to other members, or to the next round.
 *
 * Its own place is empty: it holds no remainder of an earlier round, as each member takes
 * such remainders before it claims a range, its own first.
 */
static void
leave_remainder(TableVacuum *vacuum)
{
	pg_atomic_uint64 *place = &vacuum_member(vacuum->shared, vacuum->member)->scan_remainder;
	pg_atomic_uint32 *least = &vacuum->shared->least_remainder;

	if (vacuum->scan_next < vacuum->scan_end)
	{
		uint32		known = pg_atomic_read_u32(least);

		while (vacuum->scan_next < known &&
			   !pg_atomic_compare_exchange_u32(least, &known, vacuum->scan_next))
			;
		if (pg_atomic_exchange_u64(place, MAKE_REMAINDER(vacuum->scan_next, vacuum->scan_end,
														 vacuum->scan_skip_end)) != 0)
			elog(ERROR, "two ranges of blocks are left over by one process");
	}
	vacuum->scan_next = vacuum->scan_end = 0;
}

/*
 * take_remainder
 *		Take a range that a member has left over, first of all this process's own.
 *		Return false if there is none.
 */
static bool
take_remainder(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;

	for (int i = 0; i < shared->nmembers; i++)
	{
		MemberShared *member = vacuum_member(shared, (vacuum->member + i) % shared->nmembers);
		uint64		remainder;

		/* most often there is none */
		if (pg_atomic_read_u64(&member->scan_remainder) == 0)
			continue;
		remainder = pg_atomic_exchange_u64(&member->scan_remainder, 0);
		if (remainder != 0)
		{
			vacuum->scan_next = REMAINDER_START(remainder);
			vacuum->scan_end = Min((uint64) REMAINDER_END_CHUNK(remainder) * DEAD_TIDS_CHUNK_BLOCKS,
								   shared->rel_pages);
			vacuum->scan_skip_end = REMAINDER_SKIP_END(remainder);
			Assert(vacuum->scan_next < vacuum->scan_end);
			DEBUG_POINT("heap-scan-remainder");
			return true;
		}
	}
	return false;
}

/*
 * scan_stream
 *		Scan the blocks of one read stream, until it ends.
 */
static void
scan_stream(HeapScan *scan)
{
	TableVacuum *vacuum = scan->vacuum;
	BufferAccessStrategy strategy = vacuum_strategy(vacuum);
	ReadStream *stream;
	Buffer		next;
	void	   *per_buffer_data;
	PageVerdict verdict;

	scan->store_refused = false;
	scan->ring_given_up = false;
	scan->stream_has_ring = strategy != NULL;
	stream = read_stream_begin_relation(READ_STREAM_MAINTENANCE, strategy,
										vacuum->rel, MAIN_FORKNUM,
										next_heap_block, scan, sizeof(uint8));

	guards_begin_pins();
	next = read_stream_next_buffer(stream, &per_buffer_data);
	while (BufferIsValid(next) ||
		   BufferIsValid(next = guards_resume_stream(stream, &per_buffer_data, &scan->vmbuffer)))
	{
		Buffer		buffer = next;
		BlockNumber blkno = BufferGetBlockNumber(buffer);
		uint8		flags = *(uint8 *) per_buffer_data;

		delay_point();
		failsafe_notice(vacuum);

		next = read_stream_next_buffer(stream, &per_buffer_data);
		prefetch_page(next);

		CheckBufferIsPinnedOnce(buffer);
		set_place(vacuum, PLACE_HEAP_SCAN, blkno);
		DEBUG_POINT("heap-scan");

		visibilitymap_pin(vacuum->rel, blkno, &scan->vmbuffer);
		heap_page_scan(vacuum, buffer, scan->vmbuffer,
					   (flags & BLOCK_VM_ALL_VISIBLE) != 0, &verdict);
		ReleaseBuffer(buffer);

		finish_page(scan, blkno, flags, &verdict);
		ring_pages_visited(vacuum->ring_pages, vacuum->rel, blkno, buffer);
	}
	guards_end_pins();
	read_stream_end(stream);
}

/*
 * finish_page
 *		Act on the verdict on a page, with its lock and pin released.
 */
static void
finish_page(HeapScan *scan, BlockNumber blkno, uint8 flags, PageVerdict *verdict)
{
	TableVacuum *vacuum = scan->vacuum;
	bool		index_vacuum_comes = vacuum->shared->do_index_vacuuming &&
		!VacuumFailsafeActive;

	Assert(blkno < vacuum->shared->rel_pages);
	Assert(verdict->ndead >= 0 && verdict->ndead <= MaxHeapTuplesPerPage);
	vacuum->counters.scanned_pages++;
	if (flags & BLOCK_EAGERLY_SCANNED)
	{
		vacuum->counters.eager_scanned_pages++;
		if (verdict->cleaned)
			skip_policy_count_eager(vacuum, blkno, verdict->newly_all_frozen);
	}

	if (vacuum->dead_tids != NULL)
	{
		int			ndead = index_vacuum_comes ? verdict->ndead : 0;

		dead_tids_add(vacuum->dead_tids, blkno, verdict->dead, ndead);
		audit_stored(vacuum, blkno, verdict->dead, ndead);
	}

	/* If the page will be visited again, its free space is recorded then. */
	if (vacuum->nindexes == 0 || !index_vacuum_comes || verdict->ndead == 0)
		record_free_space(vacuum, blkno, verdict->free_space);

	if (scan->passed >= PROGRESS_BLOCKS)
		report_scan_progress(scan, blkno + 1);
}

/* set_scan_block -- tell heap_scan_first_unscanned where this process is. */
static void
set_scan_block(TableVacuum *vacuum, BlockNumber blkno)
{
	pg_atomic_write_u32(&vacuum_member(vacuum->shared, vacuum->member)->scan_block,
						blkno);
}

/*
 * report_scan_progress
 *		Tell that this process is through with its blocks below this one.  The leader
 *		also looks after the failsafe and the free space map.
 */
static void
report_scan_progress(HeapScan *scan, BlockNumber scan_block)
{
	TableVacuum *vacuum = scan->vacuum;
	VacuumShared *shared = vacuum->shared;
	uint64		passed;

	wal_keep_pace();
	set_scan_block(vacuum, scan_block);
	passed = pg_atomic_add_fetch_u64(&shared->blocks_passed, scan->passed);
	vacuum->scan_passed += scan->passed;
	progress_blocks_done(vacuum->scan_passed);

	if (is_leader(vacuum))
	{
		if (vacuum->dead_tids != NULL)
		{
			const int	index[] = {PROGRESS_VACUUM_HEAP_BLKS_SCANNED,
			PROGRESS_VACUUM_NUM_DEAD_ITEM_IDS, PROGRESS_VACUUM_DEAD_TUPLE_BYTES};
			const int64 values[] = {passed, dead_tids_count(vacuum->dead_tids),
			dead_tids_bytes(vacuum->dead_tids)};

			pgstat_progress_update_multi_param(lengthof(index), index, values);
		}
		else
			pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_SCANNED, passed);

		if (passed / FAILSAFE_CHECK_BLOCKS != vacuum->failsafe_checks)
		{
			vacuum->failsafe_checks = passed / FAILSAFE_CHECK_BLOCKS;
			failsafe_check(vacuum);
		}
		if (vacuum->nindexes == 0)
			vacuum_fsm_now_and_then(vacuum);
	}
	scan->passed = 0;
}

/*
 * vacuum_fsm_now_and_then
 *		Offer the free space of the blocks that all members are through with to other
 *		sessions, once in 8 GB.
 *
 * Only for tables without indexes: with them it is done after each round.
 * A process that has taken a range that was left over isn't known to be there until
 * it reports, and we may be past it.  So it is done once more at the end, from the
 * first such block on.
 */
static void
vacuum_fsm_now_and_then(TableVacuum *vacuum)
{
	BlockNumber first = heap_scan_first_unscanned(vacuum);

	if (first > vacuum->fsm_vacuumed &&
		first - vacuum->fsm_vacuumed >= DEBUG_LIMIT(fsm_blocks, FSM_VACUUM_BLOCKS))
	{
		FreeSpaceMapVacuumRange(vacuum->rel, vacuum->fsm_vacuumed, first);
		vacuum->fsm_vacuumed = first;
	}
}

/*
 * next_heap_block
 *		The read stream's callback: the next block to scan.
 */
static BlockNumber
next_heap_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	HeapScan   *scan = private_data;
	TableVacuum *vacuum = scan->vacuum;

	if (!scan->store_refused && !scan->ring_given_up && !scan->gives_up && !guards_cut_stream())
	{
		while (vacuum->scan_next < vacuum->scan_end || claim_range(scan))
		{
			BlockNumber blkno;

			if (!choose_block(scan, &blkno, per_buffer_data))
				continue;

			/*
			 * A chunk of the store is scanned whole or not at all; and a
			 * block that room was reserved for must be returned.
			 */
			if (VacuumFailsafeActive && scan->stream_has_ring &&
				blkno % DEAD_TIDS_CHUNK_BLOCKS == 0)
				scan->ring_given_up = true;
			else if (blkno % DEAD_TIDS_CHUNK_BLOCKS == 0 && pace_give_place())
				scan->gives_up = true;
			else if (vacuum->dead_tids != NULL &&
					 !dead_tids_reserve(vacuum->dead_tids, blkno))
				scan->store_refused = true;
			else
			{
				scan->passed += blkno + 1 - vacuum->scan_next;
				vacuum->scan_next = blkno + 1;
				before_heap_read(vacuum, blkno);
				return blkno;
			}
			break;
		}
	}

	if (BufferIsValid(scan->choice_vmbuffer))
	{
		ReleaseBuffer(scan->choice_vmbuffer);
		scan->choice_vmbuffer = InvalidBuffer;
	}
	return InvalidBlockNumber;
}

/*
 * claim_range
 *		Get another range of blocks; return false if there are none left, or this
 *		process is not to go on, as the budget feeds fewer.
 */
static bool
claim_range(HeapScan *scan)
{
	TableVacuum *vacuum = scan->vacuum;
	Ranges	   *ranges = &vacuum->shared->scan_ranges;
	RangeOffer	offer;
	bool		skip_end;

	Assert(vacuum->scan_next >= vacuum->scan_end);
	scan->run_known = false;
	scan->skip_start = false;
	if (pace_give_place())
		return false;
	/* it begins with a run's rest only if that is too short to be skipped */
	if (take_remainder(vacuum))
		return true;

	/* if the range can be taken, no member has changed the blocks behind it */
	do
	{
		if (!ranges_look(ranges, &offer))
			return false;
		skip_end = is_cut_in_long_run(scan, offer.end);
	} while (!ranges_take(ranges, &offer, skip_end));

	vacuum->scan_next = offer.start;
	vacuum->scan_end = offer.end;
	vacuum->scan_skip_end = skip_end;
	scan->skip_start = offer.start_note;
	return true;
}

/*
 * is_cut_in_long_run
 *		Is there a run of blocks, on both sides of this range's end, that is long
 *		enough to be skipped?
 */
static bool
is_cut_in_long_run(HeapScan *scan, BlockNumber end)
{
	VacuumShared *shared = scan->vacuum->shared;
	BlockNumber length = 0;
	uint8		flags;

	StaticAssertStmt(SKIP_RUN_BLOCKS <= DEAD_TIDS_CHUNK_BLOCKS,
					 "no range may lie within a run that is too short");
	Assert(end > 0);
	if (end >= shared->rel_pages)
		return false;

	/* most often the first block must be scanned */
	for (BlockNumber blkno = end; judge_block(scan, blkno, &flags) != MUST_SCAN; blkno++)
		if (++length >= SKIP_RUN_BLOCKS)
			break;
	if (length == 0 || judge_block(scan, end - 1, &flags) == MUST_SCAN)
		return false;
	for (BlockNumber blkno = end; length < SKIP_RUN_BLOCKS; length++)
		if (judge_block(scan, --blkno, &flags) == MUST_SCAN)
			return false;
	return true;
}

/*
 * choose_block
 *		Choose the next block of the range, with its flags; if the rest of the range
 *		may be skipped, skip it and return false.
 *
 * The block does not count as chosen: asked again, the answer is the same.
 */
static bool
choose_block(HeapScan *scan, BlockNumber *blkno, uint8 *flags)
{
	TableVacuum *vacuum = scan->vacuum;

	if (!scan->run_known || vacuum->scan_next > scan->run_end)
		find_run(scan);
	if (vacuum->scan_next >= vacuum->scan_end)
		return false;

	*blkno = vacuum->scan_next;
	*flags = *blkno < scan->run_end ? BLOCK_VM_ALL_VISIBLE : scan->run_end_flags;
	return true;
}

/*
 * find_run
 *		Find out how many blocks from scan_next on may be skipped, and skip
 *		them if they are worth it.
 */
static void
find_run(HeapScan *scan)
{
	TableVacuum *vacuum = scan->vacuum;
	BlockNumber blkno;
	bool		all_frozen = true;

	Assert(vacuum->scan_next < vacuum->scan_end && vacuum->scan_end <= vacuum->shared->rel_pages);
	for (blkno = vacuum->scan_next; blkno < vacuum->scan_end; blkno++)
	{
		BlockChoice choice = judge_block(scan, blkno, &scan->run_end_flags);

		if (choice == MUST_SCAN)
			break;
		if (choice == MAY_SKIP_VISIBLE)
			all_frozen = false;
	}
	scan->run_known = true;
	scan->run_end = blkno;

	if (blkno - vacuum->scan_next >= SKIP_RUN_BLOCKS || scan->skip_start ||
		(blkno == vacuum->scan_end && vacuum->scan_skip_end))
	{
		if (!all_frozen)
			vacuum->counters.skipped_allvisible = true;
		/* else relfrozenxid stays as it is */
		if (!vacuum->counters.skipped_allvisible)
			audit_skipped(vacuum, vacuum->scan_next, blkno);
		vacuum->counters.skipped_pages += blkno - vacuum->scan_next;
		scan->passed += blkno - vacuum->scan_next;
		vacuum->scan_next = blkno;
	}
	scan->skip_start = false;
}

/* judge_block -- skip_policy_judge, with the callback's page of the map. */
static BlockChoice
judge_block(HeapScan *scan, BlockNumber blkno, uint8 *flags)
{
	return skip_policy_judge(scan->vacuum, blkno, &scan->choice_vmbuffer, flags);
}
