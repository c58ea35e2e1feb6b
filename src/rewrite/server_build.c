/*-------------------------------------------------------------------------
 *
 * server_build.c
 *	  Having the server build indexes, if need be without workers.
 *
 * The server builds large btrees, and some other indexes, with workers of its
 * own, and raises an error if there is no shared memory for them, or no
 * descriptor.  One process could do it.  So it builds in a subtransaction; if
 * that fails for lack of resources, all that it did is undone with it, and it
 * builds once more, without workers.
 *
 * The error may be that of a disk that is full.  Then the second try fails,
 * too, and that is the command's error.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "rewrite/server_build.h"

static char *try_to_build(void (*routine) (void *), void *arg);

/*
 * server_build
 *		Call a routine that has the server build indexes.
 *
 * It may be called twice, and what it did before is undone then.  Not in
 * parallel mode.  The caller restores max_parallel_maintenance_workers.
 */
void
server_build(void (*routine) (void *), void *arg)
{
	char	   *failure;

	Assert(IsTransactionState() && !IsInParallelMode());

	if (max_parallel_maintenance_workers == 0)
	{
		routine(arg);
		return;
	}

	failure = try_to_build(routine, arg);
	if (failure == NULL)
		return;
	ereport(WARNING,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("indexes are built once more without parallel workers, for lack of resources"),
			 errdetail_internal("%s", failure)));
	(void) set_config_option("max_parallel_maintenance_workers", "0",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	routine(arg);
}

/*
 * try_to_build
 *		Call the routine in a subtransaction.  Returns NULL, or why it failed, if
 *		that was for lack of resources; other errors are raised as they are.
 */
static char *
try_to_build(void (*routine) (void *), void *arg)
{
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext context = CurrentMemoryContext;
	char	   *volatile failure = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		routine(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		if (ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		failure = error->message;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return failure;
}
