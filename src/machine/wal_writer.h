/*-------------------------------------------------------------------------
 *
 * wal_writer.h
 *	  Having our WAL written by the WAL writer.
 *
 * See wal_writer.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_WAL_WRITER_H
#define CYCLONE_WAL_WRITER_H

/* In a loop that writes much WAL, with no lock held.  Sleeps for some ms, serves interrupts. */
extern void wal_keep_pace(void);

#endif							/* CYCLONE_WAL_WRITER_H */
