/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Reads the options of a VACUUM or REPACK statement.
 *
 * The server reads the same options in ExecVacuum or ExecRepack, and raises an error for
 * each that it refuses.  The functions here return false for all of these: the caller
 * leaves the statement to the server, which raises its own error, with its own text and
 * position.  So this file must refuse whatever the server refuses.  If it refuses more,
 * the server runs the statement.
 *
 * The exceptions are DRY_RUN, ADAPTIVE_DELAY, FULL REWRITE, FULL INPLACE, PARALLEL with
 * FULL and PARALLEL of REPACK.  The server doesn't know these, so we raise their errors.
 *
 * Takes no locks and reads no catalogs.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/defrem.h"
#include "miscadmin.h"
#include "postmaster/bgworker_internals.h"
#include "utils/guc.h"

#include "command/options.h"
#include "compat.h"
#include "pace/pace.h"
#include "settings.h"

/* The options that are a flag. */
static const struct
{
	const char *name;
	bits32		flag;
}			flag_options[] = {
	{"analyze", VACOPT_ANALYZE},
	{"disable_page_skipping", VACOPT_DISABLE_PAGE_SKIPPING},
	{"freeze", VACOPT_FREEZE},
	{"only_database_stats", VACOPT_ONLY_DATABASE_STATS},
	{"process_main", VACOPT_PROCESS_MAIN},
	{"process_toast", VACOPT_PROCESS_TOAST},
	{"skip_database_stats", VACOPT_SKIP_DATABASE_STATS},
	{"skip_locked", VACOPT_SKIP_LOCKED},
	{"verbose", VACOPT_VERBOSE},
};

static bool read_option(const DefElem *def, VacuumOptions *options);
static bool read_flag(const DefElem *def, bits32 flag, bits32 *flags);
static bool read_full(const DefElem *def, VacuumParams *params);
static bool says(const DefElem *def, const char *word);
static bool read_index_cleanup(const DefElem *def, VacOptValue *value);
static bool read_truncate(const DefElem *def, VacOptValue *value);
static bool read_parallel(const DefElem *def, int *nworkers);
static bool read_ring_size(const DefElem *def, int *ring_size_kb);
static const char *option_string(const DefElem *def);
static bool read_our_bool(const DefElem *def, const char *name);
static bool read_bool(const DefElem *def, bool *value);
static const char *hint_for_unknown(const char *name);
static void explain_full(const DefElem *def);
static void explain_parallel(const DefElem *def);
static bool options_agree(const VacuumStmt *stmt, const VacuumOptions *options);

/* vacuum_options_read -- see options.h. */
bool
vacuum_options_read(const VacuumStmt *stmt, VacuumOptions *options)
{
	VacuumParams *params = &options->params;

	memset(options, 0, sizeof(*options));
	options->ring_size_kb = -1;
	params->options = VACOPT_VACUUM | VACOPT_PROCESS_MAIN | VACOPT_PROCESS_TOAST;
	compat_set_log_duration(params, -1);
	params->index_cleanup = VACOPTVALUE_UNSPECIFIED;
	params->truncate = VACOPTVALUE_UNSPECIFIED;
	params->toast_parent = InvalidOid;
	compat_set_eager_failure_rate(params);

	foreach_node(DefElem, def, stmt->options)
	{
		if (!read_option(def, options))
			return false;
	}
	/* -1 stands for the settings */
	params->freeze_min_age = (params->options & VACOPT_FREEZE) ? 0 : -1;
	params->freeze_table_age = params->freeze_min_age;
	params->multixact_freeze_min_age = params->freeze_min_age;
	params->multixact_freeze_table_age = params->freeze_min_age;

	return options_agree(stmt, options);
}

/* vacuum_options_have_dry_run -- see options.h. */
bool
vacuum_options_have_dry_run(const VacuumStmt *stmt, bool *on)
{
	bool		found = false;

	foreach_node(DefElem, def, stmt->options)
	{
		if (strcmp(def->defname, "dry_run") != 0)
			continue;
		found = true;
		*on = read_our_bool(def, "DRY_RUN");
	}
	return found;
}

