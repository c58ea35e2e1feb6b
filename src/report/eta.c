/*-------------------------------------------------------------------------
 *
 * eta.c
 *	  The view cyclone.progress, and when the running VACUUMs will be done.
 *
 * A phase that goes over a known number of blocks ends when the rest of them is done, at
 * its rate so far.  Any other phase takes as long as in the last run of the same kind on
 * the same table, times the growth of the table since, and so do the phases that come
 * later.  Runs of commands count for a command, those of autovacuum for autovacuum.  Where
 * phases come several times (FULL INPLACE, a heap scan in rounds), or if the phase isn't
 * one of the history's, only the total time of that run counts.
 *
 * Without such a basis an estimate is null: in the first run of a table, or in a phase that
 * takes longer than in the last one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/progress.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "history/history_rows.h"
#include "library.h"
#include "report/progress.h"

#define PROGRESS_COLUMNS	12
#define UNKNOWN				(-1.0)

/* A rate of nearly nothing must not lead beyond the range of timestamps. */
#define LONGEST_SECONDS	(100.0 * 365 * SECS_PER_DAY)

/* Phases of the history that come one after the other, in this order */
#define ORDERED_PHASES	5

static void put_estimates(const ProgressRow *leader, const ProgressRow *rows, int nrows,
						  const HistoryRow *run, Datum *values, bool *nulls);
static const HistoryRow *find_last_run(const ProgressRow *leader, const HistoryRow *rows, int nrows);
static double seconds_by_rate(const ProgressRow *leader, const ProgressRow *rows, int nrows,
							  double elapsed);
static bool goes_by_blocks(const ProgressRow *leader);
static void seconds_by_last_run(const ProgressRow *leader, const HistoryRow *run, double in_phase,
								double in_run, double *phase, double *whole);
static int	place_in_history(const ProgressRow *leader);
static double left_of(double seconds, double elapsed);
static void put_moment(double seconds, TimestampTz now, Datum *value, bool *null);
static const char *phase_name(uint32 phase);

PG_FUNCTION_INFO_V1(pg_cyclone_progress);

/*
 * pg_cyclone_progress
 *		The rows of cyclone.progress.  As in pg_stat_activity, a role that may not
 *		see the statistics of the command's user sees only that it runs.
 */
