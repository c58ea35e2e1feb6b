/*-------------------------------------------------------------------------
 *
 * disk.c
 *	  No vacuum that can wait fills a disk.
 *
 * A vacuum of any kind writes WAL.  As a rule a checkpoint makes room for more.  But a
 * replication slot may retain WAL, or an archiver that fails.  Then all that is written
 * stays, and when pg_wal is full the server goes down.  So where less is free than
 * cyclone.min_free_disk, and WAL is retained, a vacuum waits until one of these changes.
 * FULL INPLACE, once it moves rows, ends with what it has achieved.
 *
 * Where no WAL is retained a vacuum goes on however little is free, as what it frees may
 * be what is missing: with a checkpoint whenever WAL would fill the disk before the server
 * makes one (wal_room.c).  There room for ROOM_SEGMENTS files of WAL counts as too little,
 * whatever the setting.
 *
 * VACUUM FULL doesn't go on: it writes a second copy of the table, so it ends with an
 * error, for the table's file system or that of pg_wal.  It waits for a checkpoint at
 * most, as no other session gets to the table meanwhile.  FULL INPLACE leaves an index as
 * it is if there is no room for a second one beside what is to stay free
 * (rewrite/disk_space.c).
 *
 * One of a vacuum's processes looks, whichever comes first.  Where there is room it looks
 * once a second, and more often the less there is above the bound: a server that writes
 * FASTEST_WRITES is not to fill a small disk between two looks.  In the routines of other
 * access methods no process looks.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogarchive.h"
#include "commands/vacuum.h"
#include "postmaster/pgarch.h"
#include "replication/slot.h"
#include "storage/fd.h"
#include "utils/builtins.h"

#include "compat.h"
#include "debug_point.h"
#include "disk_free.h"
#include "guards/guards.h"
#include "guards/guards_state.h"
#include "clock.h"
#include "report/pretty_bytes.h"

/* The longest and the shortest time between two looks */
#define LOOK_NS				((uint64) NS_PER_S)
#define SHORTEST_LOOK_NS	(LOOK_NS / 50)

/* No disk is filled faster than this, in bytes a second: twice what NVMe takes. */
#define FASTEST_WRITES		(4.0 * 1024 * 1024 * 1024)

/* Where fewer files of WAL than these have room, WAL that nobody retains may be too much. */
#define ROOM_SEGMENTS		4

/* Of the segments that an archiver has not done yet one may be in its hands. */
#define READY_SEGMENTS		2

static uint64 look(GuardedVacuum *vacuum, double min_free);
static uint64 time_to_next_look(uint64 free_bytes, uint64 bound);
static bool is_short(const char *path, double min_free, uint64 *free_bytes, uint64 *bound);
static uint64 bytes_of(double min_free, uint64 size_bytes);
static DiskHolder find_holder(void);
static bool archiver_is_behind(void);
static bool last_segments_are_ready(void);
static bool is_ready(const char *segment);
static char *holder_name(DiskHolder holder);
static char *holding_slot(void);
static void end_rewrite(GuardedVacuum *vacuum, const char *path, uint64 free_bytes, uint64 bound);

/* guards_look_at_disk -- look, unless a process has just looked, or no bound is set. */
void
guards_look_at_disk(uint64 now)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	double		min_free;
	uint64		due;

	min_free = read_double(&vacuum->min_free_disk);
	due = pg_atomic_read_u64(&vacuum->next_disk_look);
	if (now < due || !pg_atomic_compare_exchange_u64(&vacuum->next_disk_look, &due, now + LOOK_NS))
		return;
	if (min_free == 0 || VacuumFailsafeActive)
		pg_atomic_write_u32(&vacuum->disk_stops, DISK_NONE);
	else
		pg_atomic_write_u64(&vacuum->next_disk_look, now + look(vacuum, min_free));
}

/* guards_forget_disk -- the command goes on to another table, and what ended the one before may be over. */
void
guards_forget_disk(void)
{
	if (guarded.vacuum != NULL)
		pg_atomic_write_u32(&guarded.vacuum->is_ending, 0);
}

/*
 * guards_disk_reserve
 *		How much of a file system of this size the command that this process works for is
 *		to leave free, in bytes.
 */
uint64
guards_disk_reserve(uint64 size_bytes)
{
	GuardedVacuum *vacuum = guarded.vacuum;

	if (vacuum == NULL || VacuumFailsafeActive || pg_atomic_read_u32(&vacuum->is_urgent) != 0)
		return 0;
	return bytes_of(read_double(&vacuum->min_free_disk), size_bytes);
}

/* guards_disk_holder -- what a vacuum waits for, for people, palloc'd; NULL if for nothing any more. */
char *
guards_disk_holder(GuardedVacuum *vacuum)
{
	return holder_name(pg_atomic_read_u32(&vacuum->disk_stops));
}

