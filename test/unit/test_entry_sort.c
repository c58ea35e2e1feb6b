/*-------------------------------------------------------------------------
 *
 * test_entry_sort.c
 *	  Integers come out in order, however many fit into memory:
 *	  index_build/entry_sort.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "storage/shmem.h"

#include "index_build/entry_sort.c"
#include "unit.h"

#define MOST_ENTRIES	20000
#define MOST_PROCESSES	20

MemoryContext CurrentMemoryContext = NULL;

/* A temporary file */
struct BufFile
{
	char	   *data;
	size_t		room;
	size_t		size;
	size_t		position;
};

static int	open_files = 0;
static int	most_open_files = 0;

/* GetMemoryChunkContext -- there are no contexts. */
MemoryContext
GetMemoryChunkContext(void *pointer)
{
	return CurrentMemoryContext;
}

/* MemoryContextAllocHuge -- the server's. */
void *
MemoryContextAllocHuge(MemoryContext context, Size size)
{
	return malloc(size);
}

/* repalloc -- the same. */
void *
repalloc(void *pointer, Size size)
{
	return realloc(pointer, size);
}

/* mul_size -- no size is too large. */
Size
mul_size(Size a, Size b)
{
	return a * b;
}

/* BufFileCreateTemp -- a file in memory. */
BufFile *
BufFileCreateTemp(bool interXact)
{
	open_files++;
	most_open_files = Max(most_open_files, open_files);
	return calloc(1, sizeof(BufFile));
}

/* BufFileWrite -- at its position. */
void
BufFileWrite(BufFile *file, const void *data, size_t size)
{
	if (file->position + size > file->room)
		file->data = realloc(file->data, file->room = 2 * (file->position + size));
	memcpy(file->data + file->position, data, size);
	file->size = file->position += size;
}

/* BufFileSeek -- to a position from the beginning. */
int
BufFileSeek(BufFile *file, int number, off_t offset, int whence)
{
	file->position = offset;
	return 0;
}

/* BufFileReadExact -- no more than there is. */
void
BufFileReadExact(BufFile *file, void *data, size_t size)
{
	CHECK(file->position + size <= file->size);
	memcpy(data, file->data + file->position, size);
	file->position += size;
}

/* BufFileClose -- it is gone. */
void
BufFileClose(BufFile *file)
{
	open_files--;
	free(file->data);
	free(file);
}

/* binaryheap_allocate -- the first node is the greatest; the others are in no order. */
binaryheap *
binaryheap_allocate(int capacity, binaryheap_comparator compare, void *arg)
{
	binaryheap *heap = calloc(1, offsetof(binaryheap, bh_nodes) + capacity * sizeof(bh_node_type));

	heap->bh_space = capacity;
	heap->bh_compare = compare;
	heap->bh_arg = arg;
	return heap;
}

/* binaryheap_free -- the server's. */
void
binaryheap_free(binaryheap *heap)
{
	free(heap);
}

/* binaryheap_add_unordered -- behind the others. */
void
binaryheap_add_unordered(binaryheap *heap, bh_node_type node)
{
	heap->bh_nodes[heap->bh_size++] = node;
}

/* binaryheap_build -- put the greatest first. */
void
binaryheap_build(binaryheap *heap)
{
	for (int i = 1; i < heap->bh_size; i++)
		if (heap->bh_compare(heap->bh_nodes[i], heap->bh_nodes[0], heap->bh_arg) > 0)
		{
			bh_node_type node = heap->bh_nodes[0];

			heap->bh_nodes[0] = heap->bh_nodes[i];
			heap->bh_nodes[i] = node;
		}
}

/* binaryheap_first -- the greatest. */
bh_node_type
binaryheap_first(binaryheap *heap)
{
	return heap->bh_nodes[0];
}

/* binaryheap_replace_first -- by another. */
void
binaryheap_replace_first(binaryheap *heap, bh_node_type node)
{
	heap->bh_nodes[0] = node;
	binaryheap_build(heap);
}

/* binaryheap_remove_first -- by the last one. */
bh_node_type
binaryheap_remove_first(binaryheap *heap)
{
	bh_node_type node = heap->bh_nodes[0];

	heap->bh_nodes[0] = heap->bh_nodes[--heap->bh_size];
	binaryheap_build(heap);
	return node;
}

/* qsort_arg -- that of the C library. */
void
qsort_arg(void *base, size_t number, size_t size, qsort_arg_comparator compare, void *arg)
{
	qsort_r(base, number, size, compare, arg);
}

/* compare_entries -- as integers. */
static int
compare_entries(const void *a, const void *b, void *arg)
{
	return entries_compare(a, b, *(int *) arg);
}

