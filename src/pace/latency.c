/*-------------------------------------------------------------------------
 *
 * latency.c
 *	  How long the statements of ordinary sessions take, and their transactions.
 *
 * While some vacuum has a latency target, each client backend times its
 * top-level statements and counts them in shared memory, by the logarithm of
 * their latency; nothing is timed at other times.  What counts is the time in
 * the executor, and that of the commit that ends the statement or is one; the
 * time in which a cursor waits for its client does not.  Of the utility
 * statements those are timed that stand for work of the application (see
 * is_timed); a VACUUM or CREATE INDEX is slow by nature and says nothing.
 *
 * What a transaction takes is the sum of its statements; the time between
 * them is its client's.  Transactions that fail or are rolled back don't count.
 *
 * A statement that is still running is known by the time it has begun, so
 * that one that is held up is noticed before it ends.
 *
 * To tell top-level statements from others: what runs inside a timed call, or
 * inside a utility statement that isn't timed, isn't one; nor is a query whose
 * result doesn't go to the client.  If such a query comes when the statement
 * has ended it is a deferred trigger's, and its time belongs to the statement.
 *
 * Rows are sent while the executor runs.  If the client doesn't take them,
 * sending blocks.  So while a statement is timed we put ourselves before the
 * routine that receives its rows, and if that takes long take it off again.
 * Reading an exact clock for each row would cost a third of a statement that
 * only sends rows.  So the coarse one tells whether the client may have to be
 * waited for, and only for the next rows the exact one tells for how long.
 *
 * The counters are spread over several arrays, so that processors don't fight
 * for them; they are only ever added to, and readers look at differences.
 *
 * Cost: while nothing is watched, a look at one word of shared memory for each
 * call of a hook; else some readings of the clock for each statement.
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
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "compat.h"
#include "pace/clock.h"
#include "pace/latency.h"

/* Arrays of counters: who uses which is a matter of its number. */
#define SHARDS				16

/* The first bucket ends at 2 to this power, in ns: about a microsecond. */
#define LEAST_EXPONENT		10
#define STEP_BITS			4

/* A backend's statement; a process that dies may leave it behind. */
typedef struct LatencyRunning
{
	pg_atomic_uint32 pid;
	pg_atomic_uint64 since;		/* ns; 0 if none is running */
	pg_atomic_uint64 before;	/* ns that its transaction has taken before */
	pg_atomic_uint32 is_client; /* or a server that asks for something? */
} LatencyRunning;

typedef struct LatencyShared
{
	pg_atomic_uint32 watchers;	/* vacuums that want to know */
	pg_atomic_uint32 counts[LATENCY_KINDS][SHARDS][LATENCY_BUCKETS];
	LatencyRunning running[FLEXIBLE_ARRAY_MEMBER];	/* by backend */
} LatencyShared;

static LatencyShared *latency = NULL;

/* Nobody needs so long for a row, but for a client that doesn't take it. */
#define CLIENT_WAIT_NS		((uint64) NS_PER_MS)

/* The coarse clock moves at least a hundred times a second, adjusted by NTP. */
#define LONGEST_TICK_NS		(11 * (uint64) NS_PER_MS)

/*
 * After a row in whose sending the coarse clock has moved, so many are timed
 * exactly: enough of them fill the server's buffer for its next sending.
 */
#define EXACT_ROWS			1000

/* What a call has begun at if it isn't timed, nor what happens in it. */
#define UNTIMED				PG_UINT64_MAX

/* The statement of this backend; times are in ns. */
static int	nesting = 0;		/* of timed calls */
static int	hidden = 0;			/* in so many utility statements not timed */
static QueryDesc *top_query = NULL; /* the one that is timed */
static uint64 elapsed = 0;		/* so far */
static uint64 transaction_elapsed = 0;	/* in statements before, of its
										 * transaction */
static bool awaits_commit = false;	/* it has ended, but for its commit */

