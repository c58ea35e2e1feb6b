/*-------------------------------------------------------------------------
 *
 * history_rows.c
 *	  The rows of cyclone.history, in shared memory and on disk.
 *
 * There is room for cyclone.history_size rows.  When that is used up a new row takes the
 * place of the oldest one, by two rules.  A table has no more rows than its share, so a busy
 * one leaves quiet ones theirs.  And the row that goes belongs to the role that owns the
 * tables of the most rows: whoever makes tables and vacuums them, or has autovacuum come to
 * them, pushes out nothing of roles that have fewer.
 *
 * A row is written to a file (small_file.c) as soon as it is made, to the place that it has
 * in memory.  So a crash of the server loses none, and a loss of power perhaps the most
 * recent ones.  The server takes the file over when it starts.  A base backup has a copy,
 * which is the past of the same tables.
 *
 * A process that adds a row holds the lock on the file, and for the time of a copy the lock
 * on the rows.  One that reads rows holds only the latter, so it never waits for a disk.  A
 * process that has one of these locks takes no other, waits for nothing but the disk, and
 * raises no error.  So they may be taken where an error is on its way.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "common/int.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "history/history_rows.h"
#include "library.h"
#include "settings.h"
#include "small_file.h"

#define TRANCHE			"pg_cyclone history"
#define HISTORY_PATH	SMALL_FILE_FOLDER "/history"

/* Of this many rows one table has one at most, but it may have ten. */
#define ROWS_A_TABLE	50
#define LEAST_OF_TABLE	10

#define NO_PLACE		(-1)

static const SmallFileFormat history_format = {
	.magic = 0xC1C14157,
	.version = 3,
	.record_size = sizeof(HistoryRow),
	.max_records = HISTORY_MAX_SIZE
};

/* What a row's place is chosen by: all rows are passed over, so this is short */
typedef struct RowHead
{
	uint64		number;
	Oid			owner;			/* of the table */
	int			of_owner;		/* how many rows this owner has */
	Oid			database;
	Oid			relid;
} RowHead;

typedef struct HistoryShared
{
	uint64		last_number;
	int			nrows;
	bool		is_on_disk;		/* is there a file to be written to? */
	RowHead		heads[FLEXIBLE_ARRAY_MEMBER];
} HistoryShared;

static HistoryShared *shared = NULL;
static HistoryRow *rows;
static LWLock *file_lock;
static LWLock *rows_lock;

static int	place_row(const HistoryRow *row);
static int	choose_place(const HistoryRow *row);
static Oid	owner_with_most(Oid owner);
static void count_rows_of(Oid owner);
static bool write_file(SmallFileSafety safety);
static int	compare_numbers(const void *a, const void *b);

/* history_is_kept -- is there a history at all? */
bool
history_is_kept(void)
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
	int			place;
	bool		is_written;
	int			error;

	Assert(row->kind <= HISTORY_REPACK && row->outcome <= HISTORY_FAILED &&
		   row->started_by <= HISTORY_COMPACTION);
	Assert(!LWLockHeldByMe(file_lock) && !LWLockHeldByMe(rows_lock));

	LWLockAcquire(file_lock, LW_EXCLUSIVE);
	LWLockAcquire(rows_lock, LW_EXCLUSIVE);
	row->number = ++shared->last_number;
	place = place_row(row);
	LWLockRelease(rows_lock);
	is_written = !shared->is_on_disk || small_file_put(HISTORY_PATH, &history_format, place, row);
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
history_rows_copy(HistoryRow **copy)
{
	int			nrows;

	Assert(shared == NULL || !LWLockHeldByMe(rows_lock));

	*copy = NULL;
	if (shared == NULL)
		return 0;

	/*
	 * while the lock is held no memory is asked for; pages of it that aren't
	 * used aren't there
	 */
	*copy = MemoryContextAllocHuge(CurrentMemoryContext,
								   (Size) cyclone_history_size * sizeof(HistoryRow));
	LWLockAcquire(rows_lock, LW_SHARED);
	nrows = shared->nrows;
	memcpy(*copy, rows, (Size) nrows * sizeof(HistoryRow));
	LWLockRelease(rows_lock);
	return nrows;
}

