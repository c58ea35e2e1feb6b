/*-------------------------------------------------------------------------
 *
 * index_builds.c
 *	  Rebuilding several indexes of a table at once.
 *
 * Many indexes are built at once, by a team whose members take one index after the
 * other, or one part of a btree: those whose entries are sorted as integers several at a
 * time, with one pass over the table.  Such builds are so much cheaper that there is a team
 * of the leader alone, too.  The server then builds the other indexes one at a time.  README.md
 * says which those are, and how a btree in parts is built.
 *
 * A process in parallel mode must not write to catalogs.  So the leader gives all indexes of
 * the team their new files before there is one, and notes their sizes after it.  As in the
 * server's VACUUM FULL, unique indexes are not checked for duplicates.
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
#include "index_build/index_builds_plan.h"
#include "index_build/plain_index.h"
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

static void *builder_join_as_worker(void *block, dsm_segment *segment);
static void builder_leave_as_worker(void *state);
static void give_new_file(Oid relid);
static void build_at_once(IndexBuilds *builds, IndexBuildsResult *result);
static void share_memory(int nmembers);
static void place_btrees(IndexBuilds *builds, Size place);
static void begin_collection(Builder *leader, IndexBuilds *builds);
static void collect_none(TeamShared *shared, IndexBuilds *builds);
static Size choose_collected(TeamShared *shared, IndexBuilds *builds, Relation heap, int nparts);
static BtreeBuild *btree_of(TeamShared *shared, const TeamBuild *build);
static void build_by_team(Team *team, Builder *leader);
static void build_phase(void *state, int phase);
static bool attach_collection(Builder *builder);
static void detach_collection(Builder *builder);
static void collect_entries(Builder *builder);
static void build_groups(Builder *builder, pg_atomic_uint32 *next, uint32 end);
static void build_group(Builder *builder, TeamBuild *builds, int nbuilds);
static void build_by_server(TeamShared *shared, TeamBuild *build, BtreePart *part, Relation heap);
static void open_part(Builder *builder, const TeamBuild *build, BtreePart *part);
static void join_parts(TeamShared *shared);
static void builder_while_waiting(void);
static void take_over(IndexBuilds *builds, TeamShared *shared, IndexBuildsResult *result);
static void set_built_size(Relation rel, double tuples);
static void build_alone(IndexBuilds *builds, IndexBuildsResult *result);

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
 * An index of an unlogged table also gets the fork that it is reset to after a crash.  That
 * is on disk before WAL has it, as the main fork may be: if a loss of power left the main
 * fork only, replay would make the other one, and then fail to reset the index, as its file
 * is there.
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
		smgrimmedsync(RelationGetSmgr(index), INIT_FORKNUM);
		log_smgrcreate(&index->rd_locator, INIT_FORKNUM);
		index->rd_indam->ambuildempty(index);
	}
	index_close(index, NoLock);
}

/*
 * build_at_once
 *		The first step: have a team build indexes.
 *
 * Workers wait until a phase begins, so the list of builds is filled after they are
 * launched, when their number is known.
 */
