/*-------------------------------------------------------------------------
 *
 * autovacuum.h
 *	  Autovacuum's tables, by the engine or by PostgreSQL's VACUUM.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_AUTOVACUUM_H
#define CYCLONE_AUTOVACUUM_H

#include "commands/vacuum.h"
#include "storage/buf.h"
#include "utils/rel.h"

#include "autovacuum/table_log.h"
#include "compat.h"

/* relation_vacuum of a table access method */
typedef void (*RelationVacuum) (Relation rel, compat_am_vacuum_params *params,
								BufferAccessStrategy strategy);

/*
 * autovacuum_vacuum is called in an autovacuum worker, in a transaction with a snapshot,
 * with a ShareUpdateExclusiveLock on rel, which is a heap.  autovacuum_audit_has_failed is
 * called in a session while an error is handled, and raises none; name may be NULL.
 */
extern bool autovacuum_audit_has_failed(const TableKey *key, const char *name);
extern void autovacuum_vacuum(Relation rel, compat_am_vacuum_params *params,
							  BufferAccessStrategy strategy,
							  RelationVacuum servers_vacuum);

#endif							/* CYCLONE_AUTOVACUUM_H */
