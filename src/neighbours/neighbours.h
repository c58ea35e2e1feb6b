/*-------------------------------------------------------------------------
 *
 * neighbours.h
 *	  Other sessions of the server: what they do, how long they wait, and how long
 *	  their statements take.
 *
 * It is measured here, for whoever wants to spare them; what comes of it is not decided
 * here.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEIGHBOURS_H
#define CYCLONE_NEIGHBOURS_H

#include "nodes/plannodes.h"

/* ---------------------------------------------------------------------------
 * cores.c: how many cores there are for this process
 * ---------------------------------------------------------------------------
 */

/* At least 1; 0: the system doesn't tell.  root: "", or a folder in tests. */
extern int	cores_for_process(const char *root);

/* ---------------------------------------------------------------------------
 * latency.c: how long their statements take
 * ---------------------------------------------------------------------------
 */

/* Latencies are counted by their logarithm, with 16 steps a doubling. */
#define LATENCY_BUCKETS		481

extern void latency_prepare(void);
extern void latency_watch(void);
extern void latency_unwatch(void);
extern void latency_excuse(int backend);
extern void latency_read(uint32 *counts);
extern int	latency_count_running(double late_ms, double long_ms, uint32 *counts, int *nrunning);
extern double latency_percentile(const uint32 *counts, double percent);
extern double latency_count_above(const uint32 *counts, double ms);

/* in each of them */
extern void latency_init(void);
extern bool latency_begin_utility(const PlannedStmt *pstmt, uint64 *start, bool *commits);
extern void latency_end_call(uint64 start);
extern void latency_end_utility(uint64 start, bool commits);

extern Size latency_shmem_size(void);
extern void latency_shmem_init(void);

/* ---------------------------------------------------------------------------
 * neighbours.c: what they do
 * ---------------------------------------------------------------------------
 */

/* There is room for so many workers if nobody else is there. */
#define NEIGHBOURS_NONE		PG_INT32_MAX
/* So many looks in succession are compared. */
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
	uint64		looked;			/* for so long that is known */
	uint64		ran;
	uint64		waited;			/* for what VACUUM uses, too */
	bool		cores_are_unknown;	/* the time for which they wait for one is
									 * part of the time that they ran */
} NeighboursTimes;

/* the law, which knows nothing of the server */
extern void neighbours_note(NeighboursSeen *seen, int count, double seconds);
extern uint32 neighbours_law(double others, int cores);

extern void neighbours_join(void);
extern void neighbours_leave(void);
extern void neighbours_prepare(void);
extern void neighbours_begin(void);
extern bool neighbours_look(uint64 now, bool reads_times, NeighboursTimes *times);
extern uint32 neighbours_room(void);

extern void neighbours_shmem_request(void);
extern void neighbours_shmem_init(void);

#endif							/* CYCLONE_NEIGHBOURS_H */
