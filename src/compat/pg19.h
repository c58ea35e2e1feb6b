/*-------------------------------------------------------------------------
 *
 * pg19.h
 *	  What PostgreSQL 19 has of its own.
 *
 * To be included by compat.h only.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPAT_PG19_H
#define CYCLONE_COMPAT_PG19_H

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "catalog/index.h"
#include "commands/repack.h"

/* How the state of a shared buffer is read */
#define COMPAT_READ_BUFFER_STATE(state) pg_atomic_read_u64(state)

#include "compat/since18.h"

typedef uint32 bits32;

/* The arguments that a handler of signals passes on to another one. */
#define COMPAT_SIGNAL_ARGUMENTS			postgres_signal_arg, pg_siginfo

/* amhandler functions return static memory. */
#define COMPAT_STATIC_AM_ROUTINES		true

/* Bits of the visibility map are set by the record of the heap page's changes. */
#define COMPAT_MAP_IN_PAGE_RECORD		true

/* The report has lines for the store of dead items, and for index vacuum's workers. */
#define COMPAT_REPORT_MEMORY			true

/* What a rewrite says when it begins, with a schema and a table. */
#define COMPAT_REPORT_REWRITE			"repacking \"%s.%s\" in physical order"

/* Arguments of a table access method's VACUUM, and of a hook of parse analysis. */
typedef const VacuumParams compat_am_vacuum_params;
typedef const JumbleState compat_jumble_state;

/*
 * compat_unlock_pages
 *		After an error: give up the locks on pages, and others that the abort is about to
 *		give up first.  For what waits, or writes, before that.
 */
static inline void
compat_unlock_pages(void)
{
	LWLockReleaseAll();
	for (Buffer buffer = 1; buffer <= NBuffers; buffer++)
		if (BufferIsLockedByMe(buffer))
		{
			HOLD_INTERRUPTS();	/* as the lock did, until the error */
			UnlockBuffer(buffer);
		}
}

#ifdef USE_ASSERT_CHECKING
/* compat_is_locked -- has this process a lock on the page, of any kind? */
static inline bool
compat_is_locked(Buffer buffer)
{
	/* nobody locks pages of temporary tables */
	return BufferIsLocal(buffer) || BufferIsLockedByMe(buffer);
}
#endif

/*
 * compat_buffer_is_locked_exclusively
 *		For assertions: may this process change the page?  Nobody locks local buffers.
 */
static inline bool
compat_buffer_is_locked_exclusively(Buffer buffer)
{
	return BufferIsLocal(buffer) || BufferIsLockedByMeInMode(buffer, BUFFER_LOCK_EXCLUSIVE);
}

/*
 * compat_server_logs_map
 *		Does the running server log that a heap page's bits in the visibility map are
 *		cleared?  COMPAT_LOGS_MAP says whether the library does.
 */
static inline bool
compat_server_logs_map(void)
{
	return true;
}

/*
 * compat_clear_map
 *		Clears a page's bits; returns true if the map's page is to be registered, and to
 *		get the LSN.
 */
static inline bool
compat_clear_map(Relation rel, BlockNumber blkno, Buffer vmbuffer)
{
	return visibilitymap_clear(rel, blkno, vmbuffer, VISIBILITYMAP_VALID_BITS);
}

/*
 * compat_note_insertion
 *		Notes an insertion on a page, so that a later reader checks whether all
 *		transactions see its rows.
 */
static inline void
compat_note_insertion(Page page, TransactionId xid)
{
	PageSetPrunable(page, xid);
}

/*
 * compat_clear_wrong_map
 *		Clears bits that are set by mistake, unlogged.
 */
static inline void
compat_clear_wrong_map(Relation rel, BlockNumber blkno, Buffer vmbuffer)
{
	compat_lock_map(vmbuffer);
	(void) visibilitymap_clear(rel, blkno, vmbuffer, VISIBILITYMAP_VALID_BITS);
	compat_unlock_map(vmbuffer);
}

/*
 * compat_set_locked_map
 *		Sets a heap page's bits, on the page and in the map, in a critical section.  The
 *		caller has locked both pages, marks the heap page dirty, and logs it with
 *		compat_log_prune.
 */
