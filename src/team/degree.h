/*-------------------------------------------------------------------------
 *
 * degree.h
 *	  How many workers a team gets.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DEGREE_H
#define CYCLONE_DEGREE_H

#include "access/xlogrecord.h"
#include "storage/block.h"
#include "utils/rel.h"

extern void degree_shmem_request(void);
extern void degree_shmem_init(void);

/* An autovacuum worker reserves once, and releases before it reserves again. */
extern int	degree_reserve(int nworkers);
extern void degree_release(void);

/*
 * How many buffers a process may have pinned at a time: in a scan with what a visit to a
 * page or an index takes; in a build of an index all pages that one WAL record has room for
 * (log_newpage_range), too.
 */
#define DEGREE_PINS			8
#define DEGREE_BUILD_PINS	(XLR_MAX_BLOCK_ID + DEGREE_PINS)

/*
 * Of so many workers, say how many leave each process, the leader among them, so many
 * buffers.
 */
extern int	degree_within_buffers(int nworkers, int pins);

extern bool degree_allows_workers(Relation rel, int asked, const char *command);
extern int	degree_for_table(Relation rel, BlockNumber pages);
extern int	degree_for_size(BlockNumber nblocks, int threshold);

#endif							/* CYCLONE_DEGREE_H */
