/*-------------------------------------------------------------------------
 *
 * before19.h
 *	  What PostgreSQL 17 and 18 have and 19 has in another way.
 *
 * To be included by compat.h only.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPAT_BEFORE19_H
#define CYCLONE_COMPAT_BEFORE19_H

#include "access/gist_private.h"
#include "access/nbtree.h"
#include "catalog/index.h"
#include "commands/cluster.h"
#include "storage/lwlock.h"

/* VACUUM (FULL) is shown as a CLUSTER. */
#define PROGRESS_COMMAND_REPACK					PROGRESS_COMMAND_CLUSTER
#define PROGRESS_REPACK_COMMAND					PROGRESS_CLUSTER_COMMAND
#define REPACK_COMMAND_VACUUMFULL				PROGRESS_CLUSTER_COMMAND_VACUUM_FULL
#define PROGRESS_REPACK_PHASE					PROGRESS_CLUSTER_PHASE
#define PROGRESS_REPACK_PHASE_SEQ_SCAN_HEAP		PROGRESS_CLUSTER_PHASE_SEQ_SCAN_HEAP
#define PROGRESS_REPACK_PHASE_SWAP_REL_FILES	PROGRESS_CLUSTER_PHASE_SWAP_REL_FILES
#define PROGRESS_REPACK_PHASE_REBUILD_INDEX		PROGRESS_CLUSTER_PHASE_REBUILD_INDEX
#define PROGRESS_REPACK_PHASE_FINAL_CLEANUP		PROGRESS_CLUSTER_PHASE_FINAL_CLEANUP
#define PROGRESS_REPACK_TOTAL_HEAP_BLKS			PROGRESS_CLUSTER_TOTAL_HEAP_BLKS
#define PROGRESS_REPACK_HEAP_BLKS_SCANNED		PROGRESS_CLUSTER_HEAP_BLKS_SCANNED
#define PROGRESS_REPACK_HEAP_TUPLES_SCANNED		PROGRESS_CLUSTER_HEAP_TUPLES_SCANNED
#define PROGRESS_REPACK_HEAP_TUPLES_INSERTED	PROGRESS_CLUSTER_HEAP_TUPLES_WRITTEN
#define PROGRESS_REPACK_INDEX_REBUILD_COUNT		PROGRESS_CLUSTER_INDEX_REBUILD_COUNT

/* There is no REPACK: no statement has this tag. */
#define T_RepackStmt							T_Invalid
#define REPACK_COMMAND_REPACK					0

typedef int RepackCommand;

typedef struct RepackStmt
{
	NodeTag		type;
	RepackCommand command;
	VacuumRelation *relation;
	bool		usingindex;
	List	   *params;
} RepackStmt;

/* What a rewrite says when it begins, with a schema and a table. */
#define COMPAT_REPORT_REWRITE			"vacuuming \"%s.%s\""

#define PageSetChecksum(page, blkno)	PageSetChecksumInplace(page, blkno)

/*
 * compat_unlock_pages
 *		After an error: give up the locks on pages, and others that the abort is about to
 *		give up first.  For what waits, or writes, before that.
 */
static inline void
compat_unlock_pages(void)
{
	LWLockReleaseAll();
}

/* The arguments that a handler of signals passes on to another one. */
#define COMPAT_SIGNAL_ARGUMENTS			postgres_signal_arg

/* amhandler functions return allocated memory. */
#define COMPAT_STATIC_AM_ROUTINES		false

/* Bits of the visibility map are not set by the record of the heap page's changes. */
#define COMPAT_MAP_IN_PAGE_RECORD		false

/* The report has no line for the store of dead items, nor for index vacuum's workers. */
#define COMPAT_REPORT_MEMORY			false

typedef VacuumParams compat_am_vacuum_params;
typedef JumbleState compat_jumble_state;

#ifdef USE_ASSERT_CHECKING
/* compat_is_locked -- has this process a lock on the page, of any kind? */
static inline bool
compat_is_locked(Buffer buffer)
{
	return BufferIsLocal(buffer) ||
		LWLockHeldByMe(BufferDescriptorGetContentLock(GetBufferDescriptor(buffer - 1)));
}
#endif

/* compat_buffer_is_locked_exclusively -- for assertions: may this process change the page? */
static inline bool
compat_buffer_is_locked_exclusively(Buffer buffer)
{
	/* 17 says of local buffers that they aren't locked */
	return BufferIsLocal(buffer) || BufferIsExclusiveLocked(buffer);
}

