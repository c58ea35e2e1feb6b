/*-------------------------------------------------------------------------
 *
 * history_rows.c
 *	  The rows of cyclone.history, in shared memory and on disk.
 *
 * There is room for cyclone.history_size rows.  When that is used up, a new row
 * takes the place of one of the user who has the most rows; autovacuum is a user,
 * too.  So nobody pushes out what there is of others, as long as they have less than
 * he.  Of that user it is the oldest row of a table that is temporary or has been
 * dropped, or else of the table that has the most rows: tables have about the same
 * number of rows, or all that they ever had if that is less.
 *
 * For that there is a list of users, and one of tables, each with its number of rows;
 * a table with the runs of several users is there for each of them.  Tables have
 * a chain of rows by age.  The lists are gone through from one end to the other once
 * a run; with 10,000 rows that is a few hundred kilobytes at most, and shorter than
 * the shortest VACUUM.  Which tables have been dropped is found out now and then, by who
 * can look into their database's catalog.
 *
 * On disk
 * -------
 * A row is written to a file of the data directory as soon as it is made, at the
 * place that it has in memory.  So the file doesn't grow beyond the rows that
 * there are, and a crash of the server loses none.  It isn't synced, so a loss
 * of power may cost the latest ones.  Each has a checksum, by which one is
 * told that was written in part.  When the server starts it reads the file,
 * gives the rows their places, and writes a new file.
 *
 * A base backup has a copy of the file, maybe in the midst of a row.  These
 * rows are the past of the same tables, so the copy keeps them.  pg_upgrade
 * doesn't take the file along.  A file that another version of pg_cyclone wrote
 * in another format is ignored, which the log says, and overwritten.
 *
 * Locks
 * -----
 * Who adds a row holds the lock on the file, and for the time of a copy that on
 * the rows; who reads them only the latter, so nobody waits for a disk to
 * read.  Nobody takes any other lock, waits for anything but the disk, or
 * raises an error while he has one of these.  So they may be taken wherever an
 * error is on its way, with whatever locks held.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "common/int.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "history/history_rows.h"
#include "settings.h"

#define TRANCHE				"pg_cyclone history"
#define HISTORY_FOLDER		"pg_cyclone"
#define HISTORY_PATH		HISTORY_FOLDER "/history"
#define NEW_HISTORY_PATH	HISTORY_PATH ".new"

#define HISTORY_MAGIC		0xC1C14157
/* to be changed with HistoryRow, and with what its fields mean */
#define HISTORY_VERSION		1

#define NO_ROW				(-1)

/* What the names of schemas of temporary tables begin with */
#define TEMPORARY_SCHEMA	"pg_temp_"
/* Dropped tables are looked for so often while as many rows are added as there is room for. */
#define LOOKS_IN_A_SIZE		8

/* What the file begins with; then come records */
typedef struct HistoryHeader
{
	uint32		magic;
	uint32		version;
	uint32		record_size;
	uint32		unused;
	uint64		last_number;	/* when it was last written as a whole, or
								 * emptied */
} HistoryHeader;

typedef struct HistoryRecord
{
	HistoryRow	row;
	pg_crc32c	crc;
} HistoryRecord;

/* A row in memory */
typedef struct HistorySlot
{
	HistoryRow	row;
	int			newer;			/* the next one of the same table; NO_ROW:
								 * none */
} HistorySlot;

/* A user who has rows */
typedef struct HistoryUser
{
	Oid			user_id;		/* InvalidOid: autovacuum */
	int			nrows;
} HistoryUser;

/* A table that has rows of a user */
typedef struct HistoryTable
{
	Oid			database;
	Oid			relid;
	Oid			user_id;
	bool		is_gone;		/* temporary, or dropped */
	int			nrows;
	int			oldest;
	int			newest;
	uint64		oldest_number;
} HistoryTable;

typedef struct HistoryShared
{
	uint64		last_number;
	int			nrows;
	int			ntables;
	int			nusers;
	int			nnew;			/* since dropped tables were looked for */
	bool		is_on_disk;		/* is there a file to be written to? */
} HistoryShared;

