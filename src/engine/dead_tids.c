/*-------------------------------------------------------------------------
 *
 * dead_tids.c
 *	  The dead-TID store: where the dead items of a heap are, by block.
 *
 * All members of a team fill the store during the heap scan, and look into
 * it while they vacuum the indexes and the heap.  It is made for that:
 *
 * - A look-up goes straight from the block number to the items: no tree to
 *	 walk, a few memory accesses.
 * - Filling takes no lock.  A chunk is 64 heap blocks, aligned; whoever scans
 *	 a chunk scans all of it and alone stores what it finds there.
 * - Memory is taken as it is needed, and never exceeds the limit.
 *
 * The layout, from the block number down:
 *
 *	 directory	 in two levels: a table with an element for each 3072 chunks,
 *				 and directory pages with an element for each chunk: where its
 *				 blob is, 0 if the chunk has no dead items
 *	 blob		 uint64 bitmap: which of the 64 blocks have dead items;
 *				 uint16 position in the blob of each such block's page entry,
 *				 in block order, found by counting the bits below
 *	 page entry	 two bytes, then either a bitmap of offsets without its empty
 *				 ends, or a list of offsets, whichever is smaller
 *
 * A page with one dead item costs 6 bytes, one with hundreds 2 bytes plus a
 * bit an item.  A chunk's blob is never longer than MAX_BLOB_SIZE, about
 * 2.7 kB with 8 kB pages, or 42 bytes a heap page.
 *
 * A process builds the blob of the chunk it scans in its own memory and, when
 * it comes to another chunk, copies it into a segment that it has to itself,
 * and only then enters it in the directory.  Readers start when all members
 * are through, so neither needs more.
 *
 * Segments and directory pages are cut off extents: large pieces of memory, of
 * which the first is there from the beginning and the others double what
 * there is, up to an eighth of the limit.  Without a team an extent is private
 * memory, and taken when it is needed.  With one the first is in the team's
 * shared block, the others are segments of dynamic shared memory, and only the
 * leader creates one, between phases
 * (dead_tids_grow), while the others wait: members that find no more room end
 * the round early, it is continued at once if there is more memory, and if
 * there is none to be had that is as if the limit were reached.  So running out
 * of shared memory can't strike in the midst of filling the store.  The members
 * map new extents before they go on (dead_tids_catch_up); who can't must sit
 * out, and the leader, who made them, needn't.
 *
 * The store must never be too small for dead items that are already found, so
 * room is reserved before a block is read: dead_tids_reserve takes room for
 * the largest blob when a block of another chunk is about to be scanned.  It
 * says no when the memory is used up (then it is time to vacuum the indexes
 * and the heap), and also while a process has more chunks read ahead than its
 * segments have room for (then it says yes once they are added).  Every
 * process may use up the segment it has, and segments leave room for a
 * directory page, so a round of collecting never ends without progress: the
 * first extent has room for both.
 *
 * This is one file as look-ups, which are among the hottest loops of a vacuum,
 * see through all layers: from the block number to the items they are inlined
 * into each other.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/spin.h"

#include "debug_point.h"
#include "engine/dead_tids.h"
#include "engine/prefetch.h"
#include "team/attempt.h"

#define CHUNK_BLOCKS		DEAD_TIDS_CHUNK_BLOCKS

/* Page entry: the first byte of the bitmap, or LIST_MARK; then a count. */
#define PAGE_HEADER_SIZE	2
#define LIST_MARK			0xFF
#define MAX_BITMAP_BYTES	(MaxHeapTuplesPerPage / 8 + 1)
/* Entries have an even length, to keep the offsets of lists aligned. */
#define MAX_PAGE_SIZE		TYPEALIGN(2, PAGE_HEADER_SIZE + MAX_BITMAP_BYTES)

#define MAX_BLOB_SIZE \
	MAXALIGN(sizeof(uint64) + CHUNK_BLOCKS * (sizeof(uint16) + MAX_PAGE_SIZE))

/* Blobs begin at multiples of this, which is the unit of the directory. */
#define BLOB_UNIT_SHIFT		3
#define BLOB_UNIT			(1 << BLOB_UNIT_SHIFT)

