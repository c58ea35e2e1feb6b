/*-------------------------------------------------------------------------
 *
 * heap_truncate.c
 *	  Truncation: giving empty pages at a table's end back to the file system.
 *
 * It needs an exclusive lock, which it neither waits for long nor keeps for
 * long.  README.md has its steps, and what they cost sessions and standbys.
 *
 * The leader does it alone, after the team has ended.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/storage.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/lock_queue.h"
#include "engine/phases.h"
#include "report/progress.h"

/* The server's rules: at least 1000 pages, or a 16th of the table. */
#define MIN_PAGES				1000
#define MIN_FRACTION			16

#define LOCK_RETRY_MS			50
#define LOCK_TIMEOUT_MS			5000
#define WAITER_CHECK_MS			20.0
#define WAITER_CHECK_BLOCKS		32
#define PREFETCH_BLOCKS			((BlockNumber) 32)

/*
 * When a table is compacted: how many pages are cut off under one lock.  There are
 * more while sessions make us queue for it more often than MAX_QUEUED allows.  Each
 * step looks through all of shared_buffers, so it cuts off at least this part of
 * their number.
 */
#define COMPACTION_STEP			((BlockNumber) 1024)
#define BUFFERS_FRACTION		512
/* How many pages are read before the lock is taken, to be found in shared buffers then */
#define MOST_READ_BEFORE		((BlockNumber) 4096)
#define MOST_BUFFERS_FRACTION	8
#define COMPACTION_CHECK_MS		10.0
/* How often to queue for the lock at most: after such a time, and in all steps together */
#define QUEUE_RETRY_MS			200
/* A session that has been in a transaction for this time is likely to stay. */
#define LONG_MS					2000
#define MAX_QUEUED				50

/* Why the table was cut off there */
typedef enum CutEnd
{
	AT_FLOOR,					/* nothing more was asked for */
	OTHERS_WAIT,				/* it let go, as sessions wanted the table */
	NO_LOCK,					/* not at all, as sessions used the table */
	IN_USE						/* a page there has got items, or is new */
} CutEnd;

static void begin_truncation(TableVacuum *vacuum, BlockNumber rel_pages, BlockNumber nonempty_pages);
static BlockNumber cut_off_pages(TableVacuum *vacuum, BlockNumber rel_pages, BlockNumber floor,
								 int *nqueued, CutEnd *end);
static BlockNumber next_floor(TableVacuum *vacuum, BlockNumber rel_pages,
							  const CompactionPass *pass);
static BlockNumber compaction_step(const TableVacuum *vacuum, BlockNumber rel_pages,
								   BlockNumber nonempty_pages, int nqueued);
static bool lock_exclusively(TableVacuum *vacuum, int *nqueued);
static BlockNumber look_before(TableVacuum *vacuum, BlockNumber rel_pages, BlockNumber floor);
static BlockNumber find_end(TableVacuum *vacuum, BlockNumber rel_pages,
							BlockNumber nonempty_pages, bool *others_wait);
static bool block_is_free(TableVacuum *vacuum, BlockNumber blkno, BufferAccessStrategy strategy);
static bool page_is_free(Page page);

/*
 * heap_truncate_is_worthwhile
 *		Would truncation free enough to be worth its lock, which a standby
 *		has to take as well?
 */
bool
heap_truncate_is_worthwhile(BlockNumber rel_pages, BlockNumber nonempty_pages)
{
	BlockNumber freeable = rel_pages - nonempty_pages;

	Assert(nonempty_pages <= rel_pages);

	return freeable > 0 &&
		(freeable >= MIN_PAGES || freeable >= rel_pages / MIN_FRACTION);
}

/*
 * heap_truncate
 *		Cut off empty pages at the table's end, but no page before
 *		nonempty_pages; return the table's new size.
 */
