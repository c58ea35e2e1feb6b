/*-------------------------------------------------------------------------
 *
 * page_put.c
 *	  Putting copies of rows on a heap page that has room for them, in one WAL
 *	  record.
 *
 * The record is the one of the server's multi-insert, without the mark that
 * tells logical decoding of new rows: that makes decoding pass it over, as for
 * a catalog's rows, so no subscriber hears of rows that are only moved.
 *
 * With no rows at all the same record takes a page's bits out of the
 * visibility map.  There is none of the server's that does only that.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heapam_xlog.h"
#include "access/hio.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"

#include "compat.h"
#include "inplace/inplace.h"

static XLogRecPtr log_put(Relation rel, Buffer buffer, HeapTuple *tuples, int ntuples,
						  bool map_cleared, Buffer changed_vmbuffer);

/*
 * page_room
 *		Find out which of some tuples fit on a page, if that much remains free.
 *
 * Sets fits for each, and returns how many do.  The caller has the page locked.
 */
int
page_room(Page page, Size reserve, const HeapTuple *tuples, int ntuples, bool *fits)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	Size		room = PageGetExactFreeSpace(page);
	int			lines = MaxHeapTuplesPerPage - last;
	int			nfit = 0;

	if (PageHasFreeLinePointers(page))
		for (OffsetNumber off = FirstOffsetNumber; off <= last; off++)
			if (!ItemIdIsUsed(PageGetItemId(page, off)))
				lines++;

	for (int i = 0; i < ntuples; i++)
	{
		/* a line pointer that is there already is not counted on */
		Size		need = MAXALIGN(tuples[i]->t_len) + sizeof(ItemIdData);

		fits[i] = nfit < lines && need + reserve <= room;
		if (fits[i])
		{
			room -= need;
			nfit++;
		}
	}
	return nfit;
}

/*
 * page_put
 *		Put tuples on a page that has room for them, set their t_self, and take
 *		the page's bits out of the visibility map.
 *
 * The tuples are the current transaction's, with all of their headers set but
 * t_ctid.  The caller has buffer exclusively locked, and vmbuffer is its page of the
 * map, pinned.
 */
void
page_put(Relation rel, Buffer buffer, Buffer vmbuffer, HeapTuple *tuples, int ntuples)
{
	Page		page = BufferGetPage(buffer);
	bool		clear_map = PageIsAllVisible(page);
	bool		map_changed = false;

	/* the map's page is locked first, as it is logged with the heap's */
	if (clear_map)
		compat_lock_map(vmbuffer);

	START_CRIT_SECTION();
	for (int i = 0; i < ntuples; i++)
		RelationPutHeapTuple(rel, buffer, tuples[i], false);
	if (clear_map)
	{
		map_changed = compat_clear_map(rel, BufferGetBlockNumber(buffer), vmbuffer);
		PageClearAllVisible(page);
	}
	MarkBufferDirty(buffer);

	if (RelationNeedsWAL(rel))
	{
		XLogRecPtr	lsn = log_put(rel, buffer, tuples, ntuples, clear_map,
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
 * log_put
 *		Write the WAL record.  In a critical section.
 */
static XLogRecPtr
log_put(Relation rel, Buffer buffer, HeapTuple *tuples, int ntuples,
		bool map_cleared, Buffer changed_vmbuffer)
{
	PGAlignedBlock scratch;
	xl_heap_multi_insert *record = (xl_heap_multi_insert *) scratch.data;
	char	   *start = scratch.data + SizeOfHeapMultiInsert + ntuples * sizeof(OffsetNumber);
	char	   *data = start;

	record->flags = map_cleared ? XLH_INSERT_ALL_VISIBLE_CLEARED : 0;
	record->ntuples = ntuples;
	for (int i = 0; i < ntuples; i++)
	{
		HeapTupleHeader header = tuples[i]->t_data;
		xl_multi_insert_tuple *logged = (xl_multi_insert_tuple *) SHORTALIGN(data);

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
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
	if (ntuples > 0)
		XLogRegisterBufData(0, start, data - start);
	if (BufferIsValid(changed_vmbuffer))
		compat_register_map(changed_vmbuffer);
	return XLogInsert(RM_HEAP2_ID, XLOG_HEAP2_MULTI_INSERT);
}
