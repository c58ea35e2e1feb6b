/*-------------------------------------------------------------------------
 *
 * test_compaction.c
 *	  When a table is compacted: compaction/window.c and compaction/decision.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compaction/decision.c"
#include "compaction/window.c"
#include "unit.h"

#define GB			(1024.0 * 1024 * 1024)
#define HOUR		3600

enum
{
	SUN, MON, TUE, WED, THU, FRI, SAT
};

/* at -- a minute of the week. */
static int
at(int day, int hour, int minute)
{
	return day * MINUTES_PER_DAY + hour * 60 + minute;
}

/* count -- how many minutes a window has. */
static int
count(const CompactionWindow *window)
{
	int			minutes = 0;

	for (int i = 0; i < MINUTES_PER_WEEK; i++)
		minutes += window_has(window, i);
	return minutes;
}

/* read_window -- one that is right. */
static CompactionWindow
read_window(const char *text)
{
	CompactionWindow window;

	unit_case("%s", text);
	CHECK(window_parse(text, &window));
	return window;
}

/* test_windows_are_read -- each form, in all its freedom of case and space. */
UNIT_TEST(test_windows_are_read)
{
	CompactionWindow window;

	window = read_window("");
	CHECK_EQ(count(&window), MINUTES_PER_WEEK);
	window = read_window("  ");
	CHECK_EQ(count(&window), MINUTES_PER_WEEK);
	window = read_window("Mon");
	CHECK_EQ(count(&window), MINUTES_PER_DAY);
	CHECK(window_has(&window, at(MON, 0, 0)) && window_has(&window, at(MON, 23, 59)));
	CHECK(!window_has(&window, at(SUN, 23, 59)) && !window_has(&window, at(TUE, 0, 0)));
	window = read_window("1:30-2:00");
	CHECK_EQ(count(&window), 7 * 30);
	window = read_window("Mon-Fri 22:00-05:00, Sat-Sun");
	CHECK_EQ(count(&window), 2 * MINUTES_PER_DAY + 5 * 7 * 60 - 5 * 60);
	window = read_window("  sAT - mon 22:00 - 24:00 ,fri ");
	CHECK_EQ(count(&window), 3 * 120 + MINUTES_PER_DAY);
	CHECK(window_has(&window, at(SUN, 22, 0)) && !window_has(&window, at(TUE, 22, 0)));
	window = read_window("Wed 08:00-08:00");
	CHECK_EQ(count(&window), MINUTES_PER_DAY);
	CHECK(window_has(&window, at(THU, 7, 59)) && !window_has(&window, at(WED, 7, 59)));
}

/* test_edges -- the first minute belongs to a window, the end doesn't, also over midnight and the week's end. */
UNIT_TEST(test_edges)
{
	CompactionWindow window = read_window("Sat 22:00-05:00");

	CHECK(!window_has(&window, at(SAT, 21, 59)));
	CHECK(window_has(&window, at(SAT, 22, 0)));
	CHECK(window_has(&window, at(SUN, 4, 59)));
	CHECK(!window_has(&window, at(SUN, 5, 0)));
	CHECK(!window_has(&window, at(SAT, 4, 0)));
}

/* test_wrong_windows -- each is refused. */
UNIT_TEST(test_wrong_windows)
{
	static const char *const texts[] = {
		"Mo", "Monday", "Mon-", "Mon-Fry", "22:00", "22:00-25:00", "24:00-05:00", "22:60-05:00",
		"22-05", "22:0-05:00", "222:00-05:00", "22:000-05:00", "22:00-24:01", "Mon,", ",", "-",
		"Mon Tue", "22:00-05:00 Mon", "\xc3\xa9",
	};

	for (int i = 0; i < lengthof(texts); i++)
	{
		CompactionWindow window;

		unit_case("%s", texts[i]);
		CHECK(!window_parse(texts[i], &window));
	}
}

