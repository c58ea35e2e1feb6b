/*-------------------------------------------------------------------------
 *
 * concurrent_build.h
 *	  Building a btree while sessions write to its table.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CONCURRENT_BUILD_H
#define CYCLONE_CONCURRENT_BUILD_H

#include "nodes/execnodes.h"
#include "utils/rel.h"

/*
 * Both are for an index that no session maintains or uses yet, of a table that is locked as
 * by VACUUM; info is the index's.  concurrent_build fills an empty file with entries of the
 * rows that a new snapshot sees, as the server's concurrent build does, and notes the size.
 * It ends the active snapshot, so that none is held while entries are sorted and written.
 * Duplicates under a unique index are an error.  If it isn't possible, the server can do it.
 */
extern bool concurrent_build_is_possible(Relation index, const IndexInfo *info);
extern void concurrent_build(Relation heap, Relation index, IndexInfo *info);

#endif							/* CYCLONE_CONCURRENT_BUILD_H */
