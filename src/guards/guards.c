/*-------------------------------------------------------------------------
 *
 * guards.c
 *	  Where a process of a vacuum waits because of a guard.
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

#include "access/xlog.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "clock.h"
#include "guards/guards_state.h"

/* A process that stands still looks again after this time. */
#define HOLD_NAP_MS		200
/* After this number of calls a process looks at the clock, if it is time to look at the disk. */
#define CALLS_A_LOOK		16

static void hold_while_due(void);
static bool goes_on_nevertheless(GuardedVacuum *vacuum, Guard guard);
static void end_pause_if_over(GuardedVacuum *vacuum);

/* guards_point -- wait as long as a guard says so: see guards.h. */
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
		hold_while_due();
	if (unlikely(wal_rate_is_due()))
	{
		guards_tell_wal();
		guards_look_at_standbys(now_ns());
		wal_rate_pay();
	}
}

/*
 * guards_wait_in_server_code
 *		In the routine of an access method, where a page may be locked: is this process
 *		to do as little as it can?
 *
 * It can't end a pause that is over.  Nor can it look again at standbys and disks, so an old
 * look doesn't count.
 */
bool
guards_wait_in_server_code(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	uint64		now = now_ns();

	switch (guards_what_holds())
	{
		case GUARD_PAUSE:
			return now < pg_atomic_read_u64(&vacuum->pause.until) && !guards_is_needed(vacuum);
		case GUARD_DISK:
			return now < pg_atomic_read_u64(&vacuum->next_disk_look) + LOOK_COUNTS_NS;
		case GUARD_LAG:
			return now < pg_atomic_read_u64(&guards_shared->next_look) + LOOK_COUNTS_NS;
		default:
			return vacuum != NULL && !VacuumFailsafeActive && wal_rate_is_ahead(now);
	}
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
			if (disk_has_waited(vacuum, now_ns()) || guards_worker_is_needed(vacuum))
				disk_end_vacuum(vacuum);

			/*
			 * or a file of WAL that was removed takes its room as long as we
			 * have it open
			 */
			(void) XLogBackgroundFlush();
		}
		guards_nap(HOLD_NAP_MS, guard);
		if (guarded.while_held != NULL)
			guarded.while_held();
		guards_look_at_standbys(now_ns());
		guards_look_at_disk(now_ns());
	}
}

/* goes_on_nevertheless -- is there no time to wait any more?  Then there won't be from now on. */
static bool
goes_on_nevertheless(GuardedVacuum *vacuum, Guard guard)
{
	GuardHurry	before = guards_hurry_of(vacuum);

	if (guards_is_needed(vacuum))
		guards_raise_hurry(vacuum, HURRY_WRAPAROUND);
	else if (guard != GUARD_DISK && guards_worker_is_needed(vacuum))
		guards_raise_hurry(vacuum, HURRY_NO_WAITING);
	else
		return false;
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
