/*-------------------------------------------------------------------------
 *
 * history_view.c
 *	  The functions of the view cyclone.history.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "history/history_rows.h"
#include "library.h"

#define HISTORY_COLUMNS	29
/* The first ones, which every role may see of each run */
#define PUBLIC_COLUMNS	2

/* A row that is made from left to right */
typedef struct RowMaker
{
	int			column;
	Datum		values[HISTORY_COLUMNS];
	bool		nulls[HISTORY_COLUMNS];
} RowMaker;

/* in the order of HistoryStarter */
static const char *const starter_names[] = {"command", "autovacuum", "compaction"};

/* in the order of HistoryKind */
static const char *const operation_names[] = {
	"VACUUM", "VACUUM", "FULL REWRITE", "FULL INPLACE", "REPACK",
};

/* in the order of HistoryOutcome */
static const char *const outcome_names[] = {
	"done", "cancelled", "failed",
};

/* in the order of Guard */
static const char *const guard_names[NUM_GUARDS] = {"pause", "WAL rate", "lag", "disk"};

/* of each kind; the rest of the time is "other" */
static const char *const phase_names[][HISTORY_PHASES] = {
	{"heap scan", "index vacuum", "heap vacuum", "index cleanup", "truncation", "team"},
	{NULL},
	{"heap copy", "linked row versions", "TOAST copy", "TOAST index", "index build"},
	{"vacuum", "moving values", "moving rows", "indexes rebuilt"},
	{"heap copy", "linked row versions", "TOAST copy", "TOAST index", "index build"},
};

static void put_run(ReturnSetInfo *result, const HistoryRow *row);
static void add_identity(RowMaker *maker, const HistoryRow *row);
static void add_figures(RowMaker *maker, const HistoryRow *row);
static void add_value(RowMaker *maker, Datum value, bool is_null);
static void add_number(RowMaker *maker, int64 number);
static void add_text(RowMaker *maker, const char *text);
static void add_phases(RowMaker *maker, const HistoryRow *row);
static void add_held(RowMaker *maker, const HistoryRow *row);
static double run_seconds(const HistoryRow *row);

PG_FUNCTION_INFO_V1(pg_cyclone_history);
PG_FUNCTION_INFO_V1(pg_cyclone_history_reset);

/*
 * pg_cyclone_history
 *		The rows of cyclone.history.  As in cyclone.progress, a role that may not see the
 *		statistics of the run's user sees only that there was one.
 */
Datum
pg_cyclone_history(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	HistoryRow *rows;
	int			nrows;

	refuse_without_preloading();
	library_begin_rows(fcinfo, HISTORY_COLUMNS);
	nrows = history_rows_copy(&rows);
	for (int i = 0; i < nrows; i++)
		put_run(result, &rows[i]);
	if (rows != NULL)
		pfree(rows);
	return (Datum) 0;
}

/*
 * pg_cyclone_history_reset
 *		Forget all rows.  Returns how many there were.
 */
Datum
pg_cyclone_history_reset(PG_FUNCTION_ARGS)
{
	refuse_without_preloading();
	PG_RETURN_INT64(history_rows_forget());
}

/* put_run -- a row of the view. */
static void
put_run(ReturnSetInfo *result, const HistoryRow *row)
{
	RowMaker	maker = {0};

	add_value(&maker, Int64GetDatum((int64) row->number), false);
	add_value(&maker, ObjectIdGetDatum(row->database), false);
	Assert(maker.column == PUBLIC_COLUMNS);
	if (library_may_see(GetUserId(), row->user_id))
	{
		add_identity(&maker, row);
		add_figures(&maker, row);
	}
	else
		while (maker.column < HISTORY_COLUMNS)
			add_value(&maker, (Datum) 0, true);
	Assert(maker.column == HISTORY_COLUMNS);

	tuplestore_putvalues(result->setResult, result->setDesc, maker.values, maker.nulls);
	for (int i = PUBLIC_COLUMNS; i < HISTORY_COLUMNS; i++)
		if (!maker.nulls[i] && !TupleDescAttr(result->setDesc, i)->attbyval)
			pfree(DatumGetPointer(maker.values[i]));
}

