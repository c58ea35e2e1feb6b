/*-------------------------------------------------------------------------
 *
 * dead_tids_collect.c
 *	  Filling the dead-TID store with the dead items that each member of a team finds
 *	  in the heap.
 *
 * A process builds the blob of the chunk it scans in its own memory.  When it
 * comes to another chunk, it copies the blob into a segment that it has to
 * itself, and then enters it in the directory.  Room for it was reserved before
 * the chunk's first block was read.  The layout and the argument are in
 * dead_tids.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "port/pg_bitutils.h"

#include "debug_point.h"
#include "engine/dead_tids.h"
#include "engine/dead_tids_private.h"

static bool take_segment(DeadTids *store, Segment *segment);
static bool has_room(const Segment *segment);
static bool make_directory_page(DeadTids *store, uint32 chunk);
static void publish_chunk(DeadTids *store);
static Size encode_page(char *entry, const OffsetNumber *offsets, int noffsets);

/*
 * dead_tids_begin_collecting
 *		Every member calls this before it adds items, to an empty store or, in
 *		the same round, to one that has grown.
 */
void
dead_tids_begin_collecting(DeadTids *store)
{
	/* read again by dead_tids_catch_up */
	Assert(store->round == store->shared->round);
	Assert(!store->shared->is_shared || store->nextents == store->shared->nextents);
	Assert(store->current.reserved == 0 && store->spare.reserved == 0);

	/* it may not have existed when it was last looked for */
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
 * blocks asked for so far, end collecting, and ask again.  If the answer is still
 * false, memory is used up.
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

	Assert(chunk < store->shared->nchunks);
	Assert(noffsets == 0 || offsets != NULL);
	Assert(noffsets >= 0 && noffsets <= MaxHeapTuplesPerPage);
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
		Assert(store->pages_size + MAX_PAGE_SIZE <= sizeof(store->pages));

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
	Assert(store->round == store->shared->round);
	publish_chunk(store);

	/* The last room may not have been used after all. */
	Assert(store->current.reserved + store->spare.reserved <= 1);
	store->current.reserved = 0;
	store->spare.reserved = 0;
	store->reserved_chunk = InvalidChunk;
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

	Assert(segment->next == NULL && segment->reserved == 0);
	if (pg_atomic_read_u32(&shared->segments_taken) >= shared->max_segments)
		return false;
	memory = dead_tids_allocate(store, size, shared->directory_page);
	if (memory == 0)
		return false;
	number = pg_atomic_fetch_add_u32(&shared->segments_taken, 1);
	if (number >= shared->max_segments)
		return false;			/* other members were faster */
	pg_atomic_write_u64(segment_entry(shared, number), memory);

	segment->start = dead_tids_address(store, memory);
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

	memory = dead_tids_allocate(store, shared->directory_page, 0);
	if (memory == 0)
		return false;
	memset(dead_tids_address(store, memory), 0, shared->directory_page);
	/* if a member was faster, this page is lost until the store is reset */
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

		Assert(size <= MAX_BLOB_SIZE && store->chunk_items > 0);
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
