/*-------------------------------------------------------------------------
 *
 * dry_run_time.c
 *	  How long a VACUUM would take, by past ones.
 *
 * cyclone.history has how long each phase took in past runs, and how much there was to
 * do.  The time of a phase is the time for each page, or dead row, times as many as are
 * expected now.  It is the median of the table's own runs of the same kind, or else of
 * those of other tables.  Without such runs it isn't known.  The WAL of FULL INPLACE is
 * known in the same way, by the table's own runs only.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "dry_run/dry_run.h"
#include "history/history_rows.h"

/* How many past runs count, the most recent ones */
#define MAX_RUNS	10

static int	find_runs(const DryRun *run, Oid relid, const HistoryRow *rows, int nrows,
					  const HistoryRow **found);
static int64 wal_of_moves(const DryRun *run, const HistoryRow **found);
static double work_of_phase(const DryRun *run, int phase);
static double work_done(const HistoryRow *row, int phase);
static int	compare_doubles(const void *a, const void *b);

/* dry_run_time -- see dry_run.h. */
void
dry_run_time(Relation rel, DryRun *run)
{
	HistoryRow *rows = NULL;
	int			nrows = history_rows_are_kept() ? history_rows_copy(&rows) : 0;
	const HistoryRow *found[MAX_RUNS];

	run->nruns = find_runs(run, RelationGetRelid(rel), rows, nrows, found);
	run->runs_are_own = run->nruns > 0;
	if (!run->runs_are_own)
		run->nruns = find_runs(run, InvalidOid, rows, nrows, found);

	Assert(run->nruns >= 0 && run->nruns <= MAX_RUNS);
	for (int phase = 0; phase < HISTORY_PHASES && run->nruns > 0; phase++)
	{
		double		rates[MAX_RUNS];
		int			nrates = 0;
		double		work = work_of_phase(run, phase);

		for (int i = 0; i < run->nruns; i++)
		{
			double		done = work_done(found[i], phase);

			if (done > 0)
				rates[nrates++] = found[i]->figures.phase_seconds[phase] / done;
		}
		qsort(rates, nrates, sizeof(double), compare_doubles);
		run->phase_seconds[phase] = work <= 0 ? 0 : nrates == 0 ? -1 : work * rates[nrates / 2];
	}
	if (run->wal_bytes < 0 && run->runs_are_own)
		run->wal_bytes = wal_of_moves(run, found);
	if (rows != NULL)
		pfree(rows);
}

/*
 * wal_of_moves
 *		How much WAL FULL INPLACE writes, as past runs of the table have it for each page
 *		that they vacated; -1 if none has vacated any.
 */
static int64
wal_of_moves(const DryRun *run, const HistoryRow **found)
{
	double		rates[MAX_RUNS];
	int			nrates = 0;

	Assert(run->nruns <= MAX_RUNS);
	for (int i = 0; i < run->nruns; i++)
	{
		double		vacated = (double) found[i]->figures.pages_before - found[i]->figures.pages_after;

		if (vacated > 0)
			rates[nrates++] = found[i]->wal_bytes / vacated;
	}
	if (nrates == 0)
		return -1;
	qsort(rates, nrates, sizeof(double), compare_doubles);
	return rates[nrates / 2] * (run->pages - run->pages_after);
}

/*
 * find_runs
 *		Find the most recent runs of the same kind that the user may see, of a table,
 *		or of any if relid is invalid.  Returns how many there are.
 */
static int
find_runs(const DryRun *run, Oid relid, const HistoryRow *rows, int nrows,
		  const HistoryRow **found)
{
	int			nfound = 0;

	for (int i = 0; i < nrows; i++)
	{
		const HistoryRow *row = &rows[i];
		int			oldest = 0;

		if (row->kind != run->kind || row->outcome != HISTORY_DONE || !row->has_figures ||
			(OidIsValid(relid) &&
			 (row->relid != relid ||
			  (OidIsValid(row->database) && row->database != MyDatabaseId))) ||
			!history_is_visible(row->user_id))
			continue;
		if (nfound < MAX_RUNS)
		{
			found[nfound++] = row;
			continue;
		}
		for (int k = 1; k < nfound; k++)
			if (found[k]->number < found[oldest]->number)
				oldest = k;
		if (found[oldest]->number < row->number)
			found[oldest] = row;
	}
	return nfound;
}

/* work_of_phase -- how much there is to do, in the unit of work_done. */
static double
work_of_phase(const DryRun *run, int phase)
{
	if (run->kind != HISTORY_VACUUM)
		return run->pages;
	switch (phase)
	{
		case 0:					/* heap scan */
			return run->pages_scanned;
		case 1:					/* index vacuum */
			return (double) run->index_scans * run->index_pages;
		case 2:					/* heap vacuum */
			return run->index_scans > 0 ? run->dead_items : 0;
		case 3:					/* index cleanup */
			return run->index_pages;
		case 4:					/* truncation */
			return run->pages - run->pages_after;
		default:				/* starting a team */
			return 1;
	}
}

/* work_done -- how much there was in a past run. */
static double
work_done(const HistoryRow *row, int phase)
{
	const HistoryFigures *figures = &row->figures;
	double		index_pages = (double) figures->bytes_before / BLCKSZ - figures->pages_before;

	if (row->kind != HISTORY_VACUUM)
		return figures->pages_before;
	switch (phase)
	{
		case 0:
			return figures->pages_scanned;
		case 1:
			return figures->index_scans * index_pages;
		case 2:
			return figures->index_scans > 0 ? figures->rows_removed : 0;
		case 3:
			return index_pages;
		case 4:
			return figures->pages_before - figures->pages_after;
		default:
			return 1;
	}
}

/* compare_doubles -- for qsort. */
static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return x < y ? -1 : x > y ? 1 : 0;
}
