/*-------------------------------------------------------------------------
 *
 * table_end.c
 *	  The end of a table's VACUUM: truncation, pg_class and the statistics system.
 *
 * All of this is the leader's, after the team has ended, as it needs a
 * transaction ID.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "catalog/pg_namespace.h"
#include "commands/dbcommands.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "debug_point.h"
#include "audit/audit.h"
#include "engine/phases.h"
#include "engine/table_job.h"
#include "engine/table_vacuum.h"
#include "report/progress.h"

static void set_table_size(Relation rel, BlockNumber npages, double tuples, bool has_index,
						   TransactionId relfrozenxid, MultiXactId relminmxid,
						   bool *frozenxid_updated, bool *minmxid_updated);

/*
 * table_update_index_statistics
 *		Set the indexes' relpages and reltuples where they are exactly known.
 */
void
table_update_index_statistics(VacuumJob *job)
{
	Assert(is_leader(&job->vacuum));
	Assert(job->team == NULL && !IsInParallelMode());
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
 * table_truncate
 *		Give empty pages at the end back, if that is allowed and worthwhile.
 */
void
table_truncate(VacuumJob *job)
{
	TableResult *result = &job->result;
	instr_time	start;

	Assert(is_leader(&job->vacuum));
	Assert(job->team == NULL && !IsInParallelMode());

	/*
	 * In an emergency there may be no transaction IDs left to do it with.
	 * Compaction does it in steps, after this transaction.
	 */
	if (!job->do_truncate || VacuumFailsafeActive || job->pass != NULL ||
		!heap_truncate_is_worthwhile(result->orig_rel_pages,
									 result->counters.nonempty_pages))
		return;

	INSTR_TIME_SET_CURRENT(start);
	result->new_rel_pages = heap_truncate(&job->vacuum, result->counters.nonempty_pages);
	result->removed_pages = result->orig_rel_pages - result->new_rel_pages;
	result->truncate_seconds = table_seconds_since(start);
}

/*
 * table_truncate_step
 *		Cut off a part of the empty end of a table that is compacted, after its VACUUM;
 *		return whether there is more to be cut off now.
 */
bool
table_truncate_step(Relation rel, BufferAccessStrategy strategy, CompactionPass *pass)
{
	TableVacuum *vacuum = palloc0_object(TableVacuum);
	VacuumShared *shared = palloc0_object(VacuumShared);
	ErrorContextCallback callback;
	bool		more;

	Assert(ActiveSnapshotSet() && !IsInParallelMode());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	Assert(pass->new_pages > pass->nonempty_pages && pass->new_pages <= pass->old_pages);
	shared->relid = RelationGetRelid(rel);
	shared->rel_pages = pass->old_pages;
	shared->compacting = true;
	vacuum->shared = shared;
	vacuum->rel = rel;
	vacuum->strategy = strategy;
	vacuum->dbname = get_database_name(MyDatabaseId);
	vacuum->relnamespace = get_namespace_name(RelationGetNamespace(rel));
	vacuum->relname = pstrdup(RelationGetRelationName(rel));

	callback.callback = table_error_context;
	callback.arg = vacuum;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM, RelationGetRelid(rel));
	compat_report_vacuum_start(false, false);
	progress_begin(RelationGetRelid(rel), MyProcPid);
	pgstat_progress_update_param(PROGRESS_VACUUM_TOTAL_HEAP_BLKS, pass->new_pages);
	more = heap_truncate_step(vacuum, pass);
	set_table_size(rel, pass->new_pages, pass->live_tuples, rel->rd_rel->relhasindex,
				   InvalidTransactionId, InvalidMultiXactId, NULL, NULL);
	pgstat_progress_end_command();
	progress_clear();

	error_context_stack = callback.previous;
	return more;
}

/*
 * table_update_statistics
 *		Set what pg_class and the statistics system say of the table.
 *
 * relfrozenxid and relminmxid may advance only if no page was passed over
 * that may hold older ones.
 */
void
table_update_statistics(VacuumJob *job, TimestampTz start)
{
	TableResult *result = &job->result;
	VacuumCounters *counters = &result->counters;
	const struct VacuumCutoffs *cutoffs PG_USED_FOR_ASSERTS_ONLY = &job->plan.cutoffs;

	Assert(is_leader(&job->vacuum));
	Assert(job->team == NULL && !IsInParallelMode());
	Assert(result->new_rel_pages <= result->orig_rel_pages);
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

	if (DEBUG_FAULT("relfrozenxid"))
		counters->new_relfrozenxid = job->plan.cutoffs.OldestXmin;
	if (DEBUG_FAULT("relminmxid"))
		counters->new_relminmxid = job->plan.cutoffs.OldestMxact;
	audit_age(&job->vacuum, counters);
	set_table_size(job->vacuum.rel, result->new_rel_pages, result->new_live_tuples,
				   job->vacuum.nindexes > 0, counters->new_relfrozenxid, counters->new_relminmxid,
				   &result->frozenxid_updated, &result->minmxid_updated);

	/* Dead items that were left on purpose are not to bring vacuum back soon. */
	compat_pgstat_report_vacuum(job->vacuum.rel, Max(result->new_live_tuples, 0),
								counters->recently_dead_tuples +
								counters->missed_dead_tuples, start);
}

/* set_table_size -- set what pg_class says of a table's size, and its age if it is given. */
static void
set_table_size(Relation rel, BlockNumber npages, double tuples, bool has_index,
			   TransactionId relfrozenxid, MultiXactId relminmxid,
			   bool *frozenxid_updated, bool *minmxid_updated)
{
	BlockNumber all_visible,
				all_frozen;

	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	/* The map may know of pages that were added since. */
	visibilitymap_count(rel, &all_visible, &all_frozen);
	all_visible = Min(all_visible, npages);
	all_frozen = Min(all_frozen, all_visible);
	compat_vac_update_relstats(rel, npages, tuples, all_visible, all_frozen, has_index,
							   relfrozenxid, relminmxid, frozenxid_updated, minmxid_updated,
							   false);
}

/* table_describe_pass -- fill in *pass with what this VACUUM came to. */
void
table_describe_pass(const VacuumJob *job, CompactionPass *pass)
{
	const TableResult *result = &job->result;

	Assert(job->team == NULL);
	Assert(pass != NULL && job->pass == pass);
	pass->old_pages = result->orig_rel_pages;
	pass->new_pages = result->new_rel_pages;
	pass->live_tuples = result->new_live_tuples;
	pass->recently_dead_tuples = result->counters.recently_dead_tuples;
	pass->oldest_xmin = result->oldest_xmin;
	pass->stale_locks += result->counters.stale_locks;
	pass->audited_pages += result->counters.audited_heap_pages + result->counters.audited_index_pages;
	pass->nonempty_pages = result->counters.nonempty_pages;
	pass->nqueued = 0;
	pass->step = 0;
}
