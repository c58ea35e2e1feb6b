/*-------------------------------------------------------------------------
 *
 * table_rows.h
 *	  Reading the rows of a new table that are to be indexed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TABLE_ROWS_H
#define CYCLONE_TABLE_ROWS_H

#include "access/htup.h"
#include "storage/block.h"
#include "utils/rel.h"

/* One process, while it reads rows */
typedef struct TableRows
{
	Relation	heap;
	/* the next blocks to be read; false if there are no more */
	bool		(*next_blocks) (void *arg, BlockNumber *next, BlockNumber *end);
	/* does something with the rows of a page; false if no more are needed */
	bool		(*take_page) (void *arg, HeapTuple rows, int nrows);
	void	   *arg;

	double		live;			/* rows that were read and aren't dead */
	BlockNumber next;			/* block to be read */
	BlockNumber end;
} TableRows;

/*
 * The table is locked against changes.  Rows are valid during the call of take_page, which
 * comes with their number, in their order, without a lock on the page.
 */
extern void table_rows_read(TableRows *rows);

#endif							/* CYCLONE_TABLE_ROWS_H */
