/*-------------------------------------------------------------------------
 *
 * btree_sort.c
 *	  One pass over a table, which sorts the entries of several btrees.
 *
 * The entries are integers (key_code.c), sorted by entry_sort.c.  If integers are only the
 * beginning of the keys, the index tuples are kept in memory with them.  If memory turns out
 * to be too small for these, or integers tell too few entries apart, the index is given up,
 * and the server builds it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "index_build/btree_build_private.h"
#include "index_build/table_rows.h"

/* The number of entries at which we first ask whether abbreviations are of use */
#define FIRST_LOOK			1000

/* Tuples get memory in blocks of at most this size, as a block begun counts as used */
#define MAX_TUPLES_BLOCK	(256 * 1024)

static void share_sort_memory(TablePass *pass);
static bool has_sorts(const TablePass *pass);
static bool next_blocks_of_pass(void *arg, BlockNumber *next, BlockNumber *end);
static bool sort_page(void *arg, HeapTuple rows, int nrows);
static void sort_row(PartSort *sort, HeapTuple row);
static bool add_index_tuple(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull,
							uint64 *entry);
static void give_up_sort(PartSort *sort);

/* btree_sort_begin -- prepare to sort the entries of a part. */
void
btree_sort_begin(PartSort *sort, BtreePart *part)
{
	Assert(CheckRelationLockedByMe(part->index, AccessExclusiveLock, true));

	sort->part = part;
	sort->code = key_code_begin(part->index);
	if (key_code_has_tuples(sort->code))
	{
		sort->tuples = BumpContextCreate(CurrentMemoryContext, "tuples to be sorted",
										 ALLOCSET_DEFAULT_MINSIZE, ALLOCSET_DEFAULT_INITSIZE,
										 MAX_TUPLES_BLOCK);
		btree_entry_order(&sort->order, part->index);
		sort->next_look = FIRST_LOOK;
	}
}

/*
 * share_sort_memory
 *		Begin the sorts of a pass.  Each has room for the same number of entries, and one
 *		at a time has as much again while it sorts.
 */
static void
share_sort_memory(TablePass *pass)
{
	Size		total = 0;
	Size		largest = 0;
	Size		capacity;

	for (int i = 0; i < pass->nsorts; i++)
	{
		Size		size = key_code_words(pass->sorts[i].code) * sizeof(uint64);

		total += size + pass->sorts[i].part->tuple_size;
		largest = Max(largest, size);
	}
	/* of an empty table, any number of indexes may be in a pass */
	capacity = Max((Size) maintenance_work_mem * 1024 / (total + largest), 1);
	for (int i = 0; i < pass->nsorts; i++)
	{
		PartSort   *sort = &pass->sorts[i];

		sort->max_tuples = capacity * sort->part->tuple_size;
		sort->sort = entry_sort_begin(key_code_words(sort->code), key_code_tail_bits(sort->code),
									  Min(capacity, Max((Size) pass->nblocks * MaxHeapTuplesPerPage, 1)));
	}
}

/* btree_sort_rows -- read all rows, and put the entries of each index into its sort. */
void
btree_sort_rows(TablePass *pass)
{
	TableRows	rows = {.heap = pass->heap,.next_blocks = next_blocks_of_pass,.take_page = sort_page,.arg = pass};

	Assert(pass->nsorts > 0 && !pass->has_begun);
	pass->nblocks = RelationGetNumberOfBlocks(pass->heap);
	pass->slot = MakeSingleTupleTableSlot(RelationGetDescr(pass->heap), &TTSOpsHeapTuple);
	for (int i = 0; i < pass->nsorts; i++)
		btree_entry_maker_begin(&pass->sorts[i].maker, pass->sorts[i].part->info, pass->slot);
	share_sort_memory(pass);
	table_rows_read(&rows);
	pass->rows = rows.live;
	for (int i = 0; i < pass->nsorts; i++)
		btree_entry_maker_end(&pass->sorts[i].maker);
	ExecDropSingleTupleTableSlot(pass->slot);
}

/* has_sorts -- is there an index that has not been given up? */
static bool
has_sorts(const TablePass *pass)
{
	for (int i = 0; i < pass->nsorts; i++)
		if (!pass->sorts[i].part->is_given_up)
			return true;
	return false;
}

/* next_blocks_of_pass -- for table_rows_read: all of the table, at once. */
static bool
next_blocks_of_pass(void *arg, BlockNumber *next, BlockNumber *end)
{
	TablePass  *pass = arg;

	if (pass->has_begun || pass->nblocks == 0)
		return false;
	pass->has_begun = true;
	*next = 0;
	*end = pass->nblocks;
	return true;
}

/* sort_page -- for table_rows_read: add the entries of a page's rows. */
static bool
sort_page(void *arg, HeapTuple rows, int nrows)
{
	TablePass  *pass = arg;

	for (int i = 0; i < nrows; i++)
	{
		ExecStoreHeapTuple(&rows[i], pass->slot, false);
		for (int j = 0; j < pass->nsorts; j++)
			sort_row(&pass->sorts[j], &rows[i]);
	}
	return has_sorts(pass);
}

/* sort_row -- add the entry of the row in the slot, if the index has one of it. */
static void
sort_row(PartSort *sort, HeapTuple row)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	uint64		entry[ENTRY_MAX_WORDS];
	MemoryContext old;

	if (sort->part->is_given_up || !btree_entry_make(&sort->maker, values, isnull))
		return;
	/* memory that an abbreviation leaves behind is freed with the row */
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(sort->maker.estate));
	key_code_encode(sort->code, values, isnull, &row->t_self, entry);
	MemoryContextSwitchTo(old);
	if (sort->tuples != NULL && !add_index_tuple(sort, row, values, isnull, entry))
		return;
	entry_sort_put(sort->sort, entry);
	sort->part->counts.index_tuples++;
}

/*
 * add_index_tuple
 *		Have an entry point at its index tuple.  Returns false if the index is given up.
 */
static bool
add_index_tuple(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull, uint64 *entry)
{
	int64		nentries = sort->part->counts.index_tuples;
	bool		is_worthless = false;
	IndexTuple	tuple;

	if (nentries == sort->next_look)
	{
		sort->next_look *= 2;
		is_worthless = key_code_is_worthless(sort->code, nentries);
	}
	if (is_worthless || entry_sort_is_full(sort->sort) ||
		MemoryContextMemAllocated(sort->tuples, false) > sort->max_tuples)
	{
		give_up_sort(sort);
		return false;
	}
	tuple = index_form_tuple_context(RelationGetDescr(sort->part->index), values, isnull,
									 sort->tuples);
	tuple->t_tid = row->t_self;
	key_code_set_tuple(sort->code, entry, tuple);
	return true;
}

/* give_up_sort -- leave an index to the server, and free the memory of its entries. */
static void
give_up_sort(PartSort *sort)
{
	sort->part->is_given_up = true;
	sort->part->counts.index_tuples = 0;
	entry_sort_end(sort->sort);
	MemoryContextDelete(sort->tuples);
}

/* btree_sort_compare_ties -- of entries that are equal as integers, for qsort_arg. */
int
btree_sort_compare_ties(const void *a, const void *b, void *arg)
{
	PartSort   *sort = arg;

	Assert(key_code_has_tuples(sort->code));

	CHECK_FOR_INTERRUPTS();
	return btree_entry_compare(&sort->order, key_code_tuple(sort->code, a),
							   key_code_tuple(sort->code, b));
}
