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

extern int	server_build_workers(Oid heap_relid, Relation index);
extern bool server_build_has_workers(Relation rel, Oid heap_relid);
extern void server_build(bool has_workers, void (*routine) (void *), void *arg);

#endif							/* CYCLONE_SERVER_BUILD_H */
