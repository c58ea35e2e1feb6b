/*-------------------------------------------------------------------------
 *
 * parking.c
 *	  A team no larger than its budget feeds: workers that are parked.
 *
 * Processes that a budget can't keep busy do harm: they wake up, take a core from a
 * session in the midst of a statement, do little, and sleep again.  So under a budget
 * workers need a place to work, and there are as many places as the budget feeds
 * (parking_law), and no more than other sessions leave cores for (neighbours.c).  What the
 * processes at work sleep for the budget counts, so one that waits for a disk is busy.
 *
 * A worker looks at this where it takes its next piece of work, and gives its place up if
 * there are too many.  It ends its part of the phase, and sleeps until its latch is set.
 *
 * Who raises the number of places wakes workers, at the latest with the next tick.  A
 * worker that is to be parked says so in shared memory before it looks for a place for the
 * last time; who raises the number looks there afterwards.  So none that is wanted sleeps on.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "debug_point.h"
#include "pace/pace_private.h"

/* If together processes sleep for more than this, one less would have time to spare, too. */
#define IDLE_ASLEEP			(1 + 2 * BUSY_ASLEEP)

/* By process: the team for which it is parked, as its leader's slot plus one; 0: none */
static pg_atomic_uint32 *parked_for = NULL;

/* Has this worker a place? */
static bool has_place = false;

static void parking_wake(Parking *parking);
static uint32 parking_places(Parking *parking);
static bool parking_is_told_to_rest(void);

/*
 * parking_law
 *		How many workers are wanted from now on?  So far this many were wanted and had
 *		taken places.  asleep is how much the processes at work, leader included, have
 *		slept together, in processes.
 *
 * Knows nothing of the server, so that a simulation can call it.
 */
uint32
parking_law(uint32 wanted, uint32 taken, double asleep)
{
	/* no more are wanted before those that are wanted are there */
	if (asleep < BUSY_ASLEEP)
		return taken >= wanted && wanted < PARKING_ALL ? wanted + 1 : wanted;
	return asleep > IDLE_ASLEEP && wanted > 0 ? wanted - 1 : wanted;
}

/* parking_set_up -- for a team of at most this many workers; all are wanted. */
void
parking_set_up(Parking *parking, int leader, int most)
{
	Assert(leader >= 0 && most >= 0);
	parking->leader = leader;
	parking->most = most;
	pg_atomic_init_u32(&parking->wanted, PARKING_ALL);
	pg_atomic_init_u32(&parking->room, PARKING_ALL);
	pg_atomic_init_u32(&parking->taken, 0);
}

/*
 * parking_set_bound
 *		The pace is bounded now, by a budget that feeds about this many processes, or it
 *		isn't, and all are wanted.  Changes nothing if that was so before.
 */
void
parking_set_bound(Parking *parking, bool is_bounded, double fed)
{
	uint32		all = PARKING_ALL;

	/* in one word, as another process may have noticed more than this one */
	if (!is_bounded)
	{
		if (pg_atomic_exchange_u32(&parking->wanted, all) != all)
			parking_wake(parking);
	}
	else if (pg_atomic_read_u32(&parking->wanted) == all)
		(void) pg_atomic_compare_exchange_u32(&parking->wanted, &all,
											  DEBUG_LIMIT(fed, (uint32) Min(Max(ceil(fed) - 1, 0), parking->most)));
}

/*
 * parking_adjust
 *		Change the number of workers that are wanted by how long processes slept.
 *
 * Also wakes workers that are wanted in the places of those that have left.
 */
void
parking_adjust(Parking *parking, double asleep)
{
	uint32		wanted = pg_atomic_read_u32(&parking->wanted);
	uint32		taken = pg_atomic_read_u32(&parking->taken);
	uint32		better = parking_law(wanted, taken, asleep);

	Assert(asleep >= 0);
	better = DEBUG_LIMIT(fed, Min(better, (uint32) parking->most));
	/* unless the bound has gone, or come, in this moment */
	if (wanted != PARKING_ALL)
		(void) pg_atomic_compare_exchange_u32(&parking->wanted, &wanted, better);
	parking_wake(parking);
}

