/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The run in hand, until it becomes a row of cyclone.history.
 *
 * The code that vacuums a table says here when that begins, what it has done, and how it
 * ends: history_end when it is done, for a rewrite after the commit; history_fail where an
 * error ends it, maybe with locks held, as no process takes another lock after those of
 * history_rows.c.  A process that is terminated records its run as it exits.  After a crash
 * or an immediate stop there is no row.
 *
 * Nothing here raises an error when the work has been done, or while an error is handled:
 * a message is copied into memory that was set aside before.  Warnings are caught where the
 * server sends messages to its log, so log_min_messages may keep them out.  Those of
 * parallel workers are there, too, as the leader repeats them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "executor/instrument.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "at_exit.h"
#include "audit_mark.h"
#include "compat.h"
#include "history/history.h"
#include "history/history_rows.h"
#include "pace/pace.h"
#include "report/progress.h"

/* The end of a text that was cut off */
#define CUT_OFF		"..."

static HistoryRow run;
static bool is_running = false;
static bool is_compaction = false;
static WalUsage wal_before;

/* for the texts of an error, until its message is copied */
static MemoryContext error_context = NULL;

static emit_log_hook_type previous_emit_log_hook = NULL;

static void forget_figures(void);
static void describe_options(const VacuumParams *params);
static void finish_run(HistoryOutcome outcome);
static void note_warning(ErrorData *edata);
static void append_text(char *text, Size size, const char *what, const char *separator);
static void fail_at_exit(void);

/* history_init -- have warnings watched. */
void
history_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	previous_emit_log_hook = emit_log_hook;
	emit_log_hook = note_warning;
}

/* history_started_by_compaction -- runs of this process are. */
void
history_started_by_compaction(void)
{
	is_compaction = true;
}

/*
 * history_begin
 *		A run begins; params has the options as they hold for the table.
 *
 * It may raise an error, as nothing has been done yet.
 */
void
history_begin(HistoryKind kind, Relation rel, const VacuumParams *params)
{
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	char	   *schema;

	Assert((unsigned) kind <= HISTORY_REPACK);
	Assert(IsTransactionState());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));

	is_running = false;
	progress_run(kind, RelationGetRelid(rel), AmAutoVacuumWorkerProcess(), pages);
	pace_begin_summary();
	if (!history_is_kept())
		return;
	at_exit(fail_at_exit);
	if (error_context == NULL)
		error_context = AllocSetContextCreate(TopMemoryContext, "pg_cyclone history",
											  ALLOCSET_DEFAULT_SIZES);

	memset(&run, 0, sizeof(run));
	schema = get_namespace_name(RelationGetNamespace(rel));
	strlcpy(run.schema, schema != NULL ? schema : "", sizeof(run.schema));
	strlcpy(run.name, RelationGetRelationName(rel), sizeof(run.name));
	run.kind = kind;
	run.database = rel->rd_rel->relisshared ? InvalidOid : MyDatabaseId;
	run.relid = RelationGetRelid(rel);
	run.owner = rel->rd_rel->relowner;
	run.started_by = AmAutoVacuumWorkerProcess() ? HISTORY_AUTOVACUUM :
		is_compaction ? HISTORY_COMPACTION : HISTORY_COMMAND;
	run.is_wraparound = params->is_wraparound;
	if (run.started_by != HISTORY_AUTOVACUUM)
	{
		run.user_id = GetSessionUserId();
		describe_options(params);
	}
	run.figures.pages_before = pages;
	forget_figures();

	wal_before = pgWalUsage;
	run.start = GetCurrentTimestamp();
	is_running = true;
}

/*
 * history_figures
 *		Return the results of the run in hand, for the caller to fill in; NULL if
 *		there is no run, or no history.
 */
HistoryFigures *
history_figures(void)
{
	if (!is_running)
		return NULL;
	run.has_figures = true;
	return &run.figures;
}

/* history_vacuumed -- the engine has vacuumed the table of the run in hand. */
void
history_vacuumed(const TableResult *result)
{
	HistoryFigures *figures = history_figures();
	const VacuumCounters *counters = &result->counters;
	const double *seconds = result->phase_seconds;

	if (figures == NULL)
		return;
	figures->phase_seconds[0] = seconds[PHASE_HEAP_SCAN];
	figures->phase_seconds[1] = seconds[PHASE_INDEX_VACUUM] + seconds[PHASE_INDEX_AUDIT] +
		seconds[PHASE_INDEX_PAGE_DELETION];
	figures->phase_seconds[2] = seconds[PHASE_HEAP_VACUUM];
	figures->phase_seconds[3] = seconds[PHASE_INDEX_CLEANUP];
	figures->phase_seconds[4] = result->truncate_seconds;
	figures->phase_seconds[5] = result->team_seconds;
	figures->workers_launched = result->workers_launched;
	figures->index_scans = result->num_index_scans;
	figures->rows_removed = counters->tuples_deleted;
	figures->rows_dead = counters->recently_dead_tuples;
	figures->pages_scanned = counters->scanned_pages;
	figures->pages_before = result->orig_rel_pages;
	figures->bytes_before = (result->orig_rel_pages + result->index_pages_before) * BLCKSZ;
	figures->audited_pages = counters->audited_heap_pages + counters->audited_index_pages;
	figures->bytes_after = (result->new_rel_pages + result->index_pages_after) * BLCKSZ;
}

/* history_end -- the run in hand is done. */
void
history_end(void)
{
	if (is_running)
		finish_run(HISTORY_DONE);
}