static void
build_at_once(IndexBuilds *builds, IndexBuildsResult *result)
{
	int			nest_level = NewGUCNestLevel();
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "list of index builds",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Size		list_size = builds_list_room(builds);
	Builder		leader = {0};
	Team	   *team;
	TeamShared *shared;
	TeamShared *found;

	place_btrees(builds, list_size);
	share_memory(builds->nmembers);
	result->at_once = builds->nbuilds - builds->nalone;
	result->memory = maintenance_work_mem;
	team = team_create("pg_cyclone_index_worker_main", builds->nmembers - 1,
					   add_size(list_size, builds_btrees_room(builds)));
	leader.shared = shared = team_shared(team);
	shared->leader_pid = MyProcPid;
	shared->leader_number = MyProcNumber;
	shared->relid = builds->relid;
	/* without a segment there won't be workers */
	shared->has_files = team_segment(team) != NULL;
	if (shared->has_files)
		SharedFileSetInit(&shared->files, team_segment(team));
	pg_atomic_init_u32(&shared->done, 0);

	team_launch(team);
	result->members = shared->nmembers = team_launched_workers(team) + 1;
	current_shared = shared;
	begin_collection(&leader, builds);
	builds_list(shared, builds);
	result->collected = shared->ncollected;
	build_by_team(team, &leader);
	builder_while_waiting();
	join_parts(shared);
	/* the shared block ends with the team */
	found = palloc(list_size);
	memcpy(found, shared, list_size);
	team_end(team);

	AtEOXact_GUC(false, nest_level);
	take_over(builds, found, result);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* place_btrees -- say where in the shared block what processes share of each btree is. */
static void
place_btrees(IndexBuilds *builds, Size place)
{
	for (int i = builds->nalone; i < builds->nbuilds; i++)
		if (builds->builds[i].entry_size > 0)
		{
			builds->builds[i].btree = place;
			place += MAXALIGN(btree_build_size(builds->builds[i].nparts));
		}
}

/*
 * begin_collection
 *		Leader: prepare to collect entries of btrees, of as many as there is memory for.
 */
static void
begin_collection(Builder *leader, IndexBuilds *builds)
{
	TeamShared *shared = leader->shared;
	Relation	heap = table_open(builds->relid, NoLock);
	int			nparts = builds_parts(shared->nmembers);
	Size		size = choose_collected(shared, builds, heap, nparts);
	char	   *failure = NULL;

	shared->collection = DSM_HANDLE_INVALID;
	if (shared->ncollected > 0)
		leader->segment = attempt_create_segment(size, &failure);
	if (leader->segment != NULL)
	{
		btree_collection_begin(dsm_segment_address(leader->segment), size,
							   RelationGetNumberOfBlocks(heap), nparts, shared->ncollected);
		shared->collection = dsm_segment_handle(leader->segment);
	}
	else
		collect_none(shared, builds);
	table_close(heap, NoLock);
}

/* collect_none -- have all indexes built whole. */
static void
collect_none(TeamShared *shared, IndexBuilds *builds)
{
	shared->ncollected = 0;
	for (int i = builds->nalone; i < builds->nbuilds; i++)
	{
		builds->builds[i].sample = NULL;
		builds->builds[i].nparts = 1;
		builds->builds[i].collected = -1;
	}
}

/*
 * choose_collected
 *		Choose the indexes whose entries are collected, and take a sample of each.
 *		Returns how much shared memory they take.
 *
 * The entries collected of all indexes, and the memory to sort a part in each process,
 * must be within the memory of the team.
 */
static Size
choose_collected(TeamShared *shared, IndexBuilds *builds, Relation heap, int nparts)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);
	double		part_rows = builds->rows * INEQUALITY / nparts;
	Size		entry_sizes = 0;
	Size		largest = 0;
	Size		size = 0;

	collect_none(shared, builds);
	for (int i = builds->nalone; i < builds->nbuilds && shared->nmembers > 1; i++)
	{
		IndexBuild *build = &builds->builds[i];
		Relation	index;
		Size		size_with;

		if (!build->is_divisible)
			continue;
		size_with = btree_collection_size(builds->rows, nblocks, nparts, shared->ncollected + 1,
										  entry_sizes + build->entry_size);
		if (size_with + shared->nmembers * part_rows * 2 * Max(largest, build->entry_size) >
			shared->nmembers * maintenance_work_mem * 1024.0)
			continue;
		index = index_open(build->relid, NoLock);
		build->sample = btree_sample(heap, index, nparts);
		index_close(index, NoLock);
		if (build->sample == NULL)
			continue;
		build->nparts = nparts;
		build->collected = shared->ncollected++;
		size = size_with;
		entry_sizes += build->entry_size;
		largest = Max(largest, build->entry_size);
	}
	return size;
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
		.join = builder_join_as_worker,
		.routine = build_phase,
		.leave = builder_leave_as_worker
	};

	refuse_without_preloading();
	team_work(&worker, segment, toc);
}

/* builder_join_as_worker -- find what the team shares. */
static void *
builder_join_as_worker(void *block, dsm_segment *segment)
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

/* builder_leave_as_worker -- the temporary files are removed with the segment. */
static void
builder_leave_as_worker(void *state)
{
	detach_collection((Builder *) state);
	guards_leave();
	pace_leave_as_builder();
	progress_clear();
}

/*
 * build_by_team
 *		Leader: have the team build.
 *
 * The collected entries are given back before other indexes are built, which may need
 * all memory.
 */