Datum
pg_cyclone_progress(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	HistoryRow *history = NULL;
	int			nhistory = -1;
	ProgressRow *rows;
	int			nrows;

	refuse_without_preloading();
	library_begin_rows(fcinfo, PROGRESS_COLUMNS);
	nrows = progress_read(&rows);
	for (int i = 0; i < nrows; i++)
	{
		const ProgressRow *row = &rows[i];
		bool		is_leader = row->pid == row->leader_pid;
		Datum		values[PROGRESS_COLUMNS] = {0};
		bool		nulls[PROGRESS_COLUMNS] = {0};

		values[0] = Int32GetDatum(row->pid);
		values[2] = ObjectIdGetDatum(row->database);
		if (!library_may_see(GetUserId(), row->user_id))
		{
			memset(nulls, true, sizeof(nulls));
			nulls[0] = nulls[2] = false;
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
			continue;
		}
		values[1] = Int32GetDatum(row->leader_pid);
		values[3] = ObjectIdGetDatum(row->relid);
		values[4] = CStringGetTextDatum(is_leader ? "leader" : "worker");
		values[5] = CStringGetTextDatum(phase_name(row->phase));
		values[6] = Int64GetDatum(row->blocks_done);
		values[7] = Int64GetDatum(row->blocks_total);
		values[8] = ObjectIdGetDatum(row->index_relid);
		nulls[8] = !OidIsValid(row->index_relid);
		values[9] = Int64GetDatum(row->bytes_freed);
		nulls[10] = nulls[11] = true;
		if (is_leader)
		{
			/* not before it is needed, as it may be long */
			if (nhistory < 0)
				nhistory = history_rows_copy(&history);
			put_estimates(row, rows, nrows, find_last_run(row, history, nhistory), &values[10], &nulls[10]);
		}
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	if (history != NULL)
		pfree(history);
	pfree(rows);
	return (Datum) 0;
}

/* put_estimates -- when the phase of a leader will be done, and its run; run is the last one, or NULL. */
static void
put_estimates(const ProgressRow *leader, const ProgressRow *rows, int nrows, const HistoryRow *run,
			  Datum *values, bool *nulls)
{
	TimestampTz now = GetCurrentTimestamp();
	double		in_phase = Max((now - leader->phase_start) / (double) USECS_PER_SEC, 0);
	double		in_run = Max((now - leader->run_start) / (double) USECS_PER_SEC, 0);
	double		phase = seconds_by_rate(leader, rows, nrows, in_phase);
	double		whole = UNKNOWN;

	if (run != NULL)
		seconds_by_last_run(leader, run, in_phase, in_run, &phase, &whole);
	put_moment(phase, now, &values[0], &nulls[0]);
	put_moment(whole, now, &values[1], &nulls[1]);
}

/* find_last_run -- the last run that says something about the one of this leader; NULL: none. */
static const HistoryRow *
find_last_run(const ProgressRow *leader, const HistoryRow *rows, int nrows)
{
	const HistoryRow *last = NULL;

	for (int i = 0; i < nrows; i++)
	{
		const HistoryRow *row = &rows[i];

		if (row->relid == leader->run_relid &&
			(row->database == leader->database || !OidIsValid(row->database)) &&
			row->kind == leader->run_kind &&
			(row->started_by == HISTORY_AUTOVACUUM) == leader->run_is_autovacuum &&
			row->outcome == HISTORY_DONE && row->has_figures &&
			(last == NULL || row->number > last->number) && library_may_see(GetUserId(), row->user_id))
			last = row;
	}
	return last;
}

/*
 * seconds_by_rate
 *		In how many seconds the phase will be done, at the rate of all processes together;
 *		UNKNOWN if it doesn't go by blocks, or none is done.
 */
static double
seconds_by_rate(const ProgressRow *leader, const ProgressRow *rows, int nrows, double elapsed)
{
	double		done = leader->blocks_of_leavers;
	double		left;

	if (!goes_by_blocks(leader))
		return UNKNOWN;
	for (int i = 0; i < nrows; i++)
		if (rows[i].leader_pid == leader->pid && rows[i].phase == leader->phase)
			done += rows[i].phase_blocks_done;
	left = (double) leader->phase_blocks - leader->blocks_of_rounds - done;
	return done > 0 ? Max(left, 0) * elapsed / done : UNKNOWN;
}

/* goes_by_blocks -- is the leader in a phase over a known number of blocks? */
static bool
goes_by_blocks(const ProgressRow *leader)
{
	switch (leader->phase)
	{
		case PROGRESS_VACUUM_PHASE_SCAN_HEAP:
		case PROGRESS_REWRITE_COPY_TOAST:
		case PROGRESS_REWRITE_COPY_HEAP:
		case PROGRESS_INPLACE_MOVE:
		case PROGRESS_INPLACE_MOVE_VALUES:
			return leader->phase_blocks > 0;
		case PROGRESS_VACUUM_PHASE_VACUUM_HEAP:
			/* if there are rounds, each goes over an unknown part */
			return leader->phase_blocks > 0 && leader->blocks_of_rounds == 0;
		default:
			return false;
	}
}

/*
 * seconds_by_last_run
 *		In how many seconds the whole will be done, as the last run was, and the phase, too,
 *		unless that is known.
 */
static void
seconds_by_last_run(const ProgressRow *leader, const HistoryRow *run, double in_phase,
					double in_run, double *phase, double *whole)
{
	int			place = place_in_history(leader);
	double		growth = leader->run_pages > 0 && run->figures.pages_before > 0 ?
		(double) leader->run_pages / run->figures.pages_before : 1;
	double		run_seconds = (run->end - run->start) / (double) USECS_PER_SEC;
	double		later = run_seconds;	/* than this phase, with time of no
										 * phase */

	Assert(place < ORDERED_PHASES);

	if (place < 0)
	{
		*whole = left_of(run_seconds * growth, in_run);
		return;
	}
	for (int i = 0; i <= place; i++)
		later -= run->figures.phase_seconds[i];
	if (*phase == UNKNOWN)
		*phase = left_of(run->figures.phase_seconds[place] * growth, in_phase);
	if (*phase != UNKNOWN)
		*whole = *phase + Max(later, 0) * growth;
}

/*
 * place_in_history
 *		Which of the history's phases the leader is in (see phase_names in
 *		history_view.c); -1 if it is in none, or if they come several times.
 */
static int
place_in_history(const ProgressRow *leader)
{
	static const int vacuum_phases[ORDERED_PHASES] = {
		PROGRESS_VACUUM_PHASE_SCAN_HEAP, PROGRESS_VACUUM_PHASE_VACUUM_INDEX,
		PROGRESS_VACUUM_PHASE_VACUUM_HEAP, PROGRESS_VACUUM_PHASE_INDEX_CLEANUP,
		PROGRESS_VACUUM_PHASE_TRUNCATE,
	};
	static const int rewrite_phases[ORDERED_PHASES] = {
		PROGRESS_REWRITE_COPY_HEAP, PROGRESS_REWRITE_COPY_CHAINS,
		PROGRESS_REWRITE_COPY_TOAST, PROGRESS_REWRITE_INDEX_TOAST,
		PROGRESS_REWRITE_INDEX,
	};
	const int  *phases;

	switch (leader->run_kind)
	{
		case HISTORY_VACUUM:
			phases = vacuum_phases;
			break;
		case HISTORY_REWRITE:
		case HISTORY_REPACK:
			phases = rewrite_phases;
			break;
		default:
			return -1;
	}
	for (int i = 0; i < ORDERED_PHASES && leader->blocks_of_rounds == 0; i++)
		if (phases[i] == leader->phase)
			return i;
	return -1;
}

/* left_of -- what is left of that time; UNKNOWN if it is over. */
static double
left_of(double seconds, double elapsed)
{
	return seconds > elapsed ? seconds - elapsed : UNKNOWN;
}

/* put_moment -- in that many seconds; null if it isn't known. */
static void
put_moment(double seconds, TimestampTz now, Datum *value, bool *null)
{
	*null = seconds == UNKNOWN || seconds > LONGEST_SECONDS;
	if (!*null)
		*value = TimestampTzGetDatum(now + (TimestampTz) (seconds * USECS_PER_SEC));
}

/* phase_name -- the phase in the words of pg_stat_progress_vacuum, or in our own. */
static const char *
phase_name(uint32 phase)
{
	switch (phase)
	{
		case PROGRESS_VACUUM_PHASE_SCAN_HEAP:
			return "scanning heap";
		case PROGRESS_VACUUM_PHASE_VACUUM_INDEX:
			return "vacuuming indexes";
		case PROGRESS_VACUUM_PHASE_VACUUM_HEAP:
			return "vacuuming heap";
		case PROGRESS_VACUUM_PHASE_INDEX_CLEANUP:
			return "cleaning up indexes";
		case PROGRESS_VACUUM_PHASE_TRUNCATE:
			return "truncating heap";
		case PROGRESS_VACUUM_PHASE_FINAL_CLEANUP:
			return "performing final cleanup";
		case PROGRESS_REWRITE_COPY_TOAST:
			return "copying TOAST table";
		case PROGRESS_REWRITE_COPY_HEAP:
			return "copying heap";
		case PROGRESS_REWRITE_INDEX_TOAST:
			return "indexing TOAST table";
		case PROGRESS_REWRITE_COPY_CHAINS:
			return "copying linked row versions";
		case PROGRESS_REWRITE_INDEX:
			return "rebuilding indexes";
		case PROGRESS_REWRITE_AUDIT:
			return "auditing new indexes";
		case PROGRESS_INPLACE_PLAN:
			return "planning moves";
		case PROGRESS_INPLACE_MOVE:
			return "moving rows";
		case PROGRESS_INPLACE_MOVE_VALUES:
			return "moving values";
		case PROGRESS_INPLACE_REINDEX:
			return "reindexing";
		case PROGRESS_INPLACE_WAIT:
			return "waiting for other transactions";
		default:
			return "initializing";
	}
}