/* Segments are powers of two, so that their numbers can be split off by shifting. */
#define MIN_SEGMENT_SHIFT	14
#define MAX_SEGMENT_SHIFT	18
#define SEGMENTS_A_MEMBER	32

/*
 * Extents: the first holds so many segments for each member, if that is not
 * too much.  As they double and then grow by eighths, there can't be as many
 * as this, whatever the limit is; only if memory is short may there be less.
 */
#define FIRST_SEGMENTS		2
#define MAX_EXTENTS			64

/* Where memory is: the number of its extent, and how far from its start */
#define POINTER_SHIFT		40
#define MAKE_POINTER(extent, offset)	((uint64) ((extent) + 1) << POINTER_SHIFT | (offset))
#define POINTER_EXTENT(pointer)			((int) ((pointer) >> POINTER_SHIFT) - 1)
#define POINTER_OFFSET(pointer)			((pointer) & ((UINT64CONST(1) << POINTER_SHIFT) - 1))

/* Directory pages */
#define DIRECTORY_PAGE_CHUNKS	3072

StaticAssertDecl(MAX_BITMAP_BYTES < LIST_MARK,
				 "the first byte of a bitmap must differ from LIST_MARK");
StaticAssertDecl(MAX_BLOB_SIZE <= ((Size) 1 << MIN_SEGMENT_SHIFT),
				 "a segment must have room for a blob");
StaticAssertDecl(MAX_BLOB_SIZE <= PG_UINT16_MAX,
				 "positions in a blob must fit in 16 bits");

/* A piece of memory that segments and directory pages are cut off. */
typedef struct Extent
{
	char	   *address;		/* of private memory */
	dsm_handle	handle;			/* of shared memory, but for the first */
	Size		size;
	Size		used;			/* protected by the mutex */
} Extent;

struct DeadTidsShared
{
	/* never change */
	Size		limit;			/* bytes, all that follows included */
	uint32		nchunks;
	uint32		max_segments;
	int			segment_shift;
	Size		directory_page; /* the size of one */
	Size		tables_size;	/* of this struct and both tables */
	Size		first_extent;	/* the size of the first: with a team, it is
								 * behind them */
	Size		extents_limit;	/* for all extents */
	bool		is_shared;		/* is there a team? */

	/*
	 * Written by the leader between phases; without a team, by the only
	 * process there is.
	 */
	int			nextents;
	Size		extents_size;	/* of all of them */
	uint32		round;			/* changes when the store is reset */

	/* written by all while they collect */
	slock_t		mutex;			/* of what is used of the extents */
	pg_atomic_uint32 segments_taken;	/* in this round */
	pg_atomic_uint64 nitems;
	pg_atomic_uint64 bytes;		/* of all blobs and directory pages */

	Extent		extents[MAX_EXTENTS];

	/*
	 * Where the segments are, and then where the directory pages are, in this
	 * round; 0 if there is none.
	 */
	pg_atomic_uint64 tables[FLEXIBLE_ARRAY_MEMBER];
};

/* A segment that one process fills. */
typedef struct Segment
{
	char	   *next;			/* NULL if there is none */
	char	   *end;
	char	   *start;
	uint32		number;
	int			reserved;		/* blobs */
} Segment;

struct DeadTids
{
	DeadTidsShared *shared;
	MemoryContext context;		/* of private memory */

	/*
	 * the extents of shared memory that this process knows, and where they
	 * are
	 */
	int			nextents;
	char	   *extents[MAX_EXTENTS];
	dsm_segment *attached[MAX_EXTENTS]; /* NULL if not by us */

	/* addresses in this process of what the tables point to, once known */
	uint32		round;			/* that they are of */
	char	  **segments;
	uint32	  **directory;

	/*
	 * While collecting.  A blob goes to the first segment if it fits there;
	 * else that one has no more reservations, and the second takes its place.
	 */
	Segment		current;
	Segment		spare;
	uint32		reserved_chunk; /* the last one that room was reserved for */
	uint32		chunk;			/* the one being built, or InvalidChunk */
	int			chunk_items;
	uint64		page_bitmap;
	Size		pages_size;
	uint16		page_positions[CHUNK_BLOCKS];	/* within pages */
	char		pages[CHUNK_BLOCKS * MAX_PAGE_SIZE];
};

