/*-------------------------------------------------------------------------
 *
 * autovacuum.c
 *	  Autovacuum's tables, by the engine or by PostgreSQL's VACUUM.
 *
 * heap_seam.c brings each table that an autovacuum worker vacuums here, and this file
 * decides who vacuums it.  Nothing may depend on the engine for safety: where it fails on a
 * table, or the server crashes while it is at one, that table's circuit breaker opens, and
 * PostgreSQL's VACUUM has the next turns (table_log.c).  Where an autovacuum was cancelled,
 * or one of its processes terminated, or the server stopped, that is no failure.  The class
 * of the error tells.
 *
 * With a cost delay a table gets no more workers than the budget feeds; all autovacuums
 * together get no more than cyclone.autovacuum_max_parallel_workers (team/degree.c).  A
 * vacuum to prevent wraparound that is getting near the failsafe has no delay, and asks for
 * as many as there may be.  A small table gets none: it is done before one has started.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "access/xact.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "audit_mark.h"
#include "autovacuum/autovacuum.h"
#include "autovacuum/running_notes.h"
#include "autovacuum/table_log.h"
#include "compat.h"
#include "engine/table_run.h"
#include "history/history.h"
#include "scope.h"
#include "server_check.h"
#include "settings.h"
#include "team/degree.h"

/* From this part of the failsafe's age on a table is in a hurry. */
#define HURRY_FRACTION	0.8
/* In a hurry there is a worker for each 1 MB of the table. */
#define HURRY_PAGES		((BlockNumber) (1024 * 1024 / BLCKSZ))

/* The table that this worker has the engine vacuum */
typedef struct TableInHand
{
	Relation	rel;
	const TableKey *key;
	char	   *name;			/* NULL if it isn't known yet */
	VacuumParams params;
	AutovacuumResult *result;
} TableInHand;

static AutovacuumReason choose_reason(Relation rel, const TableKey *key, uint32 *failures);
static bool begin_run(void *state);
static void end_run(void *state);
static void fail_run(void *state);
static void vacuum_by_server(Relation rel, compat_am_vacuum_params *params,
							 BufferAccessStrategy strategy,
							 RelationVacuum servers_vacuum);
static void tell_breaker(const char *name, bool is_audits, TimestampTz until);
static void note_failure(const TableInHand *table);
static bool is_in_a_hurry(Relation rel, const VacuumParams *params);

PG_FUNCTION_INFO_V1(pg_cyclone_autovacuum_reset);

/*
 * autovacuum_vacuum
 *		Vacuum a table in an autovacuum worker.
 *
 * The caller is in a transaction with a snapshot, and holds a
 * ShareUpdateExclusiveLock on rel, which is a heap.
 */
void
autovacuum_vacuum(Relation rel, compat_am_vacuum_params *params, BufferAccessStrategy strategy,
				  RelationVacuum servers_vacuum)
{
	TableKey	key = table_log_key(rel);
	AutovacuumResult result = {.start = GetCurrentTimestamp()};
	TableInHand table = {.rel = rel,.key = &key,.params = *params,.result = &result};
	TableRunCaller caller = {.begin = begin_run,.fail = fail_run,.end = end_run,.state = &table};
	TableResult done;
	uint32		failures;
	AutovacuumReason reason = choose_reason(rel, &key, &failures);

	Assert(AmAutoVacuumWorkerProcess());
	Assert(IsTransactionState());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	Assert(ActiveSnapshotSet());

	if (reason == REASON_ENGINE && !running_notes_begin(&key, failures))
		reason = REASON_NO_NOTE;

	if (reason == REASON_ENGINE)
	{
		table_run(rel, &table.params, strategy, &caller, &done);
		result.rows_removed = done.counters.tuples_deleted;
		result.pages_scanned = done.counters.scanned_pages;
		result.workers = done.workers_launched;
	}
	else
		vacuum_by_server(rel, params, strategy, servers_vacuum);
	table_log_done(&key, reason, false, &result);
}

/*
 * choose_reason
 *		Does the engine vacuum the table, and if not, why?  *failures is how often in a
 *		row the engine has failed on it.
 */
static AutovacuumReason
choose_reason(Relation rel, const TableKey *key, uint32 *failures)
{
	*failures = 0;
	/* the one switch for all that pg_cyclone does counts here, too */
	if (!cyclone_autovacuum || !settings_enabled())
		return REASON_OFF;
	if (!scope_has_table(rel))
		return REASON_NOT_LISTED;
	if (table_log_breaker_is_open(key, failures))
		return REASON_BREAKER;
	if (table_log_all_are_left())
		return REASON_CRASHES;
	return REASON_ENGINE;
}

/* begin_run -- note what an error needs to know; choose the workers; is the run in a hurry? */
static bool
begin_run(void *state)
{
	TableInHand *table = state;
	BlockNumber for_size = RelationGetNumberOfBlocks(table->rel) / HURRY_PAGES;
	BlockNumber most = cyclone_autovacuum_max_parallel_workers;
	int			nworkers = Min(for_size, most);
	bool		hurries;

	/* after an error the catalogs can't be asked */
	table->name = psprintf("%s.%s.%s", get_database_name(MyDatabaseId),
						   get_namespace_name(RelationGetNamespace(table->rel)),
						   RelationGetRelationName(table->rel));
	hurries = is_in_a_hurry(table->rel, &table->params);

	/*
	 * 0: as the table's size calls for; compat_autovacuum_workers has
	 * PostgreSQL's bound.  -1: none
	 */
	table->params.nworkers = !hurries ? 0 : nworkers > 0 ? nworkers : -1;
	return hurries;
}

