/*-------------------------------------------------------------------------
 *
 * citus.c
 *	  What we ask of Citus: where shards are, and to run a command on nodes.
 *
 * This file has all that we know of its tables, functions and settings in order to
 * reach other nodes.  It uses them by name, through SPI, so the library is built and
 * loaded without Citus.  (command/distributed.c knows the catalog that says whether a
 * table is distributed.)
 *
 * Commands go through master_run_on_worker, which opens a new connection to
 * each node with the user's own credentials, as Citus is configured, and runs
 * one command on each, side by side.  Of a command that fails, the result is the
 * first line of its error.  If the transaction that called the function fails, for
 * example because the statement is canceled, Citus cancels the commands that still
 * run before it closes the connections.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "cluster/citus.h"
#include "compat.h"

/* Citus's setting for how long connecting to a node may take, in ms, and its bounds */
#define CONNECT_SETTING		"citus.node_connection_timeout"
#define MIN_CONNECT_MS		10
#define MAX_CONNECT_MS		(60 * 60 * 1000)

/*
 * Shards that are partitioned themselves have no storage.  Citus shortens long names
 * of shards: shard_name returns the name that a shard has.  Whether that has the schema
 * in front depends on the version.
 */
static const char placements_query[] =
"SELECT a.nodename::text, a.nodeport::int, coalesce(a.isactive, false), s.logicalrelid::oid, s.shardid,"
"       pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(p.names[pg_catalog.cardinality(p.names)]),"
"       EXISTS (SELECT FROM pg_catalog.pg_dist_local_group g WHERE g.groupid = a.groupid)"
"  FROM pg_catalog.pg_dist_shard s"
"  JOIN pg_catalog.pg_class c ON c.oid = s.logicalrelid AND c.relkind <> 'p'"
"  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
"  CROSS JOIN LATERAL (SELECT pg_catalog.parse_ident(pg_catalog.shard_name(s.logicalrelid, s.shardid)) AS names) p"
"  LEFT JOIN (SELECT l.shardid, l.groupid, d.nodename, d.nodeport, d.isactive"
"               FROM pg_catalog.pg_dist_placement l"
"               JOIN pg_catalog.pg_dist_node d ON d.groupid = l.groupid AND d.noderole::text = 'primary'"
"              WHERE l.shardstate = 1) a ON a.shardid = s.shardid"
" WHERE s.logicalrelid::oid = ANY ($1)"
" ORDER BY a.nodename, a.nodeport, pg_catalog.array_position($1, s.logicalrelid::oid), s.shardid";

/* A coordinator that isn't in pg_dist_node counts as a node, as it has tables, too. */
static const char nodes_query[] =
"SELECT nodename::text, nodeport::int, isactive"
"  FROM pg_catalog.pg_dist_node"
" WHERE noderole::text = 'primary'"
" UNION ALL "
"SELECT pg_catalog.current_setting('citus.local_hostname'), pg_catalog.current_setting('port')::int, true"
" WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_dist_node d"
"                   JOIN pg_catalog.pg_dist_local_group g ON g.groupid = d.groupid)"
" ORDER BY 1, 2";

static const char run_query[] =
"SELECT success, result FROM pg_catalog.master_run_on_worker($1, $2, $3, true)";

static uint64 query(const char *text, bool read_only, int nargs, Oid *types, Datum *values);
static char *text_of(uint64 row, int column, MemoryContext context);
static Datum datum_of(uint64 row, int column);
static Datum array_of(List *items, Datum (*item_datum) (void *item), Oid type, int length,
					  bool by_value, char align);
static Datum node_name_datum(void *node);
static Datum node_port_datum(void *node);
static Datum command_datum(void *command);

