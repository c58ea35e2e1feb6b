/*-------------------------------------------------------------------------
 *
 * table_team.c
 *	  The team that vacuums one table: how many workers, what is in its shared
 *	  block, and how its members run a phase.
 *
 * The leader plans and starts the team, has it run one phase after the other,
 * and in the end sums up what its members did.  A worker opens what the leader
 * has open, and then does what is asked of it (pg_cyclone_worker_main).
 *
 * Memory: the shared block is laid out once, by lay_out_shared; each member's
 * own state, TableVacuum, is in its transaction's context.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "commands/dbcommands.h"
#include "commands/progress.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "postmaster/autovacuum.h"
#include "storage/bufmgr.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "debug_point.h"
#include "audit/audit.h"
#include "engine/heap/skip_policy.h"
#include "engine/table_job.h"
#include "library.h"
#include "report/progress.h"
#include "settings.h"
#include "team/degree.h"

PGDLLEXPORT void pg_cyclone_worker_main(dsm_segment *segment, shm_toc *toc);

static int	memory_kb(void);
static uint64 blocks_of_all(const TableVacuum *vacuum, BlockNumber rel_pages);
static void init_file_cache_maps(const TableVacuum *vacuum, VacuumShared *shared);
static void join_file_cache(TableVacuum *vacuum);
static int	within_buffers(VacuumJob *job, int nworkers);
static void launch_vacuum_workers(void *argument);
static void *vacuum_join_as_worker(void *block, dsm_segment *segment);
static bool worker_is_needed(void *state);
static bool vacuum_take_place(void *state);
static bool vacuum_has_place(void *state);
static bool must_stay(const TableVacuum *vacuum);
static void vacuum_leave_as_worker(void *state);
static DeadTidsShared *dead_tids_shared(VacuumShared *shared);
static void join_vacuum(TableVacuum *vacuum, VacuumShared *shared, int member);
static void forget_fork_sizes(Relation rel);
static void run_vacuum_phase(void *state, int phase);
static bool find_store(TableVacuum *vacuum, VacuumPhase phase);

/*
 * table_plan_workers
 *		How many workers to ask for.
 *
 * That is the number that PARALLEL says, or that the table's size or its indexes
 * call for, but at most max_parallel_maintenance_workers, and what shared_buffers has
 * room for.  In an autovacuum worker it is at most what its settings leave, and what the
 * budget feeds.  In an emergency the indexes call for none, as they are left alone.  There
 * is none where an index rules out parallel mode.
 */
int
table_plan_workers(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	int			asked = job->params->nworkers;
	int			nworkers;

	Assert(is_leader(&job->vacuum) && job->team == NULL);
	if (!degree_allows_workers(vacuum->rel, asked, "vacuum") || job->plan.rel_pages == 0 ||
		(job->do_index_cleanup && index_forbid_workers(vacuum, asked > 0)))
		return 0;

	if (asked > 0)
		nworkers = asked;
	else
	{
		nworkers = degree_for_table(vacuum->rel, job->plan.rel_pages);
		if (job->do_index_cleanup && !VacuumFailsafeActive)
		{
			int			for_indexes = index_parallel_degree(vacuum);

			nworkers = Max(nworkers, for_indexes);
		}
	}
	if (AmAutoVacuumWorkerProcess())
	{
		int			allowed = compat_autovacuum_workers(vacuum->rel);
		int			fed = pace_processes_fed();

		nworkers = Min(nworkers, cyclone_autovacuum_max_parallel_workers);
		job->result.workers_not_allowed = Max(nworkers - allowed, 0);
		nworkers = within_buffers(job, Min(nworkers, allowed));
		return degree_reserve(Min(nworkers, Max(fed - 1, 0)));
	}
	return within_buffers(job, Min(nworkers, max_parallel_maintenance_workers));
}

