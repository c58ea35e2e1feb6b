/*-------------------------------------------------------------------------
 *
 * watch_client.c
 *	  Notices that the client has gone away.
 *
 * The server finds a lost connection when it sends something, and meanwhile
 * only if client_connection_check_interval says so when a statement begins.
 * What runs on many nodes should not go on for nobody, so we have it look in
 * any case.  The setting is what the server goes by for each next look.
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

/* How often to look, in ms */
#define LOOK_MS		500

static void set_interval(int ms, GucAction action);

/*
 * watch_client
 *		Have the server look for a lost connection from now on.
 *
 * That holds for a level of settings (GUC_ACTION_SAVE), or, over several
 * transactions, until stop_watching_client is told what this returned
 * (GUC_ACTION_SET).  Where the system can't tell, nothing happens.
 */
int
watch_client(GucAction action)
{
	int			before = client_connection_check_interval;

	if (before == 0 || before > LOOK_MS)
		set_interval(LOOK_MS, action);
	if (client_connection_check_interval > 0 && MyProcPort != NULL)
		enable_timeout_after(CLIENT_CONNECTION_CHECK_TIMEOUT, client_connection_check_interval);
	return before;
}

/* stop_watching_client -- do as the settings say again. */
void
stop_watching_client(int interval)
{
	if (client_connection_check_interval != interval)
		set_interval(interval, GUC_ACTION_SET);
}

/* set_interval -- set the parameter. */
static void
set_interval(int ms, GucAction action)
{
	(void) set_config_option("client_connection_check_interval", psprintf("%d", ms),
							 PGC_USERSET, PGC_S_SESSION, action, true, DEBUG1, false);
}
