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

#include "storage/block.h"
#include "utils/rel.h"

extern void degree_shmem_request(void);
extern void degree_shmem_init(void);

/* An autovacuum worker reserves once, and releases before it reserves again. */
extern int	degree_autovacuum_limit(void);
extern int	degree_reserve(int nworkers);
extern void degree_release(void);
extern bool degree_allows_workers(Relation rel, int asked, const char *command);
extern int	degree_for_table(Relation rel, BlockNumber pages);
extern int	degree_for_size(BlockNumber nblocks, int threshold);

#endif							/* CYCLONE_DEGREE_H */
