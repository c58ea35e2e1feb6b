/*-------------------------------------------------------------------------
 *
 * inplace_report.h
 *	  Telling the client what VACUUM (FULL INPLACE) of one table did.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INPLACE_REPORT_H
#define CYCLONE_INPLACE_REPORT_H

#include "executor/instrument.h"
#include "portability/instr_time.h"
#include "utils/pg_rusage.h"

#include "engine/table_vacuum.h"
#include "inplace/inplace.h"
#include "others.h"

/* What its time goes into, as the report has it */
typedef enum InplaceStep
{
	INPLACE_VACUUM,
	INPLACE_MOVE_VALUES,
	INPLACE_MOVE,
	INPLACE_INDEXES,
} InplaceStep;

#define NUM_INPLACE_STEPS	(INPLACE_INDEXES + 1)

typedef struct InplaceResult
{
	Oid			relid;
	bool		verbose;
	PGRUsage	rusage;
	instr_time	start;
	WalUsage	wal;			/* of this process, before */
	int			passes;			/* in which rows were moved */
	int64		blocks_vacated;
	int64		stale_locks;	/* removed from rows, those of the TOAST table
								 * too */
	double		step_seconds[NUM_INPLACE_STEPS];
	int			nsizes;			/* the table, its TOAST table, the indexes */
	Oid		   *relids;
	char	  **names;
	BlockNumber *sizes;			/* before */
} InplaceResult;

/*
 * Note sizes, and return the OID of the TOAST table, or an invalid one if there is
 * none.  In a transaction; what is noted lives in context.
 */
extern Oid	inplace_report_begin(InplaceResult *result, Oid relid, MemoryContext context,
								 const VacuumParams *params);

/* A step has ended that began at start. */
extern void inplace_report_step(InplaceResult *result, InplaceStep step, instr_time start);

/*
 * Tell what became of the heap, and what was in the way.  Outside any transaction.
 */
extern void inplace_report_heap(InplaceResult *result, const Inplace *job);

/*
 * Tell of sizes, WAL and time: the client, the log and the history.  Outside any
 * transaction.
 */
extern void inplace_report_end(InplaceResult *result, const Inplace *job);

/* Warn that an index stays as it is, and why: who is in the way.  In a transaction, or not. */
extern void inplace_report_index_stays(Oid index, const OthersFound *others);

#endif							/* CYCLONE_INPLACE_REPORT_H */
