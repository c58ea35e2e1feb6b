/*-------------------------------------------------------------------------
 *
 * btree_build.c
 *	  Building btrees, each whole or in parts by several processes.
 *
 * The server's parallel build shares out reading the table and sorting, but one
 * process merges what they have sorted, and fills all pages.  Here each process
 * builds a part of the index, of the keys in a range:
 *
 *	 1. The leader takes a sample of the rows (btree_sample), which shows where to
 *		divide the index into parts of about the same size (btree_build_begin).
 *	 2. Each process reads the whole table, and sorts the entries of its part and
 *		fills leaf pages with them (btree_build_parts).  To read all rows is cheap
 *		next to sorting, and nothing has to be passed from one to another.
 *	 3. The leader joins the parts, and fills the few pages above the leaves
 *		(btree_build_end; see btree_level.c).
 *
 * An index of one part is built by one process from beginning to end.
 *
 * Entries are in the order of their keys, and with equal keys in that of their
 * rows, so what divides them is an entry.  An uneven division costs time and
 * nothing else.
 *
 * Where integers have the order of an index (key_code.c), we sort these
 * (entry_sort.c), and one pass over the table is enough for several indexes.
 * Otherwise the server's tuplesort has the entries.  If integers are only the
 * beginning of the keys, the tuples are kept in memory with them; if that turns out
 * to be too little, or integers tell too little, the sort is given up, and done
 * by the server after another pass.
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
#include "access/parallel.h"
#include "access/table.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "pgstat.h"
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
#include "guards/guards.h"
#include "index_build/btree_build.h"
#include "index_build/btree_level.h"
#include "index_build/entry_sort.h"
#include "index_build/key_code.h"
#include "report/progress.h"

/* So many pages are looked at for each part, a row of each */
#define SAMPLE_PAGES		500
/* With fewer rows there is nothing to divide */
#define MIN_SAMPLE_ROWS		10

/* As the server has it: a tenth of a page at most is one posting list */
#define MAX_POSTING_SIZE	(MAXALIGN_DOWN(BLCKSZ * 10 / 100) - sizeof(ItemIdData))

/* At so many entries it is asked for the first time whether abbreviations are of use */
#define FIRST_LOOK			1000

/* Tuples are given memory in pieces of this size at most, as what is begun counts */
#define MAX_TUPLES_BLOCK	(256 * 1024)

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

/* What it takes to make entries of the rows in a slot */
typedef struct EntryMaker
{
	IndexInfo  *info;
	EState	   *estate;
	ExprState  *predicate;
	TupleTableSlot *slot;
} EntryMaker;

/* One process, while it sorts a part: either by itself, or the server does */
typedef struct PartSort
{
	BtreePart  *part;
	EntryMaker	maker;
	KeyOrder	order;
	bool		has_lower;
	bool		has_upper;
	Entry		lower;			/* the first of this part */
	Entry		upper;			/* the first of the next */
	Tuplesortstate *server_sort;

	KeyCode    *code;			/* NULL: the server sorts */
	EntrySort  *sort;
	MemoryContext tuples;		/* that entries point at; NULL if they don't */
	Size		max_tuples;		/* bytes */
	int			next_look;		/* whether it is worth while, at so many */
	bool		is_given_up;	/* the server is to sort */
	uint64		coded_lower[ENTRY_MAX_WORDS];
	uint64		coded_upper[ENTRY_MAX_WORDS];
} PartSort;

/* One process, while it reads the table once for several parts */
typedef struct TablePass
{
	Relation	heap;
	TupleTableSlot *slot;
	double		rows;			/* that aren't dead */
	int			nsorts;
	PartSort   *sorts;
	BlockNumber next;			/* block to be read */
	BlockNumber nblocks;
} TablePass;

/* For btree_level_join */
typedef struct PartsToJoin
{
	BtreeBuild *build;
	SharedFileSet *files;
	BufFile    *only;			/* if there is one part */
} PartsToJoin;

static void take_sample(BtreeSample *sample, Relation heap, Relation index, int npages);
static HeapTuple random_row(Page page, BlockNumber blkno, pg_prng_state *random);
static void order_begin(KeyOrder *order, Relation index);
static int	compare_entries(const KeyOrder *order, Entry *left, const Datum *values,
							const bool *isnull, ItemPointer tid);