/* within_buffers -- as many of these workers as shared_buffers has room for; note how many more there might be. */
static int
within_buffers(VacuumJob *job, int nworkers)
{
	int			number = degree_within_buffers(nworkers, DEGREE_PINS);

	job->result.workers_without_buffers = nworkers - number;
	return number;
}

/* memory_kb -- how much memory there is for dead TIDs. */
static int
memory_kb(void)
{
	if (AmAutoVacuumWorkerProcess() && autovacuum_work_mem != -1)
		return autovacuum_work_mem;
	return maintenance_work_mem;
}

/*
 * lay_out_shared
 *		Note where the parts of variable size will be in the shared block; return
 *		its size.
 *
 * The plan has the number of members; memory is for dead TIDs, in bytes.  The
 * areas of kinds of indexes begin at *areas_start.
 */
static Size
lay_out_shared(VacuumJob *job, Size memory, Size *areas_start)
{
	VacuumShared *plan = &job->plan;
	Size		size = MAXALIGN(sizeof(VacuumShared));

	plan->members_start = size;
	size = MAXALIGN(add_size(size, mul_size(sizeof(MemberShared), plan->nmembers)));
	plan->indexes_start = size;
	size = MAXALIGN(add_size(size, mul_size(sizeof(IndexShared), plan->nindexes)));
	*areas_start = size;
	size = MAXALIGN(add_size(size, index_shared_size(&job->vacuum)));
	plan->pace_start = TYPEALIGN(PG_CACHE_LINE_SIZE, size);
	size = MAXALIGN(add_size(plan->pace_start, pace_shared_size()));
	if (plan->eager.enabled)
	{
		plan->eager.fails_start = size;
		size = MAXALIGN(add_size(size, skip_policy_shared_size(plan->rel_pages)));
	}
	/* Without a second pass over the heap no one needs the dead TIDs. */
	if (plan->nindexes > 0 && plan->do_index_vacuuming && !VacuumFailsafeActive)
	{
		plan->dead_tids_start = TYPEALIGN(PG_CACHE_LINE_SIZE, size);
		size = add_size(plan->dead_tids_start,
						dead_tids_shared_size(plan->nmembers > 1, plan->rel_pages, memory,
											  plan->nmembers));
	}
	if (file_cache_is_wanted(job->vacuum.rel, plan->rel_pages, blocks_of_all(&job->vacuum, plan->rel_pages)))
	{
		Size		maps = file_cache_map_size(plan->rel_pages);

		for (int i = 0; i < plan->nindexes; i++)
			maps = add_size(maps, file_cache_map_size(job->vacuum.index_blocks[i]));
		/* no worker is to be missing for lack of memory for a hint */
		if (maps <= memory / 4)
		{
			plan->file_cache_start = size = MAXALIGN(size);
			size = add_size(size, maps);
		}
	}
	return size;
}

/* blocks_of_all -- leader: those of the table and of its indexes. */
static uint64
blocks_of_all(const TableVacuum *vacuum, BlockNumber rel_pages)
{
	uint64		nblocks = rel_pages;

	for (int i = 0; i < vacuum->nindexes; i++)
		nblocks += vacuum->index_blocks[i];
	return nblocks;
}

/* init_file_cache_maps -- leader: behind each other, the table's first. */
static void
init_file_cache_maps(const TableVacuum *vacuum, VacuumShared *shared)
{
	char	   *place = (char *) shared + shared->file_cache_start;

	if (shared->file_cache_start == 0)
		return;
	for (int i = -1; i < shared->nindexes; i++)
	{
		BlockNumber nblocks = i < 0 ? shared->rel_pages : vacuum->index_blocks[i];

		file_cache_map_init((FileCacheMap *) place, nblocks);
		place += file_cache_map_size(nblocks);
	}
}

