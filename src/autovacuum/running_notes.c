/*-------------------------------------------------------------------------
 *
 * running_notes.c
 *	  Notes on disk of tables that are being vacuumed, and of circuit breakers.
 *
 * If the engine brought a server down with some table, autovacuum would come to that
 * table again as soon as the server is back, and so on.  So a worker writes down which
 * table it is at, and crosses that out when it is done.  A server that finds such a note
 * at its start leaves the table to PostgreSQL's VACUUM (table_log.c), whether the engine
 * was to blame or not.  Breakers that a crash or an audit has opened are in the same file.
 *
 * A worker that is terminated, or whose postmaster has died, crosses out its note as it
 * exits.  An immediate stop of the server ends workers without that; a person asked for
 * it, so the postmaster crosses out all notes of workers as it exits in good order.
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/proc.h"

#include "at_exit.h"
#include "autovacuum/running_notes.h"
#include "small_file.h"

#define NOTES_PATH	SMALL_FILE_FOLDER "/autovacuum"

static const SmallFileFormat notes_format = {
	.magic = 0xC1C1A071,
	.version = 1,
	.record_size = sizeof(RunningNote),
	.max_records = MAX_BREAKER_NOTES + MAX_BACKENDS
};

static bool has_note = false;

static void forget_running_at_exit(int code, Datum arg);
static int	keep_breakers(RunningNote *notes, int nnotes);

/* running_notes_read -- read all notes; those of tables that were being vacuumed only if this is no copy. */
int
running_notes_read(RunningNote **notes)
{
	static bool is_registered = false;
	bool		is_copy = access(BACKUP_LABEL_FILE, F_OK) == 0;
	void	   *records;
	int			nrecords = small_file_read(NOTES_PATH, &notes_format, &records);

	Assert(IsPostmasterEnvironment && !IsUnderPostmaster);

	/* not once more after each crash */
	if (!is_registered)
		on_proc_exit(forget_running_at_exit, 0);
	is_registered = true;
	*notes = records;
	return is_copy ? keep_breakers(*notes, nrecords) : nrecords;
}

/* running_notes_replace -- these are all notes there are. */
void
running_notes_replace(const RunningNote *notes, int nnotes)
{
	Assert(nnotes <= MAX_BREAKER_NOTES);
	(void) small_file_write(NOTES_PATH, &notes_format, notes, nnotes,
							SMALL_FILE_SURVIVES_POWER_CUT, LOG);
}

/*
 * running_notes_begin
 *		Write down that this process begins to vacuum a table.  Returns false if
 *		that isn't possible.
 */
bool
running_notes_begin(const TableKey *key, uint32 failures)
{
	RunningNote note = {.key = *key,.failures = failures,.cause = NOTE_RUNNING};

	/* in a worker of autovacuum or compaction */
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	Assert(!has_note);

	at_exit(running_notes_end);
	has_note = small_file_put(NOTES_PATH, &notes_format, MAX_BREAKER_NOTES + MyProcNumber, &note);
	return has_note;
}

/* running_notes_end -- cross it out; harmless if there is none. */
void
running_notes_end(void)
{
	if (has_note)
		(void) small_file_put(NOTES_PATH, &notes_format, MAX_BREAKER_NOTES + MyProcNumber, NULL);
	has_note = false;
}

/* running_notes_keep -- write a breaker's note, or empty its place. */
void
running_notes_keep(int place, const RunningNote *note)
{
	Assert(place >= 0 && place < MAX_BREAKER_NOTES);

	/* a message would serve interrupts, and an error may be on its way */
	HOLD_INTERRUPTS();
	if (!small_file_put(NOTES_PATH, &notes_format, place, note))
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", NOTES_PATH)));
	else if (fsync_fname_ext(NOTES_PATH, false, false, LOG) == 0)
		(void) fsync_fname_ext(SMALL_FILE_FOLDER, true, false, LOG);
	RESUME_INTERRUPTS();
}

/* forget_running_at_exit -- the postmaster exits: unless that is for a crash, no worker was to blame. */
static void
forget_running_at_exit(int code, Datum arg)
{
	void	   *records;
	int			nrecords;
	int			nbreakers;

	if (code != 0 || IsUnderPostmaster)
		return;
	nrecords = small_file_read(NOTES_PATH, &notes_format, &records);
	nbreakers = keep_breakers(records, nrecords);
	if (nbreakers < nrecords)
		running_notes_replace(records, nbreakers);
}

/* keep_breakers -- leave out the notes of tables that were being vacuumed; returns how many are left. */
static int
keep_breakers(RunningNote *notes, int nnotes)
{
	int			nbreakers = 0;

	for (int i = 0; i < nnotes; i++)
		if (notes[i].cause != NOTE_RUNNING && nbreakers < MAX_BREAKER_NOTES)
			notes[nbreakers++] = notes[i];
	return nbreakers;
}
