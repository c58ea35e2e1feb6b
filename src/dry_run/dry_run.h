/*-------------------------------------------------------------------------
 *
 * dry_run.h
 *	  What a VACUUM would do, without doing it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DRY_RUN_H
#define CYCLONE_DRY_RUN_H

#include "command/options.h"

extern void dry_run_statement(const VacuumStmt *stmt, const VacuumOptions *options);

#endif							/* CYCLONE_DRY_RUN_H */
