/*-------------------------------------------------------------------------
 *
 * cluster_vacuum.c
 *	  VACUUM of tables whose shards are on several nodes.
 *
 * Each node gets one command for all shards there, and all nodes get theirs at
 * once: several VACUUMs of one node would each have the whole budget.  The command
 * calls vacuum_node (node_vacuum.c), and cluster_answer.c reads what that returns.
 * After an error on a node the others finish all the same.
 *
 * Shards may move meanwhile.  So when the nodes have finished we look again where the
 * shards are, and vacuum those that have come to another node.
 *
 * A VACUUM statement waits for the nodes in a transaction that holds back no
 * VACUUM, as this server may be one of the nodes.  The function vacuum_cluster can't
 * do that, as the caller's transaction goes on.  FULL INPLACE on this server would wait
 * for that transaction, without end.  So FULL INPLACE by the function leaves out the
 * shards on this server.  The statement's transaction must not write anything, as other
 * sessions ignore it when they decide which rows are dead.
 *
 * Memory: a CitusPlacement for each shard, and what the nodes have said.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "parser/parser.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "cluster/citus.h"
#include "cluster/cluster_answer.h"
#include "cluster/cluster_vacuum.h"
#include "cluster/watch_client.h"
#include "command/distributed.h"
#include "command/options.h"
#include "command/relations.h"
#include "compat.h"
#include "declared_rows.h"
#include "library.h"
#include "pace/pace.h"
#include "server_check.h"
#include "transaction.h"

PG_FUNCTION_INFO_V1(pg_cyclone_vacuum_cluster);

/* How often to look for shards that were moved */
#define MAX_ROUNDS		5

/* Columns of vacuum_cluster */
#define RESULT_COLUMNS	8

static void init_cluster_vacuum(ClusterVacuum *vacuum, List *options, const VacuumOptions *read,
								bool is_statement);
static void check_transaction(void);
static void add_tables(ClusterVacuum *vacuum, Oid relid, bool with_children, List *columns);
static void add_table(ClusterVacuum *vacuum, Oid relid, List *columns);
static void run_rounds(ClusterVacuum *vacuum);
static List *new_shards(ClusterVacuum *vacuum, bool is_late);
static bool was_tried(const ClusterVacuum *vacuum, const CitusPlacement *placement, int *next);
static void run_round(ClusterVacuum *vacuum, List *shards);
static void skip_here(ClusterShard *shard);
static List *run_commands(const ClusterVacuum *vacuum, List *nodes, List *commands);
static char *make_command(const ClusterVacuum *vacuum, List *shards);
static const char *columns_of(const ClusterVacuum *vacuum, Oid relid);
static void tell_moved(const ClusterVacuum *vacuum);
static bool is_done_elsewhere(const ClusterVacuum *vacuum, const CitusPlacement *placement);
static void tell_sum(const ClusterVacuum *vacuum, int level);
static void return_rows(const ClusterVacuum *vacuum, FunctionCallInfo fcinfo);
static char *deparse_options(List *options);

/* cluster_vacuum -- see cluster_vacuum.h. */
void
cluster_vacuum(List *rels, List *options, const VacuumOptions *read)
{
	MemoryContext context = AllocSetContextCreate(PortalContext, "Cyclone cluster",
												  ALLOCSET_DEFAULT_SIZES);
	ClusterVacuum vacuum;

	Assert(rels != NIL && IsTransactionState());
	MemoryContextSwitchTo(context);
	init_cluster_vacuum(&vacuum, options, read, true);
	foreach_node(VacuumRelation, named, rels)
	{
		Oid			relid = OidIsValid(named->oid) ? named->oid :
			RangeVarGetRelid(named->relation, NoLock, false);

		add_tables(&vacuum, relid, named->relation == NULL || named->relation->inh, named->va_cols);
	}
	run_rounds(&vacuum);

	tell_moved(&vacuum);
	tell_sum(&vacuum, vacuum.is_verbose ? INFO : DEBUG1);
	if (vacuum.failed != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("VACUUM failed on %d of %d nodes",
						list_length(vacuum.failed), list_length(vacuum.nodes)),
				 errdetail_internal("%s", vacuum.failures.data),
				 errhint("The other nodes have finished. VACUUM the table again when the cause is gone.")));
	/* the context that was current has gone with its transaction */
	MemoryContextSwitchTo(CurTransactionContext);
	MemoryContextDelete(context);
}

