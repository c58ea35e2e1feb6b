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
	int			divided;		/* how many of those into parts */
	int			members;		/* of that team */
	int			memory;			/* of each, in kB */
	/* the caller's, called for each index with the time that its build took */
	void		(*built) (void *arg, Oid relid, double seconds);
	void	   *arg;
} IndexBuildsResult;

extern IndexBuilds *index_builds_plan(Relation rel, Oid new_relid, int asked);
extern void index_builds_spare_memory(void);
extern void index_builds_run(IndexBuilds *builds, IndexBuildsResult *result);

#endif							/* CYCLONE_INDEX_BUILDS_H */
