/*-------------------------------------------------------------------------
 *
 * config_files.c
 *	  What a parameter would be if the configuration files were reloaded now.
 *
 * In the middle of a parallel command the server must not reload them.  These functions
 * read them without setting anything.  As usual, a value that was set in the session,
 * for the user or for the database takes precedence over the files.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/guc_tables.h"

#include "compat.h"
#include "config_files.h"

/*
 * config_files_read -- see config_files.h.
 *
 * Errors are logged at DEBUG2 only: the server reads the files, too, and logs them.
 */
bool
config_files_read(ConfigVariable **files)
{
	ConfigVariable *tail = NULL;

	*files = NULL;
	if (ParseConfigFile(ConfigFileName, true, NULL, 0, CONF_FILE_START_DEPTH,
						DEBUG2, files, &tail) &&
		ParseConfigFile(PG_AUTOCONF_FILENAME, false, NULL, 0, CONF_FILE_START_DEPTH,
						DEBUG2, files, &tail))
		return true;
	FreeConfigVariables(*files);
	return false;
}

/* config_files_text -- see config_files.h. */
const char *
config_files_text(const char *name, ConfigVariable *files)
{
	struct config_generic *parameter = find_option(name, false, true, 0);
	const char *value = "";

	if (parameter == NULL || parameter->source > PGC_S_FILE)
		return NULL;
	for (ConfigVariable *item = files; item != NULL; item = item->next)
		if (!item->ignore && pg_strcasecmp(item->name, name) == 0)
			value = item->value;
	return value;
}

/* config_files_real -- see config_files.h. */
void
config_files_real(const char *name, ConfigVariable *files, double *value)
{
	const char *string = config_files_text(name, files);
	struct config_generic *option = find_option(name, false, true, 0);
	struct config_real *parameter;
	double		number;

	if (string == NULL)
		return;
	parameter = compat_guc_real(option);
	if (*string == '\0')
		*value = parameter->boot_val;
	else if (parse_real(string, &number, option->flags, NULL) &&
			 number >= parameter->min && number <= parameter->max)
		*value = number;
}

/* config_files_int -- see config_files.h. */
void
config_files_int(const char *name, ConfigVariable *files, int *value)
{
	const char *string = config_files_text(name, files);
	struct config_generic *option = find_option(name, false, true, 0);
	struct config_int *parameter;
	int			number;

	if (string == NULL)
		return;
	parameter = compat_guc_int(option);
	if (*string == '\0')
		*value = parameter->boot_val;
	else if (parse_int(string, &number, option->flags, NULL) &&
			 number >= parameter->min && number <= parameter->max)
		*value = number;
}
