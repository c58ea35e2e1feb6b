/*-------------------------------------------------------------------------
 *
 * leftovers.h
 *	  A server that starts after a crash removes files of unfinished rewrites.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LEFTOVERS_H
#define CYCLONE_LEFTOVERS_H

extern void leftovers_init(void);
extern void leftovers_shmem_request(void);
extern void leftovers_shmem_init(void);
extern void leftovers_look_around(void);

#endif							/* CYCLONE_LEFTOVERS_H */
