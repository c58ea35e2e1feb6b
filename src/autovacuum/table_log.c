/*-------------------------------------------------------------------------
 *
 * table_log.c
 *	  The view cyclone.autovacuum, and the circuit breakers.
 *
 * A hash table in shared memory has an entry for each of the latest MAX_TABLES tables that
 * autovacuum came to, until the server is restarted or crashes.
 *
 * A table's breaker opens when the engine has failed on it, unless the table is damaged, or
 * has been at it in a crash.  Then PostgreSQL's VACUUM has the table for an hour, twice as
 * long after each failure in a row, a week at most, or until a user resets it.  While
 * several crashes have breakers open, all tables are PostgreSQL's, as there may be a
 * thousand that crash the server in turn.  A failed audit opens a breaker for good.
 *
 * Breakers of crashes and audits outlast a restart (running_notes.c).  Those of audits go to
 * standbys with the WAL, and so does their end (alarm_wal.c).  Only the functions of the
 * view raise errors, as an error of an autovacuum worker would end more than one table.
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

#include "autovacuum/alarm_wal.h"
#include "autovacuum/table_log.h"
#include "compat.h"
#include "debug_point.h"
#include "library.h"

#define TRANCHE				"pg_cyclone autovacuum"
#define AUTOVACUUM_COLUMNS	17

#define MAX_TABLES			DEBUG_LIMIT(max_tables, 5000)

/* For how long a breaker is open, first and at most; each failure in a row doubles it. */
#define FIRST_BREAK_MS		(DEBUG_LIMIT(break_seconds, 3600) * INT64CONST(1000))
#define LONGEST_BREAK_MS	(7 * 24 * 3600 * INT64CONST(1000))
#define MAX_DOUBLINGS		20

/* While this many breakers are open by crashes, all tables are left to PostgreSQL. */
#define CRASHES_FOR_ALL		3

#define NO_PLACE			(-1)

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
	uint32		failures;		/* of the engine, in a row */
	NoteCause	cause;			/* of the last one; 0: an error */
	int			sqlerrcode;		/* which one */
	TimestampTz breaker_until;	/* 0: closed */
	int			place;			/* of its note on disk, or NO_PLACE */
} TableEntry;

/* in the order of AutovacuumReason */
static const char *const reason_names[] = {
	NULL, "off", "not listed", "circuit breaker", "crashes", "no note on disk",
};

static HTAB *entries = NULL;
static LWLock *lock = NULL;

/* What holds for all tables */
typedef struct AllTables
{
	pg_atomic_uint64 left_until;	/* to the server */
	pg_atomic_uint32 has_alarms;	/* 1: an audit has failed, since the
									 * start; 0 saves a lookup */
	int			next_place;		/* of a breaker's note; under the lock */
} AllTables;

static AllTables *all = NULL;

static TableEntry *enter_table(const TableKey *key);
static void forget_oldest_table(void);
static void forget_table(TableEntry *entry);
static void note_end(TableEntry *entry, const AutovacuumResult *result);
static void open_breaker(TableEntry *entry);
static bool open_alarm(TableEntry *entry, RunningNote *note);
static void replay_alarm(const TableKey *key, bool is_over);
static int64 forget_tables(const TableKey *key, bool alarms_only);
static bool take_over_note(RunningNote *note, TimestampTz now);
static void judge_crashes(void);
static void put_table(ReturnSetInfo *result, const TableEntry *entry);

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

/* table_log_all_are_left -- are all tables left to the server, after several crashes? */
bool
table_log_all_are_left(void)
{
	return (TimestampTz) pg_atomic_read_u64(&all->left_until) > GetCurrentTimestamp();
}

/*
 * table_log_done
 *		A table was vacuumed, for that reason by the engine or by PostgreSQL; or the engine's
 *		vacuum was cancelled, or gave way to another session.  That is no failure, and
 *		earlier failures still count.
 */
