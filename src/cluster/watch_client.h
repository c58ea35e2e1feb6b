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

extern int	watch_client(GucAction action);
extern void stop_watching_client(int interval);

#endif							/* CYCLONE_WATCH_CLIENT_H */
