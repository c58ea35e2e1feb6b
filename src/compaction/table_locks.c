/*-------------------------------------------------------------------------
 *
 * table_locks.c
 *	  Locking a table with all that belongs to it, without waiting.
 *
 * The owner of a table may lock one of its indexes alone, for as long as a transaction goes
 * on (ALTER INDEX ... SET TABLESPACE).  A worker that waited for that would compact no other
 * table meanwhile.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "compaction/table_locks.h"

/*
 * compaction_lock_table
 *		Lock a table and its TOAST table, and see that none of their indexes is locked against
 *		readers and writers; false if that can't be done, or the table is gone.
 *
 * Autovacuum vacuums a TOAST table by itself, and a run without it may win next to nothing.
 */
bool
compaction_lock_table(Oid relid, LOCKMODE mode)
{
	LOCKMODE	of_index = Min(mode, RowExclusiveLock);
	Relation	rel;
	Oid			toast;
	bool		are_locked = true;

	Assert(IsTransactionState());

	if (!ConditionalLockRelationOid(relid, mode))
		return false;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		return false;
	foreach_oid(index, RelationGetIndexList(rel))
		are_locked = are_locked && ConditionalLockRelationOid(index, of_index);
	toast = rel->rd_rel->reltoastrelid;
	relation_close(rel, NoLock);
	return are_locked && (!OidIsValid(toast) || compaction_lock_table(toast, mode));
}
