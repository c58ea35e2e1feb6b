/*-------------------------------------------------------------------------
 *
 * table_vacuum.c
 *	  VACUUM of one table: the main path.
 *
 * table_vacuum reads like the vacuum it does; README.md has the steps, and why the heap
 * comes after the indexes.
 *
 * Memory: everything here lives in the transaction's context, and goes with it.  The dead
 * TIDs are in the team's shared block, which is bounded by maintenance_work_mem.
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
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/smgr.h"
#include "utils/lsyscache.h"

#include "at_exit.h"
#include "compat.h"
#include "debug_point.h"
#include "audit/audit.h"
#include "engine/heap/skip_policy.h"
#include "engine/phases.h"
#include "engine/server_rules.h"
#include "engine/table_job.h"
#include "engine/table_vacuum.h"
#include "relation_size.h"
#include "report/progress.h"
#include "report/verbose.h"
#include "team/degree.h"
#include "team/team.h"

/* A table of no more pages is tiny. */
#define FEW_PAGES				32

/* The VACUUM that is in a round over the indexes, or NULL */
static TableVacuum *round_of = NULL;

static void open_vacuumed_table(VacuumJob *job, Relation rel, const VacuumParams *params,
								BufferAccessStrategy strategy);
static void count_index_pages(VacuumJob *job);
static void plan_vacuum(VacuumJob *job);
static bool freezing_is_held(const VacuumParams *params, TransactionId oldest_xmin);
static void scan_and_vacuum(VacuumJob *job);
static double count_rows(const VacuumJob *job);
static bool grow_store(VacuumJob *job);
static void vacuum_indexes_and_heap(VacuumJob *job);
static void run_index_round(VacuumJob *job, bool cleanup, double reltuples, bool estimated);
static void abort_round(void);
static void count_dead_tids(VacuumJob *job);
static bool bypass_is_worthwhile(VacuumJob *job);
static void clean_up_indexes(VacuumJob *job);

/*
 * table_vacuum
 *		Vacuum one table.
 */
void
table_vacuum(Relation rel, const VacuumParams *params,
			 BufferAccessStrategy strategy, CompactionPass *pass,
			 TableResult *result)
{
	VacuumJob  *job = palloc0_object(VacuumJob);
	TableVacuum *vacuum = &job->vacuum;
	TimestampTz start_time = GetCurrentTimestamp();
	bool		is_reported = pass == NULL && report_is_wanted(params);
	ReportStart start;
	ErrorContextCallback callback;

	Assert(ActiveSnapshotSet() && !IsInParallelMode());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	Assert(rel->rd_rel->relowner == GetUserId());
	if (is_reported)
		report_begin(&start);
	pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM, RelationGetRelid(rel));
	progress_begin(RelationGetRelid(rel), MyProcPid);

	open_vacuumed_table(job, rel, params, strategy);
	job->pass = pass;
	callback.callback = table_error_context;
	callback.arg = vacuum;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	plan_vacuum(job);
	table_start_team(job, table_plan_workers(job));
	/* once more, as now there is a pace that the table's age may change */
	failsafe_check(vacuum);

	scan_and_vacuum(job);
	clean_up_indexes(job);

	table_finish_team(job);
	table_update_index_statistics(job);
	count_index_pages(job);
	vac_close_indexes(vacuum->nindexes, vacuum->indexes, NoLock);
	table_truncate(job);

	error_context_stack = callback.previous;

	table_update_statistics(job, start_time);
	if (pass != NULL)
		table_describe_pass(job, pass);
	if (result != NULL)
		*result = job->result;
	pgstat_progress_end_command();
	if (is_reported)
		report_end(&start, params, rel, &job->result);
	progress_clear();
}

/*
 * open_vacuumed_table
 *		Note the table, its indexes and the options.
 */
static void
open_vacuumed_table(VacuumJob *job, Relation rel, const VacuumParams *params,
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

	/*
	 * The names are kept, as an error may strike where the relcache can't be
	 * asked.
	 */
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
}

/*
 * count_index_pages
 *		How large were all indexes of the table together, and how large are they?
 *		An index to which nothing was done counts as unchanged.
 */
static void
count_index_pages(VacuumJob *job)
{
	const TableVacuum *vacuum = &job->vacuum;
	TableResult *result = &job->result;

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		result->index_pages_before += vacuum->index_blocks[i];
		result->index_pages_after += result->indexes[i].has_stats ?
			relation_blocks(vacuum->indexes[i]) : vacuum->index_blocks[i];
	}
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
	skip_policy_setup(vacuum, params);

	job->result.aggressive = plan->aggressive;
	job->result.orig_rel_pages = plan->rel_pages;
	job->result.new_rel_pages = plan->rel_pages;
	job->result.oldest_xmin = plan->cutoffs.OldestXmin;
	job->result.freezing_is_held = freezing_is_held(params, plan->cutoffs.OldestXmin);
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
	/* In the failsafe the team will only scan the heap. */
	failsafe_check(vacuum);
	index_measure(vacuum, plan->rel_pages <= FEW_PAGES);
}

/*
 * freezing_is_held
 *		Is the horizon older than the age at which rows are to be frozen?  The rule is
 *		that of FreezeLimit.
 */
