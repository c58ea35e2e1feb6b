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

/*
 * Defines the parameters and reserves the prefix.
 *
 * To be called once, when the library is loaded, after all other parameters
 * with our prefix have been defined.
 */
void
settings_init(void)
{
	DefineCustomBoolVariable("cyclone.enabled",
							 "VACUUM uses pg_cyclone's engine.",
							 "Off leaves the command to the server's own.",
							 &cyclone_enabled,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomRealVariable("cyclone.latency_percentile",
							 "The percentile of the latency of statements that is kept at cyclone.latency_target.",
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
