/*-------------------------------------------------------------------------
 *
 * at_exit.c
 *	  What a process does before it ends, in one of the server's places for that.
 *
 * The server has room for 20 callbacks in a process, of its own, which may be 10, and of all
 * libraries.  If there is no room for another one the session ends (FATAL).  We have up to eight
 * routines in a process, and take one place: the callback calls the last routine, and before
 * that takes again the place that the server has just freed for it, if there are others.  So
 * the server calls each of them, also if one fails.  All are called before the process's
 * transaction is aborted, as the server has registered that when it connected to the
 * database.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"

#include "at_exit.h"
#include "compat.h"

#define MAX_ROUTINES	12

static void (*routines[MAX_ROUTINES]) (void);
static int	nroutines = 0;

static void call_last(int code, Datum arg);

/* at_exit -- see at_exit.h. */
void
at_exit(void (*routine) (void))
{
	Assert(OidIsValid(MyDatabaseId));
	for (int i = 0; i < nroutines; i++)
		if (routines[i] == routine)
			return;

	Assert(nroutines < MAX_ROUTINES);
	if (nroutines == 0)
		before_shmem_exit(call_last, (Datum) 0);
	routines[nroutines++] = routine;
}

/* call_last -- the callback: call the routine that was registered last, then the others. */
static void
call_last(int code, Datum arg)
{
	void		(*routine) (void) = routines[--nroutines];

	/* some of them wait, or write to disk */
	compat_unlock_pages();
	if (nroutines > 0)
		before_shmem_exit(call_last, (Datum) 0);
	routine();
}
