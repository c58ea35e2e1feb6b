/*-------------------------------------------------------------------------
 *
 * index_entries.c
 *	  New entries in all indexes for rows that have moved.
 *
 * Uniqueness and exclusion are not checked: a row that moves is the one that was
 * there, so whatever held before holds now.  Others who check see the
 * old place as being deleted by a running transaction, ours, wait for it, and
 * then find the new one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"

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
	IndexInfo  *info = entries->infos[i];
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(entries->estate));

	if (entries->predicates[i] == NULL ||
		ExecQual(entries->predicates[i], GetPerTupleExprContext(entries->estate)))
	{
		FormIndexDatum(info, entries->slot, entries->estate, values, isnull);
		/* as for an update of other columns: the old entries are worth a look
		 * before a page is split */
		index_insert(entries->indexes[i], values, isnull, &tuple->t_self,
					 entries->rel, UNIQUE_CHECK_NO, true, info);
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
