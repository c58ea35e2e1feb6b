/*-------------------------------------------------------------------------
 *
 * degree.c
 *	  How many workers a team gets.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "optimizer/paths.h"

#include "debug_point.h"
#include "team/degree.h"

/*
 * degree_is_free
 *		May there be workers at all?  asked is what PARALLEL says, as in
 *		VacuumParams: -1 for none, 0 if it isn't given.
 *
 * Warns if they are asked for and can't be.
 */
bool
degree_is_free(Relation rel, int asked)
{
	if (asked < 0)
		return false;
	if (!RelationUsesLocalBuffers(rel))
		return true;
	if (asked > 0)
		ereport(WARNING,
				(errmsg("disabling parallel option of vacuum on \"%s\" --- cannot vacuum temporary tables in parallel",
						RelationGetRelationName(rel))));
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
 *		How many workers so many blocks call for, as for a parallel scan: one
 *		from the threshold on, and another each time it triples.
 */
int
degree_for_size(BlockNumber nblocks, int threshold)
{
	int			nworkers = 0;

	for (uint64 size = Max(threshold, 1); nblocks >= size; size *= 3)
		nworkers++;
	return nworkers;
}
