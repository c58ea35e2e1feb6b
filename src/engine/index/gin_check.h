/*-------------------------------------------------------------------------
 *
 * gin_check.h
 *	  Is a page of a GIN index of the kind that it must be?
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_GIN_CHECK_H
#define CYCLONE_GIN_CHECK_H

#include "access/gin_private.h"
#include "storage/buf.h"
#include "utils/relcache.h"

/* What a page is, of the flags in its special space */
#define GIN_KIND_FLAGS		(GIN_DATA | GIN_LEAF | GIN_DELETED | GIN_META | GIN_LIST)

/*
 * gin_page_is wants any lock on the page; gin_check_page, too, and raises an error if the
 * page is of another kind.  gin_report_corruption raises that error.
 */
extern bool gin_page_is(Buffer buffer, uint16 flags);
extern void gin_check_page(Relation index, Buffer buffer, uint16 flags);
extern void gin_report_corruption(Relation index, BlockNumber blkno);

#endif							/* CYCLONE_GIN_CHECK_H */
