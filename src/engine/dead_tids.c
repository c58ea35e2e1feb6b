/*-------------------------------------------------------------------------
 *
 * dead_tids.c
 *	  The dead-TID store: where the dead items of a heap are, by block.
 *
 * All members of a team fill the store during the heap scan, and look into
 * it while they vacuum the indexes and the heap.  It is made for that:
 *
 * - A look-up goes straight from the block number to the items: no tree to
 *	 walk, three dependent memory accesses.
 * - Filling takes no lock.  A chunk is 64 heap blocks, aligned; whoever scans
 *	 a chunk scans all of it and alone stores what it finds there.
 * - Memory is one arena of fixed size.  Nothing is freed but all at once.
 *
 * The layout, from the block number down:
 *
 *	 directory	 an element for each chunk: where its blob is, 0 if the
 *				 chunk has no dead items
 *	 blob		 uint64 bitmap: which of the 64 blocks have dead items;
 *				 uint16 position in the blob of each such block's page entry,
 *				 in block order, found by counting the bits below
 *	 page entry	 two bytes, then either a bitmap of offsets without its empty
 *				 ends, or a list of offsets, whichever is smaller
 *
 * A page with one dead item costs 6 bytes, one with hundreds 2 bytes plus a
 * bit an item.  A chunk's blob is never longer than MAX_BLOB_SIZE, about
 * 2.6 kB with 8 kB pages, or 41 bytes a heap page.
 *
 * A process builds the blob of the chunk it scans in its own memory and, when
 * it comes to another chunk, copies it into its segment of the arena and only
 * then enters it in the directory.  Segments are taken from the arena with an
 * atomic counter.  Readers start after a barrier, so neither needs more.
 *
 * The store must never be too small for dead items that are already found, so
 * room is reserved before a block is read: dead_tids_reserve takes room for
 * the largest blob when a block of another chunk is about to be scanned.  It
 * says no when the arena is used up (then it is time to vacuum the indexes and
 * the heap), and also while a process has more chunks read ahead than its
 * segments have room for (then it says yes once they are added).
 * Every process may use up the segment it has, so one that got a segment can
 * always go on by a chunk: a round of collecting never ends without progress.
 *
 * The directory takes at most an eighth of the memory.  If a table is so big
 * that this is too little (beyond 1 TB with 64 MB), the store covers a
 * window of the table at a time; dead_tids_reset moves it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "port/pg_bitutils.h"

#include "engine/dead_tids.h"

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
#define BLOB_UNIT			8

#define MIN_SEGMENT_SIZE	((Size) 8192)
#define MAX_SEGMENT_SIZE	((Size) 1024 * 1024)
#define SEGMENTS_A_MEMBER	32

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address)	__builtin_prefetch(address)
#else
#define PREFETCH(address)	((void) 0)
#endif

StaticAssertDecl(MAX_BITMAP_BYTES < LIST_MARK,
				 "the first byte of a bitmap must differ from LIST_MARK");
StaticAssertDecl(MAX_BLOB_SIZE <= PG_UINT16_MAX,
				 "positions in a blob must fit in 16 bits");

struct DeadTidsShared
{
	/* never change */
	Size		limit;			/* bytes, all that follows included */
	uint32		directory_size; /* chunks */
	uint32		nsegments;
	Size		segment_size;
	Size		arena_start;	/* from the start of this struct */

	/* written by the leader between phases */
	uint32		first_chunk;	/* of the window */

	/* written by all while they collect */
	pg_atomic_uint32 segments_taken;	/* may exceed nsegments */
	pg_atomic_uint64 nitems;
	pg_atomic_uint64 bytes;		/* of all blobs */

	/* each element written by the process that scans its chunk */
	uint32		directory[FLEXIBLE_ARRAY_MEMBER];
};

/* A part of the arena that one process fills. */
typedef struct Segment
{
	char	   *next;			/* NULL if there is none */
	char	   *end;
	int			reserved;		/* blobs */
} Segment;

