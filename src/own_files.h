/*-------------------------------------------------------------------------
 *
 * own_files.h
 *	  What our small files in the data directory have in common.
 *
 * They are journals of new files, the history, notes of running autovacuums and
 * of failed audits.  Each has records of one size, with a checksum at their end.
 * own_file_write writes them to their place, and own_record_is_whole tells a reader which
 * ones were torn.
 *
 * The rest is each file's own, because what is right for one is wrong for another:
 *
 * - Opening.  A signal handler writes notes, and an error may be on its way where the
 *	 history is written: both use descriptors that the server doesn't keep account of.
 *	 The server closes the descriptor of a journal when its transaction ends.
 * - Reading.  A torn record ends a journal, as those behind it were written later.
 *	 Notes and the history have a record for each place, so it is a place without one.
 * - Replacing, syncing.  Journals and failed audits must survive a loss of power, and
 *	 are synced.  The history and notes need not, and nobody waits for the disk.
 * - Telling.  Journals report at the caller's level, the history once a process, and
 *	 notes let their caller decide, who may be a signal handler.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_OWN_FILES_H
#define CYCLONE_OWN_FILES_H

#include <unistd.h>

#include "port/pg_crc32c.h"

#include "small_file.h"

#define OWN_FOLDER	SMALL_FILE_FOLDER

/* Nothing here raises an error or takes a lock, and a signal handler may call it. */

/* own_record_crc -- the checksum that a record has behind this many bytes, of these. */
static inline pg_crc32c
own_record_crc(const void *record, size_t size)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, record, size);
	FIN_CRC32C(crc);
	return crc;
}

/* own_record_seal -- fill in the checksum, when all else is filled in. */
static inline void
own_record_seal(void *record, size_t size)
{
	pg_crc32c	crc = own_record_crc(record, size);

	Assert(size > 0 && size % sizeof(crc) == 0);
	memcpy((char *) record + size, &crc, sizeof(crc));
}

/* own_record_is_whole -- has it the checksum that it was sealed with? */
static inline bool
own_record_is_whole(const void *record, size_t size)
{
	pg_crc32c	crc;

	Assert(size > 0 && size % sizeof(crc) == 0);
	memcpy(&crc, (const char *) record + size, sizeof(crc));
	return EQ_CRC32C(crc, own_record_crc(record, size));
}

/*
 * own_file_write
 *		Write to a place of an open file.  Returns false, with errno set, unless all of it
 *		was written; a part of it may have been.
 */
static inline bool
own_file_write(int fd, const void *what, size_t size, off_t place)
{
	Assert(fd >= 0 && place >= 0);
	errno = ENOSPC;				/* which a short write means */
	return pwrite(fd, what, size, place) == (ssize_t) size;
}

#endif							/* CYCLONE_OWN_FILES_H */
