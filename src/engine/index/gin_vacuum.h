/*-------------------------------------------------------------------------
 *
 * gin_vacuum.h
 *	  Bulk deletion in GIN indexes, by any number of processes in one index.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_GIN_VACUUM_H
#define CYCLONE_GIN_VACUUM_H

#include "access/genam.h"

extern bool gin_is_ours(Relation index);
extern void gin_empty_pending_list(Relation index, bool is_autovacuum,
								   IndexBulkDeleteResult *stats);

#endif							/* CYCLONE_GIN_VACUUM_H */
