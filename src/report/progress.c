/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  What each process of each running VACUUM is doing: the view
 *	  cyclone.progress.
 *
 * The server's own progress reports (pg_stat_progress_vacuum, which we fill
 * too) have a row a command; this is a row a process.  There is a slot in
 * shared memory for every process that can have one, written by that process
 * alone.  Its fields are atomics, each right by itself: a reader may see the
 * blocks of one moment with the phase of the next, but no torn value.  The
 * process ID is written last when a slot comes into use and first when it
 * falls out of use.
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
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "report/progress.h"

#define PROGRESS_COLUMNS	14

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
	pg_atomic_uint64 bytes_freed;	/* outlives what other fields are about */
	char		padding[PG_CACHE_LINE_SIZE];	/* apart from the neighbour */
} ProgressSlot;

static ProgressSlot *slots = NULL;	/* MaxBackends of them */
static bool exit_callback_registered = false;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void request_shmem(void);
static void startup_shmem(void);
static void clear_at_exit(int code, Datum arg);
static ProgressSlot *my_slot(void);
static const char *phase_name(uint32 phase);

PG_FUNCTION_INFO_V1(pg_cyclone_progress);

/*
 * progress_init
 *		Ask for shared memory.  Call while the library is preloaded.
 */
void
progress_init(void)
{
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

/*
 * progress_begin
 *		This process begins to vacuum a table, for that leader's command.
 */
void
progress_begin(Oid relid, int leader_pid)
{
	ProgressSlot *slot = my_slot();

	if (!exit_callback_registered)
	{
		before_shmem_exit(clear_at_exit, (Datum) 0);
		exit_callback_registered = true;
	}

	pg_atomic_write_u32(&slot->leader_pid, leader_pid);
	pg_atomic_write_u32(&slot->user_id, GetSessionUserId());
	pg_atomic_write_u32(&slot->database, MyDatabaseId);
	pg_atomic_write_u32(&slot->relid, relid);
	pg_atomic_write_u32(&slot->phase, 0);
	pg_atomic_write_u32(&slot->index_relid, InvalidOid);
	pg_atomic_write_u32(&slot->blocks_done, 0);
	pg_atomic_write_u32(&slot->blocks_total, 0);
	pg_atomic_write_u64(&slot->dead_tids, 0);
	pg_atomic_write_u64(&slot->store_bytes, 0);
	pg_atomic_write_u64(&slot->store_limit, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->pid, MyProcPid);
}

/*
 * progress_phase
 *		A phase of a vacuum or a rewrite begins, over this many blocks.
 */
void
progress_phase(int phase, BlockNumber blocks_total)
{
	ProgressSlot *slot = my_slot();

	pg_atomic_write_u32(&slot->phase, phase);
	pg_atomic_write_u32(&slot->index_relid, InvalidOid);
	pg_atomic_write_u32(&slot->blocks_done, 0);
	pg_atomic_write_u32(&slot->blocks_total, blocks_total);
}

/*
 * progress_blocks_done
 *		This process has done so many blocks of the phase.
 */
void
progress_blocks_done(BlockNumber blocks_done)
{
	pg_atomic_write_u32(&slots[MyProcNumber].blocks_done, blocks_done);
}

/*
 * progress_index
 *		This process works on that index of so many blocks now.
 */
void
progress_index(Oid index_relid, BlockNumber blocks_total)
{
	ProgressSlot *slot = my_slot();

	pg_atomic_write_u32(&slot->index_relid, index_relid);
	pg_atomic_write_u32(&slot->blocks_done, 0);
	pg_atomic_write_u32(&slot->blocks_total, blocks_total);
}

/*
 * progress_store
 *		How full the dead-TID store is, in items and bytes.
 */
void
progress_store(int64 items, Size bytes, Size limit)
{
	ProgressSlot *slot = my_slot();

	pg_atomic_write_u64(&slot->dead_tids, items);
	pg_atomic_write_u64(&slot->store_bytes, bytes);
	pg_atomic_write_u64(&slot->store_limit, limit);
}

/*
 * progress_bytes_freed
 *		The table in hand has become smaller by so many bytes, all in all.
 */
void
progress_bytes_freed(uint64 bytes)
{
	if (slots != NULL && MyProcNumber != INVALID_PROC_NUMBER)
		pg_atomic_write_u64(&slots[MyProcNumber].bytes_freed, bytes);
}

/*
 * progress_clear
 *		This process no longer vacuums; harmless if it never did.
 */
void
progress_clear(void)
{
	if (slots != NULL && MyProcNumber != INVALID_PROC_NUMBER)
		pg_atomic_write_u32(&slots[MyProcNumber].pid, 0);
}

/*
 * pg_cyclone_progress
 *		The rows of cyclone.progress.  As in pg_stat_activity, who may not see
 *		the statistics of the command's user sees only that it runs.
 */
Datum
pg_cyclone_progress(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);

	for (int i = 0; slots != NULL && i < MaxBackends; i++)
	{
		ProgressSlot *slot = &slots[i];
		uint32		pid = pg_atomic_read_u32(&slot->pid);
		uint32		leader_pid;
		Oid			index_relid;
		Datum		values[PROGRESS_COLUMNS] = {0};
		bool		nulls[PROGRESS_COLUMNS] = {0};

		if (pid == 0)
			continue;
		pg_read_barrier();

		leader_pid = pg_atomic_read_u32(&slot->leader_pid);
		values[0] = Int32GetDatum(pid);
		values[2] = ObjectIdGetDatum(pg_atomic_read_u32(&slot->database));

		if (has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
			has_privs_of_role(GetUserId(), pg_atomic_read_u32(&slot->user_id)))
		{
			index_relid = pg_atomic_read_u32(&slot->index_relid);
			values[1] = Int32GetDatum(leader_pid);
			values[3] = ObjectIdGetDatum(pg_atomic_read_u32(&slot->relid));
			values[4] = CStringGetTextDatum(pid == leader_pid ? "leader" : "worker");
			values[5] = CStringGetTextDatum(phase_name(pg_atomic_read_u32(&slot->phase)));
			values[6] = Int64GetDatum(pg_atomic_read_u32(&slot->blocks_done));
			values[7] = Int64GetDatum(pg_atomic_read_u32(&slot->blocks_total));
			values[8] = ObjectIdGetDatum(index_relid);
			nulls[8] = !OidIsValid(index_relid);
			values[9] = Int64GetDatum(pg_atomic_read_u64(&slot->dead_tids));
			values[10] = Int64GetDatum(pg_atomic_read_u64(&slot->store_bytes));
			values[11] = Int64GetDatum(pg_atomic_read_u64(&slot->store_limit));
			values[12] = Int64GetDatum(pg_atomic_read_u64(&slot->bytes_freed));
			values[13] = ObjectIdGetDatum(pg_atomic_read_u32(&slot->user_id));
		}
		else
		{
			memset(nulls, true, sizeof(nulls));
			nulls[0] = nulls[2] = false;
		}

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* request_shmem -- how much shared memory the slots need. */
static void
request_shmem(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(mul_size(sizeof(ProgressSlot), MaxBackends));
}

/* startup_shmem -- find the slots, or make them. */
static void
startup_shmem(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
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
	}
	LWLockRelease(AddinShmemInitLock);
}

/* clear_at_exit -- a process that dies leaves no row behind. */
static void
clear_at_exit(int code, Datum arg)
{
	progress_clear();
	progress_bytes_freed(0);
}

/* my_slot -- this process's slot. */
static ProgressSlot *
my_slot(void)
{
	Assert(slots != NULL);
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	return &slots[MyProcNumber];
}

/* phase_name -- the words of pg_stat_progress_vacuum, and our own. */
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
		default:
			return "initializing";
	}
}
