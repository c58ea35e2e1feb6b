/*-------------------------------------------------------------------------
 *
 * running_notes.c
 *	  Notes on disk of the tables that the engine vacuums for autovacuum, for
 *	  the case of a crash.
 *
 * If the engine brought a server down with some table, autovacuum would come to that
 * table again as soon as the server is back, and so on.  So a worker writes down which
 * table it is at, and crosses that out when it is done.  Tables that a server finds in
 * the notes at its start go to PostgreSQL's VACUUM next (table_log_crashed); nobody
 * knows whether the engine was to blame.
 *
 * A crash takes the breakers in shared memory with it.  So breakers that crashes
 * have opened are in the notes, too, until their time is over: otherwise two tables
 * that crash the server could take turns for ever.  And there may be a thousand such
 * tables: after a few crashes within that time all tables are left to PostgreSQL, for
 * as long as a single one would be.  Then there is a trial with one table.  Each crash
 * in the week after it leaves them all to PostgreSQL at once and for twice as long, and
 * after a few of these until a user resets it.
 *
 * Ends that are no crash
 * ----------------------
 * A worker that is terminated, or whose postmaster has died, crosses out its
 * note as it exits.  So does a worker that an immediate stop of the server
 * ends, in its signal handler: a person asked for that, and it says nothing about
 * the engine.  If the server ends because another process has crashed, the
 * note stays: memory that the engine has overwritten may have been the reason.
 *
 * A server that starts from a base backup has a copy of the notes of another
 * server, which had not crashed.  It ignores the tables that were being vacuumed
 * there, but not those that had crashed that server: it has the same tables.  A
 * snapshot of the whole disk looks like a crash.  That does no harm: a table or two
 * are left to PostgreSQL for a while.
 *
 * Failed audits
 * -------------
 * A failed audit opens a breaker, too, and a restart is no reason to forget it.  So
 * there is a note of it in a second file.  Any process may append one at any time.  The
 * next start of the server treats the notes of both files alike, but these don't count
 * as crashes.
 *
 * The files
 * ---------
 * The notes are in one file of the data directory, with a place for each
 * possible process, and behind these one for each breaker.  The file need
 * not survive a loss of power, so it isn't synced.  Nothing here raises an
 * error: if a note can't be written, the result says so.  Files are opened without
 * the server's bookkeeping, as that may raise an error.  A process keeps its file open,
 * so that a signal handler only has to write.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/file_perm.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "at_exit.h"
#include "autovacuum/running_notes.h"
#include "compat.h"
#include "debug_point.h"
#include "own_files.h"

#define NOTES_PATH		OWN_FOLDER "/autovacuum"
#define NEW_NOTES_PATH	NOTES_PATH ".new"
#define AUDITS_PATH		OWN_FOLDER "/audits"
#define NEW_AUDITS_PATH	AUDITS_PATH ".new"

/* After this many crashes all tables are left to PostgreSQL. */
#define CRASHES_FOR_ALL	3

/* This many trials may end in a crash. */
#define MOST_TRIALS		5

/* A note of all tables has this for breaker_until if the trial went well, at crashed_at. */
#define TRIAL_WENT_WELL	1
/* For this long after that, or after a break without a trial, we remember that they were left. */
#define MEMORY_MS		(7 * 24 * 3600 * INT64CONST(1000))

/* A note; zeros if a place has none */
typedef struct RunningNote
{
	TableKey	key;
	TimestampTz breaker_until;	/* of a crash or audit; 0: the table is being
								 * vacuumed */
	TimestampTz crashed_at;		/* when the server was back; the same for all
								 * tables of a crash */
	uint32		failures;		/* of the engine on this table, in a row,
								 * before; if it is about all, how often they
								 * were left */
	pg_crc32c	crc;
} RunningNote;

/* The crashes whose breakers are open, as far as they need be told apart */
typedef struct Crashes
{
	int			number;
	TimestampTz at[CRASHES_FOR_ALL];
} Crashes;

/* All tables; no relation has such an OID. */
static const TableKey all_tables = {.database = InvalidOid,.relid = 1};

/* The file, once this process has written a note */
static int	notes_fd = -1;
static volatile sig_atomic_t has_note = false;

static void register_process(void);
static void end_at_exit(void);
static void end_at_quit(SIGNAL_ARGS);
static RunningNote make_note(const TableKey *key, uint32 failures,
							 TimestampTz crashed_at, TimestampTz until);
