/*-------------------------------------------------------------------------
 *
 * heap_page.h
 *	  The heap scan's verdict on one page.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_HEAP_PAGE_H
#define CYCLONE_HEAP_PAGE_H

#include "engine/state.h"

/* The results of one page in the heap scan, beside the counters */
typedef struct PageVerdict
{
	bool		cleaned;		/* pruned, not only looked at */
	bool		newly_all_frozen;	/* set so in the visibility map */
	int			ndeleted;		/* tuples removed */
	Size		free_space;
	int			ndead;			/* LP_DEAD items left, sorted by offset */
	OffsetNumber dead[MaxHeapTuplesPerPage];
} PageVerdict;

/*
 * The caller has pinned the buffer, once, and the page's part of the visibility map, and
 * has locked neither.  vm_all_visible is the map's bit when the block was chosen.  The
 * pins stay.
 */
extern void heap_page_scan(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
						   bool vm_all_visible, PageVerdict *verdict);

/* The caller holds at least a shared lock, and has the page's items counted. */
extern bool heap_page_all_visible(TableVacuum *vacuum, Buffer buffer, int ndead_freed,
								  TransactionId *newest_xmin, bool *all_frozen);

#endif							/* CYCLONE_HEAP_PAGE_H */
