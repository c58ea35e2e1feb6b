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

/*
 * leftovers_init is called while the library is preloaded.  leftovers_look_around, in
 * the postmaster, looks for what a crash has left when shared memory is ready; it
 * raises no error.  Background workers do the rest.
 */
extern void leftovers_init(void);
extern void leftovers_shmem_request(void);
extern void leftovers_shmem_init(void);
extern void leftovers_look_around(void);

#endif							/* CYCLONE_LEFTOVERS_H */
