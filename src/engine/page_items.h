/*-------------------------------------------------------------------------
 *
 * page_items.h
 *	  Whether all line pointers of a page are right, found out once a page.
 *
 * A page that comes in is looked at whole, so that the loops over its items need not
 * ask.  Four line pointers are looked at in one go, without a branch: six instructions
 * each.  A page on which something is unusual is for the caller to look at item by item.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PAGE_ITEMS_H
#define CYCLONE_PAGE_ITEMS_H

#include "access/htup_details.h"
#include "access/itup.h"
#include "storage/bufpage.h"

/* Four line pointers, or a number of each; GCC and Clang know such types */
typedef uint32 ItemVector __attribute__((vector_size(16)));

#define ITEMS_A_VECTOR	4

/* The fields of ItemIdData, as compilers lay out bits */
#ifdef WORDS_BIGENDIAN
#define ITEM_OFFSET(item)	((item) >> 17)
#define ITEM_LENGTH(item)	((item) & 0x7FFF)
#else
#define ITEM_OFFSET(item)	((item) & 0x7FFF)
#define ITEM_LENGTH(item)	((item) >> 17)
#endif
#define ITEM_FLAGS			((uint32) 3 << 15)
#define ITEM_NORMAL			((uint32) LP_NORMAL << 15)

/*
 * page_items_are_sound
 *		Does each line pointer lead to between pd_upper and pd_special, and is there room
 *		for all of them?
 *
 * In a heap each normal one leads to the header of a row at least, and no other has storage.
 * In an index each leads to a whole tuple, where tuples may begin.  The page is locked, and
 * isn't new.
 */
static pg_attribute_always_inline bool
page_items_are_sound(Page page, bool is_heap)
{
	PageHeader	header = (PageHeader) page;
	const uint32 upper = header->pd_upper;
	const uint32 special = header->pd_special;
	const uint32 count = PageGetMaxOffsetNumber(page);
	const ItemIdData *next = header->pd_linp;
	ItemVector	present = ~(ItemVector) {0};
	ItemVector	outside = {0};	/* one of the highest three bits says so */
	ItemVector	odd = {0};		/* lengths where there should be none */
	ItemVector	total = {0};

	if (header->pd_lower > upper || upper > special || special > BLCKSZ ||
		special != MAXALIGN(special) ||
		count > (is_heap ? MaxHeapTuplesPerPage : MaxIndexTuplesPerPage))
		return false;

	for (int32 left = count; left > 0; left -= ITEMS_A_VECTOR, next += ITEMS_A_VECTOR)
	{
		ItemVector	item,
					offset,
					length;

		memcpy(&item, next, sizeof(item));
		if (unlikely(left < ITEMS_A_VECTOR))
			item &= present = (ItemVector) ((ItemVector) {0, 1, 2, 3} < (uint32) left);
		offset = ITEM_OFFSET(item);
		length = ITEM_LENGTH(item);
		if (is_heap)
		{
			ItemVector	normal = (ItemVector) ((item & ITEM_FLAGS) == ITEM_NORMAL);

			odd |= length & ~normal;
			outside |= ((offset - upper) |
						(special - (uint32) SizeofHeapTupleHeader - offset)) & normal;
		}
		else
			outside |= ((offset - upper) | (special - length - offset) |
						(length - (uint32) sizeof(IndexTupleData)) | offset << 29) & present;
		total += (length + MAXIMUM_ALIGNOF - 1) & ~(uint32) (MAXIMUM_ALIGNOF - 1);
	}

	odd |= outside >> 29;
	return (odd[0] | odd[1] | odd[2] | odd[3]) == 0 &&
		total[0] + total[1] + total[2] + total[3] <= special - header->pd_lower;
}

#endif							/* CYCLONE_PAGE_ITEMS_H */