BlockNumber
heap_truncate(TableVacuum *vacuum, BlockNumber nonempty_pages)
{
	BlockNumber rel_pages = vacuum->shared->rel_pages;
	int			nqueued = 0;
	CutEnd		end;

	Assert(is_leader(vacuum) && !IsInParallelMode());
	Assert(!vacuum->shared->compacting);
	Assert(CheckRelationLockedByMe(vacuum->rel, ShareUpdateExclusiveLock, true));
	Assert(nonempty_pages <= rel_pages);
	begin_truncation(vacuum, rel_pages, nonempty_pages);
	DEBUG_POINT("truncate");

	do
		rel_pages = cut_off_pages(vacuum, rel_pages, nonempty_pages, &nqueued, &end);
	while (rel_pages > nonempty_pages && end == OTHERS_WAIT);
	return rel_pages;
}

/*
 * heap_truncate_step
 *		Cut off some of the empty pages at the end of a table that is compacted;
 *		return whether there are more to be cut off now.
 *
 * The caller ends the transaction at once.  pass has the results of the table's last
 * VACUUM and of the steps since, and is brought up to date.
 */
bool
heap_truncate_step(TableVacuum *vacuum, CompactionPass *pass)
{
	BlockNumber rel_pages = pass->new_pages;
	int			nqueued = pass->nqueued;
	BlockNumber floor;
	CutEnd		end;

	Assert(is_leader(vacuum) && !IsInParallelMode());
	Assert(vacuum->shared->compacting && vacuum->shared->rel_pages == pass->old_pages);
	Assert(CheckRelationLockedByMe(vacuum->rel, ShareUpdateExclusiveLock, true));
	Assert(pass->nonempty_pages <= pass->new_pages && pass->new_pages <= pass->old_pages);
	begin_truncation(vacuum, rel_pages, pass->nonempty_pages);
	DEBUG_POINT("truncate");
	if (rel_pages < pass->old_pages)
		DEBUG_POINT("truncate-again");

	floor = next_floor(vacuum, rel_pages, pass);
	if (floor >= rel_pages)
		end = IN_USE;
	else
		pass->new_pages = cut_off_pages(vacuum, rel_pages, floor, &pass->nqueued, &end);

	/* each step is an exclusive lock on standbys, so few steps are better */
	Assert(pass->nqueued >= nqueued && pass->nqueued <= MAX_QUEUED);
	pass->step = 0;
	if (end == AT_FLOOR && pass->nqueued == nqueued)
		pass->step = Min(rel_pages - floor, (BlockNumber) RELSEG_SIZE / 2) * 2;
	if (end == IN_USE)
		pass->nonempty_pages = pass->new_pages;
	return pass->new_pages > pass->nonempty_pages && (end == OTHERS_WAIT || end == AT_FLOOR);
}

/* begin_truncation -- tell that truncation begins. */
static void
begin_truncation(TableVacuum *vacuum, BlockNumber rel_pages, BlockNumber nonempty_pages)
{
	Assert(is_leader(vacuum) && !IsInParallelMode());
	Assert(CheckRelationLockedByMe(vacuum->rel, ShareUpdateExclusiveLock, true));
	Assert(nonempty_pages < rel_pages);

	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_TRUNCATE);
	progress_phase(PROGRESS_VACUUM_PHASE_TRUNCATE, rel_pages);
	set_place(vacuum, PLACE_TRUNCATE, nonempty_pages);
}

/*
 * cut_off_pages
 *		Under an exclusive lock cut off the empty pages at the end, but none before
 *		floor.  Return the table's new size, which is the old one if that can't be done
 *		now; *end says why it is no smaller.
 */
