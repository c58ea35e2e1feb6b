/*-------------------------------------------------------------------------
 *
 * index_vacuum.c
 *	  Index vacuum and index cleanup: who does which index.
 *
 * Both phases go over all indexes, each in one process, through the index
 * AM's own routine.  First the leader does those that are its alone: the AM
 * does not allow this phase in a worker, or the index is so small that
 * starting workers for it would not pay.  The others are claimed one by one,
 * the largest first, by all members, the leader among them.
 *
 * The heap may be vacuumed only after each index has been passed over whole;
 * index_finish_round says if that is so.
 *
 * Results: an AM returns a struct that it wants back the next time.  If the
 * index may be processed by changing processes, the struct lives in the
 * team's shared block, and by its choice of amparallelvacuumoptions the AM
 * declares that copying it is fine.  Otherwise the leader keeps the AM's own
 * struct, which may be longer than the server knows.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/pg_rusage.h"

#include "debug_point.h"
#include "engine/phases.h"
#include "report/progress.h"

static bool may_be_parallel(Relation index);
static bool phase_is_parallel(Relation index, bool cleanup, int num_index_scans);
static void process_index(TableVacuum *vacuum, int number, bool cleanup);
static bool is_dead(ItemPointer tid, void *state);
static void report_index(TableVacuum *vacuum, int number, bool cleanup);

/*
 * index_parallel_degree
 *		How many workers the indexes have use for.
 */
int
index_parallel_degree(const TableVacuum *vacuum)
{
	int			bulkdelete = 0,
				cleanup = 0;

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		uint8		options = vacuum->indexes[i]->rd_indam->amparallelvacuumoptions;

		if (!may_be_parallel(vacuum->indexes[i]))
			continue;
		if (options & VACUUM_OPTION_PARALLEL_BULKDEL)
			bulkdelete++;
		if (options & (VACUUM_OPTION_PARALLEL_CLEANUP | VACUUM_OPTION_PARALLEL_COND_CLEANUP))
			cleanup++;
	}

	/* one of them is for the leader */
	return Max(Max(bulkdelete, cleanup) - 1, 0);
}

/*
 * index_worker_memory_kb
 *		The maintenance_work_mem of each worker: if AMs use it, the workers
 *		together may use one.
 */
int
index_worker_memory_kb(const TableVacuum *vacuum, int nworkers)
{
	int			users = 0;

	for (int i = 0; i < vacuum->nindexes; i++)
		if (may_be_parallel(vacuum->indexes[i]) &&
			vacuum->indexes[i]->rd_indam->amusemaintenanceworkmem)
			users++;

	return users > 0 ?
		maintenance_work_mem / Min(nworkers, users) : maintenance_work_mem;
}

/*
 * index_setup
 *		Leader, before the team is launched: note what is known of the indexes.
 */
void
index_setup(TableVacuum *vacuum, bool parallel)
{
	vacuum->private_stats = palloc0_array(IndexBulkDeleteResult *, vacuum->nindexes);

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexShared *index = vacuum_index(vacuum->shared, i);
		int			place = i;

		index->nblocks = RelationGetNumberOfBlocks(vacuum->indexes[i]);
		index->may_be_parallel = parallel && may_be_parallel(vacuum->indexes[i]);
		index->member = -1;

		/* sort it into those before it, largest first */
		while (place > 0)
		{
			IndexShared *before = vacuum_index(vacuum->shared, place - 1);

			if (vacuum_index(vacuum->shared, before->claim_order)->nblocks >= index->nblocks)
				break;
			vacuum_index(vacuum->shared, place)->claim_order = before->claim_order;
			place--;
		}
		vacuum_index(vacuum->shared, place)->claim_order = i;
	}
}

/*
 * index_begin_round
 *		Leader: prepare a phase over all indexes, with the number of heap
 *		tuples to tell the AMs.
 */
