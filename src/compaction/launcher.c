/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The process that has tables compacted by themselves.
 *
 * It runs while cyclone.compaction is on, in no database, and starts a worker for each
 * database in turn, first for the one whose last visit is longest ago.  The workers
 * find out themselves whether there is anything to be done.
 *
 * While a worker is at a table it may be anywhere in VACUUM.  So the launcher watches
 * for it: does the window end, was it changed, was compaction switched off, is the WAL of
 * the day used up, does a session wait for a lock that the worker has, or the worker for
 * long for one that a session has?  If so, the launcher ends the work at that table, by
 * the signal that pg_cancel_backend sends.  That is right at any moment, as committed
 * moves stay.  VACUUM takes some locks for a moment only, so sessions that have waited
 * for less than WAIT_MS don't count.
 *
 * To see which sessions wait takes the locks of all partitions of the lock table, as
 * reading pg_locks does.  So the launcher first looks, without any lock, whether a
 * session in that database waits at all.  If that look is out of date, the next one
 * comes WATCH_MS later.
 *
 * The launcher knows of workers only by the slots in shared memory.  So the next one,
 * after it was terminated, finds them as they are.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compaction/compaction.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "library.h"
#include "own_wait_event.h"
#include "own_worker.h"

/* The time that a worker has to start */
#define START_MS	60000
/* After the launcher has ended the next one comes no earlier than this. */
#define RESTART_MS	5000
/* Workers are started no sooner after each other, as autovacuum's: there may be thousands of databases. */
#define START_PAUSE_MS	100
/* How often to look while a worker is at a table; how long a session must have waited to count */
#define WATCH_MS	100
#define WAIT_MS		200
/* How long a worker waits for a lock at most: no owner of a table keeps it from all others */
#define PATIENCE_MS	10000

/* The last visit of a database */
typedef struct Visit
{
	Oid			database;
	TimestampTz at;
} Visit;

PGDLLEXPORT void pg_cyclone_compaction_launcher(Datum arg);

static Visit *visits = NULL;
static int	nvisits = 0;

static void leave(int code, Datum arg);
static void watch_slots(bool *are_there, bool *are_at_tables);
static bool wal_is_left(void);
static bool window_has_ended(const CompactionSlot *slot);
static bool usual_hours_are_over(void);
static bool is_in_the_way(const CompactionSlot *slot);
static bool waits_in_vain(const CompactionSlot *slot);
static bool database_has_waiter(const CompactionSlot *slot);
static bool waits_for(const LockInstanceData *waiter, const LockData *locks, int pid);
static void stop_slot(CompactionSlot *slot, const CompactionSlot *seen, bool on_time);
static bool visit_next(void);
static bool slot_is_busy(const CompactionSlot *slot, TimestampTz now);
static CompactionSlot *free_slot(TimestampTz now);
static Visit *next_visit(TimestampTz now);
static void find_databases(void);
static bool is_to_be_visited(Form_pg_database database);
static bool start_worker(CompactionSlot *slot, Oid database, TimestampTz now);

/* pg_cyclone_compaction_launcher -- the entry of the process. */
void
pg_cyclone_compaction_launcher(Datum arg)
{
	static uint32 wait_event = 0;
	MemoryContext context;
	uint32		none = 0;

	refuse_without_preloading();
	if (!pg_atomic_compare_exchange_u32(&compaction_shared->has_launcher, &none, 1))
		proc_exit(0);
	before_shmem_exit(leave, (Datum) 0);
	own_worker_begin(InvalidOid, 0);

	context = AllocSetContextCreate(TopMemoryContext, "Compaction launcher", ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		bool		are_there;
		bool		are_at_tables;
		bool		comes_soon;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		MemoryContextSwitchTo(context);
		watch_slots(&are_there, &are_at_tables);
		comes_soon = !cyclone_compaction || !visit_next();
		if (!cyclone_compaction && !are_there)
			proc_exit(0);
		MemoryContextReset(context);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 are_at_tables || comes_soon ? WATCH_MS : DEBUG_LIMIT(compaction_visit, COMPACTION_VISIT_MS / 10),
						 own_wait_event(&wait_event, "CycloneCompactionLauncher"));
		ResetLatch(MyLatch);
	}
}

/*
 * leave
 *		The process ends.  The next one comes a little later, as a session in a long
 *		statement may not know yet that compaction was switched off.
 */
static void
leave(int code, Datum arg)
{
	own_worker_not_before(&compaction_launcher, DEBUG_LIMIT(compaction_visit, RESTART_MS));
	pg_atomic_write_u32(&compaction_shared->has_launcher, 0);
}

/* watch_slots -- stop the workers that must stop; are there workers, and are any at a table? */
static void
watch_slots(bool *are_there, bool *are_at_tables)
{
	bool		may_write = wal_is_left();

	*are_there = *are_at_tables = false;
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
	{
		CompactionSlot *slot = &compaction_shared->slots[i];
		CompactionSlot seen;

		LWLockAcquire(compaction_shared->lock, LW_SHARED);
		seen = *slot;
		LWLockRelease(compaction_shared->lock);
		*are_there |= seen.pid != 0;
		if (seen.pid == 0 || !OidIsValid(seen.relid))
			continue;
		*are_at_tables = true;
		if (!cyclone_compaction || !may_write || window_has_ended(&seen))
			stop_slot(slot, &seen, true);
		else if (is_in_the_way(&seen) || waits_in_vain(&seen))
			stop_slot(slot, &seen, false);
	}
}

