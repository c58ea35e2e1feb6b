/*-------------------------------------------------------------------------
 *
 * movers.c
 *	  The processes that move rows, in one pass.
 *
 * Each batch of moves is a transaction of its own, which parallel workers of the
 * server can't have.  So the workers here are background workers: sessions without a
 * client, with the leader's user and settings, that do what the leader does.  They
 * claim blocks to visit as they go, and each fills pages of its own, so they seldom
 * meet except in the indexes.  They share a segment of dynamic shared memory, which
 * lasts for the pass.
 *
 * For the server, leader and workers have nothing to do with each other.  If a worker
 * waited for a session that waits for the leader's lock on the table, the server would
 * not see that this is a deadlock.  So a worker takes its own lock on the table without
 * waiting and keeps it, and waits for no other lock for long.
 *
 * A worker that fails, for that or another reason, ends.  Its last batch is undone, the
 * server's log has the error, and the next pass, which the leader does alone, moves
 * what the worker has left.  If the reason is still there, the leader gets the error.
 * If the leader fails it ends the workers.  If an audit fails in any process, all end
 * (may_move), and the command does.
 *
 * More processes slow down the sessions that use the table meanwhile, for whose sake
 * rows are moved at all; so there are no workers unless the command asks for them.
 *
 * This is one file, as leader and worker are the two ends of one segment of shared
 * memory, whose layout is known only here.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "executor/instrument.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/bufmgr.h"
#include "storage/dsm.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/shm_toc.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timeout.h"

#include "at_exit.h"
#include "autovacuum/autovacuum.h"
#include "autovacuum/table_log.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "inplace/inplace.h"
#include "inplace/move_batch.h"
#include "library.h"
#include "own_wait_event.h"
#include "own_worker.h"
#include "report/progress.h"
#include "team/degree.h"
#include "transaction.h"

#define MOVERS_MAGIC	0xC1C10F01

#define MOVERS_KEY_SHARED		1
#define MOVERS_KEY_PACE			2
#define MOVERS_KEY_VALUES		3
#define MOVERS_KEY_LIBRARIES	4
#define MOVERS_KEY_SETTINGS		5
#define MOVERS_KEY_QUERY_TEXT	6
#define MOVERS_KEY_FILE_CACHE	7

/* Blocks that are claimed at a time; fewer towards the end */
#define MOST_VISITS		32
/* How long a worker waits for a lock */
#define LOCK_TIMEOUT	"1s"
#define LOCK_TIMEOUT_MS	1000
/* How often the leader has something to do while it waits for the others */
#define WAITING_MS		250

/* A worker, as the leader sees it when it has ended */
typedef struct MoverShared
{
	bool		is_through;		/* or else it failed */
	MoveCounts	moved;			/* in batches that were committed */
	BufferUsage buffer_usage;
	WalUsage	wal_usage;
} MoverShared;

typedef struct MoversShared
{
	/* constant */
	Oid			database;
	Oid			session_user;
	int			leader_pid;
	Oid			relid;
	char		relname[NAMEDATALEN];
	Oid			toast_relid;	/* invalid if rows are moved, and not values */
	BlockNumber npages;
	int			nvalues;
	int			ring_kb;		/* 0: no ring */
	bool		preserves_cache;	/* does the page cache matter? */

	MoveShares	shares;
	pg_atomic_uint32 dismissed; /* has the leader failed? */
	int			nmovers;
	MoverShared movers[FLEXIBLE_ARRAY_MEMBER];
} MoversShared;

/* The leader's view of a pass */
typedef struct Movers
{
	bool		is_running;
	Inplace    *job;
	Inplace    *toast;
	int			planned;
	int			planned_for;	/* workers that there is room for in what is
								 * shared */
	int			launched;
	BackgroundWorkerHandle **handles;

	dsm_segment *segment;		/* NULL without workers */
	MoversShared *shared;
	PaceShared *pace;
	BlockNumber cached_blocks;	/* of the table, if the page cache matters;
								 * otherwise 0 */
	FileCacheMap *map;			/* then */
} Movers;

