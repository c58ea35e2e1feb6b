/*-------------------------------------------------------------------------
 *
 * test_latency.c
 *	  Which statements count, of sessions that wait for what no VACUUM causes, and of
 *	  those that have many short ones: the rules of neighbours/latency.c.
 *
 * What a server makes of it is in test_target.py.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "clock.h"

/* The session's time, and how often it has looked at it */
static uint64 session_time;
static int	nreadings;

#define now_ns()		(nreadings++, session_time)
#include "neighbours/latency.c"
#include "unit.h"

/* The statements of a session, one after the other, in ms */
typedef struct Statement
{
	double		naps;
	double		works;			/* after that */
} Statement;

#define MS(ms)			((uint64) ((ms) * NS_PER_MS))
#define TARGET_MS		20
#define BREAK_MS		0.3		/* between two statements */
#define SECONDS			60
/* as a process that sleeps between them wakes up */
#define MS_BETWEEN_LOOKS (100 + 10 * unit_chance())

int			MaxBackends = 1;
ProcNumber	MyProcNumber = 0;
int			MyProcPid = 4711;

static PGPROC proc = {.pid = 4711};
static PROC_HDR procs = {.allProcs = &proc};
PROC_HDR   *ProcGlobal = &procs;

static TransactionId xid = InvalidTransactionId;

/* GetTopTransactionIdIfAny -- what time_commit asks for. */
TransactionId
GetTopTransactionIdIfAny(void)
{
	return xid;
}

static int	nforgotten = 0;

/* core_wait_forget -- there is always a core. */
void
core_wait_forget(void)
{
	nforgotten++;
}

/* core_wait_end -- likewise. */
void
core_wait_end(void)
{
}

/* core_wait_begin -- likewise. */
uint64
core_wait_begin(void)
{
	return 0;
}

static double counted;			/* statements of the last session */
static double late;				/* of those */
static int	ended;				/* counted or not */
static double session_began = 1000; /* which its chance comes from */

/* begin -- nothing has been counted yet. */
static void
begin(void)
{
	free(latency);
	latency = calloc(1, sizeof(LatencyShared) + sizeof(LatencyRunning));
	elapsed = 0;
	nshort = nuntimed = 0;
	session_time = MS(1000);
	nreadings = 0;
}

/* read_counts -- what has been counted. */
static void
read_counts(void)
{
	uint32		counts[LATENCY_BUCKETS];

	latency_read(counts);
	counted = 0;
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		counted += counts[i];
	late = latency_count_above(counts, TARGET_MS);
}

/*
 * run
 *		One statement from this time on, with the looks that are due; returns when it has
 *		ended.
 */
static uint64
run(uint64 now, const Statement *statement, uint64 *look)
{
	uint64		end = now + MS(statement->naps + statement->works);
	uint64		start;

	for (; *look < now; *look += MS(MS_BETWEEN_LOOKS))
		(void) latency_begin_look(*look);
	begin_statement(NULL);
	session_time = now;
	start = begin_call();
	for (; *look < end; *look += MS(MS_BETWEEN_LOOKS))
	{
		uint64		unseen = latency_begin_look(*look);

		if (*look < now + MS(statement->naps))
			latency_excuse(0, unseen);
	}
	session_time = end;
	end_call(start);
	count_statement();
	return end;
}

/* simulate_with_breaks -- a session with these statements, over and over. */
static void
simulate_with_breaks(const Statement *statements, int number, double break_ms)
{
	uint64		now = MS(session_began);
	uint64		look = now + MS(33);

	begin();
	for (ended = 0; now < MS(1000 * SECONDS); ended++)
		now = run(now, &statements[ended % number], &look) + MS(break_ms);
	read_counts();
}

/* simulate -- the same with breaks that are usual here. */
static void
simulate(const Statement *statements, int number)
{
	simulate_with_breaks(statements, number, BREAK_MS);
}

