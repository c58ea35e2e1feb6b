/*-------------------------------------------------------------------------
 *
 * disk_free.c
 *	  How much of a file system is free, and how much should be.
 *
 * The only place that asks the system, and that knows what cyclone.min_free_disk means.  The
 * guard (guards/disk.c) asks while a vacuum runs, and rewrite/disk_space.c before a copy is
 * made.  The server itself never asks for free space: see trial.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include "miscadmin.h"

#include "debug_point.h"
#include "machine/disk_free.h"
#include "machine/trial.h"

/* A share of a large file system stands for no more than this. */
#define GREATEST_SHARE		((uint64) 10 * 1024 * 1024 * 1024)

/* May this process make the system call? */
static bool may_ask = false;

static bool ask_once(void);

/* ask_once -- make the system call, in a child process; does it tell? */
static bool
ask_once(void)
{
	struct statvfs space;

	return statvfs(DataDir, &space) == 0;
}

/* disk_free_init -- see disk_free.h. */
void
disk_free_init(void)
{
	bool		survived,
				has_told;

	Assert(process_shared_preload_libraries_in_progress);

	survived = trial_survived(ask_once, &has_told);
	may_ask = survived && has_told;
	if (!may_ask)
		ereport(LOG,
				(errmsg("pg_cyclone cannot find out how much disk space is free"),
				 survived ?
				 errdetail("The system refuses statfs.") :
				 errdetail("A process that asked for it was ended.  A filter of system calls may forbid statfs."),
				 errhint("cyclone.min_free_disk has no effect.")));
}

/* disk_free_is_allowed -- see disk_free.h. */
bool
disk_free_is_allowed(void)
{
	return may_ask;
}

/* disk_free -- see disk_free.h. */
bool
disk_free(const char *path, DiskFree *result)
{
	struct stat status;
	struct statvfs space;

	if (!may_ask || stat(path, &status) != 0 || statvfs(path, &space) != 0)
		return false;
	result->device = status.st_dev;
	result->free_bytes = DEBUG_LIMIT(free_disk_mb, 0) > 0 ?
		(uint64) DEBUG_LIMIT(free_disk_mb, 0) << 20 : (uint64) space.f_bavail * space.f_frsize;
	result->size_bytes = (uint64) space.f_blocks * space.f_frsize;
	return true;
}

/* disk_free_bound -- see disk_free.h. */
uint64
disk_free_bound(double min_free, uint64 size_bytes)
{
	return min_free < 0 ? (uint64) Min(size_bytes * -min_free, (double) GREATEST_SHARE) : (uint64) min_free;
}
