/*-------------------------------------------------------------------------
 *
 * neighbours.c
 *	  Who else wants the cores of the machine.
 *
 * A team that occupies all cores makes everybody else wait for one, statement by
 * statement, and is not much faster for it.  So the leader looks now and then how
 * many processes of others are on a core, or wait for one, and its team leaves
 * them as many; the leader itself goes on at any rate (neighbours_law).  While
 * nobody else is at work the team has all its workers.
 *
 * Who is in a transaction and doesn't wait for anything wants a core.  VACUUMs are
 * not counted: each of them would make way for the others.  This reads words of
 * other processes without locks; what it is about changes all the time anyway.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "miscadmin.h"
#include "storage/proc.h"

#include "debug_point.h"
#include "pace/clock.h"
#include "pace/neighbours.h"
#include "pace/parking.h"

/* So often it looks, and what it sees is averaged over about so long. */
#define NS_A_LOOK			(50 * (uint64) NS_PER_MS)
#define NS_AVERAGED			((double) NS_PER_S / 2)
/* Fewer than this, on average, are nobody. */
#define NOBODY				0.02

/* this process's, from one table to the next */
static double others = 0;
static uint64 last_look = 0;

static int	count_others(void);
static int	cores(void);

/*
 * neighbours_law
 *		For how many workers there is room, if so many processes of others want one of
 *		so many cores.
 */
uint32
neighbours_law(double others, int cores)
{
	if (others < NOBODY)
		return PARKING_ALL;
	return (uint32) Max(cores - ceil(others) - 1, 0);
}

/*
 * neighbours_look
 *		Look around, unless it was a moment ago: has it?
 */
bool
neighbours_look(uint64 now)
{
	double		weight;

	if (now < last_look + NS_A_LOOK)
		return false;
	weight = 1 - exp(-(double) (now - last_look) / NS_AVERAGED);
	others += (count_others() - others) * weight;
	last_look = now;
	return true;
}

/* neighbours_room -- for how many workers there is room, by what was seen last. */
uint32
neighbours_room(void)
{
	return neighbours_law(others, cores());
}

/* count_others -- how many processes of others want a core now. */
static int
count_others(void)
{
	int			number = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		PGPROC	   *proc = GetPGProcByNumber(i);

		if (proc->pid != 0 && proc != MyProc && proc->lockGroupLeader != MyProc &&
			proc->vxid.lxid != InvalidLocalTransactionId && proc->wait_event_info == 0 &&
			(proc->statusFlags & PROC_IN_VACUUM) == 0)
			number++;
	}
	return number;
}

/* cores -- on how many this process may run. */
static int
cores(void)
{
	static int	number = 0;

	if (number == 0)
	{
#ifdef __linux__
		cpu_set_t	set;

		if (sched_getaffinity(0, sizeof(set), &set) == 0)
			number = CPU_COUNT(&set);
#endif
#ifdef _SC_NPROCESSORS_ONLN
		if (number <= 0)
			number = sysconf(_SC_NPROCESSORS_ONLN);
#endif
		number = Max(number, 1);
	}
	return DEBUG_LIMIT(cores, number);
}
