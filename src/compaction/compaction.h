/*-------------------------------------------------------------------------
 *
 * compaction.h
 *	  Tables that stay small by themselves.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPACTION_H
#define CYCLONE_COMPACTION_H

#include "datatype/timestamp.h"
#include "nodes/nodes.h"
#include "storage/lwlock.h"

#include "compaction/window.h"
#include "own_worker.h"

/* The most tables that are compacted at a time */
#define COMPACTION_MAX_WORKERS	8

/* The least time between two visits of a database, after which a visit begins no more tables */
#define COMPACTION_VISIT_MS	60000

/* A place for a worker */
typedef struct CompactionSlot
{
	int			pid;			/* 0: none */
	TimestampTz launched;		/* by the launcher; 0: it was not */
	Oid			database;
	Oid			relid;			/* invalid: it compacts none at the moment */
	TimestampTz started;		/* with relid */
	TimestampTz must_end;		/* when the window ends; 0: never */
	bool		has_usual_hours;	/* cyclone.compaction_window's, which may
									 * change meanwhile */
	bool		stopped;		/* by the launcher, at the window's end, as
								 * compaction was switched off, or the WAL of
								 * the day used up? */
} CompactionSlot;

/* The lock protects all but the atomics. */
typedef struct CompactionShared
{
	pg_atomic_uint32 has_launcher;
	pg_atomic_uint32 workers;	/* that have a slot */
	LWLock	   *lock;
	bool		was_shut_down;	/* the server, before it was started; else it
								 * has crashed, or is a copy */
	TimestampTz wal_since;		/* when the day began */
	uint64		wal_bytes;		/* written in this day */
	CompactionSlot slots[COMPACTION_MAX_WORKERS];
} CompactionShared;

extern CompactionShared *compaction_shared;
extern const OwnWorkerDuty compaction_launcher;

/* For no shorter time is a table left alone after a run; seconds */
#define COMPACTION_LEAST_COOLDOWN	60

/* settings, see compaction_settings.c */
extern bool cyclone_compaction;
extern int	cyclone_compaction_cooldown;	/* s */
extern char *cyclone_compaction_databases;	/* patterns */
extern char *cyclone_compaction_latency_target;
extern int	cyclone_compaction_max_wal; /* MB; -1: no bound */
extern int	cyclone_compaction_min_size;	/* MB */
extern double cyclone_compaction_threshold; /* per cent */
extern char *cyclone_compaction_window;
extern int	cyclone_compaction_workers;

/*
 * compaction_make_way must be called before a utility statement runs, in whatever state
 * the session is; it raises no error for what is wrong with the statement.
 */
extern void compaction_settings_init(void);
extern void compaction_init(void);
extern void compaction_shmem_request(void);
extern void compaction_shmem_init(void);
extern void compaction_make_way(Node *stmt);

/*
 * For workers and the view.  compaction_wal_left may begin a new day for all processes;
 * it takes the lock, under which compaction_wal_add must be called.
 */
extern bool compaction_has_database(const char *name);
extern int	compaction_wall_clock(pg_time_t moment);
extern double compaction_wal_left(void);
extern void compaction_wal_add(uint64 bytes);

/*
 * compaction_is_over
 *		Have these milliseconds passed since a moment?  True, too, if the clock was set
 *		back to before that moment: else that would take as long as the clock was wrong.
 */
static inline bool
compaction_is_over(TimestampTz since, TimestampTz now, int64 ms)
{
	return now < since || now - since >= ms * INT64CONST(1000);
}

#endif							/* CYCLONE_COMPACTION_H */