void
table_log_done(const TableKey *key, AutovacuumReason reason, bool is_cancelled,
			   const AutovacuumResult *result)
{
	TableEntry *entry;

	Assert(entries != NULL && !LWLockHeldByMe(lock));
	Assert(reason <= REASON_NO_NOTE);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter_table(key);
	if (entry != NULL)
	{
		entry->last_reason = reason;
		note_end(entry, result);
		if (is_cancelled)
			entry->cancelled++;
		else if (reason != REASON_ENGINE)
			entry->by_server++;
		else
		{
			entry->by_engine++;
			if (entry->cause != NOTE_AUDIT)
				entry->failures = entry->breaker_until = 0;
		}
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
	RunningNote note;
	int			place = NO_PLACE;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter_table(key);
	if (entry != NULL)
	{
		if (result != NULL)
		{
			entry->last_reason = REASON_ENGINE;
			note_end(entry, result);
		}
		entry->failed++;
		entry->failures++;
		if (is_audits)
			place = open_alarm(entry, &note) ? entry->place : NO_PLACE;
		else if (entry->cause != NOTE_AUDIT)
		{
			entry->cause = 0;
			entry->sqlerrcode = sqlerrcode;
			if (sqlerrcode != ERRCODE_DATA_CORRUPTED && sqlerrcode != ERRCODE_INDEX_CORRUPTED)
				open_breaker(entry);
		}
		until = entry->breaker_until;
	}
	LWLockRelease(lock);
	if (place != NO_PLACE)
		running_notes_keep(place, &note);
	if (is_audits)
		alarm_wal_write(key, false);
	return until;
}

/*
 * open_alarm
 *		An audit has failed on a table: open its breaker for good, and give it a place on
 *		disk.  Returns whether the note is to be written there.
 */
static bool
open_alarm(TableEntry *entry, RunningNote *note)
{
	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));

	entry->cause = NOTE_AUDIT;
	entry->breaker_until = DT_NOEND;
	pg_atomic_write_u32(&all->has_alarms, 1);
	if (entry->place == NO_PLACE && all->next_place < MAX_BREAKER_NOTES)
		entry->place = all->next_place++;
	*note = (RunningNote)
	{
		.key = entry->key,.until = DT_NOEND,.failures = entry->failures,.cause = NOTE_AUDIT
	};
	return entry->place != NO_PLACE;
}

/* replay_alarm -- the WAL has that an audit has failed on a table, or that this is over. */
static void
replay_alarm(const TableKey *key, bool is_over)
{
	TableEntry *entry;
	RunningNote note;
	int			place = NO_PLACE;

	if (entries == NULL)
		return;
	if (is_over)
	{
		/* a crash from which this server recovers came after that */
		(void) forget_tables(key, true);
		return;
	}
	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = enter_table(key);
	if (entry != NULL && (entry->cause != NOTE_AUDIT || entry->failures == 0))
	{
		entry->failures++;
		place = open_alarm(entry, &note) ? entry->place : NO_PLACE;
	}
	LWLockRelease(lock);
	if (place != NO_PLACE)
		running_notes_keep(place, &note);
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
	if (pg_atomic_read_u32(&all->has_alarms) == 0)
		return false;
	LWLockAcquire(lock, LW_SHARED);
	entry = hash_search(entries, key, HASH_FIND, NULL);
	has_failed = entry != NULL && entry->breaker_until == DT_NOEND;
	LWLockRelease(lock);
	return has_failed;
}

/* table_log_has_alarm -- has an audit failed on a table, or on its TOAST table? */
bool
table_log_has_alarm(Relation rel)
{
	TableKey	key = table_log_key(rel);
	TableKey	toast = {.database = key.database,.relid = rel->rd_rel->reltoastrelid};

	return table_log_audit_has_failed(&key) ||
		(OidIsValid(toast.relid) && table_log_audit_has_failed(&toast));
}

/*
 * table_log_forget
 *		Forget about a table, or about all of them if key is NULL.  That closes their
 *		breakers, here, on disk and on standbys.  Returns how many entries there were.
 */
int64
table_log_forget(const TableKey *key)
{
	int64		forgotten = forget_tables(key, false);

	/* also if there was none: a standby may have one */
	alarm_wal_write(key, true);
	return forgotten;
}

/* forget_tables -- forget about one, or all, or about those with alarms only. */
static int64
forget_tables(const TableKey *key, bool alarms_only)
{
	HASH_SEQ_STATUS scan;
	TableEntry *entry;
	int64		forgotten = 0;

	Assert(entries != NULL && !LWLockHeldByMe(lock));

	LWLockAcquire(lock, LW_EXCLUSIVE);
	hash_seq_init(&scan, entries);
	/* the scan allows it to remove the entry that it has just returned */
	while ((entry = hash_seq_search(&scan)) != NULL)
		if ((key == NULL || memcmp(key, &entry->key, sizeof(TableKey)) == 0) &&
			(!alarms_only || entry->cause == NOTE_AUDIT))
		{
			forget_table(entry);
			forgotten++;
		}
	judge_crashes();
	LWLockRelease(lock);
	return forgotten;
}

/* forget_table -- remove an entry, and its note; no file is read, so this is for a moment only. */
static void
forget_table(TableEntry *entry)
{
	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));

	if (entry->place != NO_PLACE)
		running_notes_keep(entry->place, NULL);
	hash_search(entries, &entry->key, HASH_REMOVE, NULL);
}

/*
 * enter_table
 *		Find a table's entry, or make one, and mark it as the latest.
 *
 * Holds the lock exclusively.  NULL if there is no memory, not even by
 * forgetting others.
 */
