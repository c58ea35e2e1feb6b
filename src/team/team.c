/*-------------------------------------------------------------------------
 *
 * team.c
 *	  The leader and the workers of one VACUUM.
 *
 * A team is launched once a table and led from phase to phase.  A phase is
 * one routine that every member runs at the same time, the leader among
 * them, over work that the members share out by atomic counters in the
 * team's shared block.  A team without workers runs the same routine in the
 * leader alone, with the shared block in private memory.
 *
 * One Barrier leads the team.  Its phase number is even while the members
 * wait for work and odd while they work:
 *
 *	  leader: writes the phase to run | arrives		| works | arrives | ...
 *	  worker: waits at the barrier	  | is released | works | arrives | ...
 *
 * Between two phases the workers do nothing but wait, so whatever the leader
 * writes to the shared block then needs no lock: the barrier orders it
 * before all that the workers read in the next phase, and likewise all that
 * a worker wrote in a phase before what the leader reads after it.
 *
 * A worker may join at any time.  If it comes while a phase is running it
 * takes part in what is left of it, which is why a phase must get by with
 * whoever turns up: the leader never waits for a worker to start.
 *
 * Errors: one in a worker is thrown again in the leader, at the latest when
 * it waits for the end of the phase; one in the leader makes transaction
 * abort terminate the workers, which wait interruptibly.
 *
 * Parallel mode lasts from team_create to team_end: nothing may be done in
 * between that assigns a transaction ID.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/barrier.h"
#include "storage/condition_variable.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "team/team.h"

#define TEAM_LIBRARY		"pg_cyclone"

/* A phase number that tells the workers to go. */
#define TEAM_PHASE_END		PG_UINT32_MAX

/* How often the leader has something to do while it waits for others */
#define WAITING_MS			250

#define TEAM_KEY_CONTROL		UINT64CONST(0xC1C10E0000000001)
#define TEAM_KEY_SHARED			UINT64CONST(0xC1C10E0000000002)
#define TEAM_KEY_QUERY_TEXT		UINT64CONST(0xC1C10E0000000003)
#define TEAM_KEY_BUFFER_USAGE	UINT64CONST(0xC1C10E0000000004)
#define TEAM_KEY_WAL_USAGE		UINT64CONST(0xC1C10E0000000005)

/* How the members find together; in the DSM segment of the team. */
typedef struct TeamControl
{
	Barrier		barrier;
	/* written by the leader while the members wait, read by them at work */
	pg_atomic_uint32 phase;
	/* workers at work or waiting for it; and how one tells that it is done */
	pg_atomic_uint32 working;
	ConditionVariable finished;
	/* never changes */
	compat_query_id query_id;
} TeamControl;

struct Team
{
	ParallelContext *pcxt;		/* NULL in a worker, and without workers */
	TeamControl *control;		/* NULL without workers */
	void	   *shared;
	BufferUsage *buffer_usage;	/* an element for each worker */
	WalUsage   *wal_usage;
	int			planned_workers;
};

static uint32 wait_event_phase_start(void);
static uint32 wait_event_phase_end(void);

/*
 * team_create
 *		Plan a team of this many workers, each of which will call the
 *		function worker_main of this library, and make its shared block.
 *
 * The block is zeroed and MAXALIGNed; it lasts until team_end.  With workers
 * this enters parallel mode, and fewer may come of it, even none.
 */
