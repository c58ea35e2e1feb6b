/*-------------------------------------------------------------------------
 *
 * test_options.c
 *	  What the options of a statement come to: command/options.c.
 *
 * That each is taken or refused as the server does it test_options.py finds out, by
 * chance; here is what else is read out of them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "nodes/makefuncs.h"

#include "command/options.c"
#include "pace/pace_settings.c"
#include "unit.h"


#define DEFAULTS	(VACOPT_VACUUM | VACOPT_PROCESS_MAIN | VACOPT_PROCESS_TOAST)

#define SWITCH_ON	"A superuser can say SET cyclone.enabled = on; for the session, a role or a database."

static bool is_enabled = true;
int			max_parallel_maintenance_workers = 2;
int			max_parallel_workers = 8;
int			max_worker_processes = 8;
int			VacuumBufferUsageLimit = 2048;
int			VacuumCostLimit,
			VacuumCostPageHit,
			VacuumCostPageMiss,
			VacuumCostPageDirty,
			autovacuum_vac_cost_limit;
double		VacuumCostDelay,
			autovacuum_vac_cost_delay;
double		vacuum_max_eager_freeze_failure_rate = 0.03;	/* since 18 */

static int	asked_ring_kb;

/* GetAccessStrategyWithSize -- a ring of that size is wanted. */
BufferAccessStrategy
GetAccessStrategyWithSize(BufferAccessStrategyType type, int size_kb)
{
	asked_ring_kb = size_kb;
	return NULL;
}

/* defGetString -- an option's value as text. */
char *
defGetString(DefElem *def)
{
	char	   *text;

	if (IsA(def->arg, String))
		return strVal(def->arg);
	if (IsA(def->arg, Float))
		return castNode(Float, def->arg)->fval;
	text = palloc(20);
	snprintf(text, 20, "%ld", (long) intVal(def->arg));
	return text;
}

/* number_with_unit -- a number in the first of some units, or in any of them. */
static bool
number_with_unit(const char *text, const char *const *units, const double *factors, double *number)
{
	char	   *end;

	*number = strtod(text, &end);
	if (end == text)
		return false;
	while (isspace((unsigned char) *end))
		end++;
	for (int i = 0; *end != '\0' && units[i] != NULL; i++)
		if (strcmp(end, units[i]) == 0)
		{
			*number *= factors[i];
			return true;
		}
	return *end == '\0';
}

/* parse_int -- a size. */
bool
parse_int(const char *value, int *result, int flags, const char **hint)
{
	static const char *const units[] = {"kB", "MB", "GB", NULL};
	static const double factors[] = {1, 1024, 1024 * 1024};
	double		number;

	CHECK_EQ(flags, GUC_UNIT_KB);
	if (!number_with_unit(value, units, factors, &number) || number > INT_MAX)
		return false;
	*result = (int) number;
	return true;
}

/* node -- a value as the server's parser makes it. */
static Node *
node(char *text)
{
	char	   *end;

	if (text[0] == '\'')
	{
		String	   *string = makeNode(String);

		text[strlen(text) - 1] = '\0';
		string->sval = text + 1;
		return (Node *) string;
	}
	if (isdigit((unsigned char) text[0]) || text[0] == '-')
	{
		long		number = strtol(text, &end, 10);
		Integer    *integer = makeNode(Integer);
		Float	   *decimal = makeNode(Float);

		integer->ival = (int) number;
		decimal->fval = text;
		return *end == '\0' && number == (int) number ? (Node *) integer : (Node *) decimal;
	}
	else
	{
		String	   *string = makeNode(String);

		string->sval = text;
		return (Node *) string;
	}
}

/* options_of -- a list of options as the server's parser makes it of "full inplace, verbose". */
static List *
options_of(const char *text)
{
	char	   *copy = strdup(text);
	char	   *rest;
	List	   *list = NIL;

	for (char *option = strtok_r(copy, ",", &rest); option != NULL; option = strtok_r(NULL, ",", &rest))
	{
		DefElem    *def = makeNode(DefElem);
		char	   *value;

		while (*option == ' ')
			option++;
		value = strchr(option, ' ');
		if (value != NULL)
			*value++ = '\0';
		def->defname = option;
		def->arg = value == NULL ? NULL : node(value);
		list = lappend(list, def);
	}
	return list;
}

