/*-------------------------------------------------------------------------
 *
 * test_ranges.c
 *	  Each number is handed out once, and nobody gets too many: team/ranges.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "team/ranges.c"
#include "unit.h"

/* test_who_is_alone_gets_everything_at_once -- if it is anything. */
UNIT_TEST(test_who_is_alone_gets_everything_at_once)
{
	Ranges		ranges;
	uint64		start,
				end;

	ranges_init(&ranges, 32, 1000, 32, 64, 1);
	CHECK(ranges_claim(&ranges, &start, &end));
	CHECK_EQ(start, 32);
	CHECK_EQ(end, 1000);
	CHECK(!ranges_claim(&ranges, &start, &end));
	CHECK_EQ(ranges_position(&ranges), 1000);

	for (int nmembers = 1; nmembers < 3; nmembers++)
	{
		ranges_init(&ranges, 64, 64, 32, 64, nmembers);
		CHECK(!ranges_claim(&ranges, &start, &end));
		ranges_init(&ranges, 100, 64, 32, 64, nmembers);
		CHECK(!ranges_claim(&ranges, &start, &end));
	}
}

/*
 * test_each_number_is_handed_out_once
 *		In order, from multiples of the unit, in pieces that don't grow: an eighth of
 *		a fair share, but no more than the most, and no less than a unit.
 */
UNIT_TEST(test_each_number_is_handed_out_once)
{
	for (int i = 0; i < 2000; i++)
	{
		uint32		unit = 1 << unit_number(0, 6);
		uint32		max_size = unit * unit_number(1, 50);
		int			nmembers = unit_number(2, 20);
		uint64		expected = unit * (uint64) unit_number(0, 9);
		uint64		last = expected + unit_number(0, 100000);
		uint64		size_before = PG_UINT64_MAX;
		Ranges		ranges;
		uint64		start,
					end;

		unit_case("unit %u, max_size %u, %d members, " UINT64_FORMAT " to " UINT64_FORMAT,
				  unit, max_size, nmembers, expected, last);
		ranges_init(&ranges, expected, last, unit, max_size, nmembers);
		while (ranges_claim(&ranges, &start, &end))
		{
			uint64		fair = (last - start) / (8 * nmembers);

			CHECK_EQ(start, expected);
			CHECK_EQ(start % unit, 0);
			CHECK_BETWEEN(Min(unit, last - start), end - start, Min(max_size, Max(fair, unit)));
			/* nor is it less than it might be */
			CHECK(end == last || end - start + unit > Min(fair, max_size));
			CHECK(end - start <= size_before);
			CHECK_EQ(ranges_position(&ranges), end);
			size_before = end - start;
			expected = end;
		}
		CHECK_EQ(expected, last);
	}
}

/* test_blocks_at_the_end_of_the_largest_table -- no sum overflows. */
UNIT_TEST(test_blocks_at_the_end_of_the_largest_table)
{
	Ranges		ranges;
	uint64		start,
				end;

	ranges_init(&ranges, 0, PG_UINT32_MAX, 32, 8192, 3);
	pg_atomic_write_u64(&ranges.next, PG_UINT32_MAX - 31);
	CHECK(ranges_claim(&ranges, &start, &end));
	CHECK_EQ(end, PG_UINT32_MAX);
	CHECK(!ranges_claim(&ranges, &start, &end));
}

/* test_an_offer_is_good_until_somebody_was_faster -- also who has left a note. */
UNIT_TEST(test_an_offer_is_good_until_somebody_was_faster)
{
	Ranges		ranges;
	RangeOffer	mine,
				others;

	ranges_init(&ranges, 0, 1000, 1, 100, 2);
	CHECK(ranges_look(&ranges, &mine));
	CHECK(!mine.start_note);
	others = mine;
	CHECK(ranges_take(&ranges, &others, true));
	CHECK(!ranges_take(&ranges, &mine, false));
	CHECK_EQ(ranges_position(&ranges), others.end);

	CHECK(ranges_look(&ranges, &mine));
	CHECK(mine.start_note);
	CHECK_EQ(mine.start, others.end);
	CHECK(mine.end > mine.start);
	CHECK(ranges_take(&ranges, &mine, false));
	CHECK(ranges_look(&ranges, &others));
	CHECK(!others.start_note);
	CHECK_EQ(others.start, mine.end);
}

/* test_a_note_at_the_end -- is no number. */
UNIT_TEST(test_a_note_at_the_end)
{
	Ranges		ranges;
	RangeOffer	offer;
	uint64		start,
				end;

	ranges_init(&ranges, 0, 5, 1, 100, 1);
	CHECK(ranges_look(&ranges, &offer));
	CHECK(ranges_take(&ranges, &offer, true));
	CHECK_EQ(ranges_position(&ranges), 5);
	CHECK(!ranges_look(&ranges, &offer));
	CHECK(offer.start_note);
	CHECK(!ranges_claim(&ranges, &start, &end));
}
