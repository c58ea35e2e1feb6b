/*-------------------------------------------------------------------------
 *
 * wal_room.c
 *	  A vacuum doesn't fill a disk with WAL that the next checkpoint would remove.
 *
 * Between two checkpoints WAL grows up to max_wal_size, and if there is no room for that
 * the server goes down.  The server itself never looks.  So on a disk that gets full a
 * vacuum asks for a checkpoint in time, stands still until there is room again, as for
 * other reasons where a disk gets full (disk.c), and goes on.
 *
 * When is it time?  WAL can grow by what is free, and by files that the server has made,
 * or kept, for WAL to come: these are in use on disk, but will be written over.  That is
 * the room.  What has been written since the start of the last checkpoint that is complete
 * is what the next one would remove.  As soon as this is more than the room, there is more
 * to be won than is left: so of the room that a checkpoint leaves half is used, and the
 * rest is for all that is written until the next one is complete.  Files of WAL take their
 * room at once, so below LEAST_SEGMENTS of them a vacuum stands still in any case.
 *
 * A checkpoint may give no room: others may have filled the disk, or wal_keep_size keep the
 * WAL.  Then the room gets smaller from one to the next, until less than LEAST_SEGMENTS
 * remain and there is nothing to remove.  What then becomes of a vacuum is as if a slot
 * retained the WAL.  One that ends for that reason has its last pass still to do, which is
 * what frees space, and for which one segment is enough at a time.
 *
 * Requests are not waited for in the server's way, which can't be bounded and raises an
 * error if a checkpoint fails: the waiting processes look whether the checkpoint has moved.
 * The control file says so before files are removed, which takes a moment: hence GIVES_NONE_NS.
 * A checkpoint needs no lock that a vacuum has.  Nothing of this outlives the server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"

#include "compat.h"
#include "clock.h"
#include "guards/guards_state.h"
#include "report/pretty_bytes.h"

/* Less than this number of files of WAL is no room; that of a vacuum which is ending */
#define LEAST_SEGMENTS		2
#define LEAST_WHILE_ENDING	1
/* No more files than this are looked for. */
#define MOST_SEGMENTS		256

/* Old files are gone this time after a checkpoint, or aren't removed by it. */
#define GIVES_NONE_NS		(5 * (uint64) NS_PER_S)
/* The longest wait for a checkpoint */
#define LONGEST_CHECKPOINT_NS	(600 * (uint64) NS_PER_S)
/* One that may give nothing is asked for this often: a slot may have been dropped. */
#define ASK_AGAIN_NS		(60 * (uint64) NS_PER_S)

static DiskHolder judge(uint64 since, uint64 room, uint64 least, bool removes, uint64 waited);
static bool removes_files(XLogRecPtr redo, XLogRecPtr insert);
static uint64 bytes_ahead(uint64 wanted);
static uint64 time_waited(GuardedVacuum *vacuum, XLogRecPtr redo, uint64 now);
static void ask(GuardedVacuum *vacuum, XLogRecPtr redo, XLogRecPtr insert, uint64 free_bytes,
				uint64 now);

/*
 * wal_room_look
 *		With this much free for WAL, and where nothing is known to retain it: is a
 *		checkpoint to come before the vacuum writes more, or is there no room even then?
 */
DiskHolder
wal_room_look(GuardedVacuum *vacuum, uint64 free_bytes, uint64 now)
{
	bool		is_ending = pg_atomic_read_u32(&vacuum->is_ending) != 0;
	uint64		least = (uint64) wal_segment_size * (is_ending ? LEAST_WHILE_ENDING : LEAST_SEGMENTS);
	uint64		room = free_bytes;
	uint64		since;
	XLogRecPtr	insert = GetXLogInsertRecPtr();
	XLogRecPtr	redo;
	TimeLineID	timeline;
	bool		removes;
	DiskHolder	verdict;

	/* a single process would have to make the checkpoint itself */
	if (!IsUnderPostmaster)
		return DISK_NONE;
	GetOldestRestartPoint(&redo, &timeline);
	since = insert > redo ? insert - redo : 0;
	removes = removes_files(redo, insert);
	if (room <= Max(since, least))
		room += bytes_ahead(Max(since, least) + 1 - room);
	verdict = judge(since, room, least, removes, 0);
	if (verdict == DISK_NONE)
	{
		pg_atomic_write_u64(&vacuum->room_wait_start, 0);
		return DISK_NONE;
	}
	ask(vacuum, redo, insert, free_bytes, now);
	return judge(since, room, least, removes, time_waited(vacuum, redo, now));
}

