/*-------------------------------------------------------------------------
 *
 * server_build.c
 *	  Having the server build indexes, if need be without workers.
 *
 * The server builds large indexes of some kinds with workers of its own, and
 * raises an error if there is no shared memory for them, or no descriptor.  One
 * process could do it.  So it builds in a subtransaction; if that fails for
 * lack of resources, all that it did is undone with it, and it builds once
 * more, without workers.
 *
 * Nothing less will do.  Only the server's routines know the sizes and the number
 * of the segments that it shares with its workers, and another session may take
 * shared memory meanwhile.  So to try beforehand whether there is enough proves
 * nothing.  And where the error strikes, the server has given the
 * index a new file, has a parallel context, and may be the table's owner in a
 * restricted context.  Only the end of a subtransaction clears all this away.
 *
 * A subtransaction that gives an index a new file takes a transaction ID.  So
 * there is one only where the server would start workers.  The server itself says
 * whether it would: we call the function that its build calls.  We ask it
 * beforehand, for the whole build, while the table still has the indexes of its old
 * files: to look at an index's expressions may run code of users, which must not
 * come near the table later (see index_builds.c).
 *
 * The subtransaction has nothing but a REINDEX, as a session may run it after a
 * SAVEPOINT: locks on the table and its indexes, the files of the table, and what
 * the relcache knows of them are the outer transaction's.  Beyond what the end of a
 * subtransaction undoes by itself:
 *
 *	- it ends the progress report, which is put back
 *	- the journal of new files has to know of it (new_files.c)
 *	- the caller's memory lasts longer, so the builds have a context of their own
 *	- an error that it doesn't catch must not leave it open: the session would
 *	  wait for a ROLLBACK
 *
 * The error's code says whether resources were lacking.  There are two exceptions.
 * A full disk counts only if it is that of shared memory, as a second try needs as
 * much of any other.  An error that a worker did not start, or is gone, has a code
 * that says little, so the source file that it comes from counts.  A worker or leader
 * that is canceled or terminated does not count.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/parallel.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/relcache.h"

#include "guards/guards.h"
#include "new_files/new_files.h"
#include "index_build/server_build.h"
#include "transaction.h"

/* What a command reports of its progress */
typedef struct ProgressReport
{
	ProgressCommandType command;
	Oid			target;
	int64		params[PGSTAT_NUM_PROGRESS_PARAM];
} ProgressReport;

/* What is built in a subtransaction */
typedef struct Attempt
{
	void		(*routine) (void *);
	void	   *arg;
	MemoryContext work;
} Attempt;

static ErrorData *try_to_build(void (*routine) (void *), void *arg);
static void build_in_context(void *arg);
static bool is_lack_of_resources(const ErrorData *error);
static void save_progress(ProgressReport *report);
static void restore_progress(const ProgressReport *report);

/* server_build_workers -- how many workers would the server build this index with? */
int
server_build_workers(Oid heap_relid, Relation index)
{
	Assert(CheckRelationOidLockedByMe(heap_relid, AccessExclusiveLock, true));
	Assert(CheckRelationLockedByMe(index, AccessExclusiveLock, true));
	Assert(OidIsValid(heap_relid));
	if (!index->rd_indam->amcanbuildparallel)
		return 0;
	return plan_create_index_workers(heap_relid, RelationGetRelid(index));
}

/* server_build_has_workers -- would the server start workers for any index of this table? */
bool
server_build_has_workers(Relation rel, Oid heap_relid)
{
	bool		found = false;

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));
	Assert(CheckRelationOidLockedByMe(heap_relid, AccessExclusiveLock, true));

	foreach_oid(relid, RelationGetIndexList(rel))
	{
		Relation	index = index_open(relid, AccessExclusiveLock);

		found |= server_build_workers(heap_relid, index) > 0;
		index_close(index, NoLock);
	}
	return found;
}

/* server_build -- call a routine that has the server build indexes. */
void
server_build(bool has_workers, void (*routine) (void *), void *arg)
{
	ProgressReport progress;
	ErrorData  *error;

	Assert(IsTransactionState() && !IsInParallelMode());
	Assert(GetCurrentTransactionNestLevel() == 1);
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);

	/* here a guard may hold it, as none can once the build has begun */
	guards_point();

	if (!has_workers || max_parallel_maintenance_workers == 0)
	{
		routine(arg);
		return;
	}

	save_progress(&progress);
	error = try_to_build(routine, arg);
	if (error == NULL)
		return;
	if (!is_lack_of_resources(error))
		ReThrowError(error);

	restore_progress(&progress);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("indexes are built once more without parallel workers, for lack of resources"),
			 errdetail_internal("%s", error->message)));
	FreeErrorData(error);
	(void) set_config_option("max_parallel_maintenance_workers", "0",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	routine(arg);
}

/*
 * try_to_build
 *		Call the routine in a subtransaction.  Returns NULL, or the error that has
 *		ended it.
 */
static ErrorData *
try_to_build(void (*routine) (void *), void *arg)
{
	Attempt		attempt = {.routine = routine,.arg = arg};
	ErrorData  *error;

	attempt.work = AllocSetContextCreate(CurrentMemoryContext, "index builds by the server",
										 ALLOCSET_DEFAULT_SIZES);
	new_files_note();
	error = transaction_try(build_in_context, &attempt);
	new_files_leave_subtransaction(error == NULL);
	/* what was sorted in the first try must not take the second one's memory */
	MemoryContextDelete(attempt.work);
	Assert(GetCurrentTransactionNestLevel() == 1 && !IsInParallelMode());
	return error;
}

/* build_in_context -- for transaction_try. */
static void
build_in_context(void *arg)
{
	Attempt    *attempt = arg;

	new_files_enter_subtransaction();
	MemoryContextSwitchTo(attempt->work);
	attempt->routine(attempt->arg);
}

/*
 * is_lack_of_resources
 *		May one process do what has failed by this error?
 */
static bool
is_lack_of_resources(const ErrorData *error)
{
	const char *file = error->filename ? error->filename : "";

	switch (error->sqlerrcode)
	{
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OUT_OF_MEMORY:
			return true;
		case ERRCODE_DISK_FULL:
			return strcmp(file, "dsm_impl.c") == 0;
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
			return strcmp(file, "parallel.c") == 0;
		default:
			return false;
	}
}

/* save_progress -- what does this command report? */
static void
save_progress(ProgressReport *report)
{
	report->command = MyBEEntry->st_progress_command;
	report->target = MyBEEntry->st_progress_command_target;
	memcpy(report->params, MyBEEntry->st_progress_param, sizeof(report->params));
}

/* restore_progress -- report that again. */
static void
restore_progress(const ProgressReport *report)
{
	int			params[PGSTAT_NUM_PROGRESS_PARAM];

	if (report->command == PROGRESS_COMMAND_INVALID)
		return;
	for (int i = 0; i < PGSTAT_NUM_PROGRESS_PARAM; i++)
		params[i] = i;
	pgstat_progress_start_command(report->command, report->target);
	pgstat_progress_update_multi_param(PGSTAT_NUM_PROGRESS_PARAM, params, report->params);
}
