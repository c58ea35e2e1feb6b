/*-------------------------------------------------------------------------
 *
 * alarm_wal.c
 *	  What standbys learn of failed audits.
 *
 * A table with an alarm is left to PostgreSQL's VACUUM on this server by its file of notes,
 * which no standby has.  So the alarm, and its end, is also in the WAL: as a message of the
 * kind that pg_logical_emit_message writes, which a server without the library passes over
 * when it replays it.  A server that has preloaded the library looks at it first.
 *
 * The message is of no database.  So no logical slot decodes it, and nobody can write one
 * by pg_logical_emit_message, which every role may call.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "replication/message.h"

#include "autovacuum/alarm_wal.h"

#define ALARM_PREFIX	"pg_cyclone"
#define ALARM_VERSION	1

/* The message; InvalidOid for relid: all tables */
typedef struct Alarm
{
	uint32		version;
	TableKey	key;
	uint32		is_over;
} Alarm;

static AlarmReplay replay_alarm = NULL;
static void (*servers_redo) (XLogReaderState *record) = NULL;

static void redo_message(XLogReaderState *record);

/* alarm_wal_init -- look at each message of the WAL that this server replays. */
void
alarm_wal_init(AlarmReplay replay)
{
	Assert(process_shared_preload_libraries_in_progress && servers_redo == NULL);
	replay_alarm = replay;
	servers_redo = RmgrTable[RM_LOGICALMSG_ID].rm_redo;
	RmgrTable[RM_LOGICALMSG_ID].rm_redo = redo_message;
}

/* alarm_wal_write -- write a record of an alarm, or of its end. */
void
alarm_wal_write(const TableKey *key, bool is_over)
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
