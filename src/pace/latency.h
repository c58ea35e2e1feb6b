/*-------------------------------------------------------------------------
 *
 * latency.h
 *	  How long the statements of ordinary sessions take.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LATENCY_H
#define CYCLONE_LATENCY_H

#include "nodes/plannodes.h"

/* Statements are timed, and counted by themselves and as parts of transactions. */
typedef enum LatencyOf
{
	LATENCY_OF_STATEMENTS,
	LATENCY_OF_TRANSACTIONS,
} LatencyOf;

#define LATENCY_KINDS		(LATENCY_OF_TRANSACTIONS + 1)

/* Latencies are counted by their logarithm, with 16 steps a doubling. */
#define LATENCY_BUCKETS		481

extern void latency_init(void);
extern void latency_prepare(void);
extern void latency_watch(void);
extern void latency_unwatch(void);

extern bool latency_begin_utility(const PlannedStmt *pstmt, uint64 *start, bool *commits);
extern void latency_end_call(uint64 start);
extern void latency_end_utility(uint64 start, bool commits);

extern void latency_read(LatencyOf of, uint32 *counts);
extern int	latency_add_running(LatencyOf of, double late_ms, double long_ms, float *counts);
extern double latency_percentile(const float *counts, double percent);

#endif							/* CYCLONE_LATENCY_H */