struct DeadTids
{
	DeadTidsShared *shared;
	char	   *arena;

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

static void plan_memory(BlockNumber nblocks, Size limit, int nmembers,
						DeadTidsShared *plan, Size *total_size);
static bool take_segment(DeadTids *store, Segment *segment);
static bool has_room(const Segment *segment);
static void publish_chunk(DeadTids *store);
static inline const char *find_blob(const DeadTids *store, uint32 chunk);
static inline bool blob_contains(const char *blob, BlockNumber blkno,
								 OffsetNumber offset);
static Size encode_page(char *entry, const OffsetNumber *offsets, int noffsets);
static int	decode_page(const char *entry, OffsetNumber *offsets);

/*
 * dead_tids_shared_size
 *		How many bytes a store needs for a heap of this many blocks: not more
 *		than limit, nor more than the worst case of dead items.
 */
Size
dead_tids_shared_size(BlockNumber nblocks, Size limit, int nmembers)
{
	DeadTidsShared plan;
	Size		total_size;

	plan_memory(nblocks, limit, nmembers, &plan, &total_size);
	return total_size;
}

/*
 * dead_tids_init
 *		Make an empty store in zeroed memory of dead_tids_shared_size bytes.
 */
void
dead_tids_init(DeadTidsShared *shared, BlockNumber nblocks, Size limit,
			   int nmembers)
{
	Size		total_size;

	plan_memory(nblocks, limit, nmembers, shared, &total_size);
	pg_atomic_init_u32(&shared->segments_taken, 0);
	pg_atomic_init_u64(&shared->nitems, 0);
	pg_atomic_init_u64(&shared->bytes, 0);
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
	store->arena = (char *) shared + shared->arena_start;
	store->reserved_chunk = InvalidChunk;
	store->chunk = InvalidChunk;
	return store;
}

/*
 * dead_tids_reset
 *		Forget all items, and cover the blocks from the chunk of first_block on.
 *
 * Only the leader may call this, while no one else uses the store.
 */
void
dead_tids_reset(DeadTids *store, BlockNumber first_block)
{
	DeadTidsShared *shared = store->shared;

	memset(shared->directory, 0, shared->directory_size * sizeof(uint32));
	shared->first_chunk = first_block / CHUNK_BLOCKS;
	pg_atomic_write_u32(&shared->segments_taken, 0);
	pg_atomic_write_u64(&shared->nitems, 0);
	pg_atomic_write_u64(&shared->bytes, 0);
}

/*
 * dead_tids_begin_collecting
 *		Every member calls this before it adds items to an empty store.
 */
void
dead_tids_begin_collecting(DeadTids *store)
{
	memset(&store->current, 0, sizeof(Segment));
	memset(&store->spare, 0, sizeof(Segment));
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

	Assert(blkno >= dead_tids_window_start(store) &&
		   blkno < dead_tids_window_end(store));

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
	segment->reserved++;
	store->reserved_chunk = chunk;
	return true;
}

/*
 * dead_tids_add
 *		Store the dead items of one block, sorted by offset; there may be none.
 *
 * Must be called for every block that room was reserved for, in that order.
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

	if (noffsets > 0)
	{
		int			page = blkno % CHUNK_BLOCKS;

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
	store->reserved_chunk = InvalidChunk;
	Assert(store->current.reserved == 0 && store->spare.reserved == 0);
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

	return blob != NULL && blob_contains(blob, blkno, offset);
}

/*
 * dead_tids_match
 *		Which of these items are in the store?  Return how many, and which in
 *		dead.
 *
 * One look-up waits for three memory accesses that depend on each other.  Many
 * at a time overlap, if they are done step by step; the processor does not
 * look that far ahead by itself.
 */
int
dead_tids_match(const DeadTids *store, const ItemPointerData *tids, int ntids,
				bool *dead)
{
	int			ndead = 0;

	for (int start = 0; start < ntids; start += MATCH_BATCH)
	{
		const char *blobs[MATCH_BATCH];
		int			n = Min(MATCH_BATCH, ntids - start);

		for (int i = 0; i < n; i++)
		{
			blobs[i] = find_blob(store, ItemPointerGetBlockNumberNoCheck(&tids[start + i]) / CHUNK_BLOCKS);
			if (blobs[i] != NULL)
				PREFETCH(blobs[i]);
		}
		for (int i = 0; i < n; i++)
		{
			const ItemPointerData *tid = &tids[start + i];

			dead[start + i] = blobs[i] != NULL &&
				blob_contains(blobs[i], ItemPointerGetBlockNumberNoCheck(tid),
							  ItemPointerGetOffsetNumberNoCheck(tid));
			ndead += dead[start + i];
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

	while (blkno < end)
	{
		uint32		chunk = blkno / CHUNK_BLOCKS;
		const char *blob = find_blob(store, chunk);

		if (blob != NULL)
		{
			int			from = blkno % CHUNK_BLOCKS;
			uint64		page_bitmap = *(const uint64 *) blob;
			uint64		left = page_bitmap & (PG_UINT64_MAX << from);

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
		}

		/* The last chunk of the largest table ends where block numbers do. */
		if (chunk == MaxBlockNumber / CHUNK_BLOCKS)
			break;
		blkno = (chunk + 1) * CHUNK_BLOCKS;
	}
	return false;
}

/* dead_tids_window_start -- the first block that the store covers now. */
BlockNumber
dead_tids_window_start(const DeadTids *store)
{
	return store->shared->first_chunk * CHUNK_BLOCKS;
}

/* dead_tids_window_end -- the first block behind those it covers now. */
BlockNumber
dead_tids_window_end(const DeadTids *store)
{
	uint64		end = ((uint64) store->shared->first_chunk +
					   store->shared->directory_size) * CHUNK_BLOCKS;

	return (BlockNumber) Min(end, (uint64) MaxBlockNumber + 1);
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
	return offsetof(DeadTidsShared, directory) +
		store->shared->directory_size * sizeof(uint32) +
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
 *		Share out the memory between the directory and the arena.
 *
 * Fills in the constant fields of *plan, and says in *total_size what the
 * store takes: the worst case of dead items, or limit if that is less, or, if
 * even that is too little to work at all, what is needed for one segment.
 */
static void
plan_memory(BlockNumber nblocks, Size limit, int nmembers,
			DeadTidsShared *plan, Size *total_size)
{
	Size		nchunks = Max(1, (Size) nblocks / CHUNK_BLOCKS + (nblocks % CHUNK_BLOCKS != 0));
	Size		min_segment = Max(MIN_SEGMENT_SIZE, TYPEALIGN(1024, MAX_BLOB_SIZE));
	Size		arena_size;
	Size		blobs_a_segment;
	Size		worst_case;

	plan->limit = limit;
	plan->first_chunk = 0;
	plan->directory_size = Min(nchunks, Max(1, limit / 8 / sizeof(uint32)));
	/* the first unit stays empty, as 0 in the directory means no blob */
	plan->arena_start = TYPEALIGN(PG_CACHE_LINE_SIZE,
								  offsetof(DeadTidsShared, directory) +
								  plan->directory_size * sizeof(uint32));
	arena_size = limit > plan->arena_start ? limit - plan->arena_start : 0;
	/* what the directory can address */
	arena_size = Min(arena_size, (Size) PG_UINT32_MAX * BLOB_UNIT);

	plan->segment_size = arena_size / nmembers / SEGMENTS_A_MEMBER;
	plan->segment_size -= plan->segment_size % 1024;
	plan->segment_size = Max(plan->segment_size, min_segment);
	plan->segment_size = Min(plan->segment_size, MAX_SEGMENT_SIZE);

	/* Each segment ends with room too small for a blob, at worst. */
	blobs_a_segment = plan->segment_size / MAX_BLOB_SIZE;
	worst_case = (plan->directory_size / blobs_a_segment + 1 + 2 * (Size) nmembers) *
		plan->segment_size;
	arena_size = Min(arena_size, worst_case + BLOB_UNIT);

	plan->nsegments = arena_size > BLOB_UNIT ?
		(arena_size - BLOB_UNIT) / plan->segment_size : 0;
	plan->nsegments = Max(plan->nsegments, 1);
	*total_size = plan->arena_start + BLOB_UNIT +
		plan->nsegments * plan->segment_size;
}

/*
 * take_segment
 *		Take a segment from the arena; return false if none is left.
 */
static bool
take_segment(DeadTids *store, Segment *segment)
{
	DeadTidsShared *shared = store->shared;
	uint32		number = PG_UINT32_MAX;

	/* looking first keeps the counter from wrapping around */
	if (pg_atomic_read_u32(&shared->segments_taken) < shared->nsegments)
		number = pg_atomic_fetch_add_u32(&shared->segments_taken, 1);
	if (number >= shared->nsegments)
		return false;

	segment->next = store->arena + BLOB_UNIT + number * shared->segment_size;
	segment->end = segment->next + shared->segment_size;
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
 * publish_chunk
 *		Copy the blob of the chunk being built into the arena, enter it in the
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
		Size		place;
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

		place = store->current.next - store->arena;
		Assert(place > 0 && place % BLOB_UNIT == 0);
		Assert(shared->directory[store->chunk - shared->first_chunk] == 0);
		shared->directory[store->chunk - shared->first_chunk] = place / BLOB_UNIT;
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
 * find_blob
 *		Return the blob of a chunk, NULL if it has no dead items or is outside
 *		of the window.
 */
static inline const char *
find_blob(const DeadTids *store, uint32 chunk)
{
	const DeadTidsShared *shared = store->shared;
	uint32		place;

	/* a chunk before the window wraps around to a large number */
	if (chunk - shared->first_chunk >= shared->directory_size)
		return NULL;
	place = shared->directory[chunk - shared->first_chunk];
	return place == 0 ? NULL : store->arena + (Size) place * BLOB_UNIT;
}

/* blob_contains -- is this item of the blob's chunk in it? */
static inline bool
blob_contains(const char *blob, BlockNumber blkno, OffsetNumber offset)
{
	uint64		page_bitmap = *(const uint64 *) blob;
	uint64		page_bit = UINT64CONST(1) << (blkno % CHUNK_BLOCKS);
	const uint16 *positions = (const uint16 *) (blob + sizeof(uint64));
	const uint8 *entry;
	int			count;
	int			byte;

	if ((page_bitmap & page_bit) == 0)
		return false;

	entry = (const uint8 *) blob +
		positions[pg_popcount64(page_bitmap & (page_bit - 1))];
	count = entry[1];
	if (entry[0] == LIST_MARK)
	{
		const OffsetNumber *list = (const OffsetNumber *) (entry + PAGE_HEADER_SIZE);

		for (int i = 0; i < count; i++)
			if (list[i] == offset)
				return true;
		return false;
	}

	byte = (offset / 8) - entry[0];
	return byte >= 0 && byte < count &&
		(entry[PAGE_HEADER_SIZE + byte] & (1 << (offset % 8))) != 0;
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
