/*-------------------------------------------------------------------------
 *
 * table_vacuum.h
 *	  VACUUM of one table.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_VACUUM_H
#define CYCLONE_TABLE_VACUUM_H

#include "commands/vacuum.h"
#include "storage/buf.h"
#include "utils/rel.h"

#include "report/result.h"

/*
 * One VACUUM of several that compact a table, with rows being moved from its
 * end to its beginning between them.
 */
typedef struct CompactionPass
{
	/* no free space is offered from here on */
	BlockNumber tail_start;

	/*
	 * What it came to.  The first VACUUM with the pass skips no page, so that
	 * it has counted all rows.
	 */
	BlockNumber old_pages;
	BlockNumber new_pages;
	int64		live_tuples;
	int64		recently_dead_tuples;
	TransactionId oldest_xmin;	/* rows that were deleted before it are
								 * removed */
	BlockNumber nonempty_pages; /* the pages behind them are unused */
	int			nqueued;		/* times that sessions had to wait behind us
								 * to cut that off */
	BlockNumber step;			/* to cut off next, if it is more than usual */

	/* by all passes so far: row locks that were removed, see stale_lock.c */
	int64		stale_locks;
	/* by all passes so far: pages that were audited */
	int64		audited_pages;
} CompactionPass;

/*
 * The caller is in a transaction with a snapshot, and holds a ShareUpdateExclusiveLock on
 * rel.  strategy may be NULL.
 *
 * table_vacuum: it runs as the owner of rel, and has resolved params' index_cleanup and
 * truncate.  pass is NULL unless the table is being compacted.  *result, if it isn't
 * NULL, is what was done.
 *
 * table_truncate_step: it ends the transaction at once.
 */
extern void table_vacuum(Relation rel, const VacuumParams *params,
						 BufferAccessStrategy strategy, CompactionPass *pass,
						 TableResult *result);
extern bool table_truncate_step(Relation rel, BufferAccessStrategy strategy,
								CompactionPass *pass);

#endif							/* CYCLONE_TABLE_VACUUM_H */
