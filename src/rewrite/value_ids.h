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

extern Size value_ids_size(BlockNumber toast_blocks);
extern void value_ids_init(ValueIds *ids, BlockNumber toast_blocks);
extern void value_ids_note(ValueIds *ids, Oid value_id);
extern bool value_ids_include(ValueIds *ids, Oid value_id);

#endif							/* CYCLONE_VALUE_IDS_H */
