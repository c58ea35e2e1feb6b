/*-------------------------------------------------------------------------
 *
 * index_builds.c
 *	  Rebuilding several indexes of a table at once.
 *
 * The server builds one index after the other, and those of some kinds with
 * parallel workers of its own.  These share out reading the table and sorting,
 * but one process merges what they have sorted and writes the index.  Where
 * there are several indexes, a process for each wastes nothing.
 *
 * So the indexes are built in two steps:
 *
 *	 1. many at once, each by one process: a team whose members take one index
 *		after the other, the most costly first
 *	 2. the others one at a time, each by the server
 *
 * Which are the others is planned beforehand.  An index that isn't plain (see
 * plain_index.c) is, but there may be only one of that sort: while the server
 * builds it, all others are there, so code that runs for it may do as it likes,
 * and the server keeps it from using that index itself.  And so are the most
 * costly ones if that makes it sooner ready, because the rest can't keep the
 * processes equally busy.
 *
 * What is in parallel mode must not write to catalogs.  So the leader gives all
 * indexes of the first step their new files before there is a team, and notes
 * their sizes after it.  The members call the access method's own routine, as
 * the server would, which writes the new file and WAL.  As in the server's VACUUM
 * FULL, unique indexes are not checked for duplicates.
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
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
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
#include "report/progress.h"
#include "rewrite/index_builds.h"
#include "rewrite/plain_index.h"
#include "team/team.h"

/*
 * What is known of costs, to compare plans.  The unit is sorting and writing a
 * page of a btree whose first column is passed by value.  That takes about
 * 0.1 ms, and was compared with the others in CPU time, in tables of one and two
 * million rows.  The serial part of a build by several processes is what one of
 * them does alone.
 */
#define HEAP_PAGE_COST				0.08
#define BY_VALUE_PAGE_COST			1.0
#define BY_VALUE_SERIAL_PART		0.36
#define BY_REFERENCE_PAGE_COST		1.4
#define OTHER_KIND_PAGE_COST		10.0
#define OTHER_SERIAL_PART			0.15

/* How many entries such a page has, unless duplicates are stored once */
#define ENTRIES_OF_PAGE				366

/* Less is no maintenance_work_mem, in kB */
#define LEAST_MEMORY		1024

typedef struct IndexBuild
{
	Oid			relid;
	bool		plain;
	BlockNumber pages;			/* of the old one */
	double		cost;			/* of building it by one process; see above */
	double		server_cost;	/* of building it as the server does */
} IndexBuild;

struct IndexBuilds
{
	Oid			relid;
	int			nbuilds;
	/* those one at a time first, otherwise from costly to cheap */
	IndexBuild *builds;
	int			nalone;
	int			nmembers;		/* processes of the team */
};

/* One index of the first step, as the team sees it */
typedef struct TeamBuild
{
	/* constant once the team is launched */
	Oid			relid;

	/* written by the member that has built it */
	IndexBuildResult counts;
	double		seconds;
} TeamBuild;

typedef struct TeamShared
{
	/* constant once the team is launched */
	int			leader_pid;
	Oid			relid;
	uint32		nbuilds;

	pg_atomic_uint32 next;		/* to be taken */
	pg_atomic_uint32 done;		/* how many */
	TeamBuild	builds[FLEXIBLE_ARRAY_MEMBER];
} TeamShared;

/* For the function that is called while the leader waits */
static TeamShared *current_shared;

PGDLLEXPORT void pg_cyclone_index_worker_main(dsm_segment *segment, shm_toc *toc);

static IndexBuilds *list_indexes(Relation rel, Oid new_relid);
static void estimate_costs(IndexBuild *build, Relation index, BlockNumber heap_pages,
						   Oid new_relid);
static int	compare_builds(const void *a, const void *b);
static int	plan_members(IndexBuilds *builds, Relation rel, int asked);
static int	plan_alone(const IndexBuilds *builds);
static double time_at_once(const IndexBuild *builds, int nbuilds, int nmembers);
static void give_new_file(Oid relid);
static void build_at_once(IndexBuilds *builds, RewriteResult *result);
static void share_memory(int nmembers);
static void build_phase(void *state, int phase);
static void build_index(Oid heap_relid, TeamBuild *build);
static void while_waiting(void);
static void take_over(IndexBuilds *builds, TeamShared *shared, RewriteResult *result);
static void set_index_statistics(const TeamBuild *build);
static void set_table_statistics(Oid relid, double tuples);
static void set_size(Relation rel, double tuples);
static void build_alone(IndexBuilds *builds, RewriteResult *result);

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

	if (RelationUsesLocalBuffers(rel))
		return NULL;

	builds = list_indexes(rel, new_relid);
	for (int i = 0; i < builds->nbuilds; i++)
		nplain += builds->builds[i].plain;
	if (builds->nbuilds - nplain > 1)
		return NULL;

	builds->nmembers = plan_members(builds, rel, asked);
	builds->nalone = plan_alone(builds);
	builds->nmembers = Min(builds->nmembers, builds->nbuilds - builds->nalone);
	return builds->nmembers > 1 ? builds : NULL;
}

