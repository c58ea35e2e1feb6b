/*-------------------------------------------------------------------------
 *
 * guards_state.h
 *	  What the files of the guards share.  Others include guards.h.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_GUARDS_STATE_H
#define CYCLONE_GUARDS_STATE_H

#include <math.h>

#include "access/xlogdefs.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "clock.h"
#include "guards/guards.h"

#define LAG_MARKS			256
/* "pg_tblspc/OID/PG_version_catversion/OID", and some */
#define PATH_SIZE			80

/* No pause lasts longer, and no wait for room on a disk, in seconds. */
#define LONGEST_PAUSE		3600
#define LONGEST_DISK_WAIT	600
/* Who goes on slowly writes this many bytes of WAL a second: what no standby fails at. */
#define SLOW_RATE			(1024.0 * 1024)
/* A process that has written no more than this stands still for no standby. */
#define FREE_BYTES			(64 * 1024)
/* For this long a look at standbys or disks counts for a process that can't look. */
#define LOOK_COUNTS_NS		(2 * (uint64) NS_PER_S)

/* A pause that a user has asked for */
typedef struct GuardPause
{
	pg_atomic_uint64 until;		/* by now_ns; 0: there is none */
	pg_atomic_uint32 by;		/* a role */
} GuardPause;

/* What doesn't hold a vacuum; each value has what the one before has */
typedef enum GuardHurry
{
	HURRY_NONE,
	HURRY_NO_WAITING,			/* pauses and standbys don't */
	HURRY_WRAPAROUND,			/* disks don't */
	HURRY_ALL					/* the rate of WAL doesn't */
} GuardHurry;

/* What a vacuum waits for where too little is free */
typedef enum DiskHolder
{
	DISK_NONE,					/* nothing, or enough is */
	DISK_SLOT,					/* it retains WAL */
	DISK_ARCHIVER,				/* so does the archiver */
	DISK_NO_ROOM,				/* hardly any WAL has room */
	DISK_BOUND					/* VACUUM FULL waits for nothing, and ends */
} DiskHolder;

/* The law's memory of a standby; zeroed at first */
typedef struct LagLaw
{
	double		speed;			/* bytes that it replays a second */
	double		unreported;		/* seconds since it last told of progress */
} LagLaw;

/* The figures since the last step */
typedef struct LagSeen
{
	double		seconds;
	double		bound;			/* s */
	double		lag;			/* s */
	double		backlog;		/* bytes, now */
	double		replayed;		/* bytes, since then */
} LagSeen;

/* A standby or a subscriber, by its walsender */
typedef struct LagStandby
{
	int			pid;			/* of the walsender; 0: none */
	XLogRecPtr	replayed;		/* when it was last looked at */
	LagLaw		law;
	uint64		stop_start;		/* since when vacuums stand still for it; 0:
								 * they don't */
	XLogRecPtr	stop_end;		/* where the WAL was then, or last time */
	bool		is_others;		/* its lag is not due to vacuums */
	bool		is_told;		/* the log has it */
} LagStandby;

/* The last look at standbys, and where the WAL was at which time */
typedef struct LagWatch
{
	uint64		time;			/* of the last look; 0: there was none */
	XLogRecPtr	flushed;		/* then */
	uint64		nmarks;			/* how many there have been */
	uint64		mark_time[LAG_MARKS];
	XLogRecPtr	mark_flushed[LAG_MARKS];
} LagWatch;

/* This process's view */
typedef struct Guarded
{
	struct GuardedVacuum *vacuum;	/* NULL: this process isn't guarded */
	int			pins;			/* how many loops in hand have pages pinned */
	uint32		calls;			/* of guards_point */
	bool		stream_is_cut;
	uint64		wal_paid;		/* of this process's WAL */
	uint64		wal_until;		/* when what it has paid for is over; 0: it is */
	void		(*while_held) (void);	/* a leader's */
} Guarded;