/* history_rows_past -- see history_rows.h. */
List *
history_rows_past(void)
{
	List	   *past = NIL;
	HistoryRow *history;
	int			nhistory = history_rows_copy(&history);

	for (int i = 0; i < nhistory; i++)
	{
		const HistoryRow *row = &history[i];
		const HistoryFigures *figures = &row->figures;
		double		index_pages = (double) figures->bytes_before / BLCKSZ - figures->pages_before;
		PastRun    *run;

		if (row->outcome != HISTORY_DONE || !row->has_figures ||
			!library_may_see(GetUserId(), row->user_id))
			continue;
		run = palloc_object(PastRun);
		run->kind = row->kind;
		run->relid = !OidIsValid(row->database) || row->database == MyDatabaseId ? row->relid : InvalidOid;
		run->seconds = (row->end - row->start) / (double) USECS_PER_SEC;
		/* its processes slept for one budget */
		if (!isnan(row->slept_seconds))
			run->seconds -= row->slept_seconds / (1 + Max(figures->workers_launched, 0));
		for (int guard = 0; guard < NUM_GUARDS; guard++)
			run->seconds -= row->held.seconds[guard];
		run->pages = run->kind == HISTORY_VACUUM ?
			figures->pages_scanned + (figures->index_scans + 1) * index_pages :
			figures->pages_before + index_pages;
		past = lappend(past, run);
	}
	if (nhistory > 0)
		pfree(history);
	return past;
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

	if (shared == NULL)
		return 0;
	Assert(!LWLockHeldByMe(file_lock) && !LWLockHeldByMe(rows_lock));

	LWLockAcquire(file_lock, LW_EXCLUSIVE);
	LWLockAcquire(rows_lock, LW_EXCLUSIVE);
	nrows = shared->nrows;
	shared->nrows = 0;
	LWLockRelease(rows_lock);
	is_forgotten = !shared->is_on_disk || write_file(SMALL_FILE_SURVIVES_CRASH);
	LWLockRelease(file_lock);

	/* not under the lock, as VACUUMs want it */
	if (is_forgotten && shared->is_on_disk)
		(void) fsync_fname_ext(HISTORY_PATH, false, false, LOG);
	if (!is_forgotten)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("the rows are still in file \"%s\"", HISTORY_PATH),
				 errdetail("The server's log says why.")));
	return nrows;
}

/*
 * place_row
 *		Put a row that has a number higher than all others in a place; returns which.  The
 *		caller holds the lock on the rows exclusively.
 */
static int
place_row(const HistoryRow *row)
{
	int			place;
	Oid			loser;

	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(rows_lock, LW_EXCLUSIVE));
	place = choose_place(row);
	loser = place < shared->nrows ? shared->heads[place].owner : InvalidOid;
	shared->nrows = Max(shared->nrows, place + 1);
	shared->heads[place] = (RowHead)
	{
		.number = row->number,.owner = row->owner,.database = row->database,.relid = row->relid
	};
	count_rows_of(row->owner);
	count_rows_of(loser);
	rows[place] = *row;
	return place;
}

/*
 * choose_place
 *		The place for a row: a free one, or that of an older row which goes.
 */
static int
choose_place(const HistoryRow *row)
{
	bool		is_full = shared->nrows >= cyclone_history_size;
	Oid			loser = is_full ? owner_with_most(row->owner) : InvalidOid;
	int			most_of_table = Max(cyclone_history_size / ROWS_A_TABLE, LEAST_OF_TABLE);
	int			ntable = 0;
	int			of_table = NO_PLACE;
	int			of_loser = NO_PLACE;

	for (int i = 0; i < shared->nrows; i++)
	{
		const RowHead *head = &shared->heads[i];

		if (head->relid == row->relid && head->database == row->database)
		{
			ntable++;
			if (of_table == NO_PLACE || head->number < shared->heads[of_table].number)
				of_table = i;
		}
		if (is_full && head->owner == loser &&
			(of_loser == NO_PLACE || head->number < shared->heads[of_loser].number))
			of_loser = i;
	}
	if (ntable >= most_of_table)
		return of_table;
	return is_full ? of_loser : shared->nrows;
}