static inline void
compat_set_locked_map(Relation rel, Buffer buffer, Buffer vmbuffer, uint8 flags)
{
	Assert(CritSectionCount > 0);
	Assert(compat_buffer_is_locked_exclusively(buffer) && compat_buffer_is_locked_exclusively(vmbuffer));
	PageSetAllVisible(BufferGetPage(buffer));
	PageClearPrunable(BufferGetPage(buffer));
	(void) visibilitymap_set(BufferGetBlockNumber(buffer), vmbuffer, flags, rel->rd_locator);
}

/*
 * compat_log_prune
 *		Logs the changes of a heap page, and if vmflags isn't 0 the bits that were set in
 *		the map.
 */
static inline void
compat_log_prune(Relation rel, Buffer buffer, Buffer vmbuffer, uint8 vmflags,
				 TransactionId conflict_xid, bool cleanup_lock, PruneReason reason,
				 HeapTupleFreeze *frozen, int nfrozen,
				 OffsetNumber *dead, int ndead, OffsetNumber *unused, int nunused)
{
	Assert(CritSectionCount > 0 && RelationNeedsWAL(rel));
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(vmflags == 0 || compat_buffer_is_locked_exclusively(vmbuffer));
	log_heap_prune_and_freeze(rel, buffer, vmflags != 0 ? vmbuffer : InvalidBuffer, vmflags,
							  conflict_xid, cleanup_lock, reason,
							  frozen, nfrozen, NULL, 0, dead, ndead, unused, nunused);
}

/*
 * compat_visibilitymap_set
 *		Sets bits of a heap page that has changed in nothing else, in a critical
 *		section, and logs that; returns those that were set before.
 */
static inline uint8
compat_visibilitymap_set(Relation rel, BlockNumber blkno, Buffer buffer,
						 Buffer vmbuffer, TransactionId conflict_xid,
						 uint8 flags)
{
	uint8		old = visibilitymap_get_status(rel, blkno, &vmbuffer);

	Assert(blkno == BufferGetBlockNumber(buffer) && compat_buffer_is_locked_exclusively(buffer));

	compat_lock_map(vmbuffer);
	START_CRIT_SECTION();
	compat_set_locked_map(rel, buffer, vmbuffer, flags);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(rel))
		compat_log_prune(rel, buffer, vmbuffer, flags, conflict_xid, false,
						 PRUNE_VACUUM_SCAN, NULL, 0, NULL, 0, NULL, 0);
	END_CRIT_SECTION();
	compat_unlock_map(vmbuffer);
	return old;
}

/*
 * compat_prune_and_freeze
 *		Has the server prune and freeze a page, and with set_map also set its bits in the
 *		map.  Without set_map it may freeze less.
 */
static inline void
compat_prune_and_freeze(Relation rel, Buffer buffer, Buffer vmbuffer, bool set_map,
						GlobalVisState *vistest, int options,
						struct VacuumCutoffs *cutoffs, OffsetNumber *offnum,
						TransactionId *relfrozenxid, MultiXactId *relminmxid,
						PruneResult *result)
{
	PruneFreezeParams params = {
		.relation = rel,
		.buffer = buffer,
		.vmbuffer = vmbuffer,
		.reason = PRUNE_VACUUM_SCAN,
		.options = options | HEAP_PAGE_PRUNE_FREEZE | (set_map ? HEAP_PAGE_PRUNE_SET_VM : 0),
		.vistest = vistest,
		.cutoffs = cutoffs
	};
	PruneFreezeResult server;

	Assert(CritSectionCount == 0);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(visibilitymap_pin_ok(BufferGetBlockNumber(buffer), vmbuffer));

	heap_page_prune_and_freeze(&params, &server, offnum, relfrozenxid, relminmxid);
	result->ndeleted = server.ndeleted;
	result->nnewlpdead = server.nnewlpdead;
	result->nfrozen = server.nfrozen;
	result->live_tuples = server.live_tuples;
	result->recently_dead_tuples = server.recently_dead_tuples;
	result->hastup = server.hastup;
	result->map_done = set_map;
	result->newly_visible = server.newly_all_visible;
	result->newly_frozen = server.newly_all_visible_frozen || server.newly_all_frozen;
	result->all_visible = false;
	result->all_frozen = false;
	result->vm_conflict_horizon = InvalidTransactionId;
	result->lpdead_items = server.lpdead_items;
	memcpy(result->deadoffsets, server.deadoffsets, server.lpdead_items * sizeof(OffsetNumber));
}

