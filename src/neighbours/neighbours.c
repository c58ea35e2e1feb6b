/*-------------------------------------------------------------------------
 *
 * neighbours.c
 *	  What other sessions do: who wants the cores of the machine, or its disks, and
 *	  how long they have to wait.
 *
 * The leader of a VACUUM looks ten times a second, in one pass over the array of
 * processes, and reads from /proc how long each ran and waited for a core.  README.md
 * says what is made of that.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "miscadmin.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "compat.h"
#include "debug_point.h"
#include "machine/machine.h"
#include "neighbours/neighbours.h"
#include "own_wait_event.h"

/* Older figures say nothing of now. */
#define NS_RECENT			NS_PER_S
#define MOST_FILES_A_LOOK	200
/* A glance reads two words of each process: with some cache misses, a small part of this time */
#define GLANCE_NS_A_PROCESS	10000
/* The number at work is averaged over about this time; */
#define SECONDS_AVERAGED	0.5
/* after such a time without a look it begins anew. */
#define SECONDS_KEPT		1.0
#define MS_BETWEEN_FIRST_LOOKS 5
#define ENOUGH_CORES		1000
/* They are counted so often: to read a few files takes some 50 microseconds. */
#define NS_CORES_KEPT		(10 * (uint64) NS_PER_S)

#define WAIT_CLASS_MASK		0xFF000000

/* What was read of a process */
typedef struct Process
{
	int			pid;
	uint64		read_at;
	uint64		ran;
	uint64		waited;
} Process;

/* By process: does it take part in a VACUUM? */
static pg_atomic_uint32 *takes_part = NULL;

/* this process's, from one table to the next */
static NeighboursSeen seen = {0};
static Process *processes = NULL;	/* MaxBackends of them */
static int	next_process = 0;
static uint64 last_look = 0;
static uint64 last_glance = 0;
static uint64 glanced = 0;		/* ns that others have waited, by glances
								 * since the last look */
static uint64 steady_since = 0; /* there was no gap between looks */

static void neighbours_look_around(uint64 now, bool reads_times, NeighboursTimes *times);
static void neighbours_glance_if_due(uint64 now);
static bool neighbours_is_other(int number);
static bool neighbours_read_others(uint64 now, NeighboursTimes *times);
static bool neighbours_read_process(int number, uint64 now, uint64 *ran, uint64 *waited);
static int	neighbours_cores(void);

/* neighbours_law -- see neighbours.h. */
uint32
neighbours_law(double others, int cores)
{
	Assert(others >= 0 && cores > 0);
	if (others < NEIGHBOURS_NOBODY)
		return NEIGHBOURS_NONE;
	return (uint32) Max(cores - ceil(others) - 1, 0);
}

