/*-------------------------------------------------------------------------
 *
 * others.c
 *	  Waiting for other transactions without standing in a lock's queue.
 *
 * The server's REINDEX CONCURRENTLY waits for others by queueing for the lock that
 * each transaction has on itself, while it holds its own lock on the table.  One of
 * these may then want a lock on the table that ours forbids: ANALYZE after an INSERT.
 * That is a deadlock, and one of the two sessions fails.  VACUUM must never make another
 * session fail.
 *
 * So these functions look again and again whether the transactions have ended.  There
 * is no deadlock, as we never wait in a queue.  But one of the transactions may wait for
 * a lock of ours, directly or behind others.  Then the result is OTHERS_WAIT_FOR_US, and
 * the caller has to release its locks.
 *
 * Each wait is bounded.  Meanwhile the wait event is CycloneOtherTransactions, and
 * pg_stat_progress_create_index.current_locker_pid has the process that we wait for.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "others.h"
#include "own_wait_event.h"
#include "transaction.h"

/* How long to sleep between two looks: longer and longer */
#define FIRST_NAP_MS	1
#define LAST_NAP_MS		50

/* Sessions that vacuum, or build an index safely, use none of the snapshots that matter. */
#define OTHERS_EXCLUDED	(PROC_IS_AUTOVACUUM | PROC_IN_VACUUM | PROC_IN_SAFE_IC)

/* How often, and how many times, a transaction tries to lock a table */
#define LOCK_RETRY_MS	2
#define LOCK_TRIES		100

/*
 * How many processes a look asks about at most, which takes all locks of the lock manager.  The
 * next look goes on from there.
 */
#define MOST_ASKED		64

static bool has_old_snapshot(VirtualTransactionId vxid, const VirtualTransactionId *with, int nwith);
static int	pid_of(VirtualTransactionId vxid);
static bool waits_for_us(int pid, List **asked);
static bool waits_for_lock(int pid);
static OthersFound found(OthersEnd end, int pid);

/*
 * others_with_lock
 *		Who has a lock on a table that conflicts with this one?
 */
Others *
others_with_lock(Oid relid, LOCKMODE conflicting)
{
	Others	   *others = palloc0_object(Others);
	LOCKTAG		tag;

	Assert(IsTransactionState());
	Assert(OidIsValid(relid));
	Assert(conflicting > NoLock && conflicting <= MaxLockMode);
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	others->vxids = GetLockConflicts(&tag, conflicting, &others->count);
	return others;
}

/*
 * others_with_snapshot
 *		Who in this database has a snapshot with this xmin, or an older one?  With an
 *		invalid limit, who has any?
 */
Others *
others_with_snapshot(TransactionId limit_xmin)
{
	Others	   *others = palloc0_object(Others);

	Assert(IsTransactionState());
	others->limit_xmin = limit_xmin;
	others->vxids = GetCurrentVirtualXIDs(limit_xmin, true, false, OTHERS_EXCLUDED,
										  &others->count);
	return others;
}

/*
 * others_look
 *		Take out those that have ended, or that have no such snapshot any more.
 *
 * In a transaction.
 */
OthersFound
others_look(Others *others)
{
	static uint32 next = 0;
	OthersFound first = found(OTHERS_GONE, 0);
	VirtualTransactionId *with = NULL;
	List	   *asked = NIL;
	int			nwith = 0;
	int			left = 0;

	Assert(IsTransactionState());
	if (TransactionIdIsValid(others->limit_xmin))
		with = GetCurrentVirtualXIDs(others->limit_xmin, true, false, OTHERS_EXCLUDED, &nwith);
	for (int i = 0; i < others->count; i++)
	{
		VirtualTransactionId vxid = others->vxids[i];
		int			pid = pid_of(vxid);

		if (with != NULL ? pid == 0 || !has_old_snapshot(vxid, with, nwith) :
			VirtualXactLock(vxid, false))
			continue;
		others->vxids[left++] = vxid;
		if (first.end == OTHERS_GONE)
			first = found(OTHERS_STAY, pid);
	}
	others->count = left;
	if (with != NULL)
		pfree(with);

	for (int i = 0; i < others->count && list_length(asked) < MOST_ASKED; i++)
	{
		int			pid = pid_of(others->vxids[next++ % others->count]);

		if (waits_for_lock(pid) && waits_for_us(pid, &asked))
			return found(OTHERS_WAIT_FOR_US, pid);
	}
	return first;
}

