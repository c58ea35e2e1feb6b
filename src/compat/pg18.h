/*-------------------------------------------------------------------------
 *
 * pg18.h
 *	  What PostgreSQL 18 has of its own.
 *
 * To be included by compat.h only.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPAT_PG18_H
#define CYCLONE_COMPAT_PG18_H

#include "compat/before19.h"

/* How the state of a shared buffer is read */
#define COMPAT_READ_BUFFER_STATE(state) pg_atomic_read_u32(state)

#include "compat/since18.h"

/*
 * compat_visibilitymap_set
 *		Sets visibility-map bits; returns those that were set before.
 */
static inline uint8
compat_visibilitymap_set(Relation rel, BlockNumber blkno, Buffer buffer,
						 Buffer vmbuffer, TransactionId conflict_xid,
						 uint8 flags)
{
	Assert(blkno == BufferGetBlockNumber(buffer) && compat_buffer_is_locked_exclusively(buffer));
	return visibilitymap_set(rel, blkno, buffer, InvalidXLogRecPtr, vmbuffer,
							 conflict_xid, flags);
}

/* compat_pgstat_report_vacuum -- tell the statistics system of a VACUUM. */
static inline void
compat_pgstat_report_vacuum(Relation rel, PgStat_Counter live,
							PgStat_Counter dead, TimestampTz starttime)
{
	pgstat_report_vacuum(RelationGetRelid(rel), rel->rd_rel->relisshared,
						 live, dead, starttime);
}

/*
 * compat_truncate_default
 *		May VACUUM truncate a table, where the command doesn't say?
 */
static inline bool
compat_truncate_default(const StdRdOptions *opts)
{
	if (opts && opts->vacuum_truncate_set)
		return opts->vacuum_truncate;
	return vacuum_truncate;
}

/* compat_index_beginscan -- begin a scan of an index. */
static inline IndexScanDesc
compat_index_beginscan(Relation rel, Relation index, Snapshot snapshot, int nkeys)
{
	return index_beginscan(rel, index, snapshot, NULL, nkeys, 0);
}

/*
 * compat_pin_recent
 *		Pin a page of the main fork if it is still in that buffer.  Its usage count stays.
 */
static inline bool
compat_pin_recent(Relation rel, BlockNumber blkno, Buffer buffer)
{
	return ReadRecentBuffer(rel->rd_locator, MAIN_FORKNUM, blkno, buffer);
}

/*
 * compat_start_write
 *		Begin to write a page that this process has locked exclusively; false if it is clean, or
 *		another process writes it.
 */
static inline bool
compat_start_write(Buffer buffer)
{
	BufferDesc *desc = GetBufferDescriptor(buffer - 1);
	uint32		state;

	Assert(!BufferIsLocal(buffer) && compat_buffer_is_locked_exclusively(buffer));

	if (!StartBufferIO(desc, false, true))
		return false;
	state = LockBufHdr(desc);
	UnlockBufHdr(desc, state & ~BM_JUST_DIRTIED);
	return true;
}

#endif							/* CYCLONE_COMPAT_PG18_H */
