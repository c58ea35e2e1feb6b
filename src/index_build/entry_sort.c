/*-------------------------------------------------------------------------
 *
 * entry_sort.c
 *	  Sorting index entries that are integers.
 *
 * An entry has its key in the high bits, and the TID of its row in the low bits, its tail
 * (key_code.c).  Entries come in the order of their rows.  In memory they are sorted by
 * radix, or stretches that are in order are merged; what has no room is written to a
 * temporary file in runs, which are merged at the end.  See README.md.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/buffile.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "index_build/entry_sort.h"

#define WORD_BITS		64
#define DIGIT_BITS		8
#define DIGIT_VALUES	(1 << DIGIT_BITS)
/* The most digits that are looked at before entries are divided into groups */
#define MAX_DIGITS		4
/* Groups up to this size are sorted by insertion */
#define SMALL_GROUP		16
/* Stretches are merged if they are at least this long on average, and make few piles */
#define SHORT_STRETCH	64
#define MAX_PILES		16
/* How many bytes are read from a run at a time, if memory allows it */
#define RUN_BUFFER		(256 * 1024)

/* Interrupts are served once in this many entries, a power of two */
#define INTERRUPT_ENTRIES	(1024 * 1024)

/* Some bits of an entry */
typedef struct Digit
{
	int			word;
	int			shift;
} Digit;

/* Entries that come in order, up to the next stretch */
typedef struct Stretch
{
	Size		begin;
	Size		next;			/* stretch of the pile; 0: there is none */
} Stretch;

/* Stretches of which each begins behind the end of the one before */
typedef struct Pile
{
	Size		first;			/* stretch */
	Size		last;
	const uint64 *greatest;

	/* while they are merged */
	const uint64 *entry;
	const uint64 *end;			/* of the stretch */
} Pile;

/* A sorted part of the entries, in the file */
typedef struct Run
{
	int64		position;		/* entry of the file that is read next */
	int64		nleft;			/* entries that are still in the file */
	uint64	   *buffer;
	Size		nbuffered;
	Size		next;			/* of these */
} Run;

struct EntrySort
{
	int			nwords;
	uint64		key_mask[ENTRY_MAX_WORDS];	/* what isn't tail */
	Size		capacity;		/* entries */
	Size		nentries;		/* in the array */
	uint64	   *entries;
	Size		next;			/* to be returned */
	Size		counts[MAX_DIGITS][DIGIT_VALUES];

	int			nruns;
	Run		   *runs;
	BufFile    *file;			/* that they are in */
	int64		nwritten;		/* entries in it */

	/* while runs are merged */
	binaryheap *heap;			/* of runs, the one with the smallest entry
								 * first */
	Size		buffer_size;	/* of each, in entries */
	Run		   *last;			/* whose entry was returned */
};

static void sort_entries(EntrySort *sort);
static bool radix_sort(EntrySort *sort, uint64 *entries, uint64 *other, Size n);
static Size find_differences(const EntrySort *sort, const uint64 *entries, Size n, uint64 *differ);
static bool merge_stretches(const EntrySort *sort, const uint64 *entries, uint64 *other, Size n,
							Size nstretches);
static int	deal_to_piles(const EntrySort *sort, const uint64 *entries, Stretch *stretches,
						  Size nstretches, Pile *piles);
static void merge_piles(const EntrySort *sort, const uint64 *entries, uint64 *to,
						const Stretch *stretches, Pile *piles, int npiles);
static int	smallest_pile(const EntrySort *sort, const Pile *piles, int npiles, int but);
static int	choose_digits(const EntrySort *sort, Size n, uint64 *differ, Digit *digits);
static void count_digits(EntrySort *sort, const uint64 *entries, Size n,
						 const Digit *digits, int ndigits);
static void move_by_digit(const EntrySort *sort, const uint64 *from, uint64 *to, Size n,
						  const Digit *digit, Size *counts);
static void sort_groups(EntrySort *sort, uint64 *entries, uint64 *other, Size n,
						const Digit *last);
static void sort_by_insertion(const EntrySort *sort, uint64 *entries, Size n);
static void write_sorted_run(EntrySort *sort);
static void add_run(EntrySort *sort);
static void begin_merge(EntrySort *sort);
static const uint64 *next_merged(EntrySort *sort);
static bool fill_buffer(const EntrySort *sort, Run *run);
static int	compare_runs(Datum a, Datum b, void *arg);

