/*-------------------------------------------------------------------------
 *
 * swap.h
 *	  Giving a table the files of its rewritten copy.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SWAP_H
#define CYCLONE_SWAP_H

#include "access/multixact.h"
#include "access/transam.h"

/*
 * swap_files is for a table and its copy, or for two indexes.  Both are locked
 * exclusively, and not open.  frozenxid and minmulti are those of the new files, invalid
 * for indexes.  A table's own indexes still belong to its old files: until they are
 * built anew no query may read it, not even one of our own.  swap_finish drops a table's
 * copy afterwards.
 */
extern void swap_files(Oid relid, Oid new_relid, TransactionId frozenxid, MultiXactId minmulti);
extern void swap_finish(Oid relid, Oid new_relid);

#endif							/* CYCLONE_SWAP_H */
