/*-------------------------------------------------------------------------
 *
 * team_worker.c
 *	  A worker of a team: it joins, works phase by phase, rests, and leaves.
 *
 * team.c says how a team lives, and what a worker costs that fails or is
 * terminated.  The handler of SIGTERM decides what a termination does: it is
 * request_leave while the worker joins, be_terminated in a phase, and note_leave
 * otherwise.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/pqformat.h"
#include "libpq/protocol.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"

#include "at_exit.h"
#include "debug_point.h"
#include "own_wait_event.h"
#include "team/team_state.h"

/* the team that this process is in; NULL: none, or no longer */
static TeamControl *my_control = NULL;

/* A worker was asked to end, while that costs only its help. */
static volatile sig_atomic_t leave_requested = false;

static void request_leave(SIGNAL_ARGS);
static void note_leave(SIGNAL_ARGS);
static void give_up_worker(MemoryContext context);
static void run_phases(Team *team);
static void end_part(Team *team);
static bool worker_take_place(Team *team);
static bool wait_for_phase(Team *team, bool may_leave);
static bool look_for_phase(Team *team, bool *is_over);
static void forget_control_at_exit(void);
static void be_quiet_if_given_up(void);
static void be_terminated(SIGNAL_ARGS);
static uint32 wait_event_phase_start(void);
static uint32 wait_event_parked(void);

/*
 * team_work
 *		All that a worker does: find its team, join it, work as the leader says,
 *		phase by phase, and leave.  To be called by the worker's main function.
 *
 * An error in the join routine costs only this worker's help.  Its transaction then
 * closes the relations that it has opened, and the leader gets a warning.
 */
void
team_work(const TeamWorker *worker, dsm_segment *segment, shm_toc *toc)
{
	Team	   *team = palloc0_object(Team);
	void	   *volatile state = NULL;
	MemoryContext context = CurrentMemoryContext;
	ErrorContextCallback callback;

	Assert(IsParallelWorker() && IsInParallelMode());
	Assert(my_control == NULL);
	Assert(worker->join != NULL && worker->routine != NULL && worker->leave != NULL);
	Assert(ParallelWorkerNumber >= 0 && ParallelWorkerNumber < MAX_PARALLEL_WORKER_LIMIT);

	team->control = shm_toc_lookup(toc, TEAM_KEY_CONTROL, false);

	my_control = team->control;
	at_exit(forget_control_at_exit);
	/* the signal may have come already, to be served later */
	be_quiet_if_given_up();
	pg_atomic_fetch_or_u64(&team->control->arrived[ParallelWorkerNumber / 64],
						   UINT64CONST(1) << ParallelWorkerNumber % 64);

	debug_query_string = shm_toc_lookup(toc, TEAM_KEY_QUERY_TEXT, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
	pgstat_report_query_id(team->control->query_id, false);

	pqsignal(SIGTERM, request_leave);
	PG_TRY();
	{
		DEBUG_POINT("team-join");
		team->shared = shm_toc_lookup(toc, TEAM_KEY_SHARED, false);
		state = worker->join(team->shared, segment);
	}
	PG_CATCH();
	{
		/* to cancel is to cancel the command */
		if (geterrcode() == ERRCODE_QUERY_CANCELED && !leave_requested)
			PG_RE_THROW();
		give_up_worker(context);
	}
	PG_END_TRY();

	callback.callback = worker->error_context;
	callback.arg = state;
	callback.previous = error_context_stack;
	if (worker->error_context != NULL)
		error_context_stack = &callback;
	InstrStartParallelQuery();

	team->worker = worker;
	team->state = state;
	run_phases(team);

	error_context_stack = callback.previous;
	DEBUG_POINT("team-leave");
	worker->leave(state);
	InstrEndParallelQuery((BufferUsage *) shm_toc_lookup(toc, TEAM_KEY_BUFFER_USAGE, false) + ParallelWorkerNumber,
						  (WalUsage *) shm_toc_lookup(toc, TEAM_KEY_WAL_USAGE, false) + ParallelWorkerNumber);
	compat_flush_worker_delay();
}

/*
 * request_leave
 *		The handler of SIGTERM in the join routine, where termination costs only
 *		this worker's help.
 *
 * It makes each wait end with the error of a cancellation.
 */
static void
request_leave(SIGNAL_ARGS)
{
	be_quiet_if_given_up();
	leave_requested = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/*
 * note_leave
 *		The handler of SIGTERM between phases and in the end.
 *
 * It raises no error anywhere, as it can strike between any two instructions,
 * and must not be taken for the cancellation of the command.
 */
static void
note_leave(SIGNAL_ARGS)
{
	be_quiet_if_given_up();
	leave_requested = true;
	SetLatch(MyLatch);
}

/*
 * give_up_worker
 *		After an error, end this process, which has failed to join, as one that
 *		has done its work.  The leader learns of a warning only.
 */
static void
give_up_worker(MemoryContext context)
{
	ErrorData  *error;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("a parallel vacuum worker could not take part"),
			 leave_requested ? errdetail("It was terminated.") :
			 errdetail_internal("%s", error->message)));
	pq_putemptymessage(PqMsg_Terminate);
	proc_exit(0);				/* which aborts the transaction */
}