/* entry_at -- one of several. */
static inline uint64 *
entry_at(const EntrySort *sort, const uint64 *entries, Size number)
{
	return (uint64 *) entries + number * sort->nwords;
}

/* serve_interrupts -- in a loop over entries, once in a million. */
static inline void
serve_interrupts(Size number)
{
	if (unlikely((number & (INTERRUPT_ENTRIES - 1)) == 0))
		CHECK_FOR_INTERRUPTS();
}

/* entry_sort_begin -- begin to sort entries. */
EntrySort *
entry_sort_begin(int nwords, int tail_bits, Size capacity)
{
	EntrySort  *sort = palloc0_object(EntrySort);

	Assert(nwords == 2 || nwords == ENTRY_MAX_WORDS);
	Assert(tail_bits >= 0 && tail_bits < nwords * WORD_BITS && capacity > 0);
	sort->nwords = nwords;
	for (int i = nwords - 1; i >= 0; i--, tail_bits = Max(tail_bits - WORD_BITS, 0))
		sort->key_mask[i] = tail_bits >= WORD_BITS ? 0 : PG_UINT64_MAX << tail_bits;
	sort->capacity = capacity;
	/* what isn't written to takes no memory */
	sort->entries = MemoryContextAllocHuge(CurrentMemoryContext,
										   mul_size(capacity, nwords * sizeof(uint64)));
	return sort;
}

/* entry_sort_put -- add a copy of an entry. */
void
entry_sort_put(EntrySort *sort, const uint64 *entry)
{
	Assert(sort->heap == NULL && sort->next == 0);
	if (unlikely(sort->nentries == sort->capacity))
		write_sorted_run(sort);
	entries_copy(entry_at(sort, sort->entries, sort->nentries++), entry, sort->nwords);
}

/* entry_sort_put_all -- add copies of n entries. */
void
entry_sort_put_all(EntrySort *sort, const uint64 *entries, Size n)
{
	Assert(sort->heap == NULL && sort->next == 0);
	while (n > 0)
	{
		Size		some;

		if (sort->nentries == sort->capacity)
			write_sorted_run(sort);
		some = Min(n, sort->capacity - sort->nentries);
		memcpy(entry_at(sort, sort->entries, sort->nentries), entries,
			   some * sort->nwords * sizeof(uint64));
		sort->nentries += some;
		entries += some * sort->nwords;
		n -= some;
	}
}

/* entry_sort_is_full -- will the next entry make it write to a file? */
bool
entry_sort_is_full(const EntrySort *sort)
{
	return sort->nentries == sort->capacity;
}

/* entry_sort_perform -- sort the entries. */
void
entry_sort_perform(EntrySort *sort)
{
	Assert(sort->heap == NULL && sort->next == 0);
	if (sort->nruns == 0)
	{
		sort_entries(sort);
		return;
	}
	if (sort->nentries > 0)
		write_sorted_run(sort);
	begin_merge(sort);
}

/* entry_sort_end_ties -- sort entries with equal keys by another comparison. */
void
entry_sort_end_ties(EntrySort *sort, qsort_arg_comparator compare, void *arg)
{
	Size		begin = 0;

	Assert(sort->nruns == 0 && sort->next == 0);
	for (Size i = 1; i <= sort->nentries; i++)
	{
		const uint64 *entry = entry_at(sort, sort->entries, i);
		uint64		differs = i == sort->nentries;

		serve_interrupts(i);
		for (int word = 0; word < sort->nwords && i < sort->nentries; word++)
			differs |= (entry[word] ^ (entry - sort->nwords)[word]) & sort->key_mask[word];
		if (differs == 0)
			continue;
		if (i - begin > 1)
			qsort_arg(entry_at(sort, sort->entries, begin), i - begin,
					  sort->nwords * sizeof(uint64), compare, arg);
		begin = i;
	}
}

/* entry_sort_next -- the next entry in order. */
const uint64 *
entry_sort_next(EntrySort *sort)
{
	Assert(sort->heap != NULL || sort->nruns == 0);

	if (sort->heap != NULL)
		return next_merged(sort);
	return sort->next == sort->nentries ? NULL : entry_at(sort, sort->entries, sort->next++);
}

