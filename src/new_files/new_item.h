/*-------------------------------------------------------------------------
 *
 * new_item.h
 *	  Adding an item behind the others of a page that only this process knows.
 *
 * As PageAddItem does it, byte for byte, but without its search for a free line pointer
 * and without a look for damage: a page that was made here has neither.  New heaps and
 * new indexes are made of nothing but such items.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEW_ITEM_H
#define CYCLONE_NEW_ITEM_H

#include "storage/bufpage.h"

/* new_item_room -- how large an item behind the others may be, at most. */
static inline Size
new_item_room(Page page)
{
	PageHeader	header = (PageHeader) page;

	Assert(header->pd_lower <= header->pd_upper);
	return header->pd_upper - header->pd_lower < sizeof(ItemIdData) ? 0 :
		header->pd_upper - header->pd_lower - sizeof(ItemIdData);
}

/* new_item_add -- add a copy of an item, and return the copy.  It's an error if it doesn't fit. */
static inline void *
new_item_add(Page page, const void *item, Size length)
{
	PageHeader	header = (PageHeader) page;
	ItemId		id = (ItemId) ((char *) page + header->pd_lower);

	Assert(length > 0 && (header->pd_flags & PD_HAS_FREE_LINES) == 0);
	if (unlikely(MAXALIGN(length) > new_item_room(page)))
		elog(ERROR, "failed to add item to new page");
	header->pd_lower += sizeof(ItemIdData);
	header->pd_upper -= MAXALIGN(length);
	ItemIdSetNormal(id, header->pd_upper, length);
	return memcpy((char *) page + header->pd_upper, item, length);
}

#endif							/* CYCLONE_NEW_ITEM_H */
