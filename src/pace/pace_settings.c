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
#include "utils/guc_tables.h"

#include "config_files.h"
#include "pace/pace_private.h"
#include "settings.h"

/* cyclone.adaptive_delay: who has it */
typedef enum AdaptiveFor
{
	ADAPTIVE_FOR_NONE,
	ADAPTIVE_FOR_AUTOVACUUM,
	ADAPTIVE_FOR_ALL,
} AdaptiveFor;

static const struct config_enum_entry adaptive_options[] = {
	{"off", ADAPTIVE_FOR_NONE, false},
	{"autovacuum", ADAPTIVE_FOR_AUTOVACUUM, false},
	{"on", ADAPTIVE_FOR_ALL, false},
	{"true", ADAPTIVE_FOR_ALL, true},
	{"false", ADAPTIVE_FOR_NONE, true},
	{"yes", ADAPTIVE_FOR_ALL, true},
	{"no", ADAPTIVE_FOR_NONE, true},
	{"1", ADAPTIVE_FOR_ALL, true},
	{"0", ADAPTIVE_FOR_NONE, true},
	{NULL, 0, false}
};

static int	adaptive_for = ADAPTIVE_FOR_NONE;

/* The server's parameters that a command changes for its duration */
static double *const delays[PACE_DELAYS] = {&VacuumCostDelay, &autovacuum_vac_cost_delay};
static int *const costs[PACE_COSTS] = {
	&VacuumCostLimit, &VacuumCostPageHit, &VacuumCostPageMiss, &VacuumCostPageDirty, &autovacuum_vac_cost_limit
};

static bool settings_are_adaptive(int value);
static bool settings_are_for_full_speed(void);
static void settings_reread_autovacuum(ConfigVariable *files, PaceSettings *settings);
static int	settings_reread_adaptive(ConfigVariable *files);

/*
 * pace_settings_init
 *		Define the parameter.  To be called once, when the library is loaded.
 */
void
pace_settings_init(void)
{
	DefineCustomEnumVariable("cyclone.adaptive_delay",
							 "Whether VACUUM and autovacuum are faster than their cost delay while others take little longer.",
							 "They are never slower than it, or than the cost limit each 2 ms if there is none. \"autovacuum\" is for autovacuum only.",
							 &adaptive_for,
							 ADAPTIVE_FOR_NONE,
							 adaptive_options,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);
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
	settings->is_adaptive = settings_are_adaptive(adaptive_for);
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
	}
	settings->is_adaptive = settings_are_adaptive(settings_reread_adaptive(files));
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
}

/* settings_are_adaptive -- has this process an adaptive delay with this value of the parameter? */
static bool
settings_are_adaptive(int value)
{
	if (AmAutoVacuumWorkerProcess())
		return value != ADAPTIVE_FOR_NONE && !settings_are_for_full_speed();
	return value == ADAPTIVE_FOR_ALL;
}

/*
 * settings_are_for_full_speed
 *		Has the autovacuum no cost delay, where the adaptive delay would only slow it down,
 *		against the will of the table's owner, or of the server's?
 *
 * A table's option says so.  The server's settings do, too, where the adaptive delay comes
 * from the database, whose owner could slow down the autovacuum of others' tables by it.
 */
static bool
settings_are_for_full_speed(void)
{
	double		of_server = autovacuum_vac_cost_delay >= 0 ? autovacuum_vac_cost_delay : VacuumCostDelay;

	return vacuum_cost_delay <= 0 &&
		(of_server > 0 || find_option("cyclone.adaptive_delay", false, true, 0)->source > PGC_S_FILE);
}

/* settings_reread_adaptive -- the adaptive delay, as the files have it if they count. */
static int
settings_reread_adaptive(ConfigVariable *files)
{
	const char *text = config_files_text("cyclone.adaptive_delay", files);

	if (text == NULL)
		return adaptive_for;
	if (*text == '\0')
		return ADAPTIVE_FOR_NONE;
	for (const struct config_enum_entry *entry = adaptive_options; entry->name != NULL; entry++)
		if (pg_strcasecmp(entry->name, text) == 0)
			return entry->val;
	return adaptive_for;
}
