/*-------------------------------------------------------------------------
 *
 * btree_bloat.c
 *	  How much of a btree's pages its entries need.
 *
 * Each page of the sample is read under a share lock.  The entries of its
 * leaf pages are packed anew, one after the other, as a build of the index
 * does it: equal ones merged where the index allows it, pages filled to the
 * fillfactor, the last entry of a page cut down to be its high key.  The upper
 * levels follow from the number of leaf pages and the size of the high keys
 * that there are.
 *
 * A new index has no entries of dead rows.  The index has marked some of these
 * entries as dead; as for the others, the table tells how many rows there are to be
 * indexed.  How much space goes with them depends on their keys: versions of one row
 * are equal in most indexes, so most of their entries are merged, and the last one
 * that remains needs nearly as much.  So the entries are packed twice: all of them,
 * and the table's share of live rows, evenly taken from each group of equal ones.
 * The truth is between the two.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "catalog/pg_index.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"

#include "bloat/bloat.h"

/* What is measured on each page, in bytes */
enum
{
	BTREE_LIVE,
	BTREE_DEAD,
	BTREE_FREE,
	BTREE_PACKED,				/* what the entries need in a new index */
	BTREE_THINNED,				/* the same if only a share of them remains */
	BTREE_ENTRIES,				/* not in bytes: entries not marked as dead */
	BTREE_QUANTITIES
};

/* The bytes of a page for items and line pointers */
#define PAGE_ROOM	(BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(BTPageOpaqueData)))

/* The most bytes that a posting list has in a newly built index */
#define MAX_POSTING_BYTES (MAXALIGN_DOWN(BLCKSZ * 10 / 100) - sizeof(ItemIdData))

/* Entries that are packed anew */
typedef struct LeafPacking
{
	bool		deduplicate;
	Size		target_free;	/* what fillfactor leaves free on a page */
	double		keep;			/* share of the entries that are packed */
	double		owed;			/* part of an entry that is still to be packed */

	/* the group of equal entries in hand; the key is on the page in hand */
	IndexTuple	group;
	Size		key_bytes;		/* 0 if there is none */
	int			group_tids;

	/* the last page */
	Size		free;
	int			nitems;
	Size		last_item;		/* the latest item on it, */
	Size		last_posting;	/* and its posting list */

	double		full_pages;
	double		bytes;			/* of all items so far */
} LeafPacking;

typedef struct BtreeSurvey
{
	Relation	index;
	BlockNumber block;			/* that is being measured */
	LeafPacking all;
	LeafPacking thinned;
	double		entries;
	double		marked_entries; /* of these: as dead */
	double		high_keys;
	double		high_key_bytes;
} BtreeSurvey;

static double share_with_row(const BtreeSurvey *survey, Relation index,
							 const BloatEstimate *heap, double entries);
static void measure_page(BtreeSurvey *survey, Page page, double *quantities);
static void measure_leaf(BtreeSurvey *survey, Page page, double *quantities);
static IndexTuple leaf_entry(const BtreeSurvey *survey, Page page, OffsetNumber off);
static void begin_packing(LeafPacking *packing, Relation index, double keep);
static void add_entry(LeafPacking *packing, IndexTuple tuple);
static void add_tids(LeafPacking *packing, int ntids);
static void end_group(LeafPacking *packing);
static void add_item(LeafPacking *packing, Size bytes, Size posting_bytes);
static void begin_page(LeafPacking *packing);
static double pages_per_byte(const LeafPacking *packing);
static double upper_pages(double leaf_pages, Size high_key);

