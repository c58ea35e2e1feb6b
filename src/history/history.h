/*-------------------------------------------------------------------------
 *
 * history.h
 *	  The history of VACUUMs, for the code that runs them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_HISTORY_H
#define CYCLONE_HISTORY_H

#include "commands/vacuum.h"
#include "utils/rel.h"

#include "report/result.h"

/* The kind of a run; in the order of operation_names in history_view.c */
typedef enum HistoryKind
{
	HISTORY_VACUUM,
	HISTORY_SERVERS_VACUUM,		/* left to PostgreSQL */
	HISTORY_REWRITE,
	HISTORY_INPLACE,
	HISTORY_REPACK,
} HistoryKind;

/* Most phases that a kind has; in the order of phase_names in history_view.c */
#define HISTORY_PHASES	6

/* What has started a run; in the order of starter_names in history_view.c */
typedef enum HistoryStarter
{
	HISTORY_COMMAND,
	HISTORY_AUTOVACUUM,
	HISTORY_COMPACTION,
} HistoryStarter;

/* The results of a run; numbers are -1 if they aren't known */
typedef struct HistoryFigures
{
	double		phase_seconds[HISTORY_PHASES];
	int			workers_launched;
	int			index_scans;
	int64		rows_removed;
	int64		rows_dead;		/* but not yet removable */
	int64		rows_moved;
	int64		pages_scanned;
	int64		pages_before;	/* of the table's main fork; always known */
	int64		bytes_before;	/* with indexes, see docs/history.md */
	int64		bytes_after;
	int64		audited_pages;	/* of the table and its indexes */
} HistoryFigures;

/*
 * history_init has warnings watched, and is called while the library is preloaded.  Any
 * process may ask whether there is a history at all.  A worker of compaction says so once.
 */
extern void history_init(void);
extern bool history_is_kept(void);
extern void history_started_by_compaction(void);

/*
 * A run, in the process that leads it; a process has one run at a time.  history_begin
 * must be called in a transaction, with the table open and locked, and may raise an
 * error.  The others raise none, and do nothing if no run has begun.  history_fail must be
 * called where an error is caught, as the last thing before it is thrown again.
 */
extern void history_begin(HistoryKind kind, Relation rel, const VacuumParams *params);
extern HistoryFigures *history_figures(void);
extern void history_vacuumed(const TableResult *result);
extern void history_end(void);
extern void history_fail(void);

#endif							/* CYCLONE_HISTORY_H */
