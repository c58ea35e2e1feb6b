/*-------------------------------------------------------------------------
 *
 * btree_load.c
 *	  Filling the leaf pages of a part of a btree with entries that are sorted.
 *
 * Entries with equal keys become posting lists, where that is possible and wanted.
 * The pages are those of btree_level.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"

#include "compat.h"
#include "index_build/btree_build_private.h"
#include "index_build/btree_level.h"
#include "index_build/entry_sort.h"
#include "index_build/key_code.h"
#include "machine/prefetch.h"

/* The tuple of the entry this far ahead is prefetched: tuples lie in the order of the rows */
#define ENTRIES_AHEAD		12

/* As in the server: a posting list has at most a tenth of a page */
#define MAX_POSTING_SIZE	(MAXALIGN_DOWN(BLCKSZ * 10 / 100) - sizeof(ItemIdData))

static void prefetch_tuple(PartSort *sort);
static bool have_same_keys(const NewBtree *btree, PartSort *sort, const uint64 *left,
						   const uint64 *right);
static void refuse_duplicate(const NewBtree *btree, const IndexInfo *info, IndexTuple tuple);
static bool wants_posting_lists(const NewBtree *btree);
static void start_posting_lists(BTDedupState pending);
static void add_posting_list(BtreeLevel *level, BTDedupState pending);

/* btree_load_leaves -- fill leaf pages with what was sorted. */
void
btree_load_leaves(const NewBtree *btree, PartSort *sort, BtreeLevel *level)
{
	bool		is_unique = sort->part->info->ii_Unique;
	bool		deduplicate = wants_posting_lists(btree) && !is_unique;
	int			nwords = key_code_words(sort->code);
	BTDedupStateData pending;
	const uint64 *next = entry_sort_next(sort->sort);

	start_posting_lists(&pending);
	while (next != NULL)
	{
		uint64		entry[ENTRY_MAX_WORDS];
		IndexTuple	tuple;

		entries_copy(entry, next, nwords);
		next = entry_sort_next(sort->sort);
		if (sort->tuples != NULL)
			prefetch_tuple(sort);
		tuple = key_code_tuple(sort->code, entry);
		if (is_unique && next != NULL && have_same_keys(btree, sort, entry, next))
			refuse_duplicate(btree, sort->part->info, tuple);
		if (pending.base != NULL && !_bt_dedup_save_htid(&pending, tuple))
			add_posting_list(level, &pending);
		else if (pending.base != NULL)
			tuple = NULL;

		if (deduplicate && next != NULL && have_same_keys(btree, sort, entry, next))
		{
			if (tuple != NULL)
				_bt_dedup_start_pending(&pending, CopyIndexTuple(tuple), InvalidOffsetNumber);
		}
		else if (tuple != NULL)
			btree_level_add(level, tuple, 0);
		else
			add_posting_list(level, &pending);
	}
	Assert(pending.base == NULL);
	pfree(pending.htids);
}

/* refuse_duplicate -- raise an error for a key that a unique index has twice, as REINDEX does. */
static void
refuse_duplicate(const NewBtree *btree, const IndexInfo *info, IndexTuple tuple)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	char	   *description;

	if (IndexTupleHasNulls(tuple) && !info->ii_NullsNotDistinct)
		return;
	index_deform_tuple(tuple, RelationGetDescr(btree->index), values, isnull);
	description = BuildIndexValueDescription(btree->index, values, isnull);
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("could not create unique index \"%s\"", RelationGetRelationName(btree->index)),
			 description ? errdetail("Key %s is duplicated.", description) :
			 errdetail("Duplicate keys exist."),
			 errtableconstraint(btree->heap, RelationGetRelationName(btree->index))));
}

/* prefetch_tuple -- of an entry that comes soon. */
static void
prefetch_tuple(PartSort *sort)
{
	const uint64 *entry = entry_sort_ahead(sort->sort, ENTRIES_AHEAD);

	if (entry != NULL)
	{
		const char *tuple = (const char *) key_code_tuple(sort->code, entry);

		PREFETCH(tuple);
		PREFETCH(tuple + CACHE_LINE_BYTES);
	}
}

/* wants_posting_lists -- are equal keys stored once? */
static bool
wants_posting_lists(const NewBtree *btree)
{
	return btree->key->allequalimage && BTGetDeduplicateItems(btree->index);
}

/* start_posting_lists -- prepare to collect posting lists. */
static void
start_posting_lists(BTDedupState pending)
{
	memset(pending, 0, sizeof(*pending));
	pending->deduplicate = true;
	pending->maxpostingsize = MAX_POSTING_SIZE;
	pending->htids = palloc(MAX_POSTING_SIZE);
}

/* add_posting_list -- add the key whose rows were collected, if there is one. */
static void
add_posting_list(BtreeLevel *level, BTDedupState pending)
{
	if (pending->base == NULL)
		return;
	if (pending->nitems == 1)
		btree_level_add(level, pending->base, 0);
	else
	{
		IndexTuple	tuple = _bt_form_posting(pending->base, pending->htids, pending->nhtids);

		btree_level_add(level, tuple, IndexTupleSize(tuple) - BTreeTupleGetPostingOffset(tuple));
		pfree(tuple);
	}
	pfree(pending->base);
	pending->base = NULL;
	pending->nhtids = 0;
	pending->nitems = 0;
	pending->phystupsize = 0;
}

/* have_same_keys -- may two entries share a posting list? */
static bool
have_same_keys(const NewBtree *btree, PartSort *sort, const uint64 *left, const uint64 *right)
{
	return key_code_same_keys(sort->code, left, right) &&
		(sort->tuples == NULL ||
		 _bt_keep_natts_fast(btree->index, key_code_tuple(sort->code, left),
							 key_code_tuple(sort->code, right)) >
		 IndexRelationGetNumberOfKeyAttributes(btree->index));
}
