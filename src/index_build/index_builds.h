/*-------------------------------------------------------------------------
 *
 * index_builds.h
 *	  Rebuilding several indexes of a table at once.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_BUILDS_H
#define CYCLONE_INDEX_BUILDS_H

#include "rewrite/rewrite_report.h"
#include "utils/rel.h"

typedef struct IndexBuilds IndexBuilds;

extern IndexBuilds *index_builds_plan(Relation rel, Oid new_relid, int asked);
extern void index_builds_spare_memory(void);
extern void index_builds_run(IndexBuilds *builds, RewriteResult *result);

#endif							/* CYCLONE_INDEX_BUILDS_H */
