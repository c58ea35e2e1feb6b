/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the server versions we run on.
 *
 * The only file that looks at PG_VERSION_NUM.  Everything else is written
 * for the newest supported server and calls the functions below where an
 * older one has another signature, another text or lacks the feature.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPAT_H
#define CYCLONE_COMPAT_H

#include "access/genam.h"
#include "access/heapam_xlog.h"
#include "access/parallel.h"
#include "access/stratnum.h"
#include "access/visibilitymap.h"
#include "access/xloginsert.h"
#include "catalog/pg_am_d.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "common/relpath.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "postmaster/autovacuum.h"
#include "utils/backend_status.h"
#include "utils/injection_point.h"
#include "utils/rel.h"
#include "utils/sortsupport.h"

#if PG_VERSION_NUM < 170000 || PG_VERSION_NUM >= 190000
#error "pg_cyclone supports PostgreSQL 17 and 18"
#endif

/* The server that we are being built against, as in server_version_num */
#define COMPAT_BUILT_FOR	PG_VERSION_NUM

#ifdef USE_ASSERT_CHECKING
/* compat_is_locked -- have we a lock on this page, of any kind? */
static inline bool
compat_is_locked(Buffer buffer)
{
	/* those of temporary tables need none */
	return BufferIsLocal(buffer) ||
		LWLockHeldByMe(BufferDescriptorGetContentLock(GetBufferDescriptor(buffer - 1)));
}
#endif

#if PG_VERSION_NUM >= 180000

/* VACUUM of a plain inheritance parent also processes its children. */
#define COMPAT_VACUUM_RECURSES_INHERITANCE true
/* The report has lines for eager scanning and the visibility map. */
#define COMPAT_REPORT_VISIBILITY_MAP true
/* What the report calls a page that was not in shared buffers. */
#define COMPAT_REPORT_READS "reads"
/* For read streams whose callback takes no lock and does no I/O. */
#define COMPAT_READ_STREAM_BATCHING READ_STREAM_USE_BATCHING

/* What an ExecutorRun hook gets, and passes on. */
#define COMPAT_EXECUTOR_RUN_PARAMS \
	QueryDesc *query, ScanDirection direction, uint64 count
#define COMPAT_EXECUTOR_RUN_ARGUMENTS query, direction, count

typedef int64 compat_query_id;

/* Sets visibility-map bits; returns those that were set before. */
static inline uint8
compat_visibilitymap_set(Relation rel, BlockNumber blkno, Buffer buffer,
						 Buffer vmbuffer, TransactionId conflict_xid,
						 uint8 flags)
{
	return visibilitymap_set(rel, blkno, buffer, InvalidXLogRecPtr, vmbuffer,
							 conflict_xid, flags);
}

static inline void
compat_vac_update_relstats(Relation rel, BlockNumber pages, double tuples,
						   BlockNumber allvisible, BlockNumber allfrozen,
						   bool hasindex,
						   TransactionId frozenxid, MultiXactId minmulti,
						   bool *frozenxid_updated, bool *minmulti_updated,
						   bool in_outer_xact)
{
	vac_update_relstats(rel, pages, tuples, allvisible, allfrozen, hasindex,
						frozenxid, minmulti,
						frozenxid_updated, minmulti_updated, in_outer_xact);
}

static inline void
compat_pgstat_report_vacuum(Relation rel, PgStat_Counter live,
							PgStat_Counter dead, TimestampTz starttime)
{
	pgstat_report_vacuum(RelationGetRelid(rel), rel->rd_rel->relisshared,
						 live, dead, starttime);
}

/* Gives a relation's row in pg_class what another's row has. */
static inline void
compat_copy_relallfrozen(Form_pg_class form, Form_pg_class other)
{
	form->relallfrozen = other->relallfrozen;
}

/* Does the table get the number of rows that was counted for an index? */
static inline bool
compat_index_build_counts_rows(Relation rel)
{
	const StdRdOptions *opts = (const StdRdOptions *) rel->rd_options;

	return AutoVacuumingActive() && (opts == NULL || opts->autovacuum.enabled);
}

/* The share of a region's pages that eager scanning may fail to freeze. */
static inline void
compat_set_eager_failure_rate(VacuumParams *params)
{
	params->max_eager_freeze_failure_rate = vacuum_max_eager_freeze_failure_rate;
}

static inline void
compat_apply_eager_reloption(VacuumParams *params, const StdRdOptions *opts)
{
	if (opts && opts->vacuum_max_eager_freeze_failure_rate >= 0)
		params->max_eager_freeze_failure_rate =
			opts->vacuum_max_eager_freeze_failure_rate;
}

