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

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "guards/guards.h"

#define GUARDS_TRANCHE		"pg_cyclone guards"

/* A vacuum, by its leader */
typedef struct GuardedVacuum
{
	/* written by the leader, under the lock */
	int			pid;			/* 0: no vacuum */
	bool		is_autovacuum;
	bool		is_locked;		/* the table: others can't even read it */
	TransactionId relfrozenxid;
	MultiXactId relminmxid;
	pg_atomic_uint32 relid;

	/* written under the lock by who pauses or resumes it */
	pg_atomic_uint64 paused_until;	/* TimestampTz; 0: it isn't */
	pg_atomic_uint64 paused_at;
	pg_atomic_uint32 paused_by;
	pg_atomic_uint32 ignores_general_pause;

	/* written by all of its processes */
	pg_atomic_uint32 is_urgent; /* no pause counts */
	pg_atomic_uint32 is_in_a_hurry; /* nor does WAL */
	pg_atomic_uint64 wal_waited_at; /* when somebody last did */
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
	pg_atomic_uint64 wal_paid_until;
	pg_atomic_uint64 wal_written;	/* since it was measured */
	pg_atomic_uint64 measured_at;
	pg_atomic_uint64 measured_rate; /* a double */

	GuardedVacuum vacuums[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them, by
													 * leader */
} GuardsShared;

extern GuardsShared *guards_shared;

extern bool guards_is_urgent(GuardedVacuum *vacuum);

/* guards_shmem_size -- the size of all of it. */
static inline Size
guards_shmem_size(void)
{
	return add_size(offsetof(GuardsShared, vacuums),
					mul_size(sizeof(GuardedVacuum), MaxBackends));
}

/* guards_general_pause_counts -- is a vacuum subject to it? */
static inline bool
guards_general_pause_counts(GuardedVacuum *vacuum)
{
	return pg_atomic_read_u64(&guards_shared->general_pause_until) != 0 &&
		pg_atomic_read_u32(&vacuum->ignores_general_pause) == 0;
}

/*
 * guards_paused_until
 *		Until when somebody wants a vacuum to be paused; 0: nobody does.  A pause of its
 *		own counts first.
 */
static inline uint64
guards_paused_until(GuardedVacuum *vacuum)
{
	uint64		until = pg_atomic_read_u64(&vacuum->paused_until);

	if (until == 0 && guards_general_pause_counts(vacuum))
		until = pg_atomic_read_u64(&guards_shared->general_pause_until);
	return until;
}

/* guards_paused_by -- where it says who that is. */
static inline pg_atomic_uint32 *
guards_paused_by(GuardedVacuum *vacuum)
{
	return pg_atomic_read_u64(&vacuum->paused_until) == 0 && guards_general_pause_counts(vacuum) ?
		&guards_shared->general_pause_by : &vacuum->paused_by;
}

/* guards_paused_at -- and since when. */
static inline pg_atomic_uint64 *
guards_paused_at(GuardedVacuum *vacuum)
{
	return pg_atomic_read_u64(&vacuum->paused_until) == 0 && guards_general_pause_counts(vacuum) ?
		&guards_shared->general_pause_at : &vacuum->paused_at;
}

#endif							/* CYCLONE_GUARDS_STATE_H */
