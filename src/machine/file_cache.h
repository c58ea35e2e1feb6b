/*-------------------------------------------------------------------------
 *
 * file_cache.h
 *	  The page cache of the operating system, left as it was found.
 *
 * See file_cache.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_FILE_CACHE_H
#define CYCLONE_FILE_CACHE_H

#include "storage/block.h"
#include "utils/rel.h"

/* Which parts of a file were in the page cache at first; in shared memory, for all processes */
typedef struct FileCacheMap FileCacheMap;

/* What one process does about it; in the memory context of file_cache_begin */
typedef struct FileCache FileCache;

/*
 * Find out whether a process may make the system calls.  To be called in the postmaster,
 * while the library is preloaded.
 */
extern void file_cache_init(void);

/*
 * Does a VACUUM preserve the page cache that reads a relation of this many blocks, and of
 * it and its indexes together all_blocks?  Raises no error.
 */
extern bool file_cache_is_wanted(Relation rel, BlockNumber nblocks, uint64 all_blocks);

/*
 * A map is made by the leader, zeroed or not, in file_cache_map_size bytes of memory that
 * all processes share.  Each process begins by itself.  No errors but for lack of memory.
 */
extern Size file_cache_map_size(BlockNumber nblocks);
extern void file_cache_map_init(FileCacheMap *map, BlockNumber nblocks);
extern Size file_cache_map_bytes(const FileCacheMap *map);
extern FileCache *file_cache_begin(int ring_nbuffers);

/*
 * A block of the main fork will be read.  To be called for each block, in the order in
 * which blocks are asked for, without a lock on a page; does nothing if cache is NULL.
 * It does no I/O by the server's routines, takes no lock, and raises no error but for
 * lack of memory.
 */
extern void file_cache_before_read(FileCache *cache, Relation rel, FileCacheMap *map,
								   BlockNumber blkno);

/* The process reads no more; cache may be NULL.  Serves interrupts. */
extern void file_cache_end(FileCache *cache);

#endif							/* CYCLONE_FILE_CACHE_H */
