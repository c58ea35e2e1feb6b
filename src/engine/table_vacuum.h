/*-------------------------------------------------------------------------
 *
 * table_vacuum.h
 *	  VACUUM of one table.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_VACUUM_H
#define CYCLONE_TABLE_VACUUM_H

#include "commands/vacuum.h"
#include "storage/buf.h"
#include "utils/rel.h"

extern void table_vacuum(Relation rel, const VacuumParams *params,
						 BufferAccessStrategy strategy);

#endif							/* CYCLONE_TABLE_VACUUM_H */
