/*-------------------------------------------------------------------------
 *
 * btree_build.c
 *	  Building one btree in several processes.
 *
 * The server's parallel build shares out reading the table and sorting, but one
 * process merges what they have sorted, and fills all pages.  Here each process
 * builds a part of the index, of the keys in a range:
 *
 *	 1. The leader takes a sample of the rows (btree_sample), which shows where to
 *		divide the index into parts of about the same size (btree_build_begin).
 *	 2. Each process reads the whole table, and sorts the entries of its part and
 *		fills leaf pages with them (btree_build_part).  To read all rows is cheap
 *		next to sorting, and nothing has to be passed from one to another.
 *	 3. The leader joins the parts, and fills the few pages above the leaves
 *		(btree_build_end; see btree_level.c).
 *
 * Entries are in the order of their keys, and with equal keys in that of their
 * rows, so what divides them is an entry.  An uneven division costs time and
 * nothing else.
 *
 * Only for plain indexes (see plain_index.c), and like the server when it
 * rebuilds the indexes of a table that VACUUM FULL has written: without a check
 * for duplicates.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "access/heapam.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "catalog/index.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/read_stream.h"
#include "utils/memutils.h"
#include "utils/sampling.h"
#include "utils/sortsupport.h"
#include "utils/tuplesort.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/btree_build.h"
#include "index_build/btree_level.h"

/* So many pages are looked at for each part, a row of each */
#define SAMPLE_PAGES		500
/* With fewer rows there is nothing to divide */
#define MIN_SAMPLE_ROWS		10

/* As the server has it: a tenth of a page at most is one posting list */
#define MAX_POSTING_SIZE	(MAXALIGN_DOWN(BLCKSZ * 10 / 100) - sizeof(ItemIdData))

/* An entry that stands for those of its row's page */
typedef struct SampleRow
{
	IndexTuple	entry;
	int			weight;			/* how many items the page has */
} SampleRow;

struct BtreeSample
{
	int			nrows;
	SampleRow  *rows;			/* in order */
	int64		weight;			/* of all */
	Size		largest;		/* entry */
};

struct BtreeBuild
{
	/* constant once the team is launched */
	Oid			relid;
	int			nparts;
	Size		separators;		/* where they are, one after the other */

	NewBlocksShared blocks;
	pg_atomic_uint32 parts_done;
	BtreeEnds	parts[FLEXIBLE_ARRAY_MEMBER];
};

/* The order of the index */
typedef struct KeyOrder
{
	TupleDesc	desc;
	int			nkeys;
	SortSupport support;
} KeyOrder;

/* An entry's keys, and the row it is of */
typedef struct Entry
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	ItemPointerData tid;
} Entry;

/* What it takes to make entries of rows */
typedef struct EntryMaker
{
	IndexInfo  *info;
	EState	   *estate;
	ExprState  *predicate;
	TupleTableSlot *slot;
} EntryMaker;

/* One process, while it sorts a part */
typedef struct PartSort
{
	Relation	heap;
	Relation	index;
	EntryMaker	maker;
	KeyOrder	order;
	bool		has_lower;
	bool		has_upper;
	Entry		lower;			/* the first of this part */
	Entry		upper;			/* the first of the next */
	Tuplesortstate *sort;
	IndexBuildResult counts;
	BlockNumber next;			/* block to be read */
	BlockNumber nblocks;
} PartSort;

/* For btree_level_join */
typedef struct PartsToJoin
{
	BtreeBuild *build;
	SharedFileSet *files;
} PartsToJoin;

static void take_sample(BtreeSample *sample, Relation heap, Relation index, int npages);
static HeapTuple random_row(Page page, BlockNumber blkno, pg_prng_state *random);
static void order_begin(KeyOrder *order, Relation index);
static int	compare_entries(const KeyOrder *order, Entry *left, const Datum *values,
							const bool *isnull, ItemPointer tid);
