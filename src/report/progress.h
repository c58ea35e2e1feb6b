/*-------------------------------------------------------------------------
 *
 * progress.h
 *	  What each process of each running VACUUM is doing: the view
 *	  cyclone.progress.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PROGRESS_H
#define CYCLONE_PROGRESS_H

#include "datatype/timestamp.h"
#include "storage/block.h"

/*
 * The phases of a rewrite, beside those of pg_stat_progress_vacuum, which have
 * small numbers.
 */
#define PROGRESS_REWRITE_COPY_TOAST		101
#define PROGRESS_REWRITE_COPY_HEAP		102
#define PROGRESS_REWRITE_INDEX_TOAST	103
#define PROGRESS_REWRITE_COPY_CHAINS	104
#define PROGRESS_REWRITE_INDEX			105
#define PROGRESS_REWRITE_AUDIT			106

/* The same for moving rows. */
#define PROGRESS_INPLACE_PLAN			200
#define PROGRESS_INPLACE_MOVE			201
#define PROGRESS_INPLACE_MOVE_VALUES	202
#define PROGRESS_INPLACE_REINDEX		203
#define PROGRESS_INPLACE_WAIT			204

/* What a process is doing, as it last noted */
typedef struct ProgressRow
{
	int			pid;
	int			leader_pid;
	Oid			user_id;		/* whose command it is */
	Oid			database;
	Oid			relid;
	int			phase;			/* PROGRESS_VACUUM_PHASE_... or one of the
								 * above; 0: none yet */
	Oid			index_relid;
	BlockNumber blocks_done;
	BlockNumber blocks_total;
	int64		bytes_freed;

	/* how fast it goes */
	TimestampTz phase_start;
	BlockNumber phase_blocks;	/* blocks_total, but not of an index */
	BlockNumber phase_blocks_done;	/* of these, by this process */

	/* of leaders only */
	BlockNumber blocks_of_leavers;	/* done in this phase by workers that have
									 * left */
	BlockNumber blocks_of_rounds;	/* scanned in earlier rounds; 0: this is
									 * the only one so far */
	int			run_kind;		/* HistoryKind */
	Oid			run_relid;		/* the command's table; relid may be its TOAST
								 * table */
	bool		run_is_autovacuum;
	TimestampTz run_start;
	BlockNumber run_pages;		/* of the table when it began */
} ProgressRow;

extern void progress_shmem_request(void);
extern void progress_shmem_init(void);

/*
 * progress_run
 *		Note that a run begins, of a table of this many pages.  All that this process
 *		does until the next run belongs to it.  kind is a HistoryKind.
 *
 * Does nothing in a process without a slot.
 */
extern void progress_run(int kind, Oid relid, bool is_autovacuum, BlockNumber pages);

/*
 * progress_begin
 *		Note that this process begins to vacuum a table, for that leader's command.
 *
 * From here until progress_clear the process has a row in the view.  This function, and
 * those up to progress_index, are for processes with a slot: backends, autovacuum workers
 * and background workers, while the library is preloaded.
 */
extern void progress_begin(Oid relid, int leader_pid);

/*
 * progress_phase
 *		Note that a phase of a vacuum or a rewrite begins, over this many blocks; or goes
 *		on, if this process was in it before.
 */
extern void progress_phase(int phase, BlockNumber blocks_total);

/* progress_blocks_done -- note how many blocks of the phase this process has done. */
extern void progress_blocks_done(BlockNumber blocks_done);

/*
 * progress_rounds
 *		Leader: note that a round of the heap scan ends with this many blocks scanned in
 *		all, and that there will be another.
 */
extern void progress_rounds(BlockNumber blocks_scanned);

/* progress_index -- note that this process begins to work on an index of this many blocks. */
extern void progress_index(Oid index_relid, BlockNumber blocks_total);

/*
 * progress_bytes_freed
 *		Note by how many bytes the table in hand has become smaller since its run began.
 *
 * Does nothing in a process without a slot.
 */
extern void progress_bytes_freed(uint64 bytes);

/* progress_clear -- note that this process no longer vacuums; harmless if it never did. */
extern void progress_clear(void);

/*
 * progress_read
 *		Return how many processes vacuum, and what each is doing, in a palloc'd array.
 *
 * It is for the caller to know what the user may see of each.
 */
extern int	progress_read(ProgressRow **rows);

#endif							/* CYCLONE_PROGRESS_H */
