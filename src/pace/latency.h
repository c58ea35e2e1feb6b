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

/*
 * Statements are timed, and counted by themselves and as parts of transactions.
 * Those of clients are counted once more without what servers of a cluster ask
 * one another for.
 */
typedef enum LatencyOf
{
	LATENCY_OF_STATEMENTS,
	LATENCY_OF_TRANSACTIONS,
	LATENCY_OF_CLIENTS_STATEMENTS,
	LATENCY_OF_CLIENTS_TRANSACTIONS,
} LatencyOf;

#define LATENCY_KINDS		(LATENCY_OF_CLIENTS_TRANSACTIONS + 1)

/* Latencies are counted by their logarithm, with 16 steps a doubling. */
#define LATENCY_BUCKETS		481

/* latency_is_of_transactions -- or of statements? */
static inline bool
latency_is_of_transactions(LatencyOf of)
{
	return of == LATENCY_OF_TRANSACTIONS || of == LATENCY_OF_CLIENTS_TRANSACTIONS;
}

/* latency_is_of_clients -- or of servers that ask for something, too? */
static inline bool
latency_is_of_clients(LatencyOf of)
{
	return of == LATENCY_OF_CLIENTS_STATEMENTS || of == LATENCY_OF_CLIENTS_TRANSACTIONS;
}

/* latency_of_clients -- the same of clients only. */
static inline LatencyOf
latency_of_clients(LatencyOf of)
{
	return latency_is_of_transactions(of) ? LATENCY_OF_CLIENTS_TRANSACTIONS : LATENCY_OF_CLIENTS_STATEMENTS;
}

extern void latency_init(bool (*is_server) (void));
extern void latency_prepare(void);
extern void latency_watch(void);
extern void latency_unwatch(void);

extern bool latency_begin_utility(const PlannedStmt *pstmt, uint64 *start, bool *commits);
extern void latency_end_call(uint64 start);
extern void latency_forget_statement(void);
extern void latency_end_utility(uint64 start, bool commits);

extern void latency_read(LatencyOf of, uint32 *counts);
extern int	latency_add_running(LatencyOf of, double late_ms, double long_ms, float *counts,
								int *nrunning);
extern double latency_percentile(const float *counts, double percent);
extern double latency_count_above(const float *counts, double ms);

#endif							/* CYCLONE_LATENCY_H */
