/*-------------------------------------------------------------------------
 *
 * decision.h
 *	  Is a table to be compacted now?  If not, why not?
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DECISION_H
#define CYCLONE_DECISION_H

/* The decision, and the meaning of its figure; names are in decision.c */
typedef enum CompactionReason
{
	COMPACTION_DUE,				/* bytes a second */
	COMPACTION_RUNNING,			/* seconds so far */
	COMPACTION_NOT_SAMPLED,		/* bytes that it has; a sample of pages will
								 * tell */
	COMPACTION_STANDBY,
	COMPACTION_OFF,
	COMPACTION_OTHER_DATABASE,
	COMPACTION_NEVER,
	COMPACTION_LEFT,
	COMPACTION_WRONG_WINDOW,
	COMPACTION_SMALL,			/* bytes that it has */
	COMPACTION_LITTLE,			/* bytes to be won */
	COMPACTION_SHARE,			/* per cent to be won */
	COMPACTION_BREAKER,			/* autovacuum's */
	COMPACTION_FAILED,			/* seconds to go, as in all that follows */
	COMPACTION_KILLED,
	COMPACTION_GAVE_WAY,
	COMPACTION_STOPPED,
	COMPACTION_COOLDOWN,
	COMPACTION_HELD,			/* seconds so far */
	COMPACTION_WAL,				/* bytes that it is likely to take */
	COMPACTION_WINDOW,
} CompactionReason;

/* How the last run ended; names are in decision.c */
typedef enum CompactionOutcome
{
	OUTCOME_NONE,				/* none has ended yet */
	OUTCOME_DONE,
	OUTCOME_STOPPED,			/* at the window's end, or it was switched off */
	OUTCOME_GAVE_WAY,			/* a session waited for the table, or
								 * cancelled it */
	OUTCOME_FAILED,
	OUTCOME_KILLED,				/* or the server has crashed */
} CompactionOutcome;

/* All facts that a decision rests on */
typedef struct CompactionFacts
{
	bool		is_standby;
	bool		is_on;
	bool		is_listed;		/* is the database? */
	bool		is_wanted;		/* by its policy */
	bool		is_left;		/* to PostgreSQL, so FULL INPLACE doesn't take
								 * it */
	bool		window_is_valid;
	bool		is_running;
	bool		breaker_is_open;
	bool		is_sampled;
	double		sampled_since;	/* seconds */
	double		bytes;			/* with TOAST table and indexes */
	double		sampled_bytes;	/* the same when it was sampled */
	double		rows;
	double		changes;		/* rows that were updated and deleted since
								 * the statistics were reset */
	double		sampled_changes;
	double		would_win;		/* bytes, by the sample */
	double		min_size;		/* bytes */
	double		threshold;		/* per cent */
	double		cooldown;		/* seconds */
	double		held_since;		/* seconds; 0: by none that is likely to stay */
	CompactionOutcome outcome;
	int			failures;		/* in a row, of any kind */
	int			backoff;		/* how often the cooldown has doubled */
	double		ended_since;	/* seconds */
	double		running_since;	/* seconds */
	double		last_seconds;	/* of the last complete run; 0: there was none */
	double		last_bytes;		/* size of the table before it */
	double		last_wal;		/* bytes that it wrote, if it was the last of
								 * all runs */
	double		wal_left;		/* bytes; negative: no bound */
	bool		window_is_open;
	double		window_opens;	/* seconds to go; negative: never */
} CompactionFacts;

typedef struct CompactionVerdict
{
	CompactionReason reason;
	bool		has_figure;
	double		figure;
	double		next;			/* seconds until it may be due; negative: not
								 * known */
} CompactionVerdict;

/* Pure arithmetic: no locks, no errors, no memory.  Names are constants. */
extern CompactionVerdict compaction_decide(const CompactionFacts *facts);
extern double compaction_seconds(const CompactionFacts *facts);
extern double compaction_wal(const CompactionFacts *facts);
extern int	compaction_backoff(int backoff, double won, double expected, double since_last,
							   double cooldown);
extern bool compaction_stop_was_in_vain(double won, double seconds);
extern const char *compaction_reason_name(CompactionReason reason);
extern const char *compaction_figure_unit(CompactionReason reason);
extern const char *compaction_outcome_name(CompactionOutcome outcome);
extern CompactionOutcome compaction_outcome_of(const char *name);

#endif							/* CYCLONE_DECISION_H */
