/*-------------------------------------------------------------------------
 *
 * guards_state.c
 *	  The shared state of the guards: which vacuums there are, what holds each, and how
 *	  much WAL they have written.
 *
 * The leader of each command has a place in shared memory, from the beginning of the
 * command to its end; its workers find it by the leader's number.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog_internal.h"
#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"
#include "own_wait_event.h"

#define GUARDS_TRANCHE		"pg_cyclone guards"

GuardsShared *guards_shared = NULL;

Guarded		guarded;

static Size shared_size(void);
static uint64 wal_bytes(void);
static bool is_old(TransactionId xid, MultiXactId multi);
static struct VacuumCutoffs find_oldest(void);

/* shared_size -- how much room the shared state takes, without the standbys. */
static Size
shared_size(void)
{
	return add_size(offsetof(GuardsShared, vacuums), mul_size(sizeof(GuardedVacuum), MaxBackends));
}

/* guards_shmem_request -- a place for each leader and each standby, and what they share. */
void
guards_shmem_request(void)
{
	RequestAddinShmemSpace(add_size(shared_size(), mul_size(sizeof(LagStandby), max_wal_senders)));
	RequestNamedLWLockTranche(GUARDS_TRANCHE, 1);
}

/* guards_shmem_init -- find it, or make it. */
void
guards_shmem_init(void)
{
	Size		standbys_size = mul_size(sizeof(LagStandby), max_wal_senders);
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));
	guards_shared = ShmemInitStruct("pg_cyclone guards", shared_size(), &found);
	if (found)
		return;
	/* atomics of no more than 64 bits that are zero need no more */
	memset(guards_shared, 0, shared_size());
	guards_shared->lock = &GetNamedLWLockTranche(GUARDS_TRANCHE)[0].lock;
	guards_shared->standbys = ShmemInitStruct("pg_cyclone standbys", standbys_size, &found);
	memset(guards_shared->standbys, 0, standbys_size);
	write_double(&guards_shared->lag_rate, INFINITY);
}

/*
 * wal_bytes
 *		How much room in the WAL's files this process's records have taken.
 *
 * The server counts the records alone.  Each is padded, by half of what it may be on
 * average, and each page of WAL has a header.
 */
static uint64
wal_bytes(void)
{
	uint64		bytes = pgWalUsage.wal_bytes + pgWalUsage.wal_records * (MAXIMUM_ALIGNOF / 2);

	return bytes + bytes / (XLOG_BLCKSZ - SizeOfXLogShortPHD) * SizeOfXLogShortPHD;
}

/* guards_skip_wal -- the WAL that this process has written so far is not a vacuum's. */
void
guards_skip_wal(void)
{
	guarded.wal_paid = wal_bytes();
}

/* guards_unpaid_wal -- how much of its WAL this process has not paid for, in bytes. */
uint64
guards_unpaid_wal(void)
{
	return wal_bytes() - guarded.wal_paid;
}

/*
 * guards_what_holds
 *		Which guard is this process to stand still for, where it has no page pinned?
 *
 * None while readers wait for the table: then a disk ends the vacuum at once, standbys slow
 * it down, and it can't be paused.  What was seen of disks and standbys some time ago is no
 * reason, as a process in the server's code can't look again.
 */
Guard
guards_what_holds(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	GuardHurry	hurry;

	if (vacuum == NULL || VacuumFailsafeActive || vacuum->readers_wait)
		return NUM_GUARDS;
	hurry = guards_hurry_of(vacuum);
	if (hurry < HURRY_NO_WAITING && guards_is_paused(vacuum))
		return GUARD_PAUSE;
	if (hurry < HURRY_WRAPAROUND && pg_atomic_read_u32(&vacuum->disk_stops) != DISK_NONE &&
		now_ns() < pg_atomic_read_u64(&vacuum->next_disk_look) + LOOK_COUNTS_NS)
		return GUARD_DISK;
	return guards_lag_rate() <= 0 && guards_unpaid_wal() > FREE_BYTES ? GUARD_LAG : NUM_GUARDS;
}

/* is_old -- are these the oldest IDs of a table that autovacuum must come to?  The more members multixacts have, the sooner. */
static bool
is_old(TransactionId xid, MultiXactId multi)
{
	int			most_multis = DEBUG_LIMIT(multixact_limit, MultiXactMemberFreezeThreshold());

	return (TransactionIdIsNormal(xid) && (int32) (ReadNextTransactionId() - xid) > autovacuum_freeze_max_age) ||
		(MultiXactIdIsValid(multi) && (int32) (ReadNextMultiXactId() - multi) > most_multis);
}

