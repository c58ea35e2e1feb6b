/*-------------------------------------------------------------------------
 *
 * stale_lock.h
 *	  Row locks of ended transactions from before relfrozenxid.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_STALE_LOCK_H
#define CYCLONE_STALE_LOCK_H

#include "access/htup_details.h"
#include "access/transam.h"
#include "commands/vacuum.h"
#include "storage/procarray.h"
#include "utils/rel.h"

/*
 * has_stale_lock
 *		Is a tuple's xmax a lock, of a transaction that has ended, from before
 *		relfrozenxid?
 *
 * The caller holds a lock on the tuple's page.  Most tuples have never been
 * locked, so the first test is for that.
 */
static inline bool
has_stale_lock(HeapTupleHeader tuple, TransactionId relfrozenxid, TransactionId oldest_xmin)
{
	TransactionId xmax = HeapTupleHeaderGetRawXmax(tuple);

	/* one of the two bits is set if it is a lock */
	if (likely((tuple->t_infomask & (HEAP_XMAX_LOCK_ONLY | HEAP_XMAX_EXCL_LOCK)) == 0))
		return false;
	return HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_infomask) &&
		(tuple->t_infomask & HEAP_XMAX_IS_MULTI) == 0 &&
		TransactionIdIsNormal(xmax) &&
		TransactionIdPrecedes(xmax, relfrozenxid) &&
		(TransactionIdPrecedes(xmax, oldest_xmin) || !TransactionIdIsInProgress(xmax));
}

/*
 * stale_lock_forget: of a tuple that is in no page yet, or not yet logged.
 * stale_locks_on_page: the page is locked in any mode.  stale_locks_remove: it is locked
 * exclusively, and its items are counted; returns how many there were.  If the page is
 * damaged and has some, that is an error.
 */
extern void stale_lock_forget(HeapTupleHeader tuple);
extern bool stale_locks_on_page(Page page, const struct VacuumCutoffs *cutoffs);
extern int	stale_locks_remove(Relation rel, Buffer buffer,
							   const struct VacuumCutoffs *cutoffs);

#endif							/* CYCLONE_STALE_LOCK_H */
