/*-------------------------------------------------------------------------
 *
 * guards.c
 *	  Commands that guards may hold, and where their processes wait.
 *
 * The leader of a command has a place in shared memory; workers find it by its number.
 *
 * All that a process has to do is to call guards_point where it holds no lock on a page:
 * a delay point (pace.c) does that, and so do loops that take from no budget, as those
 * that build indexes.  There it stands still as long as a pause, a standby or a disk says
 * so (guards_what_holds), and then pays for its WAL (wal_rate.c).
 *
 * It may stand still for an hour, so it has no page pinned then.  A read stream has some
 * pinned ahead.  Its loop says so (guards_begin_pins), and no process stands still there.
 * Instead the stream's callback ends the stream (guards_cut_stream), and the loop does the
 * pages that it has got, without any naps.  When the last one is released
 * guards_resume_stream waits, and has the same stream go on.  Dead items that were
 * collected, and blocks that were claimed, stay.
 *
 * README.md says what holds whom, for how long, and why that is right.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "commands/vacuum.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/bufmgr.h"
#include "storage/proc.h"
#include "utils/rel.h"

#include "compat.h"
#include "config_files.h"
#include "guards/guards_state.h"
#include "settings.h"

/* A process that stands still looks again after this time. */
#define HOLD_NAP_MS		200
/* After this number of calls a process looks at the clock, if it is time to look at the disk. */
#define CALLS_A_LOOK		16

static void hold_while_due(void);
static bool goes_on_nevertheless(GuardedVacuum *vacuum, Guard guard);
static void end_pause_if_over(GuardedVacuum *vacuum);
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
	}
	last_statement = statement;
	last_general = general;
	memset(&vacuum->pid, 0, sizeof(GuardedVacuum) - offsetof(GuardedVacuum, pid));
	vacuum->is_autovacuum = AmAutoVacuumWorkerProcess();
	vacuum->pid = MyProcPid;
	LWLockRelease(guards_shared->lock);

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
guards_begin_table(Oid relid, bool readers_wait, bool hurries)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	Relation	rel;
	char	   *path;

	if (vacuum == NULL)
		return;
	Assert(IsTransactionState());
	rel = table_open(relid, NoLock);
	path = GetDatabasePath(rel->rd_locator.dbOid, rel->rd_locator.spcOid);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&vacuum->relid, relid);
	vacuum->readers_wait = readers_wait;
	vacuum->relfrozenxid = rel->rd_rel->relfrozenxid;
	vacuum->relminmxid = rel->rd_rel->relminmxid;
	strlcpy(vacuum->path, path, sizeof(vacuum->path));
	LWLockRelease(guards_shared->lock);
	pfree(path);
	table_close(rel, NoLock);

	/* the table before may have been older */
	pg_atomic_write_u32(&vacuum->hurry, HURRY_NONE);
	if (hurries)
		guards_raise_hurry(vacuum, HURRY_ALL);
	else if ((MyProc->statusFlags & PROC_VACUUM_FOR_WRAPAROUND) != 0 || guards_is_needed(vacuum))
		guards_raise_hurry(vacuum, HURRY_WRAPAROUND);
	/* rather now than when there is something to undo */
	if (readers_wait)
		pg_atomic_write_u64(&vacuum->next_disk_look, 0);
	guards_look_at_disk(now_ns());
	if (guards_what_holds() == GUARD_DISK && pg_atomic_read_u32(&vacuum->is_ending) == 0 &&
		pg_atomic_read_u32(&vacuum->disk_stops) == DISK_NO_ROOM)
		disk_end_vacuum(vacuum, DISK_NO_ROOM, XLOGDIR);
	if (!vacuum->is_autovacuum && guards_what_holds() == GUARD_PAUSE)
		ereport(NOTICE,
				(errmsg("VACUUM waits, as VACUUMs are paused"),
				 errhint("SELECT cyclone.resume(%d) lets it go on.", MyProcPid)));
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

/* guards_join -- this process takes part in the vacuum of that leader. */
void
guards_join(int leader)
{
	Assert(leader >= 0 && leader < MaxBackends);
	memset(&guarded, 0, sizeof(guarded));
	guarded.vacuum = &guards_shared->vacuums[leader];
	guards_skip_wal();
}

/* guards_leave -- this process takes part no more; does nothing if it didn't. */
void
guards_leave(void)
{
	/* others sleep for what it hasn't paid for */
	if (guarded.vacuum != NULL)
		(void) wal_rate_is_ahead(now_ns());
	memset(&guarded, 0, sizeof(guarded));
	guards_skip_wal();
}

/* guards_point -- wait as long as a guard says so: see guards.h. */
void
guards_point(void)
{
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);

	if (guarded.vacuum == NULL)
		return;
	if (unlikely(++guarded.calls % CALLS_A_LOOK == 0))
		guards_look_at_disk(now_ns());
	if (unlikely(guards_hold_is_due()) && guarded.pins == 0)
		hold_while_due();
	if (unlikely(wal_rate_is_due()))
	{
		guards_look_at_standbys(now_ns());
		wal_rate_pay();
	}
}

/*
 * guards_wait_in_server_code
 *		In the routine of an access method, where a page may be locked: is this process
 *		to do as little as it can?
 *
 * It can't end a pause that is over.
 */