/* A segment that is to be made */
typedef struct Request
{
	Size		size;
	dsm_segment *segment;
} Request;

/* The pass that this process leads */
static Movers movers;

PGDLLEXPORT void pg_cyclone_mover_main(Datum main_arg);

static int	plan_workers(Inplace *job, Inplace *toast, Relation rel);
static void gather(void);
static void make_segment(void);
static dsm_segment *create_segment(Size size);
static void request_segment(void *arg);
static void fill_segment(Size size);
static Size shared_size(void);
static Size values_size(void);
static Size map_size(void);
static Size query_size(void);
static void *add_chunk(shm_toc *toc, uint64 key, Size size);
static void fill_shared(void);
static void launch(void);
static bool move_some(Inplace *job, Inplace *toast);
static void begin_file_cache(Inplace *job, FileCacheMap *map);
static void end_file_cache(Inplace *job);
static void wait_for_workers(void);
static bool add_up(void);
static void note_failed_audit(Oid relid, const MoversShared *shared);
static void add_counts(MoveCounts *sum, const MoveCounts *part);
static void part(void);
static void dismiss(void);
static uint32 wait_event_movers(void);
static void begin_work(const MoversShared *shared);
static void work(MoversShared *shared, MoverShared *me, Inplace *job, Inplace *toast);
static void be_like_leader(shm_toc *toc);
static bool keep_locked(const MoversShared *shared);
static void unlock(const MoversShared *shared);

/*
 * movers_run
 *		Do what the pass has planned: move rows of a table, or values if toast is
 *		its TOAST table.  Returns false if a worker has failed.
 *
 * Called outside any transaction, with the table locked for the session.
 * job->moved is what came of it; also says how many workers there were.
 */
bool
movers_run(Inplace *job, Inplace *toast, int *planned, int *launched)
{
	volatile bool all_through = false;

	/* if the leader's session ends, the workers do, too */
	at_exit(dismiss);
	Assert(!IsTransactionState() && !movers.is_running);

	memset(&movers, 0, sizeof(movers));
	movers.job = job;
	movers.toast = toast;
	movers.is_running = true;
	PG_TRY();
	{
		gather();
		while (!job->is_stopped && move_some(job, toast))
			;
		pace_end_work();
		end_file_cache(job);
		wait_for_workers();
		all_through = add_up();
	}
	PG_CATCH();
	{
		move_batch_abandon();
		note_failed_audit(job->relid, movers.shared);
		dismiss();
		PG_RE_THROW();
	}
	PG_END_TRY();
	*planned = movers.planned;
	*launched = movers.launched;
	part();
	return all_through;
}

/*
 * plan_workers
 *		How many workers to ask for: as PARALLEL says, but no more than one for
 *		each min_parallel_table_scan_size of the tail, as starting a session takes
 *		time, and no more than the budget feeds and shared_buffers has room for.
 */
static int
plan_workers(Inplace *job, Inplace *toast, Relation rel)
{
	const Inplace *to_empty = toast != NULL ? toast : job;
	BlockNumber tail = to_empty->npages - to_empty->tail_start;
	int			nworkers = job->params.nworkers;
	int			fed = pace_workers_now();

	if (nworkers < 0 || job->is_alone || VacuumFailsafeActive || !IsUnderPostmaster ||
		RelationUsesLocalBuffers(rel))
		return 0;
	if (nworkers == 0)
		nworkers = DEBUG_LIMIT(workers, 0);
	nworkers = Min(nworkers, tail / Max(min_parallel_table_scan_size, 1));
	nworkers = degree_within_buffers(Min(nworkers, fed), DEGREE_PINS);
	return Min(nworkers, Min(max_parallel_maintenance_workers, max_parallel_workers));
}

/*
 * gather
 *		Prepare what the processes share, launch the workers, and begin.
 */
