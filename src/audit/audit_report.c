/*-------------------------------------------------------------------------
 *
 * audit_report.c
 *	  What follows when an audit fails: the mark, a report in a file, an error.
 *
 * A report is kept for the first failure in each relation, and for the first MOST_REPORTS
 * relations.  Later failures are in the log and in the history.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#include "audit/audit.h"
#include "audit_mark.h"
#include "small_file.h"

/* The folder has at most this many reports, of some 20 kB each. */
#define MOST_REPORTS	20
#define REPORT_PREFIX	"audit-"

static bool write_report(const AuditPlace *place, Page page, const char *state,
						 const char *engine, const char *audit, char *path);
static bool has_room_for_report(const char *path);
static void fill_report(FILE *file, const AuditPlace *place, Page page, const char *state,
						const char *engine, const char *audit);

/*
 * audit_raise
 *		Raise the error: there are two verdicts on a page, or an item of it, in that
 *		command.
 *
 * Releases the page's lock.  Both texts are parts of sentences; state are lines for the
 * report.
 */
void
audit_raise(const AuditPlace *place, const char *command, const char *state,
			const char *engine, const char *audit)
{
	PGAlignedBlock copy;
	Page		page = place->page;
	char		path[MAXPGPATH];
	char		where[64] = "";
	bool		is_written;

	Assert(CritSectionCount == 0);
	Assert(!BufferIsValid(place->buffer) || compat_is_locked(place->buffer));
	audit_mark_set();
	if (BufferIsValid(place->buffer))
	{
		page = (Page) copy.data;
		memcpy(page, BufferGetPage(place->buffer), BLCKSZ);
		LockBuffer(place->buffer, BUFFER_LOCK_UNLOCK);
	}
	is_written = write_report(place, page, state, engine, audit, path);

	if (OffsetNumberIsValid(place->off))
		snprintf(where, sizeof(where), " at item %u of block %u", place->off, place->blkno);
	else if (BlockNumberIsValid(place->blkno))
		snprintf(where, sizeof(where), " at block %u", place->blkno);
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("an audit of %s has failed in relation \"%s\"%s",
					command, RelationGetRelationName(place->rel), where),
			 errdetail("pg_cyclone's verdict: %s. The audit's: %s.", engine, audit),
			 is_written ?
			 errhint("The table is left to PostgreSQL's own VACUUM. Please send a report to the developers; \"%s\" in the data directory has one, with the rows of that page.",
					 path) :
			 errhint("The table is left to PostgreSQL's own VACUUM. No report was written to a file: an earlier one of this relation is kept, or there are %d, or the log says why. Please send the developers this message.",
					 MOST_REPORTS)));
}

/*
 * write_report
 *		Write a report to a file, whose path is returned, unless there are enough.
 *
 * If that isn't possible the log says so, and false is returned; the error itself is more
 * important.
 */
static bool
write_report(const AuditPlace *place, Page page, const char *state,
			 const char *engine, const char *audit, char *path)
{
	char		new_path[MAXPGPATH];
	FILE	   *file;
	bool		is_written;

	snprintf(path, MAXPGPATH, "%s/%s%u-%u.txt", SMALL_FILE_FOLDER, REPORT_PREFIX,
			 place->rel->rd_rel->relisshared ? InvalidOid : MyDatabaseId,
			 RelationGetRelid(place->rel));
	snprintf(new_path, MAXPGPATH, "%s.%d", path, MyProcPid);
	(void) MakePGDirectory(SMALL_FILE_FOLDER);
	if (!has_room_for_report(path))
		return false;
	file = AllocateFile(new_path, PG_BINARY_W);
	if (file != NULL)
		fill_report(file, place, page, state, engine, audit);
	is_written = file != NULL && fflush(file) == 0 && !ferror(file);
	if (!is_written)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", new_path)));
	if (file != NULL && FreeFile(file) != 0)
		is_written = false;
	if (is_written && durable_rename(new_path, path, LOG) == 0)
		return true;
	(void) unlink(new_path);
	return false;
}

/* has_room_for_report -- is there neither a report at this path, nor as many as there may be? */
static bool
has_room_for_report(const char *path)
{
	DIR		   *dir = AllocateDir(SMALL_FILE_FOLDER);
	int			nreports = 0;
	struct dirent *entry;

	/* ReadDir would raise an error */
	while (dir != NULL && (entry = ReadDirExtended(dir, SMALL_FILE_FOLDER, LOG)) != NULL)
		nreports += strncmp(entry->d_name, REPORT_PREFIX, strlen(REPORT_PREFIX)) == 0;
	if (dir != NULL)
		FreeDir(dir);
	return nreports < MOST_REPORTS && access(path, F_OK) != 0;
}

/* fill_report -- write a report to a file. */
static void
fill_report(FILE *file, const AuditPlace *place, Page page, const char *state,
			const char *engine, const char *audit)
{
	const unsigned char *bytes = (const unsigned char *) page;

	fprintf(file, "pg_cyclone %s, %s\n", CppAsString2(CYCLONE_VERSION), PG_VERSION_STR);
	fprintf(file, "%s, process %d, cyclone.audit %g\n",
			timestamptz_to_str(GetCurrentTimestamp()), MyProcPid, cyclone_audit);
	fprintf(file, "relation \"%s\", file %u, block %u, item %u\n",
			RelationGetRelationName(place->rel), place->rel->rd_locator.relNumber,
			place->blkno, place->off);
	fprintf(file, "pg_cyclone's verdict: %s\naudit's verdict: %s\n%s\n", engine, audit, state);
	for (int i = 0; page != NULL && i < BLCKSZ; i++)
		fprintf(file, i % 32 == 31 ? "%02x\n" : "%02x", bytes[i]);
}
