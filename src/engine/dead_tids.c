/*-------------------------------------------------------------------------
 *
 * dead_tids.c
 *	  The dead-TID store: where the dead items of a heap are, by block.
 *
 * All members of a team fill the store during the heap scan, without a lock, and look into
 * it while they vacuum the indexes and the heap.  README.md has the layout, and says how it
 * stays within its memory.
 *
 * This file has the store's memory.  dead_tids_collect.c fills it, and
 * dead_tids_lookup.c reads it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "port/atomics.h"
#include "storage/spin.h"

#include "engine/dead_tids.h"
#include "engine/dead_tids_private.h"
#include "team/attempt.h"

#define SEGMENTS_A_MEMBER	32

/* Segments for each member in the first extent, if that is not too much */
#define FIRST_SEGMENTS		2

/* Where memory is: the number of its extent, and how far from its start */
#define POINTER_SHIFT		40
#define MAKE_POINTER(extent, offset)	((uint64) ((extent) + 1) << POINTER_SHIFT | (offset))
#define POINTER_EXTENT(pointer)			((int) ((pointer) >> POINTER_SHIFT) - 1)
#define POINTER_OFFSET(pointer)			((pointer) & ((UINT64CONST(1) << POINTER_SHIFT) - 1))

static void plan_memory(BlockNumber nblocks, Size limit, int nmembers,
						DeadTidsShared *plan);
static void forget_round(DeadTids *store);
static Size next_extent(const DeadTidsShared *shared);
static bool add_extent(DeadTids *store, Size size, char **failure);
static uint64 cut_off_extent(DeadTidsShared *shared, Size size, Size spare);

/*
 * dead_tids_shared_size
 *		How many bytes a store needs in a block, which is in a DSM segment if
 *		is_shared, for a heap of this many blocks.
 */
Size
dead_tids_shared_size(bool is_shared, BlockNumber nblocks, Size limit, int nmembers)
{
	DeadTidsShared plan;

	Assert(nmembers > 0);
	plan_memory(nblocks, limit, nmembers, &plan);
	return plan.tables_size + (is_shared ? plan.first_extent : 0);
}

/*
 * dead_tids_init
 *		Make an empty store in dead_tids_shared_size bytes of memory, which is in a
 *		DSM segment if is_shared.
 *
 * If it is, more memory is in DSM segments of its own.  If it isn't, the first memory for
 * items is taken from the current context.  More of it is taken from the context in which
 * the leader attaches.
 */
void
dead_tids_init(DeadTidsShared *shared, bool is_shared,
			   BlockNumber nblocks, Size limit, int nmembers)
{
	Assert(shared != NULL && shared == (DeadTidsShared *) MAXALIGN(shared));
	Assert(nmembers > 0);
	plan_memory(nblocks, limit, nmembers, shared);
	shared->is_shared = is_shared;
	shared->nextents = 1;
	shared->extents_size = shared->first_extent;
	shared->round = 0;
	memset(shared->extents, 0, sizeof(shared->extents));
	shared->extents[0].size = shared->first_extent;
	shared->extents[0].address = is_shared ? (char *) shared + shared->tables_size :
		MemoryContextAllocHuge(CurrentMemoryContext, shared->first_extent);
	SpinLockInit(&shared->mutex);
	pg_atomic_init_u32(&shared->segments_taken, 0);
	pg_atomic_init_u64(&shared->nitems, 0);
	pg_atomic_init_u64(&shared->bytes, 0);
	for (uint32 i = 0; i < shared->max_segments + directory_pages(shared); i++)
		pg_atomic_init_u64(&shared->tables[i], 0);
}

/*
 * dead_tids_attach
 *		Return this process's access to the store, palloc'd.
 */
DeadTids *
dead_tids_attach(DeadTidsShared *shared)
{
	DeadTids   *store = palloc0_object(DeadTids);

	Assert(shared->nextents > 0 && shared->nextents <= MAX_EXTENTS);
	store->shared = shared;
	store->context = CurrentMemoryContext;
	store->segments = palloc0_array(char *, shared->max_segments);
	store->directory = palloc0_array(uint32 *, directory_pages(shared));
	store->nextents = 1;
	store->extents[0] = (char *) shared + shared->tables_size;
	forget_round(store);
	return store;
}

/*
 * dead_tids_detach
 *		Give up access to the store.
 */
void
dead_tids_detach(DeadTids *store)
{
	Assert(store->nextents > 0 && store->nextents <= MAX_EXTENTS);
	if (!store->shared->is_shared)
	{
		for (int i = 0; i < store->shared->nextents; i++)
			pfree(store->shared->extents[i].address);
		store->shared->nextents = 0;
	}
	for (int i = 1; i < store->nextents; i++)
	{
		if (store->attached[i] != NULL)
			dsm_detach(store->attached[i]);
	}
	pfree(store->segments);
	pfree(store->directory);
	pfree(store);
}

/*
 * dead_tids_catch_up
 *		Get ready for a phase in which the store is read or filled; return
 *		false, and why in *failure, if not all of it can be mapped.
 *
 * Every member must call this before each such phase.
 */
