/*-------------------------------------------------------------------------
 *
 * relations.h
 *	  Which relations a VACUUM processes, and each one's transactions.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RELATIONS_H
#define CYCLONE_RELATIONS_H

#include "commands/vacuum.h"
#include "nodes/pg_list.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "compat.h"

extern void vacuum_relations(List *named, const VacuumParams *params,
							 BufferAccessStrategy ring,
							 MemoryContext context);
extern bool vacuum_relations_running(void);

/* what a dry run shares */
extern List *relations_list(List *named, bits32 options, MemoryContext context);
extern void relations_apply_reloptions(Relation rel, VacuumParams *params);

/* what REPACK shares */
extern void relations_reset_costs(void);
extern void relations_end(void);
extern bool relation_is_for_server(Relation rel, const VacuumParams *params);
extern void relation_rewrite(Relation rel, RepackCommand command, const VacuumParams *params);

#endif							/* CYCLONE_RELATIONS_H */
