/*-------------------------------------------------------------------------
 *
 * test_eta.c
 *	  When running VACUUMs will be done: history/eta.c.
 *
 * What it is told by a server, and who may see what, is in test_eta.py.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "history/eta.c"
#include "history/history_view.c"
#include "unit.h"

#define LEADER		100
#define TABLE		5000
#define DATABASE	5
#define USER		10
#define NOW			(INT64CONST(800000000) * USECS_PER_SEC)

static bool reads_all_stats = true;

/* GetUserId -- who looks. */
Oid
GetUserId(void)
{
	return USER;
}

/* has_privs_of_role -- whose runs may be seen. */
bool
has_privs_of_role(Oid member, Oid role)
{
	CHECK(OidIsValid(role));
	return role == member || (role == ROLE_PG_READ_ALL_STATS && reads_all_stats);
}

/* leader_in -- a leader that has been in a phase for this time. */
static ProgressRow
leader_in(int phase, double seconds, BlockNumber done, BlockNumber total)
{
	ProgressRow leader = {
		.pid = LEADER,.leader_pid = LEADER,
		.database = DATABASE,.run_relid = TABLE,.run_kind = HISTORY_VACUUM,
		.phase = phase,.phase_start = NOW - (TimestampTz) (seconds * USECS_PER_SEC),
		.blocks_done = done,.phase_blocks = total,.run_pages = 1000,
	};

	return leader;
}

/* running -- its VACUUM, which has taken this time in all. */
static RunningVacuum
running(const ProgressRow *leader, double run_seconds)
{
	RunningVacuum vacuum = {
		.leader = leader,
		.phase_seconds = (NOW - leader->phase_start) / (double) USECS_PER_SEC,
		.run_seconds = run_seconds,
	};

	return vacuum;
}

/* past_run -- one that has taken this time, and these times in its phases. */
static HistoryRow
past_run(uint64 number, double seconds, double scan, double index, double heap)
{
	HistoryRow	run = {
		.number = number,.database = DATABASE,.relid = TABLE,.user_id = USER,
		.kind = HISTORY_VACUUM,.outcome = HISTORY_DONE,.has_figures = true,
		.start = NOW - (TimestampTz) (2 * seconds * USECS_PER_SEC),
		.end = NOW - (TimestampTz) (seconds * USECS_PER_SEC),
		.figures = {.phase_seconds = {scan, index, heap},.pages_before = 1000},
	};

	return run;
}

/* check_estimate -- is an estimate that? */
static void
check_estimate(const Estimate *estimate, double least, double likely, double most)
{
	CHECK(estimate->is_known);
	CHECK_BETWEEN(least - 1e-6, estimate->least, least + 1e-6);
	CHECK_BETWEEN(likely - 1e-6, estimate->likely, likely + 1e-6);
	CHECK_BETWEEN(most - 1e-6, estimate->most, most + 1e-6);
}

/* by_rate -- the estimate of the first row's phase. */
static Estimate
by_rate(const ProgressRow *rows, int nrows)
{
	RunningVacuum vacuum = running(&rows[0], 0);
	Estimate	phase = {0};

	estimate_by_rate(&vacuum, rows, nrows, NOW, &phase);
	return phase;
}

/* test_a_phase_ends_at_its_rate -- and the most recent rate may be another one. */
static void
test_a_phase_ends_at_its_rate(void)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 10, 250, 1000);
	Estimate	phase;

	CHECK(!by_rate(&leader, 1).is_known);	/* there is one rate only */
	leader.mark_blocks = 100;	/* 20 a second, then 30; 25 in all */
	leader.mark_seconds = 5;
	phase = by_rate(&leader, 1);
	check_estimate(&phase, 25, 30, 37.5);

	leader.mark_blocks = 150;	/* 30 a second, then 20 */
	phase = by_rate(&leader, 1);
	check_estimate(&phase, 25, 30, 37.5);

	leader.blocks_done = 1000;	/* and even if the table has grown: at once */
	phase = by_rate(&leader, 1);
	check_estimate(&phase, 0, 0, 0);
	leader.blocks_done = 1100;
	phase = by_rate(&leader, 1);
	check_estimate(&phase, 0, 0, 0);

	leader.blocks_done = leader.mark_blocks;	/* it stands still */
	CHECK(!by_rate(&leader, 1).is_known);
}

