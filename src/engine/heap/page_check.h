/*-------------------------------------------------------------------------
 *
 * page_check.h
 *	  Damage that must be found before a page is changed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PAGE_CHECK_H
#define CYCLONE_PAGE_CHECK_H

#include "access/htup_details.h"
#include "storage/buf.h"
#include "storage/bufpage.h"
#include "storage/off.h"
#include "utils/rel.h"

/*
 * All raise an error if the page is damaged.  page_check_count: the page isn't new, and
 * is locked in any mode.  page_check_rows: its items are counted; true if the page can be
 * changed without page_check_before_change.  That one: it is locked exclusively, and its
 * items are counted; removed are in ascending order, and may lead anywhere.
 */
extern void page_check_count(Relation rel, Buffer buffer);
extern bool page_check_rows(Relation rel, Buffer buffer);
extern void page_check_before_change(Relation rel, Buffer buffer,
									 const OffsetNumber *removed, int nremoved);
extern void page_check_report_item(Relation rel, Buffer buffer, OffsetNumber off);

/* page_check_fits -- does a normal item lead to where a row's header is all on the page? */
static inline bool
page_check_fits(ItemId item)
{
	return ItemIdGetOffset(item) + SizeofHeapTupleHeader <= BLCKSZ;
}

/*
 * page_check_row_at
 *		The row that a normal item of a locked page leads to, of which the header can be
 *		read; or an error.
 *
 * The item's length is not asked for: where it is wrong, PostgreSQL reads the row all
 * the same.
 */
static inline HeapTupleHeader
page_check_row_at(Relation rel, Buffer buffer, Page page, OffsetNumber off)
{
	ItemId		item = PageGetItemId(page, off);

	if (unlikely(!page_check_fits(item)))
		page_check_report_item(rel, buffer, off);
	return (HeapTupleHeader) ((char *) page + ItemIdGetOffset(item));
}

#endif							/* CYCLONE_PAGE_CHECK_H */
