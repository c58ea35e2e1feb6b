/*-------------------------------------------------------------------------
 *
 * page_change.h
 *	  Changes of a heap page that moves of rows consist of.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PAGE_CHANGE_H
#define CYCLONE_PAGE_CHANGE_H

#include "access/heaptoast.h"
#include "access/htup.h"
#include "storage/bufpage.h"
#include "storage/buf.h"
#include "utils/rel.h"

/* The room that a part of a value takes, of those that are cut into several */
#define TOAST_PART_SIZE		(MAXALIGN(EXTERN_TUPLE_MAX_SIZE) + sizeof(ItemIdData))

extern void page_check_header(Relation rel, Buffer buffer);
extern void page_check_items(Relation rel, Buffer buffer);
extern Size page_space_needed(Size row, Size reserve);
extern int	page_room(Page page, Size reserve, const HeapTuple *tuples, int ntuples,
					  bool *fits);
extern void page_put(Relation rel, Buffer buffer, Buffer vmbuffer,
					 HeapTuple *tuples, int ntuples);
extern void page_mark_moved(Relation rel, Buffer buffer, Buffer vmbuffer,
							TransactionId xid, CommandId cid, const OffsetNumber *offsets,
							HeapTuple *new_versions, int ntuples);

#endif							/* CYCLONE_PAGE_CHANGE_H */
