/*-------------------------------------------------------------------------
 *
 * ranges.c
 *	  Handing out ranges of numbers to the members of a team.
 *
 * Members claim ranges of blocks in ascending order as they go, so none
 * idles while blocks are left.  Ranges are long at first, to read
 * sequentially and to claim seldom, and shrink towards the end, so that the
 * members finish together: each is an eighth of a member's fair share of
 * the rest.  A member that is alone gets everything at once.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"

#include "team/ranges.h"

/*
 * ranges_init
 *		Make all numbers from start to end - 1 available.
 *
 * Ranges begin at multiples of unit, and with several members hold at most max_size
 * numbers.
 */
void
ranges_init(Ranges *ranges, uint64 start, uint64 end,
			uint32 unit, uint32 max_size, int nmembers)
{
	Assert(unit > 0 && nmembers > 0);
	Assert((end & RANGES_NOTE) == 0);
	Assert(start >= end || start % unit == 0);
	Assert(max_size % unit == 0 && max_size > 0);
	Assert(!IsParallelWorker());

	pg_atomic_init_u64(&ranges->next, start);
	ranges->end = end;
	ranges->unit = unit;
	ranges->max_size = max_size;
	ranges->nmembers = nmembers;
}

/*
 * ranges_claim
 *		Take the next range, *start to *end - 1; return false if none is left.
 */
bool
ranges_claim(Ranges *ranges, uint64 *start, uint64 *end)
{
	RangeOffer	offer;

	Assert(ranges->nmembers > 0);

	do
	{
		if (!ranges_look(ranges, &offer))
			return false;
	} while (!ranges_take(ranges, &offer, false));
	Assert(offer.start < offer.end);

	*start = offer.start;
	*end = offer.end;
	return true;
}

/*
 * ranges_look
 *		Say what the next range would be; return false if none is left.
 */
bool
ranges_look(Ranges *ranges, RangeOffer *offer)
{
	uint64		size;

	Assert(ranges->unit > 0 && ranges->nmembers > 0);

	offer->next = pg_atomic_read_u64(&ranges->next);
	offer->start = offer->next & ~RANGES_NOTE;
	offer->start_note = (offer->next & RANGES_NOTE) != 0;
	if (offer->start >= ranges->end)
		return false;

	size = ranges->end - offer->start;
	if (ranges->nmembers > 1)
	{
		size = Min(size / (8 * ranges->nmembers), ranges->max_size);
		size -= size % ranges->unit;
		size = Max(size, ranges->unit);
		size = Min(size, ranges->end - offer->start);
	}
	Assert(size > 0 && offer->start + size <= ranges->end);
	offer->end = offer->start + size;
	return true;
}

/*
 * ranges_take
 *		Take the range that was offered, and leave the note, if there is one, for the
 *		member that takes the next range; return false if another member was first.
 */
bool
ranges_take(Ranges *ranges, const RangeOffer *offer, bool note)
{
	uint64		next = offer->next;

	Assert(offer->start < offer->end && offer->end <= ranges->end);
	Assert(offer->start == (offer->next & ~RANGES_NOTE));

	return pg_atomic_compare_exchange_u64(&ranges->next, &next,
										  offer->end | (note ? RANGES_NOTE : 0));
}
