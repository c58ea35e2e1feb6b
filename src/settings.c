/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The configuration parameters, all named cyclone.*.
 *
 * Every parameter is defined here, and read through its variable.  The exceptions are
 * the one in pace/pace_settings.c, those of compaction/compaction.c, and
 * those of debug_point.c, which only builds for tests have.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include <limits.h>

#include "miscadmin.h"
#include "port/atomics.h"
#include "postmaster/bgworker_internals.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/guc_tables.h"
#include "utils/varlena.h"

#include "settings.h"

double		cyclone_audit = 0.01;
bool		cyclone_autovacuum = true;
int			cyclone_autovacuum_max_parallel_workers = 2;
char	   *cyclone_databases = NULL;
int			cyclone_history_size = 5000;
int			cyclone_index_wait = 600000;
int			cyclone_log_min_duration = -1;
int			cyclone_max_replica_lag = 0;
int			cyclone_max_wal_rate = 0;
double		cyclone_min_free_disk = 0;
int			cyclone_preserve_page_cache = PRESERVE_AUTO;
bool		cyclone_system_calls = true;
char	   *cyclone_tables = NULL;

static char *min_free_disk = NULL;

/* cyclone.enabled */
typedef enum Enabled
{
	ENABLED_ON,
	ENABLED_OFF,				/* unless a superuser says otherwise */
	ENABLED_NEVER,				/* in the files: for all, whatever they say */
} Enabled;

static int	enabled = ENABLED_ON;

/* Is the value in the files "never"?  NULL as long as there is no shared memory. */
static pg_atomic_uint32 *files_say_never = NULL;

static const struct config_enum_entry enabled_options[] = {
	{"on", ENABLED_ON, false},
	{"off", ENABLED_OFF, false},
	{"never", ENABLED_NEVER, false},
	{"true", ENABLED_ON, true},
	{"false", ENABLED_OFF, true},
	{"yes", ENABLED_ON, true},
	{"no", ENABLED_OFF, true},
	{"1", ENABLED_ON, true},
	{"0", ENABLED_OFF, true},
	{NULL, 0, false}
};

/*
 * What is to hold if the files have an invalid value of a parameter when the server
 * starts: the server warns of it and takes the default, which would be all, or no bound.
 */
static const struct
{
	const char *name;
	const char *narrow_name;	/* the parameter to be set */
	const char *narrow_value;
}			mistakes[] = {
	{"cyclone.enabled", "cyclone.enabled", "off"},
	{"cyclone.autovacuum", "cyclone.autovacuum", "off"},
	{"cyclone.system_calls", "cyclone.system_calls", "off"},
	{"cyclone.databases", "cyclone.databases", "\"\""},
	{"cyclone.tables", "cyclone.tables", "\"\""},
	{"cyclone.compaction_window", "cyclone.compaction", "off"},
	{"cyclone.max_replica_lag", "cyclone.max_replica_lag", "1s"},
	{"cyclone.max_wal_rate", "cyclone.max_wal_rate", "1MB"},
	{"cyclone.adaptive_delay", "cyclone.adaptive_delay", "on"},
};

static bool is_in_files[lengthof(mistakes)];

static const struct config_enum_entry preserve_options[] = {
	{"auto", PRESERVE_AUTO, false},
	{"on", PRESERVE_ON, false},
	{"off", PRESERVE_OFF, false},
	{"true", PRESERVE_ON, true},
	{"false", PRESERVE_OFF, true},
	{"yes", PRESERVE_ON, true},
	{"no", PRESERVE_OFF, true},
	{"1", PRESERVE_ON, true},
	{"0", PRESERVE_OFF, true},
	{NULL, 0, false}
};