/* vacuum_options_are_ours -- see options.h. */
bool
vacuum_options_are_ours(const VacuumStmt *stmt)
{
	foreach_node(DefElem, def, stmt->options)
	{
		if (strcmp(def->defname, "full") == 0 &&
			(says(def, "rewrite") || says(def, "inplace")))
			return true;
	}
	return false;
}

/* options_have -- see options.h. */
bool
options_have(const List *list, const char *name)
{
	foreach_node(DefElem, def, list)
	{
		if (strcmp(def->defname, name) == 0)
			return true;
	}
	return false;
}

/* options_without -- see options.h. */
List *
options_without(const List *list, const char *name)
{
	List	   *others = NIL;

	foreach_node(DefElem, def, list)
	{
		if (strcmp(def->defname, name) != 0)
			others = lappend(others, def);
	}
	return others;
}

/* vacuum_options_for_server -- see options.h. */
List *
vacuum_options_for_server(List *list)
{
	List	   *others = NIL;
	DefElem    *inplace = NULL;

	foreach_node(DefElem, def, list)
	{
		if (strcmp(def->defname, "adaptive_delay") == 0)
			continue;
		if (strcmp(def->defname, "full") == 0)
		{
			inplace = says(def, "inplace") ? def : NULL;
			if (inplace != NULL)
				continue;
			if (says(def, "rewrite"))
				def->arg = NULL;
		}
		others = lappend(others, def);
	}
	return inplace == NULL ? others : lappend(others, inplace);
}

/* vacuum_options_explain_faults -- see options.h. */
void
vacuum_options_explain_faults(const VacuumStmt *stmt)
{
	foreach_node(DefElem, def, stmt->options)
	{
		if (strcmp(def->defname, "full") == 0)
			explain_full(def);
		else if (hint_for_unknown(def->defname) != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("unrecognized VACUUM option \"%s\"", def->defname),
					 errhint("%s", _(hint_for_unknown(def->defname)))));
		else if (strcmp(def->defname, "adaptive_delay") == 0)
			vacuum_options_need_engine("ADAPTIVE_DELAY");
		else if (strcmp(def->defname, "parallel") == 0)
			explain_parallel(def);
	}
}

/* hint_for_unknown -- what is likely meant by an option that nobody knows; NULL if it isn't clear. */
static const char *
hint_for_unknown(const char *name)
{
	if (strcmp(name, "inplace") == 0)
		return gettext_noop("It is a value of FULL: write VACUUM (FULL INPLACE), without a comma.");
	if (strcmp(name, "rewrite") == 0)
		return gettext_noop("It is a value of FULL: write VACUUM (FULL REWRITE), without a comma.");
	if (strcmp(name, "concurrently") == 0)
		return gettext_noop("VACUUM (FULL INPLACE) makes a table small while other sessions use it.");
	if (strcmp(name, "workers") == 0)
		return gettext_noop("Perhaps you meant PARALLEL.");
	if (strcmp(name, "dryrun") == 0 || strcmp(name, "dry") == 0)
		return gettext_noop("Perhaps you meant DRY_RUN.");
	if (strncmp(name, "adaptive", strlen("adaptive")) == 0 && strcmp(name, "adaptive_delay") != 0)
		return gettext_noop("Perhaps you meant ADAPTIVE_DELAY.");
	return NULL;
}

/* explain_full -- raises the error for a value of FULL, if it is wrong. */
static void
explain_full(const DefElem *def)
{
	bool		on;

	if (says(def, "inplace"))
		vacuum_options_need_engine("FULL INPLACE");
	else if (says(def, "rewrite"))
		vacuum_options_need_engine("FULL REWRITE");
	else if (def->arg != NULL && IsA(def->arg, String) && !read_bool(def, &on))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid value for VACUUM option FULL: \"%s\"", option_string(def)),
				 errhint("FULL takes INPLACE, REWRITE, or a Boolean value. VACUUM (FULL INPLACE) makes a table small while other sessions use it.")));
}