/* parking_set_room -- other sessions leave cores for this many workers now. */
void
parking_set_room(Parking *parking, uint32 workers)
{
	if (pg_atomic_exchange_u32(&parking->room, workers) < workers)
		parking_wake(parking);
}

/* parking_wants_workers -- is there a place for any? */
bool
parking_wants_workers(Parking *parking)
{
	return parking_places(parking) > 0;
}

/* pace_has_place -- see pace.h. */
bool
pace_has_place(void)
{
	return has_place;
}

/*
 * parking_take_place
 *		Has this worker a place, or can it take one?  With at_any_rate it takes one,
 *		even if there are too many then.
 *
 * If not it may sleep: its latch will be set when there is one, or before.
 */
bool
parking_take_place(Parking *parking, bool at_any_rate)
{
	pg_atomic_uint32 *place = &parked_for[MyProcNumber];
	uint32		taken;

	Assert(parking->leader != MyProcNumber);
	if (has_place)
		return true;

	/* in this order: see the top */
	pg_atomic_write_u32(place, parking->leader + 1);
	pg_memory_barrier();
	taken = pg_atomic_read_u32(&parking->taken);
	do
	{
		if (!at_any_rate && taken >= parking_places(parking))
			return false;
	} while (!pg_atomic_compare_exchange_u32(&parking->taken, &taken, taken + 1));
	pg_atomic_write_u32(place, 0);
	has_place = true;
	return true;
}

/*
 * parking_give_place
 *		A worker is about to take its next piece of work: if there are too many,
 *		give its place up, and return true.
 */
bool
parking_give_place(Parking *parking)
{
	uint32		taken = pg_atomic_read_u32(&parking->taken);

	if (!has_place)
		return false;
	Assert(taken > 0);
	do
	{
		if (taken <= parking_places(parking) && !parking_is_told_to_rest())
			return false;
	} while (!pg_atomic_compare_exchange_u32(&parking->taken, &taken, taken - 1));
	has_place = false;
	return true;
}

/* parking_leave -- this worker takes no part any more; does nothing if it never did. */
void
parking_leave(Parking *parking)
{
	pg_atomic_write_u32(&parked_for[MyProcNumber], 0);
	if (has_place)
	{
		Assert(pg_atomic_read_u32(&parking->taken) > 0);
		pg_atomic_fetch_sub_u32(&parking->taken, 1);
		/* another worker can have it */
		parking_wake(parking);
	}
	has_place = false;
}

/* parking_places -- how many workers may be at work. */
static uint32
parking_places(Parking *parking)
{
	uint32		wanted = pg_atomic_read_u32(&parking->wanted);
	uint32		room = pg_atomic_read_u32(&parking->room);

	return Min(wanted, room);
}

/* parking_wake -- wake as many parked workers as there are places for. */
static void
parking_wake(Parking *parking)
{
	uint32		all,
				taken,
				missing;

	/* in this order: see the top */
	pg_memory_barrier();
	all = parking_places(parking);
	taken = pg_atomic_read_u32(&parking->taken);
	missing = all - Min(taken, all);
	for (int i = 0; i < MaxBackends && missing > 0; i++)
		if (pg_atomic_read_u32(&parked_for[i]) == parking->leader + 1)
		{
			SetLatch(&GetPGProcByNumber(i)->procLatch);
			missing--;
		}
}

/* parking_is_told_to_rest -- does a test want this worker to be parked, by chance? */
static bool
parking_is_told_to_rest(void)
{
	int			one_in = DEBUG_LIMIT(parking, 0);

	return one_in > 0 && pg_prng_uint64_range(&pg_global_prng_state, 1, one_in) == 1;
}

/* parking_shmem_size -- a word for each process. */
Size
parking_shmem_size(void)
{
	return mul_size(sizeof(pg_atomic_uint32), MaxBackends);
}

/* parking_shmem_init -- find them, or make them. */
void
parking_shmem_init(void)
{
	bool		found;

	parked_for = ShmemInitStruct("pg_cyclone parking", parking_shmem_size(), &found);
	for (int i = 0; !found && i < MaxBackends; i++)
		pg_atomic_init_u32(&parked_for[i], 0);
}
