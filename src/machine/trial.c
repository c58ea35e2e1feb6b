/*-------------------------------------------------------------------------
 *
 * trial.c
 *	  Whether the system lets us make a call that the server itself never makes.
 *
 * A filter of system calls may end a process that makes such a call, and the server
 * would end all sessions with it.  So a child of the postmaster makes the call first.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/wait.h>
#include <unistd.h>

#include "miscadmin.h"

#include "machine/trial.h"

/*
 * trial_survived
 *		Have a child make a call.  Returns whether the child survived it, and in *result
 *		what the call returned.
 *
 * To be called in the postmaster, while the library is preloaded.  The child does
 * nothing else, and ends without running anything of the server's.
 */
bool
trial_survived(bool (*call) (void), bool *result)
{
	int			status = 0;
	pid_t		child;
	pid_t		ended;

	Assert(process_shared_preload_libraries_in_progress);

	fflush(NULL);
	child = fork();
	if (child == 0)
		_exit(call() ? 0 : 1);
	do
		ended = child > 0 ? waitpid(child, &status, 0) : -1;
	while (ended < 0 && child > 0 && errno == EINTR);
	*result = ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
	return ended == child && WIFEXITED(status);
}
