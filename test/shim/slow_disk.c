/*-------------------------------------------------------------------------
 *
 * slow_disk.c
 *	  Makes a server's files as slow as if they were on a disk of one's choice.
 *
 * Preloaded (LD_PRELOAD) into a server by benchmarks and tests.  The environment
 * variable CYCLONE_DISK names a file, which all processes map: the disk, that is
 * its parameters, its state and what it has counted (cyclone_lab/slow_disk.py
 * knows this layout).  Calls on files of relations and of WAL do their work on
 * the true disk, and then sleep until the modelled one would be through with it.
 * The true one should be faster, memory best of all.
 *
 * What is modelled.  The disk serves one operation after the other, in the order
 * in which they come, and each occupies it for a time that depends on its size
 * and place:
 *
 * - An operation takes a fixed time for its position, and a time by its bytes.
 *   The arm of a disk does both in turn.  A volume has limits on operations and on
 *   bytes, and the stricter one counts; the answer takes at least its latency,
 *   during which it serves others; and it saves up what it isn't asked for, up to
 *   its burst, to do it later all at once.
 * - An operation that begins where one of the last few hundred has ended, in the
 *   same file, is part of a sequence: the system reads ahead and merges writes, so
 *   only each merge_bytes of a sequence pay for a position, and for latency.  An arm
 *   that is there already, as nobody else has come between, moves on for nothing.
 * - A write to a relation goes to the system's memory and returns at once;
 *   the disk writes it when it has nothing else to do.  So whoever waits goes before
 *   that, as elevators do it, but what is being written is finished first.  Where
 *   more than dirty_us of work is queued, whoever writes waits for his turn.
 * - WAL goes out when it is synced, in one operation for all of it.  A sync returns
 *   when it is out, and not before an earlier sync of the file.
 * - A sync of a relation's file waits until its writes are out, as if they were the
 *   last in the queue of writes.
 *
 * What is not: a cache for reads, so that every page which isn't in shared buffers
 * comes from the disk; writing a page once that was written twice in a short time;
 * an elevator that sorts, but for sequences; a queue in the disk itself; advice
 * (posix_fadvise), which has no effect, so that bitmap scans of PostgreSQL 17 don't
 * prefetch; io_uring, mapped files, WAL written with O_SYNC (wal_sync_method);
 * temporary files, tablespaces, transaction status and other small files;
 * allocation and truncation of space, creation and removal of files.  Nor is what
 * a crash of the system does: nothing is synced to the true disk.
 *
 * The time and the queue of writes are one word, changed by compare-and-swap only.
 * A process that dies, even by SIGKILL, leaves no lock, and a place in the queue
 * at most.  A signal neither shortens an operation nor makes it fail, as with a
 * true file; handlers run at once.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MODEL __attribute__((visibility("default")))	/* called by the model's
														 * test, too */

#define QUEUED_BITS	26			/* of Disk.clock: 67 seconds of work */
#define QUEUED_MASK	((UINT64_C(1) << QUEUED_BITS) - 1)
#define ENDS		256			/* of operations that are remembered */
#define FILES		1024
#define DESCRIPTORS	4096
#define FILE_BYTES	65536		/* of the one that is mapped */

/*
 * What has been written to a file and not synced.  Files may share one, which only makes syncs wait longer.  A
 * sync doesn't see another one that is just beginning; servers have one at a time of a file.
 */
typedef struct Unsynced
{
	int64_t		amount;			/* bytes of a WAL file; microseconds of work
								 * of a relation's */
	int64_t		synced;			/* when the latest sync will be through */
} Unsynced;

