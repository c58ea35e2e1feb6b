/*-------------------------------------------------------------------------
 *
 * table_log.c
 *	  The view cyclone.autovacuum, and the circuit breakers.
 *
 * A hash table in shared memory has an entry for each table that autovacuum
 * came to, the latest cyclone.autovacuum_max_tables of them.  It lasts until
 * the server is restarted or crashes, like a cache: an entry that it forgets is only
 * missing in the view.
 *
 * A table's breaker opens when the engine has failed on it, unless the table is
 * damaged.  Then its next autovacuums are the server's until a time has passed, which
 * is twice as long after each failure in a row, or until a user resets it.  After a
 * crash running_notes.c says which tables were being vacuumed: their breakers open,
 * too, and those that earlier crashes or failed audits have opened stay open.
 * running_notes.c also opens a breaker for all tables after several crashes.  When its
 * time is over, one process at a time may try the engine on one table, until one
 * succeeds.
 *
 * Autovacuum workers call these functions where an error would end more than the work
 * on one table.  So none raises an error, but for the functions of the view.  The lock
 * is held for no longer than it takes to copy an entry, or to look for the oldest one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/tuplestore.h"

#include "at_exit.h"
#include "autovacuum/table_log.h"
#include "compat.h"
#include "declared_rows.h"
#include "library.h"
#include "settings.h"

#define TRANCHE				"pg_cyclone autovacuum"
#define AUTOVACUUM_COLUMNS	17
/* A breaker is open for twice as long after each failure, up to this many times, */
#define MAX_DOUBLINGS		20
/* but never for longer than this, the maximum of the setting. */
#define LONGEST_BREAK_MS	(7 * 24 * 3600 * INT64CONST(1000))

typedef struct TableEntry
{
	TableKey	key;
	int64		by_engine;		/* times */
	int64		by_server;
	int64		cancelled;
	int64		failed;
	TimestampTz touched;
	AutovacuumReason last_reason;
	AutovacuumResult last;
	double		last_seconds;
	double		done_seconds;	/* of the last one that was not interrupted */
	uint32		failures;		/* of the engine, in a row */
	bool		crashed;		/* and was the last of them a crash? */
	bool		audit_failed;	/* or was it an audit that failed? */
	int			sqlerrcode;		/* or this error */
	TimestampTz breaker_until;	/* 0: closed */
} TableEntry;

/* in the order of AutovacuumReason */
static const char *const reason_names[] = {
	NULL, "off", "not listed", "circuit breaker", "crashes", "no note on disk",
};

static HTAB *entries = NULL;
static LWLock *lock = NULL;
static LWLock *crashes_lock = NULL; /* of the notes on disk */

/* The breaker for all tables, whatever theirs say */
typedef struct AllTables
{
	pg_atomic_uint64 left_until;	/* to the server */
	pg_atomic_uint32 on_trial;	/* when that is over: one at a time, until one
								 * has been vacuumed */
	pg_atomic_uint32 tried_by;	/* a process; 0: none */
	pg_atomic_uint32 audits_failed; /* 1: one has, since the start; 0 saves a
									 * lookup */
} AllTables;

static AllTables *all = NULL;

static void end_trial_at_exit(void);
static TableEntry *enter(const TableKey *key);
static void forget_oldest(void);
static void note_end(TableEntry *entry, const AutovacuumResult *result);
static void note_failure(TableEntry *entry, int sqlerrcode, bool is_audits);
static void note_crash(TableEntry *entry, uint32 failures);
static TimestampTz open_breaker(TableEntry *entry);
static void put_row(ReturnSetInfo *result, const TableEntry *entry);

PG_FUNCTION_INFO_V1(pg_cyclone_autovacuum);

/* table_log_key -- what an open table is known by. */
TableKey
table_log_key(Relation rel)
{
	TableKey	key = {
		.database = rel->rd_rel->relisshared ? InvalidOid : MyDatabaseId,
		.relid = RelationGetRelid(rel)
	};

	return key;
}

/*
 * table_log_breaker_is_open
 *		Is this table's breaker open?  *failures is how often in a row the engine has
 *		failed on it.
 */
bool
table_log_breaker_is_open(const TableKey *key, uint32 *failures)
{
	TimestampTz now = GetCurrentTimestamp();
	TableEntry *entry;
	bool		is_open;

	Assert(entries != NULL && !LWLockHeldByMe(lock));

	LWLockAcquire(lock, LW_SHARED);
	entry = hash_search(entries, key, HASH_FIND, NULL);
	is_open = entry != NULL && entry->breaker_until > now;
	*failures = entry != NULL ? entry->failures : 0;
	LWLockRelease(lock);
	return is_open;
}