/* entry_sort_ahead -- an entry that comes soon. */
const uint64 *
entry_sort_ahead(const EntrySort *sort, Size number)
{
	Assert(sort->heap != NULL || sort->nruns == 0);
	return sort->heap == NULL && number < sort->nentries - sort->next ?
		entry_at(sort, sort->entries, sort->next + number) : NULL;
}

/* entry_sort_end -- free a sort, and close its file. */
void
entry_sort_end(EntrySort *sort)
{
	if (sort->file)
		BufFileClose(sort->file);
	if (sort->runs)
		pfree(sort->runs);
	if (sort->heap)
		binaryheap_free(sort->heap);
	pfree(sort->entries);
	pfree(sort);
}

/* sort_entries -- those that are in the array. */
static void
sort_entries(EntrySort *sort)
{
	MemoryContext context = GetMemoryChunkContext(sort->entries);

	/* with runs, either array may be the one that is kept, so both are whole */
	Size		n = sort->nruns > 0 ? sort->capacity : Max(sort->nentries, 1);
	uint64	   *other = MemoryContextAllocHuge(context, mul_size(n, sort->nwords * sizeof(uint64)));

	if (radix_sort(sort, sort->entries, other, sort->nentries))
	{
		uint64	   *entries = sort->entries;

		sort->entries = other;
		other = entries;
	}
	pfree(other);
}

/*
 * radix_sort
 *		Sort entries with the help of another array; return whether that is where
 *		they are afterwards.
 */
static bool
radix_sort(EntrySort *sort, uint64 *entries, uint64 *other, Size n)
{
	uint64		differ[ENTRY_MAX_WORDS];
	Digit		digits[MAX_DIGITS];
	uint64	   *place = entries;
	Size		ndescents;
	int			ndigits;

	CHECK_FOR_INTERRUPTS();
	ndescents = n < 2 ? 0 : find_differences(sort, entries, n, differ);
	if (ndescents == 0)
		return false;
	if (n <= SMALL_GROUP)
	{
		sort_by_insertion(sort, entries, n);
		return false;
	}
	if (ndescents < n / SHORT_STRETCH &&
		merge_stretches(sort, entries, other, n, ndescents + 1))
		return true;

	ndigits = choose_digits(sort, n, differ, digits);
	count_digits(sort, entries, n, digits, ndigits);
	for (int i = ndigits - 1; i >= 0; i--)
	{
		uint64	   *to = place == entries ? other : entries;

		move_by_digit(sort, place, to, n, &digits[i], sort->counts[i]);
		place = to;
	}
	for (int i = 0; i < sort->nwords; i++)
		if (differ[i] != 0)
		{
			sort_groups(sort, place, place == entries ? other : entries, n, &digits[ndigits - 1]);
			break;
		}
	return place == other;
}

/*
 * find_differences
 *		Which bits of their keys differ between entries?  Returns how many entries are
 *		smaller than the one before.
 */
static Size
find_differences(const EntrySort *sort, const uint64 *entries, Size n, uint64 *differ)
{
	int			nwords = sort->nwords;
	uint64		bits[ENTRY_MAX_WORDS] = {0};
	const uint64 *entry = entries;
	Size		ndescents = 0;

	for (Size i = 1; i < n; i++)
	{
		serve_interrupts(i);
		entry += nwords;
		ndescents += entries_compare(entry - nwords, entry, nwords) > 0;
		bits[0] |= entry[0] ^ entries[0];
		bits[1] |= entry[1] ^ entries[1];
		if (nwords == 3)
			bits[2] |= entry[2] ^ entries[2];
	}
	for (int i = 0; i < nwords; i++)
		differ[i] = bits[i] & sort->key_mask[i];
	return ndescents;
}

/*
 * merge_stretches
 *		Sort entries into another array by merging the stretches in which they come in
 *		order.  Returns false if these make too many piles.
 */
