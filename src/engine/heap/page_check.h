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

#include "storage/buf.h"
#include "storage/off.h"
#include "utils/rel.h"

/*
 * Both raise an error if the page is damaged.  page_check_count: the page isn't new, and
 * is locked in any mode.  page_check_before_change: it is locked exclusively, and its
 * items are counted; removed are in ascending order, and may lead anywhere.
 */
extern void page_check_count(Relation rel, Buffer buffer);
extern void page_check_before_change(Relation rel, Buffer buffer,
									 const OffsetNumber *removed, int nremoved);

#endif							/* CYCLONE_PAGE_CHECK_H */
