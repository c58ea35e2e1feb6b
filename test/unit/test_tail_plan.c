/*-------------------------------------------------------------------------
 *
 * test_tail_plan.c
 *	  Where a table could end, by its free space map: inplace/tail_plan.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "inplace/tail_plan.c"
#include "inplace/page_change.c"
#include "unit.h"

#define MOST_PAGES	2000
/* What of a page can be used, and an empty page in the map */
#define PAGE_BYTES	(BLCKSZ - SizeOfPageHeaderData)
#define EMPTY		(PAGE_BYTES / FSM_STEP * FSM_STEP)

/* The table */
static BlockNumber npages;
static Size free_space[MOST_PAGES];
static BlockNumber all_visible;
static FormData_pg_class form;
static StdRdOptions reloptions;
static RelationData relation;
static Inplace job;

/* CheckRelationLockedByMe -- it is locked. */
bool
CheckRelationLockedByMe(Relation rel, LOCKMODE lockmode, bool orstronger)
{
	return true;
}

/* RelationGetNumberOfBlocksInFork -- how large the table is. */
BlockNumber
RelationGetNumberOfBlocksInFork(Relation rel, ForkNumber fork)
{
	return npages;
}

/* GetRecordedFreeSpace -- what the map says of a page. */
Size
GetRecordedFreeSpace(Relation rel, BlockNumber blkno)
{
	CHECK(blkno < npages);
	return free_space[blkno];
}

/* visibilitymap_count -- how many pages nobody has changed. */
void
visibilitymap_count(Relation rel, BlockNumber *visible, BlockNumber *frozen)
{
	*visible = all_visible;
}

/* make_table -- one with these pages, each of which has this free space. */
static void
make_table(BlockNumber pages, Size space, int fillfactor)
{
	memset(&job, 0, sizeof(job));
	npages = all_visible = job.pass.old_pages = pages;
	for (BlockNumber blkno = 0; blkno < npages; blkno++)
		free_space[blkno] = space;
	form.relkind = RELKIND_RELATION;
	reloptions.fillfactor = fillfactor;
	relation.rd_rel = &form;
	relation.rd_options = (bytea *) &reloptions;
}

/* plan -- make such a table with these rows, and look where it could end. */
static void
plan(BlockNumber pages, Size space, int fillfactor, char kind, double rows)
{
	make_table(pages, space, fillfactor);
	form.relkind = kind;
	job.pass.live_tuples = rows;
	tail_plan(&job, &relation);
}

/* used -- bytes in use on a page, by the map. */
static Size
used(BlockNumber blkno)
{
	return free_space[blkno] >= EMPTY ? 0 : PAGE_BYTES - free_space[blkno];
}

/* takes -- how many rows of a size fit into a page with this free space. */
static int
takes(Size space, Size row, Size reserve)
{
	int			number = 0;

	/* the first may go into the reserve of a page that is as good as empty */
	while (space >= row &&
		   (space >= row + reserve || (number == 0 && space >= NEARLY_EMPTY)))
	{
		space -= row;
		number++;
	}
	return number;
}

/*
 * check_plan
 *		The tail's rows fit into the room in front of it, and no longer tail's would.
 */
static void
check_plan(Size row, Size reserve, int64 others)
{
	int64		room = -others;
	int64		needed = 0;

	for (BlockNumber blkno = 0; blkno < job.tail_start; blkno++)
		room += takes(free_space[blkno], row, reserve) * (int64) row;
	for (BlockNumber blkno = job.tail_start; blkno < npages; blkno++)
		needed += used(blkno);
	CHECK_EQ(job.row_size, row);
	CHECK(job.tail_start == npages || needed <= room);
	if (job.tail_start > 0)
	{
		BlockNumber last = job.tail_start - 1;

		room -= takes(free_space[last], row, reserve) * (int64) row;
		CHECK(needed + (int64) used(last) > room);
	}
}

/* test_a_full_table_has_no_tail -- nor has one without pages. */
UNIT_TEST(test_a_full_table_has_no_tail)
{
	plan(100, 0, 100, RELKIND_RELATION, 10000);
	CHECK_EQ(job.tail_start, 100);
	CHECK_EQ(job.npages, 100);
	CHECK_EQ(job.free_bytes, 0);

	plan(0, 0, 100, RELKIND_RELATION, 0);
	CHECK_EQ(job.tail_start, 0);
	CHECK_EQ(job.row_size, 1);
}

/* test_an_empty_table_is_all_tail -- whatever the size of rows. */
UNIT_TEST(test_an_empty_table_is_all_tail)
{
	plan(100, EMPTY, 100, RELKIND_RELATION, 0);
	CHECK_EQ(job.tail_start, 0);
	CHECK_EQ(job.free_bytes, 100 * PAGE_BYTES);
}

/* test_half_a_table_fits_into_the_other_half -- if it is half empty. */
UNIT_TEST(test_half_a_table_fits_into_the_other_half)
{
	plan(1000, PAGE_BYTES / 2, 100, RELKIND_RELATION, 1000 * 40);
	CHECK_BETWEEN(500, job.tail_start, 510);
	check_plan(PAGE_BYTES / 2 / 40, 0, 0);

	/* with that fillfactor as good as nothing fits */
	plan(1000, PAGE_BYTES / 2, 50, RELKIND_RELATION, 1000 * 40);
	CHECK_EQ(job.tail_start, 1000);
}

