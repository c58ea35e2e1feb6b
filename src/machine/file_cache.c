/*-------------------------------------------------------------------------
 *
 * file_cache.c
 *	  The page cache of the operating system, left as it was found.
 *
 * A VACUUM reads each page of a large table once, and will not read it again soon.  If
 * memory is full, these pages push out of the page cache those that other processes need.  Then,
 * or wherever cyclone.preserve_page_cache is on, a process looks at a file stripe by
 * stripe:
 *
 * - Before the team reads from a stripe, one member asks which of its pages are in the
 *	 page cache (mincore), and notes that for all members.  These pages stay.
 * - When the process is past the stripe by more than its ring of buffers, it tells the
 *	 system to begin to write the changed pages to disk (sync_file_range).
 * - Some MB later it drops the clean pages that weren't there before (posix_fadvise).
 *
 * docs/how-it-works.md (The page cache) says why that does no harm, and what stays.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "commands/vacuum.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/fd.h"
#include "storage/relfilelocator.h"

#include "compat.h"
#include "machine/file_cache.h"
#include "machine/machine.h"
#include "machine/trial.h"
#include "settings.h"

#if defined(__linux__) && defined(HAVE_SYNC_FILE_RANGE) && defined(POSIX_FADV_DONTNEED)
#define SYSTEM_CAN
#endif

/*
 * A stripe of a file: 2 MB, as large as the system's largest folios, which it drops
 * whole or not at all.  A stripe is whole in one segment, or nothing is done.
 */
#define STRIPE_BYTES			(2 * 1024 * 1024)
#define STRIPE_BLOCKS		(STRIPE_BYTES / BLCKSZ)
#define STRIPES_FIT			(RELSEG_SIZE % STRIPE_BLOCKS == 0)

/* A relation of fewer blocks isn't worth it (8 MB). */
#define WORTHWHILE_BLOCKS	(4 * STRIPE_BLOCKS)

/*
 * Distances, in blocks that were asked for meanwhile: beside the ring, what a read
 * stream may be ahead (4 MB); and how long the system has to write (16 MB).
 */
#define AHEAD_BLOCKS		(2 * STRIPE_BLOCKS)
#define WRITING_BLOCKS		(8 * STRIPE_BLOCKS)

/* How many of the stripes noted last a process looks through for one that it comes back to */
#define LOOK_BACK			64

/* How many stripes ahead a process asks which pages are there: more than the system reads ahead */
#define ASK_AHEAD			8

/* No page of memory is smaller. */
#define MIN_PAGE_BYTES		4096

/*
 * How many stripes are written or dropped at most at the begin of another stripe, as reads
 * wait meanwhile, and at the end between two checks for interrupts
 */
#define STRIPES_AT_ONCE		4
#define STRIPES_AT_END		64

/*
 * Of how many stripes (1 GB) a process remembers that it has passed them; then it drops the
 * oldest ones early, of which what is still in its ring stays.
 */
#define MAX_PASSED			512

/* Presence is noted of this much (64 kB), a bit each; it is there if any of it is. */
#define UNIT_BYTES			(STRIPE_BYTES / 32)

typedef struct Stripe
{
	RelFileLocator file;
	BlockNumber start;
	uint64		passed_at;		/* blocks_asked of FileCache, then */
	uint32		absent;			/* units that were not there before */
} Stripe;

/* By stripe: 0 until a process has asked, then KNOWN and the units that are not there */
#define KNOWN				(UINT64CONST(1) << 32)

struct FileCacheMap
{
	BlockNumber nstripes;
	pg_atomic_uint64 stripes[FLEXIBLE_ARRAY_MEMBER];
};

struct FileCache
{
	uint64		blocks_asked;	/* for, so far */
	uint64		ring_blocks;
	int			error;			/* errno of a call that failed, or 0 */
	const char *failed_call;

	Stripe		stripe;			/* that is read now */
	bool		has_stripe;

	Stripe		passed[MAX_PASSED]; /* in that order, from first on, in a ring */
	int			first;
	int			count;
	int			nwritten;		/* the first few of them are being written */
};

