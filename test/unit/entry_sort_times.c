/*-------------------------------------------------------------------------
 *
 * entry_sort_times.c
 *	  How long index_build/entry_sort.c takes for an entry: `entry_sort_times KIND N`
 *	  prints the nanoseconds of CPU time, all in memory, for bench/sorting.py.
 *
 * An entry is put, sorted and returned.  It looks like those of key_code.c: its key
 * begins behind the bit for null, and its row ends before the lowest bit.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>
#include <time.h>

#include "common/hashfn.h"
#include "entry_sort_server.h"
#include "unit.h"

/* the C library's, not the server's */
#undef fprintf
#undef printf

#define TAIL_BITS		49
/* How long a stretch is, a power of two */
#define STRETCH			UINT64CONST(16384)
/* Few entries are sorted again and again, until this many were */
#define LEAST_ENTRIES	2000000

typedef enum Kind
{
	KIND_INT4,
	KIND_INT8,
	KIND_IN_ORDER,
	KIND_STRETCHES,				/* as two processes write rows in order */
	KIND_TWO_COLUMNS,			/* int4 and int8, three words */
	KIND_COUNT
} Kind;

static const char *const names[KIND_COUNT] = {"int4", "int8", "in-order", "stretches", "int4-int8"};

/* seconds -- of CPU time. */
static double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* put_entry -- number i of this kind. */
static inline void
put_entry(EntrySort *sort, Kind kind, uint64 i)
{
	uint64		key = kind == KIND_IN_ORDER ? i :
		kind == KIND_STRETCHES ? (i ^ STRETCH) : murmurhash64(i + 1);
	uint64		entry[ENTRY_MAX_WORDS] = {0};

	if (kind == KIND_INT8)
	{
		entry[0] = key >> 1;
		entry[1] = key << 63 | i << 1;
	}
	else if (kind == KIND_TWO_COLUMNS)
	{
		uint64		second = murmurhash64(~i);

		/* 1 + 32 bits, and 1 + 64 */
		entry[0] = (key & PG_UINT32_MAX) << 31 | second >> 34;
		entry[1] = second << 30;
		entry[2] = i << 1;
	}
	else
	{
		entry[0] = (key & PG_UINT32_MAX) << 31;
		entry[1] = i << 1;
	}
	entry_sort_put(sort, entry);
}

/* sort_once -- sort n entries; returns something of each, so that none is left out. */
static uint64
sort_once(Kind kind, Size n)
{
	EntrySort  *sort = entry_sort_begin(kind == KIND_TWO_COLUMNS ? 3 : 2, TAIL_BITS, n);
	const uint64 *entry;
	uint64		sum = 0;

	for (Size i = 0; i < n; i++)
		put_entry(sort, kind, i);
	entry_sort_perform(sort);
	while ((entry = entry_sort_next(sort)) != NULL)
		sum = sum * 31 + entry[1];
	entry_sort_end(sort);
	return sum;
}

/* main -- measure. */
int
main(int argc, char **argv)
{
	Size		n = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
	Size		times;
	uint64		sum = 0;
	double		begin;
	int			kind = 0;

	while (kind < KIND_COUNT && (argc < 2 || strcmp(argv[1], names[kind]) != 0))
		kind++;
	if (n == 0 || kind == KIND_COUNT)
	{
		fprintf(stderr, "usage: entry_sort_times KIND N\n");
		return 2;
	}
	times = Max(LEAST_ENTRIES / n, 1);
	begin = seconds();
	for (Size i = 0; i < times; i++)
		sum += sort_once(kind, n);
	printf("%.2f %lu\n", (seconds() - begin) * 1e9 / n / times, (unsigned long) sum);
	return 0;
}