/*
 * table_log_done
 *		A table was vacuumed, for that reason by the engine or by PostgreSQL.
 */
void
table_log_done(const TableKey *key, AutovacuumReason reason, const AutovacuumResult *result)
{
	TableEntry *entry;

	Assert(entries != NULL && !LWLockHeldByMe(lock));
	Assert(reason <= REASON_NO_NOTE);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter(key);
	if (entry != NULL)
	{
		entry->last_reason = reason;
		note_end(entry, result);
		entry->done_seconds = entry->last_seconds;
		if (reason == REASON_ENGINE)
		{
			entry->by_engine++;
			entry->failures = 0;
			entry->audit_failed = false;
			entry->breaker_until = 0;
		}
		else
			entry->by_server++;
	}
	LWLockRelease(lock);
}

/*
 * table_log_cancelled
 *		The engine's vacuum of a table was cancelled, or gave way to another session.  That
 *		is no failure, and earlier failures still count.
 */
void
table_log_cancelled(const TableKey *key, const AutovacuumResult *result)
{
	TableEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter(key);
	if (entry != NULL)
	{
		entry->last_reason = REASON_ENGINE;
		note_end(entry, result);
		entry->cancelled++;
	}
	LWLockRelease(lock);
}

/*
 * table_log_failed
 *		The engine has failed on a table, with this error.  Returns until when the table is
 *		left to the server; 0 for not at all, if the table or an index is damaged: the server
 *		would do no better, and may crash (page_check.c) or never end (link_walk.c).
 *		A failed audit is no sign of damage.  result is NULL if it was a command's VACUUM.
 */
TimestampTz
table_log_failed(const TableKey *key, int sqlerrcode, bool is_audits,
				 const AutovacuumResult *result)
{
	TableEntry *entry;
	TimestampTz until = 0;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter(key);
	if (entry != NULL)
	{
		if (result != NULL)
		{
			entry->last_reason = REASON_ENGINE;
			note_end(entry, result);
		}
		note_failure(entry, sqlerrcode, is_audits);
		if (is_audits || (sqlerrcode != ERRCODE_DATA_CORRUPTED && sqlerrcode != ERRCODE_INDEX_CORRUPTED))
			until = open_breaker(entry);
	}
	LWLockRelease(lock);
	return until;
}

/*
 * table_log_audit_has_failed
 *		Is a table left to the server, in commands, too, because an audit has failed on it?
 */
bool
table_log_audit_has_failed(const TableKey *key)
{
	TableEntry *entry;
	bool		has_failed;

	Assert(all != NULL && !LWLockHeldByMe(lock));
	Assert(OidIsValid(key->relid));
	if (pg_atomic_read_u32(&all->audits_failed) == 0)
		return false;
	LWLockAcquire(lock, LW_SHARED);
	entry = hash_search(entries, key, HASH_FIND, NULL);
	has_failed = entry != NULL && entry->audit_failed && entry->breaker_until > GetCurrentTimestamp();
	LWLockRelease(lock);
	return has_failed;
}

/*
 * table_log_crashed
 *		The server crashed while the engine was vacuuming a table, on which it has now
 *		failed this often in a row.  Returns until when the table is left to the server.
 *		For the postmaster, at the start.
 */
TimestampTz
table_log_crashed(const TableKey *key, uint32 failures)
{
	TableEntry *entry;
	TimestampTz until = 0;

	Assert(!IsUnderPostmaster);
	Assert(key != NULL && failures > 0);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter(key);
	if (entry != NULL)
	{
		note_crash(entry, failures);
		until = open_breaker(entry);
	}
	LWLockRelease(lock);
	return until;
}

/*
 * table_log_reopen
 *		Open a table's breaker again, which an earlier crash or a failed audit has opened
 *		until then.  Returns until when it is open now, 0 if it is closed.  For the
 *		postmaster, at the start.
 */