static int	compare_samples(const void *a, const void *b, void *arg);
static void take_apart(const KeyOrder *order, IndexTuple tuple, Entry *entry);
static IndexTuple separator(BtreeBuild *build, int number);
static void maker_begin(EntryMaker *maker, Relation heap, IndexInfo *info);
static bool make_entry(EntryMaker *maker, HeapTuple row, Datum *values, bool *isnull);
static void maker_end(EntryMaker *maker);
static void sort_rows(PartSort *part);
static BlockNumber next_block(ReadStream *stream, void *private_data, void *per_buffer_data);
static bool is_to_be_found(PartSort *part, HeapTuple row, Buffer buffer, TransactionId oldest_xmin);
static void sort_row(PartSort *part, HeapTuple row);
static void load_leaves(const NewBtree *btree, Tuplesortstate *sort, BtreeLevel *level);
static void add_pending(BtreeLevel *level, BTDedupState pending);
static void new_btree_begin(NewBtree *btree, BtreeBuild *build, Relation heap, Relation index);
static char *file_name(const BtreeBuild *build, int part);
static BtreeEnds *ends_of(void *state, int part);
static BufFile *downlinks_of(void *state, int part);

/*
 * btree_sample
 *		Take a sample of the rows of a heap that nobody changes, for dividing an
 *		index into so many parts at most.  Returns NULL if there are too few.
 */
BtreeSample *
btree_sample(Relation heap, Relation index, int nparts)
{
	BtreeSample *sample = palloc0_object(BtreeSample);
	KeyOrder	order;

	take_sample(sample, heap, index, nparts * SAMPLE_PAGES);
	if (sample->nrows < (DEBUG_LIMIT(btree_parts, 0) > 0 ? 1 : nparts * MIN_SAMPLE_ROWS))
		return NULL;

	order_begin(&order, index);
	qsort_arg(sample->rows, sample->nrows, sizeof(SampleRow), compare_samples, &order);
	return sample;
}

/*
 * take_sample
 *		The index's entries for random rows; one of each page at most.
 *
 * Rows that are dead are as good.
 */
static void
take_sample(BtreeSample *sample, Relation heap, Relation index, int npages)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	EntryMaker	maker;
	BlockSamplerData sampler;
	pg_prng_state random;

	maker_begin(&maker, heap, BuildIndexInfo(index));
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

		if (make_entry(&maker, row, values, isnull))
		{
			next->entry = index_form_tuple(RelationGetDescr(index), values, isnull);
			next->entry->t_tid = row->t_self;
			sample->weight += next->weight;
			sample->largest = Max(sample->largest, MAXALIGN(IndexTupleSize(next->entry)));
			sample->nrows++;
		}
		heap_freetuple(row);
	}
	maker_end(&maker);
	FreeAccessStrategy(strategy);
}

/* random_row -- a copy of one that is on this page; NULL if there is none. */
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

/*
 * btree_build_size
 *		How much shared memory a build of so many parts takes.
 */
Size
btree_build_size(const BtreeSample *sample, int nparts)
{
	return MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds)) +
		nparts * sample->largest;
}

/*
 * btree_build_begin
 *		Leader, before anybody builds a part.  The index has an empty file.
 */
void
btree_build_begin(BtreeBuild *build, const BtreeSample *sample, int nparts, Relation index)
{
	char	   *place;
	int64		passed = 0;
	int			next = 1;

	Assert(nparts > 0 && sample->nrows > 0 && sample->weight > 0);
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));

	build->relid = RelationGetRelid(index);
	build->nparts = nparts;
	build->separators = MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds));
	pg_atomic_init_u32(&build->parts_done, 0);
	for (int i = 0; i < nparts; i++)
		build->parts[i].npages = 0;

	/* a separator is the first of its part, and may be that of the next, too */
	place = (char *) build + build->separators;
	for (int i = 0; i < sample->nrows; i++)
	{
		IndexTuple	entry = sample->rows[i].entry;

		passed += sample->rows[i].weight;
		for (; next < nparts && passed > sample->weight * next / nparts; next++)
		{
			memcpy(place, entry, IndexTupleSize(entry));
			place += MAXALIGN(IndexTupleSize(entry));
		}
	}
	Assert(next == nparts);

	/* the metapage comes last, but is the first */
	if (RelationGetNumberOfBlocks(index) != 0)
		elog(ERROR, "index \"%s\" is not empty", RelationGetRelationName(index));
	new_blocks_init(&build->blocks);
	(void) new_blocks_take(index, &build->blocks, 1);
}

