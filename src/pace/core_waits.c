/*-------------------------------------------------------------------------
 *
 * core_waits.c
 *	  How long other sessions wait for a core.
 *
 * A session that wakes up, as a statement has come for it, may have to wait for a
 * core before it does anything, so its own clocks don't show that.  And of a
 * transaction of many short statements it may be most of what a VACUUM adds.  Linux
 * counts for each process how long it has run, and how long it was ready to run and
 * has not; so a leader adds up, a few times a second, what the others have.  Where
 * that isn't to be had there is nothing to add up.
 *
 * VACUUMs don't count, but those with FULL; nor do the auxiliary processes of the
 * server.  Of many processes only so many are read at a time, in turn; who can't be
 * read again soon doesn't count, as what it did would be taken for what it does.
 *
 * While the leader is in the server's code its timer's signal handler looks, and reads
 * a few only, so core_waits_look takes no lock, allocates no memory and raises no
 * error.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "pace/clock.h"
#include "pace/core_waits.h"

#define NS_A_LOOK			(100 * (uint64) NS_PER_MS)
#define MOST_FILES_A_LOOK	200
#define MOST_FILES_IN_HANDLER 20
/* What is older than that says nothing of now; a handler comes less often. */
#define NS_RECENT			NS_PER_S
#define NS_RECENT_IN_HANDLER (5 * (uint64) NS_PER_S)

/* What was read of a process */
typedef struct Process
{
	int			pid;
	uint64		read_at;
	CoreTimes	times;
} Process;

static Process *processes = NULL;	/* MaxBackends of them, by PGPROC */
static int	next_process = 0;
static uint64 last_look = 0;

static bool is_other_session(const PGPROC *proc);
static bool read_times(int pid, CoreTimes *times);

/* core_waits_prepare -- to be called in a process before it looks. */
void
core_waits_prepare(void)
{
	if (processes == NULL)
		processes = MemoryContextAllocZero(TopMemoryContext, MaxBackends * sizeof(Process));
}

/*
 * core_waits_look
 *		Look at the other sessions, unless it was a moment ago: has it?  *since is what
 *		they have had since they were looked at last, if that was lately.
 */
bool
core_waits_look(uint64 now, bool in_handler, CoreTimes *since)
{
	int			most = in_handler ? MOST_FILES_IN_HANDLER : MOST_FILES_A_LOOK;
	uint64		recent = in_handler ? NS_RECENT_IN_HANDLER : NS_RECENT;
	int			nread = 0;

	Assert(processes != NULL);
	if (now < last_look + NS_A_LOOK)
		return false;
	last_look = now;
	since->ran = 0;
	since->waited = 0;
	for (int i = 0; i < MaxBackends && nread < most; i++)
	{
		int			number = next_process;
		const PGPROC *proc = GetPGProcByNumber(number);
		Process    *process = &processes[number];
		int			pid = proc->pid;
		CoreTimes	times;

		next_process = (next_process + 1) % MaxBackends;
		if (pid == 0 || !is_other_session(proc))
		{
			process->pid = 0;
			continue;
		}
		nread++;
		if (!read_times(pid, &times))
		{
			process->pid = 0;
			continue;
		}
		/* another process may have the number of one that has ended */
		if (process->pid == pid && now < process->read_at + recent && times.ran >= process->times.ran &&
			times.waited >= process->times.waited)
		{
			since->ran += times.ran - process->times.ran;
			since->waited += times.waited - process->times.waited;
		}
		process->pid = pid;
		process->read_at = now;
		process->times = times;
	}
	return true;
}

/* is_other_session -- is it neither ours nor a VACUUM, as far as can be seen? */
static bool
is_other_session(const PGPROC *proc)
{
	return proc != MyProc && proc->lockGroupLeader != MyProc &&
		(proc->statusFlags & PROC_IN_VACUUM) == 0;
}

/* read_times -- get a process's times, as the system counts them since it began. */
static bool
read_times(int pid, CoreTimes *times)
{
	char		name[32];
	char		text[96];
	char	   *end;
	int			fd;
	ssize_t		length;

	snprintf(name, sizeof(name), "/proc/%d/schedstat", pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	times->ran = strtou64(text, &end, 10);
	if (times->ran == 0 || *end != ' ')
		return false;
	times->waited = strtou64(end, NULL, 10);
	return true;
}
