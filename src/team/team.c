/*-------------------------------------------------------------------------
 *
 * team.c
 *	  The leader and the workers of one VACUUM.  Here is the leader's side; that of
 *	  the workers is in team_worker.c.
 *
 * A team is launched once a table and led from phase to phase.  A phase is one routine that
 * every member runs at the same time, the leader among them, over work that the members
 * share out by atomic counters in the team's shared block.  A team without workers runs the
 * same routine in the leader alone, with the shared block in private memory.
 *
 * README.md says when workers come and rest, what orders their writes, and what it costs if
 * one fails.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shm_mq.h"
#include "storage/shmem.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "at_exit.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "library.h"
#include "own_wait_event.h"
#include "team/attempt.h"
#include "team/team_state.h"

/* How often the leader has something to do while it waits for workers */
#define WAITING_MS			250

/* How long, in all, a leader that has failed waits for workers that are only just starting */
#define ARRIVAL_MS			500

/* the team that this process leads, and valid as long, its context */
static TeamControl *my_control = NULL;
static ParallelContext *my_pcxt = NULL;

/* Was there no shared memory for the last team that was to have workers? */
static bool lacked_memory = false;

static bool assemble_team(Team *team, const char *worker_main, int nworkers, Size shared_size,
						  char **failure);
static void make_segment(void *pcxt);
static void destroy_context(void *pcxt);
static void lay_out(Team *team, Size shared_size, const char *query);
static bool end_phase(TeamControl *control);
static void check_workers(void);
static void forget_workers_not_started(ParallelContext *pcxt);

/* a leader's, in a phase: what else it does while it waits for workers */
static void (*my_while_waiting) (void) = NULL;

static const char *leaders_text(void);
static void lead_phase(TeamControl *control, ParallelContext *pcxt);
static void wait_for_arrivals(void);
static bool worker_is_starting(void);
static void forget_control(dsm_segment *segment, Datum arg);

/*
 * team_create
 *		Plan a team of this many workers, each of which will call the
 *		function worker_main of this library, and make its shared block.
 */
Team *
team_create(const char *worker_main, int nworkers, Size shared_size)
{
	Team	   *team = palloc0_object(Team);
	char	   *failure = NULL;

	Assert(CritSectionCount == 0);
	Assert(!IsParallelWorker() && !IsInParallelMode());
	Assert(nworkers == 0 || worker_main != NULL);
	Assert(nworkers >= 0 && nworkers <= MAX_PARALLEL_WORKER_LIMIT);
	Assert(shared_size > 0);

	if (nworkers > 0)
	{
		lacked_memory = !assemble_team(team, worker_main, nworkers, shared_size, &failure);
		if (!lacked_memory)
			return team;
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("VACUUM goes on without parallel workers for lack of shared memory"),
				 errdetail_internal("%s", failure)));
	}

	team->shared = MemoryContextAllocExtended(CurrentMemoryContext, shared_size,
											  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	return team;
}

/*
 * assemble_team
 *		Enter parallel mode, and make all that workers need; return false, and why in
 *		*failure, if there is no shared memory for it.
 */
static bool
assemble_team(Team *team, const char *worker_main, int nworkers, Size shared_size,
			  char **failure)
{
	const char *query = leaders_text();
	Size		query_size = query ? strlen(query) + 1 : 0;
	ParallelContext *pcxt;

	EnterParallelMode();
	pcxt = CreateParallelContext(library_path(), worker_main, nworkers);
	shm_toc_estimate_chunk(&pcxt->estimator, sizeof(TeamControl));
	shm_toc_estimate_chunk(&pcxt->estimator, shared_size);
	shm_toc_estimate_chunk(&pcxt->estimator, mul_size(sizeof(BufferUsage), pcxt->nworkers));
	shm_toc_estimate_chunk(&pcxt->estimator, mul_size(sizeof(WalUsage), pcxt->nworkers));
	shm_toc_estimate_keys(&pcxt->estimator, 4);
	if (query_size > 0)
	{
		shm_toc_estimate_chunk(&pcxt->estimator, query_size);
		shm_toc_estimate_keys(&pcxt->estimator, 1);
	}

	if (!attempt(make_segment, destroy_context, pcxt, failure))
	{
		ExitParallelMode();
		return false;
	}
	team->pcxt = pcxt;
	lay_out(team, shared_size, query);
	lead_phase(team->control, pcxt);
	return true;
}

