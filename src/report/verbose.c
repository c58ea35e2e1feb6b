/*-------------------------------------------------------------------------
 *
 * verbose.c
 *	  The report on a finished VACUUM.
 *
 * The lines that core's report has are worded as the server's own version
 * words them, in its order, because tools read them; what pg_cyclone adds
 * are lines of its own before the last one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "report/verbose.h"

static const char *headline(const VacuumParams *params, const TableResult *result);
static void append_heap_lines(StringInfo buf, const TableResult *result);
static void append_xid_lines(StringInfo buf, const TableResult *result);
static void append_index_lines(StringInfo buf, const TableResult *result);
static void append_engine_lines(StringInfo buf, const TableResult *result,
								double elapsed_seconds);
static void append_usage_lines(StringInfo buf, const ReportStart *start,
							   double elapsed_seconds);
static double percent_of_pages(const TableResult *result, BlockNumber pages);

/*
 * report_is_wanted
 *		Could a report come of this vacuum?
 */
bool
report_is_wanted(const VacuumParams *params)
{
	return (params->options & VACOPT_VERBOSE) != 0 ||
		(AmAutoVacuumWorkerProcess() && params->log_min_duration >= 0);
}

/*
 * report_begin
 *		Note what has been counted so far.
 */
void
report_begin(ReportStart *start)
{
	pg_rusage_init(&start->rusage);
	start->time = GetCurrentTimestamp();
	start->read_time = pgStatBlockReadTime;
	start->write_time = pgStatBlockWriteTime;
	start->wal = pgWalUsage;
	start->buffers = pgBufferUsage;
}

/*
 * report_end
 *		Tell the client, or the log, what was done since report_begin.
 */
void
report_end(const ReportStart *start, const VacuumParams *params,
		   const TableResult *result)
{
	bool		verbose = (params->options & VACOPT_VERBOSE) != 0;
	TimestampTz now = GetCurrentTimestamp();
	double		elapsed_seconds = (double) (now - start->time) / 1000000.0;
	StringInfoData buf;

	if (!verbose && params->log_min_duration != 0 &&
		!TimestampDifferenceExceeds(start->time, now, params->log_min_duration))
		return;

	initStringInfo(&buf);
	appendStringInfo(&buf, headline(params, result),
					 result->dbname, result->relnamespace, result->relname,
					 result->num_index_scans);
	append_heap_lines(&buf, result);
	append_xid_lines(&buf, result);
	append_index_lines(&buf, result);
	append_engine_lines(&buf, result, elapsed_seconds);
	append_usage_lines(&buf, start, elapsed_seconds);
	appendStringInfo(&buf, _("system usage: %s"), pg_rusage_show(&start->rusage));

	ereport(verbose ? INFO : LOG, (errmsg_internal("%s", buf.data)));
	pfree(buf.data);
}

/*
 * headline
 *		The format of the first line: database, schema, table, index scans.
 */
static const char *
headline(const VacuumParams *params, const TableResult *result)
{
	if (params->options & VACOPT_VERBOSE)
		return _("finished vacuuming \"%s.%s.%s\": index scans: %d\n");
	if (params->is_wraparound && result->aggressive)
		return _("automatic aggressive vacuum to prevent wraparound of table \"%s.%s.%s\": index scans: %d\n");
	if (params->is_wraparound)
		return _("automatic vacuum to prevent wraparound of table \"%s.%s.%s\": index scans: %d\n");
	if (result->aggressive)
		return _("automatic aggressive vacuum of table \"%s.%s.%s\": index scans: %d\n");
	return _("automatic vacuum of table \"%s.%s.%s\": index scans: %d\n");
}

/* append_heap_lines -- pages and tuples. */
static void
append_heap_lines(StringInfo buf, const TableResult *result)
{
	const VacuumCounters *counters = &result->counters;

	appendStringInfo(buf, _("pages: %u removed, %u remain, %u scanned (%.2f%% of total)"),
					 result->removed_pages,
					 result->new_rel_pages,
					 counters->scanned_pages,
					 percent_of_pages(result, counters->scanned_pages));
	if (COMPAT_REPORT_VISIBILITY_MAP)
		appendStringInfo(buf, _(", %u eagerly scanned"), counters->eager_scanned_pages);
	appendStringInfoChar(buf, '\n');
	appendStringInfo(buf,
					 _("tuples: %lld removed, %lld remain, %lld are dead but not yet removable\n"),
					 (long long) counters->tuples_deleted,
					 (long long) result->new_rel_tuples,
					 (long long) counters->recently_dead_tuples);
	if (counters->missed_dead_tuples > 0)
		appendStringInfo(buf,
						 _("tuples missed: %lld dead from %u pages not removed due to cleanup lock contention\n"),
						 (long long) counters->missed_dead_tuples,
						 counters->missed_dead_pages);
}

