/*-------------------------------------------------------------------------
 *
 * index_vacuum.c
 *	  Index vacuum and index cleanup: who does which index.
 *
 * index_plan.c has planned what each index allows.  README.md says in which order indexes
 * are done, and by how many processes.
 *
 * The heap may be vacuumed only after each index has been passed over whole;
 * index_finish_round says if that is so.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/gin_private.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/gin_vacuum.h"
#include "engine/index/index_kind.h"
#include "engine/phases.h"
#include "relation_size.h"
#include "report/progress.h"
#include "settings.h"

static bool phase_is_parallel(const TableVacuum *vacuum, int number, bool cleanup);
static const IndexWork *shared_work(const TableVacuum *vacuum, int number, bool cleanup);
static bool keeps_private_stats(const TableVacuum *vacuum, int number);
static void prepare_more_work(TableVacuum *vacuum, int number);
static void begin_index(TableVacuum *vacuum, int number, int nmembers);
static void end_index(TableVacuum *vacuum, int number);
static void enter_index(TableVacuum *vacuum, int number);
static void leave_index(TableVacuum *vacuum);
static bool failsafe_stops(TableVacuum *vacuum, bool cleanup);
static void process_index(TableVacuum *vacuum, int number, bool cleanup);
static void call_server(TableVacuum *vacuum, int number, bool cleanup);
static void do_more_work(TableVacuum *vacuum, int number);
static void keep_stats(TableVacuum *vacuum, int number, IndexBulkDeleteResult *stats);
static bool is_dead(ItemPointer tid, void *state);
static bool may_go_on(const TableVacuum *vacuum);
static bool was_processed(TableVacuum *vacuum, int number, bool cleanup);

/*
 * index_prepare_round
 *		Leader: prepare a round over all indexes.  The AMs are told reltuples, the
 *		number of heap tuples.
 */
void
index_prepare_round(TableVacuum *vacuum, bool cleanup, double reltuples, bool estimated)
{
	VacuumShared *shared = vacuum->shared;
	const int	progress[] = {PROGRESS_VACUUM_PHASE, PROGRESS_VACUUM_INDEXES_TOTAL};
	const int64 values[] = {cleanup ? PROGRESS_VACUUM_PHASE_INDEX_CLEANUP :
	PROGRESS_VACUUM_PHASE_VACUUM_INDEX, vacuum->nindexes};

	Assert(is_leader(vacuum));
	Assert(cleanup || vacuum->dead_tids != NULL);

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexShared *index = vacuum_index(shared, i);

		Assert(!vacuum->begun[i]);
		Assert(vacuum->put_off[i].count == 0);
		index->leader_only = !index->may_be_parallel || !phase_is_parallel(vacuum, i, cleanup);
		index->was_begun = false;
		if (!cleanup && shared->num_index_scans == 0)
			vacuum->index_blocks[i] = relation_blocks(vacuum->indexes[i]);
	}
	shared->index_reltuples = reltuples;
	shared->index_reltuples_estimated = estimated;
	pg_atomic_write_u32(&shared->next_index, 0);
	pg_atomic_write_u32(&shared->empty_pages_found, 0);
	pg_atomic_write_u32(&shared->more_work, 0);
	shared->doing_more_work = false;
	shared->in_cleanup = cleanup;

	pgstat_progress_update_multi_param(lengthof(progress), progress, values);
}

/*
 * index_begin_round
 *		Leader: begin the round for all indexes that a team can process.
 *
 * Btrees are registered as being vacuumed, but at most batch_size at a time: the
 * server has room for one a backend.  After the phase
 * index_next_batch says if it is to be run again, for more of them.  After an error
 * the caller has index_abort_round called.
 */
void
index_begin_round(TableVacuum *vacuum, int batch_size)
{
	Assert(is_leader(vacuum));
	Assert(batch_size > 0);
	vacuum->batch_size = batch_size;
	vacuum->shared->batch_end = 0;
	(void) index_next_batch(vacuum);
}