/* test_who_always_naps -- isn't counted, but for naps before the first looks. */
static void
test_who_always_naps(void)
{
	for (double length = 1; length < 200; length *= 1.1)
		for (double works = 0; works < 0.2; works += 0.05)
		{
			Statement	statement = {length * (1 - works), length * works};

			unit_case("naps of %g ms, %g of it at work", length, works);
			simulate(&statement, 1);
			/* while the first looks happen to fall into other moments, too */
			CHECK(counted * length <= 1000);
		}
}

/* test_who_never_naps -- is counted, each time with all that it takes. */
static void
test_who_never_naps(void)
{
	static const double lengths[] = {0.02, 5, 19, 21, 50, 99, 150, 1000};

	for (int i = 0; i < lengthof(lengths); i++)
	{
		Statement	statement = {0, lengths[i]};

		unit_case("%g ms", lengths[i]);
		simulate(&statement, 1);
		CHECK_EQ(counted, ended);
		CHECK_BETWEEN(lengths[i] < TARGET_MS ? 0 : ended * 0.9, late, lengths[i] < TARGET_MS ? ended * 0.1 : ended);
	}
}

/*
 * test_late_ones_between_naps
 *		The time that isn't napped votes, less a third of the naps.
 */
static void
test_late_ones_between_naps(void)
{
	static const double naps[] = {3, 11, 29, 47, 83};
	static const double works[] = {23, 41, 71, 97};

	for (int i = 0; i < lengthof(naps); i++)
		for (int j = 0; j < lengthof(works); j++)
		{
			Statement	statements[2] = {{naps[i], 0}, {0, works[j]}};
			double		votes = (works[j] - naps[i] / 3) / works[j];

			unit_case("naps of %g ms, statements of %g", naps[i], works[j]);
			simulate(statements, 2);
			CHECK(late >= ended / 2 * votes * 0.6);
			CHECK(counted < ended);
		}
}

/* test_long_waits_leave_nothing -- they are seen themselves, and those that come after them count. */
static void
test_long_waits_leave_nothing(void)
{
	Statement	statements[2] = {{450, 0}, {0, 33}};

	simulate(statements, 2);
	CHECK_EQ(counted, ended / 2);
	CHECK_EQ(late, ended / 2);
}

/* test_credit_ends -- with what has failed, and with the session; and it is never more than a second. */
static void
test_credit_ends(void)
{
	LatencyRunning *running;
	uint64		now = MS(1000);

	begin();
	running = &latency->running[0];
	pg_atomic_write_u32(&running->pid, MyProcPid);
	pg_atomic_write_u64(&running->since, now);
	latency_excuse(0, latency_begin_look(now));
	CHECK_EQ(pg_atomic_read_u32(&running->credit), NS_PER_S);
	latency_excuse(0, PG_UINT64_MAX);
	CHECK_EQ(pg_atomic_read_u32(&running->credit), NS_PER_S);

	elapsed = MS(150);
	forget_query(SUBXACT_EVENT_ABORT_SUB, 2, 1, NULL);
	CHECK_EQ(pg_atomic_read_u32(&running->credit), MS(850));
	elapsed = MS(150);
	time_commit(XACT_EVENT_ABORT, NULL);
	CHECK_EQ(pg_atomic_read_u32(&running->credit), MS(700));

	MyProcPid++;
	end_call(begin_call());
	CHECK_EQ(pg_atomic_read_u32(&running->credit), 0);
}

/* test_many_short_ones -- are timed by chance, and as many are counted as there are. */
static void
test_many_short_ones(void)
{
	for (double length = 0.001; length < 0.02; length *= 1.5)
	{
		Statement	statement = {0, length};

		unit_case("%g ms", length);
		simulate_with_breaks(&statement, 1, 0.05);
		CHECK_BETWEEN(0.99 * ended, counted, 1.01 * ended);
		CHECK_BETWEEN(0.98, nreadings / 2.0 / ended * SAMPLE, 1.02);
		CHECK_EQ(late, 0);
	}
}