/* vacuum_options_need_engine -- raises an error for an option if the engine is off. */
void
vacuum_options_need_engine(const char *option)
{
	if (!settings_enabled())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("VACUUM option %s is pg_cyclone's, which is off", option),
				 errhint("A superuser can say SET cyclone.enabled = on; for the session, a role or a database, unless the configuration files say never.")));
}

/* explain_parallel -- says if more workers are asked for than the server allows. */
static void
explain_parallel(const DefElem *def)
{
	int			most = Min(max_parallel_maintenance_workers,
						   Min(max_parallel_workers, max_worker_processes));
	int			asked;

	if (settings_enabled() && read_parallel(def, &asked) && asked > most)
		ereport(NOTICE,
				(errmsg("VACUUM has %d parallel workers at most, not %d", most, asked),
				 errhint("Raise max_parallel_maintenance_workers, and max_parallel_workers and max_worker_processes if these are less.")));
}

/* vacuum_options_make_ring -- see options.h. */
BufferAccessStrategy
vacuum_options_make_ring(const VacuumOptions *options)
{
	int			size_kb = options->ring_size_kb;

	if (size_kb == -1)
		size_kb = VacuumBufferUsageLimit;
	Assert(size_kb >= 0);

	return GetAccessStrategyWithSize(BAS_VACUUM, size_kb);
}

/*
 * read_option
 *		Reads one option into *options; false if the server refuses it.
 *
 * An option given twice is no error: the last one counts.
 */
static bool
read_option(const DefElem *def, VacuumOptions *options)
{
	VacuumParams *params = &options->params;

	for (int i = 0; i < lengthof(flag_options); i++)
	{
		if (strcmp(def->defname, flag_options[i].name) == 0)
			return read_flag(def, flag_options[i].flag, &params->options);
	}

	if (strcmp(def->defname, "buffer_usage_limit") == 0)
		return read_ring_size(def, &options->ring_size_kb);
	if (strcmp(def->defname, "full") == 0)
		return read_full(def, params);
	if (strcmp(def->defname, "index_cleanup") == 0)
		return read_index_cleanup(def, &params->index_cleanup);
	if (strcmp(def->defname, "truncate") == 0)
		return read_truncate(def, &params->truncate);
	if (strcmp(def->defname, "parallel") == 0)
		return read_parallel(def, &params->nworkers);
	if (strcmp(def->defname, "adaptive_delay") == 0)
	{
		options->adaptive_delay = read_our_bool(def, "ADAPTIVE_DELAY") ?
			VACOPTVALUE_ENABLED : VACOPTVALUE_DISABLED;
		return true;
	}

	return false;
}

/*
 * read_flag
 *		Sets or clears a flag, false if the option isn't Boolean.
 */
static bool
read_flag(const DefElem *def, bits32 flag, bits32 *flags)
{
	bool		on;

	if (!read_bool(def, &on))
		return false;
	if (on)
		*flags |= flag;
	else
		*flags &= ~flag;

	return true;
}

/*
 * read_full
 *		Reads FULL, which is Boolean, or REWRITE, which is the same as true, or
 *		INPLACE.
 */
static bool
read_full(const DefElem *def, VacuumParams *params)
{
	params->options &= ~VACOPT_INPLACE;
	if (says(def, "inplace"))
	{
		params->options &= ~VACOPT_FULL;
		params->options |= VACOPT_INPLACE;
		return true;
	}
	if (says(def, "rewrite"))
	{
		params->options |= VACOPT_FULL;
		return true;
	}
	return read_flag(def, VACOPT_FULL, &params->options);
}

/*
 * says
 *		Is an option's value this word, in upper or lower case?
 */
