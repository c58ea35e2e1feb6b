/*-------------------------------------------------------------------------
 *
 * disk_free.h
 *	  How much of a file system is free.
 *
 * See disk_free.c.
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

extern void disk_free_init(void);
extern bool disk_free(const char *path, DiskFree *result);

#endif							/* CYCLONE_DISK_FREE_H */
