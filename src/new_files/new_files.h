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

extern void new_files_begin(Relation rel);
extern void new_files_note(void);
extern void new_files_sync(void);
extern void new_files_enter_subtransaction(void);
extern void new_files_leave_subtransaction(bool committed);

#endif							/* CYCLONE_NEW_FILES_H */
