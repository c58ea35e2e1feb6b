/*-------------------------------------------------------------------------
 *
 * decision.c
 *	  Is a table to be compacted now?  If not, why not?
 *
 * A table is due when a sample of its pages has shown that enough can be won, in
 * bytes and as a share.  Checks that cost nothing come first: a table that is smaller
 * than what must be won isn't sampled, nor is one that has hardly changed since its
 * last sample.  A sample may read some 40 MB of the table and of each index, so none is
 * taken outside the window: until it opens the last one counts, however old it is.
 *
 * Where compaction isn't worth the work it comes less often.  The cooldown doubles
 * each time that a run wins less than half of what was expected, or that the table is
 * due again when the cooldown ends; it is back at its setting when neither is so.
 * After failures, or when compaction gave way before it had won anything, the pause
 * doubles likewise.  So it does where one window after the other ends while a run has
 * won nothing yet: each run begins with a VACUUM of the whole table.  A table in such a
 * pause isn't sampled.
 *
 * Of several tables that are due, the one comes first that wins most bytes a second.
 * The time is that of its last run, or, without one, of reading and moving at a modest
 * pace.
 *
 * Nothing here needs the server: test/unit/test_compaction.c tests all of it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "compaction/decision.h"

/* A sample is out of date when this share of the rows, or of the size, has changed. */
#define STALE_FRACTION		0.05
/* But a table isn't sampled again before this time, in seconds. */
#define SAMPLE_PAUSE		3600.0

/* Seconds of the first pause after a failure or crash, and after giving way; of the longest */
#define FAILURE_PAUSE		3600.0
#define GAVE_WAY_PAUSE		600.0
#define LONGEST_PAUSE		(7 * 24 * 3600.0)
/* The pause after two runs in a row that were stopped in vain, after this time at least */
#define STOPPED_PAUSE		(12 * 3600.0)
#define LONG_RUN			600.0

/* How many times in a row the cooldown doubles */
#define MAX_BACKOFF			5

/* The pace of a run of a table that has had none, in bytes a second */
#define READ_PACE			(16.0 * 1024 * 1024)
#define MOVE_PACE			(8.0 * 1024 * 1024)

/* WAL for each byte that is won, at least: rows are moved once, indexes written once. */
#define WAL_FACTOR			2.0

static const struct
{
	const char *name;
	const char *unit;			/* of the figure */
}			reasons[] =

{
	[COMPACTION_DUE] = {"due", "bytes a second to be won"},
	[COMPACTION_RUNNING] = {"running", "seconds by now"},
	[COMPACTION_NOT_SAMPLED] = {"not sampled yet", "bytes in all"},
	[COMPACTION_STANDBY] = {"standby", NULL},
	[COMPACTION_OFF] = {"off", NULL},
	[COMPACTION_OTHER_DATABASE] = {"database not listed", NULL},
	[COMPACTION_NEVER] = {"never, by its policy", NULL},
	[COMPACTION_LEFT] = {"left to PostgreSQL", NULL},
	[COMPACTION_WRONG_WINDOW] = {"its policy's window is not valid", NULL},
	[COMPACTION_SMALL] = {"small", "bytes in all"},
	[COMPACTION_LITTLE] = {"little to be won", "bytes to be won"},
	[COMPACTION_SHARE] = {"below the threshold", "per cent to be won"},
	[COMPACTION_BREAKER] = {"circuit breaker", NULL},
	[COMPACTION_FAILED] = {"failed", "seconds to go"},
	[COMPACTION_KILLED] = {"killed", "seconds to go"},
	[COMPACTION_GAVE_WAY] = {"gave way", "seconds to go"},
	[COMPACTION_STOPPED] = {"stopped in vain", "seconds to go"},
	[COMPACTION_COOLDOWN] = {"cooldown", "seconds to go"},
	[COMPACTION_HELD] = {"horizon held back", "seconds since which"},
	[COMPACTION_WAL] = {"WAL of the day used up", "bytes of WAL that it may take"},
	[COMPACTION_WINDOW] = {"outside the window", "seconds to go"},
};

