/*-------------------------------------------------------------------------
 *
 * index_builds_plan.h
 *	  What is planned of several index builds, for index_builds.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_BUILDS_PLAN_H
#define CYCLONE_INDEX_BUILDS_PLAN_H

#include "index_build/index_builds.h"

typedef struct IndexBuild
{
	Oid			relid;
	bool		plain;
	bool		is_divisible;
	Size		entry_size;		/* if we sort it as integers, otherwise 0 */
	Size		tuple_size;		/* estimated, if such an entry needs a tuple */
	bool		is_divided;		/* into a part for each process of the team */
	bool		has_workers;	/* if the server builds it */
	double		pages;			/* expected */
	double		cost;			/* of building it by one process, in units of
								 * index_builds_plan.c */
	double		pass_cost;		/* of that: of reading the table */
	double		bounds_cost;	/* in addition, of each part if it is divided */
	double		entries_cost;	/* of the cost: of the entries */
	double		disk_cost;		/* in addition, of each part but one */
	double		server_cost;	/* of building it as the server does */
} IndexBuild;

struct IndexBuilds
{
	Oid			relid;
	double		rows;			/* as many as there are, or more */
	int			nbuilds;
	/* those one at a time first, otherwise from costly to cheap */
	IndexBuild *builds;
	int			nalone;
	int			nmembers;		/* processes of the team */
};

#endif							/* CYCLONE_INDEX_BUILDS_PLAN_H */