static BlockNumber
cut_off_pages(TableVacuum *vacuum, BlockNumber rel_pages, BlockNumber floor, int *nqueued,
			  CutEnd *end)
{
	int			level = vacuum->shared->verbose ? INFO : DEBUG2;
	BlockNumber new_pages;
	bool		others_wait;

	Assert(floor < rel_pages);
	/* RelationTruncate waits for this, too, but that is under the lock */
	XLogFlush(ProcLastRecPtr);

	if (!lock_exclusively(vacuum, nqueued))
	{
		ereport(level,
				(errmsg("\"%s\": stopping truncate due to conflicting lock request",
						vacuum->relname)));
		*end = NO_LOCK;
		return rel_pages;
	}

	/* If it has grown, the new pages presumably have tuples. */
	if (RelationGetNumberOfBlocks(vacuum->rel) != rel_pages)
	{
		UnlockRelation(vacuum->rel, AccessExclusiveLock);
		*end = IN_USE;
		return rel_pages;
	}

	/* While we scanned, sessions may have filled pages that were empty. */
	new_pages = find_end(vacuum, rel_pages, floor, &others_wait);
	vacuum->blkno = new_pages;
	*end = others_wait ? OTHERS_WAIT : new_pages > floor ? IN_USE : AT_FLOOR;
	if (new_pages >= rel_pages)
	{
		UnlockRelation(vacuum->rel, AccessExclusiveLock);
		*end = others_wait ? NO_LOCK : IN_USE;
		return rel_pages;
	}

	/* a session with a weaker lock might be about to fill one of these */
	Assert(CheckRelationLockedByMe(vacuum->rel, AccessExclusiveLock, false));
	Assert(new_pages >= floor);
	RelationTruncate(vacuum->rel, new_pages);

	/*
	 * The session that gets the lock now learns of the new size by
	 * invalidation.
	 */
	UnlockRelation(vacuum->rel, AccessExclusiveLock);

	ereport(level,
			(errmsg("table \"%s\": truncated %u to %u pages",
					vacuum->relname, rel_pages, new_pages)));
	return new_pages;
}

/*
 * next_floor
 *		How far the table may be cut off the next time; rel_pages, its size, if
 *		nothing can be.
 */
static BlockNumber
next_floor(TableVacuum *vacuum, BlockNumber rel_pages, const CompactionPass *pass)
{
	BlockNumber floor = pass->nonempty_pages;
	BlockNumber step = compaction_step(vacuum, rel_pages, floor, pass->nqueued);

	step = Max(step, pass->step);
	if (rel_pages > step)
		floor = Max(floor, rel_pages - step);
	return look_before(vacuum, rel_pages, floor);
}

/*
 * compaction_step
 *		How many pages to cut off at a time, if we have queued for the lock this number
 *		of times.
 */
static BlockNumber
compaction_step(const TableVacuum *vacuum, BlockNumber rel_pages, BlockNumber nonempty_pages,
				int nqueued)
{
	BlockNumber step = Max(COMPACTION_STEP, (BlockNumber) NBuffers / BUFFERS_FRACTION);
	uint64		all = vacuum->shared->rel_pages - nonempty_pages;
	uint64		left = rel_pages - nonempty_pages;

	Assert(left > 0 && left <= all);

	/* has more than that part of our turns been used up? */
	if (nqueued < MAX_QUEUED && nqueued * all > MAX_QUEUED * (all - left))
		step = Max(step, left / (MAX_QUEUED - nqueued) + 1);
	return step;
}

/*
 * lock_exclusively
 *		Try for a while to lock the table; return false if sessions are in the way.
 *
 * Doesn't wait in the lock's queue, except for a moment while a table is compacted.
 * We hold a weaker lock, so waiting could deadlock, and sessions would queue behind us.
 */
static bool
lock_exclusively(TableVacuum *vacuum, int *nqueued)
{
	Oid			relid = RelationGetRelid(vacuum->rel);
	bool		compacting = vacuum->shared->compacting;
	int			tries = 0;

	while (!ConditionalLockRelation(vacuum->rel, AccessExclusiveLock))
	{
		bool		may_queue = compacting && *nqueued < MAX_QUEUED;
		int			retry_ms = may_queue ? QUEUE_RETRY_MS : LOCK_RETRY_MS;

		if (compacting && lock_is_held_for(relid, LONG_MS))
			return false;
		if (may_queue && lock_queue_may_help(relid))
		{
			(*nqueued)++;
			if (lock_queue_for_a_moment(relid))
				return true;

			/* the end of the subtransaction has ended the progress report */
			pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM, RelationGetRelid(vacuum->rel));
			compat_report_vacuum_start(false, vacuum->shared->aggressive);
			pgstat_progress_update_param(PROGRESS_VACUUM_PHASE, PROGRESS_VACUUM_PHASE_TRUNCATE);
		}
		CHECK_FOR_INTERRUPTS();
		if (++tries > LOCK_TIMEOUT_MS / retry_ms)
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 retry_ms, WAIT_EVENT_VACUUM_TRUNCATE);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * look_before
 *		Read the pages that are to be cut off next, from the table's end on, so
 *		that it takes no time to look at them again under the lock.
 *
 * Returns the size that the table could be truncated to, by these, but no less
 * than floor.
 */
