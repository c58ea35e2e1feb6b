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

#include "access/xlogdefs.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#include "guards/guards.h"
#include "guards/lag_law.h"
#include "settings.h"

#define GUARDS_TRANCHE		"pg_cyclone guards"
#define LAG_MARKS			256
#define LAG_IN_VAIN			32
/* "pg_tblspc/OID/PG_version_catversion/OID", and some */
#define PATH_SIZE			80

/* For this long a look at standbys or disks counts for a process that can't look. */
#define LOOK_COUNTS_NS		(2 * (uint64) NS_PER_S)

/* The last look at standbys, and where the WAL was at which time */
typedef struct LagWatch
{
	uint64		time;			/* of the last look; 0: there was none */
	XLogRecPtr	flushed;		/* then */
	XLogRecPtr	replayed;		/* then, by the one that lagged most */
	int			pid;			/* its walsender; 0: none */
	uint64		stop_start;		/* since when it has held vacuums; 0: it
								 * doesn't */
	uint32		nin_vain;		/* how many have held them for too long */
	int			in_vain[LAG_IN_VAIN];	/* walsenders of the last ones; 0:
										 * none */
	uint64		ours;			/* what vacuums had written */
	LagLaw		law;
	uint64		nmarks;			/* how many there have been */
	uint64		mark_time[LAG_MARKS];
	XLogRecPtr	mark_flushed[LAG_MARKS];
} LagWatch;

/* What a vacuum waits for where too little is free */
typedef enum DiskHolder
{
	DISK_NONE,					/* nothing, or enough is */
	DISK_SLOT,
	DISK_ARCHIVER,
	DISK_CHECKPOINT,			/* it will remove old WAL */
	DISK_NO_ROOM				/* it removes none: others fill the disk */
} DiskHolder;

/* This process's view */
typedef struct Guarded
{
	struct GuardedVacuum *vacuum;	/* NULL: this process isn't guarded */
	int			pins;			/* how many loops in hand have pages pinned */
	uint32		calls;			/* of guards_point */
	bool		stream_is_cut;
	uint64		wal_bytes;		/* of this process, that are accounted for */
	uint64		wal_paid_until; /* when they are paid for */
	uint64		wal_told;		/* of this process, that are in wal_written */
	bool		holds[NUM_GUARDS];
	void		(*while_held) (void);	/* a leader's */
} Guarded;

/* A vacuum, by its leader */
typedef struct GuardedVacuum
{
	/* written by the leader, under the lock */
	int			pid;			/* 0: no vacuum */
	bool		is_autovacuum;
	bool		is_locked;		/* the table: others can't even read it */
	char		path[PATH_SIZE];	/* its file system is the table's */
	TransactionId relfrozenxid;
	MultiXactId relminmxid;
	pg_atomic_uint32 relid;

	/* written under the lock by the session that pauses or resumes it */
	pg_atomic_uint64 paused_until;	/* by now_ns, which no change of the clock
									 * moves; 0: it isn't */
	pg_atomic_uint64 paused_at;
	pg_atomic_uint32 paused_by;
	pg_atomic_uint32 ignores_general_pause;

	/* written by the leader, also after a reload */
	pg_atomic_uint64 min_free_disk; /* a double: bytes, or if negative a
									 * share; 0: it doesn't matter */

	/* written by all of its processes */
	pg_atomic_uint64 wal_written;	/* bytes, in this statement */
	pg_atomic_uint64 next_disk_look;
	pg_atomic_uint32 disk_stops;	/* a DiskHolder */
	pg_atomic_uint32 is_ending; /* for that reason */
	pg_atomic_uint64 disk_free; /* bytes, then */
	pg_atomic_uint64 disk_bound;
	pg_atomic_uint64 room_wait_start;	/* for room for WAL; 0: there is some */
	pg_atomic_uint64 room_wait_redo;	/* of the last checkpoint then */
	pg_atomic_uint32 has_asked; /* for a checkpoint; the log has it */
	pg_atomic_uint32 is_urgent; /* only the rate of WAL holds it */
	pg_atomic_uint32 is_in_a_hurry; /* nothing holds it */
	pg_atomic_uint64 waited_at[NUM_GUARDS]; /* when a process last did */
	pg_atomic_uint32 holds[NUM_GUARDS]; /* processes */
	pg_atomic_uint64 hold_start[NUM_GUARDS];	/* of the first of them */
	pg_atomic_uint64 held_ns[NUM_GUARDS];	/* before */
	pg_atomic_uint32 has_logged[NUM_GUARDS];
} GuardedVacuum;

