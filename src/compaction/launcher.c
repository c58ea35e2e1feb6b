/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The process that has tables compacted by themselves.
 *
 * It runs while cyclone.compaction is on, in no database, and starts a worker for each
 * database after the other, in rounds.  The worker finds out itself whether there is anything
 * to be done.
 *
 * While the worker is at a table it may be anywhere in VACUUM.  So the launcher watches for
 * it, and ends what must end, by the signals of pg_cancel_backend and pg_terminate_backend.
 * That is right at any moment, as committed moves stay.
 *
 * A launcher that comes after another one has died finds the worker in shared memory.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compaction/compaction.h"
#include "debug_point.h"
#include "library.h"
#include "others.h"
#include "own_wait_event.h"
#include "scope.h"

/* After the launcher has ended the next one comes no earlier than this, and later after an error. */
#define RESTART_MS	5000
#define FAILED_FACTOR	12
/*
 * How often to look while there is a worker.  Workers are started no sooner after each other,
 * as autovacuum's: there may be thousands of databases.
 */
#define WATCH_MS	100
/* VACUUM takes some locks for a moment only: how long a session must have waited to count */
#define WAIT_MS		200
/*
 * How long a worker waits for a lock at most, and another session for a lock that isn't a
 * relation's: no owner of a table keeps the worker from all others
 */
#define PATIENCE_MS	DEBUG_LIMIT(compaction_patience, 10000)
/*
 * How long a turn takes at most: an hour, and a second for each MB of the table.  Functions in
 * indexes are the owner's, who may have them wait or sleep, and catch a cancellation.
 */
#define TURN_MS(bytes)	DEBUG_LIMIT(compaction_turn, (int64) (3600000 + (bytes) / (1024 * 1024) * 1000))
/* How long after the first cancellation the worker is terminated */
#define STUBBORN_MS	60000
/* How many waiting sessions a look asks about, which takes all locks of the lock manager */
#define MOST_ASKED	16

PGDLLEXPORT void pg_cyclone_compaction_launcher(Datum arg);

static BackgroundWorkerHandle *worker_handle = NULL;
static TimestampTz last_start = 0;

/* A round goes by the databases' OIDs: the one visited last, invalid between two rounds */
static Oid	last_visited = InvalidOid;
static TimestampTz round_start = 0;

static void leave_launcher(int code, Datum arg);
static bool worker_is_there(void);
static void watch_worker(void);
static bool worker_is_in_the_way(const CompactionShared *seen);
static bool database_is_wanted(Oid database);
static void signal_worker(const CompactionShared *seen, int signal, CompactionOutcome outcome);
static void visit_next(void);
static bool is_to_be_visited(Form_pg_database database);
static bool has_passed(TimestampTz since, TimestampTz now, int64 ms);

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
	before_shmem_exit(leave_launcher, (Datum) 0);
	own_worker_begin(InvalidOid, 0);
	compaction_states_sweep(own_worker_databases(NULL));

	context = AllocSetContextCreate(TopMemoryContext, "Compaction launcher", ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		bool		is_busy;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		MemoryContextSwitchTo(context);
		is_busy = worker_is_there();
		if (is_busy)
			watch_worker();
		else if (!cyclone_compaction)
			proc_exit(0);
		else
			visit_next();
		MemoryContextReset(context);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 is_busy || !has_passed(last_start, GetCurrentTimestamp(), WATCH_MS) ?
						 WATCH_MS : DEBUG_LIMIT(compaction_visit, COMPACTION_VISIT_MS / 10),
						 own_wait_event(&wait_event, "CycloneCompactionLauncher"));
		ResetLatch(MyLatch);
	}
}

/*
 * leave_launcher
 *		The process ends.  The next one comes a little later, as a session in a long
 *		statement may not know yet that compaction was switched off.
 */
static void
leave_launcher(int code, Datum arg)
{
	own_worker_not_before(&compaction_launcher,
						  DEBUG_LIMIT(compaction_visit, RESTART_MS) * (code == 0 ? 1 : FAILED_FACTOR));
	pg_atomic_write_u32(&compaction_shared->has_launcher, 0);
}

/* worker_is_there -- is there a worker, or one that is starting? */
static bool
worker_is_there(void)
{
	pid_t		pid;

	if (worker_handle != NULL && GetBackgroundWorkerPid(worker_handle, &pid) == BGWH_STOPPED)
	{
		pfree(worker_handle);
		worker_handle = NULL;
	}
	return worker_handle != NULL || compaction_shared->pid != 0;
}

/*
 * watch_worker
 *		Have the worker leave its database, if that is to be without sessions, or its table, if
 *		that takes too long, compaction or the window is over, or it is in a session's way.
 */
static void
watch_worker(void)
{
	CompactionShared seen;
	TimestampTz now;

	LWLockAcquire(compaction_shared->lock, LW_SHARED);
	seen = *compaction_shared;
	LWLockRelease(compaction_shared->lock);
	now = GetCurrentTimestamp();
	if (seen.pid == 0)
		return;
	if (database_is_wanted(seen.database))
		signal_worker(&seen, SIGTERM, OUTCOME_STOPPED);
	else if (has_passed(seen.started, now, TURN_MS(seen.bytes)))
		signal_worker(&seen, SIGINT, OUTCOME_FAILED);
	else if (!OidIsValid(seen.relid))
		return;
	else if (!cyclone_compaction || compaction_opens_in(now) != 0)
		signal_worker(&seen, SIGINT, OUTCOME_STOPPED);
	else if (worker_is_in_the_way(&seen))
		signal_worker(&seen, SIGINT, OUTCOME_GAVE_WAY);
}