/* index_is_shared_work -- is there anything in this round for workers? */
bool
index_is_shared_work(const TableVacuum *vacuum)
{
	int			shared = 0;

	Assert(is_leader(vacuum));
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		if (vacuum_index(vacuum->shared, i)->leader_only)
			continue;
		if (shared_work(vacuum, i, vacuum->shared->in_cleanup) != NULL)
			return true;
		shared++;
	}
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
	Assert(shared->in_cleanup == cleanup && (cleanup || vacuum->dead_tids != NULL));
	progress_phase(cleanup ? PROGRESS_VACUUM_PHASE_INDEX_CLEANUP :
				   PROGRESS_VACUUM_PHASE_VACUUM_INDEX, 0);

	if (shared->doing_more_work)
	{
		/* even if the failsafe is on: these indexes are begun */
		for (int i = shared->batch_start; i < shared->batch_end; i++)
		{
			int			number = vacuum_index(shared, i)->claim_order;

			/* the leader has done that of its own at once */
			if (!vacuum_index(shared, number)->leader_only)
				do_more_work(vacuum, number);
		}
		return;
	}

	for (int i = 0; is_leader(vacuum) && i < vacuum->nindexes; i++)
	{
		if (!vacuum_index(shared, i)->leader_only || vacuum_index(shared, i)->was_begun)
			continue;
		if (failsafe_stops(vacuum, cleanup))
			return;
		if (shared_work(vacuum, i, cleanup) != NULL)
			begin_index(vacuum, i, 1);
		process_index(vacuum, i, cleanup);
		do_more_work(vacuum, i);
		end_index(vacuum, i);
	}

	/* indexes that one process does as a whole */
	while (!pace_give_place() &&
		   (place = pg_atomic_fetch_add_u32(&shared->next_index, 1)) < vacuum->nindexes)
	{
		int			number = vacuum_index(shared, place)->claim_order;

		if (vacuum_index(shared, number)->leader_only ||
			shared_work(vacuum, number, cleanup) != NULL)
			continue;
		if (failsafe_stops(vacuum, cleanup))
			return;
		process_index(vacuum, number, cleanup);
	}

	/* indexes that all members do together */
	for (int i = shared->batch_start; i < shared->batch_end && may_go_on(vacuum); i++)
	{
		int			number = vacuum_index(shared, i)->claim_order;
		const IndexWork *work = shared_work(vacuum, number, cleanup);

		if (vacuum_index(shared, number)->leader_only || work == NULL ||
			work->is_done(vacuum, number))
			continue;
		if (failsafe_stops(vacuum, cleanup))
			return;
		process_index(vacuum, number, cleanup);
	}
}

/*
 * index_next_batch
 *		Leader, before and after a phase over the indexes: is it to be run (again)?
 *
 * It is if more work is wanted.  Otherwise the indexes that were processed together
 * are done, and the next ones, if there are any, are begun.
 */
bool
index_next_batch(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;
	int			nbegun = 0;
	int			nregistered = 0;
	int			place;

	Assert(is_leader(vacuum));

	/* while splits still show, so before end_index */
	shared->doing_more_work = pg_atomic_exchange_u32(&shared->more_work, 0) != 0;
	if (shared->doing_more_work)
	{
		for (int i = shared->batch_start; i < shared->batch_end; i++)
			prepare_more_work(vacuum, vacuum_index(shared, i)->claim_order);
		return true;
	}

	for (int i = 0; i < vacuum->nindexes; i++)
		end_index(vacuum, i);

	shared->batch_start = shared->batch_end;
	for (place = shared->batch_end; place < vacuum->nindexes; place++)
	{
		int			number = vacuum_index(shared, place)->claim_order;

		if (vacuum_index(shared, number)->leader_only ||
			shared_work(vacuum, number, shared->in_cleanup) == NULL)
			continue;
		if (vacuum->kinds[number]->is_registered && nregistered++ == vacuum->batch_size)
			break;
		begin_index(vacuum, number, shared->nmembers);
		nbegun++;
	}
	shared->batch_end = place;
	return nbegun > 0;
}

