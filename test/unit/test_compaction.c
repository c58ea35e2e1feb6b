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

/* How far the clock on the wall is ahead before a change, and after it */
static pg_time_t change_at;
static int	ahead_before;
static int	ahead_after;

/* How often it was asked */
static int	looks;

/* wall_clock -- what it shows; the epoch was on a Thursday. */
static int
wall_clock(pg_time_t moment)
{
	pg_time_t	local = moment + (moment < change_at ? ahead_before : ahead_after);

	looks++;
	return (local / 60 + THU * MINUTES_PER_DAY) % MINUTES_PER_WEEK;
}

/* utc -- a clock that nobody changes. */
static void
utc(void)
{
	change_at = ahead_before = ahead_after = 0;
}

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
	const char *problem = NULL;

	unit_case("%s", text);
	CHECK(window_parse(text, &window, &problem));
	return window;
}

/* test_windows_are_read -- each form, in all its freedom of case and space. */
static void
test_windows_are_read(void)
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
static void
test_edges(void)
{
	CompactionWindow window = read_window("Sat 22:00-05:00");

	CHECK(!window_has(&window, at(SAT, 21, 59)));
	CHECK(window_has(&window, at(SAT, 22, 0)));
	CHECK(window_has(&window, at(SUN, 4, 59)));
	CHECK(!window_has(&window, at(SUN, 5, 0)));
	CHECK(!window_has(&window, at(SAT, 4, 0)));
}

/* test_wrong_windows -- each says what is wrong. */
static void
test_wrong_windows(void)
{
	static const char *const texts[][2] = {
		{"Mo", "Days are"}, {"Monday", "Days are"}, {"Mon-", "Days are"}, {"Mon-Fry", "Days are"},
		{"22:00", "Hours are"}, {"22:00-25:00", "Hours are"}, {"24:00-05:00", "Hours are"},
		{"22:60-05:00", "Hours are"}, {"22-05", "Hours are"}, {"22:0-05:00", "Hours are"},
		{"222:00-05:00", "Hours are"}, {"22:000-05:00", "Hours are"}, {"22:00-24:01", "Hours are"},
		{"Mon,", "Days or hours"}, {",", "Days or hours"}, {"-", "Days or hours"},
		{"Mon Tue", "There is something"}, {"22:00-05:00 Mon", "There is something"},
		{"\xc3\xa9", "Days or hours"},
	};

	for (int i = 0; i < lengthof(texts); i++)
	{
		CompactionWindow window;
		const char *problem = "";

		unit_case("%s", texts[i][0]);
		CHECK(!window_parse(texts[i][0], &window, &problem));
		CHECK(strncmp(problem, texts[i][1], strlen(texts[i][1])) == 0);
	}
}

/* test_next_change -- to the second, and never where there is none, which doesn't take a look at each minute. */
static void
test_next_change(void)
{
	CompactionWindow window = read_window("Thu 01:00-02:00");

	utc();
	CHECK_EQ(window_next_change(&window, 0, wall_clock), HOUR);
	CHECK_EQ(window_next_change(&window, HOUR - 1, wall_clock), 1);
	CHECK_EQ(window_next_change(&window, HOUR, wall_clock), HOUR);
	CHECK_EQ(window_next_change(&window, 2 * HOUR - 1, wall_clock), 1);
	CHECK_EQ(window_next_change(&window, 2 * HOUR, wall_clock), 7 * 24 * HOUR - HOUR);
	window = read_window("");
	looks = 0;
	CHECK_EQ(window_next_change(&window, 12345, wall_clock), -1);
	CHECK(looks < 1000);
}

/*
 * test_daylight_saving
 *		A window over the change is an hour shorter or longer; one in the hour that is
 *		left out doesn't come, in the one that comes twice it does so twice.
 */
static void
test_daylight_saving(void)
{
	CompactionWindow night = read_window("00:00-05:00");
	CompactionWindow change = read_window("02:00-03:00");

	/* in spring: 02:00 becomes 03:00 */
	change_at = 2 * HOUR;
	ahead_before = 0;
	ahead_after = HOUR;
	CHECK_EQ(window_next_change(&night, 0, wall_clock), 4 * HOUR);
	CHECK_EQ(window_next_change(&night, 90 * 60 + 7, wall_clock), 4 * HOUR - 90 * 60 - 7);
	CHECK_EQ(window_next_change(&change, 0, wall_clock), 25 * HOUR);

	/* in autumn: 03:00 becomes 02:00 */
	change_at = 3 * HOUR;
	ahead_before = 0;
	ahead_after = -HOUR;
	CHECK_EQ(window_next_change(&night, 0, wall_clock), 6 * HOUR);
	CHECK_EQ(window_next_change(&night, 150 * 60, wall_clock), 6 * HOUR - 150 * 60);
	CHECK_EQ(window_next_change(&change, 2 * HOUR, wall_clock), 2 * HOUR);
	utc();
}

