/*-------------------------------------------------------------------------
 *
 * table_rewrite.h
 *	  VACUUM FULL or REPACK of one table.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_REWRITE_H
#define CYCLONE_TABLE_REWRITE_H

#include "commands/vacuum.h"
#include "utils/rel.h"

#include "compat.h"

/*
 * table_rewrite rewrites a table for which table_rewrite_is_possible, and closes it.
 * The table is a heap, and locked with an AccessExclusiveLock.  The caller is in a
 * transaction with a snapshot, not in a subtransaction, runs as the table's owner, and
 * undoes changes of parameters afterwards.
 */
extern bool table_rewrite_is_possible(Relation rel);
extern void table_rewrite(Relation rel, RepackCommand command, const VacuumParams *params);

#endif							/* CYCLONE_TABLE_REWRITE_H */
