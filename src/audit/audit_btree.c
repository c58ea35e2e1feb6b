/*-------------------------------------------------------------------------
 *
 * audit_btree.c
 *	  The order of a btree that is new.
 *
 * On a sample of its pages each entry must come before the next one, and none behind
 * the page's high key, by the server's own comparison.  The row's place decides where
 * keys are equal.  That is so where all keys are compared by functions that are built in,
 * and ask no others, as those of arrays, rows and ranges do: no function of a user is
 * called.  Copies of pages are compared.
 *
 * Nobody has inserted or deleted anything yet, so each page belongs to the tree: one
 * that was never written, or is deleted, is a fault as well.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "audit/audit.h"

/* The page in hand */
typedef struct BtreeAudit
{
	Relation	index;
	const char *state;
	const char *command;
	bool		has_order;		/* that may be looked at */
	BlockNumber blkno;
	MemoryContext context;		/* for the page in hand: comparing leaves
								 * things behind */
	PGAlignedBlock image;
} BtreeAudit;

static void audit_btree_page(BtreeAudit *audit, BufferAccessStrategy strategy);
static void compare_leaf(BtreeAudit *audit);
static bool has_builtin_order(Relation index);
static void fail_entry(const BtreeAudit *audit, OffsetNumber off, const char *engine,
					   const char *found);

/*
 * audit_new_btree
 *		Look at a sample of pages of an index that command has built, before anybody
 *		depends on it.  Returns how many pages that were: 0 if it is no btree.
 */
int64
audit_new_btree(Relation index, Relation table, const char *command)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);
	BufferAccessStrategy strategy;
	BtreeAudit *audit;
	int64		naudited = 0;

	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));
	Assert(index->rd_index->indrelid == RelationGetRelid(table));
	if (index->rd_rel->relam != BTREE_AM_OID || cyclone_audit <= 0)
		return 0;
	strategy = GetAccessStrategy(BAS_BULKREAD);
	audit = palloc0_object(BtreeAudit);
	audit->index = index;
	audit->command = command;
	audit->has_order = has_builtin_order(index);
	audit->state = psprintf("new index of table \"%s\", %u blocks",
							RelationGetRelationName(table), nblocks);
	audit->context = AllocSetContextCreate(CurrentMemoryContext, "Audited page", ALLOCSET_DEFAULT_SIZES);
	for (audit->blkno = BTREE_METAPAGE + 1; audit->blkno < nblocks; audit->blkno++)
	{
		if (!audit_is_due())
			continue;
		CHECK_FOR_INTERRUPTS();
		audit_btree_page(audit, strategy);
		naudited++;
	}
	FreeAccessStrategy(strategy);
	MemoryContextDelete(audit->context);
	pfree(audit);
	return naudited;
}

/* audit_btree_page -- look at one of them. */
static void
audit_btree_page(BtreeAudit *audit, BufferAccessStrategy strategy)
{
	Buffer		buffer = ReadBufferExtended(audit->index, MAIN_FORKNUM, audit->blkno,
											RBM_NORMAL, strategy);
	Page		page = (Page) audit->image.data;
	MemoryContext old;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	if (PageIsNew(page) || P_IGNORE(BTPageGetOpaque(page)))
		fail_entry(audit, InvalidOffsetNumber, "the page is one of the tree's",
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
compare_leaf(BtreeAudit *audit)
{
	Page		page = (Page) audit->image.data;
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	if (!P_ISLEAF(opaque))
		return;
	for (OffsetNumber off = P_FIRSTDATAKEY(opaque); off <= maxoff; off++)
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, off));
		BTScanInsert key = _bt_mkscankey(audit->index, tuple);

		/* in an index from before PostgreSQL 12 they may be equal */
		int			most = key->heapkeyspace ? -1 : 0;

		/* a truncated attribute of the high key is less than any value */
		key->backward = true;
		if (key->scantid != NULL && BTreeTupleIsPosting(tuple))
			key->scantid = BTreeTupleGetMaxHeapTID(tuple);
		if (!P_RIGHTMOST(opaque) && _bt_compare(audit->index, key, page, P_HIKEY) > 0)
			fail_entry(audit, off, "the entry is on its page", "it is behind the page's high key");
		if (off < maxoff && _bt_compare(audit->index, key, page, OffsetNumberNext(off)) > most)
			fail_entry(audit, off, "entries are in order", "the next one doesn't come behind this one");
	}
}

/* fail_entry -- there are two verdicts on an entry, or on the page. */
static void
fail_entry(const BtreeAudit *audit, OffsetNumber off, const char *engine, const char *found)
{
	AuditPlace	place = {
		.rel = audit->index,.page = (Page) audit->image.data,.blkno = audit->blkno,.off = off
	};

	audit_raise(&place, audit->command, audit->state, engine, found);
}
