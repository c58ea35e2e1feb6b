/*-------------------------------------------------------------------------
 *
 * index_builds.c
 *	  Rebuilding several indexes of a table at once.
 *
 * The server builds one index after the other, and those of some kinds with
 * parallel workers of its own.  These share out reading the table and sorting,
 * but one process merges what they have sorted and writes the index.  Where
 * there are several indexes, a process for each wastes nothing, and a large
 * btree can be built by all processes together (see btree_build.c).
 *
 * So the indexes are built in two steps:
 *
 *	 1. many at once, by a team whose members take one index after the other, or
 *		one part of a btree, the most costly first; those whose entries are sorted
 *		as integers several at a time, with one pass over the table.  Such builds
 *		are so much cheaper that there is a team of the leader alone, too.
 *	 2. the others one at a time, each by the server
 *
 * Which are the others is planned beforehand.  An index that isn't plain (see
 * plain_index.c) is, but there may be only one of that sort: while the server
 * builds it, all others are there, so code that runs for it may do as it likes,
 * and the server keeps it from using that index itself.  And so are the most
 * costly ones if that makes it sooner ready, because the rest can't keep the
 * processes equally busy.  Btrees are divided for the same reason, again the
 * most costly first.
 *
 * What is in parallel mode must not write to catalogs.  So the leader gives all
 * indexes of the first step their new files before there is a team, and notes
 * their sizes after it.  For any other index that is whole the members call the access
 * method's own routine, as the server would, which writes the new file and WAL.
 * As in the server's VACUUM FULL, unique indexes are not checked for duplicates.
 *
 * maintenance_work_mem is shared out among the processes of the team.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/multixact.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/storage_xlog.h"
#include "commands/progress.h"
#include "commands/tablecmds.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "index_build/btree_build.h"
#include "index_build/index_builds.h"
#include "index_build/key_code.h"
#include "index_build/plain_index.h"
#include "index_build/server_build.h"
#include "library.h"
#include "pace/pace.h"
#include "relation_size.h"
#include "report/progress.h"
#include "team/degree.h"
#include "team/team.h"

/*
 * What is known of costs, to compare plans.  The unit is sorting and writing a
 * page of a btree whose first column is passed by value.  That takes about
 * 0.1 ms, and was compared with the others in CPU time, in tables of one and two
 * million rows.  The serial part of a build by several processes is what one of
 * them does alone.
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
 * Dividing a btree: each part reads the whole table and compares all rows with
 * its bounds, and there is a sample to be looked at, and parts to be joined.
 */
#define BY_VALUE_BOUND_COST			0.05	/* a page of the index */
#define BY_REFERENCE_BOUND_COST		0.2
#define DIVISION_COST				40.0

/* How many entries such a page has, unless duplicates are stored once */
#define ENTRIES_OF_PAGE				366

/* With more runs than this for an index, the server had better sort */
#define MAX_RUNS			256

/* Parts are unequal, by so much at most as a rule */
#define INEQUALITY			1.25

/* Less is no maintenance_work_mem, in kB */
#define LEAST_MEMORY		1024

typedef struct IndexBuild
{
	Oid			relid;
	bool		plain;
	bool		is_divisible;
	Size		entry_size;		/* if we sort it as integers, otherwise 0 */
	Size		tuple_size;		/* about, if such an entry needs a tuple */
	bool		is_divided;		/* into a part for each process of the team */
	bool		has_workers;	/* if the server builds it */
	double		pages;			/* to be expected */
	double		cost;			/* of building it by one process; see above */
	double		pass_cost;		/* what of that is reading the table */
	double		bounds_cost;	/* what each part costs, if it is divided, but */
	double		entries_cost;	/* for the entries, and reading the table */
	double		disk_cost;		/* and for each part but one in addition */
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

	pg_atomic_uint32 next;		/* group to be taken */
	pg_atomic_uint32 done;		/* how many indexes are */
	TeamBuild	builds[FLEXIBLE_ARRAY_MEMBER];
} TeamShared;

