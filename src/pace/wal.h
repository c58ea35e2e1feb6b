/*-------------------------------------------------------------------------
 *
 * wal.h
 *	  Having our WAL written by the WAL writer.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_WAL_H
#define CYCLONE_WAL_H

extern void wal_keep_pace(void);

#endif							/* CYCLONE_WAL_H */