static inline double
compat_eager_failure_rate(const VacuumParams *params)
{
	return params->max_eager_freeze_failure_rate;
}

/* May VACUUM truncate a table, where the command doesn't say? */
static inline bool
compat_truncate_default(const StdRdOptions *opts)
{
	if (opts && opts->vacuum_truncate_set)
		return opts->vacuum_truncate;
	return vacuum_truncate;
}

/* Milliseconds this vacuum slept, -1 if that isn't measured. */
static inline double
compat_delay_time_ms(void)
{
	if (!track_cost_delay_timing)
		return -1;
	return (double) MyBEEntry->st_progress_param[PROGRESS_VACUUM_DELAY_TIME] / 1000000.0;
}

/*
 * Reports that this process has slept.  A worker does so now and then only:
 * it takes a message to the leader.
 */
static inline void
compat_report_delay(uint64 ns)
{
	if (!track_cost_delay_timing)
		return;
	if (!IsParallelWorker())
		pgstat_progress_incr_param(PROGRESS_VACUUM_DELAY_TIME, ns);
	else if ((parallel_vacuum_worker_delay_ns += ns) >= NS_PER_S)
	{
		pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_DELAY_TIME,
											parallel_vacuum_worker_delay_ns);
		parallel_vacuum_worker_delay_ns = 0;
	}
}

/* A worker tells the leader what it slept since its last message. */
static inline void
compat_flush_worker_delay(void)
{
	if (track_cost_delay_timing)
		pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_DELAY_TIME,
											parallel_vacuum_worker_delay_ns);
	parallel_vacuum_worker_delay_ns = 0;
}

static inline int64
compat_wal_buffers_full(const WalUsage *usage)
{
	return usage->wal_buffers_full;
}

/* Clears the page counters of VACUUM that older servers kept. */
static inline void
compat_reset_page_counters(void)
{
}

/* The path of a relation's file, if it isn't a temporary one. */
static inline char *
compat_relation_path(RelFileLocator file, ForkNumber fork)
{
	return pstrdup(relpathperm(file, fork).str);
}

/* Runs an injection point, in server builds that have them. */
static inline void
compat_injection_point(const char *name)
{
	INJECTION_POINT(name, NULL);
}

/* Prepares to compare keys of an index whose order it is, or the reverse of it. */
static inline void
compat_prepare_sort_support(Relation index, bool reverse, SortSupport support)
{
	PrepareSortSupportFromIndexRel(index, reverse, support);
}

static inline IndexScanDesc
compat_index_beginscan(Relation rel, Relation index, Snapshot snapshot, int nkeys)
{
	return index_beginscan(rel, index, snapshot, NULL, nkeys, 0);
}

/* Makes a description of some btree. */
static inline IndexInfo *
compat_make_index_info(void)
{
	return makeIndexInfo(1, 1, BTREE_AM_OID, NIL, NIL, false, false, true, false, false, false);
}

#else							/* PostgreSQL 17 */

#define COMPAT_VACUUM_RECURSES_INHERITANCE false
#define COMPAT_REPORT_VISIBILITY_MAP false
#define COMPAT_REPORT_READS "misses"
#define COMPAT_READ_STREAM_BATCHING 0

#define COMPAT_EXECUTOR_RUN_PARAMS \
	QueryDesc *query, ScanDirection direction, uint64 count, bool execute_once
#define COMPAT_EXECUTOR_RUN_ARGUMENTS query, direction, count, execute_once

typedef uint64 compat_query_id;

static inline IndexScanDesc
compat_index_beginscan(Relation rel, Relation index, Snapshot snapshot, int nkeys)
{
	return index_beginscan(rel, index, snapshot, nkeys, 0);
}

static inline IndexInfo *
compat_make_index_info(void)
{
	return makeIndexInfo(1, 1, BTREE_AM_OID, NIL, NIL, false, false, true, false, false);
}

static inline uint8
compat_visibilitymap_set(Relation rel, BlockNumber blkno, Buffer buffer,
						 Buffer vmbuffer, TransactionId conflict_xid,
						 uint8 flags)
{
	uint8		old = visibilitymap_get_status(rel, blkno, &vmbuffer);

	visibilitymap_set(rel, blkno, buffer, InvalidXLogRecPtr, vmbuffer,
					  conflict_xid, flags);
	return old;
}

static inline void
compat_vac_update_relstats(Relation rel, BlockNumber pages, double tuples,
						   BlockNumber allvisible, BlockNumber allfrozen,
						   bool hasindex,
						   TransactionId frozenxid, MultiXactId minmulti,
						   bool *frozenxid_updated, bool *minmulti_updated,
						   bool in_outer_xact)
{
	vac_update_relstats(rel, pages, tuples, allvisible, hasindex,
						frozenxid, minmulti,
						frozenxid_updated, minmulti_updated, in_outer_xact);
}

