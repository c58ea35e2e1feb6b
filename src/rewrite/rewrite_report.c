/*-------------------------------------------------------------------------
 *
 * rewrite_report.c
 *	  Telling the client what VACUUM FULL or REPACK of one table did.
 *
 * Messages that PostgreSQL's command has, too, are worded as there.  The last one,
 * with sizes and times, is ours.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "commands/dbcommands.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "history/history.h"
#include "horizon/horizon.h"
#include "relation_size.h"
#include "report/pretty_bytes.h"
#include "report/verbose.h"
#include "rewrite/rewrite_report.h"

/* In sizes: where each relation is */
#define SIZE_TABLE		0
#define SIZE_TOAST		1
#define SIZE_INDEXES	2

static void rewrite_note_history(const RewriteResult *result);
static int64 audited_pages(const RewriteResult *result);
static void append_steps(StringInfo buf, const RewriteResult *result, double elapsed);
static double elapsed_seconds(const RewriteResult *result);
static BlockNumber rewrite_size_of(Oid relid);
static void append_size(StringInfo buf, const RewriteSize *size);

/* rewrite_report_begin -- note names and sizes, and say that it begins. */
void
rewrite_report_begin(RewriteResult *result, Relation rel, bool verbose)
{
	List	   *indexes = RelationGetIndexList(rel);

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));

	pg_rusage_init(&result->rusage);
	INSTR_TIME_SET_CURRENT(result->start);
	result->relid = RelationGetRelid(rel);
	result->dbname = get_database_name(MyDatabaseId);
	result->relnamespace = get_namespace_name(RelationGetNamespace(rel));
	result->relname = pstrdup(RelationGetRelationName(rel));

	result->sizes = palloc0_array(RewriteSize, SIZE_INDEXES + list_length(indexes));
	result->nsizes = SIZE_INDEXES;
	result->sizes[SIZE_TABLE].relid = result->relid;
	result->sizes[SIZE_TOAST].relid = rel->rd_rel->reltoastrelid;
	foreach_oid(index, indexes)
	{
		result->sizes[result->nsizes].relid = index;
		result->sizes[result->nsizes++].name = get_rel_name(index);
	}
	for (int i = 0; i < result->nsizes; i++)
		if (OidIsValid(result->sizes[i].relid))
			result->sizes[i].before = rewrite_size_of(result->sizes[i].relid);

	ereport(verbose ? INFO : DEBUG2,
			(errmsg(COMPAT_REPORT_REWRITE, result->relnamespace, result->relname)));
}

/* rewrite_report_step -- note the time of a step that began at start. */
void
rewrite_report_step(RewriteResult *result, RewriteStep step, instr_time start)
{
	instr_time	now;

	Assert(step >= 0 && step < NUM_REWRITE_STEPS);
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	result->step_seconds[step] += INSTR_TIME_GET_DOUBLE(now);
}

/* rewrite_report_index -- note the time that an index's build took. */
void
rewrite_report_index(void *arg, Oid relid, double seconds)
{
	RewriteResult *result = arg;

	Assert(OidIsValid(relid) && seconds >= 0);
	for (int i = SIZE_INDEXES; i < result->nsizes; i++)
		if (result->sizes[i].relid == relid)
			result->sizes[i].build_seconds = seconds;
}

/*
 * rewrite_report_heap
 *		Say what was found in the table, and note who holds the horizon if dead rows
 *		were kept.
 */
void
rewrite_report_heap(RewriteResult *result, bool verbose, Relation rel,
					TransactionId oldest_xmin)
{
	const RewriteCounters *counters = &result->counters[REWRITE_TABLE];

	Assert(result->relname != NULL);
	Assert(rel != NULL && TransactionIdIsNormal(oldest_xmin));

	if (verbose && counters->tuples_recently_dead > 0)
		result->horizon = horizon_line(rel, oldest_xmin);

	ereport(verbose ? INFO : DEBUG2,
			(errmsg("\"%s.%s\": found %.0f removable, %.0f nonremovable row versions in %u pages",
					result->relnamespace, result->relname,
					(double) counters->tuples_removed, (double) counters->tuples_kept,
					result->old_blocks),
			 errdetail("%.0f dead row versions cannot be removed yet.\n"
					   "%s.",
					   (double) counters->tuples_recently_dead,
					   pg_rusage_show(&result->rusage))));
}

/*
 * rewrite_report_end
 *		Give the sizes before and after, and the times, to the client, the log and the
 *		history.
 */