/*
 * Clearing a heap page's bits in the visibility map, in a critical section, as part of a
 * WAL record on that page.  Since the minor versions of August 2026 such a record names
 * the map's page, too, which stays locked until the record is written.
 *
 * A server that does so has this function.  The symbol is weak, so that the library can be
 * loaded into another server, and say there that it doesn't fit.
 */
extern bool visibilitymap_clear_locked(Relation rel, BlockNumber heapBlk,
									   Buffer vmbuf, uint8 flags);
#pragma weak visibilitymap_clear_locked

/* compat_server_logs_map -- does the running server log that bits of the map are cleared? */
static inline bool
compat_server_logs_map(void)
{
	return visibilitymap_clear_locked != NULL;
}

/* compat_clear_map -- clear a page's bits; is the map's page to be registered? */
static inline bool
compat_clear_map(Relation rel, BlockNumber blkno, Buffer vmbuffer)
{
	if (COMPAT_LOGS_MAP)
		return visibilitymap_clear_locked(rel, blkno, vmbuffer, VISIBILITYMAP_VALID_BITS);
	(void) visibilitymap_clear(rel, blkno, vmbuffer, VISIBILITYMAP_VALID_BITS);
	return false;
}

/* compat_clear_wrong_map -- clear bits that are set by mistake, unlogged. */
static inline void
compat_clear_wrong_map(Relation rel, BlockNumber blkno, Buffer vmbuffer)
{
	(void) visibilitymap_clear(rel, blkno, vmbuffer, VISIBILITYMAP_VALID_BITS);
}

/* compat_note_insertion -- nothing: pages have no note of insertions. */
static inline void
compat_note_insertion(Page page, TransactionId xid)
{
}

/* compat_set_locked_map -- set bits of two locked pages; never called here. */
static inline void
compat_set_locked_map(Relation rel, Buffer buffer, Buffer vmbuffer, uint8 flags)
{
	Assert(false);
}

/*
 * compat_log_prune
 *		Logs what has been done to a heap page; its bits in the map have a record
 *		of their own.
 */
static inline void
compat_log_prune(Relation rel, Buffer buffer, Buffer vmbuffer, uint8 vmflags,
				 TransactionId conflict_xid, bool cleanup_lock, PruneReason reason,
				 HeapTupleFreeze *frozen, int nfrozen,
				 OffsetNumber *dead, int ndead, OffsetNumber *unused, int nunused)
{
	Assert(CritSectionCount > 0 && RelationNeedsWAL(rel));
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(vmflags == 0);
	log_heap_prune_and_freeze(rel, buffer, conflict_xid, cleanup_lock, reason,
							  frozen, nfrozen, NULL, 0, dead, ndead, unused, nunused);
}

/*
 * compat_prune_and_freeze
 *		Has the server prune and freeze a page; the caller sets its bits in the map.
 */
static inline void
compat_prune_and_freeze(Relation rel, Buffer buffer, Buffer vmbuffer, bool set_map,
						GlobalVisState *vistest, int options,
						struct VacuumCutoffs *cutoffs, OffsetNumber *offnum,
						TransactionId *relfrozenxid, MultiXactId *relminmxid,
						PruneResult *result)
{
	PruneFreezeResult server;

	Assert(CritSectionCount == 0);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(visibilitymap_pin_ok(BufferGetBlockNumber(buffer), vmbuffer));

	heap_page_prune_and_freeze(rel, buffer, vistest, options | HEAP_PAGE_PRUNE_FREEZE,
							   cutoffs, &server, PRUNE_VACUUM_SCAN, offnum,
							   relfrozenxid, relminmxid);
	result->ndeleted = server.ndeleted;
	result->nnewlpdead = server.nnewlpdead;
	result->nfrozen = server.nfrozen;
	result->live_tuples = server.live_tuples;
	result->recently_dead_tuples = server.recently_dead_tuples;
	result->hastup = server.hastup;
	result->map_done = false;
	result->all_visible = server.all_visible;
	result->all_frozen = server.all_frozen;
	result->vm_conflict_horizon = server.vm_conflict_horizon;
	result->lpdead_items = server.lpdead_items;
	memcpy(result->deadoffsets, server.deadoffsets, server.lpdead_items * sizeof(OffsetNumber));
}

