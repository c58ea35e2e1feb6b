/*-------------------------------------------------------------------------
 *
 * dead_tids.h
 *	  The dead-TID store: where the dead items of a heap are, by block.
 *
 * It knows nothing of heaps, indexes or teams: a TID is a
 * block number and an offset, and the caller says where shared memory is.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DEAD_TIDS_H
#define CYCLONE_DEAD_TIDS_H

#include "access/htup_details.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "storage/off.h"

/* Blocks are collected and handed out by chunks of this many. */
#define DEAD_TIDS_CHUNK_BLOCKS	64

typedef struct DeadTidsShared DeadTidsShared;	/* the store, in shared memory */
typedef struct DeadTids DeadTids;	/* one process's access to it */

/* The dead items of one heap block. */
typedef struct DeadTidsPage
{
	BlockNumber blkno;
	int			noffsets;
	OffsetNumber offsets[MaxHeapTuplesPerPage];
} DeadTidsPage;

/*
 * Set up.  dead_tids_init fills dead_tids_shared_size bytes, which in a team are of
 * its shared block; each member attaches, and detaches.  No locks are held between
 * calls, and running out of memory is never an error.
 */
extern Size dead_tids_shared_size(bool is_shared, BlockNumber nblocks, Size limit, int nmembers);
extern void dead_tids_init(DeadTidsShared *shared, bool is_shared,
						   BlockNumber nblocks, Size limit, int nmembers);
extern DeadTids *dead_tids_attach(DeadTidsShared *shared);
extern void dead_tids_detach(DeadTids *store);

/* Leader, between phases, while no other process uses the store; false: no more memory */
extern bool dead_tids_grow(DeadTids *store, char **failure);
extern void dead_tids_reset(DeadTids *store);

/* Each member, before each phase; false: it can't map all, and must sit out */
extern bool dead_tids_catch_up(DeadTids *store, char **failure);

/*
 * Collect.  Each member begins, and ends even if it has found nothing.  Before it
 * reads a block it reserves room for the block's items; if there is none it adds the
 * items of all blocks before it, and ends.  Blocks of a chunk belong to one member.
 */
extern void dead_tids_begin_collecting(DeadTids *store);
extern bool dead_tids_reserve(DeadTids *store, BlockNumber blkno);
extern void dead_tids_add(DeadTids *store, BlockNumber blkno,
						  OffsetNumber *offsets, int noffsets);
extern void dead_tids_end_collecting(DeadTids *store);

/* Read, when all members have ended collecting */
extern bool dead_tids_contains(const DeadTids *store, BlockNumber blkno,
							   OffsetNumber offset);
extern void dead_tids_search(const DeadTids *store, const ItemPointerData *tids,
							 int ntids, bool *dead);
extern int	dead_tids_match(const DeadTids *store, const ItemPointerData *tids,
							int ntids, bool *dead);
extern bool dead_tids_next_page(const DeadTids *store, BlockNumber start,
								BlockNumber end, DeadTidsPage *page);

/* Facts */
extern int64 dead_tids_count(const DeadTids *store);
extern Size dead_tids_bytes(const DeadTids *store);
extern Size dead_tids_limit(const DeadTids *store);

#endif							/* CYCLONE_DEAD_TIDS_H */