/* holder_name -- likewise, of one that was found. */
static char *
holder_name(DiskHolder holder)
{
	switch (holder)
	{
		case DISK_SLOT:
			return holding_slot();
		case DISK_ARCHIVER:
			return pstrdup("archiver");
		case DISK_CHECKPOINT:
			return pstrdup("checkpoint");
		case DISK_NO_ROOM:
			return pstrdup("full disk");
		case DISK_NONE:
			break;
	}
	return NULL;
}

/* guards_disk_reason -- likewise, in a sentence for the log. */
char *
guards_disk_reason(DiskHolder holder)
{
	char	   *name;

	switch (holder)
	{
		case DISK_CHECKPOINT:
			return pstrdup("A checkpoint is to remove WAL there.");
		case DISK_NO_ROOM:
			return pstrdup("A checkpoint removes no WAL there any more.");
		case DISK_SLOT:
		case DISK_ARCHIVER:
		case DISK_NONE:
			break;
	}
	name = holder_name(holder);
	return psprintf("WAL is retained there by: %s.", name != NULL ? name : "nobody any more");
}

/*
 * look
 *		How much is free, and does that hold the vacuum?  Returns after which time, in
 *		nanoseconds, to look again.
 */
static uint64
look(GuardedVacuum *vacuum, double min_free)
{
	uint64		free_bytes,
				bound,
				until_bound,
				next = LOOK_NS;
	DiskHolder	holder = DISK_NONE;
	bool		is_rewrite;
	uint32		not_yet = 0;

	Assert(vacuum != NULL && min_free != 0);
	is_rewrite = vacuum->is_locked && pg_atomic_read_u32(&vacuum->is_urgent) == 0;
	if (is_rewrite)
	{
		if (is_short(vacuum->path, min_free, &free_bytes, &bound))
			end_rewrite(vacuum, vacuum->path, free_bytes, bound);
		next = time_to_next_look(free_bytes, bound);
	}
	if (is_short(XLOGDIR, min_free, &free_bytes, &bound))
	{
		if (is_rewrite)
			end_rewrite(vacuum, XLOGDIR, free_bytes, bound);
		/* what is left to do of a command that is ending may free space */
		if (pg_atomic_read_u32(&vacuum->is_ending) == 0)
			holder = find_holder();
	}
	if (holder == DISK_NONE && bound != 0)
	{
		bound = Max(bound, ROOM_SEGMENTS * (uint64) wal_segment_size);
		if (free_bytes < bound)
			holder = wal_room_look(vacuum, free_bytes, now_ns());
		if (holder == DISK_NO_ROOM && is_rewrite)
			end_rewrite(vacuum, XLOGDIR, free_bytes, bound);
	}
	pg_atomic_write_u64(&vacuum->disk_free, free_bytes);
	pg_atomic_write_u64(&vacuum->disk_bound, bound);
	pg_write_barrier();
	pg_atomic_write_u32(&vacuum->disk_stops, holder);
	if (holder != DISK_NONE && holder != DISK_CHECKPOINT && guards_is_urgent(vacuum) &&
		pg_atomic_compare_exchange_u32(&vacuum->has_logged[GUARD_DISK], &not_yet, 1))
		ereport(WARNING,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("VACUUM of %s goes on although less is free than \"cyclone.min_free_disk\": it is needed to prevent transaction ID wraparound",
						guards_vacuum_name(vacuum)),
				 errdetail("%s are free in the file system of \"%s\". %s",
						   pretty_bytes(free_bytes), XLOGDIR, guards_disk_reason(holder))));

	/*
	 * while WAL holds the vacuum there is no hurry, unless a checkpoint is to
	 * come; else WAL may be found to be retained at any time
	 */
	until_bound = time_to_next_look(free_bytes, bound);
	return holder != DISK_NONE && holder != DISK_CHECKPOINT ? LOOK_NS : Min(next, until_bound);
}

/*
 * time_to_next_look
 *		How long it takes to fill the room above the bound, in nanoseconds.  Without a
 *		bound, and where the figures aren't known, there is no hurry.
 */
static uint64
time_to_next_look(uint64 free_bytes, uint64 bound)
{
	if (bound == 0)
		return LOOK_NS;
	if (free_bytes <= bound)
		return SHORTEST_LOOK_NS;
	return (uint64) Min(Max((free_bytes - bound) / FASTEST_WRITES * LOOK_NS, SHORTEST_LOOK_NS), LOOK_NS);
}

