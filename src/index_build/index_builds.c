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
 * index_builds_plan.c decides beforehand which are the others.  An index that
 * isn't plain (see plain_index.c) is one, but a table may have only one of that
 * sort.  While the server builds it, all other indexes are there, so code that runs
 * for it may do as it likes, and the server keeps that code from using the index
 * itself.  The most costly indexes are left to the server, too, if all finish
 * earlier then, because the rest can't keep the processes equally busy.  Btrees are
 * divided for the same reason, again the most costly first.
 *
 * A process in parallel mode must not write to catalogs.  So the leader gives all
 * indexes of the first step their new files before there is a team, and notes
 * their sizes after it.  For an index that we don't sort, and don't divide, a member
 * calls the access method's own routine, as the server does.  It writes the new file
 * and WAL.  As in the server's VACUUM FULL, unique indexes are not checked for
 * duplicates.
 *
 * maintenance_work_mem is shared out among the processes of the team.
 *
 * This file has the steps of a rebuild in their order, from the new files to the
 * sizes in the catalogs.  index_builds_plan.c decides; btree_build.c and
 * server_build.c build.
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
#include "catalog/pg_class.h"
#include "catalog/storage_xlog.h"
#include "commands/progress.h"
#include "commands/tablecmds.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
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
#include "index_build/index_builds_plan.h"
#include "index_build/plain_index.h"
#include "index_build/server_build.h"
#include "library.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "team/team.h"

/* As a rule the largest part has at most this much of the average */
#define INEQUALITY			1.25

/* No process gets less of maintenance_work_mem, in kB, unless that is less itself */
#define LEAST_MEMORY		1024

/* One index of the first step, or one part of it, as the team sees it */
typedef struct TeamBuild
{
	/* constant once the team is launched */
	Oid			relid;
	uint32		group;			/* those of a group are built with one pass */
	bool		drops_behind;	/* is nothing to stay in the page cache? */
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
	pg_atomic_uint32 done;		/* number of indexes that are ready */
	TeamBuild	builds[FLEXIBLE_ARRAY_MEMBER];
} TeamShared;

/* For the function that is called while the leader waits */
static TeamShared *current_shared;

PGDLLEXPORT void pg_cyclone_index_worker_main(dsm_segment *segment, shm_toc *toc);

static void *join_as_worker(void *block, dsm_segment *segment);
static void leave_as_worker(void *state);
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

/* index_builds_run -- rebuild all indexes, as planned. */
void
index_builds_run(IndexBuilds *builds, List *cold, IndexBuildsResult *result)
{
	Assert(builds->nalone >= 0 && builds->nalone < builds->nbuilds);
	Assert(builds->nmembers > 0);
	builds->cold = cold;
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
 *		If there was no shared memory for our most recent team, have the server do
 *		without workers, too: with them it would fail.
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
 * An index of an unlogged table also gets the fork that it is reset to after a crash.
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
	 * workers wait until the phase begins, so the list of builds may be
	 * filled after they are launched
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
 *		For each index of the first step that is to be divided, into nparts parts at
 *		most, a sample; NULL for the others.
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
 *		List what there is to do: nparts parts of each divided index, and then the
 *		whole ones.  What the parts share begins at place in the shared block.
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
	 * whole indexes that we sort are dealt out, so that each process reads
	 * the table once for them
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
 *		Add these indexes, each in nparts parts, to what there is to do.  A group has
 *		as many indexes as have room for their entries in memory.
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
						.drops_behind = list_member_oid(builds->cold, first[number].relid),
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

/* leave_as_worker -- the temporary files are removed with the segment. */
static void
leave_as_worker(void *state)
{
	guards_leave();
	pace_leave_as_builder();
	progress_clear();
}

/*
 * build_phase
 *		Every member: build indexes as long as there are any.
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
		{
			first++;
			Assert(first < shared->nbuilds);
		}
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
		parts[i].drops_behind = builds[i].drops_behind;
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
 * The TeamBuild of the first part becomes that of the whole index.  Those of the
 * other parts lose their relid.
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
 *		Note the size of an index in pg_class.  An empty one has its size there already.
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
 *		Note the number of live rows, as it was counted while an index was built.
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
