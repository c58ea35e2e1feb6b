/*-------------------------------------------------------------------------
 *
 * debug_point.c
 *	  Named points in the code where a test can make a process wait or fail.
 *
 * SET cyclone.debug_point = 'heap-scan:worker:wait' makes workers
 * wait at the point "heap-scan"; the words in the middle and at the end are
 * leader, worker or any, and wait, error or notice.  Several such settings are
 * separated by spaces.  A process waits until a test releases an advisory lock
 * that it holds: the lock with the key 51966 of the same database.
 *
 * SET cyclone.debug_fault = 'index-entry:10' has the engine make a mistake of that name
 * each tenth time that it could, in each process.
 *
 * Other settings named cyclone.debug_* make limits small, so that a small table
 * comes to them.  Release builds have none of this.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"

#include "debug_point.h"

#ifdef CYCLONE_DEBUG_POINTS

#define DEBUG_POINT_LOCK	51966

#define DEBUG_NUMBER_BOOT(name, boot, most, context, description) boot,
#define DEBUG_NUMBER_ROW(name, boot, most, context, description) \
	{"cyclone.debug_" #name, description, most, context},

int			cyclone_debug_numbers[] = {DEBUG_NUMBERS(DEBUG_NUMBER_BOOT)};
char	   *cyclone_debug_fault = "";
char	   *cyclone_debug_point = "";

static const struct
{
	const char *name;
	const char *description;
	int			most;
	GucContext	context;
}			numbers[] = {DEBUG_NUMBERS(DEBUG_NUMBER_ROW)};

/* How often this process came to a place for the fault that the setting names */
static int	faults_passed = 0;

static bool is_set(const char *name, const char *role, const char *action);
static void wait_for_lock(void);

/* debug_point_init -- define the settings. */
void
debug_point_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);

	for (int i = 0; i < lengthof(numbers); i++)
		DefineCustomIntVariable(numbers[i].name, numbers[i].description, NULL,
								&cyclone_debug_numbers[i], cyclone_debug_numbers[i],
								0, numbers[i].most, numbers[i].context,
								GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomStringVariable("cyclone.debug_fault",
							   "Has VACUUM make a fault of this name, for audits to find.",
							   "With a colon and a number n: each n-th time, or never if n isn't positive.",
							   &cyclone_debug_fault, "", PGC_SUSET,
							   GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomStringVariable("cyclone.debug_point",
							   "Makes processes wait or fail at a named point.",
							   "Three words: point:(leader|worker|any):(wait|error|notice).",
							   &cyclone_debug_point, "", PGC_SUSET,
							   GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
}

/*
 * debug_point_reached
 *		Do what the setting asks for at this point, if anything.
 */
void
debug_point_reached(const char *name)
{
	const char *role = AmBackgroundWorkerProcess() ? "worker" : "leader";

	if (is_set(name, role, "notice"))
		ereport(NOTICE, (errmsg("debug point \"%s\" reached in %s", name, role)));
	if (is_set(name, role, "wait"))
		wait_for_lock();
	if (is_set(name, role, "error"))
		ereport(ERROR, (errmsg("debug point \"%s\" reached in %s", name, role)));
}

/* debug_fault_is_due -- does the setting ask for a fault of this name, now? */
bool
debug_fault_is_due(const char *name)
{
	Size		length = strlen(name);

	Assert(name != NULL && name[0] != '\0');

	if (strncmp(cyclone_debug_fault, name, length) != 0)
		return false;
	if (cyclone_debug_fault[length] == ':')
	{
		int			every = atoi(cyclone_debug_fault + length + 1);

		return every > 0 && ++faults_passed % every == 0;
	}
	return cyclone_debug_fault[length] == '\0';
}

/* is_set -- does the setting ask for this action here? */
static bool
is_set(const char *name, const char *role, const char *action)
{
	const char *roles[] = {role, "any"};

	for (int i = 0; i < lengthof(roles); i++)
	{
		char		wanted[128];
		const char *found = cyclone_debug_point;
		int			length = snprintf(wanted, sizeof(wanted), "%s:%s:%s",
									  name, roles[i], action);

		while ((found = strstr(found, wanted)) != NULL)
		{
			if ((found == cyclone_debug_point || found[-1] == ' ') &&
				(found[length] == '\0' || found[length] == ' '))
				return true;
			found += length;
		}
	}
	return false;
}

/* wait_for_lock -- wait for the test, without a timeout, interruptibly. */
static void
wait_for_lock(void)
{
	int			nest_level = NewGUCNestLevel();
	LOCKTAG		tag;

	(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, DEBUG_POINT_LOCK, 1);
	(void) LockAcquire(&tag, ShareLock, false, false);
	LockRelease(&tag, ShareLock, false);
	AtEOXact_GUC(false, nest_level);
}

#endif							/* CYCLONE_DEBUG_POINTS */