/*
 * database_is_wanted
 *		Does a statement want a database without sessions, as to drop, rename or copy it?
 *
 * It has locked the database, then, before it waits some seconds for sessions to leave.
 */
static bool
database_is_wanted(Oid database)
{
	MemoryContext context = CurrentMemoryContext;
	bool		is_wanted;

	StartTransactionCommand();
	is_wanted = !ConditionalLockSharedObject(DatabaseRelationId, database, 0, RowExclusiveLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return is_wanted;
}

/*
 * worker_is_in_the_way
 *		Does a session wait for a lock that the worker, or one of its own workers, has?  Or do
 *		these wait for one for long, as the owner of the table has locked an index alone, or a
 *		function of his in one waits?
 *
 * The look at processes takes no lock.  If it is out of date, the next one comes WATCH_MS
 * later, and goes on with the next process.
 */
static bool
worker_is_in_the_way(const CompactionShared *seen)
{
	static uint32 at = 0;
	int			asked = 0;

	for (uint32 i = 0; i < ProcGlobal->allProcCount && asked < MOST_ASKED; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[at++ % ProcGlobal->allProcCount];
		TimestampTz since = (TimestampTz) pg_atomic_read_u64(&proc->waitStart);
		const PGPROC *leader = proc->lockGroupLeader;
		int			pid = proc->pid;
		bool		is_own = pid == seen->pid || (leader != NULL && leader->pid == seen->pid);
		bool		is_short = !is_own && proc->wait_event_info == (PG_WAIT_LOCK | LOCKTAG_RELATION);

		if (pid == 0 || since == 0 || proc->databaseId != seen->database ||
			(proc->wait_event_info & 0xFF000000) != PG_WAIT_LOCK ||
			!has_passed(since, GetCurrentTimestamp(), is_short ? WAIT_MS : PATIENCE_MS))
			continue;
		asked++;
		/* its own workers count as it, also as those that block */
		if (is_own || list_member_int(others_blocking(pid), seen->pid))
			return true;
	}
	return false;
}

/*
 * signal_worker
 *		End what the worker does, if it is still in the turn that was seen.  A function of the
 *		table's owner may catch a cancellation, but not a termination.
 *
 * The signal is sent under the lock.  A worker that is done says under the lock that it
 * is at no table, and then forgets a signal that has come.
 */
static void
signal_worker(const CompactionShared *seen, int signal, CompactionOutcome outcome)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	if (compaction_shared->pid == seen->pid && compaction_shared->started == seen->started)
	{
		if (compaction_shared->told == 0)
		{
			compaction_shared->told = now;
			compaction_shared->told_as = outcome;
		}
		(void) kill(seen->pid, has_passed(compaction_shared->told, now, DEBUG_LIMIT(compaction_turn, STUBBORN_MS)) ?
					SIGTERM : signal);
	}
	LWLockRelease(compaction_shared->lock);
}

/*
 * visit_next
 *		Start a worker for the next database of the round, or for the first of a new one, if
 *		it isn't too early for that.  Without a place for a worker the database has its turn
 *		in the next round.
 */
static void
visit_next(void)
{
	BackgroundWorker worker = own_worker("pg_cyclone compaction worker", "pg_cyclone_compaction_worker");
	TimestampTz now = GetCurrentTimestamp();
	Oid			next = InvalidOid;

	if (!has_passed(last_start, now, WATCH_MS) ||
		(!OidIsValid(last_visited) &&
		 !has_passed(round_start, now, DEBUG_LIMIT(compaction_visit, COMPACTION_VISIT_MS))))
		return;
	foreach_oid(database, own_worker_databases(is_to_be_visited))
	{
		if (!OidIsValid(next) && database > last_visited)
			next = database;
	}
	if (!OidIsValid(last_visited))
		round_start = now;
	last_visited = next;
	if (!OidIsValid(next))
		return;
	last_start = now;
	worker.bgw_main_arg = ObjectIdGetDatum(next);
	snprintf(worker.bgw_name, sizeof(worker.bgw_name),
			 "pg_cyclone compaction worker for database %u", next);
	MemoryContextSwitchTo(TopMemoryContext);
	if (!own_worker_start(&worker, &worker_handle))
		worker_handle = NULL;
}

/* is_to_be_visited -- is a database to be visited? */
static bool
is_to_be_visited(Form_pg_database database)
{
	return database->datallowconn && !database->datistemplate &&
		!database_is_invalid_form(database) && scope_has_database(NameStr(database->datname));
}

/*
 * has_passed
 *		Have these milliseconds passed since a moment?  True, too, if the clock was set
 *		back to before that moment: else that would take as long as the clock was wrong.
 */
static bool
has_passed(TimestampTz since, TimestampTz now, int64 ms)
{
	return now < since || now - since >= ms * INT64CONST(1000);
}
