/*-------------------------------------------------------------------------
 *
 * index_kind.c
 *	  What kinds of indexes that a team vacuums together have in common.
 *
 * Ranges of blocks.  A kind that visits pages in physical order hands out in
 * ranges the blocks that the index has when the phase begins.  The blocks that it has
 * grown by meanwhile go to the process that comes first (index_claim_growth).  GiST and
 * SP-GiST indexes are passed over in this way for bulk deletion and for cleanup
 * (index_begin_pass).
 *
 * Turns.  A member takes its turn for work that only one of them may do to an index at
 * a time.  A turn is a flag and a condition variable: heavyweight locks don't conflict
 * within a team, and an LWLock would hold off interrupts.  The turn of a member that
 * fails never ends, but the team does.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/indexfsm.h"
#include "storage/lmgr.h"
#include "storage/read_stream.h"
#include "storage/spin.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/index_kind.h"
#include "engine/page_items.h"
#include "guards/guards.h"
#include "machine/prefetch.h"
#include "machine/wal_writer.h"
#include "own_wait_event.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "team/team.h"

/* Blocks are claimed in ranges of at most this many (4 MB). */
#define RANGE_BLOCKS		512

static BlockNumber next_index_block(ReadStream *stream, void *private_data, void *per_buffer_data);
static bool pass_is_over(TableVacuum *vacuum, int number);

/*
 * index_want_more_work
 *		Have more_work called, in all members.
 */
void
index_want_more_work(TableVacuum *vacuum, int number)
{
	Assert(number >= 0 && number < vacuum->nindexes);
	/* a process that is alone with an index goes on with it at once */
	if (!vacuum_index(vacuum->shared, number)->leader_only)
		pg_atomic_write_u32(&vacuum->shared->more_work, 1);
}

/* index_note_empty_pages -- tell the leader that there are pages to delete. */
void
index_note_empty_pages(TableVacuum *vacuum)
{
	pg_atomic_write_u32(&vacuum->shared->empty_pages_found, 1);
}

/* index_add_stats -- add what one process did to what all did. */
void
index_add_stats(IndexShared *index, const IndexBulkDeleteResult *stats)
{
	Assert(stats->tuples_removed >= 0 && stats->num_index_tuples >= 0);
	SpinLockAcquire(&index->mutex);
	index->stats.num_index_tuples += stats->num_index_tuples;
	index->stats.tuples_removed += stats->tuples_removed;
	index->stats.pages_newly_deleted += stats->pages_newly_deleted;
	index->stats.pages_deleted += stats->pages_deleted;
	index->stats.pages_free += stats->pages_free;
	SpinLockRelease(&index->mutex);
}

/* index_report_page -- raise an error: what is on a page of an index can't be right. */
void
index_report_page(Relation index, BlockNumber blkno)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" contains corrupted page at block %u",
					RelationGetRelationName(index), blkno),
			 errhint("Please REINDEX it.")));
}

/* index_report_item -- raise an error: a line pointer of an index can't be right. */
void
index_report_item(Relation index, BlockNumber blkno, ItemId item)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" has a corrupted line pointer in block %u: offset = %u, size = %u",
					RelationGetRelationName(index), blkno,
					ItemIdGetOffset(item), ItemIdGetLength(item)),
			 errhint("Please REINDEX it.")));
}

/*
 * index_cap_tuples
 *		Count no more entries than there are rows, if their number is known: an entry
 *		that moves meanwhile may be counted twice.
 */
void
index_cap_tuples(TableVacuum *vacuum, int number)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(is_leader(vacuum));
	Assert(vacuum->shared->in_cleanup);

	if (!vacuum->shared->index_reltuples_estimated)
		index->stats.num_index_tuples = Min(index->stats.num_index_tuples,
											vacuum->shared->index_reltuples);
}

