/*-------------------------------------------------------------------------
 *
 * syntax_hint.h
 *	  Says what to type where the server's grammar refuses a VACUUM.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SYNTAX_HINT_H
#define CYCLONE_SYNTAX_HINT_H

/* syntax_hint_init -- called once, while the library is preloaded. */
extern void syntax_hint_init(void);

#endif							/* CYCLONE_SYNTAX_HINT_H */
