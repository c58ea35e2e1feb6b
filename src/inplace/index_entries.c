/*-------------------------------------------------------------------------
 *
 * index_entries.c
 *	  New entries in all indexes for rows that have moved.
 *
 * A row that moves is the one that was there, so no key can be a duplicate now
 * that wasn't one before.  All the same, the entry of a unique index is made as if it were
 * checked, but without waiting or complaint: sessions that check at the same time
 * rely on each entry to begin at the first page that may have the key, which they
 * keep locked.  They find the old place being deleted by a running transaction,
 * ours, wait for it, and then find the new one.
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"

#include "compat.h"
#include "inplace/move_batch.h"

static bool add_entry(IndexEntries *entries, int i, HeapTuple tuple);
static bool is_in_the_way(IndexEntries *entries, int i, const Datum *values,
						  const bool *isnull);
static bool is_excluded(Relation index, const IndexInfo *info, const Datum *values,
						const bool *isnull, const Datum *others, const bool *others_null);

/*
 * index_entries_open
 *		Open a table's indexes, and prepare to make entries.
 *
 * Indexes that aren't ready for them are left out.
 */
IndexEntries *
index_entries_open(Relation rel)
{
	IndexEntries *entries = palloc0_object(IndexEntries);
	Relation   *indexes;
	int			nindexes;

	Assert(IsTransactionState());
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));

	entries->rel = rel;
	vac_open_indexes(rel, RowExclusiveLock, &nindexes, &indexes);
	entries->indexes = indexes;
	entries->nindexes = nindexes;
	entries->infos = palloc_array(IndexInfo *, nindexes);
	entries->predicates = palloc0_array(ExprState *, nindexes);
	entries->estate = CreateExecutorState();
	entries->slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	GetPerTupleExprContext(entries->estate)->ecxt_scantuple = entries->slot;

	for (int i = 0; i < nindexes; i++)
	{
		entries->infos[i] = BuildIndexInfo(indexes[i]);
		if (entries->infos[i]->ii_Predicate != NIL)
			entries->predicates[i] = ExecPrepareQual(entries->infos[i]->ii_Predicate,
													 entries->estate);
		entries->has_exclusion |= entries->infos[i]->ii_ExclusionOps != NULL;
	}
	if (entries->has_exclusion)
		entries->other_slot = table_slot_create(rel, NULL);
	return entries;
}

/*
 * index_entries_add
 *		Make the entries of one row, which is at its t_self now.
 *
 * Returns false if that may be in the way of a session that checks an exclusion
 * constraint: then some may be missing, and our transaction must not commit.
 */
bool
index_entries_add(IndexEntries *entries, HeapTuple tuple)
{
	bool		is_fine = true;

	Assert(CritSectionCount == 0);
	Assert(ItemPointerIsValid(&tuple->t_self));
	ExecStoreHeapTuple(tuple, entries->slot, false);
	for (int i = 0; i < entries->nindexes && is_fine; i++)
		if (entries->infos[i]->ii_ReadyForInserts)
			is_fine = add_entry(entries, i, tuple);
	ExecClearTuple(entries->slot);
	return is_fine;
}

/* add_entry -- the same for one index. */
static bool
add_entry(IndexEntries *entries, int i, HeapTuple tuple)
{
	Relation	index = entries->indexes[i];
	IndexInfo  *info = entries->infos[i];
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	bool		is_fine = true;
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(entries->estate));

	if (entries->predicates[i] == NULL ||
		ExecQual(entries->predicates[i], GetPerTupleExprContext(entries->estate)))
	{
		bool		cost_active = VacuumCostActive;

		FormIndexDatum(info, entries->slot, entries->estate, values, isnull);
		/* GIN may clean up on the way, and nap, while others wait for us */
		if (index->rd_rel->relam != BTREE_AM_OID)
			VacuumCostActive = false;

		/*
		 * as for an update of other columns: the old entries are worth a look
		 * before a page is split
		 */
		index_insert(index, values, isnull, &tuple->t_self,
					 entries->rel,
					 index->rd_index->indisunique ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_NO,
					 true, info);
		VacuumCostActive = cost_active;
		if (info->ii_ExclusionOps != NULL)
			is_fine = !is_in_the_way(entries, i, values, isnull);
	}
	MemoryContextSwitchTo(old);
	ResetPerTupleExprContext(entries->estate);
	return is_fine;
}

