/*-------------------------------------------------------------------------
 *
 * index_vacuum.c
 *	  Index vacuum and index cleanup: who does which index.
 *
 * Both phases go over all indexes.  First the leader does those that are its
 * alone: the AM does not allow this phase in a worker, or the index is so
 * small that it is not worth the trouble.  The others are shared out by size:
 *
 * - Most AMs process an index as a whole.  All members claim such indexes one
 *	 by one, the largest first.
 * - Bulk deletion in a btree is ours (btree_vacuum.c), and can be done by any
 *	 number of processes at once.  So the btrees come last, and every member
 *	 works on each of them until it has no range of blocks left to claim.  If
 *	 there are more btrees than processes, the phase is run several times; and
 *	 once more for pages that sessions have pinned too long (btree_vacuum.c).
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
#include "access/gin_private.h"
#include "access/nbtree.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/pg_rusage.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/btree_vacuum.h"
#include "engine/phases.h"
#include "report/progress.h"
#include "team/degree.h"

static bool may_be_parallel(Relation index);
static bool phase_is_parallel(Relation index, bool cleanup, int num_index_scans);
static bool is_by_ranges(const IndexShared *index, bool cleanup);
static bool keeps_private_stats(const IndexShared *index);
static void begin_btree(TableVacuum *vacuum, int number, int nmembers);
static void end_btree(TableVacuum *vacuum, int number);
static bool failsafe_stops(TableVacuum *vacuum, bool cleanup);
static void process_index(TableVacuum *vacuum, int number, bool cleanup);
static void do_duties(TableVacuum *vacuum, int number);
static void note_empty_pages(TableVacuum *vacuum, int number);
static void flush_pending_list(TableVacuum *vacuum, int number);
static IndexBulkDeleteResult *current_stats(TableVacuum *vacuum, int number);
static void keep_stats(TableVacuum *vacuum, int number, IndexBulkDeleteResult *stats);
static bool is_dead(ItemPointer tid, void *state);
static bool may_go_on(const TableVacuum *vacuum);
static bool was_processed(TableVacuum *vacuum, int number, bool cleanup);
static void report_index(TableVacuum *vacuum, int number, bool cleanup);

/*
 * index_parallel_degree
 *		How many workers the indexes have use for: one index for each process,
 *		or as many processes as the size of the largest btree calls for.
 */
int
index_parallel_degree(const TableVacuum *vacuum)
{
	int			bulkdelete = 0,
				cleanup = 0,
				largest = 0;

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		Relation	index = vacuum->indexes[i];
		uint8		options = index->rd_indam->amparallelvacuumoptions;

		if (!may_be_parallel(index))
			continue;
		if (options & VACUUM_OPTION_PARALLEL_BULKDEL)
			bulkdelete++;
		if (options & (VACUUM_OPTION_PARALLEL_CLEANUP | VACUUM_OPTION_PARALLEL_COND_CLEANUP))
			cleanup++;
		if (btree_is_ours(index))
			largest = Max(largest,
						  degree_for_size(RelationGetNumberOfBlocks(index),
										  min_parallel_index_scan_size));
	}

	/* one of the indexes is for the leader */
	return Max(Max(bulkdelete, cleanup) - 1, largest);
}

/*
 * index_worker_memory_kb
 *		The maintenance_work_mem of each worker, if the leader has memory_kb: if
 *		AMs use it, the workers together may use one.
 */
int
index_worker_memory_kb(const TableVacuum *vacuum, int nworkers, int memory_kb)
{
	int			users = 0;

	for (int i = 0; i < vacuum->nindexes; i++)
		if (may_be_parallel(vacuum->indexes[i]) &&
			vacuum->indexes[i]->rd_indam->amusemaintenanceworkmem)
			users++;

	return users > 0 ? memory_kb / Min(nworkers, users) : memory_kb;
}

/*
 * index_setup
 *		Leader, before the team is launched: note what is known of the indexes.
 */
