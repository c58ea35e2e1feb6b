/*-------------------------------------------------------------------------
 *
 * table_run.h
 *	  A run of the engine: VACUUM of one table, for a command or for autovacuum.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_RUN_H
#define CYCLONE_TABLE_RUN_H

#include "commands/vacuum.h"
#include "storage/buf.h"
#include "utils/rel.h"

#include "report/result.h"

/* What a caller has to do with a run; each routine may be NULL. */
typedef struct TableRunCaller
{
	/* before anything else; returns whether the run is to keep to no budget */
	bool		(*begin) (void *state);

	/* when an error ends the run, and is about to be raised again */
	void		(*fail) (void *state);

	/* when it has ended well; before the history, which may serve interrupts */
	void		(*end) (void *state);

	void	   *state;			/* for these */
} TableRunCaller;

/*
 * Vacuum a table as table_vacuum, with a pace, a row in the history, and what is to be
 * done after an error.  params are looked at when begin has returned.  The caller is in a
 * transaction with a snapshot, holds a ShareUpdateExclusiveLock on rel, and runs as its
 * owner.  Settings are changed in the caller's nest level.  An error is raised again.
 */
extern void table_run(Relation rel, const VacuumParams *params, BufferAccessStrategy strategy,
					  const TableRunCaller *caller, TableResult *result);

#endif							/* CYCLONE_TABLE_RUN_H */
