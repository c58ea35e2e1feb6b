/*-------------------------------------------------------------------------
 *
 * store.c
 *	  The dead-TID store as it is, but for its assertions, which raise errors.
 *
 * So they are checked on every server, not only on one that is built with
 * assertions, and a failure is reported with the seed that led to it.  The
 * server's headers keep theirs.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"

#undef Assert
#define Assert(condition) \
	do { \
		if (!(condition)) \
			elog(ERROR, "assertion failed: %s", #condition); \
	} while (0)

#include "engine/dead_tids.c"
#include "engine/dead_tids_collect.c"
#include "engine/dead_tids_lookup.c"
#include "team/attempt.c"
