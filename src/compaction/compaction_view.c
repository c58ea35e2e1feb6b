/*-------------------------------------------------------------------------
 *
 * compaction_view.c
 *	  Rows of the view cyclone.compaction, and the function by which the owner of a
 *	  table sets its policy.
 *
 * The view has figures from the catalogs and the counters, the table's policy, and
 * the results of earlier runs.  Here the settings fill in what the policy leaves
 * open, and decision.c decides.  The workers read the same view, so they do what it
 * says.
 *
 * A role that may not see a table in cyclone.bloat doesn't see it here.
 *
 * Policies are rows of cyclone.compaction_policies, which only the owner of that table
 * may write.  The function checks that the caller owns the table in question, and then
 * writes the row with the rights of the policies' owner.  Values are parameters, and
 * all names are qualified.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "commands/dbcommands.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#include "autovacuum/table_log.h"
#include "bloat/bloat.h"
#include "compaction/compaction.h"
#include "compaction/decision.h"
#include "debug_point.h"
#include "declared_rows.h"
#include "horizon/horizon.h"
#include "inplace/subscription.h"
#include "library.h"
#include "pace/pace.h"
#include "scope.h"
#include "server_check.h"
#include "settings.h"

/* A transaction that holds the horizon for longer than that is likely to stay. */
#define HELD_MS		300000

/* 100 years, in seconds */
#define LONGEST_COOLDOWN	(100.0 * 365 * SECS_PER_DAY)

#define MOST_BYTES			1e18

/* The most bytes of a text in a policy, with its header */
#define MAX_TEXT			1000

#define VERDICT_COLUMNS	11

/* How many windows are kept: tables with different policies come in any order. */
#define WINDOWS			8

/* A policy, where settings fill in what it leaves open */
typedef struct Policy
{
	bool		is_wanted;
	double		min_size;		/* bytes */
	double		threshold;
	double		cooldown;		/* seconds */
	const char *hours;
	const char *latency_target;
} Policy;

/* What is known of a window at the moment of a statement */
typedef struct WindowFacts
{
	char	   *hours;			/* NULL: of none */
	bool		is_valid;
	bool		is_open;
	int64		changes_in;		/* seconds; -1: never */
} WindowFacts;

/* Facts that are the same for all tables of a statement */
typedef struct StatementFacts
{
	TimestampTz statement;		/* when it began */
	TimestampTz now;
	bool		is_listed;
	double		held_since;
	double		wal_left;
	WindowFacts windows[WINDOWS];	/* those asked for most recently */
	int			next_window;	/* whose place the next one gets */
} StatementFacts;

PG_FUNCTION_INFO_V1(pg_cyclone_compaction_verdict);
PG_FUNCTION_INFO_V1(pg_cyclone_compaction_matches);
PG_FUNCTION_INFO_V1(pg_cyclone_compaction_policy);

static StatementFacts statement;

static void gather_statement(void);
static const WindowFacts *gather_window(const char *hours);
static double horizon_held_since(TimestampTz now);
static bool is_left(Oid relid, bool is_large);
static void read_policy(HeapTupleHeader row, Policy *policy);
static void read_state(HeapTupleHeader row, CompactionFacts *facts);
static void read_running(Oid relid, CompactionFacts *facts);
static double number_of(HeapTupleHeader row, const char *column, double otherwise);
static char *text_of(HeapTupleHeader row, const char *column);
static double seconds_since(HeapTupleHeader row, const char *column);
static Datum verdict_row(FunctionCallInfo fcinfo, const CompactionFacts *facts, const Policy *policy,
						 const WindowFacts *window);
static void check_owner(Oid relid);
static void check_texts(FunctionCallInfo fcinfo);
static void write_policy(FunctionCallInfo fcinfo, Oid policies);

/*
 * pg_cyclone_compaction_verdict
 *		The decision on a table: compaction_verdict(relation_oid, size, live_rows,
 *		changed_rows, policy, state).  NULLs if the caller may not see it.
 */
