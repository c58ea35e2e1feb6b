/*-------------------------------------------------------------------------
 *
 * cluster_answer.c
 *	  What a node answers to the command that cluster_vacuum.c sent it.
 *
 * The answer is JSON, made by vacuum_node (node_vacuum.c).  Its answers about shards
 * are noted in these, and its messages are passed on with the node and shard in front.
 * If a node fails, or has another version, the others finish all the same.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/miscnodes.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "cluster/citus.h"
#include "cluster/cluster_answer.h"
#include "compat.h"

#define MESSAGE_FIELDS	6

/* What a node has said */
typedef struct NodeMessage
{
	char	   *fields[MESSAGE_FIELDS];
} NodeMessage;

enum
{
	SEVERITY, SQLSTATE, SHARD, MESSAGE, DETAIL, HINT
};

static void fail_node(ClusterVacuum *vacuum, List *shards, const char *reason, const char *hint);
static bool read_answer(ClusterVacuum *vacuum, List *shards, const char *json,
						List **messages, bool *failed);
static bool read_shards(ClusterVacuum *vacuum, List *shards, Datum answer, bool *failed);
static List *read_messages(ClusterVacuum *vacuum, Datum answer);
static void query_answer(const char *text, Datum answer);
static char *field(uint64 row, int column);
static void tell(ClusterVacuum *vacuum, List *shards, const NodeMessage *message);
static int	level_of(const char *severity);
static void note_failure(ClusterVacuum *vacuum, const CitusNode *node, const char *text);

/* cluster_answer_take -- see cluster_answer.h. */
void
cluster_answer_take(ClusterVacuum *vacuum, List *shards, const CitusAnswer *answer)
{
	const CitusNode *node = &((ClusterShard *) linitial(shards))->placement->node;
	const char *error = NULL;
	List	   *messages;
	bool		failed;

	Assert(shards != NIL);
	Assert(answer != NULL && answer->result != NULL);

	if (!answer->success)
	{
		fail_node(vacuum, shards, answer->result, NULL);
		return;
	}
	if (!read_answer(vacuum, shards, answer->result, &messages, &failed))
	{
		fail_node(vacuum, shards, "its answer is not as this version of pg_cyclone has it",
				  "Install the same version of pg_cyclone on all nodes.");
		return;
	}
	foreach_ptr(NodeMessage, message, messages)
	{
		tell(vacuum, shards, message);
		if (strcmp(message->fields[SEVERITY], "ERROR") == 0)
			error = message->fields[MESSAGE];
	}
	if (failed)
		note_failure(vacuum, node, error ? error : "VACUUM failed");
}

/* fail_node -- note and tell that a node has failed, and that nothing is known of its shards. */
static void
fail_node(ClusterVacuum *vacuum, List *shards, const char *reason, const char *hint)
{
	const CitusNode *node = &((ClusterShard *) linitial(shards))->placement->node;

	foreach_ptr(ClusterShard, shard, shards)
	{
		shard->status = "failed";
		shard->reason = reason;
	}
	note_failure(vacuum, node, reason);
	ereport(WARNING,
			(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
			 errmsg("%s:%d: %s", node->name, node->port, reason),
			 hint ? errhint("%s", hint) : 0));
}

/*
 * read_answer
 *		Read the JSON of vacuum_node: status and sizes into the shards, which are in
 *		the same order, and the messages.
 *
 * Returns false if the JSON is not what this version makes: then the node has another.
 */
static bool
read_answer(ClusterVacuum *vacuum, List *shards, const char *json, List **messages, bool *failed)
{
	ErrorSaveContext escontext = {T_ErrorSaveContext};
	Datum		answer;
	bool		is_read;

	if (!DirectInputFunctionCallSafe(jsonb_in, unconstify(char *, json), InvalidOid, -1,
									 (Node *) &escontext, &answer))
		return false;
	SPI_connect();
	is_read = read_shards(vacuum, shards, answer, failed);
	*messages = is_read ? read_messages(vacuum, answer) : NIL;
	SPI_finish();
	MemoryContextSwitchTo(vacuum->context);
	return is_read;
}

