/*-------------------------------------------------------------------------
 *
 * leftovers.c
 *	  A server that starts after a crash removes files of unfinished rewrites.
 *
 * Each journal that is found then (journal.c) is of a rewrite that a crash has ended.  The
 * postmaster, before any other process exists, looks which of the files exist that the
 * journals name or allow for.  The first process that commits a transaction after recovery
 * starts a worker.  That goes from database to database, with a further worker in each that
 * has journals, which decides which files are nobody's, and removes them and the journals.
 * README.md says why these are nobody's.
 *
 * Nothing here can keep the server from starting.  A worker that brings the server down
 * does so a few times only: each attempt leaves a record in the journal.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/storage.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "debug_point.h"
#include "library.h"
#include "new_files/journal.h"
#include "new_files/leftovers.h"
#include "own_worker.h"

#define MAX_TRIES	3

typedef struct LeftoversShared
{
	uint64		start;			/* written before there are other processes:
								 * this start of the server */
	pg_atomic_uint32 is_due;	/* a worker is to be started */
} LeftoversShared;

/* How a journal's transaction has ended */
typedef enum RewriteFate
{
	FATE_FAILED,
	FATE_COMMITTED,
	FATE_UNKNOWN
} RewriteFate;

PGDLLEXPORT void pg_cyclone_leftovers_main(Datum arg);

static LeftoversShared *leftovers = NULL;

static bool try_to_look_around(uint64 start);
static bool look_around(uint64 start);
static bool look_for_files_of(Journal *journal, uint64 start);
static List *find_noted(List *found, const Journal *journal);
static List *find_empty(List *found, const Journal *journal, Oid tablespace, Oid next_oid);
static bool is_noted(const Journal *journal, const RelFileLocator *file);
static List *add_found(List *found, RelFileLocator file, bool must_be_empty);
static bool is_due(void);
static bool start_worker(Oid database, BackgroundWorkerHandle **handle);
static void visit_databases(void);
static bool is_from_before(const Journal *journal);
static bool is_connectable(Form_pg_database database);
static void clean_database(void);
static List *add_leftovers(List *files, const Journal *journal);
static RewriteFate fate_of(const Journal *journal);
static bool exists(const JournalRecord *record);
static bool is_listed(List *files, const RelFileLocator *file);
static List *without_referenced(List *files, Snapshot snapshot);
static void drop_files(List *files);

static const OwnWorkerDuty duty = {
	.type = "pg_cyclone cleaner",
	.function = "pg_cyclone_leftovers_main",
	.is_due = is_due
};

/* leftovers_init -- have the worker started when it is due. */
void
leftovers_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	own_worker_when_due(&duty);
}

/* leftovers_shmem_request -- how much shared memory we need. */
void
leftovers_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(LeftoversShared));
}

/* leftovers_shmem_init -- find our shared memory, or make it. */
void
leftovers_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));
	leftovers = ShmemInitStruct("pg_cyclone leftovers", sizeof(LeftoversShared), &found);
	if (!found)
	{
		leftovers->start = GetCurrentTimestamp();
		pg_atomic_init_u32(&leftovers->is_due, 0);
	}
}

/* leftovers_look_around -- is anything left of a crash?  The postmaster's children don't ask. */
void
leftovers_look_around(void)
{
	if (!IsUnderPostmaster)
		pg_atomic_write_u32(&leftovers->is_due, try_to_look_around(leftovers->start));
}

/*
 * try_to_look_around
 *		Look around; log an error, and take it for nothing found.
 *
 * The postmaster has no transaction, and no files open at this time.
 */
static bool
try_to_look_around(uint64 start)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool found = false;

	PG_TRY();
	{
		found = look_around(start);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		EmitErrorReport();
		FlushErrorState();
		/* close the files that are open */
		AtEOXact_Files(false);
		ereport(LOG,
				(errmsg("files of an unfinished VACUUM FULL may be left over until the next start of the server")));
	}
	PG_END_TRY();
	return found;
}

/* look_around -- find the files that journals name or allow for; return whether there are any. */
static bool
look_around(uint64 start)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "pg_cyclone leftovers",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	bool		found = false;

	foreach_ptr(Journal, journal, journal_list(true))
	{
		DEBUG_POINT("leftovers-look");
		if (journal->nrecords == 0)
		{
			ereport(LOG,
					(errmsg("file \"%s\" is not a journal of this database cluster and is removed",
							journal->path)));
			journal_remove(journal->path);
		}
		else if (look_for_files_of(journal, start))
			found = true;
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return found;
}