/* btree_bloat -- see bloat.h. */
void
btree_bloat(Relation index, uint32 most_pages, pg_prng_state *prng,
			const BloatEstimate *heap, BloatEstimate *estimate)
{
	BtreeSurvey survey = {.index = index};
	PageSample *sample = page_sample_begin(index, BTREE_METAPAGE + 1, most_pages, prng);
	Buffer		buffer;

	Assert(index->rd_rel->relam == BTREE_AM_OID);
	Assert(heap != NULL && heap->dead_roots >= 0 && heap->dead_roots <= 1);

	begin_packing(&survey.all, index, 1);
	begin_packing(&survey.thinned, index, 1 - heap->dead_roots);

	while (BufferIsValid(buffer = page_sample_next(sample)))
	{
		double		quantities[BTREE_QUANTITIES] = {0};

		survey.block = BufferGetBlockNumber(buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		measure_page(&survey, BufferGetPage(buffer), quantities);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		page_sample_measured(sample, buffer, quantities, BTREE_QUANTITIES);
	}

	estimate->known = true;
	estimate->pages = page_sample_of(sample) + 1;
	estimate->sampled_pages = page_sample_size(sample);
	estimate->live_bytes = page_sample_total(sample, BTREE_LIVE).value;
	estimate->dead_bytes = page_sample_total(sample, BTREE_DEAD).value;
	estimate->free_bytes = page_sample_total(sample, BTREE_FREE).value;

	estimate->rewritten_pages = 1;
	if (survey.all.bytes > 0)
	{
		Total		packed = page_sample_total(sample, BTREE_PACKED);
		double		share = share_with_row(&survey, index, heap,
										   page_sample_total(sample, BTREE_ENTRIES).value);
		double		leaf_pages = packed.value * pages_per_byte(&survey.all);
		double		error = packed.standard_error * pages_per_byte(&survey.all) * share;

		if (share < 1)
		{
			double		thinned_pages = page_sample_total(sample, BTREE_THINNED).value *
				pages_per_byte(&survey.thinned);

			leaf_pages -= (leaf_pages - thinned_pages) * (1 - share) / heap->dead_roots;
			if (heap->live_roots.value > 0)
				error = hypot(error, leaf_pages * heap->live_roots.standard_error /
							  heap->live_roots.value);
		}
		leaf_pages = ceil(leaf_pages);
		estimate->rewritten_pages += leaf_pages +
			upper_pages(leaf_pages, survey.high_keys > 0 ?
						survey.high_key_bytes / survey.high_keys : 0);
		estimate->rewritten_error = error;
	}
	estimate->inplace_pages = estimate->rewritten_pages;
	page_sample_end(sample);
}

/*
 * share_with_row
 *		Of the entries that aren't marked as dead, the share that leads to a row.
 *
 * If nothing is dead in the table, all do.  Otherwise the table's rows are
 * compared with the entries, of which no more can be dead than the dead rows in
 * the table account for.  A partial index has only some of the rows; the table's
 * share of dead rows is taken for that of the index.
 */
static double
share_with_row(const BtreeSurvey *survey, Relation index, const BloatEstimate *heap,
			   double entries)
{
	double		marked = survey->marked_entries / survey->entries;
	double		least;

	Assert(survey->entries > 0);
	Assert(heap->dead_roots >= 0 && heap->dead_roots <= 1);

	if (heap->dead_roots <= marked)
		return 1;
	least = (1 - heap->dead_roots) / (1 - marked);
	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return least;
	return Min(Max(heap->live_roots.value / entries, least), 1);
}

/* measure_page -- measure a page, which is locked. */
static void
measure_page(BtreeSurvey *survey, Page page, double *quantities)
{
	BTPageOpaque opaque;

	if (PageIsNew(page))
	{
		quantities[BTREE_FREE] = BLCKSZ;
		return;
	}
	/* not a btree's page: left to amcheck to report */
	if (PageGetSpecialSize(page) != MAXALIGN(sizeof(BTPageOpaqueData)))
		return;

	opaque = BTPageGetOpaque(page);
	if (P_IGNORE(opaque))
		quantities[BTREE_FREE] = BLCKSZ;
	else if (P_ISLEAF(opaque))
		measure_leaf(survey, page, quantities);
}

/* measure_leaf -- measure a leaf page that is in use. */
static void
measure_leaf(BtreeSurvey *survey, Page page, double *quantities)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	double		all_before = survey->all.bytes;
	double		thinned_before = survey->thinned.bytes;

	if (!P_RIGHTMOST(opaque) && maxoff >= P_HIKEY)
	{
		survey->high_keys++;
		survey->high_key_bytes += MAXALIGN(ItemIdGetLength(PageGetItemId(page, P_HIKEY)));
	}

	for (OffsetNumber off = P_FIRSTDATAKEY(opaque); off <= maxoff; off = OffsetNumberNext(off))
	{
		ItemId		item = PageGetItemId(page, off);
		IndexTuple	tuple = leaf_entry(survey, page, off);
		int			ntids = BTreeTupleIsPosting(tuple) ? BTreeTupleGetNPosting(tuple) : 1;

		survey->entries += ntids;
		if (ItemIdIsDead(item))
		{
			survey->marked_entries += ntids;
			quantities[BTREE_DEAD] += ItemIdGetLength(item);
			continue;
		}
		quantities[BTREE_LIVE] += ItemIdGetLength(item);
		quantities[BTREE_ENTRIES] += ntids;
		add_entry(&survey->all, tuple);
		add_entry(&survey->thinned, tuple);
	}
	end_group(&survey->all);
	end_group(&survey->thinned);

	quantities[BTREE_FREE] = PageGetExactFreeSpace(page);
	quantities[BTREE_PACKED] = survey->all.bytes - all_before;
	quantities[BTREE_THINNED] = survey->thinned.bytes - thinned_before;
}

