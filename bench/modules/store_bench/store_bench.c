/*-------------------------------------------------------------------------
 *
 * store_bench.c
 *	  Times look-ups in the dead-TID store and in the server's TidStore.
 *
 * A made-up table has the same number of items on each page, some of them
 * dead.  Its TIDs are written down in the order in which an index would have
 * them, and looked up in batches of an index page.  The server's own VACUUM
 * asks its store once an item, through the pointer to a callback, so that is
 * what is timed here; ours is asked for one item, and for a batch.
 *
 * Only the look-ups are timed.  The ways to look up take turns, so that what
 * else goes on in the machine strikes all of them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tidstore.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "engine/dead_tids.h"

PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(store_bench);

/* For either store; more than any table here needs */
#define STORE_LIMIT			((Size) 4 * 1024 * 1024 * 1024)
/* As many values as the column in the cases with duplicates has */
#define KEYS				1000
#define MAX_BATCH			10000
/* What is random is the same in each call */
#define SEED				2026

/* The items of the made-up table, numbered through from page to page */
typedef struct Table
{
	BlockNumber nblocks;
	int			page_items;
	Size		nitems;
	Size		ndead;
	bool	   *dead;			/* by number */
	ItemPointerData *tids;		/* all, in the order of the index */
} Table;

/* Both stores with the dead items of the table in them */
typedef struct Stores
{
	TidStore   *core;
	DeadTids   *ours;
	MemoryContext context;		/* of ours, with its memory if that is private */
	dsm_segment *segment;		/* else */
} Stores;

/* A way to look up: return how many of these items are dead. */
typedef int64 (*LookUp) (Stores *stores, const ItemPointerData *tids, int ntids);

/* As the server's vac_tid_reaped, which index access methods get */
typedef bool (*TidCallback) (ItemPointer tid, void *state);

static void make_table(Table *table, const char *pattern);
static bool make_dead(pg_prng_state *random, const Table *table,
					  const char *pattern, Size number);
static void order_tids(Table *table, const char *order);
static void set_tid(Table *table, Size place, Size number);
static void fill_core(Stores *stores, const Table *table, bool in_shared_memory);
static void fill_ours(Stores *stores, const Table *table, bool in_shared_memory);
static int	dead_offsets(const Table *table, BlockNumber blkno,
						 OffsetNumber *offsets);
static void check_stores(const Stores *stores, const Table *table);
static double time_look_ups(Stores *stores, const Table *table, int batch,
							LookUp look_up);
static bool ask_core(ItemPointer tid, void *state);
static int64 look_up_core(Stores *stores, const ItemPointerData *tids, int ntids);
static int64 look_up_ours(Stores *stores, const ItemPointerData *tids, int ntids);
static int64 match_ours(Stores *stores, const ItemPointerData *tids, int ntids);
static Size our_allocated_bytes(const Stores *stores);

static const struct
{
	const char *name;
	LookUp		look_up;
	bool		is_core;
}			ways[] =

{
	{"core", look_up_core, true},
	{"ours, one by one", look_up_ours, false},
	{"ours, in batches", match_ours, false},
};

/* Not a constant, or the compiler would call the function without it. */
static volatile TidCallback core_callback = ask_core;

/*
 * store_bench
 *		The SQL function.
 */
Datum
store_bench(PG_FUNCTION_ARGS)
{
	int64		nblocks = PG_GETARG_INT64(0);
	int			page_items = PG_GETARG_INT32(1);
	char	   *pattern = text_to_cstring(PG_GETARG_TEXT_PP(2));
	char	   *order = text_to_cstring(PG_GETARG_TEXT_PP(3));
	int			batch = PG_GETARG_INT32(4);
	int			rounds = PG_GETARG_INT32(5);
	bool		in_shared_memory = PG_GETARG_BOOL(6);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Table		table = {0};
	Stores		stores = {0};

	if (nblocks < 1 || nblocks > MaxBlockNumber ||
		page_items < 1 || page_items > MaxHeapTuplesPerPage ||
		batch < 1 || batch > MAX_BATCH)
		elog(ERROR, "an argument is out of range");

	InitMaterializedSRF(fcinfo, 0);
	table.nblocks = nblocks;
	table.page_items = page_items;
	table.nitems = (Size) nblocks * page_items;
	make_table(&table, pattern);
	order_tids(&table, order);
	fill_core(&stores, &table, in_shared_memory);
	fill_ours(&stores, &table, in_shared_memory);
	check_stores(&stores, &table);

	for (int round = 1; round <= rounds; round++)
		for (int turn = 0; turn < lengthof(ways); turn++)
		{
			int			way = (round + turn) % lengthof(ways);
			double		nanoseconds = time_look_ups(&stores, &table, batch,
													ways[way].look_up);
			Datum		values[6];
			bool		nulls[6] = {0};

			values[0] = Int32GetDatum(round);
			values[1] = CStringGetTextDatum(ways[way].name);
			values[2] = Float8GetDatum(nanoseconds);
			values[3] = Int64GetDatum(table.ndead);
			if (ways[way].is_core)
			{
				nulls[4] = true;
				values[5] = Int64GetDatum(TidStoreMemoryUsage(stores.core));
			}
			else
			{
				values[4] = Int64GetDatum(dead_tids_bytes(stores.ours));
				values[5] = Int64GetDatum(our_allocated_bytes(&stores));
			}
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
		}

	TidStoreDestroy(stores.core);
	dead_tids_detach(stores.ours);
	MemoryContextDelete(stores.context);
	if (stores.segment != NULL)
		dsm_detach(stores.segment);
	pfree(table.dead);
	pfree(table.tids);
	return (Datum) 0;
}