/* test_any_table -- whatever is free where, and however full pages are to be. */
UNIT_TEST(test_any_table)
{
	for (int i = 0; i < 500; i++)
	{
		int			fillfactor = unit_number(0, 2) == 0 ? unit_number(10, 99) : 100;
		Size		reserve = BLCKSZ * (100 - fillfactor) / 100;
		int			full = unit_number(0, 100);
		int64		in_use = 0;
		int64		in_table = 0;
		int			rows = unit_number(1, 60);

		make_table(unit_number(1, 300), 0, fillfactor);
		for (BlockNumber blkno = 0; blkno < npages; blkno++)
		{
			if (unit_number(0, 99) >= full)
				free_space[blkno] = unit_number(0, EMPTY / FSM_STEP) * FSM_STEP;
			in_use += used(blkno);
			in_table += PAGE_BYTES;
		}
		job.pass.live_tuples = Max(in_use * rows / PAGE_BYTES, 1);
		unit_case("table %d: %u pages, %d%% of them full, fillfactor %d, %d rows a page",
				  i, npages, full, fillfactor, rows);
		tail_plan(&job, &relation);
		CHECK_EQ(job.free_bytes, in_table - in_use);
		check_plan(Min(Max(in_use / job.pass.live_tuples, 1), MaxHeapTupleSize), reserve, 0);
	}
}

/* test_parts_of_values_are_as_large_as_they_get -- in a TOAST table. */
UNIT_TEST(test_parts_of_values_are_as_large_as_they_get)
{
	plan(1000, PAGE_BYTES / 2, 100, RELKIND_TOASTVALUE, 1000 * 100);	/* most of them small */
	/* a page takes two, and may have as many as would need the room of four */
	CHECK_EQ(used(0) / TOAST_PART_SIZE + 2, 4);
	CHECK_EQ(job.row_size, used(0) / 100);
	CHECK_BETWEEN(666, job.tail_start, 668);

	/* but an empty one has none */
	plan(1000, EMPTY, 100, RELKIND_TOASTVALUE, 0);
	CHECK_EQ(job.tail_start, 0);

	/* with room for less than one there is none */
	plan(1000, TOAST_PART_SIZE - FSM_STEP, 100, RELKIND_TOASTVALUE, 1000 * 100);
	CHECK_EQ(job.tail_start, 1000);
}

/* test_a_row_is_no_larger_than_one_can_be -- though most are dead, and still there. */
UNIT_TEST(test_a_row_is_no_larger_than_one_can_be)
{
	make_table(100, 0, 100);
	free_space[0] = free_space[1] = EMPTY;
	job.pass.live_tuples = 10;
	tail_plan(&job, &relation);
	CHECK_EQ(job.row_size, MaxHeapTupleSize);
	/* it takes a row though less than a page is known to be free */
	CHECK_BETWEEN(98, job.tail_start, 99);
}

/*
 * test_others_find_room
 *		At first as much as twice the rows of pages that they have changed, but no
 *		more than a part of the table.
 */
UNIT_TEST(test_others_find_room)
{
	const Size	row = PAGE_BYTES / 2 / 10;

	for (int changed = 0; changed <= 1000; changed += 50)
	{
		int64		expected = Min(2 * changed * (int64) row, 1000 / 32 * BLCKSZ);

		unit_case("%d pages changed", changed);
		make_table(1000, PAGE_BYTES / 2, 100);
		job.pass.live_tuples = 1000 * 10;
		all_visible = 1000 - changed;
		tail_plan(&job, &relation);
		CHECK_EQ(job.room_for_others, expected);
		check_plan(row, 0, expected);
	}
}

/* test_others_need_room -- twice what it has grown by, less and less if it hasn't. */
UNIT_TEST(test_others_need_room)
{
	make_table(1000, PAGE_BYTES / 2, 100);
	job.pass.live_tuples = 1000 * 40;
	job.npages = 950;
	job.room_for_others = 1000;
	tail_plan(&job, &relation);
	CHECK_EQ(job.room_for_others, 2 * 50 * BLCKSZ);
	check_plan(PAGE_BYTES / 2 / 40, 0, 2 * 50 * BLCKSZ);

	/* has not grown, then it is smaller */
	tail_plan(&job, &relation);
	CHECK_EQ(job.room_for_others, 50 * BLCKSZ);
	job.npages = 1001;
	tail_plan(&job, &relation);
	CHECK_EQ(job.room_for_others, 25 * BLCKSZ);
}

/* test_others_do_not_get_all_room -- a quarter, and so on, until something is left. */
UNIT_TEST(test_others_do_not_get_all_room)
{
	const int64 much = INT64CONST(1000) * BLCKSZ;

	make_table(1000, PAGE_BYTES / 2, 100);
	job.pass.live_tuples = 1000 * 40;
	job.npages = 1000;
	job.room_for_others = much / 5 * 8;
	tail_plan(&job, &relation);
	CHECK(job.tail_start < 1000);
	CHECK_EQ(job.room_for_others, much / 5);
	check_plan(PAGE_BYTES / 2 / 40, 0, much / 5);

	/* where there is nothing to be had, it ends as well */
	make_table(1000, 0, 100);
	job.pass.live_tuples = 1000 * 40;
	job.npages = 1000;
	job.room_for_others = 2 * much;
	tail_plan(&job, &relation);
	CHECK_EQ(job.tail_start, 1000);
	CHECK(job.room_for_others < BLCKSZ);
}
