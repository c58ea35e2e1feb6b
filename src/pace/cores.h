/*-------------------------------------------------------------------------
 *
 * cores.h
 *	  How many cores there are for this process.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CORES_H
#define CYCLONE_CORES_H

/*
 * At least 1, and 0 if the system doesn't tell.  root is where its files are: "", or a
 * folder in tests.  Reads files; takes no lock, uses no memory of the server's, and
 * raises no error.
 */
extern int	cores_for_process(const char *root);

#endif							/* CYCLONE_CORES_H */
