/*-------------------------------------------------------------------------
 *
 * page_change.c
 *	  What moving rows changes on heap pages, and its WAL.
 *
 * Two changes: new versions are put on one page, and the old ones on another
 * become versions that have been updated.  Neither is decoded, so no subscriber
 * hears of rows that are only moved.
 *
 * The first is one WAL record of the server's kind for inserting several rows,
 * without the mark that tells logical decoding of new rows.  That makes decoding
 * pass it over, as for a catalog's rows.
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heapam_xlog.h"
#include "access/hio.h"
#include "access/rmgr.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/lmgr.h"

#include "compat.h"
#include "inplace/page_change.h"

/*
 * A page with this much room is as good as empty: line pointers may be left.  The
 * server draws the line there, too.
 */
#define NEARLY_EMPTY \
	(MaxHeapTupleSize - MaxHeapTuplesPerPage / 8 * sizeof(ItemIdData))

/*
 * The most that a record of headers has: of the page's own, and of each item a header
 * and the bytes behind the row.  Each fragment begins with two numbers.
 */
#define FRAGMENT_START	(2 * sizeof(OffsetNumber))
#define MOST_HEADERS \
	(FRAGMENT_START + SizeOfPageHeaderData + \
	 MaxHeapTuplesPerPage * (2 * FRAGMENT_START + SizeofHeapTupleHeader + MAXIMUM_ALIGNOF))

static void check_item(Relation rel, Buffer buffer, OffsetNumber off);
static bool item_is_sound(Page page, ItemId item, OffsetNumber last);
static bool begin_change(Buffer buffer, Buffer vmbuffer);
static void clear_visibility(Relation rel, Buffer buffer, Buffer vmbuffer);
static void end_change(Relation rel, Buffer buffer, Buffer vmbuffer, bool clear_map,
					   HeapTuple *tuples, int ntuples, bool was_empty);
static XLogRecPtr log_rows(Buffer buffer, HeapTuple *tuples, int ntuples, bool was_empty,
						   bool map_cleared, Buffer changed_vmbuffer);
static XLogRecPtr log_headers(Buffer buffer, const OffsetNumber *offsets, int noffsets);
static char *add_header(char *delta, Page page, OffsetNumber off);
static char *add_fragment(char *delta, Page page, Size offset, Size length);

/* page_check_header -- see page_change.h. */
void
page_check_header(Relation rel, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	PageHeader	header = (PageHeader) page;

	Assert(!PageIsNew(page));

	if (header->pd_lower < SizeOfPageHeaderData || header->pd_lower > header->pd_upper ||
		header->pd_upper > header->pd_special || header->pd_special != BLCKSZ ||
		PageGetMaxOffsetNumber(page) > MaxHeapTuplesPerPage)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("corrupted page pointers: lower = %u, upper = %u, special = %u",
						header->pd_lower, header->pd_upper, header->pd_special),
				 errcontext("while moving rows of block %u of relation \"%s\"",
							BufferGetBlockNumber(buffer), RelationGetRelationName(rel))));
}

/* page_check_items -- see page_change.h. */
void
page_check_items(Relation rel, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);

	if (PageIsNew(page))
		return;
	page_check_header(rel, buffer);
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		check_item(rel, buffer, off);
}

/* check_item -- raise an error if an item isn't sound. */
static void
check_item(Relation rel, Buffer buffer, OffsetNumber off)
{
	Page		page = BufferGetPage(buffer);
	ItemId		item = PageGetItemId(page, off);

	if (!item_is_sound(page, item, PageGetMaxOffsetNumber(page)))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("corrupted line pointer: offset = %u, size = %u",
						ItemIdGetOffset(item), ItemIdGetLength(item)),
				 errcontext("while moving rows of block %u, offset %u, of relation \"%s\"",
							BufferGetBlockNumber(buffer), off, RelationGetRelationName(rel))));
}

