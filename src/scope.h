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

/* Both allocate memory; scope_has_table reads catalogs, in a transaction, and rel is open. */
extern bool scope_has_table(Relation rel);
extern bool scope_has(Oid relid);
extern bool scope_matches(const char *list, const char *schema, const char *name);

#endif							/* CYCLONE_SCOPE_H */
