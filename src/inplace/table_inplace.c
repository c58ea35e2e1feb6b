/*-------------------------------------------------------------------------
 *
 * table_inplace.c
 *	  VACUUM (FULL INPLACE) of one table: the main path.
 *
 * table_inplace reads like the compaction that it does.  A pass is
 *
 *	 1. VACUUM the table: free what is dead, cut off an empty end, and learn
 *		where there is room
 *	 2. plan: what of the table would fit into the room before it?
 *	 3. move the rows of that tail to the front, in batches (row_move.c); if it is
 *		a TOAST table, the values (value_move.c)
 *	 4. wait a little for transactions that still need the old versions
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "audit_mark.h"
#include "autovacuum/autovacuum.h"
#include "autovacuum/table_log.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/table_vacuum.h"
#include "inplace/inplace.h"
#include "inplace/inplace_report.h"
#include "inplace/move_batch.h"
#include "inplace/subscription.h"
#include "inplace/table_inplace.h"
#include "report/progress.h"
#include "transaction.h"

/* Another pass must promise to free more than this fraction of the table ... */
#define WORTHWHILE_FRACTION		256
/* ... and one of the last MAX_IDLE_PASSES must have freed more than this fraction. */
#define PROGRESS_FRACTION		64
/* Where the end could not be cut off at once, this number of pages is enough. */
#define PROGRESS_PAGES			1000
#define MAX_IDLE_PASSES			6

/* How many tables this process has begun to compact */
static uint64 tables_begun = 0;

static Inplace *make_job(Oid relid, const VacuumParams *params, BufferAccessStrategy ring,
						 MemoryContext context);
static void compact_toast(Inplace *toast, Inplace *rows, InplaceResult *result);
static bool lock_toast(const Inplace *toast);
static void compact(Inplace *job, Inplace *rows, InplaceResult *result);
static void vacuum_once(Inplace *job, InplaceResult *result);
static bool cut_off_some(Inplace *job);
static bool plan_moves(Inplace *job, Inplace *rows, bool is_idle);
static PlanEnd plan_end(Inplace *job, Inplace *rows, bool is_idle);
static void move_tail(Inplace *job, Inplace *rows, InplaceResult *result);
static void plan_values(Inplace *rows, Inplace *toast);
static void begin_moving(Inplace *mover, const Inplace *toast);
static void end_moving(Inplace *mover);
static void begin_step(Inplace *job, int phase, BlockNumber nblocks);
static void end_step(Inplace *job);

/*
 * table_inplace_count
 *		How many tables this process has begun to compact: if a statement doesn't change
 *		that, it has compacted none.
 */
uint64
table_inplace_count(void)
{
	return tables_begun;
}

/*
 * table_inplace_is_possible
 *		Can rows of this table, which is a heap and locked, be moved?
 *
 * If not, returns false and says why.
 *
 * - Not those of catalogs, as caches and snapshots for logical decoding know
 *	 catalog rows by their places.
 * - Nor those of TOAST tables by themselves: a session that reads a value takes each
 *	 version of its parts that it finds.
 * - Nor where a subscription writes, as subscription.c says.  This look saves the
 *	 trouble; each batch of moves looks again.
 */
bool
table_inplace_is_possible(Relation rel, const char **why_not)
{
	Assert(IsTransactionState());
	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));

	if (rel->rd_rel->relkind == RELKIND_TOASTVALUE ||
		IsSystemRelation(rel) || RelationIsUsedAsCatalogTable(rel))
	{
		*why_not = gettext_noop("It is a catalog, or used as one.");
		return false;
	}

	if (subscription_writes_to(RelationGetRelid(rel)))
	{
		*why_not = gettext_noop("A subscription of logical replication writes to it.");
		return false;
	}
	return true;
}

/*
 * table_inplace
 *		Compact one table.
 *
 * Called and returns outside any transaction, with the table locked for the
 * session.  params has the statement's and the table's options.  Memory that
 * outlives transactions is taken from parent.
 */
