/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the server versions we run on.
 *
 * The only file that looks at PG_VERSION_NUM.  It includes one of the headers
 * in compat/, which are named by version and have the same functions and
 * macros.  Everything else is written for the newest supported server and
 * calls them where an older one has another signature, another text or lacks
 * the feature.
 *
 * Differences between minor versions of one major version don't go by a number: a
 * probe (scripts/probe-server) looks at the headers that we are built with, and
 * defines macros SERVER_HAS_... accordingly.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPAT_H
#define CYCLONE_COMPAT_H

#include "access/genam.h"
#include "access/heapam.h"
#include "access/heapam_xlog.h"
#include "access/parallel.h"
#include "access/stratnum.h"
#include "access/visibilitymap.h"
#include "access/xloginsert.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_authid_d.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "common/relpath.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/queryjumble.h"
#include "pgstat.h"
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker_internals.h"
#include "replication/slot.h"
#include "server_features.h"	/* made by scripts/probe-server */
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc_tables.h"
#include "utils/rel.h"
#include "utils/sortsupport.h"

#if PG_VERSION_NUM < 170000 || PG_VERSION_NUM >= 200000
#error "pg_cyclone supports PostgreSQL 17, 18 and 19"
#endif

/* Numbers of 8 bytes are passed as datums, and shared without a lock. */
#if SIZEOF_VOID_P < 8
#error "pg_cyclone supports 64-bit systems only"
#endif

/* The server that we are being built against, as in server_version_num */
#define COMPAT_BUILT_FOR	PG_VERSION_NUM

/*
 * The result of pruning and freezing a heap page.  If map_done is true, the server
 * has set bits of the visibility map, too, and newly_... says which were not set
 * before.  Otherwise the caller sets them, by all_visible, all_frozen and
 * vm_conflict_horizon.
 */
typedef struct PruneResult
{
	int			ndeleted;		/* tuples removed */
	int			nnewlpdead;		/* line pointers that have become dead */
	int			nfrozen;		/* tuples frozen */
	int			live_tuples;
	int			recently_dead_tuples;
	bool		hastup;			/* may the table not be truncated here? */
	bool		map_done;
	bool		newly_visible;	/* all-visible, frozen or not */
	bool		newly_frozen;	/* all-frozen, all-visible before or not */
	bool		all_visible;
	bool		all_frozen;
	TransactionId vm_conflict_horizon;
	int			lpdead_items;	/* how many line pointers are dead */
	OffsetNumber deadoffsets[MaxHeapTuplesPerPage];
} PruneResult;

/* Does a record that clears a heap page's bits in the visibility map name the map's page? */
#if PG_VERSION_NUM >= 190000 || SERVER_HAS_HEAP_MULTI_INSERT_BLKREF_VM
#define COMPAT_LOGS_MAP		true
#else
#define COMPAT_LOGS_MAP		false
#define HEAP_MULTI_INSERT_BLKREF_VM	0
#endif

/*
 * compat_lock_map
 *		Locks the map's page before a critical section in which it changes together with
 *		the heap page, if it is to stay locked until one record has logged both.
 */
static inline void
compat_lock_map(Buffer vmbuffer)
{
	if (COMPAT_LOGS_MAP)
		LockBuffer(vmbuffer, BUFFER_LOCK_EXCLUSIVE);
}

/* compat_unlock_map -- release that lock, after it. */
static inline void
compat_unlock_map(Buffer vmbuffer)
{
	if (COMPAT_LOGS_MAP)
		LockBuffer(vmbuffer, BUFFER_LOCK_UNLOCK);
}

/* compat_register_map -- register the map's page with the record being made. */
static inline void
compat_register_map(Buffer vmbuffer)
{
	XLogRegisterBuffer(HEAP_MULTI_INSERT_BLKREF_VM, vmbuffer, 0);
}

#if PG_VERSION_NUM >= 190000
#include "compat/pg19.h"
#elif PG_VERSION_NUM >= 180000
#include "compat/pg18.h"
#else
#include "compat/pg17.h"
#endif

#endif							/* CYCLONE_COMPAT_H */
