/*-------------------------------------------------------------------------
 *
 * tuple_fate.h
 *	  Which tuples of a table a rewrite takes along.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TUPLE_FATE_H
#define CYCLONE_TUPLE_FATE_H

#include "access/htup.h"
#include "storage/buf.h"
#include "utils/rel.h"

/* What a rewrite does with a tuple */
typedef enum TupleFate
{
	TUPLE_DEAD,					/* leave it behind */
	TUPLE_RECENTLY_DEAD,		/* take it along: a snapshot may still see it */
	TUPLE_LIVE,
} TupleFate;

extern TupleFate tuple_fate(Relation rel, HeapTuple tuple, Buffer buffer,
							TransactionId oldest_xmin, uint16 *infomask);
extern bool tuple_is_in_chain(HeapTuple tuple, TupleFate fate, uint16 infomask,
							  TransactionId oldest_xmin);
extern bool tuple_is_newer_end(HeapTupleHeader tuple, uint16 infomask,
							   TransactionId oldest_xmin);
extern bool tuple_is_older_end(HeapTuple tuple, TupleFate fate, uint16 infomask);

#endif							/* CYCLONE_TUPLE_FATE_H */