/* text_of -- a list of options, written. */
static const char *
text_of(List *list)
{
	char	   *text = palloc0(1000);

	foreach_node(DefElem, def, list)
	{
		strcat(text, text[0] == '\0' ? "" : ", ");
		strcat(text, def->defname);
		if (def->arg != NULL)
		{
			strcat(text, " ");
			strcat(text, defGetString(def));
		}
	}
	return text;
}

/* statement -- a VACUUM of the whole database with options. */
static VacuumStmt
statement(const char *text)
{
	VacuumStmt	stmt = {.type = T_VacuumStmt,.is_vacuumcmd = true,.options = options_of(text)};

	unit_case("VACUUM (%s)", text);
	return stmt;
}

/* named_table -- a list of one table, perhaps with a column. */
static List *
named_table(bool has_column)
{
	VacuumRelation *table = makeNode(VacuumRelation);

	if (has_column)
		table->va_cols = lappend(NIL, table);
	return lappend(NIL, table);
}

/* test_flags -- what each option adds to the defaults, or takes away. */
static void
test_flags(void)
{
	static const struct
	{
		const char *text;
		bits32		flags;
	}			lists[] = {
		{"", DEFAULTS},
		{"verbose", DEFAULTS | VACOPT_VERBOSE},
		{"verbose off", DEFAULTS},
		{"verbose, verbose 0", DEFAULTS},
		{"verbose FALSE, verbose TRUE", DEFAULTS | VACOPT_VERBOSE},
		{"analyze 1, freeze 'on'", DEFAULTS | VACOPT_ANALYZE | VACOPT_FREEZE},
		{"disable_page_skipping", DEFAULTS | VACOPT_DISABLE_PAGE_SKIPPING},
		{"skip_locked, skip_database_stats", DEFAULTS | VACOPT_SKIP_LOCKED | VACOPT_SKIP_DATABASE_STATS},
		{"process_main off", DEFAULTS & ~VACOPT_PROCESS_MAIN},
		{"process_toast false", DEFAULTS & ~VACOPT_PROCESS_TOAST},
		{"only_database_stats, verbose", DEFAULTS | VACOPT_ONLY_DATABASE_STATS | VACOPT_VERBOSE},
		{"full", DEFAULTS | VACOPT_FULL},
		{"full rewrite", DEFAULTS | VACOPT_FULL},
		{"full REWRITE, full off", DEFAULTS},
		{"full inplace", DEFAULTS | VACOPT_INPLACE},
		{"full, full InPlace", DEFAULTS | VACOPT_INPLACE},
		{"full inplace, full", DEFAULTS | VACOPT_FULL},
		{"full inplace, full rewrite", DEFAULTS | VACOPT_FULL},
		{"full inplace, full off", DEFAULTS},
		{"full inplace, process_toast off", (DEFAULTS | VACOPT_INPLACE) & ~VACOPT_PROCESS_TOAST},
		{"full inplace, disable_page_skipping", DEFAULTS | VACOPT_INPLACE | VACOPT_DISABLE_PAGE_SKIPPING},
	};

	for (int i = 0; i < lengthof(lists); i++)
	{
		VacuumStmt	stmt = statement(lists[i].text);
		VacuumOptions options;
		int			age = lists[i].flags & VACOPT_FREEZE ? 0 : -1;

		CHECK(vacuum_options_read(&stmt, &options));
		CHECK_EQ(options.params.options, lists[i].flags);
		CHECK_EQ(options.params.freeze_min_age, age);
		CHECK_EQ(options.params.freeze_table_age, age);
		CHECK_EQ(options.params.multixact_freeze_min_age, age);
		CHECK_EQ(options.params.multixact_freeze_table_age, age);
		CHECK(!options.is_repack && !options.has_latency_target);
		CHECK_EQ(options.params.toast_parent, InvalidOid);
	}
}

