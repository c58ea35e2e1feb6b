/*-------------------------------------------------------------------------
 *
 * block_list.c
 *	  A list of blocks that grows as it is filled.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "engine/block_list.h"

/*
 * block_list_add
 *		Append to a list.  It is bounded by the number of pages: 4 bytes each.
 */
void
block_list_add(BlockList *list, BlockNumber blkno)
{
	Assert(list->count >= 0 && list->count <= list->size);
	Assert((list->blocks == NULL) == (list->size == 0));
	Assert(BlockNumberIsValid(blkno));
	if (list->count == list->size)
	{
		list->size = Max(list->size * 2, 64);
		list->blocks = list->blocks == NULL ?
			palloc_array(BlockNumber, list->size) :
			repalloc_huge(list->blocks, list->size * sizeof(BlockNumber));
	}
	list->blocks[list->count++] = blkno;
}

/* block_list_free -- make a list empty, and give its memory back. */
void
block_list_free(BlockList *list)
{
	Assert(list->count >= 0 && list->count <= list->size);
	if (list->blocks != NULL)
		pfree(list->blocks);
	memset(list, 0, sizeof(BlockList));
}