/* test_late_ones_among_short_ones -- are counted as often as they come, however regularly. */
static void
test_late_ones_among_short_ones(void)
{
	static const int periods[] = {2, 4, 8, 16, 17, 18, 20, 24, 32, 64, 100, 128};

	for (int i = 0; i < lengthof(periods); i++)
	{
		Statement	statements[128];
		double		nlate = 0;
		double		ncounted = 0;
		double		nended = 0;

		for (int k = 0; k < periods[i]; k++)
			statements[k] = (Statement)
		{
			0, k == 0 ? 33 : 0.01
		};
		unit_case("one in %d", periods[i]);
		for (int session = 0; session < 10; session++)
		{
			session_began += 0.001;
			simulate_with_breaks(statements, periods[i], 0.1);
			nlate += late;
			ncounted += counted;
			nended += ended;
			/* all that come soon after a long one are timed */
			if (periods[i] <= CALM)
				CHECK_EQ(nreadings, 2 * ended);
		}
		CHECK_BETWEEN(0.95 * nended / periods[i], nlate, 1.05 * nended / periods[i]);
		CHECK_BETWEEN(0.99 * nended, ncounted, 1.01 * nended);
	}
}

/* test_few_are_all_timed -- however short they are; and so are many that are longer. */
static void
test_few_are_all_timed(void)
{
	static const struct
	{
		double		length;
		double		of_break;
	}			cases[] = {{0.001, 1.1}, {0.01, 100}, {0.021, 0.05}, {1, 0.05}};

	for (int i = 0; i < lengthof(cases); i++)
	{
		Statement	statement = {0, cases[i].length};

		unit_case("%g ms, breaks of %g", cases[i].length, cases[i].of_break);
		simulate_with_breaks(&statement, 1, cases[i].of_break);
		CHECK_EQ(counted, ended);
		CHECK_EQ(nreadings, 2 * ended);
	}
}

/* begin_untimed -- a statement runs that isn't timed; returns the start of its call. */
static uint64
begin_untimed(void)
{
	begin();
	proc.pid = MyProcPid;
	nesting = 0;
	do
	{
		uint64		start;

		begin_statement(NULL);
		start = begin_call();
		if (weight == 0)
			return start;
		session_time += 1000;
		end_call(start);
		count_statement();
	} while (true);
}

/* test_one_that_is_not_timed_hangs -- which is seen: it runs for as long as that is known. */
static void
test_one_that_is_not_timed_hangs(void)
{
	static uint32 counts[LATENCY_BUCKETS];
	uint64		start = begin_untimed();
	int			nrunning;

	for (int ms = 0; ms <= 30; ms += 10, session_time += MS(10))
	{
		unit_case("%d ms", ms);
		memset(counts, 0, sizeof(counts));
		CHECK_EQ(latency_count_running(TARGET_MS, 1000, counts, &nrunning), ms > TARGET_MS);
		CHECK_EQ(nrunning, 1);
		CHECK_EQ(latency_count_above(counts, TARGET_MS), ms > TARGET_MS);
	}
	end_call(start);
	count_statement();
	(void) latency_count_running(TARGET_MS, 1000, counts, &nrunning);
	CHECK_EQ(nrunning, 0);
	read_counts();
	CHECK_EQ(late, 0);
}

/* test_one_that_is_not_timed_naps -- which leaves no credit, and has the next ones timed. */
static void
test_one_that_is_not_timed_naps(void)
{
	uint64		start = begin_untimed();

	(void) latency_begin_look(session_time);
	latency_excuse(0, latency_begin_look(session_time + MS(100)));
	CHECK(pg_atomic_read_u32(&latency->running[0].credit) > 0);
	end_call(start);
	count_statement();
	CHECK_EQ(pg_atomic_read_u32(&latency->running[0].credit), 0);
	for (int i = 0; i < CALM; i++)
	{
		begin_statement(NULL);
		CHECK_EQ(weight, 1);
		end_call(begin_call());
		count_statement();
	}
}

/* test_watched_anew -- what a session waited while nobody watched is no part of its next statement. */
static void
test_watched_anew(void)
{
	begin();
	begin_statement(NULL);
	nforgotten = 0;
	begin_statement(NULL);
	CHECK_EQ(nforgotten, 0);
	latency_watch();
	latency_watch();
	latency_unwatch();
	CHECK_EQ(pg_atomic_read_u32(&latency->watchers), 0);
	begin_statement(NULL);
	begin_statement(NULL);
	CHECK_EQ(nforgotten, 1);
}

