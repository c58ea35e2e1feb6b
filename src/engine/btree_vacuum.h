/*-------------------------------------------------------------------------
 *
 * btree_vacuum.h
 *	  Bulk deletion in btrees, by any number of processes in one index.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BTREE_VACUUM_H
#define CYCLONE_BTREE_VACUUM_H

#include "access/genam.h"

#include "engine/phases.h"

extern void btree_setup(IndexShared *shared);
extern bool btree_is_ours(Relation index);
extern void btree_begin(Relation index, IndexShared *shared, int nmembers);
extern BlockNumber btree_vacuum(TableVacuum *vacuum, Relation index,
								IndexShared *shared, BlockList *put_off,
								BlockList *empty_pages);
extern void btree_do_duties(TableVacuum *vacuum, Relation index,
							IndexShared *shared, BlockList *put_off,
							BlockList *empty_pages);
extern void btree_delete_pages(TableVacuum *vacuum, Relation index,
							   IndexShared *shared, BlockList *empty_pages, bool wait);
extern void btree_finish(Relation index, IndexShared *shared);

#endif							/* CYCLONE_BTREE_VACUUM_H */