static TableEntry *
enter_table(const TableKey *key)
{
	TableEntry *entry;

	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	Assert(OidIsValid(key->relid));

	entry = hash_search(entries, key, HASH_FIND, NULL);
	if (entry == NULL)
	{
		if (hash_get_num_entries(entries) >= MAX_TABLES)
			forget_oldest_table();
		/* or all are alarms, of which there can't be more */
		if (hash_get_num_entries(entries) >= MAX_TABLES)
			return NULL;
		entry = hash_search(entries, key, HASH_ENTER_NULL, NULL);
		if (entry == NULL)
			return NULL;
		memset((char *) entry + sizeof(TableKey), 0, sizeof(TableEntry) - sizeof(TableKey));
		entry->place = NO_PLACE;
	}
	entry->touched = GetCurrentTimestamp();
	return entry;
}

/*
 * forget_oldest_table
 *		Make room for an entry.  The one whose breaker closes first goes, and that of the
 *		oldest turn if several are closed.
 */
static void
forget_oldest_table(void)
{
	HASH_SEQ_STATUS scan;
	TableEntry *entry,
			   *oldest = NULL;
	TimestampTz now = GetCurrentTimestamp();

	hash_seq_init(&scan, entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (entry->breaker_until < now)
			entry->breaker_until = 0;
		if (oldest == NULL || entry->breaker_until < oldest->breaker_until ||
			(entry->breaker_until == oldest->breaker_until && entry->touched < oldest->touched))
			oldest = entry;
	}
	/* there is no room for another alarm than these, which are thousands */
	if (oldest != NULL && oldest->breaker_until != DT_NOEND)
		forget_table(oldest);
}

/* note_end -- note the result of a vacuum that ends now. */
static void
note_end(TableEntry *entry, const AutovacuumResult *result)
{
	Assert(result->start != 0);

	entry->last = *result;
	entry->last_seconds = (double) (GetCurrentTimestamp() - result->start) / USECS_PER_SEC;
}

/* open_breaker -- leave a table to the server for a time, by its number of failures. */
static void
open_breaker(TableEntry *entry)
{
	int64		ms = FIRST_BREAK_MS << Min(entry->failures - 1, MAX_DOUBLINGS);

	Assert(entry->failures > 0);
	entry->breaker_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													   Min(ms, LONGEST_BREAK_MS));
}

/*
 * table_log_load
 *		Open the breakers of all tables that are noted on disk.  For the postmaster, at the
 *		start; a single-user server leaves them to the next one that has autovacuum.
 */
void
table_log_load(void)
{
	TimestampTz now = GetCurrentTimestamp();
	RunningNote *notes;
	int			nnotes;
	int			nkept = 0;

	if (!IsPostmasterEnvironment || IsUnderPostmaster)
		return;
	nnotes = running_notes_read(&notes);
	for (int i = 0; i < nnotes && nkept < MAX_BREAKER_NOTES; i++)
		if (OidIsValid(notes[i].key.relid) && take_over_note(&notes[i], now))
			notes[nkept++] = notes[i];
	all->next_place = nkept;
	running_notes_replace(notes, nkept);
	if (notes != NULL)
		pfree(notes);
	judge_crashes();
	if (table_log_all_are_left())
		ereport(LOG,
				(errmsg("autovacuum leaves all tables to PostgreSQL's own VACUUM until %s",
						timestamptz_to_str((TimestampTz) pg_atomic_read_u64(&all->left_until))),
				 errdetail("The server has crashed while pg_cyclone was vacuuming several tables for autovacuum."),
				 errhint("The function cyclone.autovacuum_reset() ends that.")));
}

/*
 * take_over_note
 *		Open the breaker of a note's table, which gets the next place on disk, and change
 *		the note to that of this breaker.  Returns false if there is none, or the table has
 *		one.
 */
static bool
take_over_note(RunningNote *note, TimestampTz now)
{
	TableEntry *entry;

	if (note->cause == NOTE_RUNNING)
		ereport(LOG,
				(errmsg("an autovacuum by pg_cyclone of relation %u in database %u was interrupted by a crash",
						note->key.relid, note->key.database),
				 errdetail("PostgreSQL's own VACUUM processes it next.")));
	else if (note->until <= now)
		return false;
	entry = enter_table(&note->key);
	if (entry == NULL || entry->place != NO_PLACE)
		return false;
	entry->failed = 1;
	entry->failures = note->cause == NOTE_RUNNING ? note->failures + 1 : note->failures;
	if (note->cause == NOTE_AUDIT)
	{
		(void) open_alarm(entry, note);
		return true;
	}
	entry->cause = NOTE_CRASH;
	if (note->cause == NOTE_RUNNING)
		open_breaker(entry);
	else
	{
		/* the clock may have been set back */
		TimestampTz latest = TimestampTzPlusMilliseconds(now, LONGEST_BREAK_MS);

		entry->breaker_until = Min(note->until, latest);
	}
	entry->place = all->next_place++;
	note->until = entry->breaker_until;
	note->failures = entry->failures;
	note->cause = NOTE_CRASH;
	return true;
}

