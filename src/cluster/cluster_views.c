/*-------------------------------------------------------------------------
 *
 * cluster_views.c
 *	  The views of all nodes of a cluster.
 *
 * cluster_rows asks each node for the rows of one of our views, as JSON, by the
 * function node_rows, and returns a row for each node; the views cluster_... are
 * SQL on top of that.  A node that can't be reached or has an error has a row that
 * says so.  Each node has to connect and answer within the timeout.
 *
 * Without Citus the cluster is this server alone.  Its errors are rows, too: the view
 * is read in a subtransaction, as PL/pgSQL catches errors.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/miscnodes.h"
#include "postmaster/postmaster.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/timeout.h"

#include "cluster/citus.h"
#include "command/distributed.h"
#include "compat.h"
#include "declared_rows.h"
#include "library.h"
#include "transaction.h"

PG_FUNCTION_INFO_V1(pg_cyclone_cluster_rows);
PG_FUNCTION_INFO_V1(pg_cyclone_node_rows);

/* Columns of cluster_rows */
#define RESULT_COLUMNS	4

/* The server's message, before it is translated: it has no SQLSTATE of its own. */
#define STATEMENT_TIMED_OUT	"canceling statement due to statement timeout"

/* What is asked of this server */
typedef struct Question
{
	const char *view;
	TimestampTz until;
	char	   *answer;
} Question;

static const char *const views[] = {
	"advice", "autovacuum", "bloat", "compaction", "history", "horizon", "pace", "progress",
	"advice_details", "autovacuum_details", "bloat_details", "compaction_details",
	"history_details", "horizon_details", "pace_details", "progress_details",
};

static void check_view(const char *view, int timeout);
static bool ask_here(const char *view, int timeout, char **answer);
static void ask(void *arg);
static TimestampTz in_ms(int ms);
static char *node_rows(const char *view, TimestampTz until);
static char *read_view(const char *view);
static void put_row(FunctionCallInfo fcinfo, const CitusNode *node, bool success, const char *result);

/*
 * pg_cyclone_node_rows
 *		The function node_rows(view, timeout): the rows of a view here, as a JSON
 *		array, or an error after that many ms.
 */
Datum
pg_cyclone_node_rows(PG_FUNCTION_ARGS)
{
	char	   *view = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int			timeout = PG_GETARG_INT32(1);

	refuse_without_preloading();
	check_view(view, timeout);
	PG_RETURN_TEXT_P(cstring_to_text(node_rows(view, in_ms(timeout))));
}

/*
 * pg_cyclone_cluster_rows
 *		The function cluster_rows(view, timeout): a row for each node, with the rows
 *		of the view there, or an error.
 */
Datum
pg_cyclone_cluster_rows(PG_FUNCTION_ARGS)
{
	char	   *view = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int			timeout = PG_GETARG_INT32(1);
	char	   *command;
	List	   *nodes = NIL;
	List	   *commands = NIL;
	List	   *answers;
	int			nestlevel;

	refuse_without_preloading();
	declared_rows_begin(fcinfo, RESULT_COLUMNS);
	check_view(view, timeout);
	if (!distributed_has_cluster())
	{
		CitusNode	here = {.name = "localhost",.port = PostPortNumber,.is_active = true};
		char	   *answer;
		bool		success = ask_here(view, timeout, &answer);

		put_row(fcinfo, &here, success, answer);
		return (Datum) 0;
	}

	command = psprintf("SELECT cyclone.node_rows(%s, %d)", quote_literal_cstr(view), timeout);
	foreach_ptr(CitusNode, node, citus_nodes())
	{
		if (!node->is_active)
		{
			put_row(fcinfo, node, false, "the node is not active");
			continue;
		}
		nodes = lappend(nodes, node);
		commands = lappend(commands, command);
	}
	if (nodes == NIL)
		return (Datum) 0;

	nestlevel = NewGUCNestLevel();
	citus_limit_connecting(timeout);
	answers = citus_run(nodes, commands);
	AtEOXact_GUC(true, nestlevel);
	for (int i = 0; i < list_length(nodes); i++)
	{
		const CitusAnswer *answer = list_nth(answers, i);

		put_row(fcinfo, list_nth(nodes, i), answer->success, answer->result);
	}
	return (Datum) 0;
}