static const char *const outcomes[] =
{
	[OUTCOME_NONE] = "none",
	[OUTCOME_DONE] = "done",
	[OUTCOME_STOPPED] = "stopped",
	[OUTCOME_GAVE_WAY] = "gave way",
	[OUTCOME_FAILED] = "failed",
	[OUTCOME_KILLED] = "killed",
};

static CompactionVerdict verdict(CompactionReason reason, double figure, double next);
static bool sample_is_stale(const CompactionFacts *facts);
static CompactionVerdict wait_for_window(const CompactionFacts *facts);
static double pause_left(const CompactionFacts *facts, CompactionReason *reason);

/*
 * compaction_decide
 *		Judge one table.  If there are several reasons why it isn't due, the most
 *		lasting one counts.
 */
CompactionVerdict
compaction_decide(const CompactionFacts *facts)
{
	CompactionReason reason = COMPACTION_DUE;
	double		pause;
	double		share = facts->bytes > 0 ? 100 * facts->would_win / facts->bytes : 0;

	if (facts->is_standby)
		return verdict(COMPACTION_STANDBY, NAN, -1);
	if (facts->is_running)
		return verdict(COMPACTION_RUNNING, facts->running_since, -1);
	if (!facts->is_on)
		return verdict(COMPACTION_OFF, NAN, -1);
	if (!facts->is_listed)
		return verdict(COMPACTION_OTHER_DATABASE, NAN, -1);
	if (!facts->is_wanted)
		return verdict(COMPACTION_NEVER, NAN, -1);
	if (facts->is_left)
		return verdict(COMPACTION_LEFT, NAN, -1);
	if (!facts->window_is_valid)
		return verdict(COMPACTION_WRONG_WINDOW, NAN, -1);
	if (facts->bytes < facts->min_size)
		return verdict(COMPACTION_SMALL, facts->bytes, -1);
	if (facts->breaker_is_open)
		return verdict(COMPACTION_BREAKER, NAN, -1);
	pause = pause_left(facts, &reason);
	if (pause > 0)
		return verdict(reason, pause, pause);
	if (facts->window_is_open && (!facts->is_sampled || sample_is_stale(facts)))
		return verdict(COMPACTION_NOT_SAMPLED, facts->bytes, -1);
	if (!facts->is_sampled)
		return wait_for_window(facts);
	if (facts->would_win < facts->min_size)
		return verdict(COMPACTION_LITTLE, facts->would_win, -1);
	if (share < facts->threshold)
		return verdict(COMPACTION_SHARE, share, -1);
	if (facts->held_since > 0)
		return verdict(COMPACTION_HELD, facts->held_since, -1);
	if (facts->wal_left >= 0 && compaction_wal(facts) > facts->wal_left)
		return verdict(COMPACTION_WAL, compaction_wal(facts), -1);
	if (!facts->window_is_open)
		return wait_for_window(facts);
	return verdict(COMPACTION_DUE, facts->would_win / compaction_seconds(facts), 0);
}

/* verdict -- make one; figure is NAN if it has none. */
static CompactionVerdict
verdict(CompactionReason reason, double figure, double next)
{
	CompactionVerdict result = {.reason = reason,.has_figure = !isnan(figure),.next = next};

	Assert(!result.has_figure || reasons[reason].unit != NULL);

	result.figure = result.has_figure ? figure : 0;
	return result;
}

/* wait_for_window -- the verdict on a table whose window isn't open. */
static CompactionVerdict
wait_for_window(const CompactionFacts *facts)
{
	Assert(!facts->window_is_open);
	return verdict(COMPACTION_WINDOW, facts->window_opens >= 0 ? facts->window_opens : NAN,
				   facts->window_opens);
}

/* sample_is_stale -- has the table changed since it was sampled? */
static bool
sample_is_stale(const CompactionFacts *facts)
{
	/* the counters may have been reset meanwhile */
	double		changes = facts->changes >= facts->sampled_changes ?
		facts->changes - facts->sampled_changes : facts->changes;

	return facts->sampled_since >= SAMPLE_PAUSE &&
		(changes > STALE_FRACTION * Max(facts->rows, 1) ||
		 fabs(facts->bytes - facts->sampled_bytes) > STALE_FRACTION * facts->bytes);
}