/* join_file_cache -- find them, in each member. */
static void
join_file_cache(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;
	char	   *place = (char *) shared + shared->file_cache_start;

	if (shared->file_cache_start == 0)
		return;
	vacuum->file_cache_maps = palloc_array(FileCacheMap *, shared->nindexes + 1);
	for (int i = 0; i <= shared->nindexes; i++)
	{
		vacuum->file_cache_maps[i] = (FileCacheMap *) place;
		place += file_cache_map_bytes(vacuum->file_cache_maps[i]);
	}
	vacuum->file_cache = file_cache_begin(shared->ring_nbuffers);
}

/*
 * table_start_team
 *		Lay out and fill the shared block, and launch the workers.
 */
void
table_start_team(VacuumJob *job, int nworkers)
{
	TableVacuum *vacuum = &job->vacuum;
	VacuumShared *plan = &job->plan;
	VacuumShared *shared;
	Size		memory = (Size) memory_kb() * 1024;
	Size		areas_start;
	Size		size;
	instr_time	start;

	Assert(is_leader(&job->vacuum));
	Assert(job->team == NULL && !IsInParallelMode());
	Assert(nworkers >= 0 && nworkers <= MAX_PARALLEL_WORKER_LIMIT);
	INSTR_TIME_SET_CURRENT(start);

	plan->nmembers = nworkers + 1;
	if (nworkers > 0)
		plan->worker_mem_kb = index_worker_memory_kb(vacuum, nworkers, memory_kb());
	job->result.dead_tids_limit = memory;
	pgstat_progress_update_param(PROGRESS_VACUUM_MAX_DEAD_TUPLE_BYTES, memory);

	size = lay_out_shared(job, memory, &areas_start);
	job->team = team_create("pg_cyclone_worker_main", nworkers, size);

	shared = team_shared(job->team);
	*shared = *plan;
	pg_atomic_init_u32(&shared->failsafe, VacuumFailsafeActive);
	pg_atomic_init_u64(&shared->blocks_passed, 0);
	pg_atomic_init_u64(&shared->blocks_vacuumed, 0);
	pg_atomic_init_u32(&shared->store_is_full, 0);
	pg_atomic_init_u32(&shared->least_remainder, InvalidBlockNumber);
	pg_atomic_init_u64(&shared->audit_next, 0);
	pg_atomic_init_u32(&shared->next_index, 0);
	pg_atomic_init_u32(&shared->empty_pages_found, 0);
	pg_atomic_init_u32(&shared->more_work, 0);
	for (int i = 0; i < shared->nmembers; i++)
	{
		pg_atomic_init_u32(&vacuum_member(shared, i)->joined, 0);
		/* until it scans it holds back no horizon, whatever it does before */
		pg_atomic_init_u32(&vacuum_member(shared, i)->scan_block, InvalidBlockNumber);
		pg_atomic_init_u64(&vacuum_member(shared, i)->scan_remainder, 0);
	}
	pace_create(vacuum_pace(shared), shared->relid, false);
	if (shared->dead_tids_start > 0)
		dead_tids_init(dead_tids_shared(shared), team_segment(job->team) != NULL,
					   shared->rel_pages, memory, shared->nmembers);
	init_file_cache_maps(vacuum, shared);
	join_vacuum(vacuum, shared, 0);
	index_setup(vacuum, nworkers > 0, areas_start);

	job->result.workers_planned = nworkers;
	pace_allow_workers(nworkers, job->params->nworkers > 0 && !AmAutoVacuumWorkerProcess(),
					   launch_vacuum_workers, job);
	job->result.team_seconds = table_seconds_since(start);
}

/*
 * launch_vacuum_workers
 *		Launch the team's workers: before the first phase, or at a delay point.
 */