/* A segment that is open while some stripes are dealt with */
typedef struct Segment
{
	RelFileLocator file;
	BlockNumber number;
	int			fd;				/* -1: none is open */
} Segment;

/* May this process make the calls? */
static bool may_call = false;

#ifdef SYSTEM_CAN

static bool file_cache_make_calls(void);
static void stripe_begin(FileCache *cache, Relation rel, FileCacheMap *map,
						 BlockNumber start);
static void stripe_change(FileCache *cache, const Stripe *stripe);
static bool stripe_is(const Stripe *stripe, RelFileLocator file, BlockNumber start);
static void stripe_leave(FileCache *cache);
static Stripe *stripe_passed(FileCache *cache, int number);
static void stripes_work_off(FileCache *cache, bool all);
static void stripe_write_back(FileCache *cache, Segment *segment, const Stripe *stripe);
static void stripe_drop(FileCache *cache, Segment *segment, const Stripe *stripe);
static void stripe_note_absent(FileCache *cache, Segment *segment, Relation rel, FileCacheMap *map,
							   BlockNumber number);
static uint32 stripe_absent(FileCache *cache, Segment *segment, const Stripe *stripe);
static bool segment_open(Segment *segment, const Stripe *stripe);
static void segment_close(Segment *segment);
static off_t stripe_offset(const Stripe *stripe);
static void file_cache_note_failure(FileCache *cache, const char *call, int error);

#endif

/* file_cache_init -- see file_cache.h. */
void
file_cache_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);

#ifdef SYSTEM_CAN
	(void) trial_survived(file_cache_make_calls, &may_call);
	if (!may_call)
		ereport(cyclone_preserve_page_cache == PRESERVE_ON ? LOG : DEBUG1,
				(errmsg("pg_cyclone cannot leave the page cache as it finds it"),
				 errdetail("The system does not allow mmap, mincore, sync_file_range or posix_fadvise."),
				 errhint("cyclone.preserve_page_cache has no effect.")));
#endif
}

/* file_cache_is_wanted -- see file_cache.h. */
bool
file_cache_is_wanted(Relation rel, BlockNumber nblocks, uint64 all_blocks)
{
	int64		unused;

	Assert(all_blocks >= nblocks);
	if (!may_call || cyclone_preserve_page_cache == PRESERVE_OFF || !STRIPES_FIT ||
		nblocks < WORTHWHILE_BLOCKS || RelationUsesLocalBuffers(rel) ||
		(io_direct_flags & IO_DIRECT_DATA) != 0)
		return false;
	if (cyclone_preserve_page_cache == PRESERVE_ON)
		return true;
	unused = machine_unused_memory("");
	return unused >= 0 && all_blocks > (uint64) unused / BLCKSZ;
}

/* file_cache_map_size -- the bytes of a map of a relation of this many blocks. */
Size
file_cache_map_size(BlockNumber nblocks)
{
	const FileCacheMap map = {.nstripes = nblocks / STRIPE_BLOCKS + 1};

	return file_cache_map_bytes(&map);
}

/* file_cache_map_bytes -- the bytes of an existing map. */
Size
file_cache_map_bytes(const FileCacheMap *map)
{
	return MAXALIGN(offsetof(FileCacheMap, stripes) + map->nstripes * sizeof(pg_atomic_uint64));
}

/* file_cache_map_init -- nothing is known yet. */
void
file_cache_map_init(FileCacheMap *map, BlockNumber nblocks)
{
	map->nstripes = nblocks / STRIPE_BLOCKS + 1;
	for (BlockNumber i = 0; i < map->nstripes; i++)
		pg_atomic_init_u64(&map->stripes[i], 0);
}

/*
 * file_cache_begin
 *		Prepare to read relations with a ring of this many buffers.
 */
FileCache *
file_cache_begin(int ring_nbuffers)
{
	FileCache  *cache = palloc0_object(FileCache);

	Assert(ring_nbuffers >= 0);

	cache->ring_blocks = ring_nbuffers;
	return cache;
}