bool
guards_wait_in_server_code(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	Guard		guard = guards_what_holds();
	uint64		now = now_ns();

	if (guard == GUARD_PAUSE)
		return now < pg_atomic_read_u64(&vacuum->pause.until) && !guards_is_needed(vacuum);
	return guard != NUM_GUARDS || (vacuum != NULL && !VacuumFailsafeActive && wal_rate_is_ahead(now));
}

/* guards_begin_pins -- this process has pages pinned from now on. */
void
guards_begin_pins(void)
{
	guarded.pins++;
}

/* guards_end_pins -- it has released them. */
void
guards_end_pins(void)
{
	/* a stream that was cut has been resumed, or part of it would be missing */
	Assert(guarded.pins > 0);
	Assert(guarded.pins > 1 || !guarded.stream_is_cut);
	guarded.pins--;
}

/* guards_cut_stream -- for the callback of a read stream: is it to end the stream for now?  Takes no lock. */
bool
guards_cut_stream(void)
{
	Assert(guarded.pins > 0);

	/* of no use while a loop around this one has pages pinned, too */
	if (likely(!guards_hold_is_due()) || guarded.pins > 1)
		return false;
	guarded.stream_is_cut = true;
	return true;
}

/*
 * guards_resume_stream
 *		Where a stream has ended, between guards_begin_pins and guards_end_pins: if it
 *		was cut wait, and return the next page; else return none.
 *
 * Nothing is pinned then but *other_pin, maybe, which is released.
 */
Buffer
guards_resume_stream(ReadStream *stream, void **per_buffer_data, Buffer *other_pin)
{
	Buffer		buffer = InvalidBuffer;

	Assert(guarded.pins > 0);
	while (unlikely(guarded.stream_is_cut) && !BufferIsValid(buffer))
	{
		Assert(guarded.pins == 1);
		if (other_pin != NULL && BufferIsValid(*other_pin))
		{
			ReleaseBuffer(*other_pin);
			*other_pin = InvalidBuffer;
		}
		guarded.stream_is_cut = false;
		guarded.pins--;
		hold_while_due();
		guarded.pins++;
		read_stream_reset(stream);
		buffer = read_stream_next_buffer(stream, per_buffer_data);
	}
	return buffer;
}

/*
 * guards_disk_is_short
 *		A command can end with what it has achieved: is it to do so now, to leave room for
 *		WAL?  If so, that holds for all of its processes, and of the rest of its work a disk
 *		holds only what would fill it.
 */
bool
guards_disk_is_short(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;

	if (vacuum == NULL)
		return false;
	Assert(guarded.pins == 0);
	guards_look_at_disk(now_ns());
	if (pg_atomic_read_u32(&vacuum->disk_stops) != DISK_NONE && guards_hurry_of(vacuum) < HURRY_WRAPAROUND &&
		pg_atomic_exchange_u32(&vacuum->is_ending, 1) == 0)
		pg_atomic_write_u32(&vacuum->disk_stops, DISK_NONE);
	return pg_atomic_read_u32(&vacuum->is_ending) != 0;
}

/* hold_while_due -- wait until the pause ends, standbys have caught up, and there is room on disk. */
static void
hold_while_due(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	Guard		guard;

	Assert(vacuum != NULL && guarded.pins == 0);
	while ((guard = guards_what_holds()) != NUM_GUARDS)
	{
		if (goes_on_nevertheless(vacuum, guard))
			continue;
		if (guard == GUARD_PAUSE)
			end_pause_if_over(vacuum);
		else if (guard == GUARD_DISK)
		{
			disk_end_if_due(vacuum);

			/*
			 * or a file of WAL that was removed takes its room as long as we
			 * have it open
			 */
			(void) XLogBackgroundFlush();
		}
		guards_nap(HOLD_NAP_MS, guard);
		guards_look_at_standbys(now_ns());
		guards_look_at_disk(now_ns());
	}
}

/* goes_on_nevertheless -- is there no time to wait any more?  Then there won't be from now on. */
static bool
goes_on_nevertheless(GuardedVacuum *vacuum, Guard guard)
{
	GuardHurry	before = guards_hurry_of(vacuum);
	GuardHurry	hurry = guards_is_needed(vacuum) ? HURRY_WRAPAROUND :
		guard != GUARD_DISK && guards_worker_is_needed(vacuum) ? HURRY_NO_WAITING : HURRY_NONE;

	if (hurry == HURRY_NONE)
		return false;
	guards_raise_hurry(vacuum, hurry);
	if (guard == GUARD_PAUSE && before == HURRY_NONE)
		ereport(LOG,
				(errmsg("VACUUM of %s goes on although it was paused: it, or its autovacuum worker, is needed to prevent transaction ID wraparound",
						guards_vacuum_name(vacuum))));
	return true;
}

/* end_pause_if_over -- has it been long enough? */
static void
end_pause_if_over(GuardedVacuum *vacuum)
{
	uint64		until = pg_atomic_read_u64(&vacuum->pause.until);

	if (until != 0 && now_ns() >= until && pg_atomic_compare_exchange_u64(&vacuum->pause.until, &until, 0))
		ereport(LOG,
				(errmsg("pause of VACUUM of %s has ended", guards_vacuum_name(vacuum)),
				 errdetail("A pause lasts for %d s at most.", LONGEST_PAUSE)));
}
