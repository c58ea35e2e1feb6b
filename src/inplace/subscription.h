/*-------------------------------------------------------------------------
 *
 * subscription.h
 *	  What subscriptions of logical replication have to do with a table whose
 *	  rows are moved.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SUBSCRIPTION_H
#define CYCLONE_SUBSCRIPTION_H



/* What subscriptions of logical replication have to do with a table */
typedef enum SubscriptionVerdict
{
	SUBSCRIPTION_NONE,			/* nothing, as the database has none */
	SUBSCRIPTION_ELSEWHERE,		/* nothing, any more or ever */
	SUBSCRIPTION_AT_WORK,		/* the same, but a worker of one writes to it */
	SUBSCRIPTION_HERE,			/* one writes to it */
	SUBSCRIPTION_CHANGING,		/* that can't be told at this moment */
} SubscriptionVerdict;

/*
 * Does a subscription write to this table, by itself or by way of a partitioned table
 * above it?  In a transaction, with the table locked in a mode that conflicts with an
 * exclusive lock.
 */
extern bool subscription_writes_to(Oid relid);

/*
 * The same, and keep it so until the end of the transaction, if the answer is
 * SUBSCRIPTION_NONE or SUBSCRIPTION_ELSEWHERE.  Waits for no lock:
 * SUBSCRIPTION_CHANGING means that it can't be told now.  SUBSCRIPTION_AT_WORK is only
 * about this moment, so a caller that was told SUBSCRIPTION_ELSEWHERE asks
 * subscription_is_at_work before it commits.  Not in a subtransaction, whose end might
 * give the lock back.
 */
extern SubscriptionVerdict subscription_keep_away(Oid relid);

/*
 * Does a worker of a subscription have this table locked, in a mode of those that
 * write?  A worker that waits for the lock doesn't count, nor does one that asks for
 * it later.
 */
extern bool subscription_is_at_work(Oid relid);
#ifdef USE_ASSERT_CHECKING

/*
 * Has the transaction the lock that keeps the answer of subscription_keep_away true?
 */
extern bool subscription_is_kept_away(void);
#endif

#endif							/* CYCLONE_SUBSCRIPTION_H */
