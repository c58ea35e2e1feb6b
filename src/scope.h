/*-------------------------------------------------------------------------
 *
 * scope.h
 *	  Which tables are pg_cyclone's, as the settings have it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SCOPE_H
#define CYCLONE_SCOPE_H

#include "utils/guc.h"
#include "utils/rel.h"

/* All allocate memory.  The first two read catalogs, in a transaction; rel is open. */
extern bool scope_has_table(Relation rel);
extern bool scope_has(Oid relid);
extern bool scope_has_database(const char *name);

#endif							/* CYCLONE_SCOPE_H */
