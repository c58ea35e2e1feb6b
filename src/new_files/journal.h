/*-------------------------------------------------------------------------
 *
 * journal.h
 *	  Notes on disk about the files that a VACUUM FULL creates.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_JOURNAL_H
#define CYCLONE_JOURNAL_H

#include "access/transam.h"
#include "nodes/pg_list.h"
#include "port/pg_crc32c.h"
#include "storage/relfilelocator.h"

typedef enum JournalKind
{
	JOURNAL_BEGIN = 1,			/* the first record: whose journal it is */
	JOURNAL_SPACE,				/* a tablespace where files will be created */
	JOURNAL_FILE,				/* a file that has been created */
	JOURNAL_FOUND,				/* what a starting server found left over */
	JOURNAL_TRIED				/* it has begun to remove that */
} JournalKind;

/* Written to disk as it is; what a kind has no use for is zero */
typedef struct JournalRecord
{
	uint32		magic;
	uint32		kind;
	uint64		system_id;		/* the cluster it was written for */
	RelFileLocator file;		/* BEGIN: the database only; SPACE: that and
								 * the tablespace */
	Oid			next_oid;		/* BEGIN, FILE: the OID counter then */
	uint64		number;			/* BEGIN: the full transaction ID; FOUND: the
								 * server's start, see leftovers.c */
	uint32		must_be_empty;	/* FOUND: boolean */
	pg_crc32c	crc;			/* of all before it */
} JournalRecord;

/* One journal, as read */
typedef struct Journal
{
	int			nrecords;
	JournalRecord records[FLEXIBLE_ARRAY_MEMBER];
} Journal;

/*
 * Failures are reported at elevel; without an elevel they are logged.  But memory may
 * run out, or the places for open files, which is an error; and a message lets
 * interrupts in.
 *
 * journal_read returns NULL if the file can't be read, and no records if it is no
 * journal of this cluster.
 *
 * journal_write writes records from this position on, cuts off what is behind them,
 * and fills in what all records have in common.  Position 0 makes the file.  "durable"
 * is whether a loss of power must not undo it; a new journal needs journal_sync for that.
 * It returns false if that failed.
 *
 * journal_remove removes a journal, which may be gone already.  A loss of power may
 * bring it back: that must be harmless.
 */
extern List *journal_list(void);
extern Journal *journal_read(const char *path);
extern bool journal_write(const char *path, int position, JournalRecord *records,
						  int nrecords, bool durable, int elevel);
extern bool journal_make_folder(int elevel);
extern void journal_sync(const char *path, int elevel);
extern void journal_remove(const char *path);
extern const char *journal_new_path(void);

#endif							/* CYCLONE_JOURNAL_H */
