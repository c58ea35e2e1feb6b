/*-------------------------------------------------------------------------
 *
 * file_cache.c
 *	  The page cache of the operating system, left as it was found.
 *
 * A VACUUM reads each page of a large table once, and will not read it again soon.  If
 * memory is full, these pages push out of the page cache those that others need.  Then,
 * or wherever cyclone.preserve_page_cache is on, a process looks at a file stripe by stripe:
 *
 * - Before the team reads from a stripe, one member asks which of its pages are in the
 *	 page cache (mincore), and notes that for all members (FileCacheMap).  These pages
 *	 stay, no matter which process has read them.
 * - When the process is past the stripe by more than its ring of buffers, the server has
 *	 written the changed pages of the stripe.  The process tells the system to begin to
 *	 write them to disk (sync_file_range).
 * - Some MB later it drops the pages that weren't there before (posix_fadvise).  The
 *	 system keeps those that are not clean yet, and the process tries the stripe again later.
 *
 * A process that comes back to a stripe, as in indexes that are not read in file order,
 * notes it once, as long as it hasn't been written.
 *
 * Code of the server that reads all of a file tells us no block.  So all stripes are asked
 * about before (file_cache_before_all), and what the code has brought is dropped when it
 * has ended (file_cache_after_all).
 *
 * New files of VACUUM FULL stay in the page cache: if their pages were dropped before the
 * server's fsync, and the system had failed to write one, it would be read as zeros, and
 * its rows be missing in the indexes that are built of it.
 *
 * No process waits for a write to end.  To begin one may wait for room in the device's
 * queue, as any read does; the process has no page locked then.  It may have pages
 * pinned, and reads of a batch not yet submitted, but the device needs neither.
 *
 * The second pass over the heap goes by the same notes.  If a table fits in the page
 * cache (half of effective_cache_size, with its indexes), the first pass drops nothing, as
 * the table would be read from disk twice.  It holds the pages until the second pass has
 * ended (file_cache_hold), or the process leaves the team.  A larger table would be pushed
 * out meanwhile.  In the failsafe nothing is asked, written or dropped any more.
 *
 * Pages that others have read since then, and that weren't there before, are dropped as
 * well: they are in shared buffers, or weren't wanted for long.  Pages stay that are
 * written only after the last try: some on a disk that is slower than the VACUUM, pages
 * that were in shared buffers but in no ring, and the last few MB of the VACUUM.
 *
 * Why it does no harm
 * -------------------
 * Only clean pages are dropped.  The system may write at any time what the server has
 * handed to it, so an early write does no harm.  Nothing here asks how a write ended:
 * neither call consumes an error, which is left for the checkpointer's fsync.  (So
 * sync_file_range must not be told to wait: then it would consume one.)  If a write fails,
 * the system takes the page for clean, and a process that reads it before that fsync stops
 * the server may find the old contents.  The same happens where memory is short.
 *
 * A call that fails raises no error.  It ends all this for the VACUUM, or for the process
 * if the system doesn't allow the call.  A child of the postmaster has tried whether
 * the calls may be made at all: see trial.c.  If a file is gone, or shorter than it was,
 * there is nothing to drop.  No descriptor is kept open, and none is taken from the
 * server's: BasicOpenFile makes room by itself.  Nothing here raises an error while it
 * has a descriptor or a mapping.
 *
 * A file system in memory has all blocks there at any time, and one with a cache of its
 * own (ZFS) none, so nothing is dropped.  Where what has been read is never there, a
 * process soon stops asking: such a file system may read files more slowly that have been
 * mapped.  With direct I/O nothing is in the page cache; nothing is asked.
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
#include "file_cache.h"
#include "machine.h"
#include "settings.h"
#include "trial.h"

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
 * How far it is to the next try (64 MB), how often a stripe is tried, and how many stripes
 * may wait for a try
 */
#define LATE_BLOCKS			(32 * STRIPE_BLOCKS)
#define MAX_TRIES			8
#define MAX_STRIPES			4096

/*
 * How many stripes are written or dropped at most at the begin of another stripe, as reads
 * wait meanwhile, and at the end between two checks for interrupts.  More than one are due
 * only after file_cache_release.
 */
#define STRIPES_AT_ONCE		4
#define STRIPES_AT_END		64

/* After so many stripes that were read and are not in the page cache a process looks at no more. */
#define MAX_IN_VAIN			16

/* Presence is noted of this much (64 kB), a bit each; it is there if any of it is. */
#define UNIT_BYTES			(STRIPE_BYTES / 32)

