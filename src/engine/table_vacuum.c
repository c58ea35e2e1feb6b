/*-------------------------------------------------------------------------
 *
 * table_vacuum.c
 *	  VACUUM of one table: the main path.
 *
 * table_vacuum reads like the vacuum it does:
 *
 *	 1. look at the table, its indexes and its age, and set the cutoffs
 *	 2. plan the team and launch it
 *	 3. heap scan, index vacuum, heap vacuum: repeatedly if the dead-TID
 *		store is too small for the whole table
 *	 4. index cleanup
 *	 5. end the team
 *	 6. truncate, update the statistics, report
 *
 * Steps 3 and 4 are the phases that the whole team runs; workers enter at
 * pg_cyclone_worker_main and run them until they are sent home.  All that
 * needs a transaction ID (truncation, statistics) comes after.
 *
 * Why the order of index vacuum and heap vacuum matters: an index scan that
 * holds a TID must never find another row under it.  So line pointers stay
 * dead until no index entry points at them, and become unused in a second
 * pass over the heap.  A table without indexes needs no second pass.
 *
 * Memory: everything here lives in the transaction's context, and goes with
 * it.  The dead TIDs are in the team's shared block, which is bounded by
 * maintenance_work_mem.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/multixact.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "catalog/pg_namespace.h"
#include "commands/dbcommands.h"
#include "commands/progress.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "postmaster/autovacuum.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/smgr.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/phases.h"
#include "engine/table_vacuum.h"
#include "report/progress.h"
#include "report/verbose.h"
#include "team/degree.h"
#include "team/team.h"

/* The server's rules for leaving dead items where they are. */
#define BYPASS_PAGES_FRACTION	0.02
#define BYPASS_STORE_BYTES		((Size) 32 * 1024 * 1024)

/* The leader's view of the whole vacuum */
typedef struct VacuumJob
{
	TableVacuum vacuum;			/* what every member has */
	const VacuumParams *params;
	CompactionPass *pass;		/* NULL unless the table is being compacted */
	Team	   *team;
	TableResult result;

	bool		may_bypass;		/* leave few dead items where they are? */
	bool		do_index_cleanup;
	bool		do_truncate;
	bool		memory_ran_out; /* has a warning said so? */

	/* found before the team exists, and copied to its shared block */
	VacuumShared plan;
} VacuumJob;

PGDLLEXPORT void pg_cyclone_worker_main(dsm_segment *segment, shm_toc *toc);

static void open_table(VacuumJob *job, Relation rel, const VacuumParams *params,
					   BufferAccessStrategy strategy);
static int64 index_pages(const TableVacuum *vacuum);
static void plan_vacuum(VacuumJob *job);
static int	plan_workers(VacuumJob *job);
static int	memory_kb(void);
static void start_team(VacuumJob *job, int nworkers);
static void launch_workers(void *argument);
static DeadTidsShared *dead_tids_shared(VacuumShared *shared);
static void *join_as_worker(void *block, dsm_segment *segment);
static bool worker_is_needed(void *state);
static bool take_place(void *state);
static bool has_place(void *state);
static bool must_stay(const TableVacuum *vacuum);
static void leave_as_worker(void *state);
static void join_vacuum(TableVacuum *vacuum, VacuumShared *shared, int member);
static void scan_and_vacuum(VacuumJob *job);
static bool grow_store(VacuumJob *job);
static void vacuum_indexes_and_heap(VacuumJob *job);
static void run_index_round(VacuumJob *job, bool cleanup, double reltuples, bool estimated);
static void count_dead_tids(VacuumJob *job);
static bool bypass_is_worthwhile(VacuumJob *job);
static void clean_up_indexes(VacuumJob *job);
static void run_team_phase(VacuumJob *job, VacuumPhase phase);
static void forget_fork_sizes(Relation rel);
static void run_phase(void *state, int phase);
static bool find_store(TableVacuum *vacuum, VacuumPhase phase);
static void forget_member_reports(VacuumShared *shared);
static void report_members(VacuumJob *job, VacuumPhase phase);
static void sum_counters(VacuumJob *job);
static void finish_team(VacuumJob *job);
static void update_index_statistics(VacuumJob *job);
static void truncate_table(VacuumJob *job);
static void update_table_statistics(VacuumJob *job, TimestampTz start);
static void describe_pass(const VacuumJob *job, CompactionPass *pass);
static void error_context(void *arg);
static double seconds_since(instr_time start);