void
index_setup(TableVacuum *vacuum, bool parallel)
{
	vacuum->private_stats = palloc0_array(IndexBulkDeleteResult *, vacuum->nindexes);
	vacuum->registered = palloc0_array(bool, vacuum->nindexes);

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexShared *index = vacuum_index(vacuum->shared, i);
		int			place = i;

		index->nblocks = RelationGetNumberOfBlocks(vacuum->indexes[i]);
		index->may_be_parallel = parallel && may_be_parallel(vacuum->indexes[i]);
		index->is_btree = btree_is_ours(vacuum->indexes[i]);
		btree_setup(index);

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
 *
 * In bulk deletion btrees are registered as being vacuumed, but only so many
 * at a time as batch_size says: the server has room for one a backend.  After
 * the phase index_next_batch says if it is to be run again, for more of them.
 * The caller sees to it that index_abort_round is called after an error.
 */
void
index_begin_round(TableVacuum *vacuum, bool cleanup,
				  double reltuples, bool estimated, int batch_size)
{
	VacuumShared *shared = vacuum->shared;
	const int	progress[] = {PROGRESS_VACUUM_PHASE, PROGRESS_VACUUM_INDEXES_TOTAL};
	const int64 values[] = {cleanup ? PROGRESS_VACUUM_PHASE_INDEX_CLEANUP :
	PROGRESS_VACUUM_PHASE_VACUUM_INDEX, vacuum->nindexes};

	Assert(is_leader(vacuum));
	Assert(cleanup || (batch_size > 0 && vacuum->dead_tids != NULL));

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexShared *index = vacuum_index(shared, i);

		Assert(!vacuum->registered[i]);
		Assert(vacuum->put_off[i].count == 0);
		index->leader_only = !index->may_be_parallel ||
			!phase_is_parallel(vacuum->indexes[i], cleanup, shared->num_index_scans);
		/* until it is begun, it isn't finished */
		ranges_init(&index->ranges, 0, 1, 1, 1, 1);
		for (int member = 0; member < shared->nmembers; member++)
			vacuum_index_member(shared, i, member)->took_part = false;
	}
	shared->index_reltuples = reltuples;
	shared->index_reltuples_estimated = estimated;
	pg_atomic_write_u32(&shared->next_index, 0);
	pg_atomic_write_u32(&shared->empty_pages_found, 0);
	pg_atomic_write_u32(&shared->duties_put_off, 0);
	shared->doing_duties = false;
	vacuum->batch_size = batch_size;
	shared->batch_end = 0;
	if (!cleanup)
		(void) index_next_batch(vacuum);

	pgstat_progress_update_multi_param(lengthof(progress), progress, values);
}

/* index_is_shared_work -- is there anything in this round for workers? */
bool
index_is_shared_work(const TableVacuum *vacuum)
{
	int			shared = 0;

	Assert(is_leader(vacuum));
	for (int i = 0; i < vacuum->nindexes; i++)
		if (!vacuum_index(vacuum->shared, i)->leader_only)
			shared++;
	/* one of them is for the leader */
	return shared > 1;
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
	VacuumShared *shared = vacuum->shared;
	uint32		place;

	/* nothing is left over from another phase */
	Assert(vacuum->indname == NULL && vacuum->place == PLACE_UNKNOWN);
	Assert(cleanup || vacuum->dead_tids != NULL);

	progress_phase(cleanup ? PROGRESS_VACUUM_PHASE_INDEX_CLEANUP :
				   PROGRESS_VACUUM_PHASE_VACUUM_INDEX, 0);

	if (shared->doing_duties)
	{
		Assert(!cleanup);
		/* even if the failsafe is on: these indexes are begun */
		for (int i = 0; i < vacuum->nindexes; i++)
			do_duties(vacuum, i);
		return;
	}

	for (int i = 0; is_leader(vacuum) && i < vacuum->nindexes; i++)
	{
		if (!vacuum_index(shared, i)->leader_only ||
			vacuum_index_member(shared, i, 0)->took_part)
			continue;
		if (failsafe_stops(vacuum, cleanup))
			return;
		if (is_by_ranges(vacuum_index(shared, i), cleanup))
			begin_btree(vacuum, i, 1);
		process_index(vacuum, i, cleanup);
		do_duties(vacuum, i);
		end_btree(vacuum, i);
	}

	/* those that one process does as a whole */
	while (!pace_give_place() &&
		   (place = pg_atomic_fetch_add_u32(&shared->next_index, 1)) < vacuum->nindexes)
	{
		int			number = vacuum_index(shared, place)->claim_order;
		IndexShared *index = vacuum_index(shared, number);

		if (index->leader_only || is_by_ranges(index, cleanup))
			continue;
		if (failsafe_stops(vacuum, cleanup))
			return;
		process_index(vacuum, number, cleanup);
	}

	/* those that all do together */
	for (int i = shared->batch_start; !cleanup && i < shared->batch_end && may_go_on(vacuum); i++)
	{
		int			number = vacuum_index(shared, i)->claim_order;
		IndexShared *index = vacuum_index(shared, number);

		if (index->leader_only || !is_by_ranges(index, cleanup) ||
			ranges_position(&index->ranges) >= index->ranges.end)
			continue;
		if (failsafe_stops(vacuum, cleanup))
			return;
		process_index(vacuum, number, cleanup);
	}
}

