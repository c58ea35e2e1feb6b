/*-------------------------------------------------------------------------
 *
 * btree_collect.c
 *	  One pass over a table, which all processes share, for btrees in parts.
 *
 * Each process claims ranges of the table, makes integers of the entries of its rows
 * (key_code.c), and puts them into a segment of shared memory (btree_collect_rows).  When
 * that is done, each process takes the entries of a part at a time (btree_collect_take), and
 * sorts them.  README.md says how they lie there, and why in that order.
 *
 * Only for entries that are integers and nothing else: one that needs an index tuple points
 * into the memory of one process.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "catalog/index.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/sampling.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/btree_build.h"
#include "index_build/btree_build_private.h"
#include "index_build/entry_sort.h"
#include "index_build/key_code.h"
#include "index_build/table_rows.h"

/* How many blocks a process claims at a time */
#define RANGE_BLOCKS		32

/* How many pages are looked at for a sample, for each part, a row of each */
#define SAMPLE_PAGES		125

/* With fewer rows there is nothing to divide */
#define MIN_SAMPLE_ROWS		10

/* In case that the number of rows is an estimate, of which float4 keeps 24 bits */
#define SPARE_SHARE			0.001
#define SPARE_ENTRIES		1024

struct BtreeCollection
{
	/* constant once the team works with it */
	Size		size;			/* of the segment */
	int			nindexes;
	int			nparts;			/* of each */
	BlockNumber nblocks;
	uint32		nranges;
	Size		ranges_start;	/* for each index, where each range begins; 0:
								 * it has no entries */

	pg_atomic_uint32 next_range;	/* to be claimed */
	pg_atomic_uint64 used;		/* bytes, from the beginning */
	pg_atomic_uint64 rows;		/* that aren't dead */
};

/*
 * The entries of a range: these numbers, which say where each part ends, and then
 * the entries.
 */
typedef uint32 PartEnd;

/* One index in one process */
typedef struct CollectedIndex
{
	EntryMaker	maker;
	KeyCode    *code;
	int			nwords;
	const uint64 *separators;

	/* the entries of the range in hand, and the part that each is of */
	uint32		nentries;
	uint64	   *entries;
	uint16	   *parts;
	PartEnd    *counts;			/* of each part */
} CollectedIndex;

/* One process, while it collects */
typedef struct Collecting
{
	BtreeCollection *collection;
	CollectedIndex *indexes;
	TupleTableSlot *slot;
	BlockNumber range;			/* in hand */
} Collecting;

static void take_sample(BtreeSample *sample, Relation heap, Relation index, int npages);
static HeapTuple random_row(Page page, BlockNumber blkno, pg_prng_state *random);
static int	compare_samples(const void *a, const void *b, void *arg);
static Size head_size(int nparts);
static void collect_begin_index(Collecting *collecting, BtreePart *part, CollectedIndex *index);
static bool next_range(void *arg, BlockNumber *next, BlockNumber *end);
static bool collect_page(void *arg, HeapTuple rows, int nrows);
static void collect_row(CollectedIndex *index, HeapTuple row, int nparts);
static void end_range(Collecting *collecting);
static void write_entries(BtreeCollection *collection, CollectedIndex *index, Size *place);

/*
 * btree_sample
 *		Take a sample of the rows of a heap, which shows where to divide an index into
 *		parts of about the same size.
 *
 * An uneven division costs time and nothing else, so a row of each of a hundred
 * pages for each part is enough.
 */
BtreeSample *
btree_sample(Relation heap, Relation index, int nparts)
{
	BtreeSample *sample = palloc0_object(BtreeSample);

	Assert(CheckRelationLockedByMe(heap, ShareLock, true));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));
	Assert(nparts > 0);
	take_sample(sample, heap, index, nparts * SAMPLE_PAGES);
	if (sample->nrows < (DEBUG_LIMIT(btree_parts, 0) > 0 ? 1 : nparts * MIN_SAMPLE_ROWS))
		return NULL;
	qsort_arg(sample->rows, sample->nrows, sizeof(SampleRow), compare_samples, sample);
	return sample;
}

/*
 * take_sample
 *		The index's entries for random rows; one of each page at most.
 *
 * Dead rows are as good as live ones.
 */