/* compat_pgstat_report_vacuum -- tell the statistics system of a VACUUM. */
static inline void
compat_pgstat_report_vacuum(Relation rel, PgStat_Counter live,
							PgStat_Counter dead, TimestampTz starttime)
{
	pgstat_report_vacuum(rel, live, dead, starttime);
}

/*
 * compat_truncate_default
 *		May VACUUM truncate a table, where the command doesn't say?
 */
static inline bool
compat_truncate_default(const StdRdOptions *opts)
{
	if (opts && opts->vacuum_truncate != PG_TERNARY_UNSET)
		return opts->vacuum_truncate == PG_TERNARY_TRUE;
	return vacuum_truncate;
}

/* compat_index_beginscan -- begin a scan of an index. */
static inline IndexScanDesc
compat_index_beginscan(Relation rel, Relation index, Snapshot snapshot, int nkeys)
{
	return index_beginscan(rel, index, snapshot, NULL, nkeys, 0, SO_NONE);
}

/*
 * compat_fetch_table_stats
 *		The statistics of a table, NULL if there are none; nothing need be freed.
 */
static inline PgStat_StatTabEntry *
compat_fetch_table_stats(bool shared, Oid relid)
{
	return pgstat_fetch_stat_tabentry_ext(shared, relid, NULL);
}

/*
 * compat_shmem_hash
 *		Makes a hash table of that many entries in shared memory, or finds it.
 */
static inline HTAB *
compat_shmem_hash(const char *name, long size, HASHCTL *info, int flags)
{
	return ShmemInitHash(name, size, info, flags);
}

/* compat_guc_real -- the fields that parameters of this type have. */
static inline struct config_real *
compat_guc_real(struct config_generic *parameter)
{
	Assert(parameter->vartype == PGC_REAL);
	return &parameter->_real;
}

/* compat_guc_int -- the fields that parameters of this type have. */
static inline struct config_int *
compat_guc_int(struct config_generic *parameter)
{
	Assert(parameter->vartype == PGC_INT);
	return &parameter->_int;
}

/* The class of waits for pins and, since 19, locks of buffers */
#define COMPAT_WAIT_BUFFER	PG_WAIT_BUFFER

/*
 * compat_set_is_autovacuum
 *		Tells an index access method whether it works for autovacuum; in a worker, too.
 */
static inline void
compat_set_is_autovacuum(IndexVacuumInfo *info, bool is_autovacuum)
{
	info->is_autovacuum = is_autovacuum;
}

/*
 * compat_autovacuum_workers
 *		The most workers that an autovacuum of this table may have, by the server's own settings
 */
static inline int
compat_autovacuum_workers(Relation rel)
{
	const StdRdOptions *opts = (const StdRdOptions *) rel->rd_options;

	if (opts != NULL && opts->autovacuum.autovacuum_parallel_workers >= 0)
		return Min(opts->autovacuum.autovacuum_parallel_workers, autovacuum_max_parallel_workers);
	return autovacuum_max_parallel_workers;
}

/*
 * compat_log_duration
 *		From how many ms on is an autovacuum's VACUUM logged?  -1 for never
 */
static inline int
compat_log_duration(const VacuumParams *params)
{
	return params->log_vacuum_min_duration;
}

/* compat_set_log_duration -- from how many ms on VACUUM and ANALYZE are logged. */
static inline void
compat_set_log_duration(VacuumParams *params, int ms)
{
	params->log_vacuum_min_duration = ms;
	params->log_analyze_min_duration = ms;
}

/*
 * compat_log_panics_only
 *		Logs nothing of this process below PANIC.
 */
static inline void
compat_log_panics_only(void)
{
	log_min_messages[MyBackendType] = PANIC;
}

/*
 * compat_report_vacuum_start
 *		Shows in pg_stat_progress_vacuum which kind of VACUUM begins, and what started it.
 */
static inline void
compat_report_vacuum_start(bool is_wraparound, bool aggressive)
{
	const int	index[] = {PROGRESS_VACUUM_MODE, PROGRESS_VACUUM_STARTED_BY};
	const int64 values[] = {
		aggressive ? PROGRESS_VACUUM_MODE_AGGRESSIVE : PROGRESS_VACUUM_MODE_NORMAL,
		!AmAutoVacuumWorkerProcess() ? PROGRESS_VACUUM_STARTED_BY_MANUAL :
		is_wraparound ? PROGRESS_VACUUM_STARTED_BY_AUTOVACUUM_WRAPAROUND :
		PROGRESS_VACUUM_STARTED_BY_AUTOVACUUM
	};

	pgstat_progress_update_multi_param(lengthof(index), index, values);
}