static inline void
compat_pgstat_report_vacuum(Relation rel, PgStat_Counter live,
							PgStat_Counter dead, TimestampTz starttime)
{
	pgstat_report_vacuum(RelationGetRelid(rel), rel->rd_rel->relisshared,
						 live, dead);
}

static inline void
compat_copy_relallfrozen(Form_pg_class form, Form_pg_class other)
{
}

static inline bool
compat_index_build_counts_rows(Relation rel)
{
	return true;
}

static inline void
compat_set_eager_failure_rate(VacuumParams *params)
{
}

static inline void
compat_apply_eager_reloption(VacuumParams *params, const StdRdOptions *opts)
{
}

static inline double
compat_eager_failure_rate(const VacuumParams *params)
{
	return 0;
}

static inline bool
compat_truncate_default(const StdRdOptions *opts)
{
	return opts == NULL || opts->vacuum_truncate;
}

static inline double
compat_delay_time_ms(void)
{
	return -1;
}

static inline void
compat_report_delay(uint64 ns)
{
}

static inline void
compat_flush_worker_delay(void)
{
}

static inline int64
compat_wal_buffers_full(const WalUsage *usage)
{
	return -1;
}

static inline void
compat_reset_page_counters(void)
{
	VacuumPageHit = 0;
	VacuumPageMiss = 0;
	VacuumPageDirty = 0;
}

static inline char *
compat_relation_path(RelFileLocator file, ForkNumber fork)
{
	return relpathperm(file, fork);
}

static inline void
compat_injection_point(const char *name)
{
	INJECTION_POINT(name);
}

static inline void
compat_prepare_sort_support(Relation index, bool reverse, SortSupport support)
{
	PrepareSortSupportFromIndexRel(index, reverse ? BTGreaterStrategyNumber : BTLessStrategyNumber, support);
}

#endif							/* PG_VERSION_NUM */

/*
 * For assertions: may this process change the page?  Nobody locks local
 * buffers, of which 17 says that they aren't locked.
 */
static inline bool
compat_buffer_is_locked(Buffer buffer)
{
	return BufferIsLocal(buffer) || BufferIsExclusiveLocked(buffer);
}

/*
 * Taking a heap page's bits out of the visibility map, in a critical section,
 * as part of a WAL record on that page.  Since the minor versions of August 2026 such a
 * record names the map's page, too, which stays locked until it is written.
 *
 * A server that does so has this function.  As a weak symbol it doesn't keep
 * the library from being loaded into one that hasn't, to tell of that.
 */
extern bool visibilitymap_clear_locked(Relation rel, BlockNumber heapBlk,
									   Buffer vmbuf, uint8 flags);
#pragma weak visibilitymap_clear_locked

/* Does the server that runs log it so?  COMPAT_LOGS_MAP says whether we do. */
static inline bool
compat_server_logs_map(void)
{
	return visibilitymap_clear_locked != NULL;
}

#ifdef HEAP_MULTI_INSERT_BLKREF_VM

#define COMPAT_LOGS_MAP true

static inline void
compat_lock_map(Buffer vmbuffer)
{
	LockBuffer(vmbuffer, BUFFER_LOCK_EXCLUSIVE);
}

static inline void
compat_unlock_map(Buffer vmbuffer)
{
	LockBuffer(vmbuffer, BUFFER_LOCK_UNLOCK);
}

/* Returns whether the map's page is to be registered, and to get the LSN. */
static inline bool
compat_clear_map(Relation rel, BlockNumber blkno, Buffer vmbuffer)
{
	return visibilitymap_clear_locked(rel, blkno, vmbuffer, VISIBILITYMAP_VALID_BITS);
}

static inline void
compat_register_map(Buffer vmbuffer)
{
	XLogRegisterBuffer(HEAP_MULTI_INSERT_BLKREF_VM, vmbuffer, 0);
}

#else

#define COMPAT_LOGS_MAP false

static inline void
compat_lock_map(Buffer vmbuffer)
{
}

static inline void
compat_unlock_map(Buffer vmbuffer)
{
}

static inline bool
compat_clear_map(Relation rel, BlockNumber blkno, Buffer vmbuffer)
{
	(void) visibilitymap_clear(rel, blkno, vmbuffer, VISIBILITYMAP_VALID_BITS);
	return false;
}

static inline void
compat_register_map(Buffer vmbuffer)
{
}

#endif							/* HEAP_MULTI_INSERT_BLKREF_VM */

#endif							/* CYCLONE_COMPAT_H */