/* file_cache_before_read -- see file_cache.h. */
void
file_cache_before_read(FileCache *cache, Relation rel, FileCacheMap *map, BlockNumber blkno)
{
#ifdef SYSTEM_CAN
	BlockNumber start = blkno - blkno % STRIPE_BLOCKS;

	/* no page is locked: some of the calls may take long */
	Assert(CritSectionCount == 0 && InterruptHoldoffCount == 0);
	Assert(cache == NULL || (rel != NULL && map != NULL));
	Assert(BlockNumberIsValid(blkno));
	if (cache == NULL || cache->error != 0 || VacuumFailsafeActive)
		return;
	if (!cache->has_stripe || !stripe_is(&cache->stripe, rel->rd_locator, start))
		stripe_begin(cache, rel, map, start);
	cache->blocks_asked++;
#endif
}

/*
 * file_cache_end
 *		Nothing more will be read.  Pages that are still to be written stay.  Serves
 *		interrupts.
 */
void
file_cache_end(FileCache *cache)
{
#ifdef SYSTEM_CAN
	Assert(CritSectionCount == 0 && InterruptHoldoffCount == 0);
	if (cache == NULL)
		return;
	if (cache->has_stripe)
		stripe_leave(cache);
	while (cache->error == 0 && !VacuumFailsafeActive && cache->count > 0)
	{
		stripes_work_off(cache, true);
		CHECK_FOR_INTERRUPTS();
	}
	if (cache->error != 0)
		ereport(DEBUG1,
				(errmsg_internal("the page cache is not left as it was found: %s failed: %s",
								 cache->failed_call, strerror(cache->error))));
	pfree(cache);
#endif
}

#ifdef SYSTEM_CAN

/* file_cache_make_calls -- in a child: each of the calls, on a file of the cluster. */
static bool
file_cache_make_calls(void)
{
	int			fd = open("PG_VERSION", O_RDONLY | PG_BINARY);
	unsigned char in_core;
	void	   *map;

	if (fd < 0)
		return false;
	map = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
	return map != MAP_FAILED &&
		mincore(map, 1, &in_core) == 0 &&
		sync_file_range(fd, 0, 1, SYNC_FILE_RANGE_WRITE) == 0 &&
		posix_fadvise(fd, 0, 1, POSIX_FADV_DONTNEED) == 0;
}

/*
 * stripe_begin
 *		Another stripe begins: deal with those that are far enough behind, and ask which
 *		pages of this one are in the page cache.
 *
 * It asks some stripes ahead, as the system reads ahead.  Blocks behind the map, which the
 * relation got meanwhile, aren't dropped.
 */
static void
stripe_begin(FileCache *cache, Relation rel, FileCacheMap *map, BlockNumber start)
{
	Segment		segment = {.fd = -1};
	BlockNumber number = start / STRIPE_BLOCKS;
	Stripe		stripe = {.file = rel->rd_locator,.start = start};

	stripe_change(cache, &stripe);
	for (BlockNumber i = number; i <= number + ASK_AHEAD && i < map->nstripes; i++)
		stripe_note_absent(cache, &segment, rel, map, i);
	segment_close(&segment);
	if (number < map->nstripes)
		cache->stripe.absent = (uint32) pg_atomic_read_u64(&map->stripes[number]);
}

/* stripe_change -- the current stripe is left, and this one begins. */
static void
stripe_change(FileCache *cache, const Stripe *stripe)
{
	Assert(stripe->start % STRIPE_BLOCKS == 0);
	if (cache->has_stripe)
		stripe_leave(cache);
	stripes_work_off(cache, false);
	cache->stripe = *stripe;
	cache->has_stripe = true;
}

/* stripe_note_absent -- note which pages of a stripe are there, unless a process has done so. */
static void
stripe_note_absent(FileCache *cache, Segment *segment, Relation rel, FileCacheMap *map, BlockNumber number)
{
	Stripe		stripe = {.file = rel->rd_locator,.start = number * STRIPE_BLOCKS};
	uint64		unknown = 0;

	Assert(number < map->nstripes);
	if (pg_atomic_read_u64(&map->stripes[number]) == 0)
		(void) pg_atomic_compare_exchange_u64(&map->stripes[number], &unknown,
											  KNOWN | stripe_absent(cache, segment, &stripe));
}

