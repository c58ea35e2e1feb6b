/*-------------------------------------------------------------------------
 *
 * index_builds.h
 *	  Rebuilding several indexes of a table at once.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_BUILDS_H
#define CYCLONE_INDEX_BUILDS_H

#include "utils/rel.h"

typedef struct IndexBuilds IndexBuilds;

/* What the builds came to */
typedef struct IndexBuildsResult
{
	int			at_once;		/* how many indexes were built by a team */
	int			collected;		/* how many of those with a pass that all
								 * share */
	int			members;		/* of that team */
	int			memory;			/* of each, in kB */
	/* the caller's, called for each index with the time that its build took */
	void		(*built) (void *arg, Oid relid, double seconds);
	void	   *arg;
} IndexBuildsResult;

/*
 * index_builds_plan plans how to rebuild the indexes of this table, whose new files are
 * those of new_relid.  asked is what PARALLEL says, as in VacuumParams.  Both tables are
 * locked exclusively, and so are the indexes afterwards.  Returns NULL if nothing is
 * better than what the server does.
 *
 * index_builds_run rebuilds them as planned, when the table has its new files.  The caller
 * has neither it nor its indexes open.
 *
 * index_builds_spare_memory has the server do without workers, too, if there was no
 * shared memory for our most recent team.  The caller restores the setting,
 * max_parallel_maintenance_workers.
 */
extern IndexBuilds *index_builds_plan(Relation rel, Oid new_relid, int asked);
extern void index_builds_spare_memory(void);
extern void index_builds_run(IndexBuilds *builds, IndexBuildsResult *result);

#endif							/* CYCLONE_INDEX_BUILDS_H */
