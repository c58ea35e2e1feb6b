/*-------------------------------------------------------------------------
 *
 * table_rewrite.c
 *	  VACUUM FULL or REPACK of one table: the main path.
 *
 * table_rewrite reads like the rewrite that it does; README.md has the steps.  To the
 * server the two commands differ in words only, and so they do here.
 *
 * All of it is one transaction, under an AccessExclusiveLock.  The old files
 * are not touched: if it doesn't commit, the table is what it was.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "commands/progress.h"
#include "commands/tablecmds.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "debug_point.h"
#include "audit/audit.h"
#include "history/history.h"
#include "guards/guards.h"
#include "index_build/index_builds.h"
#include "library.h"
#include "new_files/new_files.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "rewrite/disk_space.h"
#include "rewrite/rewrite.h"
#include "rewrite/rewrite_report.h"
#include "rewrite/swap.h"
#include "rewrite/table_rewrite.h"
#include "settings.h"
#include "team/degree.h"
#include "team/team.h"

/* The leader's view of the whole rewrite */
typedef struct RewriteJob
{
	TableRewrite rewrite;		/* what every member has */
	RepackCommand command;		/* for what the user reads */
	const VacuumParams *params;
	Team	   *team;
	RewriteResult result;

	Oid			relid;
	Oid			new_relid;
	char		persistence;

	/* found before the team exists, and copied to its shared block */
	RewriteShared plan;
} RewriteJob;

/* For the function that is called while the leader waits */
static TableRewrite *current_rewrite;
static RewriteHeap current_heap;

PGDLLEXPORT void pg_cyclone_rewrite_worker_main(dsm_segment *segment, shm_toc *toc);

static void launch_rewrite_workers(void *argument);
static void *rewrite_join_as_worker(void *block, dsm_segment *segment);
static bool rewrite_take_place(void *state);
static bool rewrite_has_place(void *state);
static void rewrite_leave_as_worker(void *state);
static void create_new_table(RewriteJob *job, Relation rel);
static void plan_rewrite(RewriteJob *job, Relation rel);
static void plan_heap(RewriteJob *job, RewriteHeap heap, Oid old_relid, Oid new_relid);
static int	plan_workers(RewriteJob *job, Relation rel);
static void start_team(RewriteJob *job, int nworkers);
static void copy_heaps(RewriteJob *job);
static void run_rewrite_phase(void *state, int phase);
static void rewrite_while_waiting(void);
static void sum_counters(RewriteJob *job, RewriteHeap heap);
static void finish_team(RewriteJob *job);
static void index_new_toast_table(RewriteJob *job);
static void build_toast_index(Relation new_toast);
static void copy_what_is_left(RewriteJob *job);
static void set_new_statistics(RewriteJob *job);
static void close_heaps(TableRewrite *rewrite);
static void swap_and_index(RewriteJob *job);
static void limit_index_workers(const VacuumParams *params);
static void error_context(void *arg);

/* table_rewrite_is_possible -- can we rewrite this table? */
bool
table_rewrite_is_possible(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));

	if (rel->rd_rel->relkind == RELKIND_TOASTVALUE ||
		IsSystemRelation(rel) ||
		RelationIsMapped(rel) ||
		RelationIsUsedAsCatalogTable(rel))
		return false;

	if (!OidIsValid(rel->rd_rel->reltoastrelid))
		return true;

	/* the server moves all values back into the rows */
	if (!table_relation_needs_toast_table(rel))
		return false;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);

		if (attr->attlen == -1 && attr->atthasmissing)
			return false;
	}
	return true;
}