/*
 * make_table
 *		Choose the dead items.
 */
static void
make_table(Table *table, const char *pattern)
{
	pg_prng_state random;

	pg_prng_seed(&random, SEED);
	table->dead = MemoryContextAllocHuge(CurrentMemoryContext, table->nitems * sizeof(bool));
	for (Size number = 0; number < table->nitems; number++)
	{
		table->dead[number] = make_dead(&random, table, pattern, number);
		table->ndead += table->dead[number];
	}
	if (table->ndead == 0)
		elog(ERROR, "no item is dead");
}

/*
 * make_dead
 *		Is this item dead?  Must be asked for each item, in their order.
 */
static bool
make_dead(pg_prng_state *random, const Table *table, const char *pattern,
		  Size number)
{
	Size		page = number / table->page_items;
	int			item = number % table->page_items;

	if (strcmp(pattern, "first pages") == 0)	/* 30 % of them, whole */
		return page < 0.3 * table->nblocks;
	if (strcmp(pattern, "scattered") == 0)	/* 30 % of the items */
		return pg_prng_double(random) < 0.3;
	if (strcmp(pattern, "one a page") == 0) /* anywhere */
		return item == (int) (page * UINT64CONST(2654435761) % table->page_items);
	if (strcmp(pattern, "neighbours") == 0) /* a tenth of each page, in a run */
		return item / (table->page_items / 10 + 1) == (int) (page % 10);
	if (strcmp(pattern, "all") == 0)
		return true;
	elog(ERROR, "there is no pattern \"%s\"", pattern);
}

/*
 * order_tids
 *		Write down all TIDs in the order of the index.
 */
static void
order_tids(Table *table, const char *order)
{
	Size		nitems = table->nitems;
	Size		place = 0;

	table->tids = MemoryContextAllocHuge(CurrentMemoryContext,
										 nitems * sizeof(ItemPointerData));
	if (strcmp(order, "keys") == 0)
	{
		for (Size key = 0; key < KEYS; key++)
			for (Size number = key; number < nitems; number += KEYS)
				set_tid(table, place++, number);
		return;
	}

	for (Size number = 0; number < nitems; number++)
		set_tid(table, number, number);
	if (strcmp(order, "random") == 0)
	{
		pg_prng_state random;

		pg_prng_seed(&random, SEED);
		for (Size left = nitems; left > 1; left--)
		{
			Size		chosen = pg_prng_uint64_range(&random, 0, left - 1);
			ItemPointerData tid = table->tids[chosen];

			table->tids[chosen] = table->tids[left - 1];
			table->tids[left - 1] = tid;
		}
	}
	else if (strcmp(order, "table") != 0)
		elog(ERROR, "there is no order \"%s\"", order);
}

/* set_tid -- write down the TID of an item. */
static void
set_tid(Table *table, Size place, Size number)
{
	ItemPointerSet(&table->tids[place], number / table->page_items,
				   FirstOffsetNumber + number % table->page_items);
}

/*
 * fill_core
 *		Make the server's store, as its VACUUM does.
 */
static void
fill_core(Stores *stores, const Table *table, bool in_shared_memory)
{
	OffsetNumber offsets[MaxHeapTuplesPerPage];

	stores->core = in_shared_memory ?
		TidStoreCreateShared(STORE_LIMIT, LWTRANCHE_PARALLEL_VACUUM_DSA) :
		TidStoreCreateLocal(STORE_LIMIT, true);

	for (BlockNumber blkno = 0; blkno < table->nblocks; blkno++)
	{
		int			noffsets = dead_offsets(table, blkno, offsets);

		CHECK_FOR_INTERRUPTS();
		if (noffsets > 0)
			TidStoreSetBlockOffsets(stores->core, blkno, offsets, noffsets);
	}
}

/*
 * fill_ours
 *		Make the dead-TID store, as the heap scan of one process does.
 */