/*
 * index_next_batch
 *		Leader, around phases of bulk deletion: is the phase to be run again?
 *
 * It is if a member has put off duties.  Else the btrees that were vacuumed
 * are done with, and if there are more, begin with them.
 */
bool
index_next_batch(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;
	int			nbtrees = 0;
	int			place;

	Assert(is_leader(vacuum));

	/* while splits still show, so before these btrees are done with */
	shared->doing_duties = pg_atomic_exchange_u32(&shared->duties_put_off, 0) != 0;
	if (shared->doing_duties)
		return true;

	for (int i = 0; i < vacuum->nindexes; i++)
		end_btree(vacuum, i);

	shared->batch_start = shared->batch_end;
	for (place = shared->batch_end; place < vacuum->nindexes; place++)
	{
		int			number = vacuum_index(shared, place)->claim_order;
		IndexShared *index = vacuum_index(shared, number);

		if (index->leader_only || !is_by_ranges(index, false))
			continue;
		if (nbtrees == vacuum->batch_size)
			break;
		begin_btree(vacuum, number, shared->nmembers);
		nbtrees++;
	}
	shared->batch_end = place;
	return nbtrees > 0;
}

/* begin_btree -- register a btree as being vacuumed, and hand out its blocks. */
static void
begin_btree(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(is_leader(vacuum));
	Assert(index->is_btree && !vacuum->registered[number]);

	index->cycle_id = _bt_start_vacuum(vacuum->indexes[number]);
	vacuum->registered[number] = true;
	btree_begin(vacuum->indexes[number], index, nmembers);
}

/* end_btree -- splits in an index need not be noticed any more. */
static void
end_btree(TableVacuum *vacuum, int number)
{
	Assert(is_leader(vacuum));
	if (vacuum->registered[number])
		_bt_end_vacuum(vacuum->indexes[number]);
	vacuum->registered[number] = false;
}

/*
 * index_duties_put_off
 *		Has this process put off pages of btrees that it is bound to visit?
 */
bool
index_duties_put_off(const TableVacuum *vacuum)
{
	for (int i = 0; i < vacuum->nindexes; i++)
		if (vacuum->put_off[i].count > 0)
			return true;
	return false;
}

/*
 * index_found_empty_pages
 *		Leader, after bulk deletion: are there pages of btrees to delete?
 */
bool
index_found_empty_pages(TableVacuum *vacuum)
{
	return pg_atomic_read_u32(&vacuum->shared->empty_pages_found) != 0;
}

/*
 * index_delete_pages
 *		Delete the pages that this process found empty in bulk deletion.
 *
 * All indexes must have been passed over.  Only one member at a time can be at
 * an index.  If wait is false, those that others are at are left for later.
 */
