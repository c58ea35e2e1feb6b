/*-------------------------------------------------------------------------
 *
 * leftovers.c
 *	  Files of rewrites that a crash has ended are found, and removed.
 *
 * Each journal that is there when the server starts (journal.c) is of such a rewrite.  The
 * postmaster, before any other process exists, looks which of the files exist that the
 * journals name or allow for.  What it finds stays in its memory, which the processes that it
 * forks inherit.  The cleaner (inplace/cleaner.c) decides in each database which of these
 * files are nobody's, and removes them and the journals.  README.md says why these are
 * nobody's.
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

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/storage.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "compat.h"
#include "debug_point.h"
#include "new_files/journal.h"
#include "new_files/new_files.h"

#define MAX_TRIES	3

/* A file that was there when the server started */
typedef struct Leftover
{
	RelFileLocator file;
	bool		must_be_empty;	/* no journal names it */
} Leftover;

/* Journals with such files: memory of the postmaster, and so of all its children */
static List *unfinished = NIL;
static MemoryContext context = NULL;

static void find_files_of(Journal *journal);
static void find_empty(Journal *journal, Oid tablespace, Oid next_oid);
static void add_if_there(Journal *journal, RelFileLocator file, bool must_be_empty);
static bool is_there(const Leftover *leftover);
static bool is_listed(List *files, const RelFileLocator *file);
static bool has_failed(const Journal *journal);
static List *without_referenced(List *files, Snapshot snapshot);
static void drop_files(List *files);

/*
 * leftovers_find -- see new_files.h.
 *
 * An error is logged, and taken for nothing found.  The postmaster has no transaction, and no
 * files open at this time.  It comes here again when it starts anew after a crash.
 */
List *
leftovers_find(void)
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
		foreach_ptr(Journal, journal, journal_list())
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

/* find_files_of -- find the files that a journal names or allows for, and that are there. */
static void
find_files_of(Journal *journal)
{
	Oid			next_oid = InvalidOid;
	int			ntries = 0;

	if (journal->nrecords == 0)
		ereport(LOG,
				(errmsg("file \"%s\" is not a journal of this database cluster and is removed",
						journal->path)));
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

/* add_if_there -- add a file to those of a journal, unless that has it. */
static void
add_if_there(Journal *journal, RelFileLocator file, bool must_be_empty)
{
	Leftover   *leftover = palloc_object(Leftover);

	leftover->file = file;
	leftover->must_be_empty = must_be_empty;
	if (is_there(leftover) && !is_listed(journal->files, &file))
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

/* is_listed -- is the file in this list of Leftover? */
static bool
is_listed(List *files, const RelFileLocator *file)
{
	foreach_ptr(Leftover, listed, files)
	{
		if (RelFileLocatorEquals(listed->file, *file))
			return true;
	}
	return false;
}

/* leftovers_remove -- see new_files.h. */
void
leftovers_remove(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *files = NIL;
	List	   *journals = NIL;
	SnapshotData dirty;

	StartTransactionCommand();
	DEBUG_POINT("leftovers-clean");
	MemoryContextSwitchTo(caller);
	foreach_ptr(Journal, journal, unfinished)
	{
		if (journal->records[0].file.dbOid != MyDatabaseId || !journal_try(journal))
			continue;
		journals = lappend(journals, journal);
		if (!has_failed(journal))
			continue;
		foreach_ptr(Leftover, leftover, journal->files)
		{
			/* another journal may have it, too */
			if (leftover->file.dbOid == MyDatabaseId &&
				leftover->file.spcOid != GLOBALTABLESPACE_OID &&
				is_there(leftover) && !is_listed(files, &leftover->file))
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
	drop_files(files);
	CommitTransactionCommand();

	foreach_ptr(Leftover, leftover, files)
		ereport(LOG,
				(errmsg("removed file \"%s\" of an unfinished VACUUM FULL",
						compat_relation_path(leftover->file, MAIN_FORKNUM))));
	foreach_ptr(Journal, journal, journals)
		journal_remove(journal->path);
}

/*
 * has_failed
 *		Has the transaction of this journal failed, as far as is known?
 *
 * Without named files, its ID may not have been durable, and another transaction may
 * have it now.  But then it only matters whether the files are empty.
 */
static bool
has_failed(const Journal *journal)
{
	FullTransactionId xid = FullTransactionIdFromU64(journal->records[0].number);
	const char *status = "in progress";
	bool		has_names = false;

	for (int i = 0; i < journal->nrecords; i++)
		has_names |= journal->records[i].kind == JOURNAL_FILE;
	if (!has_names)
		return true;

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

/* drop_files -- drop these files at commit. */
static void
drop_files(List *files)
{
	Assert(IsTransactionState());
	/* only a transaction with an ID can remove files */
	if (files != NIL)
		(void) GetCurrentTransactionId();

	foreach_ptr(Leftover, leftover, files)
	{
		/* what RelationDropStorage looks at */
		RelationData rel = {.rd_locator = leftover->file,.rd_backend = INVALID_PROC_NUMBER};

		RelationDropStorage(&rel);
	}
}
