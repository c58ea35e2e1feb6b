/*-------------------------------------------------------------------------
 *
 * since18.h
 *	  What PostgreSQL 18 and 19 have and 17 has not.
 *
 * To be included by compat.h only.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPAT_SINCE18_H
#define CYCLONE_COMPAT_SINCE18_H

/* VACUUM of a plain inheritance parent also processes its children. */
#define COMPAT_VACUUM_RECURSES_INHERITANCE true
/* The report has lines for eager scanning and the visibility map. */
#define COMPAT_REPORT_VISIBILITY_MAP true
/* What the report calls a page that was not in shared buffers. */
#define COMPAT_REPORT_READS "reads"
/* For read streams whose callback takes no lock and does no I/O. */
#define COMPAT_READ_STREAM_BATCHING READ_STREAM_USE_BATCHING
/* Several pages of shared buffers can be written together. */
#define COMPAT_WRITES_TOGETHER 1

typedef int64 compat_query_id;

/* compat_vac_update_relstats -- write a table's statistics to pg_class. */
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

/*
 * compat_copy_relallfrozen
 *		Copies relallfrozen from one row of pg_class to another.
 */
static inline void
compat_copy_relallfrozen(Form_pg_class form, Form_pg_class other)
{
	form->relallfrozen = other->relallfrozen;
}

/*
 * compat_index_build_counts_rows
 *		Does the table get the number of rows that was counted for an index?
 */
static inline bool
compat_index_build_counts_rows(Relation rel)
{
	const StdRdOptions *opts = (const StdRdOptions *) rel->rd_options;

	return AutoVacuumingActive() && (opts == NULL || opts->autovacuum.enabled);
}

/*
 * compat_set_eager_failure_rate
 *		The share of a region's pages that eager scanning may fail to freeze.
 */
static inline void
compat_set_eager_failure_rate(VacuumParams *params)
{
	params->max_eager_freeze_failure_rate = vacuum_max_eager_freeze_failure_rate;
}

/* compat_apply_eager_reloption -- let a table's option overrule that. */
static inline void
compat_apply_eager_reloption(VacuumParams *params, const StdRdOptions *opts)
{
	if (opts && opts->vacuum_max_eager_freeze_failure_rate >= 0)
		params->max_eager_freeze_failure_rate =
			opts->vacuum_max_eager_freeze_failure_rate;
}

/* compat_eager_failure_rate -- that share; 0 if there is no eager scanning. */
static inline double
compat_eager_failure_rate(const VacuumParams *params)
{
	return params->max_eager_freeze_failure_rate;
}

/*
 * compat_delay_time_ms
 *		Milliseconds this vacuum slept, -1 if that isn't measured.
 */
static inline double
compat_delay_time_ms(void)
{
	if (!track_cost_delay_timing)
		return -1;
	return (double) MyBEEntry->st_progress_param[PROGRESS_VACUUM_DELAY_TIME] / 1000000.0;
}

/*
 * compat_report_delay
 *		Reports that this process has slept.  A worker reports once for each second of
 *		sleep, as it has to send a message to the leader.
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

/*
 * compat_flush_worker_delay
 *		A worker reports to the leader the time that it slept since its last report.
 */
static inline void
compat_flush_worker_delay(void)
{
	if (track_cost_delay_timing)
		pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_DELAY_TIME,
											parallel_vacuum_worker_delay_ns);
	parallel_vacuum_worker_delay_ns = 0;
}

/* compat_module_version -- what a loaded library of this name says of its version; NULL: nothing. */
static inline const char *
compat_module_version(const char *name)
{
	for (DynamicFileList *file = get_first_loaded_module(); file != NULL;
		 file = get_next_loaded_module(file))
	{
		const char *path,
				   *module,
				   *version;

		get_loaded_module_details(file, &path, &module, &version);
		if (module != NULL && strcmp(module, name) == 0)
			return version;
	}
	return NULL;
}

/* compat_wal_buffers_full -- how often WAL buffers were full; -1 if that isn't counted. */
static inline int64
compat_wal_buffers_full(const WalUsage *usage)
{
	return usage->wal_buffers_full;
}

/*
 * compat_reset_page_counters
 *		Clears the page counters of VACUUM that older servers kept.
 */
static inline void
compat_reset_page_counters(void)
{
}

/*
 * compat_relation_path
 *		The path of a relation's file, if it isn't a temporary one.
 */
static inline char *
compat_relation_path(RelFileLocator file, ForkNumber fork)
{
	return pstrdup(relpathperm(file, fork).str);
}

/*
 * compat_prepare_sort_support
 *		Prepares to compare keys, in an index's order or the reverse.
 */
static inline void
compat_prepare_sort_support(Relation index, bool reverse, SortSupport support)
{
	PrepareSortSupportFromIndexRel(index, reverse, support);
}

/* compat_make_index_info -- makes a description of some btree. */
static inline IndexInfo *
compat_make_index_info(void)
{
	return makeIndexInfo(1, 1, BTREE_AM_OID, NIL, NIL, false, false, true, false, false, false);
}

/* compat_may_signal_autovacuum -- may a role, no superuser, cancel autovacuum workers? */
static inline bool
compat_may_signal_autovacuum(Oid role)
{
	return has_privs_of_role(role, ROLE_PG_SIGNAL_AUTOVACUUM_WORKER);
}

/*
 * compat_buffer_is_idle_and_dirty
 *		Is a page of shared buffers dirty, not pinned, and hardly used?  What it tells may
 *		be out of date.
 */
static inline bool
compat_buffer_is_idle_and_dirty(Buffer buffer)
{
	uint64		state = COMPAT_READ_BUFFER_STATE(&GetBufferDescriptor(buffer - 1)->state);

	return (state & BM_DIRTY) != 0 && BUF_STATE_GET_REFCOUNT(state) == 0 &&
		BUF_STATE_GET_USAGECOUNT(state) <= 1;
}

/*
 * compat_end_write
 *		The page has been written, and nobody could change it meanwhile; or this has failed.
 */
static inline void
compat_end_write(Buffer buffer, bool success)
{
	TerminateBufferIO(GetBufferDescriptor(buffer - 1), success, success ? 0 : BM_IO_ERROR,
					  true, false);
}

/* compat_count_write -- count that a ring's pages were written together. */
static inline void
compat_count_write(instr_time start, int npages)
{
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_VACUUM, IOOP_WRITE, start,
							1, (uint64) npages * BLCKSZ);
}

#endif							/* CYCLONE_COMPAT_SINCE18_H */