void
index_delete_pages(TableVacuum *vacuum, bool wait)
{
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		/* so that members that wait begin with different ones */
		int			number = (i + vacuum->member) % vacuum->nindexes;
		Relation	index = vacuum->indexes[number];
		IndexShared *shared = vacuum_index(vacuum->shared, number);

		if (vacuum->empty_pages[number].count == 0 ||
			(!wait && pg_atomic_read_u32(&shared->turn_taken) != 0))
			continue;

		failsafe_notice(vacuum);
		vacuum->indname = RelationGetRelationName(index);
		set_place(vacuum, PLACE_INDEX_VACUUM, InvalidBlockNumber);
		progress_index(RelationGetRelid(index), shared->nblocks);
		DEBUG_POINT("index-page-deletion");
		btree_delete_pages(vacuum, index, shared, &vacuum->empty_pages[number],
						   wait);
		progress_index(InvalidOid, 0);
		set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
		vacuum->indname = NULL;
	}
}

/*
 * index_finish_page_deletion
 *		Leader, after that, and before the indexes' statistics are used.
 */
void
index_finish_page_deletion(TableVacuum *vacuum)
{
	for (int i = 0; i < vacuum->nindexes; i++)
		if (is_by_ranges(vacuum_index(vacuum->shared, i), false) &&
			was_processed(vacuum, i, false))
			btree_finish(vacuum->indexes[i], vacuum_index(vacuum->shared, i));
}

/*
 * index_finish_round
 *		Leader: end a phase and report on it; was every index processed?
 */
bool
index_finish_round(TableVacuum *vacuum, bool cleanup)
{
	const int	progress[] = {PROGRESS_VACUUM_INDEXES_TOTAL, PROGRESS_VACUUM_INDEXES_PROCESSED};
	const int64 zeros[] = {0, 0};
	bool		all = true;

	Assert(is_leader(vacuum));

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		/* the index was passed over, and no page of it is still due */
		Assert(!vacuum->registered[i]);
		Assert(vacuum->put_off[i].count == 0);
		if (!was_processed(vacuum, i, cleanup))
		{
			all = false;
			continue;
		}
		report_index(vacuum, i, cleanup);
	}
	pgstat_progress_update_multi_param(lengthof(progress), progress, zeros);

	if (!all && !VacuumFailsafeActive)
		elog(ERROR, "not all indexes of table \"%s\" were processed", vacuum->relname);
	return all;
}

/*
 * index_abort_round
 *		Leader, on an error or at exit: no btree is being vacuumed any more.
 *
 * Members may still be at it for a moment; but as the heap's second pass will
 * not come, an entry that they miss does no harm.
 */
void
index_abort_round(int code, Datum arg)
{
	TableVacuum *vacuum = (TableVacuum *) DatumGetPointer(arg);

	for (int i = 0; i < vacuum->nindexes; i++)
		end_btree(vacuum, i);
}

/*
 * index_stats
 *		Leader, between phases: what the AM last said of an index, or NULL.
 */