TimestampTz
table_log_reopen(const TableKey *key, uint32 failures, bool is_audits, TimestampTz until)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz latest = table_log_longest_break(now);
	TableEntry *entry;

	Assert(!IsUnderPostmaster);

	if (until <= now)
		return 0;
	/* the clock may have been set back */
	until = Min(until, latest);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter(key);
	if (entry != NULL)
	{
		if (is_audits)
		{
			note_failure(entry, ERRCODE_DATA_CORRUPTED, true);
			entry->failures = failures;
		}
		else
			note_crash(entry, failures);
		entry->breaker_until = Max(entry->breaker_until, until);
	}
	LWLockRelease(lock);
	return until;
}

/* table_log_longest_break -- the latest end of a break that begins now, but for DT_NOEND. */
TimestampTz
table_log_longest_break(TimestampTz now)
{
	return TimestampTzPlusMilliseconds(now, LONGEST_BREAK_MS);
}

/* table_log_break_until -- the end of a break that begins now, after this many failures in a row. */
TimestampTz
table_log_break_until(uint32 failures)
{
	int64		ms = (int64) cyclone_autovacuum_retry_after * 1000;

	ms <<= Min(Max(failures, 1) - 1, MAX_DOUBLINGS);
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), Min(ms, LONGEST_BREAK_MS));
}

/*
 * table_log_lock_crashes
 *		Lock the notes on disk.  A process that reads notes and then changes them does both
 *		between this and table_log_unlock_crashes.
 */
void
table_log_lock_crashes(void)
{
	Assert(!LWLockHeldByMe(crashes_lock));
	LWLockAcquire(crashes_lock, LW_EXCLUSIVE);
}

/* table_log_unlock_crashes -- see table_log_lock_crashes. */
void
table_log_unlock_crashes(void)
{
	Assert(LWLockHeldByMe(crashes_lock));
	LWLockRelease(crashes_lock);
}

/*
 * table_log_leave_all
 *		Leave all tables to the server until then, as it crashed several times; afterwards
 *		all but one at a time, until the engine has vacuumed one.  For the postmaster, at
 *		the start.
 */
void
table_log_leave_all(TimestampTz until)
{
	Assert(!IsUnderPostmaster);
	Assert(until > 0);

	pg_atomic_write_u64(&all->left_until, until);
	pg_atomic_write_u32(&all->on_trial, 1);
}

/*
 * table_log_all_are_left
 *		Are all tables left to the server?  If not, this may begin a trial: the caller calls
 *		table_log_end_trial when the table is done, or isn't the engine's after all.
 */
bool
table_log_all_are_left(void)
{
	uint32		nobody = 0;

	if ((TimestampTz) pg_atomic_read_u64(&all->left_until) > GetCurrentTimestamp())
		return true;
	if (pg_atomic_read_u32(&all->on_trial) == 0)
		return false;
	/* first, as the process may end here: then it would have a trial for ever */
	at_exit(end_trial_at_exit);
	return !pg_atomic_compare_exchange_u32(&all->tried_by, &nobody, MyProcPid);
}

/* end_trial_at_exit -- the process ends in a trial. */
static void
end_trial_at_exit(void)
{
	(void) table_log_end_trial(false);
}

/* table_log_all_may_be_left -- are they, or may only one at a time be tried?  Begins no trial. */
bool
table_log_all_may_be_left(void)
{
	return (TimestampTz) pg_atomic_read_u64(&all->left_until) > GetCurrentTimestamp() ||
		pg_atomic_read_u32(&all->on_trial) != 0;
}

/*
 * table_log_end_trial
 *		End this process's trial, if it has one: now another process may try, or all may if
 *		it went well.  Returns true in this last case.
 */
bool
table_log_end_trial(bool went_well)
{
	uint32		me = MyProcPid;
	bool		ends = went_well && pg_atomic_read_u32(&all->tried_by) == me;

	if (ends)
		pg_atomic_write_u32(&all->on_trial, 0);
	(void) pg_atomic_compare_exchange_u32(&all->tried_by, &me, 0);
	return ends;
}

/*
 * table_log_last_seconds
 *		How long did the last autovacuum of a table take that came to its end?
 *		False if that isn't known.
 */
bool
table_log_last_seconds(const TableKey *key, double *seconds)
{
	TableEntry *entry;

	Assert(entries == NULL || !LWLockHeldByMe(lock));

	if (entries == NULL)
		return false;
	LWLockAcquire(lock, LW_SHARED);
	entry = hash_search(entries, key, HASH_FIND, NULL);
	*seconds = entry != NULL ? entry->done_seconds : 0;
	LWLockRelease(lock);
	return *seconds > 0;
}

