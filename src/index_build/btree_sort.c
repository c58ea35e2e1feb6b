/*-------------------------------------------------------------------------
 *
 * btree_sort.c
 *	  One pass over a table, which sorts the entries of parts of its btrees.
 *
 * Where integers have the order of an index (key_code.c), we sort these
 * (entry_sort.c), and one pass over the table is enough for several indexes.
 * Otherwise the server's tuplesort has the entries.  If integers are only the
 * beginning of the keys, the tuples are kept in memory with them.  If memory turns
 * out to be too small, or integers tell too few entries apart, the sort is given up,
 * and the server does it after another pass (btree_build_parts).
 *
 * btree_load.c puts the sorted entries into pages.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"

#include "compat.h"
#include "index_build/btree_build_private.h"
#include "index_build/entry_sort.h"
#include "index_build/key_code.h"
#include "index_build/table_rows.h"

/* The number of entries at which we first ask whether abbreviations are of use */
#define FIRST_LOOK			1000

/* Tuples get memory in blocks of at most this size, as a block begun counts as used */
#define MAX_TUPLES_BLOCK	(256 * 1024)

static void give_up(PartSort *sort);
static void encode_separator(PartSort *sort, const Entry *separator, uint64 *entry);
static bool has_sorts(const TablePass *pass);
static bool all_blocks(void *arg, BlockNumber *next, BlockNumber *end);
static bool sort_page(void *arg, HeapTuple rows, int nrows);
static void sort_row(PartSort *sort, HeapTuple row);
static bool add_tuple(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull,
					  uint64 *entry);
static bool is_of_part(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull,
					   uint64 *entry);
static int	compare_coded(PartSort *sort, const uint64 *coded, Entry *separator,
						  const uint64 *entry, const Datum *values, const bool *isnull,
						  ItemPointer tid);

/*
 * btree_sort_begin
 *		Prepare to sort the entries of a part.
 */
void
btree_sort_begin(TablePass *pass, BtreePart *part, PartSort *sort)
{
	BtreeBuild *build = part->build;

	Assert(part->number >= 0 && part->number < build->nparts);
	Assert(build->relid == RelationGetRelid(part->index));
	Assert(CheckRelationLockedByMe(part->index, AccessExclusiveLock, true));

	sort->part = part;
	btree_entry_maker_begin(&sort->maker, part->info, pass->slot);
	btree_entry_order(&sort->order, part->index);
	sort->has_lower = part->number > 0;
	sort->has_upper = part->number < build->nparts - 1;
	if (sort->has_lower)
		btree_entry_take_apart(&sort->order, btree_separator(build, part->number - 1), &sort->lower);
	if (sort->has_upper)
		btree_entry_take_apart(&sort->order, btree_separator(build, part->number), &sort->upper);
	Assert(!sort->has_lower || !sort->has_upper ||
		   btree_entry_compare(&sort->order, &sort->lower, sort->upper.values,
							   sort->upper.isnull, &sort->upper.tid) <= 0);

	if (!part->by_code)
	{
		Assert(pass->nsorts == 1);
		sort->server_sort = tuplesort_begin_index_btree(pass->heap, part->index, false, false,
														maintenance_work_mem, NULL, TUPLESORT_NONE);
		return;
	}
	sort->code = key_code_begin(part->index);
	if (sort->code == NULL || (part->collection != NULL && key_code_has_tuples(sort->code)))
	{
		/*
		 * another session may have added a value to an enum meanwhile, after
		 * entries were collected, too
		 */
		sort->is_given_up = true;
		return;
	}
	if (key_code_has_tuples(sort->code))
		sort->tuples = BumpContextCreate(CurrentMemoryContext, "tuples to be sorted",
										 ALLOCSET_DEFAULT_MINSIZE, ALLOCSET_DEFAULT_INITSIZE,
										 MAX_TUPLES_BLOCK);
	sort->next_look = FIRST_LOOK;
	if (sort->has_lower)
		encode_separator(sort, &sort->lower, sort->coded_lower);
	if (sort->has_upper)
		encode_separator(sort, &sort->upper, sort->coded_upper);
}

/* btree_separator -- the first entry of the part behind this one. */
IndexTuple
btree_separator(BtreeBuild *build, int number)
{
	char	   *place = (char *) build + build->separators;

	Assert(number >= 0 && number < build->nparts - 1);
	for (int i = 0; i < number; i++)
		place += MAXALIGN(IndexTupleSize((IndexTuple) place));
	return (IndexTuple) place;
}

/* encode_separator -- the first entry of a part as an integer. */
static void
encode_separator(PartSort *sort, const Entry *separator, uint64 *entry)
{
	ItemPointerData tid = separator->tid;

	key_code_encode(sort->code, separator->values, separator->isnull, &tid, entry);
}

/*
 * btree_sort_share_memory
 *		Begin the sorts of a pass that are our own.  Each has room for the same number
 *		of entries, and one at a time has as much again while it sorts.
 */
void
btree_sort_share_memory(TablePass *pass)
{
	Size		total = 0;
	Size		largest = 0;
	Size		capacity;

	Assert(pass->nsorts > 0 && !pass->has_begun);

	for (int i = 0; i < pass->nsorts; i++)
		if (pass->sorts[i].code != NULL)
		{
			Size		size = key_code_words(pass->sorts[i].code) * sizeof(uint64);

			total += size + pass->sorts[i].part->tuple_size;
			largest = Max(largest, size);
		}
	if (total == 0)
		return;
	/* of an empty table, any number of indexes may be in a pass */
	capacity = Max((Size) maintenance_work_mem * 1024 / (total + largest), 1);
	for (int i = 0; i < pass->nsorts; i++)
	{
		PartSort   *sort = &pass->sorts[i];

		if (sort->code == NULL)
			continue;
		sort->max_tuples = capacity * sort->part->tuple_size;
		sort->sort = entry_sort_begin(key_code_words(sort->code), key_code_tail_bits(sort->code),
									  Min(capacity, Max((Size) pass->nblocks * MaxHeapTuplesPerPage, 1)));
	}
}

