/*-------------------------------------------------------------------------
 *
 * btree_build.h
 *	  Building btrees, each whole or in parts by several processes.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_BTREE_BUILD_H
#define CYCLONE_BTREE_BUILD_H

#include "access/genam.h"
#include "nodes/execnodes.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/sharedfileset.h"
#include "utils/rel.h"

/* What is known of the rows, to divide an index of them */
typedef struct BtreeSample BtreeSample;

/* A btree in the making, in shared memory */
typedef struct BtreeBuild BtreeBuild;

/* The entries of btrees, collected by all processes, in shared memory */
typedef struct BtreeCollection BtreeCollection;

/* A part of one, or all of it, to be built by one process */
typedef struct BtreePart
{
	BtreeBuild *build;
	int			number;
	Relation	index;
	IndexInfo  *info;
	Size		tuple_size;		/* about what a tuple takes, if entries need
								 * one */
	BtreeCollection *collection;	/* where its entries are; NULL: it is the
									 * whole index, and reads the table */
	int			collected;		/* which one of the indexes there */
	int			nsharing;		/* how many processes share its memory */
	pg_atomic_uint32 *ndone;	/* indexes of which all parts are ready */
	bool		is_given_up;	/* the server is to build the index */
	IndexBuildResult counts;	/* what was found */
	double		seconds;		/* what it took */
} BtreePart;

/*
 * The leader calls btree_sample for an index of a heap that no process changes, to divide
 * it into at most nparts parts; NULL if there are too few rows.  A single part needs no
 * sample.  When the index has an empty file, and before any process builds a part, the
 * leader calls btree_build_begin, for shared memory of btree_build_size.  When all parts
 * are ready it calls btree_build_end.
 *
 * btree_build_whole builds different indexes of one part each, with one pass over the table
 * and at most maintenance_work_mem.  btree_build_collected builds a part whose entries have
 * been collected, of an index of several.  Both count in ndone the indexes that are ready by
 * it.  An index that is given up has an empty file.  An entry that is too large is an error,
 * as in the server's build.
 *
 * The indexes are locked exclusively, and the table against changes.
 */
extern BtreeSample *btree_sample(Relation heap, Relation index, int nparts);
extern Size btree_build_size(int nparts);
extern void btree_build_begin(BtreeBuild *build, const BtreeSample *sample, int nparts,
							  Relation index);
extern void btree_build_whole(BtreePart *parts, int nparts, Relation heap);
extern void btree_build_collected(BtreePart *part, SharedFileSet *files, Relation heap);
extern void btree_build_end(BtreeBuild *build, SharedFileSet *files,
							Relation heap, Relation index);

/*
 * All processes collect entries beforehand, with one pass over the table that they
 * share.  This is for indexes that are divided into nparts parts, and whose entries are
 * integers without tuples, of entry_sizes bytes in all.  The leader gets a segment of
 * btree_collection_size, for a table of not more rows than that, and calls
 * btree_collection_begin.  Then all members call btree_collect_rows: parts has one part of
 * each index.  Each process may use maintenance_work_mem less its share of the segment.
 */
extern Size btree_collection_size(double rows, BlockNumber nblocks, int nparts, int nindexes,
								  Size entry_sizes);
extern void btree_collection_begin(BtreeCollection *collection, Size size, BlockNumber nblocks,
								   int nparts, int nindexes);
extern void btree_collect_rows(BtreeCollection *collection, BtreePart *parts, Relation heap);

/* seconds_since -- how long ago that was. */
static inline double
seconds_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_DOUBLE(now);
}

#endif							/* CYCLONE_BTREE_BUILD_H */
