/*-------------------------------------------------------------------------
 *
 * test_neighbours.c
 *	  What libraries do to VACUUM that distribute or divide tables.
 *
 * A hook that is there from the server's start tells of each VACUUM and REPACK that
 * comes to it, and passes it on, as Citus's does before it sends statements to
 * other nodes.  Another one is put in front of whatever hooks there are, when
 * a session analyzes its first statement in a database that has an extension
 * named timescaledb, as that one's loader does.  It runs each VACUUM with the
 * children of the tables, and passes on none.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "commands/vacuum.h"
#include "fmgr.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "parser/parse_node.h"
#include "storage/lockdefs.h"
#include "tcop/utility.h"

#include "compat.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static ProcessUtility_hook_type after_watching = NULL;
static ProcessUtility_hook_type after_dividing = NULL;
static post_parse_analyze_hook_type previous_analyze_hook = NULL;

/* tell -- say which options a statement has here. */
static void
tell(const char *who, List *options)
{
	StringInfoData text;

	initStringInfo(&text);
	foreach_node(DefElem, def, options)
		appendStringInfo(&text, " %s%s%s", def->defname, def->arg ? "=" : "",
						 def->arg ? defGetString(def) : "");
	ereport(NOTICE, (errmsg("%s%s", who, text.data)));
}

/* with_children -- a list of relations, with their children. */
static List *
with_children(List *rels)
{
	List	   *all = NIL;

	foreach_node(VacuumRelation, named, rels)
	{
		Oid			relid = RangeVarGetRelid(named->relation, NoLock, false);

		all = lappend(all, named);
		foreach_oid(child, find_inheritance_children(relid, NoLock))
			all = lappend(all, makeVacuumRelation(NULL, child, NIL));
	}
	return all;
}

/* watch -- a hook that tells of each VACUUM and REPACK. */
static void
watch(PlannedStmt *pstmt, const char *query_string,
	  bool read_only_tree, ProcessUtilityContext context,
	  ParamListInfo params, QueryEnvironment *query_env,
	  DestReceiver *dest, QueryCompletion *qc)
{
	if (IsA(pstmt->utilityStmt, VacuumStmt))
		tell("watcher:", ((VacuumStmt *) pstmt->utilityStmt)->options);
	if (IsA(pstmt->utilityStmt, RepackStmt))
		tell("watcher: repack", ((RepackStmt *) pstmt->utilityStmt)->params);
	(after_watching ? after_watching : standard_ProcessUtility)
		(pstmt, query_string, read_only_tree, context, params, query_env, dest, qc);
}

/* divide -- a hook that runs a VACUUM of tables with their children. */
static void
divide(PlannedStmt *pstmt, const char *query_string,
	   bool read_only_tree, ProcessUtilityContext context,
	   ParamListInfo params, QueryEnvironment *query_env,
	   DestReceiver *dest, QueryCompletion *qc)
{
	if (IsA(pstmt->utilityStmt, VacuumStmt))
	{
		VacuumStmt *stmt = copyObject((VacuumStmt *) pstmt->utilityStmt);
		ParseState *pstate = make_parsestate(NULL);

		tell("divider:", stmt->options);
		pstate->p_sourcetext = query_string;
		stmt->rels = with_children(stmt->rels);
		ExecVacuum(pstate, stmt, context == PROCESS_UTILITY_TOPLEVEL);
	}
	else
		after_dividing(pstmt, query_string, read_only_tree, context, params, query_env, dest, qc);
}

/* load_divider -- what a loader does that loads a library for this database. */
static void
load_divider(ParseState *pstate, Query *query, compat_jumble_state *jstate)
{
	if (after_dividing == NULL && OidIsValid(get_extension_oid("timescaledb", true)))
	{
		after_dividing = ProcessUtility_hook;
		ProcessUtility_hook = divide;
	}
	if (previous_analyze_hook)
		previous_analyze_hook(pstate, query, jstate);
}

/* _PG_init -- install the hooks, and define the settings. */
void
_PG_init(void)
{
	after_watching = ProcessUtility_hook;
	ProcessUtility_hook = watch;
	previous_analyze_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = load_divider;
}
