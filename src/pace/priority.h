/*-------------------------------------------------------------------------
 *
 * priority.h
 *	  Whose turn it is on a core: others', as far as the system lets us choose.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PRIORITY_H
#define CYCLONE_PRIORITY_H

extern void priority_batch(void);
extern void priority_restore(void);

#endif							/* CYCLONE_PRIORITY_H */