/* test_all_processes_go_through_a_phase -- those of others don't count. */
static void
test_all_processes_go_through_a_phase(void)
{
	ProgressRow rows[5];
	Estimate	phase;

	for (int i = 0; i < lengthof(rows); i++)
	{
		rows[i] = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 10, 250, 2000);
		rows[i].pid = LEADER + i;
		rows[i].mark_blocks = 100;
		rows[i].mark_seconds = 5;
	}
	rows[2].leader_pid = LEADER + 2;
	rows[3].phase = PROGRESS_VACUUM_PHASE_INDEX_CLEANUP;
	/* has come later, and has no mark yet: what it has done counts */
	rows[4].phase_start += 9 * USECS_PER_SEC;
	rows[4].blocks_done = 100;
	rows[4].mark_seconds = 0;
	phase = by_rate(rows, lengthof(rows));
	/* done are 600; 40 a second, then 60 */
	check_estimate(&phase, 1400 / 60.0, 1400 / 60.0, 1400 / 40.0);

	/* one is at an index meanwhile: it counts how far it was */
	rows[1].index_relid = 77;
	phase = by_rate(rows, lengthof(rows));
	check_estimate(&phase, 1550 * 10 / 450.0, 1550 * 10 / 450.0, 1550 / 30.0);

	/* one that came late makes it faster than it was until now, by both rates */
	rows[1] = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 2, 100, 2000);
	rows[1].pid = LEADER + 1;
	rows[1].leader_pid = LEADER;
	rows[1].mark_blocks = 50;
	rows[1].mark_seconds = 1;
	phase = by_rate(rows, 2);
	check_estimate(&phase, 1650 / 80.0, 1650 * 10 / 350.0, 1650 * 10 / 350.0);
}

/* test_those_who_have_left_have_done_something -- steadily; so have earlier rounds. */
static void
test_those_who_have_left_have_done_something(void)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 10, 0, 1000);
	Estimate	phase;

	leader.blocks_of_leavers = 500;
	phase = by_rate(&leader, 1);
	check_estimate(&phase, 10, 10, 10);

	leader.blocks_of_rounds = 300;
	phase = by_rate(&leader, 1);
	check_estimate(&phase, 4, 4, 4);
}

/* test_only_some_phases_go_by_blocks -- and not all of them in rounds. */
static void
test_only_some_phases_go_by_blocks(void)
{
	static const struct
	{
		int			phase;
		bool		alone;
		bool		in_rounds;
	}			phases[] = {
		{0, false, false},
		{PROGRESS_VACUUM_PHASE_SCAN_HEAP, true, true},
		{PROGRESS_VACUUM_PHASE_VACUUM_INDEX, false, false},
		{PROGRESS_VACUUM_PHASE_VACUUM_HEAP, true, false},
		{PROGRESS_VACUUM_PHASE_INDEX_CLEANUP, false, false},
		{PROGRESS_VACUUM_PHASE_TRUNCATE, false, false},
		{PROGRESS_REWRITE_COPY_TOAST, true, true},
		{PROGRESS_REWRITE_COPY_HEAP, true, true},
		{PROGRESS_REWRITE_COPY_CHAINS, false, false},
		{PROGRESS_REWRITE_INDEX, false, false},
		{PROGRESS_INPLACE_PLAN, false, false},
		{PROGRESS_INPLACE_MOVE, true, true},
		{PROGRESS_INPLACE_MOVE_VALUES, true, true},
		{PROGRESS_INPLACE_REINDEX, false, false},
	};

	for (int i = 0; i < lengthof(phases); i++)
	{
		ProgressRow leader = leader_in(phases[i].phase, 10, 0, 1000);

		unit_case("phase %d", phases[i].phase);
		leader.blocks_of_leavers = 500;
		CHECK_EQ(goes_by_blocks(&leader), phases[i].alone);
		CHECK_EQ(by_rate(&leader, 1).is_known, phases[i].alone);
		leader.blocks_of_rounds = 100;
		CHECK_EQ(goes_by_blocks(&leader), phases[i].in_rounds);
		leader.phase_blocks = leader.blocks_of_rounds = 0;
		CHECK(!goes_by_blocks(&leader));
	}
}