/*
 * pg_cyclone_vacuum_cluster
 *		The function vacuum_cluster(tables, options): a row for each shard and node.
 *
 * A failure of a node is in the rows, and a warning.  The function can't be called in
 * a transaction block.
 */
Datum
pg_cyclone_vacuum_cluster(PG_FUNCTION_ARGS)
{
	char	   *options;
	VacuumStmt *stmt;
	ClusterVacuum vacuum;
	VacuumOptions read;
	Datum	   *tables;
	bool	   *nulls;
	int			ntables;

	refuse_without_preloading();
	declared_rows_begin(fcinfo, RESULT_COLUMNS);
	check_transaction();
	options = text_to_cstring(PG_GETARG_TEXT_PP(1));
	stmt = cluster_parse_vacuum(psprintf(options[0] == '\0' ? "VACUUM%s t" : "VACUUM (%s) t", options));
	if (stmt == NULL || list_length(stmt->rels) != 1 || !vacuum_options_read(stmt, &read))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid options for VACUUM: \"%s\"", options),
				 errhint("They are as in VACUUM (options) table.")));
	if (read.has_latency_target && !server_fits())
		server_refuse_if_unfit("VACUUM option LATENCY_TARGET");
	init_cluster_vacuum(&vacuum, stmt->options, &read, false);
	vacuum.skips_here = (read.params.options & VACOPT_INPLACE) != 0;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), REGCLASSOID, sizeof(Oid), true, TYPALIGN_INT,
					  &tables, &nulls, &ntables);
	for (int i = 0; i < ntables; i++)
	{
		Oid			relid = nulls[i] ? InvalidOid : DatumGetObjectId(tables[i]);

		if (!distributed_is_in_cluster(relid))
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("\"%s\" is not distributed by Citus",
							OidIsValid(relid) && get_rel_name(relid) ? get_rel_name(relid) : "null"),
					 errhint("Use VACUUM for other tables.")));
		add_tables(&vacuum, relid, true, NIL);
	}
	if (vacuum.tables != NIL)
		run_rounds(&vacuum);
	tell_moved(&vacuum);
	if (vacuum.failed != NIL)
		ereport(WARNING,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("VACUUM failed on %d of %d nodes",
						list_length(vacuum.failed), list_length(vacuum.nodes)),
				 errdetail_internal("%s", vacuum.failures.data)));
	return_rows(&vacuum, fcinfo);
	return (Datum) 0;
}

/* cluster_parse_vacuum -- see cluster_vacuum.h. */
VacuumStmt *
cluster_parse_vacuum(const char *text)
{
	List	   *parsed = raw_parser(text, RAW_PARSE_DEFAULT);
	Node	   *stmt;

	if (list_length(parsed) != 1)
		return NULL;
	stmt = linitial_node(RawStmt, parsed)->stmt;
	return IsA(stmt, VacuumStmt) && ((VacuumStmt *) stmt)->is_vacuumcmd ? (VacuumStmt *) stmt : NULL;
}

/* init_cluster_vacuum -- prepare a VACUUM without tables, in this memory context. */
static void
init_cluster_vacuum(ClusterVacuum *vacuum, List *options, const VacuumOptions *read,
					bool is_statement)
{
	memset(vacuum, 0, sizeof(*vacuum));
	vacuum->context = CurrentMemoryContext;
	vacuum->is_statement = is_statement;
	vacuum->is_verbose = (read->params.options & VACOPT_VERBOSE) != 0;
	vacuum->options = deparse_options(options);
	initStringInfo(&vacuum->failures);
}

/*
 * check_transaction
 *		Raise an error if vacuum_cluster is called where it can't run.
 *
 * If the transaction has read or written a table before, here or on a node, VACUUM FULL
 * of it would wait for the transaction, and the transaction waits for VACUUM.  And Citus
 * ends commands on nodes when the transaction fails, but not when a subtransaction does.
 */
static void
check_transaction(void)
{
	/*
	 * a function in an index expression may call it, and the VACUUM that
	 * calls the function would lose its pace
	 */
	if (relations_are_vacuumed() || pace_command_is_running() || pace_is_worker())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cyclone.vacuum_cluster cannot be executed from VACUUM or ANALYZE")));
	if (IsTransactionBlock() || IsSubTransaction())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cyclone.vacuum_cluster cannot run inside a transaction block, or where exceptions are caught"),
				 errhint("Call it in a statement of its own.")));
}

