/*-------------------------------------------------------------------------
 *
 * dead_tids_private.h
 *	  What the files of the dead-TID store share: its layout in memory, and how
 *	  to get at its directory.
 *
 * dead_tids.c says what the layout is, dead_tids_collect.c fills it,
 * dead_tids_lookup.c reads it; these two don't know of each other.  No other file
 * includes this file.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DEAD_TIDS_PRIVATE_H
#define CYCLONE_DEAD_TIDS_PRIVATE_H

#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/spin.h"

#include "engine/dead_tids.h"

#define CHUNK_BLOCKS		DEAD_TIDS_CHUNK_BLOCKS

/* Page entry: the first byte of the bitmap, or LIST_MARK; then a count. */
#define PAGE_HEADER_SIZE	2
#define LIST_MARK			0xFF
#define MAX_BITMAP_BYTES	(MaxHeapTuplesPerPage / 8 + 1)
/* Entries have an even length, to keep the offsets of lists aligned. */
#define MAX_PAGE_SIZE		TYPEALIGN(2, PAGE_HEADER_SIZE + MAX_BITMAP_BYTES)

#define MAX_BLOB_SIZE \
	MAXALIGN(sizeof(uint64) + CHUNK_BLOCKS * (sizeof(uint16) + MAX_PAGE_SIZE))

/* Blobs begin at multiples of this, which is the unit of the directory. */
#define BLOB_UNIT_SHIFT		3
#define BLOB_UNIT			(1 << BLOB_UNIT_SHIFT)

/* Segments are powers of two, so that their numbers can be split off by shifting. */
#define MIN_SEGMENT_SHIFT	14
#define MAX_SEGMENT_SHIFT	18

/*
 * As extents double and then grow by eighths, there can't be as many as this,
 * whatever the limit is; only if memory is short may there be less.
 */
#define MAX_EXTENTS			64

/* Directory pages */
#define DIRECTORY_PAGE_CHUNKS	3072

StaticAssertDecl(MAX_BITMAP_BYTES < LIST_MARK,
				 "the first byte of a bitmap must differ from LIST_MARK");
StaticAssertDecl(MAX_BLOB_SIZE <= ((Size) 1 << MIN_SEGMENT_SHIFT),
				 "a segment must have room for a blob");
StaticAssertDecl(MAX_BLOB_SIZE <= PG_UINT16_MAX,
				 "positions in a blob must fit in 16 bits");

/* A piece of memory that segments and directory pages are cut off. */
typedef struct Extent
{
	char	   *address;		/* of private memory */
	dsm_handle	handle;			/* of shared memory, but for the first */
	Size		size;
	Size		used;			/* protected by the mutex */
} Extent;

struct DeadTidsShared
{
	/* never change */
	Size		limit;			/* bytes, all that follows included */
	uint32		nchunks;
	uint32		max_segments;
	int			segment_shift;
	Size		directory_page; /* the size of one */
	Size		tables_size;	/* of this struct and both tables */
	Size		first_extent;	/* the size of the first: with a team, it is
								 * behind them */
	Size		extents_limit;	/* for all extents */
	bool		is_shared;		/* is there a team? */

	/*
	 * Written by the leader between phases; without a team, by the only
	 * process there is.
	 */
	int			nextents;
	Size		extents_size;	/* of all of them */
	uint32		round;			/* changes when the store is reset */

	/* written by all while they collect */
	slock_t		mutex;			/* of what is used of the extents */
	pg_atomic_uint32 segments_taken;	/* in this round */
	pg_atomic_uint64 nitems;
	pg_atomic_uint64 bytes;		/* of all blobs and directory pages */

	Extent		extents[MAX_EXTENTS];

	/*
	 * Where the segments are, and then where the directory pages are, in this
	 * round; 0 if there is none.
	 */
	pg_atomic_uint64 tables[FLEXIBLE_ARRAY_MEMBER];
};

/* A segment that one process fills. */
typedef struct Segment
{
	char	   *next;			/* NULL if there is none */
	char	   *end;
	char	   *start;
	uint32		number;
	int			reserved;		/* blobs */
} Segment;

struct DeadTids
{
	DeadTidsShared *shared;
	MemoryContext context;		/* of private memory */

	/*
	 * the extents of shared memory that this process knows, and where they
	 * are
	 */
	int			nextents;
	char	   *extents[MAX_EXTENTS];
	dsm_segment *attached[MAX_EXTENTS]; /* NULL if not by us */

	/* addresses in this process of what the tables point to, once known */
	uint32		round;			/* that they are of */
	char	  **segments;
	uint32	  **directory;

	/*
	 * While collecting.  A blob goes to the first segment if it fits there;
	 * else that one has no more reservations, and the second takes its place.
	 */
	Segment		current;
	Segment		spare;
	uint32		reserved_chunk; /* the last one that room was reserved for */
	uint32		chunk;			/* the one being built, or InvalidChunk */
	int			chunk_items;
	uint64		page_bitmap;
	Size		pages_size;
	uint16		page_positions[CHUNK_BLOCKS];	/* within pages */
	char		pages[CHUNK_BLOCKS * MAX_PAGE_SIZE];
};

#define InvalidChunk		PG_UINT32_MAX

/*
 * A blob without pages.  The bytes behind the bitmap are read as a position, and
 * used for nothing.
 */
static const uint64 empty_blob_data[2] = {0};

#define empty_blob			((const char *) empty_blob_data)

/*
 * dead_tids_allocate returns 0 if there is no memory left, with none of it taken.
 * dead_tids_address raises an error if this process hasn't mapped the memory
 * (dead_tids_catch_up).
 */
extern uint64 dead_tids_allocate(DeadTids *store, Size size, Size spare);
extern char *dead_tids_address(const DeadTids *store, uint64 memory);

/* segment_entry -- where a segment is. */
static inline pg_atomic_uint64 *
segment_entry(DeadTidsShared *shared, uint32 number)
{
	return &shared->tables[number];
}

/* directory_entry -- where a directory page is. */
static inline pg_atomic_uint64 *
directory_entry(DeadTidsShared *shared, uint32 number)
{
	return &shared->tables[shared->max_segments + number];
}

/* directory_pages -- how many directory pages there can be. */
static inline uint32
directory_pages(const DeadTidsShared *shared)
{
	return (shared->nchunks - 1) / DIRECTORY_PAGE_CHUNKS + 1;
}

/*
 * find_directory_page
 *		Return a directory page, NULL if there is none.
 */
static inline uint32 *
find_directory_page(const DeadTids *store, uint32 number)
{
	uint64		memory;

	if (likely(store->directory[number] != NULL))
		return store->directory[number];
	memory = pg_atomic_read_u64(directory_entry(store->shared, number));
	if (memory == 0)
		return NULL;
	store->directory[number] = (uint32 *) dead_tids_address(store, memory);
	return store->directory[number];
}

#endif							/* CYCLONE_DEAD_TIDS_PRIVATE_H */
