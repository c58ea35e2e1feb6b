/*-------------------------------------------------------------------------
 *
 * audit_report.c
 *	  The results of an audit that fails: an error, and a file about it.
 *
 * audit.c has what is audited in VACUUM, audit_rewrite.c in VACUUM (FULL), and
 * audit_moves.c where rows are moved.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/itup.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "audit/audit.h"
#include "own_files.h"


/* The folder has at most this many reports: a new one may take the place of the oldest. */
#define MOST_REPORTS	100
#define REPORT_PREFIX	"audit-"

/* for a copy of an error */
static MemoryContext error_context = NULL;

static bool write_report(const AuditPlace *place, Page page, const char *state,
						 const char *engine, const char *audit, char *path);
static bool fill_file(const char *path, const AuditPlace *place, Page page, const char *state,
					  const char *engine, const char *audit);
static void make_room(const char *path);
static void write_header(FILE * file, Page page);
static void write_items(FILE * file, Page page, bool is_index);
static void write_image(FILE * file, Page page);

/* audit_prepare -- before anything is audited in this process, or in one of its team. */
void
audit_prepare(void)
{
	Assert(CritSectionCount == 0);
	if (error_context == NULL)
		error_context = AllocSetContextCreate(TopMemoryContext, "pg_cyclone audit",
											  ALLOCSET_DEFAULT_SIZES);
}

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
	Assert(place->rel != NULL);
	Assert(!BufferIsValid(place->buffer) || compat_is_locked(place->buffer));
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
			 errhint("The table is left to PostgreSQL's own VACUUM. The report for the developers could not be written: the log says why. Please send them this message."),
			 err_generic_string(PG_DIAG_CONSTRAINT_NAME, AUDIT_MARK)));
}

/*
 * audit_has_failed
 *		Is the error that is being handled one of an audit's, in this process or a
 *		worker?
 */
bool
audit_has_failed(void)
{
	MemoryContext old;
	ErrorData  *error;
	bool		is_audits;

	if (geterrcode() != ERRCODE_DATA_CORRUPTED || error_context == NULL)
		return false;
	old = MemoryContextSwitchTo(error_context);
	error = CopyErrorData();
	is_audits = error->constraint_name != NULL && strcmp(error->constraint_name, AUDIT_MARK) == 0;
	MemoryContextSwitchTo(old);
	MemoryContextReset(error_context);
	return is_audits;
}

/*
 * write_report
 *		Write a report to a file.  Each relation has one file, with the latest report.
 *
 * If that isn't possible the log says so, and false is returned; the error itself is more
 * important.
 */
static bool
write_report(const AuditPlace *place, Page page, const char *state,
			 const char *engine, const char *audit, char *path)
{
	char		new_path[MAXPGPATH];

	snprintf(path, MAXPGPATH, "%s/%s%u-%u.txt", OWN_FOLDER, REPORT_PREFIX,
			 place->rel->rd_rel->relisshared ? InvalidOid : MyDatabaseId,
			 RelationGetRelid(place->rel));
	snprintf(new_path, MAXPGPATH, "%s.%d", path, MyProcPid);
	(void) MakePGDirectory(OWN_FOLDER);
	if (!fill_file(new_path, place, page, state, engine, audit))
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", new_path)));
		(void) unlink(new_path);
		return false;
	}
	make_room(path);
	if (durable_rename(new_path, path, LOG) == 0)
		return true;
	(void) unlink(new_path);
	return false;
}

/* fill_file -- write a report to a new file; false, and errno, if that isn't possible. */
static bool
fill_file(const char *path, const AuditPlace *place, Page page, const char *state,
		  const char *engine, const char *audit)
{
	FILE	   *file = AllocateFile(path, PG_BINARY_W);
	bool		is_index = place->rel->rd_rel->relkind == RELKIND_INDEX;
	bool		is_written;
	int			saved_errno;

	if (file == NULL)
		return false;
	fprintf(file, "pg_cyclone %s, %s\n", CppAsString2(CYCLONE_VERSION), PG_VERSION_STR);
	fprintf(file, "%s, process %d, cyclone.audit %g\n",
			timestamptz_to_str(GetCurrentTimestamp()), MyProcPid, cyclone_audit);
	fprintf(file, "relation \"%s\", file %u, block %u, item %u\n",
			RelationGetRelationName(place->rel), place->rel->rd_locator.relNumber,
			place->blkno, place->off);
	fprintf(file, "pg_cyclone's verdict: %s\naudit's verdict: %s\n%s\n", engine, audit, state);
	if (page != NULL)
	{
		write_header(file, page);
		write_items(file, page, is_index);
		write_image(file, page);
	}
	is_written = fflush(file) == 0 && !ferror(file);
	saved_errno = errno;
	if (FreeFile(file) != 0)
		return false;
	errno = saved_errno;
	return is_written;
}

