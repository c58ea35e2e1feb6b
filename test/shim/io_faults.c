/*-------------------------------------------------------------------------
 *
 * io_faults.c
 *	  Makes calls on files fail, as a broken or full disk does, or reads slow.
 *
 * Preloaded (LD_PRELOAD) into a server by tests.  The environment variable
 * CYCLONE_FAULTS names a control file, which all processes map: a test writes
 * there which calls on which files are to fail, with what error, and after how
 * many that succeed (see cyclone_lab/shim.py, which knows this layout).  Shared
 * memory counts as files in /dev/shm; to attach is to open some that exists.  The
 * files are those whose path contains one of the given texts.  Reads of any file
 * take as long as the test says; a signal doesn't shorten one.  io_uring is neither
 * slowed nor does it fail.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum
{
	CALL_READ = 1, CALL_WRITE = 2, CALL_ALLOCATE = 4, CALL_TRUNCATE = 8, CALL_SYNC = 16, CALL_CREATE = 32,
	CALL_ATTACH = 64
};

typedef struct Control
{
	volatile	int32_t armed;	/* set last, cleared first by the test */
	int32_t		calls;			/* which may fail, of the above */
	int32_t		error;			/* errno of those that fail */
	int32_t		lasting;		/* does every call fail from then on? */
	int32_t		countdown;		/* calls that succeed before; shared by all
								 * processes */
	int32_t		seen;			/* calls on the file so far */
	int32_t		failed;			/* those that failed */
	int32_t		failed_calls;	/* which kinds they were of */
	int32_t		read_us;		/* how long each read takes */
	char		paths[2048];	/* parts of paths, each ended by a zero byte;
								 * an empty one ends the list */
} Control;

static Control *control;

__attribute__((constructor))
static void
map_control(void)
{
	const char *name = getenv("CYCLONE_FAULTS");
	int			file = name ? open(name, O_RDWR) : -1;

	if (file >= 0)
	{
		void	   *mapped = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		control = mapped == MAP_FAILED ? NULL : mapped;
		close(file);
	}
}

/* must_fail_at -- is this call on the file of that path to fail?  Sets errno if so. */
static bool
must_fail_at(int call, const char *path)
{
	const char *part = control->paths;

	while (*part != '\0' && strstr(path, part) == NULL)
		part += strlen(part) + 1;
	if (*part == '\0')
		return false;
	__atomic_fetch_add(&control->seen, 1, __ATOMIC_RELAXED);
	int32_t		left = __atomic_fetch_sub(&control->countdown, 1, __ATOMIC_RELAXED);

	if (left > 0 || (left < 0 && !control->lasting))
		return false;
	__atomic_fetch_add(&control->failed, 1, __ATOMIC_RELAXED);
	__atomic_fetch_or(&control->failed_calls, call, __ATOMIC_RELAXED);
	errno = control->error;
	return true;
}

static bool
is_armed(int call)
{
	return control && control->armed && (control->calls & call);
}

/* must_fail -- the same for an open file; sets errno if so, and else leaves it alone. */
static bool
must_fail(int call, int file)
{
	char		link[32],
				path[4096];
	int			old_errno = errno;

	if (!is_armed(call))
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
	ssize_t		length = readlink(link, path, sizeof(path) - 1);

	errno = old_errno;
	if (length < 0)
		return false;
	path[length] = '\0';
	return must_fail_at(call, path);
}

/* read_slowly -- sleep for as long as a read takes. */
static void
read_slowly(void)
{
	int			old_errno = errno;

	if (control && control->read_us > 0)
	{
		struct timespec left = {control->read_us / 1000000, control->read_us % 1000000 * 1000L};

		while (nanosleep(&left, &left) < 0 && errno == EINTR)
			;
	}
	errno = old_errno;
}

#define REAL(name) \
	static __typeof__(name) *real; \
	if (!real) \
		real = (__typeof__(name) *) dlsym(RTLD_NEXT, #name)

ssize_t
pread(int file, void *data, size_t size, off_t offset)
{
	REAL(pread);
	read_slowly();
	return must_fail(CALL_READ, file) ? -1 : real(file, data, size, offset);
}

ssize_t
preadv(int file, const struct iovec *parts, int count, off_t offset)
{
	REAL(preadv);
	read_slowly();
	return must_fail(CALL_READ, file) ? -1 : real(file, parts, count, offset);
}

ssize_t
pwrite(int file, const void *data, size_t size, off_t offset)
{
	REAL(pwrite);
	return must_fail(CALL_WRITE, file) ? -1 : real(file, data, size, offset);
}

ssize_t
pwritev(int file, const struct iovec *parts, int count, off_t offset)
{
	REAL(pwritev);
	return must_fail(CALL_WRITE, file) ? -1 : real(file, parts, count, offset);
}

int
posix_fallocate(int file, off_t offset, off_t length)
{
	REAL(posix_fallocate);
	return must_fail(CALL_ALLOCATE, file) ? errno : real(file, offset, length);
}

int
ftruncate(int file, off_t length)
{
	REAL(ftruncate);
	return must_fail(CALL_TRUNCATE, file) ? -1 : real(file, length);
}

int
fsync(int file)
{
	REAL(fsync);
	return must_fail(CALL_SYNC, file) ? -1 : real(file);
}

int
fdatasync(int file)
{
	REAL(fdatasync);
	return must_fail(CALL_SYNC, file) ? -1 : real(file);
}

int
open(const char *path, int flags,...)
{
	mode_t		mode = 0;

	if (flags & O_CREAT)
	{
		va_list		more;

		va_start(more, flags);
		mode = va_arg(more, mode_t);
		va_end(more);
		if (is_armed(CALL_CREATE) && must_fail_at(CALL_CREATE, path))
			return -1;
	}
	REAL(open);
	return real(path, flags, mode);
}

int
shm_open(const char *name, int flags, mode_t mode)
{
	int			call = flags & O_CREAT ? CALL_CREATE : CALL_ATTACH;
	char		path[4096];

	snprintf(path, sizeof(path), "/dev/shm%s", name);
	if (is_armed(call) && must_fail_at(call, path))
		return -1;
	REAL(shm_open);
	return real(name, flags, mode);
}
