/*-------------------------------------------------------------------------
 *
 * skip_policy.c
 *	  Which blocks of a heap a VACUUM need not look at.
 *
 * The visibility map says it, as to the server's VACUUM: all-frozen pages may be
 * skipped, and all-visible ones, too, if the VACUUM isn't aggressive.
 *
 * Eager scanning: an ordinary vacuum that has old XIDs to freeze scans some
 * all-visible pages too, to leave less to the next aggressive one.  It stops
 * for good when a fifth of them has been frozen, and for the rest of a region
 * of 4096 blocks when too many of its pages could not be frozen.  The members share
 * the counts, and may overshoot by the pages in their read streams, as the server
 * does.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/visibilitymap.h"
#include "common/pg_prng.h"
#include "storage/shmem.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/heap/skip_policy.h"

/* The server's rules */
#define EAGER_REGION_BLOCKS		((BlockNumber) 4096)
#define EAGER_SUCCESS_RATE		0.2

static bool eager_scan_is_on(TableVacuum *vacuum, BlockNumber blkno);
static pg_atomic_uint32 *eager_fails(VacuumShared *shared, BlockNumber blkno,
									 uint32 *max_fails);

/*
 * skip_policy_judge
 *		Must this block be scanned?  *flags are those of the block.
 *
 * The map may be out of date at once.  That is no problem: a session that clears a
 * bit after we began has an XID, or MXID, that this vacuum does not care about.
 * *vmbuffer keeps the page of the map pinned; the caller releases it.
 */
BlockChoice
skip_policy_judge(TableVacuum *vacuum, BlockNumber blkno, Buffer *vmbuffer, uint8 *flags)
{
	VacuumShared *shared = vacuum->shared;
	uint8		bits;

	Assert(blkno < vacuum->shared->rel_pages);
	bits = visibilitymap_get_status(vacuum->rel, blkno, vmbuffer);

	*flags = 0;
	if ((bits & VISIBILITYMAP_ALL_VISIBLE) == 0)
		return MUST_SCAN;
	*flags = BLOCK_VM_ALL_VISIBLE;

	/*
	 * The last block is always scanned: if it holds tuples, truncation would
	 * take an exclusive lock in vain.
	 */
	if (blkno == shared->rel_pages - 1 || !shared->skip_with_vm)
		return MUST_SCAN;
	if (DEBUG_FAULT("skip-visible"))
		return MAY_SKIP_FROZEN;
	if (bits & VISIBILITYMAP_ALL_FROZEN)
		return MAY_SKIP_FROZEN;
	if (shared->aggressive)
		return MUST_SCAN;
	if (eager_scan_is_on(vacuum, blkno))
	{
		*flags |= BLOCK_EAGERLY_SCANNED;
		return MUST_SCAN;
	}
	return MAY_SKIP_VISIBLE;
}

/*
 * skip_policy_shared_size
 *		The size of the counters of failures, one a region.
 */
Size
skip_policy_shared_size(BlockNumber rel_pages)
{
	return mul_size(sizeof(pg_atomic_uint32), rel_pages / EAGER_REGION_BLOCKS + 2);
}

/*
 * skip_policy_setup
 *		Leader: decide if all-visible pages are scanned eagerly, and how many.
 */
void
skip_policy_setup(TableVacuum *vacuum, const VacuumParams *params)
{
	VacuumShared *shared = vacuum->shared;
	const struct VacuumCutoffs *cutoffs = &shared->cutoffs;
	EagerShared *eager = &shared->eager;
	double		failure_rate = compat_eager_failure_rate(params);
	BlockNumber all_visible,
				all_frozen;

	Assert(is_leader(vacuum) && !IsInParallelMode());

	eager->enabled = false;
	if (failure_rate == 0 || shared->aggressive ||
		shared->rel_pages < 2 * EAGER_REGION_BLOCKS)
		return;

	/* Only if something is old enough to be frozen. */
	if (!(TransactionIdIsNormal(cutoffs->relfrozenxid) &&
		  TransactionIdPrecedes(cutoffs->relfrozenxid, cutoffs->FreezeLimit)) &&
		!(MultiXactIdIsValid(cutoffs->relminmxid) &&
		  MultiXactIdPrecedes(cutoffs->relminmxid, cutoffs->MultiXactCutoff)))
		return;

	visibilitymap_count(vacuum->rel, &all_visible, &all_frozen);
	eager->success_limit = EAGER_SUCCESS_RATE * (all_visible - all_frozen);
	if (eager->success_limit == 0)
		return;

	/*
	 * The first region is of random length, so that vacuums don't all fail on
	 * the same blocks.
	 */
	eager->first_region_end = pg_prng_uint32(&pg_global_prng_state) % EAGER_REGION_BLOCKS;
	eager->max_fails_per_region = failure_rate * EAGER_REGION_BLOCKS;
	eager->max_fails_first_region = eager->max_fails_per_region *
		(1 - (float) eager->first_region_end / EAGER_REGION_BLOCKS);
	pg_atomic_init_u32(&eager->remaining_successes, eager->success_limit);
	eager->enabled = true;
}

/* eager_scan_is_on -- in this block's region? */
static bool
eager_scan_is_on(TableVacuum *vacuum, BlockNumber blkno)
{
	EagerShared *eager = &vacuum->shared->eager;
	uint32		max_fails;

	return eager->enabled &&
		pg_atomic_read_u32(&eager->remaining_successes) > 0 &&
		pg_atomic_read_u32(eager_fails(vacuum->shared, blkno, &max_fails)) < max_fails;
}

/*
 * eager_fails
 *		The counter of pages that could not be frozen in a block's region, and
 *		how many there may be.
 */
static pg_atomic_uint32 *
eager_fails(VacuumShared *shared, BlockNumber blkno, uint32 *max_fails)
{
	EagerShared *eager = &shared->eager;
	pg_atomic_uint32 *fails = (pg_atomic_uint32 *) ((char *) shared + eager->fails_start);

	Assert(eager->fails_start > 0 && blkno < shared->rel_pages);
	if (blkno < eager->first_region_end)
	{
		*max_fails = eager->max_fails_first_region;
		return &fails[0];
	}
	*max_fails = eager->max_fails_per_region;
	return &fails[1 + (blkno - eager->first_region_end) / EAGER_REGION_BLOCKS];
}

/*
 * skip_policy_count_eager
 *		An eagerly scanned page could, or could not, be set all-frozen.
 */
void
skip_policy_count_eager(TableVacuum *vacuum, BlockNumber blkno, bool frozen)
{
	VacuumShared *shared = vacuum->shared;
	uint32		max_fails;

	Assert(vacuum->shared->eager.enabled);
	Assert(blkno < vacuum->shared->rel_pages);

	if (frozen)
	{
		uint32		left = pg_atomic_read_u32(&shared->eager.remaining_successes);

		while (left > 0 &&
			   !pg_atomic_compare_exchange_u32(&shared->eager.remaining_successes,
											   &left, left - 1))
			;
		if (left == 1)
			ereport(shared->verbose ? INFO : DEBUG2,
					(errmsg("disabling eager scanning after freezing %u eagerly scanned blocks of relation \"%s.%s.%s\"",
							shared->eager.success_limit,
							vacuum->dbname, vacuum->relnamespace, vacuum->relname)));
	}
	else
		pg_atomic_fetch_add_u32(eager_fails(shared, blkno, &max_fails), 1);
}
