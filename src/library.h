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

#include "postmaster/bgworker.h"

/* To be called once, in the postmaster, while the library is preloaded. */
extern void library_init(void);

/* The path under which background workers of ours find the library. */
extern const char *library_path(void);

/*
 * A background worker that runs a function of the library once, connected to databases;
 * it is named like its type.  The caller fills in what is its own, and registers it.
 */
extern BackgroundWorker library_worker(const char *type, const char *function);

/*
 * For a worker of the kind, when it is connected: set what settings of the file, a role or
 * the database must not change.
 */
extern void library_worker_settings(void);

/*
 * Raise an error if the library wasn't preloaded.  Each function that SQL calls, and
 * each entry of a worker, begins with that.
 */
extern void refuse_without_preloading(void);

#endif							/* CYCLONE_LIBRARY_H */
