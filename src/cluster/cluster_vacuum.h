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

/*
 * cluster_vacuum
 *		Run a VACUUM statement of distributed tables on their nodes.
 *
 * rels are VacuumRelations, options the DefElems of the statement, and read is what they
 * mean.  The caller has made sure that VACUUM may run here, and keeps all of these in
 * memory that outlives transactions.  Like the server's VACUUM, this commits the
 * transaction that it is called in, and returns in another one.  If a node had an error,
 * this raises one when all nodes have finished.
 */
extern void cluster_vacuum(List *rels, List *options, const VacuumOptions *read);

/*
 * cluster_parse_vacuum
 *		Parse a text that is to be one VACUUM; returns NULL if it is another statement,
 *		or several.  A syntax error is raised.
 */
extern VacuumStmt *cluster_parse_vacuum(const char *text);

#endif							/* CYCLONE_CLUSTER_VACUUM_H */
