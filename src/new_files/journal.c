/*-------------------------------------------------------------------------
 *
 * journal.c
 *	  Notes on disk about the files that a VACUUM FULL creates, and what follows after a crash.
 *
 * Each rewrite has a small file of its own (small_file.c), its journal, for as long as it runs;
 * new_files.c makes the records.  A journal that is there when the server starts is of a
 * rewrite that a crash has ended.  The postmaster, before any other process exists, looks which
 * of the files exist that the journals name or allow for.  What it finds stays in its memory,
 * which the processes that it forks inherit.  The cleaner (inplace/cleaner.c) decides in each
 * database which of these files are nobody's, and removes them and the journals.  README.md
 * says why these are nobody's.
 *
 * Nothing here can keep the server from starting.  A cleaner that brings the server down
 * does so a few times only: each attempt leaves a record in the journal.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/storage.h"
#include "common/relpath.h"
#include "common/string.h"
#include "miscadmin.h"
#include "storage/fd.h"
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
#include "new_files/journal.h"
#include "small_file.h"

#define JOURNAL_PREFIX	"rewrite-"
#define MAX_TRIES		3

/* A file that was there when the server started */
typedef struct Leftover
{
	RelFileLocator file;
	bool		must_be_empty;	/* no journal names it */
} Leftover;

/* One journal, as read */
typedef struct Journal
{
	const char *path;
	int			nrecords;
	JournalRecord *records;
	List	   *files;			/* Leftover */
} Journal;

static const SmallFileFormat format = {
	.magic = 0x43594a52,
	.version = 2,
	.record_size = sizeof(JournalRecord),
	.max_records = 1 << 20
};

/* Journals with such files: memory of the postmaster, and so of all its children */
static List *unfinished = NIL;
static MemoryContext context = NULL;

static List *list_journals(void);
static Journal *read_journal(const char *path);
static void find_files_of(Journal *journal);
static void find_empty(Journal *journal, Oid tablespace, Oid next_oid);
static void add_if_there(Journal *journal, RelFileLocator file, bool must_be_empty);
static bool is_there(const Leftover *leftover);
static bool has_failed(const Journal *journal);
static List *without_referenced(List *files, Snapshot snapshot);

/* journal_new_path -- a name for a journal that no other has or had. */
const char *
journal_new_path(void)
{
	return psprintf("%s/%s%016llx-%d", SMALL_FILE_FOLDER, JOURNAL_PREFIX,
					(unsigned long long) GetCurrentTimestamp(), MyProcPid);
}

/* journal_write -- see journal.h. */
bool
journal_write(const char *path, const JournalRecord *records, int nrecords, bool durable, int elevel)
{
	Assert(nrecords > 0 && records[0].kind == JOURNAL_BEGIN);
	return small_file_write(path, &format, records, nrecords,
							durable ? SMALL_FILE_SURVIVES_POWER_CUT : SMALL_FILE_SURVIVES_CRASH,
							elevel);
}

/* journal_remove -- see journal.h. */
void
journal_remove(const char *path)
{
	if (unlink(path) != 0 && errno != ENOENT)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
}

/*
 * journal_find_leftovers -- see journal.h.
 *
 * An error is logged, and taken for nothing found.  The postmaster has no transaction, and no
 * files open at this time.  It comes here again when it starts anew after a crash.
 */
List *
journal_find_leftovers(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *databases = NIL;

	Assert(!IsUnderPostmaster);
	/* children give up the context that the postmaster works in */
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "pg_cyclone leftovers",
										ALLOCSET_SMALL_SIZES);
	MemoryContextReset(context);
	unfinished = NIL;
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		foreach_ptr(Journal, journal, list_journals())
		{
			DEBUG_POINT("leftovers-look");
			find_files_of(journal);
			if (journal->files != NIL)
				unfinished = lappend(unfinished, journal);
			else
				journal_remove(journal->path);
		}
		MemoryContextSwitchTo(caller);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		EmitErrorReport();
		FlushErrorState();
		/* close the files that are open */
		AtEOXact_Files(false);
		unfinished = NIL;
		ereport(LOG,
				(errmsg("files of an unfinished VACUUM FULL may be left over until the next start of the server")));
	}
	PG_END_TRY();
	foreach_ptr(Journal, journal, unfinished)
		databases = list_append_unique_oid(databases, journal->records[0].file.dbOid);
	return databases;
}

