/*-------------------------------------------------------------------------
 *
 * running_notes.h
 *	  Notes on disk of the tables that the engine vacuums for autovacuum.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RUNNING_NOTES_H
#define CYCLONE_RUNNING_NOTES_H

#include "autovacuum/table_log.h"

/*
 * running_notes_read is for the postmaster at its start.  A worker begins a note before
 * the engine has a table, and ends it whether that succeeds or fails; while it has none,
 * running_notes_end does nothing.  The others are for any process.  None raises an error:
 * what can't be written down is missing after a crash.
 */
extern void running_notes_read(void);
extern bool running_notes_begin(const TableKey *key, uint32 failures);
extern void running_notes_end(void);
extern void running_notes_trial_went_well(void);
extern void running_notes_audit_failed(const TableKey *key, uint32 failures, TimestampTz until);
extern void running_notes_forget(const TableKey *key);

#endif							/* CYCLONE_RUNNING_NOTES_H */
