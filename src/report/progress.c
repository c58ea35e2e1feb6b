/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  What each process of each running VACUUM is doing: the view
 *	  cyclone.progress.
 *
 * The server's own progress reports (pg_stat_progress_vacuum, which we fill too) have one
 * row for each command; this view has one for each process.  Shared memory has a slot for
 * every process, which has a row as readers get it, under a spinlock.
 *
 * A slot also has the time when the phase began, and a mark: how far the process was some
 * time ago.  So a reader can tell the most recent rate from the one before.
 *
 * A process writes its own slot only, but for one case: a worker that leaves in the midst of
 * a phase adds the blocks that it has done there to a field of its leader's slot.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "commands/progress.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "at_exit.h"
#include "library.h"
#include "report/progress.h"

#define PROGRESS_COLUMNS	14

/* A new mark is made when the last one is as old as this part of the phase. */
#define MARK_FRACTION		4

typedef struct ProgressSlot
{
	slock_t		mutex;			/* protects the row */
	ProgressRow row;			/* its pid is 0 if the process vacuums nothing */
	char		padding[PG_CACHE_LINE_SIZE];	/* apart from the next one */
} ProgressSlot;

static ProgressSlot *slots = NULL;	/* MaxBackends of them */

/* The mark that goes to the slot when the next one is made: ms since the phase began, and blocks */
static uint32 next_mark_ms;
static BlockNumber next_mark_blocks;

static void clear_at_exit(void);
static bool has_slot(void);
static ProgressRow *lock_my_row(void);
static void unlock_my_row(void);
static void begin_phase(ProgressRow *row, int phase, BlockNumber blocks_total, TimestampTz now);
static void set_mark(ProgressRow *row, TimestampTz now);
static void leave_blocks(const ProgressRow *left);
static const char *phase_name(uint32 phase);

PG_FUNCTION_INFO_V1(pg_cyclone_progress);

/* progress_run -- see progress.h. */
void
progress_run(int kind, Oid relid, bool is_autovacuum, BlockNumber pages)
{
	TimestampTz now = GetCurrentTimestamp();
	ProgressRow *row;

	Assert(kind >= 0);
	Assert(OidIsValid(relid));
	if (!has_slot())
		return;
	row = lock_my_row();
	row->run_kind = kind;
	row->run_relid = relid;
	row->run_is_autovacuum = is_autovacuum;
	row->run_start = now;
	row->run_pages = pages;
	unlock_my_row();
}

/* progress_begin -- see progress.h. */
void
progress_begin(Oid relid, int leader_pid)
{
	TimestampTz now = GetCurrentTimestamp();
	Oid			user_id = GetSessionUserId();
	ProgressRow *row;

	Assert(OidIsValid(relid));
	Assert(leader_pid > 0);

	at_exit(clear_at_exit);
	row = lock_my_row();
	row->leader_pid = leader_pid;
	row->user_id = user_id;
	row->database = MyDatabaseId;
	row->relid = relid;
	row->index_relid = InvalidOid;
	row->blocks_done = row->blocks_total = row->blocks_of_rounds = 0;
	begin_phase(row, 0, 0, now);
	row->dead_tids = row->store_bytes = row->store_limit = 0;
	row->pid = MyProcPid;
	unlock_my_row();
}

/* progress_phase -- see progress.h. */
void
progress_phase(int phase, BlockNumber blocks_total)
{
	TimestampTz now = GetCurrentTimestamp();
	ProgressRow *row = lock_my_row();

	if (row->phase != phase)
		begin_phase(row, phase, blocks_total, now);
	row->index_relid = InvalidOid;
	row->blocks_done = 0;
	row->blocks_total = blocks_total;
	unlock_my_row();
}

/* progress_blocks_done -- see progress.h. */
void
progress_blocks_done(BlockNumber blocks_done)
{
	TimestampTz now = GetCurrentTimestamp();
	ProgressRow *row = lock_my_row();

	row->blocks_done = blocks_done;
	if (!OidIsValid(row->index_relid))
		set_mark(row, now);
	unlock_my_row();
}

/* progress_rounds -- see progress.h. */
void
progress_rounds(BlockNumber blocks_scanned)
{
	lock_my_row()->blocks_of_rounds = blocks_scanned;
	unlock_my_row();
}