static void
gather(void)
{
	Inplace    *job = movers.job;
	Relation	rel;
	BlockNumber nblocks;
	SavedUser	saved;

	Assert(!IsTransactionState());
	transaction_begin(false);
	rel = table_open(job->relid, ShareUpdateExclusiveLock);
	movers.planned = plan_workers(job, movers.toast, rel);
	nblocks = RelationGetNumberOfBlocks(rel);
	if (file_cache_is_wanted(rel, nblocks, nblocks))
		movers.cached_blocks = nblocks;
	/* the workers take over its settings */
	become_owner(rel, &saved);
	pace_write_steadily();
	if (movers.planned > 0)
		make_segment();
	if (movers.segment == NULL)
	{
		movers.planned_for = 0;
		movers.shared = MemoryContextAllocZero(job->context, shared_size());
		movers.pace = MemoryContextAllocZero(job->context, pace_shared_size());
		if (movers.cached_blocks > 0)
			movers.map = MemoryContextAlloc(job->context, map_size());
	}
	fill_shared();
	strlcpy(movers.shared->relname, RelationGetRelationName(rel), NAMEDATALEN);

	memset(&job->moved, 0, sizeof(MoveCounts));
	job->shares = &movers.shared->shares;
	job->next_visit = job->end_visits = job->one_by_one = 0;
	job->target = InvalidBlockNumber;
	job->refill.count = 0;
	if (movers.cached_blocks > 0)
		begin_file_cache(job, movers.map);

	pace_create(movers.pace, job->relid, false);
	begin_work(movers.shared);
	if (movers.segment != NULL)
		launch();
	become_user_again(&saved);
	table_close(rel, NoLock);
	transaction_end();
}

/*
 * make_segment
 *		Make the segment that is shared with workers, if the server has room for
 *		it, and put in what they need to be like the leader.
 *
 * If it has none, this pass and all later ones go without workers.
 */
static void
make_segment(void)
{
	shm_toc_estimator estimator;
	Size		size;

	Assert(movers.planned > 0 && movers.segment == NULL);
	movers.planned_for = movers.planned;
	shm_toc_initialize_estimator(&estimator);
	shm_toc_estimate_chunk(&estimator, shared_size());
	shm_toc_estimate_chunk(&estimator, pace_shared_size());
	shm_toc_estimate_chunk(&estimator, values_size());
	shm_toc_estimate_chunk(&estimator, EstimateLibraryStateSpace());
	shm_toc_estimate_chunk(&estimator, EstimateGUCStateSpace());
	shm_toc_estimate_chunk(&estimator, query_size());
	shm_toc_estimate_chunk(&estimator, map_size());
	shm_toc_estimate_keys(&estimator, 7);
	size = shm_toc_estimate(&estimator);
	movers.segment = create_segment(size);
	if (movers.segment != NULL)
		fill_segment(size);
}

/*
 * create_segment
 *		Create a segment that outlives transactions; NULL, with a warning, if there
 *		is not enough shared memory.
 *
 * The server raises an error then, hence the subtransaction.
 */
static dsm_segment *
create_segment(Size size)
{
	Request		request = {.size = size};
	ErrorData  *error = transaction_try(request_segment, &request);

	if (error == NULL)
		return request.segment;
	if (error->sqlerrcode != ERRCODE_DISK_FULL &&
		error->sqlerrcode != ERRCODE_OUT_OF_MEMORY &&
		error->sqlerrcode != ERRCODE_INSUFFICIENT_RESOURCES)
		ReThrowError(error);
	movers.job->is_alone = true;
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("not enough shared memory for workers that move rows, going on without workers"),
			 errdetail("%s", error->message)));
	FreeErrorData(error);
	return NULL;
}

