/*-------------------------------------------------------------------------
 *
 * result.h
 *	  What a VACUUM of one table did: plain data, counted by the engine and
 *	  printed by the reports.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RESULT_H
#define CYCLONE_RESULT_H

#include "access/genam.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "portability/instr_time.h"
#include "storage/block.h"

/* The phases of a vacuum that a team goes through together. */
typedef enum VacuumPhase
{
	PHASE_HEAP_SCAN,
	PHASE_INDEX_VACUUM,
	PHASE_INDEX_AUDIT,			/* only if some of their pages are sampled */
	PHASE_INDEX_PAGE_DELETION,	/* only if the heap is not vacuumed */
	PHASE_HEAP_VACUUM,
	PHASE_INDEX_CLEANUP,
} VacuumPhase;

#define NUM_PHASES	(PHASE_INDEX_CLEANUP + 1)

/* What one member of the team did, summed up over all phases so far. */
typedef struct VacuumCounters
{
	/* pages */
	BlockNumber scanned_pages;	/* not skipped by the visibility map */
	BlockNumber skipped_pages;
	BlockNumber eager_scanned_pages;
	BlockNumber new_frozen_tuple_pages; /* that had tuples newly frozen */
	BlockNumber vm_new_visible_pages;	/* newly all-visible in the map */
	BlockNumber vm_new_visible_frozen_pages;	/* of them, all-frozen too */
	BlockNumber vm_new_frozen_pages;	/* all-visible before, now all-frozen */
	BlockNumber lpdead_item_pages;
	BlockNumber missed_dead_pages;
	BlockNumber nonempty_pages; /* last block with tuples, plus one */
	BlockNumber heap_vacuumed_pages;	/* in the second pass */

	/* items, on scanned pages */
	int64		tuples_deleted;
	int64		tuples_frozen;
	int64		lpdead_items;	/* to be deleted from indexes */
	int64		live_tuples;
	int64		recently_dead_tuples;	/* dead, but not yet removable */
	int64		missed_dead_tuples; /* removable, but not removed */
	int64		stale_locks;	/* removed from rows: see stale_lock.c */

	/* the oldest XID and MXID that may be left in the table */
	TransactionId new_relfrozenxid;
	MultiXactId new_relminmxid;
	/* was an all-visible page skipped that may hold older ones? */
	bool		skipped_allvisible;

	/* audits: see audit.c */
	int64		audited_heap_pages;
	int64		audited_index_pages;
	TransactionId audited_relfrozenxid; /* the oldest ones that they have seen */
	MultiXactId audited_relminmxid;
} VacuumCounters;

/* What was done to the elements of a graph of vectors, in an index that is one. */
typedef struct GraphResult
{
	int64		dead;			/* marked deleted, or to be so next time */
	int64		repaired;		/* got other neighbours, as some had died */
	int64		searched;		/* for that the graph was searched */
	int64		linked;			/* no other element had led to them */
} GraphResult;

/* What was done to one index. */
typedef struct IndexResult
{
	char	   *name;
	bool		has_stats;
	IndexBulkDeleteResult stats;
	GraphResult graph;
} IndexResult;

/* What was done to one table, for the final report. */
typedef struct TableResult
{
	const char *dbname;
	const char *relnamespace;
	const char *relname;
	bool		aggressive;
	int			num_index_scans;
	bool		index_vacuum_done;	/* not bypassed, not disabled */
	BlockNumber orig_rel_pages;
	BlockNumber new_rel_pages;
	BlockNumber removed_pages;
	double		new_live_tuples;	/* estimates, for the whole table */
	double		new_rel_tuples;
	VacuumCounters counters;	/* of the whole team */
	TransactionId oldest_xmin;
	bool		freezing_is_held;	/* does oldest_xmin keep rows from being
									 * frozen that are old enough? */
	TransactionId old_relfrozenxid;
	MultiXactId old_relminmxid;
	bool		frozenxid_updated;
	bool		minmxid_updated;
	int			nindexes;
	IndexResult *indexes;
	int64		index_pages_before; /* of all indexes together */
	int64		index_pages_after;

	/* what PostgreSQL's report doesn't have */
	int			workers_planned;
	int			workers_launched;
	int			workers_not_allowed;	/* by the server's own limits of
										 * autovacuum */
	int			workers_without_buffers;	/* as shared_buffers is tiny */
	bool		cleanup_is_shared;	/* had index cleanup something for
									 * workers? */
	Size		dead_tids_peak_bytes;
	int64		dead_tids_at_peak;	/* 0: the store was never needed */
	int			dead_tids_rounds;	/* how often it was emptied */
	Size		dead_tids_bytes_in_all; /* what it had taken each time */
	Size		dead_tids_limit;
	double		phase_seconds[NUM_PHASES];
	double		truncate_seconds;
	double		team_seconds;	/* launching the workers and ending them */
	bool		was_paced;		/* by cost-based delay, adaptive or not */
	double		slept_seconds;	/* by all processes, for that */
	bool		has_adaptive_delay;
} TableResult;

#endif							/* CYCLONE_RESULT_H */