/* progress_index -- see progress.h. */
void
progress_index(Oid index_relid, BlockNumber blocks_total)
{
	ProgressRow *row = lock_my_row();

	row->index_relid = index_relid;
	row->blocks_done = 0;
	row->blocks_total = blocks_total;
	unlock_my_row();
}

/* progress_store -- see progress.h. */
void
progress_store(int64 items, Size bytes, Size limit)
{
	ProgressRow *row = lock_my_row();

	row->dead_tids = items;
	row->store_bytes = bytes;
	row->store_limit = limit;
	unlock_my_row();
}

/* progress_bytes_freed -- see progress.h. */
void
progress_bytes_freed(uint64 bytes)
{
	if (!has_slot())
		return;
	lock_my_row()->bytes_freed = bytes;
	unlock_my_row();
}

/* progress_clear -- see progress.h. */
void
progress_clear(void)
{
	ProgressRow *row;
	ProgressRow left;

	if (!has_slot())
		return;
	row = lock_my_row();
	left = *row;
	row->pid = 0;
	unlock_my_row();
	if (left.pid != 0 && left.pid != left.leader_pid && !OidIsValid(left.index_relid))
		leave_blocks(&left);
}

/* progress_read -- see progress.h. */
int
progress_read(ProgressRow **rows)
{
	int			nrows = 0;

	*rows = palloc_array(ProgressRow, Max(MaxBackends, 1));
	for (int i = 0; slots != NULL && i < MaxBackends; i++)
	{
		SpinLockAcquire(&slots[i].mutex);
		(*rows)[nrows] = slots[i].row;
		SpinLockRelease(&slots[i].mutex);
		if ((*rows)[nrows].pid != 0)
			nrows++;
	}
	return nrows;
}

/* progress_is_visible -- see progress.h. */
bool
progress_is_visible(const ProgressRow *row)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), row->user_id);
}

/*
 * pg_cyclone_progress
 *		The rows of cyclone.progress.  As in pg_stat_activity, a role that may not
 *		see the statistics of the command's user sees only that it runs.
 */
Datum
pg_cyclone_progress(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ProgressRow *rows;
	int			nrows;

	refuse_without_preloading();
	library_begin_rows(fcinfo, PROGRESS_COLUMNS);

	nrows = progress_read(&rows);
	for (int i = 0; i < nrows; i++)
	{
		ProgressRow *row = &rows[i];
		Datum		values[PROGRESS_COLUMNS] = {0};
		bool		nulls[PROGRESS_COLUMNS] = {0};

		values[0] = Int32GetDatum(row->pid);
		values[2] = ObjectIdGetDatum(row->database);
		if (progress_is_visible(row))
		{
			values[1] = Int32GetDatum(row->leader_pid);
			values[3] = ObjectIdGetDatum(row->relid);
			values[4] = CStringGetTextDatum(row->pid == row->leader_pid ? "leader" : "worker");
			values[5] = CStringGetTextDatum(phase_name(row->phase));
			values[6] = Int64GetDatum(row->blocks_done);
			values[7] = Int64GetDatum(row->blocks_total);
			values[8] = ObjectIdGetDatum(row->index_relid);
			nulls[8] = !OidIsValid(row->index_relid);
			values[9] = Int64GetDatum(row->dead_tids);
			values[10] = Int64GetDatum(row->store_bytes);
			values[11] = Int64GetDatum(row->store_limit);
			values[12] = Int64GetDatum(row->bytes_freed);
			values[13] = ObjectIdGetDatum(row->user_id);
		}
		else
		{
			memset(nulls, true, sizeof(nulls));
			nulls[0] = nulls[2] = false;
		}

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	pfree(rows);
	return (Datum) 0;
}

/* progress_shmem_request -- how much shared memory the slots need. */
void
progress_shmem_request(void)
{
	RequestAddinShmemSpace(mul_size(sizeof(ProgressSlot), MaxBackends));
}

/* progress_shmem_init -- find the slots, or make them. */
void
progress_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));

	slots = ShmemInitStruct("pg_cyclone progress",
							mul_size(sizeof(ProgressSlot), MaxBackends),
							&found);
	for (int i = 0; !found && i < MaxBackends; i++)
	{
		SpinLockInit(&slots[i].mutex);
		memset(&slots[i].row, 0, sizeof(ProgressRow));
	}
}

