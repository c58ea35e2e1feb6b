/*-------------------------------------------------------------------------
 *
 * plain_index.h
 *	  Which indexes any process may build, at any time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PLAIN_INDEX_H
#define CYCLONE_PLAIN_INDEX_H

#include "utils/rel.h"

/*
 * The index is open and locked.  A plain index is also valid and in use, so nothing but
 * its content changes.
 */
extern bool index_is_plain(Relation index);

#endif							/* CYCLONE_PLAIN_INDEX_H */