void
table_inplace(Oid relid, const VacuumParams *params, BufferAccessStrategy ring,
			  MemoryContext parent)
{
	MemoryContext context;
	VacuumParams quiet = *params;
	InplaceResult *result;
	Inplace    *job;
	Inplace    *toast;
	Oid			toast_relid;
	instr_time	start;

	Assert(!IsTransactionState());
	Assert(CheckRelationOidLockedByMe(relid, ShareUpdateExclusiveLock, true));

	/*
	 * the VACUUM of a pass looks at every page, and leaves no dead item, as
	 * one is enough to keep a page where it is
	 */
	quiet.options &= ~VACOPT_VERBOSE;
	compat_set_log_duration(&quiet, -1);
	quiet.truncate = VACOPTVALUE_ENABLED;
	quiet.index_cleanup = VACOPTVALUE_ENABLED;
	if (!DEBUG_FAULT("inplace-skips"))
		quiet.options |= VACOPT_DISABLE_PAGE_SKIPPING;

	tables_begun++;
	audit_mark_forget();
	/* an error outside of a transaction would not end the session's lock */
	transaction_begin(false);
	context = AllocSetContextCreate(parent, "Compaction", ALLOCSET_DEFAULT_SIZES);
	result = MemoryContextAllocZero(context, sizeof(InplaceResult));
	toast_relid = inplace_report_begin(result, relid, context, params);
	job = make_job(relid, &quiet, ring, context);
	toast = make_job(toast_relid, &quiet, ring, context);
	transaction_end();

	if (OidIsValid(toast_relid) && (params->options & VACOPT_PROCESS_TOAST))
		compact_toast(toast, job, result);
	compact(job, NULL, result);

	result->stale_locks = toast->pass.stale_locks + job->pass.stale_locks;
	job->pass.audited_pages += toast->pass.audited_pages;
	inplace_report_heap(result, job);
	if (params->index_cleanup != VACOPTVALUE_DISABLED && !VacuumFailsafeActive &&
		!job->is_stopped)
	{
		INSTR_TIME_SET_CURRENT(start);
		job->pass.audited_pages += index_shrink(relid, (params->options & VACOPT_SKIP_LOCKED) == 0,
												context);
		inplace_report_step(result, INPLACE_INDEXES, start);
	}
	inplace_report_end(result, job);
	MemoryContextDelete(context);
}

/* make_job -- prepare to compact a table or its TOAST table. */
static Inplace *
make_job(Oid relid, const VacuumParams *params, BufferAccessStrategy ring, MemoryContext context)
{
	Inplace    *job = MemoryContextAllocZero(context, sizeof(Inplace));

	job->relid = relid;
	job->params = *params;
	job->ring = ring;
	job->context = context;
	job->pass.tail_start = InvalidBlockNumber;
	return job;
}

/*
 * compact_toast
 *		Compact a TOAST table, with its rows.
 */
static void
compact_toast(Inplace *toast, Inplace *rows, InplaceResult *result)
{
	LockRelId	lock = {.relId = toast->relid,.dbId = MyDatabaseId};

	if (!lock_toast(toast))
		return;
	compact(toast, rows, result);
	UnlockRelationIdForSession(&lock, ShareUpdateExclusiveLock);
}

/*
 * lock_toast
 *		Lock a TOAST table for the session; with SKIP_LOCKED return false, with a
 *		warning, if that can't be done at once.
 *
 * That is no deadlock.  Sessions that lock both tables begin with the table, for which
 * they wait, as we have it locked; one that has only the TOAST table locked waits for
 * nothing else.  The TOAST table can't be dropped without the table.
 */
static bool
lock_toast(const Inplace *toast)
{
	LockRelId	lock = {.relId = toast->relid,.dbId = MyDatabaseId};
	bool		is_locked = true;

	transaction_begin(false);
	if ((toast->params.options & VACOPT_SKIP_LOCKED) == 0)
		LockRelationOid(toast->relid, ShareUpdateExclusiveLock);
	else
		is_locked = ConditionalLockRelationOid(toast->relid, ShareUpdateExclusiveLock);
	if (is_locked)
		LockRelationIdForSession(&lock, ShareUpdateExclusiveLock);
	else
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("skipping the TOAST table \"%s\" --- lock not available",
						get_rel_name(toast->relid))));
	transaction_end();
	return is_locked;
}

/*
 * compact
 *		Do passes over a table; or over a TOAST table, if rows says whose.
 */