/*
 * list_journals
 *		The journals that can be read, and begin as one; others stay where they are.
 *
 * Removes what a crash has left half written: no process may be writing one.
 */
static List *
list_journals(void)
{
	List	   *journals = NIL;
	DIR		   *dir = AllocateDir(SMALL_FILE_FOLDER);
	struct dirent *entry;

	if (dir == NULL && errno == ENOENT)
		return NIL;
	while ((entry = ReadDirExtended(dir, SMALL_FILE_FOLDER, LOG)) != NULL)
	{
		char	   *path = psprintf("%s/%s", SMALL_FILE_FOLDER, entry->d_name);

		if (strncmp(entry->d_name, JOURNAL_PREFIX, strlen(JOURNAL_PREFIX)) != 0)
			continue;

		/* one that was never whole, or is damaged, has a dot in its name */
		if (strchr(entry->d_name, '.') == NULL)
		{
			Journal    *journal = read_journal(path);

			if (journal != NULL)
				journals = lappend(journals, journal);
		}
		else if (pg_str_endswith(entry->d_name, SMALL_FILE_NEW))
			journal_remove(path);
	}
	if (dir != NULL)
		FreeDir(dir);
	return journals;
}

/* read_journal -- read a journal; NULL if it can't be read, its beginning is damaged, or it is another cluster's. */
static Journal *
read_journal(const char *path)
{
	Journal    *journal = palloc0_object(Journal);
	void	   *records;

	journal->path = path;
	journal->nrecords = small_file_read(path, &format, &records, NULL);
	journal->records = records;
	if (journal->nrecords <= 0 || journal->records[0].kind != JOURNAL_BEGIN)
		return NULL;
	if (journal->records[0].system_id == GetSystemIdentifier())
		return journal;
	ereport(LOG,
			(errmsg("file \"%s\" is not a journal of this database cluster and is removed",
					path)));
	journal_remove(path);
	return NULL;
}

/* find_files_of -- find the files that a journal names or allows for, and that are there. */
static void
find_files_of(Journal *journal)
{
	Oid			next_oid = InvalidOid;
	int			ntries = 0;

	for (int i = 0; i < journal->nrecords; i++)
	{
		const JournalRecord *record = &journal->records[i];

		if (record->kind == JOURNAL_TRIED)
			ntries++;
		else if (record->kind != JOURNAL_SPACE)
			next_oid = record->next_oid;
		if (record->kind == JOURNAL_FILE)
			add_if_there(journal, record->file, false);
	}
	for (int i = 0; i < journal->nrecords; i++)
	{
		if (journal->records[i].kind == JOURNAL_SPACE)
			find_empty(journal, journal->records[i].file.spcOid, next_oid);
	}
	if (journal->files == NIL || ntries < MAX_TRIES)
		return;
	ereport(LOG,
			(errmsg("files of an unfinished VACUUM FULL are left over: attempts to remove them have failed %d times",
					ntries)));
	journal->files = NIL;
}

/*
 * find_empty
 *		Add empty files that may have been created just before the crash, with
 *		names from next_oid on, modulo 2^32.
 */
static void
find_empty(Journal *journal, Oid tablespace, Oid next_oid)
{
	RelFileLocator file = {.spcOid = tablespace,.dbOid = journal->records[0].file.dbOid};
	char	   *folder = GetDatabasePath(file.dbOid, tablespace);
	DIR		   *dir = AllocateDir(folder);
	struct dirent *entry;

	if (dir == NULL && errno == ENOENT)
		return;					/* the database, or the tablespace, is gone */
	while ((entry = ReadDirExtended(dir, folder, LOG)) != NULL)
	{
		char	   *end;
		unsigned long number = strtoul(entry->d_name, &end, 10);

		if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || *end != '\0' ||
			number > PG_UINT32_MAX || (int32) ((uint32) number - next_oid) < 0)
			continue;
		file.relNumber = number;
		add_if_there(journal, file, true);
	}
	if (dir != NULL)
		FreeDir(dir);
}

