/*-------------------------------------------------------------------------
 *
 * compaction.c
 *	  Tables that stay small by themselves: settings, and what processes share.
 *
 * While cyclone.compaction is on there is a launcher (launcher.c), which starts a worker for
 * one database after the other (worker.c).  The worker looks which tables are due
 * (tables.c, decision.c), and runs VACUUM (FULL INPLACE) of one at a time, as if a client
 * had sent it.  It has no objects in the database: what owners say is in labels (label.c),
 * what is remembered in a file (states.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "compaction/compaction.h"

#define TRANCHE		"pg_cyclone_compaction"

bool		cyclone_compaction = false;
double		cyclone_compaction_threshold = 30;
char	   *cyclone_compaction_window = NULL;

CompactionShared *compaction_shared = NULL;

static bool check_window(char **newval, void **extra, GucSource source);
static bool launcher_is_due(void);
static int	wall_clock(pg_time_t moment);

const OwnWorkerDuty compaction_launcher = {
	.type = "pg_cyclone compaction launcher",
	.function = "pg_cyclone_compaction_launcher",
	.is_due = launcher_is_due
};

/*
 * compaction_settings_init
 *		Define the settings, which are the server's: what is to be done with one table is in
 *		its label.  Before settings_init reserves the prefix.
 */
void
compaction_settings_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);

	DefineCustomBoolVariable("cyclone.compaction",
							 "Bloated tables are compacted by themselves, with VACUUM (FULL INPLACE).",
							 "In each database that has the extension, as far as cyclone.databases and cyclone.tables allow.",
							 &cyclone_compaction,
							 false,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomRealVariable("cyclone.compaction_threshold",
							 "How much must be freed for that, in per cent of the table's size with TOAST table and indexes.",
							 "A table's label may say otherwise.",
							 &cyclone_compaction_threshold,
							 30,
							 0, 100,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("cyclone.compaction_window",
							   "The hours of the week in which tables are compacted by themselves.",
							   "A list of days with hours, in the time zone of log_timezone. An empty one stands for always.",
							   &cyclone_compaction_window,
							   "",
							   PGC_SIGHUP,
							   0,
							   check_window, NULL, NULL);
}

/* check_window -- the check hook of cyclone.compaction_window. */
static bool
check_window(char **newval, void **extra, GucSource source)
{
	CompactionWindow window;

	if (window_parse(*newval, &window))
		return true;
	GUC_check_errhint("A window is a list of days with hours, like \"Mon-Fri 22:00-05:00, Sat-Sun\".");
	return false;
}

/* compaction_shmem_request -- how much shared memory we need, and a lock. */
void
compaction_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(CompactionShared));
	RequestNamedLWLockTranche(TRANCHE, 1);
}

/* compaction_shmem_init -- find our shared memory, or make it. */
void
compaction_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));
	compaction_shared = ShmemInitStruct("pg_cyclone compaction", sizeof(CompactionShared), &found);
	if (!found)
	{
		memset(compaction_shared, 0, sizeof(*compaction_shared));
		pg_atomic_init_u32(&compaction_shared->has_launcher, 0);
		pg_atomic_init_u64(&compaction_shared->not_before, 0);
		compaction_shared->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
	}
}

/*
 * launcher_is_due
 *		Should there be a launcher?  Also if there is but a worker to be stopped, as compaction
 *		was switched off after the launcher had died.
 */
static bool
launcher_is_due(void)
{
	return compaction_shared != NULL &&
		(cyclone_compaction || compaction_shared->pid != 0) &&
		pg_atomic_read_u32(&compaction_shared->has_launcher) == 0;
}

/*
 * compaction_opens_in -- see compaction.h.
 *
 * Asks for each minute what the clock on the wall will show then.  So a window in the hour
 * that daylight saving leaves out doesn't come, and one in the hour that comes twice does so
 * twice.
 */
double
compaction_opens_in(TimestampTz now)
{
	pg_time_t	moment = timestamptz_to_time_t(now);
	CompactionWindow window;

	if (!window_parse(cyclone_compaction_window, &window))
		return NAN;
	if (window_has(&window, wall_clock(moment)))
		return 0;
	for (int i = 1; i <= MINUTES_PER_WEEK; i++)
	{
		pg_time_t	minute = moment - moment % SECS_PER_MINUTE + i * SECS_PER_MINUTE;

		if (window_has(&window, wall_clock(minute)))
			return (double) (minute - moment);
	}
	return NAN;
}

/* wall_clock -- the minute of the week, from Sunday on, in the server's time zone. */
static int
wall_clock(pg_time_t moment)
{
	const struct pg_tm *local = pg_localtime(&moment, log_timezone);

	/* NULL only for times that no clock shows */
	return local == NULL ? 0 :
		local->tm_wday * MINUTES_PER_DAY + local->tm_hour * 60 + local->tm_min;
}