/* Times are in microseconds, moments too, since origin_us of CLOCK_MONOTONIC; all that changes does so atomically. */
typedef struct Disk
{
	/* parameters; cyclone_lab/slow_disk.py says what they mean */
	int64_t		origin_us;
	int64_t		operation_us;
	int64_t		bytes_per_second;
	int64_t		merge_bytes;
	int64_t		latency_us;
	int64_t		burst_us;
	int64_t		dirty_us;
	int64_t		has_arm;

	/* what was done so far */
	int64_t		reads;
	int64_t		read_bytes;
	int64_t		writes;			/* to relations */
	int64_t		write_bytes;
	int64_t		wal_bytes;
	int64_t		syncs;			/* for which there was something to do */
	int64_t		sequential;		/* reads and writes that continued others */
	int64_t		busy_us;		/* work that has come, queued writes included */
	int64_t		waited_us;		/* of all processes, from their calls to their
								 * ends */
	int64_t		throttled;		/* writes that had to wait, as too many were
								 * queued */

	/*
	 * The moment at which the disk will be through with what others wait for,
	 * up to 76 hours, and below, in QUEUED_BITS, the work of the writes that
	 * are queued.
	 */
	uint64_t	clock;
	uint64_t	head;			/* place where the arm stands, 0 if it is none
								 * that is known */
	uint64_t	ends[2][ENDS];	/* places where reads and writes have ended
								 * lately, at their hash value */
	Unsynced	relations[FILES];
	Unsynced	wal[FILES];
} Disk;

_Static_assert(sizeof(Disk) <= FILE_BYTES, "the file must have room for the disk");

/* Disk.clock, unpacked */
typedef struct Clock
{
	int64_t		through;
	int64_t		queued;
} Clock;

/* What an operation takes */
typedef struct Work
{
	int64_t		busy;			/* how long it occupies the disk */
	int64_t		latency;		/* how long it lasts at least */
} Work;

typedef enum Direction
{
	READ, WRITE
} Direction;

static int64_t
at_least(int64_t one, int64_t other)
{
	return one > other ? one : other;
}

static int64_t
at_most(int64_t one, int64_t other)
{
	return one < other ? one : other;
}

static void
count(int64_t * counter, int64_t number)
{
	__atomic_fetch_add(counter, number, __ATOMIC_RELAXED);
}

static Clock
unpack(uint64_t word)
{
	return (Clock)
	{
		(int64_t) (word >> QUEUED_BITS), (int64_t) (word & QUEUED_MASK)
	};
}

static uint64_t
pack(Clock clock)
{
	return (uint64_t) clock.through << QUEUED_BITS | (uint64_t) clock.queued;
}

