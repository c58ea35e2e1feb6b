/*-------------------------------------------------------------------------
 *
 * hnsw_bloat.c
 *	  How much of an HNSW index of pgvector is deleted elements, from a sample of its pages.
 *
 * An element and its list keep their room when they are deleted, until an insertion uses it.
 * A new index needs the pages that the live ones fill as they do in this one.  Each page is read
 * under a share lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "storage/bufmgr.h"

#include "bloat/bloat.h"
#include "engine/index/hnsw_page.h"

/* What is measured on each page */
enum
{
	HNSW_LIVE_BYTES,
	HNSW_DEAD_BYTES,			/* of deleted elements, and of those without rows */
	HNSW_FREE_BYTES,
	HNSW_PACKED,				/* the share of its items that is live */
	HNSW_QUANTITIES
};

static void measure_page(Page page, double *quantities);
static bool has_links(const HnswList *list);

/* hnsw_bloat -- see bloat.h. */
void
hnsw_bloat(Relation index, uint32 most_pages, pg_prng_state *prng, BloatEstimate *estimate)
{
	PageSample *sample = page_sample_begin(index, HNSW_FIRST_BLOCK, most_pages, prng);
	Buffer		buffer;
	Total		packed;

	while (BufferIsValid(buffer = page_sample_next(sample)))
	{
		double		quantities[HNSW_QUANTITIES] = {0};

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		if (!PageIsNew(BufferGetPage(buffer)))
		{
			hnsw_check_page(index, buffer);
			measure_page(BufferGetPage(buffer), quantities);
		}
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		page_sample_measured(sample, buffer, quantities, HNSW_QUANTITIES);
	}
	packed = page_sample_total(sample, HNSW_PACKED);
	estimate->known = true;
	estimate->pages = page_sample_of(sample) + HNSW_FIRST_BLOCK;
	estimate->sampled_pages = page_sample_size(sample);
	estimate->live_bytes = page_sample_total(sample, HNSW_LIVE_BYTES).value;
	estimate->dead_bytes = page_sample_total(sample, HNSW_DEAD_BYTES).value;
	estimate->free_bytes = page_sample_total(sample, HNSW_FREE_BYTES).value;
	estimate->rewritten_pages = HNSW_FIRST_BLOCK + Max(ceil(packed.value), 1);
	estimate->rewritten_error = packed.standard_error;
	estimate->inplace_pages = estimate->pages;
	page_sample_end(sample);
}

/* measure_page -- measure a page, which is locked. */
static void
measure_page(Page page, double *quantities)
{
	double		items;

	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		HnswList   *list = hnsw_list_at(page, off);
		bool		is_live = list != NULL ? has_links(list) : hnsw_is_live(hnsw_element_at(page, off));

		quantities[is_live ? HNSW_LIVE_BYTES : HNSW_DEAD_BYTES] += ItemIdGetLength(PageGetItemId(page, off));
	}
	items = quantities[HNSW_LIVE_BYTES] + quantities[HNSW_DEAD_BYTES];
	quantities[HNSW_FREE_BYTES] = PageGetExactFreeSpace(page);
	quantities[HNSW_PACKED] = items > 0 ? quantities[HNSW_LIVE_BYTES] / items : 0;
}

/* has_links -- a deleted element's list has none. */
static bool
has_links(const HnswList *list)
{
	for (int i = 0; i < list->count; i++)
		if (ItemPointerIsValid(&list->links[i]))
			return true;
	return false;
}
