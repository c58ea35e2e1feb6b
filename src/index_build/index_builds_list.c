/*-------------------------------------------------------------------------
 *
 * index_builds_list.c
 *	  The list of what a team builds: which indexes in which parts, in which order.
 *
 * For index_builds.c, which has the team.  index_builds_plan.c says which indexes are to
 * be divided.  This file divides them, and says what a process builds with one pass over
 * the table.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"

#include "debug_point.h"
#include "index_build/btree_build.h"
#include "index_build/index_builds_list.h"
#include "index_build/index_builds_plan.h"

/* Into how many parts a btree is divided for each process, if entries are collected */
#define COLLECTED_PARTS		4

static void list_groups(TeamShared *shared, const IndexBuilds *builds, List *numbers,
						const Size *btrees, const Division *divisions);

/*
 * builds_sample
 *		Find into how many parts each index of the first step can be divided at most, and
 *		take a sample of those that are to be divided.
 */
Division *
builds_sample(IndexBuilds *builds)
{
	int			nbuilds = builds->nbuilds - builds->nalone;
	Division   *divisions = palloc0_array(Division, nbuilds);
	Relation	heap = table_open(builds->relid, NoLock);
	int			nparts = DEBUG_LIMIT(btree_parts, builds->nmembers);

	Assert(nbuilds > 0 && builds->nmembers > 0);
	Assert(CheckRelationLockedByMe(heap, ShareLock, true));

	for (int i = 0; i < nbuilds; i++)
	{
		const IndexBuild *build = &builds->builds[builds->nalone + i];
		Relation	index;

		divisions[i].nparts = 1;
		divisions[i].collected = -1;
		if (!build->is_divided)
			continue;
		index = index_open(build->relid, NoLock);
		divisions[i].sample = btree_sample(heap, index, nparts);
		index_close(index, NoLock);
		if (divisions[i].sample != NULL)
			divisions[i].nparts = builds_can_collect(build) ? builds_collected_parts(builds->nmembers) : nparts;
	}
	table_close(heap, NoLock);
	return divisions;
}

/* builds_can_collect -- can entries of this index lie in shared memory? */
bool
builds_can_collect(const IndexBuild *build)
{
	return build->entry_size > 0 && build->tuple_size == 0;
}

/* builds_collected_parts -- into how many parts is an index divided whose entries are collected? */
int
builds_collected_parts(int nmembers)
{
	Assert(nmembers > 0);
	return DEBUG_LIMIT(btree_parts, COLLECTED_PARTS * nmembers);
}

/* builds_list_room -- how much of the shared block does the list of builds take? */
Size
builds_list_room(const IndexBuilds *builds, const Division *divisions)
{
	Size		size = offsetof(TeamShared, builds);

	for (int i = 0; i < builds->nbuilds - builds->nalone; i++)
		size = add_size(size, mul_size(sizeof(TeamBuild), divisions[i].nparts));
	return MAXALIGN(size);
}

/* builds_btrees_room -- how much of it does what processes share of their btrees take? */
Size
builds_btrees_room(const IndexBuilds *builds, const Division *divisions)
{
	Size		size = 0;

	for (int i = 0; i < builds->nbuilds - builds->nalone; i++)
		if (divisions[i].sample || builds->builds[builds->nalone + i].entry_size > 0)
			size = add_size(size, MAXALIGN(btree_build_size(divisions[i].sample, divisions[i].nparts)));
	return size;
}

/*
 * builds_divide
 *		As the team has this many processes: into how many parts are indexes divided,
 *		if no entries are collected?
 */
void
builds_divide(const IndexBuilds *builds, Division *divisions, int nmembers)
{
	Assert(nmembers > 0);
	for (int i = 0; i < builds->nbuilds - builds->nalone; i++)
	{
		if (nmembers == 1)
			divisions[i].sample = NULL;
		divisions[i].nparts = divisions[i].sample ? DEBUG_LIMIT(btree_parts, nmembers) : 1;
		divisions[i].collected = -1;
	}
}

/*
 * builds_list
 *		List what there is to do: parts of the indexes whose entries are collected, those
 *		of other divided indexes, and then the whole ones.  What the parts share begins
 *		at place in the shared block.
 */
