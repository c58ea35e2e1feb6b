/*-------------------------------------------------------------------------
 *
 * repack.h
 *	  Which relations a REPACK rewrites, and each one's transaction.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_REPACK_H
#define CYCLONE_REPACK_H

#include "commands/vacuum.h"

extern void repack_relations(VacuumRelation *named, const VacuumParams *params,
							 MemoryContext context);

#endif							/* CYCLONE_REPACK_H */