static void
build_by_team(Team *team, Builder *leader)
{
	TeamShared *shared = leader->shared;
	instr_time	start;

	if (shared->ncollected > 0)
	{
		INSTR_TIME_SET_CURRENT(start);
		team_run(team, COLLECT_ENTRIES, build_phase, leader, builder_while_waiting);
		shared->collect_seconds = seconds_since(start);
		team_run(team, BUILD_COLLECTED, build_phase, leader, builder_while_waiting);
		shared->collection = DSM_HANDLE_INVALID;
		detach_collection(leader);
	}
	if (shared->ngroups > shared->ncollected_groups)
		team_run(team, BUILD_OTHERS, build_phase, leader, builder_while_waiting);
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

/* attach_collection -- map what is collected.  If that can't be done, other members do the work. */
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
			builder_while_waiting();
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

	Assert(nbuilds == 1 || (builds[0].btree != 0 && builds[0].collected < 0));
	progress_index(builds[0].relid, 0);
	DEBUG_POINT("rewrite-index");

	for (int i = 0; i < nbuilds; i++)
		open_part(builder, &builds[i], &parts[i]);
	if (builds[0].btree == 0)
		parts[0].is_given_up = true;
	else if (parts[0].collection != NULL)
		btree_build_collected(&parts[0], &shared->files, heap);
	else
		btree_build_whole(parts, nbuilds, heap);

	for (int i = 0; i < nbuilds; i++)
	{
		if (parts[i].is_given_up)
			build_by_server(shared, &builds[i], &parts[i], heap);
		builds[i].counts = parts[i].counts;
		builds[i].seconds = parts[i].seconds;
		index_close(parts[i].index, NoLock);
	}
	table_close(heap, NoLock);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* build_by_server -- have the access method's own routine fill an index. */
static void
build_by_server(TeamShared *shared, TeamBuild *build, BtreePart *part, Relation heap)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	progress_index(build->relid, 0);
	part->counts = *part->index->rd_indam->ambuild(heap, part->index, part->info);
	part->seconds += seconds_since(start);
	build->btree = 0;
	pg_atomic_fetch_add_u32(&shared->done, 1);
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
 * other parts lose their relid.  A process builds several parts, one after the other.
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
			whole->seconds += build->seconds;
			build->relid = InvalidOid;
		}
		if (whole->collected >= 0)
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

/* builder_while_waiting -- leader: bring pg_stat_progress_cluster up to date. */
static void
builder_while_waiting(void)
{
	pgstat_progress_update_param(PROGRESS_REPACK_INDEX_REBUILD_COUNT,
								 pg_atomic_read_u32(&current_shared->done));
}

/*
 * take_over
 *		Note what the team found, in the catalogs and for the report.
 *
 * An empty index has its size there already.  Live rows were counted while indexes were
 * built.
 */
static void
take_over(IndexBuilds *builds, TeamShared *shared, IndexBuildsResult *result)
{
	Relation	heap = table_open(builds->relid, NoLock);

	for (int i = 0; i < shared->nbuilds; i++)
	{
		const TeamBuild *build = &shared->builds[i];
		Relation	index;

		if (!OidIsValid(build->relid))
			continue;
		index = index_open(build->relid, NoLock);
		if (build->counts.index_tuples > 0)
			set_built_size(index, build->counts.index_tuples);
		index_close(index, NoLock);
		result->built(result->arg, build->relid, build->seconds);
	}
	if (compat_index_build_counts_rows(heap))
		set_built_size(heap, shared->builds[0].counts.heap_tuples);
	table_close(heap, NoLock);
	CommandCounterIncrement();
}

/* set_built_size -- note in pg_class how large a relation is, none of it frozen. */
static void
set_built_size(Relation rel, double tuples)
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
		ReindexParams params = {0};
		instr_time	start;

		INSTR_TIME_SET_CURRENT(start);
		progress_index(relid, 0);
		DEBUG_POINT("rewrite-index-alone");
		/* here a guard may hold it, as none can once the build has begun */
		guards_point();
		reindex_index(NULL, relid, true, get_rel_persistence(relid), &params);
		CommandCounterIncrement();
		pgstat_progress_update_param(PROGRESS_REPACK_INDEX_REBUILD_COUNT, ++ndone);
		result->built(result->arg, relid, seconds_since(start));
	}
}
