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

/*
 * table_inplace is called, and returns, outside any transaction, with the table locked for
 * the session in ShareUpdateExclusiveLock; an error in it may have ended that lock.  Memory
 * that outlives transactions is taken from parent.  table_inplace_is_possible is called in
 * a transaction, with a heap that is locked.
 *
 * index_shrink_is_worthwhile (index_shrink.c): would FULL INPLACE build an index anew that
 * would then have this many pages?  With a lock on the index.
 */
extern uint64 table_inplace_count(void);
extern bool table_inplace_is_possible(Relation rel, const char **why_not);
extern bool index_shrink_is_worthwhile(Relation index, BlockNumber pages);
extern void table_inplace(Oid relid, const VacuumParams *params, BufferAccessStrategy ring,
						  MemoryContext parent);

#endif							/* CYCLONE_TABLE_INPLACE_H */