Datum
pg_cyclone_compaction_verdict(PG_FUNCTION_ARGS)
{
	CompactionFacts facts = {0};
	HeapTupleHeader policy_row = PG_ARGISNULL(4) ? NULL : PG_GETARG_HEAPTUPLEHEADER(4);
	HeapTupleHeader state_row = PG_ARGISNULL(5) ? NULL : PG_GETARG_HEAPTUPLEHEADER(5);
	Policy		policy;
	const WindowFacts *window;
	TableKey	key = {.database = MyDatabaseId};
	uint32		failures;

	server_refuse_if_unfit("cyclone.compaction");
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || !bloat_may_be_told(PG_GETARG_OID(0)))
		return verdict_row(fcinfo, NULL, NULL, NULL);

	gather_statement();
	read_policy(policy_row, &policy);
	window = gather_window(policy.hours);
	key.relid = PG_GETARG_OID(0);
	facts.is_standby = RecoveryInProgress();
	facts.is_on = cyclone_compaction && settings_enabled();
	facts.is_listed = statement.is_listed;
	facts.is_wanted = policy.is_wanted;
	facts.bytes = (double) PG_GETARG_INT64(1);
	facts.min_size = policy.min_size;
	facts.is_left = is_left(key.relid, facts.bytes >= facts.min_size);
	facts.window_is_valid = window->is_valid;
	facts.breaker_is_open = table_log_breaker_is_open(&key, &failures) || table_log_all_are_left();
	facts.rows = PG_ARGISNULL(2) ? 0 : Max(PG_GETARG_FLOAT4(2), 0);
	facts.changes = PG_ARGISNULL(3) ? 0 : (double) PG_GETARG_INT64(3);
	facts.threshold = policy.threshold;
	facts.cooldown = policy.cooldown;
	facts.held_since = statement.held_since;
	facts.wal_left = statement.wal_left;
	facts.window_is_open = window->is_open;
	facts.window_opens = (double) window->changes_in;
	read_state(state_row, &facts);
	read_running(key.relid, &facts);
	return verdict_row(fcinfo, &facts, &policy, window);
}

/* gather_statement -- find out what is the same for all tables, once a statement. */
static void
gather_statement(void)
{
	const char *database;

	if (statement.statement == GetCurrentStatementStartTimestamp())
		return;
	statement.statement = 0;
	statement.now = GetCurrentTimestamp();
	database = get_database_name(MyDatabaseId);
	statement.is_listed = database != NULL && compaction_has_database(database);
	statement.held_since = horizon_held_since(statement.now);
	statement.wal_left = compaction_wal_left();
	for (int i = 0; i < WINDOWS; i++)
	{
		if (statement.windows[i].hours != NULL)
			pfree(statement.windows[i].hours);
		statement.windows[i].hours = NULL;
	}
	statement.statement = GetCurrentStatementStartTimestamp();
}

/* gather_window -- what is known of a window, which is found out once. */
static const WindowFacts *
gather_window(const char *hours)
{
	CompactionWindow window;
	const char *problem;
	pg_time_t	now = timestamptz_to_time_t(statement.now);
	WindowFacts *facts;

	Assert(statement.statement == GetCurrentStatementStartTimestamp());

	for (int i = 0; i < WINDOWS; i++)
	{
		if (statement.windows[i].hours != NULL && strcmp(statement.windows[i].hours, hours) == 0)
			return &statement.windows[i];
	}
	facts = &statement.windows[statement.next_window];
	statement.next_window = (statement.next_window + 1) % WINDOWS;
	if (facts->hours != NULL)
		pfree(facts->hours);
	*facts = (WindowFacts)
	{
		.changes_in = -1
	};
	facts->is_valid = window_parse(hours, &window, &problem);
	if (facts->is_valid)
	{
		facts->is_open = window_has(&window, compaction_wall_clock(now));
		facts->changes_in = window_next_change(&window, now, compaction_wall_clock);
	}
	facts->hours = MemoryContextStrdup(TopMemoryContext, hours);
	return facts;
}

/*
 * horizon_held_since
 *		For how many seconds a holder that is likely to stay has kept VACUUM from
 *		removing rows of this database's tables; 0 if there is none.
 *
 * A connected standby doesn't count: it needs rows for as long as its queries run, and
 * how long that is isn't known here.
 */
static double
horizon_held_since(TimestampTz now)
{
	double		longest = 0;

	if (RecoveryInProgress())
		return 0;
	foreach_ptr(HorizonHolder, holder, horizon_holders(BOOTSTRAP_SUPERUSERID))
	{
		double		seconds = (double) (now - holder->since) / USECS_PER_SEC;
		bool		is_standbys = holder->kind == HOLDER_STANDBY ||
			(holder->kind == HOLDER_SLOT && holder->pid != 0);

		if (holder->since != 0 && !is_standbys && holder->pid != MyProcPid &&
			TransactionIdIsValid(horizon_of(holder, SCOPE_DATABASE, MyDatabaseId)) &&
			seconds * 1000 >= DEBUG_LIMIT(compaction_held, HELD_MS))
			longest = Max(longest, seconds);
	}
	return longest;
}

