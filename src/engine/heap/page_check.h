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

extern void page_check_count(Relation rel, Buffer buffer);
extern void page_check_before_change(Relation rel, Buffer buffer,
									 const OffsetNumber *removed, int nremoved);

#endif							/* CYCLONE_PAGE_CHECK_H */
