/*-------------------------------------------------------------------------
 *
 * table_log.h
 *	  What has become of autovacuum's tables.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_LOG_H
#define CYCLONE_TABLE_LOG_H

#include "utils/rel.h"
#include "utils/timestamp.h"

#include "autovacuum/running_notes.h"

/* The VACUUM that a table gets, and if it isn't the engine's, why; in the order of
reason_names */
typedef enum AutovacuumReason
{
	REASON_ENGINE,
	REASON_OFF,					/* cyclone.autovacuum is off, or
								 * cyclone.enabled */
	REASON_NOT_LISTED,			/* by cyclone.databases or cyclone.tables */
	REASON_BREAKER,				/* the engine failed lately, or an audit */
	REASON_CRASHES,				/* the server crashed several times lately */
	REASON_NO_NOTE,				/* no note could be written for the case of a
								 * crash */
} AutovacuumReason;

/* What one autovacuum of a table came to */
typedef struct AutovacuumResult
{
	TimestampTz start;
	int64		rows_removed;	/* by the engine */
	int64		pages_scanned;
	int			workers;
} AutovacuumResult;

/*
 * For the postmaster: while the library is preloaded, when shared memory is made, and when
 * it is there.
 */
extern void table_log_init(void);
extern void table_log_shmem_request(void);
extern void table_log_shmem_init(void);
extern void table_log_load(void);

/*
 * A table's turns.  These are called where an error is handled, too: none raises an error,
 * and none waits for more than a lock that is held for a moment, but for a disk where an
 * audit has failed.  *failures is how often in a row the engine has failed;
 * table_log_failed returns when a break ends, 0 if there is none, DT_NOEND if a person has
 * to end it.
 */
extern TableKey table_log_key(Relation rel);
extern bool table_log_breaker_is_open(const TableKey *key, uint32 *failures);
extern bool table_log_all_are_left(void);
extern void table_log_done(const TableKey *key, AutovacuumReason reason,
						   bool is_cancelled, const AutovacuumResult *result);
extern TimestampTz table_log_failed(const TableKey *key, int sqlerrcode, bool is_audits,
									const AutovacuumResult *result);
extern bool table_log_audit_has_failed(const TableKey *key);
extern bool table_log_has_alarm(Relation rel);

/* For any session; table_log_forget closes breakers.  No errors. */
extern int64 table_log_forget(const TableKey *key);

#endif							/* CYCLONE_TABLE_LOG_H */
