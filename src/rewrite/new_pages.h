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

/* Where the last tuple is, and what is known of that page */
typedef struct NewPlace
{
	BlockNumber blkno;
	OffsetNumber offset;		/* 0: the page has not been begun */
	Size		free;			/* bytes between its line pointers and tuples */
	Size		reserved;		/* of these, to be left free: fillfactor */
} NewPlace;

/*
 * Several processes fill pages of rel, which was empty.  Memory is that of the context
 * in which new_pages_begin is called.  A process lays its tuples as the server would have.
 *
 * new_pages_add writes nothing, so locks on pages may be held.  The tuple is no shorter
 * than its header, and fits on a page.  If the t_ctid of the copy that it returns is made
 * invalid, the copy will point at itself.  Call new_pages_flush, without such locks,
 * before more than MaxHeapTuplesPerPage tuples are added.
 *
 * A member ends with new_pages_hand_over, which returns true if it has copied a page
 * to *leftover, for another's new_pages_take_over.  The leader ends with new_pages_end.
 */
extern NewPages *new_pages_begin(Relation rel, NewBlocksShared *shared);
extern HeapTupleHeader new_pages_add(NewPages *pages, HeapTupleHeader tuple, Size len);
extern void new_pages_flush(NewPages *pages);

/*
 * For a process that is alone: where tuples will be.  new_pages_tid is for the tuple that
 * was added last, as new_pages_add returned it.  new_pages_place is the place of the last
 * tuple; new_place_next and new_place_end_page do to a place what new_pages_add and
 * new_pages_end_page will do.
 */
extern void new_pages_tid(const NewPages *pages, HeapTupleHeader tuple, ItemPointer tid);
extern void new_pages_end_page(NewPages *pages);
extern NewPlace new_pages_place(const NewPages *pages);
extern void new_place_next(NewPlace *place, Size len);
extern void new_place_end_page(NewPlace *place);

/* Called at the end; these write pages, so no page may be locked. */
extern bool new_pages_hand_over(NewPages *pages, Page leftover);
extern void new_pages_take_over(NewPages *pages, Page leftover);
extern void new_pages_end(NewPages *pages);

#endif							/* CYCLONE_NEW_PAGES_H */