/* index_fill_info -- describe an index for the server's routines. */
void
index_fill_info(const TableVacuum *vacuum, int number, IndexVacuumInfo *info)
{
	Assert(number >= 0 && number < vacuum->nindexes);
	memset(info, 0, sizeof(IndexVacuumInfo));
	info->index = vacuum->indexes[number];
	info->heaprel = vacuum->rel;
	info->analyze_only = false;
	info->report_progress = false;
	info->estimated_count = vacuum->shared->index_reltuples_estimated;
	info->message_level = DEBUG2;
	info->num_heap_tuples = vacuum->shared->index_reltuples;
	info->strategy = vacuum_strategy(vacuum);
	compat_set_is_autovacuum(info, vacuum->shared->is_autovacuum);
}

/*
 * index_current_size
 *		The index's number of blocks, without one that is being added and
 *		not yet initialized: that would look like one to recycle.
 */
BlockNumber
index_current_size(Relation index)
{
	BlockNumber nblocks;

	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));
	if (RELATION_IS_LOCAL(index))
		return RelationGetNumberOfBlocks(index);

	LockRelationForExtension(index, ExclusiveLock);
	nblocks = RelationGetNumberOfBlocks(index);
	UnlockRelationForExtension(index, ExclusiveLock);
	return nblocks;
}

/* kind_scan_make -- make what a process needs in one index. */
void *
kind_scan_make(TableVacuum *vacuum, int number, Size size)
{
	KindScan   *scan = palloc0(size);

	Assert(size >= sizeof(KindScan));
	Assert(CheckRelationLockedByMe(vacuum->indexes[number], RowExclusiveLock, true));
	scan->vacuum = vacuum;
	scan->number = number;
	scan->shared = vacuum_index(vacuum->shared, number);
	scan->index = vacuum->indexes[number];
	return scan;
}

/* kind_scan_free -- tell what was done, and free it. */
void
kind_scan_free(KindScan *scan)
{
	/* nothing that was claimed is left */
	Assert(!scan->has_stream && scan->next >= scan->end);
	index_add_stats(scan->shared, &scan->stats);
	if (scan->followed != NULL)
		followed_destroy(scan->followed);
	pfree(scan);
}

/* index_begin_blocks -- make the blocks from first on available (index->ranges). */
void
index_begin_blocks(TableVacuum *vacuum, int number, BlockNumber first, int nmembers)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(is_leader(vacuum) && nmembers >= 1);
	first = Max(first, DEBUG_LIMIT(index_segment, 0) * (BlockNumber) RELSEG_SIZE);
	ranges_init(&index->ranges, first, index_current_size(vacuum->indexes[number]),
				1, RANGE_BLOCKS, nmembers);
	pg_atomic_write_u64(&index->known_end, Max(index->ranges.end, first));
}

/*
 * index_visit_blocks
 *		Visit the pages of the range in hand, and of ranges claimed one by one,
 *		until there are none left, or is_enough says so.
 *
 * The next page's content is asked for before one is visited.
 */
void
index_visit_blocks(KindScan *scan)
{
	TableVacuum *vacuum = scan->vacuum;
	Relation	index = scan->index;
	ReadStream *stream;
	Buffer		next;

	Assert(CritSectionCount == 0);
	Assert(!scan->has_stream && scan->visit != NULL);
	Assert(scan->next <= scan->end);
	/* or the stream would end at once, again and again */
	Assert(scan->is_enough == NULL || !scan->is_enough(scan));

	stream = read_stream_begin_relation(READ_STREAM_MAINTENANCE |
										COMPAT_READ_STREAM_BATCHING,
										vacuum_strategy(vacuum), index,
										MAIN_FORKNUM, next_index_block, scan, 0);
	scan->has_stream = true;
	guards_begin_pins();
	next = read_stream_next_buffer(stream, NULL);
	while (BufferIsValid(next) || BufferIsValid(next = guards_resume_stream(stream, NULL, NULL)))
	{
		Buffer		buffer = next;
		BlockNumber blkno = BufferGetBlockNumber(buffer);

		delay_point();
		failsafe_notice(vacuum);

		next = read_stream_next_buffer(stream, NULL);
		prefetch_page(next);
		scan->visit(scan, buffer);
		ring_pages_visited(vacuum->ring_pages, index, blkno, buffer);

		if (++scan->pages_done % PROGRESS_BLOCKS == 0)
		{
			progress_blocks_done(scan->pages_done);
			wal_keep_pace();
		}
	}
	guards_end_pins();
	read_stream_end(stream);
	scan->has_stream = false;
	progress_blocks_done(scan->pages_done);
}