/*
 * look_for_files_of
 *		Find the files that a journal names or allows for, and add them to it.
 *		Without any, the journal is removed.
 */
static bool
look_for_files_of(Journal *journal, uint64 start)
{
	List	   *found = NIL;
	Oid			next_oid = InvalidOid;
	int			nrecords;
	int			ntries = 0;
	JournalRecord *records;

	for (int i = 0; i < journal->nrecords; i++)
		ntries += journal->records[i].kind == JOURNAL_TRIED;

	/* what an earlier start of the server has added is no longer valid */
	for (nrecords = 0; nrecords < journal->nrecords; nrecords++)
	{
		JournalRecord *record = &journal->records[nrecords];

		if (record->kind == JOURNAL_FOUND || record->kind == JOURNAL_TRIED)
			break;
		if (record->kind != JOURNAL_SPACE)
			next_oid = record->next_oid;
	}
	journal->nrecords = nrecords;

	found = find_noted(found, journal);
	for (int i = 0; i < nrecords; i++)
	{
		if (journal->records[i].kind == JOURNAL_SPACE)
			found = find_empty(found, journal, journal->records[i].file.spcOid, next_oid);
	}
	if (found != NIL && ntries >= MAX_TRIES)
	{
		ereport(LOG,
				(errmsg("files of an unfinished VACUUM FULL are left over: attempts to remove them have failed %d times",
						ntries)));
		found = NIL;
	}
	if (found == NIL)
	{
		journal_remove(journal->path);
		return false;
	}

	records = palloc0_array(JournalRecord, nrecords + list_length(found) + ntries);
	memcpy(records, journal->records, nrecords * sizeof(JournalRecord));
	foreach_ptr(JournalRecord, record, found)
	{
		records[nrecords] = *record;
		records[nrecords++].number = start;
	}
	for (int i = 0; i < ntries; i++)
		records[nrecords++].kind = JOURNAL_TRIED;
	return journal_write(journal->path, records, nrecords, false, LOG);
}

/* find_noted -- add those files that the journal names, and that exist. */
static List *
find_noted(List *found, const Journal *journal)
{
	for (int i = 0; i < journal->nrecords; i++)
	{
		const JournalRecord *record = &journal->records[i];

		if (record->kind != JOURNAL_FILE)
			continue;
		for (ForkNumber fork = 0; fork <= MAX_FORKNUM; fork++)
		{
			if (access(compat_relation_path(record->file, fork), F_OK) == 0)
			{
				found = add_found(found, record->file, false);
				break;
			}
		}
	}
	return found;
}

/*
 * find_empty
 *		Add empty files that may have been created just before the crash, with
 *		names from next_oid on, modulo 2^32.
 */
static List *
find_empty(List *found, const Journal *journal, Oid tablespace, Oid next_oid)
{
	RelFileLocator file = {.spcOid = tablespace,.dbOid = journal->records[0].file.dbOid};
	char	   *folder = GetDatabasePath(file.dbOid, tablespace);
	DIR		   *dir = AllocateDir(folder);
	struct dirent *entry;

	if (dir == NULL && errno == ENOENT)
		return found;			/* the database, or the tablespace, is gone */
	while ((entry = ReadDirExtended(dir, folder, LOG)) != NULL)
	{
		char		path[MAXPGPATH];
		struct stat status;
		char	   *end;
		unsigned long number = strtoul(entry->d_name, &end, 10);

		if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || *end != '\0' ||
			number > PG_UINT32_MAX || (int32) ((uint32) number - next_oid) < 0)
			continue;
		file.relNumber = number;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		if (lstat(path, &status) == 0 && S_ISREG(status.st_mode) &&
			status.st_size == 0 && !is_noted(journal, &file))
			found = add_found(found, file, true);
	}
	if (dir != NULL)
		FreeDir(dir);
	return found;
}

/* is_noted -- does the journal name this file? */
static bool
is_noted(const Journal *journal, const RelFileLocator *file)
{
	for (int i = 0; i < journal->nrecords; i++)
	{
		if (journal->records[i].kind == JOURNAL_FILE &&
			RelFileLocatorEquals(journal->records[i].file, *file))
			return true;
	}
	return false;
}