static bool
says(const DefElem *def, const char *word)
{
	const char *value = option_string(def);

	return value != NULL && pg_strcasecmp(value, word) == 0;
}

/*
 * read_index_cleanup
 *		Reads INDEX_CLEANUP, which is AUTO or Boolean, AUTO without a value.
 */
static bool
read_index_cleanup(const DefElem *def, VacOptValue *value)
{
	if (def->arg != NULL && !says(def, "auto"))
		return read_truncate(def, value);
	*value = VACOPTVALUE_AUTO;
	return true;
}

/*
 * read_truncate
 *		Reads TRUNCATE, which is Boolean.
 */
static bool
read_truncate(const DefElem *def, VacOptValue *value)
{
	bool		on;

	if (!read_bool(def, &on))
		return false;
	*value = on ? VACOPTVALUE_ENABLED : VACOPTVALUE_DISABLED;

	return true;
}

/*
 * read_parallel
 *		Reads PARALLEL: PARALLEL 0 becomes -1, as 0 means that there is no PARALLEL.
 */
static bool
read_parallel(const DefElem *def, int *nworkers)
{
	int			number;

	if (def->arg == NULL || !IsA(def->arg, Integer))
		return false;
	number = intVal(def->arg);
	if (number < 0 || number > MAX_PARALLEL_WORKER_LIMIT)
		return false;
	*nworkers = number == 0 ? -1 : number;

	return true;
}

/*
 * read_ring_size
 *		Reads BUFFER_USAGE_LIMIT: a size with or without a unit, 0 or in bounds.
 */
static bool
read_ring_size(const DefElem *def, int *ring_size_kb)
{
	const char *word = option_string(def);
	int			size_kb;

	if (word == NULL ||
		!parse_int(word, &size_kb, GUC_UNIT_KB, NULL))
		return false;
	if (size_kb != 0 &&
		(size_kb < MIN_BAS_VAC_RING_SIZE_KB ||
		 size_kb > MAX_BAS_VAC_RING_SIZE_KB))
		return false;
	*ring_size_kb = size_kb;

	return true;
}

/*
 * option_string
 *		Returns an option's value as text; NULL if it has none, or one of another type.
 */
static const char *
option_string(const DefElem *def)
{
	if (def->arg == NULL)
		return NULL;

	switch (nodeTag(def->arg))
	{
		case T_Boolean:
		case T_Float:
		case T_Integer:
		case T_String:
			/* it only reads, although its argument isn't const */
			return defGetString(unconstify(DefElem *, def));
		default:
			return NULL;
	}
}

/* read_our_bool -- the value of an option that the server doesn't know; raises an error if it isn't Boolean. */
static bool
read_our_bool(const DefElem *def, const char *name)
{
	bool		on;

	if (!read_bool(def, &on))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("%s requires a Boolean value", name)));
	return on;
}

/*
 * read_bool
 *		Reads a Boolean: no value, 0, 1 or one of the four words; nothing else.
 */
static bool
read_bool(const DefElem *def, bool *value)
{
	const char *word;

	if (def->arg == NULL)
	{
		*value = true;
		return true;
	}
	if (IsA(def->arg, Integer))
	{
		*value = intVal(def->arg) == 1;
		return intVal(def->arg) == 0 || intVal(def->arg) == 1;
	}

	word = option_string(def);
	if (word == NULL)
		return false;
	*value = pg_strcasecmp(word, "true") == 0 ||
		pg_strcasecmp(word, "on") == 0;

	return *value ||
		pg_strcasecmp(word, "false") == 0 ||
		pg_strcasecmp(word, "off") == 0;
}

/*
 * options_agree
 *		Do the options fit together, and with the list of tables?
 */