/*
 * is_left
 *		Does FULL INPLACE leave a table to PostgreSQL?  Subscriptions are looked for only if
 *		it is large enough to be compacted, as that is a look at catalogs for each table.
 */
static bool
is_left(Oid relid, bool is_large)
{
	return !scope_has(relid) || (is_large && subscription_writes_to(relid));
}

/* read_policy -- from its row, or, without one, from the settings. */
static void
read_policy(HeapTupleHeader row, Policy *policy)
{
	bool		is_null = true;
	Datum		value = (Datum) 0;
	char	   *text;

	if (row != NULL)
		value = GetAttributeByName(row, "enabled", &is_null);
	policy->is_wanted = is_null || DatumGetBool(value);
	policy->min_size = number_of(row, "min_size", cyclone_compaction_min_size * 1024.0 * 1024.0);
	/* the greatest bigint, as a double, is too large for a bigint */
	policy->min_size = Min(policy->min_size, MOST_BYTES);
	policy->threshold = number_of(row, "threshold", cyclone_compaction_threshold);
	policy->cooldown = cyclone_compaction_cooldown;
	is_null = true;
	if (row != NULL)
		value = GetAttributeByName(row, "cooldown", &is_null);
	if (!is_null)
	{
		const Interval *interval = DatumGetIntervalP(value);

		policy->cooldown = (double) interval->time / USECS_PER_SEC +
			((double) interval->day + 30.0 * interval->month) * SECS_PER_DAY;

		/*
		 * It may be infinite, and a row that isn't the table's may have any.
		 * Without any a table of which nothing is won would be compacted
		 * again and again: none doubles to none.
		 */
		policy->cooldown = Min(Max(policy->cooldown, COMPACTION_LEAST_COOLDOWN), LONGEST_COOLDOWN);
	}
	text = text_of(row, "hours");
	policy->hours = text != NULL ? text : cyclone_compaction_window;
	text = text_of(row, "latency_target");
	policy->latency_target = text != NULL ? text : cyclone_compaction_latency_target;
}

/* read_state -- the results of earlier runs and samples. */
static void
read_state(HeapTupleHeader row, CompactionFacts *facts)
{
	char	   *outcome = text_of(row, "outcome");

	facts->sampled_since = seconds_since(row, "sampled_at");
	facts->is_sampled = facts->sampled_since >= 0;
	facts->would_win = number_of(row, "would_win", -1);

	/*
	 * a sample without that figure is out of date as soon as possible
	 */
	facts->sampled_bytes = facts->would_win >= 0 ? number_of(row, "sampled_size", 0) : 0;
	facts->would_win = Max(facts->would_win, 0);
	facts->sampled_changes = number_of(row, "sampled_changes", 0);
	facts->outcome = outcome != NULL ? compaction_outcome_of(outcome) : OUTCOME_NONE;
	facts->ended_since = seconds_since(row, "ended_at");
	facts->ended_since = Max(facts->ended_since, 0);
	facts->failures = (int) number_of(row, "failures", 0);
	facts->backoff = (int) number_of(row, "backoff", 0);
	facts->last_seconds = number_of(row, "last_seconds", 0);
	facts->last_bytes = number_of(row, "last_size", 0);
	facts->last_wal = facts->outcome == OUTCOME_DONE ? number_of(row, "wal", 0) : 0;
}

/* read_running -- is a worker at it now? */
static void
read_running(Oid relid, CompactionFacts *facts)
{
	Assert(!facts->is_running);

	LWLockAcquire(compaction_shared->lock, LW_SHARED);
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
	{
		const CompactionSlot *slot = &compaction_shared->slots[i];

		if (slot->pid == 0 || slot->database != MyDatabaseId || slot->relid != relid)
			continue;
		facts->is_running = true;
		facts->running_since = Max((double) (statement.now - slot->started) / USECS_PER_SEC, 0);
	}
	LWLockRelease(compaction_shared->lock);
}

