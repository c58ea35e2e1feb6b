/*-------------------------------------------------------------------------
 *
 * table_locks.h
 *	  Locking a table with all that belongs to it, without waiting.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_LOCKS_H
#define CYCLONE_TABLE_LOCKS_H

#include "storage/lockdefs.h"

extern bool compaction_lock_table(Oid relid, LOCKMODE mode);

#endif							/* CYCLONE_TABLE_LOCKS_H */