static void
compact(Inplace *job, Inplace *rows, InplaceResult *result)
{
	Inplace    *mover = rows != NULL ? rows : job;
	BlockNumber least = 0;
	int			idle_passes = 0;

	for (;;)
	{
		bool		is_being_cut;

		vacuum_once(job, result);
		progress_bytes_freed((uint64) (Max(job->first_pages, job->pass.new_pages) -
									   job->pass.new_pages) * BLCKSZ);
		is_being_cut = job->pass.new_pages > job->pass.nonempty_pages &&
			job->pass.new_pages + PROGRESS_PAGES < least;
		if (least == 0 || is_being_cut ||
			job->pass.new_pages < least - least / PROGRESS_FRACTION)
		{
			least = job->pass.new_pages;
			idle_passes = 0;
		}
		else
			idle_passes++;

		if (!plan_moves(job, rows, idle_passes >= MAX_IDLE_PASSES))
			break;
		move_tail(job, rows, result);
		/* value_move_plan makes a tail shorter that has very many values */
		job->pass.tail_start = job->tail_start;
		result->passes++;
		if (mover->moved.rows == 0)
			idle_passes = MAX_IDLE_PASSES - 1;
		if (TransactionIdIsValid(mover->moved.last_xid))
			job->last_xid = mover->moved.last_xid;
		old_versions_wait(job, mover);
		/* the first VACUUM has looked at all pages */
		job->params.options &= ~VACOPT_DISABLE_PAGE_SKIPPING;
	}
}

/* vacuum_once -- a pass's VACUUM, and truncation after it. */
static void
vacuum_once(Inplace *job, InplaceResult *result)
{
	Relation	rel;
	SavedUser	saved;
	TableKey	key;
	char	   *name;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	transaction_begin(false);
	rel = table_open(job->relid, ShareUpdateExclusiveLock);
	become_owner(rel, &saved);
	pace_write_steadily();
	if (job->first_pages == 0)
		job->first_pages = RelationGetNumberOfBlocks(rel);
	key = table_log_key(rel);
	name = pstrdup(RelationGetRelationName(rel));
	PG_TRY();
	{
		table_vacuum(rel, &job->params, job->ring, &job->pass, NULL);
	}
	PG_CATCH();
	{
		(void) autovacuum_audit_has_failed(&key, name);
		PG_RE_THROW();
	}
	PG_END_TRY();

	/*
	 * VACUUM has told the statistics system what is dead now.  Workers had
	 * told before, but what this session has counted would be added at the
	 * transaction's end.
	 */
	if (pgstat_should_count_relation(rel))
		rel->pgstat_info->counts.delta_dead_tuples = 0;
	become_user_again(&saved);
	table_close(rel, NoLock);
	transaction_end();
	if (job->pass.new_pages > job->pass.nonempty_pages && !VacuumFailsafeActive)
		while (cut_off_some(job))
			;
	inplace_report_step(result, INPLACE_VACUUM, start);
}

/*
 * cut_off_some
 *		Cut off a part of the empty end, in a transaction of its own; return whether
 *		there is more to be cut off now.
 *
 * A standby releases the table's lock when it replays the end of that transaction.
 * So the commit goes to disk at once, whatever the setting, but doesn't wait for standbys.
 */
