/*-------------------------------------------------------------------------
 *
 * utility_hook.c
 *	  What the server doesn't know of VACUUM statements.
 *
 * A ProcessUtility hook.  A lazy VACUUM goes on to the next hook and the
 * server, and the engine gets its tables where the server asks heap to be
 * vacuumed: see heap_seam.c.  If the statement has a LATENCY_TARGET, that is
 * taken out of it here, and holds for as long as the statement runs.
 *
 * A VACUUM FULL ends here: the next hook doesn't see it.  We take it only if
 * it is certain to be legal here and now and the engine is made for it;
 * everything else goes on unchanged, errors of every kind included, so that
 * all messages are the server's own.  Modules that watch statements, like
 * pg_stat_statements, see a VACUUM FULL if their hooks run around ours: if
 * they come after us in shared_preload_libraries.  A VACUUM FULL of a table
 * that another library distributes goes on to it: see distributed.c.
 *
 * A library that a session loads puts its hook in front of ours.  TimescaleDB's
 * ends each VACUUM there, so in its databases we come first (come_first).
 *
 * On the way, latency.c may time other statements.  In a server that we don't
 * fit (server_check.c) all goes on unchanged, but for options of ours.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "command/distributed.h"
#include "command/heap_seam.h"
#include "command/options.h"
#include "command/relations.h"
#include "command/utility_hook.h"
#include "miscadmin.h"
#include "pace/latency.h"
#include "pace/pace.h"
#include "parser/analyze.h"
#include "server_check.h"
#include "settings.h"
#include "tcop/utility.h"
#include "utils/memutils.h"

static ProcessUtility_hook_type next_hook = NULL;
static post_parse_analyze_hook_type previous_analyze_hook = NULL;

/* what was in front of us in this session, and now isn't */
static ProcessUtility_hook_type overtaken_hook = NULL;

static void take_vacuum(PlannedStmt *pstmt, const char *query_string,
						bool read_only_tree, ProcessUtilityContext context,
						ParamListInfo params, QueryEnvironment *query_env,
						DestReceiver *dest, QueryCompletion *qc);
static void come_first(ParseState *pstate, Query *query, JumbleState *jstate);
static void take_vacuum_first(PlannedStmt *pstmt, const char *query_string,
							  bool read_only_tree, ProcessUtilityContext context,
							  ParamListInfo params, QueryEnvironment *query_env,
							  DestReceiver *dest, QueryCompletion *qc);
static bool is_done(ProcessUtility_hook_type next,
					PlannedStmt *pstmt, const char *query_string,
					bool read_only_tree, ProcessUtilityContext context,
					ParamListInfo params, QueryEnvironment *query_env,
					DestReceiver *dest, QueryCompletion *qc);
static PlannedStmt *for_server(const PlannedStmt *pstmt);
static void check_target(const VacuumStmt *stmt, const VacuumOptions *options);
static bool is_ours(const VacuumStmt *stmt, ProcessUtilityContext context,
					VacuumOptions *options);
static void run_vacuum(const VacuumStmt *stmt, const VacuumOptions *options);
static void refuse_nested(const VacuumStmt *stmt, ProcessUtilityContext context);

/*
 * Installs the hook.
 */
void
utility_hook_init(void)
{
	next_hook = ProcessUtility_hook;
	ProcessUtility_hook = take_vacuum;
	previous_analyze_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = come_first;
}

/*
 * The hook: runs a VACUUM that is ours, passes on everything else.
 */
static void
take_vacuum(PlannedStmt *pstmt, const char *query_string,
			bool read_only_tree, ProcessUtilityContext context,
			ParamListInfo params, QueryEnvironment *query_env,
			DestReceiver *dest, QueryCompletion *qc)
{
	uint64		start;

	if (is_done(next_hook ? next_hook : standard_ProcessUtility,
				pstmt, query_string, read_only_tree, context,
				params, query_env, dest, qc))
		return;

	if (!server_fits() || !latency_begin_utility(pstmt, &start))
	{
		(next_hook ? next_hook : standard_ProcessUtility)
			(pstmt, query_string, read_only_tree, context,
			 params, query_env, dest, qc);
		return;
	}

	PG_TRY();
	{
		(next_hook ? next_hook : standard_ProcessUtility)
			(pstmt, query_string, read_only_tree, context,
			 params, query_env, dest, qc);
	}
	PG_FINALLY();
	{
		latency_end_call(start);
	}
	PG_END_TRY();
	latency_end_utility(pstmt, start);
}

