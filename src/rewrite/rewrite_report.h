/*-------------------------------------------------------------------------
 *
 * rewrite_report.h
 *	  What VACUUM FULL or REPACK of one table did, and the report to the client.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_REWRITE_REPORT_H
#define CYCLONE_REWRITE_REPORT_H

#include "portability/instr_time.h"
#include "utils/pg_rusage.h"

#include "index_build/index_builds.h"
#include "rewrite/rewrite.h"

/* The steps whose time is taken */
typedef enum RewriteStep
{
	STEP_COPY_TABLE,
	STEP_COPY_CHAINS,
	STEP_COPY_TOAST,
	STEP_INDEX_TOAST,
	STEP_SWAP_AND_INDEX,
} RewriteStep;

#define NUM_REWRITE_STEPS	(STEP_SWAP_AND_INDEX + 1)

/* A relation's size before; that after is looked up at the end */
typedef struct RewriteSize
{
	Oid			relid;
	char	   *name;			/* NULL for the table and its TOAST table */
	BlockNumber before;
	double		build_seconds;	/* 0 if unknown */
} RewriteSize;

typedef struct RewriteResult
{
	const char *command;		/* that did it */
	Oid			relid;
	char	   *dbname;
	char	   *relnamespace;
	char	   *relname;
	PGRUsage	rusage;
	instr_time	start;
	BlockNumber old_blocks;
	RewriteCounters counters[NUM_REWRITE_HEAPS];
	char	   *horizon;		/* who holds dead rows back, or NULL */
	int64		stale_locks;	/* left out of copies, those of the TOAST
								 * table too */
	int			workers_planned;
	int			workers_launched;
	int			workers_without_buffers;	/* as shared_buffers is tiny */
	double		step_seconds[NUM_REWRITE_STEPS];
	IndexBuildsResult indexes;
	int64		audited_index_pages;
	int			nsizes;			/* the table, its TOAST table, the indexes */
	RewriteSize *sizes;
} RewriteResult;

/*
 * The leader calls rewrite_report_begin with rel locked, rewrite_report_step at the end
 * of each step, rewrite_report_index for each index that has been built,
 * rewrite_report_heap when the heaps are copied, and rewrite_report_end when the table
 * has its new files.  Rows that were deleted at oldest_xmin or later were kept.
 */
extern void rewrite_report_begin(RewriteResult *result, Relation rel, bool verbose);
extern void rewrite_report_step(RewriteResult *result, RewriteStep step, instr_time start);
extern void rewrite_report_index(void *result, Oid relid, double seconds);
extern void rewrite_report_heap(RewriteResult *result, bool verbose, Relation rel,
								TransactionId oldest_xmin);
extern void rewrite_report_end(const RewriteResult *result, bool verbose);

#endif							/* CYCLONE_REWRITE_REPORT_H */