/* How long this call has waited for the client so far */
static uint64 client_wait = 0;
static bool has_sent = false;
static int	exact_rows = 0;		/* still to come */
static bool (*server_receive) (TupleTableSlot *slot, DestReceiver *self);

static bool (*is_server_session) (void);

static bool is_watching = false;
static bool exit_callback_registered = false;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;
static ExecutorRun_hook_type next_run_hook = NULL;
static ExecutorFinish_hook_type next_finish_hook = NULL;
static ExecutorEnd_hook_type next_end_hook = NULL;

static void request_shmem(void);
static void startup_shmem(void);
static Size shmem_size(void);
static void unwatch_at_exit(int code, Datum arg);
static void time_run(COMPAT_EXECUTOR_RUN_PARAMS);
static void time_finish(QueryDesc *query);
static void time_end(QueryDesc *query);
static void time_commit(XactEvent event, void *arg);
static void forget_query(SubXactEvent event, SubTransactionId subid,
						 SubTransactionId parent, void *arg);
static bool goes_to_client(const QueryDesc *query);
static bool receive_row(TupleTableSlot *slot, DestReceiver *self);
static bool is_timed(const Node *statement);
static bool is_vacuum_node(const CallStmt *statement);
static bool is_commit(const Node *statement);
static bool begins_timed_call(void);
static uint64 begin_call(void);
static void end_call(uint64 start);
static void begin_statement(QueryDesc *query);
static void end_statement(bool commit_comes);
static void count_statement(void);
static void count_transaction(void);
static void count(LatencyOf of, uint64 ns);
static int	bucket_of(uint64 ns);
static double bucket_start_ms(int bucket);

/*
 * latency_init
 *		Install the hooks, and ask for shared memory.  Call while the library is
 *		preloaded.
 *
 * is_server tells whether a server of a cluster has opened this session, and not
 * a client.
 */
void
latency_init(bool (*is_server) (void))
{
	is_server_session = is_server;
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;

	next_run_hook = ExecutorRun_hook;
	ExecutorRun_hook = time_run;
	next_finish_hook = ExecutorFinish_hook;
	ExecutorFinish_hook = time_finish;
	next_end_hook = ExecutorEnd_hook;
	ExecutorEnd_hook = time_end;
	RegisterXactCallback(time_commit, NULL);
	RegisterSubXactCallback(forget_query, NULL);
}

/*
 * latency_prepare
 *		This process is going to watch, maybe.  To be called when no callback
 *		for its exit has been registered that will be taken back.
 */
void
latency_prepare(void)
{
	if (!exit_callback_registered)
		before_shmem_exit(unwatch_at_exit, (Datum) 0);
	exit_callback_registered = true;
}

/*
 * latency_watch
 *		Have statements timed from now on, until latency_unwatch or the end of
 *		this process.
 */
void
latency_watch(void)
{
	Assert(exit_callback_registered);
	if (is_watching)
		return;
	pg_atomic_fetch_add_u32(&latency->watchers, 1);
	is_watching = true;
}

/*
 * latency_unwatch
 *		This process doesn't want to know any more; harmless if it never did.
 */
void
latency_unwatch(void)
{
	if (is_watching)
		pg_atomic_fetch_sub_u32(&latency->watchers, 1);
	is_watching = false;
}

/*
 * latency_begin_utility
 *		A utility statement begins.  If this returns true, latency_end_call must
 *		be called, after an error too, and then latency_end_utility unless there
 *		was one; *commits is for that, as the statement may be gone by then.
 */
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
		hidden--;
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

/* latency_forget_statement -- the query that runs is none that an application waits for. */
void
latency_forget_statement(void)
{
	top_query = NULL;
	/* or nothing is timed here: the library doesn't fit the server */
	if (latency != NULL)
		pg_atomic_write_u64(&latency->running[MyProcNumber].since, 0);
}

