/*-------------------------------------------------------------------------
 *
 * audit_new_btree.c
 *	  A btree that is new: are its entries in order, and has each row one?
 *
 * On a sample of its pages each entry must come before the next one, and none behind
 * the page's high key, by the server's own comparison.  The row's place decides where
 * keys are equal.  That is so where all keys are compared by functions that are built in,
 * and ask no others, as those of arrays, rows and ranges do: no function of a user is
 * called.  Nobody has inserted or deleted anything yet, so each page belongs to the tree:
 * one that was never written, or is deleted, is a fault as well.
 *
 * Of some btrees, by chance, all pages are read: a missing entry can't be seen on the page
 * where it isn't.  Rows and entries are counted, and for both the hashes of their TIDs are
 * added up, which works for indexes on expressions, and takes next to no memory.  A row
 * that was deleted, and was copied for old snapshots, has no entry if they have ended since:
 * if there are such rows, only the number of entries is compared.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "audit/audit.h"
#include "debug_point.h"
#include "engine/heap/page_check.h"
#include "report/progress.h"

/* As many pages are read under the lock, which takes a second or two: 1 GB */
#define MOST_BLOCKS	(1024 * 1024 / (BLCKSZ / 1024))

/* The rows of a table, or the entries of an index */
typedef struct EntrySums
{
	int64		count;
	uint64		hashes;			/* of their TIDs, added up */
	int64		deleted;		/* rows besides, that old snapshots may see */
} EntrySums;

/* The page in hand */
typedef struct NewBtree
{
	AuditPlace	place;
	const char *command;
	bool		has_order;		/* that may be looked at */
	MemoryContext context;		/* for the page in hand: comparing leaves
								 * things behind */
	PGAlignedBlock image;
	AuditTids	tids;
} NewBtree;

static bool is_counted(Relation index, Relation table);
static void audit_btree_page(NewBtree *audit, BufferAccessStrategy strategy);
static void compare_leaf(NewBtree *audit);
static bool has_builtin_order(Relation index);
static void sum_rows(EntrySums *sums, Relation table, BufferAccessStrategy strategy);
static void sum_page(EntrySums *sums, Relation table, Buffer buffer);
static inline void sum_tid(EntrySums *sums, const ItemPointerData *tid);

/*
 * audit_new_btree
 *		Look at a sample of pages of an index that command has built, before anybody
 *		depends on it, or at all and, if the table is locked exclusively, at its rows.
 *		Returns how many pages of the index that were: 0 if it is no btree.
 */
int64
audit_new_btree(Relation index, Relation table, bool is_locked, const char *command)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);
	BufferAccessStrategy strategy;
	NewBtree *audit;
	EntrySums	entries = {0};
	EntrySums	rows = {0};
	bool		counts;
	int64		naudited = 0;

	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));
	Assert(index->rd_index->indrelid == RelationGetRelid(table));
	if (index->rd_rel->relam != BTREE_AM_OID || cyclone_audit <= 0)
		return 0;
	counts = is_locked && audit_is_due() && is_counted(index, table);
	strategy = GetAccessStrategy(BAS_BULKREAD);
	audit = palloc0_object(NewBtree);
	audit->place.rel = index;
	audit->place.page = (Page) audit->image.data;
	audit->command = command;
	audit->has_order = has_builtin_order(index);
	audit->context = AllocSetContextCreate(CurrentMemoryContext, "Audited page", ALLOCSET_DEFAULT_SIZES);
	if (is_locked)
	{
		progress_phase(PROGRESS_REWRITE_AUDIT, 0);
		progress_index(RelationGetRelid(index), nblocks);
	}
	for (BlockNumber blkno = BTREE_METAPAGE + 1; blkno < nblocks; blkno++)
	{
		if (!counts && !audit_is_due())
			continue;
		CHECK_FOR_INTERRUPTS();
		audit->place.blkno = blkno;
		audit_btree_page(audit, strategy);
		audit->place.off = InvalidOffsetNumber;
		for (int i = 0; counts && i < audit->tids.ntids; i++)
			sum_tid(&entries, &audit->tids.tids[i]);
		naudited++;
		if (is_locked)
			progress_blocks_done(blkno + 1);
	}
	if (counts)
	{
		sum_rows(&rows, table, strategy);
		audit->place.page = NULL;
		audit->place.blkno = InvalidBlockNumber;
		if (entries.count < rows.count || entries.count > rows.count + rows.deleted ||
			(rows.deleted == 0 && entries.hashes != rows.hashes))
			audit_raise(&audit->place, command, "",
						psprintf("there are " INT64_FORMAT " entries", entries.count),
						psprintf("there are " INT64_FORMAT " live rows, or others, and " INT64_FORMAT " deleted ones",
								 rows.count, rows.deleted));
	}
	FreeAccessStrategy(strategy);
	MemoryContextDelete(audit->context);
	pfree(audit);
	return naudited;
}

