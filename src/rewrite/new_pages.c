/*-------------------------------------------------------------------------
 *
 * new_pages.c
 *	  Filling the pages of a new heap, in several processes at a time.
 *
 * Nobody else knows of the heap until its transaction commits, so its pages
 * needn't go through shared buffers.  Each process fills pages in memory of
 * its own, and writes a run of them at a time: it takes the next blocks of the
 * file, logs the pages in full if the heap is logged, and writes them in one
 * piece.  So the file has no gaps, whoever is the faster, and the new rows are
 * in about the order of the old ones.  The page that is not full at the end
 * is handed over to the leader, who fills up the rest with them.
 *
 * The server's bulk writer (smgr_bulk_*) wants to know a page's block before
 * the page is full, and takes for granted that it is the only one to extend
 * the file, or it would write zeroes over other processes' pages.  The rules
 * are the same as there:
 *
 * - WAL needn't be flushed before a page is written, as the page doesn't count
 *	 until our commit record is flushed.
 * - Writes aren't registered with the checkpointer one by one, but the whole
 *	 heap is at the end.  If a checkpoint has begun since, which knows nothing
 *	 of the pages written before it, replay may start behind their WAL records,
 *	 so the heap is synced at once.
 * - If the transaction needs no WAL for the heap (wal_level = minimal), its
 *	 commit syncs the file.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "access/xlogrecord.h"
#include "miscadmin.h"
#include "port/pg_iovec.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/smgr.h"

#include "debug_point.h"
#include "pace/wal.h"
#include "rewrite/new_pages.h"

/* So many pages are written at a time (512 kB). */
#define RUN_PAGES		64
/* Between two flushes no more pages than this may be filled in addition. */
#define MAX_SPARE_PAGES	(MaxHeapTuplesPerPage + 1)

struct NewPages
{
	Relation	rel;
	NewPagesShared *shared;
	Size		reserved;		/* space to leave on each page: fillfactor */
	char	   *run;			/* RUN_PAGES and MAX_SPARE_PAGES */
	int			nfull;			/* pages at the beginning of it */
	Page		page;			/* the one behind them, NULL if not begun */
	bool		packs_tightly;	/* look for room on the page before, too */
	Size		room_before;	/* on that page, as long as it isn't written */
};

static Size room_on(const NewPages *pages, Page page);
static Page run_page(const NewPages *pages, int number);
static void write_run(NewPages *pages);
static BlockNumber take_blocks(NewPages *pages, int n);
static void write_blocks(SMgrRelation smgr, BlockNumber start, Page *images, int n);
static void point_tuples_at_themselves(Page page, BlockNumber blkno);

/*
 * new_pages_init
 *		Leader: before any process begins.
 */
void
new_pages_init(NewPagesShared *shared)
{
	pg_atomic_init_u32(&shared->nblocks, 0);
	shared->redo = GetRedoRecPtr();
}

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
new_pages_begin(Relation rel, NewPagesShared *shared, bool packs_tightly)
{
	NewPages   *pages = palloc0_object(NewPages);

	pages->rel = rel;
	pages->shared = shared;
	pages->packs_tightly = packs_tightly;
	pages->reserved = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	pages->run = MemoryContextAllocAligned(CurrentMemoryContext,
										   (RUN_PAGES + MAX_SPARE_PAGES) * BLCKSZ,
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
	if (pages->nfull < RUN_PAGES)
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

/*
 * new_pages_sync
 *		Leader, when all pages are written: make sure that they will be on disk
 *		by the time that their WAL isn't needed any more.
 */
void
new_pages_sync(Relation rel, const NewPagesShared *shared)
{
	SMgrRelation smgr = RelationGetSmgr(rel);

	if (SmgrIsTemp(smgr))
		return;
	if (!RelationNeedsWAL(rel))
	{
		/* unlogged: for a clean shutdown; or the commit will do it */
		smgrregistersync(smgr, MAIN_FORKNUM);
		return;
	}

	/* no checkpoint may start between looking and registering */
	Assert((MyProc->delayChkptFlags & DELAY_CHKPT_START) == 0);
	MyProc->delayChkptFlags |= DELAY_CHKPT_START;
	if (GetRedoRecPtr() == shared->redo)
	{
		smgrregistersync(smgr, MAIN_FORKNUM);
		MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;
	}
	else
	{
		MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;
		smgrimmedsync(smgr, MAIN_FORKNUM);
	}
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
	SMgrRelation smgr = RelationGetSmgr(pages->rel);
	BlockNumber start = take_blocks(pages, pages->nfull);

	for (int done = 0; done < pages->nfull; done += RUN_PAGES)
	{
		BlockNumber blknos[RUN_PAGES];
		Page		images[RUN_PAGES];
		int			n = Min(pages->nfull - done, RUN_PAGES);

		for (int i = 0; i < n; i++)
		{
			blknos[i] = start + done + i;
			images[i] = run_page(pages, done + i);
			point_tuples_at_themselves(images[i], blknos[i]);
		}
		if (RelationNeedsWAL(pages->rel))
		{
			for (int i = 0; i < n; i += XLR_MAX_BLOCK_ID)
				log_newpages(&smgr->smgr_rlocator.locator, MAIN_FORKNUM,
							 Min(n - i, XLR_MAX_BLOCK_ID), &blknos[i], &images[i], true);
		}
		for (int i = 0; i < n; i++)
			PageSetChecksumInplace(images[i], blknos[i]);
		write_blocks(smgr, blknos[0], images, n);
		if (backend_flush_after > 0 && (io_direct_flags & IO_DIRECT_DATA) == 0)
			smgrwriteback(smgr, MAIN_FORKNUM, blknos[0], n);

		if (VacuumCostActive)
			VacuumCostBalance += n * VacuumCostPageDirty;
		if (RelationNeedsWAL(pages->rel))
			wal_keep_pace();
	}
	pages->nfull = 0;
	pages->room_before = 0;
}

/*
 * take_blocks
 *		Extend the file by so many blocks; return the first.
 *
 * If that fails, the lock must be given up at once: the leader ends its
 * workers before it releases locks, and one of them may wait for this one.
 */
static BlockNumber
take_blocks(NewPages *pages, int n)
{
	BlockNumber start;

	LockRelationForExtension(pages->rel, ExclusiveLock);
	PG_TRY();
	{
		start = pg_atomic_read_u32(&pages->shared->nblocks);
		DEBUG_POINT("rewrite-extend");
		smgrzeroextend(RelationGetSmgr(pages->rel), MAIN_FORKNUM, start, n, true);
		pg_atomic_write_u32(&pages->shared->nblocks, start + n);
	}
	PG_FINALLY();
	{
		UnlockRelationForExtension(pages->rel, ExclusiveLock);
	}
	PG_END_TRY();
	return start;
}

/*
 * write_blocks
 *		Write pages to consecutive blocks, in as few pieces as can be: none may
 *		cross the border between two segments of the file.
 */
static void
write_blocks(SMgrRelation smgr, BlockNumber start, Page *images, int n)
{
	while (n > 0)
	{
		int			piece = Min(n, PG_IOV_MAX);

		piece = Min(piece, RELSEG_SIZE - start % RELSEG_SIZE);
		smgrwritev(smgr, MAIN_FORKNUM, start, (const void **) images, piece, true);
		start += piece;
		images += piece;
		n -= piece;
	}
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
