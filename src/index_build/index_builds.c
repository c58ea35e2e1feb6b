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
 * For btrees that are divided, and that we sort, the processes collect the entries
 * first, with one pass over the table that all share (btree_collect.c), as far as there
 * is memory.  If that fails they are divided as if it hadn't been tried.
 *
 * maintenance_work_mem is shared out among the processes of the team.
 *
 * This file has the steps of a rebuild in their order, from the new files to the
 * sizes in the catalogs.  index_builds_plan.c decides, index_builds_list.c lists
 * what the team does; btree_build.c and server_build.c build.
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
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "storage/shmem.h"
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
#include "index_build/index_builds_list.h"
#include "index_build/index_builds_plan.h"
#include "index_build/plain_index.h"
#include "index_build/server_build.h"
#include "library.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "team/attempt.h"
#include "team/team.h"

/* No process gets less of maintenance_work_mem, in kB, unless that is less itself */
#define LEAST_MEMORY		1024

/* What the team does; the first two only if entries are collected */
typedef enum BuildPhase
{
	COLLECT_ENTRIES,
	BUILD_COLLECTED,
	BUILD_OTHERS
} BuildPhase;

/* One process */
typedef struct Builder
{
	TeamShared *shared;
	dsm_segment *segment;		/* with collected entries; NULL if it isn't
								 * attached */
} Builder;

/* For the function that is called while the leader waits */
static TeamShared *current_shared;

PGDLLEXPORT void pg_cyclone_index_worker_main(dsm_segment *segment, shm_toc *toc);

static void *join_as_worker(void *block, dsm_segment *segment);
static void leave_as_worker(void *state);
static void give_new_file(Oid relid);
static void build_at_once(IndexBuilds *builds, IndexBuildsResult *result);
static void share_memory(int nmembers);
static void begin_collection(Builder *leader, const IndexBuilds *builds, Division *divisions);
static BtreeBuild *btree_of(TeamShared *shared, const TeamBuild *build);
static bool collect(Team *team, Builder *leader);
static void run_phases(Team *team, Builder *leader);
static void build_phase(void *state, int phase);
static bool attach_collection(Builder *builder);
static void detach_collection(Builder *builder);
static void collect_entries(Builder *builder);
static void build_groups(Builder *builder, pg_atomic_uint32 *next, uint32 end);
static void build_group(Builder *builder, TeamBuild *builds, int nbuilds);
static void open_part(Builder *builder, const TeamBuild *build, BtreePart *part);
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
index_builds_run(IndexBuilds *builds, IndexBuildsResult *result)
{
	Assert(IsTransactionState() && !IsInParallelMode());
	Assert(CheckRelationOidLockedByMe(builds->relid, AccessExclusiveLock, true));
	Assert(builds->nalone >= 0 && builds->nalone < builds->nbuilds);
	Assert(builds->nmembers > 0);
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
	Assert(!IsInParallelMode());

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

	Assert(CheckRelationOidLockedByMe(relid, AccessExclusiveLock, false));
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
	int			nbuilds = builds->nbuilds - builds->nalone;
	int			nest_level = NewGUCNestLevel();
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "samples for btrees",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Division   *divisions = builds_sample(builds);
	Size		list_size = builds_list_room(builds, divisions);
	Builder		leader = {0};
	Team	   *team;
	TeamShared *shared;
	TeamShared *found;

	MemoryContextSwitchTo(old);
	share_memory(builds->nmembers);
	result->at_once = nbuilds;
	result->memory = maintenance_work_mem;
	team = team_create("pg_cyclone_index_worker_main", builds->nmembers - 1,
					   add_size(list_size, builds_btrees_room(builds, divisions)), false);
	leader.shared = shared = team_shared(team);
	shared->leader_pid = MyProcPid;
	shared->leader_number = guards_leader();
	shared->relid = builds->relid;
	/* without a segment there won't be workers */
	shared->has_files = team_segment(team) != NULL;
	if (shared->has_files)
		SharedFileSetInit(&shared->files, team_segment(team));
	pg_atomic_init_u32(&shared->done, 0);

	/*
	 * workers wait until the phase begins, so the list of builds may be
	 * filled after they are launched
	 */
	team_launch(team);
	result->members = shared->nmembers = team_launched_workers(team) + 1;
	builds_divide(builds, divisions, shared->nmembers);
	begin_collection(&leader, builds, divisions);
	for (int i = 0; i < nbuilds; i++)
		result->divided += divisions[i].nparts > 1;
	builds_list(shared, builds, divisions, list_size);

	current_shared = shared;
	if (shared->ncollected > 0 && !collect(team, &leader))
	{
		builds_divide(builds, divisions, shared->nmembers);
		builds_list(shared, builds, divisions, list_size);
	}
	MemoryContextDelete(context);
	run_phases(team, &leader);
	result->collected = shared->ncollected;
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
 * begin_collection
 *		Leader: have the entries of divided indexes collected, of as many as there is
 *		memory for.
 *
 * The entries collected of all indexes, and the memory to sort a part in each process,
 * must be within the memory of the team.
 */
static void
begin_collection(Builder *leader, const IndexBuilds *builds, Division *divisions)
{
	TeamShared *shared = leader->shared;
	const IndexBuild *first = &builds->builds[builds->nalone];
	int			nparts = builds_collected_parts(shared->nmembers);
	double		part_rows = builds->rows * INEQUALITY / nparts;
	Size		entry_sizes = 0;
	Size		largest = 0;
	Size		size = 0;
	char	   *failure = NULL;
	Relation	heap = table_open(builds->relid, NoLock);
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);

	Assert(shared->nmembers > 0);
	table_close(heap, NoLock);
	shared->collection = DSM_HANDLE_INVALID;
	for (int i = 0; i < builds->nbuilds - builds->nalone; i++)
	{
		Size		size_with;

		if (divisions[i].sample == NULL || !builds_can_collect(&first[i]))
			continue;
		size_with = btree_collection_size(builds->rows, nblocks, nparts, shared->ncollected + 1,
										  entry_sizes + first[i].entry_size);
		if (size_with + shared->nmembers * part_rows * 2 * Max(largest, first[i].entry_size) >
			shared->nmembers * maintenance_work_mem * 1024.0)
			continue;
		size = size_with;
		entry_sizes += first[i].entry_size;
		largest = Max(largest, first[i].entry_size);
		divisions[i].collected = shared->ncollected++;
	}
	if (shared->ncollected == 0)
		return;

	leader->segment = attempt_create_segment(size, &failure);
	if (leader->segment == NULL)
		shared->ncollected = 0;
	else
	{
		btree_collection_begin(dsm_segment_address(leader->segment), size, nblocks, nparts,
							   shared->ncollected);
		shared->collection = dsm_segment_handle(leader->segment);
	}
	for (int i = 0; i < builds->nbuilds - builds->nalone; i++)
		if (leader->segment == NULL)
			divisions[i].collected = -1;
		else if (divisions[i].collected >= 0)
			divisions[i].nparts = nparts;
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

	Assert(nmembers > 0);
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
	Builder    *builder = palloc0_object(Builder);

	progress_begin(shared->relid, shared->leader_pid);
	pace_join_as_builder();
	guards_join(shared->leader_number);
	if (shared->has_files)
		SharedFileSetAttach(&shared->files, segment);
	builder->shared = shared;
	return builder;
}

