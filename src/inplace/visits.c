/*-------------------------------------------------------------------------
 *
 * visits.c
 *	  What a process that moves rows is to visit next.
 *
 * All processes of a pass claim ranges of MoveShares, which are in shared memory
 * if there are workers.  A visit counts as done when its batch has been
 * committed, so one whose batch is undone is made again, by the same process.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "inplace/inplace.h"
#include "report/progress.h"

/*
 * visits_next
 *		What this process is to visit next; the same until it says that it has
 *		been there.  Returns false if there is nothing left.
 */
bool
visits_next(Inplace *job, BlockNumber *number)
{
	Assert(job->shares != NULL);
	if (job->next_visit >= job->end_visits &&
		!ranges_claim(&job->shares->visits, &job->next_visit, &job->end_visits))
		return false;
	*number = job->next_visit;
	return true;
}

/* visits_done -- this process is through with what it was to visit. */
void
visits_done(Inplace *job)
{
	Assert(job->shares != NULL);
	Assert(job->next_visit < job->end_visits);
	job->next_visit++;
	progress_blocks_done(++job->moved.blocks);
}
