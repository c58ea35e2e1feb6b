/*-------------------------------------------------------------------------
 *
 * priority.c
 *	  Whose turn it is on a core: others', as far as the system lets us choose.
 *
 * A lower priority (nice, SCHED_IDLE) is no way to spare others: a process that
 * then gets no core for long may hold what they need, and a session can't raise
 * its own again.  What can be chosen freely, and be taken back, is when the share
 * of a core comes that is due to everybody.  While a process vacuums it is of
 * Linux's class for batch work, so that it takes no core from somebody at once
 * when it wakes from a nap, and it asks for long slices of time, so that its
 * deadlines are late and whoever else wakes goes first (since Linux 6.12; before
 * that a slice can't be asked for).  In the long run it gets as much as before.
 *
 * Who is of a special class already, by the administrator's will, stays there.
 * Elsewhere than on Linux nothing of this happens.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "pace/priority.h"

#if defined(__linux__) && defined(SYS_sched_setattr) && defined(SYS_sched_getattr)

#ifndef SCHED_BATCH
#define SCHED_BATCH			3
#endif

/* The longest that there is */
#define SLICE_NS			UINT64CONST(100000000)

/* What the kernel calls struct sched_attr, in its first version */
typedef struct SchedulingAttributes
{
	uint32		size;
	uint32		policy;
	uint64		flags;
	int32		nice;
	uint32		priority;
	uint64		runtime;		/* the slice, in ns */
	uint64		deadline;
	uint64		period;
} SchedulingAttributes;

/* as they were; the size is 0 if they weren't changed */
static SchedulingAttributes before = {0};

/* priority_batch -- this process begins to vacuum. */
void
priority_batch(void)
{
	SchedulingAttributes now = {0};

	if (before.size != 0 ||
		syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) != 0 ||
		now.policy != SCHED_OTHER)
		return;
	before = now;
	now.size = before.size = sizeof(now);
	now.policy = SCHED_BATCH;
	now.runtime = SLICE_NS;
	if (syscall(SYS_sched_setattr, 0, &now, 0) != 0)
		before.size = 0;
}

/* priority_restore -- it has ended; harmless if it never began. */
void
priority_restore(void)
{
	if (before.size != 0)
		(void) syscall(SYS_sched_setattr, 0, &before, 0);
	before.size = 0;
}

#else

/* priority_batch -- nothing can be chosen here. */
void
priority_batch(void)
{
}

/* priority_restore -- so there is nothing to take back. */
void
priority_restore(void)
{
}

#endif