/*
 * run_phases
 *		Worker: take part in each phase until there are no more.
 *
 * Outside of phases SIGTERM is note_leave's, and makes us leave, unless this
 * worker is needed.
 */
static void
run_phases(Team *team)
{
	TeamControl *control = team->control;
	const TeamWorker *worker = team->worker;
	bool		is_needed = false;

	SpinLockAcquire(&control->mutex);
	control->attached++;
	SpinLockRelease(&control->mutex);

	while (wait_for_phase(team, !is_needed))
	{
		worker->routine(team->state, control->phase);
		is_needed = worker->is_needed != NULL && worker->is_needed(team->state);
		end_part(team);
	}

	/* of this phase, too, if there is one that it is through with */
	SpinLockAcquire(&control->mutex);
	Assert(control->attached > 0);
	Assert(control->attached >= control->resting && (!team->is_resting || control->resting > 0));
	control->attached--;
	if (team->is_resting)
		control->resting--;
	else if (control->is_running && control->phase_count == team->last_phase)
		control->done--;
	SpinLockRelease(&control->mutex);
	ConditionVariableSignal(&control->done_changed);
}

/*
 * end_part
 *		Worker: it is through with its part of the phase, or rests from now on.
 */
static void
end_part(Team *team)
{
	TeamControl *control = team->control;
	bool		rests = team->worker->has_place != NULL && !team->worker->has_place(team->state);

	SpinLockAcquire(&control->mutex);
	Assert(control->is_running && control->phase_count != team->last_phase);
	Assert(!team->is_resting);
	if (rests)
		control->resting++;
	else
	{
		team->last_phase = control->phase_count;
		control->done++;
	}
	team->is_resting = rests;
	SpinLockRelease(&control->mutex);
	ConditionVariableSignal(&control->done_changed);
}

/*
 * worker_take_place
 *		Worker: has it a place at work, or can it take one?  Else it rests from now
 *		on, or still.
 *
 * Called while it rests, or in a phase that it hasn't run, which doesn't end before
 * it does or rests.
 */
static bool
worker_take_place(Team *team)
{
	TeamControl *control = team->control;
	bool		has_place = team->worker->take_place == NULL || team->worker->take_place(team->state);
	bool		rests_now = !has_place && !team->is_resting;

	SpinLockAcquire(&control->mutex);
	Assert(!team->is_resting || control->resting > 0);
	Assert(team->is_resting || control->resting < control->attached);
	if (has_place && team->is_resting)
		control->resting--;
	else if (rests_now)
		control->resting++;
	SpinLockRelease(&control->mutex);
	team->is_resting = !has_place;
	if (rests_now)
		ConditionVariableSignal(&control->done_changed);
	return has_place;
}

