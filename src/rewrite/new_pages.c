/*-------------------------------------------------------------------------
 *
 * new_pages.c
 *	  Filling the pages of a new heap, in several processes at a time.
 *
 * Each process fills pages in memory of its own, and writes a run of them at a
 * time (see new_blocks.c), so the new rows are in about the order of the old
 * ones.  The page that is not full at the end is handed over to the leader, who
 * fills up the rest with them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"

#include "rewrite/new_pages.h"

/* Between two flushes no more pages than this may be filled in addition. */
#define MAX_SPARE_PAGES	(MaxHeapTuplesPerPage + 1)

struct NewPages
{
	Relation	rel;
	NewBlocksShared *shared;
	Size		reserved;		/* space to leave on each page: fillfactor */
	char	   *run;			/* NEW_BLOCKS_RUN and MAX_SPARE_PAGES */
	int			nfull;			/* pages at the beginning of it */
	Page		page;			/* the one behind them, NULL if not begun */
	bool		packs_tightly;	/* look for room on the page before, too */
	Size		room_before;	/* on that page, as long as it isn't written */
};

static Size room_on(const NewPages *pages, Page page);
static Page run_page(const NewPages *pages, int number);
static void write_run(NewPages *pages);
static void point_tuples_at_themselves(Page page, BlockNumber blkno);

/*
 * new_pages_begin
 *		This process begins to fill pages of rel, which is empty but for what
 *		others do just like this one.  Memory is the current context's.
 *
 * packs_tightly makes up for the pages that a team leaves part-filled: a tuple
 * that fits on the page before the last goes there, out of order by a page.
 * Without it, tuples lie as the server would have laid them.
 */
NewPages *
new_pages_begin(Relation rel, NewBlocksShared *shared, bool packs_tightly)
{
	NewPages   *pages = palloc0_object(NewPages);

	pages->rel = rel;
	pages->shared = shared;
	pages->packs_tightly = packs_tightly;
	pages->reserved = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	pages->run = MemoryContextAllocAligned(CurrentMemoryContext,
										   (NEW_BLOCKS_RUN + MAX_SPARE_PAGES) * BLCKSZ,
										   PG_IO_ALIGN_SIZE, 0);
	return pages;
}

/*
 * new_pages_add
 *		Add a copy of a tuple; return the copy.  If its t_ctid is made invalid, it
 *		will point at itself.
 *
 * Writes nothing, so locks may be held, but before MaxHeapTuplesPerPage tuples
 * more are added, new_pages_flush must be called.
 */
HeapTupleHeader
new_pages_add(NewPages *pages, HeapTupleHeader tuple, Size len)
{
	OffsetNumber offset;
	Page		page;

	if (MAXALIGN(len) > MaxHeapTupleSize)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("row is too big: size %zu, maximum size %zu",
						MAXALIGN(len), (Size) MaxHeapTupleSize),
				 errhint("With \"cyclone.enabled\" off, VACUUM FULL moves large values out of such rows.")));

	if (MAXALIGN(len) <= pages->room_before)
		page = run_page(pages, pages->nfull - 1);
	else
	{
		if (pages->page != NULL && MAXALIGN(len) > room_on(pages, pages->page))
		{
			if (pages->packs_tightly)
				pages->room_before = room_on(pages, pages->page);
			pages->page = NULL;
			pages->nfull++;
		}
		/* a page has one tuple at least, whatever the fillfactor */
		if (pages->page == NULL)
		{
			pages->page = run_page(pages, pages->nfull);
			PageInit(pages->page, BLCKSZ, 0);
		}
		page = pages->page;
	}

	offset = PageAddItem(page, (Item) tuple, len, InvalidOffsetNumber, false, true);
	if (offset == InvalidOffsetNumber)
		elog(ERROR, "failed to add tuple");
	if (page != pages->page)
		pages->room_before = room_on(pages, page);
	return (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, offset));
}

/*
 * new_pages_flush
 *		Write the full pages if there are enough of them.  No lock may be held.
 */
void
new_pages_flush(NewPages *pages)
{
	if (pages->nfull < NEW_BLOCKS_RUN)
		return;
	write_run(pages);

	/* the one that isn't full becomes the first */
	if (pages->page != NULL)
	{
		memcpy(run_page(pages, 0), pages->page, BLCKSZ);
		pages->page = run_page(pages, 0);
	}
}

/*
 * new_pages_tid
 *		Where a tuple that was just added will be, if nobody else fills pages of
 *		this heap any more.
 */
void
new_pages_tid(const NewPages *pages, HeapTupleHeader tuple, ItemPointer tid)
{
	int			number = ((char *) tuple - pages->run) / BLCKSZ;
	Page		page = run_page(pages, number);

	/* the latest has the highest offset */
	ItemPointerSet(tid, pg_atomic_read_u32(&pages->shared->nblocks) + number,
				   PageGetMaxOffsetNumber(page));
}

/* room_on -- how long a tuple may be to fit on a page. */
static Size
room_on(const NewPages *pages, Page page)
{
	Size		room = PageGetHeapFreeSpace(page);

	return room > pages->reserved ? room - pages->reserved : 0;
}

/*
 * new_pages_hand_over
 *		Write all pages but the last; if that one isn't full, copy it to
 *		*leftover and return true.  That's the end of *pages.
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

/*
 * new_pages_take_over
 *		Add all tuples of a page that another process has handed over.
 */
void
new_pages_take_over(NewPages *pages, Page leftover)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(leftover);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(leftover, off);

		(void) new_pages_add(pages, (HeapTupleHeader) PageGetItem(leftover, item),
							 ItemIdGetLength(item));
	}
	new_pages_flush(pages);
}

/*
 * new_pages_end
 *		Write what there is, and free *pages.
 */
void
new_pages_end(NewPages *pages)
{
	if (pages->page != NULL)
		pages->nfull++;
	if (pages->nfull > 0)
		write_run(pages);
	pfree(pages->run);
	pfree(pages);
}

/* run_page -- a page of the run. */
static Page
run_page(const NewPages *pages, int number)
{
	return (Page) (pages->run + number * BLCKSZ);
}

/*
 * write_run
 *		Take the next blocks of the file and write the full pages there.
 */
static void
write_run(NewPages *pages)
{
	BlockNumber start = new_blocks_take(pages->rel, pages->shared, pages->nfull);

	for (int done = 0; done < pages->nfull; done += NEW_BLOCKS_RUN)
	{
		BlockNumber blknos[NEW_BLOCKS_RUN];
		Page		images[NEW_BLOCKS_RUN];
		int			n = Min(pages->nfull - done, NEW_BLOCKS_RUN);

		for (int i = 0; i < n; i++)
		{
			blknos[i] = start + done + i;
			images[i] = run_page(pages, done + i);
			point_tuples_at_themselves(images[i], blknos[i]);
		}
		new_blocks_write(pages->rel, blknos, images, n);
	}
	pages->nfull = 0;
	pages->room_before = 0;
}

/* point_tuples_at_themselves -- those that point nowhere, now that their block is known. */
static void
point_tuples_at_themselves(Page page, BlockNumber blkno)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, off));

		if (!ItemPointerIsValid(&tuple->t_ctid))
			ItemPointerSet(&tuple->t_ctid, blkno, off);
	}
}
