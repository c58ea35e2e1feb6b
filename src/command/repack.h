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

/*
 * repack_relations
 *		Repacks the named relation, or the whole database if it is NULL.
 *
 * Called outside a transaction block, in a transaction as of a statement's start, with a
 * snapshot; returns in that transaction or in another one, for the caller to commit.
 * named and params are in context, or in other memory that outlives transactions.
 */
extern void repack_relations(VacuumRelation *named, const VacuumParams *params,
							 MemoryContext context);

#endif							/* CYCLONE_REPACK_H */
