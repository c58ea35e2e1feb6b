/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  What each process of each running VACUUM is doing: the view
 *	  cyclone.progress.
 *
 * The server's own progress reports (pg_stat_progress_vacuum, which we fill too) have one
 * row for each command; this view has one for each process.  Shared memory has a slot for
 * every process, which that process alone writes.  Its fields are atomics, each right by
 * itself: a reader may see the blocks of one moment with the phase of the next, but no torn
 * value.  The process ID is written last when a slot comes into use, and first when it falls
 * out of use.
 *
 * A slot also has the time when the phase began, and a mark: how far the process was some
 * time ago.  So a reader can tell the most recent rate from the one before.
 *
 * There is one exception to the rule that a process writes its own slot only: a worker
 * that leaves in the midst of a phase adds the blocks that it has done there to a field
 * of its leader's slot.
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
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "at_exit.h"
#include "declared_rows.h"
#include "library.h"
#include "report/progress.h"

#define PROGRESS_COLUMNS	14

/* A mark in an atomic: milliseconds since the phase began, and blocks */
#define MARK(ms, blocks)	((uint64) (ms) << 32 | (blocks))
#define MARK_MS(mark)		((uint32) ((mark) >> 32))
#define MARK_BLOCKS(mark)	((BlockNumber) (mark))
/* A new mark is made when the last one is as old as this part of the phase. */
#define MARK_FRACTION		4

typedef struct ProgressSlot
{
	pg_atomic_uint32 pid;		/* 0 if the slot is not in use */
	pg_atomic_uint32 leader_pid;
	pg_atomic_uint32 user_id;	/* whose command it is */
	pg_atomic_uint32 database;
	pg_atomic_uint32 relid;
	pg_atomic_uint32 phase;		/* PROGRESS_VACUUM_PHASE_... or _REWRITE_... */
	pg_atomic_uint32 index_relid;
	pg_atomic_uint32 blocks_done;
	pg_atomic_uint32 blocks_total;
	pg_atomic_uint64 dead_tids;
	pg_atomic_uint64 store_bytes;
	pg_atomic_uint64 store_limit;
	pg_atomic_uint64 bytes_freed;	/* progress_begin leaves it as it is */
	pg_atomic_uint64 phase_start;	/* TimestampTz */
	pg_atomic_uint32 phase_blocks;	/* blocks_total when the phase began */
	pg_atomic_uint64 mark;		/* see MARK; 0: none */
	pg_atomic_uint32 blocks_of_leavers; /* in the leader's slot; workers add */
	pg_atomic_uint32 blocks_of_rounds;

	/* progress_begin leaves these, too: see progress_run */
	pg_atomic_uint32 run_kind;
	pg_atomic_uint32 run_relid;
	pg_atomic_uint32 run_is_autovacuum;
	pg_atomic_uint64 run_start; /* TimestampTz */
	pg_atomic_uint32 run_pages;
	char		padding[PG_CACHE_LINE_SIZE];	/* apart from the next one */
} ProgressSlot;

static ProgressSlot *slots = NULL;	/* MaxBackends of them */

/* The mark that goes to the slot when the next one is made */
static uint64 next_mark;

static void clear_at_exit(void);
static ProgressSlot *my_slot(void);
static bool slot_is_mine(void);
static void begin_phase(ProgressSlot *slot, int phase, BlockNumber blocks_total);
static void set_mark(ProgressSlot *slot, BlockNumber blocks_done);
static void leave_blocks(ProgressSlot *slot);
static void read_slot(ProgressSlot *slot, ProgressRow *row);
static const char *phase_name(uint32 phase);

PG_FUNCTION_INFO_V1(pg_cyclone_progress);

/* progress_run -- see progress.h. */
void
progress_run(int kind, Oid relid, bool is_autovacuum, BlockNumber pages)
{
	ProgressSlot *slot;

	Assert(kind >= 0);
	Assert(OidIsValid(relid));
	if (!slot_is_mine())
		return;
	slot = my_slot();
	pg_atomic_write_u32(&slot->run_kind, kind);
	pg_atomic_write_u32(&slot->run_relid, relid);
	pg_atomic_write_u32(&slot->run_is_autovacuum, is_autovacuum);
	pg_atomic_write_u64(&slot->run_start, GetCurrentTimestamp());
	pg_atomic_write_u32(&slot->run_pages, pages);
}

/* progress_begin -- see progress.h. */
void
progress_begin(Oid relid, int leader_pid)
{
	ProgressSlot *slot = my_slot();

	Assert(OidIsValid(relid));
	Assert(leader_pid > 0);

	at_exit(clear_at_exit);
	pg_atomic_write_u32(&slot->leader_pid, leader_pid);
	pg_atomic_write_u32(&slot->user_id, GetSessionUserId());
	pg_atomic_write_u32(&slot->database, MyDatabaseId);
	pg_atomic_write_u32(&slot->relid, relid);
	pg_atomic_write_u32(&slot->index_relid, InvalidOid);
	pg_atomic_write_u32(&slot->blocks_done, 0);
	pg_atomic_write_u32(&slot->blocks_total, 0);
	pg_atomic_write_u32(&slot->blocks_of_rounds, 0);
	begin_phase(slot, 0, 0);
	pg_atomic_write_u64(&slot->dead_tids, 0);
	pg_atomic_write_u64(&slot->store_bytes, 0);
	pg_atomic_write_u64(&slot->store_limit, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->pid, MyProcPid);
}

