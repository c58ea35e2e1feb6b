/*-------------------------------------------------------------------------
 *
 * verbose.c
 *	  The report on a finished VACUUM.
 *
 * The lines of PostgreSQL's report have the words and the order of the server's
 * version, because tools read them, some with one pattern for all lines.  pg_cyclone
 * adds lines of its own at the end.
 *
 * PostgreSQL logs autovacuums, but not VACUUM commands.  With
 * cyclone.log_min_duration these are logged, too.  Their reports begin with an
 * autovacuum's words, as programs that read logs look for no others.  A line at
 * the end tells which user's command it was.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "guards/guards.h"
#include "horizon/horizon.h"
#include "report/verbose.h"
#include "settings.h"

static bool is_for_log(const VacuumParams *params, TimestampTz start, TimestampTz now);
static void append_headline(StringInfo buf, const VacuumParams *params,
							const TableResult *result, bool to_log);
static void append_heap_lines(StringInfo buf, const TableResult *result);
static void append_xid_lines(StringInfo buf, const TableResult *result);
static void append_index_lines(StringInfo buf, const TableResult *result);
static void append_horizon_line(StringInfo buf, Relation rel, const TableResult *result);
static void append_engine_lines(StringInfo buf, const TableResult *result,
								double elapsed_seconds);
static void append_usage_lines(StringInfo buf, const ReportStart *start,
							   const TableResult *result, double elapsed_seconds);
static void append_wal_line(StringInfo buf, const WalUsage *wal);
static void append_memory_line(StringInfo buf, const TableResult *result);
static double percent_of_pages(const TableResult *result, BlockNumber pages);

/* report_is_wanted -- see verbose.h. */
bool
report_is_wanted(const VacuumParams *params)
{
	return (params->options & VACOPT_VERBOSE) != 0 ||
		(AmAutoVacuumWorkerProcess() ? compat_log_duration(params) : cyclone_log_min_duration) >= 0;
}

/* report_command_is_for_log -- see verbose.h. */
bool
report_command_is_for_log(double seconds)
{
	return cyclone_log_min_duration >= 0 && seconds * 1000 >= cyclone_log_min_duration;
}

/* report_append_command -- see verbose.h. */
void
report_append_command(StringInfo buf, const char *command)
{
	char	   *user = GetUserNameFromId(GetSessionUserId(), true);

	Assert(IsTransactionState());
	appendStringInfo(buf, _("started by: %s command of user \"%s\"\n"),
					 command, user != NULL ? user : "?");
}

/* report_begin -- see verbose.h. */
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

/* report_end -- see verbose.h. */
void
report_end(const ReportStart *start, const VacuumParams *params,
		   Relation rel, const TableResult *result)
{
	bool		verbose = (params->options & VACOPT_VERBOSE) != 0;
	TimestampTz now = GetCurrentTimestamp();
	bool		to_log = is_for_log(params, start->time, now);
	double		elapsed_seconds = (double) (now - start->time) / 1000000.0;
	StringInfoData body;
	StringInfoData message;

	Assert(IsTransactionState());

	if (!verbose && !to_log)
		return;

	initStringInfo(&body);
	append_heap_lines(&body, result);
	append_xid_lines(&body, result);
	append_index_lines(&body, result);
	report_append_held(&body);
	append_usage_lines(&body, start, result, elapsed_seconds);
	append_horizon_line(&body, rel, result);
	append_engine_lines(&body, result, elapsed_seconds);

	Assert(body.len > 0);
	initStringInfo(&message);
	if (verbose)
	{
		append_headline(&message, params, result, false);
		/* without the last line's end */
		appendBinaryStringInfo(&message, body.data, body.len - 1);
		ereport(INFO, (errmsg_internal("%s", message.data)));
	}
	if (to_log)
	{
		resetStringInfo(&message);
		append_headline(&message, params, result, true);
		appendBinaryStringInfo(&message, body.data, body.len);
		if (!AmAutoVacuumWorkerProcess())
			report_append_command(&message, "VACUUM");
		message.data[--message.len] = '\0';
		ereport(LOG_SERVER_ONLY, (errmsg_internal("%s", message.data), errhidestmt(true)));
	}
	pfree(message.data);
	pfree(body.data);
}