/* test_values -- those that are no flags; the last one counts. */
static void
test_values(void)
{
	static const struct
	{
		const char *text;
		int			nworkers;
		int			ring_kb;
		VacOptValue index_cleanup;
		VacOptValue truncate;
	}			lists[] = {
		{"", 0, -1, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"parallel 3", 3, -1, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"parallel 0", -1, -1, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"parallel 3, parallel 1024", 1024, -1, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"buffer_usage_limit 256", 0, 256, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"buffer_usage_limit '1 GB'", 0, 1024 * 1024, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"buffer_usage_limit 128", 0, 128, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"buffer_usage_limit 0", 0, 0, VACOPTVALUE_UNSPECIFIED, VACOPTVALUE_UNSPECIFIED},
		{"index_cleanup", 0, -1, VACOPTVALUE_AUTO, VACOPTVALUE_UNSPECIFIED},
		{"index_cleanup AUTO", 0, -1, VACOPTVALUE_AUTO, VACOPTVALUE_UNSPECIFIED},
		{"index_cleanup on, truncate off", 0, -1, VACOPTVALUE_ENABLED, VACOPTVALUE_DISABLED},
		{"index_cleanup off, truncate", 0, -1, VACOPTVALUE_DISABLED, VACOPTVALUE_ENABLED},
	};

	for (int i = 0; i < lengthof(lists); i++)
	{
		VacuumStmt	stmt = statement(lists[i].text);
		VacuumOptions options;

		CHECK(vacuum_options_read(&stmt, &options));
		CHECK_EQ(options.params.nworkers, lists[i].nworkers);
		CHECK_EQ(options.params.index_cleanup, lists[i].index_cleanup);
		CHECK_EQ(options.params.truncate, lists[i].truncate);
		CHECK_EQ(options.ring_size_kb, lists[i].ring_kb);
		(void) vacuum_options_make_ring(&options);
		CHECK_EQ(asked_ring_kb, lists[i].ring_kb < 0 ? 2048 : lists[i].ring_kb);
	}
}

/* test_what_is_left_to_the_server -- it raises an error for it, without one of ours. */
static void
test_what_is_left_to_the_server(void)
{
	static const char *const lists[] = {
		"nonsense", "Freeze", "verbose 2", "verbose -1", "verbose 1.5", "verbose yes", "verbose ''",
		"full inplce", "full auto", "truncate auto", "index_cleanup maybe", "index_cleanup 2",
		"parallel", "parallel on", "parallel -1", "parallel 1025", "parallel 1.5",
		"buffer_usage_limit", "buffer_usage_limit 127", "buffer_usage_limit '17GB'",
		"buffer_usage_limit '1 parsec'", "buffer_usage_limit -1",
		"full, buffer_usage_limit 256", "full, disable_page_skipping", "full, process_toast off",
		"full rewrite, process_toast off",
		"only_database_stats, freeze", "only_database_stats, process_main off, skip_locked",
	};
	VacuumOptions options;
	VacuumStmt	stmt;

	for (int i = 0; i < lengthof(lists); i++)
	{
		stmt = statement(lists[i]);
		CHECK(!vacuum_options_read(&stmt, &options));
	}

	stmt = statement("full, buffer_usage_limit 256, analyze");
	CHECK(vacuum_options_read(&stmt, &options));

	stmt = statement("only_database_stats");
	stmt.rels = named_table(false);
	CHECK(!vacuum_options_read(&stmt, &options));

	stmt = statement("verbose");
	stmt.rels = named_table(true);
	CHECK(!vacuum_options_read(&stmt, &options));
	stmt = statement("verbose, analyze");
	stmt.rels = named_table(true);
	CHECK(vacuum_options_read(&stmt, &options));
}

