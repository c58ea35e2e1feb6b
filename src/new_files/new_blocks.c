/*-------------------------------------------------------------------------
 *
 * new_blocks.c
 *	  Writing a new file, by several processes at a time.
 *
 * Nobody else knows of the file until its transaction commits, or knows of an index that
 * isn't to be used before that.  So its pages
 * needn't go through shared buffers.  Each process makes pages in memory of its
 * own, takes the next blocks of the file for them, logs the pages in full if
 * the relation is logged, and writes them.  So the file has no gaps, whichever process
 * is faster.
 *
 * A process that takes blocks holds a lightweight lock of the team's own.  The server's
 * lock on the extension of a relation is a heavyweight one: the session's
 * lock_timeout would end a process that waits for another of its team, although
 * no other session knows of the file.
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "access/xlogrecord.h"
#include "miscadmin.h"
#include "port/pg_iovec.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/smgr.h"

#include "compat.h"
#include "debug_point.h"
#include "machine/wal_writer.h"
#include "new_files/new_blocks.h"
#include "pace/pace.h"

#define LOCK_NAME		"CycloneExtend"

/*
 * new_blocks_shmem_request
 *		Make the name of our locks known to the server, as that of a wait event.
 *
 * The lock that the server makes isn't used: each file has one of its own.
 */
void
new_blocks_shmem_request(void)
{
	RequestNamedLWLockTranche(LOCK_NAME, 1);
}

/* new_blocks_init -- make what the processes share that write a file. */
void
new_blocks_init(NewBlocksShared *shared)
{
	LWLockInitialize(&shared->lock, GetNamedLWLockTranche(LOCK_NAME)->lock.tranche);
	pg_atomic_init_u32(&shared->nblocks, 0);
	pg_atomic_init_u64(&shared->rows, 0);
	shared->redo = GetRedoRecPtr();
}

/*
 * new_blocks_go_on_behind
 *		Take blocks behind those that the server has filled.
 */
void
new_blocks_go_on_behind(Relation rel, NewBlocksShared *shared)
{
	Assert(new_blocks_are_ours(rel));
	Assert(!LWLockHeldByMe(&shared->lock));
	Assert(pg_atomic_read_u32(&shared->nblocks) == 0);
	pg_atomic_write_u32(&shared->nblocks, RelationGetNumberOfBlocks(rel));
}

/*
 * new_blocks_take
 *		Extend the file by n blocks; return the first.
 *
 * If it fails, the abort of the transaction releases our lock before it waits for
 * anybody.
 */
BlockNumber
new_blocks_take(Relation rel, NewBlocksShared *shared, int n)
{
	BlockNumber start;

	Assert(new_blocks_are_ours(rel));
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	Assert(n > 0);
	Assert(!LWLockHeldByMe(&shared->lock));

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	start = pg_atomic_read_u32(&shared->nblocks);
	DEBUG_POINT("rewrite-extend");
	smgrzeroextend(RelationGetSmgr(rel), MAIN_FORKNUM, start, n, true);
	pg_atomic_write_u32(&shared->nblocks, start + n);
	LWLockRelease(&shared->lock);
	return start;
}

/* new_blocks_are_ours -- does nobody else need the pages of a relation? */
bool
new_blocks_are_ours(Relation rel)
{
	return CheckRelationLockedByMe(rel, AccessExclusiveLock, true) ||
		(rel->rd_index != NULL && !rel->rd_index->indisready &&
		 CheckRelationLockedByMe(rel, RowExclusiveLock, true));
}

/* new_blocks_write -- log pages and write them to blocks that were taken for them. */
void
new_blocks_write(Relation rel, BlockNumber *blknos, Page *images, int n)
{
	SMgrRelation smgr = RelationGetSmgr(rel);
	int			run;

	/* so its pages need no lock */
	Assert(n > 0);
	Assert(new_blocks_are_ours(rel));
#ifdef USE_ASSERT_CHECKING
	for (int i = 0; i < n; i++)
	{
		PageHeader	header = (PageHeader) images[i];

		Assert((uintptr_t) images[i] % PG_IO_ALIGN_SIZE == 0);
		Assert(blknos[i] < smgrnblocks(smgr, MAIN_FORKNUM));
		Assert(i == 0 || blknos[i] > blknos[i - 1]);
		Assert(header->pd_lower >= SizeOfPageHeaderData && header->pd_lower <= header->pd_upper &&
			   header->pd_upper <= header->pd_special && header->pd_special <= BLCKSZ);
	}
#endif

	if (RelationNeedsWAL(rel))
	{
		for (int i = 0; i < n; i += XLR_MAX_BLOCK_ID)
			log_newpages(&smgr->smgr_rlocator.locator, MAIN_FORKNUM,
						 Min(n - i, XLR_MAX_BLOCK_ID), &blknos[i], &images[i], true);
	}
	for (int i = 0; i < n; i++)
		PageSetChecksum(images[i], blknos[i]);

	/* no write may cross the border between two segments of the file */
	for (int done = 0; done < n; done += run)
	{
		BlockNumber start = blknos[done];

		run = 1;
		while (done + run < n && run < PG_IOV_MAX &&
			   blknos[done + run] == start + run &&
			   (start + run) % RELSEG_SIZE != 0)
			run++;
		smgrwritev(smgr, MAIN_FORKNUM, start, (const void **) &images[done], run, true);
		if (backend_flush_after > 0 && (io_direct_flags & IO_DIRECT_DATA) == 0)
			smgrwriteback(smgr, MAIN_FORKNUM, start, run);
	}

	pace_pages_written(n);
	if (RelationNeedsWAL(rel))
		wal_keep_pace();
}

/*
 * new_blocks_sync
 *		Make sure that the pages are on disk before their WAL isn't needed any
 *		more.
 */
void
new_blocks_sync(Relation rel, const NewBlocksShared *shared)
{
	SMgrRelation smgr = RelationGetSmgr(rel);

	Assert(new_blocks_are_ours(rel));

	if (SmgrIsTemp(smgr))
		return;
	if (!RelationNeedsWAL(rel))
	{
		/* if unlogged, for a clean shutdown; otherwise the commit syncs it */
		smgrregistersync(smgr, MAIN_FORKNUM);
		return;
	}

	/* no checkpoint may start between looking and registering */
	Assert((MyProc->delayChkptFlags & DELAY_CHKPT_START) == 0);
	MyProc->delayChkptFlags |= DELAY_CHKPT_START;
	if (GetRedoRecPtr() == shared->redo)
	{
		smgrregistersync(smgr, MAIN_FORKNUM);
		MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;
	}
	else
	{
		MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;
		smgrimmedsync(smgr, MAIN_FORKNUM);
	}
}