/* How many look-ups are done side by side */
#define MATCH_BATCH			32

#define InvalidChunk		PG_UINT32_MAX

/*
 * A blob without pages, and a page without items.  What follows the bitmap is
 * read as a position, and used for nothing.
 */
static const uint64 empty_blob_data[2] = {0};
static const uint8 empty_page[PAGE_HEADER_SIZE + 2] = {0};

#define empty_blob			((const char *) empty_blob_data)

static void plan_memory(BlockNumber nblocks, Size limit, int nmembers,
						DeadTidsShared *plan);
static pg_atomic_uint64 *segment_entry(DeadTidsShared *shared, uint32 number);
static pg_atomic_uint64 *directory_entry(DeadTidsShared *shared, uint32 number);
static uint32 directory_pages(const DeadTidsShared *shared);
static void forget_round(DeadTids *store);
static Size next_extent(const DeadTidsShared *shared);
static bool add_extent(DeadTids *store, Size size, char **failure);
static uint64 allocate(DeadTids *store, Size size, Size spare);
static uint64 cut_off(DeadTidsShared *shared, Size size, Size spare);
static char *address_of(const DeadTids *store, uint64 memory);
static bool take_segment(DeadTids *store, Segment *segment);
static bool has_room(const Segment *segment);
static bool make_directory_page(DeadTids *store, uint32 chunk);
static void publish_chunk(DeadTids *store);
static inline uint32 *find_directory_page(const DeadTids *store, uint32 number);
static inline const char *find_blob(const DeadTids *store, uint32 chunk);
static void find_segment(const DeadTids *store, uint32 number);
static inline const uint8 *find_page(const char *blob, BlockNumber blkno);
static inline bool page_contains(const uint8 *page, OffsetNumber offset);
static Size encode_page(char *entry, const OffsetNumber *offsets, int noffsets);
static int	decode_page(const char *entry, OffsetNumber *offsets);

/*
 * dead_tids_shared_size
 *		How many bytes a store needs in a block that is_shared says is to be in a DSM
 *		segment or not, for a heap of this many blocks.
 */
Size
dead_tids_shared_size(bool is_shared, BlockNumber nblocks, Size limit, int nmembers)
{
	DeadTidsShared plan;

	plan_memory(nblocks, limit, nmembers, &plan);
	return plan.tables_size + (is_shared ? plan.first_extent : 0);
}

/*
 * dead_tids_init
 *		Make an empty store in dead_tids_shared_size bytes of memory, which
 *		is_shared says is in a DSM segment or not.
 *
 * If it isn't, memory for items is taken from the current context, and more from
 * that in which the leader attaches; else more is in other DSM segments.
 */