/* usual -- a table that is due: 4 GB, of which half can be won. */
static CompactionFacts
usual(void)
{
	CompactionFacts facts = {
		.is_on = true,.is_listed = true,.is_wanted = true,.window_is_valid = true,
		.is_sampled = true,.sampled_since = HOUR,.bytes = 4 * GB,.sampled_bytes = 4 * GB,.rows = 1000,
		.changes = 500,.sampled_changes = 500,.would_win = 2 * GB,.min_size = GB / 8,
		.threshold = 30,.cooldown = 24 * HOUR,.wal_left = -1,.window_is_open = true
	};

	return facts;
}

/* expect -- the verdict, and its figure. */
static void
expect(CompactionFacts facts, CompactionReason reason, double figure)
{
	CompactionVerdict verdict = compaction_decide(&facts);

	unit_case("expected %s, not %s", compaction_reason_name(reason), compaction_reason_name(verdict.reason));
	CHECK_EQ(verdict.reason, reason);
	CHECK_EQ(verdict.has_figure, compaction_figure_unit(reason) != NULL);
	CHECK_BETWEEN(figure - 0.001, verdict.figure, figure + 0.001);
}

#define EXPECT(change, reason, figure) \
	do { \
		CompactionFacts facts = usual(); \
		change; \
		expect(facts, reason, figure); \
	} while (0)

