/*-------------------------------------------------------------------------
 *
 * own_files.h
 *	  What our small files in the data directory have in common.
 *
 * They are journals of new files, the history, notes of running autovacuums and
 * of failed audits, each of records with a checksum at the end.  They differ in how
 * they are opened, synced and replaced: some callers must not raise an error, and
 * some files must survive a crash.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_OWN_FILES_H
#define CYCLONE_OWN_FILES_H

#include "port/pg_crc32c.h"

#define OWN_FOLDER	"pg_cyclone"

/* own_record_crc -- the checksum of a record, over this many bytes in front of it. */
static inline pg_crc32c
own_record_crc(const void *record, size_t size)
{
	pg_crc32c	crc;

	Assert(record != NULL && size > 0);

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, record, size);
	FIN_CRC32C(crc);
	return crc;
}

#endif							/* CYCLONE_OWN_FILES_H */