/* citus_check_order -- see citus.h. */
void
citus_check_order(void)
{
	List	   *libraries;
	bool		is_after = false;

	Assert(process_shared_preload_libraries_in_progress);

	if (!SplitDirectoriesString(pstrdup(shared_preload_libraries_string), ',', &libraries))
		return;
	foreach_ptr(char, library, libraries)
	{
		const char *name = last_dir_separator(library);

		name = name == NULL ? library : name + 1;
		if (strcmp(name, "pg_cyclone") == 0)
			is_after = true;
		else if (is_after && strcmp(name, "citus") == 0)
			ereport(WARNING,
					(errmsg("citus must come before pg_cyclone in \"shared_preload_libraries\""),
					 errhint("Name citus first, then pg_cyclone, then modules that watch statements: shared_preload_libraries = 'citus, pg_cyclone'.")));
	}
}

/* citus_can_run -- see citus.h. */
bool
citus_can_run(void)
{
	Oid			types[] = {TEXTARRAYOID, INT4ARRAYOID, TEXTARRAYOID, BOOLOID};
	List	   *name = list_make2(makeString("pg_catalog"), makeString("master_run_on_worker"));

	Assert(IsTransactionState());
	return OidIsValid(LookupFuncName(name, lengthof(types), types, true));
}

/* citus_placements -- see citus.h. */
List *
citus_placements(List *relids)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			type = OIDARRAYOID;
	Datum	   *oids = palloc(sizeof(Datum) * list_length(relids));
	List	   *placements = NIL;
	Datum		array;
	uint64		nrows;

	Assert(IsTransactionState());

	for (int i = 0; i < list_length(relids); i++)
		oids[i] = ObjectIdGetDatum(list_nth_oid(relids, i));
	array = PointerGetDatum(construct_array_builtin(oids, list_length(relids), OIDOID));

	PushActiveSnapshot(GetLatestSnapshot());
	SPI_connect();
	nrows = query(placements_query, true, 1, &type, &array);
	for (uint64 row = 0; row < nrows; row++)
	{
		CitusPlacement *placement = MemoryContextAllocZero(context, sizeof(CitusPlacement));
		MemoryContext old;

		placement->node.name = text_of(row, 1, context);
		if (placement->node.name != NULL)
			placement->node.port = DatumGetInt32(datum_of(row, 2));
		placement->node.is_active = DatumGetBool(datum_of(row, 3));
		placement->relid = DatumGetObjectId(datum_of(row, 4));
		placement->shardid = DatumGetInt64(datum_of(row, 5));
		placement->shard = text_of(row, 6, context);
		placement->is_here = DatumGetBool(datum_of(row, 7));
		old = MemoryContextSwitchTo(context);
		placements = lappend(placements, placement);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	PopActiveSnapshot();
	return placements;
}

/* citus_nodes -- see citus.h. */
List *
citus_nodes(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *nodes = NIL;
	uint64		nrows;

	Assert(IsTransactionState());

	SPI_connect();
	nrows = query(nodes_query, false, 0, NULL, NULL);
	for (uint64 row = 0; row < nrows; row++)
	{
		CitusNode  *node = MemoryContextAllocZero(context, sizeof(CitusNode));
		MemoryContext old;

		node->name = text_of(row, 1, context);
		node->port = DatumGetInt32(datum_of(row, 2));
		node->is_active = DatumGetBool(datum_of(row, 3));
		old = MemoryContextSwitchTo(context);
		nodes = lappend(nodes, node);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return nodes;
}

/* citus_run -- see citus.h. */
List *
citus_run(List *nodes, List *commands)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			types[] = {TEXTARRAYOID, INT4ARRAYOID, TEXTARRAYOID};
	Datum		values[3];
	List	   *answers = NIL;
	uint64		nrows;

	Assert(IsTransactionState());
	Assert(nodes != NIL && list_length(nodes) == list_length(commands));

	values[0] = array_of(nodes, node_name_datum, TEXTOID, -1, false, TYPALIGN_INT);
	values[1] = array_of(nodes, node_port_datum, INT4OID, sizeof(int32), true, TYPALIGN_INT);
	values[2] = array_of(commands, command_datum, TEXTOID, -1, false, TYPALIGN_INT);

	SPI_connect();
	nrows = query(run_query, false, 3, types, values);
	if (nrows != list_length(nodes))
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("Citus ran %d commands, but gave " UINT64_FORMAT " results",
						list_length(nodes), nrows)));
	for (uint64 row = 0; row < nrows; row++)
	{
		CitusAnswer *answer = MemoryContextAllocZero(context, sizeof(CitusAnswer));
		MemoryContext old;

		answer->success = DatumGetBool(datum_of(row, 1));
		answer->result = text_of(row, 2, context);
		if (answer->result == NULL)
			answer->result = MemoryContextStrdup(context, "");
		old = MemoryContextSwitchTo(context);
		answers = lappend(answers, answer);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return answers;
}

