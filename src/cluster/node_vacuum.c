/*-------------------------------------------------------------------------
 *
 * node_vacuum.c
 *	  The part of a cluster's VACUUM that runs on one node.
 *
 * The coordinator sends each node one CALL of the procedure vacuum_node, for
 * all shards there.  It runs VACUUM as if the client had sent it: a procedure that is
 * called at top level may end transactions.  So it ends the one that it is called in, as
 * VACUUM must be in none, and hands the statement to ProcessUtility as a top-level one.
 * It holds no snapshot meanwhile.  The VACUUM runs with the rights of the caller.
 *
 * Messages of VACUUM don't go to the client, but into the procedure's result, with the
 * shard that each is about: while VACUUM runs, take_message stands in for the routine
 * that sends them.  An error becomes part of the result, too, as other shards may have
 * been vacuumed before.  It ends the transaction, as ROLLBACK in a procedure does, and is
 * in the server's log as always.
 *
 * The result is JSON: "failed", whether there was an error; "shards", the outcome of
 * each; "messages".
 *
 * If the coordinator's connection is lost, the server notices that within a second, and
 * VACUUM ends.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/*
 * Of libpq.h only PQcommMethods is wanted.  With these its headers would need
 * those of OpenSSL and GSSAPI, which a machine with PostgreSQL's headers may
 * not have; what they change is struct Port, which isn't looked at here.
 */
#undef USE_OPENSSL
#undef USE_SSL
#undef ENABLE_GSS

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "libpq/libpq.h"
#include "libpq/pqmq.h"
#include "libpq/protocol.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "cluster/cluster_vacuum.h"
#include "cluster/watch_client.h"
#include "compat.h"
#include "declared_rows.h"
#include "library.h"

PG_FUNCTION_INFO_V1(pg_cyclone_vacuum_node);

/* How many bytes of JSON are kept of messages; further ones are only counted */
#define MAX_MESSAGES	(64 * 1024 * 1024)

/* A shard to be vacuumed, or a table that isn't here */
typedef struct NodeShard
{
	const char *name;			/* as it was given */
	const char *relname;		/* without schema and quotes, as in messages */
	Oid			relid;
	bool		skipped;		/* has VACUUM said that it skips it? */
	int64		before;			/* total size, -1 if not known */
} NodeShard;

/* The VACUUM that runs */
typedef struct NodeVacuum
{
	MemoryContext context;
	MemoryContext scratch;		/* emptied after each message */
	VacuumStmt *stmt;			/* of the shards that are here */
	NodeShard  *shards;
	int			nshards;
	int			current;		/* the shard that the latest message is about,
								 * or -1 */
	bool		failed;
	StringInfoData messages;
	int64		not_kept;		/* how many messages were only counted */
} NodeVacuum;

static NodeVacuum *running = NULL;
static const PQcommMethods *server_methods;
static bool takes_errors;

static void read_statement(NodeVacuum *vacuum, const char *options, ArrayType *tables);
static void find_shards(NodeVacuum *vacuum, List *rels);
static bool may_vacuum(Oid relid);
static int64 size_of(Oid relid);
static void run(NodeVacuum *vacuum);
static void keep_all_messages(void);
static int	take_message(char type, const char *text, size_t length);
static void note_message(NodeVacuum *vacuum, const ErrorData *edata);
static int	shard_of(const NodeVacuum *vacuum, const char *text);
static bool names(const char *text, const char *relname);
static bool is_in_word(char c);
static void add_field(StringInfo json, const char *name, const char *value);
static char *report(NodeVacuum *vacuum);
static const char *status_of(const NodeVacuum *vacuum, int i, bool is_here);
static Datum result_row(TupleDesc desc, const char *result);

/*
 * pg_cyclone_vacuum_node
 *		The procedure vacuum_node(options, tables, INOUT result).
 *
 * tables are as in a VACUUM statement, with columns if options have ANALYZE.  Raises an
 * error if tables or options can't be read, or if the procedure isn't called at top
 * level; errors of VACUUM itself are in the result.
 */
