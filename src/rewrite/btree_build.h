/*-------------------------------------------------------------------------
 *
 * btree_build.h
 *	  Building one btree in several processes.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BTREE_BUILD_H
#define CYCLONE_BTREE_BUILD_H

#include "access/genam.h"
#include "nodes/execnodes.h"
#include "storage/sharedfileset.h"
#include "utils/rel.h"

/* Where the parts of a btree begin and end, as the leader found it */
typedef struct BtreeSplit BtreeSplit;

/* A btree in the making, in shared memory */
typedef struct BtreeBuild BtreeBuild;

extern BtreeSplit *btree_split(Relation heap, Relation index, int nparts);
extern int	btree_split_parts(const BtreeSplit *split);
extern Size btree_build_size(const BtreeSplit *split);
extern void btree_build_begin(BtreeBuild *build, const BtreeSplit *split, Relation index);
extern bool btree_build_part(BtreeBuild *build, int part, SharedFileSet *files,
							 Relation heap, Relation index, IndexInfo *info,
							 IndexBuildResult *counts);
extern void btree_build_end(BtreeBuild *build, SharedFileSet *files,
							Relation heap, Relation index);

#endif							/* CYCLONE_BTREE_BUILD_H */
