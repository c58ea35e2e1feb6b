/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The configuration parameters, all named cyclone.*.
 *
 * Every parameter is defined here, in alphabetical order, and read through
 * its variable by whoever needs it.  The exception are those of debug_point.c,
 * which only exist in builds for tests.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pace/pace_settings.h"
#include "settings.h"
#include "utils/guc.h"

bool		cyclone_enabled = true;
int			cyclone_check_disk_space = DISK_SPACE_WARNING;

static const struct config_enum_entry disk_space_checks[] = {
	{"off", DISK_SPACE_OFF, false},
	{"warning", DISK_SPACE_WARNING, false},
	{"error", DISK_SPACE_ERROR, false},
	{NULL, 0, false}
};

/*
 * Defines the parameters and reserves the prefix.
 *
 * To be called once, when the library is loaded, after all other parameters
 * with our prefix have been defined.
 */
void
settings_init(void)
{
	DefineCustomEnumVariable("cyclone.check_disk_space",
							 "VACUUM FULL compares the disk space that it is likely to need with what is free.",
							 "What it does if that may not suffice: nothing, a warning, or an error before any work.",
							 &cyclone_check_disk_space,
							 DISK_SPACE_WARNING, disk_space_checks,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("cyclone.enabled",
							 "VACUUM uses pg_cyclone's engine.",
							 "Off leaves the command to the server's own.",
							 &cyclone_enabled,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomEnumVariable("cyclone.latency_of",
							 "What cyclone.latency_target is about: statements, or transactions.",
							 "A transaction takes what its statements take together, without the time between them.",
							 &cyclone_latency_of,
							 cyclone_latency_of, cyclone_latency_of_options,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomRealVariable("cyclone.latency_percentile",
							 "The percentile of the latency of statements or transactions that is kept at cyclone.latency_target.",
							 NULL,
							 &cyclone_latency_percentile,
							 95,
							 50, 99.9,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	pace_settings_define_target();

	MarkGUCPrefixReserved("cyclone");
}