/* read_shards -- read what read_answer says of shards; it has connected to SPI. */
static bool
read_shards(ClusterVacuum *vacuum, List *shards, Datum answer, bool *failed)
{
	query_answer("SELECT s->>'status', s->>'before', s->>'after', $1->>'failed', $1->>'not_kept'"
				 "  FROM pg_catalog.jsonb_path_query($1, 'lax $.shards[*]') WITH ORDINALITY t (s, n) ORDER BY n",
				 answer);
	if (SPI_processed != list_length(shards) || field(0, 4) == NULL || field(0, 5) == NULL)
		return false;
	for (int i = 0; i < list_length(shards); i++)
	{
		ClusterShard *shard = list_nth(shards, i);
		char	   *status = field(i, 1);
		char	   *before = field(i, 2);
		char	   *after = field(i, 3);

		if (status == NULL)
			return false;
		shard->status = MemoryContextStrdup(vacuum->context, status);
		shard->before = before ? strtoi64(before, NULL, 10) : -1;
		shard->after = after ? strtoi64(after, NULL, 10) : -1;
	}
	*failed = strcmp(field(0, 4), "true") == 0;
	if (strcmp(field(0, 5), "0") != 0)
		ereport(WARNING,
				(errmsg("%s messages of a node are not shown, as there were too many", field(0, 5))));
	return true;
}

/* read_messages -- read the messages of read_answer, which has connected to SPI. */
static List *
read_messages(ClusterVacuum *vacuum, Datum answer)
{
	List	   *messages = NIL;

	query_answer("SELECT coalesce(m->>'severity', 'WARNING'), m->>'sqlstate', m->>'shard', coalesce(m->>'message', ''),"
				 "       m->>'detail', m->>'hint'"
				 "  FROM pg_catalog.jsonb_path_query($1, 'lax $.messages[*]') WITH ORDINALITY t (m, n) ORDER BY n",
				 answer);
	for (uint64 row = 0; row < SPI_processed; row++)
	{
		MemoryContext old = MemoryContextSwitchTo(vacuum->context);
		NodeMessage *message = palloc0(sizeof(NodeMessage));

		for (int i = 0; i < MESSAGE_FIELDS; i++)
		{
			char	   *text = field(row, i + 1);

			message->fields[i] = text ? MemoryContextStrdup(vacuum->context, text) : NULL;
		}
		messages = lappend(messages, message);
		MemoryContextSwitchTo(old);
	}
	return messages;
}

/* query_answer -- run a query whose argument is a node's answer, with the server's operators. */
static void
query_answer(const char *text, Datum answer)
{
	Oid			type = JSONBOID;
	int			level = NewGUCNestLevel();
	int			code;

	RestrictSearchPath();
	code = SPI_execute_with_args(text, 1, &type, &answer, NULL, true, 0);
	if (code != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_with_args failed: %s", SPI_result_code_string(code));
	AtEOXact_GUC(false, level);
}

/* field -- a column of the result as text, NULL if it is null. */
static char *
field(uint64 row, int column)
{
	Assert(row < SPI_processed && column > 0);
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

/*
 * tell
 *		Pass on a message, with the node and shard in front.
 *
 * An error of the node is a warning here, so that the other nodes are heard, too.
 */
static void
tell(ClusterVacuum *vacuum, List *shards, const NodeMessage *message)
{
	const CitusNode *node = &((ClusterShard *) linitial(shards))->placement->node;
	char	   *const *fields = unconstify(NodeMessage *, message)->fields;
	const char *state = fields[SQLSTATE];
	int			level = level_of(fields[SEVERITY]);

	Assert(fields[SEVERITY] != NULL && fields[MESSAGE] != NULL);
	foreach_ptr(ClusterShard, shard, shards)
	{
		/* the node's name of a shard may have columns after it */
		if (level == WARNING && fields[SHARD] != NULL &&
			strncmp(fields[SHARD], shard->placement->shard, strlen(shard->placement->shard)) == 0 &&
			strchr("( ", fields[SHARD][strlen(shard->placement->shard)]) != NULL)
			shard->reason = fields[MESSAGE];
	}
	ereport(level,
			(errcode(state != NULL && strlen(state) == 5 ?
					 MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4]) :
					 ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
			 fields[SHARD] ?
			 errmsg_internal("%s:%d, %s: %s", node->name, node->port, fields[SHARD], fields[MESSAGE]) :
			 errmsg_internal("%s:%d: %s", node->name, node->port, fields[MESSAGE]),
			 fields[DETAIL] ? errdetail_internal("%s", fields[DETAIL]) : 0,
			 fields[HINT] ? errhint("%s", fields[HINT]) : 0));
}

/* level_of -- the level at which a message of that severity is passed on. */
static int
level_of(const char *severity)
{
	if (strcmp(severity, "INFO") == 0)
		return INFO;
	if (strcmp(severity, "NOTICE") == 0)
		return NOTICE;
	return strcmp(severity, "DEBUG") == 0 ? DEBUG1 : WARNING;
}

/* note_failure -- a node had an error. */
static void
note_failure(ClusterVacuum *vacuum, const CitusNode *node, const char *text)
{
	vacuum->failed = citus_add_node(vacuum->failed, node);
	appendStringInfo(&vacuum->failures, "%s%s:%d: %s", vacuum->failures.len > 0 ? "\n" : "",
					 node->name, node->port, text);
}
