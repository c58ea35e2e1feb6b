/*-------------------------------------------------------------------------
 *
 * index_copy.h
 *	  A copy of an index, in the catalogs, that takes its place.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_INDEX_COPY_H
#define CYCLONE_INDEX_COPY_H

#include "storage/relfilelocator.h"
#include "utils/relcache.h"

#include "others.h"

/* An index and its copy */
typedef struct IndexCopy
{
	Oid			table;
	Oid			index;
	RelFileNumber index_file;	/* the index's, when the copy was made */
	Oid			copy;
} IndexCopy;

/*
 * All of these are for use in a transaction with a snapshot, under a
 * ShareUpdateExclusiveLock on the table.  None waits for a lock that a user's
 * transaction may hold.
 */

/* Make an empty copy of an index.  Returns false if it is locked by others. */
extern bool index_copy_create(IndexCopy *copy, Relation rel, Oid index);

/*
 * Fill it.  From the commit on, all sessions that write to the table maintain it.  Raises an
 * error, as REINDEX does, if there are duplicates under a unique index.  Returns how many pages
 * were audited, which are those of btrees that we build ourselves.
 */
extern int64 index_copy_build(const IndexCopy *copy);

/* Add the rows of transactions that didn't maintain it, and that the active snapshot sees. */
extern void index_copy_validate(const IndexCopy *copy);

/*
 * Tell standbys that no snapshot may need any more what it lacks, which is so on this
 * server.  The copy has what XIDs from this one on have deleted.  To be done before it takes
 * the index's place.
 */
extern void index_copy_end_snapshots_on_standbys(const IndexCopy *copy, TransactionId unseen_xid);

/*
 * Let it take the index's place, under an AccessExclusiveLock on the table, and drop
 * it with the old file.  Returns false, and changes nothing, if others have one of the
 * two locked, or have changed the index.  To be committed at once.
 */
extern bool index_copy_swap(const IndexCopy *copy);

/*
 * The copies of a table's indexes that are left over, and that nobody has made use of since;
 * in the present context.  Without a table, those of the whole database.
 */
extern List *index_copies_of(Oid table);

/*
 * These two are for use outside of any transaction, with the table not locked.
 *
 * Have no session maintain a copy any more, unless it has become valid; false if the table
 * can't be locked.  Then wait for those who may still have it open, for so many ms at most.
 */
extern bool index_copy_retire(Oid table, Oid copy);
extern OthersEnd index_copy_wait_for_users(Oid table, int patience_ms);

/*
 * Drop a copy that is dead, when all transactions have ended that had the table locked at
 * the commit; or one that has become valid.  Takes the lock on the table itself, which is
 * an AccessExclusiveLock in the latter case.  Returns false if it doesn't get that, or if
 * the copy is neither.  *dropped is the name of what it has dropped; NULL if the copy was
 * gone, or somebody's own.
 */
extern bool index_copy_drop(Oid table, Oid copy, char **dropped);

/*
 * If a session waits for the table, drop a dead copy now, unless another one has the table
 * locked, and so may have the copy open.  Returns whether it is dropped.
 */
extern bool index_copy_drop_for_waiter(Oid table, Oid copy);

#endif							/* CYCLONE_INDEX_COPY_H */
