/*-------------------------------------------------------------------------
 *
 * index_entries.c
 *	  New entries in all indexes for rows that have moved.
 *
 * A row that moves is the one that was there, so no key can be a duplicate now
 * that wasn't one before.  All the same, the entry of a unique index is made as if it were
 * checked, but without waiting or complaint: those who check at the same time
 * rely on each entry to begin at the first page that may have the key, which they
 * keep locked.  They find the old place being deleted by a running transaction,
 * ours, wait for it, and then find the new one.  Exclusion constraints have no
 * such page, so tables with any are left alone (table_inplace.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "miscadmin.h"

#include "inplace/inplace.h"

static void add_entry(IndexEntries *entries, int i, HeapTuple tuple);

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
	}
	return entries;
}

/*
 * index_entries_add
 *		Make the entries of one row, which is at its t_self now.
 */
void
index_entries_add(IndexEntries *entries, HeapTuple tuple)
{
	ExecStoreHeapTuple(tuple, entries->slot, false);
	for (int i = 0; i < entries->nindexes; i++)
		if (entries->infos[i]->ii_ReadyForInserts)
			add_entry(entries, i, tuple);
	ExecClearTuple(entries->slot);
}

/* add_entry -- the same for one index. */
static void
add_entry(IndexEntries *entries, int i, HeapTuple tuple)
{
	Relation	index = entries->indexes[i];
	IndexInfo  *info = entries->infos[i];
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(entries->estate));

	if (entries->predicates[i] == NULL ||
		ExecQual(entries->predicates[i], GetPerTupleExprContext(entries->estate)))
	{
		bool		cost_active = VacuumCostActive;

		FormIndexDatum(info, entries->slot, entries->estate, values, isnull);
		/* GIN may clean up on the way, and nap, while others wait for us */
		if (index->rd_rel->relam != BTREE_AM_OID)
			VacuumCostActive = false;
		/* as for an update of other columns: the old entries are worth a look
		 * before a page is split */
		index_insert(index, values, isnull, &tuple->t_self,
					 entries->rel,
					 index->rd_index->indisunique ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_NO,
					 true, info);
		VacuumCostActive = cost_active;
	}
	MemoryContextSwitchTo(old);
	ResetPerTupleExprContext(entries->estate);
}

/* index_entries_close -- let the access methods finish, and close. */
void
index_entries_close(IndexEntries *entries)
{
	for (int i = 0; i < entries->nindexes; i++)
		index_insert_cleanup(entries->indexes[i], entries->infos[i]);
	vac_close_indexes(entries->nindexes, entries->indexes, NoLock);
	ExecDropSingleTupleTableSlot(entries->slot);
	FreeExecutorState(entries->estate);
}
