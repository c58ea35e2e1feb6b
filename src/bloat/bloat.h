/*-------------------------------------------------------------------------
 *
 * bloat.h
 *	  Estimates of the bloat of a relation.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BLOAT_H
#define CYCLONE_BLOAT_H

#include "nodes/pg_list.h"
#include "utils/rel.h"

#include "bloat/page_sample.h"

typedef struct BloatEstimate
{
	BlockNumber pages;
	BlockNumber sampled_pages;
	bool		known;			/* if false, the rest is not set */

	/* as pgstattuple counts, in bytes */
	double		live_bytes;
	double		dead_bytes;		/* VACUUM would free them */
	double		held_bytes;		/* dead, but an old snapshot may see them */
	double		free_bytes;

	/* size when all is packed anew by its fillfactor, in pages */
	double		rewritten_pages;
	double		rewritten_error;	/* standard error of that */

	/* size when the rows at the end have moved to the front */
	double		inplace_pages;

	/* of a heap: what its indexes point at */
	Total		live_roots;		/* rows, or HOT chains, not all dead */
	double		dead_roots;		/* share of those that are dead, 0 to 1 */

	/* of a heap: what a VACUUM finds, and how much WAL it writes for the heap */
	double		live_rows;
	double		dead_rows;
	double		held_rows;
	double		dead_items;		/* whose index entries it deletes, */
	double		dead_item_pages;	/* and the pages that have some */
	double		vacuum_wal;
	double		freeze_wal;		/* besides, if it freezes all-visible pages */
	double		image_share;	/* pages logged in full when changed, 0 to 1 */
} BloatEstimate;

/* An estimate of a table, of its TOAST table, or of an index of either */
typedef struct RelationBloat
{
	Oid			relid;
	char		relkind;
	bool		is_missing;		/* locked or unreadable: no estimate */
	BloatEstimate estimate;
} RelationBloat;

/* May the current user see figures of this table, if it exists? */
extern bool bloat_may_be_told(Oid relid);

/*
 * How many bytes VACUUM (FULL INPLACE) would give back of a table with TOAST table and
 * indexes, by a sample as in the view cyclone.bloat; -1 if the table can't be locked at
 * once, read or compacted.  Indexes that are no btrees count if index_bloat_is_known.  With
 * an active snapshot; needs no privilege.
 */
extern double bloat_could_free(Oid relid);

/*
 * A list of RelationBloat: for an open and locked heap, and with_rest, for its indexes and
 * its TOAST table, too, in this order.  Waits for locks on these.  Indexes that are no
 * btrees have sizes, too, if index_bloat_is_known.  There is a warning if a relation can't be read.
 */
extern List *bloat_of_table(Relation rel, uint32 most_pages, bool with_rest);

/*
 * How many pages an open and locked index would have if it were built anew, when its table
 * has been vacuumed.  Returns false if index_bloat_is_known isn't true of it and it is no
 * btree, or, with a warning, if it can't be read.
 */
extern bool bloat_rebuilt_pages(Relation index, uint32 most_pages, BlockNumber *pages);

/*
 * Estimate the bloat of a table, reading at most most_pages of its pages.  The caller
 * has a lock on it, AccessShareLock or more.
 */
extern void heap_bloat(Relation rel, uint32 most_pages, pg_prng_state *prng,
					   BloatEstimate *estimate);

/*
 * Estimate the bloat of a btree, reading at most most_pages of its pages.  *heap is
 * the estimate of its table.  The caller has a lock on the index, AccessShareLock or
 * more, and knows that it has been built.
 */
extern void btree_bloat(Relation index, uint32 most_pages, pg_prng_state *prng,
						const BloatEstimate *heap, BloatEstimate *estimate);

/*
 * Estimate the bloat of an HNSW index for which hnsw_is_ours is true, reading at most most_pages
 * of its pages.  The caller has a lock as for a btree.
 */
extern void hnsw_bloat(Relation index, uint32 most_pages, pg_prng_state *prng,
					   BloatEstimate *estimate);

/* Such an index is built anew if this part of it would be freed at least. */
#define ROUGHLY_BLOATED_FRACTION	0.25

/*
 * Does index_rebuilt_pages know indexes of this access method?  It knows no btrees.
 */
extern bool index_bloat_is_known(Oid access_method);

/*
 * Estimate how many pages an index would have if it were built anew, reading at most
 * most_pages of it.  It is of a kind for which index_bloat_is_known is true.  The caller
 * has a lock on it, AccessShareLock or more, and knows that it has been built.
 */
extern double index_rebuilt_pages(Relation index, uint32 most_pages, pg_prng_state *prng);

#endif							/* CYCLONE_BLOAT_H */