typedef struct Stripe
{
	RelFileLocator file;
	BlockNumber start;
	bool		is_held;
	uint64		passed_at;		/* blocks_asked of FileCache, then */
	int			tries;
	uint32		absent;			/* units that were not there before */
} Stripe;

/* By stripe: 0 until a process has asked, then KNOWN and the units that are not there */
#define KNOWN				(UINT64CONST(1) << 32)

struct FileCacheMap
{
	BlockNumber nstripes;
	pg_atomic_uint64 stripes[FLEXIBLE_ARRAY_MEMBER];
};

/* Some of them, in an array that grows, from first on */
typedef struct Stripes
{
	Stripe	   *array;
	int			size;
	int			first;
	int			count;
} Stripes;

struct FileCache
{
	uint64		blocks_asked;	/* for, so far */
	uint64		ring_blocks;
	int			error;			/* errno of a call that failed, or 0 */
	const char *failed_call;
	MemoryContext context;

	bool		holds;
	Oid			seen_in;		/* tablespace where pages that were read are
								 * in the page cache */
	int			in_vain;		/* stripes that were not there, in a row */
	Stripe		stripe;			/* that is read now */
	bool		has_stripe;

	Stripes		passed;			/* in that order */
	int			nwritten;		/* the first few of them are being written */
	Stripes		late;			/* to be tried again */
	Stripes		held;			/* until they are released */
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

static bool make_calls(void);
static void begin_stripe(FileCache *cache, Relation rel, FileCacheMap *map,
						 BlockNumber start);
static void change_stripe(FileCache *cache, const Stripe *stripe);
static bool is_stripe(const Stripe *stripe, RelFileLocator file, BlockNumber start);
static void leave_stripe(FileCache *cache);
static void append(FileCache *cache, Stripes *stripes, const Stripe *stripe);
static void work_off(FileCache *cache, bool all);
static void try_later(FileCache *cache, Segment *segment, Stripe *stripe);
static void write_back(FileCache *cache, Segment *segment, const Stripe *stripe);
static void drop_stripe(FileCache *cache, Segment *segment, Stripe *stripe);
static void ask_for_map(FileCache *cache, Segment *segment, Relation rel, FileCacheMap *map,
						BlockNumber number);
static bool is_in_page_cache(FileCache *cache, Segment *segment, const Stripe *stripe);
static uint32 ask(FileCache *cache, Segment *segment, const Stripe *stripe);
static bool open_segment(Segment *segment, const Stripe *stripe);
static void close_segment(Segment *segment);
static off_t stripe_offset(const Stripe *stripe);
static void note_failure(FileCache *cache, const char *call, int error);

#endif

/* file_cache_init -- see file_cache.h. */
void
file_cache_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);

#ifdef SYSTEM_CAN
	(void) trial_survived(make_calls, &may_call);
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
	cache->context = CurrentMemoryContext;
	return cache;
}

/*
 * file_cache_hold
 *		Keep what is read from now on until file_cache_release is called, or don't.
 */
void
file_cache_hold(FileCache *cache, bool hold)
{
	if (cache != NULL)
		cache->holds = hold;
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
	if (!cache->has_stripe || !is_stripe(&cache->stripe, rel->rd_locator, start))
		begin_stripe(cache, rel, map, start);
	cache->blocks_asked++;
#endif
}

/*
 * file_cache_before_all
 *		All of a relation will be read by code of the server.  Serves interrupts.
 */
void
file_cache_before_all(FileCache *cache, Relation rel, FileCacheMap *map)
{
	/* no page is locked: some of the calls may take long */
	Assert(CritSectionCount == 0 && InterruptHoldoffCount == 0);
	Assert(cache == NULL || (rel != NULL && map != NULL));

#ifdef SYSTEM_CAN
	if (cache == NULL)
		return;
	for (BlockNumber i = 0; i < map->nstripes && cache->error == 0 && !VacuumFailsafeActive; i++)
	{
		Segment		segment = {.fd = -1};

		CHECK_FOR_INTERRUPTS();
		ask_for_map(cache, &segment, rel, map, i);
		close_segment(&segment);
	}
#endif
}

/*
 * file_cache_after_all
 *		It has been: drop what wasn't there before.  Serves interrupts.
 */
