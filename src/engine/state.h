/*-------------------------------------------------------------------------
 *
 * state.h
 *	  The state of one table's VACUUM: what the team shares, and what each
 *	  process has for itself.
 *
 * Read this first; the phases (heap_scan.c, index_vacuum.c, heap_vacuum.c)
 * are functions on these structs.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_STATE_H
#define CYCLONE_STATE_H

#include "access/genam.h"
#include "commands/vacuum.h"
#include "port/atomics.h"
#include "storage/buf.h"
#include "storage/condition_variable.h"
#include "storage/freespace.h"
#include "storage/s_lock.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "engine/block_list.h"
#include "engine/dead_tids.h"
#include "engine/ring_pages.h"
#include "machine/file_cache.h"
#include "pace/pace.h"
#include "report/result.h"
#include "team/ranges.h"

/* The heap is scanned by ranges of at most this many blocks (256 MB). */
#define SCAN_RANGE_BLOCKS	32768

/* A process tells how far it is once in this many blocks. */
#define PROGRESS_BLOCKS		32

/* One index, as the team sees it. */
typedef struct IndexShared
{
	/* written by the leader before the team starts */
	bool		may_be_parallel;	/* big enough, and its AM allows it at all */
	BlockNumber nblocks;
	int			kind;			/* its number, -1: none */
	int			claim_order;	/* the index to be claimed in this place */
	Size		area_start;		/* of its kind's area: index_area(); or 0 */
	Size		area_size;

	/* written by the leader before each index phase */
	bool		leader_only;	/* in this phase */
	bool		was_begun;		/* in this round, by its kind's routine; or
								 * done by another */

	/*
	 * Written by the process that has the index as a whole in a phase, read
	 * by the one that has it in a later phase, and by the leader between
	 * phases.  If several members process an index, they write stats under
	 * the mutex.
	 */
	bool		has_stats;
	IndexBulkDeleteResult stats;
	GraphResult graph;
	slock_t		mutex;

	/* for kinds that several members process */
	Ranges		ranges;			/* of its blocks, or what else there is */
	pg_atomic_uint64 known_end; /* its size, as far as all of it is claimed */
	pg_atomic_uint32 turn_taken;	/* by a member that does what only one at
									 * a time may do */
	ConditionVariable turn_ended;
	BlockNumber audit_blocks;	/* written by the leader before their audit */
	pg_atomic_uint32 counted;	/* as processed, in pg_stat_progress_vacuum? */
} IndexShared;

/* One member of the team, as the leader sees it between phases. */
typedef struct MemberShared
{
	/* 0 until the member takes part in a phase for the first time */
	pg_atomic_uint32 joined;
	/* it is through with all its blocks below this one, in the heap scan */
	pg_atomic_uint32 scan_block;

	/*
	 * The rest of its range when a round of the heap scan has ended, for the
	 * process that comes to it first in the next one.
	 */
	pg_atomic_uint64 scan_remainder;

	/* written by the member at the end of each phase */
	VacuumCounters counters;
} MemberShared;

/* Eager scanning of pages that are all-visible, but not all-frozen */
typedef struct EagerShared
{
	bool		enabled;		/* constant */
	BlockNumber first_region_end;
	uint32		max_fails_first_region;
	uint32		max_fails_per_region;
	uint32		success_limit;
	pg_atomic_uint32 remaining_successes;
	Size		fails_start;	/* counters, one a region (eager_fails) */
} EagerShared;

