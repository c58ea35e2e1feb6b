/*-------------------------------------------------------------------------
 *
 * btree_sample.c
 *	  A sample of the rows of a table, which shows where to divide an index of
 *	  it into parts of about the same size.
 *
 * An uneven division costs time and nothing else, so a row of each of a few
 * hundred pages for each part is enough.  btree_build_begin uses the sample.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "catalog/index.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/sampling.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/btree_build.h"
#include "index_build/btree_build_private.h"

/* How many pages are looked at for each part, a row of each */
#define SAMPLE_PAGES		500

/* With fewer rows there is nothing to divide */
#define MIN_SAMPLE_ROWS		10

static void take_sample(BtreeSample *sample, Relation heap, Relation index, int npages);
static HeapTuple random_row(Page page, BlockNumber blkno, pg_prng_state *random);
static int	compare_samples(const void *a, const void *b, void *arg);

/* btree_sample -- take a sample of the rows of a heap, to divide an index. */
BtreeSample *
btree_sample(Relation heap, Relation index, int nparts)
{
	BtreeSample *sample = palloc0_object(BtreeSample);
	KeyOrder	order;

	Assert(CheckRelationLockedByMe(heap, ShareLock, true));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));
	Assert(nparts > 0);
	take_sample(sample, heap, index, nparts * SAMPLE_PAGES);
	if (sample->nrows < (DEBUG_LIMIT(btree_parts, 0) > 0 ? 1 : nparts * MIN_SAMPLE_ROWS))
		return NULL;

	btree_entry_order(&order, index);
	qsort_arg(sample->rows, sample->nrows, sizeof(SampleRow), compare_samples, &order);
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
	TupleTableSlot *slot;
	EntryMaker	maker;
	BlockSamplerData sampler;
	pg_prng_state random;

	slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	btree_entry_maker_begin(&maker, BuildIndexInfo(index), slot);
	pg_prng_seed(&random, heap->rd_id);
	BlockSampler_Init(&sampler, RelationGetNumberOfBlocks(heap), npages, pg_prng_uint32(&random));
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
			next->entry = index_form_tuple(RelationGetDescr(index), values, isnull);
			next->entry->t_tid = row->t_self;
			sample->weight += next->weight;
			sample->largest = Max(sample->largest, MAXALIGN(IndexTupleSize(next->entry)));
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
	const KeyOrder *order = arg;
	Entry		left;
	Entry		right;

	CHECK_FOR_INTERRUPTS();
	btree_entry_take_apart(order, ((const SampleRow *) a)->entry, &left);
	btree_entry_take_apart(order, ((const SampleRow *) b)->entry, &right);
	return btree_entry_compare(order, &left, right.values, right.isnull, &right.tid);
}