static bool
cut_off_some(Inplace *job)
{
	Relation	rel;
	bool		more;

	transaction_begin(false);
	(void) set_config_option("synchronous_commit", "local", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
	rel = table_open(job->relid, ShareUpdateExclusiveLock);
	more = table_truncate_step(rel, job->ring, &job->pass);
	table_close(rel, NoLock);
	transaction_end();
	return more;
}

/*
 * plan_moves
 *		Offer the room that the last pass has left in its tail, set what is to be
 *		moved in the next one, and have all sessions forget where they put their
 *		last rows; false if there is no next one, for the reason in job->end.
 */
static bool
plan_moves(Inplace *job, Inplace *rows, bool is_idle)
{
	Relation	rel;
	BlockNumber hidden = job->pass.tail_start;

	transaction_begin(false);
	DEBUG_POINT("inplace-plan");
	begin_step(job, PROGRESS_INPLACE_PLAN, job->pass.new_pages);
	rel = table_open(job->relid, ShareUpdateExclusiveLock);
	if (hidden != InvalidBlockNumber)
		tail_note_room(job, rel);
	tail_plan(job, rel);
	job->end = plan_end(job, rows, is_idle);
	if (job->end == PLAN_GOES_ON)
	{
		/*
		 * value_move_plan does so for a TOAST table, whose tail it may
		 * shorten
		 */
		if (rows == NULL)
			tail_hide(job, rel);
		if (!RelationUsesLocalBuffers(rel))
			CacheInvalidateSmgr(RelationGetSmgr(rel)->smgr_rlocator);
	}
	if (hidden != InvalidBlockNumber)
		FreeSpaceMapVacuumRange(rel, hidden, InvalidBlockNumber);
	table_close(rel, NoLock);
	end_step(job);
	transaction_end();
	return job->end == PLAN_GOES_ON;
}

/* plan_end -- is there any use in carrying out the plan?  If not, why? */
static PlanEnd
plan_end(Inplace *job, Inplace *rows, bool is_idle)
{
	Inplace    *mover = rows != NULL ? rows : job;

	/* each batch looks, too, but here it saves planning */
	if (!mover->is_stopped && subscription_writes_to(mover->relid))
	{
		mover->subscriptions = SUBSCRIPTION_HERE;
		mover->is_stopped = true;
	}
	if (mover->is_stopped)
		return PLAN_STOPPED;
	if (VacuumFailsafeActive)
		return PLAN_TOO_OLD;
	if (job->npages - job->tail_start <= job->npages / WORTHWHILE_FRACTION)
		return PLAN_NO_ROOM;
	return is_idle ? PLAN_NO_PROGRESS : PLAN_GOES_ON;
}

/*
 * move_tail
 *		Move rows out of the tail until all are looked at, or there is no room for
 *		more; or values of a TOAST table, if rows says whose.
 */
static void
move_tail(Inplace *job, Inplace *rows, InplaceResult *result)
{
	Inplace    *mover = rows != NULL ? rows : job;
	TableKey	key = {.database = MyDatabaseId,.relid = mover->relid};
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	if (rows != NULL)
		plan_values(rows, job);
	begin_moving(mover, rows != NULL ? job : NULL);
	PG_TRY();
	{
		while (!mover->is_stopped && (rows != NULL ? value_move_some(rows, job) : row_move_some(job)))
			;
	}
	PG_CATCH();
	{
		move_batch_abandon();
		(void) autovacuum_audit_has_failed(&key, result->names[0]);
		PG_RE_THROW();
	}
	PG_END_TRY();
	end_moving(mover);
	if (rows == NULL)
		result->blocks_vacated += job->moved.blocks;
	inplace_report_step(result, rows != NULL ? INPLACE_MOVE_VALUES : INPLACE_MOVE, start);
}

/* plan_values -- plan which values are to be moved. */
static void
plan_values(Inplace *rows, Inplace *toast)
{
	transaction_begin(false);
	DEBUG_POINT("inplace-plan");
	begin_step(rows, PROGRESS_INPLACE_PLAN, rows->pass.new_pages);
	value_move_plan(rows, toast);
	end_step(rows);
	transaction_end();
}

/* begin_moving -- prepare to move rows, or values if toast says of which TOAST table. */
static void
begin_moving(Inplace *mover, const Inplace *toast)
{
	Relation	rel;
	MemoryContext old;

	memset(&mover->moved, 0, sizeof(MoveCounts));
	mover->next_visit = mover->one_by_one = 0;
	mover->end_visits = toast != NULL ? toast->look_through : mover->npages - mover->tail_start;
	mover->target = 0;

	transaction_begin(false);
	rel = table_open(mover->relid, ShareUpdateExclusiveLock);
	old = MemoryContextSwitchTo(mover->context);
	tail_begin_reading(mover, rel);
	MemoryContextSwitchTo(old);
	table_close(rel, NoLock);
	begin_step(mover, toast != NULL ? PROGRESS_INPLACE_MOVE_VALUES : PROGRESS_INPLACE_MOVE,
			   mover->end_visits);
	transaction_end();
}

/* end_moving -- rows, or values, have been moved. */
static void
end_moving(Inplace *mover)
{
	transaction_begin(false);
	tail_end_reading(mover);
	end_step(mover);
	transaction_end();
	mover->rows_moved += mover->moved.rows;
	mover->rows_undone += mover->moved.undone;
	mover->rows_audited += mover->moved.audited;
}

/* begin_step -- show what is done with this many blocks, and begin to keep the pace. */
static void
begin_step(Inplace *job, int phase, BlockNumber nblocks)
{
	Assert(IsTransactionState());
	job->pace = MemoryContextAllocZero(job->context, pace_shared_size());

	/*
	 * where other programs look: the server has no phase for moving rows to
	 * cut off the end
	 */
	pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM, job->relid);
	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE, PROGRESS_VACUUM_PHASE_TRUNCATE);
	pgstat_progress_update_param(PROGRESS_VACUUM_TOTAL_HEAP_BLKS, job->pass.new_pages);
	progress_begin(job->relid, MyProcPid);
	progress_phase(phase, nblocks);
	pace_create(job->pace, job->relid, false);
	pace_begin_work();
}

/* end_step -- it has been done. */
static void
end_step(Inplace *job)
{
	pace_end_work();
	pace_leave();
	progress_clear();
	pgstat_progress_end_command();
	pfree(job->pace);
	job->pace = NULL;
}