/*
 * latency_read
 *		Read the counters of one kind, LATENCY_BUCKETS of them.  They overflow;
 *		what counts is by how much they have grown.
 */
void
latency_read(LatencyOf of, uint32 *counts)
{
	for (int i = 0; i < LATENCY_BUCKETS; i++)
	{
		counts[i] = 0;
		for (int shard = 0; shard < SHARDS; shard++)
			counts[i] += pg_atomic_read_u32(&latency->counts[of][shard][i]);
	}
}

/*
 * latency_add_running
 *		Count the statements that have been running for longer than late_ms, or
 *		their transactions have, as if they had ended now; return how many there
 *		are, and in *nrunning how many run, late or not.  Those that have been for
 *		longer than long_ms don't count: they are slow by nature.
 */
int
latency_add_running(LatencyOf of, double late_ms, double long_ms, float *counts, int *nrunning)
{
	uint64		now = now_ns();
	int			nlate = 0;

	*nrunning = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		LatencyRunning *running = &latency->running[i];
		uint64		since = pg_atomic_read_u64(&running->since);
		uint64		taken = now - since;
		PGPROC	   *proc = GetPGProcByNumber(i);
		uint32		wait_class = proc->wait_event_info & 0xFF000000;

		if (latency_is_of_transactions(of))
			taken += pg_atomic_read_u64(&running->before);
		if (since == 0 || since >= now || taken / 1e6 > long_ms ||
			proc->pid != (int) pg_atomic_read_u32(&running->pid) ||
			(latency_is_of_clients(of) && pg_atomic_read_u32(&running->is_client) == 0) ||
			wait_class == PG_WAIT_CLIENT)
			continue;
		(*nrunning)++;
		if (taken / 1e6 <= late_ms)
			continue;
		counts[bucket_of(taken)]++;
		nlate++;
	}
	return nlate;
}

/*
 * latency_percentile
 *		The latency in ms that so many per cent of the statements stay below;
 *		NaN if there are none.
 */
