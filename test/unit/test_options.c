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
#include "unit.h"


#define DEFAULTS	(VACOPT_VACUUM | VACOPT_PROCESS_MAIN | VACOPT_PROCESS_TOAST)

static bool is_enabled = true;
int			max_parallel_maintenance_workers = 2;
int			max_parallel_workers = 8;
int			max_worker_processes = 8;
int			VacuumBufferUsageLimit = 2048;
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

/* parse_int -- a size, in one of these units or without. */
bool
parse_int(const char *value, int *result, int flags, const char **hint)
{
	static const char *const units[] = {"", "kB", "MB", "GB"};
	static const double factors[] = {1, 1, 1024, 1024 * 1024};
	char	   *unit;
	double		number = strtod(value, &unit);

	CHECK_EQ(flags, GUC_UNIT_KB);
	while (isspace((unsigned char) *unit))
		unit++;
	for (int i = 0; i < lengthof(units) && unit != value; i++)
		if (strcmp(unit, units[i]) == 0 && number * factors[i] <= INT_MAX)
		{
			*result = (int) (number * factors[i]);
			return true;
		}
	return false;
}

/* node -- a value as the server's parser makes it. */
static Node *
node(char *text)
{
	String	   *string = makeNode(String);
	char	   *end;

	if (isdigit((unsigned char) text[0]) || text[0] == '-')
	{
		long		number = strtol(text, &end, 10);
		Integer    *integer = makeNode(Integer);
		Float	   *decimal = makeNode(Float);

		integer->ival = (int) number;
		decimal->fval = text;
		return *end == '\0' && number == (int) number ? (Node *) integer : (Node *) decimal;
	}
	if (text[0] == '\'')
	{
		text++;
		text[strlen(text) - 1] = '\0';
	}
	string->sval = text;
	return (Node *) string;
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

/* Statements, and what they come to */
static const struct
{
	const char *text;
	bits32		adds;		/* to the defaults */
	bits32		takes;		/* from them */
	int			nworkers;
	int			ring_kb;	/* 0: not said */
	VacOptValue index_cleanup;
	VacOptValue truncate;
	VacOptValue adaptive_delay;
}			readable[] = {
	{""},
	{"verbose", VACOPT_VERBOSE},
	{"verbose off"},
	{"verbose, verbose 0"},
	{"verbose FALSE, verbose TRUE", VACOPT_VERBOSE},
	{"analyze 1, freeze 'on'", VACOPT_ANALYZE | VACOPT_FREEZE},
	{"disable_page_skipping", VACOPT_DISABLE_PAGE_SKIPPING},
	{"skip_locked, skip_database_stats", VACOPT_SKIP_LOCKED | VACOPT_SKIP_DATABASE_STATS},
	{"process_main off",.takes = VACOPT_PROCESS_MAIN},
	{"process_toast false",.takes = VACOPT_PROCESS_TOAST},
	{"only_database_stats, verbose", VACOPT_ONLY_DATABASE_STATS | VACOPT_VERBOSE},
	{"full", VACOPT_FULL},
	{"full rewrite", VACOPT_FULL},
	{"full REWRITE, full off"},
	{"full inplace", VACOPT_INPLACE},
	{"full, full InPlace", VACOPT_INPLACE},
	{"full inplace, full", VACOPT_FULL},
	{"full inplace, full rewrite", VACOPT_FULL},
	{"full inplace, full off"},
	{"full inplace, process_toast off", VACOPT_INPLACE, VACOPT_PROCESS_TOAST},
	{"full inplace, disable_page_skipping", VACOPT_INPLACE | VACOPT_DISABLE_PAGE_SKIPPING},
	{"parallel 3",.nworkers = 3},
	{"parallel 0",.nworkers = -1},
	{"parallel 3, parallel 1024",.nworkers = 1024},
	{"full inplace, parallel 2", VACOPT_INPLACE,.nworkers = 2},
	{"buffer_usage_limit 256",.ring_kb = 256},
	{"buffer_usage_limit '1 GB'",.ring_kb = 1024 * 1024},
	{"buffer_usage_limit 128",.ring_kb = 128},
	{"index_cleanup",.index_cleanup = VACOPTVALUE_AUTO},
	{"index_cleanup AUTO",.index_cleanup = VACOPTVALUE_AUTO},
	{"index_cleanup on, truncate off",.index_cleanup = VACOPTVALUE_ENABLED,.truncate = VACOPTVALUE_DISABLED},
	{"index_cleanup off, truncate",.index_cleanup = VACOPTVALUE_DISABLED,.truncate = VACOPTVALUE_ENABLED},
	{"adaptive_delay",.adaptive_delay = VACOPTVALUE_ENABLED},
	{"adaptive_delay 'TRUE'",.adaptive_delay = VACOPTVALUE_ENABLED},
	{"adaptive_delay 1",.adaptive_delay = VACOPTVALUE_ENABLED},
	{"adaptive_delay off",.adaptive_delay = VACOPTVALUE_DISABLED},
	{"adaptive_delay, adaptive_delay 0",.adaptive_delay = VACOPTVALUE_DISABLED},
	{"adaptive_delay on, full", VACOPT_FULL,.adaptive_delay = VACOPTVALUE_ENABLED},
};

/* test_what_they_come_to -- of values, the last one counts. */
UNIT_TEST(test_what_they_come_to)
{
	VacuumOptions options;
	VacuumStmt	stmt;

	for (int i = 0; i < lengthof(readable); i++)
	{
		bits32		flags = (DEFAULTS | readable[i].adds) & ~readable[i].takes;
		int			age = flags & VACOPT_FREEZE ? 0 : -1;
		int			ring_kb = readable[i].ring_kb;

		stmt = statement(readable[i].text);
		CHECK_EQ(options_have(stmt.options, "adaptive_delay"), readable[i].adaptive_delay != VACOPTVALUE_UNSPECIFIED);
		CHECK(vacuum_options_read(&stmt, &options));
		CHECK_EQ(options.params.options, flags);
		CHECK_EQ(options.params.freeze_min_age, age);
		CHECK_EQ(options.params.freeze_table_age, age);
		CHECK_EQ(options.params.multixact_freeze_min_age, age);
		CHECK_EQ(options.params.multixact_freeze_table_age, age);
		CHECK_EQ(options.params.toast_parent, InvalidOid);
		CHECK_EQ(options.params.nworkers, readable[i].nworkers);
		CHECK_EQ(options.params.index_cleanup, readable[i].index_cleanup);
		CHECK_EQ(options.params.truncate, readable[i].truncate);
		CHECK(!options.is_repack);
		CHECK_EQ(options.adaptive_delay, readable[i].adaptive_delay);
		CHECK_EQ(options.ring_size_kb, ring_kb == 0 ? -1 : ring_kb);
		(void) vacuum_options_make_ring(&options);
		CHECK_EQ(asked_ring_kb, ring_kb == 0 ? 2048 : ring_kb);
	}

	/* no ring at all */
	stmt = statement("buffer_usage_limit 0");
	CHECK(vacuum_options_read(&stmt, &options));
	CHECK_EQ(options.ring_size_kb, 0);
	(void) vacuum_options_make_ring(&options);
	CHECK_EQ(asked_ring_kb, 0);
}

/* test_what_is_left_to_the_server -- it raises an error for it, without one of ours. */
UNIT_TEST(test_what_is_left_to_the_server)
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

/* test_wrong_values_are_told_what_to_do -- where it is for us to say. */
UNIT_TEST(test_wrong_values_are_told_what_to_do)
{
	const struct
	{
		const char *text;
		const char *error;
		const char *hint;
	}			lists[] = {
		{"adaptive_delay 20", "ADAPTIVE_DELAY requires a Boolean value", NULL},
		{"adaptive_delay '20ms'", "ADAPTIVE_DELAY requires a Boolean value", NULL},
		{"adaptive_delay, only_database_stats", "VACUUM option ADAPTIVE_DELAY cannot be used with ONLY_DATABASE_STATS", "Leave ONLY_DATABASE_STATS out."},
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

/*
 * test_faults_are_explained
 *		Before the server says less of them; and a limit of workers, if more are asked
 *		for.
 */
UNIT_TEST(test_faults_are_explained)
{
	const char *raise = "Raise max_parallel_maintenance_workers, and max_parallel_workers and max_worker_processes if these are less.";
	const char *switch_on = "A superuser can say SET cyclone.enabled = on; for the session, a role or a database, unless the configuration files say never.";
	const struct
	{
		const char *text;
		const char *error;
		const char *hint;
		bool		is_off;
		const char *notice;
		int			max_workers;
		int			max_processes;
	}			lists[] = {
		{"full inplce", "invalid value for VACUUM option FULL: \"inplce\"", "FULL takes INPLACE, REWRITE, or a Boolean value. VACUUM (FULL INPLACE) makes a table small while other sessions use it."},
		{"full, inplace", "unrecognized VACUUM option \"inplace\"", "It is a value of FULL: write VACUUM (FULL INPLACE), without a comma."},
		{"rewrite", "unrecognized VACUUM option \"rewrite\"", "It is a value of FULL: write VACUUM (FULL REWRITE), without a comma."},
		{"adaptive_dely", "unrecognized VACUUM option \"adaptive_dely\"", "Perhaps you meant ADAPTIVE_DELAY."},
		{"adaptive on", "unrecognized VACUUM option \"adaptive\"", "Perhaps you meant ADAPTIVE_DELAY."},
		/* only the engine has these, and only a superuser can switch it on */
		{"adaptive_delay off", "VACUUM option ADAPTIVE_DELAY is pg_cyclone's, which is off", switch_on, true},
		{"full inplace", "VACUUM option FULL INPLACE is pg_cyclone's, which is off", switch_on, true},
		{"verbose, full rewrite", "VACUUM option FULL REWRITE is pg_cyclone's, which is off", switch_on, true},
		/* nothing is wrong with these, or it is for the server to say */
		{"full, full off, full inplace, full rewrite, full 2, adaptive_delay, verbose, nonsense"},
		{"full, verbose, nonsense",.is_off = true},
		{"parallel 2, full"},
		{"parallel 0"},
		{"parallel 1025"},
		{"parallel 3",.is_off = true},
		{"full, parallel 3", NULL, raise,.notice = "VACUUM has 2 parallel workers at most, not 3"},
		{"parallel 2", NULL, raise,.notice = "VACUUM has 1 parallel workers at most, not 2",.max_workers = 1},
		{"parallel 2", NULL, raise,.notice = "VACUUM has 1 parallel workers at most, not 2",.max_processes = 1},
	};

	for (int i = 0; i < lengthof(lists); i++)
	{
		VacuumStmt	stmt = statement(lists[i].text);

		is_enabled = !lists[i].is_off;
		max_parallel_workers = lists[i].max_workers > 0 ? lists[i].max_workers : 8;
		max_worker_processes = lists[i].max_processes > 0 ? lists[i].max_processes : 8;
		UNIT_TRY(vacuum_options_explain_faults(&stmt));
		CHECK_TEXT(unit_error, lists[i].error);
		CHECK_TEXT(unit_hint, lists[i].hint);
		CHECK_TEXT(unit_notice, lists[i].notice);
	}
}

/* test_options_as_the_server_knows_them -- so that it refuses what else is wrong. */
UNIT_TEST(test_options_as_the_server_knows_them)
{
	static const struct
	{
		const char *text;
		const char *for_server;
		bool		are_ours;
		bool		have_full;
	}			lists[] = {
		{"", "", false, false},
		{"verbose, adaptive_delay, freeze", "verbose, freeze", false, false},
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
UNIT_TEST(test_options_of_repack)
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
UNIT_TEST(test_repack_that_is_the_servers)
{
	const struct
	{
		const char *text;
		const char *error;
		const char *hint;
		bool		using_index;
		bool		has_column;
		bool		has_no_table;
		bool		is_ours;
	}			lists[] = {
		{"",.using_index = true},
		{"parallel 2", "REPACK option PARALLEL cannot be used with USING INDEX", "Leave out PARALLEL.",.using_index = true},
		{"concurrently, parallel 2", "REPACK option PARALLEL cannot be used with CONCURRENTLY", "Leave out PARALLEL."},
		{"parallel 1025", "PARALLEL option must be between 0 and 1024"},
		{"parallel -1", "PARALLEL option must be between 0 and 1024"},
		/* columns are for ANALYZE, and that is for one table */
		{"",.has_column = true},
		{"analyze",.has_column = true,.is_ours = true},
		{"analyze",.has_no_table = true},
		{"",.has_no_table = true,.is_ours = true},
	};

	for (int i = 0; i < lengthof(lists); i++)
	{
		RepackStmt	stmt = repack(lists[i].text);
		VacuumOptions options;
		volatile bool is_ours = false;

		stmt.usingindex = lists[i].using_index;
		stmt.relation = lists[i].has_no_table ? NULL : linitial(named_table(lists[i].has_column));
		UNIT_TRY(is_ours = repack_options_read(&stmt, &options));
		CHECK_TEXT(unit_error, lists[i].error);
		CHECK_TEXT(unit_hint, lists[i].hint);
		CHECK_EQ(is_ours, lists[i].is_ours);
	}
}

/* test_a_value_that_no_option_has -- the server refuses it. */
UNIT_TEST(test_a_value_that_no_option_has)
{
	VacuumStmt	stmt = statement("verbose list");
	VacuumOptions options;

	linitial_node(DefElem, stmt.options)->arg = (Node *) named_table(false);
	CHECK(!vacuum_options_read(&stmt, &options));
}