/* compare_backwards -- by the last word, the greatest first. */
static int
compare_backwards(const void *a, const void *b, void *arg)
{
	int			last = *(int *) arg - 1;
	uint64		left = ((const uint64 *) a)[last];
	uint64		right = ((const uint64 *) b)[last];

	return left == right ? 0 : left > right ? -1 : 1;
}

/* random_word -- all bits are random. */
static uint64
random_word(void)
{
	return (uint64) unit_number(0, PG_INT32_MAX - 1) << 42 ^ (uint64) unit_number(0, PG_INT32_MAX - 1) << 21 ^
		unit_number(0, PG_INT32_MAX - 1);
}

/* make_entries -- with keys of some kind, and tails that grow. */
static void
make_entries(uint64 *entries, int n, int nwords, int tail_bits)
{
	uint64		mask[ENTRY_MAX_WORDS];
	int			kind = unit_number(0, 4);
	int			tail_words = tail_bits / 64;

	for (int word = 0; word < nwords; word++)
		mask[word] = kind == 0 ? 0 : kind == 1 ? PG_UINT64_MAX : random_word() & random_word() & random_word();
	for (int i = 0; i < n; i++)
	{
		uint64	   *entry = entries + i * nwords;

		for (int word = 0; word < nwords; word++)
			entry[word] = (kind == 4 ? (uint64) i * UINT64CONST(0x10000000001) : random_word()) & mask[word];
		/* the tail: what it begins in, and whole words behind that */
		for (int word = nwords - tail_words; word < nwords; word++)
			entry[word] = random_word();
		entry[nwords - tail_words - 1] &= PG_UINT64_MAX << (tail_bits % 64);
		if (tail_bits % 64 > 0)
			entry[nwords - tail_words - 1] |= i;
		else if (tail_words > 0)
			entry[nwords - tail_words] = i;
	}
}

/* test_all_come_out_in_order -- with any keys, and any number of runs, of which each costs no file. */
UNIT_TEST(test_all_come_out_in_order)
{
	uint64	   *entries = malloc(MOST_ENTRIES * ENTRY_MAX_WORDS * sizeof(uint64));
	int			most_runs = 0;

	for (int i = 0; i < 600; i++)
	{
		int			nwords = unit_number(2, 3);
		int			tail_bits = nwords == 3 && unit_number(0, 1) ? 64 + 49 : 49;
		int			n = unit_number(0, 3) ? unit_number(0, 400) : unit_number(0, MOST_ENTRIES);
		int			nruns = unit_number(1, unit_number(0, 1) ? 20 : 300);
		int			capacity = unit_number(0, 1) ? MOST_ENTRIES : Max(n / nruns, 1);
		EntrySort  *sort = entry_sort_begin(nwords, tail_bits, capacity);
		const uint64 *entry;
		const uint64 *ahead;
		int			done = 0;

		unit_case("%d entries of %d words with a tail of %d bits, %d at a time", n, nwords, tail_bits, capacity);
		make_entries(entries, n, nwords, tail_bits);
		for (int j = 0; j < n; j++)
		{
			CHECK_EQ(entry_sort_is_full(sort), j > 0 && j % capacity == 0);
			entry_sort_put(sort, entries + j * nwords);
		}
		entry_sort_perform(sort);
		CHECK_EQ(open_files, n > capacity ? 1 : 0);
		most_runs = Max(most_runs, n / capacity);
		qsort_r(entries, n, nwords * sizeof(uint64), compare_entries, &nwords);
		ahead = entry_sort_ahead(sort, n / 2);
		CHECK_EQ(ahead != NULL, n > 0 && n <= capacity);
		for (; (entry = entry_sort_next(sort)) != NULL; done++)
		{
			CHECK(done < n);
			if (done == n / 2 && ahead != NULL)
				CHECK(ahead == entry);
			CHECK_EQ(entries_compare(entry, entries + done * nwords, nwords), 0);
		}
		CHECK_EQ(done, n);
		entry_sort_end(sort);
		CHECK_EQ(open_files, 0);
	}
	CHECK_EQ(most_open_files, 1);
	CHECK(most_runs > 100);
	free(entries);
}

/*
 * make_stretches
 *		Entries as several processes write them, each of which claims range after range,
 *		and writes a range in pieces.
 */
static void
make_stretches(uint64 *entries, int n, int nwords, int nprocesses, int longest)
{
	int			next[MOST_PROCESSES];
	int			left[MOST_PROCESSES] = {0};
	int			claimed = 0;

	for (int done = 0; done < n;)
	{
		int			process = unit_number(0, nprocesses - 1);

		if (left[process] == 0)
		{
			next[process] = claimed;
			left[process] = unit_number(1, longest);
			claimed += left[process];
		}
		for (int piece = unit_number(1, left[process]); piece > 0 && done < n; piece--, done++)
		{
			uint64	   *entry = entries + done * nwords;

			memset(entry, 0, nwords * sizeof(uint64));
			/* some keys are equal */
			entry[0] = next[process]++ / 2;
			entry[nwords - 1] = done;
			left[process]--;
		}
	}
}