static HistoryShared *shared = NULL;
static HistoryTable *tables;
static HistoryUser *users;
static HistorySlot *slots;
static LWLock *file_lock;
static LWLock *rows_lock;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static int	place_row(const HistoryRow *row);
static int	evict_row(const HistoryRow *row);
static bool is_table_of(const HistoryTable *table, const HistoryRow *row);
static HistoryTable *find_table(const HistoryRow *row);
static HistoryUser *find_user(Oid user_id);
static Oid	fullest_user(const HistoryRow *row);
static bool goes_first(const HistoryTable *a, const HistoryTable *b, const HistoryRow *row);
static int	copy_tables(Oid **relids);
static bool write_row(int slot, const HistoryRow *row);
static bool write_at(off_t place, const void *what, Size size);
static bool empty_file(void);
static HistoryHeader make_header(void);
static void load_rows(void);
static int	read_file(HistoryRow **rows);
static bool write_file(void);
static int	compare_numbers(const void *a, const void *b);
static void make_record(HistoryRecord *record, const HistoryRow *row);
static pg_crc32c record_crc(const HistoryRecord *record);
static void request_shmem(void);
static void startup_shmem(void);

/*
 * history_rows_init
 *		Ask for shared memory, unless there is to be no history.  Call while the
 *		library is preloaded.
 */
void
history_rows_init(void)
{
	if (cyclone_history_size == 0)
		return;
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

/* history_rows_are_kept -- is there a history? */
bool
history_rows_are_kept(void)
{
	return shared != NULL;
}

/*
 * history_rows_add
 *		Add a row, which gets its number.
 *
 * Raises no error; if it can't be written to the file, the log says so, the first
 * time in a process.
 */
void
history_rows_add(HistoryRow *row)
{
	static bool has_complained = false;
	int			slot;
	bool		is_written;
	int			error;

	LWLockAcquire(file_lock, LW_EXCLUSIVE);
	LWLockAcquire(rows_lock, LW_EXCLUSIVE);
	row->number = ++shared->last_number;
	slot = place_row(row);
	LWLockRelease(rows_lock);
	is_written = !shared->is_on_disk || write_row(slot, row);
	error = errno;
	LWLockRelease(file_lock);

	if (is_written || has_complained)
		return;
	has_complained = true;
	errno = error;
	ereport(LOG,
			(errcode_for_file_access(),
			 errmsg("could not write to file \"%s\": %m", HISTORY_PATH),
			 errdetail("The view cyclone.history is complete only until the server is restarted.")));
}

/*
 * history_rows_copy
 *		Return a copy of all rows, and how many there are.
 */
int
history_rows_copy(HistoryRow **rows)
{
	int			nrows;

	*rows = NULL;
	if (shared == NULL)
		return 0;
	LWLockAcquire(rows_lock, LW_SHARED);
	nrows = shared->nrows;
	LWLockRelease(rows_lock);
	*rows = MemoryContextAllocHuge(CurrentMemoryContext,
								   (Size) Max(nrows, 1) * sizeof(HistoryRow));

	/* what was added meanwhile is for the next time */
	LWLockAcquire(rows_lock, LW_SHARED);
	nrows = Min(nrows, shared->nrows);
	for (int i = 0; i < nrows; i++)
		(*rows)[i] = slots[i].row;
	LWLockRelease(rows_lock);
	return nrows;
}

/*
 * history_rows_last_autovacuum
 *		How long did the last autovacuum of a table take that was done?  False if
 *		that isn't known.  The database of a shared catalog is InvalidOid.
 */
bool
history_rows_last_autovacuum(Oid database, Oid relid, double *seconds)
{
	HistoryRow	wanted = {.database = database,.relid = relid,.user_id = InvalidOid};
	bool		is_known = false;

	if (shared == NULL)
		return false;
	LWLockAcquire(rows_lock, LW_SHARED);
	for (int i = 0; i < shared->ntables; i++)
	{
		if (!is_table_of(&tables[i], &wanted))
			continue;
		for (int slot = tables[i].oldest; slot != NO_ROW; slot = slots[slot].newer)
		{
			const HistoryRow *row = &slots[slot].row;

			if (!row->is_autovacuum || row->outcome != HISTORY_DONE)
				continue;
			*seconds = (double) (row->end - row->start) / USECS_PER_SEC;
			is_known = true;
		}
		break;
	}
	LWLockRelease(rows_lock);
	return is_known;
}

/*
 * history_rows_forget
 *		Remove all rows, here and in the file.  Returns how many there were.
 *
 * Numbers go on, as somebody may go by them.  Raises an error, if the file can't
 * be changed, when all is done that can be.
 */
int64
history_rows_forget(void)
{
	int64		nrows;
	bool		is_forgotten;
	int			error;

	if (shared == NULL)
		return 0;
	LWLockAcquire(file_lock, LW_EXCLUSIVE);
	LWLockAcquire(rows_lock, LW_EXCLUSIVE);
	nrows = shared->nrows;
	shared->nrows = 0;
	shared->ntables = 0;
	shared->nusers = 0;
	LWLockRelease(rows_lock);
	is_forgotten = !shared->is_on_disk || empty_file();
	error = errno;
	LWLockRelease(file_lock);

	errno = error;
	if (!is_forgotten)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not truncate file \"%s\": %m", HISTORY_PATH)));
	return nrows;
}

