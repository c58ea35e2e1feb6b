/*-------------------------------------------------------------------------
 *
 * store.c
 *	  The dead-TID store as the engine has it, compiled in another file than
 *	  its caller, as there.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "engine/dead_tids.c"
#include "engine/dead_tids_collect.c"
#include "engine/dead_tids_lookup.c"
#include "team/attempt.c"
