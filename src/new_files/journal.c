/*-------------------------------------------------------------------------
 *
 * journal.c
 *	  Notes on disk about the files that a VACUUM FULL creates.
 *
 * Each rewrite has a small file of its own (small_file.c), for as long as it runs.
 * new_files.c writes it, and leftovers.c reads those that a crash has left.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "common/string.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#include "new_files/journal.h"
#include "small_file.h"

#define JOURNAL_PREFIX	"rewrite-"

static const SmallFileFormat format = {
	.magic = 0x43594a52,
	.version = 2,
	.record_size = sizeof(JournalRecord),
	.max_records = 1 << 20
};

static Journal *journal_read(const char *path);

/* journal_new_path -- a name for a journal that no other has or had. */
const char *
journal_new_path(void)
{
	return psprintf("%s/%s%016llx-%d", SMALL_FILE_FOLDER, JOURNAL_PREFIX,
					(unsigned long long) GetCurrentTimestamp(), MyProcPid);
}

/* journal_list -- see journal.h. */
List *
journal_list(void)
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
			Journal    *journal = journal_read(path);

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

/* journal_read -- read a journal; NULL if that can't be done, or its beginning is damaged. */
static Journal *
journal_read(const char *path)
{
	Journal    *journal = palloc0_object(Journal);
	void	   *records;

	journal->path = path;
	journal->nrecords = small_file_read(path, &format, &records, NULL);
	journal->records = records;
	if (journal->nrecords <= 0 || journal->records[0].kind != JOURNAL_BEGIN)
		return NULL;
	if (journal->records[0].system_id != GetSystemIdentifier())
		journal->nrecords = 0;
	return journal;
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

/* journal_try -- see journal.h. */
bool
journal_try(const Journal *journal)
{
	JournalRecord tried = {.kind = JOURNAL_TRIED};

	return small_file_put(journal->path, &format, journal->nrecords, &tried);
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