/* add_tables -- add a table, with its partitions or children if with_children. */
static void
add_tables(ClusterVacuum *vacuum, Oid relid, bool with_children, List *columns)
{
	if (!with_children && get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
	{
		ereport(WARNING,
				(errmsg("\"%s\" is partitioned, and without its partitions there is nothing to vacuum",
						get_rel_name(relid))));
		return;
	}
	if (!with_children)
	{
		add_table(vacuum, relid, columns);
		return;
	}
	foreach_oid(child, find_all_inheritors(relid, NoLock, NULL))
		add_table(vacuum, child, columns);
}

/* add_table -- add a table, or its columns if the table is there; NIL is all columns. */
static void
add_table(ClusterVacuum *vacuum, Oid relid, List *columns)
{
	ClusterTable *added;

	Assert(OidIsValid(relid));
	foreach_ptr(ClusterTable, table, vacuum->tables)
	{
		if (table->relid != relid)
			continue;
		if (table->columns == NIL || columns == NIL)
			table->columns = NIL;
		else
			table->columns = list_union(table->columns, columns);
		return;
	}
	added = palloc(sizeof(ClusterTable));
	added->relid = relid;
	added->columns = columns;
	vacuum->tables = lappend(vacuum->tables, added);
}

/*
 * run_rounds
 *		Have the nodes vacuum all shards, then those that have come to another node
 *		meanwhile, and so on.
 *
 * Citus may keep the old copy of a moved shard for a while.  So even if each node has
 * found all its shards, some of them may have moved.
 */
static void
run_rounds(ClusterVacuum *vacuum)
{
	List	   *shards = new_shards(vacuum, false);

	for (int round = 0; shards != NIL && round < MAX_ROUNDS; round++)
	{
		run_round(vacuum, shards);
		shards = new_shards(vacuum, true);
	}
	if (shards == NIL)
		return;
	/* no node was asked about these */
	vacuum->shards = list_truncate(vacuum->shards, list_length(vacuum->shards) - list_length(shards));
	ereport(WARNING,
			(errmsg("shards were moved again and again during VACUUM, and the last moves were not followed")));
}

/* new_shards -- add the shards to the VACUUM that weren't tried on their node; returns them. */
static List *
new_shards(ClusterVacuum *vacuum, bool is_late)
{
	MemoryContext old = MemoryContextSwitchTo(vacuum->context);
	List	   *relids = NIL;
	List	   *shards = NIL;
	int			next = 0;

	foreach_ptr(ClusterTable, table, vacuum->tables)
		relids = lappend_oid(relids, table->relid);
	foreach_ptr(CitusPlacement, placement, citus_placements(relids))
	{
		ClusterShard *shard;

		CHECK_FOR_INTERRUPTS();
		if (was_tried(vacuum, placement, &next))
			continue;
		shard = palloc0(sizeof(ClusterShard));
		shard->placement = placement;
		shard->is_late = is_late;
		shard->before = shard->after = -1;
		shards = lappend(shards, shard);
	}
	vacuum->shards = list_concat(vacuum->shards, shards);
	MemoryContextSwitchTo(old);
	return shards;
}

/*
 * was_tried
 *		Has this node been asked about this shard before?
 *
 * The order is the same each time, so the search begins at *next, and sets it.
 */
static bool
was_tried(const ClusterVacuum *vacuum, const CitusPlacement *placement, int *next)
{
	int			nshards = list_length(vacuum->shards);

	Assert(*next >= 0);
	for (int n = 0; n < nshards; n++)
	{
		int			i = (*next + n) % nshards;
		const CitusPlacement *other = ((ClusterShard *) list_nth(vacuum->shards, i))->placement;

		if (other->shardid == placement->shardid && citus_is_same_node(&other->node, &placement->node))
		{
			*next = i + 1;
			return true;
		}
	}
	return false;
}

/*
 * run_round
 *		Send each node its shards, and wait for all nodes.  Shards of one node stand
 *		together in the list.
 */
static void
run_round(ClusterVacuum *vacuum, List *shards)
{
	MemoryContext old = MemoryContextSwitchTo(vacuum->context);
	List	   *nodes = NIL;
	List	   *parts = NIL;	/* a list of shards for each node */
	List	   *commands = NIL;

	Assert(shards != NIL);
	foreach_ptr(ClusterShard, shard, shards)
	{
		const CitusNode *node = &shard->placement->node;

		if (node->name == NULL || !node->is_active)
		{
			shard->status = "unreachable";
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 node->name == NULL ?
					 errmsg("shard %s is on no node, and was not vacuumed", shard->placement->shard) :
					 errmsg("%s:%d is not active, and its shard %s was not vacuumed",
							node->name, node->port, shard->placement->shard)));
		}
		else if (vacuum->skips_here && shard->placement->is_here)
			skip_here(shard);
		else if (nodes != NIL && citus_is_same_node(llast(nodes), node))
			lfirst(list_tail(parts)) = lappend(llast(parts), shard);
		else
		{
			nodes = lappend(nodes, unconstify(CitusNode *, node));
			parts = lappend(parts, list_make1(shard));
		}
	}
	foreach_ptr(List, part, parts)
		commands = lappend(commands, make_command(vacuum, part));

	if (nodes != NIL)
	{
		List	   *answers = run_commands(vacuum, nodes, commands);

		for (int i = 0; i < list_length(nodes); i++)
		{
			vacuum->nodes = citus_add_node(vacuum->nodes, list_nth(nodes, i));
			cluster_answer_take(vacuum, list_nth(parts, i), list_nth(answers, i));
		}
	}
	MemoryContextSwitchTo(old);
}

