/*-------------------------------------------------------------------------
 *
 * block_list.h
 *	  A list of blocks that grows as it is filled.
 *
 * Of the pages of an index, or of a table, that are to be visited later.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BLOCK_LIST_H
#define CYCLONE_BLOCK_LIST_H

#include "storage/block.h"

/* A growing array of block numbers */
typedef struct BlockList
{
	BlockNumber *blocks;		/* palloc'd, NULL at first */
	int64		count;
	int64		size;
} BlockList;

/* A list that is zeroed is empty.  It lives in the context of its first block. */
extern void block_list_add(BlockList *list, BlockNumber blkno);
extern void block_list_free(BlockList *list);

#endif							/* CYCLONE_BLOCK_LIST_H */