/* A vacuum, by its leader */
typedef struct GuardedVacuum
{
	/* written under the lock, also by who pauses or resumes it; for a whole statement */
	GuardPause	pause;

	/* written by all of its processes; for all that the session does */
	pg_atomic_uint64 disk_stop_start;	/* 0: disk_stops is DISK_NONE */

	/* from here on zeroed when a command begins; written by the leader, under the lock */
	int			pid;			/* 0: no vacuum */
	bool		is_autovacuum;
	bool		readers_wait;	/* for the lock on the table */
	char		path[PATH_SIZE];	/* its file system is the table's */
	TransactionId relfrozenxid;
	MultiXactId relminmxid;
	pg_atomic_uint32 relid;

	/* written by all of its processes */
	pg_atomic_uint64 next_disk_look;
	pg_atomic_uint32 disk_stops;	/* a DiskHolder */
	pg_atomic_uint64 disk_free; /* bytes, then */
	pg_atomic_uint64 disk_bound;
	pg_atomic_uint32 has_warned;	/* that it goes on nevertheless */
	pg_atomic_uint64 min_free_disk; /* by the leader; a double: see settings.h */
	pg_atomic_uint32 hurry;		/* a GuardHurry */
	pg_atomic_uint32 is_ending; /* as too little is free */
	pg_atomic_uint64 held_ns[NUM_GUARDS];
	pg_atomic_uint64 held_until[NUM_GUARDS];	/* when a process last was */
} GuardedVacuum;

typedef struct GuardsShared
{
	LWLock	   *lock;
	GuardPause	general_pause;	/* of vacuums that begin later; under the lock */

	/* WAL of all vacuums */
	pg_atomic_uint64 wal_rate;	/* bytes a second; 0: no bound */
	pg_atomic_uint64 wal_paid_until;

	/* lag of standbys */
	pg_atomic_uint32 max_lag_ms;	/* 0: no bound */
	pg_atomic_uint64 lag_rate;	/* bytes a second; a double, INFINITY: no bound,
								 * 0: vacuums stand still */
	pg_atomic_uint64 lag_ms;	/* of the standby that sets the rate */
	pg_atomic_uint32 lag_pid;	/* its walsender */
	pg_atomic_uint64 next_look;
	LagWatch	lag_watch;		/* under the lock */
	LagStandby *standbys;		/* max_wal_senders of them, under the lock */

	pg_atomic_uint32 disk_is_unseen;	/* the log has it */

	GuardedVacuum vacuums[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them, by
													 * leader */
} GuardsShared;

extern GuardsShared *guards_shared;
extern Guarded guarded;

/*
 * guards_state.c.  guards_nap and guards_raise_hurry are for a process that takes part in a
 * vacuum; only the first may raise errors.
 */
extern bool guards_is_needed(GuardedVacuum *vacuum);
extern bool guards_worker_is_needed(GuardedVacuum *vacuum);
extern void guards_raise_hurry(GuardedVacuum *vacuum, GuardHurry hurry);
extern uint64 guards_unpaid_wal(void);
extern void guards_nap(long ms, Guard guard);
extern char *guards_vacuum_name(GuardedVacuum *vacuum);

/* wal_rate.c */
extern bool wal_rate_is_due(void);
extern bool wal_rate_is_ahead(uint64 now);
extern void wal_rate_pay(void);

/* lag_law.c returns bytes a second, and knows nothing of the server. */
extern double lag_law_step(LagLaw *law, const LagSeen *seen);

/* lag.c: it may raise errors. */
extern void guards_look_at_standbys(uint64 now);

/* disk.c: the first two may raise errors, and disk_end_vacuum does. */
extern void guards_look_at_disk(uint64 now);
extern void disk_end_if_due(GuardedVacuum *vacuum);
extern void disk_end_vacuum(GuardedVacuum *vacuum, DiskHolder holder, const char *path);
extern const char *disk_holder_name(DiskHolder holder);

/* guards_is_paused -- has somebody paused it, and nobody let it go on? */
static inline bool
guards_is_paused(GuardedVacuum *vacuum)
{
	return pg_atomic_read_u64(&vacuum->pause.until) != 0;
}

/* guards_hurry_of -- what doesn't hold a vacuum. */
static inline GuardHurry
guards_hurry_of(GuardedVacuum *vacuum)
{
	return (GuardHurry) pg_atomic_read_u32(&vacuum->hurry);
}

/*
 * guards_lag_rate
 *		How much WAL standbys let this process's vacuum write, in bytes a second: INFINITY
 *		for no bound, 0 for nothing.  What was seen some time ago is no reason to crawl.
 */
static inline double
guards_lag_rate(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	double		rate = read_double(&guards_shared->lag_rate);

	if (isinf(rate) || guards_hurry_of(vacuum) >= HURRY_NO_WAITING ||
		now_ns() > pg_atomic_read_u64(&guards_shared->next_look) + LOOK_COUNTS_NS)
		return INFINITY;
	return vacuum->readers_wait ? Max(rate, SLOW_RATE) : rate;
}

#endif							/* CYCLONE_GUARDS_STATE_H */
