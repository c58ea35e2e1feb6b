/*-------------------------------------------------------------------------
 *
 * init.c
 *	  Where the server enters the library.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "autovacuum/table_log.h"
#include "command/heap_seam.h"
#include "command/syntax_hint.h"
#include "command/utility_hook.h"
#include "compaction/compaction.h"
#include "debug_point.h"
#include "history/history.h"
#include "inplace/cleaner.h"
#include "library.h"
#include "machine/disk_free.h"
#include "machine/file_cache.h"
#include "own_worker.h"
#include "pace/pace.h"
#include "server_check.h"
#include "settings.h"
#include "shared_memory.h"

PG_MODULE_MAGIC;

/*
 * _PG_init
 *		Starts everything up, in the postmaster; or, in a server that the library
 *		doesn't fit, only what says so.
 *
 * Does nothing if the library is loaded later, as then it can't get shared memory.
 * library.c says what that means.
 */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	library_init();
	settings_note_files();
	debug_point_init();
	compaction_settings_init();
	compaction_label_init();
	pace_settings_init();
	settings_init();
	server_check();
	if (server_fits())
	{
		shared_memory_init();
		history_init();
		syntax_hint_init();
		table_log_init();
		own_worker_init();
		cleaner_init();
		if (cyclone_system_calls)
		{
			disk_free_init();
			file_cache_init();
			heap_seam_init();
		}
		else
			ereport(LOG,
					(errmsg("VACUUM and autovacuum are PostgreSQL's own, as cyclone.system_calls is off"),
					 errhint("VACUUM (FULL) is pg_cyclone's. It does not look at free disk space.")));
		own_worker_when_due(&compaction_launcher);
	}
	utility_hook_init();
}
