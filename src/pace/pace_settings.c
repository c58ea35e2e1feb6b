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

/* The bounds of a target; statements that are faster can't be slowed down noticeably */
#define LEAST_TARGET_MS		0.1
#define GREATEST_TARGET_MS	(24 * 3600 * 1000.0)

double		cyclone_latency_percentile = 95;

static char *latency_target = NULL;
static char *autovacuum_target = NULL;

/* The server's parameters that a command changes for its duration */
static double *const delays[PACE_DELAYS] = {&VacuumCostDelay, &autovacuum_vac_cost_delay};
static int *const costs[PACE_COSTS] = {
	&VacuumCostLimit, &VacuumCostPageHit, &VacuumCostPageMiss, &VacuumCostPageDirty, &autovacuum_vac_cost_limit
};

static bool check_latency_target(char **newval, void **extra, GucSource source);
static void reread_autovacuum(ConfigVariable *files, PaceSettings *settings);
static void reread_target(const char *name, ConfigVariable *files, double *value);

/*
 * pace_settings_init
 *		Define the parameters that are about latency.  To be called once, when the
 *		library is loaded.
 */
void
pace_settings_init(void)
{
	DefineCustomStringVariable("cyclone.autovacuum_latency_target",
							   "The latency of statements that autovacuum keeps to by slowing down.",
							   "As cyclone.latency_target; autovacuum's cost delay doesn't count then.",
							   &autovacuum_target,
							   "0",
							   PGC_SIGHUP,
							   0,
							   check_latency_target, NULL, NULL);

	DefineCustomRealVariable("cyclone.latency_percentile",
							 "The percentile of the latency of statements that is kept at cyclone.latency_target.",
							 NULL,
							 &cyclone_latency_percentile,
							 95,
							 50, 99.9,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("cyclone.latency_target",
							   "The latency of statements that VACUUM keeps to by slowing down.",
							   "A time, in milliseconds if it has no unit; \"auto\": others take little longer than without VACUUM; 0: VACUUM doesn't care.",
							   &latency_target,
							   "0",
							   PGC_USERSET,
							   0,
							   check_latency_target, NULL, NULL);
}

/*
 * pace_parse_latency_target
 *		Read a latency target: a time (in ms if it has no unit), 0 or auto.
 *
 * If that isn't possible return false, and say in *problem what is wrong, as a hint.
 */
bool
pace_parse_latency_target(const char *value, double *target, const char **problem)
{
	const char *hint = NULL;

	*problem = gettext_noop("A latency target is a time, like \"20ms\", or 0 for none, or \"auto\".");
	if (pg_strcasecmp(value, "auto") == 0)
	{
		*target = LATENCY_TARGET_AUTO;
		return true;
	}
	if (!parse_real(value, target, GUC_UNIT_MS, &hint))
	{
		if (hint != NULL)
			*problem = hint;
		return false;
	}
	if (*target == 0)
		return true;
	if (*target < 0)
		return false;
	if (*target < LEAST_TARGET_MS || *target > GREATEST_TARGET_MS)
	{
		*problem = gettext_noop("A latency target is at least \"0.1ms\" and at most \"1d\".");
		return false;
	}
	return true;
}

/*
 * pace_settings_current
 *		The settings as this session's parameters have them.
 *
 * In an autovacuum worker those of autovacuum and of the table, as the server
 * has worked them out; a latency target stands in for the cost delay there.
 */
void
pace_settings_current(PaceSettings *settings)
{
	bool		autovacuum = AmAutoVacuumWorkerProcess();
	const char *problem;

	settings->cost_delay = autovacuum ? vacuum_cost_delay : VacuumCostDelay;
	settings->cost_limit = autovacuum ? vacuum_cost_limit : VacuumCostLimit;
	settings->page_hit = VacuumCostPageHit;
	settings->page_miss = VacuumCostPageMiss;
	settings->page_dirty = VacuumCostPageDirty;
	settings->latency_target = LATENCY_TARGET_OFF;
	(void) pace_parse_latency_target(autovacuum ? autovacuum_target : latency_target,
									 &settings->latency_target, &problem);
	settings->latency_percentile = cyclone_latency_percentile;
	if (autovacuum && settings->latency_target != LATENCY_TARGET_OFF)
		settings->cost_delay = 0;
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
		reread_autovacuum(files, settings);
	else
	{
		config_files_real("vacuum_cost_delay", files, &settings->cost_delay);
		config_files_int("vacuum_cost_limit", files, &settings->cost_limit);
		reread_target("cyclone.latency_target", files, &settings->latency_target);
	}
	config_files_int("vacuum_cost_page_hit", files, &settings->page_hit);
	config_files_int("vacuum_cost_page_miss", files, &settings->page_miss);
	config_files_int("vacuum_cost_page_dirty", files, &settings->page_dirty);
	config_files_real("cyclone.latency_percentile", files, &settings->latency_percentile);
	guards_reread(files);
	FreeConfigVariables(files);
}

/* check_latency_target -- the check hook of the parameter. */
static bool
check_latency_target(char **newval, void **extra, GucSource source)
{
	double		target;
	const char *problem;

	if (pace_parse_latency_target(*newval, &target, &problem))
		return true;
	GUC_check_errhint("%s", _(problem));
	return false;
}

/*
 * reread_autovacuum
 *		Reread the settings of an autovacuum worker.
 *
 * Which of them count depends on the table's options, which only the server knows.
 * So the parameters' variables are changed for as long as the command lasts, without
 * the server's knowledge: see pace_settings_save.
 */
static void
reread_autovacuum(ConfigVariable *files, PaceSettings *settings)
{
	config_files_real("vacuum_cost_delay", files, &VacuumCostDelay);
	config_files_int("vacuum_cost_limit", files, &VacuumCostLimit);
	config_files_real("autovacuum_vacuum_cost_delay", files, &autovacuum_vac_cost_delay);
	config_files_int("autovacuum_vacuum_cost_limit", files, &autovacuum_vac_cost_limit);
	VacuumUpdateCosts();
	settings->cost_delay = vacuum_cost_delay;
	settings->cost_limit = vacuum_cost_limit;

	reread_target("cyclone.autovacuum_latency_target", files, &settings->latency_target);
	if (settings->latency_target != LATENCY_TARGET_OFF)
		settings->cost_delay = 0;
}

/* reread_target -- reread the latency target. */
static void
reread_target(const char *name, ConfigVariable *files, double *value)
{
	const char *string = config_files_text(name, files);
	const char *problem;
	double		target;

	if (string == NULL)
		return;
	if (*string == '\0')
		*value = LATENCY_TARGET_OFF;
	else if (pace_parse_latency_target(string, &target, &problem))
		*value = target;
}
