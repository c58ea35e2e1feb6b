/*-------------------------------------------------------------------------
 *
 * skip_policy.h
 *	  Which blocks of a heap a VACUUM need not look at.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SKIP_POLICY_H
#define CYCLONE_SKIP_POLICY_H

#include "engine/state.h"

/* Flags of a block */
#define BLOCK_VM_ALL_VISIBLE	(1 << 0)
#define BLOCK_EAGERLY_SCANNED	(1 << 1)

/* What the visibility map and the options say of a block */
typedef enum BlockChoice
{
	MUST_SCAN,
	MAY_SKIP_FROZEN,
	MAY_SKIP_VISIBLE,			/* at the price of relfrozenxid */
} BlockChoice;

/*
 * The leader calls skip_policy_setup before the team is launched.  The shared block has
 * skip_policy_shared_size bytes of counters, from eager.fails_start on.  Any member judges
 * blocks, in any order; *vmbuffer keeps a page of the map pinned, which the caller releases.
 */
extern Size skip_policy_shared_size(BlockNumber rel_pages);
extern void skip_policy_setup(TableVacuum *vacuum, const VacuumParams *params);
extern BlockChoice skip_policy_judge(TableVacuum *vacuum, BlockNumber blkno, Buffer *vmbuffer,
									 uint8 *flags);
extern void skip_policy_count_eager(TableVacuum *vacuum, BlockNumber blkno, bool frozen);

#endif							/* CYCLONE_SKIP_POLICY_H */
