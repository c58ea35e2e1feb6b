/*-------------------------------------------------------------------------
 *
 * alarm_wal.h
 *	  What standbys learn of failed audits.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_ALARM_WAL_H
#define CYCLONE_ALARM_WAL_H

#include "autovacuum/running_notes.h"

/*
 * A server that replays the record calls this, in its startup process.  It must raise no
 * error.  With is_over it is for all tables if key is NULL.
 */
typedef void (*AlarmReplay) (const TableKey *key, bool is_over);

/*
 * alarm_wal_init is for the postmaster, while the library is preloaded.  alarm_wal_write
 * says that a table has an alarm, or that it is over, and comes back when that is on disk.
 * It does nothing in recovery, and may be called while an error is handled.
 */
extern void alarm_wal_init(AlarmReplay replay);
extern void alarm_wal_write(const TableKey *key, bool is_over);

#endif							/* CYCLONE_ALARM_WAL_H */
