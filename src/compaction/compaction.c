/*-------------------------------------------------------------------------
 *
 * compaction.c
 *	  Tables that stay small by themselves: what all processes share, and how it
 *	  starts.
 *
 * While cyclone.compaction is on there is a launcher (launcher.c), which starts a
 * worker for one database after the other (worker.c).  The worker asks which tables
 * are due (compaction_view.c, decision.c), and runs VACUUM (FULL INPLACE) of one at a
 * time, as if a client had sent it.  It knows tables by cyclone.compaction_state, in
 * the database; shared memory has only the tables that are compacted now.
 *
 * The first process that commits a transaction finds that the launcher is missing, and
 * registers it (own_worker.c).  While compaction is off that costs a look at the setting
 * and at the number of workers, and no place for a worker.  If there still is one, as it was switched off when the launcher
 * had died, a launcher comes to stop it.
 *
 * The WAL of the day is in a file, too, so that a restart doesn't allow as much again.  It
 * need not survive a loss of power, so it isn't synced.  What a run wrote that a crash has
 * cut off isn't counted; its table waits.
 *
 * No session is kept waiting.  A statement that drops, renames or copies a database
 * would find the worker in it, so the utility hook ends that first
 * (compaction_make_way).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "common/controldata_utils.h"
#include "common/file_perm.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "postmaster/bgworker.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compaction/compaction.h"
#include "debug_point.h"
#include "own_files.h"
#include "own_worker.h"
#include "scope.h"

#define TRANCHE		"pg_cyclone_compaction"

#define WAL_PATH	OWN_FOLDER "/compaction"

/* The WAL of the day, on disk */
typedef struct WalNote
{
	TimestampTz since;
	uint64		bytes;
	pg_crc32c	crc;
} WalNote;

CompactionShared *compaction_shared = NULL;

static bool server_was_shut_down(void);
static void read_wal(void);
static void begin_day_when_due(void);
static bool launcher_is_due(void);
static bool is_owner(Oid database);
static const char *defines(List *options, const char *option);
static bool workers_are_there(void);
static void leave_database(Oid database);

const OwnWorkerDuty compaction_launcher = {
	.type = "pg_cyclone compaction launcher",
	.function = "pg_cyclone_compaction_launcher",
	.is_due = launcher_is_due
};

/*
 * compaction_init
 *		Have the launcher started when it is due.  Call while the library is preloaded.
 */
void
compaction_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	own_worker_when_due(&compaction_launcher);
}

/* compaction_shmem_request -- how much shared memory we need, and a lock. */
void
compaction_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(CompactionShared));
	RequestNamedLWLockTranche(TRANCHE, 1);
}

/* compaction_shmem_init -- find our shared memory, or make it. */
void
compaction_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));

	compaction_shared = ShmemInitStruct("pg_cyclone compaction", sizeof(CompactionShared), &found);
	if (!found)
	{
		memset(compaction_shared, 0, sizeof(*compaction_shared));
		pg_atomic_init_u32(&compaction_shared->has_launcher, 0);
		pg_atomic_init_u32(&compaction_shared->workers, 0);
		compaction_shared->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
		compaction_shared->was_shut_down = server_was_shut_down();
		read_wal();
	}
}

/*
 * server_was_shut_down
 *		Was the server shut down in peace, as far as its control file tells?  Before
 *		recovery, in the postmaster.  Not a standby: its primary may have crashed.
 */
static bool
server_was_shut_down(void)
{
	bool		is_whole;
	ControlFileData *control = get_controlfile(DataDir, &is_whole);
	bool		was_shut_down = is_whole && control->state == DB_SHUTDOWNED;

	pfree(control);
	return was_shut_down;
}

/* launcher_is_due -- should there be a launcher, or is there a worker to be stopped? */
static bool
launcher_is_due(void)
{
	return compaction_shared != NULL &&
		(cyclone_compaction || pg_atomic_read_u32(&compaction_shared->workers) != 0) &&
		pg_atomic_read_u32(&compaction_shared->has_launcher) == 0;
}

/*
 * compaction_make_way
 *		If a utility statement needs a database without sessions, and the user owns that
 *		database, have its worker leave it.
 *
 * The statement itself waits some seconds for sessions to leave, so this doesn't.  It
 * raises no error: the server will say what is wrong with the statement.
 */
void
compaction_make_way(Node *stmt)
{
	const char *name = NULL;
	Oid			database;

	if (compaction_shared == NULL || !workers_are_there() || !IsTransactionState() ||
		IsAbortedTransactionBlockState())
		return;
	switch (nodeTag(stmt))
	{
		case T_DropdbStmt:
			name = ((DropdbStmt *) stmt)->dbname;
			break;
		case T_AlterDatabaseStmt:
			if (defines(((AlterDatabaseStmt *) stmt)->options, "tablespace") != NULL)
				name = ((AlterDatabaseStmt *) stmt)->dbname;
			break;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_DATABASE)
				name = ((RenameStmt *) stmt)->subname;
			break;
		case T_CreatedbStmt:
			name = defines(((CreatedbStmt *) stmt)->options, "template");
			break;
		default:
			break;
	}
	if (name == NULL)
		return;
	database = get_database_oid(name, true);
	DEBUG_POINT("compaction-way");
	if (OidIsValid(database) && is_owner(database))
		leave_database(database);
}