/*
 * table_vacuum
 *		Vacuum one table.
 *
 * The caller is in a transaction with a snapshot, holds a
 * ShareUpdateExclusiveLock on rel, runs as its owner, and has resolved
 * params' index_cleanup and truncate.  strategy may be NULL; pass is, unless
 * the table is being compacted.  *result, if it isn't NULL, is what was done.
 */
void
table_vacuum(Relation rel, const VacuumParams *params,
			 BufferAccessStrategy strategy, CompactionPass *pass,
			 TableResult *result)
{
	VacuumJob  *job = palloc0_object(VacuumJob);
	TableVacuum *vacuum = &job->vacuum;
	ReportStart start;
	ErrorContextCallback callback;

	report_begin(&start);
	pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM, RelationGetRelid(rel));
	progress_begin(RelationGetRelid(rel), MyProcPid);

	open_table(job, rel, params, strategy);
	job->pass = pass;
	callback.callback = error_context;
	callback.arg = vacuum;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	plan_vacuum(job);
	start_team(job, plan_workers(job));

	scan_and_vacuum(job);
	clean_up_indexes(job);

	finish_team(job);
	update_index_statistics(job);
	job->result.index_pages_after = index_pages(vacuum);
	vac_close_indexes(vacuum->nindexes, vacuum->indexes, NoLock);
	truncate_table(job);

	error_context_stack = callback.previous;

	update_table_statistics(job, start.time);
	if (pass != NULL)
		describe_pass(job, pass);
	if (result != NULL)
		*result = job->result;
	pgstat_progress_end_command();
	if (pass == NULL && report_is_wanted(params))
		report_end(&start, params, rel, &job->result);
	progress_clear();
}

/*
 * open_table
 *		Note all that has to do with the table, its indexes and the options.
 */
static void
open_table(VacuumJob *job, Relation rel, const VacuumParams *params,
		   BufferAccessStrategy strategy)
{
	TableVacuum *vacuum = &job->vacuum;

	Assert(params->index_cleanup != VACOPTVALUE_UNSPECIFIED);
	Assert(params->truncate != VACOPTVALUE_UNSPECIFIED &&
		   params->truncate != VACOPTVALUE_AUTO);

	job->params = params;
	job->may_bypass = params->index_cleanup == VACOPTVALUE_AUTO;
	job->do_index_cleanup = params->index_cleanup != VACOPTVALUE_DISABLED;
	job->do_truncate = params->truncate != VACOPTVALUE_DISABLED;

	/* The names are kept, as an error may strike where the relcache can't be
	 * asked. */
	vacuum->dbname = get_database_name(MyDatabaseId);
	vacuum->relnamespace = get_namespace_name(RelationGetNamespace(rel));
	vacuum->relname = pstrdup(RelationGetRelationName(rel));
	vacuum->rel = rel;
	vacuum->strategy = strategy;
	vac_open_indexes(rel, RowExclusiveLock, &vacuum->nindexes, &vacuum->indexes);

	job->result.dbname = vacuum->dbname;
	job->result.relnamespace = vacuum->relnamespace;
	job->result.relname = vacuum->relname;
	job->result.nindexes = vacuum->nindexes;
	job->result.indexes = palloc0_array(IndexResult, vacuum->nindexes);
	for (int i = 0; i < vacuum->nindexes; i++)
		job->result.indexes[i].name = pstrdup(RelationGetRelationName(vacuum->indexes[i]));
	job->result.index_pages_before = index_pages(vacuum);
}

/* index_pages -- how large all indexes of the table are together. */
static int64
index_pages(const TableVacuum *vacuum)
{
	int64		pages = 0;

	for (int i = 0; i < vacuum->nindexes; i++)
		pages += RelationGetNumberOfBlocks(vacuum->indexes[i]);
	return pages;
}

/*
 * plan_vacuum
 *		Set the cutoffs, measure the table, and decide what kind of vacuum this
 *		is.
 *
 * The cutoffs come first, the size next: no page scanned may hold an XID that
 * OldestXmin doesn't bound.
 */
