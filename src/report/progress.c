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
 * A process writes its own slot only, but for one case: a worker that leaves in the midst of
 * a phase adds the blocks that it has done there to a field of its leader's slot.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "at_exit.h"
#include "report/progress.h"

typedef struct ProgressSlot
{
	slock_t		mutex;			/* protects the row */
	ProgressRow row;			/* its pid is 0 if the process vacuums nothing */
	char		padding[PG_CACHE_LINE_SIZE];	/* apart from the next one */
} ProgressSlot;

static ProgressSlot *slots = NULL;	/* MaxBackends of them */

static void clear_at_exit(void);
static bool has_slot(void);
static ProgressRow *lock_my_row(void);
static void unlock_my_row(void);
static void begin_phase(ProgressRow *row, int phase, BlockNumber blocks_total, TimestampTz now);
static void leave_blocks(const ProgressRow *left);

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
	ProgressRow *row = lock_my_row();

	row->blocks_done = blocks_done;
	if (!OidIsValid(row->index_relid))
		row->phase_blocks_done = blocks_done;
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
	if (left.pid != 0 && left.pid != left.leader_pid)
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
	row->phase_blocks_done = row->blocks_of_leavers = 0;
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
			row->blocks_of_leavers += left->phase_blocks_done;
		SpinLockRelease(&slots[i].mutex);
		if (is_leader)
			break;
	}
}
