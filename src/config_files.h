/*-------------------------------------------------------------------------
 *
 * config_files.h
 *	  What a parameter would be if the configuration files were reloaded now.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CONFIG_FILES_H
#define CYCLONE_CONFIG_FILES_H

#include "utils/conffiles.h"
#include "utils/guc.h"

/*
 * Read the files, in the current memory context.  Returns false if they can't be read.
 * Otherwise the caller calls FreeConfigVariables.
 */
extern bool config_files_read(ConfigVariable **files);

/*
 * A parameter's value in the files, or "" if they don't set it: then its default holds.
 * NULL if there is no such parameter, or if this session doesn't take it from the files.
 */
extern const char *config_files_text(const char *name, ConfigVariable *files);

/*
 * The same for a number: *value stays if the text is NULL or is no valid value.  A list of
 * files that is empty is NULL.
 */
extern void config_files_real(const char *name, ConfigVariable *files, double *value);
extern void config_files_int(const char *name, ConfigVariable *files, int *value);

#endif							/* CYCLONE_CONFIG_FILES_H */
