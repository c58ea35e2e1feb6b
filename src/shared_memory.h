/*-------------------------------------------------------------------------
 *
 * shared_memory.h
 *	  All that processes share for as long as the server runs.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SHARED_MEMORY_H
#define CYCLONE_SHARED_MEMORY_H

/* To be called once, in the postmaster, while the library is preloaded. */
extern void shared_memory_init(void);

#endif							/* CYCLONE_SHARED_MEMORY_H */
