/*-------------------------------------------------------------------------
 *
 * compaction.h
 *	  Tables that stay small by themselves.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_COMPACTION_H
#define CYCLONE_COMPACTION_H

#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "own_worker.h"

/* The decision, and the meaning of its figure */
typedef enum CompactionReason
{
	COMPACTION_DUE,				/* bytes a second */
	COMPACTION_RUNNING,			/* seconds so far */
	COMPACTION_NOT_SAMPLED,		/* bytes that it has; a sample of pages will
								 * tell */
	COMPACTION_STANDBY,
	COMPACTION_OFF,
	COMPACTION_LABEL,
	COMPACTION_LEFT,
	COMPACTION_SMALL,			/* bytes that it has */
	COMPACTION_BREAKER,			/* autovacuum's */
	COMPACTION_PAUSE,			/* seconds to go */
	COMPACTION_LITTLE,			/* bytes to be freed */
	COMPACTION_SHARE,			/* per cent to be freed */
	COMPACTION_HELD,			/* seconds so far */
	COMPACTION_WINDOW,			/* seconds to go */
} CompactionReason;

/* How a run ended; names are in decision.c, numbers in files */
typedef enum CompactionOutcome
{
	OUTCOME_NONE,				/* none has ended yet */
	OUTCOME_DONE,
	OUTCOME_STOPPED,			/* at the window's end, as it was switched
								 * off, or with the process */
	OUTCOME_GAVE_WAY,			/* another session had or wanted the table, or
								 * cancelled it */
	OUTCOME_FAILED,				/* or took too long */
} CompactionOutcome;

/* All facts that a decision rests on; times are in seconds, sizes in bytes */
typedef struct CompactionFacts
{
	bool		is_standby;
	bool		is_on;
	bool		is_wanted;		/* by its label */
	bool		is_left;		/* to PostgreSQL: FULL INPLACE doesn't take it */
	bool		is_running;
	bool		breaker_is_open;
	bool		is_sampled;
	double		running_since;
	double		sampled_since;
	double		bytes;			/* with TOAST table and indexes */
	double		sampled_bytes;	/* the same when it was sampled */
	double		rows;
	double		changes;		/* rows that were updated and deleted since
								 * the statistics were reset */
	double		sampled_changes;
	double		would_free;		/* by the sample */
	double		least;			/* that must be freed */
	double		threshold;		/* per cent that must be freed */
	double		pause_left;		/* of the last run's pause */
	double		pace;			/* seconds a byte of the last complete run; 0:
								 * there was none */
	double		held_since;		/* 0: by none that is likely to stay */
	double		window_opens;	/* to go; 0: is open; NAN: never */
} CompactionFacts;

typedef struct CompactionVerdict
{
	CompactionReason reason;
	double		figure;			/* NAN: there is none */
} CompactionVerdict;

/* A run that has ended, for the pause after it */
typedef struct CompactionRun
{
	CompactionOutcome outcome;
	bool		was_begun;		/* else the table was locked when we came */
	double		freed;			/* bytes */
	double		expected;		/* to be freed */
	double		pause;			/* seconds that the pause before it was; 0:
								 * there was none */
	double		rested;			/* seconds between the run before it and this
								 * one */
} CompactionRun;

/* The least time that a round of visits takes, and after which a visit begins no more tables */
#define COMPACTION_VISIT_MS	60000

/* What launcher, worker and views share; the lock protects all but the atomics.  A look at pid needs none. */
typedef struct CompactionShared
{
	pg_atomic_uint32 has_launcher;
	pg_atomic_uint64 not_before;	/* a result couldn't be noted; no table is
									 * taken until then */
	LWLock	   *lock;
	int			pid;			/* of the worker; 0: there is none */
	Oid			database;		/* where it is */
	Oid			relid;			/* invalid: it is at no table at the moment */
	TimestampTz started;		/* its turn with relid, or with none */
	double		bytes;			/* of the table, in a run; else 0 */
	TimestampTz told;			/* when the launcher first told it to end this
								 * turn; 0: it hasn't */
	CompactionOutcome told_as;	/* why */
} CompactionShared;

#define MINUTES_PER_DAY		(24 * 60)
#define MINUTES_PER_WEEK	(7 * MINUTES_PER_DAY)