/* stripe_is -- is it this stripe of this file? */
static bool
stripe_is(const Stripe *stripe, RelFileLocator file, BlockNumber start)
{
	return stripe->start == start && RelFileLocatorEquals(stripe->file, file);
}

/*
 * stripe_leave
 *		The current stripe has been read: note it if there is something to drop,
 *		unless it is among those noted that aren't written yet.
 */
static void
stripe_leave(FileCache *cache)
{
	Stripe	   *stripe = &cache->stripe;

	Assert(cache->has_stripe);
	if (cache->error != 0 || stripe->absent == 0)
		return;

	for (int i = cache->count - 1; i >= Max(cache->nwritten, cache->count - LOOK_BACK); i--)
	{
		Stripe	   *noted = stripe_passed(cache, i);

		if (stripe_is(noted, stripe->file, stripe->start))
		{
			noted->absent |= stripe->absent;
			return;
		}
	}
	Assert(cache->count < MAX_PASSED);
	stripe->passed_at = cache->blocks_asked;
	*stripe_passed(cache, cache->count++) = *stripe;
}

/* stripe_passed -- the place of one of those that were passed, or of the next one. */
static Stripe *
stripe_passed(FileCache *cache, int number)
{
	return &cache->passed[(cache->first + number) % MAX_PASSED];
}

/*
 * stripes_work_off
 *		Have some stripes written that are far enough behind, and drop some that are farther
 *		behind; or, with all, some of all stripes: then all are written before any is dropped.
 */
static void
stripes_work_off(FileCache *cache, bool all)
{
	bool		is_full = cache->count == MAX_PASSED;
	uint64		write_distance = all ? 0 : cache->ring_blocks + AHEAD_BLOCKS;
	uint64		drop_distance = all ? 0 : write_distance + WRITING_BLOCKS;
	const int	most = all ? STRIPES_AT_END : STRIPES_AT_ONCE;
	Segment		segment = {.fd = -1};

	Assert(cache->nwritten >= 0 && cache->nwritten <= cache->count);
	for (int i = 0; i < most && cache->error == 0 && cache->nwritten < cache->count; i++)
	{
		Stripe	   *stripe = stripe_passed(cache, cache->nwritten);

		if (!is_full && cache->blocks_asked - stripe->passed_at < write_distance)
			break;
		stripe_write_back(cache, &segment, stripe);
		cache->nwritten++;
	}
	for (int i = 0; i < most && cache->error == 0 && cache->nwritten > 0; i++)
	{
		Stripe	   *stripe = stripe_passed(cache, 0);

		if (all ? cache->nwritten < cache->count :
			!is_full && cache->blocks_asked - stripe->passed_at < drop_distance)
			break;
		stripe_drop(cache, &segment, stripe);
		cache->first = (cache->first + 1) % MAX_PASSED;
		cache->count--;
		cache->nwritten--;
	}
	segment_close(&segment);
}

/* stripe_write_back -- have the system begin to write a stripe. */
static void
stripe_write_back(FileCache *cache, Segment *segment, const Stripe *stripe)
{
	if (segment_open(segment, stripe) &&
		sync_file_range(segment->fd, stripe_offset(stripe), STRIPE_BYTES,
						SYNC_FILE_RANGE_WRITE) != 0)
		file_cache_note_failure(cache, "sync_file_range", errno);
}

/*
 * stripe_drop
 *		Drop the units of a stripe that are there now, and weren't before; those that aren't
 *		clean stay.
 *
 * Some file systems have a cache of their own, of which mincore knows nothing, but which
 * might drop what was there before: nothing is there by mincore, so nothing is dropped.
 */