/*
 * is_counted
 *		May all entries of a new index be compared with the rows of its table?
 *
 * An index with a predicate has no entry of some rows.  A large one, or one of a large table,
 * isn't read as a whole, unless all pages are to be audited: readers wait for the lock.
 */
static bool
is_counted(Relation index, Relation table)
{
	Assert(CheckRelationLockedByMe(table, AccessExclusiveLock, false));
	return heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) &&
		(cyclone_audit >= 1 ||
		 (uint64) RelationGetNumberOfBlocks(table) + RelationGetNumberOfBlocks(index) <= MOST_BLOCKS);
}

/* audit_btree_page -- look at a copy of the page in hand, and read its TIDs. */
static void
audit_btree_page(NewBtree *audit, BufferAccessStrategy strategy)
{
	Buffer		buffer = ReadBufferExtended(audit->place.rel, MAIN_FORKNUM, audit->place.blkno,
											RBM_NORMAL, strategy);
	Page		page = audit->place.page;
	MemoryContext old;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	/* first, as it finds a page that is damaged, and none of a btree */
	audit_btree_tids(&audit->tids, audit->place.rel, page, audit->place.blkno);
	if (PageIsNew(page) || P_IGNORE(BTPageGetOpaque(page)))
		audit_raise(&audit->place, audit->command, "", "the page is one of the tree's",
					PageIsNew(page) ? "it was never written" : "it is deleted");
	if (!audit->has_order)
		return;
	old = MemoryContextSwitchTo(audit->context);
	compare_leaf(audit);
	MemoryContextSwitchTo(old);
	MemoryContextReset(audit->context);
}

/* has_builtin_order -- are all keys compared by functions that are built in, and ask no others? */
static bool
has_builtin_order(Relation index)
{
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
		if (index_getprocid(index, i + 1, BTORDER_PROC) >= FirstGenbkiObjectId ||
			get_typtype(index->rd_opcintype[i]) == TYPTYPE_PSEUDO)
			return false;
	return true;
}

/* compare_leaf -- compare each entry of a leaf with the next one, and with the high key. */
static void
compare_leaf(NewBtree *audit)
{
	Relation	index = audit->place.rel;
	Page		page = audit->place.page;
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	if (!P_ISLEAF(opaque))
		return;
	for (OffsetNumber off = P_FIRSTDATAKEY(opaque); off <= maxoff; off++)
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, off));
		BTScanInsert key = _bt_mkscankey(index, tuple);

		audit->place.off = off;
		/* a truncated attribute of the high key is less than any value */
		key->backward = true;
		if (key->scantid != NULL && BTreeTupleIsPosting(tuple))
			key->scantid = BTreeTupleGetMaxHeapTID(tuple);
		if (!P_RIGHTMOST(opaque) && _bt_compare(index, key, page, P_HIKEY) > 0)
			audit_raise(&audit->place, audit->command, "", "the entry is on its page",
						"it is behind the page's high key");
		if (off < maxoff && _bt_compare(index, key, page, OffsetNumberNext(off)) >= 0)
			audit_raise(&audit->place, audit->command, "", "entries are in order",
						"the next one doesn't come behind this one");
	}
}

/* sum_rows -- add up the rows of a table. */
static void
sum_rows(EntrySums *sums, Relation table, BufferAccessStrategy strategy)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(table);

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

/* sum_tid -- add one up. */
static inline void
sum_tid(EntrySums *sums, const ItemPointerData *tid)
{
	sums->count++;
	sums->hashes += murmurhash64((uint64) ItemPointerGetBlockNumberNoCheck(tid) << 16 |
								 ItemPointerGetOffsetNumberNoCheck(tid));
}