IndexBulkDeleteResult *
index_stats(TableVacuum *vacuum, int number)
{
	return current_stats(vacuum, number);
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

/* may_go_on -- has this process still a place at work? */
static bool
may_go_on(const TableVacuum *vacuum)
{
	return is_leader(vacuum) || pace_has_place();
}

/* is_by_ranges -- does this phase go over the index by ranges of blocks? */
static bool
is_by_ranges(const IndexShared *index, bool cleanup)
{
	return index->is_btree && !cleanup;
}

/* keeps_private_stats -- are the results the AM's own, in the leader? */
static bool
keeps_private_stats(const IndexShared *index)
{
	return !index->may_be_parallel && !index->is_btree;
}

/* failsafe_stops -- must no further bulk deletion begin? */
static bool
failsafe_stops(TableVacuum *vacuum, bool cleanup)
{
	if (cleanup)
		return false;
	if (is_leader(vacuum))
		return failsafe_check(vacuum);
	failsafe_notice(vacuum);
	return VacuumFailsafeActive;
}

/*
 * process_index
 *		Delete all dead TIDs from an index, or clean it up: the whole of it, or
 *		this process's part.
 */
static void
process_index(TableVacuum *vacuum, int number, bool cleanup)
{
	VacuumShared *shared = vacuum->shared;
	IndexShared *index = vacuum_index(shared, number);
	IndexMemberShared *member = vacuum_index_member(shared, number, vacuum->member);
	Relation	indrel = vacuum->indexes[number];
	IndexVacuumInfo info = {0};
	PGRUsage	rusage;

	Assert(is_leader(vacuum) || !index->leader_only);
	Assert(is_leader(vacuum) || index->may_be_parallel);

	pg_rusage_init(&rusage);
	vacuum->indname = RelationGetRelationName(indrel);
	set_place(vacuum, cleanup ? PLACE_INDEX_CLEANUP : PLACE_INDEX_VACUUM,
			  InvalidBlockNumber);
	progress_index(RelationGetRelid(indrel), index->nblocks);
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
	compat_set_is_autovacuum(&info, shared->is_autovacuum);

	/* or it comes back to the index, after it was parked */
	if (!member->took_part)
		member->pages = 0;
	if (is_by_ranges(index, cleanup))
	{
		member->pages += btree_vacuum(vacuum, indrel, index,
									  &vacuum->put_off[number],
									  &vacuum->empty_pages[number]);
		note_empty_pages(vacuum, number);
		if (vacuum->put_off[number].count > 0 && !index->leader_only)
			pg_atomic_write_u32(&shared->duties_put_off, 1);
	}
	else
	{
		pace_begin_server_code();
		if (cleanup)
			keep_stats(vacuum, number,
					   index_vacuum_cleanup(&info, current_stats(vacuum, number)));
		else
		{
			flush_pending_list(vacuum, number);
			keep_stats(vacuum, number,
					   index_bulk_delete(&info, current_stats(vacuum, number),
										 is_dead, vacuum->dead_tids));
		}
		pace_end_server_code();
	}
	member->took_part = true;
	strlcpy(member->usage, pg_rusage_show(&rusage), USAGE_SIZE);

	progress_index(InvalidOid, 0);
	set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
	vacuum->indname = NULL;
	if (!is_by_ranges(index, cleanup) ||
		pg_atomic_exchange_u32(&index->counted, 1) == 0)
		pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_INDEXES_PROCESSED, 1);
}

/*
 * do_duties
 *		Visit the pages of a btree that this process has put off.
 *
 * No member may be visiting ranges of the index any more.
 */
static void
do_duties(TableVacuum *vacuum, int number)
{
	Relation	index = vacuum->indexes[number];
	IndexShared *shared = vacuum_index(vacuum->shared, number);

	if (vacuum->put_off[number].count == 0)
		return;

	Assert(is_by_ranges(shared, false));
	/* the leader knows that it is registered, so splits still show */
	Assert(!is_leader(vacuum) || vacuum->registered[number]);

	vacuum->indname = RelationGetRelationName(index);
	set_place(vacuum, PLACE_INDEX_VACUUM, InvalidBlockNumber);
	progress_index(RelationGetRelid(index), shared->nblocks);
	btree_do_duties(vacuum, index, shared, &vacuum->put_off[number],
					&vacuum->empty_pages[number]);
	note_empty_pages(vacuum, number);
	progress_index(InvalidOid, 0);
	set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
	vacuum->indname = NULL;
}

/* note_empty_pages -- tell the leader if this process has found some. */
static void
note_empty_pages(TableVacuum *vacuum, int number)
{
	if (vacuum->empty_pages[number].count > 0)
		pg_atomic_write_u32(&vacuum->shared->empty_pages_found, 1);
}

/*
 * flush_pending_list
 *		Bring what a GIN index has in its pending list to where bulk deletion
 *		looks.
 *
 * ginbulkdelete only does so when it is called for the first time.  Since
 * then entries of rows may have come into the list that were found dead in
 * this round, as their insertion was rolled back; they would lead to other
 * rows later.
 */
