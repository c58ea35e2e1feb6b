/*-------------------------------------------------------------------------
 *
 * gin_page.h
 *	  Taking the TIDs of dead items out of a leaf page of a GIN index.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_GIN_PAGE_H
#define CYCLONE_GIN_PAGE_H

#include "access/genam.h"
#include "access/gin_private.h"
#include "storage/buf.h"

#include "engine/index/index_kind.h"

/* The most entries that fit on a page, and the most TIDs: each takes a byte or more. */
#define GIN_MAX_ENTRIES		(BLCKSZ / (sizeof(IndexTupleData) + sizeof(ItemIdData)))
#define GIN_MAX_TIDS		BLCKSZ

/* A posting tree's page as it will be, and what to log of that */
typedef struct GinNewLeaf
{
	Size		size;
	Size		record_size;
	char		data[BLCKSZ];
	char		record[2 * BLCKSZ];
} GinNewLeaf;

/* One process's part of one index */
typedef struct GinScan
{
	KindScan	base;
	struct GinShared *shared;	/* of gin_vacuum.c */
	MemoryContext context;		/* reset after each page */

	/* of the entry tree's page in hand: the posting trees it points at */
	int			nroots;
	BlockNumber roots[GIN_MAX_ENTRIES];

	/* of the page in hand: its lists, their TIDs, and which of them are dead */
	int			nlists;
	int			lengths[GIN_MAX_TIDS / offsetof(GinPostingList, bytes)];
	int			ntids;
	ItemPointerData tids[GIN_MAX_TIDS];
	bool		dead[GIN_MAX_TIDS];
	GinNewLeaf	leaf;
} GinScan;

/*
 * gin_clean_entry_leaf and gin_clean_posting_leaf take dead TIDs out of a page that is
 * locked exclusively, and leave it so.  The first puts the posting trees' roots into
 * scan->roots; the second returns whether nothing is left.  Damage is
 * an error.
 */
extern void gin_clean_entry_leaf(GinScan *scan, Buffer buffer);
extern bool gin_clean_posting_leaf(GinScan *scan, Buffer buffer);

/* What a page is, of the flags in its special space */
#define GIN_KIND_FLAGS		(GIN_DATA | GIN_LEAF | GIN_DELETED | GIN_META | GIN_LIST)

/*
 * gin_page_is wants any lock on the page; gin_check_page, too, and raises an error if the
 * page is of another kind.
 */
extern bool gin_page_is(Buffer buffer, uint16 flags);
extern void gin_check_page(Relation index, Buffer buffer, uint16 flags);

#endif							/* CYCLONE_GIN_PAGE_H */