/* number_of -- a bigint, int or float8 of a row; the last argument if it is null, or there is no row. */
static double
number_of(HeapTupleHeader row, const char *column, double otherwise)
{
	TupleDesc	desc;
	Datum		value;
	bool		is_null;
	AttrNumber	number = InvalidAttrNumber;
	Oid			type = InvalidOid;

	if (row == NULL)
		return otherwise;
	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(row), HeapTupleHeaderGetTypMod(row));
	for (int i = 0; i < desc->natts; i++)
	{
		if (namestrcmp(&TupleDescAttr(desc, i)->attname, column) == 0)
		{
			number = i + 1;
			type = TupleDescAttr(desc, i)->atttypid;
		}
	}
	ReleaseTupleDesc(desc);
	if (number == InvalidAttrNumber)
		elog(ERROR, "column \"%s\" is missing", column);
	value = GetAttributeByNum(row, number, &is_null);
	if (is_null)
		return otherwise;
	return type == INT8OID ? (double) DatumGetInt64(value) :
		type == INT4OID ? DatumGetInt32(value) : DatumGetFloat8(value);
}

/* text_of -- a column that is a text; NULL if it is null, or there is no row. */
static char *
text_of(HeapTupleHeader row, const char *column)
{
	bool		is_null;
	Datum		value;

	if (row == NULL)
		return NULL;
	value = GetAttributeByName(row, column, &is_null);
	return is_null ? NULL : TextDatumGetCString(value);
}

/* seconds_since -- since a time in a column; -1 if it is null, or there is no row. */
static double
seconds_since(HeapTupleHeader row, const char *column)
{
	bool		is_null;
	Datum		value;

	if (row == NULL)
		return -1;
	value = GetAttributeByName(row, column, &is_null);
	return is_null ? -1 : Max(((double) statement.now - (double) DatumGetTimestampTz(value)) / USECS_PER_SEC, 0);
}

/* verdict_row -- the verdict as a row; one of nulls without facts. */
static Datum
verdict_row(FunctionCallInfo fcinfo, const CompactionFacts *facts, const Policy *policy,
			const WindowFacts *window)
{
	TupleDesc	desc = declared_rows_describe(fcinfo, VERDICT_COLUMNS);
	Datum		values[VERDICT_COLUMNS] = {0};
	bool		nulls[VERDICT_COLUMNS] = {0};
	CompactionVerdict verdict;
	Interval   *cooldown;

	Assert((facts == NULL) == (policy == NULL) && (facts == NULL) == (window == NULL));

	if (facts == NULL)
	{
		memset(nulls, true, sizeof(nulls));
		return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
	}
	verdict = compaction_decide(facts);
	values[0] = CStringGetTextDatum(compaction_reason_name(verdict.reason));
	nulls[1] = nulls[2] = !verdict.has_figure;
	values[1] = Float8GetDatum(verdict.figure);
	if (verdict.has_figure)
		values[2] = CStringGetTextDatum(compaction_figure_unit(verdict.reason));
	nulls[3] = verdict.next < 0;
	values[3] = TimestampTzGetDatum(statement.now + (TimestampTz) (Max(verdict.next, 0) * USECS_PER_SEC));
	nulls[4] = !window->is_open || window->changes_in < 0;
	values[4] = TimestampTzGetDatum(statement.now + window->changes_in * USECS_PER_SEC);
	values[5] = BoolGetDatum(policy->is_wanted);
	values[6] = Int64GetDatum((int64) policy->min_size);
	values[7] = Float8GetDatum(policy->threshold);
	cooldown = palloc0_object(Interval);
	cooldown->time = (TimeOffset) (policy->cooldown * USECS_PER_SEC);
	values[8] = IntervalPGetDatum(cooldown);
	values[9] = CStringGetTextDatum(policy->hours);
	values[10] = CStringGetTextDatum(policy->latency_target);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/*
 * pg_cyclone_compaction_matches
 *		Does a pattern stand for a table of this schema and name?  NULL if it is no
 *		list of patterns; a CHECK of cyclone.compaction_policies refuses that.
 */
Datum
pg_cyclone_compaction_matches(PG_FUNCTION_ARGS)
{
	char	   *pattern = text_to_cstring(PG_GETARG_TEXT_PP(0));
	List	   *names;

	if (!SplitGUCList(pstrdup(pattern), ',', &names) || names == NIL)
		PG_RETURN_NULL();
	PG_RETURN_BOOL(scope_matches(pattern, NameStr(*PG_GETARG_NAME(1)), NameStr(*PG_GETARG_NAME(2))));
}

/*
 * pg_cyclone_compaction_policy
 *		Set the policy of a table, or remove it if all other arguments are null:
 *		compaction_policy(relation, enabled, min_size, threshold, cooldown, hours,
 *		latency_target).  For the table's owner.
 */
Datum
pg_cyclone_compaction_policy(PG_FUNCTION_ARGS)
{
	Oid			policies;

	refuse_without_preloading();
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("relation must not be null")));
	check_owner(PG_GETARG_OID(0));
	check_texts(fcinfo);
	policies = get_relname_relid("compaction_policies", get_namespace_oid("cyclone", false));
	if (!OidIsValid(policies))
		elog(ERROR, "table cyclone.compaction_policies is missing");
	write_policy(fcinfo, policies);
	PG_RETURN_VOID();
}