/* request_segment -- for transaction_try. */
static void
request_segment(void *arg)
{
	Request    *request = arg;

	request->segment = dsm_create(request->size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (request->segment != NULL)
		dsm_pin_mapping(request->segment);
}

/* fill_segment -- put in what workers need; the rest is zeroed. */
static void
fill_segment(Size size)
{
	shm_toc    *toc = shm_toc_create(MOVERS_MAGIC, dsm_segment_address(movers.segment), size);
	Size		libraries_size = EstimateLibraryStateSpace();
	Size		settings_size = EstimateGUCStateSpace();
	char	   *chunk;

	movers.shared = add_chunk(toc, MOVERS_KEY_SHARED, shared_size());
	movers.pace = add_chunk(toc, MOVERS_KEY_PACE, pace_shared_size());
	chunk = add_chunk(toc, MOVERS_KEY_VALUES, values_size());
	if (values_size() > 0)
		memcpy(chunk, movers.toast->values, values_size());
	SerializeLibraryState(libraries_size, add_chunk(toc, MOVERS_KEY_LIBRARIES, libraries_size));
	SerializeGUCState(settings_size, add_chunk(toc, MOVERS_KEY_SETTINGS, settings_size));
	chunk = add_chunk(toc, MOVERS_KEY_QUERY_TEXT, query_size());
	strlcpy(chunk, debug_query_string != NULL ? debug_query_string : "", query_size());
	movers.map = add_chunk(toc, MOVERS_KEY_FILE_CACHE, map_size());
}

/* shared_size -- of what is shared, with room for the workers. */
static Size
shared_size(void)
{
	return offsetof(MoversShared, movers) + movers.planned_for * sizeof(MoverShared);
}

/* values_size -- of the list of values to be moved, if there is one. */
static Size
values_size(void)
{
	return movers.toast != NULL ? movers.toast->nvalues * sizeof(Oid) : 0;
}

/* map_size -- of what is known of the page cache, if that matters. */
static Size
map_size(void)
{
	return movers.cached_blocks > 0 ? file_cache_map_size(movers.cached_blocks) : 0;
}

/* query_size -- of the statement's text. */
static Size
query_size(void)
{
	return debug_query_string != NULL ? strlen(debug_query_string) + 1 : 1;
}

/* add_chunk -- allocate a chunk and zero it, as its memory may have been used before. */
static void *
add_chunk(shm_toc *toc, uint64 key, Size size)
{
	void	   *chunk = shm_toc_allocate(toc, size);

	memset(chunk, 0, size);
	shm_toc_insert(toc, key, chunk);
	return chunk;
}

/* fill_shared -- say what is to be done, in a block that is zeroed. */
static void
fill_shared(void)
{
	const Inplace *job = movers.job;
	const Inplace *toast = movers.toast;
	MoversShared *shared = movers.shared;

	shared->database = MyDatabaseId;
	shared->session_user = GetSessionUserId();
	shared->leader_pid = MyProcPid;
	shared->relid = job->relid;
	shared->toast_relid = toast != NULL ? toast->relid : InvalidOid;
	shared->npages = job->npages;
	shared->nvalues = toast != NULL ? toast->nvalues : 0;
	shared->ring_kb = GetAccessStrategyBufferCount(job->ring) * (BLCKSZ / 1024);
	ranges_init(&shared->shares.visits, 0,
				toast != NULL ? toast->look_through : job->npages - job->tail_start,
				1, MOST_VISITS, movers.planned_for + 1);
	pg_atomic_init_u32(&shared->shares.target, 0);
	pg_atomic_init_u32(&shared->dismissed, 0);
	shared->nmovers = movers.planned_for;
	shared->preserves_cache = movers.cached_blocks > 0;
	if (shared->preserves_cache)
		file_cache_map_init(movers.map, movers.cached_blocks);
}

/* launch -- start as many of the planned workers as the server has room for. */
static void
launch(void)
{
	MemoryContext old = MemoryContextSwitchTo(movers.job->context);
	BackgroundWorker worker = own_worker("pg_cyclone worker", "pg_cyclone_mover_main");

	worker.bgw_notify_pid = MyProcPid;
	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_cyclone worker for PID %d", MyProcPid);
	movers.handles = palloc0_array(BackgroundWorkerHandle *, movers.planned_for);
	for (int i = 0; i < movers.planned_for; i++)
	{
		worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(movers.segment));
		memcpy(worker.bgw_extra, &i, sizeof(int));
		if (!RegisterDynamicBackgroundWorker(&worker, &movers.handles[i]))
			break;
		movers.launched++;
	}
	MemoryContextSwitchTo(old);
}

