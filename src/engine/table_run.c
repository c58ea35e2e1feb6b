/*-------------------------------------------------------------------------
 *
 * table_run.c
 *	  A run of the engine: VACUUM of one table, for a command or for autovacuum.
 *
 * table_vacuum.c has the work.  Here is what surrounds it, and what is cleared away if
 * an error ends it: the team, the pace, the row in cyclone.progress.  After these the
 * caller notes the end or the failure, and the history comes last.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "engine/table_run.h"
#include "engine/table_vacuum.h"
#include "history/history.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "team/team.h"

static void end_command(bool own_command);

/* table_run -- see table_run.h. */
void
table_run(Relation rel, const VacuumParams *params, BufferAccessStrategy strategy,
		  const TableRunCaller *caller, TableResult *result)
{
	/* false if the statement has begun the command, for all of its tables */
	bool		own_command = !pace_command_is_running();

	Assert(ActiveSnapshotSet() && !IsInParallelMode());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	Assert(rel->rd_rel->relowner == GetUserId());

	PG_TRY();
	{
		bool		hurries = caller->begin != NULL && caller->begin(caller->state);

		if (own_command)
			pace_begin_command(VACOPTVALUE_UNSPECIFIED);
		if (hurries)
			pace_hurry();
		pace_write_steadily();
		history_begin(HISTORY_VACUUM, rel, params);
		table_vacuum(rel, params, strategy, NULL, result);
	}
	PG_CATCH();
	{
		compat_unlock_pages();
		team_give_up();
		end_command(own_command);
		if (caller->fail != NULL)
			caller->fail(caller->state);
		history_fail();
		PG_RE_THROW();
	}
	PG_END_TRY();
	end_command(own_command);
	if (caller->end != NULL)
		caller->end(caller->state);
	history_vacuumed(result);
	history_end();
}

/* end_command -- clean up after a table, whether it is done or has failed. */
static void
end_command(bool own_command)
{
	if (own_command)
		pace_end_command();
	progress_clear();
}
