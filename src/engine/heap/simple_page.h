/*-------------------------------------------------------------------------
 *
 * simple_page.h
 *	  Pruning and freezing pages that are simple.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SIMPLE_PAGE_H
#define CYCLONE_SIMPLE_PAGE_H

#include "access/heapam.h"

#include "compat.h"
#include "engine/state.h"

/*
 * The caller holds a cleanup lock, has the page's items counted, and has its part of the
 * visibility map pinned.  False: nothing is changed.
 */
extern bool simple_page_prune(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer,
							  PruneResult *result);

#endif							/* CYCLONE_SIMPLE_PAGE_H */
