/*-------------------------------------------------------------------------
 *
 * latency.c
 *	  How long the statements of ordinary sessions take.
 *
 * While some vacuum has a latency target in ms, each client backend times its top-level
 * statements and counts them in shared memory, by the logarithm of their latency;
 * nothing is timed at other times.  The time in the executor counts, that of the
 * commit that ends the statement or is one, and the time for which the session waited for
 * a core since its last statement (core_wait.c); the time in which a cursor waits for its
 * client does not.  Of the utility statements those are timed that stand for work of
 * the application (see is_timed); a VACUUM or CREATE INDEX is slow by nature and says
 * nothing.
 *
 * A statement that is still running is known by the time it has begun, so
 * that one that is held up is noticed before it ends.
 *
 * To tell top-level statements from others: what runs inside a timed call, or
 * inside a utility statement that isn't timed, isn't one; nor is a query whose
 * result doesn't go to the client.  If such a query comes when the statement
 * has ended it is a deferred trigger's, and its time belongs to the statement.
 *
 * Waits that a VACUUM can't cause aren't held against it: a look at other sessions
 * excuses a statement that is seen to wait for its client, for a lock on a table or row,
 * or for time to pass (neighbours.c), and then it isn't counted.
 *
 * Looks come ten times a second, and miss most of the waits that are shorter than that.
 * But a session waits for as large a part of the time as of the looks.  So a look that
 * finds it waiting gives it credit for the time since the last look, and a third more;
 * each statement that ends takes what it has lasted from the credit, and only the rest
 * counts.  A session that does nothing but nap is excused wholly, after one look.  One
 * that never naps has no credit.  One that naps between statements which VACUUM makes late
 * is excused for four thirds of its naps; its other time votes.  The third is for the
 * moments in which a nap begins and ends, which add up to a late statement otherwise.
 * There is no credit for a lock on a table or row, as a short wait for one may well be due
 * to VACUUM: the session that has it is slow.
 *
 * A statement that takes longer than SEEN_NS was seen if it waited.  It takes no credit,
 * and leaves none.
 *
 * The counters are spread over several arrays, so that processors don't fight
 * for them; they are only ever added to, and readers look at differences.
 *
 * To time and count a statement takes 0.2 microseconds, nearly 2 % of the shortest ones.  So
 * a session that has many short ones times one in SAMPLE, by chance, and counts it as SAMPLE.
 * Whether a statement is timed is settled before it begins, so late ones count as many
 * votes on average as there are, in whatever order they come.  A session that has few
 * statements, or a long one, times all of them, as chance would not average out soon.
 * Of a statement that isn't timed the start is not known, only that it runs.  The process
 * that counts running statements takes it to have begun when it sees it first.
 *
 * Cost: while nothing is watched, a look at one word of shared memory for each
 * call of a hook; else some readings of the clock for each statement that is timed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "clock.h"
#include "compat.h"
#include "neighbours/neighbours.h"

/* Arrays of counters; the number of a backend says which one it uses. */
#define SHARDS				16

/* The first bucket ends at 2 to this power, in ns: about a microsecond. */
#define LEAST_EXPONENT		10
#define STEP_BITS			4

/* A statement that takes longer is seen by a look, though some come late. */
#define SEEN_NS				(200 * (uint64) NS_PER_MS)
/* The most credit: for ten looks, as whether a nap is seen varies by chance. */
#define MOST_CREDIT_NS		((uint64) NS_PER_S)

/* If statements are short and come often, one in this many is timed. */
#define SAMPLE				8
/* Short: to time a longer one takes less than 1 % of it. */
#define SHORT_NS			(20 * (uint64) NS_PER_US)
/*
 * Often: a thousand a second.  In simulation a target is then kept as well as if all were
 * timed, to 1 %, and with a hundred a second to 4 %.
 */
#define OFTEN_NS			((uint64) NS_PER_MS)
/* This many are timed first. */
#define CALM				16

/* A statement is running that isn't timed. */
#define SINCE_UNKNOWN		1

