/*-------------------------------------------------------------------------
 *
 * server_rules.h
 *	  Numbers by which PostgreSQL's VACUUM, the engine and a dry run decide.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SERVER_RULES_H
#define CYCLONE_SERVER_RULES_H

#include "storage/block.h"

/* Runs of at least this number of blocks that needn't be looked at are skipped. */
#define SKIP_RUN_BLOCKS			((BlockNumber) 32)

/* Dead items stay if they are on less than this of a table's pages, and take less memory. */
#define BYPASS_PAGES_FRACTION	0.02
#define BYPASS_STORE_BYTES		((Size) 32 * 1024 * 1024)

#endif							/* CYCLONE_SERVER_RULES_H */
