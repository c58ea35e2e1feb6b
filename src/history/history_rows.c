/*-------------------------------------------------------------------------
 *
 * history_rows.c
 *	  The rows of cyclone.history, in shared memory and on disk.
 *
 * There is room for cyclone.history_size rows.  When that is used up, a new row
 * takes the place of one of the user who has the most rows; autovacuum is a user,
 * too.  So no user pushes out rows of users who have fewer.  The row that goes is
 * the oldest one of a table that is temporary or has been dropped, or else of the
 * table that has the most rows.  So tables have about the same number of rows, or
 * all that they ever had if that is less.
 *
 * For that there is a hash table of users, and one of tables; a table with the runs of
 * several users is there for each of them.  Tables have a chain of rows by age.  Users
 * are in a heap by their number of rows; each user has a heap of tables, by which of
 * their rows goes first.  So a row costs about the same however many there are.  Now
 * and then a process of a table's database looks into the catalog for tables that
 * have been dropped.
 *
 * On disk
 * -------
 * A row is written to a file of the data directory as soon as it is made, at the place
 * that it has in memory.  So the file doesn't grow beyond the rows that there are, and
 * a crash of the server loses none.  It isn't synced, so a loss of power may cost the
 * most recent ones.  The checksum tells which row was written in part only.  A process
 * that has written a row keeps the file open.  When the server starts it reads the
 * file, gives the rows their places, and writes a new file.
 *
 * A base backup has a copy of the file, maybe in the midst of a row.  These
 * rows are the past of the same tables, so the copy keeps them.  pg_upgrade
 * doesn't take the file along.  A file that another version of pg_cyclone wrote
 * in another format is ignored, which the log says, and overwritten.
 *
 * Locks
 * -----
 * A process that adds a row holds the lock on the file, and for the time of a copy
 * the lock on the rows.  One that reads rows holds only the latter, so it never
 * waits for a disk.  A process that has one of these locks takes no other lock,
 * waits for nothing but the disk, and raises no error.  So they may be taken where
 * an error is on its way, whatever locks are held.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "common/file_perm.h"
#include "common/int.h"
#include "lib/pairingheap.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "history/history_rows.h"
#include "own_files.h"
#include "settings.h"

#define TRANCHE				"pg_cyclone history"
#define HISTORY_PATH		OWN_FOLDER "/history"
#define NEW_HISTORY_PATH	HISTORY_PATH ".new"

#define HISTORY_MAGIC		0xC1C14157
/* to be changed with HistoryRow, and with what its fields mean */
#define HISTORY_VERSION		3

#define NO_ROW				(-1)

/* The names of schemas of temporary tables and their TOAST tables begin with these. */
#define TEMPORARY_SCHEMA	"pg_temp_"
#define TEMPORARY_TOAST		"pg_toast_temp_"
/* How many rows a run looks at for tables that have been dropped, once room is short */
#define LOOKS_A_RUN			2

/* The beginning of the file; records follow */
typedef struct HistoryHeader
{
	uint32		magic;
	uint32		version;
	uint32		record_size;
	uint32		unused;
	uint64		last_number;	/* when it was written as a whole, or emptied */
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
	Oid			user_id;		/* the key; InvalidOid: autovacuum */
	int			nrows;
	pairingheap_node node;		/* of shared->users_by_rows */
	pairingheap tables;			/* of this user, the one whose row goes first */
} HistoryUser;

/* A table, as far as it has rows of a user */
typedef struct TableKey
{
	Oid			database;
	Oid			relid;
	Oid			user_id;
} TableKey;

typedef struct HistoryTable
{
	TableKey	key;
	bool		is_gone;		/* temporary, or dropped */
	int			nrows;
	int			oldest;
	int			newest;
	uint64		oldest_number;
	pairingheap_node node;		/* of the user's tables */
} HistoryTable;

typedef struct HistoryShared
{
	uint64		last_number;
	int			nrows;
	pairingheap users_by_rows;
	bool		is_on_disk;		/* is there a file to be written to? */
} HistoryShared;

static HistoryShared *shared = NULL;
static HTAB *tables;
static HTAB *users;
static HistorySlot *slots;
static LWLock *file_lock;
static LWLock *rows_lock;

static int	place_row(const HistoryRow *row);
static int	evict_row(HistoryUser *own, const HistoryRow *row);
static TableKey table_key(const HistoryRow *row);
static HistoryTable *find_table(const TableKey *key);
static HistoryUser *add_user(Oid user_id);
static HistoryTable *add_table(HistoryUser *user, const TableKey *key, const HistoryRow *row,
							   int slot);