/* test_reasons -- each, with its number. */
static void
test_reasons(void)
{
	EXPECT((void) 0, COMPACTION_DUE, 2 * GB / (4 * GB / READ_PACE + 2 * GB / MOVE_PACE));
	EXPECT(facts.is_standby = true, COMPACTION_STANDBY, 0);
	EXPECT((facts.is_running = true, facts.running_since = 7), COMPACTION_RUNNING, 7);
	EXPECT(facts.is_on = false, COMPACTION_OFF, 0);
	EXPECT(facts.is_listed = false, COMPACTION_OTHER_DATABASE, 0);
	EXPECT(facts.is_wanted = false, COMPACTION_NEVER, 0);
	EXPECT(facts.is_left = true, COMPACTION_LEFT, 0);
	EXPECT(facts.window_is_valid = false, COMPACTION_WRONG_WINDOW, 0);
	EXPECT(facts.bytes = GB / 16, COMPACTION_SMALL, GB / 16);
	EXPECT(facts.is_sampled = false, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT(facts.would_win = GB / 16, COMPACTION_LITTLE, GB / 16);
	EXPECT(facts.would_win = GB, COMPACTION_SHARE, 25);
	EXPECT(facts.breaker_is_open = true, COMPACTION_BREAKER, 0);
	EXPECT(facts.held_since = 900, COMPACTION_HELD, 900);
	EXPECT(facts.wal_left = 4 * GB - 1, COMPACTION_WAL, 4 * GB);
	EXPECT((facts.wal_left = 4 * GB, facts.last_bytes = 2 * GB, facts.last_wal = 3 * GB), COMPACTION_WAL, 6 * GB);
	EXPECT((facts.window_is_open = false, facts.window_opens = 60), COMPACTION_WINDOW, 60);
}

/* test_no_samples_outside_the_window -- the last one counts until then, if there is any. */
static void
test_no_samples_outside_the_window(void)
{
	EXPECT((facts.window_is_open = facts.is_sampled = false, facts.window_opens = 60),
		   COMPACTION_WINDOW, 60);
	EXPECT((facts.window_is_open = false, facts.window_opens = 60, facts.changes = 1000),
		   COMPACTION_WINDOW, 60);
	EXPECT((facts.window_is_open = false, facts.would_win = GB / 16, facts.changes = 1000),
		   COMPACTION_LITTLE, GB / 16);
	EXPECT((facts.window_is_open = false, facts.window_opens = 60, facts.bytes = GB / 16),
		   COMPACTION_SMALL, GB / 16);
}

/* test_limits_are_reached -- what is just enough is enough. */
static void
test_limits_are_reached(void)
{
	CompactionFacts facts = usual();

	facts.min_size = facts.would_win;
	facts.threshold = 50;
	facts.wal_left = compaction_wal(&facts);
	CHECK_EQ(compaction_decide(&facts).reason, COMPACTION_DUE);
	facts.bytes = facts.sampled_bytes = facts.would_win = 0;
	facts.min_size = facts.threshold = 0;
	CHECK_EQ(compaction_decide(&facts).reason, COMPACTION_DUE);
}

/* test_stale_samples -- by rows, by size, and when the statistics have been reset. */
static void
test_stale_samples(void)
{
	EXPECT(facts.changes = 550, COMPACTION_DUE, 2 * GB / (4 * GB / READ_PACE + 2 * GB / MOVE_PACE));
	EXPECT(facts.changes = 551, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT((facts.changes = 551, facts.sampled_since = HOUR - 1), COMPACTION_DUE,
		   2 * GB / (4 * GB / READ_PACE + 2 * GB / MOVE_PACE));
	EXPECT(facts.changes = 51, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT(facts.sampled_bytes = 3.7 * GB, COMPACTION_NOT_SAMPLED, 4 * GB);
	EXPECT(facts.sampled_bytes = 4.3 * GB, COMPACTION_NOT_SAMPLED, 4 * GB);
}

/* test_pauses -- they double, up to a bound, and end. */
static void
test_pauses(void)
{
	double		pace = 2 * GB / (4 * GB / READ_PACE + 2 * GB / MOVE_PACE);

	EXPECT((facts.outcome = OUTCOME_DONE, facts.ended_since = HOUR), COMPACTION_COOLDOWN, 23 * HOUR);
	EXPECT((facts.outcome = OUTCOME_DONE, facts.ended_since = 24 * HOUR), COMPACTION_DUE, pace);
	EXPECT((facts.outcome = OUTCOME_DONE, facts.backoff = 2), COMPACTION_COOLDOWN, 4 * 24 * HOUR);
	EXPECT((facts.outcome = OUTCOME_DONE, facts.backoff = 99), COMPACTION_COOLDOWN, 32 * 24 * HOUR);
	EXPECT((facts.outcome = OUTCOME_FAILED, facts.failures = 1), COMPACTION_FAILED, HOUR);
	EXPECT((facts.outcome = OUTCOME_FAILED, facts.failures = 3), COMPACTION_FAILED, 4 * HOUR);
	EXPECT((facts.outcome = OUTCOME_KILLED, facts.failures = 1000), COMPACTION_KILLED, 7 * 24 * HOUR);
	EXPECT((facts.outcome = OUTCOME_GAVE_WAY, facts.failures = 2), COMPACTION_GAVE_WAY, 20 * 60);
	EXPECT(facts.outcome = OUTCOME_STOPPED, COMPACTION_DUE, pace);
	EXPECT((facts.outcome = OUTCOME_STOPPED, facts.failures = 1), COMPACTION_DUE, pace);
	EXPECT((facts.outcome = OUTCOME_STOPPED, facts.failures = 2), COMPACTION_STOPPED, 12 * HOUR);
	EXPECT((facts.outcome = OUTCOME_STOPPED, facts.failures = 4), COMPACTION_STOPPED, 48 * HOUR);
	EXPECT((facts.outcome = OUTCOME_STOPPED, facts.failures = 40), COMPACTION_STOPPED, 7 * 24 * HOUR);
}

/* test_stops_in_vain -- neither those that have won something, nor short ones. */
static void
test_stops_in_vain(void)
{
	CHECK(compaction_stop_was_in_vain(0, HOUR));
	CHECK(compaction_stop_was_in_vain(-GB, LONG_RUN));
	CHECK(!compaction_stop_was_in_vain(1, HOUR));
	CHECK(!compaction_stop_was_in_vain(0, LONG_RUN - 1));
}

/* test_cooldown_backs_off -- where a run was in vain, or was undone at once; else it is as set. */
static void
test_cooldown_backs_off(void)
{
	CHECK_EQ(compaction_backoff(0, 10, 10, -1, HOUR), 0);
	CHECK_EQ(compaction_backoff(0, 4, 10, -1, HOUR), 1);
	CHECK_EQ(compaction_backoff(0, 10, 10, HOUR, HOUR), 1);
	CHECK_EQ(compaction_backoff(1, 10, 10, 2 * HOUR, HOUR), 2);
	CHECK_EQ(compaction_backoff(1, 10, 10, 3 * HOUR, HOUR), 0);
	CHECK_EQ(compaction_backoff(MAX_BACKOFF, 0, 10, -1, HOUR), MAX_BACKOFF);
}

/* test_what_wins_most_comes_first -- a second, by the last run if there was one. */
static void
test_what_wins_most_comes_first(void)
{
	CompactionFacts small = usual();
	CompactionFacts large = usual();
	CompactionFacts slow = usual();

	small.bytes = small.sampled_bytes = 2.5 * GB;
	slow.last_seconds = 4 * HOUR;
	slow.last_bytes = 8 * GB;
	CHECK(compaction_decide(&small).figure > compaction_decide(&large).figure);
	CHECK_EQ(compaction_seconds(&slow), 2 * HOUR);
	CHECK(compaction_decide(&slow).figure < compaction_decide(&large).figure);
}

/* test_names -- of outcomes, there and back. */
static void
test_names(void)
{
	for (CompactionOutcome outcome = OUTCOME_NONE; outcome <= OUTCOME_KILLED; outcome++)
		CHECK_EQ(compaction_outcome_of(compaction_outcome_name(outcome)), outcome);
	CHECK_EQ(compaction_outcome_of("?"), OUTCOME_NONE);
}

/* main -- run all tests. */
int
main(void)
{
	UNIT_RUN(test_windows_are_read);
	UNIT_RUN(test_edges);
	UNIT_RUN(test_wrong_windows);
	UNIT_RUN(test_next_change);
	UNIT_RUN(test_daylight_saving);
	UNIT_RUN(test_reasons);
	UNIT_RUN(test_no_samples_outside_the_window);
	UNIT_RUN(test_limits_are_reached);
	UNIT_RUN(test_stale_samples);
	UNIT_RUN(test_pauses);
	UNIT_RUN(test_stops_in_vain);
	UNIT_RUN(test_cooldown_backs_off);
	UNIT_RUN(test_what_wins_most_comes_first);
	UNIT_RUN(test_names);
	return unit_end();
}