/* exchange -- replace the clock, unless it has changed; then `seen` has its present value. */
static bool
exchange(Disk *disk, uint64_t * seen, Clock clock)
{
	return __atomic_compare_exchange_n(&disk->clock, seen, pack(clock), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static uint64_t
mixed(uint64_t value)
{
	value ^= value >> 33;
	value *= UINT64_C(0xff51afd7ed558ccd);
	value ^= value >> 33;
	value *= UINT64_C(0xc4ceb9fe1a85ec53);
	return value ^ value >> 33;
}

/* place -- a number for that offset of the file; never 0. */
static uint64_t
place(uint64_t file, int64_t offset)
{
	return mixed(file ^ mixed((uint64_t) offset)) | 1;
}

static int64_t
transfer_us(const Disk *disk, int64_t bytes)
{
	return bytes * 1000000 / disk->bytes_per_second;
}

/*
 * catch_up -- let the disk have done by now what it does by itself.
 *
 * While nobody waited for it, it wrote; what it has begun it finishes, which may be
 * later than now.  Its idle time is lost, except for a burst.
 */
static void
catch_up(Disk *disk, int64_t now)
{
	uint64_t	seen = __atomic_load_n(&disk->clock, __ATOMIC_ACQUIRE);
	int64_t		written;
	Clock		clock;

	do
	{
		clock = unpack(seen);
		written = 0;
		if (clock.queued > 0 && clock.through < now)
		{
			int64_t		begun = (now - clock.through + disk->operation_us - 1) / disk->operation_us;

			written = at_most(clock.queued, begun * disk->operation_us);
		}
		clock.through = at_least(clock.through + written, now - disk->burst_us);
		clock.queued -= written;
	} while (!exchange(disk, &seen, clock));
	if (written > 0)
		__atomic_store_n(&disk->head, 0, __ATOMIC_RELAXED);
}

/*
 * occupy -- put work into the queue of those who wait, taking `queued` of it from the queue of writes; return
 * when it is done.
 */
static int64_t
occupy(Disk *disk, int64_t now, Work work, int64_t queued)
{
	uint64_t	seen = __atomic_load_n(&disk->clock, __ATOMIC_ACQUIRE);
	int64_t		start,
				done;
	Clock		clock;

	do
	{
		clock = unpack(seen);
		clock.queued -= at_most(clock.queued, queued);
		clock.through = at_least(clock.through, now - disk->burst_us);
		start = at_least(clock.through, now);
		clock.through += work.busy;
	} while (!exchange(disk, &seen, clock));
	done = start + at_least(work.busy, work.latency);
	count(&disk->waited_us, done - now);
	return done;
}

/* enqueue -- add work to the queue of writes; false if it has too much already. */
static bool
enqueue(Disk *disk, int64_t work)
{
	uint64_t	seen = __atomic_load_n(&disk->clock, __ATOMIC_ACQUIRE);
	Clock		clock;

	do
	{
		clock = unpack(seen);
		if (clock.queued + work > disk->dirty_us)
			return false;
		clock.queued += work;
	} while (!exchange(disk, &seen, clock));
	return true;
}

/* work_of -- what a read or write takes; notes where it ends.  The clock must have caught up. */
static Work
work_of(Disk *disk, Direction direction, uint64_t file, int64_t offset, int64_t bytes)
{
	uint64_t	begin = place(file, offset),
				end = place(file, offset + bytes),
			   *ends = disk->ends[direction];
	bool		continues = __atomic_load_n(&ends[begin / 2 % ENDS], __ATOMIC_RELAXED) == begin;
	int64_t		position = disk->operation_us * bytes / disk->merge_bytes;
	Work		work = {.latency = disk->latency_us};

	__atomic_store_n(&ends[end / 2 % ENDS], end, __ATOMIC_RELAXED);
	if (continues)
	{
		count(&disk->sequential, 1);
		work.latency = at_most(work.latency, work.latency * bytes / disk->merge_bytes);
	}
	else
		position = at_least(position, disk->operation_us);

	/* Only who reads may find the arm where it is: a write can be done later. */
	if (direction == READ && __atomic_exchange_n(&disk->head, end, __ATOMIC_RELAXED) == begin)
		position = disk->has_arm ? 0 : position;
	if (disk->has_arm)
		work.busy = at_most(position, disk->operation_us) + transfer_us(disk, bytes);
	else
		work.busy = at_least(position, transfer_us(disk, bytes));
	count(&disk->busy_us, work.busy);
	return work;
}

/* work_of_sync -- what it takes to write that much to the end of a file. */
static Work
work_of_sync(Disk *disk, int64_t bytes)
{
	int64_t		position = at_least(disk->operation_us, disk->operation_us * bytes / disk->merge_bytes),
				transfer = transfer_us(disk, bytes);
	Work		work = {.latency = disk->latency_us};

	work.busy = disk->has_arm ? disk->operation_us + transfer : at_least(position, transfer);
	count(&disk->busy_us, work.busy);
	return work;
}

/* disk_read -- let a process read; return when it has what it wants. */
MODEL		int64_t
disk_read(Disk *disk, int64_t now, uint64_t file, int64_t offset, int64_t bytes)
{
	catch_up(disk, now);
	Work		work = work_of(disk, READ, file, offset, bytes);

	count(&disk->reads, 1);
	count(&disk->read_bytes, bytes);
	return occupy(disk, now, work, 0);
}

/* disk_write -- let a process write to a relation; return when it may go on. */
MODEL		int64_t
disk_write(Disk *disk, int64_t now, uint64_t file, int64_t offset, int64_t bytes)
{
	catch_up(disk, now);
	Work		work = work_of(disk, WRITE, file, offset, bytes);

	count(&disk->writes, 1);
	count(&disk->write_bytes, bytes);
	if (enqueue(disk, work.busy))
	{
		count(&disk->relations[mixed(file) % FILES].amount, work.busy);
		return now;
	}
	count(&disk->throttled, 1);
	__atomic_store_n(&disk->head, 0, __ATOMIC_RELAXED);
	return occupy(disk, now, work, 0);
}

/* disk_append -- let a process write to WAL, which takes no time before it is synced. */
MODEL void
disk_append(Disk *disk, uint64_t file, int64_t bytes)
{
	count(&disk->wal_bytes, bytes);
	count(&disk->wal[mixed(file) % FILES].amount, bytes);
}

/* disk_sync -- let a process sync a file; return when all that was written to it is out. */
MODEL		int64_t
disk_sync(Disk *disk, int64_t now, uint64_t file, bool wal)
{
	Unsynced   *unsynced = &(wal ? disk->wal : disk->relations)[mixed(file) % FILES];
	int64_t		amount,
				done = now,
				synced = __atomic_load_n(&unsynced->synced, __ATOMIC_ACQUIRE);

	catch_up(disk, now);
	amount = __atomic_exchange_n(&unsynced->amount, 0, __ATOMIC_ACQ_REL);
	if (wal && amount > 0)
		done = occupy(disk, now, work_of_sync(disk, amount), 0);
	else if (amount > 0)
	{
		/*
		 * Work that isn't queued any more is out; the work was counted when
		 * it came.
		 */
		int64_t		queued = at_most(amount, unpack(__atomic_load_n(&disk->clock, __ATOMIC_ACQUIRE)).queued);
		Work		rest = {queued, disk->latency_us};

		if (queued > 0)
			done = occupy(disk, now, rest, queued);
	}
	if (done > now)
	{
		count(&disk->syncs, 1);
		__atomic_store_n(&disk->head, 0, __ATOMIC_RELAXED);
		while (synced < done &&
			   !__atomic_compare_exchange_n(&unsynced->synced, &synced, done, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			 /* another sync of it was faster; look again */ ;
	}
	return at_least(done, synced);
}

/*
 * The rest is about the server's calls.
 */

typedef enum Kind
{
	OTHER, RELATION, WAL
} Kind;

typedef struct File
{
	dev_t		device;
	ino_t		inode;
	Kind		kind;
} File;

static Disk *disk;				/* NULL: nothing is slow */
static File files[DESCRIPTORS]; /* what this process's descriptors were when
								 * they were last used */

__attribute__((constructor))
static void
map_disk(void)
{
	const char *name = getenv("CYCLONE_DISK");
	int			file = name ? open(name, O_RDWR) : -1;

	if (file >= 0)
	{
		void	   *mapped = mmap(NULL, sizeof(Disk), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		disk = mapped == MAP_FAILED ? NULL : mapped;
		close(file);
	}
}

static bool
is_digit(char character)
{
	return character >= '0' && character <= '9';
}

/*
 * kind_by_path -- what a file is by its path.
 *
 * Relations are files with a number in global and in the folders of base, or with a t and a number if they are
 * temporary; not pg_control and not files for sorting.
 */
static Kind
kind_by_path(char *path)
{
	char	   *name = strrchr(path, '/'),
			   *folder;

	if (name == NULL)
		return OTHER;
	*name++ = '\0';
	folder = strrchr(path, '/');
	if (folder == NULL)
		return OTHER;
	if (strcmp(folder, "/pg_wal") == 0)
		return is_digit(*name) || strncmp(name, "xlogtemp", 8) == 0 ? WAL : OTHER;
	if (strcmp(folder, "/global") != 0)
	{
		*folder = '\0';
		folder = strrchr(path, '/');
		if (folder == NULL || strcmp(folder, "/base") != 0)
			return OTHER;
	}
	return is_digit(name[*name == 't']) ? RELATION : OTHER;
}

/*
 * look_at -- find out what a descriptor is, and a number for its file; leaves errno alone.
 *
 * A descriptor may have been closed and opened again since its last use, hence the look at the inode.
 */
static Kind
look_at(int descriptor, uint64_t * number)
{
	int			old_errno = errno;
	File		file = {.kind = OTHER};
	struct stat status;
	bool		is_kept = descriptor >= 0 && descriptor < DESCRIPTORS;

	if (disk == NULL || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode))
	{
		errno = old_errno;
		return OTHER;
	}
	*number = mixed(status.st_dev) ^ status.st_ino;
	if (is_kept && files[descriptor].inode == status.st_ino && files[descriptor].device == status.st_dev)
		file = files[descriptor];
	else
	{
		char		link[32],
					path[4096];
		ssize_t		length;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
		length = readlink(link, path, sizeof(path) - 1);
		path[at_least(length, 0)] = '\0';
		file = (File)
		{
			status.st_dev, status.st_ino, kind_by_path(path)
		};
		if (is_kept)
			files[descriptor] = file;
	}
	errno = old_errno;
	return file.kind;
}

static int64_t
now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000 - disk->origin_us;
}

/*
 * sleep_until -- return no sooner than at that moment, whatever signals come, and not much later.
 *
 * The kernel may be 50 microseconds late by default, to wake up several at a time.  That is much beside a
 * volume's latency, so for this sleep alone, not for the server's own, it may not.  Leaves errno alone.
 */
static void
sleep_until(int64_t moment)
{
	int64_t		absolute = moment + disk->origin_us;
	struct timespec end = {absolute / 1000000, absolute % 1000000 * 1000};
	int			old_errno = errno,
				slack;

	if (moment <= now_us())
		return;
	slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
		;
	if (slack > 0)
		prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
	errno = old_errno;
}

static int64_t
bytes_of(const struct iovec *parts, int number)
{
	int64_t		bytes = 0;

	for (int part = 0; part < number; part++)
		bytes += (int64_t) parts[part].iov_len;
	return bytes;
}

/* Moments at which these calls have to return, 0 if nothing is slow about them */

static int64_t
begin_read(int descriptor, int64_t bytes, off_t offset)
{
	uint64_t	file;
	Kind		kind = look_at(descriptor, &file);

	return kind == OTHER ? 0 : disk_read(disk, now_us(), file, offset, bytes);
}

static int64_t
begin_write(int descriptor, int64_t bytes, off_t offset)
{
	uint64_t	file;
	Kind		kind = look_at(descriptor, &file);

	if (kind == WAL)
		disk_append(disk, file, bytes);
	return kind == RELATION ? disk_write(disk, now_us(), file, offset, bytes) : 0;
}

/* end_call -- wait for a call's turn; return its result. */
static ssize_t
end_call(ssize_t result, int64_t moment)
{
	if (moment > 0)
		sleep_until(moment);
	return result;
}

/* sync_file -- have a file synced by the modelled disk; false if that has nothing to do with it. */
static bool
sync_file(int descriptor)
{
	uint64_t	file;
	Kind		kind = look_at(descriptor, &file);

	if (kind == OTHER)
		return false;
	sleep_until(disk_sync(disk, now_us(), file, kind == WAL));
	return true;
}

#define REAL(name) \
	static __typeof__(name) *real; \
	if (!real) \
		real = (__typeof__(name) *) dlsym(RTLD_NEXT, #name)

ssize_t
pread(int descriptor, void *data, size_t size, off_t offset)
{
	REAL(pread);
	int64_t		moment = begin_read(descriptor, (int64_t) size, offset);

	return end_call(real(descriptor, data, size, offset), moment);
}

ssize_t
preadv(int descriptor, const struct iovec *parts, int number, off_t offset)
{
	REAL(preadv);
	int64_t		moment = begin_read(descriptor, bytes_of(parts, number), offset);

	return end_call(real(descriptor, parts, number, offset), moment);
}

ssize_t
pwrite(int descriptor, const void *data, size_t size, off_t offset)
{
	REAL(pwrite);
	int64_t		moment = begin_write(descriptor, (int64_t) size, offset);

	return end_call(real(descriptor, data, size, offset), moment);
}

ssize_t
pwritev(int descriptor, const struct iovec *parts, int number, off_t offset)
{
	REAL(pwritev);
	int64_t		moment = begin_write(descriptor, bytes_of(parts, number), offset);

	return end_call(real(descriptor, parts, number, offset), moment);
}

int
fsync(int descriptor)
{
	REAL(fsync);
	return sync_file(descriptor) ? 0 : real(descriptor);
}

int
fdatasync(int descriptor)
{
	REAL(fdatasync);
	return sync_file(descriptor) ? 0 : real(descriptor);
}

/* The disk writes when it has time; to be told so early changes nothing. */
int
sync_file_range(int descriptor, off_t offset, off_t size, unsigned int flags)
{
	uint64_t	file;

	REAL(sync_file_range);
	return look_at(descriptor, &file) == OTHER ? real(descriptor, offset, size, flags) : 0;
}

/* Programs that were built for large files call these by other names, where these are not the same anyway. */
#if defined(__LP64__)
ssize_t		pread64(int, void *, size_t, off64_t) __attribute__((alias("pread")));
ssize_t		preadv64(int, const struct iovec *, int, off64_t) __attribute__((alias("preadv")));
ssize_t		pwrite64(int, const void *, size_t, off64_t) __attribute__((alias("pwrite")));
ssize_t		pwritev64(int, const struct iovec *, int, off64_t) __attribute__((alias("pwritev")));
#endif
