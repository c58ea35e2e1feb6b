/*-------------------------------------------------------------------------
 *
 * index_builds_plan.c
 *	  Planning which indexes of a table are built at once, and which one by one.
 *
 * index_builds.c has the two steps.  Here their costs are compared, to decide which
 * indexes are left to the server, and which btrees are divided.
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
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "debug_point.h"
#include "index_build/index_builds_plan.h"
#include "index_build/key_code.h"
#include "index_build/plain_index.h"
#include "index_build/server_build.h"
#include "relation_size.h"
#include "team/degree.h"

/*
 * Costs, to compare plans.  The unit is sorting and writing a page of a btree whose
 * first column is passed by value, which takes about 0.1 ms.  The other costs were
 * measured against it in CPU time, in tables of one and two million rows.  The serial
 * part of a build by several processes is what one of them does alone.
 */
#define HEAP_PAGE_COST				0.08
#define BY_CODE_PAGE_COST			0.25
#define BY_PREFIX_PAGE_COST			0.4
#define BY_VALUE_PAGE_COST			1.0
#define BY_VALUE_SERIAL_PART		0.36
#define BY_REFERENCE_PAGE_COST		1.4
#define OTHER_KIND_PAGE_COST		10.0
#define OTHER_SERIAL_PART			0.15

/*
 * Dividing a btree: for each part a process reads the whole table and compares all
 * rows with the bounds.  There is a sample to be taken, and parts to be joined.
 */
#define BY_VALUE_BOUND_COST			0.05	/* a page of the index */
#define BY_REFERENCE_BOUND_COST		0.2
#define DIVISION_COST				40.0

/* How many entries such a page has, unless duplicates are stored once */
#define ENTRIES_OF_PAGE				366

/* An index whose entries make more runs than this is sorted by the server */
#define MAX_RUNS			256

static IndexBuilds *list_indexes(Relation rel, Oid new_relid, int asked);
static void estimate_costs(IndexBuild *build, Relation index, BlockNumber heap_pages,
						   double entries, Oid new_relid);
static void plan_sort(IndexBuild *build, const IndexBuilds *builds, Relation index);
static Size average_tuple_size(Relation index, double pages, double entries);
static bool is_divisible(Relation index, Relation rel);
static int	compare_builds(const void *a, const void *b);
static int	plan_members(IndexBuilds *builds, Relation rel, int asked);
static int	plan_alone(const IndexBuilds *builds, int *ndivided);
static double best_time_at_once(const IndexBuild *builds, int nbuilds, int nmembers, int *ndivided);
static double time_at_once(const IndexBuild *builds, int nbuilds, int nmembers, int ndivided);

/* index_builds_plan -- plan how to rebuild the indexes of a table. */
IndexBuilds *
index_builds_plan(Relation rel, Oid new_relid, int asked)
{
	IndexBuilds *builds;
	int			nplain = 0;
	int			nsorted = 0;
	int			ndivided = 0;

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

	builds->nalone = plan_alone(builds, &ndivided);
	if (ndivided == 0)
		builds->nmembers = Min(builds->nmembers, builds->nbuilds - builds->nalone);
	for (int i = builds->nalone; i < builds->nbuilds; i++)
		nsorted += builds->builds[i].entry_size > 0;
	if (builds->nmembers < 2 && nsorted == 0)
		return NULL;

	for (int i = builds->nalone; ndivided > 0; i++)
	{
		Assert(i < builds->nbuilds);
		if (builds->builds[i].is_divisible)
		{
			builds->builds[i].is_divided = true;
			ndivided--;
		}
	}
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
	BlockNumber heap_pages = RelationGetNumberOfBlocks(new_rel);
	BlockNumber old_pages = RelationGetNumberOfBlocks(rel);
	double		shrinkage = Min((double) heap_pages / Max(old_pages, 1), 1);

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
		build->is_divisible = is_divisible(index, rel);
		build->pages = shrinkage * relation_blocks(index);
		index_close(index, NoLock);
	}
	builds->nmembers = plan_members(builds, rel, asked);

	for (int i = 0; i < builds->nbuilds; i++)
	{
		IndexBuild *build = &builds->builds[i];
		Relation	index = index_open(build->relid, NoLock);

		plan_sort(build, builds, index);
		estimate_costs(build, index, heap_pages, shrinkage * index->rd_rel->reltuples, new_relid);
		index_close(index, NoLock);
	}
	qsort(builds->builds, builds->nbuilds, sizeof(IndexBuild), compare_builds);
	return builds;
}

