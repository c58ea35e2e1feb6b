/*-------------------------------------------------------------------------
 *
 * copy_cleaner.h
 *	  A worker that drops the copy of an index which FULL INPLACE could not drop.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COPY_CLEANER_H
#define CYCLONE_COPY_CLEANER_H

#include "utils/relcache.h"

/*
 * Have a worker drop a copy when nobody uses it any more, if that is within
 * cyclone.index_wait.  Returns false if there is no place for a worker.
 */
extern bool copy_cleaner_start(Oid table, Oid copy);

/*
 * Have workers drop the copies of a table's indexes that others maintain, as a crash may
 * leave them.  For the holder of a ShareUpdateExclusiveLock on the table, in a transaction
 * with a snapshot.
 */
extern void copy_cleaner_find(Relation rel);

/*
 * The copy is this session's, in whose transaction it is made.  If the session ends before
 * it forgets the copy, a worker drops that.  It watches one copy at a time.
 */
extern void copy_cleaner_watch(Oid table, Oid copy);
extern void copy_cleaner_forget(void);

#endif							/* CYCLONE_COPY_CLEANER_H */