/*
 * wait_for_phase
 *		Worker: wait until a phase begins that it hasn't yet run, and return
 *		true; or until it is to leave, and return false.  If it may not leave,
 *		its termination is an error.
 *
 * When it leaves nothing is lost by its termination any more, so from then on
 * that is ignored: it would cost the command for no reason.
 */
static bool
wait_for_phase(Team *team, bool may_leave)
{
	bool		is_over = false;
	bool		has_begun = false;

	if (may_leave)
		pqsignal(SIGTERM, note_leave);
	/* it came in the join routine, too late to end it by this */
	if (leave_requested)
		QueryCancelPending = false;
	/* it came at the end of a phase, which is done */
	if (may_leave && ProcDiePending)
	{
		ProcDiePending = false;
		leave_requested = true;
	}

	while (!leave_requested && !is_over && !has_begun)
		has_begun = look_for_phase(team, &is_over);
	ConditionVariableCancelSleep();

	if (has_begun)
	{
		pqsignal(SIGTERM, be_terminated);
		if (!leave_requested)
			return true;
	}

	pqsignal(SIGTERM, note_leave);
	ProcDiePending = false;
	if (leave_requested && !is_over)
		ereport(WARNING,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("a parallel vacuum worker was terminated between two phases"),
				 errdetail("Unless the command has failed, the others go on without it.")));
	return false;
}

/*
 * look_for_phase
 *		Worker: is there a phase for it to run, and a place for it?  If not, and the
 *		team isn't over, wait until something may have changed.
 *
 * While it rests no phase wakes it, only its latch, or the end.
 */
static bool
look_for_phase(Team *team, bool *is_over)
{
	TeamControl *control = team->control;
	bool		was_resting = team->is_resting;
	bool		is_running;
	bool		has_begun;

	ConditionVariablePrepareToSleep(was_resting ? &control->over : &control->begun);
	SpinLockAcquire(&control->mutex);
	is_running = control->is_running;
	has_begun = is_running && control->phase_count != team->last_phase;
	*is_over = control->is_over;
	SpinLockRelease(&control->mutex);
	if (*is_over)
		return false;

	if (was_resting || has_begun)
	{
		bool		has_place = worker_take_place(team);

		if (!was_resting && has_place)
			return true;

		/*
		 * the phase may have ended while it was resting, and a resting worker
		 * waits for other events
		 */
		if (was_resting == has_place)
			return false;
	}

	/* a test wakes it by chance, too */
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
					 (team->is_resting && DEBUG_LIMIT(parking, 0) > 0 ? WL_TIMEOUT : 0),
					 DEBUG_LIMIT(parking, -1),
					 team->is_resting ? wait_event_parked() :
					 is_running ? team_wait_event_phase_end() : wait_event_phase_start());
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return false;
}

/* forget_control_at_exit -- a worker's signal handler may come after its memory. */
static void
forget_control_at_exit(void)
{
	my_control = NULL;
}

/*
 * be_quiet_if_given_up
 *		If the leader has failed, which has said why, its worker that is terminated
 *		writes nothing to the log.
 */
static void
be_quiet_if_given_up(void)
{
	if (my_control != NULL && pg_atomic_read_u32(&my_control->given_up))
		compat_log_panics_only();
}

/* be_terminated -- a worker's handler of SIGTERM in a phase. */
static void
be_terminated(SIGNAL_ARGS)
{
	be_quiet_if_given_up();
	die(COMPAT_SIGNAL_ARGUMENTS);
}

/* wait_event_phase_start -- waiting for the leader to begin a phase. */
static uint32
wait_event_phase_start(void)
{
	static uint32 event = 0;

	return own_wait_event(&event, "CyclonePhaseStart");
}

/* wait_event_parked -- resting, as the budget feeds fewer processes. */
static uint32
wait_event_parked(void)
{
	static uint32 event = 0;

	return own_wait_event(&event, "CycloneParked");
}
