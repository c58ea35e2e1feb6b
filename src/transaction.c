/*-------------------------------------------------------------------------
 *
 * transaction.c
 *	  The transactions that a VACUUM consists of, and the users that they run as.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "transaction.h"

/*
 * transaction_begin
 *		Start a transaction, with a snapshot that it keeps for no longer than it must.
 *
 * It holds back no other VACUUM, unless it is for VACUUM FULL: functions in
 * indexes may look at other tables when the indexes are built.
 */
void
transaction_begin(bool full)
{
	Assert(!IsTransactionState());

	StartTransactionCommand();
	/* whatever the session's default is: nobody is to be in conflict with us */
	XactIsoLevel = XACT_READ_COMMITTED;

	/* before there is a snapshot, or others would see its xmin for a while */
	if (!full)
	{
		LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
		MyProc->statusFlags |= PROC_IN_VACUUM;
		ProcGlobal->statusFlags[MyProc->pgxactoff] = MyProc->statusFlags;
		LWLockRelease(ProcArrayLock);
	}

	PushActiveSnapshot(GetTransactionSnapshot());
	CHECK_FOR_INTERRUPTS();
}

/* transaction_end -- commit a transaction that has a snapshot pushed. */
void
transaction_end(void)
{
	Assert(IsTransactionState());
	Assert(ActiveSnapshotSet());

	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * transaction_try
 *		Call the routine in a subtransaction, and in the caller's memory context.
 *		Returns NULL, or the error that has ended it.
 *
 * Relations that the caller has opened or locked before stay so.
 */
ErrorData *
transaction_try(void (*routine) (void *), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	Assert(IsTransactionState());

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		routine(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		/* an error leaves other interrupts unserved, and the caller may go on */
		InterruptPending = true;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}

/*
 * transaction_error_is_about_data
 *		Is an error about the data that was read?  Otherwise it must end the statement:
 *		it was cancelled, memory is short, or recovery of a standby has to go on.
 */
bool
transaction_error_is_about_data(const ErrorData *error)
{
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_TRANSACTION_ROLLBACK:
			return false;
		default:
			return true;
	}
}

/*
 * become_owner
 *		Become the owner of a relation, in a safe environment, as functions in its
 *		indexes may be called.
 *
 * An error leaves user and settings as they are inside: the end of the
 * transaction restores them.
 */
void
become_owner(Relation rel, SavedUser *saved)
{
	Assert(IsTransactionState());

	GetUserIdAndSecContext(&saved->userid, &saved->sec_context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   saved->sec_context | SECURITY_RESTRICTED_OPERATION);
	saved->nestlevel = NewGUCNestLevel();
	RestrictSearchPath();
}

/* become_user_again -- undo become_owner. */
void
become_user_again(const SavedUser *saved)
{
	Assert(IsTransactionState());
	Assert(saved->nestlevel > 0);

	AtEOXact_GUC(false, saved->nestlevel);
	SetUserIdAndSecContext(saved->userid, saved->sec_context);
}