/* table_rewrite -- rewrite one table, and close it. */
void
table_rewrite(Relation rel, RepackCommand command, const VacuumParams *params)
{
	RewriteJob *job = palloc0_object(RewriteJob);
	bool		is_repack = command == REPACK_COMMAND_REPACK;
	bool		verbose = (params->options & VACOPT_VERBOSE) != 0;
	ErrorContextCallback callback;

	Assert(IsTransactionState() && GetCurrentTransactionNestLevel() == 1);
	Assert(ActiveSnapshotSet() && !IsInParallelMode());
	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));
	Assert(table_rewrite_is_possible(rel));

	CheckTableNotInUse(rel, is_repack ? "REPACK" : "VACUUM");
	if (rel->rd_rel->relkind == RELKIND_MATVIEW && !RelationIsPopulated(rel))
	{
		relation_close(rel, NoLock);
		return;
	}

	job->command = command;
	job->params = params;
	job->relid = RelationGetRelid(rel);
	job->persistence = rel->rd_rel->relpersistence;
	history_begin(is_repack ? HISTORY_REPACK : HISTORY_REWRITE, rel, params);
	job->result.command = is_repack ? "REPACK" : "VACUUM (FULL)";
	rewrite_report_begin(&job->result, rel, verbose);
	pgstat_progress_start_command(PROGRESS_COMMAND_REPACK, job->relid);
	pgstat_progress_update_param(PROGRESS_REPACK_COMMAND, command);
	progress_begin(job->relid, MyProcPid);

	limit_index_workers(params);
	disk_space_check(rel, is_repack ? "REPACK" : "VACUUM FULL");
	new_files_begin(rel);
	DEBUG_POINT("rewrite-begun");

	/* rows move, so locks on rows and pages become locks on the table */
	TransferPredicateLocksToHeapRelation(rel);

	callback.callback = error_context;
	callback.arg = &job->rewrite;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	create_new_table(job, rel);
	plan_rewrite(job, rel);
	start_team(job, plan_workers(job, rel));
	copy_heaps(job);
	finish_team(job);
	if (job->result.workers_planned > 0)
		index_builds_spare_memory();
	index_new_toast_table(job);
	rewrite_report_heap(&job->result, verbose, rel, job->plan.heaps[REWRITE_TABLE].oldest_xmin);
	set_new_statistics(job);
	close_heaps(&job->rewrite);
	relation_close(rel, NoLock);

	error_context_stack = callback.previous;

	swap_and_index(job);
	rewrite_report_end(&job->result, verbose);
	pgstat_progress_end_command();
	progress_clear();
}

/*
 * create_new_table
 *		Create the transient table, with a TOAST table if the old one has one.
 *
 * The old TOAST table is locked before the cutoffs are known.  Otherwise a VACUUM of
 * it may go by later ones, and remove what recently dead rows need.
 */
static void
create_new_table(RewriteJob *job, Relation rel)
{
	int			nestlevel;

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, false));
	if (OidIsValid(rel->rd_rel->reltoastrelid))
		LockRelationOid(rel->rd_rel->reltoastrelid, AccessExclusiveLock);

	/* the new TOAST table gets an empty index, which needs no workers */
	nestlevel = NewGUCNestLevel();
	(void) set_config_option("max_parallel_maintenance_workers", "0",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	job->new_relid = make_new_heap(job->relid, rel->rd_rel->reltablespace,
								   rel->rd_rel->relam, job->persistence, NoLock);
	AtEOXact_GUC(false, nestlevel);
	new_files_sync();
	DEBUG_POINT("rewrite-created");
}

/*
 * plan_rewrite
 *		Set the cutoffs, and note what is to be copied.
 */