/* add_if_there -- add a file to those of a journal. */
static void
add_if_there(Journal *journal, RelFileLocator file, bool must_be_empty)
{
	Leftover   *leftover = palloc_object(Leftover);

	leftover->file = file;
	leftover->must_be_empty = must_be_empty;
	if (is_there(leftover))
		journal->files = lappend(journal->files, leftover);
}

/* is_there -- is the file there, and empty if it must be? */
static bool
is_there(const Leftover *leftover)
{
	bool		found = false;

	for (ForkNumber fork = 0; fork <= MAX_FORKNUM; fork++)
	{
		struct stat status;

		if (lstat(compat_relation_path(leftover->file, fork), &status) != 0 ||
			!S_ISREG(status.st_mode))
			continue;
		found = true;
		if (leftover->must_be_empty && status.st_size > 0)
			return false;
	}
	return found;
}

/* journal_remove_leftovers -- see journal.h. */
void
journal_remove_leftovers(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *files = NIL;
	List	   *journals = NIL;
	JournalRecord tried = {.kind = JOURNAL_TRIED};
	SnapshotData dirty;

	StartTransactionCommand();
	DEBUG_POINT("leftovers-clean");
	MemoryContextSwitchTo(caller);
	foreach_ptr(Journal, journal, unfinished)
	{
		/* a loss of power may undo that note */
		if (journal->records[0].file.dbOid != MyDatabaseId ||
			!small_file_put(journal->path, &format, journal->nrecords, &tried))
			continue;
		journals = lappend(journals, journal);
		foreach_ptr(Leftover, leftover, journal->files)
		{
			/* if another journal has it, too, it does no harm to drop it twice */
			if (leftover->file.dbOid == MyDatabaseId &&
				leftover->file.spcOid != GLOBALTABLESPACE_OID &&
				is_there(leftover) && (leftover->must_be_empty || has_failed(journal)))
				files = lappend(files, leftover);
		}
	}

	/*
	 * A scan that sees what isn't committed may miss both versions of a row
	 * that is changed meanwhile.  One with a snapshot does not.
	 */
	InitDirtySnapshot(dirty);
	files = without_referenced(files, &dirty);
	files = without_referenced(files, NULL);
	/* only a transaction with an ID can remove files, which it does at commit */
	if (files != NIL)
		(void) GetCurrentTransactionId();
	foreach_ptr(Leftover, leftover, files)
	{
		/* what RelationDropStorage looks at */
		RelationData rel = {.rd_locator = leftover->file,.rd_backend = INVALID_PROC_NUMBER};

		RelationDropStorage(&rel);
	}
	CommitTransactionCommand();

	foreach_ptr(Leftover, leftover, files)
		ereport(LOG,
				(errmsg("removed file \"%s\" of an unfinished VACUUM FULL",
						compat_relation_path(leftover->file, MAIN_FORKNUM))));
	foreach_ptr(Journal, journal, journals)
		journal_remove(journal->path);
}

/* has_failed -- has the transaction failed?  The journal names files, so the transaction's ID was durable. */
static bool
has_failed(const Journal *journal)
{
	FullTransactionId xid = FullTransactionIdFromU64(journal->records[0].number);
	const char *status = "in progress";

	/* it is an error to ask about the future */
	if (FullTransactionIdPrecedes(xid, ReadNextFullTransactionId()))
	{
		LOCAL_FCINFO(fcinfo, 1);
		Datum		result;

		InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
		fcinfo->args[0].value = FullTransactionIdGetDatum(xid);
		fcinfo->args[0].isnull = false;
		result = pg_xact_status(fcinfo);
		if (!fcinfo->isnull)
			status = TextDatumGetCString(result);
	}
	if (strcmp(status, "in progress") == 0)
		ereport(LOG,
				(errmsg("files of an unfinished VACUUM FULL may be left over: what has become of transaction %llu is not known",
						(unsigned long long) journal->records[0].number)));
	return strcmp(status, "aborted") == 0;
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
			if (((Leftover *) lfirst(cell))->file.relNumber == number)
				files = foreach_delete_current(files, cell);
		}
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return files;
}
