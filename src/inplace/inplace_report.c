/*-------------------------------------------------------------------------
 *
 * inplace_report.c
 *	  Telling the client what VACUUM (FULL INPLACE) of one table did.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "commands/dbcommands.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "history/history.h"
#include "horizon/horizon.h"
#include "inplace/inplace_report.h"
#include "report/pretty_bytes.h"
#include "report/verbose.h"
#include "transaction.h"

/* A smaller part of the table that can't be freed isn't worth a word. */
#define NOTABLE_FRACTION	64

static void tell_end(const InplaceResult *result, const Inplace *job, double elapsed,
					 bool to_log);
static void note_history(const InplaceResult *result, const Inplace *job);
static BlockNumber size_of(Oid relid);
static void tell_why_not(const InplaceResult *result, const Inplace *job);
static bool warn_of_end(const Inplace *job, const char *name);
static char *holder_of(Oid relid, TransactionId cutoff);
static void warn_of_obstacles(const InplaceResult *result, const Inplace *job);

/* inplace_report_begin -- see inplace_report.h. */
Oid
inplace_report_begin(InplaceResult *result, Oid relid, MemoryContext context,
					 const VacuumParams *params)
{
	Relation	rel;
	List	   *indexes;
	Oid			toast_relid;

	Assert(IsTransactionState());
	Assert(OidIsValid(relid) && context != NULL);

	result->relid = relid;
	result->verbose = (params->options & VACOPT_VERBOSE) != 0;
	result->wal = pgWalUsage;
	pg_rusage_init(&result->rusage);
	INSTR_TIME_SET_CURRENT(result->start);

	rel = table_open(relid, ShareUpdateExclusiveLock);
	history_begin(HISTORY_INPLACE, rel, params);
	indexes = RelationGetIndexList(rel);
	result->relids = MemoryContextAlloc(context, (2 + list_length(indexes)) * sizeof(Oid));
	result->sizes = MemoryContextAlloc(context, (2 + list_length(indexes)) * sizeof(BlockNumber));
	toast_relid = rel->rd_rel->reltoastrelid;
	result->relids[result->nsizes++] = relid;
	if (OidIsValid(toast_relid))
		result->relids[result->nsizes++] = toast_relid;
	foreach_oid(index, indexes)
		result->relids[result->nsizes++] = index;
	result->names = MemoryContextAlloc(context, result->nsizes * sizeof(char *));
	for (int i = 0; i < result->nsizes; i++)
	{
		result->sizes[i] = size_of(result->relids[i]);
		result->names[i] = MemoryContextStrdup(context, get_rel_name(result->relids[i]));
	}
	ereport(result->verbose ? INFO : DEBUG2,
			(errmsg("compacting \"%s.%s.%s\" in place",
					get_database_name(MyDatabaseId),
					get_namespace_name(RelationGetNamespace(rel)),
					RelationGetRelationName(rel))));
	table_close(rel, NoLock);
	return toast_relid;
}

/* inplace_report_step -- see inplace_report.h. */
void
inplace_report_step(InplaceResult *result, InplaceStep step, instr_time start)
{
	instr_time	now;

	Assert(step >= 0 && step < NUM_INPLACE_STEPS);
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	result->step_seconds[step] += INSTR_TIME_GET_DOUBLE(now);
}

/* inplace_report_heap -- see inplace_report.h. */
void
inplace_report_heap(InplaceResult *result, const Inplace *job)
{
	Assert(!IsTransactionState());

	transaction_begin(false);
	ereport(result->verbose ? INFO : DEBUG2,
			(errmsg("table \"%s\": moved " INT64_FORMAT " rows out of " INT64_FORMAT " pages in %d passes, truncated %u to %u pages",
					get_rel_name(result->relid), job->rows_moved, result->blocks_vacated,
					result->passes, result->sizes[0], job->pass.new_pages)));
	if (job->rows_moved == 0 && job->npages > 0)
		tell_why_not(result, job);
	if (!warn_of_end(job, get_rel_name(result->relid)))
		warn_of_obstacles(result, job);
	transaction_end();
}

/* tell_why_not -- say why not a single row was moved, unless a warning does. */
static void
tell_why_not(const InplaceResult *result, const Inplace *job)
{
	int			level = result->verbose ? INFO : DEBUG2;
	const char *name = get_rel_name(result->relid);
	Relation	rel;
	int			fillfactor;

	switch (job->end)
	{
		case PLAN_NO_ROOM:
			rel = table_open(result->relid, AccessShareLock);
			fillfactor = RelationGetFillFactor(rel, HEAP_DEFAULT_FILLFACTOR);
			table_close(rel, NoLock);
			ereport(level,
					(errmsg("table \"%s\": no rows to be moved, as too few pages would be freed", name),
					 errdetail("%s are free in %u pages, a row takes %zu bytes on average, and the fillfactor is %d.",
							   pretty_bytes(job->free_bytes), job->npages, job->row_size, fillfactor)));
			break;
		case PLAN_TOO_OLD:
			ereport(level,
					(errmsg("table \"%s\": no rows were moved, as it has to be frozen first", name)));
			break;
		case PLAN_NO_PROGRESS:
			ereport(level,
					(errmsg("table \"%s\": no rows were moved, as none could be", name)));
			break;
		case PLAN_STOPPED:
		case PLAN_GOES_ON:
			break;
	}
}

