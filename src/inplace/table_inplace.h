/*-------------------------------------------------------------------------
 *
 * table_inplace.h
 *	  VACUUM (FULL INPLACE) of one table.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_INPLACE_H
#define CYCLONE_TABLE_INPLACE_H

#include "commands/vacuum.h"
#include "utils/rel.h"

extern uint64 table_inplace_count(void);
extern bool table_inplace_is_possible(Relation rel, const char **why_not);
extern void table_inplace(Oid relid, const VacuumParams *params, BufferAccessStrategy ring,
						  MemoryContext parent);

#endif							/* CYCLONE_TABLE_INPLACE_H */