static void count_row(HistoryUser *user, HistoryTable *table, bool is_gone);
static int	compare_users(const pairingheap_node *a, const pairingheap_node *b, void *arg);
static int	compare_tables(const pairingheap_node *a, const pairingheap_node *b, void *arg);
static bool is_temporary(const HistoryRow *row);
static void empty_hash(HTAB *hash);
static bool is_looked_at(int number, TableKey *key);
static void mark_gone(const TableKey *key);
static bool write_row(int slot, const HistoryRow *row);
static bool write_at(off_t place, const void *what, Size size);
static bool empty_file(void);
static HistoryHeader make_header(void);
static void load_rows(void);
static int	read_file(HistoryRow **rows);
static bool write_file(void);
static int	compare_numbers(const void *a, const void *b);
static void make_record(HistoryRecord *record, const HistoryRow *row);

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

	Assert(row->kind <= HISTORY_REPACK && row->outcome <= HISTORY_FAILED &&
		   row->started_by <= HISTORY_COMPACTION);
	Assert(!LWLockHeldByMe(file_lock) && !LWLockHeldByMe(rows_lock));

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

	Assert(shared == NULL || !LWLockHeldByMe(rows_lock));

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
 * history_rows_forget
 *		Remove all rows, here and in the file.  Returns how many there were.
 *
 * Numbers go on, as programs that collect rows rely on them.  If the file can't be
 * changed, it raises an error when all else is done.
 */
int64
history_rows_forget(void)
{
	int64		nrows;
	bool		is_forgotten;
	int			error;

	Assert(shared == NULL || (!LWLockHeldByMe(file_lock) && !LWLockHeldByMe(rows_lock)));

	if (shared == NULL)
		return 0;
	LWLockAcquire(file_lock, LW_EXCLUSIVE);
	LWLockAcquire(rows_lock, LW_EXCLUSIVE);
	nrows = shared->nrows;
	shared->nrows = 0;
	pairingheap_reset(&shared->users_by_rows);
	empty_hash(users);
	empty_hash(tables);
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
 *
 * The new row counts as its user's when it is decided whose row goes.
 */
static int
place_row(const HistoryRow *row)
{
	const TableKey key = table_key(row);
	HistoryUser *user = hash_search(users, &row->user_id, HASH_FIND, NULL);
	HistoryTable *table = find_table(&key);
	int			slot;

	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(rows_lock, LW_EXCLUSIVE));
	if (user != NULL)
		count_row(user, table, is_temporary(row));
	slot = shared->nrows < cyclone_history_size ? shared->nrows++ : evict_row(user, row);
	Assert(slot >= 0 && slot < shared->nrows);

	/* each user and table in the hash tables has a row, so there is room */
	if (user == NULL)
		user = add_user(row->user_id);
	if (table == NULL)
		table = add_table(user, &key, row, slot);
	else
		slots[table->newest].newer = slot;
	table->newest = slot;
	slots[slot].row = *row;
	slots[slot].newer = NO_ROW;
	return slot;
}

/*
 * evict_row
 *		Give up a row, so that this one has a place; returns which.
 *
 * own is the new row's user, NULL if that user has no other row.
 */
static int
evict_row(HistoryUser *own, const HistoryRow *row)
{
	HistoryUser *user = pairingheap_container(HistoryUser, node,
											  pairingheap_first(&shared->users_by_rows));
	HistoryTable *table;
	int			slot;

	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(rows_lock, LW_EXCLUSIVE));
	/* rather a row of this user than of another */
	if (own != NULL && own->nrows == user->nrows)
		user = own;
	table = pairingheap_container(HistoryTable, node, pairingheap_first(&user->tables));
	slot = table->oldest;
	Assert(user->nrows > 0 && table->nrows > 0);
	Assert(table->key.user_id == user->user_id && slots[slot].row.relid == table->key.relid);

	pairingheap_remove(&user->tables, &table->node);
	if (--table->nrows == 0)
		(void) hash_search(tables, &table->key, HASH_REMOVE, NULL);
	else
	{
		int			next = slots[slot].newer;

		/* if it is the table's only one, this one is the next, in its place */
		table->oldest = next != NO_ROW ? next : slot;
		table->oldest_number = next != NO_ROW ? slots[next].row.number : row->number;
		pairingheap_add(&user->tables, &table->node);
	}

	pairingheap_remove(&shared->users_by_rows, &user->node);
	if (--user->nrows == 0)
		(void) hash_search(users, &user->user_id, HASH_REMOVE, NULL);
	else
		pairingheap_add(&shared->users_by_rows, &user->node);
	return slot;
}

/* table_key -- how a row's table and user are found. */
static TableKey
table_key(const HistoryRow *row)
{
	return (TableKey)
	{
		.database = row->database,.relid = row->relid,.user_id = row->user_id
	};
}

