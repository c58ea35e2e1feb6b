/*-------------------------------------------------------------------------
 *
 * neighbours.c
 *	  Who else wants the cores of the machine, or its disks.
 *
 * A team that occupies all cores makes everybody else wait for one, statement by
 * statement, and is not much faster for it.  So the leader looks now and then how
 * many processes of others are on a core, or wait for one, and its team leaves
 * them as many; the leader itself goes on at any rate (neighbours_law).  While
 * nobody else is at work the team has all its workers.
 *
 * A look is of a moment, in which a session may be at work by chance that is idle
 * else.  So what counts is the middle one of three looks in succession, on average
 * (neighbours_note): no single look sends anybody home.  Before the first table the
 * leader looks three times, a few ms apart, so that none decides alone if workers
 * come (neighbours_begin).
 *
 * Who is in a transaction and doesn't wait for anything wants a core.  Who waits for
 * a file counts as well: it wants one in a moment, and where files are slow it is
 * the disk that a team would occupy, to which each process adds its reads at a
 * place of its own.  VACUUMs are not counted: each of them would make way for the
 * others.  This reads words of other processes without locks; what it is about
 * changes all the time anyway.  While the leader is in the server's code its timer's
 * signal handler looks, so neighbours_look takes no lock, allocates no memory and
 * raises no error.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

#include "debug_point.h"
#include "pace/clock.h"
#include "pace/cores.h"
#include "pace/neighbours.h"
#include "pace/parking.h"

/* So often it looks, and what it sees is averaged over about so long. */
#define NS_A_LOOK			(50 * (uint64) NS_PER_MS)
#define SECONDS_AVERAGED	0.5
/* After such a time without any it begins anew. */
#define SECONDS_KEPT		1.0
#define MS_BETWEEN_FIRST_LOOKS 5
/* Fewer than this, on average, are nobody. */
#define NOBODY				0.02

#define ENOUGH_CORES		1000

#define WAIT_CLASS_MASK		0xFF000000

/* this process's, from one table to the next */
static NeighboursSeen seen = {0};
static uint64 last_look = 0;

static void look(uint64 now);
static int	count_others(void);
static bool is_at_work(const PGPROC *proc);
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
 * neighbours_note
 *		A look, so many seconds after the one before, has counted so many others.
 *
 * Until there are three of them, none older than SECONDS_KEPT, the average stays as
 * it was.  Knows nothing of the server, so that a test can call it.
 */
void
neighbours_note(NeighboursSeen *seen, int count, double seconds)
{
	int		   *counts = seen->counts;
	int			middle;

	if (seconds > SECONDS_KEPT)
		seen->looks = 0;
	counts[0] = counts[1];
	counts[1] = counts[2];
	counts[2] = count;
	seen->seconds += seconds;
	if (++seen->looks < NEIGHBOURS_LOOKS)
		return;

	seen->looks = NEIGHBOURS_LOOKS;
	middle = Max(Min(counts[0], counts[1]), Min(Max(counts[0], counts[1]), counts[2]));
	seen->average += (middle - seen->average) * (1 - exp(-seen->seconds / SECONDS_AVERAGED));
	seen->seconds = 0;
}

/*
 * neighbours_begin
 *		The leader may have workers: look around now, so often that something is
 *		known.  It sleeps for some ms if nobody has looked lately.
 */
void
neighbours_begin(void)
{
	/* a signal handler need not ask the system */
	(void) cores();
	look(now_ns());
	/* not for longer, even if this process itself finds no core for a second */
	for (int i = 1; i < NEIGHBOURS_LOOKS && seen.looks < NEIGHBOURS_LOOKS; i++)
	{
		pg_usleep(MS_BETWEEN_FIRST_LOOKS * 1000L);
		look(now_ns());
	}
}

/*
 * neighbours_look
 *		Look around, unless it was a moment ago: has it?  Safe in a signal handler,
 *		after neighbours_begin.
 */
bool
neighbours_look(uint64 now)
{
	if (now < last_look + NS_A_LOOK)
		return false;
	look(now);
	return true;
}

/* neighbours_room -- for how many workers there is room, by what was seen so far. */
uint32
neighbours_room(void)
{
	return neighbours_law(seen.average, cores());
}

/* look -- look around. */
static void
look(uint64 now)
{
	neighbours_note(&seen, count_others(), (double) (now - last_look) / NS_PER_S);
	last_look = now;
}

/* count_others -- how many processes of others are at work now. */
static int
count_others(void)
{
	int			number = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		PGPROC	   *proc = GetPGProcByNumber(i);

		if (proc->pid != 0 && proc != MyProc && proc->lockGroupLeader != MyProc &&
			(proc->statusFlags & PROC_IN_VACUUM) == 0 && is_at_work(proc))
			number++;
	}
	return number;
}

/* is_at_work -- is it in a transaction, and waits for nothing, or for a file? */
static bool
is_at_work(const PGPROC *proc)
{
	uint32		waits_for = proc->wait_event_info;

	return proc->vxid.lxid != InvalidLocalTransactionId &&
		(waits_for == 0 || (waits_for & WAIT_CLASS_MASK) == PG_WAIT_IO);
}

/*
 * cores
 *		How many there are for us.
 *
 * If the system doesn't tell there are enough, so that VACUUM makes no way for
 * others by mistake.
 */
static int
cores(void)
{
	static int	number = 0;

	if (number == 0)
	{
		number = cores_for_process("");
		if (number == 0)
			number = ENOUGH_CORES;
	}
	return DEBUG_LIMIT(cores, number);
}