static bool
merge_stretches(const EntrySort *sort, const uint64 *entries, uint64 *other, Size n,
				Size nstretches)
{
	MemoryContext context = GetMemoryChunkContext(sort->entries);
	Stretch    *stretches = MemoryContextAllocHuge(context, mul_size(nstretches + 1, sizeof(Stretch)));
	Pile		piles[MAX_PILES];
	Size		found = 1;
	int			npiles;

	stretches[0].begin = 0;
	for (Size i = 1; i < n; i++)
	{
		const uint64 *entry = entry_at(sort, entries, i);

		serve_interrupts(i);
		if (entries_compare(entry - sort->nwords, entry, sort->nwords) > 0)
			stretches[found++].begin = i;
	}
	Assert(found == nstretches);
	stretches[nstretches].begin = n;

	npiles = deal_to_piles(sort, entries, stretches, nstretches, piles);
	if (npiles > 0)
		merge_piles(sort, entries, other, stretches, piles, npiles);
	pfree(stretches);
	return npiles > 0;
}

/*
 * deal_to_piles
 *		Put each stretch on the pile that ends closest before it.  Returns how many
 *		piles there are, or 0 if they are too many.
 */
static int
deal_to_piles(const EntrySort *sort, const uint64 *entries, Stretch *stretches, Size nstretches,
			  Pile *piles)
{
	int			nwords = sort->nwords;
	int			npiles = 0;

	for (Size i = 0; i < nstretches; i++)
	{
		const uint64 *smallest = entry_at(sort, entries, stretches[i].begin);
		int			best = -1;

		serve_interrupts(i);
		for (int pile = 0; pile < npiles; pile++)
			if (entries_compare(piles[pile].greatest, smallest, nwords) <= 0 &&
				(best < 0 || entries_compare(piles[best].greatest, piles[pile].greatest, nwords) < 0))
				best = pile;
		if (best >= 0)
			stretches[piles[best].last].next = i;
		else if (npiles == MAX_PILES)
			return 0;
		else
		{
			best = npiles++;
			piles[best].first = i;
		}
		piles[best].last = i;
		piles[best].greatest = entry_at(sort, entries, stretches[i + 1].begin - 1);
		stretches[i].next = 0;
	}
	return npiles;
}

/* merge_piles -- into another array. */
static void
merge_piles(const EntrySort *sort, const uint64 *entries, uint64 *to, const Stretch *stretches,
			Pile *piles, int npiles)
{
	Size		done = 0;

	for (int i = 0; i < npiles; i++)
	{
		piles[i].entry = entry_at(sort, entries, stretches[piles[i].first].begin);
		piles[i].end = entry_at(sort, entries, stretches[piles[i].first + 1].begin);
	}
	while (npiles > 0)
	{
		int			number = smallest_pile(sort, piles, npiles, -1);
		int			other = smallest_pile(sort, piles, npiles, number);
		const uint64 *limit = other < 0 ? NULL : piles[other].entry;
		Pile	   *pile = &piles[number];

		/* as a rule many come from the same pile */
		do
		{
			serve_interrupts(++done);
			entries_copy(to, pile->entry, sort->nwords);
			to += sort->nwords;
			pile->entry += sort->nwords;
			if (pile->entry < pile->end)
				continue;
			pile->first = stretches[pile->first].next;
			if (pile->first == 0)
				break;
			pile->entry = entry_at(sort, entries, stretches[pile->first].begin);
			pile->end = entry_at(sort, entries, stretches[pile->first + 1].begin);
		} while (limit == NULL || entries_compare(pile->entry, limit, sort->nwords) <= 0);
		if (pile->entry == pile->end)
			*pile = piles[--npiles];
	}
}

/* smallest_pile -- the one with the smallest entry, but this; -1 if there is none. */
static int
smallest_pile(const EntrySort *sort, const Pile *piles, int npiles, int but)
{
	int			smallest = -1;

	for (int i = 0; i < npiles; i++)
		if (i != but &&
			(smallest < 0 ||
			 entries_compare(piles[i].entry, piles[smallest].entry, sort->nwords) < 0))
			smallest = i;
	return smallest;
}

/*
 * choose_digits
 *		The highest digits in which keys differ, as many as it takes to divide n
 *		entries.  Differences below them remain in differ.
 */
static int
choose_digits(const EntrySort *sort, Size n, uint64 *differ, Digit *digits)
{
	int			wanted = Min(pg_leftmost_one_pos64(n) / DIGIT_BITS + 1, MAX_DIGITS);
	int			ndigits = 0;

	for (int word = 0; word < sort->nwords; word++)
		while (differ[word] != 0 && ndigits < wanted)
		{
			int			shift = Max(pg_leftmost_one_pos64(differ[word]) + 1 - DIGIT_BITS, 0);

			digits[ndigits].word = word;
			digits[ndigits++].shift = shift;
			differ[word] &= (UINT64CONST(1) << shift) - 1;
		}
	Assert(ndigits > 0);
	return ndigits;
}