static bool
freezing_is_held(const VacuumParams *params, TransactionId oldest_xmin)
{
	int			min_age = params->freeze_min_age >= 0 ? params->freeze_min_age : vacuum_freeze_min_age;
	TransactionId limit = ReadNextTransactionId() - Min(min_age, autovacuum_freeze_max_age / 2);

	return TransactionIdIsNormal(limit) && TransactionIdPrecedes(oldest_xmin, limit);
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
	BlockNumber remainder;
	uint64		passed = 0;

	heap_scan_begin(vacuum);
	for (;;)
	{
		pgstat_progress_update_multi_param(lengthof(progress), progress, values);
		/* Only where all workers wait can the store get more memory. */
		shared->scan_goes_on = false;
		do
		{
			pg_atomic_write_u32(&shared->store_is_full, 0);
			table_run_phase(job, PHASE_HEAP_SCAN);
			CHECK_FOR_INTERRUPTS();
			unscanned = heap_scan_first_unscanned(vacuum);
			/* or the phase would be run again and again, for nothing */
			if (unscanned < shared->rel_pages && !heap_scan_is_left(vacuum))
				elog(ERROR, "blocks from %u on of table \"%s\" were not scanned",
					 unscanned, vacuum->relname);
			shared->scan_goes_on = true;
			/* or it was left over by a worker that is parked */
		} while (unscanned < shared->rel_pages &&
				 (pg_atomic_read_u32(&shared->store_is_full) == 0 || grow_store(job)));
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
		pg_atomic_write_u32(&shared->least_remainder, InvalidBlockNumber);
		dead_tids_reset(vacuum->dead_tids);
	}

	pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_SCANNED, shared->rel_pages);

	table_sum_counters(job);
	/* relfrozenxid rests on it */
	if ((uint64) counters->scanned_pages + counters->skipped_pages != shared->rel_pages)
		elog(ERROR, "of %u pages of table \"%s\" %u were scanned and %u skipped",
			 shared->rel_pages, vacuum->relname, counters->scanned_pages, counters->skipped_pages);
	job->result.new_live_tuples = count_rows(job);
	job->result.new_rel_tuples = Max(job->result.new_live_tuples, 0) +
		counters->recently_dead_tuples + counters->missed_dead_tuples;

	vacuum_indexes_and_heap(job);
	remainder = pg_atomic_read_u32(&shared->least_remainder);
	vacuum->fsm_vacuumed = Min(vacuum->fsm_vacuumed, remainder);
	if (shared->rel_pages > vacuum->fsm_vacuumed)
		FreeSpaceMapVacuumRange(vacuum->rel, vacuum->fsm_vacuumed, shared->rel_pages);
	pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_VACUUMED, shared->rel_pages);
}

/*
 * count_rows
 *		How many live rows the table has.
 *
 * The server's estimate takes pages that weren't scanned for as full as all were on
 * average.  Where rows have moved they are much fuller.  But moves don't change the
 * number of rows, and the first pass has counted all of them.
 */
static double
count_rows(const VacuumJob *job)
{
	const VacuumCounters *counters = &job->result.counters;
	BlockNumber npages = job->vacuum.shared->rel_pages;

	if (job->pass != NULL && counters->scanned_pages < npages)
		return Max(counters->live_tuples, job->pass->live_tuples);
	return vac_estimate_reltuples(job->vacuum.rel, npages,
								  counters->scanned_pages, counters->live_tuples);
}

/*
 * grow_store
 *		Get more memory for dead TIDs, if there may be more; return false if it
 *		is time for another round.
 *
 * Warns if there is no such memory: then the items found so far are vacuumed, as if
 * the limit were reached.
 */
static bool
grow_store(VacuumJob *job)
{
	TableVacuum *vacuum = &job->vacuum;
	char	   *failure = NULL;

	Assert(vacuum->dead_tids != NULL);
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
		if (audit_begin_indexes(vacuum))
			table_run_phase(job, PHASE_INDEX_AUDIT);
		heap_vacuum_begin_round(vacuum);
		table_run_phase(job, PHASE_HEAP_VACUUM);
		ereport(DEBUG2,
				(errmsg("table \"%s\": removed %lld dead item identifiers",
						vacuum->relname, (long long) dead_tids_count(vacuum->dead_tids))));
	}
	else if (index_found_empty_pages(vacuum))
		table_run_phase(job, PHASE_INDEX_PAGE_DELETION);
	index_finish_page_deletion(vacuum);
}

/*
 * run_index_round
 *		Pass over all indexes, in as many phases as that takes; after an error
 *		none is registered as being vacuumed.
 *
 * No PG_ENSURE_ERROR_CLEANUP: that fails where a library has something done at exit that
 * is loaded meanwhile, for a function of an index.
 */
static void
run_index_round(VacuumJob *job, bool cleanup, double reltuples, bool estimated)
{
	TableVacuum *vacuum = &job->vacuum;
	VacuumPhase phase = cleanup ? PHASE_INDEX_CLEANUP : PHASE_INDEX_VACUUM;

	index_prepare_round(vacuum, cleanup, reltuples, estimated);
	Assert(round_of == NULL);
	at_exit(abort_round);
	round_of = vacuum;
	PG_TRY();
	{
		index_begin_round(vacuum, team_launched_workers(job->team) + 1);
		do
			table_run_phase(job, phase);
		while (index_next_batch(vacuum));
	}
	PG_CATCH();
	{
		compat_unlock_pages();
		abort_round();
		PG_RE_THROW();
	}
	PG_END_TRY();
	round_of = NULL;
}

/* abort_round -- after an error, or at exit: no index is being vacuumed any more. */
static void
abort_round(void)
{
	if (round_of != NULL)
		index_abort_round(round_of);
	round_of = NULL;
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

	Assert(items > 0);
	pgstat_progress_update_multi_param(lengthof(progress), progress, values);

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
 * The number of pages counts, as each such page can't become all-visible.
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

	/* access methods want the number of all rows in the heap */
	run_index_round(job, true, job->result.new_rel_tuples, estimated);
	job->result.cleanup_is_shared = index_is_shared_work(vacuum);
	index_finish_round(vacuum, true);
}
