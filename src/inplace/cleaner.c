/*-------------------------------------------------------------------------
 *
 * cleaner.c
 *	  A background worker that removes what a crash or a kill has left.
 *
 * That is files of unfinished rewrites (new_files/journal.c), and copies of indexes that
 * FULL INPLACE has made and could not drop: its session was cancelled or killed, or a
 * transaction that has used the table, and so may have the copy open, goes on for long.
 *
 * Shared memory has the databases that a cleaner is to visit.  The next commit of any
 * transaction starts it (own_worker.c).  One cleaner at a time visits one database, and waits
 * there for locks and transactions no longer than MAX_WAIT_MS each.  If something stays,
 * another cleaner comes after a pause, up to MAX_VISITS times in all.
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "at_exit.h"
#include "debug_point.h"
#include "inplace/cleaner.h"
#include "inplace/index_copy.h"
#include "library.h"
#include "new_files/journal.h"
#include "others.h"
#include "own_worker.h"
#include "transaction.h"

/* CREATE and DROP DATABASE give other sessions five seconds to end */
#define MAX_WAIT_MS		3000

#define PAUSE_MS		60000
#define MAX_VISITS		10

/* Of the databases with something left over; what has no place here is found again later */
#define MAX_CALLS		64

/* What the lock on a copy is on: no relation has such a column */
#define COPY_SUBID		1

/* A database that a cleaner is to visit */
typedef struct Call
{
	Oid			database;
	bool		for_files;		/* journal_find_leftovers has found some there */
	int			nvisits;		/* that left something */
} Call;

typedef struct CleanerShared
{
	pg_atomic_flag is_running;
	slock_t		mutex;			/* held to look at what follows, but for
								 * is_due */
	int			ncalls;
	Call		calls[MAX_CALLS];
} CleanerShared;

PGDLLEXPORT void pg_cyclone_cleaner_main(Datum arg);

static CleanerShared *cleaner = NULL;

/* The copy that this session has made, and not dropped yet */
static Oid	watched = InvalidOid;

/* What this cleaner does; without a database there is nothing left to do */
static Call visit;

static bool is_due(void);
static void add_call(Call call);
static LOCKTAG copy_tag(Oid copy);
static bool has_owner(Oid copy);
static void leave_at_exit(void);
static void end_cleaner(int code, Datum arg);
static bool clean_indexes(void);
static bool clean_index(Oid copy, TimestampTz deadline);

static const OwnWorkerDuty duty = {
	.type = "pg_cyclone cleaner",
	.function = "pg_cyclone_cleaner_main",
	.is_due = is_due
};

/* cleaner_init -- have a cleaner started when it is due. */
void
cleaner_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	own_worker_when_due(&duty);
}

/* cleaner_shmem_request -- how much shared memory we need. */
void
cleaner_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(CleanerShared));
}

/* cleaner_shmem_init -- find our shared memory, or make it. */
void
cleaner_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));
	cleaner = ShmemInitStruct("pg_cyclone cleaner", sizeof(CleanerShared), &found);
	if (found)
		return;
	pg_atomic_init_flag(&cleaner->is_running);
	SpinLockInit(&cleaner->mutex);
	cleaner->ncalls = 0;
}

/* cleaner_look_around -- see cleaner.h.  The postmaster's children don't look. */
void
cleaner_look_around(void)
{
	if (IsUnderPostmaster)
		return;
	foreach_oid(database, journal_find_leftovers())
		add_call((Call) {.database = database,.for_files = true});
}

/* is_due -- is a cleaner to be started?  What it reads may change any moment. */
static bool
is_due(void)
{
	return cleaner != NULL && cleaner->ncalls > 0 && pg_atomic_unlocked_test_flag(&cleaner->is_running);
}

/* add_call -- a cleaner is to visit a database. */
static void
add_call(Call call)
{
	int			i;

	Assert(OidIsValid(call.database));
	if (cleaner == NULL)
		return;
	SpinLockAcquire(&cleaner->mutex);
	for (i = 0; i < cleaner->ncalls && cleaner->calls[i].database != call.database; i++)
		 /* look at the next one */ ;
	if (i < cleaner->ncalls)
	{
		cleaner->calls[i].for_files |= call.for_files;
		cleaner->calls[i].nvisits = Min(cleaner->calls[i].nvisits, call.nvisits);
	}
	else if (i < MAX_CALLS)
		cleaner->calls[cleaner->ncalls++] = call;
	SpinLockRelease(&cleaner->mutex);
}

/* cleaner_watch -- see cleaner.h. */
void
cleaner_watch(Oid copy)
{
	LOCKTAG		tag = copy_tag(copy);

	Assert(IsTransactionState() && OidIsValid(copy));
	at_exit(leave_at_exit);
	watched = copy;
	(void) LockAcquire(&tag, ExclusiveLock, true, true);
}

/* cleaner_forget -- see cleaner.h. */
void
cleaner_forget(void)
{
	LOCKTAG		tag = copy_tag(watched);

	/* an error has let go of it */
	if (OidIsValid(watched) && LockHeldByMe(&tag, ExclusiveLock, false))
		LockRelease(&tag, ExclusiveLock, true);
	watched = InvalidOid;
}