/* item_is_sound -- does an item lead to a row's header, or to an item, if it leads anywhere? */
static bool
item_is_sound(Page page, ItemId item, OffsetNumber last)
{
	PageHeader	header = (PageHeader) page;
	HeapTupleHeader tuple;

	if (ItemIdIsRedirected(item))
		return ItemIdGetRedirect(item) >= FirstOffsetNumber &&
			ItemIdGetRedirect(item) <= last &&
			ItemIdIsNormal(PageGetItemId(page, ItemIdGetRedirect(item)));
	if (!ItemIdIsNormal(item))
		return true;
	if (ItemIdGetLength(item) < MAXALIGN(SizeofHeapTupleHeader) ||
		ItemIdGetOffset(item) != MAXALIGN(ItemIdGetOffset(item)) ||
		ItemIdGetOffset(item) < header->pd_upper ||
		ItemIdGetOffset(item) + ItemIdGetLength(item) > header->pd_special)
		return false;
	tuple = (HeapTupleHeader) PageGetItem(page, item);
	return tuple->t_hoff >= SizeofHeapTupleHeader && tuple->t_hoff <= ItemIdGetLength(item);
}

/* page_space_needed -- see page_change.h. */
Size
page_space_needed(Size row, Size reserve)
{
	if (row + reserve <= NEARLY_EMPTY)
		return row + reserve;
	return Min(Max(row, NEARLY_EMPTY), MaxHeapTupleSize);
}

/* page_room -- see page_change.h. */
int
page_room(Page page, Size reserve, const HeapTuple *tuples, int ntuples, bool *fits)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	Size		room = PageGetExactFreeSpace(page);
	int			lines = MaxHeapTuplesPerPage - last;
	int			nfit = 0;

	Assert(!PageIsNew(page));
	Assert(tuples != NULL && ntuples >= 0 && fits != NULL);

	if (PageHasFreeLinePointers(page))
		for (OffsetNumber off = FirstOffsetNumber; off <= last; off++)
			if (!ItemIdIsUsed(PageGetItemId(page, off)) &&
				!ItemIdHasStorage(PageGetItemId(page, off)))
				lines++;

	for (int i = 0; i < ntuples; i++)
	{
		/* a line pointer that is there already is not counted on */
		Size		size = MAXALIGN(tuples[i]->t_len);

		fits[i] = nfit < lines &&
			page_space_needed(size, reserve) + sizeof(ItemIdData) <= room;
		if (fits[i])
		{
			room -= size + sizeof(ItemIdData);
			nfit++;
		}
	}
	return nfit;
}

/* page_put -- see page_change.h. */
void
page_put(Relation rel, Buffer buffer, Buffer vmbuffer, HeapTuple *tuples, int ntuples)
{
	/* one that the server has just made is not known to WAL yet */
	bool		was_empty = PageGetMaxOffsetNumber(BufferGetPage(buffer)) == 0;
	bool		lock_map = begin_change(buffer, vmbuffer);

	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	Assert(ntuples > 0 && ntuples <= MaxHeapTuplesPerPage);
	for (int i = 0; i < ntuples; i++)
		RelationPutHeapTuple(rel, buffer, tuples[i], false);
	compat_note_insertion(BufferGetPage(buffer), GetCurrentTransactionIdIfAny());
	end_change(rel, buffer, vmbuffer, lock_map, tuples, ntuples, was_empty);
}

/* page_mark_moved -- see page_change.h. */
void
page_mark_moved(Relation rel, Buffer buffer, Buffer vmbuffer, TransactionId xid, CommandId cid,
				const OffsetNumber *offsets, HeapTuple *new_versions, int ntuples)
{
	Page		page = BufferGetPage(buffer);
	bool		lock_map = begin_change(buffer, vmbuffer);

	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	Assert(TransactionIdIsNormal(xid));
	Assert(ntuples > 0 && ntuples <= MaxHeapTuplesPerPage);
	/* its record first, as replay compares the page as it is then */
	if (lock_map)
		clear_visibility(rel, buffer, vmbuffer);
	for (int i = 0; i < ntuples; i++)
	{
		ItemId		item = PageGetItemId(page, offsets[i]);
		HeapTupleHeader header = (HeapTupleHeader) PageGetItem(page, item);

		Assert(offsets[i] >= FirstOffsetNumber && offsets[i] <= PageGetMaxOffsetNumber(page));
		Assert(ItemIdIsNormal(item) && ItemIdGetLength(item) == new_versions[i]->t_len);
		Assert(HeapTupleHeaderGetRawXmin(new_versions[i]->t_data) == xid);
		Assert(ItemPointerIsValid(&new_versions[i]->t_self));
		/* no key changes, so sessions that check foreign keys don't wait */
		header->t_infomask &= ~(HEAP_XMAX_BITS | HEAP_MOVED);
		header->t_infomask2 &= ~HEAP_KEYS_UPDATED;
		HeapTupleHeaderClearHotUpdated(header);
		HeapTupleHeaderSetXmax(header, xid);
		HeapTupleHeaderSetCmax(header, cid, false);
		header->t_ctid = new_versions[i]->t_self;
	}
	PageSetPrunable(page, xid);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(rel))
		PageSetLSN(page, log_headers(buffer, offsets, ntuples));
	END_CRIT_SECTION();

	if (lock_map)
		compat_unlock_map(vmbuffer);
}