static void
plan_vacuum(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	VacuumShared *plan = &job->plan;
	const VacuumParams *params = job->params;

	/* the shared block doesn't exist yet, but eager scanning is set up in it */
	vacuum->shared = plan;
	VacuumFailsafeActive = false;

	plan->relid = RelationGetRelid(vacuum->rel);
	plan->leader_pid = MyProcPid;
	plan->nindexes = vacuum->nindexes;
	plan->is_autovacuum = AmAutoVacuumWorkerProcess();
	plan->verbose = (params->options & VACOPT_VERBOSE) != 0;
	plan->do_index_vacuuming = job->do_index_cleanup;
	plan->ring_nbuffers = GetAccessStrategyBufferCount(vacuum->strategy);

	plan->aggressive = vacuum_get_cutoffs(vacuum->rel,
										  params, &plan->cutoffs);
	plan->rel_pages = RelationGetNumberOfBlocks(vacuum->rel);
	plan->compacting = job->pass != NULL;
	plan->tail_start = job->pass != NULL ? job->pass->tail_start : InvalidBlockNumber;
	plan->skip_with_vm = (params->options & VACOPT_DISABLE_PAGE_SKIPPING) == 0;
	if (!plan->skip_with_vm)
		plan->aggressive = true;
	eager_scan_setup(vacuum, params);

	job->result.aggressive = plan->aggressive;
	job->result.orig_rel_pages = plan->rel_pages;
	job->result.new_rel_pages = plan->rel_pages;
	job->result.oldest_xmin = plan->cutoffs.OldestXmin;
	job->result.old_relfrozenxid = plan->cutoffs.relfrozenxid;
	job->result.old_relminmxid = plan->cutoffs.relminmxid;

	if (plan->verbose)
		ereport(INFO,
				(errmsg(plan->aggressive ?
						"aggressively vacuuming \"%s.%s.%s\"" :
						"vacuuming \"%s.%s.%s\"",
						vacuum->dbname, vacuum->relnamespace, vacuum->relname)));

	/* in this order: the failsafe is shown, too */
	compat_report_vacuum_start(params->is_wraparound, plan->aggressive);
	/* If things are that bad, all that the team will do is to scan the heap. */
	failsafe_check(vacuum);
}

/*
 * plan_workers
 *		How many workers to ask for.
 *
 * As many as PARALLEL says, or as the table's size or its indexes call for,
 * but not more than max_parallel_maintenance_workers; in an autovacuum worker,
 * than its settings leave, and than the budget feeds.  In an emergency the
 * indexes call for none, as they are left alone; all the others freeze.
 */
static int
plan_workers(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	int			asked = job->params->nworkers;
	int			nworkers;

	if (!degree_is_free(vacuum->rel, asked, "vacuum") || job->plan.rel_pages == 0)
		return 0;

	if (asked > 0)
		nworkers = asked;
	else
	{
		nworkers = degree_for_table(vacuum->rel, job->plan.rel_pages);
		if (job->do_index_cleanup && !VacuumFailsafeActive)
			nworkers = Max(nworkers, index_parallel_degree(vacuum));
	}
	if (AmAutoVacuumWorkerProcess())
	{
		int			allowed = compat_autovacuum_workers(vacuum->rel);

		nworkers = Min(nworkers, degree_autovacuum_limit());
		job->result.workers_not_allowed = Max(nworkers - allowed, 0);
		nworkers = Min(nworkers, allowed);
		return degree_reserve(Min(nworkers, Max(pace_processes_fed() - 1, 0)));
	}
	return Min(nworkers, max_parallel_maintenance_workers);
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
 *		Note where what is of variable size will be in the shared block; return
 *		the size of that.
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
	plan->index_members_start = size;
	size = MAXALIGN(add_size(size, mul_size(sizeof(IndexMemberShared),
											mul_size(plan->nindexes, plan->nmembers))));
	*areas_start = size;
	size = MAXALIGN(add_size(size, index_shared_size(&job->vacuum)));
	plan->pace_start = TYPEALIGN(PG_CACHE_LINE_SIZE, size);
	size = MAXALIGN(add_size(plan->pace_start, pace_shared_size()));
	if (plan->eager.enabled)
	{
		plan->eager.fails_start = size;
		size = MAXALIGN(add_size(size, eager_scan_shared_size(plan->rel_pages)));
	}
	/* Without a second pass over the heap no one needs the dead TIDs. */
	if (plan->nindexes > 0 && plan->do_index_vacuuming && !VacuumFailsafeActive)
	{
		plan->dead_tids_start = TYPEALIGN(PG_CACHE_LINE_SIZE, size);
		size = add_size(plan->dead_tids_start,
						dead_tids_shared_size(plan->rel_pages, memory, plan->nmembers));
	}
	return size;
}

/*
 * start_team
 *		Lay out and fill the shared block, and launch the workers.
 */
