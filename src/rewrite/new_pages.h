/*-------------------------------------------------------------------------
 *
 * new_pages.h
 *	  Filling the pages of a new heap, in several processes at a time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEW_PAGES_H
#define CYCLONE_NEW_PAGES_H

#include "access/htup.h"
#include "access/xlogdefs.h"
#include "port/atomics.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

/* What those who fill the pages of a heap share */
typedef struct NewPagesShared
{
	/* changed under the lock on the extension of the heap */
	pg_atomic_uint32 nblocks;
	/* constant: where a checkpoint would have started from at the beginning */
	XLogRecPtr	redo;
} NewPagesShared;

/* One process's pages */
typedef struct NewPages NewPages;

extern void new_pages_init(NewPagesShared *shared);
extern NewPages *new_pages_begin(Relation rel, NewPagesShared *shared,
								 bool packs_tightly);
extern HeapTupleHeader new_pages_add(NewPages *pages, HeapTupleHeader tuple, Size len);
extern void new_pages_flush(NewPages *pages);
extern void new_pages_tid(const NewPages *pages, HeapTupleHeader tuple, ItemPointer tid);
extern bool new_pages_hand_over(NewPages *pages, Page leftover);
extern void new_pages_take_over(NewPages *pages, Page leftover);
extern void new_pages_end(NewPages *pages);
extern void new_pages_sync(Relation rel, const NewPagesShared *shared);

#endif							/* CYCLONE_NEW_PAGES_H */
