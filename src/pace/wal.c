/*-------------------------------------------------------------------------
 *
 * wal.c
 *	  Having our WAL written by the WAL writer.
 *
 * A vacuum that must log pages in full fills the WAL buffers (16 MB as a
 * rule) many times over.  Whoever finds them full writes out a page, one at a
 * time and under a lock; several processes that do this get into each other's
 * way so much that two vacuum a table more slowly than one (0.73 s instead of
 * 0.51 s for 844 MB, on 2 cores).  Writing WAL in big pieces is the WAL
 * writer's job, but it looks only now and then unless it is told that there
 * is something to do.  Transactions that commit asynchronously tell it so,
 * and we do the same: nobody waits for our WAL either.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "executor/instrument.h"

#include "pace/wal.h"

/* Tell it of this much WAL at a time. */
#define WAL_BYTES_A_CALL	((uint64) 128 * 1024)

/*
 * wal_wake_writer
 *		Call now and then in a loop that writes much WAL.
 *
 * The server wakes the WAL writer if it sleeps, or if wal_writer_flush_after
 * is exceeded.
 */
void
wal_wake_writer(void)
{
	static uint64 told_bytes = 0;

	if (pgWalUsage.wal_bytes - told_bytes < WAL_BYTES_A_CALL ||
		XLogRecPtrIsInvalid(XactLastRecEnd))
		return;
	told_bytes = pgWalUsage.wal_bytes;
	XLogSetAsyncXactLSN(XactLastRecEnd);
}