static void
start_team(VacuumJob *job, int nworkers)
{
	TableVacuum *vacuum = &job->vacuum;
	VacuumShared *plan = &job->plan;
	VacuumShared *shared;
	Size		memory = (Size) memory_kb() * 1024;
	Size		areas_start;
	Size		size;
	instr_time	start;

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
	pg_atomic_init_u32(&shared->next_index, 0);
	pg_atomic_init_u32(&shared->empty_pages_found, 0);
	pg_atomic_init_u32(&shared->more_work, 0);
	for (int i = 0; i < shared->nmembers; i++)
	{
		pg_atomic_init_u32(&vacuum_member(shared, i)->joined, 0);
		pg_atomic_init_u32(&vacuum_member(shared, i)->scan_block, 0);
		pg_atomic_init_u64(&vacuum_member(shared, i)->scan_rest, 0);
	}
	pace_create(vacuum_pace(shared), shared->relid);
	if (shared->dead_tids_start > 0)
		dead_tids_init(dead_tids_shared(shared), team_segment(job->team) != NULL,
					   shared->rel_pages, memory, shared->nmembers);
	join_vacuum(vacuum, shared, 0);
	index_setup(vacuum, nworkers > 0, areas_start);

	job->result.workers_planned = nworkers;
	pace_allow_workers(nworkers, launch_workers, job);
	job->result.team_seconds = seconds_since(start);
}

/*
 * launch_workers
 *		Launch the team's workers: before the first phase, or at a delay point.
 */
static void
launch_workers(void *argument)
{
	VacuumJob  *job = argument;

	team_launch(job->team);
	job->result.workers_launched = team_launched_workers(job->team);
	ereport(job->vacuum.shared->verbose ? INFO : DEBUG2,
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
		.join = join_as_worker,
		.routine = run_phase,
		.is_needed = worker_is_needed,
		.take_place = take_place,
		.has_place = has_place,
		.leave = leave_as_worker,
		.error_context = error_context
	};

	team_work(&worker, segment, toc);
}

/* join_as_worker -- open what the leader has open. */
static void *
join_as_worker(void *block, dsm_segment *segment)
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

/* worker_is_needed -- has it pages to visit of which nobody else knows? */
static bool
worker_is_needed(void *state)
{
	return index_duties_put_off(state);
}

/*
 * take_place
 *		Has this worker a place at work, or can it take one?  It does at any rate if it
 *		knows of pages that are to be visited, or deleted, and nobody else does.
 */
static bool
take_place(void *state)
{
	return pace_take_place(must_stay(state));
}

/*
 * has_place
 *		The same at the end of its part of a phase: has it given its place up?
 */
static bool
has_place(void *state)
{
	TableVacuum *vacuum = state;

	if (must_stay(vacuum))
		(void) pace_take_place(true);
	if (!pace_has_place())
		vacuum->left_phase = vacuum->shared->phase_number;
	return pace_has_place();
}

/* must_stay -- has this process found pages that nobody else knows of? */
static bool
must_stay(const TableVacuum *vacuum)
{
	for (int i = 0; i < vacuum->nindexes; i++)
		if (vacuum->empty_pages[i].count > 0)
			return true;
	return index_duties_put_off(vacuum);
}