/* For the function that is called while the leader waits */
static TeamShared *current_shared;

PGDLLEXPORT void pg_cyclone_index_worker_main(dsm_segment *segment, shm_toc *toc);

static void *join_as_worker(void *block, dsm_segment *segment);
static void leave_as_worker(void *state);
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
static void give_new_file(Oid relid);
static void build_at_once(IndexBuilds *builds, IndexBuildsResult *result);
static void share_memory(int nmembers);
static BtreeSample **take_samples(IndexBuilds *builds, int nparts);
static void list_builds(TeamShared *shared, const IndexBuilds *builds, BtreeSample **samples,
						int nparts, int nmembers, Size place);
static void list_groups(TeamShared *shared, const IndexBuilds *builds, List *numbers,
						const Size *btrees, int nparts);
static BtreeBuild *btree_of(TeamShared *shared, const TeamBuild *build);
static void build_phase(void *state, int phase);
static void build_group(TeamShared *shared, TeamBuild *builds, int nbuilds);
static void join_parts(TeamShared *shared);
static void while_waiting(void);
static void take_over(IndexBuilds *builds, TeamShared *shared, IndexBuildsResult *result);
static void set_index_statistics(const TeamBuild *build);
static void set_table_statistics(Oid relid, double tuples);
static void set_size(Relation rel, double tuples);
static void build_alone(IndexBuilds *builds, IndexBuildsResult *result);
static void reindex_by_server(void *arg);

/*
 * index_builds_plan
 *		How to rebuild the indexes of this table, whose new files are those of
 *		new_relid?  asked is what PARALLEL says, as in VacuumParams.
 *
 * Returns NULL if nothing is better than what the server does.
 */
IndexBuilds *
index_builds_plan(Relation rel, Oid new_relid, int asked)
{
	IndexBuilds *builds;
	int			nplain = 0;
	int			nsorted = 0;
	int			ndivided = 0;

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
		if (builds->builds[i].is_divisible)
		{
			builds->builds[i].is_divided = true;
			ndivided--;
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
	double		shrinkage = Min((double) heap_pages / Max(RelationGetNumberOfBlocks(rel), 1), 1);

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
	/* what doesn't fit in memory may have to be read again for each part */
	build->disk_cost = heap_pages > effective_cache_size ? HEAP_PAGE_COST * heap_pages : 0;
	build->has_workers = nworkers > 0;
	build->server_cost = (build->pass_cost + server_entries_cost) *
		(serial_part + (1 - serial_part) / (nworkers + 1));
}

/*
 * plan_sort
 *		Do we sort the entries of this index by ourselves, and what do they take?
 */
static void
plan_sort(IndexBuild *build, const IndexBuilds *builds, Relation index)
{
	double		memory = maintenance_work_mem * 1024.0 / builds->nmembers;
	KeyCode    *code = build->plain ? key_code_begin(index) : NULL;
	Size		size;

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
 *		What a tuple of an index takes, as far as its size and the statistics of its
 *		columns say.
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
 *		enough for that, or what the largest btree calls for.
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
				for_btree = Max(for_btree, degree_for_size(build->pages, min_parallel_index_scan_size));
		}
		nworkers = DEBUG_LIMIT(workers, Max(nworkers, for_btree));
	}
	return Min(Min(nworkers, max_parallel_maintenance_workers), max_parallel_workers) + 1;
}

/*
 * plan_alone
 *		How many indexes, from the first one on, are best left to the server, and
 *		how many btrees behind them had best be divided?
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

			/* the server is to save more than a rounding error */
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
	return best;
}

/*
 * best_time_at_once
 *		How long do so many processes take for these indexes, with as many btrees
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
 *		How long do so many processes take for these indexes, if each takes the
 *		next one once it is through with what it does?
 *
 * So many of the btrees, the first ones, are divided, and come before all
 * others.  Those whose entries we sort share a pass over the table.
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

/*
 * index_builds_run
 *		Rebuild all indexes, as planned.
 *
 * The table has its new files.  It and its indexes are locked exclusively, and
 * the caller has none of them open.
 */