static int	compare_samples(const void *a, const void *b, void *arg);
static void take_apart(const KeyOrder *order, IndexTuple tuple, Entry *entry);
static IndexTuple separator(BtreeBuild *build, int number);
static void maker_begin(EntryMaker *maker, IndexInfo *info, TupleTableSlot *slot);
static bool make_entry(EntryMaker *maker, Datum *values, bool *isnull);
static void maker_end(EntryMaker *maker);
static void begin_sort(TablePass *pass, BtreePart *part, PartSort *sort);
static void share_memory(TablePass *pass);
static void give_up(PartSort *sort);
static int	compare_ties(const void *a, const void *b, void *arg);
static void encode_separator(PartSort *sort, const Entry *separator, uint64 *entry);
static void join(BtreeBuild *build, SharedFileSet *files, BufFile *only, Relation heap,
				 Relation index);
static void build_part(TablePass *pass, PartSort *sort, SharedFileSet *files);
static void sort_rows(TablePass *pass);
static bool has_sorts(const TablePass *pass);
static BlockNumber next_block(ReadStream *stream, void *private_data, void *per_buffer_data);
static bool is_to_be_found(TablePass *pass, HeapTuple row, Buffer buffer, TransactionId oldest_xmin);
static void sort_row(PartSort *sort, HeapTuple row);
static bool add_tuple(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull,
					  uint64 *entry);
static bool is_of_part(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull,
					   uint64 *entry);
static int	compare_coded(PartSort *sort, const uint64 *coded, Entry *separator,
						  const uint64 *entry, const Datum *values, const bool *isnull,
						  ItemPointer tid);
static void load_leaves(const NewBtree *btree, PartSort *sort, BtreeLevel *level);
static void load_sorted_by_server(const NewBtree *btree, Tuplesortstate *sort, BtreeLevel *level);
static void load_entries(const NewBtree *btree, PartSort *sort, BtreeLevel *level);
static bool have_same_keys(const NewBtree *btree, PartSort *sort, const uint64 *left,
						   const uint64 *right);
static IndexTuple tuple_of_entry(const NewBtree *btree, PartSort *sort, const uint64 *entry);
static IndexTuple tuple_of_row(const NewBtree *btree, EntryMaker *maker, ItemPointer tid);
static bool wants_posting_lists(const NewBtree *btree);
static void start_pending(BTDedupState pending);
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
	TupleTableSlot *slot;
	EntryMaker	maker;
	BlockSamplerData sampler;
	pg_prng_state random;

	slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	maker_begin(&maker, BuildIndexInfo(index), slot);
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
		if (make_entry(&maker, values, isnull))
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
	maker_end(&maker);
	ExecDropSingleTupleTableSlot(slot);
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
 *		How much shared memory a build of so many parts takes.  One of a single
 *		part needs no sample.
 */
Size
btree_build_size(const BtreeSample *sample, int nparts)
{
	return MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds)) +
		(nparts - 1) * (sample ? sample->largest : 0);
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

	Assert(nparts == 1 || (sample->nrows > 0 && sample->weight > 0));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));

	build->relid = RelationGetRelid(index);
	build->nparts = nparts;
	build->separators = MAXALIGN(offsetof(BtreeBuild, parts) + nparts * sizeof(BtreeEnds));
	pg_atomic_init_u32(&build->parts_done, 0);
	for (int i = 0; i < nparts; i++)
		build->parts[i].npages = 0;

	/* a separator is the first of its part, and may be that of the next, too */
	place = (char *) build + build->separators;
	for (int i = 0; nparts > 1 && i < sample->nrows; i++)
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
 * btree_build_parts
 *		Build parts of different indexes, with one pass over the table, and at most
 *		maintenance_work_mem, and count the indexes that are ready by it.
 *
 * If there are several, all of them are built by_code.  files has been attached
 * to, if any index has more than one part.  An index of one part is whole then.
 * Raises an error if an entry is too large, as the server's build does.
 */
