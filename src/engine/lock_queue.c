/*-------------------------------------------------------------------------
 *
 * lock_queue.c
 *	  An exclusive lock for a moment, on a table that sessions use all the time.
 *
 * A session that asks for a table's exclusive lock again and again, without waiting,
 * never gets it where another session has the table locked at any moment.  So, while a
 * table is compacted, we stand in the lock's queue now and then, for QUEUE_MS at most.
 *
 * Sessions that come meanwhile wait behind us, and a NOWAIT fails.  That is no worse
 * than the moments for which VACUUM has the lock, but it must not be in vain.  So we
 * don't queue behind a transaction that is older than QUEUE_MS: it is likely to stay.
 * pg_dump's is older when its helpers lock its tables once more with NOWAIT, so these
 * never meet us in the queue.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timeout.h"

#include "debug_point.h"
#include "engine/lock_queue.h"
#include "others.h"

/* How long we wait for the lock, and sessions behind us */
#define QUEUE_MS	20

/* The timeout of lock_queue_for_a_moment; MAX_TIMEOUTS stands for none yet. */
static TimeoutId queue_timeout = MAX_TIMEOUTS;
static volatile sig_atomic_t waited_enough;
static volatile sig_atomic_t cancel_requested;
static struct sigaction usual_action;	/* on SIGINT */

static void watch_out(void);
static void end_waiting(void);
static void note_cancel_request(int signo, siginfo_t *info, void *context);
static void stop_watching(void);

/* lock_is_held_for -- see lock_queue.h. */
bool
lock_is_held_for(Oid relid, int ms)
{
	Assert(IsTransactionState());
	Assert(CheckRelationOidLockedByMe(relid, ShareUpdateExclusiveLock, true));
	Assert(ms >= 0);
	return others_for_longer_than(others_with_lock(relid, AccessExclusiveLock), ms, true).end != OTHERS_GONE;
}

/* lock_queue_may_help -- see lock_queue.h. */
bool
lock_queue_may_help(Oid relid)
{
	LOCKTAG		tag;

	Assert(CheckRelationOidLockedByMe(relid, ShareUpdateExclusiveLock, true));
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return !LockHasWaiters(&tag, ShareUpdateExclusiveLock, false) && !lock_is_held_for(relid, DEBUG_LIMIT(queue_age, QUEUE_MS));
}

/*
 * lock_queue_for_a_moment -- see lock_queue.h.
 *
 * The server reports the end of a wait, or a deadlock, by an error, so this is a
 * subtransaction.  Our own end of waiting looks like a request to cancel, and so
 * does lock_timeout's.  A request of another session must not get lost if it comes at
 * the same time, so here we watch out for its signal.
 */
bool
lock_queue_for_a_moment(Oid relid)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			nest_level = NewGUCNestLevel();
	ErrorData  *volatile error = NULL;
	bool		is_ours;

	/* an interrupt is to end the wait, and an error the subtransaction */
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	Assert(IsTransactionState() && !IsInParallelMode());
	Assert(!CheckRelationOidLockedByMe(relid, AccessExclusiveLock, false));
	if (queue_timeout == MAX_TIMEOUTS)
		queue_timeout = RegisterTimeout(USER_TIMEOUT, end_waiting);
	/* QUEUE_MS is our limit, so the user's is of no use */
	(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);

	watch_out();
	PG_TRY();
	{
		/* serve interrupts from before we watched out */
		CHECK_FOR_INTERRUPTS();
		enable_timeout_after(queue_timeout, QUEUE_MS);
		LockRelationOid(relid, AccessExclusiveLock);
		stop_watching();
		CHECK_FOR_INTERRUPTS();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		stop_watching();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		/* once is enough */
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && cancel_requested)
			QueryCancelPending = false;
		RollbackAndReleaseCurrentSubTransaction();
		/* an error leaves other interrupts unserved, and we may go on */
		InterruptPending = true;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	AtEOXact_GUC(false, nest_level);

	if (error == NULL)
	{
		Assert(CheckRelationOidLockedByMe(relid, AccessExclusiveLock, false));
		return true;
	}
	Assert(!CheckRelationOidLockedByMe(relid, AccessExclusiveLock, false));
	is_ours = error->sqlerrcode == ERRCODE_QUERY_CANCELED && waited_enough && !cancel_requested;
	if (!is_ours && error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/*
 * watch_out
 *		From here on know of each request to cancel.
 *
 * A process that has no handler of the signal isn't cancelled by it.
 */
static void
watch_out(void)
{
	struct sigaction action = {.sa_sigaction = note_cancel_request,.sa_flags = SA_RESTART | SA_SIGINFO};

	waited_enough = cancel_requested = false;
	sigemptyset(&action.sa_mask);
	/* in two calls, as our handler may run before the second has returned */
	sigaction(SIGINT, NULL, &usual_action);
	if (usual_action.sa_handler != SIG_IGN && usual_action.sa_handler != SIG_DFL)
		sigaction(SIGINT, &action, NULL);
}

/*
 * end_waiting
 *		Handler of the timeout: let the wait for the lock end by an error.
 */
static void
end_waiting(void)
{
	waited_enough = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/*
 * note_cancel_request
 *		Handler of SIGINT: what the usual one does, but remember it.
 *
 * The usual one may take the sender of the signal as an argument, or not.
 */
static void
note_cancel_request(int signo, siginfo_t *info, void *context)
{
	cancel_requested = true;
	if ((usual_action.sa_flags & SA_SIGINFO) != 0)
		usual_action.sa_sigaction(signo, info, context);
	else
		usual_action.sa_handler(signo);
}

/*
 * stop_watching
 *		The wait is over: no request of ours may be left, and no session's lost.
 */
static void
stop_watching(void)
{
	disable_timeout(queue_timeout, false);
	QueryCancelPending = false;
	if (cancel_requested)
	{
		QueryCancelPending = true;
		InterruptPending = true;
	}
	sigaction(SIGINT, &usual_action, NULL);
}
