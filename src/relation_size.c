/*-------------------------------------------------------------------------
 *
 * relation_size.c
 *	  The size of a relation, to plan by.
 *
 * The server looks at an index when it needs what is in it.  Where it doesn't, as
 * VACUUM FULL, or VACUUM without index cleanup, an index whose file is missing is
 * no obstacle; so it must be none to us, who want to know how large it is.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "storage/smgr.h"

#include "relation_size.h"

/*
 * relation_blocks
 *		The size of a relation, open and locked, in blocks; 0 if its file is missing.
 */
BlockNumber
relation_blocks(Relation rel)
{
	SMgrRelation smgr = RelationGetSmgr(rel);

	/* a file that is open isn't looked for again */
	if (smgr->md_num_open_segs[MAIN_FORKNUM] == 0 && !smgrexists(smgr, MAIN_FORKNUM))
		return 0;
	return RelationGetNumberOfBlocks(rel);
}
