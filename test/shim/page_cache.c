/*-------------------------------------------------------------------------
 *
 * page_cache.c
 *	  A page cache whose system calls fail on command, and whose disk is quick.
 *
 * Preloaded (LD_PRELOAD) into a server by tests.  The environment variable
 * CYCLONE_PAGE_CACHE names a control file, which all processes map: a test writes
 * there which of the calls fail, and with what error, and reads how often each was
 * made (test/pytest/test_page_cache.py knows this layout).  A sync_file_range that
 * doesn't fail returns when all is written, so that it doesn't depend on the disk what
 * is clean when.
 *
 * Any of the calls may take long.  So it also counts those that a process makes while it
 * has an LWLock, or a page locked (from 19 on that is no LWLock, but the server holds
 * interrupts off, as it does in critical sections).  From 18 on the server's smgrwriteback
 * holds interrupts off once by itself.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum
{
	CALL_MINCORE, CALL_SYNC, CALL_DROP, CALL_MAP, NCALLS
};

#define STRIPE_BYTES	(2 * 1024 * 1024)

typedef struct Control
{
	volatile	int32_t failing;	/* bits, by the above */
	volatile	int32_t error;	/* errno of those that fail */
	volatile	int32_t calls[NCALLS];	/* made so far */
	volatile	int32_t waits;	/* those of sync_file_range that were to wait */
	volatile	int32_t hides;	/* does mincore say that nothing is there? */
	volatile	int32_t locked; /* calls with a lock */
} Control;

/* The server's; NULL in other programs, and the function in 19 */
extern volatile uint32_t InterruptHoldoffCount __attribute__((weak));
extern void ForEachLWLockHeldByMe(void (*callback) (void *, int, void *), void *context) __attribute__((weak));

static Control none;
static Control *control = &none;

__attribute__((constructor))
static void
map_control(void)
{
	const char *name = getenv("CYCLONE_PAGE_CACHE");
	int			file = name ? open(name, O_RDWR) : -1;
	void	   *map = file < 0 ? MAP_FAILED :
		mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (map != MAP_FAILED)
		control = map;
	if (file >= 0)
		close(file);
}

/* note_lock -- the server's callback. */
static void
note_lock(void *lock, int mode, void *has_lock)
{
	*(int *) has_lock = 1;
}

/* fails -- count a call; does it fail? */
static int
fails(int call)
{
	int			has_lock = 0;

	__sync_fetch_and_add(&control->calls[call], 1);
	if (&InterruptHoldoffCount != NULL)
		has_lock = InterruptHoldoffCount > (call == CALL_SYNC);
	if (ForEachLWLockHeldByMe != NULL)
		ForEachLWLockHeldByMe(note_lock, &has_lock);
	if (has_lock)
		__sync_fetch_and_add(&control->locked, 1);
	return (control->failing & 1 << call) != 0;
}

/* Of these only those of a stripe (src/machine/file_cache.c); not by dlsym, which may call mmap itself. */
void *
mmap(void *start, size_t length, int protection, int flags, int fd, off_t offset)
{
	if (fd >= 0 && length == STRIPE_BYTES && flags == MAP_SHARED && fails(CALL_MAP))
	{
		errno = control->error;
		return MAP_FAILED;
	}
	return (void *) syscall(SYS_mmap, start, length, protection, flags, fd, offset);
}

int
mincore(void *start, size_t length, unsigned char *pages)
{
	static int	(*real) (void *, size_t, unsigned char *) = NULL;

	if (real == NULL)
		real = (int (*) (void *, size_t, unsigned char *)) dlsym(RTLD_NEXT, "mincore");
	if (!fails(CALL_MINCORE))
	{
		int			result = real(start, length, pages);

		if (control->hides)
			memset(pages, 0, (length + 4095) / 4096);
		return result;
	}
	errno = control->error;
	return -1;
}

int
sync_file_range(int fd, off_t offset, off_t bytes, unsigned int flags)
{
	static int	(*real) (int, off_t, off_t, unsigned int) = NULL;

	if (real == NULL)
		real = (int (*) (int, off_t, off_t, unsigned int)) dlsym(RTLD_NEXT, "sync_file_range");
	if (flags != SYNC_FILE_RANGE_WRITE)
		__sync_fetch_and_add(&control->waits, 1);
	if (!fails(CALL_SYNC))
		return real(fd, offset, bytes, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
					SYNC_FILE_RANGE_WAIT_AFTER);
	errno = control->error;
	return -1;
}

int
posix_fadvise(int fd, off_t offset, off_t length, int advice)
{
	static int	(*real) (int, off_t, off_t, int) = NULL;

	if (real == NULL)
		real = (int (*) (int, off_t, off_t, int)) dlsym(RTLD_NEXT, "posix_fadvise");
	if (advice == POSIX_FADV_DONTNEED && fails(CALL_DROP))
		return control->error;
	return real(fd, offset, length, advice);
}

FILE *
fopen(const char *path, const char *mode)
{
	static FILE * (*real) (const char *, const char *) = NULL;
	const char *ours = strcmp(path, "/proc/meminfo") == 0 ? getenv("CYCLONE_MEMINFO") : NULL;

	if (real == NULL)
		real = (FILE * (*) (const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
	return real(ours != NULL ? ours : path, mode);
}
