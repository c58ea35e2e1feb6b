/*-------------------------------------------------------------------------
 *
 * dead_tids_lookup.c
 *	  Reading the dead-TID store: is an item in it, and which items of a block
 *	  are.
 *
 * Look-ups are among the hottest loops of a vacuum, and see through all layers
 * of the store: from the block number to the items they are inlined into each
 * other.  The layout is in dead_tids.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "port/pg_bitutils.h"

#include "engine/dead_tids.h"
#include "engine/dead_tids_private.h"
#include "machine/prefetch.h"

/* How many look-ups are done side by side */
#define MATCH_BATCH			32

/* A page without items */
static const uint8 empty_page[PAGE_HEADER_SIZE + 2] = {0};

static inline const char *find_blob(const DeadTids *store, uint32 chunk);
static void find_segment(const DeadTids *store, uint32 number);
static inline const uint8 *find_page(const char *blob, BlockNumber blkno);
static inline bool are_of_one_block(const ItemPointerData *tids, int ntids);
static int	match_page(const uint8 *page, const ItemPointerData *tids, int ntids,
					   bool *pg_restrict dead);
static inline bool page_contains(const uint8 *page, OffsetNumber offset);
static inline bool bitmap_contains(const uint8 *page, unsigned first, unsigned size,
								   OffsetNumber offset);
static inline uint32 block_bits(const ItemPointerData *tid);
static int	decode_page(const char *entry, OffsetNumber *offsets);

/*
 * dead_tids_contains
 *		Is this item in the store?
 */
bool
dead_tids_contains(const DeadTids *store, BlockNumber blkno,
				   OffsetNumber offset)
{
	const char *blob = find_blob(store, blkno / CHUNK_BLOCKS);

	Assert(store->round == store->shared->round);
	return page_contains(find_page(blob, blkno), offset);
}

/*
 * dead_tids_search
 *		Which of these items are in the store?  They are looked up one by one, for a second
 *		opinion.
 *
 * All pages of a batch are found first, so that no look-up waits for another.  One that has
 * been found is that of the next item, too, if that is of the same block.
 */
void
dead_tids_search(const DeadTids *store, const ItemPointerData *tids, int ntids, bool *dead)
{
	BlockNumber last = InvalidBlockNumber;
	const uint8 *page = empty_page;

	Assert(store->round == store->shared->round);
	Assert(ntids == 0 || (tids != NULL && dead != NULL));
	Assert(ntids >= 0);
	for (int start = 0; start < ntids; start += MATCH_BATCH)
	{
		int			n = Min(MATCH_BATCH, ntids - start);
		const uint8 *pages[MATCH_BATCH];

		for (int i = 0; i < n; i++)
		{
			BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tids[start + i]);

			if (block != last)
				page = find_page(find_blob(store, block / CHUNK_BLOCKS), block);
			last = block;
			pages[i] = page;
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
 * a batch of them is done side by side and step by step, almost without branches.  Where
 * an index is in the order of the table, items come in runs of the same block,
 * which is looked up once, and mostly a batch is all of one block.
 */
int
dead_tids_match(const DeadTids *store, const ItemPointerData *tids, int ntids,
				bool *dead)
{
	int			ndead = 0;

	Assert(store->round == store->shared->round);
	Assert(ntids == 0 || (tids != NULL && dead != NULL));
	Assert(ntids >= 0);
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
		if (are_of_one_block(batch, n))
		{
			blobs[0] = find_blob(store, blocks[0] / CHUNK_BLOCKS);
			ndead += match_page(find_page(blobs[0], blocks[0]), batch, n, &dead[start]);
			continue;
		}
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
			Assert(page->noffsets > 0 && page->noffsets <= MaxHeapTuplesPerPage);
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
	Assert(segment < shared->max_segments);
	if (unlikely(store->segments[segment] == NULL))
		find_segment(store, segment);
	return store->segments[segment] +
		((Size) place << BLOB_UNIT_SHIFT & (((Size) 1 << shared->segment_shift) - 1));
}

/*
 * find_segment
 *		Learn the address of a segment.
 *
 * Place 0 leads to segment 0, which may not exist yet.  It may when more is
 * collected: dead_tids_begin_collecting forgets it.
 */
static void
find_segment(const DeadTids *store, uint32 number)
{
	uint64		memory = pg_atomic_read_u64(segment_entry(store->shared, number));

	if (memory == 0 && number != 0)
		elog(ERROR, "segment %u of the dead-TID store does not exist", number);
	store->segments[number] = memory != 0 ? dead_tids_address(store, memory) :
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

	/*
	 * the position that is read for a page that isn't there is used for
	 * nothing
	 */
	page = (uintptr_t) blob +
		positions[pg_popcount64(page_bitmap & (page_bit - 1))];
	/* a choice without a branch, which would be hard to foresee */
	mask = -(uintptr_t) (page_bitmap >> (blkno % CHUNK_BLOCKS) & 1);
	return (const uint8 *) ((page & mask) | ((uintptr_t) empty_page & ~mask));
}

/* are_of_one_block -- the first and the last are asked first, as they settle it mostly. */
static inline bool
are_of_one_block(const ItemPointerData *tids, int ntids)
{
	uint32		block = block_bits(&tids[0]);
	uint32		differences = block_bits(&tids[ntids - 1]) ^ block;

	for (const ItemPointerData *tid = tids; differences == 0 && tid < tids + ntids; tid++)
		differences = block_bits(tid) ^ block;
	return differences == 0;
}

/* match_page -- which of these items, all of one block, does its page entry have? */
static int
match_page(const uint8 *page, const ItemPointerData *tids, int ntids, bool *pg_restrict dead)
{
	const unsigned first = page[0];
	const unsigned size = page[1];
	int			ndead = 0;

	if (size == 0)
	{
		memset(dead, false, ntids * sizeof(bool));
		return 0;
	}
	for (int i = 0; i < ntids; i++)
	{
		OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(&tids[i]);

		dead[i] = unlikely(first == LIST_MARK) ? page_contains(page, offset) :
			bitmap_contains(page, first, size, offset);
		ndead += dead[i];
	}
	return ndead;
}

/* page_contains -- is this offset in a page entry? */
static inline bool
page_contains(const uint8 *page, OffsetNumber offset)
{
	if (page[0] == LIST_MARK)
	{
		const OffsetNumber *list = (const OffsetNumber *) (page + PAGE_HEADER_SIZE);
		bool		found = false;

		for (int i = 0; i < page[1]; i++)
			found |= list[i] == offset;
		return found;
	}

	return bitmap_contains(page, page[0], page[1], offset);
}

/* bitmap_contains -- is it in a page entry that is a bitmap, with this first byte and size? */
static inline bool
bitmap_contains(const uint8 *page, unsigned first, unsigned size, OffsetNumber offset)
{
	/* an offset before the first byte wraps around to a large number */
	unsigned	byte = (unsigned) (offset / 8) - first;
	bool		within = byte < size;

	byte &= -(unsigned) within;
	return within & (page[PAGE_HEADER_SIZE + byte] >> (offset % 8));
}

/* block_bits -- the bytes of a TID's block number, to be compared. */
static inline uint32
block_bits(const ItemPointerData *tid)
{
	uint32		bits;

	memcpy(&bits, &tid->ip_blkid, sizeof(bits));
	return bits;
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
