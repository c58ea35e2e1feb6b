/*-------------------------------------------------------------------------
 *
 * pace_team.c
 *	  How many processes of a vacuum may be at work: what its budget feeds, and
 *	  what others leave cores for.
 *
 * parking.c has the places, and says who rests; neighbours.c looks at others.
 * Here both are told of this vacuum.  The leader launches its workers when there
 * is a place for the first one, at a delay point, with no lock held.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/vacuum.h"
#include "miscadmin.h"
#include "storage/proc.h"

#include "compat.h"
#include "pace/clock.h"
#include "pace/neighbours.h"
#include "guards/guards.h"
#include "pace/pace_state.h"

/* Under a budget no more blocks are taken at a time: a cost of ten thousand or so. */
#define GREATEST_PIECE		512

static void make_room(void);
static void watch_core_waits(uint64 now);

/*
 * pace_allow_workers
 *		The leader may have so many workers, to be launched by this routine: at once
 *		if the budget feeds any, else at a delay point as soon as it does.
 *
 * If the user has asked for so many, others who want the cores don't count.
 */
void
pace_allow_workers(int most, bool asked_for, void (*launch) (void *), void *argument)
{
	Assert(pace_is_leader() && pace_command.launch == NULL);
	pace_command.workers_asked_for = asked_for;
	if (most == 0)
		return;
	parking_set_up(&my_pace.shared->parking, MyProcNumber, most);
	parking_set_told(&my_pace.shared->parking, guards_workers());
	pace_bound_team();
	pace_command.launch = launch;
	pace_command.launch_argument = argument;
	if (!asked_for)
	{
		neighbours_begin();
		make_room();
	}
	if (parking_wants_workers(&my_pace.shared->parking))
		pace_launch_workers();
}

/* pace_withhold_workers -- none are launched, for now: those there were have gone. */
void
pace_withhold_workers(void)
{
	pace_command.launch = NULL;
}

/* pace_allow_workers_again -- as pace_allow_workers, for the same team. */
void
pace_allow_workers_again(void (*launch) (void *), void *argument)
{
	Assert(pace_is_leader() && pace_command.launch == NULL);
	if (my_pace.shared->parking.most == 0)
		return;
	pace_command.launch = launch;
	pace_command.launch_argument = argument;
	if (parking_wants_workers(&my_pace.shared->parking))
		pace_launch_workers();
}

/* pace_launch_workers -- launch them, only once. */
void
pace_launch_workers(void)
{
	void		(*launch) (void *) = pace_command.launch;

	pace_command.launch = NULL;
	launch(pace_command.launch_argument);
}

/*
 * pace_piece
 *		How many blocks to take at a time, at most, if usually it is so many: under a
 *		budget few, as who is to be parked finishes what it has taken.
 */
uint32
pace_piece(uint32 usual)
{
	return isinf(my_pace.rate_of_settings) && isinf(my_pace.rate_of_target) ? usual :
		Min(usual, GREATEST_PIECE);
}

/*
 * pace_take_place
 *		Has this worker a place at work, or can it take one?  If not, its latch will
 *		be set when there may be one.
 */
bool
pace_take_place(bool at_any_rate)
{
	Assert(!pace_is_leader());
	return parking_take_place(&my_pace.shared->parking, at_any_rate);
}

/* pace_has_place -- has this worker one? */
bool
pace_has_place(void)
{
	return parking_has_place();
}

/*
 * pace_give_place
 *		Before this process takes its next piece of work: are there too many for the
 *		budget?  If so it has given up its place, and is to end its part of the phase.
 */
bool
pace_give_place(void)
{
	return !pace_is_leader() && parking_give_place(&my_pace.shared->parking);
}

/*
 * pace_bound_team
 *		Tell the team whether there is a budget, and how many processes it is likely to
 *		feed.  Ticks find out.
 */
void
pace_bound_team(void)
{
	double		rate = Min(my_pace.rate_of_settings, my_pace.rate_of_target);
	bool		failsafe = VacuumFailsafeActive || pg_atomic_read_u32(&my_pace.shared->failsafe) != 0;

	parking_set_bound(&my_pace.shared->parking, !isinf(rate) && !failsafe, rate / COST_OF_A_PROCESS);
}

/*
 * pace_look_around
 *		The leader sees to it that others find a core, and how long they wait for one,
 *		unless it was a moment ago.
 *
 * Safe in a signal handler.  Workers that find room now are woken; none are
 * launched before the next delay point.
 */
void
pace_look_around(uint64 now)
{
	if (!pace_is_leader())
		return;
	if (my_pace.shared->parking.most > 0 && !pace_command.workers_asked_for &&
		neighbours_look(now))
		make_room();
	watch_core_waits(now);
}

/* watch_core_waits -- tell the target, if it is of use, how long others wait for a core. */
static void
watch_core_waits(uint64 now)
{
	CoreTimes	since;

	if (my_pace.target != NULL && target_wants_core_waits(my_pace.target) &&
		my_pace.shared->watches_others &&
		core_waits_look(now, my_pace.in_server_code, &since))
		target_note_core_waits(my_pace.target, &since);
}

/* make_room -- let the team be as large as others leave cores for. */
static void
make_room(void)
{
	bool		takes_all = pace_command.in_a_hurry || VacuumFailsafeActive ||
		pg_atomic_read_u32(&my_pace.shared->failsafe) != 0;

	parking_set_room(&my_pace.shared->parking, takes_all ? PARKING_ALL : neighbours_room());
}