void
file_cache_after_all(FileCache *cache, Relation rel, FileCacheMap *map)
{
	/* no page is locked: some of the calls may take long */
	Assert(CritSectionCount == 0 && InterruptHoldoffCount == 0);
	Assert(cache == NULL || (rel != NULL && map != NULL));

#ifdef SYSTEM_CAN
	if (cache == NULL)
		return;
	/* all are written before any is dropped */
	for (int pass = 0; pass < 2; pass++)
		for (BlockNumber i = 0; i < map->nstripes && cache->error == 0 && !VacuumFailsafeActive; i++)
		{
			Segment		segment = {.fd = -1};
			Stripe		stripe = {.file = rel->rd_locator,.start = i * STRIPE_BLOCKS};

			CHECK_FOR_INTERRUPTS();
			stripe.absent = (uint32) pg_atomic_read_u64(&map->stripes[i]);
			if (stripe.absent == 0)
				continue;
			if (pass == 0)
				write_back(cache, &segment, &stripe);
			else
				drop_stripe(cache, &segment, &stripe);
			close_segment(&segment);
		}
#endif
}

/*
 * file_cache_release
 *		What was held is dropped like all else, as more is read.
 */
void
file_cache_release(FileCache *cache)
{
#ifdef SYSTEM_CAN
	if (cache == NULL)
		return;
	cache->stripe.is_held = false;
	for (int i = 0; i < cache->passed.count; i++)
		cache->passed.array[cache->passed.first + i].is_held = false;
	for (int i = 0; i < cache->held.count; i++)
	{
		Stripe	   *stripe = &cache->held.array[i];

		stripe->is_held = false;
		stripe->passed_at = cache->blocks_asked;
		append(cache, &cache->passed, stripe);
	}
	cache->held.count = 0;
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
		leave_stripe(cache);
	file_cache_release(cache);
	while (cache->error == 0 && !VacuumFailsafeActive &&
		   cache->passed.count + cache->late.count > 0)
	{
		work_off(cache, true);
		CHECK_FOR_INTERRUPTS();
	}
	if (cache->error != 0)
		ereport(DEBUG1,
				(errmsg_internal("the page cache is not left as it was found: %s failed: %s",
								 cache->failed_call, strerror(cache->error))));
	if (cache->passed.array != NULL)
		pfree(cache->passed.array);
	if (cache->late.array != NULL)
		pfree(cache->late.array);
	if (cache->held.array != NULL)
		pfree(cache->held.array);
	pfree(cache);
#endif
}

#ifdef SYSTEM_CAN

/* make_calls -- in a child: each of the calls, on a file of the cluster. */
static bool
make_calls(void)
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
 * begin_stripe
 *		Another stripe begins: deal with those that are far enough behind, and ask which
 *		pages of this one are in the page cache.
 *
 * It asks some stripes ahead, as the system reads ahead.  Blocks behind the map, which the
 * relation got meanwhile, aren't dropped.
 */
static void
begin_stripe(FileCache *cache, Relation rel, FileCacheMap *map, BlockNumber start)
{
	Segment		segment = {.fd = -1};
	BlockNumber number = start / STRIPE_BLOCKS;
	Stripe		stripe = {.file = rel->rd_locator,.start = start,.is_held = cache->holds};

	change_stripe(cache, &stripe);
	for (BlockNumber i = number; i <= number + ASK_AHEAD && i < map->nstripes; i++)
		ask_for_map(cache, &segment, rel, map, i);
	close_segment(&segment);
	if (number < map->nstripes)
		cache->stripe.absent = (uint32) pg_atomic_read_u64(&map->stripes[number]);
}

/* change_stripe -- the current stripe is left, and this one begins. */
static void
change_stripe(FileCache *cache, const Stripe *stripe)
{
	Assert(stripe->start % STRIPE_BLOCKS == 0);
	if (cache->has_stripe)
		leave_stripe(cache);
	work_off(cache, false);
	cache->stripe = *stripe;
	cache->has_stripe = true;
}

/* ask_for_map -- note which pages of a stripe are there, unless a process has done so. */
static void
ask_for_map(FileCache *cache, Segment *segment, Relation rel, FileCacheMap *map, BlockNumber number)
{
	Stripe		stripe = {.file = rel->rd_locator,.start = number * STRIPE_BLOCKS};
	uint64		unknown = 0;

	Assert(number < map->nstripes);
	if (pg_atomic_read_u64(&map->stripes[number]) == 0)
		(void) pg_atomic_compare_exchange_u64(&map->stripes[number], &unknown,
											  KNOWN | ask(cache, segment, &stripe));
}

/* is_stripe -- is it this stripe of this file? */
static bool
is_stripe(const Stripe *stripe, RelFileLocator file, BlockNumber start)
{
	return stripe->start == start && RelFileLocatorEquals(stripe->file, file);
}

