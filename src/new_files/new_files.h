/*-------------------------------------------------------------------------
 *
 * new_files.h
 *	  The files that a VACUUM FULL creates are noted, in case of a crash.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEW_FILES_H
#define CYCLONE_NEW_FILES_H

#include "utils/rel.h"

/*
 * new_files_begin begins a journal for a rewrite of this table, before files are
 * created, in a transaction of the table's own that can't be prepared.  It raises an
 * error if the journal can't be written.  The journal ends with the transaction.
 * Files are noted as they are created.  It warns once if that fails.
 *
 * new_files_sync makes the journal durable, with all that is noted later: from then
 * on files are filled.
 */
extern void new_files_begin(Relation rel);
extern void new_files_sync(void);

#endif							/* CYCLONE_NEW_FILES_H */