/* find_table -- NULL if it has no rows of that user. */
static HistoryTable *
find_table(const TableKey *key)
{
	return hash_search(tables, key, HASH_FIND, NULL);
}

/* add_user -- a user gets the first row. */
static HistoryUser *
add_user(Oid user_id)
{
	HistoryUser *user = hash_search(users, &user_id, HASH_ENTER, NULL);

	user->nrows = 1;
	user->tables = (pairingheap)
	{
		.ph_compare = compare_tables
	};
	pairingheap_add(&shared->users_by_rows, &user->node);
	return user;
}

/* add_table -- a table gets its first row of a user, in that place. */
static HistoryTable *
add_table(HistoryUser *user, const TableKey *key, const HistoryRow *row, int slot)
{
	HistoryTable *table = hash_search(tables, key, HASH_ENTER, NULL);

	table->is_gone = is_temporary(row);
	table->nrows = 1;
	table->oldest = slot;
	table->oldest_number = row->number;
	pairingheap_add(&user->tables, &table->node);
	return table;
}

/* count_row -- count one more row of a user, and of a table unless it is NULL. */
static void
count_row(HistoryUser *user, HistoryTable *table, bool is_gone)
{
	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(rows_lock, LW_EXCLUSIVE));
	pairingheap_remove(&shared->users_by_rows, &user->node);
	user->nrows++;
	pairingheap_add(&shared->users_by_rows, &user->node);

	if (table == NULL)
		return;
	pairingheap_remove(&user->tables, &table->node);
	table->nrows++;
	table->is_gone = is_gone;
	pairingheap_add(&user->tables, &table->node);
}

/* compare_users -- the user with more rows comes first. */
static int
compare_users(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	return pg_cmp_s32(pairingheap_const_container(HistoryUser, node, a)->nrows,
					  pairingheap_const_container(HistoryUser, node, b)->nrows);
}

/* compare_tables -- the table that loses a row first comes first. */
static int
compare_tables(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const HistoryTable *x = pairingheap_const_container(HistoryTable, node, a);
	const HistoryTable *y = pairingheap_const_container(HistoryTable, node, b);

	if (x->is_gone != y->is_gone)
		return x->is_gone ? 1 : -1;
	if (x->nrows != y->nrows && !x->is_gone)
		return pg_cmp_s32(x->nrows, y->nrows);
	return pg_cmp_u64(y->oldest_number, x->oldest_number);
}

/* is_temporary -- is it of a temporary table, which will soon be gone? */
static bool
is_temporary(const HistoryRow *row)
{
	return strncmp(row->schema, TEMPORARY_SCHEMA, strlen(TEMPORARY_SCHEMA)) == 0 ||
		strncmp(row->schema, TEMPORARY_TOAST, strlen(TEMPORARY_TOAST)) == 0;
}

/*
 * history_rows_look_for_dropped
 *		If room for rows has become short, see for a few of them whether their tables
 *		have been dropped.  In a transaction, with no lock of ours held.
 *
 * The catalog is asked only where there are no statistics: it would take much of the
 * time of a tiny table.
 */
void
history_rows_look_for_dropped(void)
{
	TableKey	key;

	Assert(IsTransactionState());
	Assert(shared == NULL || !LWLockHeldByMe(rows_lock));

	for (int i = 0; shared != NULL && i < LOOKS_A_RUN; i++)
		if (is_looked_at(i, &key) &&
			!pgstat_have_entry(PGSTAT_KIND_RELATION, key.database, key.relid) &&
			!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(key.relid)))
			mark_gone(&key);
}

/*
 * is_looked_at
 *		Find the table of the row whose turn it is, or of one after it.  Returns
 *		false if there is no need to look, or if it is in another database.
 *
 * The number of the last run says whose turn it is, so all rows have theirs.
 */
static bool
is_looked_at(int number, TableKey *key)
{
	bool		found = false;

	LWLockAcquire(rows_lock, LW_SHARED);
	if (shared->nrows == cyclone_history_size)
	{
		uint64		slot = (shared->last_number * LOOKS_A_RUN + number) % shared->nrows;

		*key = table_key(&slots[slot].row);
		found = key->database == MyDatabaseId && !find_table(key)->is_gone;
	}
	LWLockRelease(rows_lock);
	return found;
}

/* mark_gone -- note that a table has been dropped. */
static void
mark_gone(const TableKey *key)
{
	HistoryTable *table;
	HistoryUser *user;

	LWLockAcquire(rows_lock, LW_EXCLUSIVE);
	table = find_table(key);
	user = hash_search(users, &key->user_id, HASH_FIND, NULL);
	Assert(table == NULL || user != NULL);
	if (table != NULL)
	{
		pairingheap_remove(&user->tables, &table->node);
		table->is_gone = true;
		pairingheap_add(&user->tables, &table->node);
	}
	LWLockRelease(rows_lock);
}

