/*-------------------------------------------------------------------------
 *
 * index_bloat.c
 *	  How large a GIN, GiST or hash index would be if it were built anew.
 *
 * The estimate is rough, and rather too large: it answers whether a build is worth it.
 * A sample of pages tells how much space is in use.  A new index needs the pages that
 * this fills if each is as empty as a build leaves it at worst.  A build of GiST, or
 * of GIN's entries, splits full pages, so that is a half.  GIN's posting trees are
 * appended to, so their pages are fuller.  Entries that VACUUM has not removed yet
 * count as in use.
 *
 * A hash index keeps the largest number of buckets that its rows ever needed.  A
 * build makes as many as they need now.  Rows that overflow a bucket's first page
 * because their keys are equal do so in the new index, too.
 *
 * Each page of the sample is read under a share lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gin_private.h"
#include "access/ginblock.h"
#include "access/gist.h"
#include "access/hash.h"
#include "catalog/pg_am.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"

#include "bloat/bloat.h"

/* The part of a page that a build fills at worst */
#define DIVIDED_FILL		0.5
#define GIN_POSTING_FILL	0.75

/* Pages that an empty index has: in GIN its metapage and its root */
#define FIXED_PAGES			2

/* What is measured on each page */
enum
{
	INDEX_PACKED,				/* pages that its entries fill */
	INDEX_ENTRIES,				/* of a hash index */
	INDEX_QUANTITIES
};

/* The room for an entry of a hash index, and the fewest that a bucket is made for */
#define HASH_ENTRY_BYTES \
	(MAXALIGN(sizeof(IndexTupleData)) + MAXALIGN(sizeof(uint32)) + sizeof(ItemIdData))
#define HASH_LEAST_ENTRIES	10

static void measure_page(Relation index, Page page, double *quantities);
static bool is_of_kind(Relation index, Page page);
static double used_part(Page page);
static double gin_pages(Page page);
static void measure_hash_page(Page page, double *quantities);
static double hash_buckets(Relation index, double entries);

/* index_bloat_is_known -- see bloat.h. */
bool
index_bloat_is_known(Oid access_method)
{
	return access_method == GIN_AM_OID || access_method == GIST_AM_OID ||
		access_method == HASH_AM_OID;
}

/* index_rebuilt_pages -- see bloat.h. */
double
index_rebuilt_pages(Relation index, uint32 most_pages, pg_prng_state *prng)
{
	PageSample *sample = page_sample_begin(index, 1, most_pages, prng);
	double		pages;
	Buffer		buffer;

	Assert(index_bloat_is_known(index->rd_rel->relam));
	while (BufferIsValid(buffer = page_sample_next(sample)))
	{
		double		quantities[INDEX_QUANTITIES] = {0};

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		measure_page(index, BufferGetPage(buffer), quantities);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		page_sample_measured(sample, buffer, quantities, INDEX_QUANTITIES);
	}
	pages = FIXED_PAGES + ceil(page_sample_total(sample, INDEX_PACKED).value);
	if (index->rd_rel->relam == HASH_AM_OID)
		pages += hash_buckets(index, page_sample_total(sample, INDEX_ENTRIES).value);
	page_sample_end(sample);
	return pages;
}

/* measure_page -- measure a page, which is locked. */
static void
measure_page(Relation index, Page page, double *quantities)
{
	if (PageIsNew(page))
		return;
	/* left to amcheck to report; it counts as a full page */
	if (!is_of_kind(index, page))
	{
		quantities[INDEX_PACKED] = 1;
		return;
	}
	switch (index->rd_rel->relam)
	{
		case GIN_AM_OID:
			quantities[INDEX_PACKED] = gin_pages(page);
			break;
		case GIST_AM_OID:
			if (!GistPageIsDeleted(page))
				quantities[INDEX_PACKED] = used_part(page) / DIVIDED_FILL;
			break;
		case HASH_AM_OID:
			measure_hash_page(page, quantities);
			break;
	}
}

/* is_of_kind -- has a page the special space of its access method? */
static bool
is_of_kind(Relation index, Page page)
{
	switch (index->rd_rel->relam)
	{
		case GIN_AM_OID:
			return PageGetSpecialSize(page) == MAXALIGN(sizeof(GinPageOpaqueData));
		case GIST_AM_OID:
			return PageGetSpecialSize(page) == MAXALIGN(sizeof(GISTPageOpaqueData));
		default:
			return PageGetSpecialSize(page) == MAXALIGN(sizeof(HashPageOpaqueData));
	}
}

/* used_part -- the part of a page's room that is in use. */
static double
used_part(Page page)
{
	double		room = ((PageHeader) page)->pd_special - SizeOfPageHeaderData;

	Assert(room > 0);

	return (room - PageGetExactFreeSpace(page)) / room;
}

/* gin_pages -- how many pages of a new GIN index the entries of this one fill. */
static double
gin_pages(Page page)
{
	if (GinPageIsDeleted(page))
		return 0;

	/*
	 * the last page of each level of a tree of TIDs is there in a new one,
	 * too
	 */
	if (GinPageIsData(page) && GinPageRightMost(page))
		return 1;
	return used_part(page) / (GinPageIsData(page) ? GIN_POSTING_FILL : DIVIDED_FILL);
}

/*
 * measure_hash_page
 *		Count the entries of a page; those beyond a bucket's first page fill pages
 *		of their own.
 */
static void
measure_hash_page(Page page, double *quantities)
{
	switch (HashPageGetOpaque(page)->hasho_flag & LH_PAGE_TYPE)
	{
		case LH_OVERFLOW_PAGE:
			/* the last page of a bucket is there in a new index, too */
			quantities[INDEX_PACKED] =
				BlockNumberIsValid(HashPageGetOpaque(page)->hasho_nextblkno) ? used_part(page) : 1;
			quantities[INDEX_ENTRIES] = PageGetMaxOffsetNumber(page);
			break;
		case LH_BUCKET_PAGE:
			quantities[INDEX_ENTRIES] = PageGetMaxOffsetNumber(page);
			break;
		case LH_BITMAP_PAGE:
			quantities[INDEX_PACKED] = 1;
			break;
	}
}

/* hash_buckets -- how many buckets a build makes for this many entries. */
static double
hash_buckets(Relation index, double entries)
{
	double		for_each = Max(HashGetTargetPageUsage(index) / HASH_ENTRY_BYTES,
							   HASH_LEAST_ENTRIES);
	double		wanted = Min(Max(ceil(entries / for_each), 2), 0x40000000);

	return _hash_get_totalbuckets(_hash_spareindex(wanted));
}
