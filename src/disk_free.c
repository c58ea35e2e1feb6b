/*-------------------------------------------------------------------------
 *
 * disk_free.c
 *	  How much of a file system is free.
 *
 * The server itself never asks for free space.  A filter of system calls that ends a
 * process which does would end all sessions with it.  So a child of the postmaster asks
 * first, and if it dies of that nobody asks any more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "disk_free.h"

/* May this process ask? */
static bool may_ask = false;

/*
 * disk_free_init
 *		Find out whether a process may ask for free space.  To be called in the
 *		postmaster, while the library is preloaded.
 *
 * The child does nothing but ask, and ends without running anything of the server's.
 */
void
disk_free_init(void)
{
	struct statvfs space;
	int			status = 0;
	pid_t		child;
	pid_t		ended;

	fflush(NULL);
	child = fork();
	if (child == 0)
	{
		(void) statvfs("/", &space);
		_exit(0);
	}
	do
		ended = child > 0 ? waitpid(child, &status, 0) : -1;
	while (ended < 0 && child > 0 && errno == EINTR);
	may_ask = ended == child && WIFEXITED(status);
	if (!may_ask)
		ereport(LOG,
				(errmsg("pg_cyclone cannot find out how much disk space is free"),
				 errdetail("A process that asked for it was ended.  A filter of system calls may forbid statfs."),
				 errhint("cyclone.check_disk_space and cyclone.min_free_disk have no effect.")));
}

/* disk_free -- of the file system in which a path is; false if that can't be found out. */
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