void
index_builds_run(IndexBuilds *builds, IndexBuildsResult *result)
{
	for (int i = builds->nalone; i < builds->nbuilds; i++)
		give_new_file(builds->builds[i].relid);
	DEBUG_POINT("rewrite-index-files");

	build_at_once(builds, result);
	if (builds->nmembers > 1)
		index_builds_spare_memory();
	build_alone(builds, result);
}

/*
 * index_builds_spare_memory
 *		If there was no shared memory for our last team, have the server, too, do
 *		without workers: it would fail.  The caller restores the setting.
 */
void
index_builds_spare_memory(void)
{
	if (team_lacked_memory())
		(void) set_config_option("max_parallel_maintenance_workers", "0",
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/*
 * give_new_file
 *		Make an index's content an empty file.
 *
 * That of an unlogged table gets what it is reset to after a crash, too.
 */
static void
give_new_file(Oid relid)
{
	Relation	index = index_open(relid, NoLock);

	CheckTableNotInUse(index, "VACUUM");
	/* locks on its pages become locks on the table */
	TransferPredicateLocksToHeapRelation(index);
	RelationSetNewRelfilenumber(index, index->rd_rel->relpersistence);
	if (index->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
	{
		smgrcreate(RelationGetSmgr(index), INIT_FORKNUM, false);
		log_smgrcreate(&index->rd_locator, INIT_FORKNUM);
		index->rd_indam->ambuildempty(index);
	}
	index_close(index, NoLock);
}

/*
 * build_at_once
 *		The first step: have a team build indexes.
 */
static void
build_at_once(IndexBuilds *builds, IndexBuildsResult *result)
{
	const IndexBuild *first = &builds->builds[builds->nalone];
	int			nbuilds = builds->nbuilds - builds->nalone;
	int			nest_level = NewGUCNestLevel();
	int			nparts = DEBUG_LIMIT(btree_parts, builds->nmembers);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "samples for btrees",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	BtreeSample **samples = take_samples(builds, nparts);
	Size		size = offsetof(TeamShared, builds);
	Size		list_size;
	Team	   *team;
	TeamShared *shared;
	TeamShared *found;

	MemoryContextSwitchTo(old);
	share_memory(builds->nmembers);
	result->at_once = nbuilds;
	result->memory = maintenance_work_mem;

	for (int i = 0; i < nbuilds; i++)
		size = add_size(size, mul_size(sizeof(TeamBuild), samples[i] ? nparts : 1));
	list_size = size = MAXALIGN(size);
	for (int i = 0; i < nbuilds; i++)
		if (samples[i] || first[i].entry_size > 0)
			size = MAXALIGN(add_size(size, btree_build_size(samples[i], samples[i] ? nparts : 1)));

	team = team_create("pg_cyclone_index_worker_main", builds->nmembers - 1, size, false);
	shared = team_shared(team);
	shared->leader_pid = MyProcPid;
	shared->leader_number = guards_leader();
	shared->relid = builds->relid;
	/* without a segment there won't be workers */
	shared->has_files = team_segment(team) != NULL;
	if (shared->has_files)
		SharedFileSetInit(&shared->files, team_segment(team));
	pg_atomic_init_u32(&shared->next, 0);
	pg_atomic_init_u32(&shared->done, 0);

	/*
	 * the workers wait until the phase begins, so it isn't too late to say
	 * what there is to do
	 */
	team_launch(team);
	result->members = team_launched_workers(team) + 1;
	if (result->members == 1)
		memset(samples, 0, nbuilds * sizeof(BtreeSample *));
	for (int i = 0; i < nbuilds; i++)
		result->divided += samples[i] != NULL;
	list_builds(shared, builds, samples, DEBUG_LIMIT(btree_parts, result->members), result->members,
				list_size);
	MemoryContextDelete(context);

	current_shared = shared;
	team_run(team, 0, build_phase, shared, while_waiting);
	while_waiting();
	join_parts(shared);
	/* the shared block ends with the team */
	found = palloc(list_size);
	memcpy(found, shared, list_size);
	team_end(team);

	AtEOXact_GUC(false, nest_level);
	take_over(builds, found, result);
	pfree(found);
}

/*
 * take_samples
 *		For each index of the first step that is to be divided, into so many parts
 *		at most, a sample; NULL for the others.
 */
static BtreeSample **
take_samples(IndexBuilds *builds, int nparts)
{
	int			nbuilds = builds->nbuilds - builds->nalone;
	BtreeSample **samples = palloc0_array(BtreeSample *, nbuilds);
	Relation	heap = table_open(builds->relid, NoLock);

	for (int i = 0; i < nbuilds; i++)
	{
		const IndexBuild *build = &builds->builds[builds->nalone + i];

		if (build->is_divided)
		{
			Relation	index = index_open(build->relid, NoLock);

			samples[i] = btree_sample(heap, index, nparts);
			index_close(index, NoLock);
		}
	}
	table_close(heap, NoLock);
	return samples;
}

/*
 * list_builds
 *		What there is to do: so many parts of each divided index, and then the
 *		whole ones.  What the parts share is kept from place on.
 */
static void
list_builds(TeamShared *shared, const IndexBuilds *builds, BtreeSample **samples,
			int nparts, int nmembers, Size place)
{
	const IndexBuild *first = &builds->builds[builds->nalone];
	int			nbuilds = builds->nbuilds - builds->nalone;
	Size	   *btrees = palloc0_array(Size, nbuilds);
	double	   *costs = palloc0_array(double, nmembers);
	List	  **whole = palloc0_array(List *, nmembers);
	List	   *divided = NIL;

	for (int i = 0; i < nbuilds; i++)
	{
		int			n = samples[i] ? nparts : 1;
		Relation	index;

		if (samples[i] == NULL && first[i].entry_size == 0)
			continue;
		btrees[i] = place;
		index = index_open(first[i].relid, NoLock);
		btree_build_begin((BtreeBuild *) ((char *) shared + place), samples[i], n, index);
		index_close(index, NoLock);
		place = MAXALIGN(place + btree_build_size(samples[i], n));
	}

	shared->nbuilds = 0;
	shared->ngroups = 0;
	for (int i = 0; i < nbuilds; i++)
		if (samples[i] && first[i].entry_size == 0)
			list_groups(shared, builds, list_make1_int(i), btrees, nparts);
		else if (samples[i])
			divided = lappend_int(divided, i);
	list_groups(shared, builds, divided, btrees, nparts);

	/*
	 * those that we sort are dealt out, so that each process reads the table
	 * once
	 */
	for (int i = 0; i < nbuilds; i++)
		if (samples[i] == NULL && first[i].entry_size == 0)
			list_groups(shared, builds, list_make1_int(i), btrees, 1);
		else if (samples[i] == NULL)
		{
			int			member = 0;

			for (int j = 1; j < nmembers; j++)
				if (costs[j] < costs[member])
					member = j;
			costs[member] += first[i].cost;
			whole[member] = lappend_int(whole[member], i);
		}
	for (int i = 0; i < nmembers; i++)
		list_groups(shared, builds, whole[i], btrees, 1);
}

/*
 * list_groups
 *		Add these indexes, each in so many parts, to what there is to do: in as few
 *		groups as their entries fit into memory.
 */
static void
list_groups(TeamShared *shared, const IndexBuilds *builds, List *numbers, const Size *btrees,
			int nparts)
{
	const IndexBuild *first = &builds->builds[builds->nalone];
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
						.tuple_size = first[number].tuple_size
				};
			}
		begin = end;
	}
}

