/*-------------------------------------------------------------------------
 *
 * test_link_walk.c
 *	  Walks along links end soon if these lead in a circle, and only then:
 *	  engine/index/link_walk.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "engine/index/link_walk.c"
#include "unit.h"

static BlockNumber index_blocks;

/* RelationGetNumberOfBlocksInFork -- the made-up index's. */
BlockNumber
RelationGetNumberOfBlocksInFork(Relation relation, ForkNumber fork)
{
	CHECK_EQ(fork, MAIN_FORKNUM);
	return index_blocks;
}

/* make_walk -- one that is about to begin, in an index of so many blocks. */
static LinkWalk
make_walk(BlockNumber nblocks)
{
	static RelationData index;
	static FormData_pg_class class;

	index_blocks = nblocks;
	index.rd_rel = &class;
	return (LinkWalk)
	{
		.index = &index
	};
}

/* test_a_circle_is_found_after_three_rounds -- however large the index is. */
UNIT_TEST(test_a_circle_is_found_after_three_rounds)
{
	for (int i = 0; i < 2000; i++)
	{
		BlockNumber before = unit_number(0, 100);
		BlockNumber around = unit_number(1, 100);
		LinkWalk	walk = make_walk(MaxBlockNumber);
		BlockNumber from = 0;
		uint32		steps = 0;

		unit_case("%u blocks lead to %u in a circle", before, around);
		for (;;)
		{
			BlockNumber to = from + 1 < before + around ? from + 1 : before;

			steps++;
			if (!link_walk_step(&walk, from, to, LOG))
				break;
			from = to;
			CHECK(steps <= 3 * (before + around));
		}
		CHECK(steps >= before + around);
		CHECK(strstr(unit_notice, "lead in a circle") != NULL);
	}
}

/* test_a_walk_that_comes_to_no_page_twice_goes_on -- also another one after it. */
UNIT_TEST(test_a_walk_that_comes_to_no_page_twice_goes_on)
{
	LinkWalk	walk = make_walk(1000);

	for (int round = 0; round < 2; round++)
	{
		for (BlockNumber from = 0; from < 999; from++)
			CHECK(link_walk_step(&walk, from, from + 1, LOG));
		walk.steps = 0;
	}
	/* the index grows, and all of it is to be walked along */
	index_blocks = 2000;
	for (BlockNumber from = 0; from < 1999; from++)
		CHECK(link_walk_step(&walk, from, from + 1, LOG));
}

/* test_links_that_change_end_it_too -- after as many steps as there are blocks. */
UNIT_TEST(test_links_that_change_end_it_too)
{
	LinkWalk	walk = make_walk(1000);
	BlockNumber from = 0;
	uint32		steps = 1;

	for (;; steps++)
	{
		/* never the same one for long */
		BlockNumber to = (from + 1 + steps / 30) % 1000;

		if (!link_walk_step(&walk, from, to, LOG))
			break;
		from = to;
	}
	CHECK_BETWEEN(1, steps, 1001);
}

/* test_a_link_beyond_the_end -- is an error if the caller wants one. */
UNIT_TEST(test_a_link_beyond_the_end)
{
	LinkWalk	walk = make_walk(10);

	UNIT_TRY((void) link_walk_step(&walk, 3, 10, ERROR));
	CHECK(unit_error != NULL && strstr(unit_error, "from block 3 to block 10, beyond its end") != NULL);
	CHECK_TEXT(unit_hint, "Please REINDEX it.");
}
