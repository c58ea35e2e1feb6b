/*-------------------------------------------------------------------------
 *
 * pace_settings.c
 *	  The settings that the pace of a vacuum depends on, also as they change
 *	  while it runs.
 *
 * The server reloads its configuration files between two commands, or in an
 * autovacuum worker.  In the middle of a parallel command it must not, as
 * parameters can't be set then.  But to change the pace of a vacuum of hours
 * is what one reloads the files for.  So the leader reads in them what
 * concerns the pace, and leaves the parameters themselves as they are until
 * the command has ended.  What was set in the session, for the user or for the
 * database takes precedence over the files, as ever.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/vacuum.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "utils/conffiles.h"
#include "utils/guc_tables.h"

#include "compat.h"
#include "guards/guards.h"
#include "pace/pace_private.h"
#include "settings.h"

/* Statements that are faster than this can't be slowed down noticeably. */
#define LEAST_TARGET_MS		0.1
#define GREATEST_TARGET_MS	(24 * 3600 * 1000.0)

double		cyclone_latency_percentile = 95;

static char *latency_target_string = NULL;
static double latency_target = LATENCY_TARGET_OFF;
static char *autovacuum_target_string = NULL;
static double autovacuum_target = LATENCY_TARGET_OFF;

static bool check_latency_target(char **newval, void **extra, GucSource source);
static void assign_latency_target(const char *newval, void *extra);
static void assign_autovacuum_target(const char *newval, void *extra);
static void reread_autovacuum(ConfigVariable *files, PaceSettings *settings);
static const char *reread(const char *name, ConfigVariable *files);
static void reread_real(const char *name, ConfigVariable *files, double *value);
static void reread_int(const char *name, ConfigVariable *files, int *value);
static void reread_target(const char *name, ConfigVariable *files, double *value);
static const char *reread_standbys(const char *name, ConfigVariable *files,
								   const char *default_value, const char *current);

/*
 * pace_settings_init
 *		Defines the parameters that are about latency.  To be called once, when the
 *		library is loaded.
 */
void
pace_settings_init(void)
{
	DefineCustomStringVariable("cyclone.autovacuum_latency_target",
							   "The latency of statements that autovacuum keeps to by slowing down.",
							   "As cyclone.latency_target; autovacuum's cost delay doesn't count then.",
							   &autovacuum_target_string,
							   "0",
							   PGC_SIGHUP,
							   0,
							   check_latency_target, assign_autovacuum_target, NULL);

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
							   &latency_target_string,
							   "0",
							   PGC_USERSET,
							   0,
							   check_latency_target, assign_latency_target, NULL);
}

/*
 * pace_parse_latency_target
 *		Read a latency target: a time (in ms if it has no unit), 0 or auto.
 *
 * If that isn't possible return false, and say in *problem what is wrong, as
 * a hint.
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

	settings->cost_delay = autovacuum ? vacuum_cost_delay : VacuumCostDelay;
	settings->cost_limit = autovacuum ? vacuum_cost_limit : VacuumCostLimit;
	settings->page_hit = VacuumCostPageHit;
	settings->page_miss = VacuumCostPageMiss;
	settings->page_dirty = VacuumCostPageDirty;
	settings->latency_target = autovacuum ? autovacuum_target : latency_target;
	settings->latency_percentile = cyclone_latency_percentile;
	if (autovacuum && settings->latency_target != LATENCY_TARGET_OFF)
		settings->cost_delay = 0;
}

/*
 * pace_settings_save
 *		Note those parameters which pace_settings_reread may change.
 */
void
pace_settings_save(PaceParameters *saved)
{
	saved->cost_delay = VacuumCostDelay;
	saved->cost_limit = VacuumCostLimit;
	saved->page_hit = VacuumCostPageHit;
	saved->page_miss = VacuumCostPageMiss;
	saved->page_dirty = VacuumCostPageDirty;
	saved->autovacuum_cost_delay = autovacuum_vac_cost_delay;
	saved->autovacuum_cost_limit = autovacuum_vac_cost_limit;
}

/* pace_settings_restore -- put them back. */
void
pace_settings_restore(const PaceParameters *saved)
{
	VacuumCostDelay = saved->cost_delay;
	VacuumCostLimit = saved->cost_limit;
	VacuumCostPageHit = saved->page_hit;
	VacuumCostPageMiss = saved->page_miss;
	VacuumCostPageDirty = saved->page_dirty;
	autovacuum_vac_cost_delay = saved->autovacuum_cost_delay;
	autovacuum_vac_cost_limit = saved->autovacuum_cost_limit;
}

/*
 * pace_settings_rebalance
 *		In an autovacuum worker, what the cost limit is now, as the server shares it
 *		out among all such workers.
 *
 * Returns whether it has changed.  The server's routine has an error for the
 * case that it counts no such worker, not even this one.
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
 * *settings are those in force; what can't be read stays as it is.
 */