/*
 * leaf_entry
 *		An entry of a leaf page.  Raises an error if its lengths contradict each
 *		other: they would lead to memory behind the page.
 */
static IndexTuple
leaf_entry(const BtreeSurvey *survey, Page page, OffsetNumber off)
{
	const PageHeaderData *header = (PageHeader) page;
	ItemId		item = PageGetItemId(page, off);
	Size		length = ItemIdGetLength(item);

	if (length >= sizeof(IndexTupleData) && ItemIdGetOffset(item) >= header->pd_upper &&
		ItemIdGetOffset(item) + length <= header->pd_special)
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, item);
		Size		size = IndexTupleSize(tuple);
		Size		key_size = size;
		Size		list_size = 0;

		if (BTreeTupleIsPosting(tuple))
		{
			key_size = BTreeTupleGetPostingOffset(tuple);
			list_size = BTreeTupleGetNPosting(tuple) * sizeof(ItemPointerData);
		}
		if (size <= length && key_size >= sizeof(IndexTupleData) && key_size + list_size <= size)
			return tuple;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" has a corrupted entry in block %u, item %u",
					RelationGetRelationName(survey->index), survey->block, off),
			 errhint("Please REINDEX it.")));
	return NULL;				/* keep compilers quiet */
}

/* begin_packing -- prepare to pack that share of an index's entries. */
static void
begin_packing(LeafPacking *packing, Relation index, double keep)
{
	Assert(keep >= 0 && keep <= 1);

	packing->deduplicate = !index->rd_index->indisunique &&
		BTGetDeduplicateItems(index) && _bt_allequalimage(index, false);
	packing->target_free = BTGetTargetPageFreeSpace(index);
	packing->keep = keep;
	begin_page(packing);
}

/* add_entry -- add the entries of an item of the old index. */
static void
add_entry(LeafPacking *packing, IndexTuple tuple)
{
	bool		is_posting = BTreeTupleIsPosting(tuple);
	Size		key_bytes = is_posting ? BTreeTupleGetPostingOffset(tuple) :
		IndexTupleSize(tuple);
	int			ntids;

	packing->owed += packing->keep * (is_posting ? BTreeTupleGetNPosting(tuple) : 1);
	ntids = floor(packing->owed);
	packing->owed -= ntids;
	Assert(packing->owed >= 0 && packing->owed < 1);

	if (!packing->deduplicate)
	{
		while (ntids-- > 0)
			add_item(packing, MAXALIGN(key_bytes), 0);
		return;
	}

	/*
	 * In an index that may merge entries, equal keys are equal bit by bit,
	 * but for how values of variable length are stored, which hardly ever
	 * differs.
	 */
	if (packing->key_bytes != key_bytes ||
		IndexTupleHasNulls(packing->group) != IndexTupleHasNulls(tuple) ||
		memcmp((char *) packing->group + sizeof(IndexTupleData),
			   (char *) tuple + sizeof(IndexTupleData),
			   key_bytes - sizeof(IndexTupleData)) != 0)
	{
		end_group(packing);
		packing->group = tuple;
		packing->key_bytes = key_bytes;
	}
	add_tids(packing, ntids);
}

