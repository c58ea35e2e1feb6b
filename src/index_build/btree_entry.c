/*-------------------------------------------------------------------------
 *
 * btree_entry.c
 *	  Entries of an index that is built: how one is made of a row, and which of
 *	  two comes first.
 *
 * Entries are in the order of their keys, and with equal keys in that of their TIDs.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "storage/lmgr.h"
#include "utils/sortsupport.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/btree_build_private.h"

/* btree_entry_order -- the order of an index, as tuplesort has it. */
void
btree_entry_order(KeyOrder *order, Relation index)
{
	BTScanInsert key = _bt_mkscankey(index, NULL);

	Assert(index->rd_rel->relam == BTREE_AM_OID);
	Assert(CheckRelationLockedByMe(index, AccessShareLock, true));

	order->desc = RelationGetDescr(index);
	order->nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	order->support = palloc0_array(SortSupportData, order->nkeys);
	for (int i = 0; i < order->nkeys; i++)
	{
		SortSupport support = &order->support[i];
		ScanKey		column = &key->scankeys[i];

		support->ssup_cxt = CurrentMemoryContext;
		support->ssup_collation = column->sk_collation;
		support->ssup_nulls_first = (column->sk_flags & SK_BT_NULLS_FIRST) != 0;
		support->ssup_attno = column->sk_attno;
		compat_prepare_sort_support(index, (column->sk_flags & SK_BT_DESC) != 0, support);
	}
	pfree(key);
}

/* btree_entry_compare -- which of two tuples comes first, as strcmp. */
int
btree_entry_compare(const KeyOrder *order, IndexTuple left, IndexTuple right)
{
	Assert(order->nkeys > 0 && order->nkeys <= INDEX_MAX_KEYS);
	for (int i = 0; i < order->nkeys; i++)
	{
		bool		left_isnull;
		bool		right_isnull;
		Datum		left_value = index_getattr(left, i + 1, order->desc, &left_isnull);
		Datum		right_value = index_getattr(right, i + 1, order->desc, &right_isnull);
		int			result = ApplySortComparator(left_value, left_isnull, right_value, right_isnull,
												 &order->support[i]);

		if (result != 0)
			return result;
	}
	return ItemPointerCompare(&left->t_tid, &right->t_tid);
}

/* btree_entry_maker_begin -- prepare to make entries of the rows that come into a slot. */
void
btree_entry_maker_begin(EntryMaker *maker, IndexInfo *info, TupleTableSlot *slot)
{
	maker->info = info;
	maker->estate = CreateExecutorState();
	maker->predicate = ExecPrepareQual(info->ii_Predicate, maker->estate);
	maker->slot = slot;
	GetPerTupleExprContext(maker->estate)->ecxt_scantuple = slot;
}

/*
 * btree_entry_make
 *		The values to be indexed of the row in the slot, which must stay as long as
 *		they are used.  Returns false if the index leaves out such rows.
 */
bool
btree_entry_make(EntryMaker *maker, Datum *values, bool *isnull)
{
	Assert(!TTS_EMPTY(maker->slot));
	ResetPerTupleExprContext(maker->estate);
	if (DEBUG_FAULT("new-entry"))
		return false;
	if (maker->predicate != NULL &&
		!ExecQual(maker->predicate, GetPerTupleExprContext(maker->estate)))
		return false;
	FormIndexDatum(maker->info, maker->slot, maker->estate, values, isnull);
	return true;
}

/* btree_entry_maker_end -- no more entries. */
void
btree_entry_maker_end(EntryMaker *maker)
{
	FreeExecutorState(maker->estate);
	/* they may be in the executor's memory */
	maker->info->ii_ExpressionsState = NIL;
	maker->info->ii_PredicateState = NULL;
}