/* test_the_latest_runs_count -- ten of them, in whatever order they are kept. */
static void
test_the_latest_runs_count(void)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 1, 0, 1000);
	HistoryRow	rows[25];

	for (int nrows = 0; nrows <= lengthof(rows); nrows++)
	{
		RunningVacuum vacuum = running(&leader, 1);

		unit_case("%d runs", nrows);
		for (int i = 0; i < nrows; i++)
			rows[i] = past_run(i * 7 % nrows + 1, 10, 5, 3, 2);
		/* that is no order of all if 7 divides their number */
		for (int i = 0; nrows % 7 == 0 && i < nrows; i++)
			rows[i].number = nrows - i;
		find_runs(&vacuum, rows, nrows);
		CHECK_EQ(vacuum.nruns, Min(nrows, 10));
		for (int i = 0; i < vacuum.nruns; i++)
			CHECK_EQ(vacuum.runs[i]->number, nrows - i);
	}
}

/* test_only_runs_of_the_same_kind_count -- and those that were done. */
static void
test_only_runs_of_the_same_kind_count(void)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 1, 0, 1000);
	HistoryRow	rows[10];

	for (int i = 0; i < lengthof(rows); i++)
		rows[i] = past_run(i + 1, 10, 5, 3, 2);
	rows[1].relid++;
	rows[2].database++;
	rows[3].kind = HISTORY_REWRITE;
	rows[4].started_by = HISTORY_AUTOVACUUM;
	rows[5].outcome = HISTORY_CANCELLED;
	rows[6].has_figures = false;
	rows[7].database = InvalidOid;	/* a shared catalog */
	rows[8].user_id = USER + 1;
	rows[9].user_id = InvalidOid;	/* autovacuum's, seen by who sees all */
	for (int privileged = 0; privileged < 2; privileged++)
	{
		reads_all_stats = privileged;
		for (int i = 0; i < lengthof(rows); i++)
		{
			unit_case("run %d, privileged: %d", i, privileged);
			CHECK_EQ(run_counts(&leader, &rows[i]),
					 i == 0 || i == 7 || (privileged && i >= 8));
		}
	}
	leader.run_is_autovacuum = true;
	CHECK(run_counts(&leader, &rows[4]));
	CHECK(!run_counts(&leader, &rows[0]));
}

/* by_runs -- the estimates by past runs, and if it is known what is left of the phase. */
static void
by_runs(const ProgressRow *leader, double run_seconds, HistoryRow *runs, int nruns,
		Estimate *phase, Estimate *whole)
{
	RunningVacuum vacuum = running(leader, run_seconds);

	find_runs(&vacuum, runs, nruns);
	CHECK_EQ(vacuum.nruns, nruns);
	memset(whole, 0, sizeof(*whole));
	estimate_by_runs(&vacuum, phase, whole);
}