/* leave_as_worker -- close it again. */
static void
leave_as_worker(void *state)
{
	TableVacuum *vacuum = state;

	progress_clear();
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
 * Each has its own idea of which rows are dead to all, which may be ahead of
 * the leader's cutoffs, never behind them: pruning honours both.
 */
static void
join_vacuum(TableVacuum *vacuum, VacuumShared *shared, int member)
{
	vacuum->shared = shared;
	vacuum->member = member;
	vacuum->vistest = GlobalVisTestFor(vacuum->rel);
	if (shared->dead_tids_start > 0)
		vacuum->dead_tids = dead_tids_attach(dead_tids_shared(shared));

	index_join(vacuum);

	/* If no page holds them back, these are what the table advances to. */
	vacuum->counters.new_relfrozenxid = shared->cutoffs.OldestXmin;
	vacuum->counters.new_relminmxid = shared->cutoffs.OldestMxact;
}

/*
 * scan_and_vacuum
 *		Scan the heap; vacuum indexes and heap whenever the dead-TID store is
 *		full, and at the end.
 */
static void
scan_and_vacuum(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	VacuumShared *shared = vacuum->shared;
	VacuumCounters *counters = &job->result.counters;
	const int	progress[] = {PROGRESS_VACUUM_PHASE, PROGRESS_VACUUM_TOTAL_HEAP_BLKS};
	const int64 values[] = {PROGRESS_VACUUM_PHASE_SCAN_HEAP, shared->rel_pages};
	BlockNumber unscanned;
	uint64		passed = 0;

	heap_scan_begin(vacuum);
	for (;;)
	{
		pgstat_progress_update_multi_param(lengthof(progress), progress, values);
		/* More memory is to be had only where all the others wait. */
		shared->scan_goes_on = false;
		do
		{
			pg_atomic_write_u32(&shared->store_is_full, 0);
			run_team_phase(job, PHASE_HEAP_SCAN);
			unscanned = heap_scan_first_unscanned(vacuum);
			shared->scan_goes_on = true;
			/* or it was left over by a worker that is parked */
		} while (unscanned < shared->rel_pages &&
				 (pg_atomic_read_u32(&shared->store_is_full) == 0 || grow_store(job)));
		report_members(job, PHASE_HEAP_SCAN);
		if (unscanned >= shared->rel_pages)
			break;

		/* The store is too small for this table. */
		if (pg_atomic_read_u64(&shared->blocks_passed) == passed)
			elog(ERROR, "no block of table \"%s\" could be scanned for lack of memory",
				 vacuum->relname);
		passed = pg_atomic_read_u64(&shared->blocks_passed);
		progress_rounds(passed);
		job->may_bypass = false;
		vacuum_indexes_and_heap(job);
		FreeSpaceMapVacuumRange(vacuum->rel, vacuum->fsm_vacuumed,
								ranges_position(&shared->scan_ranges));
		vacuum->fsm_vacuumed = unscanned;
		dead_tids_reset(vacuum->dead_tids);
	}

	pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_SCANNED, shared->rel_pages);

	sum_counters(job);
	/* relfrozenxid rests on it */
	if ((uint64) counters->scanned_pages + counters->skipped_pages != shared->rel_pages)
		elog(ERROR, "of %u pages of table \"%s\" %u were scanned and %u skipped",
			 shared->rel_pages, vacuum->relname, counters->scanned_pages, counters->skipped_pages);
	job->result.new_live_tuples =
		vac_estimate_reltuples(vacuum->rel, shared->rel_pages,
							   counters->scanned_pages, counters->live_tuples);
	job->result.new_rel_tuples = Max(job->result.new_live_tuples, 0) +
		counters->recently_dead_tuples + counters->missed_dead_tuples;

	vacuum_indexes_and_heap(job);
	if (shared->rel_pages > vacuum->fsm_vacuumed)
		FreeSpaceMapVacuumRange(vacuum->rel, vacuum->fsm_vacuumed, shared->rel_pages);
	pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_VACUUMED, shared->rel_pages);
}

/*
 * grow_store
 *		Get more memory for dead TIDs, if there may be more; return false if it
 *		is time for another round.
 *
 * Warns if the memory isn't there to be had: what has been found so far is
 * vacuumed then, as if the limit were reached.
 */
static bool
grow_store(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	char	   *failure = NULL;

	if (dead_tids_grow(vacuum->dead_tids, &failure))
		return true;
	if (failure != NULL && !job->memory_ran_out)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("vacuuming the indexes of table \"%s.%s.%s\" early for lack of shared memory",
						vacuum->dbname, vacuum->relnamespace, vacuum->relname),
				 errdetail_internal("%s", failure)));
	job->memory_ran_out |= failure != NULL;
	return false;
}

/*
 * vacuum_indexes_and_heap
 *		Delete the index entries of all dead TIDs found so far, then free them.
 *
 * The heap's turn comes only when each index was passed over whole.  The
 * store still has the items afterwards.
 */
static void
vacuum_indexes_and_heap(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	VacuumShared *shared = vacuum->shared;
	bool		all_indexes;

	if (vacuum->dead_tids == NULL || dead_tids_count(vacuum->dead_tids) == 0 ||
		!shared->do_index_vacuuming || VacuumFailsafeActive)
		return;

	count_dead_tids(job);
	if (bypass_is_worthwhile(job))
	{
		shared->do_index_vacuuming = false;
		return;
	}

	if (failsafe_check(vacuum))
		return;
	run_index_round(job, false, vacuum->rel->rd_rel->reltuples, true);
	all_indexes = index_finish_round(vacuum, false);
	if (failsafe_check(vacuum))
		all_indexes = false;

	shared->num_index_scans++;
	pgstat_progress_update_param(PROGRESS_VACUUM_NUM_INDEX_VACUUMS, shared->num_index_scans);

	if (all_indexes)
	{
		heap_vacuum_begin_round(vacuum);
		run_team_phase(job, PHASE_HEAP_VACUUM);
		ereport(DEBUG2,
				(errmsg("table \"%s\": removed %lld dead item identifiers",
						vacuum->relname, (long long) dead_tids_count(vacuum->dead_tids))));
	}
	else if (index_found_empty_pages(vacuum))
		run_team_phase(job, PHASE_INDEX_PAGE_DELETION);
	index_finish_page_deletion(vacuum);
}

