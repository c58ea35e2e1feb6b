/*-------------------------------------------------------------------------
 *
 * audit_entries.c
 *	  Has each row of a table with new indexes one entry in each of them?
 *
 * Rows and entries are counted, and for both the hashes of their TIDs are added up.  That
 * asks no function of the table's owner, works for indexes on expressions, and takes
 * next to no memory.  Each is audited as a whole, or not at all, as chance has it: a
 * missing entry can't be seen on the page where it isn't.
 *
 * Left out are indexes with a predicate, and hash indexes, which have no entry of some rows
 * (a column declared NOT NULL may have nulls, if that isn't validated), and GIN and others.
 * So are large tables and indexes, unless all pages are to be audited: readers wait for
 * the lock that is held.  For their sake this keeps to no budget, as index builds don't.
 *
 * A row that was deleted, and was copied for old snapshots, has no entry if they have ended
 * since.  If there are such rows, only the number of entries is compared.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"

#include "audit/audit.h"
#include "debug_point.h"
#include "engine/heap/page_check.h"
#include "report/progress.h"

/* As many pages are read under the lock, which takes a second or two: 1 GB */
#define MOST_BLOCKS	(1024 * 1024 / (BLCKSZ / 1024))

static bool index_has_all_rows(Relation index);
static void sum_rows(EntrySums *sums, Relation table);
static void sum_page(EntrySums *sums, Relation table, Buffer buffer);
static void sum_entries(EntrySums *sums, Relation index);
static inline void sum_tid(EntrySums *sums, const ItemPointerData *tid);

/*
 * audit_entries_of
 *		Compare the entries of an index that command has built with the rows of its table,
 *		if chance says so.  Both are locked exclusively, and nobody has changed them since.
 *		rows is zeroed before the first index of the table.  Returns how many pages of the
 *		index were read.
 */
int64
audit_entries_of(Relation index, Relation table, EntrySums *rows, const char *command)
{
	EntrySums	entries = {0};
	AuditPlace	place = {.rel = index,.blkno = InvalidBlockNumber};

	Assert(CheckRelationLockedByMe(table, AccessExclusiveLock, false));
	Assert(index->rd_index->indrelid == RelationGetRelid(table));
	if (!audit_is_due() || !index_has_all_rows(index) ||
		(cyclone_audit < 1 &&
		 (uint64) RelationGetNumberOfBlocks(table) + RelationGetNumberOfBlocks(index) > MOST_BLOCKS))
		return 0;
	if (!rows->is_known)
		sum_rows(rows, table);
	sum_entries(&entries, index);
	if (entries.count < rows->count || entries.count > rows->count + rows->deleted ||
		(rows->deleted == 0 && entries.hashes != rows->hashes))
		audit_raise(&place, command,
					psprintf("new index of table \"%s\"", RelationGetRelationName(table)),
					psprintf("there are " INT64_FORMAT " entries", entries.count),
					psprintf("there are " INT64_FORMAT " live rows, or others, and " INT64_FORMAT " deleted ones",
							 rows->count, rows->deleted));
	return RelationGetNumberOfBlocks(index);
}

/* index_has_all_rows -- must an index have one entry of each row? */
static bool
index_has_all_rows(Relation index)
{
	return audit_tids_are_known(index) && index->rd_rel->relam != HASH_AM_OID &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/* sum_rows -- add up the rows of a table. */
static void
sum_rows(EntrySums *sums, Relation table)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(table);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);

	progress_phase(PROGRESS_REWRITE_AUDIT, nblocks);
	for (BlockNumber blkno = 0; blkno < nblocks; blkno++)
	{
		Buffer		buffer = ReadBufferExtended(table, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		sum_page(sums, table, buffer);
		UnlockReleaseBuffer(buffer);
		progress_blocks_done(blkno + 1);
		DEBUG_POINT("audit-entries");
		CHECK_FOR_INTERRUPTS();
	}
	FreeAccessStrategy(strategy);
	sums->is_known = true;
}

/* sum_page -- add up those of a page. */
static void
sum_page(EntrySums *sums, Relation table, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber maxoff = PageIsNew(page) ? 0 : PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemPointerData tid;
		HeapTupleHeader row;

		if (!ItemIdIsNormal(PageGetItemId(page, off)))
			continue;
		row = page_check_row_at(table, buffer, page, off);
		if (!(row->t_infomask & HEAP_XMAX_INVALID) && !HEAP_XMAX_IS_LOCKED_ONLY(row->t_infomask))
		{
			sums->deleted++;
			continue;
		}
		ItemPointerSet(&tid, BufferGetBlockNumber(buffer), off);
		sum_tid(sums, &tid);
	}
}

/* sum_entries -- add up the entries of an index. */
static void
sum_entries(EntrySums *sums, Relation index)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	AuditTids  *tids = palloc_object(AuditTids);

	progress_phase(PROGRESS_REWRITE_AUDIT, 0);
	progress_index(RelationGetRelid(index), nblocks);
	for (BlockNumber blkno = 0; blkno < nblocks; blkno++)
	{
		Buffer		buffer = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		audit_tids_read(tids, index, BufferGetPage(buffer), blkno);
		UnlockReleaseBuffer(buffer);
		for (int i = 0; i < tids->ntids; i++)
			sum_tid(sums, &tids->tids[i]);
		progress_blocks_done(blkno + 1);
		CHECK_FOR_INTERRUPTS();
	}
	pfree(tids);
	FreeAccessStrategy(strategy);
}

/* sum_tid -- add one up. */
static inline void
sum_tid(EntrySums *sums, const ItemPointerData *tid)
{
	sums->count++;
	sums->hashes += murmurhash64((uint64) ItemPointerGetBlockNumberNoCheck(tid) << 16 |
								 ItemPointerGetOffsetNumberNoCheck(tid));
}
