/*-------------------------------------------------------------------------
 *
 * pace_settings.c
 *	  The settings that the pace of a vacuum depends on, also as they change
 *	  while it runs.
 *
 * The server reloads its configuration files between two commands, or in an
 * autovacuum worker.  In the middle of a parallel command it must not, as
 * parameters can't be set then.  But a user who reloads the files may want to
 * change the pace of a vacuum that takes hours.  So the leader reads from them what
 * concerns the pace, and leaves the parameters themselves as they are until
 * the command has ended.  Values set in the session, for the user or for the
 * database take precedence over the files, as they do in the server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/vacuum.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"

#include "config_files.h"
#include "pace/pace_private.h"
#include "settings.h"

/* Of the latency targets: is it auto?  Those that are hidden are as of a boolean. */
static const struct config_enum_entry targets[] = {
	{"off", false, false},
	{"auto", true, false},
	{"0", false, true},
	{"no", false, true},
	{"false", false, true},
	{NULL, 0, false}
};

static int	latency_target = false;
static int	autovacuum_target = false;

/* The server's parameters that a command changes for its duration */
static double *const delays[PACE_DELAYS] = {&VacuumCostDelay, &autovacuum_vac_cost_delay};
static int *const costs[PACE_COSTS] = {
	&VacuumCostLimit, &VacuumCostPageHit, &VacuumCostPageMiss, &VacuumCostPageDirty, &autovacuum_vac_cost_limit
};

static bool settings_table_has_no_delay(void);
static void settings_reread_autovacuum(ConfigVariable *files, PaceSettings *settings);
static void settings_reread_target(const char *name, ConfigVariable *files, bool *has_target);

/*
 * pace_settings_init
 *		Define the parameters that are about latency.  To be called once, when the
 *		library is loaded.
 */
void
pace_settings_init(void)
{
	DefineCustomEnumVariable("cyclone.autovacuum_latency_target",
							 "Whether autovacuum is faster than its cost delay while others take little longer.",
							 "As cyclone.latency_target.",
							 &autovacuum_target,
							 false,
							 targets,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomEnumVariable("cyclone.latency_target",
							 "Whether VACUUM is faster than its cost delay while others take little longer.",
							 "\"auto\": never slower than the cost delay, or than vacuum_cost_limit each 2 ms if there is none; \"off\": the cost delay alone.",
							 &latency_target,
							 false,
							 targets,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);
}

/* pace_parse_latency_target -- read a latency target; false if it is none. */
bool
pace_parse_latency_target(const char *value, bool *is_auto)
{
	for (const struct config_enum_entry *target = targets; target->name != NULL; target++)
		if (pg_strcasecmp(target->name, value) == 0)
		{
			*is_auto = target->val != 0;
			return true;
		}
	return false;
}

/*
 * pace_settings_current
 *		The settings as this session's parameters have them.
 *
 * In an autovacuum worker those of autovacuum and of the table, as the server
 * has worked them out.
 */
void
pace_settings_current(PaceSettings *settings)
{
	bool		autovacuum = AmAutoVacuumWorkerProcess();

	settings->cost_delay = autovacuum ? vacuum_cost_delay : VacuumCostDelay;
	settings->cost_limit = autovacuum ? vacuum_cost_limit : VacuumCostLimit;
	settings->page_hit = VacuumCostPageHit;
	settings->page_miss = VacuumCostPageMiss;
	settings->page_dirty = VacuumCostPageDirty;
	settings->has_target = autovacuum ? autovacuum_target && !settings_table_has_no_delay() : latency_target != 0;
}

/* pace_settings_save -- note the parameters that pace_settings_reread may change. */
void
pace_settings_save(PaceParameters *saved)
{
	for (int i = 0; i < PACE_DELAYS; i++)
		saved->delays[i] = *delays[i];
	for (int i = 0; i < PACE_COSTS; i++)
		saved->costs[i] = *costs[i];
}

/* pace_settings_restore -- put them back. */
void
pace_settings_restore(const PaceParameters *saved)
{
	for (int i = 0; i < PACE_DELAYS; i++)
		*delays[i] = saved->delays[i];
	for (int i = 0; i < PACE_COSTS; i++)
		*costs[i] = saved->costs[i];
}

/*
 * pace_settings_rebalance
 *		In an autovacuum worker, take over the cost limit, as the server shares it out
 *		among all such workers.  Returns whether it has changed.
 *
 * The server's routine raises an error if it counts no such worker, not even this one.
 */
bool
pace_settings_rebalance(PaceSettings *settings)
{
	if (!AmAutoVacuumWorkerProcess())
		return false;
	AutoVacuumUpdateCostLimit();
	if (settings->cost_limit == vacuum_cost_limit)
		return false;
	settings->cost_limit = vacuum_cost_limit;
	return true;
}

/*
 * pace_settings_reread
 *		The settings as this session's parameters would have them if the
 *		configuration files were reloaded now.
 *
 * *settings are those in force; those that can't be read stay as they are.
 */
void
pace_settings_reread(PaceSettings *settings)
{
	ConfigVariable *files;

	if (!config_files_read(&files))
		return;

	if (AmAutoVacuumWorkerProcess())
		settings_reread_autovacuum(files, settings);
	else
	{
		config_files_real("vacuum_cost_delay", files, &settings->cost_delay);
		config_files_int("vacuum_cost_limit", files, &settings->cost_limit);
		settings_reread_target("cyclone.latency_target", files, &settings->has_target);
	}
	config_files_int("vacuum_cost_page_hit", files, &settings->page_hit);
	config_files_int("vacuum_cost_page_miss", files, &settings->page_miss);
	config_files_int("vacuum_cost_page_dirty", files, &settings->page_dirty);
	guards_reread(files);
	FreeConfigVariables(files);
}

/*
 * settings_reread_autovacuum
 *		Reread the settings of an autovacuum worker.
 *
 * Which of them count depends on the table's options, which only the server knows.
 * So the parameters' variables are changed for as long as the command lasts, without
 * the server's knowledge: see pace_settings_save.
 */
static void
settings_reread_autovacuum(ConfigVariable *files, PaceSettings *settings)
{
	config_files_real("vacuum_cost_delay", files, &VacuumCostDelay);
	config_files_int("vacuum_cost_limit", files, &VacuumCostLimit);
	config_files_real("autovacuum_vacuum_cost_delay", files, &autovacuum_vac_cost_delay);
	config_files_int("autovacuum_vacuum_cost_limit", files, &autovacuum_vac_cost_limit);
	VacuumUpdateCosts();
	settings->cost_delay = vacuum_cost_delay;
	settings->cost_limit = vacuum_cost_limit;

	settings_reread_target("cyclone.autovacuum_latency_target", files, &settings->has_target);
	settings->has_target &= !settings_table_has_no_delay();
}

/* settings_table_has_no_delay -- is this by an option of the table, which is for full speed, in an autovacuum worker? */
static bool
settings_table_has_no_delay(void)
{
	double		of_server = autovacuum_vac_cost_delay >= 0 ? autovacuum_vac_cost_delay : VacuumCostDelay;

	return vacuum_cost_delay <= 0 && of_server > 0;
}

/* settings_reread_target -- reread the latency target; the default is none. */
static void
settings_reread_target(const char *name, ConfigVariable *files, bool *has_target)
{
	const char *text = config_files_text(name, files);

	if (text != NULL && *text == '\0')
		*has_target = false;
	else if (text != NULL)
		(void) pace_parse_latency_target(text, has_target);
}
