/*-------------------------------------------------------------------------
 *
 * relation_size.h
 *	  The size of a relation, to plan by.
 *
 * The server opens an index's file when it needs what is in it.  VACUUM FULL, and
 * VACUUM without index cleanup, don't need it, so an index whose file is missing is no
 * obstacle to them.  It must be none here, where only its size is wanted.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RELATION_SIZE_H
#define CYCLONE_RELATION_SIZE_H

#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/rel.h"

/* relation_blocks -- the size of a relation, open and locked, in blocks; 0 if its file is missing. */
static inline BlockNumber
relation_blocks(Relation rel)
{
	SMgrRelation smgr = RelationGetSmgr(rel);

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	Assert(RELKIND_HAS_STORAGE(rel->rd_rel->relkind));
	/* a file that is open isn't looked for again */
	if (smgr->md_num_open_segs[MAIN_FORKNUM] == 0 && !smgrexists(smgr, MAIN_FORKNUM))
		return 0;
	return RelationGetNumberOfBlocks(rel);
}

#endif							/* CYCLONE_RELATION_SIZE_H */