static void
flush_pending_list(TableVacuum *vacuum, int number)
{
	Relation	index = vacuum->indexes[number];
	IndexBulkDeleteResult *stats = current_stats(vacuum, number);
	GinState	state;

	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));

	if (stats == NULL || index->rd_indam->ambulkdelete != ginbulkdelete)
		return;
	initGinState(&state, index);
	ginInsertCleanup(&state, true, false, true, stats);
}

/* current_stats -- what the AM is to get back; NULL at first. */
static IndexBulkDeleteResult *
current_stats(TableVacuum *vacuum, int number)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	if (keeps_private_stats(index))
		return vacuum->private_stats[number];
	return index->has_stats ? &index->stats : NULL;
}

/* keep_stats -- keep what the AM returned. */
static void
keep_stats(TableVacuum *vacuum, int number, IndexBulkDeleteResult *stats)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	if (keeps_private_stats(index))
		vacuum->private_stats[number] = stats;
	else if (stats != NULL && stats != &index->stats)
	{
		index->stats = *stats;
		index->has_stats = true;
		pfree(stats);
	}
}

/* is_dead -- IndexBulkDeleteCallback: is this heap tuple to go? */
static bool
is_dead(ItemPointer tid, void *state)
{
	pace_in_server_code();
	return dead_tids_contains((DeadTids *) state,
							  ItemPointerGetBlockNumber(tid),
							  ItemPointerGetOffsetNumber(tid));
}

/*
 * was_processed
 *		Leader, after a phase: has all of the index been passed over?
 */
static bool
was_processed(TableVacuum *vacuum, int number, bool cleanup)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	/* whoever has claimed a range has finished it */
	if (is_by_ranges(index, cleanup))
		return ranges_position(&index->ranges) >= index->ranges.end;

	for (int i = 0; i < vacuum->shared->nmembers; i++)
		if (vacuum_index_member(vacuum->shared, number, i)->took_part)
			return true;
	return false;
}

/*
 * report_index
 *		Tell what was done to an index in this phase, and by whom.
 */
static void
report_index(TableVacuum *vacuum, int number, bool cleanup)
{
	VacuumShared *shared = vacuum->shared;
	IndexBulkDeleteResult *stats = current_stats(vacuum, number);
	const char *name = RelationGetRelationName(vacuum->indexes[number]);
	/* alone, the server's vacuum says this in the final report only */
	int			level = shared->verbose && shared->nmembers > 1 ? INFO : DEBUG2;

	for (int i = 0; i < shared->nmembers; i++)
	{
		IndexMemberShared *member = vacuum_index_member(shared, number, i);
		const char *by_whom = i > 0 ? " by parallel vacuum worker" : "";

		if (!member->took_part)
			continue;
		if (!cleanup && member->pages > 0)
			ereport(level,
					(errmsg_internal("scanned index \"%s\" to remove %lld row versions%s",
									 name, (long long) dead_tids_count(vacuum->dead_tids), by_whom),
					 errdetail_internal("Pages: %u.  %s", member->pages, member->usage)));
		else if (!cleanup)
			ereport(level,
					(errmsg_internal("scanned index \"%s\" to remove %lld row versions%s",
									 name, (long long) dead_tids_count(vacuum->dead_tids), by_whom),
					 errdetail_internal("%s", member->usage)));
		else if (stats != NULL)
			ereport(level,
					(errmsg_internal("index \"%s\" now contains %.0f row versions in %u pages%s",
									 name, stats->num_index_tuples, stats->num_pages, by_whom),
					 errdetail("%.0f index row versions were removed.\n"
							   "%u index pages were newly deleted.\n"
							   "%u index pages are currently deleted, of which %u are currently reusable.\n%s",
							   stats->tuples_removed, stats->pages_newly_deleted,
							   stats->pages_deleted, stats->pages_free,
							   member->usage)));
	}
}
