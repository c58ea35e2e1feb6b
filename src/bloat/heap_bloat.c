/*-------------------------------------------------------------------------
 *
 * heap_bloat.c
 *	  How much of a table's pages its rows need.
 *
 * Each page of the sample is read under a share lock, tuple by tuple.  A tuple is
 * live, dead, or dead but perhaps visible to an old snapshot, by PostgreSQL's rules.
 * Its routine would set hint bits, so it is not called: a report makes no page dirty and
 * writes no WAL.
 *
 * The rows of the sample are packed anew, one after the other, as VACUUM FULL does
 * it, to learn how many pages all rows would fill.  This accounts for fillfactor,
 * alignment, line pointers and for the space at the end of a page where no row
 * fits.  Values of dropped columns, which VACUUM FULL may leave out, are not
 * accounted for.  The chunks of a TOAST table are rows like others: pg_cyclone's
 * rewrite copies them page by page, PostgreSQL's value by value, which needs a few
 * more pages.
 *
 * VACUUM (FULL INPLACE) leaves most rows where they are.  Pages that are fuller
 * than fillfactor asks for stay so, and the others get more rows.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/procarray.h"

#include "bloat/bloat.h"

typedef enum RowState
{
	ROW_NONE,					/* no row in this item, or no longer */
	ROW_LIVE,
	ROW_HELD,					/* dead, but a snapshot may see it */
	ROW_DEAD,
} RowState;

/* What is measured on each page, in bytes */
enum
{
	HEAP_LIVE,
	HEAP_DEAD,
	HEAP_HELD,
	HEAP_FREE,
	HEAP_KEPT,					/* what a rewrite copies: with line pointers */
	HEAP_ROOM,					/* how much of that the page can hold */
	HEAP_ROOTS,					/* not in bytes: roots with a row that isn't
								 * dead */
	/* not in bytes, either */
	HEAP_LIVE_ROWS,
	HEAP_DEAD_ROWS,
	HEAP_HELD_ROWS,
	HEAP_DEAD_ITEMS,
	HEAP_DEAD_ITEM_PAGES,
	/* bytes of WAL */
	HEAP_VACUUM_WAL,
	HEAP_FREEZE_WAL,
	HEAP_QUANTITIES
};

/* The bytes of a WAL record, beside its data */
#define RECORD_BYTES		60

/* Rows that are packed anew */
typedef struct Packing
{
	Size		page_room;		/* bytes for tuples and line pointers */
	Size		page_used;		/* on the last page */
	double		full_pages;
	double		full_bytes;		/* on these */
} Packing;

typedef struct HeapSurvey
{
	Packing		packing;
	TransactionId oldest_xmin;	/* what was deleted before is dead to all */
	const char *table;
	BlockNumber block;			/* that is being measured, or none, */
	OffsetNumber item;			/* and which of its items */
	double		live_roots;
	double		dead_roots;
	bool		has_indexes;
	XLogRecPtr	redo;			/* pages changed since then are logged in part */
	double		images;			/* pages that would be logged in full */
} HeapSurvey;

static void estimate_vacuum(const HeapSurvey *survey, const PageSample *sample,
							BloatEstimate *estimate);
static void name_place(void *arg);
static void check_item(const HeapSurvey *survey, Page page, ItemId item);
static void measure_page(HeapSurvey *survey, Page page, double *quantities);
static double count_roots(HeapSurvey *survey, Page page, const RowState *states);
static bool chain_has_row(Page page, const RowState *states, OffsetNumber off);
static RowState row_state(HeapTupleHeader tuple, TransactionId oldest_xmin);
static void measure_wal(HeapSurvey *survey, Page page, const RowState *states,
						double *quantities);
static void pack(Packing *packing, Size length);
static double packed_bytes(const Packing *packing);
static double packed_pages(const Packing *packing);

