/*-------------------------------------------------------------------------
 *
 * pace_team.c
 *	  How many processes of a vacuum may be at work: those that its budget feeds, and
 *	  that other sessions leave cores for.
 *
 * parking.c has the places, and says which workers rest; neighbours.c looks at other
 * sessions.  Here both are told of this vacuum, a few times a second: by a tick, which
 * the process that comes first makes, and by the leader's look around.  The leader
 * launches its workers at a delay point, with no lock held, when there is a place for
 * the first one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/vacuum.h"
#include "miscadmin.h"

#include "pace/pace_private.h"

static void pace_make_room(void);
static void pace_count_at_work(int more);

/*
 * pace_allow_workers
 *		The leader may have at most this many workers, to be launched by this routine: at
 *		once if the budget feeds any, else at a delay point as soon as it does.
 *
 * If the user has asked for them, sessions that want the cores don't count.
 */
void
pace_allow_workers(int most, bool asked_for, void (*launch) (void *), void *argument)
{
	Assert(most >= 0 && launch != NULL);
	Assert(pace_is_leader() && pace_command.launch == NULL);
	pace_command.workers_asked_for = asked_for;
	if (most == 0)
		return;
	parking_set_up(&my_pace.shared->parking, MyProcNumber, most);
	process_bound_team();
	if (!asked_for)
	{
		neighbours_begin();
		pace_make_room();
	}
	pace_command.launch = launch;
	pace_command.launch_argument = argument;
	if (parking_wants_workers(&my_pace.shared->parking))
		pace_launch_workers();
}

/* pace_launch_workers -- launch those that are allowed, once. */
void
pace_launch_workers(void)
{
	void		(*launch) (void *) = pace_command.launch;

	pace_command.launch = NULL;
	launch(pace_command.launch_argument);
}

/* pace_is_bounded -- has this process a budget? */
bool
pace_is_bounded(void)
{
	return process_is_bounded();
}

/*
 * pace_take_place
 *		Has this worker a place at work, or can it take one?  With at_any_rate it can.
 *		If not, its latch will be set when there may be one.
 */
bool
pace_take_place(bool at_any_rate)
{
	Assert(!pace_is_leader());
	return parking_take_place(&my_pace.shared->parking, at_any_rate);
}

/* pace_give_place -- before its next piece of work; true: it has given up its place, and must end its part of the phase. */
bool
pace_give_place(void)
{
	return !pace_is_leader() && parking_give_place(&my_pace.shared->parking);
}

/* pace_begin_work -- this process takes part in a phase; what workers have used before isn't the leader's. */
void
pace_begin_work(void)
{
	Assert(!my_pace.at_work);
	pace_count_at_work(1);
	my_pace.at_work = true;
	process_reset(now_ns());
}

/* pace_end_work -- it is through with it. */
void
pace_end_work(void)
{
	Assert(my_pace.at_work);
	pace_count_at_work(-1);
	my_pace.at_work = false;
}

/* pace_count_at_work -- add to the processes at work, for both budgets. */
static void
pace_count_at_work(int more)
{
	Assert(my_pace.shared != NULL);
	pg_atomic_fetch_add_u32(&my_pace.shared->cost.at_work, more);
	if (my_pace.is_adaptive)
		pg_atomic_fetch_add_u32(&adaptive_time()->at_work, more);
}

/*
 * pace_look_around
 *		The leader looks at other sessions, unless it did a moment ago: its team makes
 *		way for those that want a core, and the law hears how long they wait.  Workers
 *		that find room now are woken; none are launched before the next delay point.
 */
void
pace_look_around(uint64 now)
{
	bool		makes_room = my_pace.shared->parking.most > 0 && !pace_command.workers_asked_for;
	NeighboursTimes times;

	if (!pace_is_leader() || (!makes_room && !my_pace.is_adaptive) ||
		!neighbours_look(now, my_pace.is_adaptive, &times))
		return;
	if (makes_room)
		pace_make_room();
	if (my_pace.is_adaptive)
		adaptive_note_others(&times);
}

/* pace_make_room -- let the team be as large as other sessions leave cores for. */
static void
pace_make_room(void)
{
	Parking    *parking = &my_pace.shared->parking;
	bool		takes_all = pace_command.in_a_hurry || VacuumFailsafeActive ||
		pg_atomic_read_u32(&my_pace.shared->failsafe) != 0;

	parking_set_room(parking, takes_all ? PARKING_ALL : neighbours_room());
}

/* pace_tick_if_due -- measure, and have the law take a step, unless that was a moment ago. */
void
pace_tick_if_due(uint64 now)
{
	PaceShared *shared = my_pace.shared;
	uint32		at_work = pg_atomic_read_u32(&shared->cost.at_work);
	BudgetUse	cost;

	if (my_pace.is_adaptive)
		adaptive_tick_if_due(now);
	if (!budget_begin_tick(&shared->cost, now, &cost))
		return;
	/* what processes cost that leave it to the server, and how long they sleep, isn't known */
	if (pg_atomic_read_u32(&shared->with_server) == 0)
	{
		parking_adjust(&shared->parking, cost.asleep);
		view_show(shared, cost.used, Min(cost.asleep / Max(at_work, 1), 1));
	}
	else
		view_show(shared, NAN, NAN);
	budget_end_tick(&shared->cost);
}