/* end_run -- it has ended well. */
static void
end_run(void *state)
{
	running_notes_end();
	degree_release();
}

/* fail_run -- an error has ended the run. */
static void
fail_run(void *state)
{
	end_run(state);
	note_failure(state);
}

/*
 * vacuum_by_server
 *		Have the server vacuum a table, and record in the history what is known of that.
 *
 * Records nothing if cyclone.enabled is off.
 */
static void
vacuum_by_server(Relation rel, compat_am_vacuum_params *params, BufferAccessStrategy strategy,
				 RelationVacuum servers_vacuum)
{
	if (!settings_enabled() || !history_is_kept())
	{
		servers_vacuum(rel, params, strategy);
		return;
	}

	PG_TRY();
	{
		history_begin(HISTORY_SERVERS_VACUUM, rel, params);
		servers_vacuum(rel, params, strategy);
	}
	PG_CATCH();
	{
		history_fail();
		PG_RE_THROW();
	}
	PG_END_TRY();
	history_end();
}

/*
 * note_failure
 *		An error ends the engine's vacuum of a table: note it by its kind.
 */
static void
note_failure(const TableInHand *table)
{
	int			sqlerrcode = geterrcode();
	bool		is_audits = audit_mark_is_set();
	TimestampTz until;

	/* a full disk is no fault of the engine's */
	if (!is_audits && (ERRCODE_TO_CATEGORY(sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION ||
					   sqlerrcode == ERRCODE_DISK_FULL))
	{
		table_log_done(table->key, REASON_ENGINE, true, table->result);
		return;
	}

	until = table_log_failed(table->key, sqlerrcode, is_audits, table->result);
	if (until != 0)
		tell_breaker(table->name, is_audits, until);
}

/*
 * autovacuum_audit_has_failed
 *		An error ends a command's VACUUM of a table of this name, which may be NULL.  If
 *		an audit has raised it, leave the table to the server.  Returns whether one has.
 */
bool
autovacuum_audit_has_failed(const TableKey *key, const char *name)
{
	if (!audit_mark_is_set())
		return false;
	/* a note is written to disk, and a line to the log */
	compat_unlock_pages();
	tell_breaker(name, true, table_log_failed(key, ERRCODE_DATA_CORRUPTED, true, NULL));
	return true;
}

/*
 * tell_breaker
 *		Log that a table's breaker has opened, while an error is handled.
 */
static void
tell_breaker(const char *name, bool is_audits, TimestampTz until)
{
	/*
	 * The error itself comes next.  Sending a message serves interrupts, and
	 * the end of the worker that raised the error would be another error.
	 */
	HOLD_INTERRUPTS();
	if (is_audits)
		ereport(LOG,
				(errmsg("an audit has failed on table \"%s\": it is left to PostgreSQL's own VACUUM from now on",
						name != NULL ? name : "?"),
				 errhint("The function cyclone.autovacuum_reset() ends that. Find out what has happened first.")));
	else
		ereport(LOG,
				(errmsg("pg_cyclone has failed on table \"%s\": autovacuum leaves it to PostgreSQL's own VACUUM until %s",
						name != NULL ? name : "?", timestamptz_to_str(until)),
				 errhint("The function cyclone.autovacuum_reset() ends that.")));
	RESUME_INTERRUPTS();
}

/*
 * pg_cyclone_autovacuum_reset
 *		Forget about a table of this database, or about all tables of all databases
 *		if it is null; breakers are closed with that.  Returns how many there were.
 */
Datum
pg_cyclone_autovacuum_reset(PG_FUNCTION_ARGS)
{
	TableKey	keys[] = {{.database = MyDatabaseId}, {.database = InvalidOid}};
	int64		forgotten = 0;

	server_refuse_if_unfit("cyclone.autovacuum_reset()");
	if (PG_ARGISNULL(0))
		PG_RETURN_INT64(table_log_forget(NULL));
	for (int i = 0; i < lengthof(keys); i++)
	{
		keys[i].relid = PG_GETARG_OID(0);
		forgotten += table_log_forget(&keys[i]);
	}
	PG_RETURN_INT64(forgotten);
}

/*
 * is_in_a_hurry
 *		Is this a vacuum to prevent wraparound, of a table that is so old that the
 *		failsafe is near?
 */
static bool
is_in_a_hurry(Relation rel, const VacuumParams *params)
{
	/* as the server bounds them */
	int			failsafe_age = Max(vacuum_failsafe_age, autovacuum_freeze_max_age * 1.05);
	int			multi_failsafe_age = Max(vacuum_multixact_failsafe_age,
										 autovacuum_multixact_freeze_max_age * 1.05);
	TransactionId limit = ReadNextTransactionId() - (uint32) (failsafe_age * HURRY_FRACTION);
	MultiXactId multi_limit = ReadNextMultiXactId() - (uint32) (multi_failsafe_age * HURRY_FRACTION);

	if (!params->is_wraparound)
		return false;
	return (TransactionIdIsNormal(rel->rd_rel->relfrozenxid) &&
			TransactionIdPrecedes(rel->rd_rel->relfrozenxid, limit)) ||
		(MultiXactIdIsValid(rel->rd_rel->relminmxid) &&
		 MultiXactIdPrecedes(rel->rd_rel->relminmxid, multi_limit));
}