/* test_nothing_runs -- so there is nothing to excuse. */
static void
test_nothing_runs(void)
{
	begin();
	latency_excuse(0, MS(100));
	CHECK_EQ(pg_atomic_read_u32(&latency->running[0].credit), 0);
	CHECK_EQ(pg_atomic_read_u32(&latency->running[0].is_excused), 0);
}

/* end_before_commit -- a statement that has ended, but for its commit. */
static void
end_before_commit(void)
{
	begin_statement(NULL);
	elapsed = MS(5);
	end_statement(true);
}

/*
 * test_statements_count_once
 *		At once if no commit comes; else when their transaction commits, whose time counts
 *		if it has written; or when the session's next statement begins.
 */
static void
test_statements_count_once(void)
{
	begin();
	for (int writes = 0; writes <= 1; writes++)
	{
		unit_case("writes: %d", writes);
		xid = writes ? FirstNormalTransactionId : InvalidTransactionId;
		end_before_commit();
		read_counts();
		CHECK_EQ(counted, writes);
		time_commit(XACT_EVENT_PRE_COMMIT, NULL);
		CHECK_EQ(nesting, writes);
		CHECK_EQ(pg_atomic_read_u64(&latency->running[0].since) != 0, writes);
		time_commit(XACT_EVENT_COMMIT, NULL);
		CHECK_EQ(nesting, 0);
		read_counts();
		CHECK_EQ(counted, writes + 1);
	}
	xid = InvalidTransactionId;

	end_before_commit();
	time_commit(XACT_EVENT_PARALLEL_COMMIT, NULL);
	read_counts();
	CHECK_EQ(counted, 2);
	begin_statement(NULL);
	read_counts();
	CHECK_EQ(counted, 3);
	time_commit(XACT_EVENT_COMMIT, NULL);
	read_counts();
	CHECK_EQ(counted, 3);

	elapsed = MS(5);
	end_statement(false);
	read_counts();
	CHECK_EQ(counted, 4);
}

/* test_buckets -- the start of each belongs to it, and what is shorter to the one before. */
static void
test_buckets(void)
{
	CHECK_EQ(bucket_of(0), 0);
	CHECK_EQ(bucket_start_ms(0), 0);
	for (int bucket = 1; bucket < LATENCY_BUCKETS; bucket++)
	{
		uint64		start = (uint64) round(bucket_start_ms(bucket) * NS_PER_MS);

		unit_case("bucket %d", bucket);
		CHECK_EQ(bucket_of(start), bucket);
		CHECK_EQ(bucket_of(start - 1), bucket - 1);
	}
	CHECK_EQ(bucket_of(PG_UINT64_MAX), LATENCY_BUCKETS - 1);
}

/* test_two_that_look -- share the time: none is given twice. */
static void
test_two_that_look(void)
{
	begin();
	(void) latency_begin_look(MS(1000));
	CHECK_EQ(latency_begin_look(MS(1070)), MS(70));
	CHECK_EQ(latency_begin_look(MS(1100)), MS(30));
	CHECK_EQ(latency_begin_look(MS(1099)), 0);
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_who_always_naps);
	UNIT_RUN(test_who_never_naps);
	UNIT_RUN(test_late_ones_between_naps);
	UNIT_RUN(test_long_waits_leave_nothing);
	UNIT_RUN(test_credit_ends);
	UNIT_RUN(test_many_short_ones);
	UNIT_RUN(test_late_ones_among_short_ones);
	UNIT_RUN(test_few_are_all_timed);
	UNIT_RUN(test_one_that_is_not_timed_hangs);
	UNIT_RUN(test_one_that_is_not_timed_naps);
	UNIT_RUN(test_watched_anew);
	UNIT_RUN(test_nothing_runs);
	UNIT_RUN(test_statements_count_once);
	UNIT_RUN(test_buckets);
	UNIT_RUN(test_two_that_look);
	return unit_end();
}
