/*-------------------------------------------------------------------------
 *
 * declared_rows.h
 *	  Do SQL functions return rows as they are declared?
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DECLARED_ROWS_H
#define CYCLONE_DECLARED_ROWS_H

#include "access/tupdesc.h"
#include "fmgr.h"

extern void begin_rows(FunctionCallInfo fcinfo, int columns);
extern TupleDesc row_description(FunctionCallInfo fcinfo, int columns);

#endif							/* CYCLONE_DECLARED_ROWS_H */
