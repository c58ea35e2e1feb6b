/*-------------------------------------------------------------------------
 *
 * watch_client.c
 *	  Notices that the client has gone away.
 *
 * The server finds a lost connection when it sends something, and between that only if
 * client_connection_check_interval isn't 0 when a statement begins.  A VACUUM on many
 * nodes has to end with its client, so we set the interval, and start the first check
 * ourselves.  The server starts each further one by the setting.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/timeout.h"

#include "cluster/watch_client.h"
#include "compat.h"

/* How often the server checks the connection at least, in ms */
#define LOOK_MS		500

static void set_interval(int ms, GucAction action);

/* watch_client -- see watch_client.h. */
int
watch_client(GucAction action)
{
	int			before = client_connection_check_interval;

	Assert(action == GUC_ACTION_SAVE || action == GUC_ACTION_SET);

	if (before == 0 || before > LOOK_MS)
		set_interval(LOOK_MS, action);
	if (client_connection_check_interval > 0 && MyProcPort != NULL)
		enable_timeout_after(CLIENT_CONNECTION_CHECK_TIMEOUT, client_connection_check_interval);
	return before;
}

/* watch_client_end -- see watch_client.h. */
void
watch_client_end(int interval)
{
	Assert(interval >= 0);
	if (client_connection_check_interval != interval)
		set_interval(interval, GUC_ACTION_SET);
}

/* set_interval -- set the parameter to this many ms. */
static void
set_interval(int ms, GucAction action)
{
	Assert(ms >= 0);
	(void) set_config_option("client_connection_check_interval", psprintf("%d", ms),
							 PGC_USERSET, PGC_S_SESSION, action, true, DEBUG1, false);
}