/*
 * leave_stripe
 *		The current stripe has been read: note it if there is something to drop,
 *		unless it is among those noted that aren't written yet.
 */
static void
leave_stripe(FileCache *cache)
{
	Stripe	   *stripe = &cache->stripe;

	Assert(cache->has_stripe);
	if (cache->error != 0 || stripe->absent == 0)
		return;
	for (int i = cache->passed.count - 1; i >= Max(cache->nwritten, cache->passed.count - LOOK_BACK); i--)
	{
		Stripe	   *noted = &cache->passed.array[cache->passed.first + i];

		if (is_stripe(noted, stripe->file, stripe->start))
		{
			noted->absent |= stripe->absent;
			return;
		}
	}
	stripe->passed_at = cache->blocks_asked;
	append(cache, &cache->passed, stripe);
}

/*
 * append
 *		Add a stripe behind others.  Lack of memory is noted as a failed call and raises no
 *		error, as a descriptor may be open.
 */
static void
append(FileCache *cache, Stripes *stripes, const Stripe *stripe)
{
	Assert(stripes->first >= 0 && stripes->count >= 0);
	Assert(stripes->first + stripes->count <= stripes->size);
	if (stripes->first + stripes->count == stripes->size && stripes->first > stripes->size / 2)
	{
		memmove(stripes->array, stripes->array + stripes->first, stripes->count * sizeof(Stripe));
		stripes->first = 0;
	}
	else if (stripes->first + stripes->count == stripes->size)
	{
		int			size = Max(stripes->size * 2, 64);
		Stripe	   *array = MemoryContextAllocExtended(cache->context, size * sizeof(Stripe),
													   MCXT_ALLOC_NO_OOM | MCXT_ALLOC_HUGE);

		if (array == NULL)
		{
			note_failure(cache, "malloc", ENOMEM);
			return;
		}
		if (stripes->array != NULL)
		{
			memcpy(array, stripes->array, stripes->size * sizeof(Stripe));
			pfree(stripes->array);
		}
		stripes->array = array;
		stripes->size = size;
	}
	Assert(stripes->first + stripes->count < stripes->size);
	stripes->array[stripes->first + stripes->count++] = *stripe;
}

/*
 * work_off
 *		Have some stripes written that are far enough behind, and drop some that are farther
 *		behind; or, with all, some of all stripes: then all are written before any is dropped.
 */
static void
work_off(FileCache *cache, bool all)
{
	Stripes    *passed = &cache->passed;
	uint64		write_distance = all ? 0 : cache->ring_blocks + AHEAD_BLOCKS;
	uint64		drop_distance = all ? 0 : write_distance + WRITING_BLOCKS;
	const int	most = all ? STRIPES_AT_END : STRIPES_AT_ONCE;
	Segment		segment = {.fd = -1};

	Assert(cache->nwritten >= 0 && cache->nwritten <= passed->count);
	for (int i = 0; i < most && cache->error == 0 && cache->nwritten < passed->count; i++)
	{
		Stripe	   *stripe = &passed->array[passed->first + cache->nwritten];

		if (cache->blocks_asked - stripe->passed_at < write_distance)
			break;
		write_back(cache, &segment, stripe);
		cache->nwritten++;
	}
	for (int i = 0; i < most && cache->error == 0 && cache->nwritten > 0; i++)
	{
		Stripe		stripe = passed->array[passed->first];

		if (all ? cache->nwritten < passed->count :
			cache->blocks_asked - stripe.passed_at < drop_distance)
			break;
		passed->first++;
		passed->count--;
		cache->nwritten--;
		if (stripe.is_held)
			append(cache, &cache->held, &stripe);
		else
		{
			drop_stripe(cache, &segment, &stripe);
			if (stripe.absent != 0 && !all)
				try_later(cache, &segment, &stripe);
		}
	}
	for (int i = 0; i < most && cache->error == 0 && cache->late.count > 0; i++)
	{
		Stripe		stripe = cache->late.array[cache->late.first];

		if (!all && cache->blocks_asked - stripe.passed_at < LATE_BLOCKS)
			break;
		cache->late.first++;
		cache->late.count--;
		drop_stripe(cache, &segment, &stripe);
		if (stripe.absent != 0 && !all)
			try_later(cache, &segment, &stripe);
	}
	close_segment(&segment);
}

