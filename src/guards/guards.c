/*-------------------------------------------------------------------------
 *
 * guards.c
 *	  What holds a vacuum back besides cost and latency: a pause that a user has
 *	  asked for, the WAL that all vacuums of the server may write a second, standbys
 *	  that lag, and disks that get full.
 *
 * Which processes are guarded
 * ---------------------------
 * The leader of each command has a place in shared memory, from the beginning of
 * the command to its end; its workers find it by the leader's number.  All that a
 * process has to do is to call guards_point where it holds no lock on a page: a
 * delay point (pace.c) does that, and so do loops that take from no budget, as
 * those that build indexes.
 *
 * A pause
 * -------
 * It may last for an hour, so a paused process has no page pinned either.  A read
 * stream has some pinned ahead.  Its loop says so (guards_begin_pins), and no
 * process is paused there.  Instead the stream's callback ends the stream
 * (guards_cut_stream), and the loop does the pages that it has got, without any naps.
 * When the last one is released guards_resume_stream waits, and has the same stream
 * go on.  Dead items that were collected, and blocks that were claimed, stay.
 *
 * The table remains locked, as its lock makes the rest of the work valid.  So a pause
 * is bounded.  It also ends when it would become dangerous: when the table is so old
 * that autovacuum would come to prevent wraparound, and couldn't, because of our lock.
 * The failsafe comes much later.  A vacuum of such a table can't be paused, and none can
 * while any database is as old as vacuum_failsafe_age or vacuum_multixact_failsafe_age.
 * Requests to cancel are served as ever, so autovacuum still gives way to sessions that
 * want to lock the table.
 *
 * The server's code (routines of other access methods) can't be told to wait.  While
 * it deletes it asks us for each entry, and there its own delay point is told to sleep
 * for a quarter of a second (pace/server_code.c), so it hardly moves.
 *
 * Standbys
 * --------
 * A vacuum stands still in the same way where a standby lags by what it may at most
 * (lag.c).  Before that, and for the sake of WAL itself, it is slowed down
 * (wal_rate.c).
 *
 * It stands still, too, where a disk gets full (disk.c).
 *
 * The failsafe switches all of this off.
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
#include "catalog/pg_tablespace_d.h"
#include "commands/vacuum.h"
#include "common/relpath.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "config_files.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "guards/guards_state.h"
#include "clock.h"
#include "settings.h"

/* A process that stands still looks again after this time. */
#define HOLD_NAP_MS		200
/* After this number of calls a process looks at the clock, if it is time to look at the disk. */
#define CALLS_A_LOOK		16

static char *folder_of(Form_pg_class form);
static void hold_while_due(bool may_end);
static bool end_if_urgent(GuardedVacuum *vacuum);
static bool end_pause_if_over(GuardedVacuum *vacuum);
static bool end_pause(pg_atomic_uint64 *place, uint64 until);
static void set_limits(int wal_rate, int max_lag, const char *lag_of, const char *delayed,
					   double min_free_disk);
static const char *reread_standbys(const char *name, ConfigVariable *files,
								   const char *default_value, const char *current);

/*
 * guards_begin_command
 *		This process leads a vacuum from now on.  While it is held, while_held is
 *		called now and then.
 *
 * A VACUUM of several tables may be several commands to us.  A pause of
 * one holds for the whole statement.
 */
