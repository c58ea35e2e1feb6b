/*-------------------------------------------------------------------------
 *
 * progress.h
 *	  What each process of each running VACUUM is doing: the view
 *	  cyclone.progress.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PROGRESS_H
#define CYCLONE_PROGRESS_H

#include "storage/block.h"

/*
 * The phases of a rewrite, beside those of pg_stat_progress_vacuum, which have
 * small numbers.
 */
#define PROGRESS_REWRITE_COPY_TOAST		101
#define PROGRESS_REWRITE_COPY_HEAP		102
#define PROGRESS_REWRITE_INDEX_TOAST	103
#define PROGRESS_REWRITE_COPY_CHAINS	104
#define PROGRESS_REWRITE_INDEX			105

/* The same for moving rows. */
#define PROGRESS_INPLACE_PLAN			200
#define PROGRESS_INPLACE_MOVE			201
#define PROGRESS_INPLACE_MOVE_VALUES	202
#define PROGRESS_INPLACE_REINDEX		203

extern void progress_init(void);

extern void progress_begin(Oid relid, int leader_pid);
extern void progress_phase(int phase, BlockNumber blocks_total);
extern void progress_blocks_done(BlockNumber blocks_done);
extern void progress_index(Oid index_relid, BlockNumber blocks_total);
extern void progress_store(int64 items, Size bytes, Size limit);
extern void progress_bytes_freed(uint64 bytes);
extern void progress_clear(void);

#endif							/* CYCLONE_PROGRESS_H */