/* prepare_more_work -- have an index's kind prepare what is left of it, if all members do that together. */
static void
prepare_more_work(TableVacuum *vacuum, int number)
{
	const IndexWork *work = shared_work(vacuum, number, vacuum->shared->in_cleanup);

	if (!vacuum->begun[number] || vacuum_index(vacuum->shared, number)->leader_only ||
		work->prepare_more == NULL)
		return;
	enter_index(vacuum, number);
	work->prepare_more(vacuum, number);
	leave_index(vacuum);
}

/* begin_index -- make the work in an index available to its kind's routine. */
static void
begin_index(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(is_leader(vacuum));
	Assert(!vacuum->begun[number]);

	enter_index(vacuum, number);
	/* even if it fails halfway there is something to end */
	vacuum->begun[number] = true;
	shared_work(vacuum, number, vacuum->shared->in_cleanup)->begin(vacuum, number, nmembers);
	pg_atomic_write_u32(&index->counted, 0);
	index->was_begun = true;
	leave_index(vacuum);
}

/* end_index -- no member is at work in an index any more, or will be. */
static void
end_index(TableVacuum *vacuum, int number)
{
	const IndexWork *work = shared_work(vacuum, number, vacuum->shared->in_cleanup);

	Assert(is_leader(vacuum));
	if (vacuum->begun[number] && work->end != NULL)
		work->end(vacuum, number);
	vacuum->begun[number] = false;
}

/* index_duties_put_off -- has this process put off pages that it has to visit? */
bool
index_duties_put_off(const TableVacuum *vacuum)
{
	for (int i = 0; i < vacuum->nindexes; i++)
		if (vacuum->put_off[i].count > 0)
			return true;
	return false;
}

/* index_found_empty_pages -- leader, after bulk deletion: are there pages to delete? */
bool
index_found_empty_pages(TableVacuum *vacuum)
{
	Assert(is_leader(vacuum));
	return pg_atomic_read_u32(&vacuum->shared->empty_pages_found) != 0;
}

/*
 * index_delete_pages
 *		Delete pages that were found empty in bulk deletion.
 *
 * All indexes must have been passed over.  If wait is false, this leaves for later
 * what it can't do at once because another member is at it.
 */
void
index_delete_pages(TableVacuum *vacuum, bool wait)
{
	Assert(CritSectionCount == 0);
	Assert(!vacuum->shared->in_cleanup);
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		/* members that wait begin with different ones */
		int			number = (i + vacuum->member) % vacuum->nindexes;
		const IndexKind *kind = vacuum->kinds[number];

		if (kind == NULL || kind->has_empty_pages == NULL ||
			!kind->has_empty_pages(vacuum, number, wait))
			continue;

		failsafe_notice(vacuum);
		enter_index(vacuum, number);
		DEBUG_POINT("index-page-deletion");
		kind->delete_pages(vacuum, number, wait);
		leave_index(vacuum);
	}
}

/*
 * index_finish_page_deletion
 *		Leader, after that, and before the indexes' statistics are used: complete
 *		these.
 */
void
index_finish_page_deletion(TableVacuum *vacuum)
{
	Assert(is_leader(vacuum));
	Assert(!vacuum->shared->in_cleanup);
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		const IndexWork *work = shared_work(vacuum, i, false);

		if (work != NULL && work->finish != NULL && was_processed(vacuum, i, false))
			work->finish(vacuum, i);
	}
}

/*
 * index_finish_round
 *		Leader: end a phase; was every index processed?
 */