static BlockNumber
look_before(TableVacuum *vacuum, BlockNumber rel_pages, BlockNumber floor)
{
	BlockNumber most = Min(MOST_READ_BEFORE, (BlockNumber) NBuffers / MOST_BUFFERS_FRACTION);
	BlockNumber first = Max(floor, rel_pages - Min(rel_pages, most));

	for (BlockNumber blkno = rel_pages; blkno > first; blkno--)
	{
		CHECK_FOR_INTERRUPTS();
		if (!block_is_free(vacuum, blkno - 1, NULL))
			return blkno;
	}
	return floor;
}

/*
 * find_end
 *		Return the size that the table can be truncated to, looking from its
 *		end backwards, not further than nonempty_pages.
 *
 * If sessions wait for our lock, sets *others_wait and says how far it got.
 * There is no cost-based delay here, as the lock must not be held for long.
 */
static BlockNumber
find_end(TableVacuum *vacuum, BlockNumber rel_pages,
		 BlockNumber nonempty_pages, bool *others_wait)
{
	BlockNumber blkno = rel_pages;
	BlockNumber prefetched = InvalidBlockNumber;
	instr_time	last_check;

	Assert(CheckRelationLockedByMe(vacuum->rel, AccessExclusiveLock, false));
	*others_wait = false;
	INSTR_TIME_SET_CURRENT(last_check);

	while (blkno > nonempty_pages)
	{
		if (blkno % WAITER_CHECK_BLOCKS == 0)
		{
			instr_time	now,
						elapsed;

			INSTR_TIME_SET_CURRENT(now);
			elapsed = now;
			INSTR_TIME_SUBTRACT(elapsed, last_check);
			if (INSTR_TIME_GET_MILLISEC(elapsed) >=
				(vacuum->shared->compacting ? COMPACTION_CHECK_MS : WAITER_CHECK_MS))
			{
				if (LockHasWaitersRelation(vacuum->rel, AccessExclusiveLock))
				{
					ereport(vacuum->shared->verbose ? INFO : DEBUG2,
							(errmsg("table \"%s\": suspending truncate due to conflicting lock request",
									vacuum->relname)));
					*others_wait = true;
					return blkno;
				}
				last_check = now;
			}
		}
		CHECK_FOR_INTERRUPTS();

		blkno--;
		if (blkno < prefetched)
		{
			/* forwards, which the operating system's readahead understands */
			prefetched = blkno - blkno % PREFETCH_BLOCKS;
			for (BlockNumber ahead = prefetched; ahead <= blkno; ahead++)
			{
				PrefetchBuffer(vacuum->rel, MAIN_FORKNUM, ahead);
				CHECK_FOR_INTERRUPTS();
			}
		}

		if (!block_is_free(vacuum, blkno, vacuum_strategy(vacuum)))
			return blkno + 1;
	}
	return nonempty_pages;
}

/* block_is_free -- read a page; is it free? */
static bool
block_is_free(TableVacuum *vacuum, BlockNumber blkno, BufferAccessStrategy strategy)
{
	Buffer		buffer = ReadBufferExtended(vacuum->rel, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
	bool		is_free;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	is_free = page_is_free(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return is_free;
}

/*
 * page_is_free
 *		Has the page no items?  A dead one counts, as index entries may still
 *		point at it.
 */
static bool
page_is_free(Page page)
{
	if (PageIsNew(page) || PageIsEmpty(page))
		return true;

	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		if (ItemIdIsUsed(PageGetItemId(page, off)))
			return false;
	return true;
}