/* skip_here -- leave out a shard on this server, and say so. */
static void
skip_here(ClusterShard *shard)
{
	shard->status = "skipped";
	shard->reason = "VACUUM (FULL INPLACE) would wait for the transaction that calls the function";
	ereport(WARNING,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("shard %s is on this server, and was not vacuumed", shard->placement->shard),
			 errdetail("VACUUM (FULL INPLACE) would wait for the transaction that calls the function."),
			 errhint("Use the statement VACUUM, or call the function on a server without shards of the table.")));
}

/*
 * run_commands
 *		Run the commands, and return the answers.
 *
 * A statement waits in a transaction of its own, which like a VACUUM's holds back no
 * horizon.  It must not write: other sessions ignore such a transaction, and could take
 * its rows for those of a failed one.
 */
static List *
run_commands(const ClusterVacuum *vacuum, List *nodes, List *commands)
{
	List	   *answers;
	int			level;

	Assert(list_length(nodes) == list_length(commands));
	if (vacuum->is_statement)
	{
		if (ActiveSnapshotSet())
			PopActiveSnapshot();
		CommitTransactionCommand();
		transaction_begin(false);
		MemoryContextSwitchTo(vacuum->context);
	}
	level = NewGUCNestLevel();
	(void) watch_client(GUC_ACTION_SAVE);
	answers = citus_run(nodes, commands);
	AtEOXact_GUC(true, level);
	if (vacuum->is_statement)
	{
		if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
			elog(ERROR, "master_run_on_worker has written to the database");
		transaction_end();
		StartTransactionCommand();
		MemoryContextSwitchTo(vacuum->context);
	}
	return answers;
}

/* make_command -- the command for a node, for these shards. */
static char *
make_command(const ClusterVacuum *vacuum, List *shards)
{
	StringInfoData text;
	bool		is_first = true;

	Assert(shards != NIL);
	initStringInfo(&text);
	appendStringInfo(&text, "CALL cyclone.vacuum_node(%s, ARRAY[", quote_literal_cstr(vacuum->options));
	foreach_ptr(ClusterShard, shard, shards)
	{
		char	   *name = psprintf("%s%s", shard->placement->shard,
									columns_of(vacuum, shard->placement->relid));

		appendStringInfo(&text, "%s%s", is_first ? "" : ", ", quote_literal_cstr(name));
		is_first = false;
	}
	appendStringInfoString(&text, "]::text[], NULL)");
	return text.data;
}

/* columns_of -- the columns that the statement names for a table, as it names them. */
static const char *
columns_of(const ClusterVacuum *vacuum, Oid relid)
{
	foreach_ptr(ClusterTable, table, vacuum->tables)
	{
		StringInfoData text;

		if (table->relid != relid)
			continue;
		if (table->columns == NIL)
			break;
		initStringInfo(&text);
		foreach_node(String, column, table->columns)
			appendStringInfo(&text, "%s%s", text.len == 0 ? " (" : ", ", quote_identifier(strVal(column)));
		appendStringInfoChar(&text, ')');
		return text.data;
	}
	return "";
}

