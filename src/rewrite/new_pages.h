/*-------------------------------------------------------------------------
 *
 * new_pages.h
 *	  Filling the pages of a new heap, in several processes at a time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEW_PAGES_H
#define CYCLONE_NEW_PAGES_H

#include "access/htup.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

#include "new_files/new_blocks.h"

/* One process's pages */
typedef struct NewPages NewPages;

/* Where a tuple was added last, and what is known of that page */
typedef struct NewPlace
{
	BlockNumber blkno;
	OffsetNumber offset;		/* 0: the page has not been begun */
	Size		free;			/* bytes between its line pointers and tuples */
	Size		reserved;		/* of these, to be left: fillfactor */
} NewPlace;

extern NewPages *new_pages_begin(Relation rel, NewBlocksShared *shared,
								 bool packs_tightly);
extern HeapTupleHeader new_pages_add(NewPages *pages, HeapTupleHeader tuple, Size len);
extern void new_pages_flush(NewPages *pages);
extern void new_pages_tid(const NewPages *pages, HeapTupleHeader tuple, ItemPointer tid);
extern void new_pages_end_page(NewPages *pages);
extern NewPlace new_pages_place(NewPages *pages);
extern void new_place_next(NewPlace *place, Size len);
extern void new_place_end_page(NewPlace *place);
extern bool new_pages_hand_over(NewPages *pages, Page leftover);
extern void new_pages_take_over(NewPages *pages, Page leftover);
extern void new_pages_end(NewPages *pages);

#endif							/* CYCLONE_NEW_PAGES_H */