/* progress_phase -- see progress.h. */
void
progress_phase(int phase, BlockNumber blocks_total)
{
	ProgressSlot *slot = my_slot();

	Assert(phase >= 0);
	if (pg_atomic_read_u32(&slot->phase) != phase)
		begin_phase(slot, phase, blocks_total);
	pg_atomic_write_u32(&slot->index_relid, InvalidOid);
	pg_atomic_write_u32(&slot->blocks_done, 0);
	pg_atomic_write_u32(&slot->blocks_total, blocks_total);
}

/* progress_blocks_done -- see progress.h. */
void
progress_blocks_done(BlockNumber blocks_done)
{
	ProgressSlot *slot = my_slot();

	pg_atomic_write_u32(&slot->blocks_done, blocks_done);
	if (!OidIsValid(pg_atomic_read_u32(&slot->index_relid)))
		set_mark(slot, blocks_done);
}

/* progress_rounds -- see progress.h. */
void
progress_rounds(BlockNumber blocks_scanned)
{
	pg_atomic_write_u32(&my_slot()->blocks_of_rounds, blocks_scanned);
}

/* progress_index -- see progress.h. */
void
progress_index(Oid index_relid, BlockNumber blocks_total)
{
	ProgressSlot *slot = my_slot();

	pg_atomic_write_u32(&slot->index_relid, index_relid);
	pg_atomic_write_u32(&slot->blocks_done, 0);
	pg_atomic_write_u32(&slot->blocks_total, blocks_total);
}

/* progress_store -- see progress.h. */
void
progress_store(int64 items, Size bytes, Size limit)
{
	ProgressSlot *slot = my_slot();

	Assert(items >= 0);

	pg_atomic_write_u64(&slot->dead_tids, items);
	pg_atomic_write_u64(&slot->store_bytes, bytes);
	pg_atomic_write_u64(&slot->store_limit, limit);
}

/* progress_bytes_freed -- see progress.h. */
void
progress_bytes_freed(uint64 bytes)
{
	if (slot_is_mine())
		pg_atomic_write_u64(&slots[MyProcNumber].bytes_freed, bytes);
}

/* progress_clear -- see progress.h. */
void
progress_clear(void)
{
	ProgressSlot *slot;

	if (!slot_is_mine())
		return;
	slot = my_slot();
	if (pg_atomic_read_u32(&slot->pid) != 0)
		leave_blocks(slot);
	pg_atomic_write_u32(&slot->pid, 0);
}

/* progress_read -- see progress.h. */
int
progress_read(ProgressRow **rows)
{
	int			nrows = 0;

	*rows = palloc_array(ProgressRow, Max(MaxBackends, 1));
	for (int i = 0; slots != NULL && i < MaxBackends; i++)
	{
		ProgressRow *row = &(*rows)[nrows];

		row->pid = pg_atomic_read_u32(&slots[i].pid);
		if (row->pid == 0)
			continue;
		pg_read_barrier();
		read_slot(&slots[i], row);
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
	declared_rows_begin(fcinfo, PROGRESS_COLUMNS);

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
		pg_atomic_init_u32(&slots[i].pid, 0);
		pg_atomic_init_u32(&slots[i].leader_pid, 0);
		pg_atomic_init_u32(&slots[i].user_id, InvalidOid);
		pg_atomic_init_u32(&slots[i].database, InvalidOid);
		pg_atomic_init_u32(&slots[i].relid, InvalidOid);
		pg_atomic_init_u32(&slots[i].phase, 0);
		pg_atomic_init_u32(&slots[i].index_relid, InvalidOid);
		pg_atomic_init_u32(&slots[i].blocks_done, 0);
		pg_atomic_init_u32(&slots[i].blocks_total, 0);
		pg_atomic_init_u64(&slots[i].dead_tids, 0);
		pg_atomic_init_u64(&slots[i].store_bytes, 0);
		pg_atomic_init_u64(&slots[i].store_limit, 0);
		pg_atomic_init_u64(&slots[i].bytes_freed, 0);
		pg_atomic_init_u64(&slots[i].phase_start, 0);
		pg_atomic_init_u32(&slots[i].phase_blocks, 0);
		pg_atomic_init_u64(&slots[i].mark, 0);
		pg_atomic_init_u32(&slots[i].blocks_of_leavers, 0);
		pg_atomic_init_u32(&slots[i].blocks_of_rounds, 0);
		pg_atomic_init_u32(&slots[i].run_kind, 0);
		pg_atomic_init_u32(&slots[i].run_relid, InvalidOid);
		pg_atomic_init_u32(&slots[i].run_is_autovacuum, 0);
		pg_atomic_init_u64(&slots[i].run_start, 0);
		pg_atomic_init_u32(&slots[i].run_pages, 0);
	}
}

