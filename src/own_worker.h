/*-------------------------------------------------------------------------
 *
 * own_worker.h
 *	  Background workers of ours.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_OWN_WORKER_H
#define CYCLONE_OWN_WORKER_H

#include "catalog/pg_database.h"
#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"

/*
 * A worker that starts by itself.  is_due is called at the end of each transaction that
 * commits: it must be cheap, take no lock and raise no error.
 */
typedef struct OwnWorkerDuty
{
	const char *type;
	const char *function;
	bool		(*is_due) (void);
} OwnWorkerDuty;

/*
 * own_worker_when_due is for the time while the library is preloaded; duty stays.
 * own_worker_not_before sets when such a worker may come again; any process may call it.
 */
extern void own_worker_init(void);
extern void own_worker_shmem_request(void);
extern void own_worker_shmem_init(void);
extern void own_worker_when_due(const OwnWorkerDuty *duty);
extern void own_worker_not_before(const OwnWorkerDuty *duty, int ms);

/*
 * own_worker describes a worker that runs a function of the library once, connected to
 * databases, and is named like its type.  The caller fills in what is its own.
 * own_worker_start registers it; without a place for it that goes to the log, and the
 * result is false.
 */
extern BackgroundWorker own_worker(const char *type, const char *function);
extern bool own_worker_start(BackgroundWorker *worker, BackgroundWorkerHandle **handle);

/*
 * For the worker itself.  own_worker_begin lets signals in, connects it to a database, or
 * to none, and sets what settings of the file, a role or the database must not change.
 */
extern void own_worker_begin(Oid database, uint32 flags);

/*
 * The databases that a walk over all of them comes to, in the order of their OIDs; all if
 * is_wanted is NULL.  In a transaction of its own; the list is the caller's memory.
 */
extern List *own_worker_databases(bool (*is_wanted) (Form_pg_database database));

#endif							/* CYCLONE_OWN_WORKER_H */