/*
 * run_index_round
 *		Pass over all indexes, in as many phases as that takes; after an error
 *		none is registered as being vacuumed.
 */
static void
run_index_round(VacuumJob *job, bool cleanup, double reltuples, bool estimated)
{
	TableVacuum *vacuum = &job->vacuum;
	VacuumPhase phase = cleanup ? PHASE_INDEX_CLEANUP : PHASE_INDEX_VACUUM;

	PG_ENSURE_ERROR_CLEANUP(index_abort_round, PointerGetDatum(vacuum));
	{
		index_begin_round(vacuum, cleanup, reltuples, estimated,
						  job->result.workers_launched + 1);
		do
			run_team_phase(job, phase);
		while (index_next_batch(vacuum));
	}
	PG_END_ENSURE_ERROR_CLEANUP(index_abort_round, PointerGetDatum(vacuum));
}

/*
 * count_dead_tids
 *		Tell how many dead TIDs have been found, and remember it for the report.
 */
static void
count_dead_tids(VacuumJob *job)
{
	TableResult *result = &job->result;
	int64		items = dead_tids_count(job->vacuum.dead_tids);
	Size		bytes = dead_tids_bytes(job->vacuum.dead_tids);
	const int	progress[] = {PROGRESS_VACUUM_NUM_DEAD_ITEM_IDS, PROGRESS_VACUUM_DEAD_TUPLE_BYTES};
	const int64 values[] = {items, bytes};

	pgstat_progress_update_multi_param(lengthof(progress), progress, values);
	progress_store(items, bytes, dead_tids_limit(job->vacuum.dead_tids));

	result->dead_tids_rounds++;
	result->dead_tids_bytes_in_all += bytes;
	if (bytes > result->dead_tids_peak_bytes)
	{
		result->dead_tids_peak_bytes = bytes;
		result->dead_tids_at_peak = items;
	}
}

/*
 * bypass_is_worthwhile
 *		Are the dead items so few that a pass over the indexes, and another one
 *		over the heap, would cost more than it gains?
 *
 * Few pages is what counts, as each such page can't become all-visible.
 */
static bool
bypass_is_worthwhile(VacuumJob *job)
{
	BlockNumber max_pages = job->vacuum.shared->rel_pages * BYPASS_PAGES_FRACTION;

	return job->may_bypass &&
		job->result.counters.lpdead_item_pages < max_pages &&
		dead_tids_bytes(job->vacuum.dead_tids) < BYPASS_STORE_BYTES;
}

/*
 * clean_up_indexes
 *		Let the index AMs finish.
 */
static void
clean_up_indexes(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	bool		estimated = job->result.counters.scanned_pages < vacuum->shared->rel_pages;

	if (vacuum->nindexes == 0 || !job->do_index_cleanup || VacuumFailsafeActive)
		return;

	/* for the AMs, all that there is in the heap counts */
	run_index_round(job, true, job->result.new_rel_tuples, estimated);
	job->result.cleanup_is_shared = index_is_shared_work(vacuum);
	index_finish_round(vacuum, true);
}

/*
 * run_team_phase
 *		Run a phase in the whole team, take its time, and report on it.
 */