/* digit_of -- an entry's. */
static inline unsigned int
digit_of(const uint64 *entry, const Digit *digit)
{
	return (entry[digit->word] >> digit->shift) & (DIGIT_VALUES - 1);
}

/* count_digits -- how many entries come before those with each value of a digit? */
static void
count_digits(EntrySort *sort, const uint64 *entries, Size n, const Digit *digits, int ndigits)
{
	const uint64 *entry = entries;

	memset(sort->counts, 0, ndigits * sizeof(sort->counts[0]));
	for (Size number = 0; number < n; number++, entry += sort->nwords)
	{
		serve_interrupts(number);
		for (int i = 0; i < ndigits; i++)
			sort->counts[i][digit_of(entry, &digits[i])]++;
	}
	for (int i = 0; i < ndigits; i++)
	{
		Size		before = 0;

		for (int value = 0; value < DIGIT_VALUES; value++)
		{
			Size		count = sort->counts[i][value];

			sort->counts[i][value] = before;
			before += count;
		}
	}
}

/* move_by_digit -- in the order of a digit; counts say where each value begins. */
static void
move_by_digit(const EntrySort *sort, const uint64 *from, uint64 *to, Size n,
			  const Digit *digit, Size *counts)
{
	const uint64 *entry = from;

	/*
	 * the last digit's lowest bits may be of the tail, in whose order entries
	 * come
	 */
	if (sort->nwords == 2)
	{
		for (Size i = 0; i < n; i++, entry += 2)
		{
			serve_interrupts(i);
			entries_copy(to + counts[digit_of(entry, digit)]++ * 2, entry, 2);
		}
	}
	else
	{
		for (Size i = 0; i < n; i++, entry += 3)
		{
			serve_interrupts(i);
			entries_copy(to + counts[digit_of(entry, digit)]++ * 3, entry, 3);
		}
	}
}

/* sort_groups -- of entries that are equal down to the last digit. */
static void
sort_groups(EntrySort *sort, uint64 *entries, uint64 *other, Size n, const Digit *last)
{
	int			nwords = sort->nwords;
	uint64		mask[ENTRY_MAX_WORDS];
	Size		begin = 0;

	for (int i = 0; i < nwords; i++)
		mask[i] = i < last->word ? PG_UINT64_MAX :
			i > last->word ? 0 : PG_UINT64_MAX << last->shift;

	for (Size i = 1; i <= n; i++)
	{
		const uint64 *entry = entry_at(sort, entries, i);
		uint64		differs = i == n;

		serve_interrupts(i);
		for (int word = 0; word <= last->word && i < n; word++)
			differs |= (entry[word] ^ (entry - nwords)[word]) & mask[word];
		if (differs == 0)
			continue;
		if (i - begin > SMALL_GROUP)
		{
			uint64	   *group = entry_at(sort, entries, begin);
			uint64	   *room = entry_at(sort, other, begin);

			if (radix_sort(sort, group, room, i - begin))
				memcpy(group, room, (i - begin) * nwords * sizeof(uint64));
		}
		else if (i - begin > 1)
			sort_by_insertion(sort, entry_at(sort, entries, begin), i - begin);
		begin = i;
	}
}

/* sort_by_insertion -- a few entries. */
static void
sort_by_insertion(const EntrySort *sort, uint64 *entries, Size n)
{
	int			nwords = sort->nwords;

	for (Size i = 1; i < n; i++)
	{
		uint64	   *place = entry_at(sort, entries, i);
		uint64		entry[ENTRY_MAX_WORDS];

		entries_copy(entry, place, nwords);
		for (; place > entries && entries_compare(place - nwords, entry, nwords) > 0; place -= nwords)
			entries_copy(place, place - nwords, nwords);
		entries_copy(place, entry, nwords);
	}
}