/*
 * make_segment
 *		Make the segment of a parallel context, or fail for lack of resources.
 */
static void
make_segment(void *pcxt)
{
	InitializeParallelDSM((ParallelContext *) pcxt);
	if (((ParallelContext *) pcxt)->seg == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("too many dynamic shared memory segments")));
}

/* destroy_context -- one without workers, as far as it has come. */
static void
destroy_context(void *pcxt)
{
	DestroyParallelContext((ParallelContext *) pcxt);
}

/*
 * lay_out
 *		Fill the segment of a team with what is ours.
 */
static void
lay_out(Team *team, Size shared_size, const char *query)
{
	ParallelContext *pcxt = team->pcxt;
	TeamControl *control = shm_toc_allocate(pcxt->toc, sizeof(TeamControl));
	Size		size;

	/* It may be memory that was used before, of min_dynamic_shared_memory. */
	memset(control, 0, sizeof(TeamControl));
	SpinLockInit(&control->mutex);
	ConditionVariableInit(&control->begun);
	ConditionVariableInit(&control->over);
	ConditionVariableInit(&control->done_changed);
	for (int i = 0; i < lengthof(control->arrived); i++)
		pg_atomic_init_u64(&control->arrived[i], 0);
	pg_atomic_init_u32(&control->given_up, 0);
	control->query_id = pgstat_get_my_query_id();
	shm_toc_insert(pcxt->toc, TEAM_KEY_CONTROL, control);
	team->control = control;

	team->shared = shm_toc_allocate(pcxt->toc, shared_size);
	shm_toc_insert(pcxt->toc, TEAM_KEY_SHARED, team->shared);
	memset(team->shared, 0, shared_size);

	/* a worker that never comes has spent nothing */
	size = mul_size(sizeof(BufferUsage), pcxt->nworkers);
	team->buffer_usage = shm_toc_allocate(pcxt->toc, size);
	memset(team->buffer_usage, 0, size);
	shm_toc_insert(pcxt->toc, TEAM_KEY_BUFFER_USAGE, team->buffer_usage);
	size = mul_size(sizeof(WalUsage), pcxt->nworkers);
	team->wal_usage = shm_toc_allocate(pcxt->toc, size);
	memset(team->wal_usage, 0, size);
	shm_toc_insert(pcxt->toc, TEAM_KEY_WAL_USAGE, team->wal_usage);

	if (query != NULL)
	{
		char	   *query_text = shm_toc_allocate(pcxt->toc, strlen(query) + 1);

		strcpy(query_text, query);
		shm_toc_insert(pcxt->toc, TEAM_KEY_QUERY_TEXT, query_text);
	}
}

/*
 * lead_phase
 *		This process leads the team of that block, for as long as it has its segment.
 */
static void
lead_phase(TeamControl *control, ParallelContext *pcxt)
{
	/* a process leads one team at a time */
	Assert(my_control == NULL && my_pcxt == NULL);
	Assert(pcxt->seg != NULL);

	/* a leader that is terminated ends its workers, too */
	at_exit(team_give_up);
	on_dsm_detach(pcxt->seg, forget_control, (Datum) 0);
	my_pcxt = pcxt;
	my_control = control;
}

/*
 * team_give_up
 *		The leader has failed: its workers will be terminated, and need not say so
 *		in the server's log.
 *
 * A worker that is only just starting doesn't know of the team yet, so it would
 * say so.  The leader waits a moment for it.
 */
void
team_give_up(void)
{
	if (my_control == NULL || IsParallelWorker() || pg_atomic_read_u32(&my_control->given_up))
		return;
	/* before we look who has arrived: workers that come later will see it */
	pg_atomic_write_membarrier_u32(&my_control->given_up, 1);
	wait_for_arrivals();
}

/*
 * wait_for_arrivals
 *		Leader that has failed: wait until each of its workers has found the team or
 *		has ended, but not for long.
 *
 * Serves no interrupts, as the error that is being handled may be one.
 */
static void
wait_for_arrivals(void)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), DEBUG_LIMIT(arrival_ms, ARRIVAL_MS));

	while (worker_is_starting() && GetCurrentTimestamp() < end)
	{
		/* the latch may stay set, by an interrupt that is served later */
		own_wait_sleep(WAIT_EVENT_BGWORKER_STARTUP, 1);
	}
}