/* A bit for each minute of a week, from Sunday on, as the clock on the wall has it */
typedef struct CompactionWindow
{
	uint8		minutes[MINUTES_PER_WEEK / 8];
} CompactionWindow;

#define COMPACTION_ERROR_SIZE	128

/* A record of the file.  Times are 0 if there was none; sizes are in bytes. */
typedef struct CompactionState
{
	Oid			relid;
	CompactionOutcome outcome;	/* of the last run */
	TimestampTz sampled_at;
	double		sampled_bytes;	/* the table's size then */
	double		sampled_changes;
	double		would_free;		/* negative: not known */
	TimestampTz ended_at;		/* the last run */
	double		pause;			/* after it, in seconds */
	double		freed;
	double		seconds;
	double		pace;			/* seconds a byte of the table, in the last
								 * complete run; 0: there was none */
	int64		runs;			/* complete ones */
	double		total_freed;
	char		error[COMPACTION_ERROR_SIZE];	/* of the last run, its
												 * beginning */
} CompactionState;

/* All states of this database, by relid */
typedef struct CompactionStates
{
	CompactionState *states;
	int			count;
	bool		is_kept;		/* the file can't be read: it stays as it is */
} CompactionStates;

/* A table that may be compacted, or could be if it were larger, or allowed */
typedef struct CompactionTable
{
	Oid			relid;
	char	   *label;			/* NULL: it has none */
	CompactionFacts facts;
	CompactionState state;		/* what is remembered of it; zeros but for
								 * relid: nothing */
	double		rested;			/* seconds since the last run */
	CompactionVerdict verdict;
} CompactionTable;

extern CompactionShared *compaction_shared;
extern const OwnWorkerDuty compaction_launcher;

/* Settings; their meaning is in compaction.c */
extern bool cyclone_compaction;
extern double cyclone_compaction_threshold;
extern char *cyclone_compaction_window;

/* For the time while the library is preloaded, whether it fits the server or not, but for shared memory */
extern void compaction_settings_init(void);
extern void compaction_label_init(void);
extern void compaction_shmem_request(void);
extern void compaction_shmem_init(void);

/*
 * The text of a table's label, palloc'd, or NULL if it has none.  *is_wanted and *threshold are
 * what it says, or the settings where it says nothing.  A label that can't be read has the
 * table left alone.  In a transaction.
 */
extern char *compaction_label_of(Oid relid, bool *is_wanted, double *threshold);

/*
 * compaction_tables returns all tables that the user may see, palloc'd.  It reads catalogs
 * and counters, and no page of a table.  In a transaction with an active snapshot.
 *
 * compaction_opens_in says in how many seconds cyclone.compaction_window opens: 0 if it is
 * open, NAN if that isn't within a week.
 */
extern List *compaction_tables(void);
extern double compaction_opens_in(TimestampTz now);

/*
 * Any process may read the file; only the worker in the database writes it.  The result is
 * palloc'd.  What can't be read or written goes to the log: no errors but for memory.
 *
 * compaction_states_find returns NULL if nothing is remembered of a table.
 * compaction_states_put writes the file with this state in place of the table's old one;
 * false if that can't be done.
 * compaction_states_tidy forgets tables that have been dropped, in a transaction.
 * compaction_states_sweep removes the files of databases that aren't in a list.
 */
extern CompactionStates compaction_states_read(void);
extern CompactionState *compaction_states_find(const CompactionStates *states, Oid relid);
extern bool compaction_states_put(const CompactionState *state);
extern void compaction_states_tidy(void);
extern void compaction_states_sweep(const List *databases);

/* window_parse returns false if the text is no window.  No errors. */
extern bool window_parse(const char *text, CompactionWindow *window);
extern bool window_has(const CompactionWindow *window, int minute);

/* Of each reason, by its number; unit is NULL if it has no figure */
typedef struct CompactionReasonText
{
	const char *name;			/* as the view has it */
	const char *unit;			/* of the figure */
} CompactionReasonText;

extern const CompactionReasonText compaction_reasons[];

/* Pure arithmetic: no locks, no errors, no memory.  Names are constants. */
extern CompactionVerdict compaction_decide(const CompactionFacts *facts);
extern double compaction_pause(const CompactionRun *run);
extern const char *compaction_outcome_name(CompactionOutcome outcome);

#endif							/* CYCLONE_COMPACTION_H */
