/*-------------------------------------------------------------------------
 *
 * link_walk.c
 *	  Walks along the links of an index's pages, which end even if the index is
 *	  damaged.
 *
 * README.md says which walks need this.  A process that goes in a circle notices before it
 * has taken three times as many steps as lead into the circle and around it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "engine/index/link_walk.h"

/*
 * link_walk_step
 *		Count a step.
 *
 * A page that links to itself is found out at once: the caller may have it locked.
 * A walk that begins anew sets steps to 0.
 */
bool
link_walk_step(LinkWalk *walk, BlockNumber from, BlockNumber to, int elevel)
{
	bool		is_beyond;
	bool		is_circle = from == to;

	Assert(walk->index != NULL);
	Assert(elevel == LOG || elevel == ERROR);
	Assert(BlockNumberIsValid(from));

	walk->steps++;
	if (to >= walk->nblocks || walk->steps > walk->nblocks)
		walk->nblocks = RelationGetNumberOfBlocks(walk->index); /* it may have grown */
	is_beyond = to >= walk->nblocks;
	if ((walk->steps & (walk->steps - 1)) == 0)
		walk->mark = to;
	else
		is_circle |= to == walk->mark;
	if (likely(!is_beyond && !is_circle && walk->steps <= walk->nblocks))
		return true;

	ereport(elevel,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 is_beyond ?
			 errmsg("a link of index \"%s\" leads from block %u to block %u, beyond its end",
					RelationGetRelationName(walk->index), from, to) :
			 errmsg("links of index \"%s\" lead in a circle from block %u to block %u",
					RelationGetRelationName(walk->index), from, to),
			 errhint("Please REINDEX it.")));
	return false;
}
