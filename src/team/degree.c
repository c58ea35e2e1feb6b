/*-------------------------------------------------------------------------
 *
 * degree.c
 *	  How many workers a team gets.
 *
 * The teams of autovacuum share what cyclone.autovacuum_max_parallel_workers
 * allows.  An autovacuum worker that plans a team takes the team's workers from a
 * counter in shared memory.  It puts them back when the table is done, or when it
 * exits.  After a crash the counter is 0 again.
 *
 * Each process has some buffers pinned.  A read stream has its share of them at most, by the
 * server's rule, but where shared_buffers is tiny all that share a table may use up what
 * there is, and one of them fails (StrategyGetBuffer).  So there are fewer processes there
 * (degree_within_buffers).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "optimizer/paths.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "at_exit.h"
#include "debug_point.h"
#include "settings.h"
#include "team/degree.h"

/* workers that autovacuums have taken */
static pg_atomic_uint32 *taken = NULL;

/* those of them that this process has */
static int	reserved = 0;

/*
 * degree_reserve
 *		Take up to nworkers workers, if they are left, for an autovacuum's team.
 *		Returns how many; degree_release puts them back.
 */
int
degree_reserve(int nworkers)
{
	uint32		before = pg_atomic_read_u32(taken);
	int			number;

	Assert(reserved == 0 && nworkers >= 0);
	Assert(AmAutoVacuumWorkerProcess());
	at_exit(degree_release);

	do
	{
		number = Min(nworkers, cyclone_autovacuum_max_parallel_workers - (int) before);
		if (number <= 0)
			return 0;
	} while (!pg_atomic_compare_exchange_u32(taken, &before, before + number));

	reserved = number;
	return number;
}

/* degree_release -- put back what was taken; harmless if nothing was. */
void
degree_release(void)
{
	Assert(reserved >= 0);
	Assert(reserved == 0 || pg_atomic_read_u32(taken) >= (uint32) reserved);
	if (reserved > 0)
		pg_atomic_fetch_sub_u32(taken, reserved);
	reserved = 0;
}

/* degree_within_buffers -- see degree.h. */
int
degree_within_buffers(int nworkers, int pins)
{
	int			most = Max(NBuffers / pins - 1, 0);

	Assert(nworkers >= 0 && pins > 0);
	return Min(nworkers, most);
}

/*
 * degree_allows_workers
 *		May there be workers at all?  asked is what PARALLEL says, as in
 *		VacuumParams: -1 for none, 0 if it isn't given.
 *
 * Warns if they are asked for and can't be; command is what is being done then.
 */
bool
degree_allows_workers(Relation rel, int asked, const char *command)
{
	if (asked < 0)
		return false;
	if (!RelationUsesLocalBuffers(rel))
		return true;
	if (asked > 0)
		ereport(WARNING,
				(errmsg("disabling parallel option of %s on \"%s\" --- cannot %s temporary tables in parallel",
						command, RelationGetRelationName(rel), command)));
	return false;
}

/*
 * degree_for_table
 *		How many workers a table of this size calls for, unless the storage
 *		parameter parallel_workers says it.
 */
int
degree_for_table(Relation rel, BlockNumber pages)
{
	int			configured = RelationGetParallelWorkers(rel, -1);

	if (configured < 0)
		configured = degree_for_size(pages, min_parallel_table_scan_size);
	return DEBUG_LIMIT(workers, configured);
}

/*
 * degree_for_size
 *		How many workers nblocks blocks call for, as for a parallel scan: one from
 *		the threshold on, and another each time it triples.
 */
int
degree_for_size(BlockNumber nblocks, int threshold)
{
	int			nworkers = 0;

	Assert(threshold >= 0);

	for (uint64 size = Max(threshold, 1); nblocks >= size; size *= 3)
		nworkers++;
	return nworkers;
}

/* degree_shmem_request -- how much shared memory we need. */
void
degree_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(pg_atomic_uint32));
}

/* degree_shmem_init -- make it, or find it. */
void
degree_shmem_init(void)
{
	bool		found;

	taken = ShmemInitStruct("pg_cyclone autovacuum workers", sizeof(pg_atomic_uint32), &found);
	if (!found)
		pg_atomic_init_u32(taken, 0);
}