/* heap_bloat -- see bloat.h. */
void
heap_bloat(Relation rel, uint32 most_pages, pg_prng_state *prng,
		   BloatEstimate *estimate)
{
	HeapSurvey	survey = {0};
	PageSample *sample = page_sample_begin(rel, 0, most_pages, prng);
	ErrorContextCallback callback = {
		.previous = error_context_stack,
		.callback = name_place,
		.arg = &survey
	};
	Buffer		buffer;
	Total		kept;
	double		room;

	Assert(RELKIND_HAS_TABLE_AM(rel->rd_rel->relkind));

	survey.table = RelationGetRelationName(rel);
	survey.block = InvalidBlockNumber;
	survey.packing.page_room = BLCKSZ - SizeOfPageHeaderData -
		RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	survey.oldest_xmin = GetOldestNonRemovableTransactionId(rel);
	survey.has_indexes = rel->rd_rel->relhasindex;
	survey.redo = fullPageWrites && RelationNeedsWAL(rel) ? GetRedoRecPtr() : InvalidXLogRecPtr;

	error_context_stack = &callback;
	while (BufferIsValid(buffer = page_sample_next(sample)))
	{
		double		quantities[HEAP_QUANTITIES] = {0};

		survey.block = BufferGetBlockNumber(buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		measure_page(&survey, BufferGetPage(buffer), quantities);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		survey.block = InvalidBlockNumber;
		page_sample_measured(sample, buffer, quantities, HEAP_QUANTITIES);
	}
	error_context_stack = callback.previous;

	estimate->known = true;
	estimate->pages = page_sample_of(sample);
	estimate->sampled_pages = page_sample_size(sample);
	estimate->live_bytes = page_sample_total(sample, HEAP_LIVE).value;
	estimate->dead_bytes = page_sample_total(sample, HEAP_DEAD).value;
	estimate->held_bytes = page_sample_total(sample, HEAP_HELD).value;
	estimate->free_bytes = page_sample_total(sample, HEAP_FREE).value;
	estimate->live_roots = page_sample_total(sample, HEAP_ROOTS);
	if (survey.dead_roots > 0)
		estimate->dead_roots = survey.dead_roots / (survey.live_roots + survey.dead_roots);
	Assert(estimate->dead_roots >= 0 && estimate->dead_roots <= 1);
	estimate_vacuum(&survey, sample, estimate);

	kept = page_sample_total(sample, HEAP_KEPT);
	if (packed_bytes(&survey.packing) > 0)
	{
		double		pages_per_byte = packed_pages(&survey.packing) / packed_bytes(&survey.packing);

		estimate->rewritten_pages = ceil(kept.value * pages_per_byte);
		estimate->rewritten_error = kept.standard_error * pages_per_byte;
	}
	room = page_sample_total(sample, HEAP_ROOM).value;
	if (room > 0)
		estimate->inplace_pages = Min(ceil(estimate->pages * kept.value / room),
									  estimate->pages);
	page_sample_end(sample);
}

/* estimate_vacuum -- fills in what VACUUM finds and logs. */
static void
estimate_vacuum(const HeapSurvey *survey, const PageSample *sample, BloatEstimate *estimate)
{
	estimate->live_rows = page_sample_total(sample, HEAP_LIVE_ROWS).value;
	estimate->dead_rows = page_sample_total(sample, HEAP_DEAD_ROWS).value;
	estimate->held_rows = page_sample_total(sample, HEAP_HELD_ROWS).value;
	estimate->dead_items = page_sample_total(sample, HEAP_DEAD_ITEMS).value;
	estimate->dead_item_pages = page_sample_total(sample, HEAP_DEAD_ITEM_PAGES).value;
	estimate->vacuum_wal = page_sample_total(sample, HEAP_VACUUM_WAL).value;
	estimate->freeze_wal = page_sample_total(sample, HEAP_FREEZE_WAL).value;
	estimate->image_share = survey->images / Max(estimate->sampled_pages, 1);
}

/* name_place -- the context of an error: the row that is being looked at. */
static void
name_place(void *arg)
{
	const HeapSurvey *survey = arg;

	if (BlockNumberIsValid(survey->block))
		errcontext("while measuring block %u offset %u of relation \"%s\"",
				   survey->block, survey->item, survey->table);
}

/* check_item -- raise an error if a row can't be where an item points. */
static void
check_item(const HeapSurvey *survey, Page page, ItemId item)
{
	const PageHeaderData *header = (PageHeader) page;

	if (!ItemIdHasStorage(item) || ItemIdGetOffset(item) < header->pd_upper ||
		ItemIdGetOffset(item) + SizeofHeapTupleHeader > header->pd_special)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of relation \"%s\" has a corrupted item %u",
						survey->block, survey->table, survey->item)));
}