static void
launch_vacuum_workers(void *argument)
{
	VacuumJob  *job = argument;
	bool		is_first = job->result.workers_launched == 0;
	int			launched;

	team_launch(job->team);
	launched = team_launched_workers(job->team);
	job->result.workers_launched = Max(job->result.workers_launched, launched);
	ereport(job->vacuum.shared->verbose && is_first ? INFO : DEBUG2,
			(errmsg(ngettext("launched %d parallel vacuum worker (planned: %d)",
							 "launched %d parallel vacuum workers (planned: %d)",
							 job->result.workers_launched),
					job->result.workers_launched, job->result.workers_planned)));
}

/* pg_cyclone_worker_main -- a worker: open what the leader has open, and follow it. */
void
pg_cyclone_worker_main(dsm_segment *segment, shm_toc *toc)
{
	static const TeamWorker worker = {
		.join = vacuum_join_as_worker,
		.routine = run_vacuum_phase,
		.is_needed = worker_is_needed,
		.take_place = vacuum_take_place,
		.has_place = vacuum_has_place,
		.leave = vacuum_leave_as_worker,
		.error_context = table_error_context
	};

	refuse_without_preloading();
	team_work(&worker, segment, toc);
}

/* vacuum_join_as_worker -- open what the leader has open. */
static void *
vacuum_join_as_worker(void *block, dsm_segment *segment)
{
	VacuumShared *shared = block;
	TableVacuum *vacuum = palloc0_object(TableVacuum);

	/* No transaction of a vacuum may hold back the removal of dead rows. */
	Assert(MyProc->statusFlags == PROC_IN_VACUUM);

	/* The locks don't conflict with the leader's. */
	vacuum->rel = table_open(shared->relid, ShareUpdateExclusiveLock);
	vac_open_indexes(vacuum->rel, RowExclusiveLock, &vacuum->nindexes, &vacuum->indexes);
	if (vacuum->nindexes != shared->nindexes)
		elog(ERROR, "parallel vacuum worker found %d indexes, its leader %d",
			 vacuum->nindexes, shared->nindexes);

	vacuum->dbname = get_database_name(MyDatabaseId);
	vacuum->relnamespace = get_namespace_name(RelationGetNamespace(vacuum->rel));
	vacuum->relname = pstrdup(RelationGetRelationName(vacuum->rel));
	if (shared->ring_nbuffers > 0)
		vacuum->strategy = GetAccessStrategyWithSize(BAS_VACUUM,
													 shared->ring_nbuffers * (BLCKSZ / 1024));

	/*
	 * Settings may not be changed in parallel mode, so this is not the way to
	 * do it; but there is no other, and this process sets nothing else.
	 */
	maintenance_work_mem = shared->worker_mem_kb;

	join_vacuum(vacuum, shared, ParallelWorkerNumber + 1);
	progress_begin(shared->relid, shared->leader_pid);
	pace_join(vacuum_pace(shared));
	failsafe_notice(vacuum);
	return vacuum;
}

/* worker_is_needed -- has it pages to visit of which no other member knows? */
static bool
worker_is_needed(void *state)
{
	return index_duties_put_off(state);
}

/*
 * vacuum_take_place
 *		Has this worker a place at work, or can it take one?  It must if only it knows
 *		of pages that are to be visited or deleted.
 */
static bool
vacuum_take_place(void *state)
{
	return pace_take_place(must_stay(state));
}

/*
 * vacuum_has_place
 *		At the end of its part of a phase: has it given its place up?
 */
static bool
vacuum_has_place(void *state)
{
	if (must_stay(state))
		(void) pace_take_place(true);
	return pace_has_place();
}

/* must_stay -- has this process found pages that no other member knows of? */
static bool
must_stay(const TableVacuum *vacuum)
{
	for (int i = 0; i < vacuum->nindexes; i++)
		if (vacuum->empty_pages[i].count > 0)
			return true;
	return index_duties_put_off(vacuum);
}