void
dead_tids_init(DeadTidsShared *shared, bool is_shared,
			   BlockNumber nblocks, Size limit, int nmembers)
{
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
 * What the store holds stays.
 */
bool
dead_tids_grow(DeadTids *store, char **failure)
{
	DeadTidsShared *shared = store->shared;
	Size		least = (Size) 1 << shared->segment_shift;

	/* without a team it has grown by itself */
	if (!shared->is_shared)
		return false;
	Assert(store->nextents == shared->nextents);
	Assert(store->current.reserved == 0 && store->spare.reserved == 0);

	/* if there isn't that much, there may be less */
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

/*
 * dead_tids_begin_collecting
 *		Every member calls this before it adds items, to an empty store or, in
 *		the same round, to one that has grown.
 */
void
dead_tids_begin_collecting(DeadTids *store)
{
	/* see dead_tids_catch_up */
	Assert(store->round == store->shared->round);
	Assert(!store->shared->is_shared || store->nextents == store->shared->nextents);
	Assert(store->current.reserved == 0 && store->spare.reserved == 0);

	/* see find_segment: it may not have existed when it was last looked for */
	store->segments[0] = NULL;
	store->reserved_chunk = InvalidChunk;
	store->chunk = InvalidChunk;
}

/*
 * dead_tids_reserve
 *		Make sure that dead items of this block will find room.
 *
 * Ask before reading a block; blocks of a chunk must be asked for one after
 * the other, and get the same answer.  If it is false, add the items of all
 * blocks asked for so far, end collecting, and ask again: that the answer is
 * still false means that memory is used up.
 */
bool
dead_tids_reserve(DeadTids *store, BlockNumber blkno)
{
	uint32		chunk = blkno / CHUNK_BLOCKS;
	Segment    *segment = &store->current;

	Assert(store->round == store->shared->round);
	if (chunk >= store->shared->nchunks)
		elog(ERROR, "block %u is beyond what the dead-TID store was made for", blkno);

	if (chunk == store->reserved_chunk)
		return true;

	if (segment->next == NULL && !take_segment(store, segment))
		return false;
	if (!has_room(segment) || store->spare.reserved > 0)
	{
		segment = &store->spare;
		if (segment->next == NULL && !take_segment(store, segment))
			return false;
		if (!has_room(segment))
			return false;
	}
	if (!make_directory_page(store, chunk))
		return false;
	segment->reserved++;
	store->reserved_chunk = chunk;
	return true;
}

/*
 * dead_tids_add
 *		Store the dead items of one block, sorted by offset; there may be none.
 *
 * Must be called for every block that room was reserved for, in that order;
 * only the last one may be left out, if collecting ends there.
 */
void
dead_tids_add(DeadTids *store, BlockNumber blkno,
			  OffsetNumber *offsets, int noffsets)
{
	uint32		chunk = blkno / CHUNK_BLOCKS;

	if (chunk != store->chunk)
	{
		publish_chunk(store);
		store->chunk = chunk;
	}
	if (noffsets > 0 && DEBUG_FAULT("store-loses"))
		noffsets--;
	if (noffsets > 0 && DEBUG_FAULT("store-adds"))
		offsets[noffsets] = offsets[noffsets - 1] + 1, noffsets++;

	if (noffsets > 0)
	{
		int			page = blkno % CHUNK_BLOCKS;

		Assert(store->round == store->shared->round);
		Assert(store->current.reserved + store->spare.reserved > 0);
		Assert(store->page_bitmap >> page == 0);

		store->page_positions[pg_popcount64(store->page_bitmap)] = store->pages_size;
		store->page_bitmap |= UINT64CONST(1) << page;
		store->pages_size += encode_page(store->pages + store->pages_size,
										 offsets, noffsets);
		store->chunk_items += noffsets;
	}
}

/*
 * dead_tids_end_collecting
 *		Publish what is not yet published.  Every member must call this, with
 *		the items of all reserved blocks added, before anyone reads the store.
 */
void
dead_tids_end_collecting(DeadTids *store)
{
	publish_chunk(store);

	/* The last room may not have been used after all. */
	Assert(store->current.reserved + store->spare.reserved <= 1);
	store->current.reserved = 0;
	store->spare.reserved = 0;
	store->reserved_chunk = InvalidChunk;
}

/*
 * dead_tids_contains
 *		Is this item in the store?
 */
bool
dead_tids_contains(const DeadTids *store, BlockNumber blkno,
				   OffsetNumber offset)
{
	const char *blob = find_blob(store, blkno / CHUNK_BLOCKS);

	return page_contains(find_page(blob, blkno), offset);
}

/*
 * dead_tids_search
 *		Which of these items are in the store?  Each is looked up by itself, for a second
 *		opinion.
 *
 * First where their pages are, as one look-up needn't wait for another then.
 */
void
dead_tids_search(const DeadTids *store, const ItemPointerData *tids, int ntids, bool *dead)
{
	for (int start = 0; start < ntids; start += MATCH_BATCH)
	{
		int			n = Min(MATCH_BATCH, ntids - start);
		const uint8 *pages[MATCH_BATCH];

		for (int i = 0; i < n; i++)
		{
			BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tids[start + i]);

			pages[i] = find_page(find_blob(store, block / CHUNK_BLOCKS), block);
		}
		for (int i = 0; i < n; i++)
			dead[start + i] = page_contains(pages[i],
											ItemPointerGetOffsetNumberNoCheck(&tids[start + i]));
	}
}

/*
 * dead_tids_match
 *		Which of these items are in the store?  Return how many, and which in
 *		dead.
 *
 * One look-up waits for memory accesses that depend on each other, and has
 * branches that no processor can foresee if the items are in random order.  So
 * many are done side by side and step by step, almost without branches.  Where
 * an index is in the order of the table, items come in runs of the same block,
 * which is looked up once.
 */
int
dead_tids_match(const DeadTids *store, const ItemPointerData *tids, int ntids,
				bool *dead)
{
	int			ndead = 0;

	Assert(store->round == store->shared->round);
	for (int start = 0; start < ntids; start += MATCH_BATCH)
	{
		const ItemPointerData *batch = &tids[start];
		int			n = Min(MATCH_BATCH, ntids - start);
		BlockNumber blocks[MATCH_BATCH];	/* of the runs */
		const char *blobs[MATCH_BATCH];
		const uint8 *pages[MATCH_BATCH];
		uint8		run_of[MATCH_BATCH];
		int			nruns = 1;

		blocks[0] = ItemPointerGetBlockNumberNoCheck(&batch[0]);
		for (int i = 0; i < n; i++)
		{
			BlockNumber block = ItemPointerGetBlockNumberNoCheck(&batch[i]);

			nruns += block != blocks[nruns - 1];
			blocks[nruns - 1] = block;
			run_of[i] = nruns - 1;
		}
		for (int i = 0; i < nruns; i++)
		{
			blobs[i] = find_blob(store, blocks[i] / CHUNK_BLOCKS);
			PREFETCH(blobs[i]);
		}
		for (int i = 0; i < nruns; i++)
			pages[i] = find_page(blobs[i], blocks[i]);
		for (int i = 0; i < n; i++)
		{
			bool		found = page_contains(pages[run_of[i]],
											  ItemPointerGetOffsetNumberNoCheck(&batch[i]));

			dead[start + i] = found;
			ndead += found;
		}
	}
	return ndead;
}

/*
 * dead_tids_next_page
 *		Find the first block from start to end - 1 that has dead items, and put
 *		them into *page, sorted by offset; return false if there is none.
 */
bool
dead_tids_next_page(const DeadTids *store, BlockNumber start, BlockNumber end,
					DeadTidsPage *page)
{
	BlockNumber blkno = start;

	Assert(store->round == store->shared->round);
	while (blkno < end && blkno / CHUNK_BLOCKS < store->shared->nchunks)
	{
		uint32		chunk = blkno / CHUNK_BLOCKS;
		const char *blob = find_blob(store, chunk);
		uint64		page_bitmap = *(const uint64 *) blob;
		uint64		left = page_bitmap & (PG_UINT64_MAX << blkno % CHUNK_BLOCKS);

		if (left != 0)
		{
			const uint16 *positions = (const uint16 *) (blob + sizeof(uint64));
			int			bit = pg_rightmost_one_pos64(left);
			int			rank = pg_popcount64(page_bitmap & ((UINT64CONST(1) << bit) - 1));

			page->blkno = chunk * CHUNK_BLOCKS + bit;
			if (page->blkno >= end)
				return false;
			page->noffsets = decode_page(blob + positions[rank], page->offsets);
			return true;
		}

		/* a chunk on, or a directory page if this one is missing */
		if (find_directory_page(store, chunk / DIRECTORY_PAGE_CHUNKS) == NULL)
			chunk += DIRECTORY_PAGE_CHUNKS - chunk % DIRECTORY_PAGE_CHUNKS - 1;
		if (chunk + 1 >= store->shared->nchunks)
			break;
		blkno = (chunk + 1) * CHUNK_BLOCKS;
	}
	return false;
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

/* dead_tids_memory -- how many bytes of memory the store has by now. */
Size
dead_tids_memory(const DeadTids *store)
{
	return store->shared->tables_size + store->shared->extents_size;
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
	plan->extents_limit = Min(plan->extents_limit, plan->directory_page + segment_size *
							  ((Size) plan->max_segments + directory_pages(plan)));
	plan->first_extent = Min(plan->extents_limit, FIRST_SEGMENTS * segment_size * nmembers +
							 plan->directory_page);
}

/* segment_entry -- where a segment is. */
static pg_atomic_uint64 *
segment_entry(DeadTidsShared *shared, uint32 number)
{
	return &shared->tables[number];
}

/* directory_entry -- where a directory page is. */
static pg_atomic_uint64 *
directory_entry(DeadTidsShared *shared, uint32 number)
{
	return &shared->tables[shared->max_segments + number];
}

/* directory_pages -- how many directory pages there can be. */
static uint32
directory_pages(const DeadTidsShared *shared)
{
	return (shared->nchunks - 1) / DIRECTORY_PAGE_CHUNKS + 1;
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
 * allocate
 *		Allocate memory, not zeroed, if so much and spare on top of it are left.
 *		Return 0 if not.
 */
static uint64
allocate(DeadTids *store, Size size, Size spare)
{
	DeadTidsShared *shared = store->shared;
	uint64		memory = cut_off(shared, size, spare);

	while (memory == 0 && !shared->is_shared && next_extent(shared) > 0 &&
		   add_extent(store, next_extent(shared), NULL))
		memory = cut_off(shared, size, spare);
	return memory;
}

/*
 * cut_off
 *		Take memory from an extent, if so much and spare are left in any.
 */
static uint64
cut_off(DeadTidsShared *shared, Size size, Size spare)
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

/* address_of -- where allocated memory is in this process. */
static char *
address_of(const DeadTids *store, uint64 memory)
{
	int			extent = POINTER_EXTENT(memory);

	if (!store->shared->is_shared)
		return store->shared->extents[extent].address + POINTER_OFFSET(memory);
	if (extent >= store->nextents)
		elog(ERROR, "extent %d of the dead-TID store is not known", extent);
	return store->extents[extent] + POINTER_OFFSET(memory);
}

/*
 * take_segment
 *		Take a segment; return false if there is no memory left.
 */
static bool
take_segment(DeadTids *store, Segment *segment)
{
	DeadTidsShared *shared = store->shared;
	Size		size = (Size) 1 << shared->segment_shift;
	uint32		number;
	uint64		memory;

	if (pg_atomic_read_u32(&shared->segments_taken) >= shared->max_segments)
		return false;
	memory = allocate(store, size, shared->directory_page);
	if (memory == 0)
		return false;
	number = pg_atomic_fetch_add_u32(&shared->segments_taken, 1);
	if (number >= shared->max_segments)
		return false;			/* others were faster */
	pg_atomic_write_u64(segment_entry(shared, number), memory);

	segment->start = address_of(store, memory);
	segment->number = number;
	/* an element of the directory that is 0 leads to a blob without pages */
	segment->next = segment->start + (number == 0 ? BLOB_UNIT : 0);
	if (number == 0)
		memset(segment->start, 0, sizeof(empty_blob_data));
	segment->end = segment->start + size;
	segment->reserved = 0;
	return true;
}

/* has_room -- may another blob be promised room in the segment? */
static bool
has_room(const Segment *segment)
{
	return segment->next + (segment->reserved + 1) * MAX_BLOB_SIZE <= segment->end;
}

/*
 * make_directory_page
 *		See to it that there is a directory page for this chunk; return false
 *		if there is no memory left for it.
 */
static bool
make_directory_page(DeadTids *store, uint32 chunk)
{
	DeadTidsShared *shared = store->shared;
	uint32		number = chunk / DIRECTORY_PAGE_CHUNKS;
	pg_atomic_uint64 *entry = directory_entry(shared, number);
	uint64		expected = 0;
	uint64		memory;

	if (find_directory_page(store, number) != NULL)
		return true;

	memory = allocate(store, shared->directory_page, 0);
	if (memory == 0)
		return false;
	memset(address_of(store, memory), 0, shared->directory_page);
	/* if someone was faster, this page is lost until the store is reset */
	if (pg_atomic_compare_exchange_u64(entry, &expected, memory))
		pg_atomic_fetch_add_u64(&shared->bytes, shared->directory_page);
	return true;
}

/*
 * publish_chunk
 *		Copy the blob of the chunk being built into a segment, enter it in the
 *		directory, and give back the room that was reserved for it.
 */
static void
publish_chunk(DeadTids *store)
{
	DeadTidsShared *shared = store->shared;

	if (store->chunk == InvalidChunk)
		return;

	if (store->page_bitmap != 0)
	{
		int			npages = pg_popcount64(store->page_bitmap);
		Size		header_size = sizeof(uint64) + npages * sizeof(uint16);
		Size		size = TYPEALIGN(BLOB_UNIT, header_size + store->pages_size);
		uint32	   *directory_page;
		uint64		place;
		uint16	   *positions;

		if (store->current.next + size > store->current.end)
		{
			Assert(store->current.reserved == 0);
			store->current = store->spare;
			memset(&store->spare, 0, sizeof(Segment));
		}
		if (store->current.next == NULL ||
			store->current.next + size > store->current.end)
			elog(ERROR, "no room reserved for the dead items of blocks from %u on",
				 store->chunk * CHUNK_BLOCKS);

		*(uint64 *) store->current.next = store->page_bitmap;
		positions = (uint16 *) (store->current.next + sizeof(uint64));
		for (int i = 0; i < npages; i++)
			positions[i] = header_size + store->page_positions[i];
		memcpy(store->current.next + header_size, store->pages, store->pages_size);

		place = ((uint64) store->current.number << (shared->segment_shift - BLOB_UNIT_SHIFT)) +
			(store->current.next - store->current.start) / BLOB_UNIT;
		directory_page = find_directory_page(store, store->chunk / DIRECTORY_PAGE_CHUNKS);
		if (place == 0 || place > PG_UINT32_MAX || directory_page == NULL ||
			directory_page[store->chunk % DIRECTORY_PAGE_CHUNKS] != 0)
			elog(ERROR, "dead items of blocks from %u on are stored twice or out of bounds",
				 store->chunk * CHUNK_BLOCKS);
		directory_page[store->chunk % DIRECTORY_PAGE_CHUNKS] = place;
		store->current.next += size;

		pg_atomic_fetch_add_u64(&shared->nitems, store->chunk_items);
		pg_atomic_fetch_add_u64(&shared->bytes, size);
	}

	if (store->current.reserved > 0)
		store->current.reserved--;
	else
	{
		Assert(store->spare.reserved > 0);
		store->spare.reserved--;
	}
	store->chunk = InvalidChunk;
	store->chunk_items = 0;
	store->page_bitmap = 0;
	store->pages_size = 0;
}

/*
 * find_directory_page
 *		Return a directory page, NULL if there is none.
 */
static inline uint32 *
find_directory_page(const DeadTids *store, uint32 number)
{
	uint64		memory;

	if (likely(store->directory[number] != NULL))
		return store->directory[number];
	memory = pg_atomic_read_u64(directory_entry(store->shared, number));
	if (memory == 0)
		return NULL;
	store->directory[number] = (uint32 *) address_of(store, memory);
	return store->directory[number];
}

/*
 * find_blob
 *		Return the blob of a chunk; one without pages if it has no dead items.
 */
static inline const char *
find_blob(const DeadTids *store, uint32 chunk)
{
	const DeadTidsShared *shared = store->shared;
	uint32	   *directory_page;
	uint32		place;
	uint32		segment;

	/* an index may have entries of blocks that were added since we began */
	if (unlikely(chunk >= shared->nchunks))
		return empty_blob;
	directory_page = find_directory_page(store, chunk / DIRECTORY_PAGE_CHUNKS);
	if (directory_page == NULL)
		return empty_blob;

	/* at place 0, the start of segment 0, is a blob without pages */
	place = directory_page[chunk % DIRECTORY_PAGE_CHUNKS];
	segment = place >> (shared->segment_shift - BLOB_UNIT_SHIFT);
	if (unlikely(store->segments[segment] == NULL))
		find_segment(store, segment);
	return store->segments[segment] +
		((Size) place << BLOB_UNIT_SHIFT & (((Size) 1 << shared->segment_shift) - 1));
}

/*
 * find_segment
 *		Learn the address of a segment.
 *
 * Segment 0 may be asked for by those who will not use it, and not exist; when
 * more is collected it may.
 */
static void
find_segment(const DeadTids *store, uint32 number)
{
	uint64		memory = pg_atomic_read_u64(segment_entry(store->shared, number));

	if (memory == 0 && number != 0)
		elog(ERROR, "segment %u of the dead-TID store does not exist", number);
	store->segments[number] = memory != 0 ? address_of(store, memory) :
		unconstify(char *, empty_blob);
}

/* find_page -- the page entry of a block; an empty one if there is none. */
static inline const uint8 *
find_page(const char *blob, BlockNumber blkno)
{
	uint64		page_bit = UINT64CONST(1) << (blkno % CHUNK_BLOCKS);
	uint64		page_bitmap = *(const uint64 *) blob;
	const uint16 *positions = (const uint16 *) (blob + sizeof(uint64));
	uintptr_t	page;
	uintptr_t	mask;

	/* what is read for a page that isn't there is used for nothing */
	page = (uintptr_t) blob +
		positions[pg_popcount64(page_bitmap & (page_bit - 1))];
	/* a choice without a branch, which would be hard to foresee */
	mask = -(uintptr_t) (page_bitmap >> (blkno % CHUNK_BLOCKS) & 1);
	return (const uint8 *) ((page & mask) | ((uintptr_t) empty_page & ~mask));
}

/* page_contains -- is this offset in a page entry? */
static inline bool
page_contains(const uint8 *page, OffsetNumber offset)
{
	unsigned	byte;
	bool		within;

	if (page[0] == LIST_MARK)
	{
		const OffsetNumber *list = (const OffsetNumber *) (page + PAGE_HEADER_SIZE);
		bool		found = false;

		for (int i = 0; i < page[1]; i++)
			found |= list[i] == offset;
		return found;
	}

	/* an offset before the first byte wraps around to a large number */
	byte = (unsigned) (offset / 8) - page[0];
	within = byte < page[1];
	byte &= -(unsigned) within;
	return within & (page[PAGE_HEADER_SIZE + byte] >> (offset % 8));
}

/*
 * encode_page
 *		Write the entry of a page with these offsets, sorted; return its size.
 */
static Size
encode_page(char *entry, const OffsetNumber *offsets, int noffsets)
{
	uint8	   *bytes = (uint8 *) entry;
	int			first_byte = offsets[0] / 8;
	int			bitmap_size = offsets[noffsets - 1] / 8 - first_byte + 1;

	Assert(noffsets > 0 && offsets[noffsets - 1] <= MaxHeapTuplesPerPage);

	if (noffsets * sizeof(OffsetNumber) < bitmap_size)
	{
		bytes[0] = LIST_MARK;
		bytes[1] = noffsets;
		memcpy(bytes + PAGE_HEADER_SIZE, offsets, noffsets * sizeof(OffsetNumber));
		return PAGE_HEADER_SIZE + noffsets * sizeof(OffsetNumber);
	}

	bytes[0] = first_byte;
	bytes[1] = bitmap_size;
	memset(bytes + PAGE_HEADER_SIZE, 0, TYPEALIGN(2, bitmap_size));
	for (int i = 0; i < noffsets; i++)
	{
		Assert(i == 0 || offsets[i] > offsets[i - 1]);
		bytes[PAGE_HEADER_SIZE + offsets[i] / 8 - first_byte] |= 1 << (offsets[i] % 8);
	}
	return PAGE_HEADER_SIZE + TYPEALIGN(2, bitmap_size);
}

/*
 * decode_page
 *		Put the offsets of a page entry into *offsets, sorted; return how many.
 */
static int
decode_page(const char *entry, OffsetNumber *offsets)
{
	const uint8 *bytes = (const uint8 *) entry;
	int			noffsets = 0;

	if (bytes[0] == LIST_MARK)
	{
		noffsets = bytes[1];
		memcpy(offsets, bytes + PAGE_HEADER_SIZE, noffsets * sizeof(OffsetNumber));
		return noffsets;
	}

	for (int i = 0; i < bytes[1]; i++)
	{
		uint32		left = bytes[PAGE_HEADER_SIZE + i];

		while (left != 0)
		{
			offsets[noffsets++] = (bytes[0] + i) * 8 + pg_rightmost_one_pos32(left);
			left &= left - 1;
		}
	}
	return noffsets;
}
