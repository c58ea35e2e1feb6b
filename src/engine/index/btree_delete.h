/*-------------------------------------------------------------------------
 *
 * btree_delete.h
 *	  Deletion of empty pages of btrees: routines of its IndexKind.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BTREE_DELETE_H
#define CYCLONE_BTREE_DELETE_H

#include "engine/index/index_kind.h"

/* See IndexKind for when they are called.  Members take turns at an index. */
extern bool btree_has_empty_pages(TableVacuum *vacuum, int number, bool wait);
extern void btree_delete_pages(TableVacuum *vacuum, int number, bool wait);

#endif							/* CYCLONE_BTREE_DELETE_H */
