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

extern LinkSort *link_sort_begin(int memory, bool is_read_again);
extern void link_sort_put(LinkSort *sort, const LinkNote *note);
extern void link_sort_perform(LinkSort *sort);
extern bool link_sort_next(LinkSort *sort, LinkNote *note);
extern void link_sort_rewind(LinkSort *sort);
extern void link_sort_end(LinkSort *sort);

#endif							/* CYCLONE_LINK_SORT_H */