typedef struct GuardsShared
{
	LWLock	   *lock;

	/* a pause of all, also of those that begin later; under the lock */
	pg_atomic_uint64 general_pause_until;
	pg_atomic_uint64 general_pause_at;
	pg_atomic_uint32 general_pause_by;

	/* WAL of all vacuums */
	pg_atomic_uint64 wal_rate;	/* bytes a second; 0: no bound */
	slock_t		wal_mutex;		/* of the next two */
	uint64		wal_paid_until;
	double		priced_at;		/* the rate that is based on; 0: none yet */
	pg_atomic_uint64 wal_written;
	pg_atomic_uint64 measured_at;
	pg_atomic_uint64 measured_before;	/* what was written then */
	pg_atomic_uint64 measured_rate; /* a double */

	/* the last checkpoint that a vacuum has asked for */
	pg_atomic_uint64 asked_at;	/* 0: none yet */
	pg_atomic_uint64 asked_after;	/* the redo pointer of the one before it */

	/* lag of standbys */
	pg_atomic_uint32 max_lag_ms;	/* 0: no bound */
	char		lag_of[STANDBYS_SIZE];	/* under the lock */
	char		delayed[STANDBYS_SIZE]; /* likewise */
	pg_atomic_uint64 lag_rate;	/* bytes a second; a double, 0: no bound */
	pg_atomic_uint32 lag_stops; /* are vacuums to stand still? */
	pg_atomic_uint64 lag_ms;	/* of the one that lags most */
	pg_atomic_uint32 lag_pid;	/* its walsender */
	pg_atomic_uint64 next_look;
	pg_atomic_uint32 looking;	/* is a process in the middle of it? */
	LagWatch	lag_watch;		/* written by the process that looks */

	GuardedVacuum vacuums[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them, by
													 * leader */
} GuardsShared;

extern GuardsShared *guards_shared;
extern Guarded guarded;

/* guards_state.c */
extern bool guards_is_urgent(GuardedVacuum *vacuum);
extern void guards_nap(long ms, Guard guard);
extern void guards_begin_hold(Guard guard);
extern void guards_end_hold(Guard guard);
extern uint64 guards_wal_bytes(void);
extern uint64 guards_held_ns(GuardedVacuum *vacuum, Guard guard);
extern char *guards_vacuum_name(GuardedVacuum *vacuum);

/* brake.c */
extern GuardedVacuum *guards_find_vacuum(int *pid);
extern void guards_check_privileges(GuardedVacuum *vacuum, int pid);

/* wal_rate.c */
extern bool wal_rate_is_due(void);
extern void wal_rate_account(uint64 now);
extern void wal_rate_sleep(void);

/* lag.c */
extern void guards_look_at_standbys(uint64 now);

/* disk.c */
extern void guards_look_at_disk(uint64 now);
extern char *guards_disk_holder(GuardedVacuum *vacuum);
extern char *guards_disk_reason(DiskHolder holder);

/* wal_room.c */
extern DiskHolder wal_room_look(GuardedVacuum *vacuum, uint64 free_bytes, uint64 now);

/* guards_shmem_size -- the size of all of it. */
static inline Size
guards_shmem_size(void)
{
	return add_size(offsetof(GuardsShared, vacuums),
					mul_size(sizeof(GuardedVacuum), MaxBackends));
}

/* guards_general_pause_counts -- does a pause of all hold this vacuum? */
static inline bool
guards_general_pause_counts(GuardedVacuum *vacuum)
{
	return pg_atomic_read_u64(&guards_shared->general_pause_until) != 0 &&
		pg_atomic_read_u32(&vacuum->ignores_general_pause) == 0;
}

/*
 * guards_paused_until
 *		Until when a vacuum is to be paused; 0: it isn't.  A pause of its own counts
 *		before that of all.
 */
static inline uint64
guards_paused_until(GuardedVacuum *vacuum)
{
	uint64		until = pg_atomic_read_u64(&vacuum->paused_until);

	if (until == 0 && guards_general_pause_counts(vacuum))
		until = pg_atomic_read_u64(&guards_shared->general_pause_until);
	return until;
}

/* guards_paused_by -- where it says which role has paused a vacuum. */
static inline pg_atomic_uint32 *
guards_paused_by(GuardedVacuum *vacuum)
{
	return pg_atomic_read_u64(&vacuum->paused_until) == 0 && guards_general_pause_counts(vacuum) ?
		&guards_shared->general_pause_by : &vacuum->paused_by;
}

/* guards_paused_at -- where it says since when. */
static inline pg_atomic_uint64 *
guards_paused_at(GuardedVacuum *vacuum)
{
	return pg_atomic_read_u64(&vacuum->paused_until) == 0 && guards_general_pause_counts(vacuum) ?
		&guards_shared->general_pause_at : &vacuum->paused_at;
}

#endif							/* CYCLONE_GUARDS_STATE_H */
