/*-------------------------------------------------------------------------
 *
 * priority.c
 *	  Whose turn it is on a core: others', as far as the system lets us choose.
 *
 * A lower priority would spare others, but on a machine whose cores are all busy a
 * process that has it gets no core for long, and may hold what others need; and a
 * process can't raise its own again.  (A session of the system's can, if the kernel
 * shares out the cores to sessions.)  What does no harm, and can be taken back, is
 * Linux's class for batch work, for as long as a process vacuums: so it takes no core
 * from somebody at the moment it wakes from a nap.  In the long run it gets as much
 * as before.
 *
 * Long slices of time (since Linux 6.12) are none of that: with them others waited for
 * longer.
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
#endif

#include "pace/priority.h"

#if defined(__linux__) && defined(SCHED_BATCH)

static bool is_batch = false;	/* have we made it so? */

/* priority_batch -- this process begins to vacuum. */
void
priority_batch(void)
{
	struct sched_param param = {0};

	if (!is_batch && sched_getscheduler(0) == SCHED_OTHER)
		is_batch = sched_setscheduler(0, SCHED_BATCH, &param) == 0;
}

/* priority_restore -- it has ended; harmless if it never began. */
void
priority_restore(void)
{
	struct sched_param param = {0};

	if (is_batch && sched_getscheduler(0) == SCHED_BATCH)
		(void) sched_setscheduler(0, SCHED_OTHER, &param);
	is_batch = false;
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