/*
 * btree_sort_rows
 *		Read all rows, and sort the entries of each part.
 */
void
btree_sort_rows(TablePass *pass)
{
	TableRows	rows = {.heap = pass->heap,.next_blocks = all_blocks,.take_page = sort_page,.arg = pass};

	Assert(pass->nsorts > 0);
	Assert(!pass->has_begun);
	if (has_sorts(pass))
		table_rows_read(&rows);
	pass->rows = rows.live;
	ExecClearTuple(pass->slot);
}

/* has_sorts -- is there a sort that has not been given up? */
static bool
has_sorts(const TablePass *pass)
{
	for (int i = 0; i < pass->nsorts; i++)
		if (!pass->sorts[i].is_given_up)
			return true;
	return false;
}

/* all_blocks -- for table_rows_read: all of the table, at once. */
static bool
all_blocks(void *arg, BlockNumber *next, BlockNumber *end)
{
	TablePass  *pass = arg;

	if (pass->has_begun || pass->nblocks == 0)
		return false;
	pass->has_begun = true;
	*next = 0;
	*end = pass->nblocks;
	return true;
}

/* sort_page -- for table_rows_read: sort the entries of a page's rows. */
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

/* sort_row -- sort the entry of the row in the slot, if it is of this part. */
static void
sort_row(PartSort *sort, HeapTuple row)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	uint64		entry[ENTRY_MAX_WORDS];

	if (sort->is_given_up || !btree_entry_make(&sort->maker, values, isnull) ||
		!is_of_part(sort, row, values, isnull, entry))
		return;
	if (sort->tuples != NULL)
	{
		if (!add_tuple(sort, row, values, isnull, entry))
			return;
	}
	else if (sort->code != NULL)
		entry_sort_put(sort->sort, entry);
	else
		tuplesort_putindextuplevalues(sort->server_sort, sort->part->index, &row->t_self,
									  values, isnull);
	sort->part->counts.index_tuples++;
}

/* is_of_part -- is a row's entry of this part?  If we sort ourselves, *entry is its integer. */
static bool
is_of_part(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull, uint64 *entry)
{
	/* memory that a comparison leaves behind is freed with the row */
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(sort->maker.estate));
	bool		is_ours;

	if (sort->code != NULL)
	{
		key_code_encode(sort->code, values, isnull, &row->t_self, entry);
		is_ours = (!sort->has_lower ||
				   compare_coded(sort, sort->coded_lower, &sort->lower, entry, values, isnull, &row->t_self) <= 0) &&
			(!sort->has_upper ||
			 compare_coded(sort, sort->coded_upper, &sort->upper, entry, values, isnull, &row->t_self) > 0);
		MemoryContextSwitchTo(old);
		return is_ours;
	}
	is_ours = (!sort->has_lower ||
			   btree_entry_compare(&sort->order, &sort->lower, values, isnull, &row->t_self) <= 0) &&
		(!sort->has_upper ||
		 btree_entry_compare(&sort->order, &sort->upper, values, isnull, &row->t_self) > 0);
	MemoryContextSwitchTo(old);
	return is_ours;
}

/* compare_coded -- a separator with an entry, as strcmp. */
static int
compare_coded(PartSort *sort, const uint64 *coded, Entry *separator, const uint64 *entry,
			  const Datum *values, const bool *isnull, ItemPointer tid)
{
	if (sort->tuples != NULL && key_code_same_keys(sort->code, coded, entry))
		return btree_entry_compare(&sort->order, separator, values, isnull, tid);
	return entries_compare(coded, entry, key_code_words(sort->code));
}

/*
 * add_tuple
 *		Sort an entry with its index tuple.  Returns false if the sort is given up.
 */
static bool
add_tuple(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull, uint64 *entry)
{
	IndexTuple	tuple;

	if (sort->part->counts.index_tuples == sort->next_look)
	{
		sort->next_look *= 2;
		if (key_code_is_worthless(sort->code, sort->part->counts.index_tuples))
		{
			give_up(sort);
			return false;
		}
	}
	if (entry_sort_is_full(sort->sort) ||
		MemoryContextMemAllocated(sort->tuples, false) > sort->max_tuples)
	{
		give_up(sort);
		return false;
	}
	tuple = index_form_tuple_context(RelationGetDescr(sort->part->index), values, isnull,
									 sort->tuples);
	tuple->t_tid = row->t_self;
	key_code_set_tuple(sort->code, entry, tuple);
	entry_sort_put(sort->sort, entry);
	return true;
}

/*
 * give_up
 *		Leave a part to the server: its tuples don't fit into memory, or sorting by
 *		abbreviations isn't worth while.
 */
static void
give_up(PartSort *sort)
{
	sort->is_given_up = true;
	entry_sort_end(sort->sort);
	MemoryContextDelete(sort->tuples);
}

/* btree_sort_compare_ties -- of entries that are equal as integers, for qsort_arg. */
int
btree_sort_compare_ties(const void *a, const void *b, void *arg)
{
	PartSort   *sort = arg;
	Entry		left;
	Entry		right;

	Assert(sort->code != NULL && key_code_has_tuples(sort->code));

	CHECK_FOR_INTERRUPTS();
	btree_entry_take_apart(&sort->order, key_code_tuple(sort->code, a), &left);
	btree_entry_take_apart(&sort->order, key_code_tuple(sort->code, b), &right);
	return btree_entry_compare(&sort->order, &left, right.values, right.isnull, &right.tid);
}