/*
 * move_some
 *		Move a batch, in a transaction of its own; false if there is nothing more
 *		to do for this process.
 */
static bool
move_some(Inplace *job, Inplace *toast)
{
	return toast != NULL ? value_move_some(job, toast) : row_move_some(job);
}

/* begin_file_cache -- this process begins to drop what it reads. */
static void
begin_file_cache(Inplace *job, FileCacheMap *map)
{
	MemoryContext old = MemoryContextSwitchTo(job->context);

	job->file_cache = file_cache_begin(GetAccessStrategyBufferCount(job->ring));
	job->file_cache_map = map;
	MemoryContextSwitchTo(old);
}

/*
 * end_file_cache
 *		It has ended.
 *
 * In a transaction of its own, as wait_for_workers.
 */
static void
end_file_cache(Inplace *job)
{
	if (job->file_cache == NULL)
		return;
	transaction_begin(false);
	file_cache_end(job->file_cache);
	job->file_cache = NULL;
	transaction_end();
}

/*
 * wait_for_workers
 *		Wait until all have ended.
 *
 * In a transaction of its own, as an interrupt outside of any would not end the
 * session's lock.
 */
static void
wait_for_workers(void)
{
	if (movers.launched == 0)
		return;

	transaction_begin(false);
	for (int i = 0; i < movers.launched; i++)
	{
		pid_t		pid;
		BgwHandleStatus status;

		while ((status = GetBackgroundWorkerPid(movers.handles[i], &pid)) != BGWH_STOPPED &&
			   status != BGWH_POSTMASTER_DIED)
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 WAITING_MS, wait_event_movers());
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
			pace_while_waiting();
		}
	}
	transaction_end();
}

/*
 * add_up
 *		Add what the workers have done to what the leader has; warn and return
 *		false if one has failed.  Raises an error if an audit has failed.
 */
static bool
add_up(void)
{
	Inplace    *job = movers.job;
	TableKey	key = {.database = MyDatabaseId,.relid = job->relid};
	bool		all_through = true;

	for (int i = 0; i < movers.launched; i++)
	{
		MoverShared *mover = &movers.shared->movers[i];

		add_counts(&job->moved, &mover->moved);
		InstrAccumParallelQuery(&mover->buffer_usage, &mover->wal_usage);
		all_through &= mover->is_through;
	}
	/* each worker has waited for its own WAL */
	guards_skip_wal();
	job->rows_moved += job->moved.rows;
	job->rows_undone += job->moved.undone;
	job->rows_audited += job->moved.audited;
	job->entries_not_asked += job->moved.entries_not_asked;
	if (all_through)
		return true;

	job->is_alone = true;
	transaction_begin(false);
	if (table_log_audit_has_failed(&key))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("an audit of VACUUM (FULL INPLACE) has failed in a worker that moved rows of \"%s\"",
						movers.shared->relname),
				 errdetail("The server's log says why."),
				 errhint("The table is left to PostgreSQL's own VACUUM."),
				 err_generic_string(PG_DIAG_CONSTRAINT_NAME, AUDIT_MARK)));
	ereport(WARNING,
			(errmsg("a worker that moved rows has failed, going on without workers"),
			 errdetail("The server's log says why.")));
	transaction_end();
	return false;
}

/*
 * note_failed_audit
 *		An error ends the moves of this process.  If it is a failed audit, the first
 *		of this table, leave the table to the server.  shared may be NULL.
 */
