/*-------------------------------------------------------------------------
 *
 * running_notes.h
 *	  Notes of tables that are being vacuumed, and of circuit breakers: on disk, and in the WAL.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RUNNING_NOTES_H
#define CYCLONE_RUNNING_NOTES_H

#include "datatype/timestamp.h"

/* A table, in all databases */
typedef struct TableKey
{
	Oid			database;		/* InvalidOid: a shared catalog */
	Oid			relid;
} TableKey;

/* What a note is about */
typedef enum NoteCause
{
	NOTE_RUNNING = 1,			/* the engine is at the table */
	NOTE_CRASH,					/* a breaker that a crash has opened */
	NOTE_AUDIT,					/* a breaker that a failed audit has opened;
								 * of all tables if there is no relid */
} NoteCause;

/* It is written to a file as it is here: see running_notes.c. */
typedef struct RunningNote
{
	TableKey	key;
	TimestampTz until;			/* when the breaker closes */
	uint32		failures;		/* of the engine on this table, in a row */
	uint32		cause;			/* NoteCause */
} RunningNote;

/*
 * running_notes_read and running_notes_breakers are for the postmaster at its start, which
 * takes over what it finds.  They return how many notes there are of tables that were being
 * vacuumed, and of breakers, in *notes, to be pfreed.  If *is_whole is false there may be more breakers: the
 * file can't be read, or is damaged, and is kept under another name.  running_notes_empty
 * crosses out all of the former.
 *
 * A worker begins a note before the engine has a table, and ends it whether that succeeds
 * or fails; while it has none, running_notes_end does nothing.
 *
 * running_notes_keep has these notes of breakers on disk, and no others; one process at a
 * time calls it.
 *
 * None of these raises an error: what can't be written down is missing after a crash, which
 * the log or the result says.
 */
extern int	running_notes_read(RunningNote **notes);
extern int	running_notes_breakers(RunningNote **notes, bool *is_whole);
extern void running_notes_empty(void);
extern bool running_notes_begin(const TableKey *key, uint32 failures);
extern void running_notes_end(void);
extern void running_notes_keep(const RunningNote *notes, int nnotes);

/*
 * A server that replays the record of an alarm, or of its end, calls this, in its startup
 * process.  It must raise no error.  With is_over it is for all tables if key is NULL.
 */
typedef void (*AlarmReplay) (const TableKey *key, bool is_over);

/*
 * running_notes_watch_wal is for the postmaster, while the library is preloaded.
 * running_notes_log_alarm says that a table has an alarm, or that it is over, and comes back
 * when that is on disk.  It does nothing in recovery, and may be called while an error is
 * handled.
 */
extern void running_notes_watch_wal(AlarmReplay replay);
extern void running_notes_log_alarm(const TableKey *key, bool is_over);

#endif							/* CYCLONE_RUNNING_NOTES_H */