double
latency_percentile(const float *counts, double percent)
{
	double		total = 0,
				rank,
				passed = 0;

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

/* latency_count_above -- how many took longer than that. */
double
latency_count_above(const float *counts, double ms)
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
	DestReceiver *dest;
	uint64		start;
	bool		timed = begins_timed_call();
	bool		sends;

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

	dest = query->dest;
	sends = nesting == 0 && dest->mydest != DestNone && goes_to_client(query);
	if (sends)
	{
		has_sent = false;
		server_receive = dest->receiveSlot;
		dest->receiveSlot = receive_row;
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
		if (sends)
			dest->receiveSlot = server_receive;
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
		elapsed = 0;
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

/*
 * receive_row
 *		In the place of the routine that sends a row to the client.
 *
 * The coarse clock moves by a whole tick at a time, maybe by chance.  By more
 * than one it moves only if we waited; of a shorter wait nothing is known, but
 * that the next ones are to be timed.
 */
static bool
receive_row(TupleTableSlot *slot, DestReceiver *self)
{
	uint64		start,
				took;
	bool		is_exact = exact_rows > 0;
	bool		result;

	/* the first one finds room */
	if (!has_sent)
	{
		has_sent = true;
		return server_receive(slot, self);
	}

	start = is_exact ? now_ns() : coarse_now_ns();
	result = server_receive(slot, self);
	took = (is_exact ? now_ns() : coarse_now_ns()) - start;

	if (is_exact)
		exact_rows--;
	if (unlikely(took >= CLIENT_WAIT_NS))
	{
		if (is_exact || took > LONGEST_TICK_NS)
			client_wait += took;
		exact_rows = EXACT_ROWS;
	}
	return result;
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
			/* even what has changed nothing here may commit elsewhere */
			if ((awaits_commit || transaction_elapsed > 0) && nesting == 0)
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
			/* of several statements in one message, which have been counted */
			if (is_committing && !awaits_commit)
			{
				transaction_elapsed += elapsed;
				elapsed = 0;
			}
			is_committing = false;
			if (event == XACT_EVENT_ABORT)
			{
				awaits_commit = false;
				top_query = NULL;
				transaction_elapsed = 0;
			}
			else if (nesting == 0)
			{
				if (awaits_commit)
					count_statement();
				if (transaction_elapsed > 0)
					count_transaction();
			}
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

	if (nesting++ == 0)
	{
		LatencyRunning *running = &latency->running[MyProcNumber];

		start = now_ns();
		client_wait = 0;

		/* what it has taken before, in other calls, is part of it */
		pg_atomic_write_u32(&running->pid, MyProcPid);
		pg_atomic_write_u32(&running->is_client, !is_server_session());
		pg_atomic_write_u64(&running->before, transaction_elapsed);
		pg_atomic_write_u64(&running->since, start - elapsed);
	}
	return start;
}

/* end_call -- time ceases to count. */
static void
end_call(uint64 start)
{
	if (--nesting == 0)
	{
		uint64		took = now_ns() - start;

		/* by the coarse clock a wait may seem a tick longer than it was */
		elapsed += took - Min(took, client_wait);
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
	if (awaits_commit || top_query != NULL)
		count_statement();
	top_query = query;
	elapsed = 0;
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
	count(LATENCY_OF_STATEMENTS, elapsed);
	transaction_elapsed += Max(elapsed, 1);
	awaits_commit = false;
	elapsed = 0;
}

/*
 * count_transaction
 *		The same for its transaction, which has committed; but if nobody is
 *		watching any more, not all of it has been timed.
 */
static void
count_transaction(void)
{
	if (pg_atomic_read_u32(&latency->watchers) != 0)
		count(LATENCY_OF_TRANSACTIONS, transaction_elapsed);
	transaction_elapsed = 0;
}

/* count -- add a latency to this backend's counters. */
static void
count(LatencyOf of, uint64 ns)
{
	int			shard = MyProcNumber % SHARDS;
	int			bucket = bucket_of(ns);

	pg_atomic_fetch_add_u32(&latency->counts[of][shard][bucket], 1);
	if (!is_server_session())
		pg_atomic_fetch_add_u32(&latency->counts[latency_of_clients(of)][shard][bucket], 1);
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

	if (bucket == 0)
		return 0;
	return ldexp(1 + (double) (step & ((1 << STEP_BITS) - 1)) / (1 << STEP_BITS),
				 LEAST_EXPONENT + (step >> STEP_BITS)) / 1e6;
}

/* unwatch_at_exit -- a vacuum that dies doesn't watch. */
static void
unwatch_at_exit(int code, Datum arg)
{
	latency_unwatch();
}

/* request_shmem -- how much shared memory we need. */
static void
request_shmem(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(shmem_size());
}

/* startup_shmem -- find our shared memory, or make it. */
static void
startup_shmem(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	latency = ShmemInitStruct("pg_cyclone latency", shmem_size(), &found);
	if (!found)
	{
		pg_atomic_init_u32(&latency->watchers, 0);
		for (int of = 0; of < LATENCY_KINDS; of++)
			for (int shard = 0; shard < SHARDS; shard++)
				for (int i = 0; i < LATENCY_BUCKETS; i++)
					pg_atomic_init_u32(&latency->counts[of][shard][i], 0);
		for (int i = 0; i < MaxBackends; i++)
		{
			pg_atomic_init_u32(&latency->running[i].pid, 0);
			pg_atomic_init_u64(&latency->running[i].since, 0);
			pg_atomic_init_u64(&latency->running[i].before, 0);
			pg_atomic_init_u32(&latency->running[i].is_client, 0);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

/* shmem_size -- the size of what is shared by all backends. */
static Size
shmem_size(void)
{
	return add_size(offsetof(LatencyShared, running),
					mul_size(sizeof(LatencyRunning), MaxBackends));
}
