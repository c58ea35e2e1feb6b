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
	TUPLE_RECENTLY_DEAD,		/* copy it: a snapshot may still see it */
	TUPLE_LIVE,
} TupleFate;

/*
 * tuple_fate decides about a tuple on a page of rel, whose buffer is pinned and locked
 * in share mode.  rel is locked exclusively.  *infomask becomes the tuple's t_infomask
 * with all hints set.  Warns, as the server does, if the tuple's transaction is still
 * running.
 *
 * tuple_is_in_chain: is the tuple one end of a link, from an old version of a row to a
 * newer one, that must survive the rewrite?  Then its place in the new table, or what
 * it points at, depends on other tuples.  fate and infomask are what tuple_fate said.
 */
extern TupleFate tuple_fate(Relation rel, HeapTuple tuple, Buffer buffer,
							TransactionId oldest_xmin, uint16 *infomask);
extern bool tuple_is_in_chain(HeapTuple tuple, TupleFate fate, uint16 infomask,
							  TransactionId oldest_xmin);
extern bool tuple_is_newer_end(HeapTupleHeader tuple, uint16 infomask,
							   TransactionId oldest_xmin);
extern bool tuple_is_older_end(HeapTuple tuple, TupleFate fate, uint16 infomask);

#endif							/* CYCLONE_TUPLE_FATE_H */