/* test_latency_targets -- auto, or none. */
static void
test_latency_targets(void)
{
	static const struct
	{
		const char *text;
		bool		is_auto;
	}			lists[] = {
		{"latency_target auto", true}, {"latency_target 'AUTO'", true}, {"latency_target off", false},
		{"latency_target 0", false}, {"latency_target auto, latency_target '0'", false},
		{"latency_target auto, full", true},
	};
	VacuumOptions options;
	VacuumStmt	stmt;

	for (int i = 0; i < lengthof(lists); i++)
	{
		stmt = statement(lists[i].text);
		CHECK(options_have(stmt.options, "latency_target"));
		CHECK(vacuum_options_read(&stmt, &options));
		CHECK(options.has_latency_target);
		CHECK_EQ(options.latency_target, lists[i].is_auto);
		CHECK_EQ((options.params.options & VACOPT_FULL) != 0, strstr(lists[i].text, "full") != NULL);
	}
	stmt = statement("full inplace, parallel 2");
	CHECK(!options_have(stmt.options, "latency_target"));
}

/* test_wrong_values_are_told_what_to_do -- where it is for us to say. */
static void
test_wrong_values_are_told_what_to_do(void)
{
	static const char *const values = "A latency target is \"auto\" or \"off\".";
	const struct
	{
		const char *text;
		const char *error;
		const char *hint;
	}			lists[] = {
		{"latency_target on", "invalid value for LATENCY_TARGET: \"on\"", values},
		{"latency_target", "LATENCY_TARGET requires a value", values},
		{"latency_target 20", "invalid value for LATENCY_TARGET: \"20\"", values},
		{"latency_target '20ms'", "invalid value for LATENCY_TARGET: \"20ms\"", values},
		{"latency_target auto, only_database_stats", "VACUUM option LATENCY_TARGET cannot be used with ONLY_DATABASE_STATS", "Leave ONLY_DATABASE_STATS out."},
		{"full inplace, truncate off", "VACUUM option FULL INPLACE cannot be used with TRUNCATE false", "Leave TRUNCATE false out."},
		{"full inplace, process_main off", "VACUUM option FULL INPLACE cannot be used with PROCESS_MAIN false", "Leave PROCESS_MAIN false out."},
		{"full inplace, only_database_stats", "VACUUM option FULL INPLACE cannot be used with ONLY_DATABASE_STATS", "Leave ONLY_DATABASE_STATS out."},
	};
	VacuumOptions options;
	VacuumStmt	stmt;

	for (int i = 0; i < lengthof(lists); i++)
	{
		stmt = statement(lists[i].text);
		UNIT_TRY((void) vacuum_options_read(&stmt, &options));
		CHECK_TEXT(unit_error, lists[i].error);
		CHECK_TEXT(unit_hint, lists[i].hint);
	}
	stmt = statement("full inplace");
	stmt.rels = named_table(true);
	UNIT_TRY((void) vacuum_options_read(&stmt, &options));
	CHECK_TEXT(unit_error, "ANALYZE option must be specified when a column list is provided");
}

/* settings_enabled -- as the test has it. */
bool
settings_enabled(void)
{
	return is_enabled;
}

/* explained -- the hint of what is said of a statement's options, or NULL. */
static const char *
explained(const char *text, bool enabled)
{
	VacuumStmt	stmt = statement(text);

	is_enabled = enabled;
	UNIT_TRY(vacuum_options_explain_faults(&stmt));
	is_enabled = true;
	return unit_hint;
}

