/*-------------------------------------------------------------------------
 *
 * pg17.h
 *	  What PostgreSQL 17 has of its own.
 *
 * To be included by compat.h only.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPAT_PG17_H
#define CYCLONE_COMPAT_PG17_H

#include "compat/before19.h"

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
compat_prepare_sort_support(Relation index, bool reverse, SortSupport support)
{
	PrepareSortSupportFromIndexRel(index, reverse ? BTGreaterStrategyNumber : BTLessStrategyNumber, support);
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
compat_pgstat_report_vacuum(Relation rel, PgStat_Counter live,
							PgStat_Counter dead, TimestampTz starttime)
{
	pgstat_report_vacuum(RelationGetRelid(rel), rel->rd_rel->relisshared,
						 live, dead);
}

static inline int
compat_vacuum_max_threshold(const AutoVacOpts *opts)
{
	return -1;
}

static inline float4
compat_unfrozen_share(Form_pg_class form)
{
	return 1;
}

static inline int64
compat_total_autovacuum_ms(const PgStat_StatTabEntry *entry)
{
	return -1;
}

#endif							/* CYCLONE_COMPAT_PG17_H */
