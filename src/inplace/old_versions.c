/*-------------------------------------------------------------------------
 *
 * old_versions.c
 *	  Waiting until nobody needs the old versions of rows.
 *
 * Pages of the tail become free only when no snapshot needs the versions that
 * were moved away.  That takes as long as the longest transaction that was
 * running: short ones are waited for, a long one is named in the report.  One that
 * waits for a lock of ours would wait as long as we do, and others behind it: then no
 * more rows are moved.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"

#include "debug_point.h"
#include "inplace/inplace.h"
#include "others.h"
#include "report/progress.h"
#include "transaction.h"

/* How long to wait for other transactions, and how often to look: less and less */
#define WAIT_MS			10000
#define FIRST_LOOK_MS	1
#define LAST_LOOK_MS	20

static bool wait_a_little(const Inplace *job, Inplace *mover, int ms);

/*
 * old_versions_wait
 *		Wait until the versions that were moved away are dead to all, but not long.  mover
 *		is the job that moves, of the table if this is its TOAST table.
 *
 * Called outside any transaction, but waits in one, as no error outside of any
 * would end the session's locks.
 */
void
old_versions_wait(const Inplace *job, Inplace *mover)
{
	Assert(!IsTransactionState());
	if (!TransactionIdIsValid(job->last_xid))
		return;
	progress_begin(job->relid, MyProcPid);
	progress_phase(PROGRESS_INPLACE_WAIT, 0);
	for (int waited = 0, ms = FIRST_LOOK_MS;
		 waited < DEBUG_LIMIT(horizon_wait, WAIT_MS) && !wait_a_little(job, mover, ms);
		 waited += ms, ms = Min(2 * ms, LAST_LOOK_MS))
		;
	progress_clear();
}

/*
 * wait_a_little
 *		Return whether a VACUUM that begins now would remove the versions, or none will;
 *		if not, after a while.
 */
static bool
wait_a_little(const Inplace *job, Inplace *mover, int ms)
{
	Relation	rel;
	TransactionId oldest;
	bool		are_dead;

	transaction_begin(false);
	rel = table_open(job->relid, AccessShareLock);
	oldest = GetOldestNonRemovableTransactionId(rel);
	table_close(rel, AccessShareLock);
	are_dead = TransactionIdPrecedes(job->last_xid, oldest);
	if (!are_dead)
	{
		OthersFound others = others_held_up(job->last_xid);

		mover->makes_way_for = others.pid;
		mover->is_stopped |= others.end != OTHERS_GONE;
	}
	/* like that of each VACUUM our own snapshot holds nothing back */
	if (!are_dead && !mover->is_stopped)
		others_nap(ms);
	transaction_end();
	return are_dead || mover->is_stopped;
}