Datum
pg_cyclone_vacuum_node(PG_FUNCTION_ARGS)
{
	CallContext *call = (CallContext *) fcinfo->context;
	MemoryContext context = AllocSetContextCreate(PortalContext, "Cyclone node",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	NodeVacuum	vacuum = {.context = context,.current = -1};
	TupleDesc	desc;
	char	   *result;
	int			interval;

	refuse_without_preloading();
	/* a DO block may end transactions, too, but only through SPI */
	if (call == NULL || !IsA(call, CallContext) || call->atomic || running != NULL ||
		SPI_inside_nonatomic_context())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("cyclone.vacuum_node can only be called by CALL, outside of a transaction block")));
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("options and tables must not be null")));

	desc = declared_rows_describe(fcinfo, 1);
	read_statement(&vacuum, text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_ARRAYTYPE_P(1));
	initStringInfo(&vacuum.messages);

	/* no snapshot of this transaction may hold back what VACUUM removes */
	HoldPinnedPortals();
	ForgetPortalSnapshots();
	interval = watch_client(GUC_ACTION_SET);
	if (vacuum.stmt->rels != NIL)
		run(&vacuum);
	watch_client_end(interval);

	MemoryContextSwitchTo(context);
	PushActiveSnapshot(GetTransactionSnapshot());
	result = report(&vacuum);
	PopActiveSnapshot();
	MemoryContextSwitchTo(old);
	return result_row(desc, result);
}

/*
 * read_statement
 *		Make the statement, with the tables that are here.
 *
 * The other tables were moved or dropped since the coordinator looked.
 */
static void
read_statement(NodeVacuum *vacuum, const char *options, ArrayType *tables)
{
	StringInfoData sql;
	Datum	   *names;
	bool	   *nulls;

	deconstruct_array_builtin(tables, TEXTOID, &names, &nulls, &vacuum->nshards);
	initStringInfo(&sql);
	appendStringInfo(&sql, options[0] == '\0' ? "VACUUM%s" : "VACUUM (%s)", options);
	vacuum->shards = palloc0(sizeof(NodeShard) * Max(vacuum->nshards, 1));
	for (int i = 0; i < vacuum->nshards; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("options and tables must not be null")));
		vacuum->shards[i].name = TextDatumGetCString(names[i]);
		appendStringInfo(&sql, "%s %s", i == 0 ? "" : ",", vacuum->shards[i].name);
	}
	vacuum->stmt = cluster_parse_vacuum(sql.data);
	/* it must not become a VACUUM of the whole database, or of further tables */
	if (vacuum->stmt == NULL || vacuum->nshards == 0 ||
		list_length(vacuum->stmt->rels) != vacuum->nshards)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid options or tables for VACUUM: %s", sql.data)));
	find_shards(vacuum, vacuum->stmt->rels);
}

/*
 * find_shards
 *		Find the tables by their names, and leave in the statement those that are here,
 *		by their OIDs, so that VACUUM skips one that is dropped meanwhile.
 *
 * Sizes are looked up here, in the transaction that the CALL has begun.
 */
static void
find_shards(NodeVacuum *vacuum, List *rels)
{
	Assert(list_length(rels) == vacuum->nshards);
	vacuum->stmt->rels = NIL;
	for (int i = 0; i < vacuum->nshards; i++)
	{
		VacuumRelation *named = list_nth_node(VacuumRelation, rels, i);
		NodeShard  *shard = &vacuum->shards[i];

		shard->relname = named->relation->relname;
		shard->relid = RangeVarGetRelid(named->relation, NoLock, true);
		shard->before = -1;
		if (!OidIsValid(shard->relid))
			continue;
		shard->before = size_of(shard->relid);
		/* VACUUM passes it over, and says so */
		shard->skipped = !may_vacuum(shard->relid);
		named->oid = shard->relid;
		vacuum->stmt->rels = lappend(vacuum->stmt->rels, named);
	}
}

/* may_vacuum -- is this of a kind that can be vacuumed, and may the user do that? */
static bool
may_vacuum(Oid relid)
{
	char		kind = get_rel_relkind(relid);

	if (kind != RELKIND_RELATION && kind != RELKIND_MATVIEW && kind != RELKIND_TOASTVALUE &&
		kind != RELKIND_PARTITIONED_TABLE)
		return false;
	return object_ownercheck(DatabaseRelationId, MyDatabaseId, GetUserId()) ||
		pg_class_aclcheck(relid, GetUserId(), ACL_MAINTAIN) == ACLCHECK_OK;
}

/* size_of -- total size, or -1 if the table is gone, or locked: this doesn't wait for it. */
static int64
size_of(Oid relid)
{
	int64		size = -1;

	Assert(OidIsValid(relid));
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return -1;
	if (get_rel_name(relid) != NULL)
		size = DatumGetInt64(DirectFunctionCall1(pg_total_relation_size, ObjectIdGetDatum(relid)));
	UnlockRelationOid(relid, AccessShareLock);
	return size;
}