bool
index_finish_round(TableVacuum *vacuum, bool cleanup)
{
	const int	progress[] = {PROGRESS_VACUUM_INDEXES_TOTAL, PROGRESS_VACUUM_INDEXES_PROCESSED};
	const int64 zeros[] = {0, 0};
	bool		all = true;

	Assert(is_leader(vacuum));
	Assert(vacuum->shared->in_cleanup == cleanup && !vacuum->shared->doing_more_work);

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		const IndexWork *work = shared_work(vacuum, i, cleanup);

		/* the index was passed over, and no page of it is still due */
		Assert(!vacuum->begun[i]);
		Assert(vacuum->put_off[i].count == 0);
		if (!was_processed(vacuum, i, cleanup))
		{
			all = false;
			continue;
		}
		if (work != NULL && work->conclude != NULL)
			work->conclude(vacuum, i);
		if (cleanup && work != NULL && work->finish != NULL)
			work->finish(vacuum, i);
	}
	pgstat_progress_update_multi_param(lengthof(progress), progress, zeros);

	if (!all && !VacuumFailsafeActive)
		elog(ERROR, "not all indexes of table \"%s\" were processed", vacuum->relname);
	return all;
}

/*
 * index_abort_round
 *		Leader, on an error or at exit: no index is being vacuumed any more.
 *
 * Members may still be at work for a moment.  The heap's second pass will not
 * come, so an entry that they miss does no harm.
 */
void
index_abort_round(TableVacuum *vacuum)
{
	for (int i = 0; i < vacuum->nindexes; i++)
		end_index(vacuum, i);
}

/* may_go_on -- does this process still have a place at work? */
static bool
may_go_on(const TableVacuum *vacuum)
{
	return is_leader(vacuum) || pace_has_place();
}

/*
 * phase_is_parallel
 *		Can this phase be done in a worker?
 */
static bool
phase_is_parallel(const TableVacuum *vacuum, int number, bool cleanup)
{
	uint8		options = vacuum->indexes[number]->rd_indam->amparallelvacuumoptions;

	/* After a bulk deletion little is left to do in cleanup. */
	if (cleanup && (options & VACUUM_OPTION_PARALLEL_COND_CLEANUP))
		return vacuum->shared->num_index_scans == 0;
	if (shared_work(vacuum, number, cleanup) != NULL)
		return true;
	return (options & (cleanup ? VACUUM_OPTION_PARALLEL_CLEANUP :
					   VACUUM_OPTION_PARALLEL_BULKDEL)) != 0;
}

/*
 * shared_work
 *		The routines of the index's kind for this phase, for any number of
 *		processes; NULL if one process calls the AM's own routine.
 */
static const IndexWork *
shared_work(const TableVacuum *vacuum, int number, bool cleanup)
{
	const IndexKind *kind = vacuum->kinds[number];
	const IndexWork *work;

	if (kind == NULL)
		return NULL;
	work = cleanup ? &kind->cleanup : &kind->bulk_delete;
	return work->work != NULL ? work : NULL;
}

/* keeps_private_stats -- are the results the AM's own, in the leader? */
static bool
keeps_private_stats(const TableVacuum *vacuum, int number)
{
	return !vacuum_index(vacuum->shared, number)->may_be_parallel &&
		vacuum->kinds[number] == NULL;
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

/* enter_index -- say that this process works on an index, in errors and views. */
static void
enter_index(TableVacuum *vacuum, int number)
{
	vacuum->indname = RelationGetRelationName(vacuum->indexes[number]);
	set_place(vacuum, vacuum->shared->in_cleanup ? PLACE_INDEX_CLEANUP : PLACE_INDEX_VACUUM,
			  InvalidBlockNumber);
	progress_index(RelationGetRelid(vacuum->indexes[number]),
				   vacuum_index(vacuum->shared, number)->nblocks);
}

/* leave_index -- the reverse. */
static void
leave_index(TableVacuum *vacuum)
{
	progress_index(InvalidOid, 0);
	set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
	vacuum->indname = NULL;
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
	const IndexWork *work = shared_work(vacuum, number, cleanup);

	Assert(is_leader(vacuum) || !index->leader_only);
	Assert(is_leader(vacuum) || index->may_be_parallel);
	Assert(work == NULL || index->was_begun);

	enter_index(vacuum, number);
	if (cleanup)
		DEBUG_POINT("index-cleanup");
	else
		DEBUG_POINT("index-vacuum");

	if (work != NULL)
		work->work(vacuum, number);
	else
	{
		call_server(vacuum, number, cleanup);
		index->was_begun = true;
	}

	leave_index(vacuum);
	/* not if it was parked, and other members will go on */
	if (work == NULL ||
		(work->is_done(vacuum, number) && pg_atomic_exchange_u32(&index->counted, 1) == 0))
		pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_INDEXES_PROCESSED, 1);
}