/*
 * owner_with_most
 *		The owner of the tables of the most rows, when one more is counted for this owner,
 *		who is the one if several have as many.
 */
static Oid
owner_with_most(Oid owner)
{
	Oid			result = owner;
	int			most = 0;

	for (int i = 0; i < shared->nrows && most == 0; i++)
		if (shared->heads[i].owner == owner)
			most = shared->heads[i].of_owner + 1;
	for (int i = 0; i < shared->nrows; i++)
		if (shared->heads[i].of_owner > most)
		{
			most = shared->heads[i].of_owner;
			result = shared->heads[i].owner;
		}
	return result;
}

/* count_rows_of -- count the rows of an owner anew. */
static void
count_rows_of(Oid owner)
{
	int			count = 0;

	for (int i = 0; i < shared->nrows; i++)
		count += shared->heads[i].owner == owner;
	for (int i = 0; i < shared->nrows; i++)
		if (shared->heads[i].owner == owner)
			shared->heads[i].of_owner = count;
}

/* write_file -- write all rows; if there are none, the last number, as a row of no table. */
static bool
write_file(SmallFileSafety safety)
{
	HistoryRow	number = {.number = shared->last_number};

	return small_file_write(HISTORY_PATH, &history_format, shared->nrows > 0 ? rows : &number,
							Max(shared->nrows, 1), safety, LOG);
}

/* compare_numbers -- rows by their numbers, for qsort. */
static int
compare_numbers(const void *a, const void *b)
{
	return pg_cmp_u64(((const HistoryRow *) a)->number, ((const HistoryRow *) b)->number);
}

/* heads_size -- how much shared memory there is beside the rows. */
static Size
heads_size(void)
{
	return add_size(offsetof(HistoryShared, heads), mul_size(cyclone_history_size, sizeof(RowHead)));
}

/* history_rows_shmem_request -- ask for shared memory, if there is to be a history. */
void
history_rows_shmem_request(void)
{
	if (cyclone_history_size == 0)
		return;
	RequestAddinShmemSpace(heads_size());
	RequestAddinShmemSpace(mul_size(cyclone_history_size, sizeof(HistoryRow)));
	RequestNamedLWLockTranche(TRANCHE, 2);
}

/* history_rows_shmem_init -- find our shared memory, or make it. */
void
history_rows_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));

	if (cyclone_history_size == 0)
		return;
	shared = ShmemInitStruct("pg_cyclone history", heads_size(), &found);
	if (!found)
		memset(shared, 0, offsetof(HistoryShared, heads));
	rows = ShmemInitStruct("pg_cyclone history rows",
						   mul_size(cyclone_history_size, sizeof(HistoryRow)), &found);
	file_lock = &GetNamedLWLockTranche(TRANCHE)[0].lock;
	rows_lock = &GetNamedLWLockTranche(TRANCHE)[1].lock;
}

/*
 * history_rows_load
 *		Take over the rows of the file, and write it anew.  For the postmaster, at the
 *		start, when no lock is needed.  A single-user server leaves the file to the next one
 *		that runs VACUUMs of ours.  A file that can't be read stays as it is.
 */
void
history_rows_load(void)
{
	void	   *records;
	int			nrecords;
	HistoryRow *found;

	if (!history_is_kept() || !IsPostmasterEnvironment || IsUnderPostmaster)
		return;
	nrecords = small_file_read(HISTORY_PATH, &history_format, &records, NULL);
	found = records;
	if (nrecords > 0)
		qsort(found, nrecords, sizeof(HistoryRow), compare_numbers);
	for (int i = 0; i < nrecords; i++)
	{
		if (found[i].number <= shared->last_number || found[i].number > PG_INT64_MAX)
			continue;
		shared->last_number = found[i].number;
		if (OidIsValid(found[i].relid))
			place_row(&found[i]);
	}
	if (found != NULL)
		pfree(found);

	shared->is_on_disk = nrecords >= 0 && write_file(SMALL_FILE_SURVIVES_POWER_CUT);
	if (!shared->is_on_disk)
		ereport(LOG,
				(errmsg("the view cyclone.history won't survive the next restart of the server"),
				 errdetail("The file \"%s\" could not be read or written.", HISTORY_PATH)));
}
