/*-------------------------------------------------------------------------
 *
 * neighbours.h
 *	  Other sessions of the server: what they do, how long they wait, and how long
 *	  their statements take.
 *
 * It is measured here, for code that spares them; what comes of it is not decided here.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEIGHBOURS_H
#define CYCLONE_NEIGHBOURS_H

#include "nodes/plannodes.h"

/* ---------------------------------------------------------------------------
 * core_wait.c: how long this session waited for a core before a statement
 *
 * Nothing here raises an error.
 * ---------------------------------------------------------------------------
 */

/* What was measured before says nothing of the next statement. */
extern void core_wait_forget(void);

/* A statement of this session ends now. */
extern void core_wait_end(void);

/* The next begins now; return for how long it has waited for a core, in ns; 0 if that isn't known. */
extern uint64 core_wait_begin(void);

/*
 * Read from a process's /proc/PID/schedstat how long it ran, and was ready to run and had
 * no core, in ns since it began.  Return whether the kernel tells.
 */
extern bool core_wait_read(int fd, uint64 *ran, uint64 *waited);

/* ---------------------------------------------------------------------------
 * latency.c: how long their statements take
 * ---------------------------------------------------------------------------
 */

/* Latencies are counted by their logarithm, with 16 steps a doubling. */
#define LATENCY_BUCKETS		481

/*
 * Have statements timed from now on, until latency_unwatch, which the caller calls when this
 * process exits, too.
 */
extern void latency_watch(void);

/* This process no longer watches; harmless if it never did. */
extern void latency_unwatch(void);

/* Other sessions are looked at now; returns how long ago any process did so before, in ns. */
extern uint64 latency_begin_look(uint64 now);

/*
 * The statement of this backend, if it runs one, waits for what no VACUUM causes, and isn't
 * to be counted.  It stands for the time in which no process looked: about as much of the
 * time of its short statements isn't counted either.
 */
extern void latency_excuse(int backend, uint64 unseen);

/*
 * Read the counters, LATENCY_BUCKETS of them.  They overflow; what counts is by how
 * much they have grown.
 */
extern void latency_read(uint32 *counts);

/*
 * Count the statements that have been running for longer than late_ms as if they had
 * ended now; return how many there are, and in *nrunning how many run, late or not.
 * Those that have been running for longer than long_ms don't count: they are slow by
 * nature.  Nor do those that are excused.
 */
extern int	latency_count_running(double late_ms, double long_ms, uint32 *counts, int *nrunning);

/*
 * Return the latency in ms that percent per cent of the statements stay below; NaN if
 * there are none.
 */
extern double latency_percentile(const uint32 *counts, double percent);

/* Return how many statements took longer than ms. */
extern double latency_count_above(const uint32 *counts, double ms);

/* The rest is called in each of them. */

/* Install the hooks.  To be called while the library is preloaded. */
extern void latency_init(void);

/*
 * A utility statement begins.  If this returns true, the caller calls
 * latency_end_call, after an error too, and then, unless there was an error,
 * latency_end_utility.  *commits is for the latter, as the statement may be gone by
 * then.
 */
extern bool latency_begin_utility(const PlannedStmt *pstmt, uint64 *start, bool *commits);
extern void latency_end_call(uint64 start);
extern void latency_end_utility(uint64 start, bool commits);

extern Size latency_shmem_size(void);
extern void latency_shmem_init(void);

/* ---------------------------------------------------------------------------
 * neighbours.c: what they do
 * ---------------------------------------------------------------------------
 */

/* The time between two looks: enough for who waits for as long as it can be felt */
#define NEIGHBOURS_LOOK_NS	(100 * (uint64) NS_PER_MS)
/* The time between two glances at who waits: such waits are short, and seldom more than one at a time. */
#define NEIGHBOURS_GLANCE_NS	(NEIGHBOURS_LOOK_NS / 10)
/* Others that use less than this part of a core, and wait for no longer, are nobody. */
#define NEIGHBOURS_NOBODY	0.02
/* The room for workers if no other session is there */
#define NEIGHBOURS_NONE		PG_INT32_MAX
/* This many looks in succession are compared. */
#define NEIGHBOURS_LOOKS	3

/* How many were at work in looks so far; zeroed at first */
typedef struct NeighboursSeen
{
	double		average;
	double		seconds;		/* since it was last changed */
	int			looks;			/* that are comparable */
	int			counts[NEIGHBOURS_LOOKS];
} NeighboursSeen;

/* What others have had since they were looked at last, in ns */
typedef struct NeighboursTimes
{
	uint64		looked;			/* the time that the figures are of */
	uint64		ran;
	uint64		waited;			/* for what VACUUM uses, too */
	bool		cores_are_unknown;	/* the time for which they wait for one is
									 * part of the time that they ran */
} NeighboursTimes;

/* The law, which knows nothing of the server, is neighbours_law and neighbours_note. */

/*
 * A look, this many seconds after the one before, has counted this many others.  Until
 * there are three looks, none more than a second after the one before, the average
 * stays as it was.
 */
extern void neighbours_note(NeighboursSeen *seen, int count, double seconds);

/*
 * Return for how many workers there is room if this many processes of others want one
 * of the cores.
 */
extern uint32 neighbours_law(double others, int cores);

/* This process takes part in a VACUUM, until neighbours_leave or its end. */
extern void neighbours_join(void);

/* It no longer does; harmless if it never did. */
extern void neighbours_leave(void);

/* To be called in a process before it looks. */
extern void neighbours_prepare(void);

/*
 * The leader may have workers: look around now, as often as it takes to know
 * something.  Sleeps for some ms if this process has not looked within the last
 * second.
 */
extern void neighbours_begin(void);

/*
 * Look around, unless this process has done so within the last tenth of a second;
 * return whether it has looked.  With reads_times, *times is what others have had
 * since the last look; then call it as often as NEIGHBOURS_GLANCE_NS, if that can be.
 */
extern bool neighbours_look(uint64 now, bool reads_times, NeighboursTimes *times);

/* Return for how many workers there is room, by the looks so far. */
extern uint32 neighbours_room(void);

extern void neighbours_shmem_request(void);
extern void neighbours_shmem_init(void);

#endif							/* CYCLONE_NEIGHBOURS_H */