static int	open_notes(const char *path);
static bool append_note(int fd, const RunningNote *note);
static bool write_to_place(int fd, int place, const RunningNote *note);
static bool write_note(const char *path, int place, const RunningNote *note);
static bool sync_notes(const char *path);
static bool read_note(int fd, RunningNote *note);
static void cross_out(const char *path, const TableKey *key);
static void read_audits(void);
static void read_notes(void);
static void take_over_crash(RunningNote *note, TimestampTz now);
static void count_crash(Crashes *crashes, const RunningNote *note);
static bool is_about_all(const RunningNote *note);
static void judge_all_tables(RunningNote *all, const Crashes *crashes, bool has_crashed);

/*
 * running_notes_begin
 *		Write down that this process begins to vacuum a table.  Returns false if
 *		that isn't possible.
 */
bool
running_notes_begin(const TableKey *key, uint32 failures)
{
	RunningNote note = make_note(key, failures, 0, 0);

	/* in a worker of autovacuum or compaction */
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	Assert(!has_note);

	register_process();

	if (notes_fd < 0)
	{
		notes_fd = open_notes(NOTES_PATH);
		if (notes_fd < 0)
			return false;
		ReserveExternalFD();
	}

	/* first, as a signal may come while it is being written */
	has_note = true;
	if (!write_to_place(notes_fd, MyProcNumber, &note))
		has_note = false;
	return has_note;
}

/* running_notes_end -- cross it out; harmless if there is none. */
void
running_notes_end(void)
{
	RunningNote nothing = {0};

	if (has_note)
		(void) write_to_place(notes_fd, MyProcNumber, &nothing);
	has_note = false;
}

/*
 * running_notes_trial_went_well
 *		The engine has vacuumed a table again, after all had been left to the server: they
 *		no longer are.  The note stays, as the next crash leaves them all again at once.
 */
void
running_notes_trial_went_well(void)
{
	int			fd = open(NOTES_PATH, O_RDONLY | PG_BINARY);
	RunningNote note;

	if (fd < 0)
		return;
	/* or it might write again what another session has just crossed out */
	table_log_lock_crashes();
	for (int place = 0; read_note(fd, &note); place++)
		if (is_about_all(&note))
		{
			DEBUG_POINT("trial");
			note = make_note(&all_tables, note.failures, GetCurrentTimestamp(), TRIAL_WENT_WELL);
			(void) write_note(NOTES_PATH, place, &note);
		}
	table_log_unlock_crashes();
	close(fd);
}

/*
 * running_notes_forget
 *		Cross out the breakers that crashes and audits have opened for a table, or all
 *		of them if key is NULL.
 *
 * Only this, a trial's end and the server's start write to their places.  Nothing that
 * is written meanwhile is missed: only the server's start opens breakers for a crash, and
 * an audit that fails now comes after this.
 */
void
running_notes_forget(const TableKey *key)
{
	cross_out(NOTES_PATH, key);
	cross_out(AUDITS_PATH, key);
}

/* cross_out -- likewise, in one of the files. */
static void
cross_out(const char *path, const TableKey *key)
{
	int			fd = open(path, O_RDONLY | PG_BINARY);
	RunningNote note;
	RunningNote nothing = {0};

	if (fd < 0)
		return;
	table_log_lock_crashes();
	for (int place = 0; read_note(fd, &note); place++)
		if (note.breaker_until != 0 &&
			(key == NULL || memcmp(key, &note.key, sizeof(TableKey)) == 0))
			(void) write_note(path, place, &nothing);
	table_log_unlock_crashes();
	close(fd);
}

/* register_process -- see to it that this process crosses out its notes. */
static void
register_process(void)
{
	static bool is_registered = false;

	if (is_registered)
		return;
	at_exit(end_at_exit);
	/* what comes then is autovacuum workers' usual handler of this signal */
	pqsignal(SIGQUIT, end_at_quit);
	is_registered = true;
}

/* end_at_exit -- a process that is terminated has not crashed. */
static void
end_at_exit(void)
{
	running_notes_end();
}

/*
 * end_at_quit
 *		The handler of SIGQUIT.  It doesn't return, and calls only what a signal
 *		handler may call.
 */
static void
end_at_quit(SIGNAL_ARGS)
{
	if (GetQuitSignalReason() == PMQUIT_FOR_STOP)
		running_notes_end();
	SignalHandlerForCrashExit(COMPAT_SIGNAL_ARGUMENTS);
}

/* make_note -- fill in a note. */
static RunningNote
make_note(const TableKey *key, uint32 failures,
		  TimestampTz crashed_at, TimestampTz until)
{
	RunningNote note = {
		.key = *key,
		.breaker_until = until,
		.crashed_at = crashed_at,
		.failures = failures
	};

	own_record_seal(&note, offsetof(RunningNote, crc));
	return note;
}