/* clear_at_exit -- remove the row of a process that ends. */
static void
clear_at_exit(void)
{
	progress_clear();
	progress_bytes_freed(0);
}

/* has_slot -- has this process a slot? */
static bool
has_slot(void)
{
	return slots != NULL && MyProcNumber != INVALID_PROC_NUMBER;
}

/* lock_my_row -- this process's row, for a few assignments: its spinlock is held. */
static ProgressRow *
lock_my_row(void)
{
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	SpinLockAcquire(&slots[MyProcNumber].mutex);
	return &slots[MyProcNumber].row;
}

/* unlock_my_row -- release the spinlock. */
static void
unlock_my_row(void)
{
	SpinLockRelease(&slots[MyProcNumber].mutex);
}

/* begin_phase -- note that this process enters another phase. */
static void
begin_phase(ProgressRow *row, int phase, BlockNumber blocks_total, TimestampTz now)
{
	row->phase = phase;
	row->phase_blocks = blocks_total;
	row->phase_start = now;
	row->mark_seconds = 0;
	row->mark_blocks = next_mark_blocks = 0;
	row->blocks_of_leavers = 0;
	next_mark_ms = 0;
}

/* set_mark -- remember how far this process is, if the last mark is old enough. */
static void
set_mark(ProgressRow *row, TimestampTz now)
{
	uint32		ms = Min(Max((now - row->phase_start) / 1000, 0), PG_UINT32_MAX);

	/* the clock may have been set back, too */
	if (ms == 0 || ms < next_mark_ms || ms - next_mark_ms < ms / MARK_FRACTION)
		return;
	row->mark_seconds = next_mark_ms / 1000.0;
	row->mark_blocks = next_mark_blocks;
	next_mark_ms = ms;
	next_mark_blocks = row->blocks_done;
}

/*
 * leave_blocks
 *		Add the blocks that this worker has done in a phase to its leader's slot, if the
 *		leader is in the same phase.
 */
static void
leave_blocks(const ProgressRow *left)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		ProgressRow *row = &slots[i].row;
		bool		is_leader;

		SpinLockAcquire(&slots[i].mutex);
		is_leader = row->pid == left->leader_pid;
		if (is_leader && row->phase == left->phase)
			row->blocks_of_leavers += left->blocks_done;
		SpinLockRelease(&slots[i].mutex);
		if (is_leader)
			break;
	}
}

/* phase_name -- the phase in the words of pg_stat_progress_vacuum, or in our own. */
static const char *
phase_name(uint32 phase)
{
	switch (phase)
	{
		case PROGRESS_VACUUM_PHASE_SCAN_HEAP:
			return "scanning heap";
		case PROGRESS_VACUUM_PHASE_VACUUM_INDEX:
			return "vacuuming indexes";
		case PROGRESS_VACUUM_PHASE_VACUUM_HEAP:
			return "vacuuming heap";
		case PROGRESS_VACUUM_PHASE_INDEX_CLEANUP:
			return "cleaning up indexes";
		case PROGRESS_VACUUM_PHASE_TRUNCATE:
			return "truncating heap";
		case PROGRESS_VACUUM_PHASE_FINAL_CLEANUP:
			return "performing final cleanup";
		case PROGRESS_REWRITE_COPY_TOAST:
			return "copying TOAST table";
		case PROGRESS_REWRITE_COPY_HEAP:
			return "copying heap";
		case PROGRESS_REWRITE_INDEX_TOAST:
			return "indexing TOAST table";
		case PROGRESS_REWRITE_COPY_CHAINS:
			return "copying linked row versions";
		case PROGRESS_REWRITE_INDEX:
			return "rebuilding indexes";
		case PROGRESS_REWRITE_AUDIT:
			return "auditing new indexes";
		case PROGRESS_INPLACE_PLAN:
			return "planning moves";
		case PROGRESS_INPLACE_MOVE:
			return "moving rows";
		case PROGRESS_INPLACE_MOVE_VALUES:
			return "moving values";
		case PROGRESS_INPLACE_REINDEX:
			return "reindexing";
		case PROGRESS_INPLACE_WAIT:
			return "waiting for other transactions";
		default:
			return "initializing";
	}
}