/* test_stretches_are_merged -- unless they make many piles; in any case they are sorted. */
UNIT_TEST(test_stretches_are_merged)
{
	uint64	   *entries = malloc(MOST_ENTRIES * ENTRY_MAX_WORDS * sizeof(uint64));
	uint64	   *merged = malloc(MOST_ENTRIES * ENTRY_MAX_WORDS * sizeof(uint64));
	int			nmerged = 0;

	for (int i = 0; i < 200; i++)
	{
		int			nwords = unit_number(2, 3);
		int			n = unit_number(2, MOST_ENTRIES);
		int			nprocesses = i % MOST_PROCESSES + 1;
		int			longest = unit_number(1, 1000);
		EntrySort  *sort = entry_sort_begin(nwords, 49, n);
		uint64		differ[ENTRY_MAX_WORDS];
		Size		nstretches;
		bool		is_merged;

		unit_case("%d entries of %d words, %d processes, ranges of %d", n, nwords, nprocesses, longest);
		make_stretches(entries, n, nwords, nprocesses, longest);
		entry_sort_put_all(sort, entries, n);
		nstretches = find_differences(sort, entries, n, differ) + 1;
		is_merged = merge_stretches(sort, entries, merged, n, nstretches);
		nmerged += is_merged;
		CHECK(is_merged || nprocesses > 2);
		qsort_r(entries, n, nwords * sizeof(uint64), compare_entries, &nwords);
		if (is_merged)
			CHECK_EQ(memcmp(entries, merged, n * nwords * sizeof(uint64)), 0);
		entry_sort_perform(sort);
		for (int done = 0; done < n; done++)
			CHECK_EQ(entries_compare(entry_sort_next(sort), entries + done * nwords, nwords), 0);
		CHECK(entry_sort_next(sort) == NULL);
		entry_sort_end(sort);
	}
	CHECK(nmerged < 200);
	free(entries);
	free(merged);
}

/* test_entries_that_are_put_together -- also if they are more than there is room for. */
UNIT_TEST(test_entries_that_are_put_together)
{
	uint64		entries[1000 * 2];

	for (int room = 1; room <= 1000; room = room * 3 + 1)
	{
		EntrySort  *sort = entry_sort_begin(2, 49, room);

		unit_case("room for %d", room);
		for (int i = 0; i < 1000; i++)
		{
			entries[2 * i] = 1000 - i;
			entries[2 * i + 1] = i;
		}
		entry_sort_put_all(sort, entries, 1000);
		CHECK(entry_sort_is_full(sort) || room > 1);
		entry_sort_perform(sort);
		for (int i = 999; i >= 0; i--)
			CHECK_EQ(entries_compare(entry_sort_next(sort), entries + 2 * i, 2), 0);
		CHECK(entry_sort_next(sort) == NULL);
		entry_sort_end(sort);
	}
}

/* test_ties_are_ended -- among entries with equal keys, and nowhere else. */
UNIT_TEST(test_ties_are_ended)
{
	for (int i = 0; i < 100; i++)
	{
		int			nwords = unit_number(2, 3);
		int			n = unit_number(0, 1000);
		int			nkeys = unit_number(1, 300);
		EntrySort  *sort = entry_sort_begin(nwords, 49, Max(n, 1));
		uint64		before[ENTRY_MAX_WORDS];
		const uint64 *entry;

		unit_case("%d entries of %d words and %d keys", n, nwords, nkeys);
		for (int j = 0; j < n; j++)
		{
			uint64		put[ENTRY_MAX_WORDS] = {unit_number(1, nkeys)};

			put[nwords - 1] = (uint64) unit_number(0, 1) << 49 | j;
			entry_sort_put(sort, put);
		}
		entry_sort_perform(sort);
		entry_sort_end_ties(sort, compare_backwards, &nwords);
		for (int done = 0; (entry = entry_sort_next(sort)) != NULL; done++)
		{
			uint64		key = entry[nwords - 1] >> 49;
			uint64		key_before = before[nwords - 1] >> 49;

			if (done > 0)
				CHECK(entry[0] > before[0] ||
					  (entry[0] == before[0] &&
					   (key > key_before || (key == key_before && entry[nwords - 1] < before[nwords - 1]))));
			entries_copy(before, entry, nwords);
		}
		entry_sort_end(sort);
	}
}