/* neighbours_note -- see neighbours.h. */
void
neighbours_note(NeighboursSeen *seen, int count, double seconds)
{
	int		   *counts = seen->counts;
	int			middle;

	Assert(seen->looks >= 0 && seen->looks <= NEIGHBOURS_LOOKS);
	Assert(count >= 0);
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

/* neighbours_join -- see neighbours.h. */
void
neighbours_join(void)
{
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	pg_atomic_write_u32(&takes_part[MyProcNumber], 1);
}

/* neighbours_leave -- see neighbours.h. */
void
neighbours_leave(void)
{
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	pg_atomic_write_u32(&takes_part[MyProcNumber], 0);
}

/* neighbours_prepare -- see neighbours.h. */
void
neighbours_prepare(void)
{
	if (processes == NULL)
		processes = MemoryContextAllocZero(TopMemoryContext, MaxBackends * sizeof(Process));
}

/* neighbours_begin -- see neighbours.h. */
void
neighbours_begin(void)
{
	static uint32 event = 0;
	NeighboursTimes times;

	neighbours_look_around(now_ns(), false, &times);
	/* not for longer, even if this process itself finds no core for a second */
	for (int i = 1; i < NEIGHBOURS_LOOKS && seen.looks < NEIGHBOURS_LOOKS; i++)
	{
		own_wait_sleep(own_wait_event(&event, "CycloneFirstLooks"), MS_BETWEEN_FIRST_LOOKS);
		neighbours_look_around(now_ns(), false, &times);
	}
}

/* neighbours_look -- see neighbours.h. */
bool
neighbours_look(uint64 now, bool reads_times, NeighboursTimes *times)
{
	if (reads_times)
		neighbours_glance_if_due(now);
	if (now < last_look + NEIGHBOURS_LOOK_NS)
		return false;
	neighbours_look_around(now, reads_times, times);
	return true;
}

/* neighbours_room -- see neighbours.h. */
uint32
neighbours_room(void)
{
	return neighbours_law(seen.average, neighbours_cores());
}

/* neighbours_look_around -- look around. */
static void
neighbours_look_around(uint64 now, bool reads_times, NeighboursTimes *times)
{
	uint64		passed = now - last_look;
	int			at_work = 0;
	bool		is_first;

	Assert(!reads_times || processes != NULL);
	memset(times, 0, sizeof(*times));
	for (int i = 0; i < MaxBackends; i++)
	{
		const PGPROC *proc = GetPGProcByNumber(i);
		uint32		wait_class = proc->wait_event_info & WAIT_CLASS_MASK;

		if (proc->vxid.lxid == InvalidLocalTransactionId || !neighbours_is_other(i))
			continue;
		if (proc->wait_event_info == 0 || wait_class == PG_WAIT_IO)
			at_work++;
	}
	neighbours_note(&seen, at_work, (double) passed / NS_PER_S);
	last_look = now;

	is_first = reads_times && (processes[MyProcNumber].pid != MyProcPid ||
							   now > processes[MyProcNumber].read_at + NS_RECENT);
	if (is_first || passed > NS_RECENT)
		steady_since = now;
	times->looked = passed;
	times->waited = glanced;
	glanced = 0;
	if (!reads_times)
		last_glance = now;
	if (reads_times && !neighbours_read_others(now, times))
	{
		/* of the first time nothing is known yet, if the kernel tells */
		is_first = is_first && processes[MyProcNumber].pid == MyProcPid;
		times->cores_are_unknown = !is_first;
		times->ran = at_work * passed;
	}
	if (!reads_times || is_first || passed > NS_RECENT || times->looked == 0)
		memset(times, 0, sizeof(*times));
}

/* neighbours_glance_if_due -- who waits now for what VACUUM uses has waited since the last glance. */
static void
neighbours_glance_if_due(uint64 now)
{
	uint64		passed = now - last_glance;

	if (passed < Min(Max(NEIGHBOURS_GLANCE_NS, MaxBackends * (uint64) GLANCE_NS_A_PROCESS), NEIGHBOURS_LOOK_NS))
		return;
	last_glance = now;
	for (int i = 0; i < MaxBackends; i++)
	{
		const PGPROC *proc = GetPGProcByNumber(i);
		uint32		wait_class = proc->wait_event_info & WAIT_CLASS_MASK;
		bool		waits = wait_class == PG_WAIT_IO || wait_class == PG_WAIT_LWLOCK ||
			wait_class == COMPAT_WAIT_BUFFER;

		if (waits && proc->vxid.lxid != InvalidLocalTransactionId && neighbours_is_other(i))
			glanced += passed;
	}
}

/*
 * neighbours_is_other
 *		Is there a process in this place that belongs to no VACUUM, and sends nobody the WAL
 *		that VACUUM writes?
 */
static bool
neighbours_is_other(int number)
{
	const PGPROC *proc = GetPGProcByNumber(number);
	int			pid = proc->pid;

	Assert(number >= 0 && number < MaxBackends);
	if (pid == 0 || proc == MyProc || proc->lockGroupLeader == MyProc ||
		(proc->statusFlags & PROC_IN_VACUUM) != 0 ||
		pg_atomic_read_u32(&takes_part[number]) != 0)
		return false;
	for (int i = 0; i < max_wal_senders; i++)
		if (WalSndCtl->walsnds[i].pid == pid)
			return false;
	return true;
}

/* neighbours_read_others -- add what the kernel says of them, if it does. */
static bool
neighbours_read_others(uint64 now, NeighboursTimes *times)
{
	uint64		ran,
				waited;
	int			nread = 0;
	int			nfailed = 0;
	bool		is_known = false;

	Assert(next_process >= 0 && next_process < MaxBackends);
	if (!neighbours_read_process(MyProcNumber, now, &ran, &waited) || ran == 0)
		return false;
	for (int i = 0; i < MaxBackends && nread < MOST_FILES_A_LOOK; i++)
	{
		int			number = next_process;

		next_process = (next_process + 1) % MaxBackends;
		if (number == MyProcNumber)
			continue;
		if (!neighbours_is_other(number))
		{
			processes[number].pid = 0;
			continue;
		}
		nread++;
		if (neighbours_read_process(number, now, &ran, &waited))
		{
			is_known = true;
			times->ran += ran;
			times->waited += waited;
		}
		else if (processes[number].pid == 0)
			nfailed++;
	}
	/* in the first round of many nothing is known yet */
	if (nread > nfailed && !is_known)
		times->looked = 0;
	/* a process that may read only its own file knows nothing of others */
	return nread == 0 || nfailed < nread;
}

/*
 * neighbours_read_process
 *		How long it ran and waited for a core, in ns, since it was read last, if that was
 *		not before a gap.  With many processes it is some looks ago.
 */
static bool
neighbours_read_process(int number, uint64 now, uint64 *ran, uint64 *waited)
{
	Process    *process = &processes[number];
	Process		before = *process;
	char		name[32];
	char		text[96];
	char	   *end;
	ssize_t		length;
	int			fd;

	Assert(number >= 0 && number < MaxBackends && processes != NULL);
	process->pid = 0;
	process->read_at = now;
	snprintf(name, sizeof(name), "/proc/%d/schedstat", GetPGProcByNumber(number)->pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = pread(fd, text, sizeof(text) - 1, 0);
	close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	process->ran = strtou64(text, &end, 10);
	if (process->ran == 0 || *end != ' ')
		return false;
	process->waited = strtou64(end, NULL, 10);
	process->pid = GetPGProcByNumber(number)->pid;
	*ran = process->ran - before.ran;
	*waited = process->waited - before.waited;
	/* another process may have the number of one that has ended */
	return process->pid == before.pid && before.read_at >= steady_since &&
		process->ran >= before.ran && process->waited >= before.waited;
}

/*
 * neighbours_cores
 *		How many there are for us.  Read again now and then, as cores come and go, and so do
 *		bounds of containers.
 *
 * If the system doesn't tell there are enough, so that VACUUM makes no way for
 * others by mistake.
 */
static int
neighbours_cores(void)
{
	static int	number = 0;
	static uint64 read_at = 0;

	if (number == 0 || last_look >= read_at + NS_CORES_KEPT)
	{
		number = machine_cores("");
		if (number == 0)
			number = ENOUGH_CORES;
		read_at = last_look;
	}
	return DEBUG_LIMIT(cores, number);
}

/* neighbours_shmem_request -- how much shared memory all of this needs. */
void
neighbours_shmem_request(void)
{
	RequestAddinShmemSpace(mul_size(sizeof(pg_atomic_uint32), MaxBackends));
}

/* neighbours_shmem_init -- find it, or make it. */
void
neighbours_shmem_init(void)
{
	bool		found;

	takes_part = ShmemInitStruct("pg_cyclone processes", mul_size(sizeof(pg_atomic_uint32), MaxBackends), &found);
	for (int i = 0; !found && i < MaxBackends; i++)
		pg_atomic_init_u32(&takes_part[i], 0);
}
