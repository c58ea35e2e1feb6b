/*-------------------------------------------------------------------------
 *
 * test_dead_tids.c
 *	  Fills a dead-TID store as a team's heap scan does, and compares it with
 *	  a made-up table's dead items.
 *
 * One process plays all members in turn: which one goes on, and for how long,
 * is random.  The store's memory is private, or shared as a team's.
 *
 * A member does to the store what heap_scan.c does.  It claims ranges of
 * blocks in ascending order, passes some blocks over, and asks for room for
 * the others ahead of scanning them, as a read stream's callback.  When room
 * is refused it adds what was read ahead, ends collecting and asks again, and
 * if that is refused too it keeps the rest of its range for the next round.
 * Streams also end for no reason, and members come late.
 *
 * After each round the store must hold what was added in that round, and
 * nothing else.  In the end each dead item of the table must have been in the
 * store of one round.
 *
 * The dead items of the table are known before the store is filled, as plain
 * sorted arrays.  Only blocks with dead items take memory, so the table may be
 * as large as tables can be.
 *
 * All that is random comes from one seed, so that an error is reproduced by
 * calling the function again with the same arguments.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "engine/dead_tids_private.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(test_dead_tids);
PG_FUNCTION_INFO_V1(test_dead_tids_shared_size);

/* Raises an error if the condition does not hold. */
#define CHECK(condition) \
	do { \
		if (!(condition)) \
			elog(ERROR, "check failed: %s", #condition); \
	} while (0)

#define CHUNK_BLOCKS		DEAD_TIDS_CHUNK_BLOCKS
/* The largest table has this many, and its last block is MaxBlockNumber. */
#define MAX_BLOCKS			((int64) MaxBlockNumber + 1)

/* With less, much of it goes to waste. */
#define MUCH_MEMORY			((Size) 256 * 1024)

/* In larger tables, few of the blocks without dead items are looked up. */
#define ALL_BLOCKS_CHECKED	20000
#define BLOCKS_PROBED		100
#define MATCHES				20
#define RANGES_READ			10

/* Memory behind the store must stay as it is. */
#define GUARD_SIZE			64
#define GUARD_BYTE			0xA5

#define LAST_OFFSET			((OffsetNumber) MaxHeapTuplesPerPage)
#define BEYOND_OFFSETS		(MaxHeapTuplesPerPage + 10)	/* the last that is looked up */

/* Which items of a page are dead; "mixed" is one of these by page. */
static const char *const patterns[] = {
	"one", "first", "last", "ends", "few", "random", "alternating", "clustered", "full",
};

/* A block with dead items */
typedef struct DeadPage
{
	BlockNumber blkno;
	int			noffsets;
	OffsetNumber *offsets;
	int64		round;			/* in which it was added to the store, or 0 */
	int			times_found;
} DeadPage;

/* A block that is read ahead */
typedef struct BlockAhead
{
	BlockNumber blkno;
	DeadPage   *page;			/* NULL if it has no dead items */
} BlockAhead;

typedef struct Member
{
	DeadTids   *store;
	bool		joined;			/* from some round on */

	/* what is left of its range, maybe from the last round */
	BlockNumber next;
	BlockNumber end;

	/* in this round */
	bool		collecting;
	bool		next_is_chosen; /* it must be scanned */
	uint32		granted_chunk;	/* there is room for its blocks; or NO_CHUNK */

	/* its stream */
	bool		stream_ended;
	bool		refused;
	int			read_ahead;
	int			patience;		/* steps from one added block to the next */
	BlockAhead *ahead;			/* a ring */
	int			ahead_first;
	int			ahead_count;
} Member;

#define NO_CHUNK			PG_UINT32_MAX

typedef struct Simulation
{
	/* arguments */
	int64		seed;
	BlockNumber nblocks;
	Size		memory;
	int			nmembers;
	char	   *pattern;
	int64		page_gap;
	int64		scan_gap;
	int			read_ahead;
	int64		range_blocks;
	bool		in_shared_memory;
	bool		growth_may_fail;

	pg_prng_state random;

	/* the table's dead items */
	DeadPage   *pages;			/* by block number */
	int			npages;
	int64		nitems;

	/* the store, and how the checks read it */
	char	   *shared;
	Size		shared_size;
	dsm_segment *segment;
	DeadTids   *reader;
	MemoryContext reader_context;
	Size		empty_bytes;

	Member	   *members;
	BlockNumber claimed;		/* all blocks below are */

	/* in this round */
	int64		blocks_added;
	int64		items_added;
	DeadPage  **pages_added;	/* in any order; none after a reset */
	int			npages_added;
	bool		memory_used_up;
	bool		growth_failed;

	BlockNumber place;			/* for error messages */

	/* results */
	int64		rounds;
	Size		peak_bytes;
	int64		drained;
	int64		used_up;
	int64		used_up_before; /* this round */
} Simulation;

/* random_up_to -- a random number from 0 to max. */
static uint64
random_up_to(pg_prng_state *random, uint64 max)
{
	return pg_prng_uint64_range(random, 0, max);
}

/* one_in -- true once in n times. */
static bool
one_in(pg_prng_state *random, uint64 n)
{
	return random_up_to(random, n - 1) == 0;
}

/*
 * choose_offsets
 *		Mark at least one offset of a page.
 */
static void
choose_offsets(pg_prng_state *random, const char *pattern, bool *dead)
{
	int			some = 1 + random_up_to(random, LAST_OFFSET - 1);
	int			first = FirstOffsetNumber;
	int			last = LAST_OFFSET;
	int			step = 1;
	double		share = 1;

	if (strcmp(pattern, "one") == 0 || strcmp(pattern, "few") == 0)
		first = last = some;
	else if (strcmp(pattern, "first") == 0)
		last = first;
	else if (strcmp(pattern, "last") == 0)
		first = last;
	else if (strcmp(pattern, "ends") == 0)
		step = last - first;
	else if (strcmp(pattern, "random") == 0)
		share = pg_prng_double(random);
	else if (strcmp(pattern, "alternating") == 0)
	{
		first += some % 2;
		step = 2;
	}
	else if (strcmp(pattern, "clustered") == 0)
	{
		first = some;
		last = some + random_up_to(random, 60);
		last = Min(last, LAST_OFFSET);
	}
	else if (strcmp(pattern, "full") != 0)
		elog(ERROR, "there is no pattern \"%s\"", pattern);

	for (int offset = first; offset <= last; offset += step)
		dead[offset] = share == 1 || offset == some || pg_prng_double(random) < share;
	if (strcmp(pattern, "few") == 0)
		for (int n = random_up_to(random, 39); n > 0; n--)
			dead[1 + random_up_to(random, LAST_OFFSET - 1)] = true;
}

/*
 * make_up_page
 *		Make up the dead items of a block.
 */
static void
make_up_page(Simulation *sim, DeadPage *page, BlockNumber blkno)
{
	bool		dead[MaxHeapTuplesPerPage + 1] = {0};
	const char *pattern = sim->pattern;

	if (strcmp(pattern, "mixed") == 0)
		pattern = patterns[random_up_to(&sim->random, lengthof(patterns) - 1)];
	choose_offsets(&sim->random, pattern, dead);

	*page = (DeadPage) {.blkno = blkno,.offsets = palloc_array(OffsetNumber, LAST_OFFSET)};
	for (int offset = FirstOffsetNumber; offset <= LAST_OFFSET; offset++)
		if (dead[offset])
			page->offsets[page->noffsets++] = offset;
	sim->nitems += page->noffsets;
}

/*
 * make_up_table
 *		Make up the dead items of a table.
 *
 * The first and the last block always have some.  Up to page_gap blocks
 * between others have none, and sometimes many more, to leave whole chunks of
 * the store empty.
 */
static void
make_up_table(Simulation *sim)
{
	int			room = 1024;
	uint64		blkno = 0;

	sim->pages = palloc_array(DeadPage, room);
	while (blkno < sim->nblocks)
	{
		uint64		gap = random_up_to(&sim->random, sim->page_gap);

		if (one_in(&sim->random, 32))
			gap *= random_up_to(&sim->random, 30);
		if (sim->npages == room)
		{
			room *= 2;
			sim->pages = repalloc_huge(sim->pages, room * sizeof(DeadPage));
		}
		make_up_page(sim, &sim->pages[sim->npages++], blkno);
		if (blkno + 1 == sim->nblocks)
			break;
		blkno = Min(blkno + 1 + gap, (uint64) sim->nblocks - 1);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * first_page
 *		Return the index of the first page with dead items at or behind a block;
 *		npages if there is none.
 */
static int
first_page(const Simulation *sim, BlockNumber from)
{
	int			low = 0;
	int			high = sim->npages;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (sim->pages[middle].blkno < from)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* is_added -- was this page added in this round, and the store not reset since? */
static bool
is_added(const Simulation *sim, const DeadPage *page)
{
	return sim->npages_added > 0 && page->round == sim->rounds;
}

/* mark_added -- mark the offsets of a block that were added in this round. */
static void
mark_added(const Simulation *sim, BlockNumber blkno, bool *added)
{
	int			index = first_page(sim, blkno);
	const DeadPage *page = &sim->pages[index];

	if (index < sim->npages && page->blkno == blkno && is_added(sim, page))
		for (int i = 0; i < page->noffsets; i++)
			added[page->offsets[i]] = true;
}

/* random_added -- the block of a page that was added in this round. */
static DeadPage *
random_added(Simulation *sim)
{
	return sim->pages_added[random_up_to(&sim->random, sim->npages_added - 1)];
}

/* attach_reader -- read as a process that comes now. */
static void
attach_reader(Simulation *sim)
{
	MemoryContext context = MemoryContextSwitchTo(sim->reader_context);

	MemoryContextReset(sim->reader_context);
	sim->reader = dead_tids_attach((DeadTidsShared *) sim->shared);
	CHECK(dead_tids_catch_up(sim->reader, NULL));
	MemoryContextSwitchTo(context);
}

/*
 * create_store
 *		Make an empty store in memory that is not, with a guard behind it; and
 *		the members.
 *
 * Segments of shared memory are mapped once for all, as a process can't have
 * two mappings.
 */
static void
create_store(Simulation *sim)
{
	sim->shared_size = dead_tids_shared_size(sim->in_shared_memory, sim->nblocks, sim->memory,
											 sim->nmembers);
	if (sim->in_shared_memory)
	{
		sim->segment = dsm_create(sim->shared_size + GUARD_SIZE, 0);
		sim->shared = dsm_segment_address(sim->segment);
	}
	else
		sim->shared = palloc_aligned(sim->shared_size + GUARD_SIZE,
									 PG_CACHE_LINE_SIZE, MCXT_ALLOC_HUGE);
	memset(sim->shared, GUARD_BYTE, sim->shared_size + GUARD_SIZE);

	dead_tids_init((DeadTidsShared *) sim->shared, sim->in_shared_memory,
				   sim->nblocks, sim->memory, sim->nmembers);

	sim->members = palloc0_array(Member, sim->nmembers);
	for (int i = 0; i < sim->nmembers; i++)
	{
		sim->members[i].store = dead_tids_attach((DeadTidsShared *) sim->shared);
		sim->members[i].ahead = palloc_array(BlockAhead, sim->read_ahead);
	}
	sim->pages_added = palloc_array(DeadPage *, sim->npages + 1);

	sim->reader_context = AllocSetContextCreate(CurrentMemoryContext, "reader",
												ALLOCSET_DEFAULT_SIZES);
	attach_reader(sim);
	sim->empty_bytes = dead_tids_bytes(sim->reader);
	CHECK(dead_tids_limit(sim->reader) == sim->memory);
}

/* destroy_store -- and give back shared memory. */
static void
destroy_store(Simulation *sim)
{
	dead_tids_detach(sim->members[0].store);
	if (sim->segment != NULL)
		dsm_detach(sim->segment);
}

/*
 * check_block
 *		Compare what the store says of a block's items, all or some of them.
 */
static void
check_block(Simulation *sim, BlockNumber blkno, bool all_offsets)
{
	bool		stored[MaxHeapTuplesPerPage + 2] = {0};
	int			step = all_offsets ? 1 : 1 + random_up_to(&sim->random, 100);

	if (blkno == InvalidBlockNumber)
		return;

	mark_added(sim, blkno, stored);
	sim->place = blkno;
	for (int offset = 0; offset < lengthof(stored); offset += step)
		CHECK(dead_tids_contains(sim->reader, blkno, offset) == stored[offset]);
	CHECK(!dead_tids_contains(sim->reader, blkno, MaxOffsetNumber));
	CHECK(!dead_tids_contains(sim->reader, blkno, PG_UINT16_MAX));
	sim->place = InvalidBlockNumber;
}

/*
 * check_lookups
 *		Look up items that are in the store, and items that are not.
 */
static void
check_lookups(Simulation *sim)
{
	if (sim->nblocks <= ALL_BLOCKS_CHECKED)
	{
		for (BlockNumber blkno = 0; blkno < sim->nblocks + 2 * CHUNK_BLOCKS; blkno++)
			check_block(sim, blkno, true);
	}
	else
	{
		for (int i = 0; i < sim->npages_added; i++)
		{
			BlockNumber blkno = sim->pages_added[i]->blkno;

			/* Out of range they wrap around, and are not in the store either. */
			check_block(sim, blkno, true);
			check_block(sim, blkno - 1, false);
			check_block(sim, blkno + 1, false);
			check_block(sim, blkno - CHUNK_BLOCKS, false);
			check_block(sim, blkno + CHUNK_BLOCKS, false);
		}
		for (int i = 0; i < BLOCKS_PROBED; i++)
		{
			int			page = random_up_to(&sim->random, sim->npages - 1);

			check_block(sim, sim->pages[page].blkno, false);
			check_block(sim, random_up_to(&sim->random, MaxBlockNumber), false);
			check_block(sim, random_up_to(&sim->random, sim->nblocks - 1), false);
		}
	}

	check_block(sim, 0, true);
	check_block(sim, sim->nblocks - 1, true);
	check_block(sim, sim->nblocks, true);
	check_block(sim, MaxBlockNumber, true);
}

/*
 * check_facts
 *		Check the number of the items added in this round, and their size.
 */
static void
check_facts(Simulation *sim)
{
	Size		bytes = dead_tids_bytes(sim->reader);

	/* what it needs to begin with, in shared memory or beside it */
	Size		limit = Max(sim->memory, dead_tids_shared_size(true, sim->nblocks, sim->memory,
															   sim->nmembers));
	const uint8 *guard = (uint8 *) sim->shared + sim->shared_size;

	CHECK(dead_tids_count(sim->reader) == sim->items_added);
	CHECK(bytes <= limit);
	CHECK(sim->reader->shared->tables_size + sim->reader->shared->extents_size <= limit);
	for (int i = 0; i < GUARD_SIZE; i++)
		CHECK(guard[i] == GUARD_BYTE);

	/* A process alone comes to an end only when most of the memory is in use. */
	if (sim->nmembers == 1 && sim->memory_used_up && !sim->growth_failed &&
		sim->memory >= MUCH_MEMORY && sim->nblocks <= ALL_BLOCKS_CHECKED)
		CHECK(bytes >= limit / 3 * 2);

	sim->peak_bytes = Max(sim->peak_bytes, bytes);
}

/* random_tid -- of any block, but most often of one that has dead items. */
static void
random_tid(Simulation *sim, ItemPointer tid)
{
	BlockNumber blkno = random_up_to(&sim->random, MaxBlockNumber);
	OffsetNumber offset = random_up_to(&sim->random, BEYOND_OFFSETS);

	if (sim->npages_added > 0 && !one_in(&sim->random, 3))
	{
		DeadPage   *page = random_added(sim);

		blkno = page->blkno;
		if (one_in(&sim->random, 2))
			offset = page->offsets[random_up_to(&sim->random, page->noffsets - 1)];
	}
	else if (sim->nblocks > 0 && !one_in(&sim->random, 3))
		blkno = random_up_to(&sim->random, sim->nblocks - 1);
	ItemPointerSet(tid, blkno, offset);
}

/*
 * check_matches
 *		Look up many items at a time, in any order, stored or not.
 */
static void
check_matches(Simulation *sim)
{
	ItemPointerData tids[100];
	bool		dead[lengthof(tids) + 1];
	bool		searched[lengthof(tids)];

	for (int i = 0; i < MATCHES; i++)
	{
		int			ntids = random_up_to(&sim->random, lengthof(tids));
		int			nstored = 0;

		for (int n = 0; n < ntids; n++)
			random_tid(sim, &tids[n]);
		memset(dead, GUARD_BYTE, sizeof(dead));

		CHECK(dead_tids_match(sim->reader, tids, ntids, dead) >= 0);
		for (int n = 0; n < ntids; n++)
		{
			bool		stored[BEYOND_OFFSETS + 1] = {0};

			sim->place = ItemPointerGetBlockNumberNoCheck(&tids[n]);
			mark_added(sim, sim->place, stored);
			CHECK(dead[n] == stored[ItemPointerGetOffsetNumberNoCheck(&tids[n])]);
			nstored += dead[n];
		}
		sim->place = InvalidBlockNumber;
		CHECK(dead_tids_match(sim->reader, tids, ntids, dead) == nstored);
		CHECK(*(uint8 *) &dead[ntids] == GUARD_BYTE);

		dead_tids_search(sim->reader, tids, ntids, searched);
		CHECK(memcmp(searched, dead, ntids) == 0);
	}
}

/*
 * check_read
 *		Read a part of the store page by page; count the pages if they are to
 *		be found once in all.
 */
static void
check_read(Simulation *sim, BlockNumber start, BlockNumber end, bool count)
{
	DeadTidsPage found;

	for (int i = first_page(sim, start); i < sim->npages && sim->pages[i].blkno < end; i++)
	{
		DeadPage   *page = &sim->pages[i];

		if (!is_added(sim, page))
			continue;
		sim->place = page->blkno;
		CHECK(dead_tids_next_page(sim->reader, start, end, &found));
		CHECK(found.blkno == page->blkno);
		CHECK(found.noffsets == page->noffsets);
		CHECK(memcmp(found.offsets, page->offsets, page->noffsets * sizeof(OffsetNumber)) == 0);
		page->times_found += count;
		start = found.blkno + 1;
	}
	CHECK(!dead_tids_next_page(sim->reader, start, end, &found));
	sim->place = InvalidBlockNumber;
}

/*
 * check_reads
 *		Read the store as the second pass over the heap does, and otherwise.
 */
static void
check_reads(Simulation *sim)
{
	BlockNumber start = 0;
	BlockNumber end = sim->nblocks;
	uint64		from;
	uint64		to;

	/* To read the whole of a large table takes a while; once must do. */
	if (sim->nblocks <= ALL_BLOCKS_CHECKED)
		check_read(sim, 0, sim->nblocks + 10000, false);
	else if (sim->rounds == 1)
		check_read(sim, 0, MAX_BLOCKS, false);
	else
	{
		start = sim->nblocks;
		end = 0;
		for (int i = 0; i < sim->npages_added; i++)
		{
			start = Min(start, sim->pages_added[i]->blkno);
			end = Max(end, sim->pages_added[i]->blkno + 1);
		}
		start = Min(start - start % CHUNK_BLOCKS, end);
	}

	/* In pieces that together are everything */
	for (from = start; from < end; from = to)
	{
		to = from + CHUNK_BLOCKS *
			(1 + random_up_to(&sim->random, (end - start) / CHUNK_BLOCKS));
		to = Min(to, end);
		check_read(sim, from, to, true);
	}

	/* Anything else, also nothing at all */
	for (int i = 0; i < RANGES_READ; i++)
	{
		from = start + random_up_to(&sim->random, end - start);
		if (sim->npages_added > 0 && one_in(&sim->random, 2))
		{
			from = random_added(sim)->blkno;
			if (from > 0 && one_in(&sim->random, 2))
				from--;
		}
		to = from + random_up_to(&sim->random, 10 * CHUNK_BLOCKS);
		check_read(sim, from, Min(to, MAX_BLOCKS), false);
	}
	check_read(sim, start, start, false);
	check_read(sim, end, start, false);
	check_read(sim, MaxBlockNumber, MAX_BLOCKS, false);
}

/* check_empty -- nothing is in the store, after a reset. */
static void
check_empty(Simulation *sim)
{
	sim->items_added = 0;
	sim->npages_added = 0;
	CHECK(dead_tids_count(sim->reader) == 0);
	CHECK(dead_tids_bytes(sim->reader) == sim->empty_bytes);
	check_block(sim, 0, true);
	check_block(sim, sim->nblocks - 1, true);
	check_matches(sim);
	check_read(sim, 0, Min(sim->nblocks, ALL_BLOCKS_CHECKED), false);
}

/* first_unscanned -- the first block that is still to be scanned. */
static BlockNumber
first_unscanned(const Simulation *sim)
{
	BlockNumber first = sim->claimed;

	for (int i = 0; i < sim->nmembers; i++)
		if (sim->members[i].next < sim->members[i].end)
			first = Min(first, sim->members[i].next);
	return first;
}

/* begin_round -- with the members that are there by now; the first always is. */
static void
begin_round(Simulation *sim)
{
	sim->blocks_added = 0;
	sim->items_added = 0;
	sim->npages_added = 0;
	sim->memory_used_up = false;
	sim->growth_failed = false;
	sim->used_up_before = sim->used_up;
	for (int i = 0; i < sim->nmembers; i++)
	{
		Member	   *member = &sim->members[i];

		if (i == 0 || one_in(&sim->random, 2))
			member->joined = true;
		member->collecting = false;
	}
}

/* grow -- get more memory, as the leader does between phases. */
static bool
grow(Simulation *sim)
{
	char	   *failure = NULL;

	sim->growth_failed = sim->growth_may_fail && one_in(&sim->random, 2);
	if (sim->growth_failed || !dead_tids_grow(sim->members[0].store, &failure))
		return false;
	CHECK(failure == NULL);
	sim->memory_used_up = false;
	sim->used_up = sim->used_up_before;
	for (int i = 0; i < sim->nmembers; i++)
		sim->members[i].collecting = false;
	return true;
}

/*
 * claim_range
 *		Get blocks that no other member has.
 */
static bool
claim_range(Simulation *sim, Member *member)
{
	BlockNumber end = sim->nblocks;

	if (sim->claimed >= end)
		return false;
	if (sim->range_blocks > 0)
	{
		uint64		nchunks = 1 + random_up_to(&sim->random, sim->range_blocks / CHUNK_BLOCKS);

		end = Min(sim->claimed + nchunks * CHUNK_BLOCKS, end);
	}

	member->next = sim->claimed;
	member->end = end;
	sim->claimed = end;
	return true;
}

/*
 * choose_block
 *		Choose the next block of the range to scan, passing over some that have
 *		no dead items; return false if the range has none.
 *
 * Asked again, the answer is the same, until the block is read ahead.
 */
static bool
choose_block(Simulation *sim, Member *member, BlockAhead *choice)
{
	int			index = first_page(sim, member->next);
	uint64		blkno = member->next;

	if (!member->next_is_chosen && one_in(&sim->random, 4))
		blkno += random_up_to(&sim->random, sim->scan_gap);
	if (index < sim->npages)
		blkno = Min(blkno, sim->pages[index].blkno);
	member->next = Min(blkno, member->end);
	if (member->next == member->end)
		return false;

	member->next_is_chosen = true;
	choice->blkno = member->next;
	choice->page = index < sim->npages && sim->pages[index].blkno == blkno ?
		&sim->pages[index] : NULL;
	return true;
}

/*
 * ask_for_block
 *		Choose a block and ask for room, as a read stream's callback.
 */
static void
ask_for_block(Simulation *sim, Member *member)
{
	BlockAhead	choice;
	uint32		chunk;
	bool		granted;

	do
	{
		if (member->next >= member->end && !claim_range(sim, member))
		{
			member->stream_ended = true;
			return;
		}
	} while (!choose_block(sim, member, &choice));

	/* A stream may also end for other reasons, but not amid a chunk. */
	chunk = choice.blkno / CHUNK_BLOCKS;
	if (chunk != member->granted_chunk && one_in(&sim->random, 200))
	{
		member->stream_ended = true;
		return;
	}

	sim->place = choice.blkno;
	granted = dead_tids_reserve(member->store, choice.blkno);
	CHECK(granted || chunk != member->granted_chunk);
	sim->place = InvalidBlockNumber;

	if (granted)
	{
		int			last = (member->ahead_first + member->ahead_count) % sim->read_ahead;

		member->granted_chunk = chunk;
		member->ahead[last] = choice;
		member->ahead_count++;
		member->next = choice.blkno + 1;
		member->next_is_chosen = false;
	}
	else
	{
		member->stream_ended = true;
		member->refused = true;
	}
}

/*
 * add_block
 *		Add the dead items of the first block that is read ahead.
 */
static void
add_block(Simulation *sim, Member *member)
{
	BlockAhead *block = &member->ahead[member->ahead_first];
	DeadPage   *page = block->page;

	sim->place = block->blkno;
	if (page == NULL)
		dead_tids_add(member->store, block->blkno, NULL, 0);
	else
	{
		dead_tids_add(member->store, block->blkno, page->offsets, page->noffsets);
		CHECK(page->round == 0);
		page->round = sim->rounds;
		sim->pages_added[sim->npages_added++] = page;
		sim->items_added += page->noffsets;
	}
	sim->place = InvalidBlockNumber;

	sim->blocks_added++;
	member->ahead_first = (member->ahead_first + 1) % sim->read_ahead;
	member->ahead_count--;
}

/* begin_stream -- that reads ahead by a number of blocks of its own. */
static void
begin_stream(Simulation *sim, Member *member)
{
	member->stream_ended = false;
	member->refused = false;
	member->read_ahead = 1 + random_up_to(&sim->random, sim->read_ahead - 1);
	member->patience = 2 << (4 * random_up_to(&sim->random, 3));
	member->ahead_first = 0;
	member->ahead_count = 0;
}

/*
 * end_stream
 *		All blocks asked for are added.  Go on with another stream and return
 *		true; or return false if there are no blocks left, or no memory.
 */
static bool
end_stream(Simulation *sim, Member *member)
{
	bool		refused = member->refused;

	dead_tids_end_collecting(member->store);
	member->granted_chunk = NO_CHUNK;

	if (refused)
	{
		if (!dead_tids_reserve(member->store, member->next))
		{
			sim->used_up++;
			sim->memory_used_up = true;
			return false;
		}
		sim->drained++;
		member->granted_chunk = member->next / CHUNK_BLOCKS;
	}
	else if (member->next >= member->end && sim->claimed >= sim->nblocks)
		return false;

	begin_stream(sim, member);
	return true;
}

/*
 * member_step
 *		Ask for a block, add one, or end a stream; return false when this
 *		member is through with the round.
 */
static bool
member_step(Simulation *sim, Member *member)
{
	if (!member->collecting)
	{
		CHECK(dead_tids_catch_up(member->store, NULL));
		dead_tids_begin_collecting(member->store);
		member->collecting = true;
		member->next_is_chosen = false;
		member->granted_chunk = NO_CHUNK;
		begin_stream(sim, member);
	}

	if (!member->stream_ended && member->ahead_count < member->read_ahead &&
		(member->ahead_count == 0 || !one_in(&sim->random, member->patience)))
		ask_for_block(sim, member);
	else if (member->ahead_count > 0)
		add_block(sim, member);
	else
		return end_stream(sim, member);
	return true;
}

/* collect -- let the members work, by turns, until all are through. */
static void
collect(Simulation *sim)
{
	Member	  **working = palloc_array(Member *, sim->nmembers);
	int			nworking = 0;

	for (int i = 0; i < sim->nmembers; i++)
		if (sim->members[i].joined)
			working[nworking++] = &sim->members[i];

	while (nworking > 0)
	{
		int			turn = random_up_to(&sim->random, nworking - 1);
		uint64		nsteps = UINT64CONST(1) << random_up_to(&sim->random, 10);

		CHECK_FOR_INTERRUPTS();
		for (uint64 i = 0; i < nsteps; i++)
			if (!member_step(sim, working[turn]))
			{
				working[turn] = working[--nworking];
				break;
			}
	}
	pfree(working);
}

/*
 * run_vacuum
 *		Do as many rounds as the table needs, then look at them as a whole.
 */
static void
run_vacuum(Simulation *sim)
{
	check_empty(sim);
	for (;;)
	{
		sim->rounds++;
		begin_round(sim);
		do
			collect(sim);
		while (first_unscanned(sim) < sim->nblocks && grow(sim));
		if (one_in(&sim->random, 2))
			sim->reader = sim->members[0].store;
		else
			attach_reader(sim);
		check_facts(sim);
		check_lookups(sim);
		check_matches(sim);
		check_reads(sim);

		if (first_unscanned(sim) >= sim->nblocks)
			break;
		CHECK(sim->blocks_added > 0);
		dead_tids_reset(sim->members[0].store);
		attach_reader(sim);
		check_empty(sim);
	}

	for (int i = 0; i < sim->npages; i++)
	{
		sim->place = sim->pages[i].blkno;
		CHECK(sim->pages[i].round > 0);
		CHECK(sim->pages[i].times_found == 1);
	}
	sim->place = InvalidBlockNumber;

	dead_tids_reset(sim->members[0].store);
	attach_reader(sim);
	check_empty(sim);
}

/* report_context -- say where an error was found. */
static void
report_context(void *arg)
{
	Simulation *sim = arg;

	errcontext("round %lld, block %u", (long long) sim->rounds, sim->place);
}

/* block_argument -- a number of blocks, checked. */
static BlockNumber
block_argument(int64 nblocks)
{
	if (nblocks < 0 || nblocks > MAX_BLOCKS)
		elog(ERROR, "the number of blocks is out of range");
	return nblocks;
}

/*
 * test_dead_tids
 *		SQL function: simulate a vacuum's rounds and check the store after each.
 */
Datum
test_dead_tids(PG_FUNCTION_ARGS)
{
	Simulation *sim = palloc0_object(Simulation);
	ErrorContextCallback callback;
	TupleDesc	tupdesc;
	Datum		values[6];
	bool		nulls[6] = {0};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	sim->seed = PG_GETARG_INT64(0);
	sim->nblocks = block_argument(PG_GETARG_INT64(1));
	sim->memory = PG_GETARG_INT64(2);
	sim->nmembers = PG_GETARG_INT32(3);
	sim->pattern = text_to_cstring(PG_GETARG_TEXT_PP(4));
	sim->page_gap = PG_GETARG_INT64(5);
	sim->scan_gap = PG_GETARG_INT64(6);
	sim->read_ahead = PG_GETARG_INT32(7);
	sim->range_blocks = PG_GETARG_INT64(8);
	sim->in_shared_memory = PG_GETARG_BOOL(9);
	sim->growth_may_fail = PG_GETARG_BOOL(10);
	if (sim->nmembers < 1 || sim->read_ahead < 1 || sim->page_gap < 0 ||
		sim->scan_gap < 0 || sim->range_blocks < 0)
		elog(ERROR, "an argument is too small");

	callback.callback = report_context;
	callback.arg = sim;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	sim->place = InvalidBlockNumber;
	pg_prng_seed(&sim->random, sim->seed);
	make_up_table(sim);
	create_store(sim);
	run_vacuum(sim);
	destroy_store(sim);

	error_context_stack = callback.previous;

	values[0] = Int64GetDatum(sim->rounds);
	values[1] = Int64GetDatum(sim->npages);
	values[2] = Int64GetDatum(sim->nitems);
	values[3] = Int64GetDatum(sim->peak_bytes);
	values[4] = Int64GetDatum(sim->drained);
	values[5] = Int64GetDatum(sim->used_up);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
													  values, nulls)));
}

/*
 * test_dead_tids_shared_size
 *		SQL function: how much memory would a store take to begin with?
 */
Datum
test_dead_tids_shared_size(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(dead_tids_shared_size(true, block_argument(PG_GETARG_INT64(0)),
										  PG_GETARG_INT64(1),
										  PG_GETARG_INT32(2)));
}
