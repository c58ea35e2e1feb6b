/*-------------------------------------------------------------------------
 *
 * link_walk.c
 *	  Walks along the links of an index's pages, which end even if the index is
 *	  damaged.
 *
 * While VACUUM has its lock on a table, nobody else deletes pages of its indexes.
 * So a walk along links of one kind, say to the right or down, comes to no page
 * twice, and ends after as many steps as the index has blocks.  If it does come to
 * a page twice, or takes more steps, links lead in a circle, as they may when a page has
 * been written to another one's place.  The server doesn't look; its own walks are in
 * another order, or along other links, and so may end where ours would not.
 *
 * A process that is in a circle may have pages locked, and can't be cancelled.  So it
 * is not to go around for as many steps as a large index has blocks.  After the
 * first, second, fourth, eighth step and so on the walk marks where it is.  At some mark it
 * is in the circle, and the next mark is as far away as this one is from the
 * beginning.  So it comes to a mark again before it has taken three times as many steps as
 * lead into the circle and around it (Brent's algorithm).
 *
 * Some walks end by themselves: a btree's duties, as each visit clears the cycle ID,
 * and walks in GiST and SP-GiST indexes, which remember where they have been.
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