/*
 * others_wait
 *		Wait until they have ended, for this many ms at most.
 *
 * Called and returns outside any transaction, with the table locked for the session.
 * Looks, and sleeps, in transactions, as no error outside of any would end that lock.
 */
OthersFound
others_wait(Others *others, int ms)
{
	TimestampTz start = GetCurrentTimestamp();
	int			nap = FIRST_NAP_MS;

	Assert(!IsTransactionState());
	Assert(others != NULL && ms >= 0);

	for (;;)
	{
		OthersFound now;

		transaction_begin(false);
		now = others_look(others);
		pgstat_progress_update_param(PROGRESS_WAITFOR_CURRENT_PID, now.pid);
		if (now.end == OTHERS_STAY &&
			!TimestampDifferenceExceeds(start, GetCurrentTimestamp(), ms))
		{
			others_nap(Min(nap, Max(ms, 1)));
			nap = Min(2 * nap, LAST_NAP_MS);
			transaction_end();
			continue;
		}
		transaction_end();
		return now;
	}
}

/*
 * others_for_longer_than
 *		Is one of these in a transaction that has been running for longer than this many ms,
 *		or for which that isn't known?
 *
 * It isn't with track_activities off, and of prepared transactions.
 */
OthersFound
others_for_longer_than(const Others *others, int ms, bool or_unknown)
{
	TimestampTz now;

	Assert(IsTransactionState());
	Assert(others != NULL && ms >= 0);

	/* or we would see them as they were when this transaction looked first */
	pgstat_clear_backend_activity_snapshot();
	now = GetCurrentTimestamp();
	for (int i = 0; i < others->count; i++)
	{
		VirtualTransactionId vxid = others->vxids[i];
		int			pid = pid_of(vxid);
		PgBackendStatus *status = NULL;

		if (pid != 0)
		{
			status = pgstat_get_beentry_by_proc_number(vxid.procNumber);
			if (status == NULL)
				continue;
		}
		if (status == NULL || status->st_xact_start_timestamp == 0 ? !or_unknown :
			!TimestampDifferenceExceeds(status->st_xact_start_timestamp, now, ms))
			continue;
		/* it is so, or has ended in the meantime */
		if (!VirtualXactLock(vxid, false))
			return found(OTHERS_STAY, pid);
	}
	return found(OTHERS_GONE, 0);
}

/*
 * others_held_up -- see others.h.
 *
 * What other processes have is looked at without a lock, as the wait goes on if one is
 * missed, and ends early if one has just ended.
 */
OthersFound
others_held_up(TransactionId xid)
{
	static uint32 next = 0;
	List	   *asked = NIL;

	Assert(IsTransactionState() && TransactionIdIsValid(xid));
	for (uint32 i = 0; i < ProcGlobal->allProcCount && list_length(asked) < MOST_ASKED; i++)
	{
		const PGPROC *proc = &ProcGlobal->allProcs[next++ % ProcGlobal->allProcCount];
		TransactionId own = proc->xid;
		TransactionId seen = proc->xmin;
		int			pid = proc->pid;

		if (pid != 0 && pid != MyProcPid && proc->databaseId == MyDatabaseId &&
			((TransactionIdIsNormal(own) && TransactionIdPrecedesOrEquals(own, xid)) ||
			 (TransactionIdIsNormal(seen) && TransactionIdPrecedesOrEquals(seen, xid))) &&
			waits_for_lock(pid) && waits_for_us(pid, &asked))
			return found(OTHERS_WAIT_FOR_US, pid);
	}
	return found(OTHERS_GONE, 0);
}

