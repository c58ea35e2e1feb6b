/*-------------------------------------------------------------------------
 *
 * shared_memory.c
 *	  All that processes share for as long as the server runs.
 *
 * Each file that needs shared memory has a row in the table: what asks for
 * memory and for named locks, what makes or finds them, and what is done once
 * when all of it is there.  The server calls the hooks when it starts, and
 * again after a crash of one of its processes.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "audit_mark.h"
#include "autovacuum/table_log.h"
#include "command/utility_hook.h"
#include "compaction/compaction.h"
#include "guards/guards.h"
#include "history/history_rows.h"
#include "inplace/cleaner.h"
#include "neighbours/neighbours.h"
#include "new_files/new_blocks.h"
#include "own_worker.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "settings.h"
#include "shared_memory.h"
#include "team/degree.h"

/* Each may be NULL. */
typedef struct SharedPart
{
	void		(*request) (void);	/* asks for memory and named locks */
	void		(*init) (void); /* makes or finds them; holds
								 * AddinShmemInitLock */
	void		(*start) (void);	/* comes after init of all parts, without
									 * the lock */
} SharedPart;

static const SharedPart parts[] = {
	{settings_shmem_request, settings_shmem_init, NULL},
	{audit_mark_shmem_request, audit_mark_shmem_init, NULL},
	{progress_shmem_request, progress_shmem_init, NULL},
	{history_rows_shmem_request, history_rows_shmem_init, history_rows_load},
	{neighbours_shmem_request, neighbours_shmem_init, NULL},
	{pace_shmem_request, pace_shmem_init, NULL},
	{guards_shmem_request, guards_shmem_init, NULL},
	{own_worker_shmem_request, own_worker_shmem_init, NULL},
	{cleaner_shmem_request, cleaner_shmem_init, cleaner_look_around},
	{new_blocks_shmem_request, NULL, NULL},
	{table_log_shmem_request, table_log_shmem_init, table_log_load},
	{degree_shmem_request, degree_shmem_init, NULL},
	{compaction_shmem_request, compaction_shmem_init, NULL},
	{NULL, NULL, utility_hook_join_others},
};

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void request_all(void);
static void start_all(void);

/* shared_memory_init -- see shared_memory.h. */
void
shared_memory_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_all;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_all;
}

/* request_all -- ask for what each part needs. */
static void
request_all(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	for (int i = 0; i < lengthof(parts); i++)
		if (parts[i].request)
			parts[i].request();
}

/* start_all -- make each part, or find it. */
static void
start_all(void)
{
	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < lengthof(parts); i++)
		if (parts[i].init)
			parts[i].init();
	LWLockRelease(AddinShmemInitLock);
	for (int i = 0; i < lengthof(parts); i++)
		if (parts[i].start)
			parts[i].start();
}
