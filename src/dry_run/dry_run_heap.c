/*-------------------------------------------------------------------------
 *
 * dry_run_heap.c
 *	  Rehearsals of VACUUM: what it would find in a heap, and do there.
 *
 * The pages that VACUUM would scan are read, and those of the visibility map: pages are
 * skipped by VACUUM's own rule.  (All-visible pages that it scans eagerly, since
 * PostgreSQL 18, can't be foreseen.)  A page is copied under a share lock, and judged in
 * the copy: which rows are dead to all, what becomes of each HOT chain, whether the page
 * is frozen.  The rules are the server's, but its routines set hint bits, so they are not
 * called.  Nothing is written here: no page becomes dirty, nothing goes to WAL, and no
 * transaction ID is assigned.
 *
 * The lock is held until the page is judged, so that VACUUM can't freeze a row's
 * transactions meanwhile, and then let the commit log and multixacts forget them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/read_stream.h"

#include "bloat/row_state.h"
#include "compat.h"
#include "dry_run/dry_run.h"
#include "engine/server_rules.h"

/* The bytes of a WAL record, beside its data */
#define RECORD_BYTES		60

/* The heap, and the page in hand */
typedef struct HeapLook
{
	Relation	rel;
	DryRun	   *run;
	bool		has_indexes;
	bool		skips;			/* all-visible pages? */
	struct VacuumCutoffs cutoffs;
	Buffer		vmbuffer;
	BlockNumber next;
	BlockNumber run_end;		/* of blocks that may be skipped */

	PGAlignedBlock image;
	RowState	states[MaxHeapTuplesPerPage + 1];
	bool		is_reached[MaxHeapTuplesPerPage + 1];	/* by a chain */
	int			nremoved;		/* items changed by pruning */
	int			ndead_items;
	bool		lacks_hints;
} HeapLook;

static BlockNumber next_block(ReadStream *stream, void *private_data, void *per_buffer_data);
static bool may_skip(HeapLook *look, BlockNumber blkno);
static void look_at_page(HeapLook *look, Buffer buffer);
static void judge_rows(HeapLook *look, Page page);
static void prune(HeapLook *look, Page page);
static void prune_chain(HeapLook *look, Page page, OffsetNumber root);
static void count_page(HeapLook *look, Page page, BlockNumber blkno, bool is_full_image);
static bool freeze(HeapLook *look, Page page, bool is_full_image);
static void freeze_copies(HeapLook *look, Page page);

/* dry_run_heap -- see dry_run.h. */
void
dry_run_heap(Relation rel, const VacuumParams *params, DryRun *run)
{
	HeapLook   *look = palloc0_object(HeapLook);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	ReadStream *stream;
	Buffer		buffer;

	Assert(IsTransactionState());
	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	look->rel = rel;
	look->run = run;
	look->has_indexes = run->nindexes > 0;
	run->aggressive = vacuum_get_cutoffs(rel, params, &look->cutoffs) ||
		(params->options & VACOPT_DISABLE_PAGE_SKIPPING) != 0;
	look->skips = run->kind == HISTORY_VACUUM &&
		(params->options & VACOPT_DISABLE_PAGE_SKIPPING) == 0;
	run->oldest_xmin = look->cutoffs.OldestXmin;
	run->pages = RelationGetNumberOfBlocks(rel);
	run->nonempty_pages = 0;

	stream = read_stream_begin_relation(READ_STREAM_SEQUENTIAL, strategy, rel, MAIN_FORKNUM,
										next_block, look, 0);
	while (BufferIsValid(buffer = read_stream_next_buffer(stream, NULL)))
	{
		CHECK_FOR_INTERRUPTS();
		look_at_page(look, buffer);
		ReleaseBuffer(buffer);
	}
	read_stream_end(stream);
	if (BufferIsValid(look->vmbuffer))
		ReleaseBuffer(look->vmbuffer);
	FreeAccessStrategy(strategy);
	pfree(look);
}

/* next_block -- the read stream's callback: skips as VACUUM does. */
static BlockNumber
next_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	HeapLook   *look = private_data;

	if (look->next >= look->run_end)
	{
		look->run_end = look->next;
		while (look->run_end < look->run->pages && may_skip(look, look->run_end))
			look->run_end++;
		if (look->run_end - look->next >= SKIP_RUN_BLOCKS)
		{
			look->next = look->run_end;
			/* VACUUM takes it that skipped pages have rows */
			look->run->nonempty_pages = Max(look->run->nonempty_pages, look->next);
		}
		/* the block behind the run is scanned, too */
		look->run_end++;
	}
	return look->next < look->run->pages ? look->next++ : InvalidBlockNumber;
}