void
guards_begin_command(void (*while_held) (void))
{
	static TimestampTz last_statement = 0;
	static bool has_begun = false;
	GuardedVacuum *vacuum;
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	vacuum = &guards_shared->vacuums[MyProcNumber];

	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	if (statement != last_statement || AmAutoVacuumWorkerProcess())
	{
		pg_atomic_write_u64(&vacuum->paused_until, 0);
		pg_atomic_write_u32(&vacuum->ignores_general_pause, 0);
		pg_atomic_write_u64(&vacuum->wal_written, 0);
		pg_atomic_write_u32(&vacuum->has_asked, 0);
	}
	last_statement = statement;
	pg_atomic_write_u32(&vacuum->is_urgent, (MyProc->statusFlags & PROC_VACUUM_FOR_WRAPAROUND) != 0);
	pg_atomic_write_u32(&vacuum->is_in_a_hurry, 0);
	pg_atomic_write_u32(&vacuum->relid, InvalidOid);
	vacuum->relfrozenxid = InvalidTransactionId;
	vacuum->relminmxid = InvalidMultiXactId;
	vacuum->is_locked = false;
	vacuum->is_autovacuum = AmAutoVacuumWorkerProcess();
	vacuum->pid = MyProcPid;
	for (int i = 0; i < NUM_GUARDS; i++)
	{
		pg_atomic_write_u32(&vacuum->holds[i], 0);
		pg_atomic_write_u64(&vacuum->held_ns[i], 0);
		pg_atomic_write_u32(&vacuum->has_logged[i], 0);
	}
	LWLockRelease(guards_shared->lock);
	pg_atomic_write_u32(&vacuum->is_ending, 0);

	/*
	 * what this process has seen a moment ago is true of the next small
	 * table, too
	 */
	if (!has_begun)
	{
		pg_atomic_write_u32(&vacuum->disk_stops, DISK_NONE);
		pg_atomic_write_u64(&vacuum->room_wait_start, 0);
		pg_atomic_write_u64(&vacuum->next_disk_look, 0);
	}
	has_begun = true;
	guards_join(MyProcNumber);
	set_limits(cyclone_max_wal_rate, cyclone_max_replica_lag, cyclone_lag_of,
			   cyclone_delayed_standbys, cyclone_min_free_disk);
	guarded.while_held = while_held;
	/* here, too, as VACUUMs of small tables may all end before they look */
	guards_look_at_standbys(now_ns());
}

/* guards_hurry -- nothing holds the command that this process leads. */
void
guards_hurry(void)
{
	if (guarded.vacuum == NULL)
		return;
	pg_atomic_write_u32(&guarded.vacuum->is_urgent, 1);
	pg_atomic_write_u32(&guarded.vacuum->is_in_a_hurry, 1);
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
	/* of a worker that was killed */
	for (int i = 0; i < NUM_GUARDS; i++)
		pg_atomic_write_u32(&vacuum->holds[i], 0);
	LWLockRelease(guards_shared->lock);
}

/*
 * guards_begin_table
 *		The leader goes on to a table, which may be locked so that others can't even
 *		read it.  In a transaction.
 */
void
guards_begin_table(Oid relid, bool is_locked)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	HeapTuple	tuple;
	char	   *path;

	Assert(OidIsValid(relid));

	if (vacuum == NULL)
		return;
	Assert(IsTransactionState());
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	path = folder_of(HeapTupleIsValid(tuple) ? (Form_pg_class) GETSTRUCT(tuple) : NULL);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&vacuum->relid, relid);
	vacuum->is_locked = is_locked;
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		vacuum->relfrozenxid = form->relfrozenxid;
		vacuum->relminmxid = form->relminmxid;
	}
	strlcpy(vacuum->path, path, sizeof(vacuum->path));
	LWLockRelease(guards_shared->lock);
	pfree(path);
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	/* the table before may have been older */
	pg_atomic_write_u32(&vacuum->is_urgent, pg_atomic_read_u32(&vacuum->is_in_a_hurry) != 0 ||
						(MyProc->statusFlags & PROC_VACUUM_FOR_WRAPAROUND) != 0);
	if (guards_is_urgent(vacuum))
		pg_atomic_write_u32(&vacuum->is_urgent, 1);
	/* rather now than when there is something to undo */
	if (is_locked)
		pg_atomic_write_u64(&vacuum->next_disk_look, 0);
	guards_look_at_disk(now_ns());
}

/* folder_of -- in which a relation's files are; palloc'd. */
static char *
folder_of(Form_pg_class form)
{
	if (form != NULL && form->relisshared)
		return GetDatabasePath(InvalidOid, GLOBALTABLESPACE_OID);
	return GetDatabasePath(MyDatabaseId,
						   form != NULL && OidIsValid(form->reltablespace) ?
						   form->reltablespace : MyDatabaseTableSpace);
}

/*
 * set_limits
 *		Set the WAL that all vacuums may write (kilobytes a second), the lag that these
 *		standbys may have (milliseconds), of which some are delayed on purpose, and, for
 *		this process's vacuum, how much of a disk must stay free
 *		(settings_parse_min_free_disk).  0 is no bound.
 */
static void
set_limits(int wal_rate, int max_lag, const char *lag_of, const char *delayed,
		   double min_free_disk)
{
	if (guarded.vacuum != NULL)
		write_double(&guarded.vacuum->min_free_disk, min_free_disk);
	LWLockAcquire(guards_shared->lock, LW_EXCLUSIVE);
	pg_atomic_write_u64(&guards_shared->wal_rate, (uint64) wal_rate * 1024);
	strlcpy(guards_shared->lag_of, lag_of, sizeof(guards_shared->lag_of));
	strlcpy(guards_shared->delayed, delayed, sizeof(guards_shared->delayed));
	pg_atomic_write_u32(&guards_shared->max_lag_ms, max_lag);
	LWLockRelease(guards_shared->lock);
}

