/*-------------------------------------------------------------------------
 *
 * link_sort.h
 *	  Sorting notes on row versions and the links between them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LINK_SORT_H
#define CYCLONE_LINK_SORT_H

#include "storage/itemptr.h"

/* Something about a row version, and perhaps about another */
typedef struct LinkNote
{
	ItemPointerData tid;
	TransactionId xid;
	int			kind;			/* the caller's, 0 to 3 */
	ItemPointerData other;		/* invalid if there is none */
} LinkNote;

typedef struct LinkSort LinkSort;

/*
 * link_sort_begin takes the current context's memory: that many kilobytes, or what
 * tuplesort needs at least.  link_sort_put adds copies of notes.  link_sort_perform is
 * called when all are there; then link_sort_next returns them in order, and false
 * behind the last one.  If is_read_again, link_sort_rewind begins with the first again.
 */
extern LinkSort *link_sort_begin(int memory, bool is_read_again);
extern void link_sort_put(LinkSort *sort, const LinkNote *note);
extern void link_sort_perform(LinkSort *sort);
extern bool link_sort_next(LinkSort *sort, LinkNote *note);
extern void link_sort_rewind(LinkSort *sort);
extern void link_sort_end(LinkSort *sort);

#endif							/* CYCLONE_LINK_SORT_H */
