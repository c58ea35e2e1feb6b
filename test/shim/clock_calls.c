/*-------------------------------------------------------------------------
 *
 * clock_calls.c
 *	  Counts how often a process reads the clock.
 *
 * Preloaded (LD_PRELOAD) into a server by tests.  The file that the environment variable
 * CYCLONE_CLOCK_CALLS names has the process ID that the test is about, and the number of
 * its calls of clock_gettime; both are the test's to set.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct Control
{
	int			pid;
	int			calls;
} Control;

static Control *control = NULL;

/* map_control -- as a library is loaded once in a server, its processes inherit it. */
__attribute__((constructor)) static void
map_control(void)
{
	const char *name = getenv("CYCLONE_CLOCK_CALLS");
	int			fd = name != NULL ? open(name, O_RDWR | O_CLOEXEC) : -1;

	if (fd < 0)
		return;
	control = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (control == MAP_FAILED)
		control = NULL;
	close(fd);
}

int
clock_gettime(clockid_t clock, struct timespec *time)
{
	static int	(*real_gettime) (clockid_t, struct timespec *) = NULL;

	if (real_gettime == NULL)
		real_gettime = (int (*) (clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
	if (control != NULL && control->pid == getpid())
		control->calls++;
	return real_gettime(clock, time);
}
