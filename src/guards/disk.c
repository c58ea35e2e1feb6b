/*-------------------------------------------------------------------------
 *
 * disk.c
 *	  No vacuum that can wait fills a disk.
 *
 * VACUUM FULL, which writes a second copy of the table, and whose lock keeps readers out,
 * ends at once wherever less is free than the bound, also in the table's file system.
 * FULL INPLACE, once it moves rows, ends with what it has achieved.  README.md says what
 * holds all others, and how often one of a vacuum's processes looks.
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
#include "common/string.h"
#include "replication/slot.h"
#include "storage/fd.h"

#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"
#include "machine/disk_free.h"
#include "report/pretty_bytes.h"

/* The time between two looks: NVMe takes some 100 MB meanwhile. */
#define LOOK_NS				((uint64) NS_PER_S / 50)
/* After this time the folder of the archiver is read again. */
#define READING_NS			((uint64) NS_PER_S)
/* Less than this number of files of WAL is no room; one less for a vacuum which is ending. */
#define LEAST_SEGMENTS		2

/* What people are told, by DiskHolder */
static const struct
{
	const char *name;
	const char *reason;
	const char *cure;
}			holders[] = {
	[DISK_SLOT] = {
		"slot", "a replication slot retains more WAL than is free",
		"See pg_replication_slots: drop a slot that nobody needs. Or set \"cyclone.min_free_disk\" to a lower value."
	},
	[DISK_ARCHIVER] = {
		"archiver", "the archiver retains more WAL than is free",
		"See pg_stat_archiver: fix archive_command. Or set \"cyclone.min_free_disk\" to a lower value."
	},
	[DISK_NO_ROOM] = {
		"full disk", "there is no room for two files of WAL",
		"Free some space there, but delete nothing in \"pg_wal\". Once some MB are free a CHECKPOINT removes old WAL."
	},
	[DISK_BOUND] = {
		"disk", "VACUUM FULL writes a second copy of the table",
		"Free some space, or run VACUUM (FULL INPLACE), which needs no second copy of the table. A superuser may set \"cyclone.min_free_disk\" to a lower value."
	},
};

static void look_at_file_systems(GuardedVacuum *vacuum, double min_free, uint64 now);
static bool find_free(GuardedVacuum *vacuum, const char *path, double min_free,
					  uint64 *free_bytes);
static bool wal_has_room(uint64 free_bytes, bool is_ending);
static bool slots_retain_more(uint64 bytes);
static bool archiver_retains_more(uint64 bytes);

/* guards_look_at_disk -- look, unless a process has just looked, or no bound is set. */
void
guards_look_at_disk(uint64 now)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	double		min_free = read_double(&vacuum->min_free_disk);
	uint64		due = pg_atomic_read_u64(&vacuum->next_disk_look);

	if (now < due || !pg_atomic_compare_exchange_u64(&vacuum->next_disk_look, &due, now + LOOK_NS))
		return;
	if (min_free == 0 || VacuumFailsafeActive)
		pg_atomic_write_u32(&vacuum->disk_stops, DISK_NONE);
	else
		look_at_file_systems(vacuum, min_free, now);
}

/* look_at_file_systems -- how much is free, and does that hold the vacuum, or end it? */
static void
look_at_file_systems(GuardedVacuum *vacuum, double min_free, uint64 now)
{
	bool		ends_at_once = vacuum->readers_wait && guards_hurry_of(vacuum) < HURRY_WRAPAROUND;
	bool		is_ending = pg_atomic_read_u32(&vacuum->is_ending) != 0;
	bool		is_short;
	uint64		free_bytes;
	DiskHolder	holder = DISK_NONE;
	uint32		not_yet = 0;

	if (ends_at_once && find_free(vacuum, vacuum->path, min_free, &free_bytes))
		disk_end_vacuum(vacuum, DISK_BOUND, vacuum->path);
	is_short = find_free(vacuum, XLOGDIR, min_free, &free_bytes);
	if (is_short && ends_at_once)
		disk_end_vacuum(vacuum, DISK_BOUND, XLOGDIR);
	if (!wal_has_room(free_bytes, is_ending))
		holder = DISK_NO_ROOM;
	/* what is left to do of a command that is ending may free space */
	else if (is_short && !is_ending)
		holder = slots_retain_more(free_bytes) ? DISK_SLOT :
			archiver_retains_more(free_bytes) ? DISK_ARCHIVER : DISK_NONE;
	if (holder == DISK_NONE)
		pg_atomic_write_u64(&vacuum->disk_stop_start, 0);
	else if (pg_atomic_read_u64(&vacuum->disk_stop_start) == 0)
		pg_atomic_write_u64(&vacuum->disk_stop_start, now);
	pg_write_barrier();
	pg_atomic_write_u32(&vacuum->disk_stops, holder);
	if (holder != DISK_NONE && guards_is_needed(vacuum))
	{
		guards_raise_hurry(vacuum, HURRY_WRAPAROUND);
		if (pg_atomic_compare_exchange_u32(&vacuum->has_warned, &not_yet, 1))
			ereport(WARNING,
					(errcode(ERRCODE_DISK_FULL),
					 errmsg("VACUUM of %s goes on although less is free than \"cyclone.min_free_disk\": it is needed to prevent transaction ID wraparound",
							guards_vacuum_name(vacuum)),
					 errdetail("%s are free in the file system of \"%s\".", pretty_bytes(free_bytes), XLOGDIR)));
	}
	else if (holder != DISK_NONE && ends_at_once)
		disk_end_vacuum(vacuum, holder, XLOGDIR);
}