/* may_skip -- may VACUUM skip this block?  It always scans the last one. */
static bool
may_skip(HeapLook *look, BlockNumber blkno)
{
	uint8		bits;

	if (!look->skips || blkno == look->run->pages - 1)
		return false;
	bits = visibilitymap_get_status(look->rel, blkno, &look->vmbuffer);
	return (bits & VISIBILITYMAP_ALL_VISIBLE) != 0 &&
		(!look->run->aggressive || (bits & VISIBILITYMAP_ALL_FROZEN) != 0);
}

/* look_at_page -- judge a page, which is pinned. */
static void
look_at_page(HeapLook *look, Buffer buffer)
{
	Page		page = (Page) look->image.data;
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	bool		is_full_image;

	Assert(blkno < look->run->pages);

	look->run->pages_scanned++;
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	if (PageIsNew(page) || PageGetMaxOffsetNumber(page) > MaxHeapTuplesPerPage)
	{
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		return;
	}
	judge_rows(look, page);
	/* in recovery that isn't known */
	is_full_image = RelationNeedsWAL(look->rel) && !RecoveryInProgress() &&
		XLogCheckBufferNeedsBackup(buffer);
	prune(look, page);
	count_page(look, page, blkno, is_full_image);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
}

/* judge_rows -- find out the state of each row of the page, which is locked. */
static void
judge_rows(HeapLook *look, Page page)
{
	look->lacks_hints = false;
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		ItemId		item = PageGetItemId(page, off);

		look->is_reached[off] = false;
		look->states[off] = ROW_NONE;
		if (!ItemIdIsNormal(item))
			continue;
		if (!ItemIdHasStorage(item) || ItemIdGetOffset(item) < SizeOfPageHeaderData ||
			ItemIdGetOffset(item) + Max(ItemIdGetLength(item), SizeofHeapTupleHeader) > BLCKSZ)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("a page of relation \"%s\" has a corrupted item %u",
							RelationGetRelationName(look->rel), off)));
		look->states[off] = row_state((HeapTupleHeader) PageGetItem(page, item),
									  look->cutoffs.OldestXmin, &look->lacks_hints);
	}
}

/*
 * prune
 *		Find out what pruning would do.  Rows that it removes are ROW_NONE afterwards.
 */
static void
prune(HeapLook *look, Page page)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	look->nremoved = look->ndead_items = 0;
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);

		if (ItemIdIsDead(item))
		{
			look->ndead_items += look->has_indexes;
			look->nremoved += !look->has_indexes;
		}
		else if (ItemIdIsRedirected(item) ||
				 (ItemIdIsNormal(item) &&
				  !HeapTupleHeaderIsHeapOnly((HeapTupleHeader) PageGetItem(page, item))))
			prune_chain(look, page, off);
	}
	/* left by aborted transactions, so that no chain leads to them */
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		if (look->states[off] == ROW_DEAD && !look->is_reached[off])
		{
			look->states[off] = ROW_NONE;
			look->nremoved++;
			look->run->rows_removed++;
		}
}

/*
 * prune_chain
 *		The same for the HOT chain, maybe of a single row, that begins at an item.
 *
 * All versions up to the last dead one go.
 */
static void
prune_chain(HeapLook *look, Page page, OffsetNumber root)
{
	OffsetNumber chain[MaxHeapTuplesPerPage];
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	OffsetNumber off = root;
	TransactionId previous_xmax = InvalidTransactionId;
	int			length = 0;
	int			ndead = 0;

	if (ItemIdIsRedirected(PageGetItemId(page, root)))
		off = ItemIdGetRedirect(PageGetItemId(page, root));
	while (length < MaxHeapTuplesPerPage && off >= FirstOffsetNumber && off <= maxoff &&
		   look->states[off] != ROW_NONE && !look->is_reached[off])
	{
		HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, off));

		if (TransactionIdIsValid(previous_xmax) &&
			!TransactionIdEquals(previous_xmax, HeapTupleHeaderGetXmin(tuple)))
			break;
		look->is_reached[off] = true;
		chain[length++] = off;
		if (look->states[off] == ROW_DEAD)
			ndead = length;
		if ((look->states[off] != ROW_DEAD && look->states[off] != ROW_HELD) ||
			!HeapTupleHeaderIsHotUpdated(tuple))
			break;
		previous_xmax = HeapTupleHeaderGetUpdateXid(tuple);
		off = ItemPointerGetOffsetNumberNoCheck(&tuple->t_ctid);
	}

	for (int i = 0; i < ndead; i++)
		look->states[chain[i]] = ROW_NONE;
	look->run->rows_removed += ndead;
	look->nremoved += ndead;

	/*
	 * if no version is left its item becomes dead, or unused if there is no
	 * index
	 */
	if (ndead == length && (ndead > 0 || ItemIdIsRedirected(PageGetItemId(page, root))))
		look->ndead_items += look->has_indexes;
}

