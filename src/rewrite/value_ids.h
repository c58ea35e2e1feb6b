/*-------------------------------------------------------------------------
 *
 * value_ids.h
 *	  Which values in the TOAST table the rows of the new table point at.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_VALUE_IDS_H
#define CYCLONE_VALUE_IDS_H

#include "storage/block.h"

typedef struct ValueIds ValueIds;

/*
 * value_ids_size is for a TOAST table of that many blocks, and value_ids_init is called
 * in shared memory of that size, while maintenance_work_mem is the same.  Any member
 * may note ids at any time.  value_ids_include is asked when all are noted: it is true
 * of each id that was noted, and perhaps of others.
 */
extern Size value_ids_size(BlockNumber toast_blocks);
extern void value_ids_init(ValueIds *ids, BlockNumber toast_blocks);
extern void value_ids_note(ValueIds *ids, Oid value_id);
extern bool value_ids_include(ValueIds *ids, Oid value_id);

#endif							/* CYCLONE_VALUE_IDS_H */