static void
plan_rewrite(RewriteJob *job, Relation rel)
{
	RewriteShared *plan = &job->plan;
	TransactionId relfrozenxid = rel->rd_rel->relfrozenxid;
	MultiXactId relminmxid = rel->rd_rel->relminmxid;
	VacuumParams eager = {0};
	struct VacuumCutoffs cutoffs;
	Relation	new_rel = table_open(job->new_relid, NoLock);
	Oid			new_toast = new_rel->rd_rel->reltoastrelid;

	Assert(OidIsValid(job->new_relid));
	table_close(new_rel, NoLock);
	if (OidIsValid(rel->rd_rel->reltoastrelid) != OidIsValid(new_toast))
		elog(ERROR, "new table of relation \"%s\" is unlike the old one in having a TOAST table",
			 RelationGetRelationName(rel));

	/*
	 * as all is written anew, freeze all that can be frozen, but never go
	 * backwards
	 */
	vacuum_get_cutoffs(rel, &eager, &cutoffs);
	plan->freeze_limit = cutoffs.FreezeLimit;
	if (TransactionIdIsValid(relfrozenxid) &&
		TransactionIdPrecedes(plan->freeze_limit, relfrozenxid))
		plan->freeze_limit = relfrozenxid;
	plan->multi_cutoff = cutoffs.MultiXactCutoff;
	if (MultiXactIdIsValid(relminmxid) &&
		MultiXactIdPrecedes(plan->multi_cutoff, relminmxid))
		plan->multi_cutoff = relminmxid;

	plan->leader_pid = MyProcPid;
	plan->heaps[REWRITE_TABLE].oldest_xmin = cutoffs.OldestXmin;
	plan_heap(job, REWRITE_TABLE, job->relid, job->new_relid);

	/*
	 * No row of the table can need a value that was deleted before
	 * relfrozenxid, even if that is not long ago, and nothing older may
	 * remain.
	 */
	plan->heaps[REWRITE_TOAST].oldest_xmin =
		TransactionIdPrecedes(cutoffs.OldestXmin, plan->freeze_limit) ?
		plan->freeze_limit : cutoffs.OldestXmin;
	if (OidIsValid(new_toast))
		plan_heap(job, REWRITE_TOAST, rel->rd_rel->reltoastrelid, new_toast);

	job->result.old_blocks = plan->heaps[REWRITE_TABLE].old_blocks;
}

/* plan_heap -- note what the team must know of a heap to be copied. */
static void
plan_heap(RewriteJob *job, RewriteHeap heap, Oid old_relid, Oid new_relid)
{
	HeapCopyShared *copy = &job->plan.heaps[heap];
	Relation	old_heap = table_open(old_relid, NoLock);

	Assert(OidIsValid(old_relid) && OidIsValid(new_relid));
	copy->is_wanted = true;
	copy->old_relid = old_relid;
	copy->new_relid = new_relid;
	copy->old_blocks = RelationGetNumberOfBlocks(old_heap);
	copy->relfrozenxid = old_heap->rd_rel->relfrozenxid;
	copy->relminmxid = old_heap->rd_rel->relminmxid;
	copy->preserves_cache = file_cache_is_wanted(old_heap, copy->old_blocks, copy->old_blocks);
	table_close(old_heap, NoLock);
}

/*
 * plan_workers
 *		How many workers to ask for: as many as PARALLEL says, or as the table's
 *		size calls for, but not more than max_parallel_maintenance_workers and
 *		shared_buffers allow.
 */
static int
plan_workers(RewriteJob *job, Relation rel)
{
	HeapCopyShared *heaps = job->plan.heaps;
	BlockNumber pages = Max(heaps[REWRITE_TABLE].old_blocks, heaps[REWRITE_TOAST].old_blocks);
	int			asked = job->params->nworkers;
	int			nworkers;
	const char *command = job->command == REPACK_COMMAND_REPACK ? "repack" : "vacuum";

	if (!degree_allows_workers(rel, asked, command) || pages == 0)
		return 0;
	if (asked <= 0)
		asked = degree_for_table(rel, pages);
	asked = Min(asked, max_parallel_maintenance_workers);
	nworkers = degree_within_buffers(asked, DEGREE_PINS);
	job->result.workers_without_buffers = asked - nworkers;
	return nworkers;
}

/*
 * start_team
 *		Lay out and fill the shared block, and launch the workers.
 */