/*
 * table_log_forget
 *		Forget about a table, or about all of them if key is NULL.  That closes their
 *		breakers, and with NULL the one for all tables.  Returns how many entries there
 *		were.
 */
int64
table_log_forget(const TableKey *key)
{
	HASH_SEQ_STATUS scan;
	TableEntry *entry;
	int64		forgotten = 0;

	Assert(entries != NULL && !LWLockHeldByMe(lock));

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (key != NULL)
		forgotten = hash_search(entries, key, HASH_REMOVE, NULL) != NULL;
	else
	{
		pg_atomic_write_u64(&all->left_until, 0);
		pg_atomic_write_u32(&all->on_trial, 0);
		hash_seq_init(&scan, entries);
		while ((entry = hash_seq_search(&scan)) != NULL)
		{
			/*
			 * the scan allows it to remove the entry that it has just
			 * returned
			 */
			hash_search(entries, &entry->key, HASH_REMOVE, NULL);
			forgotten++;
		}
	}
	LWLockRelease(lock);
	return forgotten;
}

/*
 * enter
 *		Find a table's entry, or make one, and mark it as the latest.
 *
 * Holds the lock exclusively.  NULL if there is no memory, not even by
 * forgetting others.
 */
static TableEntry *
enter(const TableKey *key)
{
	TableEntry *entry;

	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	Assert(OidIsValid(key->relid));

	entry = hash_search(entries, key, HASH_FIND, NULL);
	if (entry == NULL)
	{
		if (hash_get_num_entries(entries) >= cyclone_autovacuum_max_tables)
			forget_oldest();
		entry = hash_search(entries, key, HASH_ENTER_NULL, NULL);
		if (entry == NULL)
			return NULL;
		memset((char *) entry + sizeof(TableKey), 0, sizeof(TableEntry) - sizeof(TableKey));
	}
	entry->touched = GetCurrentTimestamp();
	return entry;
}

/*
 * forget_oldest
 *		Make room for an entry; those with an open breaker are forgotten last.
 */
static void
forget_oldest(void)
{
	HASH_SEQ_STATUS scan;
	TableEntry *entry,
			   *oldest = NULL;
	TimestampTz now = GetCurrentTimestamp();
	TableKey	key;

	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));

	hash_seq_init(&scan, entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		bool		is_open = entry->breaker_until > now;
		bool		oldest_is_open = oldest != NULL && oldest->breaker_until > now;

		if (oldest == NULL ||
			(is_open == oldest_is_open ? entry->touched < oldest->touched : oldest_is_open))
			oldest = entry;
	}
	if (oldest == NULL)
		return;
	key = oldest->key;
	hash_search(entries, &key, HASH_REMOVE, NULL);
}

/* note_end -- note the result of a vacuum that ends now. */
static void
note_end(TableEntry *entry, const AutovacuumResult *result)
{
	Assert(result->start != 0);

	entry->last = *result;
	entry->last_seconds = (double) (GetCurrentTimestamp() - result->start) / USECS_PER_SEC;
}

/* note_failure -- the engine's vacuum has failed with this error, which is an audit's or not. */
static void
note_failure(TableEntry *entry, int sqlerrcode, bool is_audits)
{
	entry->failed++;
	entry->failures++;
	entry->crashed = false;
	entry->audit_failed = is_audits;
	entry->sqlerrcode = sqlerrcode;
	if (is_audits)
		pg_atomic_write_u32(&all->audits_failed, 1);
}

/* note_crash -- the last of this many failures in a row was a crash. */
static void
note_crash(TableEntry *entry, uint32 failures)
{
	entry->failed++;
	entry->failures = failures;
	entry->crashed = true;
	entry->audit_failed = false;
}

/* open_breaker -- leave a table to the server for a time; returns its end. */
static TimestampTz
open_breaker(TableEntry *entry)
{
	entry->breaker_until = table_log_break_until(entry->failures);
	return entry->breaker_until;
}

/*
 * pg_cyclone_autovacuum
 *		The rows of cyclone.autovacuum.
 */
Datum
pg_cyclone_autovacuum(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TableEntry *copies;
	HASH_SEQ_STATUS scan;
	TableEntry *entry;
	int			ncopies = 0;

	refuse_without_preloading();
	declared_rows_begin(fcinfo, AUTOVACUUM_COLUMNS);
	/* there is no log on a server that the library doesn't fit */
	if (entries == NULL)
		return (Datum) 0;

	/* rows are made without the lock */
	copies = palloc_array(TableEntry, cyclone_autovacuum_max_tables);
	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&scan, entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		Assert(ncopies < cyclone_autovacuum_max_tables);
		copies[ncopies++] = *entry;
	}
	LWLockRelease(lock);

	for (int i = 0; i < ncopies; i++)
		put_row(result, &copies[i]);
	pfree(copies);
	return (Datum) 0;
}

