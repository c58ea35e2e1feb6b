/*-------------------------------------------------------------------------
 *
 * disk_free.c
 *	  How much of a file system is free.
 *
 * The server itself never asks for free space: see trial.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include "miscadmin.h"

#include "disk_free.h"
#include "trial.h"

/* May this process make the system call? */
static bool may_ask = false;

static bool ask_once(void);

/* ask_once -- make the system call, in a child process. */
static bool
ask_once(void)
{
	struct statvfs space;

	(void) statvfs("/", &space);
	return true;
}

/* disk_free_init -- see disk_free.h. */
void
disk_free_init(void)
{
	bool		result;

	Assert(process_shared_preload_libraries_in_progress);

	may_ask = trial_survived(ask_once, &result);
	if (!may_ask)
		ereport(LOG,
				(errmsg("pg_cyclone cannot find out how much disk space is free"),
				 errdetail("A process that asked for it was ended.  A filter of system calls may forbid statfs."),
				 errhint("cyclone.check_disk_space and cyclone.min_free_disk have no effect.")));
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
	result->free_bytes = (uint64) space.f_bavail * space.f_frsize;
	result->size_bytes = (uint64) space.f_blocks * space.f_frsize;
	return true;
}
