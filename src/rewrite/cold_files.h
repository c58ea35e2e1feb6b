/*-------------------------------------------------------------------------
 *
 * cold_files.h
 *	  New files that are not to stay in the page cache of the operating system.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COLD_FILES_H
#define CYCLONE_COLD_FILES_H

#include "nodes/pg_list.h"
#include "utils/rel.h"

/*
 * cold_files_list returns which of a table, its TOAST table and the indexes of both are
 * not in the page cache, before they get new files, and cold_files_drop has the system
 * drop those.  Both are called by the leader, in the transaction that has the table
 * locked, and serve interrupts.
 */
extern List *cold_files_list(Relation rel);
extern void cold_files_drop(List *relids);

#endif							/* CYCLONE_COLD_FILES_H */
