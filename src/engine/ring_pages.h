/*-------------------------------------------------------------------------
 *
 * ring_pages.h
 *	  Pages that a process has vacuumed in its ring, written several at a time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RING_PAGES_H
#define CYCLONE_RING_PAGES_H

#include "storage/buf.h"
#include "utils/rel.h"

/* What one process has vacuumed in its ring, and not written yet; in the memory context of ring_pages_begin */
typedef struct RingPages RingPages;

/*
 * Prepare to read with a ring of this many buffers.  NULL, for which
 * ring_pages_visited does nothing, if the ring is too small, or the server can't do
 * this.
 */
extern RingPages *ring_pages_begin(int ring_nbuffers);

/*
 * A page of a relation's main fork has been visited, in a read stream with the ring.
 * To be called in the order of the visits, with no page locked, outside of the
 * stream's callback.  May write pages to disk, and flush WAL for that; an error that
 * comes of it leaves no lock or pin behind once the transaction has been aborted.
 */
extern void ring_pages_visited(RingPages *ring, Relation rel, BlockNumber blkno, Buffer buffer);

#endif							/* CYCLONE_RING_PAGES_H */
