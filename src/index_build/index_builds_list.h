/*-------------------------------------------------------------------------
 *
 * index_builds_list.h
 *	  What the team that builds indexes shares, and the list of what it builds.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_BUILDS_LIST_H
#define CYCLONE_INDEX_BUILDS_LIST_H

#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/sharedfileset.h"

#include "index_build/btree_build.h"
#include "index_build/index_builds_plan.h"

/* As a rule the largest part has at most this much of the average */
#define INEQUALITY			1.25

/* One index of the first step, or one part of it, as the team sees it */
typedef struct TeamBuild
{
	/* constant once the team is launched */
	Oid			relid;
	uint32		group;			/* those of a group are built with one pass */
	Size		btree;			/* where its BtreeBuild is, 0 if the access
								 * method builds it */
	int			part;
	bool		by_code;
	Size		tuple_size;
	int			collected;		/* which one of those whose entries are
								 * collected, or -1 */

	/* written by the member that has built it */
	IndexBuildResult counts;
	double		seconds;
} TeamBuild;

typedef struct TeamShared
{
	/* constant once the team is launched */
	int			leader_pid;
	int			leader_number;	/* guards_leader() */
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

/* Into how many parts an index of the first step is built */
typedef struct Division
{
	BtreeSample *sample;		/* NULL: into one */
	int			nparts;
	int			collected;		/* which one of those whose entries are
								 * collected, or -1 */
} Division;

/*
 * For the leader.  builds_sample: how indexes of the first step can be divided at most, one
 * Division for each, palloc'd.  Of these, builds_list_room and builds_btrees_room are what
 * the list takes in the shared block, and what its btrees take behind that.
 *
 * When the number of processes is known, builds_divide says how indexes are divided if no
 * entries are collected.  The entries of an index may be collected if builds_can_collect
 * says so: then the index has builds_collected_parts.  builds_list lists what there is to
 * do, with the btrees from place on: parts of the indexes whose entries are collected,
 * those of other divided indexes, and whole ones.
 */
extern Division *builds_sample(IndexBuilds *builds);
extern Size builds_list_room(const IndexBuilds *builds, const Division *divisions);
extern Size builds_btrees_room(const IndexBuilds *builds, const Division *divisions);
extern void builds_divide(const IndexBuilds *builds, Division *divisions, int nmembers);
extern bool builds_can_collect(const IndexBuild *build);
extern int	builds_collected_parts(int nmembers);
extern void builds_list(TeamShared *shared, const IndexBuilds *builds, const Division *divisions,
						Size place);

#endif							/* CYCLONE_INDEX_BUILDS_LIST_H */