static void
run_team_phase(VacuumJob *job, VacuumPhase phase)
{
	instr_time	start;

	/* in this order: the plan, the team, its phases, and all that takes an ID */
	Assert(job->team != NULL && job->vacuum.shared == team_shared(job->team));
	Assert(!TransactionIdIsValid(GetTopTransactionIdIfAny()));
	/* the heap's turn comes only with nothing left in the indexes */
	Assert(phase != PHASE_HEAP_VACUUM || dead_tids_count(job->vacuum.dead_tids) > 0);
	Assert(!VacuumFailsafeActive ||
		   (phase != PHASE_HEAP_VACUUM && phase != PHASE_INDEX_CLEANUP));

	if (phase == PHASE_HEAP_VACUUM ||
		(phase == PHASE_HEAP_SCAN && !job->vacuum.shared->scan_goes_on))
		forget_member_reports(job->vacuum.shared);

	job->vacuum.shared->phase_number++;
	INSTR_TIME_SET_CURRENT(start);
	team_run(job->team, phase, run_phase, &job->vacuum, pace_while_waiting);
	job->result.phase_seconds[phase] += seconds_since(start);
	forget_fork_sizes(job->vacuum.rel);
	if (phase == PHASE_HEAP_VACUUM)
		report_members(job, phase);
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
 * run_phase
 *		Every member's part of a phase, or the rest of it after it was parked.
 */
static void
run_phase(void *state, int phase)
{
	TableVacuum *vacuum = state;
	MemberShared *member = vacuum_member(vacuum->shared, vacuum->member);

	vacuum->comes_back = vacuum->left_phase == vacuum->shared->phase_number;
	if (!vacuum->comes_back &&
		(phase != PHASE_HEAP_SCAN || !vacuum->shared->scan_goes_on ||
		 pg_atomic_read_u32(&member->joined) == 0))
		pg_rusage_init(&vacuum->usage_start);
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
	member->phase_pages = vacuum->phase_pages;
	strlcpy(member->usage, pg_rusage_show(&vacuum->usage_start), USAGE_SIZE);
}

/*
 * find_store
 *		See to it that this process can read and fill the dead-TID store in the
 *		phase to come; return false if it can't, so that it has to sit out.
 *
 * The leader always can: it is the one that gets memory for it.  A worker that
 * could until now still can if there is no more memory than there was, so who
 * has found something in a phase can make use of it in the next.
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
 * forget_member_reports
 *		Leader, before a phase over the heap: forget what members did in others,
 *		as not all may take part in this one.
 */
static void
forget_member_reports(VacuumShared *shared)
{
	for (int i = 0; i < shared->nmembers; i++)
		vacuum_member(shared, i)->usage[0] = '\0';
}

/*
 * report_members
 *		Tell what each member did in a phase over the heap that it took part in.
 */
static void
report_members(VacuumJob *job, VacuumPhase phase)
{
	VacuumShared *shared = job->vacuum.shared;
	const char *verb = phase == PHASE_HEAP_SCAN ? "scanned" : "vacuumed";

	if (shared->nmembers == 1 || !shared->verbose)
		return;

	for (int i = 0; i < shared->nmembers; i++)
	{
		MemberShared *member = vacuum_member(shared, i);

		if (member->usage[0] != '\0')
			ereport(INFO,
					(errmsg_internal("table \"%s\": %s %u pages%s",
									 job->vacuum.relname, verb, member->phase_pages,
									 i > 0 ? " by parallel vacuum worker" : ""),
					 errdetail_internal("%s", member->usage)));
	}
}

/*
 * sum_counters
 *		Add up, between phases, what all members did.
 */
static void
sum_counters(VacuumJob *job)
{
	VacuumShared *shared = job->vacuum.shared;
	VacuumCounters *sum = &job->result.counters;

	memset(sum, 0, sizeof(VacuumCounters));
	sum->new_relfrozenxid = shared->cutoffs.OldestXmin;
	sum->new_relminmxid = shared->cutoffs.OldestMxact;

	for (int i = 0; i < shared->nmembers; i++)
	{
		MemberShared *member = vacuum_member(shared, i);
		VacuumCounters *part = &member->counters;

		if (!pg_atomic_read_u32(&member->joined))
			continue;
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
		if (TransactionIdPrecedes(part->new_relfrozenxid, sum->new_relfrozenxid))
			sum->new_relfrozenxid = part->new_relfrozenxid;
		if (MultiXactIdPrecedes(part->new_relminmxid, sum->new_relminmxid))
			sum->new_relminmxid = part->new_relminmxid;
		sum->skipped_allvisible |= part->skipped_allvisible;
	}
}

/*
 * finish_team
 *		Save what is in the shared block, and send the workers home.
 */
static void
finish_team(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	TableResult *result = &job->result;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);

	sum_counters(job);
	result->num_index_scans = vacuum->shared->num_index_scans;
	result->index_vacuum_done = vacuum->shared->do_index_vacuuming && !VacuumFailsafeActive;
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexBulkDeleteResult *stats = index_stats(vacuum, i);

		result->indexes[i].has_stats = stats != NULL;
		if (stats != NULL)
			result->indexes[i].stats = *stats;
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
	result->team_seconds += seconds_since(start);
}

/*
 * update_index_statistics
 *		Set the indexes' relpages and reltuples where they are exactly known.
 */
