/*-------------------------------------------------------------------------
 *
 * index_builds_plan.c
 *	  Planning which indexes of a table a team builds, in which parts and order, and
 *	  which the server builds one by one.
 *
 * index_builds.c has the team.  The server gets what isn't plain (plain_index.c), and a large
 * index that we don't sort, if it has workers for that and the team would wait for one of its
 * processes.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/itup.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/index_builds_plan.h"
#include "index_build/key_code.h"
#include "index_build/plain_index.h"
#include "relation_size.h"
#include "team/degree.h"

/* What a page of an index takes, if we sort its entries, in any other btree, and in other kinds */
#define OUR_PAGE_WEIGHT			1
#define BTREE_PAGE_WEIGHT		4
#define OTHER_PAGE_WEIGHT		40

/*
 * With workers the server builds an index about twice as fast, so it gets one that takes
 * at least this many times as long as all other indexes that we don't sort
 */
#define LARGE_FOR_TEAM			2

/* Into how many parts a btree is divided for each process */
#define PARTS_OF_PROCESS		4

static IndexBuilds *list_indexes(Relation rel, Oid new_relid, int asked);
static void plan_sort(IndexBuild *build, const IndexBuilds *builds, Relation index);
static bool is_large_enough(const IndexBuild *build, int nmembers);
static void plan_tuples(IndexBuild *build, const IndexBuilds *builds);
static Size average_tuple_size(Relation index, double pages, double entries);
static int	compare_builds(const void *a, const void *b);
static int	plan_members(IndexBuilds *builds, Relation rel, int asked);
static int	plan_alone(const IndexBuilds *builds);
static void list_groups(TeamShared *shared, const IndexBuilds *builds, List *numbers);

/* index_builds_plan -- plan how to rebuild the indexes of a table. */
IndexBuilds *
index_builds_plan(Relation rel, Oid new_relid, int asked)
{
	IndexBuilds *builds;
	int			nplain = 0;
	int			nsorted = 0;
	int			ndivisible = 0;

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));
	Assert(CheckRelationOidLockedByMe(new_relid, AccessExclusiveLock, true));
	Assert(asked >= -1);
	if (RelationUsesLocalBuffers(rel))
		return NULL;

	builds = list_indexes(rel, new_relid, asked);
	for (int i = 0; i < builds->nbuilds; i++)
		nplain += builds->builds[i].plain;
	if (builds->nbuilds - nplain > 1)
		return NULL;

	builds->nalone = plan_alone(builds);
	for (int i = builds->nalone; i < builds->nbuilds; i++)
	{
		nsorted += builds->builds[i].entry_size > 0;
		builds->builds[i].is_divisible &= is_large_enough(&builds->builds[i], builds->nmembers);
		ndivisible += builds->builds[i].is_divisible;
	}
	if (ndivisible == 0)
		builds->nmembers = Min(builds->nmembers, builds->nbuilds - builds->nalone);
	if (builds->nmembers < 2 && nsorted == 0)
		return NULL;
	for (int i = builds->nalone; i < builds->nbuilds; i++)
		builds->builds[i].nparts = builds->nmembers > 1 && builds->builds[i].is_divisible ?
			builds_parts(builds->nmembers) : 1;
	return builds;
}

/*
 * list_indexes
 *		Find out what is to be known of the indexes, and sort them.
 */
static IndexBuilds *
list_indexes(Relation rel, Oid new_relid, int asked)
{
	IndexBuilds *builds = palloc0_object(IndexBuilds);
	List	   *indexes = RelationGetIndexList(rel);
	Relation	new_rel = table_open(new_relid, NoLock);
	BlockNumber old_pages = RelationGetNumberOfBlocks(rel);
	BlockNumber new_pages = RelationGetNumberOfBlocks(new_rel);
	double		shrinkage = Min((double) new_pages / Max(old_pages, 1), 1);

	builds->rows = Max(new_rel->rd_rel->reltuples, 0);
	table_close(new_rel, NoLock);

	builds->relid = RelationGetRelid(rel);
	builds->builds = palloc0_array(IndexBuild, list_length(indexes));
	foreach_oid(relid, indexes)
	{
		IndexBuild *build = &builds->builds[builds->nbuilds++];
		Relation	index = index_open(relid, AccessExclusiveLock);

		build->relid = relid;
		build->plain = index_is_plain(index);
		build->pages = shrinkage * relation_blocks(index);
		build->has_workers = index->rd_indam->amcanbuildparallel &&
			plan_create_index_workers(new_relid, relid) > 0;
		build->weight = build->pages *
			(index->rd_rel->relam == BTREE_AM_OID ? BTREE_PAGE_WEIGHT : OTHER_PAGE_WEIGHT);
		plan_sort(build, builds, index);
		index_close(index, NoLock);
	}
	builds->nmembers = plan_members(builds, rel, asked);
	for (int i = 0; i < builds->nbuilds; i++)
		plan_tuples(&builds->builds[i], builds);
	qsort(builds->builds, builds->nbuilds, sizeof(IndexBuild), compare_builds);
	return builds;
}

