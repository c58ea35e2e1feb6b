/*-------------------------------------------------------------------------
 *
 * new_blocks.h
 *	  Writing a new file, by several processes at a time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEW_BLOCKS_H
#define CYCLONE_NEW_BLOCKS_H

#include "access/xlogdefs.h"
#include "port/atomics.h"
#include "storage/bufpage.h"
#include "storage/lwlock.h"
#include "utils/rel.h"

/* It is best to write this number of pages at a time (512 kB). */
#define NEW_BLOCKS_RUN		64

/* What the processes that write a file share */
typedef struct NewBlocksShared
{
	/* held to extend the file */
	LWLock		lock;
	/* changed under the lock */
	pg_atomic_uint32 nblocks;
	/* of a heap: on pages that were written, by all processes */
	pg_atomic_uint64 rows;
	/* constant: the redo pointer at the beginning */
	XLogRecPtr	redo;
} NewBlocksShared;

/*
 * The leader calls new_blocks_init before any process begins, and new_blocks_sync when
 * all pages are written.  If the server has filled blocks, the leader calls
 * new_blocks_go_on_behind, while no process takes any.
 *
 * new_blocks_take extends the file by n blocks and returns the first one.  No other
 * lightweight lock is held.  new_blocks_write logs pages and writes them to such blocks,
 * which are in ascending order.  Images are aligned for I/O; they get their checksums.
 *
 * new_blocks_are_ours: has the caller seen to it that nobody else needs the pages of a
 * relation?  Either it is locked exclusively, or it is an index that isn't maintained yet.
 */
extern void new_blocks_shmem_request(void);
extern void new_blocks_init(NewBlocksShared *shared);
extern void new_blocks_go_on_behind(Relation rel, NewBlocksShared *shared);
extern BlockNumber new_blocks_take(Relation rel, NewBlocksShared *shared, int n);
extern void new_blocks_write(Relation rel, BlockNumber *blknos, Page *images, int n);
extern void new_blocks_sync(Relation rel, const NewBlocksShared *shared);
extern bool new_blocks_are_ours(Relation rel);

#endif							/* CYCLONE_NEW_BLOCKS_H */