/*
 * worker_is_starting
 *		Leader: has a worker been launched that has neither found the team nor ended?
 */
static bool
worker_is_starting(void)
{
	for (int i = 0; i < my_pcxt->nworkers_launched; i++)
	{
		BackgroundWorkerHandle *handle = my_pcxt->worker[i].bgwhandle;
		bool		has_arrived = (pg_atomic_read_u64(&my_control->arrived[i / 64]) & UINT64CONST(1) << i % 64) != 0;
		pid_t		pid;

		if (!has_arrived && handle != NULL && GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
			return true;
	}
	return false;
}

/*
 * team_launch
 *		Start the workers; they wait for the first phase, or join the one that runs.
 */
void
team_launch(Team *team)
{
	if (team->pcxt == NULL)
		return;
	Assert(!IsParallelWorker() && InterruptHoldoffCount == 0);
	Assert(my_pcxt == team->pcxt);
	Assert(IsInParallelMode() && team->pcxt->nworkers_launched == 0);
	LaunchParallelWorkers(team->pcxt);
}

/*
 * team_run
 *		Run one phase in all members and return when all are through with it.
 */
void
team_run(Team *team, int phase, TeamPhaseRoutine routine, void *state,
		 void (*while_waiting) (void))
{
	TeamControl *control = team->control;

	Assert(!IsParallelWorker());
	Assert(CritSectionCount == 0);
	Assert((control == NULL) == (team->pcxt == NULL));
	if (control == NULL)
	{
		routine(state, phase);
		return;
	}

	/* Workers would have to be told of a transaction ID: there is none. */
	Assert(IsInParallelMode());
	Assert(my_control == control && while_waiting != NULL);

	SpinLockAcquire(&control->mutex);
	Assert(!control->is_running && !control->is_over);
	control->phase = phase;
	control->phase_count++;
	control->is_running = true;
	control->done = 0;
	SpinLockRelease(&control->mutex);
	my_while_waiting = while_waiting;
	ConditionVariableBroadcast(&control->begun);

	routine(state, phase);

	while (!end_phase(control))
		team_sleep(&control->done_changed, team_wait_event_phase_end());
	ConditionVariableCancelSleep();
	my_while_waiting = NULL;
}

/*
 * team_sleep
 *		A member, in a phase, waits for what another one does: as
 *		ConditionVariableSleep, which the caller loops around, and ends.
 *
 * The leader comes back now and then, as it has duties that no worker has: the
 * workers may not live any more, or have to be called.  No lock may be held.
 */
void
team_sleep(ConditionVariable *changed, uint32 wait_event)
{
	Assert(changed != NULL && InterruptHoldoffCount == 0);
	if (my_pcxt == NULL)
	{
		ConditionVariableSleep(changed, wait_event);
		return;
	}
	if (ConditionVariableTimedSleep(changed, WAITING_MS, wait_event))
		check_workers();
	my_while_waiting();
}

/*
 * end_phase
 *		Leader: end the phase if all workers are through with it, and return
 *		whether they are.
 */
static bool
end_phase(TeamControl *control)
{
	bool		all_done;

	SpinLockAcquire(&control->mutex);
	Assert(control->is_running && control->done + control->resting <= control->attached);
	all_done = control->done + control->resting == control->attached;
	if (all_done)
		control->is_running = false;
	SpinLockRelease(&control->mutex);
	return all_done;
}

/*
 * check_workers
 *		Leader: raise an error if a worker is no more that hadn't done its part.
 *
 * Such a worker has said why, and that error is thrown again here first.  If it
 * couldn't say so, we would wait for it in vain.
 */
static void
check_workers(void)
{
	int			alive = 0;
	int			attached;

	/* first the live ones, as a worker detaches before it ends */
	for (int i = 0; i < my_pcxt->nworkers_launched; i++)
	{
		pid_t		pid;
		BackgroundWorkerHandle *handle = my_pcxt->worker[i].bgwhandle;

		if (handle != NULL && GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
			alive++;
	}
	SpinLockAcquire(&my_control->mutex);
	attached = my_control->attached;
	SpinLockRelease(&my_control->mutex);

	if (attached > alive)
	{
		CHECK_FOR_INTERRUPTS();
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("a parallel vacuum worker has ended in the midst of its work"),
				 errhint("More details may be available in the server log.")));
	}
}

