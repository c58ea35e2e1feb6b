/*-------------------------------------------------------------------------
 *
 * audit_report.c
 *	  The results of an audit that fails: an error, and a file about it.
 *
 * audit.c has what is audited in VACUUM, rewrite/rewrite_audit.c in VACUUM (FULL), and
 * inplace/move_audit.c where rows are moved.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/htup_details.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "engine/audit.h"
#include "own_files.h"


/* for a copy of an error */
static MemoryContext error_context = NULL;

static void write_report(const AuditPlace *place, Page page, const char *state,
						 const char *engine, const char *audit, char *path);
static void write_items(FILE * file, Page page);
static void write_image(FILE * file, Page page);

/* audit_prepare -- before anything is audited in this process, or in one of its team. */
void
audit_prepare(void)
{
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

	Assert(CritSectionCount == 0);
	Assert(!BufferIsValid(place->buffer) || compat_is_locked(place->buffer));
	if (BufferIsValid(place->buffer))
	{
		page = (Page) copy.data;
		memcpy(page, BufferGetPage(place->buffer), BLCKSZ);
		LockBuffer(place->buffer, BUFFER_LOCK_UNLOCK);
	}
	write_report(place, page, state, engine, audit, path);

	if (OffsetNumberIsValid(place->off))
		snprintf(where, sizeof(where), " at item %u of block %u", place->off, place->blkno);
	else if (BlockNumberIsValid(place->blkno))
		snprintf(where, sizeof(where), " at block %u", place->blkno);
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("an audit of %s has failed in relation \"%s\"%s",
					command, RelationGetRelationName(place->rel), where),
			 errdetail("pg_cyclone's verdict: %s. The audit's: %s.", engine, audit),
			 errhint("The table is left to PostgreSQL's own VACUUM. Please send a report to the developers; \"%s\" in the data directory has one, with the rows of that page.",
					 path),
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
 * If that isn't possible the log says so; the error itself is more important.
 */
static void
write_report(const AuditPlace *place, Page page, const char *state,
			 const char *engine, const char *audit, char *path)
{
	char		new_path[MAXPGPATH];
	FILE	   *file;
	bool		is_written;

	snprintf(path, MAXPGPATH, "%s/audit-%u-%u.txt", OWN_FOLDER,
			 place->rel->rd_rel->relisshared ? InvalidOid : MyDatabaseId,
			 RelationGetRelid(place->rel));
	snprintf(new_path, MAXPGPATH, "%s.%d", path, MyProcPid);
	(void) MakePGDirectory(OWN_FOLDER);
	file = AllocateFile(new_path, PG_BINARY_W);
	if (file == NULL)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", new_path)));
		return;
	}
	fprintf(file, "pg_cyclone %s, %s\n", CppAsString2(CYCLONE_VERSION), PG_VERSION_STR);
	fprintf(file, "%s, process %d, cyclone.audit %g\n",
			timestamptz_to_str(GetCurrentTimestamp()), MyProcPid, cyclone_audit);
	fprintf(file, "relation \"%s\", file %u, block %u, item %u\n",
			RelationGetRelationName(place->rel), place->rel->rd_locator.relNumber,
			place->blkno, place->off);
	fprintf(file, "pg_cyclone's verdict: %s\naudit's verdict: %s\n%s\n", engine, audit, state);
	if (page != NULL)
	{
		if (place->rel->rd_rel->relkind != RELKIND_INDEX)
			write_items(file, page);
		write_image(file, page);
	}
	is_written = !ferror(file);
	if (FreeFile(file) != 0 || !is_written)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", new_path)));
		(void) unlink(new_path);
		return;
	}
	(void) durable_rename(new_path, path, LOG);
}

/* write_items -- the items of a heap page, and the headers of its rows. */
static void
write_items(FILE * file, Page page)
{
	OffsetNumber maxoff = PageIsNew(page) ? 0 : PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= Min(maxoff, MaxHeapTuplesPerPage); off++)
	{
		ItemId		item = PageGetItemId(page, off);
		HeapTupleHeader tuple = (HeapTupleHeader) ((char *) page + ItemIdGetOffset(item));

		fprintf(file, "item %u: flags %u, offset %u, length %u", off, ItemIdGetFlags(item),
				ItemIdGetOffset(item), ItemIdGetLength(item));
		if (ItemIdIsNormal(item) && ItemIdGetOffset(item) + SizeofHeapTupleHeader <= BLCKSZ)
			fprintf(file, ", xmin %u, xmax %u, infomask %04X, infomask2 %04X, ctid (%u,%u)",
					HeapTupleHeaderGetRawXmin(tuple), HeapTupleHeaderGetRawXmax(tuple),
					tuple->t_infomask, tuple->t_infomask2,
					ItemPointerGetBlockNumberNoCheck(&tuple->t_ctid),
					ItemPointerGetOffsetNumberNoCheck(&tuple->t_ctid));
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