static void
start_team(RewriteJob *job, int nworkers)
{
	TableRewrite *rewrite = &job->rewrite;
	RewriteShared *plan = &job->plan;
	RewriteShared *shared;
	Size		size = MAXALIGN(sizeof(RewriteShared));

	Assert(nworkers >= 0 && job->team == NULL);
	plan->nmembers = nworkers + 1;
	plan->members_start = TYPEALIGN(PG_IO_ALIGN_SIZE, size);
	size = add_size(plan->members_start, mul_size(sizeof(RewriteMemberShared), plan->nmembers));
	for (int i = 0; i < NUM_REWRITE_HEAPS; i++)
	{
		if (!plan->heaps[i].is_wanted)
			continue;
		plan->heaps[i].left_blocks_start = MAXALIGN(size);
		size = add_size(plan->heaps[i].left_blocks_start, heap_copy_shared_size(&plan->heaps[i]));
		if (plan->heaps[i].preserves_cache)
		{
			plan->heaps[i].file_cache_start = MAXALIGN(size);
			size = add_size(plan->heaps[i].file_cache_start,
							file_cache_map_size(plan->heaps[i].old_blocks));
		}
	}
	if (plan->heaps[REWRITE_TOAST].is_wanted)
	{
		plan->value_ids_start = TYPEALIGN(PG_CACHE_LINE_SIZE, size);
		size = add_size(plan->value_ids_start,
						value_ids_size(plan->heaps[REWRITE_TOAST].old_blocks));
	}
	plan->pace_start = TYPEALIGN(PG_CACHE_LINE_SIZE, size);
	size = add_size(plan->pace_start, pace_shared_size());

	job->team = team_create("pg_cyclone_rewrite_worker_main", nworkers, size);
	shared = team_shared(job->team);
	*shared = *plan;
	for (int i = 0; i < NUM_REWRITE_HEAPS; i++)
		heap_copy_init_shared(shared, &shared->heaps[i]);
	if (shared->value_ids_start != 0)
		value_ids_init(rewrite_value_ids(shared), shared->heaps[REWRITE_TOAST].old_blocks);
	for (int i = 0; i < shared->nmembers; i++)
		pg_atomic_init_u32(&rewrite_member(shared, i)->joined, 0);
	pace_create(rewrite_pace(shared), job->relid, true);

	rewrite->shared = shared;
	for (int i = 0; i < NUM_REWRITE_HEAPS; i++)
		heap_copy_open(rewrite, i);

	job->result.workers_planned = nworkers;
	pace_allow_workers(nworkers, job->params->nworkers > 0, launch_rewrite_workers, job);
}

/* launch_rewrite_workers -- launch them: before the first phase, or at a delay point. */
static void
launch_rewrite_workers(void *argument)
{
	RewriteJob *job = argument;

	Assert(job->team != NULL);
	team_launch(job->team);
	job->result.workers_launched = team_launched_workers(job->team);
}

/* pg_cyclone_rewrite_worker_main -- a worker. */
void
pg_cyclone_rewrite_worker_main(dsm_segment *segment, shm_toc *toc)
{
	static const TeamWorker worker = {
		.join = rewrite_join_as_worker,
		.routine = run_rewrite_phase,
		.take_place = rewrite_take_place,
		.has_place = rewrite_has_place,
		.leave = rewrite_leave_as_worker,
		.error_context = error_context
	};

	refuse_without_preloading();
	team_work(&worker, segment, toc);
}

/* rewrite_join_as_worker -- open what the leader has open. */
static void *
rewrite_join_as_worker(void *block, dsm_segment *segment)
{
	RewriteShared *shared = block;
	TableRewrite *rewrite = palloc0_object(TableRewrite);

	rewrite->shared = shared;
	rewrite->member = ParallelWorkerNumber + 1;
	/* the locks don't conflict with the leader's */
	for (int i = 0; i < NUM_REWRITE_HEAPS; i++)
		heap_copy_open(rewrite, i);

	progress_begin(shared->heaps[REWRITE_TABLE].old_relid, shared->leader_pid);
	pace_join(rewrite_pace(shared));
	return rewrite;
}

