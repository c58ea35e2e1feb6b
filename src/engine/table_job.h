/*-------------------------------------------------------------------------
 *
 * table_job.h
 *	  The leader's view of one table's VACUUM, and what the files of its main
 *	  path have of each other: table_vacuum.c, table_team.c, table_end.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_JOB_H
#define CYCLONE_TABLE_JOB_H

#include "engine/phases.h"
#include "engine/table_vacuum.h"
#include "report/result.h"
#include "team/team.h"

/* The leader's view of the whole vacuum */
typedef struct VacuumJob
{
	TableVacuum vacuum;			/* what every member has */
	const VacuumParams *params;
	CompactionPass *pass;		/* NULL unless the table is being compacted */
	Team	   *team;
	TableResult result;

	bool		may_bypass;		/* leave few dead items where they are? */
	bool		do_index_cleanup;
	bool		do_truncate;
	bool		memory_ran_out; /* has a warning said so? */

	/* found before the team exists, and copied to its shared block */
	VacuumShared plan;
} VacuumJob;

/*
 * All but table_error_context are the leader's.  From table_start_team to
 * table_finish_team the leader may be in parallel mode; table_truncate and
 * table_update_statistics come after that.
 */
extern int	table_plan_workers(VacuumJob *job);
extern void table_start_team(VacuumJob *job, int nworkers);
extern void table_run_phase(VacuumJob *job, VacuumPhase phase);
extern void table_sum_counters(VacuumJob *job);
extern void table_finish_team(VacuumJob *job);
extern void table_update_index_statistics(VacuumJob *job);
extern void table_truncate(VacuumJob *job);
extern void table_update_statistics(VacuumJob *job, TimestampTz start);
extern void table_describe_pass(const VacuumJob *job, CompactionPass *pass);
extern void table_error_context(void *arg);

/* table_seconds_since -- elapsed time. */
static inline double
table_seconds_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_DOUBLE(now);
}

#endif							/* CYCLONE_TABLE_JOB_H */
