/*-------------------------------------------------------------------------
 *
 * running_notes.h
 *	  Notes on disk of tables that are being vacuumed, and of circuit breakers.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RUNNING_NOTES_H
#define CYCLONE_RUNNING_NOTES_H

#include "datatype/timestamp.h"

/* How many breakers may be on disk */
#define MAX_BREAKER_NOTES	1000

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
	NOTE_AUDIT,					/* a breaker that a failed audit has opened */
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
 * running_notes_read and running_notes_replace are for the postmaster at its start, which
 * takes over what it finds: running_notes_read returns how many notes there are, in
 * *notes, to be pfreed.  A worker begins a note before the engine has a table, and ends it
 * whether that succeeds or fails; while it has none, running_notes_end does nothing.
 * running_notes_keep writes or, with NULL, removes a breaker's note, and has that on disk.
 * The places of breakers are below MAX_BREAKER_NOTES; no two processes write to one at a
 * time.  None of these raises an error: what can't be written down is missing after a
 * crash, which the log or the result says.
 */
extern int	running_notes_read(RunningNote **notes);
extern void running_notes_replace(const RunningNote *notes, int nnotes);
extern bool running_notes_begin(const TableKey *key, uint32 failures);
extern void running_notes_end(void);
extern void running_notes_keep(int place, const RunningNote *note);

#endif							/* CYCLONE_RUNNING_NOTES_H */