/* guards_reread -- set them as they would be if the configuration files were reloaded now. */
void
guards_reread(ConfigVariable *files)
{
	int			wal_rate = cyclone_max_wal_rate;
	int			max_lag = cyclone_max_replica_lag;
	double		min_free_disk = cyclone_min_free_disk;
	const char *value;

	config_files_int("cyclone.max_wal_rate", files, &wal_rate);
	config_files_int("cyclone.max_replica_lag", files, &max_lag);
	value = config_files_text("cyclone.min_free_disk", files);
	if (value != NULL)
		(void) settings_parse_min_free_disk(*value == '\0' ? MIN_FREE_DISK_DEFAULT : value, &min_free_disk);
	set_limits(wal_rate, max_lag, reread_standbys("cyclone.lag_of", files, "all", cyclone_lag_of),
			   reread_standbys("cyclone.delayed_standbys", files, "", cyclone_delayed_standbys),
			   min_free_disk);
}

/*
 * reread_standbys
 *		Reread a list of standbys.  Of one that the server would not take the current
 *		value is kept.
 */
static const char *
reread_standbys(const char *name, ConfigVariable *files, const char *default_value,
				const char *current)
{
	const char *value = config_files_text(name, files);

	if (value == NULL)
		return current;
	if (*value == '\0')
		return default_value;
	return settings_is_standby_list(value, false) ? value : current;
}

/*
 * guards_held
 *		For how long each guard has held the command that this process leads so far, or
 *		has led last.
 */
GuardTimes
guards_held(void)
{
	GuardTimes	times;

	for (int i = 0; i < NUM_GUARDS; i++)
		times.seconds[i] = (double) guards_held_ns(&guards_shared->vacuums[MyProcNumber], i) / NS_PER_S;
	return times;
}

/* guards_held_since -- likewise, without what *before has. */
GuardTimes
guards_held_since(const GuardTimes *before)
{
	GuardTimes	times = guards_held();

	for (int i = 0; i < NUM_GUARDS; i++)
		times.seconds[i] = Max(times.seconds[i] - before->seconds[i], 0);
	return times;
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

/*
 * guards_leave
 *		This process takes part no more; does nothing if it didn't.  The next writers pay for
 *		WAL that it hasn't paid for.
 */
void
guards_leave(void)
{
	if (guarded.vacuum != NULL)
		wal_rate_account(now_ns());
	guards_tell_wal();
	for (int i = 0; i < NUM_GUARDS; i++)
		if (guarded.holds[i])
			guards_end_hold(i);
	memset(&guarded, 0, sizeof(guarded));
}

/*
 * guards_point
 *		Wait as long as a guard says so.  No lock may be held, and no page may be
 *		pinned but between guards_begin_pins and guards_end_pins.
 */
void
guards_point(void)
{
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);

	if (guarded.vacuum == NULL)
		return;
	if (unlikely(++guarded.calls % CALLS_A_LOOK == 0))
	{
		guards_tell_wal();
		guards_look_at_disk(now_ns());
	}
	if (unlikely(guards_hold_is_due()) && guarded.pins == 0)
		hold_while_due(false);
	if (unlikely(wal_rate_is_due()))
	{
		guards_look_at_standbys(now_ns());
		wal_rate_account(now_ns());
		wal_rate_sleep();
	}
}

/*
 * guards_wait_in_server_code
 *		In the routine of an access method, where a page may be locked: is this process
 *		to do as little as it can?
 */
bool
guards_wait_in_server_code(void)
{
	uint64		now = now_ns();

	if (guarded.vacuum == NULL || VacuumFailsafeActive)
		return false;

	/*
	 * This process can't end a pause that is over.  Nor can it look again at
	 * standbys and disks, so an old look doesn't count.
	 */
	if (guards_hold_is_due() && !guards_is_urgent(guarded.vacuum) &&
		(now < guards_paused_until(guarded.vacuum) ||
		 now < LOOK_COUNTS_NS + (pg_atomic_read_u32(&guarded.vacuum->disk_stops) != DISK_NONE ?
								 pg_atomic_read_u64(&guarded.vacuum->next_disk_look) :
								 pg_atomic_read_u64(&guards_shared->next_look))))
		return true;
	if (wal_rate_is_due())
		wal_rate_account(now);
	return guarded.wal_paid_until > now;
}

