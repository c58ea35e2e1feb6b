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

extern bool subscription_writes_to(Oid relid);
extern SubscriptionVerdict subscription_keep_away(Oid relid);
extern bool subscription_is_at_work(Oid relid);
#ifdef USE_ASSERT_CHECKING
extern bool subscription_is_kept_away(void);
#endif

#endif							/* CYCLONE_SUBSCRIPTION_H */
