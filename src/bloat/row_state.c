/*-------------------------------------------------------------------------
 *
 * row_state.c
 *	  Whether a row is live, for code that only reads.
 *
 * HeapTupleSatisfiesVacuum sets hint bits, so code that must write nothing can't
 * call it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "storage/procarray.h"

#include "bloat/row_state.h"

/* row_state -- see row_state.h. */
RowState
row_state(HeapTupleHeader tuple, TransactionId oldest_xmin, bool *lacks_hints)
{
	uint16		infomask = tuple->t_infomask;
	TransactionId xmax;

	Assert(TransactionIdIsValid(oldest_xmin));

	if (!HeapTupleHeaderXminCommitted(tuple))
	{
		TransactionId xmin = HeapTupleHeaderGetRawXmin(tuple);

		*lacks_hints = true;
		if (HeapTupleHeaderXminInvalid(tuple))
			return ROW_DEAD;
		if (TransactionIdIsInProgress(xmin))
			return ROW_INSERTED;
		if (!TransactionIdDidCommit(xmin))
			return ROW_DEAD;
	}
	if ((infomask & HEAP_XMAX_INVALID) || HEAP_XMAX_IS_LOCKED_ONLY(infomask))
		return ROW_LIVE;

	xmax = HeapTupleHeaderGetUpdateXid(tuple);
	if ((infomask & HEAP_XMAX_IS_MULTI) || !(infomask & HEAP_XMAX_COMMITTED))
	{
		*lacks_hints |= (infomask & HEAP_XMAX_IS_MULTI) == 0;
		if (!TransactionIdIsValid(xmax))
			return ROW_LIVE;
		if (TransactionIdIsInProgress(xmax))
			return ROW_DELETED;
		if (!TransactionIdDidCommit(xmax))
			return ROW_LIVE;
	}
	return TransactionIdPrecedes(xmax, oldest_xmin) ? ROW_DEAD : ROW_HELD;
}