static void
take_sample(BtreeSample *sample, Relation heap, Relation index, int npages)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	KeyCode    *code = key_code_begin(index);
	EntryMaker	maker;
	BlockSamplerData sampler;
	pg_prng_state random;

	Assert(!key_code_has_tuples(code));
	btree_entry_maker_begin(&maker, BuildIndexInfo(index), slot);
	pg_prng_seed(&random, heap->rd_id);
	BlockSampler_Init(&sampler, RelationGetNumberOfBlocks(heap), npages, pg_prng_uint32(&random));
	sample->nwords = key_code_words(code);
	sample->rows = palloc_array(SampleRow, npages);

	while (BlockSampler_HasMore(&sampler))
	{
		BlockNumber blkno = BlockSampler_Next(&sampler);
		SampleRow  *next = &sample->rows[sample->nrows];
		Buffer		buffer;
		HeapTuple	row;
		Datum		values[INDEX_MAX_KEYS];
		bool		isnull[INDEX_MAX_KEYS];

		CHECK_FOR_INTERRUPTS();
		buffer = ReadBufferExtended(heap, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		row = random_row(BufferGetPage(buffer), blkno, &random);
		next->weight = PageGetMaxOffsetNumber(BufferGetPage(buffer));
		UnlockReleaseBuffer(buffer);
		if (row == NULL)
			continue;

		ExecStoreHeapTuple(row, slot, false);
		if (btree_entry_make(&maker, values, isnull))
		{
			key_code_encode(code, values, isnull, &row->t_self, next->entry);
			sample->weight += next->weight;
			sample->nrows++;
		}
		ExecClearTuple(slot);
		heap_freetuple(row);
	}
	btree_entry_maker_end(&maker);
	ExecDropSingleTupleTableSlot(slot);
	FreeAccessStrategy(strategy);
}

/* random_row -- a copy of a row on this page; NULL if the random item has none. */
static HeapTuple
random_row(Page page, BlockNumber blkno, pg_prng_state *random)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	OffsetNumber offset;
	ItemId		item;
	HeapTupleData tuple;

	if (maxoff == 0)
		return NULL;
	offset = pg_prng_uint64_range(random, FirstOffsetNumber, maxoff);
	item = PageGetItemId(page, offset);
	if (!ItemIdIsNormal(item))
		return NULL;
	tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
	tuple.t_len = ItemIdGetLength(item);
	tuple.t_tableOid = InvalidOid;
	ItemPointerSet(&tuple.t_self, blkno, offset);
	return heap_copytuple(&tuple);
}

/* compare_samples -- for qsort_arg. */
static int
compare_samples(const void *a, const void *b, void *arg)
{
	const BtreeSample *sample = arg;

	return entries_compare(((const SampleRow *) a)->entry, ((const SampleRow *) b)->entry, sample->nwords);
}

/* range_place -- where it is noted where a range's entries of an index are. */
static inline Size *
range_place(BtreeCollection *collection, int number, uint32 range)
{
	Assert(number >= 0 && number < collection->nindexes);
	Assert(range < collection->nranges);
	return (Size *) ((char *) collection + collection->ranges_start) +
		(Size) number * collection->nranges + range;
}

/* head_size -- what comes before the entries of a range. */
static Size
head_size(int nparts)
{
	return MAXALIGN(nparts * sizeof(PartEnd));
}

/* btree_collection_size -- how much memory the entries of several indexes take. */
Size
btree_collection_size(double rows, BlockNumber nblocks, int nparts, int nindexes, Size entry_sizes)
{
	Size		nranges = nblocks / RANGE_BLOCKS + 1;
	Size		entries = (Size) (rows * (1 + SPARE_SHARE)) + SPARE_ENTRIES;

	Assert(rows >= 0);
	Assert(nparts > 0 && nparts <= PG_UINT16_MAX && nindexes > 0);
	Assert(entry_sizes > 0);
	return add_size(MAXALIGN(sizeof(BtreeCollection)),
					add_size(mul_size(mul_size(nindexes, nranges), sizeof(Size) + head_size(nparts)),
							 mul_size(entries, entry_sizes)));
}