/* cleaner_leave -- see cleaner.h. */
void
cleaner_leave(void)
{
	cleaner_forget();
	add_call((Call) {.database = MyDatabaseId});
	own_worker_not_before(&duty, 0);
}

/* leave_at_exit -- the session ends.  If its transaction fails, the cleaner finds nothing. */
static void
leave_at_exit(void)
{
	if (OidIsValid(watched))
		cleaner_leave();
}

/* cleaner_find -- see cleaner.h. */
void
cleaner_find(Relation rel)
{
	Assert(IsTransactionState() && ActiveSnapshotSet());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	if (RelationUsesLocalBuffers(rel) || !rel->rd_rel->relhasindex)
		return;
	foreach_oid(copy, index_copies_of(RelationGetRelid(rel)))
	{
		if (!has_owner(copy))
			add_call((Call) {.database = MyDatabaseId});
	}
}

/* copy_tag -- the lock on a copy as an object. */
static LOCKTAG
copy_tag(Oid copy)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationRelationId, copy, COPY_SUBID);
	return tag;
}

/* has_owner -- does a session see to a copy? */
static bool
has_owner(Oid copy)
{
	LOCKTAG		tag = copy_tag(copy);

	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ExclusiveLock, false);
	return false;
}

/*
 * pg_cyclone_cleaner_main
 *		The worker.
 *
 * A database that was dropped meanwhile is a FATAL error, and not visited again.
 */
void
pg_cyclone_cleaner_main(Datum arg)
{
	Call		call = {0};
	char		lock_timeout[16];

	refuse_without_preloading();
	if (!pg_atomic_test_set_flag(&cleaner->is_running))
		return;
	before_shmem_exit(end_cleaner, (Datum) 0);
	SpinLockAcquire(&cleaner->mutex);
	if (cleaner->ncalls > 0)
	{
		/* the one that has waited for longest */
		call = cleaner->calls[0];
		memmove(&cleaner->calls[0], &cleaner->calls[1], --cleaner->ncalls * sizeof(Call));
	}
	SpinLockRelease(&cleaner->mutex);
	if (!OidIsValid(call.database))
		return;
	own_worker_begin(call.database, BGWORKER_BYPASS_ALLOWCONN);
	snprintf(lock_timeout, sizeof(lock_timeout), "%d", DEBUG_LIMIT(cleaner_wait, MAX_WAIT_MS));
	SetConfigOption("lock_timeout", lock_timeout, PGC_SUSET, PGC_S_OVERRIDE);

	visit = call;
	if (visit.for_files)
		journal_remove_leftovers();
	visit.for_files = false;
	if (clean_indexes())
		visit.database = InvalidOid;
}

/* end_cleaner -- it has done what it can, or failed: when does the next one come? */
static void
end_cleaner(int code, Datum arg)
{
	bool		is_over = !OidIsValid(visit.database);

	if (!is_over && ++visit.nvisits < MAX_VISITS)
		add_call(visit);
	own_worker_not_before(&duty, is_over ? 0 : DEBUG_LIMIT(cleaner_wait, PAUSE_MS));
	pg_atomic_clear_flag(&cleaner->is_running);
}

/* clean_indexes -- drop the copies that are left in this database; false if one stays. */
static bool
clean_indexes(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													   DEBUG_LIMIT(cleaner_wait, MAX_WAIT_MS));
	MemoryContext context = CurrentMemoryContext;
	bool		all_are_gone = true;
	MemoryContext old;
	List	   *copies;

	transaction_begin(false);
	DEBUG_POINT("copy-cleaner");
	old = MemoryContextSwitchTo(context);
	copies = index_copies_of(InvalidOid);
	MemoryContextSwitchTo(old);
	transaction_end();

	foreach_oid(copy, copies)
	{
		if (clean_index(copy, deadline))
			continue;
		all_are_gone = false;
		ereport(LOG,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("index %u of database %u, an unfinished copy, is still left over",
						copy, MyDatabaseId),
				 errdetail("Transactions that have used the table have not ended."),
				 errhint("It is tried %d times, once a minute, and again when VACUUM processes the table.  DROP INDEX drops it, too.",
						 MAX_VISITS)));
	}
	return all_are_gone;
}

/*
 * clean_index
 *		Drop a copy, if it still is one, as index_shrink.c does; false if it stays.
 *
 * Nothing is locked while others are waited for.
 */
static bool
clean_index(Oid copy, TimestampTz deadline)
{
	OthersEnd	users = OTHERS_STAY;
	bool		is_gone;
	bool		is_ours;
	char	   *dropped;
	Oid			table;

	SetCurrentStatementStartTimestamp();
	transaction_begin(true);
	table = IndexGetRelation(copy, true);
	is_ours = OidIsValid(table) && !has_owner(copy);
	transaction_end();
	if (!is_ours)
		return true;

	if (index_copy_retire(table, copy))
		users = index_copy_wait_for_users(table, TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline));
	if (users != OTHERS_GONE)
		return false;
	SetCurrentStatementStartTimestamp();
	transaction_begin(true);
	is_gone = index_copy_drop(table, copy, &dropped);
	if (dropped != NULL)
		ereport(LOG,
				(errmsg("dropping index \"%s\", an unfinished copy that a VACUUM (FULL INPLACE) has left",
						dropped)));
	transaction_end();
	return is_gone;
}
