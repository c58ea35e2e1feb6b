/*-------------------------------------------------------------------------
 *
 * subscription.c
 *	  Keeping away from tables to which a subscription writes.
 *
 * A worker that applies changes of logical replication looks for the row to be
 * changed without a snapshot: it takes the versions as it finds them on its way
 * through the table or an index.  A row that moves meanwhile, from where it has
 * not been yet to where it has been already, is missed, and so the change is lost.
 * That takes a move that commits while the search is under way, so no move may
 * commit once a search can have begun.
 *
 * A search of a table begins after a row of pg_subscription_rel was committed
 * that names the table, or a partitioned table above it; a change that comes
 * by way of the latter is routed to the partition.  (Children by inheritance
 * alone get none of their parents' changes.)  That holds for workers of each kind:
 * one that copies a table only inserts at first, and like those that apply streamed
 * changes in parallel it looks into the same catalog.  A session that adds such a row has
 * pg_subscription_rel locked in row exclusive mode until it has committed.  So a
 * transaction that moves rows locks it in share mode before it looks, and keeps that
 * lock until it has committed, too.  Then either the row was there, and taking the lock
 * has made us see it, or it comes after our commit, and each search sees all that we
 * moved in its new place.  A look without that lock would not do: the subscription might
 * come, and a search begin, between the look and the commit.
 *
 * A session that drops any table needs that lock, too, for a moment.  A batch may take
 * long, if it moves a large value or makes entries in a GIN index.  So where the
 * database has no subscription at all, pg_subscription is locked instead.  Only
 * sessions that create or change a subscription need that lock.  CREATE SUBSCRIPTION
 * gives it back before it commits, so what it has put there must count at once,
 * committed or not.  Then there is none until our commit, and none on its way: a
 * session that creates one later comes to its tables after us.  All databases share
 * that catalog, so if a session in any of them has it locked, the other lock is taken.
 *
 * Nothing can be put above a table meanwhile.  ATTACH PARTITION locks all that it attaches
 * exclusively, down to the leaves, and the table is locked for our session and for those
 * of our workers.  A link that is taken away counts
 * until it has gone for good: DETACH PARTITION CONCURRENTLY marks the link first, and
 * removes it when no transaction uses it any more; and without CONCURRENTLY, a worker that
 * searches has the parents locked.
 *
 * We never wait for either lock: its holder may keep it for long, as CREATE
 * SUBSCRIPTION does, which waits for another server.  A session that waits for us does so
 * for one batch, as our next attempt doesn't get past it in the queue.
 *
 * A table that is taken out of a subscription is none of its tables from then on,
 * but a worker that is behind goes on with what it gets of that table: it asks the
 * catalog no more once it has found the table ready.  So as long as the database has
 * a subscription, a batch looks once more when all that it has to write is written,
 * and nothing of it is committed: does a worker of a subscription have the table locked?
 * A worker that searches has, until its transaction ends.  If none does, each search that
 * is still to come finds what we moved in its new place, and waits for our commit.
 * If one does, the batch is undone.  A worker that only writes to the table by way of
 * triggers can't be told from that, so we don't give up at once, but try again.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "inplace/subscription.h"

/* What the server calls the workers of subscriptions, of whatever kind */
#define WORKER_TYPES	"logical replication "

static bool keep_database_without(void);
static bool has_subscription(void);
static Oid	partition_parent(Oid relid);

/* subscription_writes_to -- see subscription.h. */
bool
subscription_writes_to(Oid relid)
{
	bool		writes = false;
	List	   *seen = NIL;

	Assert(IsTransactionState());

	for (Oid target = relid; OidIsValid(target) && !writes; target = partition_parent(target))
	{
		CatCList   *subscriptions;

		CHECK_FOR_INTERRUPTS();
		/* a damaged catalog might lead in a circle */
		if (list_member_oid(seen, target))
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("relation with OID %u is a partition of itself", target)));
		seen = lappend_oid(seen, target);
		subscriptions = SearchSysCacheList1(SUBSCRIPTIONRELMAP, ObjectIdGetDatum(target));
		writes = subscriptions->n_members > 0;
		ReleaseSysCacheList(subscriptions);
	}
	list_free(seen);
	return writes;
}