/* A backend's statement; a process that dies may leave it behind. */
typedef struct LatencyRunning
{
	pg_atomic_uint32 pid;
	pg_atomic_uint64 since;		/* ns; 0 if none is running */
	pg_atomic_uint32 is_excused;
	pg_atomic_uint32 credit;	/* ns */
	/* written a few times a statement: no other backend is to wait for it */
	char		padding[PG_CACHE_LINE_SIZE - 24];
} LatencyRunning;

typedef struct LatencyShared
{
	pg_atomic_uint32 watchers;	/* vacuums that want to know */
	pg_atomic_uint32 nwatched;	/* so far */
	char		padding[PG_CACHE_LINE_SIZE];	/* each hook reads the above */
	pg_atomic_uint32 counts[SHARDS][LATENCY_BUCKETS];
	pg_atomic_uint64 looked_at; /* when any process looked last at others */
	LatencyRunning running[FLEXIBLE_ARRAY_MEMBER];	/* by backend */
} LatencyShared;

static LatencyShared *latency = NULL;

/* The start of a call that isn't timed, nor anything within it */
#define UNTIMED				PG_UINT64_MAX

/* The statement of this backend; times are in ns. */
static int	nesting = 0;		/* of timed calls */
static int	hidden = 0;			/* of utility statements that aren't timed */
static QueryDesc *top_query = NULL; /* the one that is timed */
static uint64 elapsed = 0;		/* so far, with the wait before it */
static uint64 waited = 0;		/* before it */
static uint32 weight = 1;		/* as how many it counts; 0: it isn't timed */
static bool awaits_commit = false;	/* it has ended, but for its commit */
static uint32 nwatched = 0;		/* as the last one began */

/* Of the statements that were timed */
static uint64 called_at = 0;	/* when the last call began */
static uint64 counted_at = 0;	/* the same, as of the last one that counted */
static int	nshort = 0;			/* in succession, that came often */
static uint32 nuntimed = 0;		/* others since the last one */
static uint64 chance = 0;		/* of the next one to be timed */

static bool is_watching = false;

static ExecutorRun_hook_type next_run_hook = NULL;
static ExecutorFinish_hook_type next_finish_hook = NULL;
static ExecutorEnd_hook_type next_end_hook = NULL;

static void time_run(COMPAT_EXECUTOR_RUN_PARAMS);
static void time_finish(QueryDesc *query);
static void time_end(QueryDesc *query);
static void time_commit(XactEvent event, void *arg);
static void forget_query(SubXactEvent event, SubTransactionId subid,
						 SubTransactionId parent, void *arg);
static bool goes_to_client(const QueryDesc *query);
static bool is_timed(const Node *statement);
static bool is_vacuum_node(const CallStmt *statement);
static bool is_commit(const Node *statement);
static bool begins_timed_call(void);
static uint64 begin_call(void);
static void end_call(uint64 start);
static void begin_statement(QueryDesc *query);
static uint32 choose_weight(void);
static void end_statement(bool commit_comes);
static void count_statement(void);
static uint64 not_excused(LatencyRunning *running, uint64 ns);
static void spend_credit(void);
static int	bucket_of(uint64 ns);
static double bucket_start_ms(int bucket);

/* latency_init -- see neighbours.h. */
void
latency_init(void)
{
	next_run_hook = ExecutorRun_hook;
	ExecutorRun_hook = time_run;
	next_finish_hook = ExecutorFinish_hook;
	ExecutorFinish_hook = time_finish;
	next_end_hook = ExecutorEnd_hook;
	ExecutorEnd_hook = time_end;
	RegisterXactCallback(time_commit, NULL);
	RegisterSubXactCallback(forget_query, NULL);
}

/* latency_watch -- see neighbours.h. */
void
latency_watch(void)
{
	if (is_watching)
		return;
	pg_atomic_fetch_add_u32(&latency->nwatched, 1);
	pg_atomic_fetch_add_u32(&latency->watchers, 1);
	is_watching = true;
}

