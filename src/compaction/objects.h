/*-------------------------------------------------------------------------
 *
 * objects.h
 *	  Statements of compaction's workers on the extension's objects.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_OBJECTS_H
#define CYCLONE_OBJECTS_H

/*
 * How long a worker tries to lock them.  What a run came to is worth a longer wait, as it
 * counts as killed if that can't be noted.  But other databases wait meanwhile.
 */
#define OBJECTS_SOON_MS		5000
#define OBJECTS_LATE_MS		60000

/*
 * objects_begin must be called outside of a transaction, and ends the process if the objects
 * are gone, or can't be locked in that time.  objects_end commits.  objects_run_sql raises the
 * errors of the statement, whose result is SPI's; its nulls may be NULL.
 */
extern void objects_begin(int patience_ms);
extern void objects_run_sql(const char *sql, int nargs, Oid *types, Datum *values,
							const char *nulls);
extern void objects_end(void);

#endif							/* CYCLONE_OBJECTS_H */