void
btree_build_parts(BtreePart *parts, int nparts, SharedFileSet *files, Relation heap)
{
	TablePass	pass = {.heap = heap,.nsorts = nparts};
	instr_time	start;

	Assert(CheckRelationLockedByMe(heap, ShareLock, true));
	pass.slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	pass.nblocks = RelationGetNumberOfBlocks(heap);
	pass.sorts = palloc0_array(PartSort, nparts);
	for (int i = 0; i < nparts; i++)
		begin_sort(&pass, &parts[i], &pass.sorts[i]);
	share_memory(&pass);

	INSTR_TIME_SET_CURRENT(start);
	sort_rows(&pass);
	for (int i = 0; i < nparts; i++)
		parts[i].seconds = seconds_since(start) / nparts;
	for (int i = 0; i < nparts; i++)
	{
		if (pass.sorts[i].is_given_up)
			continue;
		INSTR_TIME_SET_CURRENT(start);
		progress_index(RelationGetRelid(parts[i].index), 0);
		parts[i].counts.heap_tuples = pass.rows;
		build_part(&pass, &pass.sorts[i], files);
		parts[i].seconds += seconds_since(start);
	}
	for (int i = 0; i < nparts; i++)
		if (pass.sorts[i].is_given_up)
		{
			double		wasted = parts[i].seconds;

			maker_end(&pass.sorts[i].maker);
			parts[i].by_code = false;
			parts[i].counts.index_tuples = 0;
			btree_build_parts(&parts[i], 1, files, heap);
			parts[i].seconds += wasted;
		}
	ExecDropSingleTupleTableSlot(pass.slot);
}

/*
 * begin_sort
 *		Prepare to sort the entries of a part.
 */