/*
 * btree_build_part
 *		Build one part, of at most maintenance_work_mem; return whether it is the
 *		last one to be ready.
 *
 * files has been attached to.  Raises an error if an entry is too large, as the
 * server's build does.
 */
bool
btree_build_part(BtreeBuild *build, int part, SharedFileSet *files,
				 Relation heap, Relation index, IndexInfo *info,
				 IndexBuildResult *counts)
{
	PartSort   *state = palloc0_object(PartSort);
	BufFile    *downlinks;
	BtreeLevel *level;
	NewBtree	btree;

	Assert(part >= 0 && part < build->nparts);
	Assert(build->relid == RelationGetRelid(index));
	Assert(CheckRelationLockedByMe(heap, ShareLock, true));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));

	state->heap = heap;
	state->index = index;
	order_begin(&state->order, index);
	state->has_lower = part > 0;
	state->has_upper = part < build->nparts - 1;
	if (state->has_lower)
		take_apart(&state->order, separator(build, part - 1), &state->lower);
	if (state->has_upper)
		take_apart(&state->order, separator(build, part), &state->upper);
	Assert(!state->has_lower || !state->has_upper ||
		   compare_entries(&state->order, &state->lower, state->upper.values,
						   state->upper.isnull, &state->upper.tid) <= 0);

	state->sort = tuplesort_begin_index_btree(heap, index, false, false,
											  maintenance_work_mem, NULL, TUPLESORT_NONE);
	maker_begin(&state->maker, heap, info);
	sort_rows(state);
	maker_end(&state->maker);
	tuplesort_performsort(state->sort);

	new_btree_begin(&btree, build, heap, index);
	*counts = state->counts;
	downlinks = BufFileCreateFileSet(&files->fs, file_name(build, part));
	level = btree_level_begin_leaves(&btree, downlinks, &build->parts[part]);
	load_leaves(&btree, state->sort, level);
	DEBUG_POINT("rewrite-btree-part");
	btree_level_end_leaves(level, part == build->nparts - 1);
	BufFileExportFileSet(downlinks);
	BufFileClose(downlinks);
	tuplesort_end(state->sort);

	return pg_atomic_add_fetch_u32(&build->parts_done, 1) == build->nparts;
}

/*
 * btree_build_end
 *		Leader, when all parts are ready: make a btree of them.
 */
void
btree_build_end(BtreeBuild *build, SharedFileSet *files, Relation heap, Relation index)
{
	NewBtree	btree;
	PartsToJoin state = {build, files};

	Assert(build->relid == RelationGetRelid(index));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));
	if (pg_atomic_read_u32(&build->parts_done) != build->nparts)
		elog(ERROR, "parts of index \"%s\" are missing", RelationGetRelationName(index));
	DEBUG_POINT("rewrite-btree-join");
	new_btree_begin(&btree, build, heap, index);
	btree_level_join(&btree, build->nparts, ends_of, downlinks_of, &state);
	new_blocks_sync(index, &build->blocks);
}

/* new_btree_begin -- what this process needs to know to fill pages. */
static void
new_btree_begin(NewBtree *btree, BtreeBuild *build, Relation heap, Relation index)
{
	btree->heap = heap;
	btree->index = index;
	btree->key = _bt_mkscankey(index, NULL);
	btree->key->allequalimage = _bt_allequalimage(index, false);
	btree->blocks = &build->blocks;
}

