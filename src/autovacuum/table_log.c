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
 * Breakers of crashes and audits outlast a restart, and those of audits go to standbys
 * (running_notes.c).  Only the functions of the view raise errors, as an error of an
 * autovacuum worker would end more than one table.
 *
 * The file of breakers has a lock of its own, so no VACUUM waits for a disk.
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
} TableEntry;

static const char *const too_many_alarms =
gettext_noop("There are more of them than the view cyclone.autovacuum remembers tables.");

/* in the order of AutovacuumReason */
static const char *const reason_names[] = {
	NULL, "off", "not listed", "circuit breaker", "crashes", "no note on disk",
};

static HTAB *entries = NULL;
static LWLock *lock = NULL;
static LWLock *file_lock = NULL;

/* What holds for all tables */
typedef struct AllTables
{
	pg_atomic_uint64 left_until;	/* to the server */
	pg_atomic_uint32 any_may_have;	/* 1: it isn't known which tables have
									 * alarms */
	RunningNote notes[FLEXIBLE_ARRAY_MEMBER];	/* to be written to the file;
												 * under its lock */
} AllTables;

/* with a note of each table, and one of all */
#define ALL_TABLES_SIZE \
	add_size(offsetof(AllTables, notes), mul_size(MAX_TABLES + 1, sizeof(RunningNote)))

static AllTables *all = NULL;

static TableEntry find_table(const TableKey *key);
static TableEntry *enter_table(const TableKey *key);
static void forget_oldest_table(void);
static void note_end(TableEntry *entry, const AutovacuumResult *result);
static void open_breaker(TableEntry *entry);
static void open_alarm(TableEntry *entry);
static void leave_all_tables(const char *detail);
static void write_breakers(void);
static void replay_alarm(const TableKey *key, bool is_over);
static int64 forget_tables(const TableKey *key, bool alarms_only);
static void take_over_note(const RunningNote *note, TimestampTz now);
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
	TableEntry	entry = find_table(key);

	*failures = entry.failures;
	return entry.breaker_until > GetCurrentTimestamp();
}

/* find_table -- a copy of a table's entry; it is empty if there is none. */
static TableEntry
find_table(const TableKey *key)
{
	TableEntry	copy = {0};
	TableEntry *entry;

	Assert(entries != NULL && !LWLockHeldByMe(lock));
	Assert(OidIsValid(key->relid));

	LWLockAcquire(lock, LW_SHARED);
	entry = hash_search(entries, key, HASH_FIND, NULL);
	if (entry != NULL)
		copy = *entry;
	LWLockRelease(lock);
	if (pg_atomic_read_u32(&all->any_may_have) != 0)
		copy.breaker_until = DT_NOEND;
	return copy;
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
	TimestampTz until = is_audits ? DT_NOEND : 0;

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
			open_alarm(entry);
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
	if (is_audits)
	{
		if (entry == NULL)
			leave_all_tables(too_many_alarms);
		write_breakers();
		running_notes_log_alarm(key, false);
	}
	return until;
}

/* open_alarm -- an audit has failed on a table: open its breaker for good. */
static void
open_alarm(TableEntry *entry)
{
	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));

	entry->cause = NOTE_AUDIT;
	entry->breaker_until = DT_NOEND;
}

/* leave_all_tables -- leave all tables to the server, as some of them have alarms that aren't known. */
static void
leave_all_tables(const char *detail)
{
	if (pg_atomic_exchange_u32(&all->any_may_have, 1) != 0)
		return;
	/* a message would serve interrupts, and an error may be on its way */
	HOLD_INTERRUPTS();
	ereport(LOG,
			(errmsg("all tables are left to PostgreSQL's own VACUUM, as it isn't known on which of them audits have failed"),
			 errdetail_internal("%s", _(detail)),
			 errhint("The function cyclone.autovacuum_reset() ends that. Find out what has happened first.")));
	RESUME_INTERRUPTS();
}

/* write_breakers -- write the file of breakers that outlast a restart. */
static void
write_breakers(void)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS scan;
	TableEntry *entry;
	int			nnotes = 0;

	Assert(!LWLockHeldByMe(lock));

	LWLockAcquire(file_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&all->any_may_have) != 0)
		all->notes[nnotes++] = (RunningNote)
		{
			.until = DT_NOEND,.cause = NOTE_AUDIT
		};
	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&scan, entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (entry->cause != 0 && entry->breaker_until > now)
			all->notes[nnotes++] = (RunningNote)
		{
			.key = entry->key,.until = entry->breaker_until,
				.failures = entry->failures,.cause = entry->cause
		};
	LWLockRelease(lock);
	Assert(nnotes <= MAX_TABLES + 1);
	running_notes_keep(all->notes, nnotes);
	LWLockRelease(file_lock);
}

