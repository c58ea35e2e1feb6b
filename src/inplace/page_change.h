/*-------------------------------------------------------------------------
 *
 * page_change.h
 *	  Changes of a heap page that moves of rows consist of.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PAGE_CHANGE_H
#define CYCLONE_PAGE_CHANGE_H

#include "access/heaptoast.h"
#include "access/htup.h"
#include "storage/bufpage.h"
#include "storage/buf.h"
#include "utils/rel.h"

/* The room that a part of a value takes, of those that are cut into several */
#define TOAST_PART_SIZE		(MAXALIGN(EXTERN_TUPLE_MAX_SIZE) + sizeof(ItemIdData))

/*
 * Raise an error if the header of a page, which isn't new, doesn't say where items and
 * free space are.  The caller has the page locked, in any mode.  It does this before
 * it puts rows on a page: the server's routine for that, in a critical section, would
 * end the server.
 */
extern void page_check_header(Relation rel, Buffer buffer);

/*
 * Raise an error if the items of a page aren't where items can be; a new page has
 * none.  The caller has the page locked, in any mode.  It does this before it reads
 * rows of the page.  On a page with wrong bytes, whose checksum is right or not looked
 * at, it would read what is behind the page, or overrun arrays of
 * MaxHeapTuplesPerPage.
 */
extern void page_check_items(Relation rel, Buffer buffer);

/*
 * Return how much space a page must have to take a row of this aligned size, if reserve
 * bytes are to remain free.  Spaces are as the free space map has them.
 */
extern Size page_space_needed(Size row, Size reserve);

/*
 * Find out which of some tuples fit on a page if reserve bytes are to remain free.
 * Sets fits for each, and returns how many fit.  The caller has the page locked.  The
 * page has been initialized, and its header checked.
 */
extern int	page_room(Page page, Size reserve, const HeapTuple *tuples, int ntuples,
					  bool *fits);

/*
 * Put tuples on a page that has room for them, and set their t_self.  The tuples are
 * the current transaction's, with all of their headers set but t_ctid.  The caller has
 * buffer exclusively locked, and vmbuffer is its page of the visibility map, pinned.
 * The caller adds the entries to indexes.
 */
extern void page_put(Relation rel, Buffer buffer, Buffer vmbuffer,
					 HeapTuple *tuples, int ntuples);

/*
 * Make versions on a page updated ones, whose new versions are these.  They are live
 * and nobody has them locked; buffer and vmbuffer are as for page_put.
 */
extern void page_mark_moved(Relation rel, Buffer buffer, Buffer vmbuffer,
							TransactionId xid, CommandId cid, const OffsetNumber *offsets,
							HeapTuple *new_versions, int ntuples);

#endif							/* CYCLONE_PAGE_CHANGE_H */