/* rewrite_take_place -- has this worker a place at work, or can it take one? */
static bool
rewrite_take_place(void *state)
{
	return pace_take_place(false);
}

/* rewrite_has_place -- has this worker still a place at work? */
static bool
rewrite_has_place(void *state)
{
	return pace_has_place();
}

/* rewrite_leave_as_worker -- close it again. */
static void
rewrite_leave_as_worker(void *state)
{
	progress_clear();
	close_heaps((TableRewrite *) state);
}

/* copy_heaps -- have the team copy the table and its TOAST table. */
static void
copy_heaps(RewriteJob *job)
{
	TableRewrite *rewrite = &job->rewrite;
	const int	progress[] = {PROGRESS_REPACK_PHASE, PROGRESS_REPACK_TOTAL_HEAP_BLKS};
	const int64 values[] = {PROGRESS_REPACK_PHASE_SEQ_SCAN_HEAP,
	rewrite->shared->heaps[REWRITE_TABLE].old_blocks};
	instr_time	start;

	pgstat_progress_update_multi_param(lengthof(progress), progress, values);
	current_rewrite = rewrite;
	for (current_heap = 0; current_heap < NUM_REWRITE_HEAPS; current_heap++)
	{
		if (!rewrite->shared->heaps[current_heap].is_wanted)
			continue;
		INSTR_TIME_SET_CURRENT(start);
		team_run(job->team, current_heap, run_rewrite_phase, rewrite, rewrite_while_waiting);
		heap_copy_take_over(rewrite);
		rewrite_report_step(&job->result,
							current_heap == REWRITE_TOAST ? STEP_COPY_TOAST : STEP_COPY_TABLE,
							start);
		sum_counters(job, current_heap);
		if (current_heap == REWRITE_TABLE)
			copy_what_is_left(job);
		heap_copy_finish(rewrite, current_heap);
		audit_rewrite_count(rewrite, current_heap, job->result.counters[current_heap].tuples_kept);
		job->result.stale_locks += pg_atomic_read_u64(&rewrite->shared->heaps[current_heap].stale_locks);
	}
	heap_copy_show_progress(rewrite, REWRITE_TABLE);
}

/* copy_what_is_left -- copy the tuples of the table that are left to the leader. */
static void
copy_what_is_left(RewriteJob *job)
{
	TableRewrite *rewrite = &job->rewrite;
	HeapCopyShared *toast = &rewrite->shared->heaps[REWRITE_TOAST];
	RewriteCounters *sum = &job->result.counters[REWRITE_TABLE];
	instr_time	start;

	if (sum->tuples_in_chains == 0 && sum->tuples_too_big == 0)
		return;

	INSTR_TIME_SET_CURRENT(start);
	if (sum->tuples_too_big > 0)
		left_tuples_copy_big(rewrite, sum);
	if (sum->tuples_in_chains > 0)
		update_chains_copy(rewrite, sum);
	/* values of rows that were too big */
	if (toast->is_wanted)
		new_blocks_go_on_behind(rewrite->new_heaps[REWRITE_TOAST], &toast->new_blocks);
	rewrite_report_step(&job->result, STEP_COPY_CHAINS, start);
}

/* run_rewrite_phase -- every member's part of a phase. */
static void
run_rewrite_phase(void *state, int phase)
{
	TableRewrite *rewrite = state;
	RewriteShared *shared = rewrite->shared;
	RewriteMemberShared *member = rewrite_member(shared, rewrite->member);

	Assert(phase >= 0 && phase < NUM_REWRITE_HEAPS);
	pg_atomic_write_u32(&member->joined, 1);
	/* a worker that was parked comes back to the same phase */
	if (rewrite->last_phase != phase + 1)
		rewrite->phase_pages = 0;
	rewrite->last_phase = phase + 1;
	progress_phase(phase == REWRITE_TOAST ? PROGRESS_REWRITE_COPY_TOAST : PROGRESS_REWRITE_COPY_HEAP,
				   shared->heaps[phase].old_blocks);
	pace_begin_work();
	heap_copy_phase(rewrite, phase);
	pace_end_work();
	memcpy(member->counters, rewrite->counters, sizeof(member->counters));
	member->phase_pages = rewrite->phase_pages;
}