/* is_for_log -- is a vacuum from start to now one that is to be logged? */
static bool
is_for_log(const VacuumParams *params, TimestampTz start, TimestampTz now)
{
	if (!AmAutoVacuumWorkerProcess())
		return report_command_is_for_log((double) (now - start) / USECS_PER_SEC);
	return compat_log_duration(params) == 0 ||
		(compat_log_duration(params) > 0 &&
		 TimestampDifferenceExceeds(start, now, compat_log_duration(params)));
}

/* append_headline -- the first line, to the client or to the log. */
static void
append_headline(StringInfo buf, const VacuumParams *params, const TableResult *result,
				bool to_log)
{
	const char *format;

	if (!to_log)
		format = _("finished vacuuming \"%s.%s.%s\": index scans: %d\n");
	else if (params->is_wraparound && result->aggressive)
		format = _("automatic aggressive vacuum to prevent wraparound of table \"%s.%s.%s\": index scans: %d\n");
	else if (params->is_wraparound)
		format = _("automatic vacuum to prevent wraparound of table \"%s.%s.%s\": index scans: %d\n");
	else if (result->aggressive)
		format = _("automatic aggressive vacuum of table \"%s.%s.%s\": index scans: %d\n");
	else
		format = _("automatic vacuum of table \"%s.%s.%s\": index scans: %d\n");
	appendStringInfo(buf, format,
					 result->dbname, result->relnamespace, result->relname,
					 result->num_index_scans);
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

/* append_index_lines -- dead items, and what each index has after it. */
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

	/* the whole team takes part in each index scan, and in shared cleanup */
	if (COMPAT_REPORT_MEMORY && result->workers_planned > 0 && result->num_index_scans > 0)
		appendStringInfo(buf,
						 _("parallel workers: index vacuum: %d planned, %d launched in total\n"),
						 result->workers_planned * result->num_index_scans,
						 result->workers_launched * result->num_index_scans);
	if (COMPAT_REPORT_MEMORY && result->workers_planned > 0 && result->cleanup_is_shared)
		appendStringInfo(buf, _("parallel workers: index cleanup: %d planned, %d launched\n"),
						 result->workers_planned, result->workers_launched);

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
		if (index->graph.dead > 0)
			appendStringInfo(buf,
							 _("index \"%s\": elements: %lld dead, %lld repaired, %lld searches of the graph, %lld linked anew\n"),
							 index->name, (long long) index->graph.dead,
							 (long long) index->graph.repaired, (long long) index->graph.searched,
							 (long long) index->graph.linked);
	}
}

/*
 * append_horizon_line
 *		Tell which session or slot holds the table's dead rows back; without such rows,
 *		which one holds back freezing, if any still does.
 */
static void
append_horizon_line(StringInfo buf, Relation rel, const TableResult *result)
{
	char	   *holder;

	if (result->counters.recently_dead_tuples > 0)
		appendStringInfo(buf, "%s\n", horizon_line(rel, result->oldest_xmin));
	else if (result->freezing_is_held &&
			 (holder = horizon_describe_oldest(rel, result->oldest_xmin)) != NULL)
		appendStringInfo(buf, _("horizon: freezing is held back by %s\n"), holder);
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

	if (result->counters.audited_heap_pages + result->counters.audited_index_pages > 0)
		appendStringInfo(buf, _("audit: %lld heap pages and %lld index pages\n"),
						 (long long) result->counters.audited_heap_pages,
						 (long long) result->counters.audited_index_pages);
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
					 _("parallel workers: %d planned, %d launched"),
					 result->workers_planned, result->workers_launched);
	if (result->workers_not_allowed > 0)
		appendStringInfo(buf,
						 _(" (%d more not allowed by autovacuum_max_parallel_workers or autovacuum_parallel_workers)"),
						 result->workers_not_allowed);
	if (result->workers_without_buffers > 0)
		appendStringInfo(buf, _(" (%d more not allowed by shared_buffers)"),
						 result->workers_without_buffers);
	appendStringInfoChar(buf, '\n');
	appendStringInfo(buf,
					 _("phases: heap scan %.3f s, index vacuum %.3f s, heap vacuum %.3f s, index cleanup %.3f s, truncation %.3f s, team %.3f s, other %.3f s\n"),
					 phases[PHASE_HEAP_SCAN],
					 phases[PHASE_INDEX_VACUUM] + phases[PHASE_INDEX_AUDIT] + phases[PHASE_INDEX_PAGE_DELETION],
					 phases[PHASE_HEAP_VACUUM], phases[PHASE_INDEX_CLEANUP],
					 result->truncate_seconds, result->team_seconds,
					 Max(other, 0.0));
	if (result->has_adaptive_delay)
		appendStringInfo(buf, _("pace: processes slept %.3f s in all, with an adaptive delay\n"),
						 result->slept_seconds);
	else if (result->was_paced)
		appendStringInfo(buf, _("pace: processes slept %.3f s in all\n"),
						 result->slept_seconds);
}

