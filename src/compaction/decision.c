/*-------------------------------------------------------------------------
 *
 * decision.c
 *	  Is a table to be compacted now?  If not, why not?
 *
 * A table is due when a sample of its pages has shown that enough can be freed, in bytes and
 * as a share.  Checks that cost nothing come first: a table that is smaller than what must
 * be freed isn't sampled, nor is one in a pause, nor one that has hardly changed since its
 * last sample.  A sample may read some 40 MB of the table and of each index, so none is
 * taken outside the window: until it opens the last one counts, however old it is.
 *
 * After each run the table is left alone for a pause, which doubles where runs are in vain.
 *
 * Of several tables that are due, the one comes first that wins most bytes a second.
 *
 * Nothing here needs the server: test/unit/test_compaction.c tests all of it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "compaction/compaction.h"

/* A sample is out of date when this share of the rows, or of the size, has changed. */
#define STALE_FRACTION		0.05
/* But a table isn't sampled again before this time, in seconds. */
#define SAMPLE_PAUSE		3600.0

/* The first and the longest pause, in seconds */
#define FIRST_PAUSE			3600.0
#define LONGEST_PAUSE		(30 * 24 * 3600.0)
/* A run that comes before this many times its pause has come as soon as it might. */
#define RESTED_FACTOR		1.25

/* The pace of a run of a table that has had none, in bytes a second */
#define READ_PACE			(16.0 * 1024 * 1024)
#define MOVE_PACE			(8.0 * 1024 * 1024)

const CompactionReasonText compaction_reasons[] =
{
	[COMPACTION_DUE] = {"due", "bytes a second to be freed"},
	[COMPACTION_RUNNING] = {"running", "seconds by now"},
	[COMPACTION_NOT_SAMPLED] = {"not sampled yet", "bytes in all"},
	[COMPACTION_STANDBY] = {"standby", NULL},
	[COMPACTION_OFF] = {"off", NULL},
	[COMPACTION_LABEL] = {"off, by its label", NULL},
	[COMPACTION_LEFT] = {"left to PostgreSQL", NULL},
	[COMPACTION_SMALL] = {"small", "bytes in all"},
	[COMPACTION_BREAKER] = {"circuit breaker", NULL},
	[COMPACTION_PAUSE] = {"pause", "seconds to go"},
	[COMPACTION_LITTLE] = {"little to be freed", "bytes to be freed"},
	[COMPACTION_SHARE] = {"below the threshold", "per cent to be freed"},
	[COMPACTION_HELD] = {"horizon held back", "seconds since which"},
	[COMPACTION_WINDOW] = {"outside the window", "seconds to go"},
};

static const char *const outcomes[] =
{
	[OUTCOME_NONE] = "none",
	[OUTCOME_DONE] = "done",
	[OUTCOME_STOPPED] = "stopped",
	[OUTCOME_GAVE_WAY] = "gave way",
	[OUTCOME_FAILED] = "failed",
};

static CompactionVerdict make_verdict(CompactionReason reason, double figure);
static bool sample_is_stale(const CompactionFacts *facts);
static double expected_seconds(const CompactionFacts *facts);

/*
 * compaction_decide
 *		Judge one table.  If there are several reasons why it isn't due, the most
 *		lasting one counts.
 */
CompactionVerdict
compaction_decide(const CompactionFacts *facts)
{
	double		share = facts->bytes > 0 ? 100 * facts->would_free / facts->bytes : 0;

	if (facts->is_standby)
		return make_verdict(COMPACTION_STANDBY, NAN);
	if (facts->is_running)
		return make_verdict(COMPACTION_RUNNING, facts->running_since);
	if (!facts->is_on)
		return make_verdict(COMPACTION_OFF, NAN);
	if (!facts->is_wanted)
		return make_verdict(COMPACTION_LABEL, NAN);
	if (facts->is_left)
		return make_verdict(COMPACTION_LEFT, NAN);
	if (facts->bytes < facts->least)
		return make_verdict(COMPACTION_SMALL, facts->bytes);
	if (facts->breaker_is_open)
		return make_verdict(COMPACTION_BREAKER, NAN);
	if (facts->pause_left > 0)
		return make_verdict(COMPACTION_PAUSE, facts->pause_left);
	if (facts->window_opens == 0 && (!facts->is_sampled || sample_is_stale(facts)))
		return make_verdict(COMPACTION_NOT_SAMPLED, facts->bytes);
	if (!facts->is_sampled)
		return make_verdict(COMPACTION_WINDOW, facts->window_opens);
	if (facts->would_free < facts->least)
		return make_verdict(COMPACTION_LITTLE, facts->would_free);
	if (share < facts->threshold)
		return make_verdict(COMPACTION_SHARE, share);
	if (facts->held_since > 0)
		return make_verdict(COMPACTION_HELD, facts->held_since);
	if (facts->window_opens != 0)
		return make_verdict(COMPACTION_WINDOW, facts->window_opens);
	return make_verdict(COMPACTION_DUE, facts->would_free / expected_seconds(facts));
}

/* make_verdict -- figure is NAN if it has none. */
static CompactionVerdict
make_verdict(CompactionReason reason, double figure)
{
	CompactionVerdict result = {.reason = reason,.figure = figure};

	Assert(isnan(figure) || compaction_reasons[reason].unit != NULL);
	return result;
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

/*
 * expected_seconds
 *		How long a run takes by the pace of the last one, or, without one, of reading and
 *		moving at a modest pace.
 */
static double
expected_seconds(const CompactionFacts *facts)
{
	double		seconds = facts->pace > 0 ? facts->pace * facts->bytes :
		facts->bytes / READ_PACE + facts->would_free / MOVE_PACE;

	return Max(seconds, 0.001);
}

/*
 * compaction_pause
 *		For how many seconds a table is left alone after a run.
 *
 * The pause doubles after a run in vain: one that failed, or was interrupted before it had
 * freed anything, or has freed less than half of what was expected.  It also doubles if the
 * table was due again as soon as the pause before had ended, as what was freed doesn't last.
 * Else it is an hour.  An interrupted run that has freed something is no fault of the table's,
 * nor is one that couldn't begin: autovacuum may be at a table each time that we come.
 */
double
compaction_pause(const CompactionRun *run)
{
	bool		was_in_vain = false;

	if (!run->was_begun)
		return Max(run->pause, FIRST_PAUSE);
	switch (run->outcome)
	{
		case OUTCOME_NONE:
			break;
		case OUTCOME_DONE:
			was_in_vain = run->freed < run->expected / 2 || run->rested < RESTED_FACTOR * run->pause;
			break;
		case OUTCOME_STOPPED:
		case OUTCOME_GAVE_WAY:
			was_in_vain = run->freed <= 0;
			break;
		case OUTCOME_FAILED:
			was_in_vain = true;
			break;
	}
	return was_in_vain ? Min(Max(2 * run->pause, FIRST_PAUSE), LONGEST_PAUSE) : FIRST_PAUSE;
}

/* compaction_outcome_name -- as the view has it. */
const char *
compaction_outcome_name(CompactionOutcome outcome)
{
	return (unsigned) outcome < lengthof(outcomes) ? outcomes[outcome] : "?";
}
