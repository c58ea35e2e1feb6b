/*-------------------------------------------------------------------------
 *
 * link_walk.h
 *	  Walks along the links of an index's pages, which end even if the index is
 *	  damaged.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LINK_WALK_H
#define CYCLONE_LINK_WALK_H

#include "storage/block.h"
#include "utils/relcache.h"

typedef struct LinkWalk
{
	Relation	index;
	uint32		steps;
	BlockNumber nblocks;		/* of the index, as far as is known */
} LinkWalk;

extern bool link_walk_step(LinkWalk *walk, BlockNumber from, BlockNumber to, int elevel);

#endif							/* CYCLONE_LINK_WALK_H */