/*
 * place_row
 *		Find a place for a row that has a number higher than all others, and put it
 *		there.  The caller holds the lock on the rows exclusively.
 */
static int
place_row(const HistoryRow *row)
{
	int			slot = shared->nrows < cyclone_history_size ? shared->nrows++ : evict_row(row);
	HistoryTable *table = find_table(row);

	find_user(row->user_id)->nrows++;
	shared->nnew++;
	slots[slot].row = *row;
	slots[slot].newer = NO_ROW;
	table->is_gone = strncmp(row->schema, TEMPORARY_SCHEMA, strlen(TEMPORARY_SCHEMA)) == 0;
	if (table->nrows++ == 0)
	{
		table->oldest = slot;
		table->oldest_number = row->number;
	}
	else
		slots[table->newest].newer = slot;
	table->newest = slot;
	return slot;
}

/*
 * evict_row
 *		Give up a row, so that this one has a place; returns which.
 */
static int
evict_row(const HistoryRow *row)
{
	HistoryUser *user = find_user(fullest_user(row));
	HistoryTable *first = NULL;
	int			slot;

	for (int i = 0; i < shared->ntables; i++)
		if (tables[i].user_id == user->user_id &&
			(first == NULL || goes_first(&tables[i], first, row)))
			first = &tables[i];
	Assert(first != NULL && user->nrows > 0);

	if (--user->nrows == 0)
		*user = users[--shared->nusers];
	slot = first->oldest;
	if (--first->nrows > 0)
	{
		first->oldest = slots[slot].newer;
		first->oldest_number = slots[first->oldest].row.number;
	}
	else
		*first = tables[--shared->ntables];
	return slot;
}

/* fullest_user -- who would have the most rows, with this one; rather this one's user. */
static Oid
fullest_user(const HistoryRow *row)
{
	Oid			fullest = InvalidOid;
	int			most = 0;

	for (int i = 0; i < shared->nusers; i++)
	{
		bool		is_own = users[i].user_id == row->user_id;
		int			nrows = users[i].nrows + is_own;

		if (nrows > most || (nrows == most && is_own))
		{
			fullest = users[i].user_id;
			most = nrows;
		}
	}
	return fullest;
}

/*
 * goes_first
 *		Is a row of table a to be given up rather than one of b, for this one?
 */
static bool
goes_first(const HistoryTable *a, const HistoryTable *b, const HistoryRow *row)
{
	int			a_rows = a->nrows + is_table_of(a, row);
	int			b_rows = b->nrows + is_table_of(b, row);

	if (a->is_gone != b->is_gone)
		return a->is_gone;
	if (a_rows != b_rows && !a->is_gone)
		return a_rows > b_rows;
	return a->oldest_number < b->oldest_number;
}

/*
 * history_rows_look_for_dropped
 *		If room for rows has become short, note which tables of this database are no
 *		more; now and then.  In a transaction, with no lock of ours held.
 */
void
history_rows_look_for_dropped(void)
{
	Oid		   *relids;
	int			nrelids;

	if (shared == NULL)
		return;
	nrelids = copy_tables(&relids);
	for (int i = 0; i < nrelids; i++)
	{
		if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relids[i])))
			continue;
		LWLockAcquire(rows_lock, LW_EXCLUSIVE);
		for (int t = 0; t < shared->ntables; t++)
			if (tables[t].database == MyDatabaseId && tables[t].relid == relids[i])
				tables[t].is_gone = true;
		LWLockRelease(rows_lock);
	}
	if (nrelids > 0)
		pfree(relids);
}

/*
 * copy_tables
 *		The tables of this database that aren't known to be gone, if it is time to
 *		look for them, palloc'd; or none.
 */
static int
copy_tables(Oid **relids)
{
	int			nrelids = 0;
	bool		is_time;

	LWLockAcquire(rows_lock, LW_EXCLUSIVE);
	is_time = shared->nrows == cyclone_history_size &&
		shared->nnew >= cyclone_history_size / LOOKS_IN_A_SIZE;
	if (is_time)
		shared->nnew = 0;
	LWLockRelease(rows_lock);
	if (!is_time)
		return 0;

	*relids = palloc_array(Oid, cyclone_history_size);
	LWLockAcquire(rows_lock, LW_SHARED);
	for (int i = 0; i < shared->ntables; i++)
		if (tables[i].database == MyDatabaseId && !tables[i].is_gone)
			(*relids)[nrelids++] = tables[i].relid;
	LWLockRelease(rows_lock);
	if (nrelids == 0)
		pfree(*relids);
	return nrelids;
}

