/*-------------------------------------------------------------------------
 *
 * running_notes.c
 *	  Notes of tables that are being vacuumed, and of circuit breakers: on disk, and in the WAL.
 *
 * One file has the tables in hand, and another one the breakers that crashes and audits
 * have opened.  README.md says what for.
 *
 * Standbys have no such files.  So an alarm of an audit, and its end, is also in the WAL: as
 * a message of the kind that pg_logical_emit_message writes, which a server without the
 * library passes over when it replays it.  A server that has preloaded the library looks at
 * it first.  The message is of no database.  So no logical slot decodes it, and nobody can
 * write one by pg_logical_emit_message, which every role may call.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "replication/message.h"
#include "storage/ipc.h"
#include "storage/proc.h"

#include "at_exit.h"
#include "autovacuum/running_notes.h"
#include "small_file.h"

#define ALARM_PREFIX	"pg_cyclone"
#define ALARM_VERSION	1

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

/* The message; InvalidOid for relid: all tables */
typedef struct Alarm
{
	uint32		version;
	TableKey	key;
	uint32		is_over;
} Alarm;

static bool has_note = false;
static AlarmReplay replay_alarm = NULL;
static void (*servers_redo) (XLogReaderState *record) = NULL;

static void empty_at_exit(int code, Datum arg);
static void redo_message(XLogReaderState *record);

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

/* running_notes_watch_wal -- look at each message of the WAL that this server replays. */
void
running_notes_watch_wal(AlarmReplay replay)
{
	Assert(process_shared_preload_libraries_in_progress && servers_redo == NULL);
	replay_alarm = replay;
	servers_redo = RmgrTable[RM_LOGICALMSG_ID].rm_redo;
	RmgrTable[RM_LOGICALMSG_ID].rm_redo = redo_message;
}

/* running_notes_log_alarm -- write a record of an alarm, or of its end. */
void
running_notes_log_alarm(const TableKey *key, bool is_over)
{
	Alarm		alarm = {.version = ALARM_VERSION,.is_over = is_over};
	char		prefix[] = ALARM_PREFIX;
	xl_logical_message message = {
		.dbId = InvalidOid,
		.transactional = false,
		.prefix_size = sizeof(prefix),
		.message_size = sizeof(alarm)
	};

	Assert(key != NULL || is_over);
	Assert(CritSectionCount == 0);

	if (RecoveryInProgress())
		return;
	if (key != NULL)
		alarm.key = *key;
	XLogBeginInsert();
	XLogRegisterData((char *) &message, SizeOfLogicalMessage);
	XLogRegisterData(prefix, sizeof(prefix));
	XLogRegisterData((char *) &alarm, sizeof(alarm));
	XLogFlush(XLogInsert(RM_LOGICALMSG_ID, XLOG_LOGICAL_MESSAGE));
}

/* redo_message -- the redo routine of messages: look at ours, then do what the server does. */
static void
redo_message(XLogReaderState *record)
{
	const xl_logical_message *message = (xl_logical_message *) XLogRecGetData(record);

	if (message->dbId == InvalidOid && message->prefix_size == sizeof(ALARM_PREFIX) &&
		strcmp(message->message, ALARM_PREFIX) == 0 && message->message_size == sizeof(Alarm))
	{
		Alarm		alarm;

		memcpy(&alarm, message->message + message->prefix_size, sizeof(alarm));
		if (alarm.version == ALARM_VERSION)
			replay_alarm(OidIsValid(alarm.key.relid) ? &alarm.key : NULL, alarm.is_over != 0);
	}
	servers_redo(record);
}
