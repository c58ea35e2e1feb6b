/*-------------------------------------------------------------------------
 *
 * objects.c
 *	  Statements of compaction's workers on the extension's objects.
 *
 * A worker has all rights, so it uses no object in schema cyclone that isn't the
 * extension's: each of its transactions locks those that it uses, and looks.  Without
 * the locks a role could put objects of its own in their place when the extension is
 * dropped, between our look and our statement, and their functions would have all rights.
 *
 * No session waits for a worker that waits here: it holds no lock between two tries.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compaction/objects.h"
#include "own_wait_event.h"

/* How long it waits between two tries */
#define PAUSE_MS	100

static bool lock_objects(bool *are_there);
static Oid	object_of(const char *name);

/*
 * objects_begin
 *		A transaction with a snapshot, for statements on the extension's objects, which it
 *		locks.  If they are gone, or another session keeps them locked, the process ends.
 */
void
objects_begin(int patience_ms)
{
	static uint32 wait_event = 0;
	MemoryContext context = CurrentMemoryContext;
	bool		are_there;

	Assert(!IsTransactionState());

	for (int waited = 0;; waited += PAUSE_MS)
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		if (lock_objects(&are_there))
			break;
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
		if (!are_there || waited >= patience_ms)
			proc_exit(0);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, PAUSE_MS,
						 own_wait_event(&wait_event, "CycloneCompactionObjects"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
}

/*
 * lock_objects
 *		Lock the objects that the statements name, without waiting; false if that can't
 *		be done, or they aren't there, or aren't the extension's.
 */
static bool
lock_objects(bool *are_there)
{
	static const struct
	{
		const char *name;
		LOCKMODE	mode;
	}			objects[] =

	{
		{"compaction_details", AccessShareLock},
		{"compaction_state", RowExclusiveLock},
		{"compaction_policies", RowExclusiveLock},
	};

	*are_there = true;
	for (int i = 0; i < lengthof(objects); i++)
	{
		Oid			relid = object_of(objects[i].name);

		if (OidIsValid(relid) && !ConditionalLockRelationOid(relid, objects[i].mode))
			return false;
		/* it may have been another one's until we had the lock */
		if (!OidIsValid(relid) || object_of(objects[i].name) != relid)
		{
			*are_there = false;
			return false;
		}
	}
	return true;
}

/* object_of -- the relation of this name that belongs to the extension; invalid if there is none. */
static Oid
object_of(const char *name)
{
	Oid			schema = get_namespace_oid("cyclone", true);
	Oid			extension = get_extension_oid("pg_cyclone", true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;

	return OidIsValid(relid) && OidIsValid(extension) &&
		getExtensionOfObject(RelationRelationId, relid) == extension ? relid : InvalidOid;
}

/* objects_run_sql -- run a statement, in such a transaction. */
void
objects_run_sql(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls)
{
	int			code;

	Assert(IsTransactionState() && ActiveSnapshotSet());
	Assert(nargs == 0 || (types != NULL && values != NULL));

	pgstat_report_activity(STATE_RUNNING, sql);
	code = SPI_execute_with_args(sql, nargs, types, values, nulls, false, 0);
	if (code < 0)
		elog(ERROR, "statement \"%s\" failed: %s", sql, SPI_result_code_string(code));
}

/* objects_end -- commit it. */
void
objects_end(void)
{
	Assert(IsTransactionState());
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
}
