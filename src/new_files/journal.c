/*-------------------------------------------------------------------------
 *
 * journal.c
 *	  Notes on disk about the files that a VACUUM FULL creates.
 *
 * Each rewrite has a small file of its own in the folder pg_cyclone of the
 * data directory, for as long as it runs.  new_files.c writes it, and
 * leftovers.c reads those that a crash has left.  This file knows what they
 * look like.
 *
 * A journal is a row of records of the same size, each with a checksum.
 * It ends at the first record that isn't right: a crash, or a full disk, may have torn
 * the last one.  The next record is written over that.
 *
 * Callers that must not raise an error guard against what journal.h says can still be
 * one (new_files.c, leftovers.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#include "new_files/journal.h"
#include "own_files.h"

#define JOURNAL_PREFIX	"rewrite-"
#define JOURNAL_MAGIC	0x43594a31	/* changes with the format */

/* A larger file is no journal. */
#define MAX_JOURNAL_BYTES	(64 * 1024 * 1024)


/* journal_new_path -- a name for a journal that no other has or had. */
const char *
journal_new_path(void)
{
	return psprintf("%s/%s%016llx-%d", OWN_FOLDER, JOURNAL_PREFIX,
					(unsigned long long) GetCurrentTimestamp(), MyProcPid);
}

/* journal_list -- the paths of all journals. */
List *
journal_list(void)
{
	List	   *paths = NIL;
	DIR		   *dir = AllocateDir(OWN_FOLDER);
	struct dirent *entry;

	if (dir == NULL && errno == ENOENT)
		return NIL;
	while ((entry = ReadDirExtended(dir, OWN_FOLDER, LOG)) != NULL)
	{
		if (strncmp(entry->d_name, JOURNAL_PREFIX, strlen(JOURNAL_PREFIX)) == 0)
			paths = lappend(paths, psprintf("%s/%s", OWN_FOLDER, entry->d_name));
	}
	if (dir != NULL)
		FreeDir(dir);
	return paths;
}

/* journal_read -- read a journal. */
Journal *
journal_read(const char *path)
{
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	struct stat status;
	Journal    *journal;
	size_t		size;
	int			length;

	if (fd < 0 || fstat(fd, &status) != 0)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
		if (fd >= 0)
			CloseTransientFile(fd);
		return NULL;
	}

	size = status.st_size > MAX_JOURNAL_BYTES ? 0 : status.st_size;
	journal = palloc_extended(offsetof(Journal, records) + size, MCXT_ALLOC_NO_OOM);
	if (journal == NULL)
	{
		ereport(LOG,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Could not read file \"%s\".", path)));
		CloseTransientFile(fd);
		return NULL;
	}
	length = pg_pread(fd, journal->records, size, 0);
	if (length < 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", path)));
	CloseTransientFile(fd);
	if (length < 0)
		return NULL;

	journal->nrecords = 0;
	for (int i = 0; i < length / (int) sizeof(JournalRecord); i++)
	{
		JournalRecord *record = &journal->records[i];

		if (record->magic != JOURNAL_MAGIC ||
			!own_record_is_whole(record, offsetof(JournalRecord, crc)) ||
			record->system_id != GetSystemIdentifier() ||
			(record->kind == JOURNAL_BEGIN) != (i == 0))
			break;
		journal->nrecords++;
	}
	return journal;
}

/* journal_write -- write records to a journal. */
bool
journal_write(const char *path, int position, JournalRecord *records,
			  int nrecords, bool durable, int elevel)
{
	int			fd;
	bool		done;

	/* a new file is made durable by journal_sync */
	Assert(position >= 0 && nrecords > 0);
	Assert(!durable || position > 0);

	for (int i = 0; i < nrecords; i++)
	{
		records[i].magic = JOURNAL_MAGIC;
		records[i].system_id = GetSystemIdentifier();
		own_record_seal(&records[i], offsetof(JournalRecord, crc));
	}

	fd = OpenTransientFile(path, O_WRONLY | PG_BINARY | (position == 0 ? O_CREAT : 0));
	if (fd < 0)
	{
		ereport(elevel,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
		return false;
	}
	done = own_file_write(fd, records, nrecords * sizeof(JournalRecord), position * sizeof(JournalRecord)) &&
		ftruncate(fd, (position + nrecords) * sizeof(JournalRecord)) == 0 &&
		(!durable || pg_fsync(fd) == 0);
	if (!done)
		ereport(elevel,
				(errcode_for_file_access(),
				 errmsg("could not write to file \"%s\": %m", path)));
	CloseTransientFile(fd);
	return done;
}

/* journal_make_folder -- make the folder for journals, unless it is there. */
bool
journal_make_folder(int elevel)
{
	if (MakePGDirectory(OWN_FOLDER) == 0)
		return fsync_fname_ext(".", true, false, elevel) == 0;
	if (errno == EEXIST)
		return true;
	ereport(elevel,
			(errcode_for_file_access(),
			 errmsg("could not create directory \"%s\": %m", OWN_FOLDER)));
	return false;
}

/* journal_sync -- make a journal durable, with what is in it. */
void
journal_sync(const char *path, int elevel)
{
	fsync_fname_ext(path, false, false, elevel);
	fsync_fname_ext(OWN_FOLDER, true, false, elevel);
}

/* journal_remove -- remove a journal. */
void
journal_remove(const char *path)
{
	if (unlink(path) != 0 && errno != ENOENT)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
}
