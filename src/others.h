/*-------------------------------------------------------------------------
 *
 * others.h
 *	  Waiting for other transactions without standing in a lock's queue.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_OTHERS_H
#define CYCLONE_OTHERS_H

#include "nodes/pg_list.h"
#include "storage/lock.h"

/* Transactions of others; those that have ended are taken out. */
typedef struct Others
{
	VirtualTransactionId *vxids;
	int			count;
	TransactionId limit_xmin;	/* if valid, they matter only as long as they
								 * have a snapshot with such an xmin, or an
								 * older one */
} Others;

/* How a wait for others has ended */
typedef enum OthersEnd
{
	OTHERS_GONE,
	OTHERS_STAY,				/* the time is up */
	OTHERS_WAIT_FOR_US,			/* one of them waits for a lock that we hold */
} OthersEnd;

/* With whom the wait has ended, unless they are gone */
typedef struct OthersFound
{
	OthersEnd	end;
	int			pid;			/* 0: a prepared transaction */
} OthersFound;

/*
 * Both are for use in a transaction, and allocate memory in the current context.  This
 * session doesn't count, and for others_with_snapshot none that vacuums.
 */
extern Others *others_with_lock(Oid relid, LOCKMODE conflicting);
extern Others *others_with_snapshot(TransactionId limit_xmin);

/*
 * Who waits for a lock of ours and may need what this or a later XID has deleted?  *end is
 * OTHERS_WAIT_FOR_US or OTHERS_GONE.
 */
extern OthersFound others_held_up(TransactionId xid);

/* The processes that a process waits for, 0 for a prepared transaction; palloc'd */
extern List *others_blocking(int pid);

/*
 * others_look, others_for_longer_than and others_nap are called in a transaction,
 * others_wait outside of any.  They serve interrupts, so they may raise errors, but none
 * waits in a lock's queue.
 */
extern OthersFound others_look(Others *others);
extern OthersFound others_wait(Others *others, int ms);
extern OthersFound others_for_longer_than(const Others *others, int ms, bool or_unknown);
extern void others_nap(int ms);

/*
 * Lock a table, in a transaction, if that can be done within a moment without standing in
 * the lock's queue.
 */
extern bool others_lock_soon(Oid relid, LOCKMODE mode);

/* Who they are, for a message, palloc'd. */
extern char *others_describe(const OthersFound *found);

#endif							/* CYCLONE_OTHERS_H */
