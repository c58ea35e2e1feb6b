/*-------------------------------------------------------------------------
 *
 * gin_tree.h
 *	  Finding one's way in the trees of a GIN index, and deleting pages.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_GIN_TREE_H
#define CYCLONE_GIN_TREE_H

#include "access/genam.h"
#include "storage/buf.h"
#include "storage/bufmgr.h"

#include "engine/state.h"

/* A tree of a GIN index: the entry tree, or one of the posting trees */
typedef struct GinTree
{
	TableVacuum *vacuum;
	int			number;			/* of the index */
	Relation	index;
	BlockNumber root;
	uint16		flags;			/* of all its pages: GIN_DATA or 0 */
} GinTree;

/* Leaves at which its chain of leaf pages can be cut */
typedef struct GinCuts
{
	int64		nleaves;		/* in the tree, as far as downlinks tell */
	int64		distance;		/* leaves from one cut to the next */
	int			count;
	int			max_count;
	BlockNumber *blocks;		/* in the order of the chain */
} GinCuts;

/*
 * gin_lock_leaf pins and locks exclusively a page that is known to be a leaf,
 * gin_lock_first_leaf the leftmost leaf.  gin_find_cuts locks one page at a time;
 * it takes cuts->max_count, distance and blocks, and sets the rest.
 * gin_delete_empty_pages is for a posting tree that no other process vacuums.  It waits
 * for all pins on its root; the caller has none.  Damage is an error.
 */
extern Buffer gin_lock_leaf(const GinTree *tree, BlockNumber blkno);
extern Buffer gin_lock_first_leaf(const GinTree *tree);
extern void gin_find_cuts(const GinTree *tree, GinCuts *cuts);
extern void gin_delete_empty_pages(const GinTree *tree, IndexBulkDeleteResult *stats);

#endif							/* CYCLONE_GIN_TREE_H */