/*
 * run
 *		Run the VACUUM, and keep what it says.
 *
 * Returns in a new transaction, without a snapshot, even after an error.
 */
static void
run(NodeVacuum *vacuum)
{
	PQcommMethods methods = *PqCommMethods;
	PlannedStmt *pstmt = makeNode(PlannedStmt);
	int			client_encoding = pg_get_client_encoding();
	int			min_messages = client_min_messages;
	QueryCompletion qc;

	Assert(vacuum->stmt->rels != NIL);
	Assert(running == NULL);

	pstmt->commandType = CMD_UTILITY;
	pstmt->canSetTag = true;
	pstmt->utilityStmt = (Node *) vacuum->stmt;
	InitializeQueryCompletion(&qc);

	vacuum->scratch = AllocSetContextCreate(vacuum->context, "Cyclone node message",
											ALLOCSET_SMALL_SIZES);

	/* changes to the connection are to outlive the transactions of VACUUM */
	CommitTransactionCommand();
	StartTransactionCommand();
	/* so is the memory that the server allocates for the statement */
	MemoryContextSwitchTo(vacuum->context);

	methods.putmessage = take_message;
	server_methods = PqCommMethods;
	PG_TRY();
	{
		running = vacuum;
		takes_errors = false;
		PqCommMethods = &methods;
		keep_all_messages();
		ProcessUtility(pstmt, "VACUUM", false, PROCESS_UTILITY_TOPLEVEL, NULL, NULL,
					   None_Receiver, &qc);
	}
	PG_CATCH();
	{
		/* into the log, and into the result */
		vacuum->failed = true;
		takes_errors = true;
		HOLD_INTERRUPTS();
		EmitErrorReport();
		PqCommMethods = server_methods;
		running = NULL;
		MemoryContextSwitchTo(vacuum->context);
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		StartTransactionCommand();
	}
	PG_END_TRY();
	PqCommMethods = server_methods;
	running = NULL;
	client_min_messages = min_messages;
	(void) SetClientEncoding(client_encoding);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
}

/*
 * keep_all_messages
 *		Have messages come to take_message in the database's encoding, not the client's,
 *		and warnings in any case, as they tell which shards are skipped.
 *
 * The caller undoes both.  Neither is a change of a setting, which the server would
 * report to the client.
 */
static void
keep_all_messages(void)
{
	(void) SetClientEncoding(GetDatabaseEncoding());
	client_min_messages = Min(client_min_messages, WARNING);
}

/*
 * take_message
 *		Keep the messages of VACUUM, and send everything else to the client.
 *
 * The server calls it instead of its routine that sends messages.  An error that ends
 * the session goes to the client.
 */
static int
take_message(char type, const char *text, size_t length)
{
	MemoryContext old;
	StringInfoData message;
	ErrorData	edata;

	if (type != PqMsg_NoticeResponse && !(type == PqMsg_ErrorResponse && takes_errors))
		return server_methods->putmessage(type, text, length);

	Assert(running != NULL && running->current < running->nshards);

	old = MemoryContextSwitchTo(running->scratch);
	initStringInfo(&message);
	appendBinaryStringInfo(&message, text, length);
	pq_parse_errornotice(&message, &edata);
	note_message(running, &edata);
	MemoryContextSwitchTo(old);
	MemoryContextReset(running->scratch);
	return 0;
}

/*
 * note_message
 *		Keep a message, with the shard that it is about.
 *
 * That is the shard whose name it has.  A message without such a name is about the same
 * shard as the one before, as a TOAST table comes after its table.
 */