/* check_view -- raise an error if there is no such view, or the timeout isn't positive. */
static void
check_view(const char *view, int timeout)
{
	bool		found = false;

	for (int i = 0; i < lengthof(views); i++)
		found |= strcmp(view, views[i]) == 0;
	if (!found)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("pg_cyclone has no view \"%s\" of one node", view)));
	if (timeout <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the timeout must be positive")));
}

/*
 * ask_here
 *		Read a view of this server as if it were another node.  Returns false if that
 *		fails, and then the answer is the error's message.
 *
 * An error that is to end the statement is raised: a cancel, or a timeout that isn't
 * ours.
 */
static bool
ask_here(const char *view, int timeout, char **answer)
{
	Question	question = {.view = view,.until = in_ms(timeout)};
	bool		timeout_is_ours = !get_timeout_active(STATEMENT_TIMEOUT) ||
		get_timeout_finish_time(STATEMENT_TIMEOUT) > question.until;
	ErrorData  *error = transaction_try(ask, &question);

	if (error == NULL)
	{
		*answer = question.answer;
		return true;
	}
	if (!transaction_error_is_about_data(error) &&
		!(timeout_is_ours && error->message_id != NULL &&
		  strcmp(error->message_id, STATEMENT_TIMED_OUT) == 0))
		ReThrowError(error);
	*answer = error->message;
	return false;
}

/* ask -- for transaction_try. */
static void
ask(void *arg)
{
	Question   *question = arg;

	question->answer = node_rows(question->view, question->until);
}

/* in_ms -- the time this many ms from now. */
static TimestampTz
in_ms(int ms)
{
	Assert(ms > 0);
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
}

/*
 * node_rows
 *		Read a view of this server, with the rights of the user.  Raises an error if that
 *		takes longer than until then.
 *
 * Meanwhile the statement's timeout comes at that time, if it doesn't come earlier.  It is
 * set back after an error, too, as the caller may catch that.
 */
static char *
node_rows(const char *view, TimestampTz until)
{
	bool		is_active = get_timeout_active(STATEMENT_TIMEOUT);
	TimestampTz before = is_active ? get_timeout_finish_time(STATEMENT_TIMEOUT) : 0;
	char	   *rows;

	if (is_active && before <= until)
		return read_view(view);

	PG_TRY();
	{
		enable_timeout_at(STATEMENT_TIMEOUT, until);
		rows = read_view(view);
		/* a timeout that has just come is told from a cancel only here */
		disable_timeout(STATEMENT_TIMEOUT, true);
		CHECK_FOR_INTERRUPTS();
	}
	PG_FINALLY();
	{
		disable_timeout(STATEMENT_TIMEOUT, false);
		if (is_active)
			enable_timeout_at(STATEMENT_TIMEOUT, before);
	}
	PG_END_TRY();
	return rows;
}

/* read_view -- the rows of a view as JSON. */
static char *
read_view(const char *view)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *rows;

	SPI_connect();
	if (SPI_execute(psprintf("SELECT coalesce(pg_catalog.json_agg(v), '[]')::pg_catalog.text FROM cyclone.%s v",
							 quote_identifier(view)), true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the view \"%s\"", view);
	rows = MemoryContextStrdup(context, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return rows;
}

/*
 * put_row
 *		Add a row of cluster_rows; without success, the result is the error's text.
 *
 * A result that isn't JSON is an error, too: no version of pg_cyclone returns one.
 */
static void
put_row(FunctionCallInfo fcinfo, const CitusNode *node, bool success, const char *result)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ErrorSaveContext escontext = {T_ErrorSaveContext};
	Datum		values[RESULT_COLUMNS] = {0};
	bool		nulls[RESULT_COLUMNS] = {false, false, true, true};

	values[0] = CStringGetTextDatum(node->name);
	values[1] = Int32GetDatum(node->port);
	if (success && DirectInputFunctionCallSafe(jsonb_in, unconstify(char *, result), InvalidOid, -1,
											   (Node *) &escontext, &values[3]))
		nulls[3] = false;
	else
	{
		values[2] = CStringGetTextDatum(success ? psprintf("the node's answer is not JSON: %s", result) : result);
		nulls[2] = false;
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}
