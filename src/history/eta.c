/*-------------------------------------------------------------------------
 *
 * eta.c
 *	  When the running VACUUMs will be done: columns of cyclone.progress.
 *
 * Two things are known of a running VACUUM: how fast it goes through the blocks of
 * its phase, from report/progress.c; and how long each phase took in the last runs
 * of the same kind on the same table, from the history.  Runs of commands count for
 * a command, those of autovacuum for autovacuum.
 *
 * - A phase that goes over a known number of blocks ends when the rest of them is
 *	 done, at the rate of the phase so far.  The spread is by the most recent rate
 *	 and by the rate before that.
 * - Any other phase, and that one until both rates are known, takes as long as in
 *	 one of those runs, times the growth of the table since.  Runs in which the
 *	 phase was over earlier don't count.
 * - For later phases there are two guesses by each run: its own times, and these in
 *	 proportion to how fast the phase goes now, as that run may have been on another
 *	 budget.  The median is the estimate, the least and the most are its spread.
 * - Where phases come several times (FULL INPLACE, a heap scan in rounds), or if the
 *	 phase isn't one of the history's, only the total times of runs count.
 *
 * Without such a basis an estimate is null: in the first run of a table, or in a
 * phase that takes longer than ever before.
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
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "declared_rows.h"
#include "history/history_rows.h"
#include "library.h"
#include "report/progress.h"

#define ETA_COLUMNS		8

/* How many past runs count, the most recent ones */
#define MAX_RUNS		10

/* Phases of the history that come one after the other, in this order */
#define ORDERED_PHASES	5

/* Guesses at the seconds left; without any it isn't known */
typedef struct Guesses
{
	int			number;
	double		seconds[2 * MAX_RUNS];
} Guesses;

/* Seconds left */
typedef struct Estimate
{
	bool		is_known;
	double		least;
	double		likely;
	double		most;
} Estimate;

/* A running VACUUM */
typedef struct RunningVacuum
{
	const ProgressRow *leader;
	double		phase_seconds;	/* of the phase, and of the run, until now */
	double		run_seconds;
	int			nruns;			/* past runs, the most recent first */
	const HistoryRow *runs[MAX_RUNS];
} RunningVacuum;

static void find_runs(RunningVacuum *vacuum, const HistoryRow *rows, int nrows);
static bool run_counts(const ProgressRow *leader, const HistoryRow *row);
static void estimate_by_rate(const RunningVacuum *vacuum, const ProgressRow *rows,
							 int nrows, TimestampTz now, Estimate *phase);
static bool goes_by_blocks(const ProgressRow *leader);
static void estimate_by_runs(const RunningVacuum *vacuum, Estimate *phase, Estimate *whole);
static int	place_in_history(const ProgressRow *leader);
static void add_guess(Guesses *guesses, double seconds);
static void summarize(Guesses *guesses, Estimate *estimate);
static int	compare_doubles(const void *a, const void *b);
static void put_estimate(const Estimate *estimate, TimestampTz now, Datum *values, bool *nulls);

PG_FUNCTION_INFO_V1(pg_cyclone_eta);

/*
 * pg_cyclone_eta
 *		A row for each running VACUUM whose progress the user may see.
 */