/* find_oldest -- the oldest IDs of the server. */
static struct VacuumCutoffs
find_oldest(void)
{
	struct VacuumCutoffs oldest = {.relfrozenxid = TransamVariables->oldestXid};
	MultiXactId next;

	ReadMultiXactIdRange(&oldest.relminmxid, &next);
	return oldest;
}

/*
 * guards_is_needed
 *		Is this vacuum needed to prevent wraparound: is the table so old that autovacuum
 *		must come?  Or is any so old that the failsafe comes?
 */
bool
guards_is_needed(GuardedVacuum *vacuum)
{
	const struct VacuumCutoffs oldest = find_oldest();

	return guards_hurry_of(vacuum) >= HURRY_WRAPAROUND ||
		is_old(vacuum->relfrozenxid, vacuum->relminmxid) || vacuum_xid_failsafe_check(&oldest);
}

/*
 * guards_worker_is_needed
 *		Is this an autovacuum, whose worker must not stand still as there are few of them,
 *		and some table of the server is so old that autovacuum must come?
 */
bool
guards_worker_is_needed(GuardedVacuum *vacuum)
{
	const struct VacuumCutoffs oldest = find_oldest();

	return vacuum->is_autovacuum && is_old(oldest.relfrozenxid, oldest.relminmxid);
}

/* guards_raise_hurry -- from now on less holds a vacuum. */
void
guards_raise_hurry(GuardedVacuum *vacuum, GuardHurry hurry)
{
	uint32		before = pg_atomic_read_u32(&vacuum->hurry);

	while (before < hurry && !pg_atomic_compare_exchange_u32(&vacuum->hurry, &before, hurry))
		;
}

/*
 * guards_nap
 *		Sleep because of a guard, and count that.
 *
 * A vacuum is held as long as any of its processes is: of the time of a nap only that is
 * counted which lies behind the end of all naps that were counted before.
 */
void
guards_nap(long ms, Guard guard)
{
	static const char *const names[NUM_GUARDS] = {
		[GUARD_PAUSE] = "CyclonePaused",
		[GUARD_WAL_RATE] = "CycloneWalRate",
		[GUARD_LAG] = "CycloneReplicaLag",
		[GUARD_DISK] = "CycloneDiskSpace",
	};
	static uint32 wait_events[NUM_GUARDS] = {0};
	GuardedVacuum *vacuum = guarded.vacuum;
	uint64		start = now_ns();
	uint64		end;
	uint64		until;

	Assert(ms >= 0 && guard < NUM_GUARDS);
	/* nobody sleeps for long over a lock that readers wait for */
	Assert(guard == GUARD_WAL_RATE || guard == GUARD_LAG || !vacuum->readers_wait);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 own_wait_event(&wait_events[guard], names[guard]));
	ResetLatch(MyLatch);
	end = now_ns();
	until = pg_atomic_read_u64(&vacuum->held_until[guard]);
	while (until < end && !pg_atomic_compare_exchange_u64(&vacuum->held_until[guard], &until, end))
		;
	if (until < end)
		pg_atomic_fetch_add_u64(&vacuum->held_ns[guard], end - Max(start, until));
	CHECK_FOR_INTERRUPTS();
	if (guarded.while_held != NULL && guarded.pins == 0)
		guarded.while_held();
}

/* guards_begin_run -- see guards.h. */
void
guards_begin_run(void)
{
	/* what ended the run before may be over */
	pg_atomic_write_u32(&guards_shared->vacuums[MyProcNumber].is_ending, 0);
	for (int i = 0; i < NUM_GUARDS; i++)
		pg_atomic_write_u64(&guards_shared->vacuums[MyProcNumber].held_ns[i], 0);
}

/* guards_held -- for how long each has held it since then. */
GuardTimes
guards_held(void)
{
	GuardedVacuum *vacuum = &guards_shared->vacuums[MyProcNumber];
	GuardTimes	times;

	for (int i = 0; i < NUM_GUARDS; i++)
		times.seconds[i] = (double) pg_atomic_read_u64(&vacuum->held_ns[i]) / NS_PER_S;
	return times;
}

/* guards_vacuum_name -- of its table, for messages. */
char *
guards_vacuum_name(GuardedVacuum *vacuum)
{
	Oid			relid = pg_atomic_read_u32(&vacuum->relid);
	char	   *name = IsTransactionState() && OidIsValid(relid) ? get_rel_name(relid) : NULL;

	return name != NULL ? psprintf("table \"%s\"", name) : psprintf("a table (process %d)", vacuum->pid);
}