/* find_user -- a user, who may have no rows yet. */
static HistoryUser *
find_user(Oid user_id)
{
	for (int i = 0; i < shared->nusers; i++)
		if (users[i].user_id == user_id)
			return &users[i];

	Assert(shared->nusers < cyclone_history_size);
	users[shared->nusers] = (HistoryUser)
	{
		.user_id = user_id
	};
	return &users[shared->nusers++];
}

/* find_table -- a row's table and user, which may have no rows yet. */
static HistoryTable *
find_table(const HistoryRow *row)
{
	HistoryTable *table;

	for (int i = 0; i < shared->ntables; i++)
		if (is_table_of(&tables[i], row))
			return &tables[i];

	/* each of the others has a row, and one is free for this */
	Assert(shared->ntables < cyclone_history_size);
	table = &tables[shared->ntables++];
	table->database = row->database;
	table->relid = row->relid;
	table->user_id = row->user_id;
	table->nrows = 0;
	return table;
}

/* is_table_of -- is the row one of this table, and of this user? */
static bool
is_table_of(const HistoryTable *table, const HistoryRow *row)
{
	return table->relid == row->relid && table->database == row->database &&
		table->user_id == row->user_id;
}

/*
 * write_row
 *		Write a row to its place in the file; false, with errno set, if that isn't
 *		possible.  The caller holds the lock on the file.
 */
static bool
write_row(int slot, const HistoryRow *row)
{
	HistoryRecord record;

	make_record(&record, row);
	return write_at(sizeof(HistoryHeader) + (off_t) slot * sizeof(HistoryRecord),
					&record, sizeof(record));
}

/* write_at -- write somewhere in the file; false, with errno set, if that fails. */
static bool
write_at(off_t place, const void *what, Size size)
{
	int			fd = open(HISTORY_PATH, O_WRONLY | PG_BINARY);
	ssize_t		written;
	int			error;

	if (fd < 0)
		return false;
	errno = ENOSPC;				/* if it is written in part */
	written = pwrite(fd, what, size, place);
	error = errno;
	close(fd);
	errno = error;
	return written == size;
}

/* empty_file -- remove the rows from the file, likewise. */
static bool
empty_file(void)
{
	HistoryHeader header = make_header();

	return truncate(HISTORY_PATH, sizeof(header)) == 0 &&
		write_at(0, &header, sizeof(header));
}

/*
 * load_rows
 *		Take over the rows of the file, and write it anew.  For the postmaster, at
 *		the start, when there is nobody to lock out.
 */
static void
load_rows(void)
{
	HistoryRow *rows;
	int			nrows = read_file(&rows);

	if (nrows > 0)
		qsort(rows, nrows, sizeof(HistoryRow), compare_numbers);
	for (int i = 0; i < nrows; i++)
	{
		if (i > 0 && rows[i].number == rows[i - 1].number)
			continue;
		place_row(&rows[i]);
		shared->last_number = Max(shared->last_number, rows[i].number);
	}
	if (rows != NULL)
		pfree(rows);

	shared->is_on_disk = write_file();
	if (!shared->is_on_disk)
		ereport(LOG,
				(errmsg("the view cyclone.history won't survive the next restart of the server"),
				 errdetail("The file \"%s\" could not be written.", HISTORY_PATH)));
}

/*
 * read_file
 *		Return the rows of the file that are valid, and how many these are; and set
 *		the last number to what the file says.
 */
static int
read_file(HistoryRow **rows)
{
	FILE	   *file = AllocateFile(HISTORY_PATH, PG_BINARY_R);
	HistoryHeader header;
	HistoryRecord record;
	struct stat status;
	Size		nrecords;
	int			nrows = 0;

	*rows = NULL;
	if (file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", HISTORY_PATH)));
		return 0;
	}
	if (fread(&header, sizeof(header), 1, file) != 1 || fstat(fileno(file), &status) != 0 ||
		header.magic != HISTORY_MAGIC || header.version != HISTORY_VERSION ||
		header.record_size != sizeof(HistoryRecord) || header.last_number > PG_INT64_MAX)
	{
		ereport(LOG,
				(errmsg("file \"%s\" is ignored, as it is not in the format of this version of pg_cyclone",
						HISTORY_PATH),
				 errdetail("The view cyclone.history begins anew.")));
		FreeFile(file);
		return 0;
	}

	shared->last_number = header.last_number;
	nrecords = Min((status.st_size - sizeof(header)) / sizeof(record), HISTORY_MAX_SIZE);
	*rows = palloc_extended(Max(nrecords, 1) * sizeof(HistoryRow),
							MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	if (*rows == NULL)
		ereport(LOG,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("file \"%s\" is ignored for lack of memory", HISTORY_PATH),
				 errdetail("The view cyclone.history begins anew.")));
	for (Size i = 0; *rows != NULL && i < nrecords && fread(&record, sizeof(record), 1, file) == 1; i++)
		if (record.row.number > 0 && EQ_CRC32C(record.crc, record_crc(&record)))
			(*rows)[nrows++] = record.row;
	FreeFile(file);
	return nrows;
}

