/*-------------------------------------------------------------------------
 *
 * pace_command.c
 *	  The command whose tables are vacuumed at a pace: its settings, from the
 *	  beginning to the end.
 *
 * A command begins with what the server's parameters say, and with its options,
 * which override them.  From that come the settings in force, which its leader
 * publishes for each table (budget_publish), and the latency target that it has
 * joined (target.c).
 *
 * The leader takes over changed settings as soon as the server is told to
 * reload its files (pace_settings.c); the others notice by the version number
 * of the shared block.  The parameters themselves stay as they are until the
 * end of the command, when the server reloads the files.
 *
 * All of this is the leader's; it joins and leaves targets under their lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "utils/guc.h"

#include "compat.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "pace/latency.h"
#include "pace/pace_state.h"

/* backend_flush_after, as bgwriter_flush_after is by default, but twice as often */
#define FLUSH_AFTER			"256kB"

PaceCommand pace_command;

/* Who has sent the commands that come, as a part of a cluster's; InvalidOid: nobody */
static Oid	cluster_user = InvalidOid;

static void begin_command(const double *latency_target, bool is_coordinator);
static void adapt_settings(PaceSettings *settings);
static void change_target(void);
static void reload_if_due(void);

/*
 * pace_begin_command
 *		A VACUUM begins, with this latency target (in ms, or a special value)
 *		unless it is NULL: then it is as the settings say.
 */
void
pace_begin_command(const double *latency_target)
{
	begin_command(latency_target, false);
}

/*
 * pace_begin_coordination
 *		A VACUUM begins whose work is done on the nodes of a cluster: what it is to
 *		keep to a target of is what clients see here.  Its end is pace_end_command.
 */
LatencyTarget *
pace_begin_coordination(double latency_target)
{
	Assert(latency_target != LATENCY_TARGET_OFF);
	begin_command(&latency_target, true);
	return pace_command.latency_target;
}

/* begin_command -- a VACUUM begins, here or on other nodes. */
static void
begin_command(const double *latency_target, bool is_coordinator)
{
	TimestampTz statement = GetCurrentStatementStartTimestamp();
	bool		has_warned = pace_command.has_warned &&
		(pace_command.statement == statement || AmAutoVacuumWorkerProcess());

	Assert(!pace_command.is_running && my_pace.shared == NULL);
	pace_prepare_process();
	core_waits_prepare();
	latency_prepare();

	memset(&pace_command, 0, sizeof(pace_command));
	pace_command.is_running = true;
	pace_command.is_coordinator = is_coordinator;
	pace_command.statement = statement;
	pace_command.has_warned = has_warned;
	if (latency_target != NULL)
	{
		pace_command.has_target = true;
		pace_command.target = *latency_target;
	}
	pace_settings_save(&pace_command.parameters);
	pace_settings_current(&pace_command.settings_at_start);
	pace_command.settings = pace_command.settings_at_start;
	adapt_settings(&pace_command.settings);
	if (budget_has_target(&pace_command.settings))
		latency_watch();
	change_target();
	/* that of a coordinator is nothing that could wait */
	if (!is_coordinator)
		guards_begin_command(reload_if_due);
}

/*
 * pace_set_cluster_user
 *		Commands that begin from now on are a part of a VACUUM that this user has
 *		sent to the nodes of a cluster; with InvalidOid they aren't any more.
 */
void
pace_set_cluster_user(Oid user)
{
	cluster_user = user;
}

/*
 * pace_end_command
 *		It has ended, or failed; harmless if it never began.
 */
void
pace_end_command(void)
{
	if (!pace_command.is_running)
		return;
	server_code_abandon();
	pace_command.is_running = false;
	pace_command.launch = NULL;
	pace_leave_target();
	my_pace.in_server_code = false;
	my_pace.keeps_timer_out = false;
	my_pace.at_work = false;
	my_pace.shared = NULL;
	latency_unwatch();
	pace_end_row();
	guards_end_command();

	pace_settings_restore(&pace_command.parameters);
	if (pace_command.reload_owed)
		ConfigReloadPending = true;
	pace_command.reload_owed = false;
}

/* pace_command_is_running -- has a VACUUM begun that has not ended? */
bool
pace_command_is_running(void)
{
	return pace_command.is_running;
}

/* pace_is_leader -- does this process lead the vacuum that it takes part in? */
bool
pace_is_leader(void)
{
	return pace_command.is_running;
}

/*
 * pace_hurry
 *		The command that has begun keeps to no budget, whatever the settings say.
 */