bool
dead_tids_catch_up(DeadTids *store, char **failure)
{
	const DeadTidsShared *shared = store->shared;

	Assert(!shared->is_shared || store->nextents <= shared->nextents);
	if (store->round != shared->round)
		forget_round(store);
	while (shared->is_shared && store->nextents < shared->nextents)
	{
		dsm_handle	handle = shared->extents[store->nextents].handle;
		dsm_segment *segment = dsm_find_mapping(handle);

		if (segment == NULL)
		{
			segment = attempt_attach_segment(handle, failure);
			if (segment == NULL)
				return false;
			store->attached[store->nextents] = segment;
		}
		store->extents[store->nextents++] = dsm_segment_address(segment);
	}
	return true;
}

/*
 * dead_tids_grow
 *		Leader, while no one else uses the store: get more memory for it.
 *		Return false if there may be no more, or, with why in *failure, if there
 *		is none.
 *
 * The items that the store holds stay.
 */
bool
dead_tids_grow(DeadTids *store, char **failure)
{
	DeadTidsShared *shared = store->shared;
	Size		least = (Size) 1 << shared->segment_shift;

	/* without a team it has grown by itself */
	if (!shared->is_shared)
		return false;
	Assert(!IsParallelWorker() && failure != NULL);
	Assert(store->nextents == shared->nextents && store->round == shared->round);
	Assert(store->current.reserved == 0 && store->spare.reserved == 0);

	/* if the system doesn't have that much, it may have less */
	for (Size size = next_extent(shared); size >= least; size = size / 2 / least * least)
	{
		if (add_extent(store, size, failure))
			return true;
	}
	return false;
}

/*
 * dead_tids_reset
 *		Forget all items.
 *
 * Only the leader may call this, while no one else uses the store.
 */
void
dead_tids_reset(DeadTids *store)
{
	DeadTidsShared *shared = store->shared;

	Assert(!IsParallelWorker());
	Assert(store->round == shared->round);
	Assert(store->current.reserved == 0 && store->spare.reserved == 0);
	for (uint32 i = 0; i < shared->max_segments + directory_pages(shared); i++)
		pg_atomic_write_u64(&shared->tables[i], 0);
	for (int i = 0; i < shared->nextents; i++)
		shared->extents[i].used = 0;
	pg_atomic_write_u32(&shared->segments_taken, 0);
	pg_atomic_write_u64(&shared->nitems, 0);
	pg_atomic_write_u64(&shared->bytes, 0);
	shared->round++;
	forget_round(store);
}

/*
 * forget_round
 *		Forget what this process knows of the store's last round.
 */
static void
forget_round(DeadTids *store)
{
	const DeadTidsShared *shared = store->shared;

	memset(&store->current, 0, sizeof(Segment));
	memset(&store->spare, 0, sizeof(Segment));
	memset(store->segments, 0, shared->max_segments * sizeof(char *));
	memset(store->directory, 0, directory_pages(shared) * sizeof(uint32 *));
	store->round = shared->round;
}

/* dead_tids_count -- how many items are stored. */
int64
dead_tids_count(const DeadTids *store)
{
	return pg_atomic_read_u64(&store->shared->nitems);
}

/* dead_tids_bytes -- how many bytes they take, the directory included. */
Size
dead_tids_bytes(const DeadTids *store)
{
	return store->shared->tables_size +
		pg_atomic_read_u64(&store->shared->bytes);
}

/* dead_tids_limit -- how many bytes they may take. */
Size
dead_tids_limit(const DeadTids *store)
{
	return store->shared->limit;
}

/*
 * plan_memory
 *		Fill in the constant fields of *plan.
 *
 * There may be as many segments as the limit allows, or the worst case of
 * dead items needs.  Neither a segment nor a directory page is much larger than
 * the table can fill, or memory would be most of what a tiny table costs.
 */