/*
 * is_owner
 *		Does the user own a database?  No error if it has been dropped: the statement may
 *		say IF EXISTS.
 */
static bool
is_owner(Oid database)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool		is_owner;

	if (!HeapTupleIsValid(tuple))
		return false;
	is_owner = has_privs_of_role(GetUserId(), ((Form_pg_database) GETSTRUCT(tuple))->datdba);
	ReleaseSysCache(tuple);
	return is_owner;
}

/* defines -- the text of an option in a list; NULL if it isn't there. */
static const char *
defines(List *options, const char *option)
{
	foreach_node(DefElem, one, options)
	{
		if (strcmp(one->defname, option) == 0 && one->arg != NULL && IsA(one->arg, String))
			return strVal(one->arg);
	}
	return NULL;
}

/* workers_are_there -- in any database?  Without a lock, as each utility statement asks. */
static bool
workers_are_there(void)
{
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
	{
		if (compaction_shared->slots[i].launched != 0)
			return true;
	}
	return false;
}

/* leave_database -- end the workers that are there, or that are starting. */
static void
leave_database(Oid database)
{
	Assert(OidIsValid(database));

	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < COMPACTION_MAX_WORKERS; i++)
	{
		CompactionSlot *slot = &compaction_shared->slots[i];

		if (slot->database != database)
			continue;
		/* a worker that is starting finds no database, and ends */
		slot->database = InvalidOid;
		if (slot->pid != 0)
			(void) kill(slot->pid, SIGTERM);
	}
	LWLockRelease(compaction_shared->lock);
}

/* compaction_has_database -- is a database one of cyclone.compaction_databases? */
bool
compaction_has_database(const char *name)
{
	return cyclone_compaction_databases[0] == '\0' ||
		scope_matches(cyclone_compaction_databases, NULL, name);
}

/* compaction_wall_clock -- the minute of the week, from Sunday on, in the server's time zone. */
int
compaction_wall_clock(pg_time_t moment)
{
	const struct pg_tm *local = pg_localtime(&moment, log_timezone);

	/* NULL only for times that no clock shows */
	return local == NULL ? 0 :
		local->tm_wday * MINUTES_PER_DAY + local->tm_hour * 60 + local->tm_min;
}

/* compaction_wal_left -- how much WAL may be written in this day, in bytes; negative: there is no bound. */
double
compaction_wal_left(void)
{
	uint64		written;

	Assert(!LWLockHeldByMe(compaction_shared->lock));

	if (cyclone_compaction_max_wal < 0)
		return -1;
	LWLockAcquire(compaction_shared->lock, LW_EXCLUSIVE);
	begin_day_when_due();
	written = compaction_shared->wal_bytes;
	LWLockRelease(compaction_shared->lock);
	return Max(cyclone_compaction_max_wal * 1024.0 * 1024.0 - (double) written, 0);
}

/*
 * compaction_wal_add
 *		Count WAL that was written, and note it on disk.  If that fails a restart of the server
 *		forgets it, and no more is to be done about it: no error.
 */
void
compaction_wal_add(uint64 bytes)
{
	WalNote		note = {0};
	int			fd;

	Assert(LWLockHeldByMeInMode(compaction_shared->lock, LW_EXCLUSIVE));

	if (bytes == 0)
		return;
	begin_day_when_due();
	compaction_shared->wal_bytes += bytes;
	note.since = compaction_shared->wal_since;
	note.bytes = compaction_shared->wal_bytes;
	own_record_seal(&note, offsetof(WalNote, crc));
	(void) MakePGDirectory(OWN_FOLDER);
	fd = open(WAL_PATH, O_WRONLY | O_CREAT | O_CLOEXEC | PG_BINARY, pg_file_create_mode);
	if (fd < 0 || !own_file_write(fd, &note, sizeof(note), 0))
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", WAL_PATH)));
	if (fd >= 0)
		close(fd);
}

/* read_wal -- what was noted, before any other process exists. */
static void
read_wal(void)
{
	WalNote		note;
	int			fd = open(WAL_PATH, O_RDONLY | O_CLOEXEC | PG_BINARY);

	if (fd < 0)
		return;
	if (read(fd, &note, sizeof(note)) == sizeof(note) && own_record_is_whole(&note, offsetof(WalNote, crc)))
	{
		compaction_shared->wal_since = note.since;
		compaction_shared->wal_bytes = note.bytes;
	}
	close(fd);
}

/* begin_day_when_due -- the day is 24 hours from its first look on.  Under the lock. */
static void
begin_day_when_due(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (compaction_is_over(compaction_shared->wal_since, now, USECS_PER_DAY / 1000))
	{
		compaction_shared->wal_since = now;
		compaction_shared->wal_bytes = 0;
	}
}
