/*-------------------------------------------------------------------------
 *
 * dry_run.h
 *	  Rehearsals of VACUUM: what it would do, without doing it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DRY_RUN_H
#define CYCLONE_DRY_RUN_H

#include "commands/vacuum.h"
#include "nodes/parsenodes.h"
#include "utils/rel.h"

#include "command/options.h"
#include "history/history.h"

/* The expected results; numbers are -1 if they aren't known */
typedef struct DryRun
{
	HistoryKind kind;
	bool		by_engine;
	const char *reason;			/* why not, or NULL */
	bool		aggressive;
	TransactionId oldest_xmin;
	BlockNumber pages;
	BlockNumber pages_scanned;
	BlockNumber pages_to_log;	/* of these, would be logged in full if
								 * changed */
	BlockNumber nonempty_pages; /* last block with rows, plus one */

	/* on scanned pages */
	int64		rows_removed;
	int64		rows_live;
	int64		rows_dead;		/* dead, but not yet removable */
	int64		rows_frozen;
	BlockNumber pages_frozen;
	int64		dead_items;		/* to be deleted from indexes */
	BlockNumber dead_item_pages;
	Size		dead_item_bytes;	/* in the store */
	double		heap_wal;		/* bytes */

	int64		rows_remaining; /* in the table, as VACUUM estimates them */
	int			nindexes;
	BlockNumber index_pages;
	int			index_scans;
	BlockNumber pages_after;
	int64		bytes_freed;	/* given back, by the indexes, too */
	int64		disk_bytes;		/* needed in addition meanwhile */
	int64		wal_bytes;
	int			nruns;			/* past ones, on which the times are based */
	bool		runs_are_own;	/* of this table? */
	double		phase_seconds[HISTORY_PHASES];
	char	   *holder;			/* what holds dead rows back, or NULL */
} DryRun;

/* dry_run.c */

/* Rehearse a VACUUM with these options, which no longer have DRY_RUN. */
extern void dry_run_statement(const VacuumStmt *stmt, const VacuumOptions *options);

/* dry_run_heap.c */

/*
 * Fill in what is expected of the heap.  The caller has the table locked, so that it
 * isn't truncated meanwhile.
 */
extern void dry_run_heap(Relation rel, const VacuumParams *params, DryRun *run);

/* dry_run_time.c */

/*
 * Fill in phase_seconds, in the order of phase_names in history_view.c, and wal_bytes if
 * it isn't known yet.  No phase's time is known if there are no past runs that the user may
 * see.
 */
extern void dry_run_time(Relation rel, DryRun *run);

#endif							/* CYCLONE_DRY_RUN_H */
