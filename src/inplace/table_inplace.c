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
 *	 3. move the rows of that tail to the front, in batches (row_move.c)
 *	 4. wait a little for those who still need the old versions
 *
 * and so on until the table is as small as its rows allow, or nothing
 * more can be won: that ends with a VACUUM.  At last indexes that have
 * become too large are built anew beside the old ones (index_shrink.c).
 *
 * All of it happens under the lock of a plain VACUUM, held for the
 * session, in transactions of their own, each of which leaves the table as
 * valid as it was.  So it can be interrupted at any moment, and what has
 * been achieved stays.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "engine/table_vacuum.h"
#include "inplace/inplace.h"
#include "inplace/inplace_report.h"
#include "inplace/table_inplace.h"
#include "report/progress.h"
#include "transaction.h"

/* It isn't worth another pass if less than that could be gained ... */
#define WORTHWHILE_FRACTION		256
/* ... or if the last one has gained less, as others fill or need what is freed. */
#define PROGRESS_FRACTION		64

static void vacuum_once(Inplace *job, InplaceResult *result, CompactionPass *pass);
static bool plan_moves(Inplace *job);
static void move_rows_of_tail(Inplace *job, InplaceResult *result);

/*
 * table_inplace_is_possible
 *		Can rows of this table, which is a heap and locked, be moved?
 *
 * Not those of catalogs, as caches and snapshots for logical decoding know
 * catalog rows by their places.  Nor those of TOAST tables: whoever looks for
 * a value there takes each version of its parts that he finds.
 */
bool
table_inplace_is_possible(Relation rel)
{
	return rel->rd_rel->relkind != RELKIND_TOASTVALUE &&
		!IsSystemRelation(rel) &&
		!RelationIsUsedAsCatalogTable(rel);
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
	MemoryContext context = AllocSetContextCreate(parent, "Compaction", ALLOCSET_DEFAULT_SIZES);
	Inplace    *job = MemoryContextAllocZero(context, sizeof(Inplace));
	InplaceResult *result = MemoryContextAllocZero(context, sizeof(InplaceResult));
	VacuumParams quiet = *params;
	CompactionPass pass = {.tail_start = InvalidBlockNumber};

	/* the passes are ours: they look at every page, and leave no dead item, as
	 * one is enough to keep a page where it is */
	quiet.options &= ~VACOPT_VERBOSE;
	quiet.log_min_duration = -1;
	quiet.truncate = VACOPTVALUE_ENABLED;
	quiet.index_cleanup = VACOPTVALUE_ENABLED;
	quiet.options |= VACOPT_DISABLE_PAGE_SKIPPING;

	job->relid = relid;
	job->params = &quiet;
	job->ring = ring;
	job->pace = MemoryContextAllocZero(context, pace_shared_size());
	inplace_report_begin(result, relid, context, params);

	for (;;)
	{
		BlockNumber before = pass.new_pages;

		vacuum_once(job, result, &pass);
		if (VacuumFailsafeActive ||
			(result->passes > 0 && pass.new_pages + before / PROGRESS_FRACTION >= before) ||
			!plan_moves(job))
			break;
		pass.tail_start = job->tail_start;
		move_rows_of_tail(job, result);
		result->passes++;
		horizon_wait(job);
		/* what is all-visible now was so before, or has been looked at */
		quiet.options &= ~VACOPT_DISABLE_PAGE_SKIPPING;
	}
	result->obstacles = job->obstacles;
	inplace_report_heap(result, &pass);
	if (params->index_cleanup != VACOPTVALUE_DISABLED)
		index_shrink(relid, context);
	inplace_report_end(result);
	MemoryContextDelete(context);
}

/* vacuum_once -- a pass's VACUUM. */
static void
vacuum_once(Inplace *job, InplaceResult *result, CompactionPass *pass)
{
	Relation	rel;
	SavedUser	saved;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	begin_vacuum_transaction(false);
	rel = table_open(job->relid, ShareUpdateExclusiveLock);
	become_owner(rel, &saved);
	table_vacuum(rel, job->params, job->ring, pass);
	if (pass->tail_start != InvalidBlockNumber)
		tail_offer_room(job, rel);
	become_user_again(&saved);
	table_close(rel, NoLock);
	end_transaction();
	inplace_report_step(result, INPLACE_VACUUM, start);
}

/*
 * plan_moves
 *		Set what is to be moved in this pass, and have all sessions forget where
 *		they put their last rows; false if it isn't worth it.
 */
static bool
plan_moves(Inplace *job)
{
	Relation	rel;
	BlockNumber tail;

	begin_vacuum_transaction(false);
	rel = table_open(job->relid, ShareUpdateExclusiveLock);
	tail_plan(job, rel);
	tail = job->npages - job->tail_start;
	if (tail <= job->npages / WORTHWHILE_FRACTION)
		tail = 0;
	else if (!RelationUsesLocalBuffers(rel))
		CacheInvalidateSmgr(RelationGetSmgr(rel)->smgr_rlocator);
	table_close(rel, NoLock);
	end_transaction();

	job->source = job->npages;
	job->target = 0;
	job->rows_moved = 0;
	memset(&job->obstacles, 0, sizeof(job->obstacles));
	return tail > 0;
}

/*
 * move_rows_of_tail
 *		Move rows until the tail is done with, or there is no room for more.
 */
static void
move_rows_of_tail(Inplace *job, InplaceResult *result)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	progress_begin(job->relid, MyProcPid);
	progress_phase(PROGRESS_INPLACE_MOVE, job->npages - job->tail_start);
	pace_create(job->pace, job->relid);
	pace_begin_work();
	while (row_move_batch(job))
		;
	pace_end_work();
	pace_leave();
	progress_clear();

	result->rows_moved += job->rows_moved;
	result->blocks_vacated += job->npages - job->source;
	inplace_report_step(result, INPLACE_MOVE, start);
}