/* latency_unwatch -- see neighbours.h. */
void
latency_unwatch(void)
{
	Assert(!is_watching || pg_atomic_read_u32(&latency->watchers) > 0);
	if (is_watching)
		pg_atomic_fetch_sub_u32(&latency->watchers, 1);
	is_watching = false;
}

/* latency_begin_utility -- see neighbours.h. */
bool
latency_begin_utility(const PlannedStmt *pstmt, uint64 *start, bool *commits)
{
	if (!begins_timed_call())
		return false;
	*commits = is_commit(pstmt->utilityStmt);
	if (nesting == 0)
	{
		begin_statement(NULL);
		/* the end of a block that has failed is no commit */
		if (!is_timed(pstmt->utilityStmt) || IsAbortedTransactionBlockState())
		{
			hidden++;
			elapsed = 0;
			*start = UNTIMED;
			return true;
		}
	}
	*start = begin_call();
	return true;
}

/* latency_end_call -- it has ended, or failed. */
void
latency_end_call(uint64 start)
{
	if (start == UNTIMED)
	{
		Assert(hidden > 0);
		if (--hidden == 0)
			core_wait_end();
	}
	else
		end_call(start);
}

/* latency_end_utility -- it has not failed. */
void
latency_end_utility(uint64 start, bool commits)
{
	if (start != UNTIMED && nesting == 0)
		end_statement(commits || !IsTransactionBlock());
}

/* latency_begin_look -- see neighbours.h. */
uint64
latency_begin_look(uint64 now)
{
	uint64		before = pg_atomic_exchange_u64(&latency->looked_at, now);

	return now > before ? now - before : 0;
}

/*
 * latency_excuse -- see neighbours.h.
 *
 * If the backend takes of its credit just now, one of the two is lost; both are small.
 */
void
latency_excuse(int backend, uint64 unseen)
{
	LatencyRunning *running = &latency->running[backend];
	uint64		credit = Min(unseen, MOST_CREDIT_NS);

	Assert(backend >= 0 && backend < MaxBackends);
	if (pg_atomic_read_u64(&running->since) == 0)
		return;
	pg_atomic_write_u32(&running->is_excused, 1);
	credit += credit / 3 + pg_atomic_read_u32(&running->credit);
	pg_atomic_write_u32(&running->credit, Min(credit, MOST_CREDIT_NS));
}

/* latency_read -- see neighbours.h. */
void
latency_read(uint32 *counts)
{
	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		counts[i] = 0;
		for (int shard = 0; shard < SHARDS; shard++)
			counts[i] += pg_atomic_read_u32(&latency->counts[shard][i]);
	}
}

/* latency_count_running -- see neighbours.h. */
int
latency_count_running(double late_ms, double long_ms, uint32 *counts, int *nrunning)
{
	uint64		now = now_ns();
	int			nlate = 0;

	*nrunning = 0;
	for (int i = 0; i < MaxBackends; i++)
	{
		LatencyRunning *running = &latency->running[i];
		uint64		since = pg_atomic_read_u64(&running->since);
		uint64		taken = now - since;

		if (since == 0 || GetPGProcByNumber(i)->pid != (int) pg_atomic_read_u32(&running->pid))
			continue;
		if (since == SINCE_UNKNOWN)
		{
			(void) pg_atomic_compare_exchange_u64(&running->since, &since, now);
			(*nrunning)++;
			continue;
		}
		if (since >= now || taken / 1e6 > long_ms)
			continue;
		taken = not_excused(running, taken);
		if (taken == 0)
			continue;
		(*nrunning)++;
		if (taken / 1e6 <= late_ms)
			continue;
		counts[bucket_of(taken)]++;
		nlate++;
	}
	return nlate;
}

/* latency_percentile -- see neighbours.h. */
double
latency_percentile(const uint32 *counts, double percent)
{
	double		total = 0,
				rank,
				passed = 0;

	Assert(percent > 0 && percent <= 100);
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		total += counts[i];
	if (total <= 0)
		return NAN;

	rank = total * percent / 100;
	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		if (counts[i] > 0 && passed + counts[i] >= rank)
		{
			double		start = bucket_start_ms(i);

			return start + (bucket_start_ms(i + 1) - start) * (rank - passed) / counts[i];
		}
		passed += counts[i];
	}
	return bucket_start_ms(LATENCY_BUCKETS);
}

