/*-------------------------------------------------------------------------
 *
 * test_eta.c
 *	  When running VACUUMs will be done: report/eta.c.
 *
 * What it is told by a server, and who may see what, is in test_eta.py.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "report/eta.c"
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

/* library_may_see -- whose runs may be seen. */
bool
library_may_see(Oid viewer, Oid user)
{
	return user == viewer || reads_all_stats;
}

/* leader_in -- a leader that has been in a phase for this time. */
static ProgressRow
leader_in(int phase, double seconds, BlockNumber done, BlockNumber total)
{
	ProgressRow leader = {
		.pid = LEADER,.leader_pid = LEADER,
		.database = DATABASE,.run_relid = TABLE,.run_kind = HISTORY_VACUUM,
		.phase = phase,.phase_start = NOW - (TimestampTz) (seconds * USECS_PER_SEC),
		.phase_blocks_done = done,.phase_blocks = total,.run_pages = 1000,
	};

	return leader;
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

/* test_all_processes_go_through_a_phase -- at their rate together; those of others don't count. */
UNIT_TEST(test_all_processes_go_through_a_phase)
{
	ProgressRow rows[4];

	for (int i = 0; i < lengthof(rows); i++)
	{
		rows[i] = leader_in(PROGRESS_VACUUM_PHASE_SCAN_HEAP, 10, 250, 2000);
		rows[i].pid = LEADER + i;
	}
	rows[2].leader_pid = LEADER + 2;
	rows[3].phase = PROGRESS_VACUUM_PHASE_INDEX_CLEANUP;
	CHECK_EQ(seconds_by_rate(rows, rows, lengthof(rows), 10), 1500 * 10 / 500.0);
	/* those that have left count, too, and earlier rounds are no part of it */
	rows[0].blocks_of_leavers = 150;
	rows[0].blocks_of_rounds = 500;
	CHECK_EQ(seconds_by_rate(rows, rows, lengthof(rows), 10), 850 * 10 / 650.0);
	/* and even if the table has grown: at once */
	rows[0].phase_blocks_done = 3000;
	CHECK_EQ(seconds_by_rate(rows, rows, 1, 10), 0);
	rows[0].phase_blocks_done = rows[0].blocks_of_leavers = 0;
	CHECK_EQ(seconds_by_rate(rows, rows, 1, 10), UNKNOWN);
}

/* The phases: those of VACUUM and those of VACUUM FULL as the history has them, with their names there, then others. */
static const struct
{
	int			phase;
	bool		alone;			/* it goes by blocks */
	bool		in_rounds;		/* and in rounds, too */
	const char *name;
}			phases[] = {
	{PROGRESS_VACUUM_PHASE_SCAN_HEAP, true, true, "heap scan"},
	{PROGRESS_VACUUM_PHASE_VACUUM_INDEX, false, false, "index vacuum"},
	{PROGRESS_VACUUM_PHASE_VACUUM_HEAP, true, false, "heap vacuum"},
	{PROGRESS_VACUUM_PHASE_INDEX_CLEANUP, false, false, "index cleanup"},
	{PROGRESS_VACUUM_PHASE_TRUNCATE, false, false, "truncation"},
	{PROGRESS_REWRITE_COPY_HEAP, true, true, "heap copy"},
	{PROGRESS_REWRITE_COPY_CHAINS, false, false, "linked row versions"},
	{PROGRESS_REWRITE_COPY_TOAST, true, true, "TOAST copy"},
	{PROGRESS_REWRITE_INDEX_TOAST, false, false, "TOAST index"},
	{PROGRESS_REWRITE_INDEX, false, false, "index build"},
	{0, false, false},
	{PROGRESS_INPLACE_PLAN, false, false},
	{PROGRESS_INPLACE_MOVE, true, true},
	{PROGRESS_INPLACE_MOVE_VALUES, true, true},
	{PROGRESS_INPLACE_REINDEX, false, false},
};

/* test_only_some_phases_go_by_blocks -- and not all of them in rounds. */
UNIT_TEST(test_only_some_phases_go_by_blocks)
{
	for (int i = 0; i < lengthof(phases); i++)
	{
		ProgressRow leader = leader_in(phases[i].phase, 10, 0, 1000);

		unit_case("phase %d", phases[i].phase);
		leader.blocks_of_leavers = 500;
		CHECK_EQ(goes_by_blocks(&leader), phases[i].alone);
		CHECK_EQ(seconds_by_rate(&leader, &leader, 1, 10) != UNKNOWN, phases[i].alone);
		leader.blocks_of_rounds = 100;
		CHECK_EQ(goes_by_blocks(&leader), phases[i].in_rounds);
		leader.phase_blocks = leader.blocks_of_rounds = 0;
		CHECK(!goes_by_blocks(&leader));
	}
}

/* test_only_runs_of_the_same_kind_count -- those that were done, and the last one of them. */
UNIT_TEST(test_only_runs_of_the_same_kind_count)
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
			CHECK_EQ(find_last_run(&leader, &rows[i], 1) != NULL,
					 i == 0 || i == 7 || (privileged && i >= 8));
		}
	}
	leader.run_is_autovacuum = true;
	CHECK(find_last_run(&leader, &rows[4], 1) != NULL);
	CHECK(find_last_run(&leader, &rows[0], 1) == NULL);
	/* of several the last one, in whatever order they are kept */
	for (int i = 0; i < 3; i++)
		rows[i] = past_run((i + 1) % 3 + 1, 10, 5, 3, 2);
	leader.run_is_autovacuum = false;
	CHECK_EQ(find_last_run(&leader, rows, 3)->number, 3);
}

