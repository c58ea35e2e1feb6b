/*-------------------------------------------------------------------------
 *
 * at_exit.h
 *	  What a process does before it ends, in one of the server's places for that.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_AT_EXIT_H
#define CYCLONE_AT_EXIT_H

/*
 * Have a routine called before the process ends, as before_shmem_exit does, and once for all:
 * again it has no effect.  The routine registered last comes first.  Call only in a process
 * that is connected to a database.
 */
extern void at_exit(void (*routine) (void));

#endif							/* CYCLONE_AT_EXIT_H */
