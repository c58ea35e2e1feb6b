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

/* utility_hook_init -- install the hook for utility statements; called once, while the library is preloaded. */
extern void utility_hook_init(void);

/*
 * utility_hook_join_others -- where another library has a hook for analyzed statements, have
 * one, too; called in the postmaster, when all libraries are loaded.
 */
extern void utility_hook_join_others(void);

#endif							/* CYCLONE_UTILITY_HOOK_H */