/* latency_count_above -- see neighbours.h. */
double
latency_count_above(const uint32 *counts, double ms)
{
	double		above = 0;

	for (int i = LATENCY_BUCKETS - 1; i >= 0 && bucket_start_ms(i + 1) > ms; i--)
	{
		double		start = bucket_start_ms(i),
					end = bucket_start_ms(i + 1);

		above += counts[i] * Min((end - ms) / (end - start), 1);
	}
	return above;
}

/* time_run -- the ExecutorRun hook. */
static void
time_run(COMPAT_EXECUTOR_RUN_PARAMS)
{
	uint64		start;
	bool		timed = begins_timed_call();

	if (timed && nesting == 0)
	{
		if (!goes_to_client(query))
			timed = awaits_commit;
		else if (query != top_query)
			begin_statement(query);
	}
	if (!timed)
	{
		if (next_run_hook)
			next_run_hook(COMPAT_EXECUTOR_RUN_ARGUMENTS);
		else
			standard_ExecutorRun(COMPAT_EXECUTOR_RUN_ARGUMENTS);
		return;
	}

	start = begin_call();
	PG_TRY();
	{
		if (next_run_hook)
			next_run_hook(COMPAT_EXECUTOR_RUN_ARGUMENTS);
		else
			standard_ExecutorRun(COMPAT_EXECUTOR_RUN_ARGUMENTS);
	}
	PG_FINALLY();
	{
		end_call(start);
	}
	PG_END_TRY();
}

/* time_finish -- the ExecutorFinish hook: triggers at the statement's end. */
static void
time_finish(QueryDesc *query)
{
	uint64		start;

	if (!begins_timed_call() ||
		(query->operation == CMD_SELECT && !query->plannedstmt->hasModifyingCTE) ||
		(nesting == 0 && query != top_query))
	{
		if (next_finish_hook)
			next_finish_hook(query);
		else
			standard_ExecutorFinish(query);
		return;
	}

	start = begin_call();
	PG_TRY();
	{
		if (next_finish_hook)
			next_finish_hook(query);
		else
			standard_ExecutorFinish(query);
	}
	PG_FINALLY();
	{
		end_call(start);
	}
	PG_END_TRY();
}

/* time_end -- the ExecutorEnd hook: the statement is over, but for its commit. */
static void
time_end(QueryDesc *query)
{
	if (next_end_hook)
		next_end_hook(query);
	else
		standard_ExecutorEnd(query);

	if (nesting == 0 && query == top_query)
	{
		top_query = NULL;
		end_statement(!IsTransactionBlock());
	}
}

/* forget_query -- the subtransaction callback: it may have failed in there. */
static void
forget_query(SubXactEvent event, SubTransactionId subid,
			 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB && nesting == 0)
	{
		top_query = NULL;
		spend_credit();
	}
}

/*
 * goes_to_client
 *		Is this a statement of the client's own, by what becomes of its result?
 */
static bool
goes_to_client(const QueryDesc *query)
{
	switch (query->dest->mydest)
	{
		case DestRemote:
		case DestRemoteExecute:
		case DestRemoteSimple:
			return true;
		case DestNone:
			/* of a statement without a result, or of a trigger's */
			return !awaits_commit;
		default:
			return false;
	}
}

/* time_commit -- the transaction callback. */
static void
time_commit(XactEvent event, void *arg)
{
	static uint64 start = 0;
	static bool is_committing = false;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			/* one that has written nothing takes no time */
			if (awaits_commit && nesting == 0 && TransactionIdIsValid(GetTopTransactionIdIfAny()))
			{
				start = begin_call();
				is_committing = true;
			}
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			if (is_committing)
				end_call(start);
			is_committing = false;
			if (event == XACT_EVENT_ABORT)
			{
				awaits_commit = false;
				top_query = NULL;
				if (nesting == 0)
					spend_credit();
			}
			else if (nesting == 0 && awaits_commit)
				count_statement();
			break;
		default:
			break;
	}
}

