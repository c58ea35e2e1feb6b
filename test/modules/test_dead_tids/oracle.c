/*-------------------------------------------------------------------------
 *
 * oracle.c
 *	  A made-up table's dead items, as plain sorted arrays.
 *
 * The final contents of the dead-TID store are known before it is filled, and kept in
 * the simplest way.  Only blocks with dead items take memory, so the table may be as
 * large as tables can be.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "oracle.h"

typedef enum Pattern
{
	PATTERN_ONE,				/* one item */
	PATTERN_FIRST,				/* the first one */
	PATTERN_LAST,				/* the last one that a page can have */
	PATTERN_ENDS,				/* these two */
	PATTERN_FEW,				/* up to 40 anywhere */
	PATTERN_RANDOM,				/* each with a chance that differs by page */
	PATTERN_ALTERNATING,		/* every other one */
	PATTERN_CLUSTERED,			/* a run of neighbours */
	PATTERN_FULL,				/* all */
	PATTERN_MIXED,				/* one of the above by page */
} Pattern;

static const char *const pattern_names[] = {
	[PATTERN_ONE] = "one",
	[PATTERN_FIRST] = "first",
	[PATTERN_LAST] = "last",
	[PATTERN_ENDS] = "ends",
	[PATTERN_FEW] = "few",
	[PATTERN_RANDOM] = "random",
	[PATTERN_ALTERNATING] = "alternating",
	[PATTERN_CLUSTERED] = "clustered",
	[PATTERN_FULL] = "full",
	[PATTERN_MIXED] = "mixed",
};

#define LAST_OFFSET		((OffsetNumber) MaxHeapTuplesPerPage)

static Pattern find_pattern(const char *name);
static void add_page(Oracle *oracle, pg_prng_state *random, BlockNumber blkno,
					 Pattern pattern);
static void choose_offsets(pg_prng_state *random, Pattern pattern, bool *dead);
static void mark_offsets(bool *dead, OffsetNumber first, OffsetNumber last,
						 int step);

/*
 * oracle_create
 *		Make up the dead items of a table.
 *
 * The first and the last block always have some.  Up to page_gap blocks
 * between others have none, and sometimes many more, to leave whole chunks of
 * the store empty.
 */
Oracle *
oracle_create(pg_prng_state *random, BlockNumber nblocks,
			  const char *pattern_name, uint64 page_gap)
{
	Oracle	   *oracle = palloc0_object(Oracle);
	Pattern		pattern = find_pattern(pattern_name);
	uint64		blkno = 0;

	while (blkno < nblocks)
	{
		uint64		gap = random_up_to(random, page_gap);

		if (one_in(random, 32))
			gap *= random_up_to(random, 30);
		add_page(oracle, random, blkno, pattern);
		if (blkno + 1 < nblocks)
			blkno = Min(blkno + 1 + gap, (uint64) nblocks - 1);
		else
			break;
		CHECK_FOR_INTERRUPTS();
	}
	return oracle;
}

/*
 * oracle_first_page
 *		Return the index of the first page at or behind a block; npages if
 *		there is none.
 */
int
oracle_first_page(const Oracle *oracle, BlockNumber from)
{
	int			low = 0;
	int			high = oracle->npages;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (oracle->pages[middle].blkno < from)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* find_pattern -- by its name. */
static Pattern
find_pattern(const char *name)
{
	for (int i = 0; i < lengthof(pattern_names); i++)
		if (strcmp(name, pattern_names[i]) == 0)
			return i;
	elog(ERROR, "there is no pattern \"%s\"", name);
}

/*
 * add_page
 *		Make up the dead items of a block behind those that the oracle has.
 */
static void
add_page(Oracle *oracle, pg_prng_state *random, BlockNumber blkno,
		 Pattern pattern)
{
	OraclePage *page;
	bool		dead[MaxHeapTuplesPerPage + 1] = {0};

	/* Arrays grow when their length comes to a power of two. */
	if (oracle->pages == NULL)
	{
		oracle->pages = palloc_array(OraclePage, 1);
		oracle->offsets = palloc_array(OffsetNumber, 1);
	}
	else if ((oracle->npages & (oracle->npages - 1)) == 0)
		oracle->pages = repalloc_huge(oracle->pages,
									  2 * (Size) oracle->npages * sizeof(OraclePage));

	page = &oracle->pages[oracle->npages++];
	memset(page, 0, sizeof(OraclePage));
	page->blkno = blkno;
	page->first_offset = oracle->noffsets;

	if (pattern == PATTERN_MIXED)
		pattern = random_up_to(random, PATTERN_MIXED - 1);
	choose_offsets(random, pattern, dead);
	for (int offset = FirstOffsetNumber; offset <= LAST_OFFSET; offset++)
		if (dead[offset])
		{
			if (oracle->noffsets > 0 && (oracle->noffsets & (oracle->noffsets - 1)) == 0)
				oracle->offsets = repalloc_huge(oracle->offsets,
												2 * oracle->noffsets * sizeof(OffsetNumber));
			oracle->offsets[oracle->noffsets++] = offset;
			page->noffsets++;
		}
}

/*
 * choose_offsets
 *		Mark at least one offset of a page.
 */
static void
choose_offsets(pg_prng_state *random, Pattern pattern, bool *dead)
{
	OffsetNumber some = 1 + random_up_to(random, LAST_OFFSET - 1);
	OffsetNumber last;
	double		share = pg_prng_double(random);

	switch (pattern)
	{
		case PATTERN_ONE:
			dead[some] = true;
			break;
		case PATTERN_FIRST:
			dead[FirstOffsetNumber] = true;
			break;
		case PATTERN_LAST:
			dead[LAST_OFFSET] = true;
			break;
		case PATTERN_ENDS:
			dead[FirstOffsetNumber] = dead[LAST_OFFSET] = true;
			break;
		case PATTERN_FEW:
			for (int n = random_up_to(random, 39); n >= 0; n--)
				dead[1 + random_up_to(random, LAST_OFFSET - 1)] = true;
			break;
		case PATTERN_RANDOM:
			dead[some] = true;
			for (int offset = FirstOffsetNumber; offset <= LAST_OFFSET; offset++)
				dead[offset] |= pg_prng_double(random) < share;
			break;
		case PATTERN_ALTERNATING:
			mark_offsets(dead, 1 + some % 2, LAST_OFFSET, 2);
			break;
		case PATTERN_CLUSTERED:
			last = some + random_up_to(random, 60);
			mark_offsets(dead, some, Min(last, LAST_OFFSET), 1);
			break;
		case PATTERN_FULL:
			mark_offsets(dead, FirstOffsetNumber, LAST_OFFSET, 1);
			break;
		case PATTERN_MIXED:
			elog(ERROR, "a page is not mixed, only a table");
	}
}

/* mark_offsets -- mark each step-th offset from the first to the last. */
static void
mark_offsets(bool *dead, OffsetNumber first, OffsetNumber last, int step)
{
	for (int offset = first; offset <= last; offset += step)
		dead[offset] = true;
}
