/*-------------------------------------------------------------------------
 *
 * server_code.c
 *	  The pace of routines that call the server's own delay point.
 *
 * The vacuum routines of other index types call the server's delay point, not
 * ours.  Processes that are in there (pace_begin_server_code) have its settings
 * adjusted so that each takes its share of the budget, and the others leave them
 * that share.  A timer keeps these settings up to date, and has the leader look
 * around as it does at our own delay points: what its workers do is ours.
 *
 * The timer's signal handler may strike anywhere in the server's code, with any
 * lock held, so it takes none, allocates no memory and raises no error.  Where
 * this process itself changes what the handler would, it keeps the timer out
 * (keeps_timer_out).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/vacuum.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "guards/guards.h"
#include "pace/clock.h"
#include "pace/pace_state.h"

/* In the server's code, not so often: it cuts the nap short that it is in. */
#define SERVER_CODE_TICK_MS 500

/* What the server's delay point is told if there is no bound */
#define UNBOUNDED_LIMIT		100000000
#define UNBOUNDED_DELAY		0.001
/* And if a guard holds it: a page or so after each nap, which takes four times as long at most */
#define WAITING_DELAY		250.0

static volatile sig_atomic_t reload_was_hidden = false;
static TimeoutId server_code_timeout;

static void tell_server_code(void);
static bool target_is_tighter(int at_work, int at_work_for_target);
static void tick_in_server_code(void);
static void hide_reloads(void);
static void show_reloads(void);
static void note_hidden_reload(SIGNAL_ARGS);

/* server_code_prepare -- once in each process: it may run such routines. */
void
server_code_prepare(void)
{
	server_code_timeout = RegisterTimeout(USER_TIMEOUT, tick_in_server_code);
}

/*
 * pace_begin_server_code
 *		This process is about to run a routine that calls the server's own
 *		delay point.
 */
void
pace_begin_server_code(void)
{
	hide_reloads();
	pg_atomic_fetch_add_u32(&my_pace.shared->in_server_code, 1);
	if (my_pace.target != NULL)
		target_begin_server_code(my_pace.target);
	tell_server_code();
	my_pace.in_server_code = true;
	enable_timeout_every(server_code_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SERVER_CODE_TICK_MS),
						 SERVER_CODE_TICK_MS);
}

/*
 * pace_in_server_code
 *		It is in there; call often.
 *
 * A lock on a page may be held, and it isn't nice to read files then; but it
 * is for once, when someone has asked for it, and there is no other chance.
 */
void
pace_in_server_code(void)
{
	if (likely(!ConfigReloadPending && !reload_was_hidden))
		return;
	my_pace.keeps_timer_out = true;
	pace_reload();
	tell_server_code();
	my_pace.keeps_timer_out = false;
}

/* pace_end_server_code -- it has returned. */
void
pace_end_server_code(void)
{
	int64		cost,
				target_cost;

	disable_timeout(server_code_timeout, false);
	/* no timer comes any more */
	budget_account(&cost, &target_cost);
	budget_set_page_costs(my_pace.target != NULL);
	if (!VacuumFailsafeActive)
		VacuumCostActive = budget_is_counted();
	pg_atomic_fetch_sub_u32(&my_pace.shared->in_server_code, 1);
	if (my_pace.target != NULL)
		target_end_server_code(my_pace.target);
	my_pace.in_server_code = false;
	VacuumCostBalance = 0;
	show_reloads();
	if (ConfigReloadPending)
		pace_reload();
	pace_warn_if_out_of_reach();
}

/*
 * server_code_abandon
 *		The command ends, maybe by an error in such a routine: no timer comes any
 *		more.  Harmless if none was run.
 */
void
server_code_abandon(void)
{
	if (my_pace.in_server_code)
		disable_timeout(server_code_timeout, false);
	show_reloads();
}

/* server_code_forget_reload -- the reload that was hidden is being seen to. */
void
server_code_forget_reload(void)
{
	reload_was_hidden = false;
}