static void
begin_sort(TablePass *pass, BtreePart *part, PartSort *sort)
{
	BtreeBuild *build = part->build;

	Assert(part->number >= 0 && part->number < build->nparts);
	Assert(build->relid == RelationGetRelid(part->index));
	Assert(CheckRelationLockedByMe(part->index, AccessExclusiveLock, true));

	sort->part = part;
	maker_begin(&sort->maker, part->info, pass->slot);
	order_begin(&sort->order, part->index);
	sort->has_lower = part->number > 0;
	sort->has_upper = part->number < build->nparts - 1;
	if (sort->has_lower)
		take_apart(&sort->order, separator(build, part->number - 1), &sort->lower);
	if (sort->has_upper)
		take_apart(&sort->order, separator(build, part->number), &sort->upper);
	Assert(!sort->has_lower || !sort->has_upper ||
		   compare_entries(&sort->order, &sort->lower, sort->upper.values,
						   sort->upper.isnull, &sort->upper.tid) <= 0);

	if (!part->by_code)
	{
		Assert(pass->nsorts == 1);
		sort->server_sort = tuplesort_begin_index_btree(pass->heap, part->index, false, false,
														maintenance_work_mem, NULL, TUPLESORT_NONE);
		return;
	}
	sort->code = key_code_begin(part->index);
	if (sort->code == NULL)
	{
		/* somebody may have added a value to an enum meanwhile */
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

/* encode_separator -- the first entry of a part as an integer. */
static void
encode_separator(PartSort *sort, const Entry *separator, uint64 *entry)
{
	ItemPointerData tid = separator->tid;

	key_code_encode(sort->code, separator->values, separator->isnull, &tid, entry);
}

/*
 * share_memory
 *		Begin the sorts of a pass that are our own, each with room for as many
 *		entries, and one at a time with as much again.
 */
static void
share_memory(TablePass *pass)
{
	Size		total = 0;
	Size		largest = 0;
	Size		capacity;

	for (int i = 0; i < pass->nsorts; i++)
		if (pass->sorts[i].code != NULL)
		{
			Size		size = key_code_words(pass->sorts[i].code) * sizeof(uint64);

			total += size + pass->sorts[i].part->tuple_size;
			largest = Max(largest, size);
		}
	if (total == 0)
		return;
	capacity = (Size) maintenance_work_mem * 1024 / (total + largest);
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

/*
 * build_part
 *		Fill the leaf pages of a part whose entries are all there.
 */
static void
build_part(TablePass *pass, PartSort *sort, SharedFileSet *files)
{
	BtreePart  *part = sort->part;
	BtreeBuild *build = part->build;
	bool		is_whole = build->nparts == 1;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pages of a btree",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	BufFile    *downlinks;
	BtreeLevel *level;
	NewBtree	btree;

	if (sort->code == NULL)
		tuplesort_performsort(sort->server_sort);
	else
	{
		DEBUG_POINT("rewrite-entry-sort");
		entry_sort_perform(sort->sort);
		if (sort->tuples != NULL)
			entry_sort_end_ties(sort->sort, compare_ties, sort);
	}

	new_btree_begin(&btree, build, pass->heap, part->index);
	downlinks = is_whole ? BufFileCreateTemp(false) :
		BufFileCreateFileSet(&files->fs, file_name(build, part->number));
	level = btree_level_begin_leaves(&btree, downlinks, &build->parts[part->number]);
	load_leaves(&btree, sort, level);
	maker_end(&sort->maker);
	DEBUG_POINT("rewrite-btree-part");
	btree_level_end_leaves(level, part->number == build->nparts - 1);
	if (!is_whole)
	{
		BufFileExportFileSet(downlinks);
		BufFileClose(downlinks);
	}
	if (sort->code != NULL)
		entry_sort_end(sort->sort);
	else
		tuplesort_end(sort->server_sort);
	if (sort->tuples != NULL)
		MemoryContextDelete(sort->tuples);

	if (is_whole)
		join(build, NULL, downlinks, pass->heap, part->index);
	if (pg_atomic_add_fetch_u32(&build->parts_done, 1) == build->nparts)
	{
		uint32		ndone = pg_atomic_add_fetch_u32(part->ndone, 1);

		if (!IsParallelWorker())
			pgstat_progress_update_param(PROGRESS_REPACK_INDEX_REBUILD_COUNT, ndone);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * btree_build_end
 *		Leader, when all parts are ready: make a btree of them.
 */
void
btree_build_end(BtreeBuild *build, SharedFileSet *files, Relation heap, Relation index)
{
	Assert(build->relid == RelationGetRelid(index));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));
	if (pg_atomic_read_u32(&build->parts_done) != build->nparts)
		elog(ERROR, "parts of index \"%s\" are missing", RelationGetRelationName(index));
	/* who has built the only part has done the rest */
	if (build->nparts > 1)
		join(build, files, NULL, heap, index);
}

/* join -- make a btree of all parts. */
static void
join(BtreeBuild *build, SharedFileSet *files, BufFile *only, Relation heap, Relation index)
{
	PartsToJoin state = {build, files, only};
	NewBtree	btree;

	DEBUG_POINT("rewrite-btree-join");
	new_btree_begin(&btree, build, heap, index);
	btree_level_join(&btree, build->nparts, ends_of, downlinks_of, &state);
	/* a file with downlinks is closed by now */
	if (only != NULL && build->parts[0].npages < 2)
		BufFileClose(only);
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

/* maker_begin -- prepare to make entries of the rows that come into a slot. */
static void
maker_begin(EntryMaker *maker, IndexInfo *info, TupleTableSlot *slot)
{
	maker->info = info;
	maker->estate = CreateExecutorState();
	maker->predicate = ExecPrepareQual(info->ii_Predicate, maker->estate);
	maker->slot = slot;
	GetPerTupleExprContext(maker->estate)->ecxt_scantuple = slot;
}

/*
 * make_entry
 *		The values to be indexed of the row in the slot, which must stay as long as
 *		they are used.  Returns false if the index leaves out such rows.
 */
static bool
make_entry(EntryMaker *maker, Datum *values, bool *isnull)
{
	ResetPerTupleExprContext(maker->estate);
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
	FreeExecutorState(maker->estate);
	/* they may have been made with the executor's memory */
	maker->info->ii_ExpressionsState = NIL;
	maker->info->ii_PredicateState = NULL;
}

/*
 * sort_rows
 *		Read all rows, and sort the entries of each part.
 *
 * Each is a row for itself, as VACUUM FULL leaves no chains of HOT updates, and
 * was committed before.  Nobody changes the pages, so a copy of one is as good
 * when it comes to what takes time.
 */
static void
sort_rows(TablePass *pass)
{
	TransactionId oldest_xmin = GetOldestNonRemovableTransactionId(pass->heap);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	ReadStream *stream;
	Buffer		buffer;

	stream = read_stream_begin_relation(READ_STREAM_FULL | READ_STREAM_SEQUENTIAL | COMPAT_READ_STREAM_BATCHING,
										strategy, pass->heap, MAIN_FORKNUM, next_block, pass, 0);
	guards_begin_pins();
	while (has_sorts(pass) &&
		   (BufferIsValid(buffer = read_stream_next_buffer(stream, NULL)) ||
			BufferIsValid(buffer = guards_resume_stream(stream, NULL, NULL))))
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
			row->t_tableOid = RelationGetRelid(pass->heap);
			ItemPointerSet(&row->t_self, blkno, offset);
			if (!is_to_be_found(pass, row, buffer, oldest_xmin))
				continue;
			row->t_data = (HeapTupleHeader) (copy.data + ItemIdGetOffset(item));
			nrows++;
		}
		memcpy(copy.data, BufferGetPage(buffer), BLCKSZ);
		UnlockReleaseBuffer(buffer);

		for (int i = 0; i < nrows; i++)
		{
			ExecStoreHeapTuple(&rows[i], pass->slot, false);
			for (int j = 0; j < pass->nsorts; j++)
				sort_row(&pass->sorts[j], &rows[i]);
		}
		ExecClearTuple(pass->slot);
	}
	/* if all have given up */
	guards_drop_stream();
	guards_end_pins();
	read_stream_end(stream);
	FreeAccessStrategy(strategy);
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

/* next_block -- the read stream's callback: one after the other. */
static BlockNumber
next_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	TablePass  *pass = private_data;

	return pass->next < pass->nblocks && !guards_cut_stream() ? pass->next++ : InvalidBlockNumber;
}

/*
 * is_to_be_found
 *		May anyone look for this row version?  Count it if it is no dead one.
 *
 * As in the server's own builds, those that are dead to all may be left out.
 */
static bool
is_to_be_found(TablePass *pass, HeapTuple row, Buffer buffer, TransactionId oldest_xmin)
{
	if ((row->t_data->t_infomask & HEAP_XMAX_INVALID) == 0)
	{
		HTSV_Result fate = HeapTupleSatisfiesVacuum(row, oldest_xmin, buffer);

		if (fate == HEAPTUPLE_DEAD)
			return false;
		if (fate == HEAPTUPLE_RECENTLY_DEAD)
			return true;
	}
	pass->rows++;
	return true;
}

/* sort_row -- sort the entry of the row in the slot, if it is of this part. */
static void
sort_row(PartSort *sort, HeapTuple row)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	uint64		entry[ENTRY_MAX_WORDS];

	if (sort->is_given_up || !make_entry(&sort->maker, values, isnull) ||
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

/*
 * add_tuple
 *		Sort an entry with its index tuple.  Returns false if the server is to do
 *		it.
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

/* compare_ties -- of entries that are equal as integers, for qsort_arg. */
static int
compare_ties(const void *a, const void *b, void *arg)
{
	PartSort   *sort = arg;
	Entry		left;
	Entry		right;

	CHECK_FOR_INTERRUPTS();
	take_apart(&sort->order, key_code_tuple(sort->code, a), &left);
	take_apart(&sort->order, key_code_tuple(sort->code, b), &right);
	return compare_entries(&sort->order, &left, right.values, right.isnull, &right.tid);
}

/* is_of_part -- is a row's entry?  If we sort by ourselves, returns that as an integer. */
static bool
is_of_part(PartSort *sort, HeapTuple row, const Datum *values, const bool *isnull, uint64 *entry)
{
	/* whatever a comparison leaves behind, goes with the row */
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
			   compare_entries(&sort->order, &sort->lower, values, isnull, &row->t_self) <= 0) &&
		(!sort->has_upper ||
		 compare_entries(&sort->order, &sort->upper, values, isnull, &row->t_self) > 0);
	MemoryContextSwitchTo(old);
	return is_ours;
}

/* compare_coded -- a separator with an entry, as strcmp. */
static int
compare_coded(PartSort *sort, const uint64 *coded, Entry *separator, const uint64 *entry,
			  const Datum *values, const bool *isnull, ItemPointer tid)
{
	if (sort->tuples != NULL && key_code_same_keys(sort->code, coded, entry))
		return compare_entries(&sort->order, separator, values, isnull, tid);
	return entries_compare(coded, entry, key_code_words(sort->code));
}

/*
 * load_leaves
 *		Fill leaf pages with what was sorted, equal keys in posting lists where
 *		that is possible and wanted.
 */
static void
load_leaves(const NewBtree *btree, PartSort *sort, BtreeLevel *level)
{
	if (sort->code != NULL)
		load_entries(btree, sort, level);
	else
		load_sorted_by_server(btree, sort->server_sort, level);
}

/* wants_posting_lists -- are equal keys stored once? */
static bool
wants_posting_lists(const NewBtree *btree)
{
	return btree->key->allequalimage && BTGetDeduplicateItems(btree->index);
}

/* start_pending -- there may be posting lists. */
static void
start_pending(BTDedupState pending)
{
	memset(pending, 0, sizeof(*pending));
	pending->deduplicate = true;
	pending->maxpostingsize = MAX_POSTING_SIZE;
	pending->htids = palloc(MAX_POSTING_SIZE);
}

/* load_sorted_by_server -- with what the server has sorted. */
static void
load_sorted_by_server(const NewBtree *btree, Tuplesortstate *sort, BtreeLevel *level)
{
	bool		deduplicate = wants_posting_lists(btree);
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(btree->index);
	BTDedupStateData pending;
	IndexTuple	tuple;

	start_pending(&pending);
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

/*
 * load_entries
 *		With entries that we have sorted, as load_sorted_by_server.
 */
static void
load_entries(const NewBtree *btree, PartSort *sort, BtreeLevel *level)
{
	bool		deduplicate = wants_posting_lists(btree);
	int			nwords = key_code_words(sort->code);
	BTDedupStateData pending;
	const uint64 *next = entry_sort_next(sort->sort);

	start_pending(&pending);
	while (next != NULL)
	{
		uint64		entry[ENTRY_MAX_WORDS];
		IndexTuple	tuple;

		memcpy(entry, next, nwords * sizeof(uint64));
		next = entry_sort_next(sort->sort);
		tuple = tuple_of_entry(btree, sort, entry);
		if (pending.base != NULL && !_bt_dedup_save_htid(&pending, tuple))
			add_pending(level, &pending);
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
			add_pending(level, &pending);
	}
	Assert(pending.base == NULL);
	pfree(pending.htids);
}

/* have_same_keys -- two entries, as far as posting lists go. */
static bool
have_same_keys(const NewBtree *btree, PartSort *sort, const uint64 *left, const uint64 *right)
{
	return key_code_same_keys(sort->code, left, right) &&
		(sort->tuples == NULL ||
		 _bt_keep_natts_fast(btree->index, key_code_tuple(sort->code, left),
							 key_code_tuple(sort->code, right)) >
		 IndexRelationGetNumberOfKeyAttributes(btree->index));
}

/* tuple_of_entry -- valid until the next call. */
static IndexTuple
tuple_of_entry(const NewBtree *btree, PartSort *sort, const uint64 *entry)
{
	ItemPointerData tid;

	if (likely(key_code_is_exact(sort->code, entry)))
		return key_code_tuple(sort->code, entry);
	key_code_tid(sort->code, entry, &tid);
	return tuple_of_row(btree, &sort->maker, &tid);
}

/*
 * tuple_of_row
 *		Make an index tuple of a row of which only the place is known.
 */
static IndexTuple
tuple_of_row(const NewBtree *btree, EntryMaker *maker, ItemPointer tid)
{
	Buffer		buffer = ReadBuffer(btree->heap, ItemPointerGetBlockNumber(tid));
	MemoryContext old;
	HeapTupleData row;
	HeapTuple	copy;
	ItemId		item;
	IndexTuple	tuple;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	item = PageGetItemId(BufferGetPage(buffer), ItemPointerGetOffsetNumber(tid));
	row.t_data = (HeapTupleHeader) PageGetItem(BufferGetPage(buffer), item);
	row.t_len = ItemIdGetLength(item);
	row.t_tableOid = RelationGetRelid(btree->heap);
	row.t_self = *tid;
	copy = heap_copytuple(&row);
	UnlockReleaseBuffer(buffer);

	ExecStoreHeapTuple(copy, maker->slot, false);
	if (!make_entry(maker, values, isnull))
		elog(ERROR, "row of an entry of index \"%s\" is not to be indexed",
			 RelationGetRelationName(btree->index));
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(maker->estate));
	tuple = index_form_tuple(RelationGetDescr(btree->index), values, isnull);
	MemoryContextSwitchTo(old);
	tuple->t_tid = *tid;
	ExecClearTuple(maker->slot);
	heap_freetuple(copy);
	return tuple;
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

	if (join->only != NULL)
	{
		if (BufFileSeek(join->only, 0, 0, SEEK_SET) != 0)
			elog(ERROR, "could not rewind a temporary file");
		return join->only;
	}
	return BufFileOpenFileSet(&join->files->fs, file_name(join->build, part), O_RDONLY, false);
}