/*
 * wal_is_left
 *		Have the workers written no more WAL, in this day and at the tables in hand, than
 *		they may?
 */
static bool
wal_is_left(void)
{
	double		left = compaction_wal_left();

	if (left < 0)
		return true;
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
	{
		const CompactionSlot *slot = &compaction_shared->slots[i];
		int			pid;

		LWLockAcquire(compaction_shared->lock, LW_SHARED);
		pid = OidIsValid(slot->relid) ? slot->pid : 0;
		LWLockRelease(compaction_shared->lock);
		if (pid != 0)
			left -= guards_wal_written(pid);
	}
	return left >= 0;
}

/* window_has_ended -- has the window of a worker's table ended? */
static bool
window_has_ended(const CompactionSlot *slot)
{
	TimestampTz now = GetCurrentTimestamp();
	int			after = DEBUG_LIMIT(compaction_window, 0);

	Assert(slot->pid != 0);
	return (slot->must_end != 0 && now >= slot->must_end) ||
		(slot->has_usual_hours && usual_hours_are_over()) ||
		(after > 0 && now - slot->started >= after * INT64CONST(1000));
}

/* usual_hours_are_over -- is it outside of cyclone.compaction_window, as that is set now? */
static bool
usual_hours_are_over(void)
{
	CompactionWindow window;
	const char *problem;

	return window_parse(cyclone_compaction_window, &window, &problem) &&
		!window_has(&window, compaction_wall_clock(timestamptz_to_time_t(GetCurrentTimestamp())));
}

/* is_in_the_way -- does a session wait for a lock that a worker, or one of its own workers, has? */
static bool
is_in_the_way(const CompactionSlot *slot)
{
	LockData   *locks;
	TimestampTz now = GetCurrentTimestamp();

	Assert(slot->pid != 0 && OidIsValid(slot->relid));

	if (!database_has_waiter(slot))
		return false;
	locks = GetLockStatusData();
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->waitLockMode != NoLock && lock->leaderPid != slot->pid &&
			lock->locktag.locktag_type == LOCKTAG_RELATION &&
			lock->locktag.locktag_field1 == slot->database &&
			lock->waitStart != 0 && now - lock->waitStart >= WAIT_MS * INT64CONST(1000) &&
			waits_for(lock, locks, slot->pid))
			return true;
	}
	return false;
}

/*
 * waits_in_vain
 *		Has a worker waited for a lock on a relation for long?  It takes the one on the table
 *		without waiting, but the table's owner may lock an index alone.
 */
static bool
waits_in_vain(const CompactionSlot *slot)
{
	const PGPROC *proc = BackendPidGetProc(slot->pid);
	TimestampTz now = GetCurrentTimestamp();
	LockData   *locks;

	Assert(slot->pid != 0 && OidIsValid(slot->relid));

	if (proc == NULL || proc->waitStatus != PROC_WAIT_STATUS_WAITING)
		return false;
	locks = GetLockStatusData();
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->pid == slot->pid && lock->waitLockMode != NoLock &&
			lock->locktag.locktag_type == LOCKTAG_RELATION &&
			lock->waitStart != 0 && now - lock->waitStart >= PATIENCE_MS * INT64CONST(1000))
			return true;
	}
	return false;
}

/* database_has_waiter -- does a process in its database wait for a lock?  Without any lock. */
static bool
database_has_waiter(const CompactionSlot *slot)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		const PGPROC *proc = &ProcGlobal->allProcs[i];

		if (proc->pid != 0 && proc->pid != slot->pid && proc->databaseId == slot->database &&
			proc->waitStatus == PROC_WAIT_STATUS_WAITING)
			return true;
	}
	return false;
}

/* waits_for -- does a waiting process wait for this leader, or one of its parallel workers? */
static bool
waits_for(const LockInstanceData *waiter, const LockData *locks, int pid)
{
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->leaderPid != pid ||
			memcmp(&lock->locktag, &waiter->locktag, sizeof(LOCKTAG)) != 0)
			continue;
		for (LOCKMODE mode = AccessShareLock; mode <= MaxLockMode; mode++)
		{
			if ((lock->holdMask & LOCKBIT_ON(mode)) != 0 &&
				DoLockModesConflict(mode, waiter->waitLockMode))
				return true;
		}
	}
	return false;
}

/*
 * stop_slot
 *		End what a worker does with its table, if it is still at the one that was seen.
 *
 * The signal is sent under the lock.  A worker that is done says under the lock that it
 * is at no table, and then forgets a signal that has come.
 */
