/*-------------------------------------------------------------------------
 *
 * phases.h
 *	  The phases of a table's VACUUM, each as the leader and every worker
 *	  runs it, and what the leader does around them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PHASES_H
#define CYCLONE_PHASES_H

#include "engine/state.h"
#include "engine/table_vacuum.h"

/*
 * heap_scan.c: the leader calls all but the phase between phases, and
 * heap_scan_first_unscanned in a scan, too.  The phase leaves no lock and no pin.
 */
extern void heap_scan_begin(TableVacuum *vacuum);
extern void heap_scan_phase(TableVacuum *vacuum);
extern BlockNumber heap_scan_first_unscanned(TableVacuum *vacuum);
extern bool heap_scan_is_left(TableVacuum *vacuum);

/* heap_vacuum.c */
extern void heap_vacuum_begin_round(TableVacuum *vacuum);
extern void heap_vacuum_phase(TableVacuum *vacuum,
							  void (*other_work) (TableVacuum *vacuum, bool wait));

/* index_plan.c */
extern void index_measure(TableVacuum *vacuum, bool is_tiny);
extern int	index_parallel_degree(const TableVacuum *vacuum);
extern int	index_worker_memory_kb(const TableVacuum *vacuum, int nworkers, int memory_kb);
extern Size index_shared_size(TableVacuum *vacuum);
extern void index_join(TableVacuum *vacuum);
extern void index_setup(TableVacuum *vacuum, bool parallel, Size areas_start);
extern bool index_forbid_workers(const TableVacuum *vacuum, bool are_asked_for);
extern bool index_may_be_parallel(const TableVacuum *vacuum, int number);

/* index_vacuum.c */
extern void index_prepare_round(TableVacuum *vacuum, bool cleanup,
								double reltuples, bool estimated);
extern void index_begin_round(TableVacuum *vacuum, int batch_size);
extern bool index_is_shared_work(const TableVacuum *vacuum);
extern void index_phase(TableVacuum *vacuum, bool cleanup);
extern bool index_next_batch(TableVacuum *vacuum);
extern bool index_duties_put_off(const TableVacuum *vacuum);
extern bool index_found_empty_pages(TableVacuum *vacuum);
extern void index_delete_pages(TableVacuum *vacuum, bool wait);
extern void index_finish_page_deletion(TableVacuum *vacuum);
extern bool index_finish_round(TableVacuum *vacuum, bool cleanup);
extern void index_abort_round(TableVacuum *vacuum);
extern IndexBulkDeleteResult *index_stats(TableVacuum *vacuum, int index);

/*
 * heap_truncate.c: the leader, not in parallel mode, holds a ShareUpdateExclusiveLock.  An
 * AccessExclusiveLock is released at the end, here, but not on standbys.
 */
extern bool heap_truncate_is_worthwhile(BlockNumber rel_pages,
										BlockNumber nonempty_pages);
extern BlockNumber heap_truncate(TableVacuum *vacuum, BlockNumber nonempty_pages);
extern bool heap_truncate_step(TableVacuum *vacuum, CompactionPass *pass);

/* failsafe.c: the leader at any time in a phase or between; workers in phases */
extern bool failsafe_check(TableVacuum *vacuum);
extern void failsafe_notice(TableVacuum *vacuum);

#endif							/* CYCLONE_PHASES_H */
