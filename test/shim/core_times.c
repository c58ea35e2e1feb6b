/*-------------------------------------------------------------------------
 *
 * core_times.c
 *	  A kernel that says what a test wants of how long processes wait for a core.
 *
 * Preloaded (LD_PRELOAD) into a server by tests.  Each open of a /proc/PID/schedstat
 * opens the file that the environment variable CYCLONE_CORE_TIMES names.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

int
open(const char *name, int flags,...)
{
	static int	(*real_open) (const char *, int,...) = NULL;
	const char *times = getenv("CYCLONE_CORE_TIMES");
	size_t		length = strlen(name);
	mode_t		mode;
	va_list		arguments;

	va_start(arguments, flags);
	mode = va_arg(arguments, mode_t);
	va_end(arguments);
	if (real_open == NULL)
		real_open = (int (*) (const char *, int,...)) dlsym(RTLD_NEXT, "open");
	if (times != NULL && length > 16 && strncmp(name, "/proc/", 6) == 0 &&
		strcmp(name + length - 10, "/schedstat") == 0)
		name = times;
	return real_open(name, flags, mode);
}