/* others_blocking -- see others.h. */
List *
others_blocking(int pid)
{
	ArrayType  *array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(pid)));
	int			count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	List	   *pids = NIL;

	for (int i = 0; i < count; i++)
		pids = lappend_int(pids, ((const int32 *) ARR_DATA_PTR(array))[i]);
	return pids;
}

/* others_nap -- sleep for a moment, in a transaction. */
void
others_nap(int ms)
{
	static uint32 event = 0;

	Assert(ms > 0);
	Assert(IsTransactionState());
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 own_wait_event(&event, "CycloneOtherTransactions"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * others_lock_soon -- see others.h.
 *
 * Where standbys have to know of a lock, the server gives the transaction an XID before
 * it tries.  So we only try where nobody has the table.
 */
bool
others_lock_soon(Oid relid, LOCKMODE mode)
{
	Assert(IsTransactionState());
	Assert(OidIsValid(relid));
	Assert(mode > NoLock && mode <= MaxLockMode);
	for (int tries = 0; tries < LOCK_TRIES; tries++)
	{
		if (others_with_lock(relid, mode)->count == 0 && ConditionalLockRelationOid(relid, mode))
			return true;
		others_nap(LOCK_RETRY_MS);
	}
	return false;
}

/* others_describe -- the transaction that was found, in words; palloc'd. */
char *
others_describe(const OthersFound *who)
{
	Assert(who->end != OTHERS_GONE);
	if (who->pid == 0)
		return pstrdup(_("a prepared transaction"));
	return psprintf(_("the transaction of process %d"), who->pid);
}

/* has_old_snapshot -- is this one of those? */
static bool
has_old_snapshot(VirtualTransactionId vxid, const VirtualTransactionId *with, int nwith)
{
	for (int i = 0; i < nwith; i++)
		if (VirtualTransactionIdEquals(vxid, with[i]))
			return true;
	return false;
}

/*
 * pid_of
 *		The process that runs a transaction; 0 if the transaction is prepared or over.
 *
 * Call it before you look whether the transaction still exists.  Otherwise one that
 * ends in that moment is taken for a prepared one.  A process forgets its number in
 * PGPROC.vxid some time before it lets go of the lock by which we see that it has
 * ended; the number beside that lock lives as long as the lock.
 */
static int
pid_of(VirtualTransactionId vxid)
{
	PGPROC	   *proc;

	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return 0;
	proc = ProcNumberGetProc(vxid.procNumber);
	if (proc == NULL || (proc->vxid.lxid != vxid.localTransactionId &&
						 proc->fpLocalTransactionId != vxid.localTransactionId))
		return 0;
	return proc->pid;
}

/*
 * waits_for_us
 *		Does a process wait for a lock of ours, directly or behind others?  Those in *asked, to
 *		which it is added, don't.
 */
static bool
waits_for_us(int pid, List **asked)
{
	if (list_length(*asked) >= MOST_ASKED || list_member_int(*asked, pid))
		return false;
	*asked = lappend_int(*asked, pid);
	foreach_int(blocker, others_blocking(pid))
	{
		if (blocker == MyProcPid || waits_for_us(blocker, asked))
			return true;
	}
	return false;
}

/* waits_for_lock -- is a process waiting in the queue of a lock? */
static bool
waits_for_lock(int pid)
{
	PGPROC	   *proc = pid != 0 ? BackendPidGetProc(pid) : NULL;

	/* one byte has the class, and a look without a lock will do */
	return proc != NULL && (proc->wait_event_info & 0xFF000000) == PG_WAIT_LOCK;
}

/* found -- make the result of others_look and its like. */
static OthersFound
found(OthersEnd end, int pid)
{
	return (OthersFound)
	{
		.end = end,.pid = pid
	};
}