/* check_by_run -- what follows from the last run, and from what is known of the phase? */
static void
check_by_run(const ProgressRow *leader, const HistoryRow *run, double in_phase, double in_run,
			 double known, double phase, double whole)
{
	double		found = UNKNOWN;

	seconds_by_last_run(leader, run, in_phase, in_run, &known, &found);
	CHECK_BETWEEN(phase - 1e-6, known, phase + 1e-6);
	CHECK_BETWEEN(whole - 1e-6, found, whole + 1e-6);
}

/* test_it_goes_on_as_the_last_time -- in proportion to the table. */
UNIT_TEST(test_it_goes_on_as_the_last_time)
{
	ProgressRow leader = leader_in(PROGRESS_VACUUM_PHASE_VACUUM_INDEX, 2, 0, 0);
	HistoryRow	run = past_run(1, 20, 10, 6, 3);

	/* 3 s after it, and 1 s of no phase */
	check_by_run(&leader, &run, 2, 12, UNKNOWN, 4, 8);
	/* at its rate */
	check_by_run(&leader, &run, 2, 12, 7, 7, 11);
	/* twice as large by now */
	leader.run_pages = 2000;
	check_by_run(&leader, &run, 2, 12, UNKNOWN, 10, 18);
	/* longer than the last time */
	check_by_run(&leader, &run, 12, 30, UNKNOWN, UNKNOWN, UNKNOWN);
	leader.run_pages = 1000;
	/* phases that overlap leave nothing */
	run = past_run(1, 12, 10, 6, 3);
	check_by_run(&leader, &run, 2, 12, UNKNOWN, 4, 4);
	/* in rounds the whole run counts */
	run = past_run(1, 20, 10, 6, 3);
	leader.blocks_of_rounds = 100;
	check_by_run(&leader, &run, 2, 12, 7, 7, 8);
	check_by_run(&leader, &run, 2, 20, 7, 7, UNKNOWN);
}

/*
 * test_phases_have_places_in_the_history
 *		By the kind of the run, and with the names that they have there.
 */
UNIT_TEST(test_phases_have_places_in_the_history)
{
	for (int kind = HISTORY_VACUUM; kind <= HISTORY_REPACK; kind++)
		for (int i = 0; phases[i].name != NULL; i++)
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

/* test_what_is_beyond_all_dates_is_not_known -- nor what rests on nothing. */
UNIT_TEST(test_what_is_beyond_all_dates_is_not_known)
{
	Datum		value = 0;
	bool		null;

	put_moment(1.5, NOW, &value, &null);
	CHECK(!null);
	CHECK_EQ(DatumGetTimestampTz(value) - NOW, 1500000);
	put_moment(1e300, NOW, &value, &null);
	CHECK(null);
	put_moment(UNKNOWN, NOW, &value, &null);
	CHECK(null);
}