/* add_found -- add a record of a file. */
static List *
add_found(List *found, RelFileLocator file, bool must_be_empty)
{
	JournalRecord *record = palloc0_object(JournalRecord);

	record->kind = JOURNAL_FOUND;
	record->file = file;
	record->must_be_empty = must_be_empty;
	return lappend(found, record);
}

/* is_due -- is a worker to be started that visits all databases? */
static bool
is_due(void)
{
	return leftovers != NULL && pg_atomic_read_u32(&leftovers->is_due) != 0;
}

/* start_worker -- start a worker for a database. */
static bool
start_worker(Oid database, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker = own_worker(duty.type, duty.function);

	worker.bgw_main_arg = ObjectIdGetDatum(database);
	snprintf(worker.bgw_name, sizeof(worker.bgw_name),
			 "pg_cyclone cleaner for database %u", database);
	return own_worker_start(&worker, handle);
}

/*
 * pg_cyclone_leftovers_main
 *		The worker in a database, or the one that visits all.
 */
void
pg_cyclone_leftovers_main(Datum arg)
{
	Oid			database = DatumGetObjectId(arg);

	refuse_without_preloading();
	if (!OidIsValid(database))
		pg_atomic_write_u32(&leftovers->is_due, 0);
	own_worker_begin(database, BGWORKER_BYPASS_ALLOWCONN);
	if (OidIsValid(database))
		clean_database();
	else
		visit_databases();
}

/*
 * visit_databases
 *		Start a worker for each database with journals, one after the other, and
 *		remove journals of databases that no longer exist.
 */
static void
visit_databases(void)
{
	List	   *all;
	List	   *connectable;
	List	   *databases = NIL;

	all = own_worker_databases(NULL);
	connectable = own_worker_databases(is_connectable);
	foreach_ptr(Journal, journal, journal_list(false))
	{
		Oid			database;

		if (!is_from_before(journal))
			continue;
		database = journal->records[0].file.dbOid;
		if (!list_member_oid(all, database))
			journal_remove(journal->path);
		else if (list_member_oid(connectable, database))
			databases = list_append_unique_oid(databases, database);
	}

	foreach_oid(database, databases)
	{
		BackgroundWorkerHandle *handle;

		if (!start_worker(database, &handle))
		{
			pg_atomic_write_u32(&leftovers->is_due, 1);
			break;
		}
		if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
			proc_exit(1);
	}
}

/*
 * is_from_before
 *		Was this journal there when the server started?  Otherwise it is one of a
 *		rewrite that runs now.
 */
static bool
is_from_before(const Journal *journal)
{
	for (int i = 0; i < journal->nrecords; i++)
	{
		if (journal->records[i].kind == JOURNAL_FOUND &&
			journal->records[i].number == leftovers->start)
			return true;
	}
	return false;
}

/* is_connectable -- is it none whose dropping was interrupted? */
static bool
is_connectable(Form_pg_database database)
{
	return !database_is_invalid_form(database);
}

/* clean_database -- remove the leftovers of this database's journals, and the journals. */
static void
clean_database(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *files = NIL;
	List	   *journals = NIL;
	SnapshotData dirty;

	StartTransactionCommand();
	DEBUG_POINT("leftovers-clean");
	MemoryContextSwitchTo(context);
	foreach_ptr(Journal, journal, journal_list(false))
	{
		if (!is_from_before(journal) || journal->records[0].file.dbOid != MyDatabaseId ||
			!journal_try(journal))
			continue;
		files = add_leftovers(files, journal);
		journals = lappend(journals, journal);
	}

	/*
	 * A scan that sees what isn't committed may miss both versions of a row
	 * that is changed meanwhile.  One with a snapshot does not.
	 */
	InitDirtySnapshot(dirty);
	files = without_referenced(files, &dirty);
	files = without_referenced(files, NULL);
	drop_files(files);
	CommitTransactionCommand();

	foreach_ptr(RelFileLocator, file, files)
		ereport(LOG,
				(errmsg("removed file \"%s\" of an unfinished VACUUM FULL",
						compat_relation_path(*file, MAIN_FORKNUM))));
	foreach_ptr(Journal, journal, journals)
		journal_remove(journal->path);
}

