/*-------------------------------------------------------------------------
 *
 * server_build.h
 *	  Having the server build indexes, if need be without workers.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SERVER_BUILD_H
#define CYCLONE_SERVER_BUILD_H

#include "utils/rel.h"

/*
 * server_build_workers: how many workers would the server build this index with, for a
 * table with the rows and files of heap_relid?  Both are locked.  server_build_has_workers:
 * would it start workers for any index of this table?  Table and heap_relid are locked
 * exclusively, and so are the indexes afterwards.
 *
 * server_build calls a routine that has the server build indexes.  has_workers is what one
 * of the two said before.  With workers the routine may be called twice, after what it did
 * the first time was undone, so it must change nothing but those indexes.  Not in
 * parallel mode, nor in a subtransaction.  The caller restores
 * max_parallel_maintenance_workers.
 */
extern int	server_build_workers(Oid heap_relid, Relation index);
extern bool server_build_has_workers(Relation rel, Oid heap_relid);
extern void server_build(bool has_workers, void (*routine) (void *), void *arg);

#endif							/* CYCLONE_SERVER_BUILD_H */