/* measure_page -- measure a page, which is locked. */
static void
measure_page(HeapSurvey *survey, Page page, double *quantities)
{
	RowState	states[MaxOffsetNumber + 1];
	OffsetNumber maxoff;
	double		redirects = 0;
	double		dead_roots;
	double		room;

	if (PageIsNew(page))
	{
		quantities[HEAP_FREE] = BLCKSZ - SizeOfPageHeaderData;
		quantities[HEAP_ROOM] = survey->packing.page_room;
		return;
	}

	/* the server reads no page in whose header the line pointers are too many */
	maxoff = PageGetMaxOffsetNumber(page);
	Assert(maxoff <= MaxOffsetNumber);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		Size		length = ItemIdGetLength(item);

		survey->item = off;
		states[off] = ROW_NONE;
		if (ItemIdIsRedirected(item))
			redirects++;
		if (!ItemIdIsNormal(item))
			continue;
		check_item(survey, page, item);

		/* on an all-visible page each row is live */
		states[off] = PageIsAllVisible(page) ? ROW_LIVE :
			row_state((HeapTupleHeader) PageGetItem(page, item), survey->oldest_xmin);
		if (states[off] == ROW_DEAD)
		{
			quantities[HEAP_DEAD] += length;
			quantities[HEAP_DEAD_ROWS]++;
			continue;
		}
		quantities[states[off] == ROW_LIVE ? HEAP_LIVE : HEAP_HELD] += length;
		quantities[states[off] == ROW_LIVE ? HEAP_LIVE_ROWS : HEAP_HELD_ROWS]++;
		quantities[HEAP_KEPT] += MAXALIGN(length) + sizeof(ItemIdData);
		pack(&survey->packing, length);
	}
	dead_roots = survey->dead_roots;
	quantities[HEAP_ROOTS] = count_roots(survey, page, states);
	quantities[HEAP_DEAD_ITEMS] = survey->dead_roots - dead_roots;
	quantities[HEAP_DEAD_ITEM_PAGES] = survey->dead_roots > dead_roots;
	quantities[HEAP_FREE] = PageGetExactFreeSpace(page);
	measure_wal(survey, page, states, quantities);

	room = survey->packing.page_room - redirects * sizeof(ItemIdData);
	if (packed_pages(&survey->packing) > 0)
		room *= packed_bytes(&survey->packing) /
			(packed_pages(&survey->packing) * survey->packing.page_room);
	quantities[HEAP_ROOM] = Max(quantities[HEAP_KEPT], room);
}

/*
 * count_roots
 *		Count the items that index entries may point at, live ones and dead ones,
 *		and return the number of the live ones.
 */
static double
count_roots(HeapSurvey *survey, Page page, const RowState *states)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	double		live = 0;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		OffsetNumber first = off;

		survey->item = off;

		if (ItemIdIsRedirected(item))
			first = ItemIdGetRedirect(item);
		else if (ItemIdIsNormal(item) ?
				 HeapTupleHeaderIsHeapOnly((HeapTupleHeader) PageGetItem(page, item)) :
				 !ItemIdIsDead(item))
			continue;

		if (chain_has_row(page, states, first))
			live++;
		else
			survey->dead_roots++;
	}
	survey->live_roots += live;
	return live;
}

/* chain_has_row -- is any version of the HOT chain from this item on not dead? */
static bool
chain_has_row(Page page, const RowState *states, OffsetNumber off)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	TransactionId previous_xmax = InvalidTransactionId;

	/* no chain is longer than the page, but a broken one may be circular */
	for (int i = 0; i < maxoff; i++)
	{
		HeapTupleHeader tuple;

		if (off < FirstOffsetNumber || off > maxoff || states[off] == ROW_NONE)
			return false;
		tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, off));

		/* an item of the chain may have been used anew for something else */
		if (TransactionIdIsValid(previous_xmax) &&
			!TransactionIdEquals(previous_xmax, HeapTupleHeaderGetXmin(tuple)))
			return false;
		if (states[off] != ROW_DEAD)
			return true;
		if (!HeapTupleHeaderIsHotUpdated(tuple))
			return false;
		previous_xmax = HeapTupleHeaderGetUpdateXid(tuple);
		off = ItemPointerGetOffsetNumberNoCheck(&tuple->t_ctid);
	}
	return false;
}

/*
 * row_state
 *		Returns what HeapTupleSatisfiesVacuum would say of a row, but sets no hint bit.
 *
 * A row that a running transaction has inserted or deleted is live.  The page is locked,
 * so that VACUUM can't freeze the row's transactions meanwhile and then let the commit log
 * forget them.
 */