/* vacuum_leave_as_worker -- close it again. */
static void
vacuum_leave_as_worker(void *state)
{
	TableVacuum *vacuum = state;

	progress_clear();
	file_cache_end(vacuum->file_cache);
	if (vacuum->dead_tids != NULL)
		dead_tids_detach(vacuum->dead_tids);
	vac_close_indexes(vacuum->nindexes, vacuum->indexes, RowExclusiveLock);
	table_close(vacuum->rel, ShareUpdateExclusiveLock);
	if (vacuum->strategy != NULL)
		FreeAccessStrategy(vacuum->strategy);
}

/* dead_tids_shared -- where the store is in the shared block. */
static DeadTidsShared *
dead_tids_shared(VacuumShared *shared)
{
	return (DeadTidsShared *) ((char *) shared + shared->dead_tids_start);
}

/*
 * join_vacuum
 *		Fill in what every member needs to run phases.
 *
 * Each has its own horizon (vistest), which may be ahead of the leader's cutoffs, but
 * never behind them.  Pruning honours both.
 */
static void
join_vacuum(TableVacuum *vacuum, VacuumShared *shared, int member)
{
	Assert(member >= 0 && member < shared->nmembers);
	vacuum->shared = shared;
	vacuum->member = member;
	vacuum->vistest = GlobalVisTestFor(vacuum->rel);
	if (shared->dead_tids_start > 0)
		vacuum->dead_tids = dead_tids_attach(dead_tids_shared(shared));

	index_join(vacuum);
	join_file_cache(vacuum);
	vacuum->ring_pages = ring_pages_begin(shared->ring_nbuffers);

	/* If no page holds them back, these are what the table advances to. */
	vacuum->counters.new_relfrozenxid = shared->cutoffs.OldestXmin;
	vacuum->counters.new_relminmxid = shared->cutoffs.OldestMxact;
	audit_begin(vacuum);
}

/*
 * table_run_phase
 *		Run a phase in the whole team, take its time, and report on it.
 */
void
table_run_phase(VacuumJob *job, VacuumPhase phase)
{
	instr_time	start;

	Assert(is_leader(&job->vacuum) && CritSectionCount == 0);
	/* in this order: the plan, the team, its phases, and then transaction IDs */
	Assert(job->team != NULL && job->vacuum.shared == team_shared(job->team));
	Assert(!IsInParallelMode() || !TransactionIdIsValid(GetTopTransactionIdIfAny()));
	/* the heap's turn comes only with nothing left in the indexes */
	Assert(phase != PHASE_HEAP_VACUUM || dead_tids_count(job->vacuum.dead_tids) > 0);
	Assert(!VacuumFailsafeActive ||
		   (phase != PHASE_HEAP_VACUUM && phase != PHASE_INDEX_CLEANUP));

	INSTR_TIME_SET_CURRENT(start);
	team_run(job->team, phase, run_vacuum_phase, &job->vacuum, pace_while_waiting);
	job->result.phase_seconds[phase] += table_seconds_since(start);
	if (job->result.workers_launched > 0)
		forget_fork_sizes(job->vacuum.rel);
}

/*
 * forget_fork_sizes
 *		Workers may have extended the visibility map and the free space map, and
 *		the leader must not go by the sizes that it remembers.
 */
static void
forget_fork_sizes(Relation rel)
{
	RelationGetSmgr(rel)->smgr_cached_nblocks[VISIBILITYMAP_FORKNUM] = InvalidBlockNumber;
	RelationGetSmgr(rel)->smgr_cached_nblocks[FSM_FORKNUM] = InvalidBlockNumber;
}

/*
 * run_vacuum_phase
 *		Every member's part of a phase, or the rest of it after it was parked.
 */