static void
note_failed_audit(Oid relid, const MoversShared *shared)
{
	TableKey	key = {.database = MyDatabaseId,.relid = relid};

	if (!table_log_audit_has_failed(&key))
		(void) autovacuum_audit_has_failed(&key, shared != NULL ? shared->relname : NULL);
}

/* add_counts -- part to sum. */
static void
add_counts(MoveCounts *sum, const MoveCounts *part)
{
	sum->rows += part->rows;
	sum->blocks += part->blocks;
	sum->undone += part->undone;
	sum->audited += part->audited;
	sum->entries_not_asked += part->entries_not_asked;
	sum->obstacles.locked += part->obstacles.locked;
	sum->obstacles.uncommitted += part->obstacles.uncommitted;
	if (TransactionIdIsValid(part->last_xid) &&
		(!TransactionIdIsValid(sum->last_xid) ||
		 TransactionIdFollows(part->last_xid, sum->last_xid)))
		sum->last_xid = part->last_xid;
}

/* part -- release what was shared. */
static void
part(void)
{
	movers.is_running = false;
	pace_leave();
	progress_clear();
	movers.job->shares = NULL;
	if (movers.segment != NULL)
	{
		dsm_detach(movers.segment);
		movers.segment = NULL;
	}
}

/*
 * dismiss
 *		The leader has failed: end the workers.
 *
 * The leader may still hold locks on pages that they wait for, so it can't wait for them.
 */
static void
dismiss(void)
{
	if (!movers.is_running)
		return;
	if (movers.shared != NULL)
		pg_atomic_write_u32(&movers.shared->dismissed, 1);
	for (int i = 0; i < movers.launched; i++)
		TerminateBackgroundWorker(movers.handles[i]);
	part();
}

/* wait_event_movers -- waiting for the workers to end. */
static uint32
wait_event_movers(void)
{
	static uint32 event = 0;

	return own_wait_event(&event, "CycloneMoversEnd");
}

/* begin_work -- show what this process does, and keep the pace from here on. */
static void
begin_work(const MoversShared *shared)
{
	progress_begin(shared->relid, shared->leader_pid);
	progress_phase(OidIsValid(shared->toast_relid) ? PROGRESS_INPLACE_MOVE_VALUES :
				   PROGRESS_INPLACE_MOVE, shared->shares.visits.end);
	pace_begin_work();
}

/*
 * pg_cyclone_mover_main
 *		A worker.
 */
void
pg_cyclone_mover_main(Datum main_arg)
{
	dsm_segment *segment;
	shm_toc    *toc;
	MoversShared *shared;
	MoverShared *me;
	int			number;
	Inplace    *job;
	Inplace    *toast = NULL;

	refuse_without_preloading();
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	CurrentMemoryContext = AllocSetContextCreate(TopMemoryContext, "Mover", ALLOCSET_DEFAULT_SIZES);

	/* if the segment is gone, so is the leader */
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		return;
	toc = shm_toc_attach(MOVERS_MAGIC, dsm_segment_address(segment));
	if (toc == NULL)
		elog(ERROR, "invalid magic number in dynamic shared memory segment");
	shared = shm_toc_lookup(toc, MOVERS_KEY_SHARED, false);
	memcpy(&number, MyBgworkerEntry->bgw_extra, sizeof(int));
	Assert(number >= 0 && number < shared->nmovers);
	me = &shared->movers[number];

	job = palloc0_object(Inplace);
	job->relid = shared->relid;
	job->context = CurrentMemoryContext;
	job->npages = shared->npages;
	job->shares = &shared->shares;
	job->target = InvalidBlockNumber;
	if (shared->ring_kb > 0)
		job->ring = GetAccessStrategyWithSize(BAS_VACUUM, shared->ring_kb);
	if (OidIsValid(shared->toast_relid))
	{
		toast = palloc0_object(Inplace);
		toast->relid = shared->toast_relid;
		toast->values = shm_toc_lookup(toc, MOVERS_KEY_VALUES, false);
		toast->nvalues = shared->nvalues;
	}
	if (shared->preserves_cache)
		begin_file_cache(job, shm_toc_lookup(toc, MOVERS_KEY_FILE_CACHE, false));

	BackgroundWorkerInitializeConnectionByOid(shared->database, shared->session_user,
											  BGWORKER_BYPASS_ALLOWCONN |
											  BGWORKER_BYPASS_ROLELOGINCHECK);
	be_like_leader(toc);
	InstrStartParallelQuery();
	pace_join(shm_toc_lookup(toc, MOVERS_KEY_PACE, false));
	begin_work(shared);
	if (keep_locked(shared))
	{
		work(shared, me, job, toast);
		end_file_cache(job);
		unlock(shared);
	}
	pace_end_work();
	pace_leave();
	progress_clear();
	me->moved = job->moved;
	InstrEndParallelQuery(&me->buffer_usage, &me->wal_usage);
	me->is_through = true;
}

