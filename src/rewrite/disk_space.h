/*-------------------------------------------------------------------------
 *
 * disk_space.h
 *	  Is there room for a second copy of a table, or of an index?
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DISK_SPACE_H
#define CYCLONE_DISK_SPACE_H

#include "storage/block.h"
#include "utils/rel.h"

/* What a sort needs for entries that make an index of this size */
#define SORT_SHARE		1.2

/*
 * disk_space_check warns if a rewrite of rel by this command is likely to fill a file
 * system.  disk_space_suffices
 * is for another index like this one, of that many pages, beside what
 * cyclone.min_free_disk says should stay free; it warns and returns false if there is
 * no room.  The caller has rel or the index locked.
 */
extern void disk_space_check(Relation rel, const char *command);
extern bool disk_space_suffices(Relation index, BlockNumber pages);

#endif							/* CYCLONE_DISK_SPACE_H */
