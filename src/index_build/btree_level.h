/*-------------------------------------------------------------------------
 *
 * btree_level.h
 *	  Filling the pages of one level of a new btree.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BTREE_LEVEL_H
#define CYCLONE_BTREE_LEVEL_H

#include "access/itup.h"
#include "access/nbtree.h"
#include "storage/buffile.h"
#include "utils/rel.h"

#include "new_files/new_blocks.h"

/* A btree in the making, as one process sees it */
typedef struct NewBtree
{
	Relation	heap;
	Relation	index;
	BTScanInsert key;			/* for the truncation of high keys */
	NewBlocksShared *blocks;
} NewBtree;

/* One process's pages of one level */
typedef struct BtreeLevel BtreeLevel;

/*
 * The pages at the ends of a part of the leaf level, whose siblings belong to
 * other parts.  They aren't written, but have their blocks.  The last one has
 * no high key.
 */
typedef struct BtreeEnds
{
	int			npages;			/* 0, 1, or 2 for more; if 1, first isn't
								 * filled */
	BlockNumber first_block;
	BlockNumber last_block;
	PGAlignedBlock first;
	PGAlignedBlock last;
	PGAlignedBlock last_low_key;	/* an index tuple; valid if npages is 2 */
} BtreeEnds;

/*
 * btree_level_begin_leaves begins a part of the leaf level, with the current context's
 * memory.  Its downlinks go to that file, except that of the last page; the pages at its
 * ends go to *ends.  btree_level_add adds a tuple that is greater than all before, and
 * with a posting list of posting_size bytes, 0 if there is none; a tuple that is too
 * large is an error.  btree_level_end_leaves writes what can be written.
 *
 * btree_level_join is called when all parts are there, and block 0 was taken for the
 * metapage.
 */
extern void btree_level_add(BtreeLevel *level, IndexTuple tuple, Size posting_size);
extern BtreeLevel *btree_level_begin_leaves(const NewBtree *btree, BufFile *downlinks,
											BtreeEnds *ends);
extern void btree_level_end_leaves(BtreeLevel *level);
extern void btree_level_join(const NewBtree *btree, int nparts, const BtreeEnds *parts,
							 BufFile **downlinks);

#endif							/* CYCLONE_BTREE_LEVEL_H */
