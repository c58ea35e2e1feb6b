/*-------------------------------------------------------------------------
 *
 * audit.h
 *	  A sample of pages, judged a second time by other code than the engine's.
 *
 * See audit.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_AUDIT_H
#define CYCLONE_AUDIT_H

#include "common/pg_prng.h"

#include "compat.h"
#include "engine/state.h"
#include "settings.h"

/* What is about to be done to a heap page; arrays in ascending order */
typedef struct PagePlan
{
	const OffsetNumber *nowdead;
	int			nnowdead;
	const OffsetNumber *nowunused;
	int			nnowunused;
	const HeapTupleFreeze *frozen;
	int			nfrozen;
	TransactionId latest_xid_removed;
	const PruneResult *result;
} PagePlan;

/* The page, or the item, that a verdict is about */
typedef struct AuditPlace
{
	Relation	rel;
	Buffer		buffer;			/* locked, released on failure; or invalid, */
	Page		page;			/* then with a copy of the page, or NULL */
	BlockNumber blkno;
	OffsetNumber off;			/* may be invalid */
} AuditPlace;

/*
 * If verdicts differ these routines release the lock on the page, and raise an error.
 * None of these is called in a critical section.
 */

/* audit_report.c */
extern void audit_raise(const AuditPlace *place, const char *command, const char *state,
						const char *engine, const char *audit);

/* audit.c */
extern void audit_begin(TableVacuum *vacuum);
extern void audit_fail(TableVacuum *vacuum, const AuditPlace *place,
					   const char *engine, const char *audit);
extern void audit_stored(TableVacuum *vacuum, BlockNumber blkno,
						 const OffsetNumber *offsets, int noffsets);
extern void audit_collected(TableVacuum *vacuum);
extern void audit_age(TableVacuum *vacuum, const VacuumCounters *counters);

/*
 * audit_heap.c: the page is locked exclusively, but for audit_noted, and stays so; the
 * map's is pinned
 */
extern void audit_before_prune(TableVacuum *vacuum, Buffer buffer, const PagePlan *plan);
extern void audit_noted(TableVacuum *vacuum, Buffer buffer, const OffsetNumber *dead, int ndead,
						const PruneResult *pruned);
extern void audit_skipped(TableVacuum *vacuum, BlockNumber start, BlockNumber end);
extern void audit_map(TableVacuum *vacuum, Buffer buffer, Buffer vmbuffer);
extern void audit_before_free(TableVacuum *vacuum, Buffer buffer, const DeadTidsPage *dead,
							  uint8 bits, TransactionId newest_xmin);

/* audit_btree.c: the TIDs of a page */
#define AUDIT_MAX_TIDS	(BLCKSZ / sizeof(ItemPointerData))

typedef struct AuditTids
{
	int			ntids;
	ItemPointerData tids[AUDIT_MAX_TIDS];
} AuditTids;

/* The page of a btree in hand */
typedef struct BtreeAudit
{
	AuditTids	now;
	AuditTids	before;			/* its change, if has_before */
	bool		has_before;
	bool		dead[AUDIT_MAX_TIDS];
} BtreeAudit;

extern int	audit_match(TableVacuum *vacuum, Relation index, Buffer buffer,
						const ItemPointerData *tids, int ntids, bool *dead);
extern void audit_deleted(TableVacuum *vacuum, Relation index, Buffer buffer);
extern bool audit_begin_indexes(TableVacuum *vacuum);
extern void audit_indexes(TableVacuum *vacuum);
extern void audit_btree_tids(AuditTids *tids, Relation index, Page page, BlockNumber blkno);

/* audit_hnsw.c */
extern void audit_hnsw_page(TableVacuum *vacuum, int number, BlockNumber blkno);

/* audit_new_btree.c */
extern int64 audit_new_btree(Relation index, Relation table, bool is_locked, const char *command);

/*
 * audit_rows.c: moved rows; and are the values of two versions, with these columns, different?  If
 * values_move, a value in the TOAST table may be in another place there.
 */
extern bool audit_rows_differ(HeapTuple old, TupleDesc old_desc, HeapTuple new,
							  TupleDesc new_desc, bool values_move);

typedef struct MoveAudit MoveAudit;

extern void audit_moves_note(MoveAudit **audit, MemoryContext context,
							 const ItemPointerData *old, const ItemPointerData *new);
extern int	audit_moves_check(MoveAudit *audit, Relation rel, TransactionId xid,
							  BufferAccessStrategy ring);

/* audit_is_due -- is the page in hand one of the sample? */
static inline bool
audit_is_due(void)
{
	return cyclone_audit > 0 && pg_prng_double(&pg_global_prng_state) < cyclone_audit;
}

#endif							/* CYCLONE_AUDIT_H */