void
index_begin_round(TableVacuum *vacuum, bool cleanup,
				  double reltuples, bool estimated)
{
	VacuumShared *shared = vacuum->shared;
	const int	progress[] = {PROGRESS_VACUUM_PHASE, PROGRESS_VACUUM_INDEXES_TOTAL};
	const int64 values[] = {cleanup ? PROGRESS_VACUUM_PHASE_INDEX_CLEANUP :
		PROGRESS_VACUUM_PHASE_VACUUM_INDEX, vacuum->nindexes};

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexShared *index = vacuum_index(shared, i);

		index->member = -1;
		index->leader_only = !index->may_be_parallel ||
			!phase_is_parallel(vacuum->indexes[i], cleanup, shared->num_index_scans);
	}
	shared->index_reltuples = reltuples;
	shared->index_reltuples_estimated = estimated;
	pg_atomic_write_u32(&shared->next_index, 0);

	pgstat_progress_update_multi_param(lengthof(progress), progress, values);
}

/*
 * index_phase
 *		One process's part of index vacuum or index cleanup.
 *
 * If the failsafe comes on, bulk deletion ends with the index in hand.
 */
void
index_phase(TableVacuum *vacuum, bool cleanup)
{
	progress_phase(cleanup ? PROGRESS_VACUUM_PHASE_INDEX_CLEANUP :
				   PROGRESS_VACUUM_PHASE_VACUUM_INDEX, 0);

	for (int i = 0; is_leader(vacuum) && i < vacuum->nindexes; i++)
	{
		if (!vacuum_index(vacuum->shared, i)->leader_only)
			continue;
		if (!cleanup && failsafe_check(vacuum))
			return;
		process_index(vacuum, i, cleanup);
	}

	for (;;)
	{
		uint32		place;
		int			number;

		if (is_leader(vacuum) && !cleanup)
			failsafe_check(vacuum);
		failsafe_notice(vacuum);
		if (!cleanup && VacuumFailsafeActive)
			return;

		place = pg_atomic_fetch_add_u32(&vacuum->shared->next_index, 1);
		if (place >= vacuum->nindexes)
			return;
		number = vacuum_index(vacuum->shared, place)->claim_order;
		if (!vacuum_index(vacuum->shared, number)->leader_only)
			process_index(vacuum, number, cleanup);
	}
}

/*
 * index_finish_round
 *		Leader: report on a phase; was every index processed?
 */
bool
index_finish_round(TableVacuum *vacuum, bool cleanup)
{
	const int	progress[] = {PROGRESS_VACUUM_INDEXES_TOTAL, PROGRESS_VACUUM_INDEXES_PROCESSED};
	const int64 zeros[] = {0, 0};
	bool		all = true;

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		if (vacuum_index(vacuum->shared, i)->member >= 0)
			report_index(vacuum, i, cleanup);
		else
			all = false;
	}
	pgstat_progress_update_multi_param(lengthof(progress), progress, zeros);

	Assert(all || VacuumFailsafeActive);
	return all;
}

/*
 * index_stats
 *		Leader, between phases: what the AM last said of an index, or NULL.
 */
IndexBulkDeleteResult *
index_stats(TableVacuum *vacuum, int number)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	if (!index->may_be_parallel)
		return vacuum->private_stats[number];
	return index->has_stats ? &index->stats : NULL;
}

/*
 * may_be_parallel
 *		Is the index big enough to be worth a worker, and its AM willing to
 *		work in one, in some phase?
 */
static bool
may_be_parallel(Relation index)
{
	return index->rd_indam->amparallelvacuumoptions != VACUUM_OPTION_NO_PARALLEL &&
		RelationGetNumberOfBlocks(index) >= min_parallel_index_scan_size;
}

/*
 * phase_is_parallel
 *		Is the AM willing to do this phase in a worker?
 */
static bool
phase_is_parallel(Relation index, bool cleanup, int num_index_scans)
{
	uint8		options = index->rd_indam->amparallelvacuumoptions;

	if (!cleanup)
		return (options & VACUUM_OPTION_PARALLEL_BULKDEL) != 0;
	if (options & VACUUM_OPTION_PARALLEL_CLEANUP)
		return true;
	/* After a bulk deletion little is left to do in cleanup. */
	return (options & VACUUM_OPTION_PARALLEL_COND_CLEANUP) != 0 &&
		num_index_scans == 0;
}