/* order_begin -- the order of an index, as tuplesort has it. */
static void
order_begin(KeyOrder *order, Relation index)
{
	BTScanInsert key = _bt_mkscankey(index, NULL);

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

/* compare_entries -- as strcmp. */
static int
compare_entries(const KeyOrder *order, Entry *left, const Datum *values,
				const bool *isnull, ItemPointer tid)
{
	for (int i = 0; i < order->nkeys; i++)
	{
		int			result = ApplySortComparator(left->values[i], left->isnull[i],
												 values[i], isnull[i],
												 &order->support[i]);

		if (result != 0)
			return result;
	}
	return ItemPointerCompare(&left->tid, tid);
}

/* compare_samples -- for qsort_arg. */
static int
compare_samples(const void *a, const void *b, void *arg)
{
	const KeyOrder *order = arg;
	Entry		left;
	Entry		right;

	CHECK_FOR_INTERRUPTS();
	take_apart(order, ((const SampleRow *) a)->entry, &left);
	take_apart(order, ((const SampleRow *) b)->entry, &right);
	return compare_entries(order, &left, right.values, right.isnull, &right.tid);
}

/* take_apart -- the keys of an index tuple, which has to stay. */
static void
take_apart(const KeyOrder *order, IndexTuple tuple, Entry *entry)
{
	for (int i = 0; i < order->nkeys; i++)
		entry->values[i] = index_getattr(tuple, i + 1, order->desc, &entry->isnull[i]);
	entry->tid = tuple->t_tid;
}

/* separator -- the first entry of the part behind this one. */
static IndexTuple
separator(BtreeBuild *build, int number)
{
	char	   *place = (char *) build + build->separators;

	Assert(number >= 0 && number < build->nparts - 1);
	for (int i = 0; i < number; i++)
		place += MAXALIGN(IndexTupleSize((IndexTuple) place));
	return (IndexTuple) place;
}

/* maker_begin -- prepare to make entries of rows. */
static void
maker_begin(EntryMaker *maker, Relation heap, IndexInfo *info)
{
	maker->info = info;
	maker->estate = CreateExecutorState();
	maker->predicate = ExecPrepareQual(info->ii_Predicate, maker->estate);
	maker->slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	GetPerTupleExprContext(maker->estate)->ecxt_scantuple = maker->slot;
}

/*
 * make_entry
 *		The values to be indexed of a row, which must stay as long as they are
 *		used.  Returns false if the index leaves out such rows.
 */
static bool
make_entry(EntryMaker *maker, HeapTuple row, Datum *values, bool *isnull)
{
	ResetPerTupleExprContext(maker->estate);
	ExecStoreHeapTuple(row, maker->slot, false);
	if (maker->predicate != NULL &&
		!ExecQual(maker->predicate, GetPerTupleExprContext(maker->estate)))
		return false;
	FormIndexDatum(maker->info, maker->slot, maker->estate, values, isnull);
	return true;
}

/* maker_end -- no more entries. */
static void
maker_end(EntryMaker *maker)
{
	ExecDropSingleTupleTableSlot(maker->slot);
	FreeExecutorState(maker->estate);
	/* they may have been made with the executor's memory */
	maker->info->ii_ExpressionsState = NIL;
	maker->info->ii_PredicateState = NULL;
}

/*
 * sort_rows
 *		Read all rows, and sort the entries of this part.
 *
 * Each is a row for itself, as VACUUM FULL leaves no chains of HOT updates, and
 * was committed before.  Nobody changes the pages, so a copy of one is as good
 * when it comes to what takes time.
 */
static void
sort_rows(PartSort *part)
{
	TransactionId oldest_xmin = GetOldestNonRemovableTransactionId(part->heap);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	ReadStream *stream;
	Buffer		buffer;

	part->nblocks = RelationGetNumberOfBlocks(part->heap);
	stream = read_stream_begin_relation(READ_STREAM_FULL | READ_STREAM_SEQUENTIAL | COMPAT_READ_STREAM_BATCHING,
										strategy, part->heap, MAIN_FORKNUM, next_block, part, 0);
	while (BufferIsValid(buffer = read_stream_next_buffer(stream, NULL)))
	{
		BlockNumber blkno = BufferGetBlockNumber(buffer);
		HeapTupleData rows[MaxHeapTuplesPerPage];
		int			nrows = 0;
		PGAlignedBlock copy;
		OffsetNumber maxoff;

		CHECK_FOR_INTERRUPTS();
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		maxoff = PageGetMaxOffsetNumber(BufferGetPage(buffer));
		for (OffsetNumber offset = FirstOffsetNumber; offset <= maxoff; offset++)
		{
			HeapTuple	row = &rows[nrows];
			ItemId		item = PageGetItemId(BufferGetPage(buffer), offset);

			if (!ItemIdIsNormal(item))
				continue;
			row->t_data = (HeapTupleHeader) PageGetItem(BufferGetPage(buffer), item);
			row->t_len = ItemIdGetLength(item);
			row->t_tableOid = RelationGetRelid(part->heap);
			ItemPointerSet(&row->t_self, blkno, offset);
			if (!is_to_be_found(part, row, buffer, oldest_xmin))
				continue;
			row->t_data = (HeapTupleHeader) (copy.data + ItemIdGetOffset(item));
			nrows++;
		}
		memcpy(copy.data, BufferGetPage(buffer), BLCKSZ);
		UnlockReleaseBuffer(buffer);

		for (int i = 0; i < nrows; i++)
			sort_row(part, &rows[i]);
	}
	read_stream_end(stream);
	FreeAccessStrategy(strategy);
}

/* next_block -- the read stream's callback: one after the other. */
static BlockNumber
next_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	PartSort   *part = private_data;

	return part->next < part->nblocks ? part->next++ : InvalidBlockNumber;
}