/* next_index_block -- the read stream's callback.  Takes no lock. */
static BlockNumber
next_index_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	KindScan   *scan = private_data;
	uint64		start,
				end;

	if (guards_cut_stream() || (scan->is_enough != NULL && scan->is_enough(scan)))
		return InvalidBlockNumber;
	for (;; scan->next++)
	{
		if (scan->next >= scan->end)
		{
			if (!index_claim_range(scan->shared, &scan->gives_up, &start, &end))
				return InvalidBlockNumber;
			scan->next = start;
			scan->end = end;
		}
		if (scan->skips == NULL || !scan->skips(scan, scan->next))
			break;
	}
	before_index_read(scan->vacuum, scan->number, scan->next);
	return scan->next++;
}

/*
 * index_claim_range
 *		Claim the next range of an index, *start to *end - 1.  Return false if none
 *		is left, or if this process is to be parked; *gives_up is true then, and
 *		stays so.
 */
bool
index_claim_range(IndexShared *index, bool *gives_up, uint64 *start, uint64 *end)
{
	*gives_up = *gives_up || pace_give_place();
	return !*gives_up && ranges_claim(&index->ranges, start, end);
}

/*
 * index_claim_growth
 *		Claim the blocks that the index has grown by, *start to *end - 1, when no
 *		range is left; return false if it hasn't.
 */
bool
index_claim_growth(TableVacuum *vacuum, int number, BlockNumber *start, BlockNumber *end)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);
	uint64		known_end;
	uint64		size;

	Assert(number >= 0 && number < vacuum->nindexes);
	/* in turn, as the session's lock_timeout isn't meant for teammates */
	(void) index_take_turn(index, true);
	known_end = pg_atomic_read_u64(&index->known_end);
	size = index_current_size(vacuum->indexes[number]);
	index_end_turn(index);

	do
	{
		if (size <= known_end)
			return false;
	} while (!pg_atomic_compare_exchange_u64(&index->known_end, &known_end, size));
	*start = known_end;
	*end = size;
	return true;
}

/*
 * index_blocks_are_claimed
 *		Is no range left?  The is_done of kinds that hand out blocks: a range that is
 *		claimed is finished before the phase ends.
 */
bool
index_blocks_are_claimed(TableVacuum *vacuum, int number)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(number >= 0 && number < vacuum->nindexes);
	return ranges_position(&index->ranges) >= index->ranges.end;
}

/* pass_is_over -- is this cleanup, and bulk deletion has passed over the index? */
static bool
pass_is_over(TableVacuum *vacuum, int number)
{
	return vacuum->shared->in_cleanup && vacuum_index(vacuum->shared, number)->has_stats;
}

/*
 * index_begin_pass
 *		Leader: begin a pass over an index.
 *
 * If there is nothing to do there is one thing to claim, and only so that a member reports
 * on the index.
 */
void
index_begin_pass(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);
	const IndexKind *kind = vacuum->kinds[number];
	KindScan   *scan;

	Assert(is_leader(vacuum));
	if (pass_is_over(vacuum, number))
	{
		ranges_init(&index->ranges, 0, 1, 1, 1, 1);
		return;
	}
	index->stats.estimated_count = false;
	index->stats.num_index_tuples = 0;
	index->stats.pages_deleted = 0;
	index->stats.pages_free = 0;

	/* in this order: what happens from then on shows on the pages */
	kind->begin_pass(vacuum, number);
	scan = kind->make_scan(vacuum, number);
	for (BlockNumber blkno = kind->first_block; blkno <= kind->last_block; blkno++)
		scan->visit(scan, ReadBufferExtended(scan->index, MAIN_FORKNUM, blkno, RBM_NORMAL,
											 vacuum_strategy(vacuum)));
	kind->free_scan(scan);
	index_begin_blocks(vacuum, number, kind->last_block + 1, nmembers);
}

