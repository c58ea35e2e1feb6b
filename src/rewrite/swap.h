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

extern void swap_files(Oid relid, Oid new_relid, TransactionId frozenxid, MultiXactId minmulti);
extern void swap_finish(Oid relid, Oid new_relid);

#endif							/* CYCLONE_SWAP_H */