/* check_owner -- raise an error if it isn't a table of the caller's that can be compacted. */
static void
check_owner(Oid relid)
{
	char		kind = get_rel_relkind(relid);

	if (kind == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (!object_ownercheck(RelationRelationId, relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(kind), get_rel_name(relid));
	if ((kind != RELKIND_RELATION && kind != RELKIND_MATVIEW) || relid < FirstNormalObjectId ||
		get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" cannot be compacted", get_rel_name(relid)),
				 errdetail("Only permanent and unlogged tables and materialized views of users can.")));
}

/* check_texts -- raise an error if hours or latency_target can't be read. */
static void
check_texts(FunctionCallInfo fcinfo)
{
	CompactionWindow window;
	bool		is_auto;
	const char *problem;

	if ((!PG_ARGISNULL(5) && toast_raw_datum_size(PG_GETARG_DATUM(5)) > MAX_TEXT) ||
		(!PG_ARGISNULL(6) && toast_raw_datum_size(PG_GETARG_DATUM(6)) > MAX_TEXT))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("hours or latency target is too long"),
				 errdetail("The longest ones have %d bytes.", MAX_TEXT - VARHDRSZ)));
	if (!PG_ARGISNULL(5) && !window_parse(text_to_cstring(PG_GETARG_TEXT_PP(5)), &window, &problem))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid hours: \"%s\"", text_to_cstring(PG_GETARG_TEXT_PP(5))),
				 errdetail("%s", _(problem)),
				 errhint("They are a list of days with hours, like \"Mon-Fri 22:00-05:00, Sat-Sun\".")));
	if (!PG_ARGISNULL(6) && !pace_parse_latency_target(text_to_cstring(PG_GETARG_TEXT_PP(6)), &is_auto))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid latency target: \"%s\"", text_to_cstring(PG_GETARG_TEXT_PP(6))),
				 errhint("%s", _(PACE_TARGET_HINT))));
}

/*
 * write_policy
 *		Replace the row of a table, with the rights of the policies' owner, and with
 *		the search path that the server has for such cases.
 *
 * An error gives the rights back, as it ends the (sub)transaction.
 */
static void
write_policy(FunctionCallInfo fcinfo, Oid policies)
{
	static const char *const columns[] = {
		"relation", "enabled", "min_size", "threshold", "cooldown", "hours", "latency_target"
	};
	Oid			types[] = {REGCLASSOID, BOOLOID, INT8OID, FLOAT8OID, INTERVALOID, TEXTOID, TEXTOID};
	Datum		values[lengthof(types)] = {0};
	char		nulls[lengthof(types)];
	bool		is_empty = true;
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(policies));
	Oid			owner;
	Oid			user;
	int			security;
	int			nest_level;
	StringInfoData sql;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", policies);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	for (int i = 0; i < lengthof(types); i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
		is_empty &= i == 0 || PG_ARGISNULL(i);
	}

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(owner, security | SECURITY_LOCAL_USERID_CHANGE);
	nest_level = NewGUCNestLevel();
	RestrictSearchPath();
	SPI_connect();
	if (SPI_execute_with_args("DELETE FROM cyclone.compaction_policies WHERE relation OPERATOR(pg_catalog.=) $1",
							  1, types, values, nulls, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not remove the policy");
	if (!is_empty)
	{
		initStringInfo(&sql);
		appendStringInfoString(&sql, "INSERT INTO cyclone.compaction_policies (");
		for (int i = 0; i < lengthof(columns); i++)
			appendStringInfo(&sql, "%s%s", i > 0 ? ", " : "", columns[i]);
		appendStringInfoString(&sql, ") VALUES ($1, $2, $3, $4, $5, $6, $7)");
		if (SPI_execute_with_args(sql.data, lengthof(types), types, values, nulls, false, 0) != SPI_OK_INSERT)
			elog(ERROR, "could not add the policy");
	}
	SPI_finish();
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, security);
}