Team *
team_create(const char *worker_main, int nworkers, Size shared_size)
{
	Team	   *team = palloc0_object(Team);
	ParallelContext *pcxt;
	Size		query_size = debug_query_string ? strlen(debug_query_string) + 1 : 0;

	team->planned_workers = nworkers;
	if (nworkers == 0)
	{
		team->shared = MemoryContextAllocExtended(CurrentMemoryContext, shared_size,
												  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
		return team;
	}

	EnterParallelMode();
	pcxt = CreateParallelContext(TEAM_LIBRARY, worker_main, nworkers);
	team->pcxt = pcxt;

	shm_toc_estimate_chunk(&pcxt->estimator, sizeof(TeamControl));
	shm_toc_estimate_chunk(&pcxt->estimator, shared_size);
	shm_toc_estimate_chunk(&pcxt->estimator, mul_size(sizeof(BufferUsage), nworkers));
	shm_toc_estimate_chunk(&pcxt->estimator, mul_size(sizeof(WalUsage), nworkers));
	shm_toc_estimate_keys(&pcxt->estimator, 4);
	if (query_size > 0)
	{
		shm_toc_estimate_chunk(&pcxt->estimator, query_size);
		shm_toc_estimate_keys(&pcxt->estimator, 1);
	}

	InitializeParallelDSM(pcxt);

	team->control = shm_toc_allocate(pcxt->toc, sizeof(TeamControl));
	memset(team->control, 0, sizeof(TeamControl));
	BarrierInit(&team->control->barrier, 0);
	pg_atomic_init_u32(&team->control->phase, TEAM_PHASE_END);
	pg_atomic_init_u32(&team->control->working, 0);
	ConditionVariableInit(&team->control->finished);
	team->control->query_id = pgstat_get_my_query_id();
	shm_toc_insert(pcxt->toc, TEAM_KEY_CONTROL, team->control);

	/* It may be memory that was used before: see min_dynamic_shared_memory. */
	team->shared = shm_toc_allocate(pcxt->toc, shared_size);
	memset(team->shared, 0, shared_size);
	shm_toc_insert(pcxt->toc, TEAM_KEY_SHARED, team->shared);

	team->buffer_usage = shm_toc_allocate(pcxt->toc, mul_size(sizeof(BufferUsage), nworkers));
	shm_toc_insert(pcxt->toc, TEAM_KEY_BUFFER_USAGE, team->buffer_usage);
	team->wal_usage = shm_toc_allocate(pcxt->toc, mul_size(sizeof(WalUsage), nworkers));
	shm_toc_insert(pcxt->toc, TEAM_KEY_WAL_USAGE, team->wal_usage);

	if (query_size > 0)
	{
		char	   *query_text = shm_toc_allocate(pcxt->toc, query_size);

		memcpy(query_text, debug_query_string, query_size);
		shm_toc_insert(pcxt->toc, TEAM_KEY_QUERY_TEXT, query_text);
	}

	BarrierAttach(&team->control->barrier);
	return team;
}

/*
 * team_launch
 *		Start the workers; they wait for the first phase.
 *
 * All that they read when they join must be in the shared block by now.
 */
void
team_launch(Team *team)
{
	if (team->pcxt != NULL)
		LaunchParallelWorkers(team->pcxt);
}

/*
 * team_run
 *		Run one phase in all members and return when all are through with it.
 *
 * While the leader waits for others, while_waiting is called now and then.
 */
void
team_run(Team *team, int phase, TeamPhaseRoutine routine, void *state,
		 void (*while_waiting) (void))
{
	if (team->control == NULL)
	{
		routine(state, phase);
		return;
	}

	pg_atomic_write_u32(&team->control->phase, phase);
	BarrierArriveAndWait(&team->control->barrier, wait_event_phase_start());
	routine(state, phase);

	/* it can't be done while waiting at a barrier */
	while (pg_atomic_read_u32(&team->control->working) > 0)
	{
		(void) ConditionVariableTimedSleep(&team->control->finished, WAITING_MS,
										   wait_event_phase_end());
		while_waiting();
	}
	ConditionVariableCancelSleep();
	BarrierArriveAndWait(&team->control->barrier, wait_event_phase_end());
}

/*
 * team_end
 *		Send the workers home, take over what they spent, and leave parallel
 *		mode.  The shared block is gone afterwards.
 */
void
team_end(Team *team)
{
	if (team->pcxt != NULL)
	{
		pg_atomic_write_u32(&team->control->phase, TEAM_PHASE_END);
		BarrierArriveAndDetach(&team->control->barrier);
		WaitForParallelWorkersToFinish(team->pcxt);

		for (int i = 0; i < team->pcxt->nworkers_launched; i++)
			InstrAccumParallelQuery(&team->buffer_usage[i], &team->wal_usage[i]);

		DestroyParallelContext(team->pcxt);
		ExitParallelMode();
	}
	else
		pfree(team->shared);
	pfree(team);
}

/*
 * team_join
 *		A worker finds its team.  Call it first in the worker's main function.
 */
Team *
team_join(shm_toc *toc)
{
	Team	   *team = palloc0_object(Team);

	team->control = shm_toc_lookup(toc, TEAM_KEY_CONTROL, false);
	team->shared = shm_toc_lookup(toc, TEAM_KEY_SHARED, false);

	debug_query_string = shm_toc_lookup(toc, TEAM_KEY_QUERY_TEXT, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
	pgstat_report_query_id(team->control->query_id, false);

	InstrStartParallelQuery();
	return team;
}

/*
 * team_follow
 *		Work as the leader says, phase by phase, until it sends us home.
 */
void
team_follow(Team *team, TeamPhaseRoutine routine, void *state)
{
	Barrier    *barrier = &team->control->barrier;
	int			barrier_phase = BarrierAttach(barrier);

	for (;;)
	{
		uint32		phase;

		/* before there is work, so that who waits for it can't miss it */
		pg_atomic_fetch_add_u32(&team->control->working, 1);
		/* even: wait for work; odd on entry: a phase is already running */
		if (barrier_phase % 2 == 0)
			BarrierArriveAndWait(barrier, wait_event_phase_start());

		phase = pg_atomic_read_u32(&team->control->phase);
		if (phase == TEAM_PHASE_END)
			break;
		routine(state, phase);
		pg_atomic_fetch_sub_u32(&team->control->working, 1);
		ConditionVariableSignal(&team->control->finished);
		BarrierArriveAndWait(barrier, wait_event_phase_end());
		barrier_phase = BarrierPhase(barrier);
		Assert(barrier_phase % 2 == 0);
	}
	BarrierDetach(barrier);
}

/*
 * team_leave
 *		Hand what this worker spent to the leader.
 */
void
team_leave(Team *team, shm_toc *toc)
{
	BufferUsage *buffer_usage = shm_toc_lookup(toc, TEAM_KEY_BUFFER_USAGE, false);
	WalUsage   *wal_usage = shm_toc_lookup(toc, TEAM_KEY_WAL_USAGE, false);

	InstrEndParallelQuery(&buffer_usage[ParallelWorkerNumber],
						  &wal_usage[ParallelWorkerNumber]);
	compat_flush_worker_delay();
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

/* team_is_parallel -- were workers planned? */
bool
team_is_parallel(const Team *team)
{
	return team->control != NULL;
}

/* team_planned_workers -- how many workers the leader asked for. */
int
team_planned_workers(const Team *team)
{
	return team->planned_workers;
}

/* team_launched_workers -- how many of them the server could start. */
int
team_launched_workers(const Team *team)
{
	return team->pcxt ? team->pcxt->nworkers_launched : 0;
}

/* wait_event_phase_start -- waiting for the leader to begin a phase. */
static uint32
wait_event_phase_start(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("CyclonePhaseStart");
	return event;
}

/* wait_event_phase_end -- waiting for the other members to finish a phase. */
static uint32
wait_event_phase_end(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("CyclonePhaseEnd");
	return event;
}