/* leave_as_worker -- the temporary files are removed with the segment. */
static void
leave_as_worker(void *state)
{
	detach_collection((Builder *) state);
	guards_leave();
	pace_leave_as_builder();
	progress_clear();
}

/*
 * collect
 *		Leader: have the team collect entries; false if they aren't all there.
 */
static bool
collect(Team *team, Builder *leader)
{
	TeamShared *shared = leader->shared;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	team_run(team, COLLECT_ENTRIES, build_phase, leader, while_waiting);
	shared->collect_seconds = seconds_since(start);
	if (btree_collection_is_whole(dsm_segment_address(leader->segment)))
		return true;
	shared->collection = DSM_HANDLE_INVALID;
	shared->ncollected = 0;
	detach_collection(leader);
	return false;
}

/*
 * run_phases
 *		Leader: have the team build.
 *
 * The collected entries are given back before other indexes are built, which may need
 * all memory.
 */
static void
run_phases(Team *team, Builder *leader)
{
	TeamShared *shared = leader->shared;

	if (shared->ncollected > 0)
	{
		team_run(team, BUILD_COLLECTED, build_phase, leader, while_waiting);
		shared->collection = DSM_HANDLE_INVALID;
		detach_collection(leader);
	}
	if (shared->ngroups > shared->ncollected_groups)
		team_run(team, BUILD_OTHERS, build_phase, leader, while_waiting);
}

/*
 * build_phase
 *		Every member: its part of a phase.
 */