/* is_short -- is less free in the file system of that path than there should be? */
static bool
is_short(const char *path, double min_free, uint64 *free_bytes, uint64 *bound)
{
	DiskFree	space;

	Assert(path != NULL && path[0] != '\0');
	*free_bytes = *bound = 0;
	/* without figures nothing waits */
	if (!disk_free(path, &space))
		return false;
	*free_bytes = DEBUG_LIMIT(free_disk_mb, 0) > 0 ?
		(uint64) DEBUG_LIMIT(free_disk_mb, 0) << 20 : space.free_bytes;
	*bound = bytes_of(min_free, space.size_bytes);
	return *free_bytes < *bound;
}

/* bytes_of -- what is to stay free of a file system of this size. */
static uint64
bytes_of(double min_free, uint64 size_bytes)
{
	return min_free < 0 ? (uint64) (size_bytes * -min_free) : (uint64) min_free;
}

/* find_holder -- what keeps WAL that the next checkpoint would remove? */
static DiskHolder
find_holder(void)
{
	XLogRecPtr	slots = XLogGetReplicationSlotMinimumLSN();

	if (!XLogRecPtrIsInvalid(slots) && slots + wal_segment_size < GetRedoRecPtr())
		return DISK_SLOT;
	if (XLogArchivingActive() && archiver_is_behind())
		return DISK_ARCHIVER;
	return DISK_NONE;
}

/*
 * archiver_is_behind
 *		Are there segments that it should have done by now?
 *
 * It does them in order, so as a rule the last ones tell.  Not so at the beginning of a
 * timeline: once in LOOK_NS all of the folder is read, which may have a file for each
 * segment that is kept.
 */
static bool
archiver_is_behind(void)
{
	static uint64 last_reading = 0;
	const char *path = XLOGDIR "/archive_status";
	DIR		   *folder;
	struct dirent *file;
	int			ready = 0;

	if (last_segments_are_ready())
		return true;
	if (last_reading != 0 && now_ns() < last_reading + LOOK_NS)
		return false;
	last_reading = now_ns();
	folder = AllocateDir(path);

	while (ready < READY_SEGMENTS && (file = ReadDirExtended(folder, path, DEBUG1)) != NULL)
	{
		size_t		length = strlen(file->d_name);

		if (length > strlen(".ready") && strcmp(file->d_name + length - strlen(".ready"), ".ready") == 0)
			ready++;
	}
	if (folder != NULL)
		FreeDir(folder);
	return ready >= READY_SEGMENTS;
}

/* last_segments_are_ready -- do the last ones that are complete wait for the archiver? */
static bool
last_segments_are_ready(void)
{
	TimeLineID	timeline;
	XLogRecPtr	flushed = GetFlushRecPtr(&timeline);
	XLogSegNo	current;

	XLByteToSeg(flushed, current, wal_segment_size);
	for (int i = 1; i <= READY_SEGMENTS; i++)
	{
		char		segment[MAXFNAMELEN];

		if (current <= i)
			return false;
		XLogFileName(segment, timeline, current - i, wal_segment_size);
		if (!is_ready(segment))
			return false;
	}
	return true;
}

/* is_ready -- does the archiver still have to do it? */
static bool
is_ready(const char *segment)
{
	char		path[MAXPGPATH];
	struct stat status;

	StatusFilePath(path, segment, ".ready");
	return stat(path, &status) == 0;
}

/* holding_slot -- the slot that retains most, by its name; NULL if there is none any more. */
static char *
holding_slot(void)
{
	NameData	name = {0};
	XLogRecPtr	least = InvalidXLogRecPtr;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < compat_number_of_slots(); i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		XLogRecPtr	place;

		if (!slot->in_use)
			continue;
		SpinLockAcquire(&slot->mutex);
		place = slot->data.restart_lsn;
		SpinLockRelease(&slot->mutex);
		if (!XLogRecPtrIsInvalid(place) && (XLogRecPtrIsInvalid(least) || place < least))
		{
			least = place;
			name = slot->data.name;
		}
	}
	LWLockRelease(ReplicationSlotControlLock);
	return XLogRecPtrIsInvalid(least) ? NULL : psprintf("slot %s", NameStr(name));
}

/* end_rewrite -- end VACUUM FULL by an error, which removes the second copy. */
static void
end_rewrite(GuardedVacuum *vacuum, const char *path, uint64 free_bytes, uint64 bound)
{
	Assert(vacuum->is_locked && free_bytes < bound);
	ereport(ERROR,
			(errcode(ERRCODE_DISK_FULL),
			 errmsg("VACUUM FULL of %s ends, as less is free than \"cyclone.min_free_disk\"",
					guards_vacuum_name(vacuum)),
			 errdetail("%s are free in the file system of \"%s\", and %s should stay free.",
					   pretty_bytes(free_bytes), path, pretty_bytes(bound)),
			 errhint("Free some space, or run VACUUM (FULL INPLACE), which needs no second copy of the table. A superuser may set \"cyclone.min_free_disk\" to a lower value.")));
}