/* empty_hash -- remove all entries. */
static void
empty_hash(HTAB *hash)
{
	HASH_SEQ_STATUS scan;
	void	   *entry;

	hash_seq_init(&scan, hash);
	while ((entry = hash_seq_search(&scan)) != NULL)
		/* the key is what it begins with */
		(void) hash_search(hash, entry, HASH_REMOVE, NULL);
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

	Assert(LWLockHeldByMeInMode(file_lock, LW_EXCLUSIVE));
	Assert(slot >= 0 && slot < cyclone_history_size);
	make_record(&record, row);
	return write_at(sizeof(HistoryHeader) + (off_t) slot * sizeof(HistoryRecord),
					&record, sizeof(record));
}

/*
 * write_at
 *		Write to a place in the file, which stays open; returns false, with errno set
 *		and the file closed, if that fails.
 *
 * No other file is put in its place while there are processes that have it open.
 */
static bool
write_at(off_t place, const void *what, Size size)
{
	static int	fd = -1;
	int			error;

	if (fd < 0)
	{
		fd = open(HISTORY_PATH, O_WRONLY | O_CLOEXEC | PG_BINARY);
		if (fd < 0)
			return false;
		ReserveExternalFD();
	}
	if (own_file_write(fd, what, size, place))
		return true;

	error = errno;
	close(fd);
	fd = -1;
	ReleaseExternalFD();
	errno = error;
	return false;
}

/* empty_file -- remove the rows from the file; likewise. */
static bool
empty_file(void)
{
	HistoryHeader header = make_header();

	Assert(LWLockHeldByMeInMode(file_lock, LW_EXCLUSIVE));
	return truncate(HISTORY_PATH, sizeof(header)) == 0 &&
		write_at(0, &header, sizeof(header));
}

/*
 * load_rows
 *		Take over the rows of the file, and write it anew.  For the postmaster, at
 *		the start, when no lock is needed.
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
 *		Read the valid rows of the file, and the last number.  Returns how many rows
 *		there are.
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
		if (record.row.number > 0 && own_record_is_whole(&record, offsetof(HistoryRecord, crc)))
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

	(void) MakePGDirectory(OWN_FOLDER);
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

/* make_header -- the beginning of the file. */
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
	own_record_seal(record, offsetof(HistoryRecord, crc));
}

/* history_rows_shmem_request -- ask for shared memory, if there is to be a history. */
void
history_rows_shmem_request(void)
{
	if (cyclone_history_size == 0)
		return;
	RequestAddinShmemSpace(sizeof(HistoryShared));
	RequestAddinShmemSpace(hash_estimate_size(cyclone_history_size, sizeof(HistoryTable)));
	RequestAddinShmemSpace(hash_estimate_size(cyclone_history_size, sizeof(HistoryUser)));
	RequestAddinShmemSpace(mul_size(cyclone_history_size, sizeof(HistorySlot)));
	RequestNamedLWLockTranche(TRANCHE, 2);
}

/* history_rows_shmem_init -- find our shared memory, or make it. */
void
history_rows_shmem_init(void)
{
	HASHCTL		table_info = {
		.keysize = sizeof(TableKey),
		.entrysize = sizeof(HistoryTable)
	};
	HASHCTL		user_info = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(HistoryUser)
	};
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));

	if (cyclone_history_size == 0)
		return;
	shared = ShmemInitStruct("pg_cyclone history", sizeof(HistoryShared), &found);
	if (!found)
		*shared = (HistoryShared)
	{
		.users_by_rows.ph_compare = compare_users
	};
	tables = compat_shmem_hash("pg_cyclone history tables", cyclone_history_size,
							   &table_info, HASH_ELEM | HASH_BLOBS);
	users = compat_shmem_hash("pg_cyclone history users", cyclone_history_size,
							  &user_info, HASH_ELEM | HASH_BLOBS);
	slots = ShmemInitStruct("pg_cyclone history rows",
							mul_size(cyclone_history_size, sizeof(HistorySlot)), &found);
	file_lock = &GetNamedLWLockTranche(TRANCHE)[0].lock;
	rows_lock = &GetNamedLWLockTranche(TRANCHE)[1].lock;
}

/*
 * history_rows_load
 *		Load the rows, once, in the postmaster.
 *
 * A single-user server leaves the file to the next one that runs VACUUMs of ours.
 */
void
history_rows_load(void)
{
	if (history_rows_are_kept() && IsPostmasterEnvironment && !IsUnderPostmaster)
		load_rows();
}