/* The parameters that are whole numbers; their defaults are the variables' values. */
static const struct
{
	const char *name;
	const char *about;
	const char *more;
	int		   *value;
	int			least;
	int			most;
	GucContext	context;
	int			unit;
}			numbers[] = {
	{"cyclone.autovacuum_max_parallel_workers",
		"The most parallel workers that all autovacuums together have.",
		"Since PostgreSQL 19 each of them has no more than autovacuum_max_parallel_workers and its table's autovacuum_parallel_workers allow.",
		&cyclone_autovacuum_max_parallel_workers, 0, MAX_PARALLEL_WORKER_LIMIT, PGC_SIGHUP, 0},
	{"cyclone.history_size",
		"How many runs of VACUUM the view cyclone.history remembers.",
		"Each takes 1.1 kB of shared memory, and as much on disk; 0 switches the view off.",
		&cyclone_history_size, 0, HISTORY_MAX_SIZE, PGC_POSTMASTER, 0},
	{"cyclone.index_wait",
		"How long VACUUM (FULL INPLACE) waits for other transactions when it builds an index anew.",
		"After that the index stays as it is, with a warning. Each of several steps has this limit.",
		&cyclone_index_wait, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS},
	{"cyclone.log_min_duration",
		"The time from which on VACUUM commands are logged as autovacuums are.",
		"0 logs all; -1 logs none.",
		&cyclone_log_min_duration, -1, INT_MAX, PGC_SUSET, GUC_UNIT_MS},
	{"cyclone.max_replica_lag",
		"How long standbys and subscribers may lag because of VACUUM.",
		"It writes less WAL as they come to that lag, and stands still for a while at it; 0: it doesn't care.",
		&cyclone_max_replica_lag, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS},
	{"cyclone.max_wal_rate",
		"How much WAL all VACUUMs of the server together write a second.",
		"In kilobytes if it has no unit, images of pages included; 0: as much as they like.",
		&cyclone_max_wal_rate, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_KB},
};

static void define_enabled(void);
static void assign_enabled(int newval, void *extra);
static void narrow_mistakes(void);
static void define_patterns(const char *name, const char *what, const char *more, char **value);
static void define_page_cache_setting(void);
static bool check_patterns(char **newval, void **extra, GucSource source);
static bool check_min_free_disk(char **newval, void **extra, GucSource source);
static void assign_min_free_disk(const char *newval, void *extra);

/* settings_init -- define all parameters that have no place of their own. */
void
settings_init(void)
{
	for (int i = 0; i < lengthof(numbers); i++)
		DefineCustomIntVariable(numbers[i].name, numbers[i].about, numbers[i].more,
								numbers[i].value, *numbers[i].value,
								numbers[i].least, numbers[i].most,
								numbers[i].context, numbers[i].unit, NULL, NULL, NULL);

	DefineCustomRealVariable("cyclone.audit",
							 "The share of pages that VACUUM judges a second time, by other code than its own.",
							 "If the verdicts differ VACUUM ends with an error, and the table is left to PostgreSQL's own.",
							 &cyclone_audit,
							 0.01,
							 0, 1,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("cyclone.autovacuum",
							 "Autovacuum uses pg_cyclone's engine.",
							 "Off leaves it to the server's own.",
							 &cyclone_autovacuum,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	define_patterns("cyclone.databases",
					"The databases in which pg_cyclone takes VACUUM and autovacuum from the server, as a list of patterns.",
					"A pattern is as in a shell. An empty list stands for all of them.",
					&cyclone_databases);

	define_enabled();

	DefineCustomStringVariable("cyclone.min_free_disk",
							   "How much of a disk VACUUM leaves free.",
							   "A share, as \"5%\", of which 10 GB at most count, or a size; 0: it doesn't look. VACUUM waits below it while more WAL is retained than is free, and VACUUM FULL ends.",
							   &min_free_disk,
							   MIN_FREE_DISK_DEFAULT,
							   PGC_SUSET,
							   0,
							   check_min_free_disk, assign_min_free_disk, NULL);

	define_page_cache_setting();

	DefineCustomBoolVariable("cyclone.system_calls",
							 "pg_cyclone makes system calls that PostgreSQL itself does not make.",
							 "Off leaves VACUUM and autovacuum to the server's own. Nobody looks at free disk space, and the page cache is not preserved.",
							 &cyclone_system_calls,
							 true,
							 PGC_POSTMASTER,
							 0,
							 NULL, NULL, NULL);

	define_patterns("cyclone.tables",
					"The tables that pg_cyclone takes from the server, as a list of patterns.",
					"A pattern is as in a shell; with a dot it is of the schema's and the table's name. An empty list stands for all of them.",
					&cyclone_tables);

	narrow_mistakes();
	MarkGUCPrefixReserved("cyclone");
}

/* settings_note_files -- which parameters do the files have? */
void
settings_note_files(void)
{
	for (int i = 0; i < lengthof(mistakes); i++)
		is_in_files[i] = find_option(mistakes[i].name, false, true, 0) != NULL;
}

/* narrow_mistakes -- have parameters whose values were invalid hold for nothing, not for all. */
static void
narrow_mistakes(void)
{
	for (int i = 0; i < lengthof(mistakes); i++)
	{
		if (!is_in_files[i] || find_option(mistakes[i].name, false, true, 0)->source != PGC_S_DEFAULT)
			continue;
		/* another parameter's value in the files is to count no more, until a restart */
		SetConfigOption(mistakes[i].narrow_name, mistakes[i].narrow_value, PGC_POSTMASTER,
						strcmp(mistakes[i].name, mistakes[i].narrow_name) == 0 ? PGC_S_FILE : PGC_S_OVERRIDE);
		ereport(WARNING,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is taken for '%s', as the value of \"%s\" is invalid",
						mistakes[i].narrow_name, mistakes[i].narrow_value, mistakes[i].name)));
	}
}