/* clear_at_exit -- remove the row of a process that ends. */
static void
clear_at_exit(void)
{
	progress_clear();
	progress_bytes_freed(0);
}

/* my_slot -- this process's slot. */
static ProgressSlot *
my_slot(void)
{
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	return &slots[MyProcNumber];
}

/* slot_is_mine -- has this process a slot? */
static bool
slot_is_mine(void)
{
	return slots != NULL && MyProcNumber != INVALID_PROC_NUMBER;
}

/* begin_phase -- note that this process enters another phase. */
static void
begin_phase(ProgressSlot *slot, int phase, BlockNumber blocks_total)
{
	pg_atomic_write_u64(&slot->mark, 0);
	pg_atomic_write_u32(&slot->blocks_of_leavers, 0);
	pg_atomic_write_u32(&slot->phase_blocks, blocks_total);
	pg_atomic_write_u64(&slot->phase_start, GetCurrentTimestamp());
	pg_atomic_write_u32(&slot->phase, phase);
	next_mark = 0;
}

/*
 * set_mark
 *		Remember how far this process is, if the last mark is old enough.
 */
static void
set_mark(ProgressSlot *slot, BlockNumber blocks_done)
{
	int64		us = GetCurrentTimestamp() - (TimestampTz) pg_atomic_read_u64(&slot->phase_start);
	uint32		ms = Min(Max(us / 1000, 0), PG_UINT32_MAX);

	/* the clock may have been set back, too */
	if (ms == 0 || ms < MARK_MS(next_mark) ||
		ms - MARK_MS(next_mark) < ms / MARK_FRACTION)
		return;
	pg_atomic_write_u64(&slot->mark, next_mark);
	next_mark = MARK(ms, blocks_done);
}

/*
 * leave_blocks
 *		Add the blocks that this worker has done in the phase to its leader's slot, if
 *		the leader is in the same phase.  Does nothing in the leader itself.
 */
static void
leave_blocks(ProgressSlot *slot)
{
	uint32		leader_pid = pg_atomic_read_u32(&slot->leader_pid);

	Assert(slot == my_slot());

	if (leader_pid == MyProcPid || OidIsValid(pg_atomic_read_u32(&slot->index_relid)))
		return;
	for (int i = 0; i < MaxBackends; i++)
		if (pg_atomic_read_u32(&slots[i].pid) == leader_pid)
		{
			if (pg_atomic_read_u32(&slots[i].phase) == pg_atomic_read_u32(&slot->phase))
				pg_atomic_fetch_add_u32(&slots[i].blocks_of_leavers,
										pg_atomic_read_u32(&slot->blocks_done));
			break;
		}
}

/* read_slot -- copy a slot to a row, but for the process ID. */
static void
read_slot(ProgressSlot *slot, ProgressRow *row)
{
	uint64		mark;

	Assert(row->pid != 0);
	row->leader_pid = pg_atomic_read_u32(&slot->leader_pid);
	row->user_id = pg_atomic_read_u32(&slot->user_id);
	row->database = pg_atomic_read_u32(&slot->database);
	row->relid = pg_atomic_read_u32(&slot->relid);
	row->phase = pg_atomic_read_u32(&slot->phase);
	row->index_relid = pg_atomic_read_u32(&slot->index_relid);
	row->blocks_done = pg_atomic_read_u32(&slot->blocks_done);
	row->blocks_total = pg_atomic_read_u32(&slot->blocks_total);
	row->dead_tids = pg_atomic_read_u64(&slot->dead_tids);
	row->store_bytes = pg_atomic_read_u64(&slot->store_bytes);
	row->store_limit = pg_atomic_read_u64(&slot->store_limit);
	row->bytes_freed = pg_atomic_read_u64(&slot->bytes_freed);

	row->phase_start = pg_atomic_read_u64(&slot->phase_start);
	row->phase_blocks = pg_atomic_read_u32(&slot->phase_blocks);
	mark = pg_atomic_read_u64(&slot->mark);
	row->mark_blocks = MARK_BLOCKS(mark);
	row->mark_seconds = MARK_MS(mark) / 1000.0;
	row->blocks_of_leavers = pg_atomic_read_u32(&slot->blocks_of_leavers);
	row->blocks_of_rounds = pg_atomic_read_u32(&slot->blocks_of_rounds);

	row->run_kind = pg_atomic_read_u32(&slot->run_kind);
	row->run_relid = pg_atomic_read_u32(&slot->run_relid);
	row->run_is_autovacuum = pg_atomic_read_u32(&slot->run_is_autovacuum) != 0;
	row->run_start = pg_atomic_read_u64(&slot->run_start);
	row->run_pages = pg_atomic_read_u32(&slot->run_pages);
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