typedef struct VacuumShared
{
	/* constant once the team is launched */
	Oid			relid;
	int			leader_pid;
	int			nindexes;
	int			nmembers;		/* planned workers and the leader */
	bool		is_autovacuum;
	bool		aggressive;
	bool		skip_with_vm;
	bool		verbose;
	int			ring_nbuffers;	/* 0: no ring */
	int			worker_mem_kb;	/* maintenance_work_mem of each worker */
	BlockNumber rel_pages;
	bool		compacting;		/* is it a CompactionPass? */
	BlockNumber tail_start;		/* of that; else invalid, which is the largest */
	struct VacuumCutoffs cutoffs;
	EagerShared eager;
	Size		members_start;
	Size		indexes_start;
	Size		pace_start;
	Size		dead_tids_start;	/* 0: no store */
	Size		file_cache_start;	/* 0: the page cache doesn't matter */

	/* written by the leader between phases */
	bool		do_index_vacuuming;
	int			num_index_scans;
	bool		in_cleanup;		/* or in bulk deletion? */
	int			batch_start;	/* of the indexes that all members process: */
	int			batch_end;		/* places in the order of claims */
	bool		doing_more_work;	/* what was put off, of that batch */
	double		index_reltuples;	/* for the AMs */
	bool		index_reltuples_estimated;
	Ranges		scan_ranges;	/* blocks */
	bool		scan_goes_on;	/* the round, after the store has grown */
	Ranges		reap_slots;		/* of the store, for heap vacuum */
	uint64		audit_seed;		/* which sections of indexes are audited */
	uint32		reap_lanes;		/* at a time */
	BlockNumber reap_lane_blocks;
	BlockNumber reap_slot_blocks;

	/* written by the leader at any time, 0 to 1 once */
	pg_atomic_uint32 failsafe;

	/* written by all members */
	pg_atomic_uint64 blocks_passed; /* scanned or skipped */
	pg_atomic_uint64 blocks_vacuumed;
	pg_atomic_uint32 store_is_full; /* so a member has left the rest of its
									 * range over */
	pg_atomic_uint32 least_remainder;	/* the first block left over, since
										 * the free space map was vacuumed */
	pg_atomic_uint64 audit_next;	/* claim on these */
	pg_atomic_uint32 next_index;	/* place in the order of claims */
	pg_atomic_uint32 empty_pages_found; /* by a member, in some index */
	pg_atomic_uint32 more_work; /* has some of it been put off? */
} VacuumShared;

/* Where we are, for error messages */
typedef enum ErrorPlace
{
	PLACE_UNKNOWN,
	PLACE_HEAP_SCAN,
	PLACE_HEAP_VACUUM,
	PLACE_INDEX_VACUUM,
	PLACE_INDEX_CLEANUP,
	PLACE_TRUNCATE,
} ErrorPlace;

/* One process's state */
typedef struct TableVacuum
{
	/* the relations, locked and open */
	Relation	rel;
	int			nindexes;
	Relation   *indexes;

	VacuumShared *shared;
	int			member;			/* 0: the leader */
	DeadTids   *dead_tids;		/* NULL without a store */

	/*
	 * The ring of buffers, NULL if none is wanted.  Ask vacuum_strategy() for
	 * it, as the failsafe does away with it.
	 */
	BufferAccessStrategy strategy;
	RingPages  *ring_pages;		/* visited in it; NULL: the server writes them */
	GlobalVisState *vistest;
	FileCache  *file_cache;		/* NULL: the page cache doesn't matter */
	FileCacheMap **file_cache_maps; /* of the table, and of each index */

	/* what is left of the range that this process scans, within a round */
	BlockNumber scan_next;
	BlockNumber scan_end;
	bool		scan_skip_end;	/* the run of blocks around scan_end */

	/* how long it has waited for pages that sessions had pinned */
	uint64		pin_wait_ms;

	/*
	 * the leader's: how often the failsafe was checked in the heap scan, and
	 * up to where the free space map was vacuumed
	 */
	uint64		failsafe_checks;
	BlockNumber fsm_vacuumed;

	/* what this process did */
	VacuumCounters counters;
	BlockNumber scan_passed;	/* heap pages scanned or skipped in this round */
	bool		has_sat_out;	/* a worker's, that has said so */

	/* audits: see audit.c */
	bool		page_is_audited;	/* of the heap, in hand */
	struct AuditNotes *audit_notes; /* NULL: none are taken */
	struct BtreeAudit *btree_audit; /* NULL without a store */

	/* by index: its kind, or NULL */
	const struct IndexKind **kinds;
	/* by index: the empty pages that this process found in it */
	BlockList  *empty_pages;
	/* by index: the pages that this process has yet to wait for */
	BlockList  *put_off;

	/*
	 * the leader's, by index: its size at the beginning, results of AMs that
	 * only it calls, which indexes are begun by their kind's routines, and
	 * how many may be registered at a time
	 */
	BlockNumber *index_blocks;
	IndexBulkDeleteResult **private_stats;
	Size	   *area_sizes;		/* what their kinds share */
	bool	   *begun;
	int			batch_size;

	/* for error messages */
	ErrorPlace	place;
	BlockNumber blkno;
	OffsetNumber offnum;
	char	   *dbname;
	char	   *relnamespace;
	char	   *relname;
	char	   *indname;
} TableVacuum;

