/*-------------------------------------------------------------------------
 *
 * wal_writer.c
 *	  Having our WAL written by the WAL writer.
 *
 * A vacuum that must log pages in full fills the WAL buffers (16 MB as a
 * rule) many times over.  A process that finds them full writes out pages, one at a
 * time and under a lock.  Several processes that do this get into each other's
 * way so much that two vacuum a table more slowly than one.  (See the bench's
 * scenario heap-deleted without this.)  Writing WAL in big pieces is the WAL
 * writer's job, but it looks only now and then unless it is told that there
 * is something to do.  Transactions that commit asynchronously tell it so,
 * and we do the same: nobody waits for our WAL, either.
 *
 * If there are more processes than cores, the WAL writer is one of many that
 * want to run, and gets behind.  So we wait for it before the buffers are
 * full, which gives it the core that it needs.  We don't if the settings let it
 * sleep until the buffers are that full.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "postmaster/walwriter.h"
#include "storage/latch.h"

#include "machine/wal_writer.h"
#include "own_wait_event.h"

/* Tell it of this much WAL at a time. */
#define WAL_BYTES_A_CALL	((uint64) 128 * 1024)

/*
 * Wait for it if half of the buffers are full: that leaves it enough to do,
 * and us enough room.  In buffers smaller than this we only get in its way.
 */
#define LEAST_WAL_BUFFERS	(8 * WAL_BYTES_A_CALL)

/* How long to wait at a time, and how often: we get by without it. */
#define WAIT_MS				1
#define MAX_WAITS			10
/* The WAL writer may be writing, but not if this many waits show no progress. */
#define MAX_WAITS_IN_VAIN	2

static bool wal_writer_is_behind(XLogRecPtr written);

/*
 * wal_keep_pace
 *		Call now and then in a loop that writes much WAL, with no lock held.
 *
 * The server wakes the WAL writer if it sleeps, or if wal_writer_flush_after
 * is exceeded.
 */
void
wal_keep_pace(void)
{
	static uint64 told_bytes = 0;
	static uint32 wait_event = 0;
	XLogRecPtr	written;
	int			waits_in_vain = 0;

	Assert(CritSectionCount == 0);
	Assert(InterruptHoldoffCount == 0);

	if (pgWalUsage.wal_bytes - told_bytes < WAL_BYTES_A_CALL ||
		XLogRecPtrIsInvalid(XactLastRecEnd))
		return;
	told_bytes = pgWalUsage.wal_bytes;
	XLogSetAsyncXactLSN(XactLastRecEnd);

	written = GetXLogWriteRecPtr();
	for (int i = 0; i < MAX_WAITS && waits_in_vain < MAX_WAITS_IN_VAIN &&
		 wal_writer_is_behind(written); i++)
	{
		XLogRecPtr	written_before = written;

		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 WAIT_MS, own_wait_event(&wait_event, "CycloneWalWriter"));
		ResetLatch(MyLatch);
		written = GetXLogWriteRecPtr();
		waits_in_vain = written == written_before ? waits_in_vain + 1 : 0;
	}
}

/* wal_writer_is_behind -- would we do well to wait for the WAL writer? */
static bool
wal_writer_is_behind(XLogRecPtr written)
{
	uint64		buffers = (uint64) XLOGbuffers * XLOG_BLCKSZ;

	return buffers >= LEAST_WAL_BUFFERS &&
		(uint64) WalWriterFlushAfter * XLOG_BLCKSZ <= buffers / 4 &&
		written + buffers / 2 < XactLastRecEnd;
}