/* compat_report_failsafe -- shows there that the failsafe is on. */
static inline void
compat_report_failsafe(void)
{
	pgstat_progress_update_param(PROGRESS_VACUUM_MODE, PROGRESS_VACUUM_MODE_FAILSAFE);
}

/*
 * compat_repack_by_server
 *		Has the server repack a table, which the caller has open under an exclusive
 *		lock, and closes it.
 */
static inline void
compat_repack_by_server(Relation rel, bool verbose)
{
	ClusterParams params = {.options = verbose ? CLUOPT_VERBOSE : 0};

	cluster_rel(REPACK_COMMAND_REPACK, rel, InvalidOid, &params, true);
}

/*
 * compat_wal_fpi_bytes
 *		The bytes of full page images; -1 if they aren't counted.
 */
static inline int64
compat_wal_fpi_bytes(const WalUsage *usage)
{
	return usage->wal_fpi_bytes;
}

/*
 * compat_number_of_slots
 *		How many places for replication slots there are, with those of REPACK (CONCURRENTLY)
 */
static inline int
compat_number_of_slots(void)
{
	return max_replication_slots + max_repack_replication_slots;
}

/*
 * compat_slot_pid
 *		The process that uses a replication slot, 0 if none.  Holds its spinlock.
 */
static inline int
compat_slot_pid(const ReplicationSlot *slot)
{
	return slot->active_proc == INVALID_PROC_NUMBER ? 0 : GetPGProcByNumber(slot->active_proc)->pid;
}

/* compat_fake_lsn -- an LSN for a page that isn't logged, larger than earlier ones. */
static inline XLogRecPtr
compat_fake_lsn(Relation index)
{
	return XLogGetFakeLSN(index);
}

/*
 * compat_set_hash_lsn
 *		A page of a hash index that isn't logged was changed: give it an LSN, as the
 *		server's routines do.
 */
static inline void
compat_set_hash_lsn(Relation index, Page page)
{
	PageSetLSN(page, compat_fake_lsn(index));
}

/* compat_gist_mark_tuples_deleted -- entries of a leaf page were deleted. */
static inline void
compat_gist_mark_tuples_deleted(Page page)
{
}

/* compat_is_removable_xid -- can nobody see a transaction as running any more? */
static inline bool
compat_is_removable_xid(GlobalVisState *vistest, TransactionId xid)
{
	return GlobalVisTestIsRemovableXid(vistest, xid, true);
}

/*
 * compat_index_create_copy
 *		Makes an empty copy of an index, as REINDEX CONCURRENTLY does.
 */
static inline Oid
compat_index_create_copy(Relation rel, Oid index, Oid tablespace, const char *name)
{
	return index_create_copy(rel, INDEX_CREATE_SKIP_BUILD | INDEX_CREATE_CONCURRENT,
							 index, tablespace, name);
}

/*
 * compat_pin_recent
 *		Pin a page of the main fork if it is still in that buffer.  Its usage count, which the
 *		server raises, becomes 1 again: else the ring wouldn't reuse the buffer.
 */
static inline bool
compat_pin_recent(Relation rel, BlockNumber blkno, Buffer buffer)
{
	BufferDesc *desc = GetBufferDescriptor(buffer - 1);

	if (!ReadRecentBuffer(rel->rd_locator, MAIN_FORKNUM, blkno, buffer))
		return false;
	(void) UnlockBufHdrExt(desc, LockBufHdr(desc), BUF_USAGECOUNT_ONE, BUF_USAGECOUNT_MASK, 0);
	return true;
}

/*
 * compat_start_write
 *		Begin to write a page that this process has locked exclusively; false if it is clean, or
 *		another process writes it.
 */
static inline bool
compat_start_write(Buffer buffer)
{
	Assert(!BufferIsLocal(buffer) && compat_buffer_is_locked_exclusively(buffer));
	return StartSharedBufferIO(GetBufferDescriptor(buffer - 1), false, false, NULL) ==
		BUFFER_IO_READY_FOR_IO;
}

#endif							/* CYCLONE_COMPAT_PG19_H */