/* write_sorted_run -- sort what is in the array, and write it to the file. */
static void
write_sorted_run(EntrySort *sort)
{
	MemoryContext old = MemoryContextSwitchTo(GetMemoryChunkContext(sort));

	sort_entries(sort);
	if (sort->file == NULL)
		sort->file = BufFileCreateTemp(false);
	add_run(sort);
	for (Size done = 0; done < sort->nentries;)
	{
		Size		n = Min(sort->nentries - done, RUN_BUFFER / sizeof(uint64) / sort->nwords);

		CHECK_FOR_INTERRUPTS();
		BufFileWrite(sort->file, entry_at(sort, sort->entries, done),
					 n * sort->nwords * sizeof(uint64));
		done += n;
	}
	sort->nentries = 0;
	MemoryContextSwitchTo(old);
}

/* add_run -- note that the entries in the array become a run, behind the last one in the file. */
static void
add_run(EntrySort *sort)
{
	Run		   *run;

	if (sort->nruns == 0)
		sort->runs = palloc(sizeof(Run));
	else if ((sort->nruns & (sort->nruns - 1)) == 0)
		sort->runs = repalloc(sort->runs, 2 * sort->nruns * sizeof(Run));
	run = &sort->runs[sort->nruns++];
	memset(run, 0, sizeof(Run));
	run->position = sort->nwritten;
	run->nleft = sort->nentries;
	sort->nwritten += sort->nentries;
}

/* begin_merge -- merge the runs, which share the array as buffers: an entry of each, at least. */
static void
begin_merge(EntrySort *sort)
{
	Assert(sort->heap == NULL && sort->nentries == 0 && sort->nruns > 0);
	if (sort->capacity < sort->nruns)
	{
		MemoryContext context = GetMemoryChunkContext(sort->entries);

		pfree(sort->entries);
		sort->capacity = sort->nruns;
		sort->entries = MemoryContextAllocHuge(context,
											   mul_size(sort->capacity, sort->nwords * sizeof(uint64)));
	}
	sort->buffer_size = Min(sort->capacity / sort->nruns,
							Max(RUN_BUFFER / (sort->nwords * sizeof(uint64)), 1));
	sort->heap = binaryheap_allocate(sort->nruns, compare_runs, sort);
	for (int i = 0; i < sort->nruns; i++)
	{
		sort->runs[i].buffer = entry_at(sort, sort->entries, i * sort->buffer_size);
		if (fill_buffer(sort, &sort->runs[i]))
			binaryheap_add_unordered(sort->heap, PointerGetDatum(&sort->runs[i]));
	}
	binaryheap_build(sort->heap);
}

/* next_merged -- the next entry in order, valid until the next call; NULL behind the last one. */
static const uint64 *
next_merged(EntrySort *sort)
{
	Run		   *run = sort->last;

	CHECK_FOR_INTERRUPTS();
	if (run != NULL)
	{
		if (++run->next < run->nbuffered || fill_buffer(sort, run))
			binaryheap_replace_first(sort->heap, PointerGetDatum(run));
		else
			(void) binaryheap_remove_first(sort->heap);
	}
	sort->last = NULL;
	if (binaryheap_empty(sort->heap))
		return NULL;
	sort->last = run = (Run *) DatumGetPointer(binaryheap_first(sort->heap));
	return entry_at(sort, run->buffer, run->next);
}

/* fill_buffer -- read on in a run; false if there is no more of it. */
static bool
fill_buffer(const EntrySort *sort, Run *run)
{
	Size		entry_size = sort->nwords * sizeof(uint64);
	Size		n = Min(sort->buffer_size, run->nleft);

	run->next = 0;
	run->nbuffered = n;
	if (n == 0)
		return false;
	if (BufFileSeek(sort->file, 0, run->position * entry_size, SEEK_SET) != 0)
		elog(ERROR, "could not seek in a temporary file");
	BufFileReadExact(sort->file, run->buffer, n * entry_size);
	run->position += n;
	run->nleft -= n;
	return true;
}

/* compare_runs -- for the heap, which has the greatest first. */
static int
compare_runs(Datum a, Datum b, void *arg)
{
	const EntrySort *sort = arg;
	const Run  *left = (const Run *) DatumGetPointer(a);
	const Run  *right = (const Run *) DatumGetPointer(b);

	return entries_compare(entry_at(sort, right->buffer, right->next),
						   entry_at(sort, left->buffer, left->next), sort->nwords);
}
