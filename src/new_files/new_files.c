/*-------------------------------------------------------------------------
 *
 * new_files.c
 *	  The files that a VACUUM FULL creates are noted, in case of a crash.
 *
 * A transaction that fails removes the files that it has created.  One that
 * dies with the whole server can't, and nobody else knows of them.  So the
 * leader of a rewrite keeps a journal (journal.c) of them.  A server that
 * starts and finds a journal removes the files that are left (leftovers.c).
 *
 * The journal is there before the first file, and is removed after the last one
 * has found its place: when the transaction's memory is released, which is
 * the last step of a transaction.  After a commit the files are
 * the table's and the old ones have been unlinked; after an abort the new ones
 * have.
 *
 * Files are noted by name once they exist, as the server chooses
 * their names.  It creates a file, adds or changes a row of pg_class, and ends
 * the command, and only then fills the file.  The end of the command brings us
 * here, as a callback for changes of pg_class.  So a file that is not yet in the
 * journal is an empty one.  For these the journal has the tablespaces in which
 * files may be created and, as of each time that it was written, the counter
 * that their names come from.  Files of a subtransaction aren't noted: only an
 * index expression may have one.
 *
 * With the name of a file the journal says that this transaction has made it.
 * So no other transaction may get this transaction's ID: WAL with that ID is
 * flushed before the first name is written.
 *
 * The kernel has what is written, so a crash of the server loses nothing of a
 * journal.  A loss of power may, unless we wait for the disk.  We do so
 * once when the new table and its TOAST table exist, which are still empty,
 * and from then on for each note.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/storage.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "debug_point.h"
#include "new_files/journal.h"
#include "new_files/new_files.h"

/* The journal of this process, if any */
static char journal_path[MAXPGPATH];	/* empty if there is none */
static int	nrecords;
static int	nfiles;				/* noted by name */
static bool is_durable;
static bool has_warned;

static List *tablespaces_of(Relation rel);
static void pg_class_changed(Datum arg, int cache, uint32 hash);
static void note_files(void);
static void warn_once(const char *failure);
static void append(JournalRecord *records, int n, int elevel);
static void set_next_oid(JournalRecord *record);
static void transaction_is_over(void *arg);

/* new_files_begin -- begin a journal for a rewrite of this table. */
void
new_files_begin(Relation rel)
{
	static bool callback_registered = false;
	List	   *tablespaces;
	MemoryContextCallback *at_end;
	JournalRecord *records;
	ListCell   *cell;

	Assert(IsTransactionState() && !IsInParallelMode());
	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));
	Assert(GetCurrentTransactionNestLevel() == 1);
	Assert(journal_path[0] == '\0');


	/* the server removes what is left of temporary tables */
	if (RelationUsesLocalBuffers(rel))
		return;

	if (!callback_registered)
		CacheRegisterSyscacheCallback(RELOID, pg_class_changed, (Datum) 0);
	callback_registered = true;

	tablespaces = tablespaces_of(rel);
	records = palloc0_array(JournalRecord, list_length(tablespaces) + 1);
	records[0].kind = JOURNAL_BEGIN;
	records[0].file.dbOid = MyDatabaseId;
	records[0].number = U64FromFullTransactionId(GetTopFullTransactionId());
	set_next_oid(&records[0]);
	foreach(cell, tablespaces)
	{
		JournalRecord *record = &records[foreach_current_index(cell) + 1];

		record->kind = JOURNAL_SPACE;
		record->file.dbOid = MyDatabaseId;
		record->file.spcOid = lfirst_oid(cell);
	}

	(void) journal_make_folder(ERROR);
	at_end = MemoryContextAllocZero(TopTransactionContext, sizeof(MemoryContextCallback));
	at_end->func = transaction_is_over;
	MemoryContextRegisterResetCallback(TopTransactionContext, at_end);

	strlcpy(journal_path, journal_new_path(), sizeof(journal_path));
	nrecords = 0;
	nfiles = 0;
	is_durable = false;
	has_warned = false;
	append(records, list_length(tablespaces) + 1, ERROR);
	pfree(records);
}

/*
 * new_files_sync
 *		The files that exist will be filled now: a loss of power must not undo the
 *		journal, nor what is noted later.
 */
void
new_files_sync(void)
{
	if (journal_path[0] == '\0')
		return;
	journal_sync(journal_path, ERROR);
	is_durable = true;
}

