/*-------------------------------------------------------------------------
 *
 * utility_hook.c
 *	  Takes VACUUM statements from the server.
 *
 * A ProcessUtility hook.  It takes a VACUUM only if it is certain to be
 * legal here and now and the engine is made for it; everything else goes on
 * unchanged to the next hook or the server, errors of every kind included,
 * so that all messages are the server's own.  On the way, latency.c may time
 * it.  In a server that we don't fit (server_check.c) all goes on so, but for
 * options of ours.
 *
 * A statement that we take ends here: the next hook doesn't see it.  Modules
 * that watch statements, like pg_stat_statements, must come after us in
 * shared_preload_libraries, so that their hooks run around ours.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "command/options.h"
#include "command/relations.h"
#include "command/utility_hook.h"
#include "miscadmin.h"
#include "pace/latency.h"
#include "pace/pace.h"
#include "server_check.h"
#include "settings.h"
#include "tcop/utility.h"
#include "utils/memutils.h"

static ProcessUtility_hook_type next_hook = NULL;

static void take_vacuum(PlannedStmt *pstmt, const char *query_string,
						bool read_only_tree, ProcessUtilityContext context,
						ParamListInfo params, QueryEnvironment *query_env,
						DestReceiver *dest, QueryCompletion *qc);
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
	if (ProcessUtility_hook != NULL)
		ereport(WARNING,
				(errmsg("libraries loaded before pg_cyclone will not see the VACUUM commands that it runs"),
				 errhint("Name pg_cyclone first in \"shared_preload_libraries\".")));

	next_hook = ProcessUtility_hook;
	ProcessUtility_hook = take_vacuum;
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

	if (IsA(pstmt->utilityStmt, VacuumStmt))
	{
		const VacuumStmt *stmt = (const VacuumStmt *) pstmt->utilityStmt;
		VacuumOptions options;

		if (vacuum_relations_running())
			refuse_nested(stmt, context);
		else if (is_ours(stmt, context, &options))
		{
			run_vacuum(stmt, &options);
			return;
		}
	}

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
 * Is the statement one that we run?  If so, *options are its options.
 */
static bool
is_ours(const VacuumStmt *stmt, ProcessUtilityContext context,
		VacuumOptions *options)
{
	if (!cyclone_enabled || !stmt->is_vacuumcmd)
		return false;

	if (!server_fits())
	{
		if (vacuum_options_are_ours(stmt))
			refuse_unfit_server("VACUUM options LATENCY_TARGET, FULL REWRITE and FULL INPLACE");
		return false;
	}

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

	/* nothing that the engine could do better, or at all */
	if (options->params.options & VACOPT_ONLY_DATABASE_STATS)
		return false;

	return true;
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