/*
 * write_file
 *		Write all rows to a new file, in place of the old one.  Returns false, and
 *		the log says why, if that isn't possible.
 */
static bool
write_file(void)
{
	HistoryHeader header = make_header();
	FILE	   *file;
	bool		is_written;

	(void) MakePGDirectory(HISTORY_FOLDER);
	file = AllocateFile(NEW_HISTORY_PATH, PG_BINARY_W);
	is_written = file != NULL && fwrite(&header, sizeof(header), 1, file) == 1;
	for (int i = 0; is_written && i < shared->nrows; i++)
	{
		HistoryRecord record;

		make_record(&record, &slots[i].row);
		is_written = fwrite(&record, sizeof(record), 1, file) == 1;
	}
	if (file != NULL && FreeFile(file) != 0)
		is_written = false;
	if (!is_written)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", NEW_HISTORY_PATH)));
		(void) unlink(NEW_HISTORY_PATH);
		return false;
	}
	return durable_rename(NEW_HISTORY_PATH, HISTORY_PATH, LOG) == 0;
}

/* compare_numbers -- rows by their numbers, for qsort. */
static int
compare_numbers(const void *a, const void *b)
{
	return pg_cmp_u64(((const HistoryRow *) a)->number, ((const HistoryRow *) b)->number);
}

/* make_header -- what the file begins with. */
static HistoryHeader
make_header(void)
{
	HistoryHeader header = {
		.magic = HISTORY_MAGIC,
		.version = HISTORY_VERSION,
		.record_size = sizeof(HistoryRecord),
		.last_number = shared->last_number
	};

	return header;
}

/* make_record -- a row as it is in the file. */
static void
make_record(HistoryRecord *record, const HistoryRow *row)
{
	/*
	 * what lies between the fields is written, too, and counts for the
	 * checksum
	 */
	memset(record, 0, sizeof(HistoryRecord));
	memcpy(&record->row, row, sizeof(HistoryRow));
	record->crc = record_crc(record);
}

/* record_crc -- the checksum of a record. */
static pg_crc32c
record_crc(const HistoryRecord *record)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, record, offsetof(HistoryRecord, crc));
	FIN_CRC32C(crc);
	return crc;
}

/* request_shmem -- how much shared memory we need. */
static void
request_shmem(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(sizeof(HistoryShared));
	RequestAddinShmemSpace(mul_size(cyclone_history_size, sizeof(HistoryTable)));
	RequestAddinShmemSpace(mul_size(cyclone_history_size, sizeof(HistoryUser)));
	RequestAddinShmemSpace(mul_size(cyclone_history_size, sizeof(HistorySlot)));
	RequestNamedLWLockTranche(TRANCHE, 2);
}

/* startup_shmem -- make it and load the rows, or find it. */
static void
startup_shmem(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("pg_cyclone history", sizeof(HistoryShared), &found);
	if (!found)
		memset(shared, 0, sizeof(HistoryShared));
	tables = ShmemInitStruct("pg_cyclone history tables",
							 mul_size(cyclone_history_size, sizeof(HistoryTable)), &found);
	users = ShmemInitStruct("pg_cyclone history users",
							mul_size(cyclone_history_size, sizeof(HistoryUser)), &found);
	slots = ShmemInitStruct("pg_cyclone history rows",
							mul_size(cyclone_history_size, sizeof(HistorySlot)), &found);
	file_lock = &GetNamedLWLockTranche(TRANCHE)[0].lock;
	rows_lock = &GetNamedLWLockTranche(TRANCHE)[1].lock;
	LWLockRelease(AddinShmemInitLock);

	/*
	 * a single-user server leaves the file to the next one that runs VACUUMs
	 * of ours
	 */
	if (IsPostmasterEnvironment && !IsUnderPostmaster)
		load_rows();
}