/*
 * add_leftovers
 *		Add those of a journal's files that its transaction has left: it has failed,
 *		and they are still there.
 */
static List *
add_leftovers(List *files, const Journal *journal)
{
	RewriteFate fate = fate_of(journal);

	if (fate == FATE_UNKNOWN)
		ereport(LOG,
				(errmsg("files of an unfinished VACUUM FULL may be left over: what has become of transaction %llu is not known",
						(unsigned long long) journal->records[0].number)));
	if (fate != FATE_FAILED)
		return files;

	for (int i = 0; i < journal->nrecords; i++)
	{
		const JournalRecord *record = &journal->records[i];
		RelFileLocator *file;

		/* another journal may have it, too */
		if (record->kind != JOURNAL_FOUND || record->number != leftovers->start ||
			record->file.dbOid != MyDatabaseId ||
			record->file.spcOid == GLOBALTABLESPACE_OID ||
			!exists(record) || is_listed(files, &record->file))
			continue;
		file = palloc_object(RelFileLocator);
		*file = record->file;
		files = lappend(files, file);
	}
	return files;
}

/* is_listed -- is the file in this list? */
static bool
is_listed(List *files, const RelFileLocator *file)
{
	foreach_ptr(RelFileLocator, listed, files)
	{
		if (RelFileLocatorEquals(*listed, *file))
			return true;
	}
	return false;
}

/*
 * fate_of
 *		How has the transaction of this journal ended?
 *
 * Without named files, its ID may not have been durable, and another transaction may
 * have it now.  But then it only matters whether the files are empty.
 */
static RewriteFate
fate_of(const Journal *journal)
{
	FullTransactionId xid = FullTransactionIdFromU64(journal->records[0].number);
	bool		has_names = false;

	LOCAL_FCINFO(fcinfo, 1);
	Datum		status;

	for (int i = 0; i < journal->nrecords; i++)
		has_names |= journal->records[i].kind == JOURNAL_FILE;
	if (!has_names)
		return FATE_FAILED;

	/* it is an error to ask about the future */
	if (!FullTransactionIdPrecedes(xid, ReadNextFullTransactionId()))
		return FATE_UNKNOWN;
	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = FullTransactionIdGetDatum(xid);
	fcinfo->args[0].isnull = false;
	status = pg_xact_status(fcinfo);
	if (fcinfo->isnull)
		return FATE_UNKNOWN;
	if (strcmp(TextDatumGetCString(status), "committed") == 0)
		return FATE_COMMITTED;
	return strcmp(TextDatumGetCString(status), "aborted") == 0 ? FATE_FAILED : FATE_UNKNOWN;
}

/* exists -- is the file there, and empty if it must be? */
static bool
exists(const JournalRecord *record)
{
	SMgrRelation rel = smgropen(record->file, INVALID_PROC_NUMBER);
	bool		found = false;

	for (ForkNumber fork = 0; fork <= MAX_FORKNUM; fork++)
	{
		if (!smgrexists(rel, fork))
			continue;
		found = true;
		if (record->must_be_empty && smgrnblocks(rel, fork) != 0)
			return false;
	}
	return found;
}

/* without_referenced -- take all files off the list whose name a relation has, in any tablespace. */
static List *
without_referenced(List *files, Snapshot snapshot)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_class, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;

	Assert(IsTransactionState());
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);
		RelFileNumber number = form->relfilenode;
		ListCell   *cell;

		if (!RelFileNumberIsValid(number))
			number = RelationMapOidToFilenumber(form->oid, form->relisshared);
		foreach(cell, files)
		{
			if (((RelFileLocator *) lfirst(cell))->relNumber == number)
				files = foreach_delete_current(files, cell);
		}
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return files;
}

/* drop_files -- drop these files at commit. */
static void
drop_files(List *files)
{
	Assert(IsTransactionState());
	/* only a transaction with an ID can remove files */
	if (files != NIL)
		(void) GetCurrentTransactionId();

	foreach_ptr(RelFileLocator, file, files)
	{
		/* what RelationDropStorage looks at */
		RelationData rel = {.rd_locator = *file,.rd_backend = INVALID_PROC_NUMBER};

		RelationDropStorage(&rel);
	}
}