/*
 * pg_class_changed
 *		The callback: note the files that the transaction has created since the last time.
 *
 * If the journal can't be written it warns: the rewrite is valid all the same, unless
 * the server crashes.
 *
 * It raises no error: as a callback for changes of pg_class it is called during
 * invalidation, and after an error caches would keep what the failed transaction has
 * put there.  It can fail to get memory, to open the file, or to flush WAL.  The end of
 * the transaction closes what such a failure leaves open.  Interrupts are held off, as a
 * warning would serve them.
 */
static void
pg_class_changed(Datum arg, int cache, uint32 hash)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff;

	/* while a transaction fails, or in an index expression's subtransaction */
	if (journal_path[0] == '\0' || !IsTransactionState() || CritSectionCount > 0 ||
		GetCurrentTransactionNestLevel() > 1)
		return;

	HOLD_INTERRUPTS();
	holdoff = InterruptHoldoffCount;
	PG_TRY();
	{
		note_files();
	}
	PG_CATCH();
	{
		bool		no_memory = geterrcode() == ERRCODE_OUT_OF_MEMORY;
		ErrorData  *error = NULL;

		/* which raising an error has cleared */
		InterruptHoldoffCount = holdoff;
		MemoryContextSwitchTo(context);
		if (!no_memory)
			error = CopyErrorData();
		FlushErrorState();
		warn_once(no_memory ? _("out of memory") : error->message);
		if (!no_memory)
			FreeErrorData(error);
	}
	PG_END_TRY();
	RESUME_INTERRUPTS();
}

/* note_files -- the part of pg_class_changed that may fail. */
static void
note_files(void)
{
	RelFileLocator *files;
	int			n;

	/* so that a message serves none */
	Assert(InterruptHoldoffCount > 0);
	DEBUG_POINT("journal-note");

	/* the newest come first */
	n = smgrGetPendingDeletes(false, &files) - nfiles;
	if (n > 0)
	{
		JournalRecord *records = palloc0_array(JournalRecord, n);

		for (int i = 0; i < n; i++)
		{
			records[i].kind = JOURNAL_FILE;
			records[i].file = files[n - 1 - i];
			set_next_oid(&records[i]);
		}
		if (nfiles == 0)
			XLogFlush(XactLastRecEnd);
		append(records, n, WARNING);
		pfree(records);
	}
	if (files != NULL)
		pfree(files);
}

/*
 * tablespaces_of
 *		Where files of the table, its TOAST table and their indexes are.
 */
static List *
tablespaces_of(Relation rel)
{
	List	   *tablespaces = list_make1_oid(rel->rd_locator.spcOid);
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Oid			tablespace = get_rel_tablespace(lfirst_oid(cell));

		tablespaces = list_append_unique_oid(tablespaces,
											 OidIsValid(tablespace) ? tablespace : MyDatabaseTableSpace);
	}
	/* a new TOAST table is created where the new table is */
	list_free(indexes);
	return tablespaces;
}

/* warn_once -- warn that files could not be noted, unless we have. */
static void
warn_once(const char *failure)
{
	if (!has_warned)
		ereport(WARNING,
				(errmsg("files of this VACUUM FULL could not be noted in case of a crash"),
				 errdetail_internal("%s", failure)));
	has_warned = true;
}

/* append -- add records to the journal; what fails is a warning at most once. */
static void
append(JournalRecord *records, int n, int elevel)
{
	Assert(journal_path[0] != '\0' && n > 0);
	if (has_warned && elevel == WARNING)
		elevel = DEBUG1;
	if (!journal_write(journal_path, nrecords, records, n, is_durable, elevel))
	{
		has_warned = true;
		return;
	}
	nrecords += n;
	for (int i = 0; i < n; i++)
		nfiles += records[i].kind == JOURNAL_FILE;
}

/* set_next_oid -- note where names of files begin that are created from now on. */
static void
set_next_oid(JournalRecord *record)
{
	LWLockAcquire(OidGenLock, LW_SHARED);
	record->next_oid = TransamVariables->nextOid;
	LWLockRelease(OidGenLock);
}

/* transaction_is_over -- all files are where they belong, or gone. */
static void
transaction_is_over(void *arg)
{
	/* a message must not serve interrupts here */
	HOLD_INTERRUPTS();
	if (journal_path[0] != '\0')
		journal_remove(journal_path);
	journal_path[0] = '\0';
	RESUME_INTERRUPTS();
}
