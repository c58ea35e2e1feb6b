/*-------------------------------------------------------------------------
 *
 * disk_free.h
 *	  How much of a file system is free, and how much should be.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DISK_FREE_H
#define CYCLONE_DISK_FREE_H

#include <sys/types.h>

typedef struct DiskFree
{
	dev_t		device;
	uint64		free_bytes;		/* for the server's user */
	uint64		size_bytes;
} DiskFree;

/*
 * Find out whether a process may ask for free space.  To be called in the postmaster,
 * while the library is preloaded.
 */
extern void disk_free_init(void);
extern bool disk_free_is_allowed(void);

/*
 * The space of the file system that has this path; false, with errno if asking is allowed,
 * if that can't be found out.
 */
extern bool disk_free(const char *path, DiskFree *result);

/*
 * How much of a file system of this size is to stay free, in bytes: min_free is as
 * settings_parse_min_free_disk makes it.
 */
extern uint64 disk_free_bound(double min_free, uint64 size_bytes);

#endif							/* CYCLONE_DISK_FREE_H */