/* btree_of -- what the parts of a btree share; NULL if the access method builds it. */
static BtreeBuild *
btree_of(TeamShared *shared, const TeamBuild *build)
{
	return build->btree ? (BtreeBuild *) ((char *) shared + build->btree) : NULL;
}

/*
 * share_memory
 *		Give each process of the team its part of maintenance_work_mem.
 *
 * Workers get it with all other settings.  The caller restores it.
 */
static void
share_memory(int nmembers)
{
	char		number[12];

	pg_ltoa(Max(maintenance_work_mem / nmembers, Min(maintenance_work_mem, LEAST_MEMORY)), number);
	(void) set_config_option("maintenance_work_mem", number,
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* pg_cyclone_index_worker_main -- a worker of the team that builds indexes. */
void
pg_cyclone_index_worker_main(dsm_segment *segment, shm_toc *toc)
{
	static const TeamWorker worker = {
		.join = join_as_worker,
		.routine = build_phase,
		.leave = leave_as_worker
	};

	refuse_without_preloading();
	team_work(&worker, segment, toc);
}

/* join_as_worker -- find what the team shares. */
static void *
join_as_worker(void *block, dsm_segment *segment)
{
	TeamShared *shared = block;

	progress_begin(shared->relid, shared->leader_pid);
	pace_join_as_builder();
	guards_join(shared->leader_number);
	if (shared->has_files)
		SharedFileSetAttach(&shared->files, segment);
	return shared;
}

/* leave_as_worker -- the files go with the segment. */
static void
leave_as_worker(void *state)
{
	guards_leave();
	pace_leave_as_builder();
	progress_clear();
}

/*
 * build_phase
 *		Every member's part: build indexes as long as there are any.
 */
static void
build_phase(void *state, int phase)
{
	TeamShared *shared = state;
	uint32		next;

	progress_phase(PROGRESS_REWRITE_INDEX, 0);
	while ((next = pg_atomic_fetch_add_u32(&shared->next, 1)) < shared->ngroups)
	{
		uint32		first = 0;
		uint32		n = 1;

		guards_point();
		while (shared->builds[first].group != next)
			first++;
		while (first + n < shared->nbuilds && shared->builds[first + n].group == next)
			n++;
		build_group(shared, &shared->builds[first], n);
		if (!IsParallelWorker())
			while_waiting();
	}
}

/*
 * build_group
 *		Build indexes of the table, or parts of them, with one pass over it, and
 *		note what was found.
 *
 * The locks don't conflict with the leader's.
 */
static void
build_group(TeamShared *shared, TeamBuild *builds, int nbuilds)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "index build",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Relation	heap = table_open(shared->relid, ShareLock);
	BtreePart  *parts = palloc0_array(BtreePart, nbuilds);
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	progress_index(builds[0].relid, 0);
	DEBUG_POINT("rewrite-index");

	for (int i = 0; i < nbuilds; i++)
	{
		IndexInfo  *info;

		parts[i].build = btree_of(shared, &builds[i]);
		parts[i].number = builds[i].part;
		parts[i].index = index_open(builds[i].relid, AccessExclusiveLock);
		parts[i].by_code = builds[i].by_code;
		parts[i].ndone = &shared->done;
		parts[i].tuple_size = builds[i].tuple_size;
		parts[i].info = info = BuildIndexInfo(parts[i].index);
		info->ii_Unique = false;
		info->ii_ExclusionOps = NULL;
		info->ii_ExclusionProcs = NULL;
		info->ii_ExclusionStrats = NULL;
	}
	if (builds[0].btree != 0)
		btree_build_parts(parts, nbuilds, shared->has_files ? &shared->files : NULL, heap);
	else
	{
		Assert(nbuilds == 1);
		parts[0].counts = *parts[0].index->rd_indam->ambuild(heap, parts[0].index, parts[0].info);
		pg_atomic_fetch_add_u32(&shared->done, 1);
		parts[0].seconds = seconds_since(start);
	}

	for (int i = 0; i < nbuilds; i++)
	{
		builds[i].counts = parts[i].counts;
		builds[i].seconds = parts[i].seconds;
		index_close(parts[i].index, NoLock);
	}
	table_close(heap, NoLock);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * join_parts
 *		Leader, when the team has done its work: make whole btrees of the parts.
 *
 * The first part's entry becomes that of the whole, and the others' are marked
 * as no index's.
 */
static void
join_parts(TeamShared *shared)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "btree joins",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);

	for (int i = 0; i < shared->nbuilds; i++)
	{
		TeamBuild  *whole = &shared->builds[i];
		BtreeBuild *btree = btree_of(shared, whole);
		Relation	heap;
		Relation	index;
		instr_time	start;

		if (btree == NULL || whole->part > 0)
			continue;
		for (int j = 0; j < shared->nbuilds; j++)
		{
			TeamBuild  *build = &shared->builds[j];

			if (build->btree != whole->btree || build->part == 0)
				continue;
			whole->counts.index_tuples += build->counts.index_tuples;
			whole->seconds = Max(whole->seconds, build->seconds);
			build->relid = InvalidOid;
		}

		INSTR_TIME_SET_CURRENT(start);
		heap = table_open(shared->relid, NoLock);
		index = index_open(whole->relid, NoLock);
		btree_build_end(btree, &shared->files, heap, index);
		index_close(index, NoLock);
		table_close(heap, NoLock);
		whole->seconds += seconds_since(start);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* while_waiting -- leader: bring pg_stat_progress_cluster up to date. */
static void
while_waiting(void)
{
	pgstat_progress_update_param(PROGRESS_REPACK_INDEX_REBUILD_COUNT,
								 pg_atomic_read_u32(&current_shared->done));
}

/*
 * take_over
 *		Note what the team found, in the catalogs and for the report.
 */
static void
take_over(IndexBuilds *builds, TeamShared *shared, IndexBuildsResult *result)
{
	for (int i = 0; i < shared->nbuilds; i++)
	{
		if (!OidIsValid(shared->builds[i].relid))
			continue;
		set_index_statistics(&shared->builds[i]);
		result->built(result->arg, shared->builds[i].relid, shared->builds[i].seconds);
	}
	set_table_statistics(builds->relid, shared->builds[0].counts.heap_tuples);
	CommandCounterIncrement();
}

/*
 * set_index_statistics
 *		Note the size of an index in pg_class, unless it is empty, as it is
 *		marked there already.
 */
static void
set_index_statistics(const TeamBuild *build)
{
	Relation	index = index_open(build->relid, NoLock);

	if (build->counts.index_tuples > 0)
		set_size(index, build->counts.index_tuples);
	index_close(index, NoLock);
}

/*
 * set_table_statistics
 *		Note the number of rows, as it was counted while an index was built: only
 *		of live ones.
 */
static void
set_table_statistics(Oid relid, double tuples)
{
	Relation	rel = table_open(relid, NoLock);

	if (compat_index_build_counts_rows(rel))
		set_size(rel, tuples);
	table_close(rel, NoLock);
}

/* set_size -- note in pg_class how large a relation is, none of it frozen. */
static void
set_size(Relation rel, double tuples)
{
	compat_vac_update_relstats(rel, RelationGetNumberOfBlocks(rel), tuples, 0, 0, true,
							   InvalidTransactionId, InvalidMultiXactId, NULL, NULL, true);
}

/*
 * build_alone
 *		The second step: have the server build the rest of the indexes.
 */
static void
build_alone(IndexBuilds *builds, IndexBuildsResult *result)
{
	int			ndone = builds->nbuilds - builds->nalone;

	for (int i = builds->nalone - 1; i >= 0; i--)
	{
		Oid			relid = builds->builds[i].relid;
		instr_time	start;

		INSTR_TIME_SET_CURRENT(start);
		progress_index(relid, 0);
		DEBUG_POINT("rewrite-index-alone");
		server_build(builds->builds[i].has_workers, reindex_by_server, &relid);
		CommandCounterIncrement();
		pgstat_progress_update_param(PROGRESS_REPACK_INDEX_REBUILD_COUNT, ++ndone);
		result->built(result->arg, relid, seconds_since(start));
	}
}

/* reindex_by_server -- have the server build one. */
static void
reindex_by_server(void *arg)
{
	Oid			relid = *(Oid *) arg;
	ReindexParams params = {0};

	reindex_index(NULL, relid, true, get_rel_persistence(relid), &params);
}