/* test_faults_are_explained -- before the server says less of them. */
static void
test_faults_are_explained(void)
{
	CHECK_TEXT(explained("full inplce", true), "FULL takes INPLACE, REWRITE, or a Boolean value.");
	CHECK_TEXT(unit_error, "invalid value for VACUUM option FULL: \"inplce\"");
	CHECK_TEXT(explained("full, inplace", true), "It is a value of FULL: write VACUUM (FULL INPLACE), without a comma.");
	CHECK_TEXT(unit_error, "unrecognized VACUUM option \"inplace\"");
	CHECK_TEXT(explained("rewrite", true), "It is a value of FULL: write VACUUM (FULL REWRITE), without a comma.");
	CHECK_TEXT(explained("latency_targt '20ms'", true), "Perhaps you meant LATENCY_TARGET.");
	CHECK_TEXT(explained("latency '20ms'", true), "Perhaps you meant LATENCY_TARGET.");
	CHECK_TEXT(unit_error, "unrecognized VACUUM option \"latency\"");

	/* only the engine has these, and only a superuser can switch it on */
	CHECK_TEXT(explained("latency_target auto", false), SWITCH_ON);
	CHECK_TEXT(unit_error, "VACUUM option LATENCY_TARGET is pg_cyclone's, which is off");
	CHECK_TEXT(explained("full inplace", false), SWITCH_ON);
	CHECK_TEXT(unit_error, "VACUUM option FULL INPLACE is pg_cyclone's, which is off");
	CHECK_TEXT(explained("verbose, full rewrite", false), SWITCH_ON);
	CHECK_TEXT(unit_error, "VACUUM option FULL REWRITE is pg_cyclone's, which is off");

	/* nothing is wrong with these, or it is for the server to say */
	(void) explained("full, full off, full inplace, full rewrite, full 2, latency_target auto, verbose, nonsense", true);
	CHECK_TEXT(unit_error, NULL);
	CHECK_TEXT(unit_notice, NULL);
	(void) explained("full, verbose, nonsense", false);
	CHECK_TEXT(unit_error, NULL);
}

/* test_a_limit_of_workers_is_said -- if more are asked for. */
static void
test_a_limit_of_workers_is_said(void)
{
	const char *hint = "Raise max_parallel_maintenance_workers, and max_parallel_workers and max_worker_processes if these are less.";

	CHECK_TEXT(explained("parallel 2, full", true), NULL);
	CHECK_TEXT(unit_notice, NULL);
	CHECK_TEXT(explained("full, parallel 3", true), hint);
	CHECK_TEXT(unit_notice, "VACUUM has 2 parallel workers at most, not 3");
	CHECK_TEXT(unit_error, NULL);
	CHECK_TEXT(explained("parallel 3", false), NULL);
	CHECK_TEXT(explained("parallel 0", true), NULL);
	CHECK_TEXT(explained("parallel 1025", true), NULL); /* an error of the
														 * server's */
	max_parallel_workers = 1;
	CHECK_TEXT(explained("parallel 2", true), hint);
	CHECK_TEXT(unit_notice, "VACUUM has 1 parallel workers at most, not 2");
	max_parallel_workers = 8;
	max_worker_processes = 1;
	CHECK_TEXT(explained("parallel 2", true), hint);
	max_worker_processes = 8;
}

/* test_options_as_the_server_knows_them -- so that it refuses what else is wrong. */
static void
test_options_as_the_server_knows_them(void)
{
	static const struct
	{
		const char *text;
		const char *for_server;
		bool		are_ours;
		bool		have_full;
	}			lists[] = {
		{"", "", false, false},
		{"verbose, latency_target auto, freeze", "verbose, freeze", false, false},
		{"full, verbose", "full, verbose", false, true},
		{"full off", "full off", false, true},
		{"full rewrite, verbose", "full, verbose", true, true},
		{"full inplace, nonsense", "nonsense, full inplace", true, true},
		{"full inplace, full, nonsense", "full, nonsense", true, true},
		{"full, full inplace, verbose", "full, verbose, full inplace", true, true},
		{"full inplace, full inplace", "full inplace", true, true},
		{"verbose inplace", "verbose inplace", false, false},
	};

	for (int i = 0; i < lengthof(lists); i++)
	{
		VacuumStmt	stmt = statement(lists[i].text);

		CHECK_EQ(vacuum_options_are_ours(&stmt), lists[i].are_ours);
		CHECK_EQ(options_have(stmt.options, "full"), lists[i].have_full);
		CHECK_TEXT(text_of(vacuum_options_for_server(stmt.options)), lists[i].for_server);
	}
}

/* repack -- a REPACK of one table with options. */
static RepackStmt
repack(const char *text)
{
	RepackStmt	stmt = {.params = options_of(text),.relation = linitial(named_table(false))};

	unit_case("REPACK (%s) t", text);
	return stmt;
}