/*
 * running_notes_audit_failed
 *		An audit has failed on a table, after this many failures in a row, and the table is
 *		left to the server until then.  If that can't be written down, a restart of the
 *		server forgets it.
 */
void
running_notes_audit_failed(const TableKey *key, uint32 failures, TimestampTz until)
{
	RunningNote note = make_note(key, failures, 0, until);
	int			fd = open_notes(AUDITS_PATH);

	Assert(key != NULL && until != 0);
	if (fd < 0 || !append_note(fd, &note))
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", AUDITS_PATH)));
	if (fd >= 0)
		close(fd);
}

/* append_note -- append to an open file, and have it on disk; false with errno if that fails. */
static bool
append_note(int fd, const RunningNote *note)
{
	off_t		size = lseek(fd, 0, SEEK_END);

	/* a full disk may have left a part of a note: cut it off */
	if (size < 0 ||
		(size % sizeof(RunningNote) != 0 &&
		 ftruncate(fd, size - size % sizeof(RunningNote)) != 0) ||
		fcntl(fd, F_SETFL, O_APPEND) != 0)
		return false;
	errno = ENOSPC;				/* if it is written in part */
	return write(fd, note, sizeof(RunningNote)) == sizeof(RunningNote) && pg_fsync(fd) == 0;
}

/* write_note -- write to a place of a file. */
static bool
write_note(const char *path, int place, const RunningNote *note)
{
	int			fd = open_notes(path);
	bool		is_written;

	if (fd < 0)
		return false;
	is_written = write_to_place(fd, place, note);
	close(fd);
	return is_written;
}

/* open_notes -- open a file of notes to write to it, or make it; as open(). */
static int
open_notes(const char *path)
{
	(void) MakePGDirectory(OWN_FOLDER);
	return open(path, O_WRONLY | O_CREAT | O_CLOEXEC | PG_BINARY, pg_file_create_mode);
}

/* sync_notes -- have a file of notes on disk. */
static bool
sync_notes(const char *path)
{
	int			fd = open_notes(path);
	bool		is_done = fd >= 0 && pg_fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	return is_done;
}

/* write_to_place -- write to a place of an open file. */
static bool
write_to_place(int fd, int place, const RunningNote *note)
{
	return own_file_write(fd, note, sizeof(RunningNote), (off_t) place * sizeof(RunningNote));
}

/*
 * read_note
 *		Read the note in the next place, or zeros if what is there is none.
 *		Returns false at the end of the file.
 */
static bool
read_note(int fd, RunningNote *note)
{
	if (read(fd, note, sizeof(RunningNote)) != sizeof(RunningNote))
		return false;
	if (!OidIsValid(note->key.relid) || !own_record_is_whole(note, offsetof(RunningNote, crc)))
		memset(note, 0, sizeof(RunningNote));
	return true;
}

/*
 * read_notes
 *		Open the breakers of all tables that are written down, and begin anew, with
 *		these breakers.
 */
static void
read_notes(void)
{
	int			fd = open(NOTES_PATH, O_RDONLY | PG_BINARY);
	bool		is_copy = access(BACKUP_LABEL_FILE, F_OK) == 0;
	TimestampTz now = GetCurrentTimestamp();
	Crashes		crashes = {0};
	bool		has_crashed = false;
	int			nbreakers = 0;
	RunningNote note;
	RunningNote all = {0};

	if (fd < 0)
		return;
	(void) unlink(NEW_NOTES_PATH);
	while (read_note(fd, &note))
	{
		if (!OidIsValid(note.key.relid) || (note.breaker_until == 0 && is_copy))
			continue;
		if (is_about_all(&note))
		{
			all = note;
			continue;
		}
		has_crashed |= note.breaker_until == 0;
		take_over_crash(&note, now);
		if (note.breaker_until == 0)
			continue;
		count_crash(&crashes, &note);
		if (write_note(NEW_NOTES_PATH, MaxBackends + nbreakers, &note))
			nbreakers++;
	}
	close(fd);
	judge_all_tables(&all, &crashes, has_crashed);
	if (is_about_all(&all) && write_note(NEW_NOTES_PATH, MaxBackends + nbreakers, &all))
		nbreakers++;
	/* otherwise the old notes would be read again */
	if (nbreakers == 0 || rename(NEW_NOTES_PATH, NOTES_PATH) != 0)
		(void) unlink(NOTES_PATH);
}

/*
 * read_audits
 *		Open the breakers that failed audits have opened, the latest one of a table
 *		last, and keep those that are still open.
 */
