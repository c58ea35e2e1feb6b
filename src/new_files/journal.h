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

#include "nodes/pg_list.h"
#include "storage/relfilelocator.h"

typedef enum JournalKind
{
	JOURNAL_BEGIN = 1,			/* the first record: whose journal it is */
	JOURNAL_SPACE,				/* a tablespace where files will be created */
	JOURNAL_FILE,				/* a file that has been created */
	JOURNAL_TRIED				/* a cleaner has begun to remove what is left */
} JournalKind;

/* Written to disk as it is; what a kind has no use for is zero */
typedef struct JournalRecord
{
	uint64		system_id;		/* BEGIN: the cluster it was written for */
	uint64		number;			/* BEGIN: the full transaction ID */
	RelFileLocator file;		/* BEGIN: the database only; SPACE: that and
								 * the tablespace */
	Oid			next_oid;		/* BEGIN, FILE: the OID counter then */
	uint64		kind;
} JournalRecord;

/*
 * journal_write writes all records of a journal, which is whole at any time; "durable" is
 * whether a loss of power must not undo it.  Returns false if that failed, which is
 * reported at elevel: a message lets interrupts in.  journal_remove removes a journal, which
 * may be gone already.  A loss of power may bring it back: that must be harmless.
 */
extern bool journal_write(const char *path, const JournalRecord *records, int nrecords,
						  bool durable, int elevel);
extern void journal_remove(const char *path);
extern const char *journal_new_path(void);

/*
 * journal_find_leftovers, in the postmaster, looks for files that a crash has left, before there
 * are other processes.  It raises no error, and returns the OIDs of the databases in which
 * journal_remove_leftovers is to be called: in a background worker, outside any transaction.
 */
extern List *journal_find_leftovers(void);
extern void journal_remove_leftovers(void);

#endif							/* CYCLONE_JOURNAL_H */