/* report_append_held -- see verbose.h. */
void
report_append_held(StringInfo buf)
{
	static const char *const formats[NUM_GUARDS] = {
		[GUARD_PAUSE] = gettext_noop("held: paused for %.3f s\n"),
		[GUARD_WAL_RATE] = gettext_noop("held: for %.3f s to keep to cyclone.max_wal_rate\n"),
		[GUARD_LAG] = gettext_noop("held: for %.3f s to keep to cyclone.max_replica_lag\n"),
		[GUARD_DISK] = gettext_noop("held: for %.3f s to keep to cyclone.min_free_disk\n"),
	};
	GuardTimes	held = guards_held();

	for (int i = 0; i < NUM_GUARDS; i++)
		if (held.seconds[i] > 0)
			appendStringInfo(buf, _(formats[i]), held.seconds[i]);
}

/* append_usage_lines -- delay, I/O, buffers, WAL and CPU, workers' included. */
static void
append_usage_lines(StringInfo buf, const ReportStart *start,
				   const TableResult *result, double elapsed_seconds)
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
	append_wal_line(buf, &wal);
	if (COMPAT_REPORT_MEMORY)
		append_memory_line(buf, result);
	appendStringInfo(buf, _("system usage: %s\n"), pg_rusage_show(&start->rusage));
}

/* append_wal_line -- WAL, as far as the server counts it. */
static void
append_wal_line(StringInfo buf, const WalUsage *wal)
{
	appendStringInfo(buf, _("WAL usage: %lld records, %lld full page images, %llu bytes"),
					 (long long) wal->wal_records, (long long) wal->wal_fpi,
					 (unsigned long long) wal->wal_bytes);
	if (compat_wal_fpi_bytes(wal) >= 0)
		appendStringInfo(buf, _(", %lld full page image bytes"),
						 (long long) compat_wal_fpi_bytes(wal));
	if (compat_wal_buffers_full(wal) >= 0)
		appendStringInfo(buf, _(", %lld buffers full"), (long long) compat_wal_buffers_full(wal));
	appendStringInfoChar(buf, '\n');
}

/*
 * append_memory_line
 *		How much memory the store of dead items has taken, each time.
 *
 * The server counts one reset even if it leaves all indexes alone, so this does, too.
 */
static void
append_memory_line(StringInfo buf, const TableResult *result)
{
	bool		has_dead = result->nindexes > 0 && result->counters.lpdead_items > 0;
	int			rounds = Max(result->dead_tids_rounds, has_dead ? 1 : 0);

	appendStringInfo(buf,
					 ngettext("memory usage: dead item storage %.2f MB accumulated across %d reset (limit %.2f MB each)\n",
							  "memory usage: dead item storage %.2f MB accumulated across %d resets (limit %.2f MB each)\n",
							  rounds),
					 (double) result->dead_tids_bytes_in_all / (1024 * 1024),
					 rounds,
					 (double) result->dead_tids_limit / (1024 * 1024));
}

/* percent_of_pages -- a number of pages in percent of the table's first size. */
static double
percent_of_pages(const TableResult *result, BlockNumber pages)
{
	return result->orig_rel_pages == 0 ? 100.0 :
		100.0 * pages / result->orig_rel_pages;
}
