/*-------------------------------------------------------------------------
 *
 * slow_disk.c
 *	  Makes a server read as slowly as from a disk of one's choice.
 *
 * Preloaded (LD_PRELOAD) into a server by tests.  The environment variable
 * CYCLONE_DISK names a file that all processes map: the disk.  It serves one
 * read after the other, in the order in which they come, each for a fixed time
 * and a time by its bytes; who reads sleeps until his is done.  Writes go to
 * the system's memory, as on a true disk, and cost nothing here.
 *
 * cyclone_lab/slow_disk.py knows the layout, and changes it while servers run.
 * The time is one word, changed by compare-and-swap: a process that is killed
 * leaves no lock.  A signal doesn't shorten a read.  io_uring isn't slowed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* In microseconds; a read takes no time while both are 0. */
typedef struct Disk
{
	int64_t		operation_us;
	int64_t		us_per_block;	/* of 8192 bytes */
	int64_t		through;		/* when all reads so far will be done, on
								 * CLOCK_MONOTONIC */
} Disk;

/*
 * the_disk -- map it, at the first call.  Without one the process had better end.
 */
static Disk *
the_disk(void)
{
	static Disk *disk = NULL;

	if (disk == NULL)
	{
		const char *path = getenv("CYCLONE_DISK");
		int			fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
		void	   *mapped = mmap(NULL, sizeof(Disk), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (mapped == MAP_FAILED)
			abort();
		close(fd);
		disk = mapped;
	}
	return disk;
}

/*
 * serve -- sleep until the disk has read this many bytes, behind all that came before.
 */
static void
serve(ssize_t bytes)
{
	Disk	   *disk = the_disk();
	int64_t		work = disk->operation_us + disk->us_per_block * (bytes > 0 ? bytes : 0) / 8192;
	int64_t		seen = __atomic_load_n(&disk->through, __ATOMIC_RELAXED);
	int64_t		until;
	struct timespec now;
	int			saved = errno;

	if (work == 0)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	do
	{
		int64_t		begin = now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;

		until = (seen > begin ? seen : begin) + work;
	} while (!__atomic_compare_exchange_n(&disk->through, &seen, until, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	now.tv_sec = until / 1000000;
	now.tv_nsec = until % 1000000 * 1000;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &now, NULL) == EINTR)
		;
	errno = saved;
}

/*
 * pread -- the C library's, then sleep.
 */
ssize_t
pread(int descriptor, void *data, size_t size, off_t offset)
{
	static ssize_t (*next) (int, void *, size_t, off_t) = NULL;
	ssize_t		result;

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "pread");
	result = next(descriptor, data, size, offset);
	serve(result);
	return result;
}

/*
 * preadv -- the C library's, then sleep.
 */
ssize_t
preadv(int descriptor, const struct iovec *parts, int number, off_t offset)
{
	static ssize_t (*next) (int, const struct iovec *, int, off_t) = NULL;
	ssize_t		result;

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "preadv");
	result = next(descriptor, parts, number, offset);
	serve(result);
	return result;
}

ssize_t		pread64(int, void *, size_t, off64_t) __attribute__((alias("pread")));
ssize_t		preadv64(int, const struct iovec *, int, off64_t) __attribute__((alias("preadv")));
