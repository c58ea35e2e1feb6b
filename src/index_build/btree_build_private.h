/*-------------------------------------------------------------------------
 *
 * btree_build_private.h
 *	  What the files of a btree's build share: btree_build.c, which has the way
 *	  of a build, and btree_entry.c, btree_collect.c, btree_sort.c,
 *	  btree_load.c, which it calls in this order.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BTREE_BUILD_PRIVATE_H
#define CYCLONE_BTREE_BUILD_PRIVATE_H

#include "access/itup.h"
#include "nodes/execnodes.h"
#include "port/atomics.h"
#include "utils/rel.h"
#include "utils/sortsupport.h"

#include "index_build/btree_build.h"
#include "index_build/btree_level.h"
#include "index_build/entry_sort.h"
#include "index_build/key_code.h"
#include "new_files/new_blocks.h"

/* An entry that stands for those of its row's page */
typedef struct SampleRow
{
	uint64		entry[ENTRY_MAX_WORDS];
	int			weight;			/* how many items the page has */
} SampleRow;

struct BtreeSample
{
	int			nwords;			/* of an entry */
	int			nrows;
	SampleRow  *rows;			/* in order */
	int64		weight;			/* of all */
};

struct BtreeBuild
{
	/* constant once the team is launched */
	Oid			relid;
	int			nparts;
	Size		separators;		/* where they are */

	NewBlocksShared blocks;
	pg_atomic_uint32 parts_done;
	BtreeEnds	parts[FLEXIBLE_ARRAY_MEMBER];
};

/* The order of the index */
typedef struct KeyOrder
{
	TupleDesc	desc;
	int			nkeys;
	SortSupport support;
} KeyOrder;

/* What it takes to make entries of the rows in a slot */
typedef struct EntryMaker
{
	IndexInfo  *info;
	EState	   *estate;
	ExprState  *predicate;
	TupleTableSlot *slot;
} EntryMaker;

/* One process, while it sorts the entries of a part */
typedef struct PartSort
{
	BtreePart  *part;
	EntryMaker	maker;
	KeyCode    *code;
	EntrySort  *sort;

	/* if entries point at tuples, otherwise NULL */
	MemoryContext tuples;
	KeyOrder	order;
	Size		max_tuples;		/* bytes */
	int64		next_look;		/* number of entries at which to ask if it is
								 * worth while */
} PartSort;

/* One process, while it reads the table once for several indexes */
typedef struct TablePass
{
	Relation	heap;
	TupleTableSlot *slot;
	double		rows;			/* that aren't dead */
	int			nsorts;
	PartSort   *sorts;
	BlockNumber nblocks;
	bool		has_begun;		/* to read them */
} TablePass;

/* btree_separators -- the first entries of all parts but the first, one behind the other. */
static inline uint64 *
btree_separators(BtreeBuild *build)
{
	return (uint64 *) ((char *) build + build->separators);
}

/*
 * in btree_entry.c
 *
 * btree_entry_order is the order of an index, palloc'd; btree_entry_compare compares two
 * tuples by it, as strcmp.  btree_entry_make makes the values of the row in the maker's slot,
 * valid until the next row; it returns false for a row that a partial index leaves out.
 */
extern void btree_entry_order(KeyOrder *order, Relation index);
extern int	btree_entry_compare(const KeyOrder *order, IndexTuple left, IndexTuple right);
extern void btree_entry_maker_begin(EntryMaker *maker, IndexInfo *info, TupleTableSlot *slot);
extern bool btree_entry_make(EntryMaker *maker, Datum *values, bool *isnull);
extern void btree_entry_maker_end(EntryMaker *maker);

/*
 * in btree_sort.c
 *
 * btree_sort_begin for each part, then, if no entries have been collected, btree_sort_rows
 * reads the table once for all of a pass.  A part may be given up then: no sort is left.
 */
extern void btree_sort_begin(PartSort *sort, BtreePart *part);
extern void btree_sort_rows(TablePass *pass);
extern int	btree_sort_compare_ties(const void *a, const void *b, void *arg);

/* in btree_collect.c: take a part's entries out of a collection. */
extern void btree_collect_take(BtreeCollection *collection, PartSort *sort);

/*
 * in btree_load.c: put what was sorted into the pages of a level, which the caller
 * begins and ends.  An entry that is too large is an error, as in the server's build, and
 * so are two of one key, if the part's info says that the index is unique.
 */
extern void btree_load_leaves(const NewBtree *btree, PartSort *sort, BtreeLevel *level);

/*
 * in btree_build.c: sort the entries of a part, which are all there, fill its leaf pages, and
 * end the sort.  A single part becomes a whole index, and files may be NULL.
 */
extern void btree_build_pages(PartSort *sort, SharedFileSet *files, Relation heap);

#endif							/* CYCLONE_BTREE_BUILD_PRIVATE_H */
