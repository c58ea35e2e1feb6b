/*-------------------------------------------------------------------------
 *
 * disk_space.h
 *	  Is there room for a second copy of a table?
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DISK_SPACE_H
#define CYCLONE_DISK_SPACE_H

#include "utils/rel.h"

extern void disk_space_check(Relation rel, const char *command);

#endif							/* CYCLONE_DISK_SPACE_H */