/*
 * tell_server_code
 *		Have the server's delay point give this process its share of the budget that
 *		is tighter, as far as the pages of late tell.  Raises no error.
 */
static void
tell_server_code(void)
{
	int			at_work = Max(pg_atomic_read_u32(&my_pace.shared->at_work), 1);
	int			at_work_for_target = my_pace.target != NULL ? target_at_work(my_pace.target) : 1;
	bool		by_target = target_is_tighter(at_work, at_work_for_target);
	double		rate = by_target ? my_pace.rate_of_target : my_pace.rate_of_settings;
	double		greatest = by_target ? my_pace.greatest_target_cost : my_pace.greatest_cost;
	bool		waits = guards_wait_in_server_code();

	/* to a target every page costs something */
	budget_set_page_costs(by_target || waits);
	if (!VacuumFailsafeActive)
		VacuumCostActive = waits || budget_is_counted();

	/*
	 * An autovacuum worker's delay point sets the limit anew, after each nap.
	 * So it stays as it was set last; the server's routine for that may raise
	 * an error, and this may be a signal handler's.
	 */
	if (AmAutoVacuumWorkerProcess())
		Assert(vacuum_cost_limit > 0);
	else if (waits)
		vacuum_cost_limit = 1;
	else if (isinf(rate))
		vacuum_cost_limit = UNBOUNDED_LIMIT;
	else
		vacuum_cost_limit = Max(Min(greatest / GREATEST_OVERRUN, UNBOUNDED_LIMIT), 1);

	if (waits)
		vacuum_cost_delay = WAITING_DELAY;
	else if (isinf(rate))
		vacuum_cost_delay = UNBOUNDED_DELAY;
	else
		vacuum_cost_delay = vacuum_cost_limit / rate * 1000 *
			(by_target ? at_work_for_target : at_work);
}

/*
 * target_is_tighter
 *		Would pages like those of late make a process sleep for longer by the target
 *		than by the settings?  There are so many processes.
 */
static bool
target_is_tighter(int at_work, int at_work_for_target)
{
	/* nothing is what a page costs without a bound */
	double		time = budget_cost_by_settings(&my_pace.mix) / my_pace.rate_of_settings * at_work;
	double		time_by_target = budget_cost_to_target(&my_pace.mix) / my_pace.rate_of_target * at_work_for_target;

	return time_by_target > time;
}

/*
 * tick_in_server_code
 *		The timer's signal handler: adapt the server's delay point, and look around.
 */
static void
tick_in_server_code(void)
{
	int64		cost,
				target_cost;
	uint64		now;

	if (!my_pace.in_server_code || my_pace.keeps_timer_out || VacuumFailsafeActive)
		return;
	if (budget_has_changed())
		budget_take();
	budget_account(&cost, &target_cost);
	now = now_ns();
	pace_look_around(now);
	if (VacuumCostActive)
		pace_tick_if_due(now);
	tell_server_code();
}

/*
 * hide_reloads
 *		An autovacuum worker's delay point in the server's code would read the files
 *		and set the parameters by itself, and fail: not in parallel mode.  So have
 *		it not hear of a reload.
 */
static void
hide_reloads(void)
{
	if (!pace_is_leader() || !AmAutoVacuumWorkerProcess())
		return;
	pqsignal(SIGHUP, note_hidden_reload);
	if (ConfigReloadPending)
		pace_reload();
}

/* show_reloads -- as before; what was hidden is for our delay point. */
static void
show_reloads(void)
{
	if (!pace_is_leader() || !AmAutoVacuumWorkerProcess())
		return;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	if (reload_was_hidden)
		ConfigReloadPending = true;
	reload_was_hidden = false;
}

/* note_hidden_reload -- the signal handler meanwhile. */
static void
note_hidden_reload(SIGNAL_ARGS)
{
	reload_was_hidden = true;
	SetLatch(MyLatch);
}
