/*-------------------------------------------------------------------------
 *
 * new_pages.c
 *	  Filling the pages of a new heap, in several processes at a time.
 *
 * Each process fills pages in memory of its own, and writes a run of them at a
 * time (new_blocks.c), so the new rows are in about the order of the old
 * ones.  A process that ends hands over its last page, if that isn't full, and the
 * leader adds the tuples of these pages to its own.
 *
 * When the leader is alone it can tell where tuples will be before it adds them:
 * new_pages_place is where the last one is, and new_place_next goes on from there
 * by the same rule as new_pages_add (room_for_tuple).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/lmgr.h"

#include "compat.h"
#include "new_files/new_item.h"
#include "rewrite/new_pages.h"

/* The most pages that tuples of one old page, added between two flushes, fill */
#define MAX_SPARE_PAGES	(MaxHeapTuplesPerPage + 1)

struct NewPages
{
	Relation	rel;
	NewBlocksShared *shared;
	Size		reserved;		/* space to leave on each page: fillfactor */
	char	   *run;			/* NEW_BLOCKS_RUN and MAX_SPARE_PAGES */
	int			nfull;			/* pages at its beginning that are full */
	Page		page;			/* the page behind them, NULL if not begun */
};

static Size room_on(const NewPages *pages, Page page);
static Size room_for_tuple(Size free, OffsetNumber maxoff, Size reserved);
static Page new_run_page(const NewPages *pages, int number);
static void write_new_run(NewPages *pages);
static void point_tuples_at_themselves(Page page, BlockNumber blkno);

/* new_pages_begin -- this process begins to fill pages of rel. */
NewPages *
new_pages_begin(Relation rel, NewBlocksShared *shared)
{
	NewPages   *pages = palloc0_object(NewPages);

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));

	pages->rel = rel;
	pages->shared = shared;
	pages->reserved = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	pages->run = MemoryContextAllocAligned(CurrentMemoryContext,
										   (NEW_BLOCKS_RUN + MAX_SPARE_PAGES) * BLCKSZ,
										   PG_IO_ALIGN_SIZE, 0);
	return pages;
}

/* new_pages_add -- add a copy of a tuple; return the copy. */
HeapTupleHeader
new_pages_add(NewPages *pages, HeapTupleHeader tuple, Size len)
{
	HeapTupleHeader copy;

	/* tuple_copy.c sees to it */
	Assert(len >= SizeofHeapTupleHeader && MAXALIGN(len) <= MaxHeapTupleSize);
	Assert(pages->nfull < NEW_BLOCKS_RUN + MAX_SPARE_PAGES);

	if (pages->page != NULL && MAXALIGN(len) > room_on(pages, pages->page))
		new_pages_end_page(pages);
	/* a page has one tuple at least, whatever the fillfactor */
	if (pages->page == NULL)
	{
		pages->page = new_run_page(pages, pages->nfull);
		PageInit(pages->page, BLCKSZ, 0);
	}

	copy = new_item_add(pages->page, tuple, len);
	Assert(PageGetMaxOffsetNumber(pages->page) <= MaxHeapTuplesPerPage);
	return copy;
}

/* new_pages_flush -- write the full pages if there are enough for a run. */
void
new_pages_flush(NewPages *pages)
{
	Assert(pages->page == NULL || pages->page == new_run_page(pages, pages->nfull));
	Assert(InterruptHoldoffCount == 0);
	if (pages->nfull < NEW_BLOCKS_RUN)
		return;
	write_new_run(pages);

	/* the page that isn't full becomes the first */
	if (pages->page != NULL)
	{
		memcpy(new_run_page(pages, 0), pages->page, BLCKSZ);
		pages->page = new_run_page(pages, 0);
	}
}

/* new_pages_tid -- where the tuple that was added last will be. */
void
new_pages_tid(const NewPages *pages, HeapTupleHeader tuple, ItemPointer tid)
{
	int			number = ((char *) tuple - pages->run) / BLCKSZ;
	Page		page = new_run_page(pages, number);

	Assert((char *) tuple >= pages->run && number <= pages->nfull);
	/* the last one has the highest offset */
	ItemPointerSet(tid, pg_atomic_read_u32(&pages->shared->nblocks) + number,
				   PageGetMaxOffsetNumber(page));
}

/* new_pages_end_page -- have the next tuple begin a page. */
void
new_pages_end_page(NewPages *pages)
{
	if (pages->page == NULL)
		return;
	pages->page = NULL;
	pages->nfull++;
}

/* new_pages_place -- where the last tuple will be. */
NewPlace
new_pages_place(const NewPages *pages)
{
	NewPlace	place = {.reserved = pages->reserved};

	Assert(pages->nfull < NEW_BLOCKS_RUN + MAX_SPARE_PAGES);

	place.blkno = pg_atomic_read_u32(&pages->shared->nblocks) + pages->nfull;
	if (pages->page != NULL)
	{
		place.offset = PageGetMaxOffsetNumber(pages->page);
		place.free = PageGetExactFreeSpace(pages->page);
	}
	return place;
}