/*
 * list_indexes
 *		Find out what is to be known of the indexes, and sort them.
 */
static IndexBuilds *
list_indexes(Relation rel, Oid new_relid)
{
	IndexBuilds *builds = palloc0_object(IndexBuilds);
	List	   *indexes = RelationGetIndexList(rel);
	BlockNumber heap_pages = RelationGetNumberOfBlocks(rel);

	builds->relid = RelationGetRelid(rel);
	builds->builds = palloc0_array(IndexBuild, list_length(indexes));
	foreach_oid(relid, indexes)
	{
		IndexBuild *build = &builds->builds[builds->nbuilds++];
		Relation	index = index_open(relid, AccessExclusiveLock);

		build->relid = relid;
		build->plain = index_is_plain(index);
		build->pages = RelationGetNumberOfBlocks(index);
		estimate_costs(build, index, heap_pages, new_relid);
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
estimate_costs(IndexBuild *build, Relation index, BlockNumber heap_pages, Oid new_relid)
{
	bool		is_btree = index->rd_rel->relam == BTREE_AM_OID;
	bool		by_value = is_btree && TupleDescAttr(RelationGetDescr(index), 0)->attbyval;
	double		page_cost = by_value ? BY_VALUE_PAGE_COST :
		is_btree ? BY_REFERENCE_PAGE_COST : OTHER_KIND_PAGE_COST;
	double		serial_part = by_value ? BY_VALUE_SERIAL_PART : OTHER_SERIAL_PART;
	int			nworkers = 0;

	build->cost = HEAP_PAGE_COST * heap_pages +
		Max(page_cost * build->pages, index->rd_rel->reltuples / ENTRIES_OF_PAGE);
	if (build->plain && index->rd_indam->amcanbuildparallel)
		nworkers = plan_create_index_workers(new_relid, build->relid);
	build->server_cost = build->cost * (serial_part + (1 - serial_part) / (nworkers + 1));
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
 *		enough for that.
 */
static int
plan_members(IndexBuilds *builds, Relation rel, int asked)
{
	int			nworkers = RelationGetParallelWorkers(rel, -1);

	if (asked != 0)
		nworkers = Max(asked, 0);
	else if (nworkers < 0)
	{
		nworkers = -1;			/* the leader builds one, too */
		for (int i = 0; i < builds->nbuilds; i++)
			nworkers += builds->builds[i].pages >= min_parallel_index_scan_size;
		nworkers = DEBUG_LIMIT(workers, Max(nworkers, 0));
	}
	return Min(nworkers, max_parallel_maintenance_workers) + 1;
}

/*
 * plan_alone
 *		How many indexes, from the first one on, are best left to the server?
 *
 * Any that isn't plain is.
 */
static int
plan_alone(const IndexBuilds *builds)
{
	double		alone = 0;
	double		best_time = 0;
	int			best = -1;

	for (int i = 0; i <= builds->nbuilds; i++)
	{
		const IndexBuild *rest = &builds->builds[i];

		if (i == builds->nbuilds || rest->plain)
		{
			double		total = alone + time_at_once(rest, builds->nbuilds - i, builds->nmembers);

			if (best < 0 || total < best_time)
			{
				best = i;
				best_time = total;
			}
		}
		if (i < builds->nbuilds)
			alone += rest->server_cost;
	}
	return best;
}

/*
 * time_at_once
 *		How long do so many processes take for these indexes, if each takes the
 *		next index once it is through with one?
 */
static double
time_at_once(const IndexBuild *builds, int nbuilds, int nmembers)
{
	double	   *times = palloc0_array(double, nmembers);
	double		longest = 0;

	for (int i = 0; i < nbuilds; i++)
	{
		double	   *next = &times[0];

		for (int member = 1; member < nmembers; member++)
			if (times[member] < *next)
				next = &times[member];
		*next += builds[i].cost;
		longest = Max(longest, *next);
	}
	pfree(times);
	return longest;
}

/*
 * index_builds_run
 *		Rebuild all indexes, as planned.
 *
 * The table has its new files.  It and its indexes are locked exclusively, and
 * the caller has none of them open.
 */
void
index_builds_run(IndexBuilds *builds, RewriteResult *result)
{
	for (int i = builds->nalone; i < builds->nbuilds; i++)
		give_new_file(builds->builds[i].relid);
	DEBUG_POINT("rewrite-index-files");

	build_at_once(builds, result);
	build_alone(builds, result);
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
build_at_once(IndexBuilds *builds, RewriteResult *result)
{
	IndexBuild *first = &builds->builds[builds->nalone];
	int			nbuilds = builds->nbuilds - builds->nalone;
	int			nest_level = NewGUCNestLevel();
	Size		size = add_size(offsetof(TeamShared, builds), mul_size(sizeof(TeamBuild), nbuilds));
	Team	   *team;
	TeamShared *shared;
	TeamShared *found;

	share_memory(builds->nmembers);
	result->indexes_at_once = nbuilds;
	result->index_memory = maintenance_work_mem;

	team = team_create("pg_cyclone_index_worker_main", builds->nmembers - 1, size);
	shared = team_shared(team);
	shared->leader_pid = MyProcPid;
	shared->relid = builds->relid;
	shared->nbuilds = nbuilds;
	pg_atomic_init_u32(&shared->next, 0);
	pg_atomic_init_u32(&shared->done, 0);
	for (int i = 0; i < nbuilds; i++)
		shared->builds[i].relid = first[i].relid;

	team_launch(team);
	result->index_members = team_launched_workers(team) + 1;
	current_shared = shared;
	team_run(team, 0, build_phase, shared, while_waiting);
	while_waiting();
	/* the shared block ends with the team */
	found = palloc(size);
	memcpy(found, shared, size);
	team_end(team);

	AtEOXact_GUC(false, nest_level);
	take_over(builds, found, result);
	pfree(found);
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

/*
 * pg_cyclone_index_worker_main
 *		A worker of the team that builds indexes.
 */
void
pg_cyclone_index_worker_main(dsm_segment *segment, shm_toc *toc)
{
	Team	   *team = team_join(toc);
	TeamShared *shared = team_shared(team);

	progress_begin(shared->relid, shared->leader_pid);
	team_follow(team, build_phase, shared);
	progress_clear();
	team_leave(team, toc);
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
	while ((next = pg_atomic_fetch_add_u32(&shared->next, 1)) < shared->nbuilds)
	{
		build_index(shared->relid, &shared->builds[next]);
		pg_atomic_fetch_add_u32(&shared->done, 1);
		if (!IsParallelWorker())
			while_waiting();
	}
}

/*
 * build_index
 *		Build one index of the table, and note what was found.
 *
 * The locks don't conflict with the leader's.
 */
static void
build_index(Oid heap_relid, TeamBuild *build)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "index build",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Relation	heap = table_open(heap_relid, ShareLock);
	Relation	index = index_open(build->relid, AccessExclusiveLock);
	IndexInfo  *info = BuildIndexInfo(index);
	instr_time	start;
	instr_time	end;

	INSTR_TIME_SET_CURRENT(start);
	progress_index(build->relid, 0);
	DEBUG_POINT("rewrite-index");

	info->ii_Unique = false;
	info->ii_ExclusionOps = NULL;
	info->ii_ExclusionProcs = NULL;
	info->ii_ExclusionStrats = NULL;
	build->counts = *index->rd_indam->ambuild(heap, index, info);

	index_close(index, NoLock);
	table_close(heap, NoLock);
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	build->seconds = INSTR_TIME_GET_DOUBLE(end);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* while_waiting -- leader: bring pg_stat_progress_cluster up to date. */
static void
while_waiting(void)
{
	pgstat_progress_update_param(PROGRESS_CLUSTER_INDEX_REBUILD_COUNT,
								 pg_atomic_read_u32(&current_shared->done));
}

/*
 * take_over
 *		Note what the team found, in the catalogs and for the report.
 */
static void
take_over(IndexBuilds *builds, TeamShared *shared, RewriteResult *result)
{
	for (int i = 0; i < shared->nbuilds; i++)
	{
		set_index_statistics(&shared->builds[i]);
		rewrite_report_index(result, shared->builds[i].relid, shared->builds[i].seconds);
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
build_alone(IndexBuilds *builds, RewriteResult *result)
{
	int			ndone = builds->nbuilds - builds->nalone;

	for (int i = builds->nalone - 1; i >= 0; i--)
	{
		Oid			relid = builds->builds[i].relid;
		ReindexParams params = {0};
		instr_time	start;
		instr_time	end;

		INSTR_TIME_SET_CURRENT(start);
		progress_index(relid, 0);
		DEBUG_POINT("rewrite-index-alone");
		reindex_index(NULL, relid, true, get_rel_persistence(relid), &params);
		CommandCounterIncrement();
		pgstat_progress_update_param(PROGRESS_CLUSTER_INDEX_REBUILD_COUNT, ++ndone);
		INSTR_TIME_SET_CURRENT(end);
		INSTR_TIME_SUBTRACT(end, start);
		rewrite_report_index(result, relid, INSTR_TIME_GET_DOUBLE(end));
	}
}
