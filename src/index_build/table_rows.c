/*-------------------------------------------------------------------------
 *
 * table_rows.c
 *	  Reading the rows of a new table that are to be indexed.
 *
 * VACUUM FULL leaves no chains of HOT updates, so each row has entries of its own,
 * and was committed before.  No process changes the pages, so what takes time is done with
 * a copy of a page, without a lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/read_stream.h"

#include "compat.h"
#include "index_build/table_rows.h"

static BlockNumber next_table_block(ReadStream *stream, void *private_data, void *per_buffer_data);
static int	find_rows_to_index(TableRows *rows, Buffer buffer, TransactionId oldest_xmin, HeapTuple found);
static bool is_to_be_found(TableRows *rows, HeapTuple row, Buffer buffer,
						   TransactionId oldest_xmin);

/* table_rows_read -- read the rows of blocks as long as there are any. */
void
table_rows_read(TableRows *rows)
{
	TransactionId oldest_xmin = GetOldestNonRemovableTransactionId(rows->heap);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	ReadStream *stream;
	Buffer		buffer;
	bool		goes_on = true;

	Assert(CheckRelationLockedByMe(rows->heap, ShareLock, true));
	Assert(rows->next_blocks != NULL && rows->take_page != NULL);
	stream = read_stream_begin_relation(READ_STREAM_FULL | READ_STREAM_SEQUENTIAL | COMPAT_READ_STREAM_BATCHING,
										strategy, rows->heap, MAIN_FORKNUM, next_table_block, rows, 0);
	while (goes_on && BufferIsValid(buffer = read_stream_next_buffer(stream, NULL)))
	{
		HeapTupleData found[MaxHeapTuplesPerPage];
		PGAlignedBlock copy;
		int			nfound;

		CHECK_FOR_INTERRUPTS();
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		nfound = find_rows_to_index(rows, buffer, oldest_xmin, found);
		memcpy(copy.data, BufferGetPage(buffer), BLCKSZ);
		for (int i = 0; i < nfound; i++)
			found[i].t_data = (HeapTupleHeader)
				(copy.data + ((char *) found[i].t_data - (char *) BufferGetPage(buffer)));
		UnlockReleaseBuffer(buffer);
		goes_on = rows->take_page(rows->arg, found, nfound);
	}
	read_stream_end(stream);
	FreeAccessStrategy(strategy);
}

/* next_table_block -- the read stream's callback: one after the other. */
static BlockNumber
next_table_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	TableRows  *rows = private_data;

	if (rows->next == rows->end && !rows->next_blocks(rows->arg, &rows->next, &rows->end))
		return InvalidBlockNumber;
	Assert(rows->next < rows->end);
	return rows->next++;
}

/* find_rows_to_index -- those of a page that are to be indexed; return how many there are. */
static int
find_rows_to_index(TableRows *rows, Buffer buffer, TransactionId oldest_xmin, HeapTuple found)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	int			nfound = 0;

	for (OffsetNumber offset = FirstOffsetNumber; offset <= maxoff; offset++)
	{
		HeapTuple	row;
		ItemId		item = PageGetItemId(page, offset);

		if (!ItemIdIsNormal(item))
			continue;
		if (unlikely(offset > MaxHeapTuplesPerPage))
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("block %u of relation \"%s\" has a corrupted item %u",
							blkno, RelationGetRelationName(rows->heap), offset)));
		row = &found[nfound];
		row->t_data = (HeapTupleHeader) PageGetItem(page, item);
		row->t_len = ItemIdGetLength(item);
		row->t_tableOid = RelationGetRelid(rows->heap);
		ItemPointerSet(&row->t_self, blkno, offset);
		nfound += is_to_be_found(rows, row, buffer, oldest_xmin);
	}
	return nfound;
}

/*
 * is_to_be_found
 *		May a snapshot still see this row version?  Count it if it isn't dead.
 *
 * As in the server's builds, versions that are dead to all may be left out.
 */
static bool
is_to_be_found(TableRows *rows, HeapTuple row, Buffer buffer, TransactionId oldest_xmin)
{
	if ((row->t_data->t_infomask & HEAP_XMAX_INVALID) == 0)
	{
		HTSV_Result fate = HeapTupleSatisfiesVacuum(row, oldest_xmin, buffer);

		if (fate == HEAPTUPLE_DEAD)
			return false;
		if (fate == HEAPTUPLE_RECENTLY_DEAD)
			return true;
	}
	rows->live++;
	return true;
}
