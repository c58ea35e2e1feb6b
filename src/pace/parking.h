/*-------------------------------------------------------------------------
 *
 * parking.h
 *	  A team no larger than its budget feeds: workers that are parked.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PARKING_H
#define CYCLONE_PARKING_H

#include "port/atomics.h"

/* So many workers are wanted if nothing bounds the pace. */
#define PARKING_ALL			PG_INT32_MAX

/* The places at work of one team's workers; the leader needs none. */
typedef struct Parking
{
	int			leader;			/* its slot */
	int			most;			/* workers that there can be */
	pg_atomic_uint32 wanted;	/* as many workers as the budget feeds */
	pg_atomic_uint32 room;		/* for as many workers others leave cores */
	pg_atomic_uint32 told;		/* so many may be at work, cyclone.set_pace
								 * says */
	pg_atomic_uint32 taken;		/* places taken by workers */
	pg_atomic_uint32 is_bounded;	/* by a budget, as far as someone has
									 * noticed */
} Parking;

extern void parking_init(void);

/* the law, which knows nothing of the server */
extern uint32 parking_law(uint32 wanted, uint32 taken, double asleep, bool is_starved);

/* by whoever sees to the budget; may be a signal handler */
extern void parking_set_up(Parking *parking, int leader, int most);
extern void parking_set_bound(Parking *parking, bool is_bounded, double fed);
extern void parking_adjust(Parking *parking, double asleep, bool is_starved);
extern void parking_set_room(Parking *parking, uint32 room);
extern void parking_set_told(Parking *parking, uint32 told);
extern bool parking_wants_workers(Parking *parking);

/* a worker */
extern bool parking_take_place(Parking *parking, bool at_any_rate);
extern bool parking_give_place(Parking *parking);
extern void parking_leave(Parking *parking);
extern bool parking_has_place(void);

#endif							/* CYCLONE_PARKING_H */