/* settings_enabled -- does pg_cyclone take tables from the server in this session? */
bool
settings_enabled(void)
{
	return enabled == ENABLED_ON &&
		(files_say_never == NULL || pg_atomic_read_u32(files_say_never) == 0);
}

/* define_enabled -- cyclone.enabled. */
static void
define_enabled(void)
{
	DefineCustomEnumVariable("cyclone.enabled",
							 "VACUUM uses pg_cyclone's engine.",
							 "Off leaves the command to the server's own. In the configuration files never does so in all sessions, whatever was set for databases, roles or sessions.",
							 &enabled,
							 ENABLED_ON,
							 enabled_options,
							 PGC_SUSET,
							 0,
							 NULL, assign_enabled, NULL);
}

/*
 * assign_enabled
 *		The assign hook of the parameter.  The postmaster has the value of the files, and
 *		tells the sessions that have others.
 */
static void
assign_enabled(int newval, void *extra)
{
	if (!IsUnderPostmaster && files_say_never != NULL)
		pg_atomic_write_u32(files_say_never, newval == ENABLED_NEVER);
}

/* settings_shmem_request -- ask for shared memory. */
void
settings_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(pg_atomic_uint32));
}

/* settings_shmem_init -- find it, or make it. */
void
settings_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));
	files_say_never = ShmemInitStruct("pg_cyclone enabled", sizeof(pg_atomic_uint32), &found);
	if (!found)
		pg_atomic_init_u32(files_say_never, enabled == ENABLED_NEVER);
}

/* define_patterns -- a parameter that lists what the engine may take. */
static void
define_patterns(const char *name, const char *what, const char *more, char **value)
{
	DefineCustomStringVariable(name, what, more, value,
							   "",
							   PGC_SUSET,
							   GUC_LIST_INPUT,
							   check_patterns, NULL, NULL);
}

/*
 * check_patterns
 *		The check hook of settings that list patterns (scope.c).
 */
static bool
check_patterns(char **newval, void **extra, GucSource source)
{
	char	   *list = pstrdup(*newval);
	List	   *patterns;
	bool		is_list = SplitGUCList(list, ',', &patterns);

	Assert(newval != NULL && *newval != NULL);

	if (!is_list)
		GUC_check_errdetail("List syntax is invalid.");
	list_free(patterns);
	pfree(list);
	return is_list;
}

/* define_page_cache_setting -- cyclone.preserve_page_cache. */
static void
define_page_cache_setting(void)
{
	DefineCustomEnumVariable("cyclone.preserve_page_cache",
							 "VACUUM leaves the page cache of the operating system as it finds it.",
							 "What it alone has brought there is written back early, and dropped behind it. "
							 "auto does so where the table and its indexes are larger than the memory that nobody uses.",
							 &cyclone_preserve_page_cache,
							 PRESERVE_AUTO,
							 preserve_options,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);
}

/* settings_parse_min_free_disk -- read a value of cyclone.min_free_disk; false if it is invalid. */
bool
settings_parse_min_free_disk(const char *value, double *result)
{
	char	   *end;
	double		percent = strtod(value, &end);
	int			size;

	while (isspace((unsigned char) *end))
		end++;
	if (end != value && *end == '%')
	{
		*result = -percent / 100;
		return end[1] == '\0' && percent >= 0 && percent < 100;
	}
	if (!parse_int(value, &size, GUC_UNIT_MB, NULL) || size < 0)
		return false;
	*result = (double) size * 1024 * 1024;
	return true;
}

/* check_min_free_disk -- the check hook of the parameter. */
static bool
check_min_free_disk(char **newval, void **extra, GucSource source)
{
	double		value;

	if (!settings_parse_min_free_disk(*newval, &value))
	{
		GUC_check_errhint("It is a share, as \"5%%\", a size, as \"10GB\", or 0.");
		return false;
	}
	*extra = guc_malloc(LOG, sizeof(double));
	if (*extra == NULL)
		return false;
	memcpy(*extra, &value, sizeof(value));
	return true;
}

/* assign_min_free_disk -- the assign hook. */
static void
assign_min_free_disk(const char *newval, void *extra)
{
	memcpy(&cyclone_min_free_disk, extra, sizeof(cyclone_min_free_disk));
}