/*
 * is_in_the_way
 *		Is a running transaction about to add, or delete, a row that excludes this
 *		one, whose entry has been made?
 *
 * Waits for nobody.  Values are those of the index.  The caller frees the memory.
 */
static bool
is_in_the_way(IndexEntries *entries, int i, const Datum *values, const bool *isnull)
{
	Relation	index = entries->indexes[i];
	IndexInfo  *info = entries->infos[i];
	ExprContext *econtext = GetPerTupleExprContext(entries->estate);
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	ScanKeyData keys[INDEX_MAX_KEYS];
	SnapshotData dirty;
	IndexScanDesc scan;
	bool		found = false;

	for (int k = 0; k < nkeys; k++)
	{
		/* excludes nothing, unless the constraint is NULLS NOT DISTINCT */
		if (isnull[k] && !info->ii_NullsNotDistinct)
			return false;
		ScanKeyEntryInitialize(&keys[k], isnull[k] ? SK_ISNULL | SK_SEARCHNULL : 0, k + 1,
							   info->ii_ExclusionStrats[k], InvalidOid,
							   index->rd_indcollation[k], info->ii_ExclusionProcs[k],
							   values[k]);
	}

	InitDirtySnapshot(dirty);
	scan = compat_index_beginscan(entries->rel, index, &dirty, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	econtext->ecxt_scantuple = entries->other_slot;
	while (!found && index_getnext_slot(scan, ForwardScanDirection, entries->other_slot))
	{
		CHECK_FOR_INTERRUPTS();
		/* itself, or committed */
		if (!TransactionIdIsValid(dirty.xmin) && !TransactionIdIsValid(dirty.xmax))
			continue;
		found = true;
		if (scan->xs_recheck)
		{
			Datum		others[INDEX_MAX_KEYS];
			bool		others_null[INDEX_MAX_KEYS];

			FormIndexDatum(info, entries->other_slot, entries->estate, others, others_null);
			found = is_excluded(index, info, values, isnull, others, others_null);
		}
	}
	index_endscan(scan);
	ExecClearTuple(entries->other_slot);
	econtext->ecxt_scantuple = entries->slot;
	return found;
}

/* is_excluded -- do all of the constraint's operators hold, or both have no value? */
static bool
is_excluded(Relation index, const IndexInfo *info, const Datum *values,
			const bool *isnull, const Datum *others, const bool *others_null)
{
	bool		is_excluded = true;

	for (int k = 0; k < IndexRelationGetNumberOfKeyAttributes(index) && is_excluded; k++)
		is_excluded = isnull[k] || others_null[k] ? isnull[k] && others_null[k] :
			DatumGetBool(OidFunctionCall2Coll(info->ii_ExclusionProcs[k],
											  index->rd_indcollation[k],
											  others[k], values[k]));
	return is_excluded;
}

/*
 * index_entries_finish
 *		Let the access methods finish, where the entries were made: they may keep
 *		pages pinned.
 */
void
index_entries_finish(IndexEntries *entries)
{
	Assert(CritSectionCount == 0);
	for (int i = 0; i < entries->nindexes; i++)
		index_insert_cleanup(entries->indexes[i], entries->infos[i]);
}

/* index_entries_close -- close what was opened. */
void
index_entries_close(IndexEntries *entries)
{
	vac_close_indexes(entries->nindexes, entries->indexes, NoLock);
	ExecDropSingleTupleTableSlot(entries->slot);
	if (entries->has_exclusion)
		ExecDropSingleTupleTableSlot(entries->other_slot);
	FreeExecutorState(entries->estate);
}