/* put_row -- a row of the view. */
static void
put_row(ReturnSetInfo *result, const TableEntry *entry)
{
	Datum		values[AUTOVACUUM_COLUMNS] = {0};
	bool		nulls[AUTOVACUUM_COLUMNS] = {0};
	bool		has_last = entry->last.start != 0;
	bool		by_engine = has_last && entry->last_reason == REASON_ENGINE;

	/* the breaker of the table, or the one for all */
	TimestampTz until_for_all = (TimestampTz) pg_atomic_read_u64(&all->left_until);
	TimestampTz until = Max(entry->breaker_until, until_for_all);
	bool		is_open = until > GetCurrentTimestamp();
	int			column = 0;

	values[column++] = ObjectIdGetDatum(entry->key.database);
	values[column++] = ObjectIdGetDatum(entry->key.relid);
	values[column++] = Int64GetDatum(entry->by_engine);
	values[column++] = Int64GetDatum(entry->by_server);
	values[column++] = Int64GetDatum(entry->cancelled);
	values[column++] = Int64GetDatum(entry->failed);

	nulls[column] = !has_last;
	values[column++] = CStringGetTextDatum(by_engine ? "engine" : "server");
	nulls[column] = !has_last || by_engine;
	values[column] = (Datum) 0;
	if (!nulls[column])
	{
		Assert(entry->last_reason < lengthof(reason_names));
		values[column] = CStringGetTextDatum(reason_names[entry->last_reason]);
	}
	column++;
	nulls[column] = !has_last;
	values[column++] = TimestampTzGetDatum(entry->last.start);
	nulls[column] = !has_last;
	values[column++] = Float8GetDatum(entry->last_seconds);
	nulls[column] = !by_engine;
	values[column++] = Int64GetDatum(entry->last.rows_removed);
	nulls[column] = !by_engine;
	values[column++] = Int64GetDatum(entry->last.pages_scanned);
	nulls[column] = !by_engine;
	values[column++] = Int32GetDatum(entry->last.workers);

	values[column++] = Int32GetDatum(entry->failures);
	nulls[column] = entry->failures == 0;
	values[column++] = CStringGetTextDatum(entry->crashed ? "crash" :
										   entry->audit_failed ? "audit" : unpack_sql_state(entry->sqlerrcode));
	values[column++] = BoolGetDatum(is_open);
	/* clients stumble over infinity */
	nulls[column] = !is_open || until == DT_NOEND;
	values[column++] = TimestampTzGetDatum(until);
	Assert(column == AUTOVACUUM_COLUMNS);

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* table_log_shmem_request -- how much shared memory we need. */
void
table_log_shmem_request(void)
{
	StaticAssertStmt(lengthof(reason_names) == REASON_NO_NOTE + 1, "a reason has no name");
	RequestAddinShmemSpace(hash_estimate_size(cyclone_autovacuum_max_tables, sizeof(TableEntry)));
	RequestAddinShmemSpace(sizeof(AllTables));
	RequestNamedLWLockTranche(TRANCHE, 2);
}

/* table_log_shmem_init -- make it, or find it. */
void
table_log_shmem_init(void)
{
	HASHCTL		info = {
		.keysize = sizeof(TableKey),
		.entrysize = sizeof(TableEntry)
	};
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));

	entries = compat_shmem_hash("pg_cyclone autovacuum", cyclone_autovacuum_max_tables,
								&info, HASH_ELEM | HASH_BLOBS);
	all = ShmemInitStruct("pg_cyclone autovacuum crashes", sizeof(AllTables), &found);
	if (!found)
	{
		pg_atomic_init_u64(&all->left_until, 0);
		pg_atomic_init_u32(&all->on_trial, 0);
		pg_atomic_init_u32(&all->tried_by, 0);
		pg_atomic_init_u32(&all->audits_failed, 0);
	}
	lock = &GetNamedLWLockTranche(TRANCHE)[0].lock;
	crashes_lock = &GetNamedLWLockTranche(TRANCHE)[1].lock;
}