/*
 * plan_sort
 *		Do we sort the entries of this index ourselves, and how large are they?
 *
 * Of a partial index we don't know how many entries there are.
 */
static void
plan_sort(IndexBuild *build, const IndexBuilds *builds, Relation index)
{
	KeyCode    *code = build->plain ? key_code_begin(index) : NULL;

	if (code == NULL)
		return;
	build->entry_size = key_code_words(code) * sizeof(uint64);
	if (key_code_has_tuples(code))
		build->tuple_size = average_tuple_size(index, build->pages, builds->rows);
	else
		build->is_divisible = DEBUG_LIMIT(btree_parts, 0) > 0 ||
			RelationGetIndexPredicate(index) == NIL;
}

/* is_large_enough -- is an index worth being divided, as the last page of each part isn't full? */
static bool
is_large_enough(const IndexBuild *build, int nmembers)
{
	return DEBUG_LIMIT(btree_parts, 0) > 0 ||
		build->pages >= (double) min_parallel_index_scan_size / 2 * builds_parts(nmembers);
}

/*
 * plan_tuples
 *		Leave an index to the server if its entries need tuples, and have no room in the
 *		memory of one process.
 */
static void
plan_tuples(IndexBuild *build, const IndexBuilds *builds)
{
	double		memory = maintenance_work_mem * 1024.0 / builds->nmembers;

	if (build->tuple_size > 0 && (2 * build->entry_size + build->tuple_size) * builds->rows > memory)
		build->entry_size = 0;
	if (build->entry_size > 0)
		build->weight = build->pages * OUR_PAGE_WEIGHT;
}

/*
 * average_tuple_size
 *		How large is a tuple of an index?  The larger of what the index's size and the
 *		statistics of its columns say.
 */
static Size
average_tuple_size(Relation index, double pages, double entries)
{
	Size		by_pages = pages * BLCKSZ / Max(entries, 1);
	Size		by_columns = sizeof(IndexTupleData);

	for (int i = 0; i < index->rd_index->indnatts; i++)
	{
		AttrNumber	attnum = index->rd_index->indkey.values[i];

		by_columns += attnum > 0 ? get_attavgwidth(index->rd_index->indrelid, attnum) :
			get_attavgwidth(RelationGetRelid(index), i + 1);
	}
	return MAXALIGN(Max(by_pages, by_columns));
}

/* compare_builds -- for qsort: one that isn't plain, those that we don't sort, large ones first. */
static int
compare_builds(const void *a, const void *b)
{
	const IndexBuild *left = a;
	const IndexBuild *right = b;

	if (left->plain != right->plain)
		return left->plain ? 1 : -1;
	if ((left->entry_size == 0) != (right->entry_size == 0))
		return left->entry_size == 0 ? -1 : 1;
	if (left->weight != right->weight)
		return left->weight > right->weight ? -1 : 1;
	return left->relid < right->relid ? -1 : 1;
}

/*
 * plan_members
 *		How many processes may build indexes at once: as many as PARALLEL or the
 *		table's storage parameter says, or one for each index that is large
 *		enough for that, or what the largest btree calls for; within shared_buffers.
 */
static int
plan_members(IndexBuilds *builds, Relation rel, int asked)
{
	int			nworkers = RelationGetParallelWorkers(rel, -1);

	if (asked != 0)
		nworkers = Max(asked, 0);
	else if (nworkers < 0)
	{
		int			for_btree = 0;

		nworkers = -1;			/* the leader builds one, too */
		for (int i = 0; i < builds->nbuilds; i++)
		{
			const IndexBuild *build = &builds->builds[i];

			nworkers += build->pages >= min_parallel_index_scan_size;
			if (build->is_divisible)
			{
				int			degree = degree_for_size(build->pages, min_parallel_index_scan_size);

				for_btree = Max(for_btree, degree);
			}
		}
		nworkers = DEBUG_LIMIT(workers, Max(nworkers, for_btree));
	}
	nworkers = Min(Min(nworkers, max_parallel_maintenance_workers), max_parallel_workers);
	return degree_within_buffers(Max(nworkers, 0), DEGREE_BUILD_PINS) + 1;
}

