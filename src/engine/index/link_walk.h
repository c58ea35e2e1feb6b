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
	BlockNumber mark;			/* where an earlier step has led to */
} LinkWalk;

/*
 * Count a step from a page to the one that its link leads to.  If that is beyond the
 * index's end, or links lead in a circle, report it at elevel, LOG or ERROR, and
 * return false.  The caller may have pages locked.
 */
extern bool link_walk_step(LinkWalk *walk, BlockNumber from, BlockNumber to, int elevel);

#endif							/* CYCLONE_LINK_WALK_H */
