/*-------------------------------------------------------------------------
 *
 * guards_command.c
 *	  A command that guards may hold: its leader and its workers, from begin to end.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/proc.h"
#include "utils/syscache.h"

#include "clock.h"
#include "compat.h"
#include "config_files.h"
#include "guards/guards_state.h"
#include "settings.h"

static void set_limits(int wal_rate_kb, int max_lag_ms, double min_free_disk);

/*
 * guards_begin_command
 *		This process leads a vacuum from now on.  While it is held, while_held is
 *		called now and then.
 *
 * A VACUUM of several tables may be several commands to us.  A pause of one holds for
 * the whole statement, and that of all for those that begin while it lasts.
 */
void
guards_begin_command(void (*while_held) (void))
{
	static TimestampTz last_statement = 0;
	static uint64 last_general = 0;
	static bool has_begun = false;
	GuardedVacuum *vacuum;
	TimestampTz statement = GetCurrentStatementStartTimestamp();
	uint64		general;

	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	vacuum = &guards_shared->vacuums[MyProcNumber];

	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	general = pg_atomic_read_u64(&guards_shared->general_pause.until);
	if (statement != last_statement || general != last_general || AmAutoVacuumWorkerProcess())
	{
		vacuum->pause = guards_shared->general_pause;
		if (general <= now_ns())
			pg_atomic_write_u64(&vacuum->pause.until, 0);
		pg_atomic_write_u32(&vacuum->has_warned, 0);
	}
	last_statement = statement;
	last_general = general;
	memset(&vacuum->pid, 0, sizeof(GuardedVacuum) - offsetof(GuardedVacuum, pid));
	vacuum->is_autovacuum = AmAutoVacuumWorkerProcess();
	vacuum->pid = MyProcPid;
	LWLockRelease(guards_shared->lock);

	/*
	 * a look of a moment ago counts for the next small table, too, if it
	 * found room
	 */
	if (!has_begun || pg_atomic_read_u32(&vacuum->disk_stops) != DISK_NONE)
	{
		pg_atomic_write_u32(&vacuum->disk_stops, DISK_NONE);
		pg_atomic_write_u64(&vacuum->next_disk_look, 0);
	}
	/* an autovacuum worker waits once for all tables, or it would do nothing else */
	if (!has_begun || !vacuum->is_autovacuum)
		pg_atomic_write_u64(&vacuum->disk_stop_start, 0);
	has_begun = true;
	guards_join(MyProcNumber);
	set_limits(cyclone_max_wal_rate, cyclone_max_replica_lag, cyclone_min_free_disk);
	guarded.while_held = while_held;
	/* here, too, as VACUUMs of small tables may all end before they look */
	guards_look_at_standbys(now_ns());
}

/* guards_hurry -- nothing holds the command that this process leads. */
void
guards_hurry(void)
{
	if (guarded.vacuum != NULL)
		guards_raise_hurry(guarded.vacuum, HURRY_ALL);
}

/* guards_end_command -- the command has ended; does nothing if none has begun. */
void
guards_end_command(void)
{
	GuardedVacuum *vacuum = &guards_shared->vacuums[MyProcNumber];

	guards_leave();
	if (vacuum->pid != MyProcPid)
		return;
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	vacuum->pid = 0;
	LWLockRelease(guards_shared->lock);
}

/* guards_begin_table -- the leader goes on to a table: see guards.h. */
void
guards_begin_table(Oid relid, bool readers_wait)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	HeapTuple	tuple;
	Form_pg_class form;
	char	   *path;

	if (vacuum == NULL)
		return;
	Assert(IsTransactionState());
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	form = (Form_pg_class) GETSTRUCT(tuple);
	path = GetDatabasePath(form->relisshared ? InvalidOid : MyDatabaseId,
						   OidIsValid(form->reltablespace) ? form->reltablespace : MyDatabaseTableSpace);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&vacuum->relid, relid);
	vacuum->readers_wait = readers_wait;
	vacuum->relfrozenxid = form->relfrozenxid;
	vacuum->relminmxid = form->relminmxid;
	strlcpy(vacuum->path, path, sizeof(vacuum->path));
	LWLockRelease(guards_shared->lock);
	pfree(path);
	ReleaseSysCache(tuple);

	/* the table before may have been older */
	if (guards_hurry_of(vacuum) != HURRY_ALL)
		pg_atomic_write_u32(&vacuum->hurry, HURRY_NONE);
	if ((MyProc->statusFlags & PROC_VACUUM_FOR_WRAPAROUND) != 0 || guards_is_needed(vacuum))
		guards_raise_hurry(vacuum, HURRY_WRAPAROUND);
	/* rather now than when there is something to undo */
	if (readers_wait)
		pg_atomic_write_u64(&vacuum->next_disk_look, 0);
	guards_look_at_disk(now_ns());
	if (guards_what_holds() == GUARD_DISK && pg_atomic_read_u32(&vacuum->is_ending) == 0 &&
		pg_atomic_read_u32(&vacuum->disk_stops) == DISK_NO_ROOM)
		disk_end_vacuum(vacuum);
}

/* guards_reread -- set the limits as they would be if the configuration files were reloaded now. */
void
guards_reread(ConfigVariable *files)
{
	int			wal_rate = cyclone_max_wal_rate;
	int			max_lag = cyclone_max_replica_lag;
	double		min_free_disk = cyclone_min_free_disk;
	const char *value = config_files_text("cyclone.min_free_disk", files);

	config_files_int("cyclone.max_wal_rate", files, &wal_rate);
	config_files_int("cyclone.max_replica_lag", files, &max_lag);
	if (value != NULL)
		(void) settings_parse_min_free_disk(*value == '\0' ? MIN_FREE_DISK_DEFAULT : value, &min_free_disk);
	set_limits(wal_rate, max_lag, min_free_disk);
}

/* set_limits -- those of all vacuums, and how much of a disk is to stay free for this process's. */
static void
set_limits(int wal_rate_kb, int max_lag_ms, double min_free_disk)
{
	if (guarded.vacuum != NULL)
		write_double(&guarded.vacuum->min_free_disk, min_free_disk);
	pg_atomic_write_u64(&guards_shared->wal_rate, (uint64) wal_rate_kb * 1024);
	pg_atomic_write_u32(&guards_shared->max_lag_ms, max_lag_ms);
}

/* guards_leader -- the number by which others of this vacuum join. */
int
guards_leader(void)
{
	return guarded.vacuum == NULL ? INVALID_PROC_NUMBER : guarded.vacuum - guards_shared->vacuums;
}

/* guards_join -- this process takes part in the vacuum of that leader, if there is one. */
void
guards_join(int leader)
{
	Assert(leader == INVALID_PROC_NUMBER || (leader >= 0 && leader < MaxBackends));
	memset(&guarded, 0, sizeof(guarded));
	if (leader != INVALID_PROC_NUMBER)
		guarded.vacuum = &guards_shared->vacuums[leader];
	guards_skip_wal();
}

/* guards_leave -- this process takes part no more; does nothing if it didn't. */
void
guards_leave(void)
{
	if (guarded.vacuum != NULL)
		wal_rate_leave();
	memset(&guarded, 0, sizeof(guarded));
	guards_skip_wal();
}