/*
 * make_room
 *		Before a report goes to this path: if there are as many others as there may be,
 *		remove the oldest one.  Other files are left alone.
 */
static void
make_room(const char *path)
{
	DIR		   *dir = AllocateDir(OWN_FOLDER);
	char		oldest[MAXPGPATH] = "";
	time_t		oldest_time = 0;
	int			nothers = 0;
	struct dirent *entry;

	if (dir == NULL)
		return;
	while ((entry = ReadDirExtended(dir, OWN_FOLDER, LOG)) != NULL)
	{
		char		other[MAXPGPATH];
		struct stat state;
		unsigned int database;
		unsigned int relation;
		int			length = 0;

		snprintf(other, sizeof(other), "%s/%s", OWN_FOLDER, entry->d_name);
		if (sscanf(entry->d_name, REPORT_PREFIX "%u-%u.txt%n", &database, &relation, &length) != 2 ||
			length != strlen(entry->d_name) || strcmp(other, path) == 0 ||
			lstat(other, &state) != 0 || !S_ISREG(state.st_mode))
			continue;
		nothers++;
		if (oldest[0] == '\0' || state.st_mtime < oldest_time)
		{
			oldest_time = state.st_mtime;
			strlcpy(oldest, other, sizeof(oldest));
		}
	}
	FreeDir(dir);
	if (nothers >= MOST_REPORTS)
		(void) unlink(oldest);
}

/* write_header -- the header of a page. */
static void
write_header(FILE * file, Page page)
{
	PageHeader	header = (PageHeader) page;

	fprintf(file, "page: LSN %X/%X, checksum %u, flags %04X, lower %u, upper %u, special %u, size and version %04X, prune XID %u\n",
			LSN_FORMAT_ARGS(PageGetLSN(page)), header->pd_checksum, header->pd_flags,
			header->pd_lower, header->pd_upper, header->pd_special,
			header->pd_pagesize_version, header->pd_prune_xid);
}

/* write_items -- the items of a page, and the headers of its rows or the TIDs of its entries. */
static void
write_items(FILE * file, Page page, bool is_index)
{
	OffsetNumber maxoff = PageIsNew(page) ? 0 : PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= Min(maxoff, MaxIndexTuplesPerPage); off++)
	{
		ItemId		item = PageGetItemId(page, off);
		char	   *tuple = (char *) page + ItemIdGetOffset(item);
		HeapTupleHeader row = (HeapTupleHeader) tuple;
		ItemPointer tid = &((IndexTuple) tuple)->t_tid;

		fprintf(file, "item %u: flags %u, offset %u, length %u", off, ItemIdGetFlags(item),
				ItemIdGetOffset(item), ItemIdGetLength(item));
		if (is_index && ItemIdHasStorage(item) && ItemIdGetOffset(item) + sizeof(ItemPointerData) <= BLCKSZ)
			fprintf(file, ", TID (%u,%u)", ItemPointerGetBlockNumberNoCheck(tid),
					ItemPointerGetOffsetNumberNoCheck(tid));
		else if (!is_index && ItemIdIsNormal(item) && ItemIdGetOffset(item) + SizeofHeapTupleHeader <= BLCKSZ)
			fprintf(file, ", xmin %u, xmax %u, infomask %04X, infomask2 %04X, ctid (%u,%u)",
					HeapTupleHeaderGetRawXmin(row), HeapTupleHeaderGetRawXmax(row),
					row->t_infomask, row->t_infomask2,
					ItemPointerGetBlockNumberNoCheck(&row->t_ctid),
					ItemPointerGetOffsetNumberNoCheck(&row->t_ctid));
		fputc('\n', file);
	}
}

/* write_image -- the whole page, in hexadecimal digits. */
static void
write_image(FILE * file, Page page)
{
	const unsigned char *bytes = (const unsigned char *) page;

	for (int i = 0; i < BLCKSZ; i++)
		fprintf(file, i % 32 == 31 ? "%02x\n" : "%02x", bytes[i]);
}