static void
run_vacuum_phase(void *state, int phase)
{
	TableVacuum *vacuum = state;
	MemberShared *member = vacuum_member(vacuum->shared, vacuum->member);

	if (!find_store(vacuum, phase))
		return;
	pg_atomic_write_u32(&member->joined, 1);
	pace_begin_work();

	switch ((VacuumPhase) phase)
	{
		case PHASE_HEAP_SCAN:
			heap_scan_phase(vacuum);
			break;
		case PHASE_INDEX_VACUUM:
			index_phase(vacuum, false);
			break;
		case PHASE_INDEX_AUDIT:
			audit_indexes(vacuum);
			break;
		case PHASE_INDEX_PAGE_DELETION:
			index_delete_pages(vacuum, true);
			break;
		case PHASE_HEAP_VACUUM:
			heap_vacuum_phase(vacuum, index_delete_pages);
			break;
		case PHASE_INDEX_CLEANUP:
			index_phase(vacuum, true);
			break;
	}

	pace_end_work();
	member->counters = vacuum->counters;
}

/*
 * find_store
 *		See to it that this process can read and fill the dead-TID store in the
 *		phase to come; return false if it can't, so that it has to sit out.
 *
 * The leader always can: it is the one that gets memory for it.  A worker that
 * could until now still can if there is no more memory than there was.  So a worker
 * that has found something in a phase can make use of it in the next.
 */
static bool
find_store(TableVacuum *vacuum, VacuumPhase phase)
{
	char	   *failure = NULL;

	if (vacuum->dead_tids == NULL || phase == PHASE_INDEX_PAGE_DELETION ||
		phase == PHASE_INDEX_CLEANUP ||
		dead_tids_catch_up(vacuum->dead_tids, &failure))
		return true;

	Assert(!is_leader(vacuum));
	if (!vacuum->has_sat_out)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("a parallel vacuum worker sits out for lack of shared memory"),
				 errdetail_internal("%s", failure)));
	vacuum->has_sat_out = true;
	return false;
}

/*
 * table_sum_counters
 *		Add up, between phases, what all members did.
 */
void
table_sum_counters(VacuumJob *job)
{
	VacuumShared *shared = job->vacuum.shared;
	VacuumCounters *sum = &job->result.counters;

	Assert(is_leader(&job->vacuum));
	memset(sum, 0, sizeof(VacuumCounters));
	sum->new_relfrozenxid = shared->cutoffs.OldestXmin;
	sum->new_relminmxid = shared->cutoffs.OldestMxact;
	sum->audited_relfrozenxid = shared->cutoffs.OldestXmin;
	sum->audited_relminmxid = shared->cutoffs.OldestMxact;

	for (int i = 0; i < shared->nmembers; i++)
	{
		MemberShared *member = vacuum_member(shared, i);
		VacuumCounters *part = &member->counters;

		if (!pg_atomic_read_u32(&member->joined))
			continue;
		Assert(part->nonempty_pages <= shared->rel_pages);
		sum->scanned_pages += part->scanned_pages;
		sum->skipped_pages += part->skipped_pages;
		sum->eager_scanned_pages += part->eager_scanned_pages;
		sum->new_frozen_tuple_pages += part->new_frozen_tuple_pages;
		sum->vm_new_visible_pages += part->vm_new_visible_pages;
		sum->vm_new_visible_frozen_pages += part->vm_new_visible_frozen_pages;
		sum->vm_new_frozen_pages += part->vm_new_frozen_pages;
		sum->lpdead_item_pages += part->lpdead_item_pages;
		sum->missed_dead_pages += part->missed_dead_pages;
		sum->nonempty_pages = Max(sum->nonempty_pages, part->nonempty_pages);
		sum->heap_vacuumed_pages += part->heap_vacuumed_pages;
		sum->tuples_deleted += part->tuples_deleted;
		sum->tuples_frozen += part->tuples_frozen;
		sum->lpdead_items += part->lpdead_items;
		sum->live_tuples += part->live_tuples;
		sum->recently_dead_tuples += part->recently_dead_tuples;
		sum->missed_dead_tuples += part->missed_dead_tuples;
		sum->stale_locks += part->stale_locks;
		sum->audited_heap_pages += part->audited_heap_pages;
		sum->audited_index_pages += part->audited_index_pages;
		if (TransactionIdPrecedes(part->audited_relfrozenxid, sum->audited_relfrozenxid))
			sum->audited_relfrozenxid = part->audited_relfrozenxid;
		if (MultiXactIdPrecedes(part->audited_relminmxid, sum->audited_relminmxid))
			sum->audited_relminmxid = part->audited_relminmxid;
		if (TransactionIdPrecedes(part->new_relfrozenxid, sum->new_relfrozenxid))
			sum->new_relfrozenxid = part->new_relfrozenxid;
		if (MultiXactIdPrecedes(part->new_relminmxid, sum->new_relminmxid))
			sum->new_relminmxid = part->new_relminmxid;
		sum->skipped_allvisible |= part->skipped_allvisible;
	}
}