/*
 * estimate_costs
 *		What it costs to build an index, by one process and as the server does.
 *
 * Duplicates make it small, but not cheap.
 */
static void
estimate_costs(IndexBuild *build, Relation index, BlockNumber heap_pages, double entries,
			   Oid new_relid)
{
	bool		is_btree = index->rd_rel->relam == BTREE_AM_OID;
	bool		by_value = is_btree && TupleDescAttr(RelationGetDescr(index), 0)->attbyval;
	double		server_page_cost = by_value ? BY_VALUE_PAGE_COST :
		is_btree ? BY_REFERENCE_PAGE_COST : OTHER_KIND_PAGE_COST;
	double		serial_part = by_value ? BY_VALUE_SERIAL_PART : OTHER_SERIAL_PART;
	int			nworkers = server_build_workers(new_relid, index);
	double		pages = Max(build->pages, entries / ENTRIES_OF_PAGE);
	double		server_entries_cost = Max(server_page_cost * build->pages, entries / ENTRIES_OF_PAGE);

	build->entries_cost = build->entry_size == 0 ? server_entries_cost :
		pages * (build->tuple_size > 0 ? BY_PREFIX_PAGE_COST : BY_CODE_PAGE_COST);
	build->pass_cost = HEAP_PAGE_COST * heap_pages;
	build->cost = build->pass_cost + build->entries_cost;
	build->bounds_cost = DIVISION_COST +
		(by_value || build->entry_size > 0 ? BY_VALUE_BOUND_COST : BY_REFERENCE_BOUND_COST) * pages;

	/*
	 * a table that doesn't fit in memory may have to be read again for each
	 * part
	 */
	build->disk_cost = heap_pages > effective_cache_size ? HEAP_PAGE_COST * heap_pages : 0;
	build->has_workers = nworkers > 0;
	build->server_cost = (build->pass_cost + server_entries_cost) *
		(serial_part + (1 - serial_part) / (nworkers + 1));
}

/*
 * plan_sort
 *		Do we sort the entries of this index ourselves, and how large are they?
 */
static void
plan_sort(IndexBuild *build, const IndexBuilds *builds, Relation index)
{
	double		memory = maintenance_work_mem * 1024.0 / builds->nmembers;
	KeyCode    *code = build->plain ? key_code_begin(index) : NULL;
	Size		size;

	Assert(builds->nmembers > 0);
	if (code == NULL)
		return;
	size = key_code_words(code) * sizeof(uint64);
	if (!key_code_has_tuples(code))
	{
		if (2 * size * builds->rows <= MAX_RUNS * memory)
			build->entry_size = size;
		return;
	}
	build->tuple_size = average_tuple_size(index, build->pages, builds->rows);
	if ((2 * size + build->tuple_size) * builds->rows <= memory)
		build->entry_size = size;
}

/*
 * average_tuple_size
 *		How large is a tuple of an index?  The larger of what the index's size and the
 *		statistics of its columns say.
 */
static Size
average_tuple_size(Relation index, double pages, double entries)
{
	double		by_pages = pages * BLCKSZ / Max(entries, 1);
	Size		by_columns = sizeof(IndexTupleData);

	for (int i = 0; i < index->rd_index->indnatts; i++)
	{
		AttrNumber	attnum = index->rd_index->indkey.values[i];

		by_columns += attnum > 0 ? get_attavgwidth(index->rd_index->indrelid, attnum) :
			get_attavgwidth(RelationGetRelid(index), i + 1);
	}
	return MAXALIGN((Size) by_pages) > MAXALIGN(by_columns) ?
		MAXALIGN((Size) by_pages) : MAXALIGN(by_columns);
}

/*
 * is_divisible
 *		May an index be built in parts?
 *
 * Each process looks at the keys of all rows, so they must be cheap to come by:
 * columns that are stored as they are.
 */