/* work -- move rows until there are no more, or the leader fails. */
static void
work(MoversShared *shared, MoverShared *me, Inplace *job, Inplace *toast)
{
	PG_TRY();
	{
		while (pg_atomic_read_u32(&shared->dismissed) == 0 && !job->is_stopped &&
			   move_some(job, toast))
		{
			me->moved = job->moved;
			InstrEndParallelQuery(&me->buffer_usage, &me->wal_usage);
		}
	}
	PG_CATCH();
	{
		note_failed_audit(shared->relid, shared);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * be_like_leader
 *		Take over the settings that functions in indexes may depend on, and what
 *		pg_stat_activity shows.
 */
static void
be_like_leader(shm_toc *toc)
{
	char	   *query = shm_toc_lookup(toc, MOVERS_KEY_QUERY_TEXT, false);

	StartTransactionCommand();
	RestoreLibraryState(shm_toc_lookup(toc, MOVERS_KEY_LIBRARIES, false));
	CommitTransactionCommand();

	StartTransactionCommand();
	RestoreGUCState(shm_toc_lookup(toc, MOVERS_KEY_SETTINGS, false));
	CommitTransactionCommand();

	if (LockTimeout == 0 || LockTimeout > LOCK_TIMEOUT_MS)
		SetConfigOption("lock_timeout", LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION);
	debug_query_string = query;
	pgstat_report_activity(STATE_RUNNING, query);
}

/*
 * keep_locked
 *		Lock the table, and its TOAST table if values are moved, for as long as this
 *		process lives; false if that can't be done without waiting.
 *
 * An error in a transaction ends these locks, too.  So until unlock there must be no
 * error outside of any.
 */
static bool
keep_locked(const MoversShared *shared)
{
	Oid			relids[] = {shared->relid, shared->toast_relid};
	bool		is_locked = true;

	StartTransactionCommand();
	for (int i = 0; i < lengthof(relids) && is_locked && OidIsValid(relids[i]); i++)
		/* if the leader has died the table may have been dropped */
		is_locked = ConditionalLockRelationOid(relids[i], RowExclusiveLock) &&
			SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relids[i]));
	for (int i = 0; i < lengthof(relids) && is_locked && OidIsValid(relids[i]); i++)
	{
		LockRelId	lock = {.relId = relids[i],.dbId = MyDatabaseId};

		LockRelationIdForSession(&lock, RowExclusiveLock);
	}
	CommitTransactionCommand();
	return is_locked;
}

/* unlock -- undo keep_locked. */
static void
unlock(const MoversShared *shared)
{
	Oid			relids[] = {shared->relid, shared->toast_relid};

	for (int i = 0; i < lengthof(relids) && OidIsValid(relids[i]); i++)
	{
		LockRelId	lock = {.relId = relids[i],.dbId = MyDatabaseId};

		UnlockRelationIdForSession(&lock, RowExclusiveLock);
	}
}