/*
 * is_timed
 *		Is this a utility statement that an application waits for, and that is
 *		as fast or slow as the server is?
 */
static bool
is_timed(const Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_ExecuteStmt:
		case T_FetchStmt:
		case T_DoStmt:
			return true;
		case T_CallStmt:
			return !is_vacuum_node((const CallStmt *) statement);
		default:
			return is_commit(statement);
	}
}

/* is_vacuum_node -- is this the call by which a VACUUM is sent to a node? */
static bool
is_vacuum_node(const CallStmt *statement)
{
	List	   *name = statement->funccall->funcname;

	return list_length(name) == 2 &&
		strcmp(strVal(linitial(name)), "cyclone") == 0 &&
		strcmp(strVal(lsecond(name)), "vacuum_node") == 0;
}

/* is_commit -- will this statement have the transaction committed? */
static bool
is_commit(const Node *statement)
{
	if (!IsA(statement, TransactionStmt))
		return false;
	switch (((const TransactionStmt *) statement)->kind)
	{
		case TRANS_STMT_COMMIT:
		case TRANS_STMT_PREPARE:
			return true;
		default:
			return false;
	}
}

/*
 * begins_timed_call
 *		Is anybody watching, or a timed call going on?  If so, begin_call and
 *		end_call are called around it.
 */
static bool
begins_timed_call(void)
{
	return nesting > 0 ||
		(hidden == 0 && unlikely(pg_atomic_read_u32(&latency->watchers) != 0) &&
		 MyBackendType == B_BACKEND && !is_watching);
}

/* begin_call -- time begins to count; returns the time. */
static uint64
begin_call(void)
{
	uint64		start = 0;

	Assert(nesting >= 0 && hidden == 0);
	if (nesting++ == 0)
	{
		LatencyRunning *running = &latency->running[MyProcNumber];

		if (weight == 0)
		{
			pg_atomic_write_u64(&running->since, SINCE_UNKNOWN);
			return 0;
		}
		called_at = start = now_ns();

		if (pg_atomic_read_u32(&running->pid) != MyProcPid)
		{
			pg_atomic_write_u32(&running->pid, MyProcPid);
			pg_atomic_write_u32(&running->credit, 0);
			chance = start;
		}
		/* what it has taken before, in other calls, is part of it */
		pg_atomic_write_u64(&running->since, start - elapsed);
	}
	return start;
}

/* end_call -- time ceases to count. */
static void
end_call(uint64 start)
{
	Assert(nesting > 0);
	if (--nesting == 0)
	{
		if (weight > 0)
			elapsed += now_ns() - start;
		pg_atomic_write_u64(&latency->running[MyProcNumber].since, 0);
	}
}

/*
 * begin_statement
 *		The top-level statement is another one now: that query, or a utility
 *		statement.  A portal may outlive its statement, and some clients let
 *		several statements share a commit; so the last one may still be open.
 */
static void
begin_statement(QueryDesc *query)
{
	uint32		now_watched = pg_atomic_read_u32(&latency->nwatched);

	if (awaits_commit || top_query != NULL)
		count_statement();
	top_query = query;
	/* what came while nobody watched wasn't timed */
	if (now_watched != nwatched)
	{
		core_wait_forget();
		nshort = 0;
	}
	nwatched = now_watched;
	elapsed = waited = core_wait_begin();
	weight = choose_weight();
	pg_atomic_write_u32(&latency->running[MyProcNumber].is_excused, 0);
}

/* choose_weight -- as how many the statement counts that begins; 0: it isn't timed. */
static uint32
choose_weight(void)
{
	if (nshort < CALM || pg_atomic_read_u32(&latency->running[MyProcNumber].credit) != 0)
		return 1;
	/* Knuth's generator; its upper bits are the better ones */
	chance = chance * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (chance >> 32) * SAMPLE >> 32 == 0 ? SAMPLE : 0;
}