static bool
options_agree(const VacuumStmt *stmt, const VacuumOptions *options)
{
	bits32		flags = options->params.options;

	if (flags & VACOPT_FULL)
	{
		if (options->ring_size_kb != -1 && !(flags & VACOPT_ANALYZE))
			return false;
		if (flags & VACOPT_DISABLE_PAGE_SKIPPING)
			return false;
		if (!(flags & VACOPT_PROCESS_TOAST))
			return false;
	}

	if (flags & VACOPT_INPLACE)
	{
		if (flags & VACOPT_ONLY_DATABASE_STATS)
			vacuum_options_refuse("FULL INPLACE", "ONLY_DATABASE_STATS");
		if (!(flags & VACOPT_PROCESS_MAIN))
			vacuum_options_refuse("FULL INPLACE", "PROCESS_MAIN false");
		if (options->params.truncate == VACOPTVALUE_DISABLED)
			vacuum_options_refuse("FULL INPLACE", "TRUNCATE false");
	}

	if (flags & VACOPT_ONLY_DATABASE_STATS)
	{
		if (options->adaptive_delay != VACOPTVALUE_UNSPECIFIED)
			vacuum_options_refuse("ADAPTIVE_DELAY", "ONLY_DATABASE_STATS");
		if (stmt->rels != NIL)
			return false;
		if (flags & ~(VACOPT_VACUUM | VACOPT_VERBOSE |
					  VACOPT_PROCESS_MAIN | VACOPT_PROCESS_TOAST |
					  VACOPT_ONLY_DATABASE_STATS))
			return false;
	}

	if (!(flags & VACOPT_ANALYZE))
	{
		foreach_node(VacuumRelation, named, stmt->rels)
		{
			if (named->va_cols == NIL)
				continue;
			/* the server's error would be about the value of FULL */
			if (flags & VACOPT_INPLACE)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("ANALYZE option must be specified when a column list is provided")));
			return false;
		}
	}

	return true;
}

/* vacuum_options_refuse -- see options.h. */
void
vacuum_options_refuse(const char *option, const char *with)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("VACUUM option %s cannot be used with %s", option, with),
			 errhint("Leave %s out.", with)));
}

/* repack_options_read -- see options.h. */
bool
repack_options_read(const RepackStmt *stmt, VacuumOptions *options)
{
	VacuumParams *params = &options->params;
	bool		has_parallel = options_have(stmt->params, "parallel");
	bool		concurrently = false;

	memset(options, 0, sizeof(*options));
	options->is_repack = true;
	options->ring_size_kb = -1;
	params->options = VACOPT_VACUUM | VACOPT_FULL | VACOPT_PROCESS_MAIN | VACOPT_PROCESS_TOAST;
	compat_set_log_duration(params, -1);

	foreach_node(DefElem, def, stmt->params)
	{
		bool		is_right = false;

		if (strcmp(def->defname, "parallel") == 0)
		{
			is_right = read_parallel(def, &params->nworkers);
			if (!is_right)
				ereport(ERROR,
						(errcode(ERRCODE_SYNTAX_ERROR),
						 errmsg("%s option must be between 0 and %d", "PARALLEL", MAX_PARALLEL_WORKER_LIMIT)));
		}
		else if (strcmp(def->defname, "verbose") == 0)
			is_right = read_flag(def, VACOPT_VERBOSE, &params->options);
		else if (strcmp(def->defname, "analyze") == 0 || strcmp(def->defname, "analyse") == 0)
			is_right = read_flag(def, VACOPT_ANALYZE, &params->options);
		else if (strcmp(def->defname, "concurrently") == 0)
			is_right = read_bool(def, &concurrently);
		if (!is_right)
			return false;
	}

	if (has_parallel && (concurrently || stmt->usingindex))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("REPACK option PARALLEL cannot be used with %s",
						concurrently ? "CONCURRENTLY" : "USING INDEX"),
				 errhint("Leave out PARALLEL.")));
	if (concurrently || stmt->usingindex)
		return false;

	/* ANALYZE is for one table, and columns are for ANALYZE */
	if (params->options & VACOPT_ANALYZE)
		return stmt->relation != NULL;
	return stmt->relation == NULL || stmt->relation->va_cols == NIL;
}
