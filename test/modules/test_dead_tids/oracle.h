/*-------------------------------------------------------------------------
 *
 * oracle.h
 *	  A made-up table's dead items, as plain sorted arrays.
 *
 * See oracle.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef TEST_DEAD_TIDS_ORACLE_H
#define TEST_DEAD_TIDS_ORACLE_H

#include "common/pg_prng.h"
#include "storage/block.h"
#include "storage/off.h"

/* Raises an error if the condition does not hold. */
#define CHECK(condition) \
	do { \
		if (!(condition)) \
			elog(ERROR, "check failed: %s", #condition); \
	} while (0)

/* A block with dead items */
typedef struct OraclePage
{
	BlockNumber blkno;
	int			noffsets;
	Size		first_offset;	/* in Oracle.offsets */
	int			times_added;	/* these are for the simulation to count */
	int			times_found;
} OraclePage;

typedef struct Oracle
{
	OraclePage *pages;			/* by block number */
	int			npages;
	OffsetNumber *offsets;		/* of all pages */
	Size		noffsets;
} Oracle;

extern Oracle *oracle_create(pg_prng_state *random, BlockNumber nblocks,
							 const char *pattern, uint64 page_gap);
extern int	oracle_first_page(const Oracle *oracle, BlockNumber from);

/* random_up_to -- a random number from 0 to max */
static inline uint64
random_up_to(pg_prng_state *random, uint64 max)
{
	return pg_prng_uint64_range(random, 0, max);
}

/* one_in -- true once in n times */
static inline bool
one_in(pg_prng_state *random, uint64 n)
{
	return random_up_to(random, n - 1) == 0;
}

#endif							/* TEST_DEAD_TIDS_ORACLE_H */
