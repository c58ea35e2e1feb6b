/*-------------------------------------------------------------------------
 *
 * utility_hook.c
 *	  Options of VACUUM and REPACK statements that the server doesn't know.
 *
 * A ProcessUtility hook.  A lazy VACUUM goes on to the next hook and the server, and the
 * engine gets its tables where the server asks heap to vacuum them (heap_seam.c).  A VACUUM
 * FULL, or a REPACK, ends here if it is legal here and now and the engine can do it.
 * Everything else goes on unchanged, also statements with errors, so that all messages are
 * the server's own.  README.md says what that means for hooks of other libraries.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "miscadmin.h"
#include "parser/analyze.h"
#include "tcop/utility.h"
#include "utils/memutils.h"

#include "command/distributed.h"
#include "command/heap_seam.h"
#include "command/options.h"
#include "command/relations.h"
#include "command/repack.h"
#include "command/utility_hook.h"
#include "compat.h"
#include "dry_run/dry_run.h"
#include "library.h"
#include "pace/pace.h"
#include "server_check.h"
#include "settings.h"

static ProcessUtility_hook_type next_hook = NULL;
static post_parse_analyze_hook_type previous_analyze_hook = NULL;

/* The first hook of this session before come_first put ours in front; or NULL */
static ProcessUtility_hook_type overtaken_hook = NULL;

/* The arguments of a ProcessUtility hook, and the hook or function that comes next */
typedef struct Call
{
	ProcessUtility_hook_type next;
	PlannedStmt *pstmt;
	const char *query_string;
	bool		read_only_tree;
	ProcessUtilityContext context;
	ParamListInfo params;
	QueryEnvironment *query_env;
	DestReceiver *dest;
	QueryCompletion *qc;
} Call;

static void take_vacuum(PlannedStmt *pstmt, const char *query_string,
						bool read_only_tree, ProcessUtilityContext context,
						ParamListInfo params, QueryEnvironment *query_env,
						DestReceiver *dest, QueryCompletion *qc);
static void come_first(ParseState *pstate, Query *query, compat_jumble_state *jstate);
static void take_vacuum_first(PlannedStmt *pstmt, const char *query_string,
							  bool read_only_tree, ProcessUtilityContext context,
							  ParamListInfo params, QueryEnvironment *query_env,
							  DestReceiver *dest, QueryCompletion *qc);
static bool is_done(const Call *call);
static void explain_names(const VacuumStmt *stmt);
static bool is_dry_run_done(const Call *call);
static bool is_repack_done(const Call *call);
static void pass_on(const Call *call);
static void vacuum_lazily(const Call *call);
static void go_on(const VacuumStmt *stmt);
static void pass_on_for_server(const Call *call);
static MemoryContext statement_context(void);
static void check_adaptive_delay(const VacuumStmt *stmt, const VacuumOptions *options);
static bool is_ours(const VacuumStmt *stmt, ProcessUtilityContext context,
					VacuumOptions *options);
static void run_ours(List *rels, const VacuumOptions *options);
static void refuse_nested(const VacuumStmt *stmt, ProcessUtilityContext context);

/* utility_hook_init -- see utility_hook.h. */
void
utility_hook_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	Assert(ProcessUtility_hook != take_vacuum);

	next_hook = ProcessUtility_hook;
	ProcessUtility_hook = take_vacuum;
}

/*
 * utility_hook_join_others -- see utility_hook.h.
 *
 * TimescaleDB has such a hook from the server's start.  After a crash ours is there already.
 */
void
utility_hook_join_others(void)
{
	if (post_parse_analyze_hook == NULL || post_parse_analyze_hook == come_first)
		return;
	previous_analyze_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = come_first;
}

/*
 * take_vacuum
 *		The hook: runs a VACUUM that is ours, passes on everything else.
 */
static void
take_vacuum(PlannedStmt *pstmt, const char *query_string,
			bool read_only_tree, ProcessUtilityContext context,
			ParamListInfo params, QueryEnvironment *query_env,
			DestReceiver *dest, QueryCompletion *qc)
{
	Call		call = {next_hook ? next_hook : standard_ProcessUtility, pstmt, query_string,
	read_only_tree, context, params, query_env, dest, qc};

	if (IsA(pstmt->utilityStmt, CreateExtensionStmt) &&
		strcmp(castNode(CreateExtensionStmt, pstmt->utilityStmt)->extname, "pg_cyclone") == 0)
		library_warn_if_replaced();
	if (!is_done(&call))
		pass_on(&call);
}

/*
 * come_first
 *		A hook that the server calls when it has analyzed a statement, before the
 *		ProcessUtility hooks: puts ours in front of those that this session has loaded,
 *		if we need that.
 *
 * TimescaleDB loads the library of its version in such a hook, which this one calls first,
 * so that library is loaded when we look.  We do this once in a session, as otherwise hooks
 * could call each other in a circle.
 */
