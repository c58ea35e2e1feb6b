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
/* Buffers' I/O is the server's own: it writes pages of shared buffers one by one. */
#define COMPAT_WRITES_TOGETHER 0

typedef uint64 compat_query_id;

/* compat_index_beginscan -- begin a scan of an index. */
static inline IndexScanDesc
compat_index_beginscan(Relation rel, Relation index, Snapshot snapshot, int nkeys)
{
	return index_beginscan(rel, index, snapshot, nkeys, 0);
}

/* compat_make_index_info -- make a description of some btree. */
static inline IndexInfo *
compat_make_index_info(void)
{
	return makeIndexInfo(1, 1, BTREE_AM_OID, NIL, NIL, false, false, true, false, false);
}

/* compat_vac_update_relstats -- write a table's statistics to pg_class. */
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

/* compat_copy_relallfrozen -- pg_class has no relallfrozen. */
static inline void
compat_copy_relallfrozen(Form_pg_class form, Form_pg_class other)
{
}

/* compat_index_build_counts_rows -- does the table get the number of rows that was counted? */
static inline bool
compat_index_build_counts_rows(Relation rel)
{
	return true;
}

/* compat_set_eager_failure_rate -- set how many pages eager scanning may fail to freeze. */
static inline void
compat_set_eager_failure_rate(VacuumParams *params)
{
}

/* compat_apply_eager_reloption -- let a table's option overrule that. */
static inline void
compat_apply_eager_reloption(VacuumParams *params, const StdRdOptions *opts)
{
}

/* compat_eager_failure_rate -- that share; 0 if there is no eager scanning. */
static inline double
compat_eager_failure_rate(const VacuumParams *params)
{
	return 0;
}

/* compat_truncate_default -- may VACUUM truncate a table, where the command doesn't say? */
static inline bool
compat_truncate_default(const StdRdOptions *opts)
{
	return opts == NULL || opts->vacuum_truncate;
}

/* compat_delay_time_ms -- how long this VACUUM slept; -1, as it isn't measured. */
static inline double
compat_delay_time_ms(void)
{
	return -1;
}

/* compat_report_delay -- no progress view shows sleep. */
static inline void
compat_report_delay(uint64 ns)
{
}

/* compat_flush_worker_delay -- nothing is kept back by workers. */
static inline void
compat_flush_worker_delay(void)
{
}

/* compat_module_version -- what a loaded library of this name says of its version; NULL: nothing. */
static inline const char *
compat_module_version(const char *name)
{
	return NULL;
}

/* compat_wal_buffers_full -- how often WAL buffers were full; -1 if that isn't counted. */
static inline int64
compat_wal_buffers_full(const WalUsage *usage)
{
	return -1;
}

/* compat_reset_page_counters -- clear the page counters of VACUUM. */
static inline void
compat_reset_page_counters(void)
{
	VacuumPageHit = 0;
	VacuumPageMiss = 0;
	VacuumPageDirty = 0;
}

/* compat_relation_path -- the path of a relation's file, if it isn't a temporary one. */
static inline char *
compat_relation_path(RelFileLocator file, ForkNumber fork)
{
	return relpathperm(file, fork);
}

/* compat_prepare_sort_support -- prepare to compare keys, in an index's order or the reverse. */
static inline void
compat_prepare_sort_support(Relation index, bool reverse, SortSupport support)
{
	PrepareSortSupportFromIndexRel(index, reverse ? BTGreaterStrategyNumber : BTLessStrategyNumber, support);
}

/*
 * compat_visibilitymap_set
 *		Sets visibility-map bits; returns those that were set before.
 */
static inline uint8
compat_visibilitymap_set(Relation rel, BlockNumber blkno, Buffer buffer,
						 Buffer vmbuffer, TransactionId conflict_xid,
						 uint8 flags)
{
	uint8		old = visibilitymap_get_status(rel, blkno, &vmbuffer);

	Assert(blkno == BufferGetBlockNumber(buffer) && compat_buffer_is_locked_exclusively(buffer));

	visibilitymap_set(rel, blkno, buffer, InvalidXLogRecPtr, vmbuffer,
					  conflict_xid, flags);
	return old;
}

/* compat_pgstat_report_vacuum -- tell the statistics system of a VACUUM. */
static inline void
compat_pgstat_report_vacuum(Relation rel, PgStat_Counter live,
							PgStat_Counter dead, TimestampTz starttime)
{
	pgstat_report_vacuum(RelationGetRelid(rel), rel->rd_rel->relisshared,
						 live, dead);
}

/* compat_may_signal_autovacuum -- may a role, no superuser, cancel autovacuum workers?  No. */
static inline bool
compat_may_signal_autovacuum(Oid role)
{
	return false;
}

#endif							/* CYCLONE_COMPAT_PG17_H */