/*
 * history_fail
 *		An error ends the run in hand.
 */
void
history_fail(void)
{
	MemoryContext old;
	ErrorData  *error;

	if (!is_running)
		return;

	/*
	 * A message about the file would serve interrupts.  One may be that the
	 * worker that has raised this error is gone, which is another error.
	 */
	HOLD_INTERRUPTS();
	/* the row may be written to disk */
	compat_unlock_pages();
	/* before all else, as even a copy of the error may fail */
	is_running = false;
	run.sqlerrcode = geterrcode();
	run.audit_failed = audit_mark_is_set();
	if (run.sqlerrcode == ERRCODE_OUT_OF_MEMORY)
		append_text(run.error, sizeof(run.error), "out of memory", "");
	else
	{
		old = MemoryContextSwitchTo(error_context);
		error = CopyErrorData();
		if (error->message != NULL)
			append_text(run.error, sizeof(run.error), error->message, "");
		MemoryContextSwitchTo(old);
		MemoryContextReset(error_context);
	}
	finish_run(ERRCODE_TO_CATEGORY(run.sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION ?
			   HISTORY_CANCELLED : HISTORY_FAILED);
	RESUME_INTERRUPTS();
}

/* forget_figures -- nothing is known but the number of pages before. */
static void
forget_figures(void)
{
	int64		pages_before = run.figures.pages_before;

	run.has_figures = false;
	/* all bits of -1 */
	memset(&run.figures, 0xff, sizeof(run.figures));
	memset(run.figures.phase_seconds, 0, sizeof(run.figures.phase_seconds));
	run.figures.pages_before = pages_before;
}

/*
 * describe_options
 *		Note the options that hold for the table, from the statement, the table or a
 *		setting.
 */
static void
describe_options(const VacuumParams *params)
{
	static const struct
	{
		bits32		option;
		bool		is_set;
		const char *text;
	}			options[] = {
		{VACOPT_FREEZE, true, "FREEZE"},
		{VACOPT_VERBOSE, true, "VERBOSE"},
		{VACOPT_ANALYZE, true, "ANALYZE"},
		{VACOPT_DISABLE_PAGE_SKIPPING, true, "DISABLE_PAGE_SKIPPING"},
		{VACOPT_SKIP_LOCKED, true, "SKIP_LOCKED"},
		{VACOPT_PROCESS_MAIN, false, "PROCESS_MAIN false"},
		{VACOPT_PROCESS_TOAST, false, "PROCESS_TOAST false"},
	};
	char		parallel[32];

	for (int i = 0; i < lengthof(options); i++)
		if (((params->options & options[i].option) != 0) == options[i].is_set)
			append_text(run.options, sizeof(run.options), options[i].text, ", ");
	if (params->index_cleanup == VACOPTVALUE_ENABLED)
		append_text(run.options, sizeof(run.options), "INDEX_CLEANUP on", ", ");
	else if (params->index_cleanup == VACOPTVALUE_DISABLED)
		append_text(run.options, sizeof(run.options), "INDEX_CLEANUP off", ", ");
	if (params->truncate == VACOPTVALUE_DISABLED)
		append_text(run.options, sizeof(run.options), "TRUNCATE false", ", ");
	if (params->nworkers != 0)
	{
		snprintf(parallel, sizeof(parallel), "PARALLEL %d", Max(params->nworkers, 0));
		append_text(run.options, sizeof(run.options), parallel, ", ");
	}
}

/* finish_run -- make the run in hand a row. */
static void
finish_run(HistoryOutcome outcome)
{
	const PaceSummary *pace = pace_summary();
	WalUsage	wal = {0};

	Assert(is_running || outcome == HISTORY_FAILED || outcome == HISTORY_CANCELLED);
	Assert(history_is_kept());

	/* first, so that it isn't recorded twice */
	is_running = false;

	run.end = GetCurrentTimestamp();
	run.outcome = outcome;
	if (outcome != HISTORY_DONE)
		forget_figures();
	WalUsageAccumDiff(&wal, &pgWalUsage, &wal_before);
	run.wal_bytes = wal.wal_bytes;
	run.slept_seconds = pace->is_known ? pace->slept_seconds : NAN;
	if (pace->is_known)
		run.held = pace->held;
	history_rows_add(&run);
}

/* note_warning -- the emit_log hook: note warnings of the run in hand. */
static void
note_warning(ErrorData *edata)
{
	if (is_running && edata->elevel == WARNING && edata->message != NULL)
		append_text(run.warnings, sizeof(run.warnings), edata->message, "\n");
	if (previous_emit_log_hook)
		previous_emit_log_hook(edata);
}

/*
 * append_text
 *		Append to a text of that size at most, after a separator if it isn't empty.
 *		If there is no room for all of it, it ends in dots.
 */
static void
append_text(char *text, Size size, const char *what, const char *separator)
{
	Size		room = size - sizeof(CUT_OFF);

	Assert(size > sizeof(CUT_OFF));

	if (text[0] != '\0')
		strlcat(text, separator, size);
	if (strlcat(text, what, size) < size)
		return;
	text[pg_mbcliplen(text, strlen(text), room)] = '\0';
	strlcat(text, CUT_OFF, size);
}

/* fail_at_exit -- the process exits in the middle of a run. */
static void
fail_at_exit(void)
{
	if (!is_running)
		return;
	run.sqlerrcode = ERRCODE_ADMIN_SHUTDOWN;
	append_text(run.error, sizeof(run.error), "the process was terminated", "");
	finish_run(HISTORY_CANCELLED);
}