/*
 * table_finish_team
 *		Save the results that are in the shared block, and end the team.
 */
void
table_finish_team(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	TableResult *result = &job->result;
	instr_time	start;

	Assert(is_leader(&job->vacuum));
	Assert(job->team != NULL && vacuum->shared == team_shared(job->team));
	INSTR_TIME_SET_CURRENT(start);

	file_cache_end(vacuum->file_cache);
	vacuum->file_cache = NULL;
	table_sum_counters(job);
	result->num_index_scans = vacuum->shared->num_index_scans;
	result->index_vacuum_done = vacuum->shared->do_index_vacuuming && !VacuumFailsafeActive;
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexBulkDeleteResult *stats = index_stats(vacuum, i);

		result->indexes[i].has_stats = stats != NULL;
		if (stats != NULL)
			result->indexes[i].stats = *stats;
		result->indexes[i].graph = vacuum_index(vacuum->shared, i)->graph;
	}
	pace_report(result);
	pace_leave();
	job->plan = *vacuum->shared;
	vacuum->shared = &job->plan;
	if (vacuum->dead_tids != NULL)
		dead_tids_detach(vacuum->dead_tids);
	vacuum->dead_tids = NULL;

	team_end(job->team);
	job->team = NULL;
	result->team_seconds += table_seconds_since(start);
}

/*
 * table_error_context
 *		Say where in the table an error happened.
 */
void
table_error_context(void *arg)
{
	TableVacuum *vacuum = arg;

	switch (vacuum->place)
	{
		case PLACE_HEAP_SCAN:
		case PLACE_HEAP_VACUUM:
			{
				const char *verb = vacuum->place == PLACE_HEAP_SCAN ? "scanning" : "vacuuming";

				if (!BlockNumberIsValid(vacuum->blkno))
					errcontext("while %s relation \"%s.%s\"",
							   verb, vacuum->relnamespace, vacuum->relname);
				else if (!OffsetNumberIsValid(vacuum->offnum))
					errcontext("while %s block %u of relation \"%s.%s\"",
							   verb, vacuum->blkno,
							   vacuum->relnamespace, vacuum->relname);
				else
					errcontext("while %s block %u offset %u of relation \"%s.%s\"",
							   verb, vacuum->blkno, vacuum->offnum,
							   vacuum->relnamespace, vacuum->relname);
				break;
			}
		case PLACE_INDEX_VACUUM:
			errcontext("while vacuuming index \"%s\" of relation \"%s.%s\"",
					   vacuum->indname, vacuum->relnamespace, vacuum->relname);
			break;
		case PLACE_INDEX_CLEANUP:
			errcontext("while cleaning up index \"%s\" of relation \"%s.%s\"",
					   vacuum->indname, vacuum->relnamespace, vacuum->relname);
			break;
		case PLACE_TRUNCATE:
			if (BlockNumberIsValid(vacuum->blkno))
				errcontext("while truncating relation \"%s.%s\" to %u blocks",
						   vacuum->relnamespace, vacuum->relname, vacuum->blkno);
			break;
		case PLACE_UNKNOWN:
			break;
	}
}