static void
update_index_statistics(VacuumJob *job)
{
	if (!job->do_index_cleanup || VacuumFailsafeActive)
		return;

	for (int i = 0; i < job->vacuum.nindexes; i++)
	{
		IndexResult *index = &job->result.indexes[i];

		if (index->has_stats && !index->stats.estimated_count)
			compat_vac_update_relstats(job->vacuum.indexes[i],
									   index->stats.num_pages,
									   index->stats.num_index_tuples,
									   0, 0, false, InvalidTransactionId,
									   InvalidMultiXactId, NULL, NULL, false);
	}
}

/*
 * truncate_table
 *		Give empty pages at the end back, if that is allowed and worthwhile.
 */
static void
truncate_table(VacuumJob *job)
{
	TableResult *result = &job->result;
	instr_time	start;

	Assert(job->team == NULL && !IsInParallelMode());

	/* In an emergency there may be no transaction IDs left to do it with. */
	if (!job->do_truncate || VacuumFailsafeActive ||
		result->counters.nonempty_pages >= result->orig_rel_pages ||
		(job->pass == NULL &&
		 !heap_truncate_is_worthwhile(result->orig_rel_pages,
									  result->counters.nonempty_pages)))
		return;

	INSTR_TIME_SET_CURRENT(start);
	result->new_rel_pages = heap_truncate(&job->vacuum, result->counters.nonempty_pages);
	result->removed_pages = result->orig_rel_pages - result->new_rel_pages;
	result->truncate_seconds = seconds_since(start);
}

/*
 * update_table_statistics
 *		Set what pg_class and the statistics system say of the table.
 *
 * relfrozenxid and relminmxid may advance only if no page was passed over
 * that may hold older ones.
 */
static void
update_table_statistics(VacuumJob *job, TimestampTz start)
{
	TableResult *result = &job->result;
	VacuumCounters *counters = &result->counters;
	const struct VacuumCutoffs *cutoffs PG_USED_FOR_ASSERTS_ONLY = &job->plan.cutoffs;
	BlockNumber all_visible,
				all_frozen;

	Assert(job->team == NULL && !IsInParallelMode());
	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_FINAL_CLEANUP);
	progress_phase(PROGRESS_VACUUM_PHASE_FINAL_CLEANUP, 0);

	Assert(counters->new_relfrozenxid == cutoffs->OldestXmin ||
		   TransactionIdPrecedesOrEquals(result->aggressive ? cutoffs->FreezeLimit :
										 cutoffs->relfrozenxid,
										 counters->new_relfrozenxid));
	Assert(counters->new_relminmxid == cutoffs->OldestMxact ||
		   MultiXactIdPrecedesOrEquals(result->aggressive ? cutoffs->MultiXactCutoff :
									   cutoffs->relminmxid,
									   counters->new_relminmxid));
	if (counters->skipped_allvisible)
	{
		Assert(!result->aggressive);
		counters->new_relfrozenxid = InvalidTransactionId;
		counters->new_relminmxid = InvalidMultiXactId;
	}

	/* The map may know of pages that were added since. */
	visibilitymap_count(job->vacuum.rel, &all_visible, &all_frozen);
	all_visible = Min(all_visible, result->new_rel_pages);
	all_frozen = Min(all_frozen, all_visible);

	compat_vac_update_relstats(job->vacuum.rel, result->new_rel_pages,
							   result->new_live_tuples, all_visible, all_frozen,
							   job->vacuum.nindexes > 0,
							   counters->new_relfrozenxid, counters->new_relminmxid,
							   &result->frozenxid_updated, &result->minmxid_updated, false);

	/* Dead items that were left on purpose are not to bring vacuum back soon. */
	compat_pgstat_report_vacuum(job->vacuum.rel, Max(result->new_live_tuples, 0),
								counters->recently_dead_tuples +
								counters->missed_dead_tuples, start);
}

/* describe_pass -- tell who compacts the table what this VACUUM came to. */
static void
describe_pass(const VacuumJob *job, CompactionPass *pass)
{
	const TableResult *result = &job->result;

	pass->old_pages = result->orig_rel_pages;
	pass->new_pages = result->new_rel_pages;
	pass->live_tuples = result->new_live_tuples;
	pass->recently_dead_tuples = result->counters.recently_dead_tuples;
	pass->oldest_xmin = result->oldest_xmin;
	pass->stale_locks += result->counters.stale_locks;
	pass->unused_pages = result->new_rel_pages - result->counters.nonempty_pages;
}

/*
 * error_context
 *		Say where in the table an error happened.
 */
static void
error_context(void *arg)
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

/* seconds_since -- elapsed time. */
static double
seconds_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_DOUBLE(now);
}