/* replay_alarm -- the WAL has that an audit has failed on a table, or that this is over. */
static void
replay_alarm(const TableKey *key, bool is_over)
{
	if (entries == NULL)
		return;
	/* a crash from which this server recovers came after that */
	if (is_over)
		(void) forget_tables(key, true);
	else if (find_table(key).cause != NOTE_AUDIT)
		(void) table_log_failed(key, ERRCODE_DATA_CORRUPTED, true, NULL);
}

/*
 * table_log_audit_has_failed
 *		Is a table left to the server, in commands, too, because an audit has failed on it?
 */
bool
table_log_audit_has_failed(const TableKey *key)
{
	return find_table(key).breaker_until == DT_NOEND;
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
	running_notes_log_alarm(key, true);
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
			hash_search(entries, &entry->key, HASH_REMOVE, NULL);
			forgotten++;
		}
	judge_crashes();
	if (key == NULL)
		pg_atomic_write_u32(&all->any_may_have, 0);
	LWLockRelease(lock);
	if (key == NULL || forgotten > 0)
		write_breakers();
	return forgotten;
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
		hash_search(entries, &oldest->key, HASH_REMOVE, NULL);
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
	RunningNote *breakers;
	RunningNote *running;
	int			nbreakers;
	int			nrunning;
	bool		is_whole;

	if (!IsPostmasterEnvironment || IsUnderPostmaster)
		return;
	nbreakers = running_notes_breakers(&breakers, &is_whole);
	for (int i = 0; i < nbreakers; i++)
		take_over_note(&breakers[i], now);
	nrunning = running_notes_read(&running);
	for (int i = 0; i < nrunning; i++)
		take_over_note(&running[i], now);
	if (!is_whole)
		leave_all_tables(gettext_noop("The file of breakers could not be read, or is damaged. It is kept as \"pg_cyclone/breakers.damaged\"."));
	write_breakers();
	/* not before crashes are noted as breakers */
	if (nrunning >= 0)
		running_notes_empty();
	judge_crashes();
	if (table_log_all_are_left())
		ereport(LOG,
				(errmsg("autovacuum leaves all tables to PostgreSQL's own VACUUM until %s",
						timestamptz_to_str((TimestampTz) pg_atomic_read_u64(&all->left_until))),
				 errdetail("The server has crashed while pg_cyclone was vacuuming several tables for autovacuum."),
				 errhint("The function cyclone.autovacuum_reset() ends that.")));
}

/* take_over_note -- open the breaker of a note's table, unless it has one. */
static void
take_over_note(const RunningNote *note, TimestampTz now)
{
	/* the clock may have been set back */
	TimestampTz latest = TimestampTzPlusMilliseconds(now, LONGEST_BREAK_MS);
	bool		is_alarm = note->cause == NOTE_AUDIT;
	TableEntry *entry;

	if (note->cause == NOTE_RUNNING)
		ereport(LOG,
				(errmsg("an autovacuum by pg_cyclone of relation %u in database %u was interrupted by a crash",
						note->key.relid, note->key.database),
				 errdetail("PostgreSQL's own VACUUM processes it next.")));
	else if (note->until <= now)
		return;
	entry = OidIsValid(note->key.relid) ? enter_table(&note->key) : NULL;
	if (entry == NULL && is_alarm)
		leave_all_tables(too_many_alarms);
	if (entry == NULL || entry->cause != 0)
		return;
	entry->failed = 1;
	entry->failures = note->failures + (note->cause == NOTE_RUNNING ? 1 : 0);
	entry->cause = is_alarm ? NOTE_AUDIT : NOTE_CRASH;
	if (is_alarm)
		open_alarm(entry);
	else if (note->cause == NOTE_RUNNING)
		open_breaker(entry);
	else
		entry->breaker_until = Min(note->until, latest);
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
	TimestampTz until_for_all = pg_atomic_read_u32(&all->any_may_have) != 0 ? DT_NOEND :
		(TimestampTz) pg_atomic_read_u64(&all->left_until);
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
	running_notes_watch_wal(replay_alarm);
}

/* table_log_shmem_request -- how much shared memory we need. */
void
table_log_shmem_request(void)
{
	StaticAssertStmt(lengthof(reason_names) == REASON_NO_NOTE + 1, "a reason has no name");
	RequestAddinShmemSpace(hash_estimate_size(MAX_TABLES, sizeof(TableEntry)));
	RequestAddinShmemSpace(ALL_TABLES_SIZE);
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

	entries = compat_shmem_hash("pg_cyclone autovacuum", MAX_TABLES,
								&info, HASH_ELEM | HASH_BLOBS);
	all = ShmemInitStruct("pg_cyclone autovacuum crashes", ALL_TABLES_SIZE, &found);
	if (!found)
	{
		pg_atomic_init_u64(&all->left_until, 0);
		pg_atomic_init_u32(&all->any_may_have, 0);
	}
	lock = &GetNamedLWLockTranche(TRANCHE)[0].lock;
	file_lock = &GetNamedLWLockTranche(TRANCHE)[1].lock;
}