/* test_a_phase_is_as_long_as_it_was -- and so is the rest, if the table is as large. */
static void
test_a_phase_is_as_long_as_it_was(void)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_VACUUM_INDEX, 2, 0, 0);
	HistoryRow	runs[] = {past_run(1, 20, 10, 6, 3), past_run(2, 30, 12, 8, 4), past_run(3, 21, 10, 5, 3)};
	Estimate	phase = {0};
	Estimate	whole;

	by_runs(&leader, 12, runs, 0, &phase, &whole);
	CHECK(!phase.is_known);
	CHECK(!whole.is_known);

	by_runs(&leader, 12, runs, 3, &phase, &whole);
	check_estimate(&phase, 3, 4, 6);
	check_estimate(&whole, 8, 9, 16);	/* a run had 6 s without a name */

	/* twice as large by now */
	memset(&phase, 0, sizeof(phase));
	leader.run_pages = 2000;
	by_runs(&leader, 12, runs, 3, &phase, &whole);
	check_estimate(&phase, 8, 10, 14);
	check_estimate(&whole, 18, 20, 34);

	/* only because of that they had it for longer */
	memset(&phase, 0, sizeof(phase));
	leader.phase_start = NOW - 9 * USECS_PER_SEC;
	by_runs(&leader, 19, runs, 3, &phase, &whole);
	check_estimate(&phase, 1, 3, 7);

	/* one run only had it for longer; then none */
	memset(&phase, 0, sizeof(phase));
	leader.run_pages = 0;
	leader.phase_start = NOW - 7 * USECS_PER_SEC;
	by_runs(&leader, 17, runs, 3, &phase, &whole);
	check_estimate(&phase, 1, 1, 1);
	check_estimate(&whole, 11, 11, 11);
	memset(&phase, 0, sizeof(phase));
	leader.phase_start = NOW - 8 * USECS_PER_SEC;
	by_runs(&leader, 18, runs, 3, &phase, &whole);
	CHECK(!phase.is_known);
	CHECK(!whole.is_known);
}

/* test_the_rest_comes_after_a_phase_that_goes_by_rate -- also as much slower as that. */
static void
test_the_rest_comes_after_a_phase_that_goes_by_rate(void)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 10, 0, 1000);
	HistoryRow	run = past_run(1, 20, 10, 6, 3);
	Estimate	phase = {.is_known = true,.least = 5,.likely = 10,.most = 20};
	Estimate	whole;

	/*
	 * 9 s, and 1 s without a name; twice as long as in the past is 18 s and
	 * that
	 */
	by_runs(&leader, 10, &run, 1, &phase, &whole);
	check_estimate(&phase, 5, 10, 20);
	check_estimate(&whole, 5 + 10, 10 + (10 + 19) / 2.0, 20 + 19);

	/* the table is half as large now */
	leader.run_pages = 500;
	by_runs(&leader, 10, &run, 1, &phase, &whole);
	check_estimate(&whole, 5 + 5, 10 + (5 + 18.5) / 2.0, 20 + 18.5);
	leader.run_pages = 1000;

	/* the phase was not there then */
	run.figures.phase_seconds[0] = 0;
	by_runs(&leader, 10, &run, 1, &phase, &whole);
	check_estimate(&whole, 5 + 20, 10 + 20, 20 + 20);

	/* phases that overlap are counted each */
	run = past_run(1, 12, 10, 6, 3);
	by_runs(&leader, 10, &run, 1, &phase, &whole);
	check_estimate(&whole, 5 + 9, 10 + (9 + 18) / 2.0, 20 + 18);
}

/* test_where_phases_come_several_times_the_run_counts -- as a whole. */
static void
test_where_phases_come_several_times_the_run_counts(void)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 10, 0, 1000);
	HistoryRow	runs[] = {past_run(1, 20, 10, 6, 3), past_run(2, 50, 10, 6, 3)};
	Estimate	phase = {.is_known = true,.least = 5,.likely = 10,.most = 20};
	Estimate	whole;

	leader.blocks_of_rounds = 100;
	by_runs(&leader, 15, runs, 2, &phase, &whole);
	check_estimate(&whole, 5, 20, 35);
	by_runs(&leader, 20, runs, 2, &phase, &whole);
	check_estimate(&whole, 30, 30, 30);
}

/*
 * test_phases_have_places_in_the_history
 *		By the kind of the run, and with the names that they have there.
 */
