/*-------------------------------------------------------------------------
 *
 * lock_queue.h
 *	  An exclusive lock for a moment, on a table that sessions use all the time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LOCK_QUEUE_H
#define CYCLONE_LOCK_QUEUE_H

/*
 * All of these are for use in a transaction, the first two for the holder of a
 * ShareUpdateExclusiveLock.
 */

/* Has a session that has the table locked been in its transaction for longer than that? */
extern bool lock_is_held_for(Oid relid, int ms);

/*
 * May all transactions that have the table locked end in a moment?  False also if a
 * session waits for a lock of ours, as it may have one that we would wait for.
 */
extern bool lock_queue_may_help(Oid relid);

/*
 * Wait in the queue for that moment; return whether we have the AccessExclusiveLock.
 * Best without a lock on the table: while the caller has one, a session that has it locked,
 * too, and now wants one that the caller's forbids, may get a deadlock's error.
 */
extern bool lock_queue_for_a_moment(Oid relid);

#endif							/* CYCLONE_LOCK_QUEUE_H */