/*
 * begin_change
 *		Enter a critical section to change a page.
 *
 * The map's page is locked first, if that is needed.  Returns whether it is.
 * In a transaction that has an XID, or nothing would tell that it failed.
 */
static bool
begin_change(Buffer buffer, Buffer vmbuffer)
{
	bool		clear_map = PageIsAllVisible(BufferGetPage(buffer));

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(TransactionIdIsValid(GetCurrentTransactionIdIfAny()));
	Assert(CritSectionCount == 0);
	/* pinning may read, so it has been done before the page was locked */
	Assert(!clear_map || visibilitymap_pin_ok(BufferGetBlockNumber(buffer), vmbuffer));

	if (clear_map)
		compat_lock_map(vmbuffer);
	START_CRIT_SECTION();
	return clear_map;
}

/*
 * clear_visibility
 *		Take an all-visible page's bits out of the map, and log that by itself, in a
 *		critical section.
 *
 * If none were there any more, no record is written, and the flag on the page is for
 * the next one to log.
 */
static void
clear_visibility(Relation rel, Buffer buffer, Buffer vmbuffer)
{
	Page		page = BufferGetPage(buffer);
	bool		map_changed = compat_clear_map(rel, BufferGetBlockNumber(buffer), vmbuffer);

	Assert(CritSectionCount > 0);
	PageClearAllVisible(page);
	MarkBufferDirty(buffer);
	/* a server that doesn't tell whether it changed the map may have */
	if (RelationNeedsWAL(rel) && (map_changed || !COMPAT_LOGS_MAP))
	{
		XLogRecPtr	lsn = log_rows(buffer, NULL, 0, false, true,
								   map_changed ? vmbuffer : InvalidBuffer);

		PageSetLSN(page, lsn);
		if (map_changed)
			PageSetLSN(BufferGetPage(vmbuffer), lsn);
	}
}

/*
 * end_change
 *		Take the page's bits out of the map, write WAL for that and the new tuples,
 *		and leave the critical section.
 */
static void
end_change(Relation rel, Buffer buffer, Buffer vmbuffer, bool clear_map,
		   HeapTuple *tuples, int ntuples, bool was_empty)
{
	Page		page = BufferGetPage(buffer);
	bool		map_changed = false;

	if (clear_map)
	{
		map_changed = compat_clear_map(rel, BufferGetBlockNumber(buffer), vmbuffer);
		PageClearAllVisible(page);
	}
	MarkBufferDirty(buffer);

	if (RelationNeedsWAL(rel))
	{
		XLogRecPtr	lsn;

		Assert(CritSectionCount > 0 && compat_buffer_is_locked_exclusively(buffer));
		lsn = log_rows(buffer, tuples, ntuples, was_empty, clear_map,
					   map_changed ? vmbuffer : InvalidBuffer);

		PageSetLSN(page, lsn);
		if (map_changed)
			PageSetLSN(BufferGetPage(vmbuffer), lsn);
	}
	END_CRIT_SECTION();

	if (clear_map)
		compat_unlock_map(vmbuffer);
}

/*
 * log_rows
 *		Write the WAL record for these tuples, and for the map; return its end.
 *
 * If the page was empty, replay makes it anew, and puts the tuples there in
 * order, which is how they have come there.
 */
