/*-------------------------------------------------------------------------
 *
 * config_files.h
 *	  What a parameter would be if the configuration files were reloaded now.
 *
 * See config_files.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CONFIG_FILES_H
#define CYCLONE_CONFIG_FILES_H

#include "utils/conffiles.h"
#include "utils/guc.h"

extern bool config_files_read(ConfigVariable **files);
extern const char *config_files_text(const char *name, ConfigVariable *files);
extern void config_files_real(const char *name, ConfigVariable *files, double *value);
extern void config_files_int(const char *name, ConfigVariable *files, int *value);

#endif							/* CYCLONE_CONFIG_FILES_H */
