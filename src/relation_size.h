/*-------------------------------------------------------------------------
 *
 * relation_size.h
 *	  The size of a relation, to plan by.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RELATION_SIZE_H
#define CYCLONE_RELATION_SIZE_H

#include "storage/block.h"
#include "utils/rel.h"

/* rel is open and locked.  0 if its file is missing, which is no error. */
extern BlockNumber relation_blocks(Relation rel);

#endif							/* CYCLONE_RELATION_SIZE_H */
