/*-------------------------------------------------------------------------
 *
 * subscription.c
 *	  Keeping away from tables to which a subscription writes.
 *
 * A worker that applies changes looks for a row without a snapshot, and misses one that
 * moves meanwhile.  So no move commits once a search can have begun: the catalog of the
 * subscriptions' tables is locked from a look at it until the commit, and where the database
 * has a subscription, a last look tells whether a worker has the table locked.  README.md
 * has the proof.
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
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "inplace/subscription.h"
#include "others.h"

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
	Others	   *holders;
	bool		found = false;

	Assert(IsTransactionState() && OidIsValid(relid));

	/* the modes of sessions that write conflict with it, and some more */
	holders = others_with_lock(relid, ShareLock);
	for (int i = 0; i < holders->count && !found; i++)
	{
		PGPROC	   *proc = ProcNumberGetProc(holders->vxids[i].procNumber);
		int			pid = proc != NULL ? proc->pid : 0;
		const char *type = pid != 0 ? GetBackgroundWorkerTypeByPid(pid) : NULL;

		found = type != NULL && strncmp(type, WORKER_TYPES, strlen(WORKER_TYPES)) == 0;
	}
	pfree(holders->vxids);
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
