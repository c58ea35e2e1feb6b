/*-------------------------------------------------------------------------
 *
 * ranges.h
 *	  Handing out ranges of numbers to the members of a team.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RANGES_H
#define CYCLONE_RANGES_H

#include "port/atomics.h"

/* The ranges still to hand out; in the team's shared block. */
typedef struct Ranges
{
	pg_atomic_uint64 next;		/* first number not yet handed out, and
								 * RANGES_NOTE */
	/* the rest is written only between phases, by the leader */
	uint64		end;
	uint32		unit;			/* ranges begin at multiples of this */
	uint32		max_size;
	int			nmembers;
} Ranges;

/* left beside a range's end by the member that took it */
#define RANGES_NOTE		(UINT64CONST(1) << 63)

/* A range that may be taken, if no other member is faster */
typedef struct RangeOffer
{
	uint64		start;
	uint64		end;
	bool		start_note;		/* was a note left there? */
	uint64		next;			/* for ranges_take */
} RangeOffer;

/*
 * The leader calls ranges_init while no phase is running; the members call the others in
 * a phase.  start and max_size are multiples of unit; a single member gets one range.
 * If ranges_take says true, no member has taken anything since ranges_look.
 */
extern void ranges_init(Ranges *ranges, uint64 start, uint64 end,
						uint32 unit, uint32 max_size, int nmembers);
extern bool ranges_claim(Ranges *ranges, uint64 *start, uint64 *end);
extern bool ranges_look(Ranges *ranges, RangeOffer *offer);
extern bool ranges_take(Ranges *ranges, const RangeOffer *offer, bool note);

/* ranges_position -- all numbers below this one have been handed out. */
static inline uint64
ranges_position(Ranges *ranges)
{
	return pg_atomic_read_u64(&ranges->next) & ~RANGES_NOTE;
}

#endif							/* CYCLONE_RANGES_H */
