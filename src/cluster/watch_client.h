/*-------------------------------------------------------------------------
 *
 * watch_client.h
 *	  Notices that the client has gone away.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_WATCH_CLIENT_H
#define CYCLONE_WATCH_CLIENT_H

#include "utils/guc.h"

/*
 * watch_client
 *		Have the server check from now on whether the connection is lost.
 *
 * It does so until the caller's level of settings ends (GUC_ACTION_SAVE), or, over
 * several transactions, until watch_client_end gets what this returned
 * (GUC_ACTION_SET).  Where the system has no such check, nothing happens.
 */
extern int	watch_client(GucAction action);

/* watch_client_end -- set the interval back to what watch_client returned. */
extern void watch_client_end(int interval);

#endif							/* CYCLONE_WATCH_CLIENT_H */