static void
come_first(ParseState *pstate, Query *query, compat_jumble_state *jstate)
{
	VacuumStmt *stmt = (VacuumStmt *) query->utilityStmt;

	previous_analyze_hook(pstate, query, jstate);

	if (query->commandType != CMD_UTILITY || !IsA(stmt, VacuumStmt) ||
		ProcessUtility_hook == take_vacuum || overtaken_hook != NULL ||
		!(options_have(stmt->options, "full") || options_have(stmt->options, "adaptive_delay")) ||
		!settings_enabled() || !distributed_other_ends_vacuums())
		return;

	overtaken_hook = ProcessUtility_hook;
	ProcessUtility_hook = take_vacuum_first;
}

/*
 * take_vacuum_first
 *		The hook that come_first puts in front of others: they get each statement that it
 *		doesn't run.
 *
 * If these pass the statement on, it comes to take_vacuum, which passes it on, too.
 */
static void
take_vacuum_first(PlannedStmt *pstmt, const char *query_string,
				  bool read_only_tree, ProcessUtilityContext context,
				  ParamListInfo params, QueryEnvironment *query_env,
				  DestReceiver *dest, QueryCompletion *qc)
{
	Call		call = {overtaken_hook, pstmt, query_string,
	read_only_tree, context, params, query_env, dest, qc};

	if (!is_done(&call))
		pass_on(&call);
}

/*
 * is_done
 *		Runs a VACUUM or REPACK that is ours.  Passes on to the next hook one that has
 *		options of ours, without these, and keeps to its adaptive delay meanwhile.
 *
 * Returns false if the statement is neither, and the caller has to pass it on.  Raises an
 * error if an option is not possible.  A function in an index expression may call this in
 * the midst of another VACUUM.  Then there is only the server's error to raise, and the
 * pace of the other VACUUM stays as it is: the function may catch the error.
 */
static bool
is_done(const Call *call)
{
	const VacuumStmt *stmt = (const VacuumStmt *) call->pstmt->utilityStmt;
	VacuumOptions options;
	bool		has_option;
	bool		has_ours;

	Assert(call->next != NULL);
	if (IsA(stmt, RepackStmt))
		return is_repack_done(call);
	if (!IsA(stmt, VacuumStmt))
		return false;
	if (relations_are_vacuumed())
		refuse_nested(stmt, call->context);
	/* single-user mode is for emergencies: no experiments, no workers */
	if (!stmt->is_vacuumcmd || !IsUnderPostmaster)
		return false;
	if (is_dry_run_done(call))
		return true;
	has_option = options_have(stmt->options, "adaptive_delay");
	has_ours = has_option || vacuum_options_are_ours(stmt);
	if (!server_fits())
	{
		if (settings_enabled() && has_ours)
			server_refuse_if_unfit("VACUUM options ADAPTIVE_DELAY, FULL REWRITE and FULL INPLACE");
		return false;
	}
	vacuum_options_explain_faults(stmt);
	explain_names(stmt);
	if (!settings_enabled())
		return false;
	if (is_ours(stmt, call->context, &options))
	{
		if (distributed_is_for_other(stmt->rels, &options))
			pass_on_for_server(call);
		else
			run_ours(stmt->rels, &options);
		return true;
	}
	if (!has_ours)
		return false;

	/* where the server refuses another option, it raises its error */
	has_option = has_option && vacuum_options_read(stmt, &options);
	if (has_option)
		check_adaptive_delay(stmt, &options);
	if (!has_option || pace_command_is_running())
	{
		pass_on_for_server(call);
		return true;
	}
	PG_TRY();
	{
		pace_begin_command(options.adaptive_delay);
		pass_on_for_server(call);
	}
	PG_FINALLY();
	{
		pace_end_command();
	}
	PG_END_TRY();
	return true;
}

/*
 * explain_names
 *		Raises the error that a named relation doesn't exist, with a hint, if the name is
 *		an option: outside of parentheses only a few of the server's are options.
 */
static void
explain_names(const VacuumStmt *stmt)
{
	foreach_node(VacuumRelation, named, stmt->rels)
	{
		const RangeVar *name = named->relation;

		if (name != NULL && name->schemaname == NULL &&
			(strcmp(name->relname, "inplace") == 0 || strcmp(name->relname, "rewrite") == 0 ||
			 strcmp(name->relname, "dry_run") == 0) &&
			!OidIsValid(RangeVarGetRelid(name, NoLock, true)))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_TABLE),
					 errmsg("relation \"%s\" does not exist", name->relname),
					 errhint("Options of pg_cyclone are in parentheses, as in VACUUM (FULL INPLACE) t.")));
	}
}