/*
 * warn_of_end
 *		Say so, and why, if rows were not to be moved any more.
 */
static bool
warn_of_end(const Inplace *job, const char *name)
{
	if (!job->is_stopped)
		return false;
	ereport(WARNING,
			(errmsg("rows of \"%s\" cannot be moved any more, it was not compacted fully", name),
			 job->makes_way_for != 0 ?
			 errdetail("It makes way for the transaction of process %d, which used rows before, and waits for a lock that this command holds.",
					   job->makes_way_for) :
			 job->disk_is_short ?
			 errdetail("Less disk space is free than \"cyclone.min_free_disk\", checkpoints make no room, and each row that is moved writes more WAL.") :
			 job->subscriptions == SUBSCRIPTION_HERE ?
			 errdetail("A subscription of logical replication writes to it now.") :
			 job->subscriptions == SUBSCRIPTION_AT_WORK ?
			 errdetail("A worker of a subscription of logical replication writes to it.") :
			 errdetail("Subscriptions are being created or changed, and one may be about to write to it."),
			 job->makes_way_for == 0 && !job->disk_is_short && job->subscriptions == SUBSCRIPTION_HERE ? 0 :
			 errhint("Run VACUUM (FULL INPLACE) again when that has ended.")));
	return true;
}

/* holder_of -- the holder of rows that were deleted at cutoff or later; NULL if there is none now. */
static char *
holder_of(Oid relid, TransactionId cutoff)
{
	Relation	rel = table_open(relid, AccessShareLock);
	char	   *holder = horizon_describe_oldest(rel, cutoff);

	table_close(rel, NoLock);
	return holder;
}

/*
 * warn_of_obstacles
 *		Say what kept the table from becoming smaller, if that is worth a word.
 */
static void
warn_of_obstacles(const InplaceResult *result, const Inplace *job)
{
	const CompactionPass *pass = &job->pass;
	int64		in_use = job->moved.in_use;
	const char *name = get_rel_name(result->relid);
	BlockNumber notable = pass->new_pages / NOTABLE_FRACTION;

	if (pass->recently_dead_tuples > pass->live_tuples / NOTABLE_FRACTION)
	{
		char	   *holder = holder_of(result->relid, pass->oldest_xmin);

		ereport(WARNING,
				(errmsg("table \"%s\" could not be compacted fully: " INT64_FORMAT " dead row versions are still needed",
						name, pass->recently_dead_tuples),
				 holder != NULL ? errdetail("Their removal is held back by %s.", holder) : 0,
				 errhint("Run VACUUM (FULL INPLACE) again when that has ended.")));
	}
	if (in_use > 0 &&
		pass->new_pages > job->tail_start + notable)
		ereport(WARNING,
				(errmsg("table \"%s\" could not be compacted fully: " INT64_FORMAT " rows are in use by other transactions",
						name, in_use),
				 errhint("Run VACUUM (FULL INPLACE) again when they have ended.")));
	if (pass->new_pages - pass->nonempty_pages > notable)
		ereport(WARNING,
				(errmsg("table \"%s\" could not be truncated, as other sessions were using it all the time",
						name),
				 errhint("VACUUM will do so when it gets the chance.")));
}

/* inplace_report_end -- see inplace_report.h. */
void
inplace_report_end(InplaceResult *result, const Inplace *job)
{
	instr_time	now;
	double		elapsed;
	bool		to_log;

	Assert(!IsTransactionState());

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, result->start);
	elapsed = INSTR_TIME_GET_DOUBLE(now);
	to_log = report_command_is_for_log(elapsed);
	if (!result->verbose && !to_log && !history_is_kept())
		return;

	transaction_begin(false);
	if (result->verbose || to_log)
		tell_end(result, job, elapsed, to_log);
	note_history(result, job);
	transaction_end();
	history_end();
}