static void
stop_slot(CompactionSlot *slot, const CompactionSlot *seen, bool on_time)
{
	Assert(seen->pid != 0 && OidIsValid(seen->relid));
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	if (slot->pid == seen->pid && slot->relid == seen->relid && slot->started == seen->started)
	{
		slot->stopped |= on_time;
		(void) kill(slot->pid, SIGINT);
	}
	LWLockRelease(compaction_shared->lock);
}

/*
 * visit_next
 *		Start workers, as long as there is a place and a database.  Returns false if it is too
 *		early for that.
 */
static bool
visit_next(void)
{
	static TimestampTz last_start = 0;
	TimestampTz now = GetCurrentTimestamp();
	CompactionSlot *slot;
	Visit	   *visit;

	if (!compaction_is_over(last_start, now, START_PAUSE_MS))
		return false;
	while ((slot = free_slot(now)) != NULL && (visit = next_visit(now)) != NULL)
	{
		visit->at = last_start = now;
		if (!start_worker(slot, visit->database, now))
			break;
	}
	return true;
}

/* slot_is_busy -- has it a worker, or one that is starting?  Under the lock. */
static bool
slot_is_busy(const CompactionSlot *slot, TimestampTz now)
{
	Assert(LWLockHeldByMe(compaction_shared->lock));

	return slot->pid != 0 ||
		(slot->launched != 0 && !compaction_is_over(slot->launched, now, START_MS));
}

/* free_slot -- a slot for one more worker; NULL if there are as many as allowed. */
static CompactionSlot *
free_slot(TimestampTz now)
{
	CompactionSlot *found = NULL;
	int			busy = 0;

	LWLockAcquire(compaction_shared->lock, LW_SHARED);
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
	{
		CompactionSlot *slot = &compaction_shared->slots[i];

		if (slot_is_busy(slot, now))
			busy++;
		else
			found = slot;
	}
	LWLockRelease(compaction_shared->lock);
	Assert(found != NULL || busy == COMPACTION_MAX_WORKERS);
	return busy < cyclone_compaction_workers ? found : NULL;
}

/* next_visit -- of the database to be visited now, with no worker in it; NULL if there is none. */
static Visit *
next_visit(TimestampTz now)
{
	Visit	   *best = NULL;
	Oid			busy[COMPACTION_MAX_WORKERS];

	LWLockAcquire(compaction_shared->lock, LW_SHARED);
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
	{
		const CompactionSlot *slot = &compaction_shared->slots[i];

		busy[i] = slot_is_busy(slot, now) ? slot->database : InvalidOid;
	}
	LWLockRelease(compaction_shared->lock);

	find_databases();
	for (int i = 0; i < nvisits; i++)
	{
		Visit	   *visit = &visits[i];
		bool		is_busy = false;

		for (int j = 0; j < COMPACTION_MAX_WORKERS; j++)
			is_busy |= busy[j] == visit->database;
		if (!is_busy &&
			compaction_is_over(visit->at, now, DEBUG_LIMIT(compaction_visit, COMPACTION_VISIT_MS)) &&
			(best == NULL || visit->at < best->at))
			best = visit;
	}
	return best;
}

/*
 * find_databases
 *		Find those that are to be visited, and forget the others.  There may be thousands, so
 *		visits are in the order of databases.
 */
static void
find_databases(void)
{
	List	   *found = own_worker_databases(is_to_be_visited);
	Visit	   *before = visits;
	int			nbefore = nvisits;
	int			next = 0;

	visits = MemoryContextAlloc(TopMemoryContext, (list_length(found) + 1) * sizeof(Visit));
	nvisits = 0;
	foreach_oid(database, found)
	{
		while (next < nbefore && before[next].database < database)
			next++;
		visits[nvisits].database = database;
		visits[nvisits++].at = next < nbefore && before[next].database == database ? before[next].at : 0;
	}
	if (before != NULL)
		pfree(before);
}

/* is_to_be_visited -- is a database to be visited? */
static bool
is_to_be_visited(Form_pg_database database)
{
	return database->datallowconn && !database->datistemplate &&
		!database_is_invalid_form(database) && compaction_has_database(NameStr(database->datname));
}

/*
 * start_worker
 *		Returns false if there is no place for it.  now is the time by which this round
 *		looks for slots.  The slot counts as busy from then on: a later time would look
 *		like a clock that was set back.
 */
static bool
start_worker(CompactionSlot *slot, Oid database, TimestampTz now)
{
	BackgroundWorker worker = own_worker("pg_cyclone compaction worker", "pg_cyclone_compaction_worker");

	Assert(slot >= compaction_shared->slots && slot < compaction_shared->slots + COMPACTION_MAX_WORKERS);
	Assert(OidIsValid(database));

	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	slot->database = database;
	slot->launched = now;
	LWLockRelease(compaction_shared->lock);

	worker.bgw_main_arg = Int32GetDatum((int32) (slot - compaction_shared->slots));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name),
			 "pg_cyclone compaction worker for database %u", database);
	if (own_worker_start(&worker, NULL))
		return true;

	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	slot->database = InvalidOid;
	slot->launched = 0;
	LWLockRelease(compaction_shared->lock);
	return false;
}
