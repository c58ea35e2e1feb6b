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

/*
 * Is bulk deletion in this index done by gin_vacuum.c?  Then it is a GIN index whose
 * lists are all compressed.  Reads its metapage.
 */
extern bool gin_is_ours(Relation index);

/*
 * Move what is in the index's pending list to the tree, before bulk deletion, and add
 * to stats.  The caller has the index locked, and no page of it pinned.
 */
extern void gin_empty_pending_list(Relation index, bool is_autovacuum,
								   IndexBulkDeleteResult *stats);

#endif							/* CYCLONE_GIN_VACUUM_H */
