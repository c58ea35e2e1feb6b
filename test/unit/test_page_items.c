/*-------------------------------------------------------------------------
 *
 * test_page_items.c
 *	  Four line pointers at a time say what each by itself says: engine/page_items.h.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "engine/page_items.h"
#include "unit.h"

/* is_sound_by_item -- the model: what page_items_are_sound has to say, item by item. */
static bool
is_sound_by_item(Page page, bool is_heap)
{
	PageHeader	header = (PageHeader) page;
	int			count = PageGetMaxOffsetNumber(page);
	unsigned	total = 0;

	if (header->pd_lower > header->pd_upper || header->pd_upper > header->pd_special ||
		header->pd_special > BLCKSZ || header->pd_special % MAXIMUM_ALIGNOF != 0 ||
		count > (is_heap ? MaxHeapTuplesPerPage : MaxIndexTuplesPerPage))
		return false;
	for (OffsetNumber off = FirstOffsetNumber; off <= count; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		unsigned	begin = ItemIdGetOffset(item);
		unsigned	length = ItemIdGetLength(item);

		total += MAXALIGN(length);
		if (is_heap && !ItemIdIsNormal(item))
		{
			if (length > 0)
				return false;
			continue;
		}
		if (begin < header->pd_upper ||
			begin + (is_heap ? SizeofHeapTupleHeader : length) > header->pd_special)
			return false;
		if (!is_heap && (length < sizeof(IndexTupleData) || begin % MAXIMUM_ALIGNOF != 0))
			return false;
	}
	return total <= header->pd_special - header->pd_lower;
}

/* fill -- make a page with this number of items that are right. */
static void
fill(Page page, int count, bool is_heap)
{
	PageHeader	header = (PageHeader) page;
	unsigned	special = is_heap ? BLCKSZ : BLCKSZ - 16;
	unsigned	end = special;

	memset(page, 0, BLCKSZ);
	for (OffsetNumber off = FirstOffsetNumber; off <= count; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		unsigned	length = is_heap ? unit_number(23, 27) : 8 * unit_number(1, 2);

		if (is_heap && unit_chance() < 0.2)
			item->lp_flags = unit_number(0, 1) * LP_DEAD;
		else if (is_heap && unit_chance() < 0.1)
			ItemIdSetRedirect(item, unit_number(1, count));
		else
		{
			end -= MAXALIGN(length);
			ItemIdSetNormal(item, end, length);
			if (!is_heap && unit_chance() < 0.2)
				ItemIdMarkDead(item);
		}
	}
	header->pd_lower = SizeOfPageHeaderData + count * sizeof(ItemIdData);
	header->pd_upper = end;
	header->pd_special = special;
}

/* damage -- change a field of the header, or of an item, a little or at random. */
static void
damage(Page page, int count)
{
	PageHeader	header = (PageHeader) page;
	uint16	   *fields[] = {&header->pd_lower, &header->pd_upper, &header->pd_special};
	uint16	   *field = fields[unit_number(0, 2)];
	ItemId		item = PageGetItemId(page, unit_number(1, count));
	int			step = unit_number(-9, 9);

	switch (unit_number(0, 6))
	{
		case 0:
			*field = Max(*field + step, 0);
			break;
		case 1:
			*field = unit_number(0, PG_UINT16_MAX);
			break;
		case 2:
			item->lp_off = Max((int) item->lp_off + step, 0);
			break;
		case 3:
			item->lp_off = unit_number(0, 0x7FFF);
			break;
		case 4:
			item->lp_len = Max((int) item->lp_len + step, 0);
			break;
		case 5:
			item->lp_len = unit_number(0, 0x7FFF);
			break;
		default:
			item->lp_flags = unit_number(0, 3);
	}
}

/* test_four_at_a_time_as_one_by_one -- on pages that are right, and damaged in a place or two. */
UNIT_TEST(test_four_at_a_time_as_one_by_one)
{
	PGAlignedBlock block;
	Page		page = block.data;
	int			nsound = 0;

	for (int i = 0; i < 40000; i++)
	{
		bool		is_heap = i % 2 == 0;
		int			count = unit_number(1, is_heap ? 200 : 300);

		unit_case("page %d, %d items", i, count);
		fill(page, count, is_heap);
		CHECK(page_items_are_sound(page, is_heap));
		CHECK(is_sound_by_item(page, is_heap));

		for (int ndamages = unit_number(1, 2); ndamages > 0; ndamages--)
			damage(page, count);
		CHECK_EQ(page_items_are_sound(page, is_heap), is_sound_by_item(page, is_heap));
		nsound += is_sound_by_item(page, is_heap);
	}
	/* small damages may be none, but not most */
	CHECK_BETWEEN(2000, nsound, 24000);
}