static void
read_audits(void)
{
	int			fd = open(AUDITS_PATH, O_RDONLY | PG_BINARY);
	int			nbreakers = 0;
	bool		all_written = true;
	RunningNote note;

	if (fd < 0)
		return;
	(void) unlink(NEW_AUDITS_PATH);
	while (read_note(fd, &note))
	{
		TimestampTz until = 0;

		if (OidIsValid(note.key.relid))
			until = table_log_reopen(&note.key, note.failures, true, note.breaker_until);
		if (until == 0)
			continue;
		note = make_note(&note.key, note.failures, 0, until);
		all_written = write_note(NEW_AUDITS_PATH, nbreakers++, &note) && all_written;
	}
	close(fd);

	/*
	 * with a full disk the old file stays: the time of its notes ends by
	 * itself
	 */
	if (nbreakers == 0)
		(void) unlink(AUDITS_PATH);
	else if (!all_written || !sync_notes(NEW_AUDITS_PATH) || rename(NEW_AUDITS_PATH, AUDITS_PATH) != 0)
		(void) unlink(NEW_AUDITS_PATH);
}

/*
 * take_over_crash
 *		Open the breaker of a note's table, and change the note to that of this
 *		breaker; it has none if that is over.
 */
static void
take_over_crash(RunningNote *note, TimestampTz now)
{
	if (note->breaker_until != 0)
		*note = make_note(&note->key, note->failures, note->crashed_at,
						  table_log_reopen(&note->key, note->failures, false, note->breaker_until));
	else
	{
		ereport(LOG,
				(errmsg("an autovacuum by pg_cyclone of relation %u in database %u was interrupted by a crash",
						note->key.relid, note->key.database),
				 errdetail("PostgreSQL's own VACUUM processes it next.")));
		*note = make_note(&note->key, note->failures + 1, now,
						  table_log_crashed(&note->key, note->failures + 1));
	}
}

/* count_crash -- count the crash that has opened a table's breaker, once for all its tables. */
static void
count_crash(Crashes *crashes, const RunningNote *note)
{
	Assert(note->breaker_until != 0);
	Assert(crashes->number >= 0 && crashes->number <= CRASHES_FOR_ALL);

	for (int i = 0; i < crashes->number; i++)
		if (crashes->at[i] == note->crashed_at)
			return;
	if (crashes->number == CRASHES_FOR_ALL)
		return;
	crashes->at[crashes->number++] = note->crashed_at;
}

/* is_about_all -- is a note not about a table, but about all? */
static bool
is_about_all(const RunningNote *note)
{
	return memcmp(&note->key, &all_tables, sizeof(TableKey)) == 0;
}

/*
 * judge_all_tables
 *		Leave all tables to PostgreSQL's VACUUM after too many crashes, or after one
 *		more if they were left before.
 *
 * all is the note about them, zeros if there is none.
 */
static void
judge_all_tables(RunningNote *all, const Crashes *crashes, bool has_crashed)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		is_known = is_about_all(all) &&
		!TimestampDifferenceExceeds(Max(all->crashed_at, all->breaker_until), now, MEMORY_MS);

	if (is_known ? has_crashed : crashes->number == CRASHES_FOR_ALL)
	{
		uint32		times = is_known ? all->failures + 1 : 1;

		*all = make_note(&all_tables, times, now,
						 times > MOST_TRIALS ? DT_NOEND : table_log_break_until(times));
	}
	else if (!is_known)
		memset(all, 0, sizeof(RunningNote));
	else if (all->breaker_until != DT_NOEND)
	{
		/* the clock may have been set back */
		TimestampTz latest = table_log_longest_break(now);

		*all = make_note(&all_tables, all->failures, Min(all->crashed_at, now),
						 Min(all->breaker_until, latest));
	}

	if (!is_about_all(all) || all->breaker_until == TRIAL_WENT_WELL)
		return;
	table_log_leave_all(all->breaker_until);
	if (all->breaker_until > now)
		ereport(LOG,
				(errmsg("autovacuum leaves all tables to PostgreSQL's own VACUUM until %s",
						timestamptz_to_str(all->breaker_until)),
				 errdetail("The server has crashed several times while pg_cyclone was vacuuming for autovacuum."),
				 errhint("The function cyclone.autovacuum_reset() ends that.")));
}

/* running_notes_read -- read the notes that a crash has left, once, in the postmaster. */
void
running_notes_read(void)
{
	/* a single-user server leaves them to the next one that has autovacuum */
	if (IsPostmasterEnvironment && !IsUnderPostmaster)
	{
		read_notes();
		/* last, as these breakers hold for commands, too */
		read_audits();
	}
}
