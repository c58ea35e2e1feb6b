/*-------------------------------------------------------------------------
 *
 * row_state.h
 *	  Whether a row is live, for code that only reads.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_ROW_STATE_H
#define CYCLONE_ROW_STATE_H

#include "access/htup.h"

typedef enum RowState
{
	ROW_NONE,					/* no row in this item, or no longer */
	ROW_LIVE,
	ROW_INSERTED,				/* by a running transaction, perhaps ours */
	ROW_DELETED,				/* likewise */
	ROW_HELD,					/* dead, but a snapshot may see it */
	ROW_DEAD,
} RowState;

/*
 * Return what HeapTupleSatisfiesVacuum would say, and set no hint bit.  *lacks_hints
 * becomes true if the server's routine would have set one.  The page must be locked,
 * so that VACUUM can't freeze the row's transactions meanwhile and then let the commit
 * log forget them.
 */
extern RowState row_state(HeapTupleHeader tuple, TransactionId oldest_xmin, bool *lacks_hints);

#endif							/* CYCLONE_ROW_STATE_H */