/*
 * is_in_tail
 *		Is a block to be cut off, once its rows have been moved?
 *
 * Nothing is recorded of such a block that is of no use until then: no free space,
 * and no bit of the visibility map if it is empty.
 */
static inline bool
is_in_tail(const TableVacuum *vacuum, BlockNumber blkno)
{
	return blkno >= vacuum->shared->tail_start;
}

/*
 * record_free_space
 *		Offer a block's free space to other sessions; not in a tail that is being
 *		vacated.
 */
static inline void
record_free_space(const TableVacuum *vacuum, BlockNumber blkno, Size space)
{
	if (!is_in_tail(vacuum, blkno))
		RecordPageWithFreeSpace(vacuum->rel, blkno, space);
}

/* is_leader -- is this process the leader? */
static inline bool
is_leader(const TableVacuum *vacuum)
{
	return vacuum->member == 0;
}

/* vacuum_member -- a member's part of the shared block. */
static inline MemberShared *
vacuum_member(const VacuumShared *shared, int member)
{
	Assert(member >= 0 && member < shared->nmembers);
	return (MemberShared *) ((char *) shared + shared->members_start) + member;
}

/* vacuum_index -- an index's part of it. */
static inline IndexShared *
vacuum_index(const VacuumShared *shared, int index)
{
	Assert(index >= 0 && index < shared->nindexes);
	return (IndexShared *) ((char *) shared + shared->indexes_start) + index;
}

/* vacuum_pace -- the team's budget, in the shared block. */
static inline PaceShared *
vacuum_pace(VacuumShared *shared)
{
	return (PaceShared *) ((char *) shared + shared->pace_start);
}

/* vacuum_strategy -- the ring to read with, from now on. */
static inline BufferAccessStrategy
vacuum_strategy(const TableVacuum *vacuum)
{
	return VacuumFailsafeActive ? NULL : vacuum->strategy;
}

/* before_heap_read -- a block of the table will be read. */
static inline void
before_heap_read(TableVacuum *vacuum, BlockNumber blkno)
{
	if (vacuum->file_cache != NULL)
		file_cache_before_read(vacuum->file_cache, vacuum->rel,
							   vacuum->file_cache_maps[0], blkno);
}

/* before_index_read -- a block of an index will be read. */
static inline void
before_index_read(TableVacuum *vacuum, int number, BlockNumber blkno)
{
	if (vacuum->file_cache != NULL)
		file_cache_before_read(vacuum->file_cache, vacuum->indexes[number],
							   vacuum->file_cache_maps[number + 1], blkno);
}

/*
 * set_place
 *		Where we are, for error messages; blkno and offnum may be invalid.
 */
static inline void
set_place(TableVacuum *vacuum, ErrorPlace place, BlockNumber blkno)
{
	vacuum->place = place;
	vacuum->blkno = blkno;
	vacuum->offnum = InvalidOffsetNumber;
}

#endif							/* CYCLONE_STATE_H */
