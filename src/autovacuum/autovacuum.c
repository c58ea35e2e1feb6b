/*-------------------------------------------------------------------------
 *
 * autovacuum.c
 *	  Autovacuum's tables, by the engine or by the server's own VACUUM.
 *
 * Which tables, in which order, when and by how many autovacuum workers, that
 * is all the server's doing.  heap_seam.c brings us each table that such a
 * worker wants vacuumed, and here it is decided who does it.
 *
 * Nothing may depend on the engine for safety.  If it fails on a table, or the
 * server crashes while it is at it, that table's circuit breaker opens, and
 * PostgreSQL's own VACUUM has the next turns (table_log.c, running_notes.c).
 * A cancellation is no failure: somebody wanted the table.
 *
 * With a cost delay in force workers gain nothing, so a table gets no more
 * of them than the budget feeds; all autovacuums together get no more than
 * cyclone.autovacuum_max_parallel_workers (team/degree.c).  A vacuum to prevent
 * wraparound that is getting near the failsafe has no delay, and asks for as
 * many workers as there may be.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "utils/timestamp.h"

#include "autovacuum/autovacuum.h"
#include "autovacuum/running_notes.h"
#include "autovacuum/table_log.h"
#include "engine/table_vacuum.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "settings.h"
#include "team/degree.h"
#include "team/team.h"

/* From this part of the failsafe's age on a table is in a hurry. */
#define HURRY_FRACTION	0.8

static AutovacuumDoor choose_door(const TableKey *key, uint32 *failures);
static void vacuum_by_engine(Relation rel, const VacuumParams *params,
							 BufferAccessStrategy strategy, const TableKey *key,
							 AutovacuumResult *result);
static void note_failure(Relation rel, const TableKey *key, const AutovacuumResult *result);
static bool is_in_a_hurry(Relation rel, const VacuumParams *params);

/*
 * autovacuum_init
 *		Ask for shared memory, and see what a crash has left.  Call while the
 *		library is preloaded.
 */
void
autovacuum_init(void)
{
	table_log_init();
	running_notes_init();
	degree_init();
}

/*
 * autovacuum_vacuum
 *		Vacuum a table in an autovacuum worker.
 *
 * The caller is in a transaction with a snapshot, and holds a
 * ShareUpdateExclusiveLock on rel, which is a heap.
 */
void
autovacuum_vacuum(Relation rel, VacuumParams *params, BufferAccessStrategy strategy,
				  RelationVacuum servers_vacuum)
{
	TableKey	key = table_log_key(rel);
	AutovacuumResult result = {.start = GetCurrentTimestamp()};
	uint32		failures;
	AutovacuumDoor door = choose_door(&key, &failures);

	if (door == DOOR_ENGINE && !running_notes_begin(&key, failures))
		door = DOOR_NO_NOTE;

	if (door == DOOR_ENGINE)
		vacuum_by_engine(rel, params, strategy, &key, &result);
	else
		servers_vacuum(rel, params, strategy);
	table_log_done(&key, door, &result);
}

/*
 * choose_door
 *		Who is to vacuum the table?  And how often in a row has the engine failed
 *		on it?
 */
static AutovacuumDoor
choose_door(const TableKey *key, uint32 *failures)
{
	*failures = 0;
	/* the one switch for all that pg_cyclone does counts here, too */
	if (!cyclone_autovacuum || !cyclone_enabled)
		return DOOR_OFF;
	if (table_log_breaker_is_open(key, failures))
		return DOOR_BREAKER;
	return DOOR_ENGINE;
}

/*
 * vacuum_by_engine
 *		Have the engine vacuum a table, for which there is a note on disk.
 *
 * If that fails the error is the caller's, when all is noted.
 */
static void
vacuum_by_engine(Relation rel, const VacuumParams *params, BufferAccessStrategy strategy,
				 const TableKey *key, AutovacuumResult *result)
{
	VacuumParams ours = *params;
	TableResult table;

	/* as the table's size calls for; the server's own never has any */
	ours.nworkers = 0;

	PG_TRY();
	{
		pace_begin_command(NULL);
		if (is_in_a_hurry(rel, params))
		{
			ours.nworkers = degree_autovacuum_limit();
			pace_hurry();
		}
		pace_write_steadily();
		table_vacuum(rel, &ours, strategy, NULL, &table);
	}
	PG_CATCH();
	{
		team_give_up();
		running_notes_end();
		degree_release();
		pace_end_command();
		progress_clear();
		note_failure(rel, key, result);
		PG_RE_THROW();
	}
	PG_END_TRY();

	running_notes_end();
	degree_release();
	pace_end_command();
	result->rows_removed = table.counters.tuples_deleted;
	result->pages_scanned = table.counters.scanned_pages;
	result->workers = table.workers_launched;
}

/*
 * note_failure
 *		An error ends the engine's vacuum of a table: see what kind of error.
 */
static void
note_failure(Relation rel, const TableKey *key, const AutovacuumResult *result)
{
	int			sqlerrcode = geterrcode();

	if (sqlerrcode == ERRCODE_QUERY_CANCELED)
		table_log_cancelled(key, result);
	else
		(void) table_log_failed(key, sqlerrcode, result);
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