/* guards_begin_pins -- this process has pages pinned from now on. */
void
guards_begin_pins(void)
{
	Assert(guarded.pins >= 0);
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

/* guards_drop_stream -- a stream is not read to its end, so it is no matter if it was cut. */
void
guards_drop_stream(void)
{
	Assert(guarded.pins > 0);
	if (guarded.pins == 1)
		guarded.stream_is_cut = false;
}

/*
 * guards_cut_stream
 *		For the callback of a read stream: is it to end the stream for now?  Takes no
 *		lock.
 */
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
		hold_while_due(false);
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
 *		holds only what would fill it.  Waits first, if a checkpoint may make room.
 */
bool
guards_disk_is_short(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	uint32		stops;

	if (vacuum == NULL)
		return false;
	Assert(guarded.pins == 0);
	guards_look_at_disk(now_ns());
	if (pg_atomic_read_u32(&vacuum->is_ending) != 0)
		return true;
	hold_while_due(true);
	stops = pg_atomic_read_u32(&vacuum->disk_stops);
	if (stops != DISK_NONE && stops != DISK_CHECKPOINT &&
		pg_atomic_read_u32(&vacuum->is_urgent) == 0)
	{
		pg_atomic_write_u32(&vacuum->is_ending, 1);
		pg_atomic_write_u32(&vacuum->disk_stops, DISK_NONE);
	}
	return pg_atomic_read_u32(&vacuum->is_ending) != 0;
}

/*
 * hold_while_due
 *		Wait until the pause ends, standbys have caught up, and there is room on disk; for
 *		room not if the command may end instead, and more than a checkpoint is missing.
 */
static void
hold_while_due(bool may_end)
{
	GuardedVacuum *vacuum = guarded.vacuum;

	Assert(vacuum != NULL && guarded.pins == 0);
	while (guards_hold_is_due())
	{
		uint32		stops = pg_atomic_read_u32(&vacuum->disk_stops);
		Guard		guard = guards_paused_until(vacuum) != 0 ? GUARD_PAUSE :
			stops != DISK_NONE ? GUARD_DISK : GUARD_LAG;

		if (guard == GUARD_DISK && may_end && stops != DISK_CHECKPOINT)
			break;
		if (guard == GUARD_PAUSE ? end_pause_if_over(vacuum) : end_if_urgent(vacuum))
			continue;

		/*
		 * or a file of WAL that was removed takes its room as long as we have
		 * it open
		 */
		if (guard == GUARD_DISK)
			(void) XLogBackgroundFlush();
		guards_begin_hold(guard);
		guards_nap(HOLD_NAP_MS, guard);
		if (guarded.while_held != NULL)
			guarded.while_held();
		guards_look_at_standbys(now_ns());
		guards_look_at_disk(now_ns());
		guards_end_hold(guard);
	}
}

/* end_if_urgent -- is there no time to wait for standbys, or for room, any more? */
static bool
end_if_urgent(GuardedVacuum *vacuum)
{
	if (!guards_is_urgent(vacuum))
		return false;
	pg_atomic_write_u32(&vacuum->is_urgent, 1);
	return true;
}

/* end_pause_if_over -- has the pause been long enough, or is there no time for it any more? */
static bool
end_pause_if_over(GuardedVacuum *vacuum)
{
	uint64		until = guards_paused_until(vacuum);
	uint32		not_yet = 0;

	if (guards_is_urgent(vacuum))
	{
		if (pg_atomic_compare_exchange_u32(&vacuum->is_urgent, &not_yet, 1))
			ereport(LOG,
					(errmsg("VACUUM of %s goes on although it was paused: it is needed to prevent transaction ID wraparound",
							guards_vacuum_name(vacuum))));
		return true;
	}
	if (now_ns() < until)
		return false;
	if (end_pause(&vacuum->paused_until, until) ||
		end_pause(&guards_shared->general_pause_until, until))
		ereport(LOG,
				(errmsg("pause of VACUUM of %s has ended", guards_vacuum_name(vacuum)),
				 errdetail("It has lasted for as long as \"cyclone.max_pause\" allowed when it began.")));
	return guards_paused_until(vacuum) == 0;
}

/* end_pause -- if it is the one that lasts until then, and no other process has ended it. */
static bool
end_pause(pg_atomic_uint64 *place, uint64 until)
{
	return pg_atomic_compare_exchange_u64(place, &until, 0);
}
