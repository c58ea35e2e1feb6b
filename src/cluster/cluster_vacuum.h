/*-------------------------------------------------------------------------
 *
 * cluster_vacuum.h
 *	  VACUUM of tables whose shards are on several nodes.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CLUSTER_VACUUM_H
#define CYCLONE_CLUSTER_VACUUM_H

#include "nodes/parsenodes.h"

#include "command/options.h"

extern void cluster_vacuum(List *rels, List *options, const VacuumOptions *read);
extern VacuumStmt *cluster_parse_vacuum(const char *text);

#endif							/* CYCLONE_CLUSTER_VACUUM_H */
