/*-------------------------------------------------------------------------
 *
 * pending_lists.c
 *	  Emptying the pending lists of GIN indexes between two batches of moved rows.
 *
 * With fastupdate an entry comes into a pending list, and the session that makes the list
 * too long brings all of it to where it belongs.  That takes a second, by default.  If a
 * batch did it, others would wait that long for its rows.  So it is done before a batch,
 * when no session waits, and while the list has room for what a batch may add.
 *
 * It has a transaction of its own, which holds no horizon back.  A batch's transaction is
 * serializable, and would be in conflict with those that have read a page of the index,
 * although these entries are none of its own.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/gin.h"
#include "access/gin_private.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "storage/bufpage.h"

#include "debug_point.h"
#include "inplace/inplace.h"
#include "inplace/move_batch.h"
#include "transaction.h"

/* This fraction of its limit may be in a list before a batch. */
#define LONG_FRACTION	8

static bool list_is_long(Relation index);

/* pending_lists_are_long -- is one of a table's so long that a batch may make it too long? */
bool
pending_lists_are_long(const IndexEntries *entries)
{
	Assert(IsTransactionState());

	for (int i = 0; i < entries->nindexes; i++)
		if (list_is_long(entries->indexes[i]))
			return true;
	return false;
}

/* list_is_long -- the same for an index; not if it has none, or none that we add to. */
static bool
list_is_long(Relation index)
{
	GinStatsData stats;

	if (index->rd_rel->relam != GIN_AM_OID || !GinGetUseFastUpdate(index))
		return false;
	ginGetStats(index, &stats);
	return (Size) stats.nPendingPages * BLCKSZ >
		GinGetPendingListCleanupSize(index) * (Size) 1024 / LONG_FRACTION;
}

/*
 * pending_lists_empty
 *		Empty those that are long, in a transaction of its own.
 *
 * The pace is kept.  A list that another session is emptying is left to that session,
 * which may wait for us: if we waited for it, that would be a deadlock.
 */
void
pending_lists_empty(Inplace *job)
{
	Relation	rel;
	Relation   *indexes;
	int			nindexes;
	SavedUser	saved;

	Assert(!IsTransactionState());

	transaction_begin(false);
	rel = table_open(job->relid, RowExclusiveLock);
	become_owner(rel, &saved);
	pace_write_steadily();
	vac_open_indexes(rel, RowExclusiveLock, &nindexes, &indexes);
	pace_begin_server_code();
	DEBUG_POINT("inplace-lists");
	for (int i = 0; i < nindexes; i++)
	{
		GinState	state;

		if (!list_is_long(indexes[i]))
			continue;
		initGinState(&state, indexes[i]);
		ginInsertCleanup(&state, false, true, false, NULL);
	}
	pace_end_server_code();
	vac_close_indexes(nindexes, indexes, NoLock);
	become_user_again(&saved);
	table_close(rel, NoLock);
	transaction_end();
}