/* rewrite_while_waiting -- what the leader does while it waits for workers. */
static void
rewrite_while_waiting(void)
{
	heap_copy_show_progress(current_rewrite, current_heap);
	pace_while_waiting();
}

/*
 * sum_counters
 *		Add up what all members did in a heap, before linked versions are copied.
 */
static void
sum_counters(RewriteJob *job, RewriteHeap heap)
{
	RewriteShared *shared = job->rewrite.shared;
	RewriteCounters *sum = &job->result.counters[heap];

	for (int i = 0; i < shared->nmembers; i++)
	{
		RewriteMemberShared *member = rewrite_member(shared, i);
		RewriteCounters *part = &member->counters[heap];

		if (!pg_atomic_read_u32(&member->joined))
			continue;
		sum->tuples_kept += part->tuples_kept;
		sum->tuples_removed += part->tuples_removed;
		sum->tuples_recently_dead += part->tuples_recently_dead;
		sum->tuples_in_chains += part->tuples_in_chains;
		sum->tuples_too_big += part->tuples_too_big;
		sum->tuples_orphaned += part->tuples_orphaned;
		sum->audited_pages += part->audited_pages;
	}
}

/* finish_team -- save what is in the shared block, and end the team. */
static void
finish_team(RewriteJob *job)
{
	TableRewrite *rewrite = &job->rewrite;

	Assert(job->team != NULL);
	pace_leave();
	job->plan = *rewrite->shared;
	rewrite->shared = &job->plan;
	team_end(job->team);
	job->team = NULL;
}

/*
 * index_new_toast_table
 *		Build the index of the new TOAST table.
 *
 * To the server, old snapshots need nothing of a table that is as new as our
 * transaction, so it leaves recently dead rows out of its indexes.  But this table
 * has rows of the old one, and will take its place.  So it isn't marked as new
 * meanwhile (build_toast_index).
 */
static void
index_new_toast_table(RewriteJob *job)
{
	HeapCopyShared *toast = &job->rewrite.shared->heaps[REWRITE_TOAST];
	Relation	new_toast = job->rewrite.new_heaps[REWRITE_TOAST];
	instr_time	start;

	Assert(job->team == NULL && !IsInParallelMode());
	if (!toast->is_wanted || pg_atomic_read_u32(&toast->new_blocks.nblocks) == 0)
		return;

	INSTR_TIME_SET_CURRENT(start);
	progress_phase(PROGRESS_REWRITE_INDEX_TOAST, 0);
	guards_point();
	build_toast_index(new_toast);
	CommandCounterIncrement();
	rewrite_report_step(&job->result, STEP_INDEX_TOAST, start);
}

/* build_toast_index -- have the server build it. */
static void
build_toast_index(Relation new_toast)
{
	ReindexParams params = {0};
	SubTransactionId create_subid = new_toast->rd_createSubid;

	PG_TRY();
	{
		new_toast->rd_createSubid = InvalidSubTransactionId;
		reindex_relation(NULL, RelationGetRelid(new_toast), 0, &params);
	}
	PG_FINALLY();
	{
		new_toast->rd_createSubid = create_subid;
	}
	PG_END_TRY();
}

/*
 * set_new_statistics
 *		Note the size of the new table in its pg_class row, which will be swapped
 *		with that of the old one.
 */