static bool
is_divisible(Relation index, Relation rel)
{
	if (index->rd_rel->relam != BTREE_AM_OID)
		return false;
	if (DEBUG_LIMIT(btree_parts, 0) > 0)
		return true;
	if (RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL)
		return false;
	for (int i = 0; i < index->rd_index->indnatts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(RelationGetDescr(rel),
												 index->rd_index->indkey.values[i] - 1);

		if (column->attlen == -1 && column->attstorage != TYPSTORAGE_PLAIN)
			return false;
	}
	return true;
}

/* compare_builds -- for qsort: the one that isn't plain, then by falling cost. */
static int
compare_builds(const void *a, const void *b)
{
	const IndexBuild *left = a;
	const IndexBuild *right = b;

	if (left->plain != right->plain)
		return left->plain ? 1 : -1;
	if (left->cost != right->cost)
		return left->cost > right->cost ? -1 : 1;
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
			if (build->plain && build->is_divisible)
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

/*
 * plan_alone
 *		How many indexes, from the first one on, are best left to the server, and
 *		how many btrees behind them are best divided?
 *
 * Any that isn't plain is left to the server.
 */
static int
plan_alone(const IndexBuilds *builds, int *ndivided)
{
	double		alone = 0;
	double		best_time = 0;
	int			best = -1;

	for (int i = 0; i <= builds->nbuilds; i++)
	{
		const IndexBuild *rest = &builds->builds[i];

		if (i == builds->nbuilds || rest->plain)
		{
			int			divided;
			double		total = alone + best_time_at_once(rest, builds->nbuilds - i,
														  builds->nmembers, &divided);

			/*
			 * the server gets more of them only to save more than a rounding
			 * error
			 */
			if (best < 0 || total < best_time * 0.999)
			{
				best = i;
				best_time = total;
				*ndivided = divided;
			}
		}
		if (i < builds->nbuilds)
			alone += rest->server_cost;
	}
	Assert(best >= 0 && best <= builds->nbuilds);
	return best;
}

/*
 * best_time_at_once
 *		How long do nmembers processes take for these indexes, with as many btrees
 *		divided as is best?
 */
static double
best_time_at_once(const IndexBuild *builds, int nbuilds, int nmembers, int *ndivided)
{
	double		best = time_at_once(builds, nbuilds, nmembers, 0);
	int			nbtrees = 0;

	*ndivided = 0;
	if (nmembers < 2)
		return best;
	for (int i = 0; i < nbuilds; i++)
		if (builds[i].is_divisible)
		{
			double		time = time_at_once(builds, nbuilds, nmembers, ++nbtrees);

			if (time < best || DEBUG_LIMIT(btree_parts, 0) > 0)
			{
				best = DEBUG_LIMIT(btree_parts, 0) > 0 ? 0 : time;
				*ndivided = nbtrees;
			}
		}
	return best;
}

/*
 * time_at_once
 *		How long do nmembers processes take for these indexes, if each takes the next
 *		one when it has finished one?
 *
 * The first ndivided btrees are divided, and come before all other indexes.  Those
 * whose entries we sort share a pass over the table.
 */
static double
time_at_once(const IndexBuild *builds, int nbuilds, int nmembers, int ndivided)
{
	double	   *times = palloc0_array(double, nmembers);
	bool	   *has_read = palloc0_array(bool, nmembers);
	bool		all_have_read = false;
	double		longest = 0;
	double		together = 0;
	int			nbtrees = 0;

	Assert(nmembers > 0 && ndivided >= 0 && ndivided <= nbuilds);
	for (int i = 0; i < nbuilds; i++)
	{
		bool		is_sorted = builds[i].entry_size > 0;
		int			next = 0;

		if (builds[i].is_divisible && nbtrees < ndivided)
		{
			nbtrees++;
			together += builds[i].bounds_cost + builds[i].entries_cost / nmembers;
			if (!is_sorted || !all_have_read)
				together += builds[i].pass_cost + builds[i].disk_cost * (nmembers - 1);
			all_have_read |= is_sorted;
			continue;
		}
		for (int member = 1; member < nmembers; member++)
			if (times[member] < times[next])
				next = member;
		times[next] += builds[i].cost;
		if (is_sorted && has_read[next])
			times[next] -= builds[i].pass_cost;
		has_read[next] |= is_sorted;
		longest = Max(longest, times[next]);
	}
	pfree(times);
	pfree(has_read);
	return together + longest;
}