/*
 * is_dry_run_done
 *		Runs a VACUUM that has the option DRY_RUN, whether that is on or off.
 *
 * Returns false if it hasn't the option.  A statement with DRY_RUN on is never passed on,
 * also if other options of it are wrong.
 */
static bool
is_dry_run_done(const Call *call)
{
	bool		is_dry;
	MemoryContext old;
	Call		inner = *call;
	VacuumStmt *stmt = (VacuumStmt *) call->pstmt->utilityStmt;
	VacuumOptions options;

	if (!vacuum_options_have_dry_run(stmt, &is_dry))
		return false;

	/* with DRY_RUN off it commits */
	old = MemoryContextSwitchTo(statement_context());
	inner.pstmt = copyObject(call->pstmt);
	stmt = castNode(VacuumStmt, inner.pstmt->utilityStmt);
	stmt->options = options_without(stmt->options, "dry_run");
	MemoryContextSwitchTo(old);
	if (!is_dry)
	{
		if (!is_done(&inner))
			pass_on(&inner);
		return true;
	}

	vacuum_options_need_engine("DRY_RUN");
	if (!server_fits())
		server_refuse_if_unfit("VACUUM option DRY_RUN");
	vacuum_options_explain_faults(stmt);
	if (!vacuum_options_read(stmt, &options))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("the other options of VACUUM (DRY_RUN) are not what PostgreSQL would accept"),
				 errhint("Without DRY_RUN it says what is wrong with them.")));
	dry_run_statement(stmt, &options);
	return true;
}

/*
 * check_adaptive_delay
 *		Raises an error if a lazy VACUUM can't have an adaptive delay.
 */
static void
check_adaptive_delay(const VacuumStmt *stmt, const VacuumOptions *options)
{
	if (!heap_seam_is_set())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("VACUUM option ADAPTIVE_DELAY is not available in this server"),
				 errhint("See pg_cyclone's message in the server's log, from the server's start.")));
	(void) distributed_is_for_other(stmt->rels, options);
}

/*
 * is_repack_done
 *		As is_done, for a REPACK, whose only option of ours is PARALLEL.
 *
 * Inside a transaction block the server may REPACK one table, and we don't.
 */
static bool
is_repack_done(const Call *call)
{
	const RepackStmt *stmt = (const RepackStmt *) call->pstmt->utilityStmt;
	bool		has_parallel = options_have(stmt->params, "parallel");
	bool		is_top = call->context == PROCESS_UTILITY_TOPLEVEL;
	bool		is_block = !is_top || IsTransactionBlock() || IsSubTransaction();
	bool		is_read;
	VacuumOptions options;

	/* in these cases the server raises the error */
	if (!settings_enabled() || !IsUnderPostmaster || stmt->command != REPACK_COMMAND_REPACK ||
		IsInParallelMode() || RecoveryInProgress())
		return false;
	if (!server_fits())
	{
		if (has_parallel)
			server_refuse_if_unfit("REPACK option PARALLEL");
		return false;
	}
	is_read = repack_options_read(stmt, &options);
	if (is_read && is_block && has_parallel)
		PreventInTransactionBlock(is_top, "REPACK (PARALLEL)");
	if (is_read && !is_block)
	{
		List	   *rels = stmt->relation != NULL ? list_make1(stmt->relation) : NIL;

		if (!distributed_is_for_other(rels, &options))
		{
			run_ours(rels, &options);
			return true;
		}
	}
	if (!has_parallel)
		return false;
	pass_on_for_server(call);
	return true;
}

/*
 * pass_on
 *		Pass the statement on to the next hook, or the server.
 *
 * Where lazy VACUUMs don't come to the engine, no audit can end one, and in a server that the
 * library doesn't fit there is no shared memory to ask.
 */
static void
pass_on(const Call *call)
{
	const VacuumStmt *stmt = (const VacuumStmt *) call->pstmt->utilityStmt;

	if (IsA(stmt, VacuumStmt) && stmt->is_vacuumcmd && IsUnderPostmaster && settings_enabled() &&
		heap_seam_is_set() && call->context == PROCESS_UTILITY_TOPLEVEL && PortalContext != NULL &&
		!IsTransactionBlock() && !IsSubTransaction() && !IsInParallelMode())
		vacuum_lazily(call);
	else
		call->next(call->pstmt, call->query_string, call->read_only_tree, call->context,
				   call->params, call->query_env, call->dest, call->qc);
}

/*
 * vacuum_lazily
 *		Pass on a VACUUM where it is allowed.  If an audit's error ends it, vacuum the tables
 *		that are left, and raise an error.
 */