/* tell_moved -- name the shards that came to a node, or left one, during the VACUUM. */
static void
tell_moved(const ClusterVacuum *vacuum)
{
	foreach_ptr(ClusterShard, shard, vacuum->shards)
	{
		const CitusPlacement *placement = shard->placement;

		Assert(shard->status != NULL);
		if (shard->is_late && strcmp(shard->status, "vacuumed") == 0)
			ereport(NOTICE,
					(errmsg("shard %s has come to %s:%d during VACUUM, and was vacuumed there",
							placement->shard, placement->node.name, placement->node.port)));
		if (strcmp(shard->status, "moved") == 0)
			ereport(is_done_elsewhere(vacuum, placement) ? NOTICE : WARNING,
					(errcode(ERRCODE_UNDEFINED_TABLE),
					 errmsg("shard %s was moved away from %s:%d, split or dropped during VACUUM, and was not vacuumed there",
							placement->shard, placement->node.name, placement->node.port)));
	}
}

/* is_done_elsewhere -- was this shard vacuumed on the node to which it has come? */
static bool
is_done_elsewhere(const ClusterVacuum *vacuum, const CitusPlacement *placement)
{
	foreach_ptr(ClusterShard, shard, vacuum->shards)
	{
		if (shard->is_late && shard->placement->shardid == placement->shardid &&
			strcmp(shard->status, "vacuumed") == 0)
			return true;
	}
	return false;
}

/* tell_sum -- say how many shards were vacuumed, and their sizes before and after. */
static void
tell_sum(const ClusterVacuum *vacuum, int level)
{
	int			ndone = 0;
	int64		before = 0;
	int64		after = 0;

	foreach_ptr(ClusterShard, shard, vacuum->shards)
	{
		if (strcmp(shard->status, "vacuumed") != 0)
			continue;
		ndone++;
		if (shard->before >= 0 && shard->after >= 0)
		{
			before += shard->before;
			after += shard->after;
		}
	}
	ereport(vacuum->failed != NIL && level == DEBUG1 ? WARNING : level,
			(errmsg("vacuumed %d of %d shards on %d nodes, from " INT64_FORMAT " to " INT64_FORMAT " bytes",
					ndone, list_length(vacuum->shards), list_length(vacuum->nodes), before, after)));
}

/* return_rows -- add a row for each shard to the result of vacuum_cluster. */
static void
return_rows(const ClusterVacuum *vacuum, FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	foreach_ptr(ClusterShard, shard, vacuum->shards)
	{
		const CitusPlacement *placement = shard->placement;
		Datum		values[RESULT_COLUMNS] = {0};
		bool		nulls[RESULT_COLUMNS] = {0};

		nulls[0] = nulls[1] = placement->node.name == NULL;
		if (!nulls[0])
			values[0] = CStringGetTextDatum(placement->node.name);
		values[1] = Int32GetDatum(placement->node.port);
		values[2] = ObjectIdGetDatum(placement->relid);
		values[3] = CStringGetTextDatum(placement->shard);
		Assert(shard->status != NULL);
		values[4] = CStringGetTextDatum(shard->status);
		values[5] = Int64GetDatum(shard->before);
		nulls[5] = shard->before < 0;
		values[6] = Int64GetDatum(shard->after);
		nulls[6] = shard->after < 0;
		nulls[7] = shard->reason == NULL;
		if (!nulls[7])
			values[7] = CStringGetTextDatum(shard->reason);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
}

/* deparse_options -- options as in a statement, without parentheses; all are known ones. */
static char *
deparse_options(List *options)
{
	StringInfoData text;

	initStringInfo(&text);
	foreach_node(DefElem, def, options)
	{
		appendStringInfo(&text, "%s%s", text.len > 0 ? ", " : "", def->defname);
		if (def->arg == NULL)
			continue;
		if (IsA(def->arg, Integer) || IsA(def->arg, Float))
			appendStringInfo(&text, " %s", defGetString(def));
		else
			appendStringInfo(&text, " %s", quote_literal_cstr(defGetString(def)));
	}
	return text.data;
}
