/*-------------------------------------------------------------------------
 *
 * cleaner.h
 *	  A background worker that removes what a crash or a kill has left.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CLEANER_H
#define CYCLONE_CLEANER_H

#include "utils/relcache.h"

/*
 * cleaner_init is called while the library is preloaded.  cleaner_look_around, in the
 * postmaster, has a cleaner come to each database with files that a crash has left.  It raises
 * no error.
 */
extern void cleaner_init(void);
extern void cleaner_shmem_request(void);
extern void cleaner_shmem_init(void);
extern void cleaner_look_around(void);

/*
 * The copy of an index is this session's, in whose transaction it is made: no cleaner
 * touches it.  If the session ends before it forgets the copy, a cleaner comes.  A session
 * watches one copy at a time.
 */
extern void cleaner_watch(Oid copy);
extern void cleaner_forget(void);

/* This session leaves a copy: forget it, and have a cleaner come. */
extern void cleaner_leave(void);

/*
 * Have a cleaner come if a table has a copy that no session sees to, as a crash may leave it.
 * For the holder of a ShareUpdateExclusiveLock on the table, in a transaction with a snapshot.
 */
extern void cleaner_find(Relation rel);

#endif							/* CYCLONE_CLEANER_H */