static void
fill_ours(Stores *stores, const Table *table, bool in_shared_memory)
{
	OffsetNumber offsets[MaxHeapTuplesPerPage];
	Size		size = dead_tids_shared_size(table->nblocks, STORE_LIMIT, 1);
	DeadTidsShared *shared;
	MemoryContext caller;

	stores->context = AllocSetContextCreate(CurrentMemoryContext, "dead-TID store",
											ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(stores->context);
	if (in_shared_memory)
	{
		stores->segment = dsm_create(size, 0);
		shared = dsm_segment_address(stores->segment);
	}
	else
		shared = palloc(size);
	dead_tids_init(shared, in_shared_memory, table->nblocks, STORE_LIMIT, 1);
	stores->ours = dead_tids_attach(shared);

	dead_tids_begin_collecting(stores->ours);
	for (BlockNumber blkno = 0; blkno < table->nblocks; blkno++)
	{
		int			noffsets = dead_offsets(table, blkno, offsets);

		CHECK_FOR_INTERRUPTS();
		while (!dead_tids_reserve(stores->ours, blkno))
		{
			char	   *failure = NULL;

			dead_tids_end_collecting(stores->ours);
			if (!dead_tids_grow(stores->ours, &failure))
				elog(ERROR, "the store is full");
			dead_tids_begin_collecting(stores->ours);
		}
		dead_tids_add(stores->ours, blkno, offsets, noffsets);
	}
	dead_tids_end_collecting(stores->ours);
	MemoryContextSwitchTo(caller);
}

/*
 * dead_offsets
 *		Put the offsets of a page's dead items into *offsets, sorted; return
 *		how many.
 */
static int
dead_offsets(const Table *table, BlockNumber blkno, OffsetNumber *offsets)
{
	const bool *dead = table->dead + (Size) blkno * table->page_items;
	int			noffsets = 0;

	for (int item = 0; item < table->page_items; item++)
		if (dead[item])
			offsets[noffsets++] = FirstOffsetNumber + item;
	return noffsets;
}

/*
 * check_stores
 *		Raise an error unless both stores know of each item if it is dead.
 */
static void
check_stores(const Stores *stores, const Table *table)
{
	for (Size place = 0; place < table->nitems; place++)
	{
		ItemPointer tid = &table->tids[place];
		BlockNumber blkno = ItemPointerGetBlockNumber(tid);
		OffsetNumber offset = ItemPointerGetOffsetNumber(tid);
		bool		dead = table->dead[(Size) blkno * table->page_items +
									   offset - FirstOffsetNumber];

		if (TidStoreIsMember(stores->core, tid) != dead ||
			dead_tids_contains(stores->ours, blkno, offset) != dead)
			elog(ERROR, "the stores differ about item (%u,%u)", blkno, offset);
	}
}

/*
 * time_look_ups
 *		Look up all items; return the nanoseconds that one took.
 */
static double
time_look_ups(Stores *stores, const Table *table, int batch, LookUp look_up)
{
	instr_time	start;
	instr_time	end;
	Size		ndead = 0;

	INSTR_TIME_SET_CURRENT(start);
	for (Size place = 0; place < table->nitems; place += batch)
	{
		CHECK_FOR_INTERRUPTS();
		ndead += look_up(stores, table->tids + place, Min(batch, table->nitems - place));
	}
	INSTR_TIME_SET_CURRENT(end);

	if (ndead != table->ndead)
		elog(ERROR, "found %zu dead items instead of %zu", ndead, table->ndead);
	INSTR_TIME_SUBTRACT(end, start);
	return INSTR_TIME_GET_NANOSEC(end) / (double) table->nitems;
}

/* ask_core -- the callback that an index access method would get. */
static bool
ask_core(ItemPointer tid, void *state)
{
	return TidStoreIsMember((TidStore *) state, tid);
}

/* look_up_core -- one by one, through the callback. */
static int64
look_up_core(Stores *stores, const ItemPointerData *tids, int ntids)
{
	TidCallback callback = core_callback;
	int64		ndead = 0;

	for (int i = 0; i < ntids; i++)
		ndead += callback(unconstify(ItemPointerData *, &tids[i]), stores->core);
	return ndead;
}

/* look_up_ours -- one by one. */
static int64
look_up_ours(Stores *stores, const ItemPointerData *tids, int ntids)
{
	int64		ndead = 0;

	for (int i = 0; i < ntids; i++)
		ndead += dead_tids_contains(stores->ours,
									ItemPointerGetBlockNumberNoCheck(&tids[i]),
									ItemPointerGetOffsetNumberNoCheck(&tids[i]));
	return ndead;
}

/* match_ours -- all at once. */
static int64
match_ours(Stores *stores, const ItemPointerData *tids, int ntids)
{
	bool		dead[MAX_BATCH];

	return dead_tids_match(stores->ours, tids, ntids, dead);
}

/*
 * our_allocated_bytes
 *		The memory that the dead-TID store has taken, used or not.
 */
static Size
our_allocated_bytes(const Stores *stores)
{
	if (stores->segment == NULL)
		return MemoryContextMemAllocated(stores->context, true);
	return dead_tids_memory(stores->ours);
}