/* call_server -- have an index processed by its access method's own routine. */
static void
call_server(TableVacuum *vacuum, int number, bool cleanup)
{
	IndexVacuumInfo info;

	index_fill_info(vacuum, number, &info);
	pace_begin_server_code();
	if (cleanup)
		keep_stats(vacuum, number,
				   index_vacuum_cleanup(&info, index_stats(vacuum, number)));
	else
	{
		IndexBulkDeleteResult *stats = index_stats(vacuum, number);

		/* the first call does so itself */
		if (stats != NULL && info.index->rd_indam->ambulkdelete == ginbulkdelete)
			gin_empty_pending_list(info.index, vacuum->shared->is_autovacuum, stats);
		keep_stats(vacuum, number,
				   index_bulk_delete(&info, stats, is_dead, vacuum->dead_tids));
	}
	pace_end_server_code();
}

/*
 * do_more_work
 *		Do in an index what could only be done when no member is at work there any
 *		more.
 */
static void
do_more_work(TableVacuum *vacuum, int number)
{
	const IndexWork *work = shared_work(vacuum, number, vacuum->shared->in_cleanup);

	if (work == NULL || work->more_work == NULL ||
		!vacuum_index(vacuum->shared, number)->was_begun)
		return;

	/* the leader knows that it isn't done with */
	Assert(!is_leader(vacuum) || vacuum->begun[number]);

	/*
	 * All of it has been handed out, and is done; but in the failsafe no
	 * member takes what a worker has left that was to be parked.  What is due
	 * is visited all the same.  That does no harm, and the heap's turn
	 * doesn't come.
	 */
	failsafe_notice(vacuum);
	Assert(VacuumFailsafeActive || work->is_done(vacuum, number));
	enter_index(vacuum, number);
	work->more_work(vacuum, number);
	leave_index(vacuum);
}

/* index_stats -- what the AM is to get back; NULL at first. */
IndexBulkDeleteResult *
index_stats(TableVacuum *vacuum, int number)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	Assert(!keeps_private_stats(vacuum, number) || is_leader(vacuum));
	if (keeps_private_stats(vacuum, number))
		return vacuum->private_stats[number];
	return index->has_stats ? &index->stats : NULL;
}

/* keep_stats -- keep what the AM returned. */
static void
keep_stats(TableVacuum *vacuum, int number, IndexBulkDeleteResult *stats)
{
	IndexShared *index = vacuum_index(vacuum->shared, number);

	if (keeps_private_stats(vacuum, number))
		vacuum->private_stats[number] = stats;
	else if (stats != NULL && stats != &index->stats)
	{
		index->stats = *stats;
		index->has_stats = true;
		pfree(stats);
	}
}

/* is_dead -- IndexBulkDeleteCallback: is this a dead item's TID? */
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
	const IndexWork *work = shared_work(vacuum, number, cleanup);

	/* what was claimed is finished */
	return vacuum_index(vacuum->shared, number)->was_begun &&
		(work == NULL || work->is_done(vacuum, number));
}
