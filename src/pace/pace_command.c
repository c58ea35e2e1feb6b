/*-------------------------------------------------------------------------
 *
 * pace_command.c
 *	  The command whose tables are vacuumed at a pace: its settings, from the
 *	  beginning to the end.
 *
 * A command begins with the server's parameters, which its options override.  They
 * make the settings in force.  Its leader publishes these for each table
 * (process_publish), and joins the others with an adaptive delay (adaptive.c).
 *
 * The leader takes over changed settings as soon as the server is told to
 * reload its files (pace_settings.c); its workers notice by the version number
 * of the shared block.  The parameters themselves stay as they are until the
 * end of the command, when the server reloads the files.
 *
 * All of this is the leader's; it joins and leaves the others under their lock.
 *
 * An autovacuum worker's delay point in the server's code would read the files and set
 * the parameters by itself.  In parallel mode that fails, so a reload is hidden from it
 * there (pace_hide_reloads).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "commands/vacuum.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"

#include "at_exit.h"
#include "compat.h"
#include "pace/pace_private.h"

/* backend_flush_after, in blocks: as checkpoint_flush_after is by default */
#define FLUSH_AFTER			CppAsString2(DEFAULT_CHECKPOINT_FLUSH_AFTER)

static volatile sig_atomic_t reload_was_hidden = false;

static void command_adapt_settings(PaceSettings *settings);
static void command_join_or_leave(void);
static void command_let_go(void);
static void command_note_hidden_reload(SIGNAL_ARGS);
static void command_clear_at_exit(void);

/*
 * pace_begin_command
 *		A VACUUM begins, with the option ADAPTIVE_DELAY or without.
 */
void
pace_begin_command(VacOptValue adaptive_delay)
{
	Assert(!pace_command.is_running && my_pace.shared == NULL);
	pace_prepare_process();
	neighbours_prepare();

	memset(&pace_command, 0, sizeof(pace_command));
	pace_command.is_running = true;
	pace_command.option = adaptive_delay;
	pace_settings_save(&pace_command.parameters);
	pace_settings_current(&pace_command.settings_at_start);
	pace_command.settings = pace_command.settings_at_start;
	command_adapt_settings(&pace_command.settings);
	command_join_or_leave();
	guards_begin_command(pace_reload_if_due);
}

/* pace_end_command -- the VACUUM has ended, or failed; does nothing if none has begun. */
void
pace_end_command(void)
{
	if (!pace_command.is_running)
		return;
	pace_show_reloads();
	pace_command.is_running = false;
	pace_command.launch = NULL;
	command_let_go();
	my_pace.in_server_code = my_pace.with_server = false;
	my_pace.at_work = false;
	my_pace.shared = NULL;

	pace_settings_restore(&pace_command.parameters);
	if (pace_command.reload_owed)
		ConfigReloadPending = true;
	pace_command.reload_owed = false;
}

/* pace_restart_command -- an error has ended a table, and the VACUUM goes on with the next one. */
void
pace_restart_command(void)
{
	const VacOptValue option = pace_command.option;

	Assert(pace_command.is_running);
	pace_end_command();
	pace_begin_command(option);
}

/* pace_command_is_running -- has a VACUUM begun that has not ended? */
bool
pace_command_is_running(void)
{
	return pace_command.is_running;
}

/* pace_hurry -- the command that has begun keeps to no budget, whatever the settings say. */
void
pace_hurry(void)
{
	Assert(pace_command.is_running);
	pace_command.in_a_hurry = true;
	command_adapt_settings(&pace_command.settings);
	command_join_or_leave();
}

/*
 * pace_processes_fed
 *		How many processes the command's cost settings keep busy.  With an adaptive delay
 *		there may be more at any time.
 */
int
pace_processes_fed(void)
{
	double		fed = ceil(settings_rate(&pace_command.settings) / COST_OF_A_PROCESS);

	return pace_command.settings.is_adaptive ? INT_MAX : (int) Min(fed, INT_MAX);
}

/*
 * pace_write_steadily
 *		With an adaptive delay, have the kernel write what we write soon.
 *
 * The kernel would gather writes for half a minute, and then write so much at once that
 * other sessions' commits wait.  The vacuum can be held back only if what it does shows in
 * their latency at once.  Undone with the caller's nest level of settings; workers that
 * are launched from now on inherit it.
 */