/* try_later -- some pages of a stripe were not clean: have them written, and try again later. */
static void
try_later(FileCache *cache, Segment *segment, Stripe *stripe)
{
	Assert(stripe->tries < MAX_TRIES);
	if (++stripe->tries == MAX_TRIES || cache->late.count == MAX_STRIPES)
		return;
	write_back(cache, segment, stripe);
	stripe->passed_at = cache->blocks_asked;
	append(cache, &cache->late, stripe);
}

/* write_back -- have the system begin to write a stripe. */
static void
write_back(FileCache *cache, Segment *segment, const Stripe *stripe)
{
	if (open_segment(segment, stripe) &&
		sync_file_range(segment->fd, stripe_offset(stripe), STRIPE_BYTES,
						SYNC_FILE_RANGE_WRITE) != 0)
		note_failure(cache, "sync_file_range", errno);
}

/*
 * drop_stripe
 *		Drop the units of a stripe that weren't there before.  Afterwards stripe->absent has
 *		those that are still there.
 */
static void
drop_stripe(FileCache *cache, Segment *segment, Stripe *stripe)
{
	const uint64 absent = stripe->absent;
	int			end;

	if (!open_segment(segment, stripe) || !is_in_page_cache(cache, segment, stripe))
	{
		stripe->absent = 0;
		return;
	}
	for (int unit = 0; absent >> unit != 0; unit = end)
	{
		int			error;

		end = unit + 1;
		if ((absent >> unit & 1) == 0)
			continue;
		while (absent >> end & 1)
			end++;
		error = posix_fadvise(segment->fd, stripe_offset(stripe) + (off_t) unit * UNIT_BYTES,
							  (off_t) (end - unit) * UNIT_BYTES, POSIX_FADV_DONTNEED);
		if (error != 0)
		{
			note_failure(cache, "posix_fadvise", error);
			return;
		}
	}
	stripe->absent &= ~ask(cache, segment, stripe);
}

/*
 * is_in_page_cache
 *		Does reading bring anything there?  Asked until it has once, in this tablespace.
 *
 * Some file systems have a cache of their own, of which mincore knows nothing, but which
 * might drop what was there before.
 */
static bool
is_in_page_cache(FileCache *cache, Segment *segment, const Stripe *stripe)
{
	const Oid	tablespace = stripe->file.spcOid;

	if (cache->seen_in != tablespace && (stripe->absent & ~ask(cache, segment, stripe)) != 0)
	{
		cache->seen_in = tablespace;
		cache->in_vain = 0;
	}
	if (cache->seen_in == tablespace)
		return cache->error == 0;
	if (++cache->in_vain == MAX_IN_VAIN)
		note_failure(cache, "looking for what was read", ENODATA);
	return false;
}

/*
 * ask
 *		Which units of a stripe are not in the page cache?  0 if that can't be found out.
 */
static uint32
ask(FileCache *cache, Segment *segment, const Stripe *stripe)
{
	static long page_size = 0;
	unsigned char in_core[STRIPE_BYTES / MIN_PAGE_BYTES];
	uint32		there = 0;
	void	   *map;
	int			error;

	if (page_size == 0)
		page_size = sysconf(_SC_PAGESIZE);
	if (page_size < MIN_PAGE_BYTES || page_size > UNIT_BYTES ||
		cache->error != 0 || !open_segment(segment, stripe))
		return 0;
	map = mmap(NULL, STRIPE_BYTES, PROT_READ, MAP_SHARED, segment->fd, stripe_offset(stripe));
	if (map == MAP_FAILED)
	{
		note_failure(cache, "mmap", errno);
		return 0;
	}
	error = mincore(map, STRIPE_BYTES, in_core) == 0 ? 0 : errno;
	(void) munmap(map, STRIPE_BYTES);
	if (error != 0)
	{
		note_failure(cache, "mincore", error);
		return 0;
	}
	for (int i = 0; i < STRIPE_BYTES / page_size; i++)
		if ((in_core[i] & 1) != 0)
			there |= (uint32) 1 << i * page_size / UNIT_BYTES;
	return ~there;
}

/*
 * open_segment
 *		Open the segment that a stripe is in, unless it is open.  False if that fails.
 */
static bool
open_segment(Segment *segment, const Stripe *stripe)
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
	close_segment(segment);
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

/* close_segment -- close the segment if one is open. */
static void
close_segment(Segment *segment)
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

/* note_failure -- a call has failed: make no more calls. */
static void
note_failure(FileCache *cache, const char *call, int error)
{
	Assert(error != 0);

	cache->error = error;
	cache->failed_call = call;
	if (error == ENOSYS || error == EPERM || error == EACCES)
		may_call = false;
}

#endif							/* SYSTEM_CAN */