/* subscription_keep_away -- see subscription.h. */
SubscriptionVerdict
subscription_keep_away(Oid relid)
{
	Assert(IsTransactionState());
	Assert(!IsSubTransaction());

	if (keep_database_without())
		return SUBSCRIPTION_NONE;
	/* this makes us see what sessions have committed that had it locked */
	if (!ConditionalLockRelationOid(SubscriptionRelRelationId, ShareLock))
		return SUBSCRIPTION_CHANGING;
	if (subscription_writes_to(relid))
		return SUBSCRIPTION_HERE;
	return subscription_is_at_work(relid) ? SUBSCRIPTION_AT_WORK : SUBSCRIPTION_ELSEWHERE;
}

/* subscription_is_at_work -- see subscription.h. */
bool
subscription_is_at_work(Oid relid)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	int			nholders;
	bool		found = false;

	Assert(IsTransactionState() && OidIsValid(relid));

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	/* the modes of sessions that write conflict with it, and some more */
	holders = GetLockConflicts(&tag, ShareLock, &nholders);
	for (int i = 0; i < nholders && !found; i++)
	{
		PGPROC	   *proc = ProcNumberGetProc(holders[i].procNumber);
		int			pid = proc != NULL ? proc->pid : 0;
		const char *type = pid != 0 ? GetBackgroundWorkerTypeByPid(pid) : NULL;

		found = type != NULL && strncmp(type, WORKER_TYPES, strlen(WORKER_TYPES)) == 0;
	}
	pfree(holders);
	return found;
}

#ifdef USE_ASSERT_CHECKING
/* subscription_is_kept_away -- see subscription.h. */
bool
subscription_is_kept_away(void)
{
	return CheckRelationOidLockedByMe(SubscriptionRelationId, ShareLock, true) ||
		CheckRelationOidLockedByMe(SubscriptionRelRelationId, ShareLock, true);
}
#endif

/*
 * keep_database_without
 *		If the database has no subscription, return true, and keep it so until the
 *		end of the transaction.
 *
 * Waits for nobody; false may mean that it can't be told now.
 */
static bool
keep_database_without(void)
{
	if (!ConditionalLockRelationOid(SubscriptionRelationId, ShareLock))
		return false;
	if (!has_subscription())
		return true;
	/* sessions may go on to change it */
	UnlockRelationOid(SubscriptionRelationId, ShareLock);
	return false;
}

/*
 * has_subscription
 *		Has the database a subscription, if only for a transaction that is still
 *		running, or that deletes it?
 *
 * The caller has pg_subscription locked against changes.  So none is missed: a
 * transaction that still runs has made its changes, and of each row they leave a version
 * to be seen whether it commits meanwhile or not.
 */
static bool
has_subscription(void)
{
	Relation	subscriptions = table_open(SubscriptionRelationId, NoLock);
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	bool		has_one;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_pg_subscription_subdbid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(MyDatabaseId));
	scan = systable_beginscan(subscriptions, InvalidOid, false, &dirty, 1, &key);
	has_one = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(subscriptions, NoLock);
	return has_one;
}

/*
 * partition_parent
 *		Return the partitioned table that a relation is a partition of, even if it
 *		is being detached; or an invalid OID.
 *
 * The server has a function for this, but that fails if the relation,
 * which isn't locked, is detached at this moment.
 */
static Oid
partition_parent(Oid relid)
{
	Relation	inherits;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	link;
	Oid			parent = InvalidOid;

	/* most are none, and that is in a cache */
	if (!get_rel_relispartition(relid))
		return InvalidOid;

	inherits = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true, NULL, 1, &key);
	/* a partition has no other parent */
	link = systable_getnext(scan);
	if (HeapTupleIsValid(link))
		parent = ((Form_pg_inherits) GETSTRUCT(link))->inhparent;
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
	return parent;
}