static void
note_message(NodeVacuum *vacuum, const ErrorData *edata)
{
	StringInfo	json = &vacuum->messages;
	int			i = shard_of(vacuum, edata->message);

	Assert(vacuum->current < vacuum->nshards);
	if (i < 0 && edata->context != NULL)
		i = shard_of(vacuum, edata->context);
	if (i >= 0)
		vacuum->current = i;
	if (edata->elevel == WARNING && vacuum->current >= 0 &&
		(edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE || edata->sqlerrcode == ERRCODE_UNDEFINED_TABLE))
		vacuum->shards[vacuum->current].skipped = true;
	if (json->len > MAX_MESSAGES && edata->elevel < WARNING)
	{
		vacuum->not_kept++;
		return;
	}

	appendStringInfo(json, "%s{\"severity\": \"%s\"", json->len > 0 ? ", " : "",
					 edata->elevel >= ERROR ? "ERROR" :
					 edata->elevel == WARNING ? "WARNING" :
					 edata->elevel == NOTICE ? "NOTICE" :
					 edata->elevel == INFO ? "INFO" : "DEBUG");
	add_field(json, "sqlstate", unpack_sql_state(edata->sqlerrcode));
	if (vacuum->current >= 0)
		add_field(json, "shard", vacuum->shards[vacuum->current].name);
	add_field(json, "message", edata->message);
	add_field(json, "detail", edata->detail);
	add_field(json, "hint", edata->hint);
	appendStringInfoChar(json, '}');
}

/* shard_of -- the shard with the longest name that a text has; -1 if none. */
static int
shard_of(const NodeVacuum *vacuum, const char *text)
{
	int			found = -1;

	for (int i = 0; text != NULL && i < vacuum->nshards; i++)
	{
		const char *relname = vacuum->shards[i].relname;

		if ((found < 0 || strlen(relname) > strlen(vacuum->shards[found].relname)) &&
			names(text, relname))
			found = i;
	}
	return found;
}

/*
 * names
 *		Does a text have that name, not as a part of a longer word?
 *
 * Quotes don't tell, as each language has its own, with or without spaces.
 */
static bool
names(const char *text, const char *relname)
{
	size_t		length = strlen(relname);

	for (const char *at = strstr(text, relname); at != NULL; at = strstr(at + 1, relname))
	{
		if ((at == text || !is_in_word(at[-1])) && !is_in_word(at[length]))
			return true;
	}
	return false;
}

/* is_in_word -- is a character part of a word?  No if it is not ASCII: it may be a quote. */
static bool
is_in_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		c == '_' || c == '$';
}

/* add_field -- add a field to a JSON object that has fields, unless the value is NULL. */
static void
add_field(StringInfo json, const char *name, const char *value)
{
	if (value == NULL)
		return;
	appendStringInfo(json, ", \"%s\": ", name);
	escape_json(json, value);
}

/* report -- make the result. */
static char *
report(NodeVacuum *vacuum)
{
	StringInfoData json;

	Assert(IsTransactionState());
	initStringInfo(&json);
	appendStringInfo(&json, "{\"failed\": %s, \"not_kept\": " INT64_FORMAT ", \"shards\": [",
					 vacuum->failed ? "true" : "false", vacuum->not_kept);
	for (int i = 0; i < vacuum->nshards; i++)
	{
		const NodeShard *shard = &vacuum->shards[i];
		bool		is_here = OidIsValid(shard->relid) && get_rel_name(shard->relid) != NULL;
		int64		after = is_here ? size_of(shard->relid) : -1;

		appendStringInfo(&json, "%s{\"status\": \"%s\"", i == 0 ? "" : ", ",
						 status_of(vacuum, i, is_here));
		add_field(&json, "shard", shard->name);
		if (shard->before >= 0)
			appendStringInfo(&json, ", \"before\": " INT64_FORMAT, shard->before);
		if (after >= 0)
			appendStringInfo(&json, ", \"after\": " INT64_FORMAT, after);
		appendStringInfoChar(&json, '}');
	}
	appendStringInfo(&json, "], \"messages\": [%s]}", vacuum->messages.data);
	return json.data;
}

/*
 * status_of
 *		Returns the outcome of a shard.
 *
 * After an error, VACUUM has finished the shards before the one that the latest message
 * was about.  If there was no message, none counts as vacuumed.
 */
static const char *
status_of(const NodeVacuum *vacuum, int i, bool is_here)
{
	Assert(i >= 0 && i < vacuum->nshards);
	if (!is_here)
		return "moved";
	if (vacuum->shards[i].skipped)
		return "skipped";
	if (!vacuum->failed || i < vacuum->current)
		return "vacuumed";
	return i == vacuum->current ? "failed" : "not reached";
}

/* result_row -- make the row that a procedure with one INOUT argument returns. */
static Datum
result_row(TupleDesc desc, const char *result)
{
	Datum		value = CStringGetTextDatum(result);
	bool		isnull = false;

	return HeapTupleGetDatum(heap_form_tuple(desc, &value, &isnull));
}