void
pace_settings_reread(PaceSettings *settings)
{
	int			wal_rate = cyclone_max_wal_rate;
	int			max_lag = cyclone_max_replica_lag;
	double		min_free_disk = cyclone_min_free_disk;
	const char *value;
	ConfigVariable *files = NULL,
			   *tail = NULL;

	if (!ParseConfigFile(ConfigFileName, true, NULL, 0, CONF_FILE_START_DEPTH,
						 DEBUG2, &files, &tail) ||
		!ParseConfigFile(PG_AUTOCONF_FILENAME, false, NULL, 0, CONF_FILE_START_DEPTH,
						 DEBUG2, &files, &tail))
	{
		/* the server says so in its log, as it reads them, too */
		FreeConfigVariables(files);
		return;
	}

	if (AmAutoVacuumWorkerProcess())
		reread_autovacuum(files, settings);
	else
	{
		reread_real("vacuum_cost_delay", files, &settings->cost_delay);
		reread_int("vacuum_cost_limit", files, &settings->cost_limit);
		reread_target("cyclone.latency_target", files, &settings->latency_target);
	}
	reread_int("vacuum_cost_page_hit", files, &settings->page_hit);
	reread_int("vacuum_cost_page_miss", files, &settings->page_miss);
	reread_int("vacuum_cost_page_dirty", files, &settings->page_dirty);
	reread_real("cyclone.latency_percentile", files, &settings->latency_percentile);
	reread_int("cyclone.max_wal_rate", files, &wal_rate);
	reread_int("cyclone.max_replica_lag", files, &max_lag);
	value = reread("cyclone.min_free_disk", files);
	if (value != NULL)
		(void) settings_parse_min_free_disk(*value == '\0' ? MIN_FREE_DISK_DEFAULT : value, &min_free_disk);
	guards_set_limits(wal_rate, max_lag,
					  reread_standbys("cyclone.lag_of", files, "all", cyclone_lag_of),
					  reread_standbys("cyclone.delayed_standbys", files, "",
									  cyclone_delayed_standbys),
					  min_free_disk);
	FreeConfigVariables(files);
}

/* check_latency_target -- the check hook of the parameter. */
static bool
check_latency_target(char **newval, void **extra, GucSource source)
{
	double		target;
	const char *problem;
	double	   *result;

	if (!pace_parse_latency_target(*newval, &target, &problem))
	{
		GUC_check_errhint("%s", _(problem));
		return false;
	}
	result = guc_malloc(LOG, sizeof(double));
	if (result == NULL)
		return false;
	*result = target;
	*extra = result;
	return true;
}

/* assign_latency_target -- its assign hook. */
static void
assign_latency_target(const char *newval, void *extra)
{
	latency_target = *(double *) extra;
}

/* assign_autovacuum_target -- that of cyclone.autovacuum_latency_target. */
static void
assign_autovacuum_target(const char *newval, void *extra)
{
	autovacuum_target = *(double *) extra;
}

/*
 * reread_autovacuum
 *		Reread what an autovacuum worker goes by.
 *
 * What of it counts depends on the table's options, which only the server
 * knows.  So the parameters' variables are changed under its feet, for
 * as long as the command lasts: see pace_settings_save.
 */
static void
reread_autovacuum(ConfigVariable *files, PaceSettings *settings)
{
	reread_real("vacuum_cost_delay", files, &VacuumCostDelay);
	reread_int("vacuum_cost_limit", files, &VacuumCostLimit);
	reread_real("autovacuum_vacuum_cost_delay", files, &autovacuum_vac_cost_delay);
	reread_int("autovacuum_vacuum_cost_limit", files, &autovacuum_vac_cost_limit);
	VacuumUpdateCosts();
	settings->cost_delay = vacuum_cost_delay;
	settings->cost_limit = vacuum_cost_limit;

	reread_target("cyclone.autovacuum_latency_target", files, &settings->latency_target);
	if (settings->latency_target != LATENCY_TARGET_OFF)
		settings->cost_delay = 0;
}

/*
 * reread
 *		A parameter's value in the files; "" if it is not there, so that the
 *		default holds; NULL if that isn't where this session takes it from.
 */
static const char *
reread(const char *name, ConfigVariable *files)
{
	struct config_generic *parameter = find_option(name, false, true, 0);
	const char *value = "";

	if (parameter == NULL || parameter->source > PGC_S_FILE)
		return NULL;
	for (ConfigVariable *item = files; item != NULL; item = item->next)
		if (!item->ignore && pg_strcasecmp(item->name, name) == 0)
			value = item->value;
	return value;
}

/* reread_real -- reread a number. */
static void
reread_real(const char *name, ConfigVariable *files, double *value)
{
	const char *string = reread(name, files);
	struct config_generic *option = find_option(name, false, true, 0);
	struct config_real *parameter;
	double		number;

	if (string == NULL)
		return;
	parameter = compat_guc_real(option);
	if (*string == '\0')
		*value = parameter->boot_val;
	else if (parse_real(string, &number, option->flags, NULL) &&
			 number >= parameter->min && number <= parameter->max)
		*value = number;
}

/*
 * reread_standbys
 *		Reread a list of standbys.  Of one that the server would not take the current
 *		value is kept.
 */
static const char *
reread_standbys(const char *name, ConfigVariable *files, const char *default_value,
				const char *current)
{
	const char *value = reread(name, files);

	if (value == NULL)
		return current;
	if (*value == '\0')
		return default_value;
	return settings_is_standby_list(value, false) ? value : current;
}

/* reread_int -- reread an integer. */
static void
reread_int(const char *name, ConfigVariable *files, int *value)
{
	const char *string = reread(name, files);
	struct config_generic *option = find_option(name, false, true, 0);
	struct config_int *parameter;
	int			number;

	if (string == NULL)
		return;
	parameter = compat_guc_int(option);
	if (*string == '\0')
		*value = parameter->boot_val;
	else if (parse_int(string, &number, option->flags, NULL) &&
			 number >= parameter->min && number <= parameter->max)
		*value = number;
}

/* reread_target -- reread the latency target. */
static void
reread_target(const char *name, ConfigVariable *files, double *value)
{
	const char *string = reread(name, files);
	const char *problem;
	double		target;

	if (string == NULL)
		return;
	if (*string == '\0')
		*value = LATENCY_TARGET_OFF;
	else if (pace_parse_latency_target(string, &target, &problem))
		*value = target;
}
