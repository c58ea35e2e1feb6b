/*-------------------------------------------------------------------------
 *
 * running_notes.c
 *	  Notes on disk of the tables that the engine vacuums for autovacuum, for
 *	  the case of a crash.
 *
 * If the engine brought a server down with some table, autovacuum would come
 * to that table again as soon as the server is back, and so on.  So a worker
 * writes down which table it is at, and crosses that out when it is done.
 * What a server finds written at its start goes to PostgreSQL's own VACUUM
 * next (table_log_crashed); whether the engine was to blame nobody knows.
 *
 * The notes are in one file of the data directory, with a place for each
 * process that there can be.  It need not survive a loss of power, so it isn't
 * synced.  Nothing here raises an error; who can't write a note gets told.
 * Files are opened without the server's bookkeeping, as that may raise one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/proc.h"

#include "autovacuum/running_notes.h"

#define NOTES_FOLDER	"pg_cyclone"
#define NOTES_PATH		NOTES_FOLDER "/autovacuum"

/* One process's note; zeros if it has none */
typedef struct RunningNote
{
	TableKey	key;
	uint32		failures;		/* of the engine on this table, in a row, before */
	pg_crc32c	crc;
} RunningNote;

static bool has_note = false;

static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void startup_shmem(void);
static void end_at_exit(int code, Datum arg);
static bool write_note(const RunningNote *note);
static void read_notes(void);
static pg_crc32c note_crc(const RunningNote *note);

/*
 * running_notes_init
 *		Have the notes of a crash read when the server starts.  Call while the
 *		library is preloaded, after table_log_init.
 */
void
running_notes_init(void)
{
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

/*
 * running_notes_begin
 *		Write down that this process begins to vacuum a table.  Returns false if
 *		that isn't possible.
 */
bool
running_notes_begin(const TableKey *key, uint32 failures)
{
	static bool is_registered = false;
	RunningNote note = {.key = *key,.failures = failures};

	if (!is_registered)
		before_shmem_exit(end_at_exit, (Datum) 0);
	is_registered = true;

	note.crc = note_crc(&note);
	has_note = write_note(&note);
	return has_note;
}

/* running_notes_end -- cross it out; harmless if there is none. */
void
running_notes_end(void)
{
	RunningNote nothing = {0};

	if (has_note)
		(void) write_note(&nothing);
	has_note = false;
}

/* end_at_exit -- who is terminated has not crashed. */
static void
end_at_exit(int code, Datum arg)
{
	running_notes_end();
}

/* write_note -- write to this process's place. */
static bool
write_note(const RunningNote *note)
{
	int			fd;
	ssize_t		written;

	(void) MakePGDirectory(NOTES_FOLDER);
	fd = open(NOTES_PATH, O_WRONLY | O_CREAT | PG_BINARY, pg_file_create_mode);
	if (fd < 0)
		return false;
	written = pwrite(fd, note, sizeof(RunningNote), (off_t) MyProcNumber * sizeof(RunningNote));
	close(fd);
	return written == sizeof(RunningNote);
}

/*
 * read_notes
 *		Open the breakers of all tables that are written down, and begin anew.
 */
static void
read_notes(void)
{
	int			fd = open(NOTES_PATH, O_RDONLY | PG_BINARY);
	RunningNote note;

	if (fd < 0)
		return;
	while (read(fd, &note, sizeof(RunningNote)) == sizeof(RunningNote))
	{
		if (!OidIsValid(note.key.relid) || !EQ_CRC32C(note.crc, note_crc(&note)))
			continue;
		table_log_crashed(&note.key, note.failures);
		ereport(LOG,
				(errmsg("an autovacuum by pg_cyclone of relation %u in database %u was interrupted by a crash",
						note.key.relid, note.key.database),
				 errdetail("PostgreSQL's own VACUUM processes it next.")));
	}
	close(fd);
	(void) unlink(NOTES_PATH);
}

/* startup_shmem -- read the notes, once, in the postmaster. */
static void
startup_shmem(void)
{
	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();
	if (!IsUnderPostmaster)
		read_notes();
}

/* note_crc -- the checksum of a note. */
static pg_crc32c
note_crc(const RunningNote *note)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, note, offsetof(RunningNote, crc));
	FIN_CRC32C(crc);
	return crc;
}