/* append_xid_lines -- cutoffs, what was frozen, and the visibility map. */
static void
append_xid_lines(StringInfo buf, const TableResult *result)
{
	const VacuumCounters *counters = &result->counters;

	appendStringInfo(buf,
					 _("removable cutoff: %u, which was %d XIDs old when operation ended\n"),
					 result->oldest_xmin,
					 (int32) (ReadNextTransactionId() - result->oldest_xmin));
	if (result->frozenxid_updated)
		appendStringInfo(buf,
						 _("new relfrozenxid: %u, which is %d XIDs ahead of previous value\n"),
						 counters->new_relfrozenxid,
						 (int32) (counters->new_relfrozenxid - result->old_relfrozenxid));
	if (result->minmxid_updated)
		appendStringInfo(buf,
						 _("new relminmxid: %u, which is %d MXIDs ahead of previous value\n"),
						 counters->new_relminmxid,
						 (int32) (counters->new_relminmxid - result->old_relminmxid));
	appendStringInfo(buf,
					 _("frozen: %u pages from table (%.2f%% of total) had %lld tuples frozen\n"),
					 counters->new_frozen_tuple_pages,
					 percent_of_pages(result, counters->new_frozen_tuple_pages),
					 (long long) counters->tuples_frozen);
	if (COMPAT_REPORT_VISIBILITY_MAP)
		appendStringInfo(buf,
						 _("visibility map: %u pages set all-visible, %u pages set all-frozen (%u were all-visible)\n"),
						 counters->vm_new_visible_pages,
						 counters->vm_new_visible_frozen_pages +
						 counters->vm_new_frozen_pages,
						 counters->vm_new_frozen_pages);
}

/* append_index_lines -- dead items, and what came of each index. */
static void
append_index_lines(StringInfo buf, const TableResult *result)
{
	const VacuumCounters *counters = &result->counters;
	const char *format;

	if (result->index_vacuum_done)
	{
		if (result->nindexes == 0 || result->num_index_scans == 0)
			appendStringInfoString(buf, _("index scan not needed: "));
		else
			appendStringInfoString(buf, _("index scan needed: "));
		format = _("%u pages from table (%.2f%% of total) had %lld dead item identifiers removed\n");
	}
	else
	{
		if (!VacuumFailsafeActive)
			appendStringInfoString(buf, _("index scan bypassed: "));
		else
			appendStringInfoString(buf, _("index scan bypassed by failsafe: "));
		format = _("%u pages from table (%.2f%% of total) have %lld dead item identifiers\n");
	}
	appendStringInfo(buf, format,
					 counters->lpdead_item_pages,
					 percent_of_pages(result, counters->lpdead_item_pages),
					 (long long) counters->lpdead_items);

	for (int i = 0; i < result->nindexes; i++)
	{
		const IndexResult *index = &result->indexes[i];

		if (index->has_stats)
			appendStringInfo(buf,
							 _("index \"%s\": pages: %u in total, %u newly deleted, %u currently deleted, %u reusable\n"),
							 index->name,
							 index->stats.num_pages,
							 index->stats.pages_newly_deleted,
							 index->stats.pages_deleted,
							 index->stats.pages_free);
	}
}