/*
 * index_pass
 *		One process's part of a pass: visit blocks until none is left to claim, nor any
 *		that the index has grown by.
 */
void
index_pass(TableVacuum *vacuum, int number)
{
	const IndexKind *kind = vacuum->kinds[number];
	KindScan   *scan;
	uint64		start,
				end;

	if (pass_is_over(vacuum, number))
	{
		(void) ranges_claim(&vacuum_index(vacuum->shared, number)->ranges, &start, &end);
		return;
	}
	scan = kind->make_scan(vacuum, number);
	do
		index_visit_blocks(scan);
	while (index_claim_growth(vacuum, number, &scan->next, &scan->end));
	kind->free_scan(scan);
}

/* index_finish_pass -- leader: complete the statistics of an index. */
void
index_finish_pass(TableVacuum *vacuum, int number)
{
	const IndexKind *kind = vacuum->kinds[number];

	if (!pass_is_over(vacuum, number))
	{
		if (kind->finish_pass != NULL)
			kind->finish_pass(vacuum, number);
		index_finish_stats(vacuum, number);
	}
	if (vacuum->shared->in_cleanup)
		index_cap_tuples(vacuum, number);
}

/* index_leave_stats -- now there are statistics; the access method's cleanup completes them. */
void
index_leave_stats(TableVacuum *vacuum, int number)
{
	Assert(is_leader(vacuum));
	vacuum_index(vacuum->shared, number)->has_stats = true;
}

/* index_finish_stats -- complete the statistics, and make what was put into the free space map findable. */
void
index_finish_stats(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	Relation	index = vacuum->indexes[number];

	Assert(is_leader(vacuum));

	shared->has_stats = true;
	shared->stats.num_pages = RelationGetNumberOfBlocks(index);
	if (shared->stats.pages_free > 0)
		IndexFreeSpaceMapVacuum(index);
}

/*
 * index_take_turn
 *		Begin this member's turn at an index; if it is another one's, wait, or
 *		return false.
 */
bool
index_take_turn(IndexShared *index, bool wait)
{
	static uint32 wait_event = 0;
	uint32		nobody = 0;

	Assert(index != NULL && CritSectionCount == 0);
	/* or a member that waits couldn't be cancelled */
	Assert(!wait || InterruptHoldoffCount == 0);
	while (!pg_atomic_compare_exchange_u32(&index->turn_taken, &nobody, 1))
	{
		if (!wait)
			return false;
		team_sleep(&index->turn_ended, own_wait_event(&wait_event, "CycloneIndexTurn"));
		nobody = 0;
	}
	ConditionVariableCancelSleep();
	return true;
}

/* index_end_turn -- let another member take its turn. */
void
index_end_turn(IndexShared *index)
{
	Assert(pg_atomic_read_u32(&index->turn_taken) == 1);
	/* what was done in the turn comes first */
	pg_atomic_write_membarrier_u32(&index->turn_taken, 0);
	ConditionVariableSignal(&index->turn_ended);
}

/* index_items_are_sound -- are the line pointers of a locked page of tuples all right? */
bool
index_items_are_sound(Page page)
{
	return page_items_are_sound(page, false);
}

/*
 * index_check_items
 *		Raise an error if a locked page's line pointers can't be right.
 *
 * The server's routines that delete items raise the same error, but they run in a
 * critical section, where it brings the server down.
 */
void
index_check_items(Relation index, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	PageHeader	header = (PageHeader) page;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	Size		total = 0;

	Assert(CritSectionCount == 0);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	if (likely(index_items_are_sound(page)))
		return;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		Size		start = ItemIdGetOffset(item);
		Size		size = ItemIdGetLength(item);

		total += MAXALIGN(size);
		if (start < header->pd_upper || start + size > header->pd_special ||
			start != MAXALIGN(start) || total > header->pd_special - header->pd_lower)
			index_report_item(index, BufferGetBlockNumber(buffer), item);
	}
}