static XLogRecPtr
log_rows(Buffer buffer, HeapTuple *tuples, int ntuples, bool was_empty,
		 bool map_cleared, Buffer changed_vmbuffer)
{
	PGAlignedBlock scratch;
	xl_heap_multi_insert *record = (xl_heap_multi_insert *) scratch.data;
	int			noffsets = was_empty ? 0 : ntuples;
	char	   *start = scratch.data + SizeOfHeapMultiInsert + noffsets * sizeof(OffsetNumber);
	char	   *data = start;
	uint8		flags = REGBUF_STANDARD;

	if (was_empty)
		flags |= REGBUF_WILL_INIT;

	record->flags = map_cleared ? XLH_INSERT_ALL_VISIBLE_CLEARED : 0;
	record->ntuples = ntuples;
	for (int i = 0; i < ntuples; i++)
	{
		HeapTupleHeader header = tuples[i]->t_data;
		xl_multi_insert_tuple *logged = (xl_multi_insert_tuple *) SHORTALIGN(data);

		if (was_empty)
			Assert(ItemPointerGetOffsetNumber(&tuples[i]->t_self) == FirstOffsetNumber + i);
		else
			record->offsets[i] = ItemPointerGetOffsetNumber(&tuples[i]->t_self);
		logged->datalen = tuples[i]->t_len - SizeofHeapTupleHeader;
		logged->t_infomask2 = header->t_infomask2;
		logged->t_infomask = header->t_infomask;
		logged->t_hoff = header->t_hoff;
		data = (char *) logged + SizeOfMultiInsertTuple;
		memcpy(data, (char *) header + SizeofHeapTupleHeader, logged->datalen);
		data += logged->datalen;
	}
	Assert(data - scratch.data < BLCKSZ);

	XLogBeginInsert();
	XLogRegisterData((char *) record, start - scratch.data);
	XLogRegisterBuffer(0, buffer, flags);
	if (ntuples > 0)
		XLogRegisterBufData(0, start, data - start);
	if (BufferIsValid(changed_vmbuffer))
		compat_register_map(changed_vmbuffer);
	return XLogInsert(RM_HEAP2_ID,
					  XLOG_HEAP2_MULTI_INSERT | (was_empty ? XLOG_HEAP_INIT_PAGE : 0));
}

/*
 * log_headers
 *		Write the generic WAL record for the headers of these tuples, and of the
 *		page; return its end.
 *
 * On a sound page the record is never larger than what is in use of the page: what
 * the record has of a tuple is smaller than the tuple and its line pointer.  On a damaged
 * page line pointers may lead to the same bytes, so there is room for as many tuples
 * as a page has items.
 */
static XLogRecPtr
log_headers(Buffer buffer, const OffsetNumber *offsets, int noffsets)
{
	const Size	page_start = offsetof(PageHeaderData, pd_flags);
	Page		page = BufferGetPage(buffer);
	char		record[MOST_HEADERS];
	char	   *delta = record;

	delta = add_fragment(delta, page, page_start, SizeOfPageHeaderData - page_start);
	if (!wal_consistency_checking[RM_GENERIC_ID])
		for (int i = 0; i < noffsets; i++)
			delta = add_header(delta, page, offsets[i]);
	else
		for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		{
			ItemId		item = PageGetItemId(page, off);
			Size		length = ItemIdGetLength(item);

			if (!ItemIdIsNormal(item))
				continue;
			delta = add_header(delta, page, off);
			if (length < MAXALIGN(length))
				delta = add_fragment(delta, page, ItemIdGetOffset(item) + length,
									 MAXALIGN(length) - length);
		}
	Assert(delta - record <= sizeof(record));

	XLogBeginInsert();
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
	XLogRegisterBufData(0, record, delta - record);
	return XLogInsert(RM_GENERIC_ID, 0);
}

/* add_header -- add the part of a tuple's header that changes, or may have. */
static char *
add_header(char *delta, Page page, OffsetNumber off)
{
	const Size	start = offsetof(HeapTupleHeaderData, t_choice.t_heap.t_xmax);
	const Size	end = offsetof(HeapTupleHeaderData, t_hoff);

	return add_fragment(delta, page, ItemIdGetOffset(PageGetItemId(page, off)) + start, end - start);
}

/*
 * add_fragment
 *		Add to a generic record's data that these bytes of a page come to their place;
 *		return its new end.
 */
static char *
add_fragment(char *delta, Page page, Size offset, Size length)
{
	const OffsetNumber numbers[] = {offset, length};

	memcpy(delta, numbers, sizeof(numbers));
	memcpy(delta + sizeof(numbers), page + offset, length);
	return delta + sizeof(numbers) + length;
}