void
pace_hurry(void)
{
	pace_command.in_a_hurry = true;
	guards_hurry();
	adapt_settings(&pace_command.settings);
	latency_unwatch();
	change_target();
}

/*
 * pace_processes_fed
 *		How many processes the command's settings would keep busy; with a latency
 *		target, which moves the budget, any number.
 */
int
pace_processes_fed(void)
{
	double		rate = budget_of_settings(&pace_command.settings);

	return isinf(rate) ? INT_MAX : (int) Min(ceil(rate / COST_OF_A_PROCESS), INT_MAX);
}

/*
 * pace_workers_now
 *		How many workers the command's budget, or target, would feed just now; for
 *		teams that don't change until they are through.
 */
int
pace_workers_now(void)
{
	double		rate = budget_of_settings(&pace_command.settings);
	uint32		fed = PARKING_ALL;

	if (pace_command.latency_target != NULL)
		rate = Min(rate, target_budget(pace_command.latency_target));
	if (!isinf(rate))
		fed = (uint32) Min(Max(ceil(rate / COST_OF_A_PROCESS) - 1, 0), PARKING_ALL);
	return (int) DEBUG_LIMIT(fed, fed);
}

/*
 * pace_write_steadily
 *		With a latency target, have the kernel write what we write soon.
 *
 * It would gather that for half a minute, and then write so much at once that
 * commits of others wait: what the vacuum does must show in their latency while
 * it does it, or it can't be held back.  Undone with the caller's nest level of
 * settings; workers that are launched from now on do the same.
 */
void
pace_write_steadily(void)
{
	if (budget_has_target(&pace_command.settings) && backend_flush_after == 0)
		(void) set_config_option("backend_flush_after", FLUSH_AFTER, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * pace_reload
 *		The server was told to reload its files.
 *
 * Only the leader hears of it.  The reload itself is due after the command.
 */
void
pace_reload(void)
{
	if (!pace_is_leader())
		return;

	ConfigReloadPending = false;
	server_code_forget_reload();
	pace_command.reload_owed = true;
	pace_command.settings = pace_command.settings_at_start;
	pace_settings_reread(&pace_command.settings);
	adapt_settings(&pace_command.settings);
	guards_apply_pace(&pace_command.settings.cost_delay, &pace_command.settings.cost_limit,
					  &pace_command.settings.latency_target);

	if (budget_has_target(&pace_command.settings))
		latency_watch();
	else
		latency_unwatch();
	change_target();

	/*
	 * between two tables, or while indexes are built, nobody else is to be
	 * told
	 */
	if (my_pace.shared == NULL)
		return;
	parking_set_told(&my_pace.shared->parking, guards_workers());
	budget_publish(&pace_command.settings);
	budget_take();
	/* if nothing bounds it any more, no tick will */
	pace_show(my_pace.shared, NAN, NAN, 0);
}

/* reload_if_due -- likewise, if it was. */
static void
reload_if_due(void)
{
	if (ConfigReloadPending)
		pace_reload();
}

/*
 * pace_rebalance
 *		The leader, if it is an autovacuum worker, takes over its share of the cost
 *		limit, which depends on how many of them there are.
 */
void
pace_rebalance(void)
{
	if (!pace_is_leader() || VacuumFailsafeActive || guards_pace_is_set() ||
		!pace_settings_rebalance(&pace_command.settings))
		return;
	budget_publish(&pace_command.settings);
	budget_take();
}

/* adapt_settings -- let the command's own wishes override the settings. */
static void
adapt_settings(PaceSettings *settings)
{
	if (pace_command.has_target)
		settings->latency_target = pace_command.target;
	if (pace_command.is_coordinator)
		settings->latency_of = latency_of_clients(settings->latency_of);
	settings->cluster_user = pace_command.is_coordinator ? InvalidOid : cluster_user;
	if (pace_command.in_a_hurry)
	{
		settings->cost_delay = 0;
		settings->latency_target = LATENCY_TARGET_OFF;
	}
}

/*
 * change_target
 *		The leader joins the target that its settings have now, and leaves the one
 *		before.
 */
static void
change_target(void)
{
	LatencyTarget *before = pace_command.latency_target;

	if (budget_has_target(&pace_command.settings))
		pace_command.latency_target = target_join(&pace_command.settings, before);
	else if (before != NULL)
	{
		pace_command.latency_target = NULL;
		target_leave(before);
	}
}

/* pace_leave_target -- the leader, and the VACUUM with it, has no target any more. */
void
pace_leave_target(void)
{
	budget_take_target(0);
	if (pace_command.latency_target != NULL)
		target_leave(pace_command.latency_target);
	pace_command.latency_target = NULL;
}