/* add_tids -- add this many entries to the group of equal ones in hand. */
static void
add_tids(LeafPacking *packing, int ntids)
{
	for (; ntids > 0; ntids--)
	{
		if (MAXALIGN(packing->key_bytes + (packing->group_tids + 1) * sizeof(ItemPointerData)) >
			MAX_POSTING_BYTES)
		{
			Size		key_bytes = packing->key_bytes;

			end_group(packing);
			packing->key_bytes = key_bytes;
		}
		packing->group_tids++;
	}
}

/* end_group -- add what the group of equal entries has become. */
static void
end_group(LeafPacking *packing)
{
	if (packing->group_tids == 1)
		add_item(packing, MAXALIGN(packing->key_bytes), 0);
	else if (packing->group_tids > 1)
	{
		Size		bytes = MAXALIGN(packing->key_bytes +
									 packing->group_tids * sizeof(ItemPointerData));

		add_item(packing, bytes, bytes - packing->key_bytes);
	}
	packing->group_tids = 0;
	packing->key_bytes = 0;
}

/*
 * add_item
 *		Add an item to the last page, or to a new one, as a build would do it:
 *		a page is full when less is free than fillfactor wants, and then its last
 *		item goes to the next one and leaves a high key behind.
 */
static void
add_item(LeafPacking *packing, Size bytes, Size posting_bytes)
{
	Size		free = packing->free - Min(packing->free, sizeof(ItemIdData));

	if (packing->nitems > 1 &&
		(free < bytes + MAXALIGN(sizeof(ItemPointerData)) ||
		 free + packing->last_posting < packing->target_free))
	{
		Size		moved = packing->last_item;

		packing->full_pages++;
		begin_page(packing);
		packing->free -= Min(packing->free, moved + sizeof(ItemIdData));
		packing->nitems = 1;
	}
	packing->free -= Min(packing->free, bytes + sizeof(ItemIdData));
	packing->nitems++;
	packing->last_item = bytes;
	packing->last_posting = posting_bytes;
	packing->bytes += bytes + sizeof(ItemIdData);
}

/* begin_page -- begin a page, which has only the line pointer of its high key. */
static void
begin_page(LeafPacking *packing)
{
	packing->free = PAGE_ROOM - sizeof(ItemIdData);
	packing->nitems = 0;
}

/* pages_per_byte -- of what is packed; the last page counts by its share. */
static double
pages_per_byte(const LeafPacking *packing)
{
	double		on_last = PAGE_ROOM - sizeof(ItemIdData) - packing->free;
	double		usual = packing->full_pages > 0 ?
		(packing->bytes - on_last) / packing->full_pages : PAGE_ROOM;

	return packing->bytes > 0 ?
		(packing->full_pages + on_last / usual) / packing->bytes : 0;
}

/* upper_pages -- how many pages there are above these leaf pages. */
static double
upper_pages(double leaf_pages, Size high_key)
{
	double		room = PAGE_ROOM * BTREE_NONLEAF_FILLFACTOR / 100.0;
	double		fanout = Max(floor(room / (MAXALIGN(high_key) + sizeof(ItemIdData))), 2);
	double		pages = 0;

	Assert(fanout >= 2 && !isinf(leaf_pages));

	for (double level = leaf_pages; level > 1; pages += level)
		level = ceil(level / fanout);
	return pages;
}