static RowState
row_state(HeapTupleHeader tuple, TransactionId oldest_xmin)
{
	uint16		infomask = tuple->t_infomask;
	TransactionId xmax;

	Assert(TransactionIdIsValid(oldest_xmin));

	if (!HeapTupleHeaderXminCommitted(tuple))
	{
		TransactionId xmin = HeapTupleHeaderGetRawXmin(tuple);

		if (HeapTupleHeaderXminInvalid(tuple))
			return ROW_DEAD;
		if (TransactionIdIsInProgress(xmin))
			return ROW_LIVE;
		if (!TransactionIdDidCommit(xmin))
			return ROW_DEAD;
	}
	if ((infomask & HEAP_XMAX_INVALID) || HEAP_XMAX_IS_LOCKED_ONLY(infomask))
		return ROW_LIVE;

	xmax = HeapTupleHeaderGetUpdateXid(tuple);
	if ((infomask & HEAP_XMAX_IS_MULTI) || !(infomask & HEAP_XMAX_COMMITTED))
	{
		if (!TransactionIdIsValid(xmax))
			return ROW_LIVE;
		if (TransactionIdIsInProgress(xmax))
			return ROW_LIVE;
		if (!TransactionIdDidCommit(xmax))
			return ROW_LIVE;
	}
	return TransactionIdPrecedes(xmax, oldest_xmin) ? ROW_DEAD : ROW_HELD;
}

/*
 * measure_wal
 *		How much WAL VACUUM writes for a page: a record where it prunes the page, one for
 *		its dead items, and one as it becomes all-visible, with what it leaves of the page
 *		if that is the page's first change since the last checkpoint began.
 */
static void
measure_wal(HeapSurvey *survey, Page page, const RowState *states, double *quantities)
{
	bool		needs_image = PageGetLSN(page) <= survey->redo;
	double		image = needs_image ? SizeOfPageHeaderData + quantities[HEAP_KEPT] : 0;
	double		rows = quantities[HEAP_LIVE_ROWS];
	double		freezing = RECORD_BYTES + rows * sizeof(OffsetNumber);
	bool		is_frozen = true;

	survey->images += needs_image;
	if (PageIsAllVisible(page))
	{
		for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
			if (states[off] == ROW_LIVE)
				is_frozen &= HeapTupleHeaderXminFrozen((HeapTupleHeader)
													   PageGetItem(page, PageGetItemId(page, off)));
		if (!is_frozen)
			quantities[HEAP_FREEZE_WAL] = image + freezing;
		return;
	}

	if (quantities[HEAP_DEAD_ROWS] > 0)
	{
		quantities[HEAP_VACUUM_WAL] += RECORD_BYTES + image +
			quantities[HEAP_DEAD_ROWS] * sizeof(OffsetNumber);
	}
	/* a page that is logged in full is frozen, too */
	if (quantities[HEAP_DEAD_ROWS] > 0 || XLogHintBitIsNeeded())
		quantities[needs_image ? HEAP_VACUUM_WAL : HEAP_FREEZE_WAL] += freezing;
	else
		quantities[HEAP_FREEZE_WAL] += image + freezing;
	if (quantities[HEAP_DEAD_ITEMS] > 0 && survey->has_indexes)
		quantities[HEAP_VACUUM_WAL] += RECORD_BYTES +
			quantities[HEAP_DEAD_ITEMS] * sizeof(OffsetNumber);
	else if (quantities[HEAP_DEAD_ROWS] == 0 && quantities[HEAP_HELD_ROWS] == 0)
		quantities[HEAP_VACUUM_WAL] += RECORD_BYTES + (XLogHintBitIsNeeded() ? image : 0);
}

/* pack -- add a tuple of this length to the last page, or to a new one. */
static void
pack(Packing *packing, Size length)
{
	Size		needed = MAXALIGN(length) + sizeof(ItemIdData);

	Assert(packing->page_room > 0 && packing->page_room <= BLCKSZ);

	if (packing->page_used > 0 && packing->page_used + needed > packing->page_room)
	{
		packing->full_pages++;
		packing->full_bytes += packing->page_used;
		packing->page_used = 0;
	}
	packing->page_used += needed;
}

/* packed_bytes -- of all tuples packed so far. */
static double
packed_bytes(const Packing *packing)
{
	return packing->full_bytes + packing->page_used;
}

/* packed_pages -- how many pages that is; the last one counts by its share. */
static double
packed_pages(const Packing *packing)
{
	double		usual = packing->full_pages > 0 ?
		packing->full_bytes / packing->full_pages : packing->page_room;

	return packing->full_pages + packing->page_used / usual;
}
