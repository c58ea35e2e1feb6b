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

/*
 * Begin the result of a function that returns a set of rows.  The caller puts rows into
 * setResult of its ReturnSetInfo, described by setDesc.  Raises an error if the function
 * is declared with another number of columns.
 */
extern void declared_rows_begin(FunctionCallInfo fcinfo, int columns);

/* Describe the one row that a function returns.  Raises the same error. */
extern TupleDesc declared_rows_describe(FunctionCallInfo fcinfo, int columns);

#endif							/* CYCLONE_DECLARED_ROWS_H */
