/*-------------------------------------------------------------------------
 *
 * history_rows.h
 *	  The rows of cyclone.history, in shared memory and on disk.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_HISTORY_ROWS_H
#define CYCLONE_HISTORY_ROWS_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

#include "guards/guards.h"
#include "history/history.h"

#define HISTORY_OPTIONS_SIZE	160 /* enough for all options */
#define HISTORY_WARNINGS_SIZE	256
#define HISTORY_ERROR_SIZE		256

/* How a run ended; in the order of outcome_names in history_view.c */
typedef enum HistoryOutcome
{
	HISTORY_DONE,
	HISTORY_CANCELLED,			/* an operator has intervened */
	HISTORY_FAILED,
} HistoryOutcome;

/* A run.  It is written to a file as it is here: see history_rows.c. */
typedef struct HistoryRow
{
	uint64		number;			/* counts up from 1 */
	Oid			database;		/* InvalidOid: a shared catalog */
	Oid			relid;
	Oid			user_id;		/* InvalidOid: autovacuum */
	Oid			owner;			/* of the table */
	TimestampTz start;
	TimestampTz end;
	uint8		kind;			/* HistoryKind */
	uint8		outcome;		/* HistoryOutcome */
	uint8		started_by;		/* HistoryStarter */
	bool		is_wraparound;
	bool		has_figures;
	bool		audit_failed;	/* did a failed audit end it? */
	int32		sqlerrcode;		/* 0: none */
	HistoryFigures figures;
	uint64		wal_bytes;
	double		slept_seconds;	/* NAN: not known, and held is then 0 */
	GuardTimes	held;
	char		schema[NAMEDATALEN];
	char		name[NAMEDATALEN];
	char		options[HISTORY_OPTIONS_SIZE];
	char		warnings[HISTORY_WARNINGS_SIZE];
	char		error[HISTORY_ERROR_SIZE];
} HistoryRow;

/* What of a run says how long the next one will take; a HistoryRow has a kB */
typedef struct PastRun
{
	HistoryKind kind;
	Oid			relid;			/* InvalidOid: in another database */
	double		seconds;		/* at work */
	double		pages;			/* visited */
} PastRun;

/*
 * All but history_rows_add do nothing, or return nothing, where no history is kept;
 * history_rows_add must not be called there.  It raises no error.  It takes two locks,
 * and waits for no other while it has them, so a caller may hold any lock.
 */
extern void history_rows_shmem_request(void);
extern void history_rows_shmem_init(void);
extern void history_rows_load(void);
extern void history_rows_add(HistoryRow *row);
extern int	history_rows_copy(HistoryRow **copy);
extern int64 history_rows_forget(void);

/*
 * history_rows_past
 *		A list of PastRun: those that the user may see and that came to their end.  They
 *		worked while they neither slept to keep to a budget, nor were held.
 */
extern List *history_rows_past(void);

#endif							/* CYCLONE_HISTORY_ROWS_H */