/*
 * A hook for when a statement has been analyzed, which is the last moment before
 * the ProcessUtility hooks: puts ours in front of those that this session has
 * loaded, if we need that.
 *
 * TimescaleDB loads the library of its version when a statement is analyzed, in
 * such a hook, so whoever is called first, it has done so by the time that we look.
 * Only once, or hooks could come to call each other in a circle.
 */
static void
come_first(ParseState *pstate, Query *query, JumbleState *jstate)
{
	VacuumStmt *stmt = (VacuumStmt *) query->utilityStmt;

	if (previous_analyze_hook)
		previous_analyze_hook(pstate, query, jstate);

	if (query->commandType != CMD_UTILITY || !IsA(stmt, VacuumStmt) ||
		ProcessUtility_hook == take_vacuum || overtaken_hook != NULL ||
		!(vacuum_options_have_full(stmt) || vacuum_options_have_latency_target(stmt)) ||
		!cyclone_enabled || !distributed_other_ends_vacuums())
		return;

	overtaken_hook = ProcessUtility_hook;
	ProcessUtility_hook = take_vacuum_first;
}

/*
 * The hook that is in front of others: they get whatever isn't done here.
 *
 * One that passes it on brings it to take_vacuum, which finds nothing more to do
 * with it.
 */
static void
take_vacuum_first(PlannedStmt *pstmt, const char *query_string,
				  bool read_only_tree, ProcessUtilityContext context,
				  ParamListInfo params, QueryEnvironment *query_env,
				  DestReceiver *dest, QueryCompletion *qc)
{
	if (!is_done(overtaken_hook, pstmt, query_string, read_only_tree, context,
				 params, query_env, dest, qc))
		overtaken_hook(pstmt, query_string, read_only_tree, context,
					   params, query_env, dest, qc);
}

/*
 * Runs a VACUUM that is ours, and passes on to the next hook one that has
 * options of ours, without them.  A latency target is kept to meanwhile.
 *
 * Returns false if the statement is neither, and is still to be passed on.
 * Raises an error if an option can't be had.  In the midst of another VACUUM,
 * where a function in an index expression may try one, there is only the
 * server's error to come, and that other one's pace must stay as it is: who
 * called the function may catch the error.
 */
static bool
is_done(ProcessUtility_hook_type next,
		PlannedStmt *pstmt, const char *query_string,
		bool read_only_tree, ProcessUtilityContext context,
		ParamListInfo params, QueryEnvironment *query_env,
		DestReceiver *dest, QueryCompletion *qc)
{
	const VacuumStmt *stmt = (const VacuumStmt *) pstmt->utilityStmt;
	VacuumOptions options;
	bool		has_target;

	if (!IsA(stmt, VacuumStmt))
		return false;
	if (vacuum_relations_running())
	{
		refuse_nested(stmt, context);
		return false;
	}
	if (!server_fits())
	{
		if (cyclone_enabled && IsUnderPostmaster && stmt->is_vacuumcmd &&
			(vacuum_options_have_latency_target(stmt) || vacuum_options_are_ours(stmt)))
			refuse_unfit_server("VACUUM options LATENCY_TARGET, FULL REWRITE and FULL INPLACE");
		return false;
	}
	if (is_ours(stmt, context, &options))
	{
		if (distributed_is_for_other(stmt, &options))
			next(for_server(pstmt), query_string, read_only_tree,
				 context, params, query_env, dest, qc);
		else
			run_vacuum(stmt, &options);
		return true;
	}
	if (!cyclone_enabled || !IsUnderPostmaster || !stmt->is_vacuumcmd)
		return false;
	has_target = vacuum_options_have_latency_target(stmt);
	if (!has_target && !vacuum_options_are_ours(stmt))
		return false;

	if (has_target)
	{
		vacuum_options_read_latency_target(stmt, &options);
		check_target(stmt, &options);
	}
	if (!has_target || pace_command_is_running())
	{
		next(for_server(pstmt), query_string, read_only_tree,
			 context, params, query_env, dest, qc);
		return true;
	}
	PG_TRY();
	{
		pace_begin_command(&options.latency_target);
		next(for_server(pstmt), query_string, read_only_tree,
			 context, params, query_env, dest, qc);
	}
	PG_FINALLY();
	{
		pace_end_command();
	}
	PG_END_TRY();
	return true;
}