static void
vacuum_lazily(const Call *call)
{
	PG_TRY();
	{
		relations_note_tables(true);
		call->next(call->pstmt, call->query_string, call->read_only_tree, call->context,
				   call->params, call->query_env, call->dest, call->qc);
		relations_note_tables(false);
	}
	PG_CATCH();
	{
		if (relations_can_go_on())
			go_on(castNode(VacuumStmt, call->pstmt->utilityStmt));
		relations_note_tables(false);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * go_on
 *		An audit's error is in hand.  If it has ended a lazy VACUUM, vacuum the tables that
 *		are left, and raise an error.
 */
static void
go_on(const VacuumStmt *stmt)
{
	VacuumOptions options;
	MemoryContext old = MemoryContextSwitchTo(PortalContext);

	if (vacuum_options_read(stmt, &options) &&
		(options.params.options & (VACOPT_FULL | VACOPT_INPLACE)) == 0)
		relations_go_on(copyObject(stmt->rels), &options, vacuum_options_make_ring(&options));
	MemoryContextSwitchTo(old);
}

/*
 * pass_on_for_server
 *		Pass on a copy of a VACUUM or REPACK statement, with options that the server knows,
 *		in memory that outlives the statement's transactions.
 */
static void
pass_on_for_server(const Call *call)
{
	Call		inner = *call;
	MemoryContext old = MemoryContextSwitchTo(statement_context());

	inner.pstmt = copyObject(call->pstmt);
	if (IsA(inner.pstmt->utilityStmt, RepackStmt))
	{
		RepackStmt *stmt = (RepackStmt *) inner.pstmt->utilityStmt;

		stmt->params = options_without(stmt->params, "parallel");
	}
	else
	{
		VacuumStmt *stmt = castNode(VacuumStmt, inner.pstmt->utilityStmt);

		stmt->options = vacuum_options_for_server(stmt->options);
	}
	MemoryContextSwitchTo(old);
	pass_on(&inner);
}

/*
 * statement_context
 *		Memory that outlives the transactions of a statement: the portal's.
 *
 * Code that calls ProcessUtility without a portal keeps the statement in memory of its
 * own, which has to outlive them, too: that is the current context.
 */
static MemoryContext
statement_context(void)
{
	return PortalContext != NULL ? PortalContext : CurrentMemoryContext;
}

/*
 * is_ours
 *		Is the statement one that we run?  If so, *options are its options.
 */
static bool
is_ours(const VacuumStmt *stmt, ProcessUtilityContext context,
		VacuumOptions *options)
{
	if (!options_have(stmt->options, "full"))
		return false;

	/* the error is raised here, as the server doesn't know the options */
	if ((context != PROCESS_UTILITY_TOPLEVEL || IsTransactionBlock()) &&
		vacuum_options_are_ours(stmt))
		PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "VACUUM");

	/* where VACUUM isn't allowed */
	if (context != PROCESS_UTILITY_TOPLEVEL ||
		IsTransactionBlock() || IsSubTransaction() ||
		IsInParallelMode() || RecoveryInProgress())
		return false;

	if (!vacuum_options_read(stmt, options))
		return false;

	/* FULL may be false */
	return (options->params.options & (VACOPT_FULL | VACOPT_INPLACE)) != 0;
}

/*
 * run_ours
 *		Runs a VACUUM or REPACK that is ours, of these relations, or of the database if
 *		there are none.
 *
 * Like the server's VACUUM it commits the transaction that it is called in and returns in
 * another one.  If the client sends several statements at once, the server commits a
 * REPACK of a single table together with the next ones; ours has transactions of its own.
 */
static void
run_ours(List *rels, const VacuumOptions *options)
{
	MemoryContext context;
	MemoryContext old;
	BufferAccessStrategy ring;
	List	   *named;

	Assert((options->params.options & (VACOPT_FULL | VACOPT_INPLACE)) != 0);
	/* can't fail here, but tells the transaction to commit at the end */
	PreventInTransactionBlock(true, options->is_repack ? "REPACK" : "VACUUM");

	/* a child of the portal's, so that it goes away after an error */
	context = AllocSetContextCreate(PortalContext, "Vacuum",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	ring = options->is_repack ? NULL : vacuum_options_make_ring(options);
	/* the statement may be a cached one, and our list keeps its names */
	named = copyObject(rels);
	MemoryContextSwitchTo(old);

	PG_TRY();
	{
		pace_begin_command(options->adaptive_delay);
		if (options->is_repack)
			repack_relations(named == NIL ? NULL : linitial_node(VacuumRelation, named),
							 &options->params, context);
		else
			relations_vacuum(named, &options->params, ring, context, 0);
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
 * refuse_nested
 *		Raises the server's error for a VACUUM or ANALYZE inside a VACUUM of ours: a
 *		function in an index expression may call one.
 */
static void
refuse_nested(const VacuumStmt *stmt, ProcessUtilityContext context)
{
	if (stmt->is_vacuumcmd)
		PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "VACUUM");
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s cannot be executed from VACUUM or ANALYZE",
					stmt->is_vacuumcmd ? "VACUUM" : "ANALYZE")));
}