/* new_place_next -- go on to where new_pages_add will put a tuple of that length. */
void
new_place_next(NewPlace *place, Size len)
{
	Assert(len >= SizeofHeapTupleHeader && MAXALIGN(len) <= MaxHeapTupleSize);
	if (place->offset > 0 &&
		MAXALIGN(len) > room_for_tuple(place->free, place->offset, place->reserved))
		new_place_end_page(place);
	if (place->offset == 0)
		place->free = BLCKSZ - SizeOfPageHeaderData;
	Assert(place->free >= MAXALIGN(len) + sizeof(ItemIdData));
	place->free -= MAXALIGN(len) + sizeof(ItemIdData);
	place->offset++;
}

/* new_place_end_page -- do what new_pages_end_page does. */
void
new_place_end_page(NewPlace *place)
{
	if (place->offset == 0)
		return;
	place->blkno++;
	place->offset = 0;
}

/* room_on -- how long a tuple may be to fit on a page. */
static Size
room_on(const NewPages *pages, Page page)
{
	PageHeader	header = (PageHeader) page;

	return room_for_tuple(header->pd_upper - header->pd_lower, PageGetMaxOffsetNumber(page),
						  pages->reserved);
}

/*
 * room_for_tuple
 *		How long a tuple may be to fit on a page that has this many free bytes, and
 *		whose line pointers are all used.
 */
static Size
room_for_tuple(Size free, OffsetNumber maxoff, Size reserved)
{
	if (maxoff >= MaxHeapTuplesPerPage || free < sizeof(ItemIdData) + reserved)
		return 0;
	return free - sizeof(ItemIdData) - reserved;
}

/*
 * new_pages_hand_over
 *		Write all full pages, copy the one that isn't full, if there is one, and free
 *		*pages.
 */
bool
new_pages_hand_over(NewPages *pages, Page leftover)
{
	bool		has_leftover = pages->page != NULL;

	if (has_leftover)
		memcpy(leftover, pages->page, BLCKSZ);
	pages->page = NULL;
	new_pages_end(pages);
	return has_leftover;
}

/* new_pages_take_over -- add all tuples of a page that was handed over. */
void
new_pages_take_over(NewPages *pages, Page leftover)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(leftover);

	/* it was begun with a tuple */
	Assert(maxoff >= FirstOffsetNumber && maxoff <= MaxHeapTuplesPerPage);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(leftover, off);

		(void) new_pages_add(pages, (HeapTupleHeader) PageGetItem(leftover, item),
							 ItemIdGetLength(item));
	}
	new_pages_flush(pages);
}

/* new_pages_end -- write all pages, and free *pages. */
void
new_pages_end(NewPages *pages)
{
	Assert(InterruptHoldoffCount == 0);

	if (pages->page != NULL)
		pages->nfull++;
	if (pages->nfull > 0)
		write_new_run(pages);
	pfree(pages->run);
	pfree(pages);
}

/* new_run_page -- a page of the run. */
static Page
new_run_page(const NewPages *pages, int number)
{
	return (Page) (pages->run + number * BLCKSZ);
}

/*
 * write_new_run
 *		Take the next blocks of the file and write the full pages there.
 */
static void
write_new_run(NewPages *pages)
{
	BlockNumber start = new_blocks_take(pages->rel, pages->shared, pages->nfull);

	int64		nrows = 0;

	Assert(pages->nfull <= NEW_BLOCKS_RUN + MAX_SPARE_PAGES);
	for (int done = 0; done < pages->nfull; done += NEW_BLOCKS_RUN)
	{
		BlockNumber blknos[NEW_BLOCKS_RUN];
		Page		images[NEW_BLOCKS_RUN];
		int			n = Min(pages->nfull - done, NEW_BLOCKS_RUN);

		for (int i = 0; i < n; i++)
		{
			blknos[i] = start + done + i;
			images[i] = new_run_page(pages, done + i);
			nrows += PageGetMaxOffsetNumber(images[i]);
			point_tuples_at_themselves(images[i], blknos[i]);
		}
		new_blocks_write(pages->rel, blknos, images, n);
	}
	pages->nfull = 0;
	pg_atomic_fetch_add_u64(&pages->shared->rows, nrows);
}

/*
 * point_tuples_at_themselves
 *		The page has its block: have tuples whose t_ctid is invalid point at
 *		themselves.
 */
static void
point_tuples_at_themselves(Page page, BlockNumber blkno)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	/* it was begun with a tuple */
	Assert(maxoff >= FirstOffsetNumber && maxoff <= MaxHeapTuplesPerPage);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, off));

		Assert(ItemIdIsNormal(PageGetItemId(page, off)));
		if (!ItemPointerIsValid(&tuple->t_ctid))
			ItemPointerSet(&tuple->t_ctid, blkno, off);
	}
}
