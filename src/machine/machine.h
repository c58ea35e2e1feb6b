/*-------------------------------------------------------------------------
 *
 * machine.h
 *	  How many cores there are for this process, and how much memory nobody uses.
 *
 * See machine.c.  Files are looked for under root: "", or a folder in tests.  Nothing
 * here raises an error.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_MACHINE_H
#define CYCLONE_MACHINE_H

/* Return on how many cores that are online this process may run; 0 if the system doesn't tell. */
extern int	machine_cores(const char *root);

/*
 * Return how many bytes of memory nobody uses, not even for the page cache, and this process
 * may have; -1 if the system doesn't tell.
 */
extern int64 machine_unused_memory(const char *root);

#endif							/* CYCLONE_MACHINE_H */