/* end_statement -- count it now, or when its transaction commits. */
static void
end_statement(bool commit_comes)
{
	awaits_commit = commit_comes;
	if (!commit_comes)
		count_statement();
}

/* count_statement -- add this backend's statement to the counters. */
static void
count_statement(void)
{
	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	if (weight == 0)
		nuntimed++;
	else
	{
		uint64		ns = not_excused(&latency->running[MyProcNumber], elapsed);

		if (ns > 0)
			pg_atomic_fetch_add_u32(&latency->counts[MyProcNumber % SHARDS][bucket_of(ns)], weight);
		nshort = elapsed - waited < SHORT_NS && called_at - counted_at < OFTEN_NS * (nuntimed + 1) ?
			Min(nshort + 1, CALM) : 0;
		counted_at = called_at;
		nuntimed = 0;
	}
	awaits_commit = false;
	spend_credit();
	core_wait_end();
}

/* not_excused -- how much of the time that a statement has taken counts; 0: it doesn't count. */
static uint64
not_excused(LatencyRunning *running, uint64 ns)
{
	uint32		credit = pg_atomic_read_u32(&running->credit);

	if (pg_atomic_read_u32(&running->is_excused) != 0)
		return 0;
	return ns < SEEN_NS ? ns - Min(ns, credit) : ns;
}

/*
 * spend_credit
 *		This backend's statement has ended or failed: its time is taken from the credit.
 *		How long one took that isn't timed isn't known: it takes all, and the next ones are
 *		timed.
 */
static void
spend_credit(void)
{
	LatencyRunning *running = &latency->running[MyProcNumber];
	uint32		credit = pg_atomic_read_u32(&running->credit);

	if (credit != 0 && weight == 0)
	{
		elapsed = credit;
		nshort = 0;
	}
	if (credit != 0 && elapsed > 0)
		pg_atomic_write_u32(&running->credit, elapsed < SEEN_NS ? credit - Min(elapsed, credit) : 0);
	elapsed = 0;
}

/* bucket_of -- which counter a latency belongs to. */
static int
bucket_of(uint64 ns)
{
	int			exponent = pg_leftmost_one_pos64(ns | 1);
	int			bucket;

	if (exponent < LEAST_EXPONENT)
		return 0;
	bucket = (exponent - LEAST_EXPONENT) << STEP_BITS |
		(ns >> (exponent - STEP_BITS) & ((1 << STEP_BITS) - 1));
	return Min(bucket + 1, LATENCY_BUCKETS - 1);
}

/* bucket_start_ms -- the least latency that belongs to a bucket, in ms. */
static double
bucket_start_ms(int bucket)
{
	int			step = bucket - 1;

	Assert(bucket >= 0 && bucket <= LATENCY_BUCKETS);
	if (bucket == 0)
		return 0;
	return ldexp(1 + (double) (step & ((1 << STEP_BITS) - 1)) / (1 << STEP_BITS),
				 LEAST_EXPONENT + (step >> STEP_BITS)) / 1e6;
}

/* latency_shmem_size -- the size of what is shared by all backends. */
Size
latency_shmem_size(void)
{
	return add_size(offsetof(LatencyShared, running),
					mul_size(sizeof(LatencyRunning), MaxBackends));
}

/* latency_shmem_init -- find it, or make it. */
void
latency_shmem_init(void)
{
	bool		found;

	latency = ShmemInitStruct("pg_cyclone latency", latency_shmem_size(), &found);
	if (found)
		return;
	pg_atomic_init_u32(&latency->watchers, 0);
	pg_atomic_init_u32(&latency->nwatched, 0);
	pg_atomic_init_u64(&latency->looked_at, 0);
	for (int shard = 0; shard < SHARDS; shard++)
		for (int i = 0; i < LATENCY_BUCKETS; i++)
			pg_atomic_init_u32(&latency->counts[shard][i], 0);
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&latency->running[i].pid, 0);
		pg_atomic_init_u64(&latency->running[i].since, 0);
		pg_atomic_init_u32(&latency->running[i].is_excused, 0);
		pg_atomic_init_u32(&latency->running[i].credit, 0);
	}
}