/* usual -- a table that is due: 4 GB, of which half can be freed. */
static CompactionFacts
usual(void)
{
	CompactionFacts facts = {
		.is_on = true,.is_wanted = true,.is_sampled = true,
		.sampled_since = HOUR,.bytes = 4 * GB,.sampled_bytes = 4 * GB,.rows = 1000,
		.changes = 500,.sampled_changes = 500,.would_free = 2 * GB,.least = GB / 8,.threshold = 30
	};

	return facts;
}

/* expect -- the verdict, and its figure. */
static void
expect(CompactionFacts facts, CompactionReason reason, double figure)
{
	CompactionVerdict verdict = compaction_decide(&facts);

	unit_case("expected %s, not %s", compaction_reasons[reason].name, compaction_reasons[verdict.reason].name);
	CHECK_EQ(verdict.reason, reason);
	CHECK_EQ(!isnan(verdict.figure), compaction_reasons[reason].unit != NULL);
	if (!isnan(verdict.figure))
		CHECK_BETWEEN(figure - 0.001, verdict.figure, figure + 0.001);
}

#define EXPECT(change, reason, figure) \
	do { \
		CompactionFacts facts = usual(); \
		change; \
		expect(facts, reason, figure); \
	} while (0)

/* test_reasons -- each, with its number. */
UNIT_TEST(test_reasons)
{
	EXPECT((void) 0, COMPACTION_DUE, 2 * GB / (4 * GB / READ_PACE + 2 * GB / MOVE_PACE));
	EXPECT(facts.is_standby = true, COMPACTION_STANDBY, 0);
	EXPECT((facts.is_running = true, facts.running_since = 7), COMPACTION_RUNNING, 7);
	EXPECT(facts.is_on = false, COMPACTION_OFF, 0);
	EXPECT(facts.is_wanted = false, COMPACTION_LABEL, 0);
	EXPECT(facts.is_left = true, COMPACTION_LEFT, 0);
	EXPECT(facts.bytes = GB / 16, COMPACTION_SMALL, GB / 16);
	EXPECT(facts.is_sampled = false, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT(facts.would_free = GB / 16, COMPACTION_LITTLE, GB / 16);
	EXPECT(facts.would_free = GB, COMPACTION_SHARE, 25);
	EXPECT(facts.breaker_is_open = true, COMPACTION_BREAKER, 0);
	EXPECT(facts.pause_left = 12, COMPACTION_PAUSE, 12);
	EXPECT((facts.pause_left = 12, facts.is_sampled = false), COMPACTION_PAUSE, 12);
	EXPECT(facts.held_since = 900, COMPACTION_HELD, 900);
	EXPECT((facts.window_opens = 60), COMPACTION_WINDOW, 60);
}

/* test_no_samples_outside_the_window -- the last one counts until then, if there is any. */
UNIT_TEST(test_no_samples_outside_the_window)
{
	EXPECT((facts.is_sampled = false, facts.window_opens = 60),
		   COMPACTION_WINDOW, 60);
	EXPECT((facts.window_opens = 60, facts.changes = 1000),
		   COMPACTION_WINDOW, 60);
	EXPECT((facts.window_opens = 60, facts.would_free = GB / 16, facts.changes = 1000),
		   COMPACTION_LITTLE, GB / 16);
	EXPECT((facts.window_opens = 60, facts.bytes = GB / 16),
		   COMPACTION_SMALL, GB / 16);
}

/* test_limits_are_reached -- what is just enough is enough. */
UNIT_TEST(test_limits_are_reached)
{
	CompactionFacts facts = usual();

	facts.least = facts.would_free;
	facts.threshold = 50;
	CHECK_EQ(compaction_decide(&facts).reason, COMPACTION_DUE);
	facts.bytes = facts.sampled_bytes = facts.would_free = 0;
	facts.least = facts.threshold = 0;
	CHECK_EQ(compaction_decide(&facts).reason, COMPACTION_DUE);
}

/* test_stale_samples -- by rows, by size, and when the statistics have been reset. */
UNIT_TEST(test_stale_samples)
{
	EXPECT(facts.changes = 550, COMPACTION_DUE, 2 * GB / (4 * GB / READ_PACE + 2 * GB / MOVE_PACE));
	EXPECT(facts.changes = 551, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT((facts.changes = 551, facts.sampled_since = HOUR - 1), COMPACTION_DUE,
		   2 * GB / (4 * GB / READ_PACE + 2 * GB / MOVE_PACE));
	EXPECT(facts.changes = 51, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT(facts.sampled_bytes = 3.7 * GB, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT(facts.sampled_bytes = 4.3 * GB, COMPACTION_NOT_SAMPLED, 4 * GB);
}

/* pause_after -- a run that came long after a pause of that many hours; in hours. */
static double
pause_after(CompactionOutcome outcome, double freed, double hours)
{
	CompactionRun run = {
		.outcome = outcome,.was_begun = true,.freed = freed,.expected = 10,.pause = hours * HOUR,
		.rested = 1000 * HOUR
	};

	return compaction_pause(&run) / HOUR;
}

/* test_pauses -- an hour, but twice as long as before after a run in vain, up to a month. */
UNIT_TEST(test_pauses)
{
	CHECK_EQ(pause_after(OUTCOME_DONE, 5, 0), 1);
	CHECK_EQ(pause_after(OUTCOME_DONE, 5, 8), 1);
	CHECK_EQ(pause_after(OUTCOME_DONE, 4, 0), 1);
	CHECK_EQ(pause_after(OUTCOME_DONE, 4, 1), 2);
	CHECK_EQ(pause_after(OUTCOME_DONE, -1, 2), 4);
	CHECK_EQ(pause_after(OUTCOME_FAILED, 9, 4), 8);
	CHECK_EQ(pause_after(OUTCOME_FAILED, 0, 500), 720);
	CHECK_EQ(pause_after(OUTCOME_FAILED, 0, 720), 720);
}

/* test_interrupted_runs -- are in vain only if they have freed nothing. */
UNIT_TEST(test_interrupted_runs)
{
	for (CompactionOutcome outcome = OUTCOME_STOPPED; outcome <= OUTCOME_GAVE_WAY; outcome++)
	{
		CHECK_EQ(pause_after(outcome, 1, 8), 1);
		CHECK_EQ(pause_after(outcome, 0, 8), 16);
		CHECK_EQ(pause_after(outcome, -1, 8), 16);
	}
}

/* test_pause_of_what_does_not_last -- doubles where a table was due again as soon as it might be. */
UNIT_TEST(test_pause_of_what_does_not_last)
{
	CompactionRun run = {.outcome = OUTCOME_DONE,.was_begun = true,.freed = 10,.expected = 10,.pause = 4 * HOUR};

	run.rested = 5 * HOUR - 1;
	CHECK_EQ(compaction_pause(&run), 8 * HOUR);
	run.rested = 5 * HOUR;
	CHECK_EQ(compaction_pause(&run), HOUR);
}

/* test_locked_tables -- it is no fault of theirs that another session had them when we came. */
UNIT_TEST(test_locked_tables)
{
	CompactionRun run = {.outcome = OUTCOME_GAVE_WAY,.expected = 10};

	CHECK_EQ(compaction_pause(&run), HOUR);
	run.pause = 4 * HOUR;
	CHECK_EQ(compaction_pause(&run), 4 * HOUR);
}

/* test_what_wins_most_comes_first -- a second, by the last run if there was one. */
UNIT_TEST(test_what_wins_most_comes_first)
{
	CompactionFacts small = usual();
	CompactionFacts large = usual();
	CompactionFacts slow = usual();

	small.bytes = small.sampled_bytes = 2.5 * GB;
	slow.pace = 4 * HOUR / (8 * GB);
	CHECK(compaction_decide(&small).figure > compaction_decide(&large).figure);
	CHECK_EQ(expected_seconds(&slow), 2 * HOUR);
	CHECK(compaction_decide(&slow).figure < compaction_decide(&large).figure);
}
