/*-------------------------------------------------------------------------
 *
 * own_worker.c
 *	  Background workers of ours: how they are described, start and begin.
 *
 * The postmaster calls no code of a library when a setting changes, or when recovery has
 * ended.  So a worker that is to start by itself is registered by the first process that
 * commits a transaction and finds that it is due.  PostgreSQL's own launchers commit one
 * when they start, and one in each autovacuum_naptime at most.  While nothing is due that
 * costs a commit a look at shared memory, and no place for a worker.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "library.h"
#include "own_worker.h"

/* If a worker couldn't be started, or has died at once, the next try comes after this time. */
#define RETRY_MS	60000

#define MAX_DUTIES	2

/* Filled while the library is preloaded; the same in all processes */
static const OwnWorkerDuty *duties[MAX_DUTIES];
static int	nduties = 0;

/* For each duty: no worker is started before that time */
static pg_atomic_uint64 *not_before = NULL;

static void start_when_due(XactEvent event, void *arg);
static bool take_turn(int number);
static void connect_at_usual_cost(Oid database, uint32 flags);
static void override_settings(void);

/* own_worker_init -- install the callback. */
void
own_worker_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	RegisterXactCallback(start_when_due, NULL);
}

/* own_worker_shmem_request -- how much shared memory we need. */
void
own_worker_shmem_request(void)
{
	RequestAddinShmemSpace(MAX_DUTIES * sizeof(pg_atomic_uint64));
}

/* own_worker_shmem_init -- find our shared memory, or make it. */
void
own_worker_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));
	not_before = ShmemInitStruct("pg_cyclone workers", MAX_DUTIES * sizeof(pg_atomic_uint64), &found);
	for (int i = 0; i < MAX_DUTIES && !found; i++)
		pg_atomic_init_u64(&not_before[i], 0);
}

/* own_worker_when_due -- see own_worker.h. */
void
own_worker_when_due(const OwnWorkerDuty *duty)
{
	Assert(process_shared_preload_libraries_in_progress);
	Assert(nduties < MAX_DUTIES);
	duties[nduties++] = duty;
}

/* own_worker_not_before -- see own_worker.h. */
void
own_worker_not_before(const OwnWorkerDuty *duty, int ms)
{
	for (int i = 0; i < nduties; i++)
	{
		if (duties[i] == duty)
			pg_atomic_write_u64(&not_before[i], TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms));
	}
}

/*
 * start_when_due
 *		The transaction callback: start the workers that are due.
 *
 * The transaction has committed, so an error would be a PANIC.  There is none: the workers'
 * descriptions are valid, no handle is wanted, which would take memory, and interrupts are
 * held off.
 */
static void
start_when_due(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT || not_before == NULL)
		return;
	for (int i = 0; i < nduties; i++)
	{
		BackgroundWorker worker;

		if (likely(!duties[i]->is_due()) || !IsUnderPostmaster || IsBinaryUpgrade ||
			RecoveryInProgress() || !take_turn(i))
			continue;
		Assert(InterruptHoldoffCount > 0);
		worker = own_worker(duties[i]->type, duties[i]->function);
		(void) own_worker_start(&worker, NULL);
	}
}

/*
 * take_turn
 *		Of several processes that find a worker due, one starts it.  A time further ahead
 *		than a retry is from before the clock was set back.
 */
static bool
take_turn(int number)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz retry = TimestampTzPlusMilliseconds(now, RETRY_MS);
	uint64		due = pg_atomic_read_u64(&not_before[number]);

	return (now >= (TimestampTz) due || (TimestampTz) due > retry) &&
		pg_atomic_compare_exchange_u64(&not_before[number], &due, retry);
}

/* own_worker -- see own_worker.h. */
BackgroundWorker
own_worker(const char *type, const char *function)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
	};

	Assert(strlen(type) < BGW_MAXLEN && strlen(function) < BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, library_path(), sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, function, sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_type, type, sizeof(worker.bgw_type));
	strlcpy(worker.bgw_name, type, sizeof(worker.bgw_name));
	return worker;
}

/* own_worker_start -- see own_worker.h. */
bool
own_worker_start(BackgroundWorker *worker, BackgroundWorkerHandle **handle)
{
	worker->bgw_notify_pid = handle != NULL ? MyProcPid : 0;
	if (RegisterDynamicBackgroundWorker(worker, handle))
		return true;
	ereport(LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no background worker is free for \"%s\"", worker->bgw_type),
			 errhint("You might need to increase \"%s\".", "max_worker_processes")));
	return false;
}

/* own_worker_begin -- see own_worker.h. */
void
own_worker_begin(Oid database, uint32 flags)
{
	Assert(AmBackgroundWorkerProcess());
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	/* one that came since the fork was ignored */
	ConfigReloadPending = true;
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	connect_at_usual_cost(database, flags);
	override_settings();
}

/*
 * connect_at_usual_cost
 *		Connect to a database, and keep to the delays that the server's files set.  The owner
 *		of a database may set such for each session there that a worker spends weeks in it.
 *
 * A change of the files counts as ever where the database sets none.
 */
static void
connect_at_usual_cost(Oid database, uint32 flags)
{
	static const char *const names[] = {
		"vacuum_cost_delay", "vacuum_cost_limit", "vacuum_cost_page_dirty", "vacuum_cost_page_hit",
		"vacuum_cost_page_miss"
	};
	char	   *usual[lengthof(names)];

	for (int i = 0; i < lengthof(names); i++)
		usual[i] = MemoryContextStrdup(TopMemoryContext, GetConfigOption(names[i], false, false));
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, flags);
	for (int i = 0; i < lengthof(names); i++)
	{
		if (strcmp(GetConfigOption(names[i], false, false), usual[i]) != 0)
			SetConfigOption(names[i], usual[i], PGC_SUSET, PGC_S_OVERRIDE);
	}
}

/*
 * override_settings
 *		As autovacuum's processes do, and no other role: a database may have one for each session.
 */
static void
override_settings(void)
{
	static const char *const settings[][2] = {
		{"role", "none"}, {"search_path", "pg_catalog, pg_temp"},
		{"zero_damaged_pages", "false"},
		{"statement_timeout", "0"}, {"transaction_timeout", "0"}, {"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"synchronous_commit", "local"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"}, {"default_transaction_deferrable", "off"},
		{"restrict_nonsystem_relation_kind", ""},
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/* own_worker_databases -- see own_worker.h. */
List *
own_worker_databases(bool (*is_wanted) (Form_pg_database database))
{
	MemoryContext context = CurrentMemoryContext;
	List	   *found = NIL;
	Relation	pg_database;
	SysScanDesc scan;
	HeapTuple	tuple;

	Assert(!IsTransactionState());
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	pg_database = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(pg_database, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;

		if (is_wanted != NULL && !is_wanted(form))
			continue;
		old = MemoryContextSwitchTo(context);
		found = lappend_oid(found, form->oid);
		MemoryContextSwitchTo(old);
	}
	systable_endscan(scan);
	table_close(pg_database, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	list_sort(found, list_oid_cmp);
	return found;
}