/* removes_files -- would a checkpoint now remove files that the last one had to leave? */
static bool
removes_files(XLogRecPtr redo, XLogRecPtr insert)
{
	return insert / wal_segment_size > redo / wal_segment_size;
}

/*
 * judge
 *		By the bytes written since the last checkpoint, the room for more, the least
 *		that there is to be, whether a checkpoint removes files, and how long this one
 *		has been the last.
 */
static DiskHolder
judge(uint64 since, uint64 room, uint64 least, bool removes, uint64 waited)
{
	if (since < room && room >= least)
		return DISK_NONE;
	return waited < (removes ? LONGEST_CHECKPOINT_NS : GIVES_NONE_NS) ?
		DISK_CHECKPOINT : DISK_NO_ROOM;
}

/*
 * bytes_ahead
 *		The room in files that are ready for WAL to come; not more than is wanted
 *		matters.  They follow each other, by their names.
 */
static uint64
bytes_ahead(uint64 wanted)
{
	uint64		bytes = 0;
	TimeLineID	timeline;
	XLogSegNo	segment;

	XLByteToSeg(GetFlushRecPtr(&timeline), segment, wal_segment_size);
	for (int i = 0; i < MOST_SEGMENTS && bytes < wanted; i++)
	{
		char		path[MAXPGPATH];
		struct stat status;

		XLogFilePath(path, timeline, ++segment, wal_segment_size);
		if (stat(path, &status) != 0)
			break;
		/* without wal_init_zero it may have holes */
		bytes += Min((uint64) status.st_blocks * 512, (uint64) wal_segment_size);
	}
	return bytes;
}

/* time_waited -- for how long there has been no room, and this checkpoint the last one. */
static uint64
time_waited(GuardedVacuum *vacuum, XLogRecPtr redo, uint64 now)
{
	uint64		start = pg_atomic_read_u64(&vacuum->room_wait_start);

	if (start != 0 && pg_atomic_read_u64(&vacuum->room_wait_redo) == redo)
		return now > start ? now - start : 0;
	pg_atomic_write_u64(&vacuum->room_wait_redo, redo);
	pg_atomic_write_u64(&vacuum->room_wait_start, now);
	return 0;
}

/*
 * ask
 *		Ask for a checkpoint, unless one has been asked for since that one, by any vacuum.
 *		The log says so once for each command.
 */
static void
ask(GuardedVacuum *vacuum, XLogRecPtr redo, XLogRecPtr insert, uint64 free_bytes, uint64 now)
{
	uint64		asked_at = pg_atomic_read_u64(&guards_shared->asked_at);
	uint64		asked_after = pg_atomic_read_u64(&guards_shared->asked_after);
	uint32		not_yet = 0;

	/* another process may be asking at this moment */
	if ((asked_at != 0 && now < asked_at + ASK_AGAIN_NS &&
		 (asked_after == redo || !removes_files(redo, insert))) ||
		!pg_atomic_compare_exchange_u64(&guards_shared->asked_at, &asked_at, now))
		return;
	pg_atomic_write_u64(&guards_shared->asked_after, redo);
	if (pg_atomic_compare_exchange_u32(&vacuum->has_asked, &not_yet, 1))
		ereport(LOG,
				(errmsg("VACUUM of %s asks for checkpoints, to make room for WAL",
						guards_vacuum_name(vacuum)),
				 errdetail("%s are free in the file system of \"%s\", and %s of WAL have been written since the last checkpoint.",
						   pretty_bytes(free_bytes), XLOGDIR, pretty_bytes(insert > redo ? insert - redo : 0)),
				 errhint("Free some space there, or set \"max_wal_size\" to a lower value.")));
	/* also if nothing has been written: what retained WAL may be gone */
	RequestCheckpoint(CHECKPOINT_FAST | CHECKPOINT_FORCE);
}