/*
 * judge_crashes
 *		Leave all tables to the server for as long as several have breakers that a crash has
 *		opened.
 */
static void
judge_crashes(void)
{
	TimestampTz latest[CRASHES_FOR_ALL] = {0};	/* the latest ends, in order */
	HASH_SEQ_STATUS scan;
	TableEntry *entry;

	hash_seq_init(&scan, entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		TimestampTz until = entry->cause == NOTE_CRASH ? entry->breaker_until : 0;

		for (int i = 0; i < CRASHES_FOR_ALL; i++)
			if (until > latest[i])
			{
				TimestampTz next = latest[i];

				latest[i] = until;
				until = next;
			}
	}
	pg_atomic_write_u64(&all->left_until, latest[CRASHES_FOR_ALL - 1]);
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
	library_begin_rows(fcinfo, AUTOVACUUM_COLUMNS);
	/* there is no log on a server that the library doesn't fit */
	if (entries == NULL)
		return (Datum) 0;

	/* rows are made without the lock */
	copies = palloc_array(TableEntry, MAX_TABLES);
	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&scan, entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		Assert(ncopies < MAX_TABLES);
		copies[ncopies++] = *entry;
	}
	LWLockRelease(lock);

	for (int i = 0; i < ncopies; i++)
		put_table(result, &copies[i]);
	pfree(copies);
	return (Datum) 0;
}

/* put_table -- a row of the view. */
static void
put_table(ReturnSetInfo *result, const TableEntry *entry)
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

#define PUT(datum, is_null) \
	do { \
		nulls[column] = (is_null); \
		values[column] = nulls[column] ? (Datum) 0 : (datum); \
		column++; \
	} while (0)
	PUT(ObjectIdGetDatum(entry->key.database), false);
	PUT(ObjectIdGetDatum(entry->key.relid), false);
	PUT(Int64GetDatum(entry->by_engine), false);
	PUT(Int64GetDatum(entry->by_server), false);
	PUT(Int64GetDatum(entry->cancelled), false);
	PUT(Int64GetDatum(entry->failed), false);
	PUT(CStringGetTextDatum(by_engine ? "engine" : "server"), !has_last);
	PUT(CStringGetTextDatum(reason_names[entry->last_reason]), !has_last || by_engine);
	PUT(TimestampTzGetDatum(entry->last.start), !has_last);
	PUT(Float8GetDatum(entry->last_seconds), !has_last);
	PUT(Int64GetDatum(entry->last.rows_removed), !by_engine);
	PUT(Int64GetDatum(entry->last.pages_scanned), !by_engine);
	PUT(Int32GetDatum(entry->last.workers), !by_engine);
	PUT(Int32GetDatum(entry->failures), false);
	PUT(CStringGetTextDatum(entry->cause == NOTE_CRASH ? "crash" :
							entry->cause == NOTE_AUDIT ? "audit" : unpack_sql_state(entry->sqlerrcode)),
		entry->failures == 0);
	PUT(BoolGetDatum(is_open), false);
	/* clients stumble over infinity */
	PUT(TimestampTzGetDatum(until), !is_open || until == DT_NOEND);
#undef PUT
	Assert(column == AUTOVACUUM_COLUMNS);

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* table_log_init -- learn of alarms from the WAL. */
void
table_log_init(void)
{
	alarm_wal_init(replay_alarm);
}

/* table_log_shmem_request -- how much shared memory we need. */
void
table_log_shmem_request(void)
{
	StaticAssertStmt(lengthof(reason_names) == REASON_NO_NOTE + 1, "a reason has no name");
	RequestAddinShmemSpace(hash_estimate_size(MAX_TABLES, sizeof(TableEntry)));
	RequestAddinShmemSpace(sizeof(AllTables));
	RequestNamedLWLockTranche(TRANCHE, 1);
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

	entries = compat_shmem_hash("pg_cyclone autovacuum", MAX_TABLES,
								&info, HASH_ELEM | HASH_BLOBS);
	all = ShmemInitStruct("pg_cyclone autovacuum crashes", sizeof(AllTables), &found);
	if (!found)
	{
		pg_atomic_init_u64(&all->left_until, 0);
		pg_atomic_init_u32(&all->has_alarms, 0);
		all->next_place = 0;
	}
	lock = &GetNamedLWLockTranche(TRANCHE)[0].lock;
}