/* plan_alone -- how many indexes, from the first one on, are left to the server? */
static int
plan_alone(const IndexBuilds *builds)
{
	int			nalone = 0;
	double		rest = 0;

	while (nalone < builds->nbuilds && !builds->builds[nalone].plain)
		nalone++;
	for (int i = nalone; i < builds->nbuilds; i++)
		if (builds->builds[i].entry_size == 0)
			rest += builds->builds[i].weight;
	for (; nalone < builds->nbuilds; nalone++)
	{
		const IndexBuild *build = &builds->builds[nalone];

		rest -= build->weight;
		if (build->entry_size > 0 || !build->has_workers ||
			(builds->nmembers > 1 && build->weight < LARGE_FOR_TEAM * rest))
			break;
	}
	return nalone;
}

/* builds_parts -- into how many parts is a btree divided whose entries are collected? */
int
builds_parts(int nmembers)
{
	return DEBUG_LIMIT(btree_parts, PARTS_OF_PROCESS * nmembers);
}

/* builds_list_room -- how much of the shared block does the list of builds take? */
Size
builds_list_room(const IndexBuilds *builds)
{
	Size		size = offsetof(TeamShared, builds);

	for (int i = builds->nalone; i < builds->nbuilds; i++)
		size = add_size(size, mul_size(sizeof(TeamBuild), builds->builds[i].nparts));
	return MAXALIGN(size);
}

/* builds_btrees_room -- how much of it does what processes share of their btrees take? */
Size
builds_btrees_room(const IndexBuilds *builds)
{
	Size		size = 0;

	for (int i = builds->nalone; i < builds->nbuilds; i++)
		if (builds->builds[i].entry_size > 0)
			size = add_size(size, MAXALIGN(btree_build_size(builds->builds[i].nparts)));
	return size;
}

/*
 * builds_list
 *		List what there is to do: parts of the indexes whose entries are collected, then
 *		whole ones.
 *
 * Those that we sort are dealt out, so that each process reads the table once for them.
 */
void
builds_list(TeamShared *shared, const IndexBuilds *builds)
{
	int			nmembers = shared->nmembers;
	double	   *weights = palloc0_array(double, nmembers);
	List	  **whole = palloc0_array(List *, nmembers);

	Assert(nmembers > 0);
	for (int i = builds->nalone; i < builds->nbuilds; i++)
	{
		const IndexBuild *build = &builds->builds[i];
		Relation	index;

		if (build->entry_size == 0)
			continue;
		index = index_open(build->relid, NoLock);
		btree_build_begin((BtreeBuild *) ((char *) shared + build->btree),
						  build->sample, build->nparts, index);
		index_close(index, NoLock);
	}

	shared->nbuilds = 0;
	shared->ngroups = 0;
	for (int i = builds->nalone; i < builds->nbuilds; i++)
		if (builds->builds[i].collected >= 0)
			list_groups(shared, builds, list_make1_int(i));
	shared->ncollected_groups = shared->ngroups;
	for (int i = builds->nalone; i < builds->nbuilds; i++)
		if (builds->builds[i].collected >= 0)
			continue;
		else if (builds->builds[i].entry_size == 0)
			list_groups(shared, builds, list_make1_int(i));
		else
		{
			int			member = 0;

			for (int j = 1; j < nmembers; j++)
				if (weights[j] < weights[member])
					member = j;
			weights[member] += builds->builds[i].weight;
			whole[member] = lappend_int(whole[member], i);
		}
	for (int i = 0; i < nmembers; i++)
		list_groups(shared, builds, whole[i]);
	pg_atomic_init_u32(&shared->next_collected, 0);
	pg_atomic_init_u32(&shared->next, shared->ncollected_groups);
}

/*
 * list_groups
 *		Add these indexes to what there is to do: one in its parts, or whole ones.  A group
 *		has as many of these as have room for their entries in memory.
 */
static void
list_groups(TeamShared *shared, const IndexBuilds *builds, List *numbers)
{
	int			begin = 0;

	while (begin < list_length(numbers))
	{
		int			end = begin;
		int			nparts = builds->builds[list_nth_int(numbers, begin)].nparts;
		Size		total = 0;
		Size		largest = 0;

		do
		{
			const IndexBuild *build = &builds->builds[list_nth_int(numbers, end)];

			total += build->entry_size + build->tuple_size;
			largest = Max(largest, build->entry_size);
			if (end > begin && builds->rows * (total + largest) > maintenance_work_mem * 1024.0)
				break;
		} while (++end < list_length(numbers));

		for (int part = 0; part < nparts; part++, shared->ngroups++)
			for (int i = begin; i < end; i++)
			{
				const IndexBuild *build = &builds->builds[list_nth_int(numbers, i)];

				shared->builds[shared->nbuilds++] = (TeamBuild)
				{
					.relid = build->relid,
						.group = shared->ngroups,
						.btree = build->btree,
						.part = part,
						.tuple_size = build->tuple_size,
						.collected = build->collected
				};
			}
		begin = end;
	}
}