/* append_engine_lines -- what only pg_cyclone has: store, workers, phases. */
static void
append_engine_lines(StringInfo buf, const TableResult *result,
					double elapsed_seconds)
{
	const double *phases = result->phase_seconds;
	double		other = elapsed_seconds - result->truncate_seconds - result->team_seconds;

	for (int i = 0; i < NUM_PHASES; i++)
		other -= phases[i];

	if (result->counters.stale_locks > 0)
		appendStringInfo(buf,
						 _("row locks: %lld of ended transactions from before relfrozenxid removed\n"),
						 (long long) result->counters.stale_locks);
	if (result->dead_tids_at_peak > 0)
		appendStringInfo(buf,
						 _("dead-TID store: %zu kB used at peak for %lld items (%.1f bytes each), of at most %zu kB\n"),
						 result->dead_tids_peak_bytes / 1024,
						 (long long) result->dead_tids_at_peak,
						 (double) result->dead_tids_peak_bytes / result->dead_tids_at_peak,
						 result->dead_tids_limit / 1024);
	appendStringInfo(buf,
					 _("parallel workers: %d planned, %d launched\n"),
					 result->workers_planned, result->workers_launched);
	appendStringInfo(buf,
					 _("phases: heap scan %.3f s, index vacuum %.3f s, heap vacuum %.3f s, index cleanup %.3f s, truncation %.3f s, team %.3f s, other %.3f s\n"),
					 phases[PHASE_HEAP_SCAN],
					 phases[PHASE_INDEX_VACUUM] + phases[PHASE_INDEX_PAGE_DELETION],
					 phases[PHASE_HEAP_VACUUM], phases[PHASE_INDEX_CLEANUP],
					 result->truncate_seconds, result->team_seconds,
					 Max(other, 0.0));
	if (result->has_latency_target && result->latency_target_ms > 0)
		appendStringInfo(buf, _("pace: processes slept %.3f s in all, latency target %.3f ms\n"),
						 result->slept_seconds, result->latency_target_ms);
	else if (result->has_latency_target)
		appendStringInfo(buf, _("pace: processes slept %.3f s in all, latency target not learned\n"),
						 result->slept_seconds);
	else if (result->was_paced)
		appendStringInfo(buf, _("pace: processes slept %.3f s in all\n"),
						 result->slept_seconds);
}

/* append_usage_lines -- delay, I/O, buffers and WAL, workers' included. */
static void
append_usage_lines(StringInfo buf, const ReportStart *start,
				   double elapsed_seconds)
{
	WalUsage	wal = {0};
	BufferUsage buffers = {0};
	int64		hits,
				reads,
				dirtied;
	double		delay_ms = compat_delay_time_ms();
	double		read_rate = 0,
				write_rate = 0;

	WalUsageAccumDiff(&wal, &pgWalUsage, &start->wal);
	BufferUsageAccumDiff(&buffers, &pgBufferUsage, &start->buffers);
	hits = buffers.shared_blks_hit + buffers.local_blks_hit;
	reads = buffers.shared_blks_read + buffers.local_blks_read;
	dirtied = buffers.shared_blks_dirtied + buffers.local_blks_dirtied;

	if (delay_ms >= 0)
		appendStringInfo(buf, _("delay time: %.3f ms\n"), delay_ms);
	if (track_io_timing)
		appendStringInfo(buf, _("I/O timings: read: %.3f ms, write: %.3f ms\n"),
						 (double) (pgStatBlockReadTime - start->read_time) / 1000,
						 (double) (pgStatBlockWriteTime - start->write_time) / 1000);
	if (elapsed_seconds > 0)
	{
		read_rate = (double) BLCKSZ * reads / (1024 * 1024) / elapsed_seconds;
		write_rate = (double) BLCKSZ * dirtied / (1024 * 1024) / elapsed_seconds;
	}
	appendStringInfo(buf, _("avg read rate: %.3f MB/s, avg write rate: %.3f MB/s\n"),
					 read_rate, write_rate);
	appendStringInfo(buf,
					 _("buffer usage: %lld hits, %lld " COMPAT_REPORT_READS ", %lld dirtied\n"),
					 (long long) hits, (long long) reads, (long long) dirtied);
	if (compat_wal_buffers_full(&wal) >= 0)
		appendStringInfo(buf,
						 _("WAL usage: %lld records, %lld full page images, %llu bytes, %lld buffers full\n"),
						 (long long) wal.wal_records, (long long) wal.wal_fpi,
						 (unsigned long long) wal.wal_bytes,
						 (long long) compat_wal_buffers_full(&wal));
	else
		appendStringInfo(buf,
						 _("WAL usage: %lld records, %lld full page images, %llu bytes\n"),
						 (long long) wal.wal_records, (long long) wal.wal_fpi,
						 (unsigned long long) wal.wal_bytes);
}

/* percent_of_pages -- a number of pages in percent of the table's first size. */
static double
percent_of_pages(const TableResult *result, BlockNumber pages)
{
	return result->orig_rel_pages == 0 ? 100.0 :
		100.0 * pages / result->orig_rel_pages;
}
