/*-------------------------------------------------------------------------
 *
 * test_hooks.c
 *	  What other libraries do to VACUUM statements and to heap.
 *
 * A hook that tells of each VACUUM statement that it sees (test_hooks.watch),
 * and runs it by itself (test_hooks.run), as libraries do that distribute
 * tables; a table access method whose routines are a copy of heap's, as
 * made by libraries that change a few of them; names of wait events;
 * callbacks for the end of a process; a signal that is ignored; a system call with a page locked; and
 * which hooks there are.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>

#include "access/heapam.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "commands/defrem.h"
#include "commands/vacuum.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "optimizer/planner.h"
#include "parser/analyze.h"
#include "parser/parse_node.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(heap_copy_handler);
PG_FUNCTION_INFO_V1(heap_address);
PG_FUNCTION_INFO_V1(name_wait_event);
PG_FUNCTION_INFO_V1(use_exit_callbacks);
PG_FUNCTION_INFO_V1(ignore_sigint);
PG_FUNCTION_INFO_V1(drop_with_lock);
PG_FUNCTION_INFO_V1(statement_hooks);

void		_PG_init(void);

static bool watch = false;
static bool run = false;
static ProcessUtility_hook_type next_hook = NULL;

/* tell -- name the options of a statement. */
static void
tell(const VacuumStmt *stmt)
{
	StringInfoData names;

	initStringInfo(&names);
	foreach_node(DefElem, option, stmt->options)
		appendStringInfo(&names, " %s", option->defname);
	ereport(NOTICE, (errmsg("test_hooks sees %s:%s", stmt->is_vacuumcmd ? "VACUUM" : "ANALYZE", names.data)));
}

/* heap_copy_handler -- the routines of a copy of heap. */
Datum
heap_copy_handler(PG_FUNCTION_ARGS)
{
	static TableAmRoutine copy;

	copy = *GetHeapamTableAmRoutine();
	PG_RETURN_POINTER(&copy);
}

/* heap_address -- where the routines of heap are. */
Datum
heap_address(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) (uintptr_t) GetHeapamTableAmRoutine());
}

/* name_wait_event -- use one of the names that the server has room for. */
Datum
name_wait_event(PG_FUNCTION_ARGS)
{
	(void) WaitEventExtensionNew(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/* do_nothing -- a callback for the end of a process. */
static void
do_nothing(int code, Datum arg)
{
}

/* ignore_sigint -- as background workers of other libraries do. */
Datum
ignore_sigint(PG_FUNCTION_ARGS)
{
	pqsignal(SIGINT, SIG_IGN);
	PG_RETURN_VOID();
}

/* drop_with_lock -- drop a file from the page cache, with the first page of a relation locked. */
Datum
drop_with_lock(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);
	int			fd = BasicOpenFile("PG_VERSION", O_RDONLY | PG_BINARY);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	(void) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	UnlockReleaseBuffer(buffer);
	close(fd);
	relation_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

/* statement_hooks -- the hooks that are set of those that queries and changes of rows come by. */
Datum
statement_hooks(PG_FUNCTION_ARGS)
{
	const struct
	{
		const char *name;
		bool		is_set;
	}			hooks[] = {
		{"post_parse_analyze", post_parse_analyze_hook != NULL},
		{"planner", planner_hook != NULL},
		{"ExecutorStart", ExecutorStart_hook != NULL},
		{"ExecutorRun", ExecutorRun_hook != NULL},
		{"ExecutorFinish", ExecutorFinish_hook != NULL},
		{"ExecutorEnd", ExecutorEnd_hook != NULL},
		{"ExecutorCheckPerms", ExecutorCheckPerms_hook != NULL},
	};
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < lengthof(hooks); i++)
		if (hooks[i].is_set)
			appendStringInfo(&names, "%s%s", names.len > 0 ? " " : "", hooks[i].name);
	PG_RETURN_TEXT_P(cstring_to_text(names.data));
}

/* see_vacuum -- the hook: tell of a VACUUM, and run it, as the settings say. */
static void
see_vacuum(PlannedStmt *pstmt, const char *query_string,
		   bool read_only_tree, ProcessUtilityContext context,
		   ParamListInfo params, QueryEnvironment *query_env,
		   DestReceiver *dest, QueryCompletion *qc)
{
	VacuumStmt *stmt = (VacuumStmt *) pstmt->utilityStmt;

	if (IsA(stmt, VacuumStmt) && watch)
		tell(stmt);
	if (IsA(stmt, VacuumStmt) && run)
	{
		ParseState *pstate = make_parsestate(NULL);

		pstate->p_sourcetext = query_string;
		ExecVacuum(pstate, copyObject(stmt), context == PROCESS_UTILITY_TOPLEVEL);
		return;
	}
	(next_hook ? next_hook : standard_ProcessUtility)
		(pstmt, query_string, read_only_tree, context, params, query_env, dest, qc);
}

/* _PG_init -- install the hooks, and define the settings. */
void
_PG_init(void)
{
	DefineCustomBoolVariable("test_hooks.watch", "Tell of each VACUUM.", NULL,
							 &watch, false, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("test_hooks.run", "Run each VACUUM.", NULL,
							 &run, false, PGC_USERSET, 0, NULL, NULL, NULL);
	next_hook = ProcessUtility_hook;
	ProcessUtility_hook = see_vacuum;
}

/* use_exit_callbacks -- use so many of the places that a process has. */
Datum
use_exit_callbacks(PG_FUNCTION_ARGS)
{
	for (int i = 0; i < PG_GETARG_INT32(0); i++)
		before_shmem_exit(do_nothing, Int32GetDatum(i));
	PG_RETURN_VOID();
}