/*
 * team_end
 *		Send the workers home, take over what they spent, and leave parallel
 *		mode.  The shared block is gone afterwards.
 */
void
team_end(Team *team)
{
	TeamControl *control = team->control;

	Assert(!IsParallelWorker());
	Assert(team->shared != NULL);
	if (team->pcxt == NULL)
	{
		pfree(team->shared);
		pfree(team);
		return;
	}

	Assert(IsInParallelMode());
	SpinLockAcquire(&control->mutex);
	Assert(!control->is_running && !control->is_over);
	control->is_over = true;
	SpinLockRelease(&control->mutex);
	ConditionVariableBroadcast(&control->begun);
	ConditionVariableBroadcast(&control->over);

	forget_workers_not_started(team->pcxt);
	WaitForParallelWorkersToFinish(team->pcxt);

	for (int i = 0; i < team->pcxt->nworkers_launched; i++)
		InstrAccumParallelQuery(&team->buffer_usage[i], &team->wal_usage[i]);
	/* they have waited for it themselves */
	guards_skip_wal();

	DestroyParallelContext(team->pcxt);
	ExitParallelMode();
	pfree(team);
}

/*
 * forget_workers_not_started
 *		Wait until each worker has started; warn of those that couldn't.
 *
 * The server would make an error of that, as it can't know whether anybody
 * relied on them.
 */
static void
forget_workers_not_started(ParallelContext *pcxt)
{
	int			nfailed = 0;

	for (int i = 0; i < pcxt->nworkers_launched; i++)
	{
		ParallelWorkerInfo *worker = &pcxt->worker[i];
		pid_t		pid;

		for (;;)
		{
			BgwHandleStatus status;

			/* it may bring the worker's end, or its error */
			CHECK_FOR_INTERRUPTS();
			if (worker->error_mqh == NULL)
				break;
			/* in this order: a worker that has stopped attaches no more */
			status = GetBackgroundWorkerPid(worker->bgwhandle, &pid);
			pg_memory_barrier();
			if (shm_mq_get_sender(shm_mq_get_queue(worker->error_mqh)) != NULL)
				break;
			if (status == BGWH_STOPPED)
			{
				shm_mq_detach(worker->error_mqh);
				worker->error_mqh = NULL;
				nfailed++;
				break;
			}
			/* both the postmaster and an attaching worker wake us */
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
							 WAIT_EVENT_BGWORKER_STARTUP);
			ResetLatch(MyLatch);
		}
	}

	if (nfailed > 0)
		ereport(WARNING,
				(errmsg_plural("%d parallel vacuum worker failed to start",
							   "%d parallel vacuum workers failed to start",
							   nfailed, nfailed),
				 errdetail("The others have done its work."),
				 errhint("More details may be available in the server log.")));
}

/*
 * leaders_text
 *		What the leader's row in pg_stat_activity says, for those of its workers.
 *
 * An autovacuum worker has no query, but reports one.
 */
static const char *
leaders_text(void)
{
	return debug_query_string != NULL || MyBEEntry == NULL ?
		debug_query_string : MyBEEntry->st_activity_raw;
}

/* forget_control -- the leader's block is about to go. */
static void
forget_control(dsm_segment *segment, Datum arg)
{
	my_control = NULL;
	my_pcxt = NULL;
	my_while_waiting = NULL;
}

/* team_shared -- the block that the members share. */
void *
team_shared(const Team *team)
{
	return team->shared;
}

/*
 * team_segment
 *		Leader: the segment that the shared block is in, NULL if it is private
 *		memory.
 */
dsm_segment *
team_segment(const Team *team)
{
	return team->pcxt ? team->pcxt->seg : NULL;
}

/* team_launched_workers -- how many of them the server could start. */
int
team_launched_workers(const Team *team)
{
	return team->pcxt ? team->pcxt->nworkers_launched : 0;
}

/*
 * team_lacked_memory
 *		Was there no shared memory for the last team that was to have workers?
 */
bool
team_lacked_memory(void)
{
	return lacked_memory;
}

/* team_wait_event_phase_end -- waiting for the other members to finish a phase. */
uint32
team_wait_event_phase_end(void)
{
	static uint32 event = 0;

	return own_wait_event(&event, "CyclonePhaseEnd");
}