Datum
pg_cyclone_eta(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TimestampTz now = GetCurrentTimestamp();
	HistoryRow *history = NULL;
	int			nhistory = -1;
	ProgressRow *rows;
	int			nrows;

	refuse_without_preloading();
	declared_rows_begin(fcinfo, ETA_COLUMNS);
	nrows = progress_read(&rows);
	for (int i = 0; i < nrows; i++)
	{
		RunningVacuum vacuum = {.leader = &rows[i]};
		Estimate	phase = {0};
		Estimate	whole = {0};
		Datum		values[ETA_COLUMNS] = {0};
		bool		nulls[ETA_COLUMNS] = {0};

		if (rows[i].pid != rows[i].leader_pid || !progress_is_visible(&rows[i]))
			continue;
		/* not before it is needed, as it may be long */
		if (nhistory < 0)
			nhistory = history_rows_copy(&history);

		vacuum.phase_seconds = Max((now - rows[i].phase_start) / (double) USECS_PER_SEC, 0);
		vacuum.run_seconds = Max((now - rows[i].run_start) / (double) USECS_PER_SEC, 0);
		find_runs(&vacuum, history, nhistory);
		estimate_by_rate(&vacuum, rows, nrows, now, &phase);
		estimate_by_runs(&vacuum, &phase, &whole);

		values[0] = Int32GetDatum(rows[i].pid);
		put_estimate(&phase, now, &values[1], &nulls[1]);
		put_estimate(&whole, now, &values[4], &nulls[4]);
		values[7] = Int32GetDatum(vacuum.nruns);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	if (history != NULL)
		pfree(history);
	pfree(rows);
	return (Datum) 0;
}

/* find_runs -- find the most recent runs that say something about this one. */
static void
find_runs(RunningVacuum *vacuum, const HistoryRow *rows, int nrows)
{
	for (int i = 0; i < nrows; i++)
	{
		int			place = vacuum->nruns;

		if (!run_counts(vacuum->leader, &rows[i]))
			continue;
		while (place > 0 && vacuum->runs[place - 1]->number < rows[i].number)
			place--;
		if (place == MAX_RUNS)
			continue;
		if (vacuum->nruns < MAX_RUNS)
			vacuum->nruns++;
		for (int k = vacuum->nruns - 1; k > place; k--)
			vacuum->runs[k] = vacuum->runs[k - 1];
		vacuum->runs[place] = &rows[i];
	}
}

/*
 * run_counts
 *		Does this past run say something about the one of this leader?  And may
 *		the user know of it?
 */
static bool
run_counts(const ProgressRow *leader, const HistoryRow *row)
{
	return row->relid == leader->run_relid &&
		(row->database == leader->database || !OidIsValid(row->database)) &&
		row->kind == leader->run_kind &&
		(row->started_by == HISTORY_AUTOVACUUM) == leader->run_is_autovacuum &&
		row->outcome == HISTORY_DONE && row->has_figures &&
		history_is_visible(row->user_id);
}

/*
 * estimate_by_rate
 *		Estimate when the phase will be done, by its rate.
 *
 * That is the rate of all processes together; those that have left count as if
 * they had gone on steadily.  A process that is at an index meanwhile counts with
 * the blocks of its last mark.
 */
static void
estimate_by_rate(const RunningVacuum *vacuum, const ProgressRow *rows, int nrows,
				 TimestampTz now, Estimate *phase)
{
	const ProgressRow *leader = vacuum->leader;
	double		done = leader->blocks_of_leavers;
	double		rate_before = done / Max(vacuum->phase_seconds, 0.001);
	double		recent_rate = rate_before;
	double		left;

	if (!goes_by_blocks(leader))
		return;
	for (int i = 0; i < nrows; i++)
	{
		const ProgressRow *row = &rows[i];
		double		seconds = (now - row->phase_start) / (double) USECS_PER_SEC - row->mark_seconds;
		bool		is_at_index = OidIsValid(row->index_relid);

		if (row->leader_pid != leader->pid || row->phase != leader->phase)
			continue;
		done += is_at_index ? row->mark_blocks : row->blocks_done;
		if (row->mark_seconds <= 0 || seconds <= 0)
			continue;
		rate_before += row->mark_blocks / row->mark_seconds;
		if (!is_at_index && row->blocks_done > row->mark_blocks)
			recent_rate += (row->blocks_done - row->mark_blocks) / seconds;
	}

	left = (double) leader->phase_blocks - leader->blocks_of_rounds - done;
	phase->is_known = done > 0 && rate_before > 0 && recent_rate > 0;
	if (!phase->is_known || left <= 0)
		return;
	phase->likely = left * vacuum->phase_seconds / done;
	phase->least = Min(left / Max(rate_before, recent_rate), phase->likely);
	phase->most = Max(left / Min(rate_before, recent_rate), phase->likely);
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
 * estimate_by_runs
 *		Estimate by past runs when the whole will be done, and the phase, too,
 *		unless that is known.
 */
static void
estimate_by_runs(const RunningVacuum *vacuum, Estimate *phase, Estimate *whole)
{
	const ProgressRow *leader = vacuum->leader;
	int			place = place_in_history(leader);
	Guesses		of_phase = {0};
	Guesses		of_rest = {0};	/* after the phase, or from now on */
	bool		goes_by_rate = phase->is_known && place >= 0;

	Assert(place < ORDERED_PHASES);
	Assert(vacuum->nruns <= MAX_RUNS);

	for (int i = 0; i < vacuum->nruns; i++)
	{
		const HistoryRow *run = vacuum->runs[i];
		double		growth = leader->run_pages > 0 && run->figures.pages_before > 0 ?
			(double) leader->run_pages / run->figures.pages_before : 1;
		double		run_seconds = (run->end - run->start) / (double) USECS_PER_SEC;
		double		phase_seconds = place < 0 ? 0 : run->figures.phase_seconds[place];
		double		before = phase_seconds;
		double		later = 0;
		double		rest;		/* later phases, and time of no phase */

		for (int k = 0; k < place; k++)
			before += run->figures.phase_seconds[k];
		for (int k = place + 1; place >= 0 && k < ORDERED_PHASES; k++)
			later += run->figures.phase_seconds[k];
		rest = Max(run_seconds - before, later);

		if (place < 0)
		{
			if (run_seconds * growth > vacuum->run_seconds)
				add_guess(&of_rest, run_seconds * growth - vacuum->run_seconds);
		}
		else if (goes_by_rate)
		{
			add_guess(&of_rest, rest * growth);
			if (phase_seconds > 0)
				add_guess(&of_rest, (rest - later) * growth +
						  later * (vacuum->phase_seconds + phase->likely) / phase_seconds);
		}
		else if (phase_seconds * growth > vacuum->phase_seconds)
		{
			add_guess(&of_phase, phase_seconds * growth - vacuum->phase_seconds);
			add_guess(&of_rest, (phase_seconds + rest) * growth - vacuum->phase_seconds);
		}
	}

	if (!phase->is_known)
		summarize(&of_phase, phase);
	summarize(&of_rest, whole);
	if (whole->is_known && goes_by_rate)
	{
		whole->least += phase->least;
		whole->likely += phase->likely;
		whole->most += phase->most;
	}
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

/* add_guess -- add one. */
static void
add_guess(Guesses *guesses, double seconds)
{
	Assert(guesses->number < lengthof(guesses->seconds));
	guesses->seconds[guesses->number++] = seconds;
}

/* summarize -- the estimate is their median, the spread their range. */
static void
summarize(Guesses *guesses, Estimate *estimate)
{
	int			number = guesses->number;

	estimate->is_known = number > 0;
	if (number == 0)
		return;
	qsort(guesses->seconds, number, sizeof(double), compare_doubles);
	estimate->least = guesses->seconds[0];
	estimate->likely = (guesses->seconds[(number - 1) / 2] + guesses->seconds[number / 2]) / 2;
	estimate->most = guesses->seconds[number - 1];
}

/* compare_doubles -- for qsort. */
static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return x < y ? -1 : x > y ? 1 : 0;
}

/* put_estimate -- three columns: likely, least, most; null if it isn't known. */
static void
put_estimate(const Estimate *estimate, TimestampTz now, Datum *values, bool *nulls)
{
	/*
	 * a rate of nearly nothing must not lead beyond the range of timestamps
	 */
	const double longest = 100.0 * 365 * SECS_PER_DAY;
	const double seconds[] = {estimate->likely, estimate->least, estimate->most};

	Assert(!estimate->is_known ||
		   (estimate->least <= estimate->likely && estimate->likely <= estimate->most));

	for (int i = 0; i < lengthof(seconds); i++)
	{
		nulls[i] = !estimate->is_known || seconds[i] > longest;
		if (!nulls[i])
			values[i] = TimestampTzGetDatum(now + (TimestampTz) (seconds[i] * USECS_PER_SEC));
	}
}