/*
 * is_to_be_found
 *		May anyone look for this row version?  Count it if it is no dead one.
 *
 * As in the server's own builds, those that are dead to all may be left out.
 */
static bool
is_to_be_found(PartSort *part, HeapTuple row, Buffer buffer, TransactionId oldest_xmin)
{
	if ((row->t_data->t_infomask & HEAP_XMAX_INVALID) == 0)
	{
		HTSV_Result fate = HeapTupleSatisfiesVacuum(row, oldest_xmin, buffer);

		if (fate == HEAPTUPLE_DEAD)
			return false;
		if (fate == HEAPTUPLE_RECENTLY_DEAD)
			return true;
	}
	part->counts.heap_tuples++;
	return true;
}

/* sort_row -- sort a row's entry, if it is of this part. */
static void
sort_row(PartSort *part, HeapTuple row)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	MemoryContext old;
	bool		is_ours;

	if (!make_entry(&part->maker, row, values, isnull))
		return;
	/* whatever a comparison leaves behind, goes with the row */
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(part->maker.estate));
	is_ours = (!part->has_lower ||
			   compare_entries(&part->order, &part->lower, values, isnull, &row->t_self) <= 0) &&
		(!part->has_upper ||
		 compare_entries(&part->order, &part->upper, values, isnull, &row->t_self) > 0);
	MemoryContextSwitchTo(old);
	if (!is_ours)
		return;
	tuplesort_putindextuplevalues(part->sort, part->index, &row->t_self, values, isnull);
	part->counts.index_tuples++;
}

/*
 * load_leaves
 *		Fill leaf pages with what was sorted, equal keys in posting lists where
 *		that is possible and wanted.
 */
static void
load_leaves(const NewBtree *btree, Tuplesortstate *sort, BtreeLevel *level)
{
	bool		deduplicate = btree->key->allequalimage && BTGetDeduplicateItems(btree->index);
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(btree->index);
	BTDedupStateData pending = {0};
	IndexTuple	tuple;

	pending.deduplicate = true;
	pending.maxpostingsize = MAX_POSTING_SIZE;
	pending.htids = palloc(MAX_POSTING_SIZE);

	while ((tuple = tuplesort_getindextuple(sort, true)) != NULL)
	{
		if (!deduplicate)
			btree_level_add(level, tuple, 0);
		else if (pending.base == NULL ||
				 _bt_keep_natts_fast(btree->index, pending.base, tuple) <= nkeys ||
				 !_bt_dedup_save_htid(&pending, tuple))
		{
			add_pending(level, &pending);
			_bt_dedup_start_pending(&pending, CopyIndexTuple(tuple), InvalidOffsetNumber);
		}
	}
	add_pending(level, &pending);
	pfree(pending.htids);
}

/* add_pending -- add a key that comes no more, with all of its rows, if there is one. */
static void
add_pending(BtreeLevel *level, BTDedupState pending)
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

/* file_name -- of a part's downlinks. */
static char *
file_name(const BtreeBuild *build, int part)
{
	return psprintf("%u.%d", build->relid, part);
}

/* ends_of -- for btree_level_join. */
static BtreeEnds *
ends_of(void *state, int part)
{
	PartsToJoin *join = state;

	return &join->build->parts[part];
}

/* downlinks_of -- the same. */
static BufFile *
downlinks_of(void *state, int part)
{
	PartsToJoin *join = state;

	return BufFileOpenFileSet(&join->files->fs, file_name(join->build, part), O_RDONLY, false);
}