/* btree_collection_begin -- prepare to collect, in zeroed memory of that size. */
void
btree_collection_begin(BtreeCollection *collection, Size size, BlockNumber nblocks, int nparts,
					   int nindexes)
{
	Assert(size > 0 && nparts > 0 && nindexes > 0);
	collection->size = size;
	collection->nindexes = nindexes;
	collection->nparts = nparts;
	collection->nblocks = nblocks;
	collection->nranges = nblocks / RANGE_BLOCKS + 1;
	collection->ranges_start = MAXALIGN(sizeof(BtreeCollection));
	memset(range_place(collection, 0, 0), 0,
		   (Size) nindexes * collection->nranges * sizeof(Size));
	pg_atomic_init_u32(&collection->next_range, 0);
	pg_atomic_init_u64(&collection->used,
					   (char *) range_place(collection, nindexes - 1, collection->nranges - 1) +
					   sizeof(Size) - (char *) collection);
	pg_atomic_init_u64(&collection->rows, 0);
}

/*
 * btree_collect_rows
 *		Every member: collect entries of these indexes as long as there are rows.
 */
void
btree_collect_rows(BtreeCollection *collection, BtreePart *parts, Relation heap)
{
	Collecting	collecting = {.collection = collection,.range = InvalidBlockNumber};
	TableRows	rows = {.heap = heap,.next_blocks = next_range,.take_page = collect_page,.arg = &collecting};

	collecting.slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	collecting.indexes = palloc0_array(CollectedIndex, collection->nindexes);
	for (int i = 0; i < collection->nindexes; i++)
		collect_begin_index(&collecting, &parts[i], &collecting.indexes[i]);
	table_rows_read(&rows);
	end_range(&collecting);
	pg_atomic_fetch_add_u64(&collection->rows, (uint64) rows.live);
	for (int i = 0; i < collection->nindexes; i++)
		btree_entry_maker_end(&collecting.indexes[i].maker);
	ExecDropSingleTupleTableSlot(collecting.slot);
}

/* collect_begin_index -- prepare to collect entries of an index. */
static void
collect_begin_index(Collecting *collecting, BtreePart *part, CollectedIndex *index)
{
	BtreeCollection *collection = collecting->collection;
	Size		capacity = RANGE_BLOCKS * MaxHeapTuplesPerPage;

	Assert(part->build->nparts == collection->nparts);
	btree_entry_maker_begin(&index->maker, part->info, collecting->slot);
	index->code = key_code_begin(part->index);
	Assert(!key_code_has_tuples(index->code));
	index->nwords = key_code_words(index->code);
	index->entries = palloc_array(uint64, capacity * index->nwords);
	index->parts = palloc_array(uint16, capacity);
	index->counts = palloc0_array(PartEnd, collection->nparts);
	index->separators = btree_separators(part->build);
}

/* next_range -- for table_rows_read: claim blocks. */
static bool
next_range(void *arg, BlockNumber *next, BlockNumber *end)
{
	Collecting *collecting = arg;
	BtreeCollection *collection = collecting->collection;
	uint32		range = pg_atomic_fetch_add_u32(&collection->next_range, 1);

	if (range >= collection->nranges || range * RANGE_BLOCKS >= collection->nblocks)
		return false;
	*next = range * RANGE_BLOCKS;
	*end = *next + Min(RANGE_BLOCKS, collection->nblocks - *next);
	return true;
}

/* collect_page -- for table_rows_read: make entries of the rows of a page. */
static bool
collect_page(void *arg, HeapTuple rows, int nrows)
{
	Collecting *collecting = arg;
	BtreeCollection *collection = collecting->collection;
	BlockNumber range;

	if (nrows == 0)
		return true;
	range = ItemPointerGetBlockNumber(&rows[0].t_self) / RANGE_BLOCKS;
	if (range != collecting->range)
		end_range(collecting);
	collecting->range = range;

	for (int i = 0; i < nrows; i++)
	{
		ExecStoreHeapTuple(&rows[i], collecting->slot, false);
		for (int j = 0; j < collection->nindexes; j++)
			collect_row(&collecting->indexes[j], &rows[i], collection->nparts);
	}
	ExecClearTuple(collecting->slot);
	return true;
}