static void
set_new_statistics(RewriteJob *job)
{
	Relation	pg_class = table_open(RelationRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(job->new_relid));
	Form_pg_class form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", job->new_relid);
	form = (Form_pg_class) GETSTRUCT(tuple);
	form->relpages = RelationGetNumberOfBlocks(job->rewrite.new_heaps[REWRITE_TABLE]);
	form->reltuples = job->result.counters[REWRITE_TABLE].tuples_kept;
	CatalogTupleUpdate(pg_class, &tuple->t_self, tuple);
	heap_freetuple(tuple);
	table_close(pg_class, RowExclusiveLock);
	CommandCounterIncrement();
}

/* close_heaps -- close what heap_copy_open has opened; the locks remain. */
static void
close_heaps(TableRewrite *rewrite)
{
	for (int i = 0; i < NUM_REWRITE_HEAPS; i++)
	{
		if (rewrite->old_heaps[i] == NULL)
			continue;
		table_close(rewrite->old_heaps[i], NoLock);
		table_close(rewrite->new_heaps[i], NoLock);
	}
}

/*
 * swap_and_index
 *		Make the new files the table's, build its indexes, and drop the rest.
 *
 * The server builds them all, unless they can be built at once with profit.  It uses no
 * index until that is built.  As in its own VACUUM FULL, unique indexes are not checked for
 * duplicates.
 */
static void
swap_and_index(RewriteJob *job)
{
	RewriteShared *plan = &job->plan;
	Relation	rel = table_open(job->relid, NoLock);
	IndexBuilds *builds = index_builds_plan(rel, job->new_relid, job->params->nworkers);
	ReindexParams params = {0};
	instr_time	start;

	Assert(job->team == NULL && !IsInParallelMode());
	table_close(rel, NoLock);
	INSTR_TIME_SET_CURRENT(start);
	progress_phase(PROGRESS_REWRITE_INDEX, 0);
	DEBUG_POINT("rewrite-swap");
	pgstat_progress_update_param(PROGRESS_REPACK_PHASE,
								 PROGRESS_REPACK_PHASE_SWAP_REL_FILES);
	swap_files(job->relid, job->new_relid, plan->freeze_limit, plan->multi_cutoff);

	pgstat_progress_update_param(PROGRESS_REPACK_PHASE,
								 PROGRESS_REPACK_PHASE_REBUILD_INDEX);
	if (builds != NULL)
	{
		job->result.indexes.built = rewrite_report_index;
		job->result.indexes.arg = &job->result;
		index_builds_run(builds, &job->result.indexes);
	}
	else
	{
		/* here a guard may hold it, as none can once the build has begun */
		guards_point();
		reindex_relation(NULL, job->relid, REINDEX_REL_SUPPRESS_INDEX_USE, &params);
	}

	pgstat_progress_update_param(PROGRESS_REPACK_PHASE,
								 PROGRESS_REPACK_PHASE_FINAL_CLEANUP);
	if (cyclone_audit > 0)
		job->result.audited_index_pages = audit_rewrite_indexes(job->relid, job->result.command);
	swap_finish(job->relid, job->new_relid);
	DEBUG_POINT("rewrite-swapped");
	rewrite_report_step(&job->result, STEP_SWAP_AND_INDEX, start);
}

/* limit_index_workers -- have the server build indexes with as many workers as PARALLEL says. */
static void
limit_index_workers(const VacuumParams *params)
{
	char		number[12];

	if (params->nworkers == 0)
		return;
	pg_ltoa(Max(Min(params->nworkers, max_parallel_maintenance_workers), 0), number);
	(void) set_config_option("max_parallel_maintenance_workers", number,
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("min_parallel_table_scan_size", "0",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* error_context -- say where an error happened. */
static void
error_context(void *arg)
{
	TableRewrite *rewrite = arg;

	if (rewrite->place == NULL)
		return;
	if (OffsetNumberIsValid(rewrite->offnum))
		errcontext("while rewriting block %u offset %u of relation \"%s\"",
				   rewrite->blkno, rewrite->offnum, RelationGetRelationName(rewrite->place));
	else
		errcontext("while rewriting block %u of relation \"%s\"",
				   rewrite->blkno, RelationGetRelationName(rewrite->place));
}
