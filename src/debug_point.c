/*-------------------------------------------------------------------------
 *
 * debug_point.c
 *	  Named points in the code where a test can make a process wait or fail.
 *
 * SET cyclone.debug_point = 'heap-scan:worker:wait' makes parallel workers
 * wait at the point "heap-scan"; the words in the middle and at the end are
 * leader, worker or any, and wait or error.  Who waits does so until a test
 * releases an advisory lock that it holds: the lock (with key) 51966 of the
 * same database.  Release builds have none of this.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "debug_point.h"

#ifdef CYCLONE_DEBUG_POINTS

#include "access/parallel.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"

#define DEBUG_POINT_LOCK	51966

char	   *cyclone_debug_point = "";

static void wait_for_lock(void);

/* debug_point_init -- define the setting. */
void
debug_point_init(void)
{
	DefineCustomStringVariable("cyclone.debug_point",
							   "Makes processes wait or fail at a named point.",
							   "Three words: point:(leader|worker|any):(wait|error).",
							   &cyclone_debug_point, "", PGC_SUSET,
							   GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
}

/*
 * debug_point_reached
 *		Wait or raise an error if that is what the setting asks for.
 */
void
debug_point_reached(const char *name)
{
	const char *role = IsParallelWorker() ? "worker" : "leader";
	char		setting[128];

	for (int any = 0; any < 2; any++)
	{
		snprintf(setting, sizeof(setting), "%s:%s:error", name, any ? "any" : role);
		if (strcmp(setting, cyclone_debug_point) == 0)
			ereport(ERROR, (errmsg("debug point \"%s\" reached in %s", name, role)));
		snprintf(setting, sizeof(setting), "%s:%s:wait", name, any ? "any" : role);
		if (strcmp(setting, cyclone_debug_point) == 0)
			wait_for_lock();
	}
}

/* wait_for_lock -- wait for the test, interruptibly. */
static void
wait_for_lock(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, DEBUG_POINT_LOCK, 1);
	(void) LockAcquire(&tag, ShareLock, false, false);
	LockRelease(&tag, ShareLock, false);
}

#endif							/* CYCLONE_DEBUG_POINTS */