/* collect_row -- make the entry of the row in the slot, and find the part that it is of. */
static void
collect_row(CollectedIndex *index, HeapTuple row, int nparts)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	uint64	   *entry = index->entries + (Size) index->nentries * index->nwords;
	int			low = 0;
	int			high = nparts - 1;

	if (!btree_entry_make(&index->maker, values, isnull))
		return;
	key_code_encode(index->code, values, isnull, &row->t_self, entry);
	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (entries_compare(index->separators + middle * index->nwords, entry, index->nwords) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	index->parts[index->nentries++] = low;
	index->counts[low]++;
}

/* end_range -- put the entries of the range in hand into shared memory. */
static void
end_range(Collecting *collecting)
{
	BtreeCollection *collection = collecting->collection;

	if (collecting->range == InvalidBlockNumber)
		return;
	for (int i = 0; i < collection->nindexes; i++)
	{
		CollectedIndex *index = &collecting->indexes[i];

		if (index->nentries > 0)
			write_entries(collection, index, range_place(collection, i, collecting->range));
	}
}

/* write_entries -- those of an index. */
static void
write_entries(BtreeCollection *collection, CollectedIndex *index, Size *place)
{
	int			nwords = index->nwords;
	int			nparts = collection->nparts;
	Size		size = head_size(nparts) + (Size) index->nentries * nwords * sizeof(uint64);
	Size		start = pg_atomic_fetch_add_u64(&collection->used, size);
	PartEnd    *ends = (PartEnd *) ((char *) collection + start);
	uint64	   *entries = (uint64 *) ((char *) collection + start + head_size(nparts));
	PartEnd		before = 0;

	Assert(*place == 0);
	/* its room is for as many rows as were copied */
	if (start + size > collection->size)
		elog(ERROR, "there are more entries than rows of a table");
	for (int part = 0; part < nparts; part++)
	{
		ends[part] = before;
		before += index->counts[part];
	}
	for (uint32 i = 0; i < index->nentries; i++)
	{
		uint64	   *to = entries + (Size) ends[index->parts[i]]++ * nwords;

		entries_copy(to, index->entries + (Size) i * nwords, nwords);
	}
	Assert(ends[nparts - 1] == index->nentries);
	*place = start;
	index->nentries = 0;
	memset(index->counts, 0, nparts * sizeof(PartEnd));
}

/*
 * btree_collect_take
 *		Begin to sort the entries of a part: take them out of the collection.
 *
 * With what the segment leaves of this process's memory; the sort takes as much again.
 */
void
btree_collect_take(BtreeCollection *collection, PartSort *sort)
{
	BtreePart  *part = sort->part;
	int			nwords = key_code_words(sort->code);
	Size		memory = (Size) maintenance_work_mem * 1024;
	Size		share = collection->size / part->nsharing;
	Size		room = memory > share ? memory - share : 0;
	Size		total = 0;

	Assert(collection != NULL && sort->sort == NULL);
	Assert(!key_code_has_tuples(sort->code));
	Assert(part->number >= 0 && part->number < collection->nparts);
	for (int pass = 0; pass < 2; pass++)
	{
		if (pass == 1)
			sort->sort = entry_sort_begin(nwords, key_code_tail_bits(sort->code),
										  Max(Min(total, room / 2 / (nwords * sizeof(uint64))), 1));
		for (uint32 range = 0; range < collection->nranges; range++)
		{
			Size		start = *range_place(collection, part->collected, range);
			const PartEnd *ends = (const PartEnd *) ((char *) collection + start);
			PartEnd		before;

			if (start == 0)
				continue;
			before = part->number == 0 ? 0 : ends[part->number - 1];
			if (pass == 1)
				entry_sort_put_all(sort->sort,
								   (const uint64 *) ((const char *) ends + head_size(collection->nparts)) +
								   (Size) before * nwords,
								   ends[part->number] - before);
			else
				total += ends[part->number] - before;
			CHECK_FOR_INTERRUPTS();
		}
	}
	part->counts.index_tuples = total;
	part->counts.heap_tuples = pg_atomic_read_u64(&collection->rows);
}
