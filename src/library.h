/*-------------------------------------------------------------------------
 *
 * library.h
 *	  The file of this library, and whether it was loaded in time.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LIBRARY_H
#define CYCLONE_LIBRARY_H

#include "fmgr.h"

/* To be called once, in the postmaster, while the library is preloaded. */
extern void library_init(void);

/* The path under which background workers of ours find the library. */
extern const char *library_path(void);

/* Warn if another file is there now than the one that the server was started with. */
extern void library_warn_if_replaced(void);

/*
 * Raise an error if the library wasn't preloaded.  Each function that SQL calls, and
 * each entry of a worker, begins with that.
 */
extern void refuse_without_preloading(void);

/*
 * Begin the result of a function that returns a set of rows.  The caller puts rows into
 * setResult of its ReturnSetInfo, described by setDesc.  Raises an error if the function
 * is declared with another number of columns.
 */
extern void library_begin_rows(FunctionCallInfo fcinfo, int columns);

/*
 * May this role see what a session of that user does?  By the rule of pg_stat_activity;
 * InvalidOid is autovacuum.
 */
extern bool library_may_see(Oid viewer, Oid user);

#endif							/* CYCLONE_LIBRARY_H */
