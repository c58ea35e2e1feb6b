/*-------------------------------------------------------------------------
 *
 * spgist_page.h
 *	  One process's part of an SP-GiST index, and what it does to one page.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SPGIST_PAGE_H
#define CYCLONE_SPGIST_PAGE_H

#include "access/spgist_private.h"

#include "engine/index/index_kind.h"

/* What the team shares of one index */
typedef struct SpgistShared
{
	TransactionId start_xmin;	/* written by the leader, in spgist_begin_pass */
} SpgistShared;

/* How to take tuples out of their chains on one page */
typedef struct LeafPlan
{
	uint16		ndead;			/* heads of chains of which nothing is left */
	uint16		nplaceholder;	/* tuples to be replaced by placeholders */
	uint16		nmove;			/* to be moved to their head's place */
	uint16		nchain;			/* to be linked to another next one */
	OffsetNumber dead[MaxIndexTuplesPerPage];
	OffsetNumber placeholder[MaxIndexTuplesPerPage];
	OffsetNumber move_from[MaxIndexTuplesPerPage];
	OffsetNumber move_to[MaxIndexTuplesPerPage];
	OffsetNumber chain[MaxIndexTuplesPerPage];
	OffsetNumber chain_next[MaxIndexTuplesPerPage];
} LeafPlan;

/* One process's part of one index */
typedef struct SpgistScan
{
	KindScan	base;
	SpgistShared *spgist;
	SpGistState state;			/* what the server's routines want */

	/* places to be visited: palloc'd, NULL at first */
	ItemPointerData *pending;
	int			npending;
	int			pending_size;

	/*
	 * the TIDs of the page in hand, where they are, and which of them are
	 * dead
	 */
	int			ntids;
	ItemPointerData tids[MaxIndexTuplesPerPage];
	OffsetNumber offsets[MaxIndexTuplesPerPage];
	bool		dead[MaxIndexTuplesPerPage];

	/* by offset: the one before it in its chain, and is it to be deleted? */
	OffsetNumber before[MaxIndexTuplesPerPage + 1];
	bool		deletable[MaxIndexTuplesPerPage + 1];
	LeafPlan	plan;
} SpgistScan;

/*
 * All of these want the page locked exclusively, and leave it so.  Damage
 * that they find is an error.  The page isn't new; all routines but the first want it
 * checked by that.
 *
 * spgist_check_page		is this page of an SP-GiST index?
 * spgist_clean_root		delete the tuples of dead TIDs of a root that is a leaf
 * spgist_clean_leaf		delete those of another leaf page; count says if its tuples
 *							are counted
 * spgist_clean_redirects	old redirects become placeholders
 * spgist_follow_inner_tuple	make pending what an inner tuple leads to, or the place
 *							that it has moved to
 */
extern void spgist_check_page(Relation index, Buffer buffer);
extern void spgist_clean_root(SpgistScan *scan, Buffer buffer);
extern void spgist_clean_leaf(SpgistScan *scan, Buffer buffer, bool count);
extern void spgist_clean_redirects(SpgistScan *scan, Buffer buffer);
extern void spgist_follow_inner_tuple(SpgistScan *scan, Buffer buffer, OffsetNumber offset);

#endif							/* CYCLONE_SPGIST_PAGE_H */