/*
 * process_index
 *		Let the AM delete all dead TIDs from an index, or clean it up.
 */
static void
process_index(TableVacuum *vacuum, int number, bool cleanup)
{
	VacuumShared *shared = vacuum->shared;
	IndexShared *index = vacuum_index(shared, number);
	Relation	indrel = vacuum->indexes[number];
	IndexBulkDeleteResult *stats;
	IndexVacuumInfo info = {0};
	PGRUsage	rusage;

	pg_rusage_init(&rusage);
	vacuum->indname = RelationGetRelationName(indrel);
	set_place(vacuum, cleanup ? PLACE_INDEX_CLEANUP : PLACE_INDEX_VACUUM,
			  InvalidBlockNumber);
	progress_index(RelationGetRelid(indrel));
	if (cleanup)
		DEBUG_POINT("index-cleanup");
	else
		DEBUG_POINT("index-vacuum");

	info.index = indrel;
	info.heaprel = vacuum->rel;
	info.analyze_only = false;
	info.report_progress = false;
	info.estimated_count = shared->index_reltuples_estimated;
	info.message_level = DEBUG2;
	info.num_heap_tuples = shared->index_reltuples;
	info.strategy = vacuum_strategy(vacuum);

	if (!index->may_be_parallel)
		stats = vacuum->private_stats[number];
	else
		stats = index->has_stats ? &index->stats : NULL;

	stats = cleanup ? index_vacuum_cleanup(&info, stats) :
		index_bulk_delete(&info, stats, is_dead, vacuum->dead_tids);

	if (!index->may_be_parallel)
		vacuum->private_stats[number] = stats;
	else if (stats != NULL && stats != &index->stats)
	{
		index->stats = *stats;
		index->has_stats = true;
		pfree(stats);
	}

	index->member = vacuum->member;
	strlcpy(index->usage, pg_rusage_show(&rusage), USAGE_SIZE);
	progress_index(InvalidOid);
	set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
	vacuum->indname = NULL;
	pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_INDEXES_PROCESSED, 1);
}

/* is_dead -- IndexBulkDeleteCallback: is this heap tuple to go? */
static bool
is_dead(ItemPointer tid, void *state)
{
	return dead_tids_contains((DeadTids *) state,
							  ItemPointerGetBlockNumber(tid),
							  ItemPointerGetOffsetNumber(tid));
}

/*
 * report_index
 *		Tell what was done to an index in this phase, and by whom.
 */
static void
report_index(TableVacuum *vacuum, int number, bool cleanup)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);
	IndexBulkDeleteResult *stats = index_stats(vacuum, number);
	bool		by_worker = index->member > 0;
	/* alone, the server's vacuum says this in the final report only */
	int			level = vacuum->shared->verbose && vacuum->shared->nmembers > 1 ?
		INFO : DEBUG2;

	if (!cleanup)
		ereport(level,
				(errmsg(by_worker ?
						"scanned index \"%s\" to remove %lld row versions by parallel vacuum worker" :
						"scanned index \"%s\" to remove %lld row versions",
						RelationGetRelationName(vacuum->indexes[number]),
						(long long) dead_tids_count(vacuum->dead_tids)),
				 errdetail_internal("%s", index->usage)));
	else if (stats != NULL)
		ereport(level,
				(errmsg(by_worker ?
						"index \"%s\" now contains %.0f row versions in %u pages by parallel vacuum worker" :
						"index \"%s\" now contains %.0f row versions in %u pages",
						RelationGetRelationName(vacuum->indexes[number]),
						stats->num_index_tuples, stats->num_pages),
				 errdetail("%.0f index row versions were removed.\n"
						   "%u index pages were newly deleted.\n"
						   "%u index pages are currently deleted, of which %u are currently reusable.\n%s",
						   stats->tuples_removed, stats->pages_newly_deleted,
						   stats->pages_deleted, stats->pages_free,
						   index->usage)));
}