/* tell_end -- tell the client, or the log, or both. */
static void
tell_end(const InplaceResult *result, const Inplace *job, double elapsed, bool to_log)
{
	StringInfoData buf;
	WalUsage	wal = {0};
	const double *seconds = result->step_seconds;

	WalUsageAccumDiff(&wal, &pgWalUsage, &result->wal);
	initStringInfo(&buf);
	appendStringInfo(&buf, _("finished compacting \"%s.%s.%s\" in place\n"),
					 get_database_name(MyDatabaseId),
					 get_namespace_name(get_rel_namespace(result->relid)),
					 get_rel_name(result->relid));
	for (int i = 0; i < result->nsizes; i++)
	{
		Oid			relid = result->relids[i];

		if (i == 0)
			appendStringInfoString(&buf, _("heap"));
		else if (get_rel_relkind(relid) == RELKIND_TOASTVALUE)
			appendStringInfoString(&buf, _("TOAST table"));
		else
			appendStringInfo(&buf, _("index \"%s\""), result->names[i]);
		appendStringInfo(&buf, _(": %s before, "), pretty_bytes((int64) result->sizes[i] * BLCKSZ));
		appendStringInfo(&buf, _("%s after\n"),
						 pretty_bytes((int64) size_of(relid) * BLCKSZ));
	}
	appendStringInfo(&buf, _("rows moved: " INT64_FORMAT " out of " INT64_FORMAT " pages, in %d passes\n"),
					 job->rows_moved, result->blocks_vacated, result->passes);
	if (job->rows_undone > 0)
		appendStringInfo(&buf, _("rows moved back, as other sessions were at work on them: " INT64_FORMAT "\n"),
						 job->rows_undone);
	if (job->pass.audited_pages + job->rows_audited > 0)
		appendStringInfo(&buf, _("audit: " INT64_FORMAT " pages and " INT64_FORMAT " moved rows\n"),
						 job->pass.audited_pages, job->rows_audited);
	if (result->stale_locks > 0)
		appendStringInfo(&buf, _("row locks: " INT64_FORMAT " of ended transactions from before relfrozenxid removed\n"),
						 result->stale_locks);
	appendStringInfo(&buf, _("phases: vacuum %.3f s, moving values %.3f s, moving rows %.3f s, indexes rebuilt %.3f s, other %.3f s\n"),
					 seconds[INPLACE_VACUUM], seconds[INPLACE_MOVE_VALUES], seconds[INPLACE_MOVE],
					 seconds[INPLACE_INDEXES],
					 elapsed - seconds[INPLACE_VACUUM] - seconds[INPLACE_MOVE_VALUES] -
					 seconds[INPLACE_MOVE] - seconds[INPLACE_INDEXES]);
	report_append_held(&buf);
	appendStringInfo(&buf, _("WAL usage: " INT64_FORMAT " records, " INT64_FORMAT " full page images, " UINT64_FORMAT " bytes\n"),
					 wal.wal_records, wal.wal_fpi, wal.wal_bytes);
	appendStringInfo(&buf, _("system usage: %s"), pg_rusage_show(&result->rusage));
	if (result->verbose)
		ereport(INFO, (errmsg_internal("%s", buf.data)));
	if (to_log)
	{
		appendStringInfoChar(&buf, '\n');
		report_append_command(&buf, "VACUUM (FULL INPLACE)");
		buf.data[--buf.len] = '\0';
		ereport(LOG_SERVER_ONLY, (errmsg_internal("%s", buf.data), errhidestmt(true)));
	}
	pfree(buf.data);
}

/* note_history -- what cyclone.history has of it. */
static void
note_history(const InplaceResult *result, const Inplace *job)
{
	HistoryFigures *figures = history_figures();

	if (figures == NULL)
		return;
	for (int i = 0; i < NUM_INPLACE_STEPS; i++)
		figures->phase_seconds[i] = result->step_seconds[i];
	figures->rows_dead = job->pass.recently_dead_tuples;
	figures->rows_moved = job->rows_moved;
	figures->audited_pages = job->pass.audited_pages;
	figures->pages_before = result->sizes[0];
	figures->bytes_before = figures->bytes_after = 0;
	for (int i = 0; i < result->nsizes; i++)
	{
		figures->bytes_before += (int64) result->sizes[i] * BLCKSZ;
		figures->bytes_after += (int64) size_of(result->relids[i]) * BLCKSZ;
	}
}

/* size_of -- the size of a relation, 0 if it is gone. */
static BlockNumber
size_of(Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	BlockNumber blocks = 0;

	if (rel != NULL)
	{
		blocks = RelationGetNumberOfBlocks(rel);
		relation_close(rel, AccessShareLock);
	}
	return blocks;
}

/* inplace_report_index_stays -- see inplace_report.h. */
void
inplace_report_index_stays(Oid index, const OthersFound *others)
{
	bool		in_transaction = IsTransactionState();
	char	   *name;

	if (!in_transaction)
		transaction_begin(false);
	name = get_rel_name(index);
	if (name == NULL)
		 /* somebody dropped it while we had no lock on the table */ ;
	else if (others->end == OTHERS_GONE)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("index \"%s\" stays bloated, as other sessions use its table all the time", name),
				 errdetail("Within cyclone.index_wait it could not be locked for a moment without holding others up."),
				 errhint("Run VACUUM (FULL INPLACE) again in a quiet hour, or raise cyclone.index_wait.")));
	else if (others->end == OTHERS_WAIT_FOR_US)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("index \"%s\" stays bloated, to make way for %s",
						name, others_describe(others)),
				 errdetail("It used the table before, and waits for a lock that this command holds."),
				 errhint("Run VACUUM (FULL INPLACE) again.")));
	else
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("index \"%s\" stays bloated because of %s",
						name, others_describe(others)),
				 errdetail("It has been running for longer than cyclone.index_wait, and may need the old index."),
				 errhint("Run VACUUM (FULL INPLACE) again when it has ended, or raise cyclone.index_wait.")));
	if (!in_transaction)
		transaction_end();
}