/*
 * find_free
 *		Note how much is free in the file system of that path, and how much should be: is
 *		that more?  If it can't be found out nothing waits, and the log says so.
 */
static bool
find_free(GuardedVacuum *vacuum, const char *path, double min_free, uint64 *free_bytes)
{
	DiskFree	space = {.free_bytes = PG_UINT64_MAX};
	uint32		not_yet = 0;
	uint64		bound;

	/* if it never could be found out the server's start has said so */
	if (!disk_free(path, &space) && disk_free_is_allowed() &&
		pg_atomic_compare_exchange_u32(&guards_shared->disk_is_unseen, &not_yet, 1))
		ereport(LOG,
				(errmsg("could not find out how much is free in the file system of \"%s\": %m", path),
				 errhint("cyclone.min_free_disk has no effect there.")));
	bound = disk_free_bound(min_free, space.size_bytes);
	/* for people: another process may look at another disk at the same time */
	pg_atomic_write_u64(&vacuum->disk_free, space.free_bytes);
	pg_atomic_write_u64(&vacuum->disk_bound, bound);
	*free_bytes = space.free_bytes;
	return space.free_bytes < bound;
}

/*
 * wal_has_room
 *		Is there room for some files of WAL, free or in files that the server has made, or
 *		kept, for WAL to come?  These follow each other, by their names.
 */
static bool
wal_has_room(uint64 free_bytes, bool is_ending)
{
	uint64		least = (uint64) wal_segment_size * (LEAST_SEGMENTS - is_ending);
	uint64		room = free_bytes;
	TimeLineID	timeline;
	XLogSegNo	segment;

	XLByteToSeg(GetFlushRecPtr(&timeline), segment, wal_segment_size);
	while (room < least)
	{
		char		path[MAXPGPATH];
		struct stat status;

		XLogFilePath(path, timeline, ++segment, wal_segment_size);
		/* without wal_init_zero it may have holes */
		if (stat(path, &status) != 0 || status.st_blocks == 0)
			return false;
		room += Min((uint64) status.st_blocks * 512, (uint64) wal_segment_size);
	}
	return true;
}

/* slots_retain_more -- do slots retain more WAL than that, and does max_slot_wal_keep_size let them fill the disk? */
static bool
slots_retain_more(uint64 bytes)
{
	XLogRecPtr	oldest = XLogGetReplicationSlotMinimumLSN();
	XLogRecPtr	redo = GetRedoRecPtr();
	uint64		retained = !XLogRecPtrIsInvalid(oldest) && oldest < redo ? redo - oldest : 0;

	return retained > bytes &&
		(max_slot_wal_keep_size_mb < 0 || (uint64) max_slot_wal_keep_size_mb * 1024 * 1024 >= retained + bytes);
}

/*
 * archiver_retains_more
 *		Does more than that wait for the archiver?  Once in READING_NS all of the folder is
 *		read, which may have a file for each segment that is kept.
 */
static bool
archiver_retains_more(uint64 bytes)
{
	static uint64 last_reading = 0;
	static uint64 ready_bytes = 0;
	const char *path = XLOGDIR "/archive_status";
	DIR		   *folder;
	struct dirent *file;

	if (!XLogArchivingActive() || (last_reading != 0 && now_ns() < last_reading + READING_NS))
		return ready_bytes > bytes;
	last_reading = now_ns();
	ready_bytes = 0;
	folder = AllocateDir(path);
	while (ready_bytes <= bytes && (file = ReadDirExtended(folder, path, LOG)) != NULL)
	{
		if (pg_str_endswith(file->d_name, ".ready"))
			ready_bytes += wal_segment_size;
	}
	if (folder != NULL)
		FreeDir(folder);
	return ready_bytes > bytes;
}

/* disk_holder_name -- what a vacuum waits for, for people. */
const char *
disk_holder_name(DiskHolder holder)
{
	return holders[holder].name;
}

/* disk_end_if_due -- end a vacuum that has waited for room for as long as it may, or whose worker is needed. */
void
disk_end_if_due(GuardedVacuum *vacuum)
{
	uint64		longest = (uint64) DEBUG_LIMIT(longest_hold, LONGEST_DISK_WAIT * 1000) * NS_PER_MS;
	uint64		start = pg_atomic_read_u64(&vacuum->disk_stop_start);
	DiskHolder	holder = pg_atomic_read_u32(&vacuum->disk_stops);

	if (holder != DISK_NONE &&
		((start != 0 && now_ns() >= start + longest) || guards_worker_is_needed(vacuum)))
		disk_end_vacuum(vacuum, holder, XLOGDIR);
}

/* disk_end_vacuum -- end it by an error, as it might fill the disk. */
void
disk_end_vacuum(GuardedVacuum *vacuum, DiskHolder holder, const char *path)
{
	ereport(ERROR,
			(errcode(ERRCODE_DISK_FULL),
			 errmsg("VACUUM of %s ends, as it might fill the disk", guards_vacuum_name(vacuum)),
			 errdetail("%s are free in the file system of \"%s\", where \"cyclone.min_free_disk\" is %s: %s.",
					   pretty_bytes(pg_atomic_read_u64(&vacuum->disk_free)), path,
					   pretty_bytes(pg_atomic_read_u64(&vacuum->disk_bound)), holders[holder].reason),
			 errhint("%s", holders[holder].cure)));
}