static void
stripe_drop(FileCache *cache, Segment *segment, const Stripe *stripe)
{
	const uint64 ours = stripe->absent & ~stripe_absent(cache, segment, stripe);
	int			end;

	if (cache->error != 0 || !segment_open(segment, stripe))
		return;
	for (int unit = 0; ours >> unit != 0; unit = end)
	{
		int			error;

		end = unit + 1;
		if ((ours >> unit & 1) == 0)
			continue;
		while (ours >> end & 1)
			end++;
		error = posix_fadvise(segment->fd, stripe_offset(stripe) + (off_t) unit * UNIT_BYTES,
							  (off_t) (end - unit) * UNIT_BYTES, POSIX_FADV_DONTNEED);
		if (error != 0)
		{
			file_cache_note_failure(cache, "posix_fadvise", error);
			return;
		}
	}
}

/*
 * stripe_absent
 *		Which units of a stripe are not in the page cache?  0 if that can't be found out.
 */
static uint32
stripe_absent(FileCache *cache, Segment *segment, const Stripe *stripe)
{
	static long page_size = 0;
	unsigned char in_core[STRIPE_BYTES / MIN_PAGE_BYTES];
	uint32		there = 0;
	void	   *map;
	int			error;

	if (page_size == 0)
		page_size = sysconf(_SC_PAGESIZE);
	if (page_size < MIN_PAGE_BYTES || page_size > UNIT_BYTES ||
		cache->error != 0 || !segment_open(segment, stripe))
		return 0;
	map = mmap(NULL, STRIPE_BYTES, PROT_READ, MAP_SHARED, segment->fd, stripe_offset(stripe));
	if (map == MAP_FAILED)
	{
		file_cache_note_failure(cache, "mmap", errno);
		return 0;
	}
	error = mincore(map, STRIPE_BYTES, in_core) == 0 ? 0 : errno;
	(void) munmap(map, STRIPE_BYTES);
	if (error != 0)
	{
		file_cache_note_failure(cache, "mincore", error);
		return 0;
	}
	for (int i = 0; i < STRIPE_BYTES / page_size; i++)
		if ((in_core[i] & 1) != 0)
			there |= (uint32) 1 << i * page_size / UNIT_BYTES;
	return ~there;
}

/*
 * segment_open
 *		Open the segment that a stripe is in, unless it is open.  False if that fails.
 */
static bool
segment_open(Segment *segment, const Stripe *stripe)
{
	BlockNumber number = stripe->start / RELSEG_SIZE;
	char	   *path;
	char		segment_path[MAXPGPATH];

	Assert(stripe->start % STRIPE_BLOCKS == 0);

	/*
	 * some of the calls to come may take long: no page is locked, nor an
	 * LWLock held
	 */
	Assert(CritSectionCount == 0 && InterruptHoldoffCount == 0);

	if (segment->fd >= 0 && segment->number == number &&
		RelFileLocatorEquals(segment->file, stripe->file))
		return true;
	segment_close(segment);
	path = compat_relation_path(stripe->file, MAIN_FORKNUM);
	if (number == 0)
		strlcpy(segment_path, path, sizeof(segment_path));
	else
		snprintf(segment_path, sizeof(segment_path), "%s.%u", path, number);
	pfree(path);
	segment->file = stripe->file;
	segment->number = number;
	segment->fd = BasicOpenFile(segment_path, O_RDONLY | PG_BINARY);
	return segment->fd >= 0;
}

/* segment_close -- close the segment if one is open. */
static void
segment_close(Segment *segment)
{
	if (segment->fd >= 0)
		(void) close(segment->fd);
	segment->fd = -1;
}

/* stripe_offset -- where it begins in its segment, in bytes. */
static off_t
stripe_offset(const Stripe *stripe)
{
	return (off_t) (stripe->start % RELSEG_SIZE) * BLCKSZ;
}

/* file_cache_note_failure -- a call has failed: make no more calls. */
static void
file_cache_note_failure(FileCache *cache, const char *call, int error)
{
	Assert(error != 0);

	cache->error = error;
	cache->failed_call = call;
	if (error == ENOSYS || error == EPERM || error == EACCES)
		may_call = false;
}

#endif							/* SYSTEM_CAN */