/* pause_left -- the seconds left of the pause after the last run, and why there is one. */
static double
pause_left(const CompactionFacts *facts, CompactionReason *reason)
{
	double		doubled = ldexp(1, Max(Min(facts->failures, 20) - 1, 0));
	double		pause = 0;

	Assert(facts->ended_since >= 0);

	switch (facts->outcome)
	{
		case OUTCOME_NONE:
			return 0;
		case OUTCOME_STOPPED:
			if (facts->failures < 2)
				return 0;
			*reason = COMPACTION_STOPPED;
			pause = Min(STOPPED_PAUSE * doubled / 2, LONGEST_PAUSE);
			break;
		case OUTCOME_DONE:
			*reason = COMPACTION_COOLDOWN;
			pause = facts->cooldown * ldexp(1, Min(facts->backoff, MAX_BACKOFF));
			break;
		case OUTCOME_GAVE_WAY:
			*reason = COMPACTION_GAVE_WAY;
			pause = Min(GAVE_WAY_PAUSE * doubled, LONGEST_PAUSE);
			break;
		case OUTCOME_FAILED:
			*reason = COMPACTION_FAILED;
			pause = Min(FAILURE_PAUSE * doubled, LONGEST_PAUSE);
			break;
		case OUTCOME_KILLED:
			*reason = COMPACTION_KILLED;
			pause = Min(FAILURE_PAUSE * doubled, LONGEST_PAUSE);
			break;
	}
	return pause - facts->ended_since;
}

/* compaction_seconds -- how long a run is expected to take. */
double
compaction_seconds(const CompactionFacts *facts)
{
	double		seconds = facts->last_seconds > 0 && facts->last_bytes > 0 ?
		facts->last_seconds * facts->bytes / facts->last_bytes :
		facts->bytes / READ_PACE + facts->would_win / MOVE_PACE;

	return Max(seconds, 0.001);
}

/*
 * compaction_wal
 *		How much WAL a run is expected to take: as much as the last run, if that is known, for
 *		each byte of the table.  Images of pages and entries of indexes may make that a
 *		multiple of what is won.
 */
double
compaction_wal(const CompactionFacts *facts)
{
	double		as_before = facts->last_bytes > 0 ?
		facts->last_wal * facts->bytes / facts->last_bytes : 0;

	return Max(WAL_FACTOR * facts->would_win, as_before);
}

/*
 * compaction_backoff
 *		How often the cooldown has doubled after a run that won that much of what was
 *		expected.  It began since_last seconds after the run before it had ended;
 *		negative: there was none.
 */
int
compaction_backoff(int backoff, double won, double expected, double since_last, double cooldown)
{
	bool		was_in_vain = won < expected / 2;
	double		length = cooldown * ldexp(1, Min(backoff, MAX_BACKOFF));

	/* it was due as soon as the cooldown had ended, or nearly so */
	bool		was_undone = since_last >= 0 && since_last < 1.25 * length;

	return was_in_vain || was_undone ? Min(backoff + 1, MAX_BACKOFF) : 0;
}

/* compaction_stop_was_in_vain -- was a run stopped that had its time, and has won nothing? */
bool
compaction_stop_was_in_vain(double won, double seconds)
{
	return won <= 0 && seconds >= LONG_RUN;
}

/* compaction_reason_name -- as the view has it. */
const char *
compaction_reason_name(CompactionReason reason)
{
	Assert((unsigned) reason < lengthof(reasons));
	return reasons[reason].name;
}

/* compaction_figure_unit -- what the figure counts; NULL if there is none. */
const char *
compaction_figure_unit(CompactionReason reason)
{
	Assert((unsigned) reason < lengthof(reasons));
	return reasons[reason].unit;
}

/* compaction_outcome_name -- as the view and the table have it. */
const char *
compaction_outcome_name(CompactionOutcome outcome)
{
	Assert((unsigned) outcome < lengthof(outcomes));
	return outcomes[outcome];
}

/* compaction_outcome_of -- the outcome of that name; OUTCOME_NONE if there is no such
name. */
CompactionOutcome
compaction_outcome_of(const char *name)
{
	for (int i = 0; i < lengthof(outcomes); i++)
		if (strcmp(name, outcomes[i]) == 0)
			return i;
	return OUTCOME_NONE;
}