void
rewrite_report_end(const RewriteResult *result, bool verbose)
{
	double		elapsed = elapsed_seconds(result);
	bool		to_log = report_command_is_for_log(elapsed);
	StringInfoData buf;

	Assert(IsTransactionState());
	Assert(result->relname != NULL);

	rewrite_note_history(result);
	if (!verbose && !to_log)
		return;

	initStringInfo(&buf);
	appendStringInfo(&buf, _("finished rewriting \"%s.%s.%s\"\n"),
					 result->dbname, result->relnamespace, result->relname);
	for (int i = 0; i < result->nsizes; i++)
		if (OidIsValid(result->sizes[i].relid))
			append_size(&buf, &result->sizes[i]);
	if (result->counters[REWRITE_TABLE].tuples_too_big > 0)
		appendStringInfo(&buf, _("heap: values compressed or moved to the TOAST table in " INT64_FORMAT " rows that would have been too big\n"),
						 result->counters[REWRITE_TABLE].tuples_too_big);
	if (result->counters[REWRITE_TOAST].tuples_orphaned > 0)
		appendStringInfo(&buf, _("TOAST table: " INT64_FORMAT " chunks left out to which no row points\n"),
						 result->counters[REWRITE_TOAST].tuples_orphaned);
	if (audited_pages(result) > 0)
		appendStringInfo(&buf, _("audit: %lld heap pages and %lld index pages\n"),
						 (long long) (audited_pages(result) - result->audited_index_pages),
						 (long long) result->audited_index_pages);
	if (result->horizon != NULL)
		appendStringInfo(&buf, "%s\n", result->horizon);
	if (result->stale_locks > 0)
		appendStringInfo(&buf, _("row locks: " INT64_FORMAT " of ended transactions from before relfrozenxid removed\n"),
						 result->stale_locks);
	appendStringInfo(&buf, _("parallel workers: %d planned, %d launched"),
					 result->workers_planned, result->workers_launched);
	if (result->workers_without_buffers > 0)
		appendStringInfo(&buf, _(" (%d more not allowed by shared_buffers)"),
						 result->workers_without_buffers);
	appendStringInfoChar(&buf, '\n');
	if (result->indexes.at_once > 0)
		appendStringInfo(&buf, _("index builds: %d at once by %d processes with %d kB of memory each, %d of them by a shared pass, %d alone\n"),
						 result->indexes.at_once, result->indexes.members, result->indexes.memory,
						 result->indexes.collected,
						 result->nsizes - SIZE_INDEXES - result->indexes.at_once);
	append_steps(&buf, result, elapsed);
	report_append_held(&buf);
	appendStringInfo(&buf, _("system usage: %s"), pg_rusage_show(&result->rusage));

	if (verbose)
		ereport(INFO, (errmsg_internal("%s", buf.data)));
	if (to_log)
	{
		appendStringInfoChar(&buf, '\n');
		report_append_command(&buf, result->command);
		buf.data[--buf.len] = '\0';
		ereport(LOG_SERVER_ONLY, (errmsg_internal("%s", buf.data), errhidestmt(true)));
	}
	pfree(buf.data);
}

/* rewrite_note_history -- note what cyclone.history has of it. */
static void
rewrite_note_history(const RewriteResult *result)
{
	HistoryFigures *figures = history_figures();
	const RewriteCounters *counters = &result->counters[REWRITE_TABLE];

	if (figures == NULL)
		return;
	for (int i = 0; i < NUM_REWRITE_STEPS; i++)
		figures->phase_seconds[i] = result->step_seconds[i];
	figures->workers_launched = result->workers_launched;
	figures->audited_pages = audited_pages(result);
	figures->rows_removed = counters->tuples_removed;
	figures->rows_dead = counters->tuples_recently_dead;
	figures->pages_scanned = result->old_blocks;
	figures->pages_before = result->old_blocks;
	figures->bytes_before = figures->bytes_after = 0;
	for (int i = 0; i < result->nsizes; i++)
	{
		const RewriteSize *size = &result->sizes[i];

		if (!OidIsValid(size->relid))
			continue;
		figures->bytes_before += (int64) size->before * BLCKSZ;
		figures->bytes_after += (int64) rewrite_size_of(size->relid) * BLCKSZ;
	}
}

/* audited_pages -- how many were audited, of the heaps and of new indexes. */
static int64
audited_pages(const RewriteResult *result)
{
	int64		pages = result->audited_index_pages;

	for (int i = 0; i < NUM_REWRITE_HEAPS; i++)
		pages += result->counters[i].audited_pages;
	return pages;
}

/* append_steps -- a line on the time that each step took. */
static void
append_steps(StringInfo buf, const RewriteResult *result, double elapsed)
{
	const double *seconds = result->step_seconds;
	double		other = elapsed;

	for (int i = 0; i < NUM_REWRITE_STEPS; i++)
		other -= seconds[i];

	appendStringInfoString(buf, _("phases: "));
	appendStringInfo(buf, _("heap copy %.3f s, "), seconds[STEP_COPY_TABLE]);
	if (seconds[STEP_COPY_CHAINS] > 0)
		appendStringInfo(buf, _("linked row versions %.3f s, "), seconds[STEP_COPY_CHAINS]);
	if (OidIsValid(result->sizes[SIZE_TOAST].relid))
		appendStringInfo(buf, _("TOAST copy %.3f s, TOAST index %.3f s, "),
						 seconds[STEP_COPY_TOAST], seconds[STEP_INDEX_TOAST]);
	appendStringInfo(buf, _("index build %.3f s, other %.3f s\n"),
					 seconds[STEP_SWAP_AND_INDEX], Max(other, 0.0));
}

/* elapsed_seconds -- since it began. */
static double
elapsed_seconds(const RewriteResult *result)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, result->start);
	return INSTR_TIME_GET_DOUBLE(now);
}

/* rewrite_size_of -- the size of a relation that we have locked. */
static BlockNumber
rewrite_size_of(Oid relid)
{
	Relation	rel = relation_open(relid, AccessShareLock);
	BlockNumber blocks = relation_blocks(rel);

	relation_close(rel, NoLock);
	return blocks;
}

/* append_size -- a line on one relation. */
static void
append_size(StringInfo buf, const RewriteSize *size)
{
	if (size->name != NULL)
		appendStringInfo(buf, _("index \"%s\""), size->name);
	else
		appendStringInfoString(buf, get_rel_relkind(size->relid) == RELKIND_TOASTVALUE ?
							   _("TOAST table") : _("heap"));
	appendStringInfo(buf, _(": %s before, "), pretty_bytes((int64) size->before * BLCKSZ));
	appendStringInfo(buf, _("%s after"), pretty_bytes((int64) rewrite_size_of(size->relid) * BLCKSZ));
	if (size->build_seconds > 0)
		appendStringInfo(buf, _(", built in %.3f s"), size->build_seconds);
	appendStringInfoChar(buf, '\n');
}