/* test_options_of_repack -- they come to those of the VACUUM FULL that does the same. */
static void
test_options_of_repack(void)
{
	const bits32 flags = DEFAULTS | VACOPT_FULL;
	const struct
	{
		const char *text;
		bits32		flags;		/* 0: left to the server */
		int			nworkers;
	}			lists[] = {
		{"", flags, 0}, {"verbose", flags | VACOPT_VERBOSE, 0}, {"verbose off", flags, 0},
		{"analyze", flags | VACOPT_ANALYZE, 0}, {"analyse on", flags | VACOPT_ANALYZE, 0},
		{"parallel 2", flags, 2}, {"parallel 0", flags, -1}, {"concurrently off", flags, 0},
		{"concurrently", 0, 0}, {"nonsense", 0, 0}, {"verbose 2", 0, 0}, {"freeze", 0, 0},
	};
	VacuumOptions options;

	for (int i = 0; i < lengthof(lists); i++)
	{
		RepackStmt	stmt = repack(lists[i].text);

		CHECK_EQ(repack_options_read(&stmt, &options), lists[i].flags != 0);
		CHECK(options.is_repack);
		if (lists[i].flags == 0)
			continue;
		CHECK_EQ(options.params.options, lists[i].flags);
		CHECK_EQ(options.params.nworkers, lists[i].nworkers);
		CHECK_EQ(options.ring_size_kb, -1);
	}
	CHECK_TEXT(text_of(options_without(options_of("parallel 2, verbose, parallel"), "parallel")), "verbose");
}

/* test_repack_that_is_the_servers -- of an index, or CONCURRENTLY, or of columns. */
static void
test_repack_that_is_the_servers(void)
{
	RepackStmt	stmt = repack("");
	VacuumOptions options;

	stmt.usingindex = true;
	CHECK(!repack_options_read(&stmt, &options));
	stmt = repack("parallel 2");
	stmt.usingindex = true;
	UNIT_TRY((void) repack_options_read(&stmt, &options));
	CHECK_TEXT(unit_error, "REPACK option PARALLEL cannot be used with USING INDEX");
	stmt = repack("concurrently, parallel 2");
	UNIT_TRY((void) repack_options_read(&stmt, &options));
	CHECK_TEXT(unit_error, "REPACK option PARALLEL cannot be used with CONCURRENTLY");
	CHECK_TEXT(unit_hint, "Leave out PARALLEL.");
	stmt = repack("parallel 1025");
	UNIT_TRY((void) repack_options_read(&stmt, &options));
	CHECK_TEXT(unit_error, "PARALLEL option must be between 0 and 1024");
	stmt = repack("parallel -1");
	UNIT_TRY((void) repack_options_read(&stmt, &options));
	CHECK_TEXT(unit_error, "PARALLEL option must be between 0 and 1024");

	/* columns are for ANALYZE, and that is for one table */
	stmt = repack("");
	stmt.relation = linitial(named_table(true));
	CHECK(!repack_options_read(&stmt, &options));
	stmt = repack("analyze");
	stmt.relation = linitial(named_table(true));
	CHECK(repack_options_read(&stmt, &options));
	stmt.relation = NULL;
	CHECK(!repack_options_read(&stmt, &options));
	stmt = repack("");
	stmt.relation = NULL;
	CHECK(repack_options_read(&stmt, &options));
}

/* test_a_value_that_no_option_has -- the server refuses it. */
static void
test_a_value_that_no_option_has(void)
{
	VacuumStmt	stmt = statement("verbose list");
	VacuumOptions options;

	linitial_node(DefElem, stmt.options)->arg = (Node *) named_table(false);
	CHECK(!vacuum_options_read(&stmt, &options));
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_flags);
	UNIT_RUN(test_values);
	UNIT_RUN(test_what_is_left_to_the_server);
	UNIT_RUN(test_latency_targets);
	UNIT_RUN(test_wrong_values_are_told_what_to_do);
	UNIT_RUN(test_faults_are_explained);
	UNIT_RUN(test_a_limit_of_workers_is_said);
	UNIT_RUN(test_options_as_the_server_knows_them);
	UNIT_RUN(test_options_of_repack);
	UNIT_RUN(test_repack_that_is_the_servers);
	UNIT_RUN(test_a_value_that_no_option_has);
	return unit_end();
}