static void
build_phase(void *state, int phase)
{
	Builder    *builder = state;
	TeamShared *shared = builder->shared;

	progress_phase(PROGRESS_REWRITE_INDEX, 0);
	if (shared->collection == DSM_HANDLE_INVALID)
		detach_collection(builder);
	else if (!attach_collection(builder))
		return;

	switch ((BuildPhase) phase)
	{
		case COLLECT_ENTRIES:
			collect_entries(builder);
			break;
		case BUILD_COLLECTED:
			build_groups(builder, &shared->next_collected, shared->ncollected_groups);
			/* the leader keeps it, as another worker may still come */
			if (IsParallelWorker())
				detach_collection(builder);
			break;
		case BUILD_OTHERS:
			build_groups(builder, &shared->next, shared->ngroups);
			break;
	}
}

/* attach_collection -- map what is collected.  If that can't be done, others do the work. */
static bool
attach_collection(Builder *builder)
{
	char	   *failure = NULL;

	if (builder->segment == NULL)
		builder->segment = attempt_attach_segment(builder->shared->collection, &failure);
	return builder->segment != NULL;
}

/* detach_collection -- it isn't needed any more. */
static void
detach_collection(Builder *builder)
{
	if (builder->segment != NULL)
		dsm_detach(builder->segment);
	builder->segment = NULL;
}

/* collect_entries -- collect those of all indexes that are wanted. */
static void
collect_entries(Builder *builder)
{
	TeamShared *shared = builder->shared;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "entries of indexes",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Relation	heap = table_open(shared->relid, ShareLock);
	BtreePart  *parts = palloc0_array(BtreePart, shared->ncollected);

	Assert(builder->segment != NULL && shared->ncollected > 0);
	progress_index(shared->builds[0].relid, 0);
	DEBUG_POINT("rewrite-collect");
	for (int i = 0; i < shared->nbuilds; i++)
		if (shared->builds[i].collected >= 0 && shared->builds[i].part == 0)
			open_part(builder, &shared->builds[i], &parts[shared->builds[i].collected]);
	btree_collect_rows(dsm_segment_address(builder->segment), parts, heap);
	for (int i = 0; i < shared->ncollected; i++)
		index_close(parts[i].index, NoLock);
	table_close(heap, NoLock);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* build_groups -- build indexes as long as there are any, up to the group end. */
static void
build_groups(Builder *builder, pg_atomic_uint32 *next, uint32 end)
{
	TeamShared *shared = builder->shared;
	uint32		group;

	while ((group = pg_atomic_fetch_add_u32(next, 1)) < end)
	{
		uint32		first = 0;
		uint32		n = 1;

		guards_point();
		while (shared->builds[first].group != group)
		{
			first++;
			Assert(first < shared->nbuilds);
		}
		while (first + n < shared->nbuilds && shared->builds[first + n].group == group)
			n++;
		build_group(builder, &shared->builds[first], n);
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
build_group(Builder *builder, TeamBuild *builds, int nbuilds)
{
	TeamShared *shared = builder->shared;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "index build",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Relation	heap = table_open(shared->relid, ShareLock);
	BtreePart  *parts = palloc0_array(BtreePart, nbuilds);
	instr_time	start;

	Assert(nbuilds > 0);
	INSTR_TIME_SET_CURRENT(start);
	progress_index(builds[0].relid, 0);
	DEBUG_POINT("rewrite-index");

	for (int i = 0; i < nbuilds; i++)
		open_part(builder, &builds[i], &parts[i]);
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

/* open_part -- open the index of a build, and fill in what its part is. */
static void
open_part(Builder *builder, const TeamBuild *build, BtreePart *part)
{
	IndexInfo  *info;

	Assert(OidIsValid(build->relid));
	part->build = btree_of(builder->shared, build);
	part->number = build->part;
	part->index = index_open(build->relid, AccessExclusiveLock);
	part->by_code = build->by_code;
	part->ndone = &builder->shared->done;
	part->tuple_size = build->tuple_size;
	if (build->collected >= 0 && builder->segment != NULL)
	{
		part->collection = dsm_segment_address(builder->segment);
		part->collected = build->collected;
		part->nsharing = builder->shared->nmembers;
	}
	part->info = info = BuildIndexInfo(part->index);
	info->ii_Unique = false;
	info->ii_ExclusionOps = NULL;
	info->ii_ExclusionProcs = NULL;
	info->ii_ExclusionStrats = NULL;
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
		bool		is_collected = whole->collected >= 0 && shared->ncollected > 0;
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
			whole->seconds = is_collected ? whole->seconds + build->seconds :
				Max(whole->seconds, build->seconds);
			build->relid = InvalidOid;
		}

		/* a process builds several such parts, one after the other */
		if (is_collected)
			whole->seconds = whole->seconds / shared->nmembers +
				shared->collect_seconds / shared->ncollected;

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
