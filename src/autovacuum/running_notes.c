/*-------------------------------------------------------------------------
 *
 * running_notes.c
 *	  Notes on disk of tables that are being vacuumed, and of circuit breakers.
 *
 * One file has the tables in hand, and another one the breakers that crashes and audits
 * have opened.  README.md says what for.
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

#define RUNNING_PATH	SMALL_FILE_FOLDER "/running"
#define BREAKERS_PATH	SMALL_FILE_FOLDER "/breakers"

static const SmallFileFormat running_format = {
	.magic = 0xC1C1A072,
	.version = 1,
	.record_size = sizeof(RunningNote),
	.max_records = MAX_BACKENDS
};

static const SmallFileFormat breakers_format = {
	.magic = 0xC1C1A071,
	.version = 1,
	.record_size = sizeof(RunningNote),
	.max_records = 1 << 20
};

static bool has_note = false;

static void empty_at_exit(int code, Datum arg);

/* running_notes_read -- read which tables were being vacuumed when the server crashed, unless this is a copy. */
int
running_notes_read(RunningNote **notes)
{
	static bool is_registered = false;
	void	   *records;
	int			nrecords;

	Assert(IsPostmasterEnvironment && !IsUnderPostmaster);

	/* not once more after each crash */
	if (!is_registered)
		on_proc_exit(empty_at_exit, 0);
	is_registered = true;
	nrecords = small_file_read(RUNNING_PATH, &running_format, &records, NULL);
	*notes = records;
	return access(BACKUP_LABEL_FILE, F_OK) == 0 ? 0 : nrecords;
}

/* running_notes_breakers -- read which breakers were open. */
int
running_notes_breakers(RunningNote **notes, bool *is_whole)
{
	bool		is_damaged;
	void	   *records;
	int			nrecords = small_file_read(BREAKERS_PATH, &breakers_format, &records, &is_damaged);

	*notes = records;
	*is_whole = nrecords >= 0 && !is_damaged;
	/* a damaged one has its name until a new one is whole */
	if (nrecords < 0 || (is_damaged && link(BREAKERS_PATH, BREAKERS_PATH SMALL_FILE_DAMAGED) != 0))
		small_file_set_aside(BREAKERS_PATH);
	return nrecords;
}

/* running_notes_empty -- no table is being vacuumed. */
void
running_notes_empty(void)
{
	(void) small_file_write(RUNNING_PATH, &running_format, NULL, 0,
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
	has_note = small_file_put(RUNNING_PATH, &running_format, MyProcNumber, &note);
	return has_note;
}

/* running_notes_end -- cross it out; harmless if there is none. */
void
running_notes_end(void)
{
	if (has_note)
		(void) small_file_put(RUNNING_PATH, &running_format, MyProcNumber, NULL);
	has_note = false;
}

/* running_notes_keep -- these are all breakers that outlast a restart. */
void
running_notes_keep(const RunningNote *notes, int nnotes)
{
	/* a message would serve interrupts, and an error may be on its way */
	HOLD_INTERRUPTS();
	(void) small_file_write(BREAKERS_PATH, &breakers_format, notes, nnotes,
							SMALL_FILE_SURVIVES_POWER_CUT, LOG);
	RESUME_INTERRUPTS();
}

/* empty_at_exit -- the postmaster exits: unless that is for a crash, no worker was to blame. */
static void
empty_at_exit(int code, Datum arg)
{
	if (code == 0 && !IsUnderPostmaster)
		running_notes_empty();
}
