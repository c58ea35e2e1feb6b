/*-------------------------------------------------------------------------
 *
 * tuple_fate.c
 *	  Which tuples of a table a rewrite takes along.
 *
 * The server's HeapTupleSatisfiesVacuum answers that, too, but sets hint bits.
 * These dirty pages that are about to be thrown away, and with checksums each such
 * page is logged in full.  Here the hints go into the copy of the tuple instead.
 *
 * That is easy to do right under an AccessExclusiveLock.  A transaction that
 * inserted, updated, deleted or locked a row had the table locked to its end, so all
 * such transactions have committed or aborted.  Unexpected states and multixacts are
 * left to the server's function.
 *
 * Hints may be set without asking whether the commit record that they tell of has
 * reached the disk.  The new pages count only when our own commit record has reached
 * it, and that record comes later.
 *
 * Builds with assertions ask the server about every tuple.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"

#include "rewrite/tuple_fate.h"

static TupleFate ask_server(Relation rel, HeapTuple tuple, Buffer buffer,
							TransactionId oldest_xmin, uint16 *infomask);
static bool is_settled(TransactionId xid);

/* tuple_fate -- decide about a tuple. */
TupleFate
tuple_fate(Relation rel, HeapTuple tuple, Buffer buffer,
		   TransactionId oldest_xmin, uint16 *infomask)
{
	HeapTupleHeader header = tuple->t_data;
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);
	TupleFate	fate;

	Assert(TransactionIdIsNormal(oldest_xmin));
	*infomask = header->t_infomask;

	if (!HeapTupleHeaderXminCommitted(header))
	{
		TransactionId xmin = HeapTupleHeaderGetRawXmin(header);

		if (HeapTupleHeaderXminInvalid(header))
			return TUPLE_DEAD;
		if ((*infomask & HEAP_MOVED) || !is_settled(xmin))
			return ask_server(rel, tuple, buffer, oldest_xmin, infomask);
		if (!TransactionIdDidCommit(xmin))
		{
			*infomask |= HEAP_XMIN_INVALID;
			return TUPLE_DEAD;
		}
		*infomask |= HEAP_XMIN_COMMITTED;
	}

	if (*infomask & HEAP_XMAX_INVALID)
		fate = TUPLE_LIVE;
	else if ((*infomask & HEAP_XMAX_IS_MULTI) ||
			 (!(*infomask & HEAP_XMAX_COMMITTED) && !is_settled(xmax)))
		return ask_server(rel, tuple, buffer, oldest_xmin, infomask);
	else if (HEAP_XMAX_IS_LOCKED_ONLY(*infomask))
	{
		if (!(*infomask & HEAP_XMAX_COMMITTED))
			*infomask |= HEAP_XMAX_INVALID;
		fate = TUPLE_LIVE;
	}
	else if (!(*infomask & HEAP_XMAX_COMMITTED) && !TransactionIdDidCommit(xmax))
	{
		*infomask |= HEAP_XMAX_INVALID;
		fate = TUPLE_LIVE;
	}
	else
	{
		*infomask |= HEAP_XMAX_COMMITTED;
		fate = TransactionIdPrecedes(xmax, oldest_xmin) ?
			TUPLE_DEAD : TUPLE_RECENTLY_DEAD;
	}

#ifdef USE_ASSERT_CHECKING
	{
		uint16		server_infomask = *infomask;

		Assert(ask_server(rel, tuple, buffer, oldest_xmin, &server_infomask) == fate);

		/*
		 * the server has fewer hints: it sets none about a commit that isn't
		 * on disk yet
		 */
		Assert((server_infomask & ~*infomask) == 0);
	}
#endif
	return fate;
}

/*
 * tuple_is_in_chain
 *		Is the tuple one end of a link between versions of a row?
 *
 * It is one if its deleter updated it and isn't old, or if it is the result of
 * such an update.  A dead tuple counts in the latter case: an old version that
 * isn't known to be dead may point at it.  A live tuple is no old version: if its
 * xmin is damaged, it may be live to the server in spite of its xmax.
 */
bool
tuple_is_in_chain(HeapTuple tuple, TupleFate fate, uint16 infomask,
				  TransactionId oldest_xmin)
{
	return tuple_is_newer_end(tuple->t_data, infomask, oldest_xmin) ||
		tuple_is_older_end(tuple, fate, infomask);
}

/*
 * tuple_is_newer_end
 *		Is the tuple the result of an update that isn't old?
 *
 * The answer must be the same each time, so it must not depend on which hints have
 * been set.  A running transaction is never old.
 */
bool
tuple_is_newer_end(HeapTupleHeader tuple, uint16 infomask, TransactionId oldest_xmin)
{
	uint16		xmin_hints = infomask & HEAP_XMIN_FROZEN;

	return (infomask & HEAP_UPDATED) &&
		xmin_hints != HEAP_XMIN_FROZEN && xmin_hints != HEAP_XMIN_INVALID &&
		!TransactionIdPrecedes(HeapTupleHeaderGetRawXmin(tuple), oldest_xmin);
}

/*
 * tuple_is_older_end
 *		Is the tuple recently dead, and does it point at a newer version?
 *
 * A tuple whose updater is no transaction is damaged, and heap_freeze_tuple says so.
 */
bool
tuple_is_older_end(HeapTuple tuple, TupleFate fate, uint16 infomask)
{
	HeapTupleHeader header = tuple->t_data;

	return fate == TUPLE_RECENTLY_DEAD && !(infomask & HEAP_XMAX_INVALID) &&
		!HEAP_XMAX_IS_LOCKED_ONLY(infomask) &&
		!HeapTupleHeaderIndicatesMovedPartitions(header) &&
		!ItemPointerEquals(&tuple->t_self, &header->t_ctid) &&
		!HeapTupleHeaderIsOnlyLocked(header) &&
		TransactionIdIsNormal(HeapTupleHeaderGetUpdateXid(header));
}

/*
 * ask_server
 *		Let the server decide.  It may set hint bits on the page.
 */
static TupleFate
ask_server(Relation rel, HeapTuple tuple, Buffer buffer,
		   TransactionId oldest_xmin, uint16 *infomask)
{
	HTSV_Result result = HeapTupleSatisfiesVacuum(tuple, oldest_xmin, buffer);

	/* it may not have been allowed to set a hint that we have set */
	*infomask = tuple->t_data->t_infomask | (*infomask & HEAP_XMIN_COMMITTED);
	switch (result)
	{
		case HEAPTUPLE_DEAD:
			return TUPLE_DEAD;
		case HEAPTUPLE_RECENTLY_DEAD:
			return TUPLE_RECENTLY_DEAD;
		case HEAPTUPLE_LIVE:
			return TUPLE_LIVE;
		case HEAPTUPLE_INSERT_IN_PROGRESS:
			if (!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
				elog(WARNING, "concurrent insert in progress within table \"%s\"",
					 RelationGetRelationName(rel));
			return TUPLE_LIVE;
		case HEAPTUPLE_DELETE_IN_PROGRESS:
			if (!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(tuple->t_data)))
				elog(WARNING, "concurrent delete in progress within table \"%s\"",
					 RelationGetRelationName(rel));
			return TUPLE_RECENTLY_DEAD;
	}
	elog(ERROR, "unexpected HeapTupleSatisfiesVacuum result");
}

/* is_settled -- has this transaction, other than ours, committed or aborted? */
static bool
is_settled(TransactionId xid)
{
	return !TransactionIdIsCurrentTransactionId(xid) && !TransactionIdIsInProgress(xid);
}
