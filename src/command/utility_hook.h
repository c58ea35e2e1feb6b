/*-------------------------------------------------------------------------
 *
 * utility_hook.h
 *	  Takes VACUUM statements from the server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_UTILITY_HOOK_H
#define CYCLONE_UTILITY_HOOK_H

extern void utility_hook_init(void);

#endif							/* CYCLONE_UTILITY_HOOK_H */
