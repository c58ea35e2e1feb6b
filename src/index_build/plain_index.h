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

extern bool index_is_plain(Relation index);

#endif							/* CYCLONE_PLAIN_INDEX_H */