static void
test_phases_have_places_in_the_history(void)
{
	static const struct
	{
		int			phase;
		const char *name;
	}			phases[] = {
		{PROGRESS_VACUUM_PHASE_SCAN_HEAP, "heap scan"},
		{PROGRESS_VACUUM_PHASE_VACUUM_INDEX, "index vacuum"},
		{PROGRESS_VACUUM_PHASE_VACUUM_HEAP, "heap vacuum"},
		{PROGRESS_VACUUM_PHASE_INDEX_CLEANUP, "index cleanup"},
		{PROGRESS_VACUUM_PHASE_TRUNCATE, "truncation"},
		{PROGRESS_REWRITE_COPY_HEAP, "heap copy"},
		{PROGRESS_REWRITE_COPY_CHAINS, "linked row versions"},
		{PROGRESS_REWRITE_COPY_TOAST, "TOAST copy"},
		{PROGRESS_REWRITE_INDEX_TOAST, "TOAST index"},
		{PROGRESS_REWRITE_INDEX, "index build"},
	};

	for (int kind = HISTORY_VACUUM; kind <= HISTORY_REPACK; kind++)
		for (int i = 0; i < lengthof(phases); i++)
		{
			ProgressRow leader = leader_in(phases[i].phase, 1, 0, 0);
			bool		has_it = i / 5 == 0 ? kind == HISTORY_VACUUM :
				kind == HISTORY_REWRITE || kind == HISTORY_REPACK;

			unit_case("kind %d, phase %d", kind, leader.phase);
			leader.run_kind = kind;
			CHECK_EQ(place_in_history(&leader), has_it ? i % 5 : -1);
			if (has_it)
				CHECK_TEXT(phase_names[kind][i % 5], phases[i].name);
			leader.blocks_of_rounds = 1;
			CHECK_EQ(place_in_history(&leader), -1);
		}
}

/* test_the_estimate_is_the_median -- of any number. */
static void
test_the_estimate_is_the_median(void)
{
	Guesses		guesses = {0};
	Estimate	estimate;

	summarize(&guesses, &estimate);
	CHECK(!estimate.is_known);
	add_guess(&guesses, 7);
	summarize(&guesses, &estimate);
	check_estimate(&estimate, 7, 7, 7);
	add_guess(&guesses, 1);
	summarize(&guesses, &estimate);
	check_estimate(&estimate, 1, 4, 7);
	add_guess(&guesses, 2);
	summarize(&guesses, &estimate);
	check_estimate(&estimate, 1, 2, 7);
}

/* test_what_is_beyond_all_dates_is_not_known -- nor what rests on nothing. */
static void
test_what_is_beyond_all_dates_is_not_known(void)
{
	Estimate	estimate = {.is_known = true,.least = 0,.likely = 1.5,.most = 1e300};
	Datum		values[3];
	bool		nulls[3];

	put_estimate(&estimate, NOW, values, nulls);
	CHECK(!nulls[0] && !nulls[1] && nulls[2]);
	CHECK_EQ(DatumGetTimestampTz(values[0]) - NOW, 1500000);
	CHECK_EQ(DatumGetTimestampTz(values[1]) - NOW, 0);
	estimate.is_known = false;
	put_estimate(&estimate, NOW, values, nulls);
	CHECK(nulls[0] && nulls[1] && nulls[2]);
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_a_phase_ends_at_its_rate);
	UNIT_RUN(test_all_processes_go_through_a_phase);
	UNIT_RUN(test_those_who_have_left_have_done_something);
	UNIT_RUN(test_only_some_phases_go_by_blocks);
	UNIT_RUN(test_the_latest_runs_count);
	UNIT_RUN(test_only_runs_of_the_same_kind_count);
	UNIT_RUN(test_a_phase_is_as_long_as_it_was);
	UNIT_RUN(test_the_rest_comes_after_a_phase_that_goes_by_rate);
	UNIT_RUN(test_where_phases_come_several_times_the_run_counts);
	UNIT_RUN(test_phases_have_places_in_the_history);
	UNIT_RUN(test_the_estimate_is_the_median);
	UNIT_RUN(test_what_is_beyond_all_dates_is_not_known);
	return unit_end();
}
