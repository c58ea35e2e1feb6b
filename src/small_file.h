/*-------------------------------------------------------------------------
 *
 * small_file.h
 *	  Our small files in the data directory, all in one format.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SMALL_FILE_H
#define CYCLONE_SMALL_FILE_H

#define SMALL_FILE_FOLDER	"pg_cyclone"
/* with which the name of a file ends that is being written */
#define SMALL_FILE_NEW		".new"
/* and of one that was set aside */
#define SMALL_FILE_DAMAGED	".damaged"

/* What a file has: records of one size, which are C structs. */
typedef struct SmallFileFormat
{
	uint32		magic;			/* another one for each kind of file */
	uint32		version;		/* to be changed with the struct, and with
								 * what its fields mean */
	uint32		record_size;
	int			max_records;	/* a reader takes no more */
} SmallFileFormat;

/* How small_file_write replaces a file */
typedef enum SmallFileSafety
{
	SMALL_FILE_SURVIVES_CRASH,	/* of the server */
	SMALL_FILE_SURVIVES_POWER_CUT,	/* it and its name are on disk then */
} SmallFileSafety;

/*
 * small_file_read returns how many records there are, and in *records an array of them
 * for the caller to pfree; NULL if there are none.  A missing file has none.  If a file is
 * there and can't be read, it returns -1, and the caller must not replace the file.  Of a
 * damaged file, or one of another format, it returns what is whole.  *is_damaged says that
 * it is one; if is_damaged is NULL, the file is set aside at once.  The log says all that.
 * Raises no error.
 *
 * small_file_set_aside gives a file another name, under which nobody looks for it.
 *
 * small_file_write puts a new file in the place of the old one: a reader finds the one or
 * the other, whole.  Callers see to it that only one process writes a file at a time.  If
 * it fails, that is reported at elevel, and the old file stays.
 *
 * small_file_put writes one record of a file to its place, or empties the place if record
 * is NULL; small_file_read passes over empty places.  Makes the file if it is missing.
 * Nothing is synced.  A process may be in it while others are, for other places.  It
 * returns false, with errno set, if that fails, raises no error, takes no lock, and may be
 * called in a signal handler.
 */
extern int	small_file_read(const char *path, const SmallFileFormat *format, void **records,
							bool *is_damaged);
extern void small_file_set_aside(const char *path);
extern bool small_file_write(const char *path, const SmallFileFormat *format,
							 const void *records, int nrecords,
							 SmallFileSafety safety, int elevel);
extern bool small_file_put(const char *path, const SmallFileFormat *format,
						   int place, const void *record);

#endif							/* CYCLONE_SMALL_FILE_H */
