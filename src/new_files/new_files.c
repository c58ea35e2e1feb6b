/*-------------------------------------------------------------------------
 *
 * new_files.c
 *	  The files that a VACUUM FULL creates are noted, in case of a crash.
 *
 * A transaction that dies with the whole server can't remove the files that it has
 * created.  So the leader of a rewrite keeps a journal (journal.c) of them, and a server that
 * starts and finds one removes those that are left (journal.c).  README.md says what is
 * noted, when, and why that is enough.
 *
 * Files of a subtransaction of the rewrite's own are noted, too, those of any other are not.
 * If the subtransaction fails, their names stay in the journal: a crash may lose the record
 * of its abort, which has the files removed.  They are empty then.
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
static JournalRecord *records;	/* of it */
static int	nrecords;
static int	nfiles;				/* noted by name */
static bool is_durable;
static bool has_warned;

static List *tablespaces_of(Relation rel);
static void pg_class_changed(Datum arg, int cache, uint32 hash);
static void note_files(void);
static void warn_once(const char *failure);
static void append(const JournalRecord *more, int n, int elevel);
static void set_next_oid(JournalRecord *record);
static void transaction_is_over(void *arg);

/* new_files_begin -- begin a journal for a rewrite of this table. */
void
new_files_begin(Relation rel)
{
	static bool callback_registered = false;
	List	   *tablespaces;
	MemoryContextCallback *at_end;
	JournalRecord *first;
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
	first = palloc0_array(JournalRecord, list_length(tablespaces) + 1);
	first[0].kind = JOURNAL_BEGIN;
	first[0].system_id = GetSystemIdentifier();
	first[0].file.dbOid = MyDatabaseId;
	first[0].number = U64FromFullTransactionId(GetTopFullTransactionId());
	set_next_oid(&first[0]);
	foreach(cell, tablespaces)
	{
		JournalRecord *record = &first[foreach_current_index(cell) + 1];

		record->kind = JOURNAL_SPACE;
		record->file.dbOid = MyDatabaseId;
		record->file.spcOid = lfirst_oid(cell);
	}

	at_end = MemoryContextAllocZero(TopTransactionContext, sizeof(MemoryContextCallback));
	at_end->func = transaction_is_over;
	MemoryContextRegisterResetCallback(TopTransactionContext, at_end);

	strlcpy(journal_path, journal_new_path(), sizeof(journal_path));
	records = NULL;
	nrecords = 0;
	nfiles = 0;
	is_durable = false;
	has_warned = false;
	append(first, list_length(tablespaces) + 1, ERROR);
	pfree(first);
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
	is_durable = true;
	(void) journal_write(journal_path, records, nrecords, is_durable, ERROR);
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
		JournalRecord *noted = palloc0_array(JournalRecord, n);

		for (int i = 0; i < n; i++)
		{
			noted[i].kind = JOURNAL_FILE;
			noted[i].file = files[n - 1 - i];
			set_next_oid(&noted[i]);
		}
		if (nfiles == 0)
			XLogFlush(XactLastRecEnd);
		append(noted, n, WARNING);
		pfree(noted);
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
append(const JournalRecord *more, int n, int elevel)
{
	Size		size = (nrecords + n) * sizeof(JournalRecord);

	Assert(journal_path[0] != '\0' && n > 0);
	if (records == NULL)
		records = MemoryContextAlloc(TopTransactionContext, size);
	else
		records = repalloc(records, size);
	memcpy(&records[nrecords], more, n * sizeof(JournalRecord));
	if (has_warned && elevel == WARNING)
		elevel = DEBUG1;
	if (!journal_write(journal_path, records, nrecords + n, is_durable, elevel))
	{
		has_warned = true;
		return;
	}
	nrecords += n;
	for (int i = 0; i < n; i++)
		nfiles += more[i].kind == JOURNAL_FILE;
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
