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

/* What is known of the rows, to divide an index of them */
typedef struct BtreeSample BtreeSample;

/* A btree in the making, in shared memory */
typedef struct BtreeBuild BtreeBuild;

extern BtreeSample *btree_sample(Relation heap, Relation index, int nparts);
extern Size btree_build_size(const BtreeSample *sample, int nparts);
extern void btree_build_begin(BtreeBuild *build, const BtreeSample *sample, int nparts,
							  Relation index);
extern bool btree_build_part(BtreeBuild *build, int part, SharedFileSet *files,
							 Relation heap, Relation index, IndexInfo *info,
							 IndexBuildResult *counts);
extern void btree_build_end(BtreeBuild *build, SharedFileSet *files,
							Relation heap, Relation index);

#endif							/* CYCLONE_BTREE_BUILD_H */