void
pace_write_steadily(void)
{
	if (pace_command.settings.is_adaptive && backend_flush_after == 0)
		(void) set_config_option("backend_flush_after", FLUSH_AFTER, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
}

/* pace_reload -- the server was told to reload its files, which is due after the command. */
void
pace_reload(void)
{
	if (!pace_is_leader())
		return;

	ConfigReloadPending = reload_was_hidden = false;
	pace_command.reload_owed = true;
	pace_command.settings = pace_command.settings_at_start;
	pace_settings_reread(&pace_command.settings);
	command_adapt_settings(&pace_command.settings);

	command_join_or_leave();

	/* between two tables, or while indexes are built, there are no workers */
	if (my_pace.shared == NULL)
		return;
	process_publish(&pace_command.settings);
	process_take_budget();
	/* if nothing bounds it any more, no tick will */
	view_show(my_pace.shared, NAN, 0);
}

/* pace_reload_if_due -- pace_reload, if the server was told to, hidden from it or not. */
void
pace_reload_if_due(void)
{
	if (ConfigReloadPending || reload_was_hidden)
		pace_reload();
}

/* pace_rebalance -- an autovacuum worker takes over its share of the cost limit, which their number changes. */
void
pace_rebalance(void)
{
	if (!pace_is_leader() || VacuumFailsafeActive ||
		!pace_settings_rebalance(&pace_command.settings))
		return;
	process_publish(&pace_command.settings);
	process_take_budget();
}

/* command_adapt_settings -- let the command's options override the settings. */
static void
command_adapt_settings(PaceSettings *settings)
{
	if (pace_command.option != VACOPTVALUE_UNSPECIFIED)
		settings->is_adaptive = pace_command.option == VACOPTVALUE_ENABLED;
	if (pace_command.in_a_hurry)
	{
		settings->cost_delay = 0;
		settings->is_adaptive = false;
	}
	if (settings->is_adaptive && settings->cost_delay <= 0)
		settings->cost_delay = FLOOR_DELAY;
}

/* command_join_or_leave -- the leader joins the others with an adaptive delay, or leaves them, as its settings say now. */
static void
command_join_or_leave(void)
{
	if (pace_command.settings.is_adaptive == pace_command.has_joined)
		return;
	pace_command.has_joined = pace_command.settings.is_adaptive;
	if (pace_command.has_joined)
		adaptive_join();
	else
		adaptive_leave();
}

/* command_let_go -- this process has no adaptive delay any more, and leaves no row behind. */
static void
command_let_go(void)
{
	process_be_adaptive(false);
	if (pace_command.has_joined)
		adaptive_leave();
	pace_command.has_joined = false;
	neighbours_leave();
	view_end_row();
	guards_end_command();
}

/* pace_hide_reloads -- this process is about to run the server's code. */
void
pace_hide_reloads(void)
{
	if (!pace_is_leader() || !AmAutoVacuumWorkerProcess())
		return;
	pqsignal(SIGHUP, command_note_hidden_reload);
	if (ConfigReloadPending)
		pace_reload();
}

/* pace_show_reloads -- it is back; what was hidden is for our delay point. */
void
pace_show_reloads(void)
{
	if (!pace_is_leader() || !AmAutoVacuumWorkerProcess())
		return;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	if (reload_was_hidden)
		ConfigReloadPending = true;
	reload_was_hidden = false;
}

/* command_note_hidden_reload -- the signal handler while reloads are hidden. */
static void
command_note_hidden_reload(SIGNAL_ARGS)
{
	reload_was_hidden = true;
	SetLatch(MyLatch);
}

/* pace_prepare_process -- do what is done once in each process: clear up when it exits. */
void
pace_prepare_process(void)
{
	at_exit(command_clear_at_exit);
}

/*
 * command_clear_at_exit
 *		A process that dies lets go.  A worker doesn't count as being at work, or in the
 *		server's code.
 */
static void
command_clear_at_exit(void)
{
	if (my_pace.shared != NULL && !pace_is_leader())
	{
		if (my_pace.with_server)
			pg_atomic_fetch_sub_u32(&my_pace.shared->with_server, 1);
		if (my_pace.at_work)
			pace_end_work();
		parking_leave(&my_pace.shared->parking);
	}
	command_let_go();
}
