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

/* utility_hook_init -- install the hooks; called once, while the library is preloaded. */
extern void utility_hook_init(void);

#endif							/* CYCLONE_UTILITY_HOOK_H */
