/*-------------------------------------------------------------------------
 *
 * compaction_settings.c
 *	  The configuration parameters named cyclone.compaction*.
 *
 * All are the server's, in the configuration files only.  Settings of one table are
 * rows of cyclone.compaction_policies.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "compaction/compaction.h"
#include "pace/pace.h"
#include "settings.h"

bool		cyclone_compaction = false;
int			cyclone_compaction_cooldown = SECS_PER_DAY;
char	   *cyclone_compaction_databases = NULL;
char	   *cyclone_compaction_latency_target = NULL;
int			cyclone_compaction_max_wal = -1;
int			cyclone_compaction_min_size = 128;
double		cyclone_compaction_threshold = 30;
char	   *cyclone_compaction_window = NULL;
int			cyclone_compaction_workers = 1;

static void define_numbers(void);
static bool check_window(char **newval, void **extra, GucSource source);
static bool check_latency_target(char **newval, void **extra, GucSource source);

/*
 * compaction_settings_init
 *		Define them.  To be called once, when the library is loaded, before
 *		settings_init reserves the prefix.
 */
void
compaction_settings_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);

	DefineCustomBoolVariable("cyclone.compaction",
							 "Bloated tables are compacted by themselves, with VACUUM (FULL INPLACE).",
							 "In each database that has the extension, or in those of cyclone.compaction_databases.",
							 &cyclone_compaction,
							 false,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("cyclone.compaction_databases",
							   "The databases in which tables are compacted by themselves, as a list of patterns.",
							   "A pattern is as in a shell. An empty list stands for all that have the extension.",
							   &cyclone_compaction_databases,
							   "",
							   PGC_SIGHUP,
							   GUC_LIST_INPUT,
							   settings_check_patterns, NULL, NULL);

	DefineCustomStringVariable("cyclone.compaction_latency_target",
							   "The latency of other sessions' statements that compaction keeps to.",
							   "As cyclone.latency_target.",
							   &cyclone_compaction_latency_target,
							   "auto",
							   PGC_SIGHUP,
							   0,
							   check_latency_target, NULL, NULL);

	DefineCustomStringVariable("cyclone.compaction_window",
							   "The hours of the week in which tables are compacted by themselves.",
							   "A list of days with hours, in the time zone of log_timezone. An empty one stands for always.",
							   &cyclone_compaction_window,
							   "",
							   PGC_SIGHUP,
							   0,
							   check_window, NULL, NULL);

	define_numbers();
}

/* define_numbers -- those that are numbers. */
static void
define_numbers(void)
{
	DefineCustomIntVariable("cyclone.compaction_cooldown",
							"How long a table is left alone after it was compacted.",
							"Twice as long each time that it was in vain.",
							&cyclone_compaction_cooldown,
							SECS_PER_DAY,
							COMPACTION_LEAST_COOLDOWN, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("cyclone.compaction_max_wal",
							"How much WAL compaction writes in a day.",
							"A table that is likely to exceed it isn't begun, one that does is stopped; -1 is no bound.",
							&cyclone_compaction_max_wal,
							-1,
							-1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("cyclone.compaction_min_size",
							"How much must be won for a table to be compacted by itself.",
							NULL,
							&cyclone_compaction_min_size,
							128,
							0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MB,
							NULL, NULL, NULL);

	DefineCustomRealVariable("cyclone.compaction_threshold",
							 "How much must be won for that, in per cent of the table's size with TOAST table and indexes.",
							 NULL,
							 &cyclone_compaction_threshold,
							 30,
							 0, 100,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("cyclone.compaction_workers",
							"How many tables are compacted by themselves at a time, each in another database.",
							NULL,
							&cyclone_compaction_workers,
							1,
							1, COMPACTION_MAX_WORKERS,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);
}

/* check_window -- the check hook of cyclone.compaction_window. */
static bool
check_window(char **newval, void **extra, GucSource source)
{
	CompactionWindow window;
	const char *problem;

	if (window_parse(*newval, &window, &problem))
		return true;
	GUC_check_errdetail("%s", _(problem));
	GUC_check_errhint("A window is a list of days with hours, like \"Mon-Fri 22:00-05:00, Sat-Sun\".");
	return false;
}

/* check_latency_target -- the check hook of cyclone.compaction_latency_target. */
static bool
check_latency_target(char **newval, void **extra, GucSource source)
{
	bool		is_auto;

	if (pace_parse_latency_target(*newval, &is_auto))
		return true;
	GUC_check_errhint("%s", _(PACE_TARGET_HINT));
	return false;
}
