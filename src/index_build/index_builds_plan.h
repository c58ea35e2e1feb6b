/*-------------------------------------------------------------------------
 *
 * index_builds_plan.h
 *	  What is planned of several index builds, and the list of what a team builds.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_BUILDS_PLAN_H
#define CYCLONE_INDEX_BUILDS_PLAN_H

#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/sharedfileset.h"

#include "index_build/btree_build.h"
#include "index_build/index_builds.h"

/* As a rule the largest part of a btree has at most this much of the average */
#define INEQUALITY			1.25

typedef struct IndexBuild
{
	Oid			relid;
	bool		plain;
	bool		is_divisible;	/* its entries may be collected */
	Size		entry_size;		/* of an entry as an integer; 0: we don't sort
								 * it */
	Size		tuple_size;		/* estimated, if such an entry needs a tuple */
	bool		has_workers;	/* if the server builds it alone */
	double		pages;			/* expected */
	double		weight;			/* about what one process takes for it */

	/* of the builds by a team, written by the leader */
	BtreeSample *sample;		/* NULL: it isn't divided */
	int			nparts;			/* at most, then as many as there are */
	int			collected;		/* which one of those whose entries are
								 * collected, or -1 */
	Size		btree;			/* where its BtreeBuild is, 0 if the access
								 * method builds it */
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

/* One index that the team builds, or one part of it */
typedef struct TeamBuild
{
	/* constant once the team begins to build */
	Oid			relid;
	uint32		group;			/* those of a group are built with one pass */
	Size		btree;			/* IndexBuild's; 0 as well once the server has
								 * built it after all */
	int			part;
	Size		tuple_size;
	int			collected;

	/* written by the member that has built it */
	IndexBuildResult counts;
	double		seconds;
} TeamBuild;

typedef struct TeamShared
{
	/* constant once the team begins to build */
	int			leader_pid;
	int			leader_number;	/* its MyProcNumber */
	Oid			relid;
	bool		has_files;
	uint32		nbuilds;
	uint32		ngroups;
	SharedFileSet files;		/* of btrees that are divided */
	int			nmembers;
	int			ncollected;		/* indexes whose entries are collected */
	uint32		ncollected_groups;	/* theirs; they are the first ones */

	/* their entries; written by the leader between phases */
	dsm_handle	collection;		/* DSM_HANDLE_INVALID: there are none */
	double		collect_seconds;	/* what collecting took */

	pg_atomic_uint32 next_collected;	/* group to be taken, of those */
	pg_atomic_uint32 next;		/* and of the others */
	pg_atomic_uint32 done;		/* number of indexes that are ready */
	TeamBuild	builds[FLEXIBLE_ARRAY_MEMBER];
} TeamShared;

/*
 * For the leader.  builds_list_room and builds_btrees_room are what the list takes in the
 * shared block, and what its btrees take behind that, into as many parts as there may be.
 *
 * builds_parts: into how many parts is a btree divided whose entries are collected?  When that
 * is known of all of them, builds_list lists what there is to do: parts of the
 * indexes whose entries are collected, then whole ones.
 */
extern Size builds_list_room(const IndexBuilds *builds);
extern Size builds_btrees_room(const IndexBuilds *builds);
extern int	builds_parts(int nmembers);
extern void builds_list(TeamShared *shared, const IndexBuilds *builds);

#endif							/* CYCLONE_INDEX_BUILDS_PLAN_H */