/* count_page -- count what would become of the page. */
static void
count_page(HeapLook *look, Page page, BlockNumber blkno, bool is_full_image)
{
	DryRun	   *run = look->run;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	bool		has_rows = false;
	bool		is_frozen = run->kind != HISTORY_REWRITE && freeze(look, page, is_full_image);
	bool		is_changed = look->nremoved > 0 || is_frozen;

	Assert(look->ndead_items >= 0 && look->ndead_items <= maxoff);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		has_rows |= look->states[off] != ROW_NONE;
		run->rows_live += look->states[off] == ROW_LIVE || look->states[off] == ROW_DELETED;
		run->rows_dead += look->states[off] == ROW_HELD;
	}
	if (has_rows)
		run->nonempty_pages = Max(run->nonempty_pages, blkno + 1);
	if (look->ndead_items > 0)
	{
		run->dead_items += look->ndead_items;
		run->dead_item_pages++;
		run->dead_item_bytes += 4 + Min(look->ndead_items * sizeof(OffsetNumber), maxoff / 8 + 1);
	}
	if (run->kind == HISTORY_REWRITE)
		freeze_copies(look, page);
	run->pages_frozen += is_frozen;
	run->pages_to_log += is_full_image;
	if (!RelationNeedsWAL(look->rel))
		return;
	if (is_full_image && (is_changed || look->ndead_items > 0))
		run->heap_wal += BLCKSZ - (((PageHeader) page)->pd_upper - ((PageHeader) page)->pd_lower);
	if (is_changed)
		run->heap_wal += RECORD_BYTES + look->nremoved * sizeof(OffsetNumber);
	if (look->ndead_items > 0)
		run->heap_wal += RECORD_BYTES + look->ndead_items * sizeof(OffsetNumber);
}

/*
 * freeze
 *		Would rows of the page be frozen?  Count them if so.
 *
 * They are if one is old enough; or if the whole page would be frozen by that, and is
 * logged in full anyway.
 */
static bool
freeze(HeapLook *look, Page page, bool is_full_image)
{
	TransactionId oldest_xmin = look->cutoffs.OldestXmin;
	TransactionId oldest_xid = oldest_xmin;
	MultiXactId oldest_multi = look->cutoffs.OldestMxact;
	bool		must = false;
	bool		all_visible = true;
	int			nrows = 0;

	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		HeapTupleHeader tuple;
		TransactionId xmin;

		if (look->states[off] == ROW_NONE)
			continue;
		tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, off));
		xmin = HeapTupleHeaderGetXmin(tuple);
		must |= heap_tuple_should_freeze(tuple, &look->cutoffs, &oldest_xid, &oldest_multi);
		all_visible &= look->states[off] == ROW_LIVE && TransactionIdPrecedes(xmin, oldest_xmin);
		if ((TransactionIdIsNormal(xmin) && TransactionIdPrecedes(xmin, oldest_xmin)) ||
			(look->states[off] == ROW_LIVE && TransactionIdIsNormal(HeapTupleHeaderGetRawXmax(tuple)) &&
			 !(tuple->t_infomask & HEAP_XMAX_IS_MULTI)))
			nrows++;
	}
	if (nrows == 0 ||
		!(must || (all_visible && is_full_image &&
				   (look->nremoved > 0 ||
					(XLogHintBitIsNeeded() &&
					 (look->lacks_hints || PageIsFull(page) ||
					  TransactionIdIsValid(((PageHeader) page)->pd_prune_xid)))))))
		return false;
	look->run->rows_frozen += nrows;
	return true;
}

/* freeze_copies -- count the rows of the page that FULL REWRITE would freeze: all that can be. */
static void
freeze_copies(HeapLook *look, Page page)
{
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		TransactionId xmin;

		if (look->states[off] == ROW_NONE)
			continue;
		xmin = HeapTupleHeaderGetXmin((HeapTupleHeader) PageGetItem(page, PageGetItemId(page, off)));
		if (TransactionIdIsNormal(xmin) && TransactionIdPrecedes(xmin, look->cutoffs.OldestXmin))
			look->run->rows_frozen++;
	}
}