void
builds_list(TeamShared *shared, const IndexBuilds *builds, const Division *divisions, Size place)
{
	const IndexBuild *first = &builds->builds[builds->nalone];
	int			nbuilds = builds->nbuilds - builds->nalone;
	int			nmembers = shared->nmembers;
	Size	   *btrees = palloc0_array(Size, nbuilds);
	double	   *costs = palloc0_array(double, nmembers);
	List	  **whole = palloc0_array(List *, nmembers);
	List	   *divided = NIL;

	Assert(nmembers > 0 && nbuilds > 0);
	Assert(divisions != NULL && place > 0);
	for (int i = 0; i < nbuilds; i++)
	{
		const Division *division = &divisions[i];
		Relation	index;

		if (division->sample == NULL && first[i].entry_size == 0)
			continue;
		btrees[i] = place;
		index = index_open(first[i].relid, NoLock);
		btree_build_begin((BtreeBuild *) ((char *) shared + place), division->sample,
						  division->nparts, index);
		index_close(index, NoLock);
		place += MAXALIGN(btree_build_size(division->sample, division->nparts));
	}

	shared->nbuilds = 0;
	shared->ngroups = 0;
	for (int i = 0; i < nbuilds; i++)
		if (divisions[i].collected >= 0)
			list_groups(shared, builds, list_make1_int(i), btrees, divisions);
	shared->ncollected_groups = shared->ngroups;
	for (int i = 0; i < nbuilds; i++)
		if (divisions[i].sample == NULL || divisions[i].collected >= 0)
			continue;
		else if (first[i].entry_size == 0)
			list_groups(shared, builds, list_make1_int(i), btrees, divisions);
		else
			divided = lappend_int(divided, i);
	list_groups(shared, builds, divided, btrees, divisions);

	/*
	 * whole indexes that we sort are dealt out, so that each process reads
	 * the table once for them
	 */
	for (int i = 0; i < nbuilds; i++)
		if (divisions[i].sample == NULL && first[i].entry_size == 0)
			list_groups(shared, builds, list_make1_int(i), btrees, divisions);
		else if (divisions[i].sample == NULL)
		{
			int			member = 0;

			for (int j = 1; j < nmembers; j++)
				if (costs[j] < costs[member])
					member = j;
			costs[member] += first[i].cost;
			whole[member] = lappend_int(whole[member], i);
		}
	for (int i = 0; i < nmembers; i++)
		list_groups(shared, builds, whole[i], btrees, divisions);
	Assert(shared->ncollected_groups <= shared->ngroups);
	pg_atomic_init_u32(&shared->next_collected, 0);
	pg_atomic_init_u32(&shared->next, shared->ncollected_groups);
}

/*
 * list_groups
 *		Add these indexes, all of as many parts, to what there is to do.  A group has
 *		as many indexes as have room for their entries in memory.
 */
static void
list_groups(TeamShared *shared, const IndexBuilds *builds, List *numbers, const Size *btrees,
			const Division *divisions)
{
	const IndexBuild *first = &builds->builds[builds->nalone];
	int			nparts = numbers == NIL ? 1 : divisions[linitial_int(numbers)].nparts;
	double		rows = nparts > 1 ? builds->rows * INEQUALITY / nparts : builds->rows;
	int			begin = 0;

	while (begin < list_length(numbers))
	{
		int			end = begin;
		Size		total = 0;
		Size		largest = 0;

		do
		{
			const IndexBuild *build = &first[list_nth_int(numbers, end)];

			total += build->entry_size + build->tuple_size;
			largest = Max(largest, build->entry_size);
			if (end > begin && rows * (total + largest) > maintenance_work_mem * 1024.0)
				break;
		} while (++end < list_length(numbers));

		for (int part = 0; part < nparts; part++, shared->ngroups++)
			for (int i = begin; i < end; i++)
			{
				int			number = list_nth_int(numbers, i);

				shared->builds[shared->nbuilds++] = (TeamBuild)
				{
					.relid = first[number].relid,
						.group = shared->ngroups,
						.btree = btrees[number],
						.part = part,
						.by_code = first[number].entry_size > 0,
						.tuple_size = first[number].tuple_size,
						.collected = divisions[number].collected
				};
			}
		begin = end;
	}
}
