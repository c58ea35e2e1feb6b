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

int			cyclone_debug_arrival_ms = 0;
int			cyclone_debug_batch_ms = 0;
int			cyclone_debug_break_seconds = 0;
int			cyclone_debug_btree_parts = 0;
int			cyclone_debug_compaction_held = 0;
int			cyclone_debug_compaction_hour = 0;
int			cyclone_debug_compaction_least = 0;
int			cyclone_debug_compaction_visit = 0;
int			cyclone_debug_failed_probe = 0;
int			cyclone_debug_free_disk_mb = 0;
int			cyclone_debug_fsm_blocks = 0;
int			cyclone_debug_horizon_wait = 0;
int			cyclone_debug_longest_hold = 0;
int			cyclone_debug_max_duties = 0;
int			cyclone_debug_max_duty_tries = 0;
int			cyclone_debug_max_pin_ms = 0;
int			cyclone_debug_max_tables = 0;
int			cyclone_debug_max_tree_pages = 0;
int			cyclone_debug_cores = 1000;
int			cyclone_debug_fed = 1000;
int			cyclone_debug_multixact_limit = 0;
int			cyclone_debug_parking = 0;
int			cyclone_debug_price = 0;
int			cyclone_debug_queue_age = 0;
int			cyclone_debug_ring_turn = 0;
int			cyclone_debug_seam_fails = 0;
int			cyclone_debug_server_version = 0;
int			cyclone_debug_workers = 0;
char	   *cyclone_debug_fault = "";
char	   *cyclone_debug_point = "";

/* The settings that are numbers, by name; all are GUC_NOT_IN_SAMPLE */
static const struct
{
	const char *name;
	const char *short_desc;
	const char *long_desc;
	int		   *variable;
	int			boot_value;
	int			max_value;
	GucContext	context;
}			numbers[] = {

	{"cyclone.debug_arrival_ms",
		"How long a leader that has failed waits for workers that are starting, in ms.",
		"0 is as long as usual.",
	&cyclone_debug_arrival_ms, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_batch_ms",
		"How long VACUUM (FULL INPLACE) moves rows in a transaction, in ms.",
		"0 is as long as usual.",
	&cyclone_debug_batch_ms, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_break_seconds",
		"How long autovacuum leaves a table to PostgreSQL when the engine has failed on it for the first time, in s.",
		"0 is as long as usual.",
	&cyclone_debug_break_seconds, 0, 7 * 24 * 3600, PGC_SIGHUP},
	{"cyclone.debug_btree_parts",
		"Into how many parts VACUUM FULL divides each btree that it can.",
		"0 is as many as there are processes, if that pays.",
	&cyclone_debug_btree_parts, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_compaction_held",
		"How long a session must hold the horizon to keep tables from being compacted, in ms.",
		"0 is as long as usual.",
	&cyclone_debug_compaction_held, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_compaction_hour",
		"How long an hour takes in the pauses of compaction, in ms.",
		"0 is an hour.",
	&cyclone_debug_compaction_hour, 0, INT_MAX, PGC_SIGHUP},
	{"cyclone.debug_compaction_least",
		"How much must be won for a table to be compacted by itself, in kB.",
		"0 is the usual size.",
	&cyclone_debug_compaction_least, 0, INT_MAX, PGC_SIGHUP},
	{"cyclone.debug_compaction_visit",
		"How often compaction visits a database, in ms.",
		"0 is as often as usual.",
	&cyclone_debug_compaction_visit, 0, INT_MAX, PGC_SIGHUP},
	{"cyclone.debug_cores",
		"How many cores VACUUM takes the machine to have, to leave others some.",
		"0 is as many as it has. By default no test's VACUUM makes way.",
	&cyclone_debug_cores, 1000, INT_MAX, PGC_SUSET},
	{"cyclone.debug_failed_probe",
		"The probe by which the server is found not to fit, at its start.",
		"0 is none.",
	&cyclone_debug_failed_probe, 0, INT_MAX, PGC_POSTMASTER},
	{"cyclone.debug_fed",
		"How many processes each budget is taken to feed.",
		"0 is as many as it does. By default no test's workers are parked.",
	&cyclone_debug_fed, 1000, INT_MAX, PGC_SUSET},
	{"cyclone.debug_free_disk_mb",
		"The free space that VACUUM finds in each file system while it runs, in MB.",
		"0 is what is free.",
	&cyclone_debug_free_disk_mb, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_fsm_blocks",
		"How many blocks of a table without indexes are scanned before their free space is offered.",
		"0 is the usual number.",
	&cyclone_debug_fsm_blocks, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_horizon_wait",
		"How long VACUUM (FULL INPLACE) waits for others, in ms.",
		"0 is as long as usual.",
	&cyclone_debug_horizon_wait, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_longest_hold",
		"How many ms a guard holds a VACUUM at most.",
		"0 is as long as usual.",
	&cyclone_debug_longest_hold, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_max_duties",
		"How many pages of a btree may be due at once, besides a range.",
		"0 is the usual number.",
	&cyclone_debug_max_duties, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_max_duty_tries",
		"How often a process tries to lock a pinned page of a btree that is due.",
		"0 is as often as usual.",
	&cyclone_debug_max_duty_tries, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_max_pin_ms",
		"How long a process waits for pinned pages of a table, in ms.",
		"0 is as long as usual.",
	&cyclone_debug_max_pin_ms, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_max_tables",
		"How many tables the view cyclone.autovacuum remembers.",
		"0 is the usual number.",
	&cyclone_debug_max_tables, 0, 1000000, PGC_POSTMASTER},
	{"cyclone.debug_max_tree_pages",
		"From how many leaf pages on a posting tree of a GIN index is shared out.",
		"0 is the usual number.",
	&cyclone_debug_max_tree_pages, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_multixact_limit",
		"The age of multixact IDs to which the number of members lowers the limit.",
		"0 is what it comes to.",
	&cyclone_debug_multixact_limit, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_parking",
		"How many times a worker takes its next piece of work for each time that it is parked by chance.",
		"It looks for a place again after the same number of ms. 0 is never.",
	&cyclone_debug_parking, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_price",
		"How many times as long a process sleeps with a latency target.",
		"0 is once.",
	&cyclone_debug_price, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_queue_age",
		"The age in ms of transactions behind which FULL INPLACE queues for a table's lock.",
		"0 is the usual number.",
	&cyclone_debug_queue_age, 0, INT_MAX, PGC_SUSET},
	{"cyclone.debug_ring_turn",
		"Write the pages of a ring together after this many visits, whether they were read from disk or not.",
		"0 is the usual number, and only those that were read.",
	&cyclone_debug_ring_turn, 0, 64, PGC_SUSET},
	{"cyclone.debug_seam_fails",
		"1: heap's table access method can't be changed.",
		NULL,
	&cyclone_debug_seam_fails, 0, 1, PGC_POSTMASTER},
	{"cyclone.debug_server_version",
		"The version that the server is taken for, at its start.",
		"0 is its own.",
	&cyclone_debug_server_version, 0, INT_MAX, PGC_POSTMASTER},
	{"cyclone.debug_workers",
		"The number of workers that a table calls for, whatever its size.",
		NULL,
	&cyclone_debug_workers, 0, INT_MAX, PGC_SUSET},
};

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
		DefineCustomIntVariable(numbers[i].name, numbers[i].short_desc, numbers[i].long_desc,
								numbers[i].variable, numbers[i].boot_value,
								0, numbers[i].max_value, numbers[i].context,
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