/* citus_limit_connecting -- see citus.h. */
void
citus_limit_connecting(int ms)
{
	Assert(IsTransactionState());

	ms = Min(Max(ms, MIN_CONNECT_MS), MAX_CONNECT_MS);
	if (GetConfigOption(CONNECT_SETTING, true, false) != NULL)
		(void) set_config_option(CONNECT_SETTING, psprintf("%d", ms),
								 superuser() ? PGC_SUSET : PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, WARNING, false);
}

/*
 * query
 *		Run a query in SPI; returns the number of rows.
 *
 * The search path is restricted meanwhile, so that operators are the server's: the user
 * of a VACUUM may be a superuser, who must not call another user's operator.
 */
static uint64
query(const char *text, bool read_only, int nargs, Oid *types, Datum *values)
{
	int			level = NewGUCNestLevel();
	int			code;

	RestrictSearchPath();
	code = SPI_execute_with_args(text, nargs, types, values, NULL, read_only, 0);
	AtEOXact_GUC(false, level);
	if (code != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_with_args failed: %s", SPI_result_code_string(code));
	return SPI_processed;
}

/* text_of -- a column of the result as text, in that memory context; NULL if it is null. */
static char *
text_of(uint64 row, int column, MemoryContext context)
{
	char	   *value = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);

	return value == NULL ? NULL : MemoryContextStrdup(context, value);
}

/* datum_of -- a column of the result that is passed by value, 0 if it is null. */
static Datum
datum_of(uint64 row, int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, &isnull);

	return isnull ? (Datum) 0 : value;
}

/* array_of -- make an array of what item_datum returns for each item. */
static Datum
array_of(List *items, Datum (*item_datum) (void *item), Oid type, int length,
		 bool by_value, char align)
{
	Datum	   *values = palloc(sizeof(Datum) * Max(list_length(items), 1));

	for (int i = 0; i < list_length(items); i++)
		values[i] = item_datum(list_nth(items, i));
	return PointerGetDatum(construct_array(values, list_length(items), type, length, by_value, align));
}

/* node_name_datum -- a node's name, as text. */
static Datum
node_name_datum(void *node)
{
	return CStringGetTextDatum(((CitusNode *) node)->name);
}

/* node_port_datum -- a node's port, as integer. */
static Datum
node_port_datum(void *node)
{
	return Int32GetDatum(((CitusNode *) node)->port);
}

/* command_datum -- a command, as text. */
static Datum
command_datum(void *command)
{
	return CStringGetTextDatum((char *) command);
}

/* citus_is_same_node -- see citus.h. */
bool
citus_is_same_node(const CitusNode *one, const CitusNode *other)
{
	if (one->name == NULL || other->name == NULL)
		return one->name == other->name;
	return one->port == other->port && strcmp(one->name, other->name) == 0;
}

/* citus_add_node -- see citus.h. */
List *
citus_add_node(List *nodes, const CitusNode *node)
{
	foreach_ptr(CitusNode, other, nodes)
	{
		if (citus_is_same_node(other, node))
			return nodes;
	}
	return lappend(nodes, unconstify(CitusNode *, node));
}