/*
 * Raises an error if a lazy VACUUM can't keep to a latency target.
 */
static void
check_target(const VacuumStmt *stmt, const VacuumOptions *options)
{
	if (!heap_seam_is_set())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("VACUUM option LATENCY_TARGET is not available in this server"),
				 errhint("See pg_cyclone's warning in the server's log, from the server's start.")));
	(void) distributed_is_for_other(stmt, options);
}

/*
 * Returns a copy of a VACUUM statement with options that the server knows, which
 * lives as long as the portal, if there is one: VACUUM commits.
 */
static PlannedStmt *
for_server(const PlannedStmt *pstmt)
{
	MemoryContext context = PortalContext != NULL ? PortalContext : CurrentMemoryContext;
	MemoryContext old = MemoryContextSwitchTo(context);
	PlannedStmt *copy = copyObject(unconstify(PlannedStmt *, pstmt));
	VacuumStmt *stmt = (VacuumStmt *) copy->utilityStmt;

	stmt->options = vacuum_options_for_server(stmt->options);
	MemoryContextSwitchTo(old);

	return copy;
}

/*
 * Is the statement one that we run?  If so, *options are its options.
 */
static bool
is_ours(const VacuumStmt *stmt, ProcessUtilityContext context,
		VacuumOptions *options)
{
	if (!cyclone_enabled || !stmt->is_vacuumcmd || !vacuum_options_have_full(stmt))
		return false;

	/* the server wouldn't know the options */
	if ((context != PROCESS_UTILITY_TOPLEVEL || IsTransactionBlock()) &&
		vacuum_options_are_ours(stmt))
		PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "VACUUM");

	/* where VACUUM isn't allowed */
	if (context != PROCESS_UTILITY_TOPLEVEL ||
		IsTransactionBlock() || IsSubTransaction() ||
		IsInParallelMode() || RecoveryInProgress())
		return false;

	/* single-user mode is for emergencies: no experiments, no workers */
	if (!IsUnderPostmaster)
		return false;

	if (!vacuum_options_read(stmt, options))
		return false;

	/* FULL may have been said to be false */
	return (options->params.options & (VACOPT_FULL | VACOPT_INPLACE)) != 0;
}

/*
 * Runs a VACUUM that is ours.
 *
 * Like the server's it commits the transaction that it is called in and
 * returns in another one.
 */
static void
run_vacuum(const VacuumStmt *stmt, const VacuumOptions *options)
{
	MemoryContext context;
	MemoryContext old;
	BufferAccessStrategy ring;
	List	   *named;

	/* can't fail, but tells the transaction that it is to be committed */
	PreventInTransactionBlock(true, "VACUUM");

	/* a child of the portal's, so that it goes away after an error */
	context = AllocSetContextCreate(PortalContext, "Vacuum",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	ring = vacuum_options_make_ring(options);
	/* the statement may be a cached one, and names end up in our list */
	named = copyObject(stmt->rels);
	MemoryContextSwitchTo(old);

	PG_TRY();
	{
		pace_begin_command(options->has_latency_target ? &options->latency_target : NULL);
		vacuum_relations(named, &options->params, ring, context);
	}
	PG_FINALLY();
	{
		pace_end_command();
	}
	PG_END_TRY();

	MemoryContextDelete(context);
	/* as after every utility statement */
	CommandCounterIncrement();
}

/*
 * Raises the server's error for a VACUUM or ANALYZE inside a VACUUM of ours.
 *
 * A function in an index expression may call one.  Returns if the server
 * finds another fault first and is to raise that.
 */
static void
refuse_nested(const VacuumStmt *stmt, ProcessUtilityContext context)
{
	VacuumOptions options;
	const char *name = stmt->is_vacuumcmd ? "VACUUM" : "ANALYZE";

	if (IsInParallelMode() || !vacuum_options_read(stmt, &options))
		return;

	if (stmt->is_vacuumcmd)
		PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, name);

	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s cannot be executed from VACUUM or ANALYZE", name)));
}