static void
plan_memory(BlockNumber nblocks, Size limit, int nmembers, DeadTidsShared *plan)
{
	Size		segment_size = limit / nmembers / SEGMENTS_A_MEMBER;
	Size		blobs_a_segment;
	Size		worst_case;
	Size		most;

	plan->limit = limit;
	plan->nchunks = Max(1, nblocks / CHUNK_BLOCKS + (nblocks % CHUNK_BLOCKS != 0));

	plan->segment_shift = MIN_SEGMENT_SHIFT;
	while (plan->segment_shift < MAX_SEGMENT_SHIFT &&
		   segment_size >= (Size) 2 << plan->segment_shift &&
		   plan->nchunks * MAX_BLOB_SIZE > (Size) 1 << plan->segment_shift)
		plan->segment_shift++;
	segment_size = (Size) 1 << plan->segment_shift;

	plan->directory_page = TYPEALIGN(PG_CACHE_LINE_SIZE,
									 Min(plan->nchunks, DIRECTORY_PAGE_CHUNKS) * sizeof(uint32));

	/* each ends with room too small for a blob, at worst */
	blobs_a_segment = segment_size / MAX_BLOB_SIZE;
	worst_case = plan->nchunks / blobs_a_segment + 1 + 2 * (Size) nmembers;
	plan->max_segments = Max(1, Min(worst_case, limit / segment_size));
	/* what an element of the directory can address */
	plan->max_segments = Min(plan->max_segments,
							 PG_UINT32_MAX / (segment_size / BLOB_UNIT));

	plan->tables_size = TYPEALIGN(PG_CACHE_LINE_SIZE,
								  offsetof(DeadTidsShared, tables) +
								  (plan->max_segments + directory_pages(plan)) *
								  sizeof(pg_atomic_uint64));

	/* in any case there is room for a segment and what it needs */
	plan->extents_limit = limit > plan->tables_size ? limit - plan->tables_size : 0;
	plan->extents_limit = Max(plan->extents_limit, segment_size + plan->directory_page);
	/* each extent may end with room too small for a segment */
	most = plan->directory_page + segment_size * ((Size) plan->max_segments + directory_pages(plan));
	plan->extents_limit = Min(plan->extents_limit, most);
	plan->first_extent = Min(plan->extents_limit, FIRST_SEGMENTS * segment_size * nmembers +
							 plan->directory_page);
}

/* next_extent -- how large it should be; 0 if there may be no more. */
static Size
next_extent(const DeadTidsShared *shared)
{
	Size		segment_size = (Size) 1 << shared->segment_shift;
	Size		size = Min(shared->extents_size, Max(shared->limit / 8, segment_size));

	if (shared->nextents >= MAX_EXTENTS)
		return 0;
	/* the last one may be what is left, for a directory page perhaps */
	size = Min(TYPEALIGN(segment_size, size), shared->extents_limit - shared->extents_size);
	return size >= segment_size ? size : 0;
}

/*
 * add_extent
 *		Take memory for another extent, and make it known; return false, and
 *		why in *failure, if there is none.
 */
static bool
add_extent(DeadTids *store, Size size, char **failure)
{
	DeadTidsShared *shared = store->shared;
	int			number = shared->nextents;
	Extent	   *extent = &shared->extents[number];

	Assert(number > 0 && number < MAX_EXTENTS);
	Assert(!shared->is_shared || (failure != NULL && store->nextents == number));
	if (shared->is_shared)
	{
		dsm_segment *segment = attempt_create_segment(size, failure);

		if (segment == NULL)
			return false;
		store->attached[number] = segment;
		store->extents[number] = dsm_segment_address(segment);
		store->nextents++;
		extent->handle = dsm_segment_handle(segment);
	}
	else
	{
		extent->address = MemoryContextAllocExtended(store->context, size,
													 MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
		if (extent->address == NULL)
			return false;
	}
	extent->size = size;
	extent->used = 0;
	shared->extents_size += size;
	shared->nextents++;
	Assert(shared->extents_size <= shared->extents_limit);
	return true;
}

/*
 * dead_tids_allocate
 *		Allocate size bytes, not zeroed, if these and spare more are left.  Return 0
 *		if not.
 */
uint64
dead_tids_allocate(DeadTids *store, Size size, Size spare)
{
	DeadTidsShared *shared = store->shared;
	uint64		memory;

	Assert(store->round == shared->round);
	Assert(size > 0 && size <= shared->extents_limit);
	memory = cut_off_extent(shared, size, spare);
	while (memory == 0 && !shared->is_shared && next_extent(shared) > 0 &&
		   add_extent(store, next_extent(shared), NULL))
		memory = cut_off_extent(shared, size, spare);
	return memory;
}

/*
 * cut_off_extent
 *		Take size bytes from an extent, if spare more are left in any.
 */
static uint64
cut_off_extent(DeadTidsShared *shared, Size size, Size spare)
{
	int			found = -1;
	bool		has_spare = spare == 0;
	uint64		memory = 0;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < shared->nextents && (found < 0 || !has_spare); i++)
	{
		Size		left = shared->extents[i].size - shared->extents[i].used;

		if (found < 0 && left >= size)
		{
			found = i;
			left -= size;
		}
		has_spare |= left >= spare;
	}
	if (found >= 0 && has_spare)
	{
		memory = MAKE_POINTER(found, shared->extents[found].used);
		shared->extents[found].used += size;
	}
	SpinLockRelease(&shared->mutex);
	return memory;
}

/* dead_tids_address -- where allocated memory is in this process. */
char *
dead_tids_address(const DeadTids *store, uint64 memory)
{
	int			extent = POINTER_EXTENT(memory);

	Assert(extent >= 0 && extent < store->shared->nextents);
	Assert(POINTER_OFFSET(memory) < store->shared->extents[extent].size);
	if (!store->shared->is_shared)
		return store->shared->extents[extent].address + POINTER_OFFSET(memory);
	if (extent >= store->nextents)
		elog(ERROR, "extent %d of the dead-TID store is not known", extent);
	return store->extents[extent] + POINTER_OFFSET(memory);
}