/* compat_fetch_table_stats -- the statistics of a table, NULL if there are none. */
static inline PgStat_StatTabEntry *
compat_fetch_table_stats(bool shared, Oid relid)
{
	return pgstat_fetch_stat_tabentry_ext(shared, relid);
}

/* compat_shmem_hash -- make a hash table in shared memory, or find it. */
static inline HTAB *
compat_shmem_hash(const char *name, long size, HASHCTL *info, int flags)
{
	return ShmemInitHash(name, size, size, info, flags);
}

/* compat_guc_real -- the fields that parameters of this type have. */
static inline struct config_real *
compat_guc_real(struct config_generic *parameter)
{
	return (struct config_real *) parameter;
}

/* compat_guc_int -- the fields that parameters of this type have. */
static inline struct config_int *
compat_guc_int(struct config_generic *parameter)
{
	return (struct config_int *) parameter;
}

/* The class of waits for pins and, since 19, locks of buffers */
#define COMPAT_WAIT_BUFFER	PG_WAIT_BUFFERPIN

/* compat_set_is_autovacuum -- nothing: index access methods aren't told. */
static inline void
compat_set_is_autovacuum(IndexVacuumInfo *info, bool is_autovacuum)
{
}

/* compat_autovacuum_workers -- no setting of the server's bounds an autovacuum's workers. */
static inline int
compat_autovacuum_workers(Relation rel)
{
	return MAX_PARALLEL_WORKER_LIMIT;
}

/* compat_log_duration -- from how many ms on is a VACUUM logged?  -1 for never. */
static inline int
compat_log_duration(const VacuumParams *params)
{
	return params->log_min_duration;
}

/* compat_set_log_duration -- set that. */
static inline void
compat_set_log_duration(VacuumParams *params, int ms)
{
	params->log_min_duration = ms;
}

/* compat_log_panics_only -- log nothing of this process below PANIC. */
static inline void
compat_log_panics_only(void)
{
	log_min_messages = PANIC;
}

/* compat_report_vacuum_start -- no progress view has the kind of VACUUM. */
static inline void
compat_report_vacuum_start(bool is_wraparound, bool aggressive)
{
}

/* compat_report_failsafe -- no progress view shows the failsafe. */
static inline void
compat_report_failsafe(void)
{
}

/* compat_repack_by_server -- never called, as there is no REPACK. */
static inline void
compat_repack_by_server(Relation rel, bool verbose)
{
	Assert(false);
}

/* compat_wal_fpi_bytes -- the bytes of full page images; -1, as they aren't counted. */
static inline int64
compat_wal_fpi_bytes(const WalUsage *usage)
{
	return -1;
}

/* compat_number_of_slots -- how many places for replication slots there are */
static inline int
compat_number_of_slots(void)
{
	return max_replication_slots;
}

/*
 * compat_slot_pid
 *		The process that uses a replication slot, 0 if none.  Holds its spinlock.
 */
static inline int
compat_slot_pid(const ReplicationSlot *slot)
{
	return slot->active_pid;
}

/* compat_fake_lsn -- an LSN for a page that isn't logged, larger than earlier ones. */
static inline XLogRecPtr
compat_fake_lsn(Relation index)
{
	return gistGetFakeLSN(index);
}

/* compat_set_hash_lsn -- a page of a hash index that isn't logged keeps the LSN it has. */
static inline void
compat_set_hash_lsn(Relation index, Page page)
{
}

/*
 * compat_gist_mark_tuples_deleted
 *		Entries of a leaf page were deleted.  Nobody reads the mark; the minor
 *		versions since November 2026 don't make it, either.
 */
static inline void
compat_gist_mark_tuples_deleted(Page page)
{
#if SERVER_HAS_GistMarkTuplesDeleted
	GistMarkTuplesDeleted(page);
#endif
}

/* compat_is_removable_xid -- can nobody see a transaction as running any more? */
static inline bool
compat_is_removable_xid(GlobalVisState *vistest, TransactionId xid)
{
	return GlobalVisTestIsRemovableXid(vistest, xid);
}

/*
 * compat_index_create_copy
 *		Makes an empty copy of an index, as REINDEX CONCURRENTLY does.
 */
static inline Oid
compat_index_create_copy(Relation rel, Oid index, Oid tablespace, const char *name)
{
	return index_concurrently_create_copy(rel, index, tablespace, name);
}

#endif							/* CYCLONE_COMPAT_BEFORE19_H */