/* add_identity -- the table, the statement, its user, its time, and how it ended. */
static void
add_identity(RowMaker *maker, const HistoryRow *row)
{
	char	   *name = quote_qualified_identifier(row->schema, row->name);

	add_value(maker, ObjectIdGetDatum(row->relid), false);
	add_text(maker, name);
	pfree(name);
	add_text(maker, starter_names[row->started_by]);
	add_text(maker, operation_names[row->kind]);
	add_text(maker, row->options);
	add_text(maker, row->kind == HISTORY_SERVERS_VACUUM ? "server" : "engine");
	add_value(maker, ObjectIdGetDatum(row->user_id), !OidIsValid(row->user_id));
	add_value(maker, TimestampTzGetDatum(row->start), false);
	add_value(maker, Float8GetDatum(run_seconds(row)), false);
	add_phases(maker, row);
	add_text(maker, outcome_names[row->outcome]);
	add_text(maker, row->sqlerrcode != 0 ? unpack_sql_state(row->sqlerrcode) : "");
	add_text(maker, row->error);
	add_text(maker, row->warnings);
}

/* add_figures -- its results. */
static void
add_figures(RowMaker *maker, const HistoryRow *row)
{
	const HistoryFigures *figures = &row->figures;

	add_value(maker, BoolGetDatum(row->is_wraparound), false);
	add_number(maker, figures->rows_removed);
	add_number(maker, figures->rows_dead);
	add_number(maker, figures->rows_moved);
	add_number(maker, figures->pages_scanned);
	add_number(maker, figures->bytes_before);
	add_number(maker, figures->bytes_after);
	add_value(maker, Int32GetDatum(figures->workers_launched), figures->workers_launched < 0);
	add_number(maker, (int64) row->wal_bytes);
	add_value(maker, Float8GetDatum(row->slept_seconds), isnan(row->slept_seconds));
	add_held(maker, row);
	add_number(maker, figures->audited_pages);
	add_value(maker, BoolGetDatum(row->audit_failed), false);
}

/* add_value -- the next column has this value, or is null. */
static void
add_value(RowMaker *maker, Datum value, bool is_null)
{
	Assert(maker->column < HISTORY_COLUMNS);
	maker->values[maker->column] = value;
	maker->nulls[maker->column++] = is_null;
}

/* add_number -- it is a bigint, null if that isn't known. */
static void
add_number(RowMaker *maker, int64 number)
{
	add_value(maker, Int64GetDatum(number), number < 0);
}

/*
 * add_text
 *		It is a text, null if that is empty.
 *
 * It may come from a database with another encoding than ours; bytes that
 * are no text in ours are shown with question marks for all that isn't ASCII.
 */
static void
add_text(RowMaker *maker, const char *text)
{
	char	   *copy;

	if (text[0] == '\0')
	{
		add_value(maker, (Datum) 0, true);
		return;
	}
	copy = pstrdup(text);
	if (!pg_verifymbstr(copy, strlen(copy), true))
		for (char *c = copy; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
	add_value(maker, CStringGetTextDatum(copy), false);
	pfree(copy);
}

/* add_phases -- it is the duration of each phase, in seconds. */
static void
add_phases(RowMaker *maker, const HistoryRow *row)
{
	double		other = run_seconds(row);
	StringInfoData buf;

	if (!row->has_figures || phase_names[row->kind][0] == NULL)
	{
		add_value(maker, (Datum) 0, true);
		return;
	}

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '{');
	for (int i = 0; i < HISTORY_PHASES && phase_names[row->kind][i] != NULL; i++)
	{
		double		seconds = row->figures.phase_seconds[i];

		if (seconds <= 0)
			continue;
		appendStringInfo(&buf, "\"%s\": %.6f, ", phase_names[row->kind][i], seconds);
		other -= seconds;
	}
	appendStringInfo(&buf, "\"other\": %.6f}", Max(other, 0.0));
	add_value(maker, DirectFunctionCall1(jsonb_in, CStringGetDatum(buf.data)), false);
	pfree(buf.data);
}

/* add_held -- it is how long each guard has held the run, in seconds; null if none has, or it isn't known. */
static void
add_held(RowMaker *maker, const HistoryRow *row)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < NUM_GUARDS; i++)
		if (row->held.seconds[i] > 0)
			appendStringInfo(&buf, "%s\"%s\": %.6f", buf.len > 0 ? ", " : "{",
							 guard_names[i], row->held.seconds[i]);
	appendStringInfoChar(&buf, '}');
	if (buf.len > 1)
		add_value(maker, DirectFunctionCall1(jsonb_in, CStringGetDatum(buf.data)), false);
	else
		add_value(maker, (Datum) 0, true);
	pfree(buf.data);
}

/* run_seconds -- how long a run took. */
static double
run_seconds(const HistoryRow *row)
{
	return (double) (row->end - row->start) / USECS_PER_SEC;
}
