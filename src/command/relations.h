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

extern void vacuum_relations(List *named, const VacuumParams *params,
							 BufferAccessStrategy ring,
							 MemoryContext context);
extern bool vacuum_relations_running(void);

#endif							/* CYCLONE_RELATIONS_H */
