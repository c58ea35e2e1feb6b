/*-------------------------------------------------------------------------
 *
 * guards_state.c
 *	  The shared state of the guards: which vacuums there are, and what holds each.
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
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/lsyscache.h"

#include "clock.h"
#include "compat.h"
#include "debug_point.h"
#include "guards/guards_state.h"
#include "own_wait_event.h"

GuardsShared *guards_shared = NULL;

Guarded		guarded;

/* guards_shmem_request -- a place for each leader, and what they share. */
void
guards_shmem_request(void)
{
	RequestAddinShmemSpace(guards_shmem_size());
	RequestNamedLWLockTranche(GUARDS_TRANCHE, 1);
}

/* guards_shmem_init -- find it, or make it. */
void
guards_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMe(AddinShmemInitLock));

	guards_shared = ShmemInitStruct("pg_cyclone guards", guards_shmem_size(), &found);
	if (!found)
	{
		/* atomics of no more than 64 bits that are zero need no more */
		memset(guards_shared, 0, guards_shmem_size());
		SpinLockInit(&guards_shared->wal_mutex);
		guards_shared->lock = &GetNamedLWLockTranche(GUARDS_TRANCHE)[0].lock;
	}
}

/*
 * guards_hold_is_due
 *		Is this process to stand still, where it has no page pinned?
 */
bool
guards_hold_is_due(void)
{
	GuardedVacuum *vacuum = guarded.vacuum;

	return vacuum != NULL && !VacuumFailsafeActive &&
		(guards_paused_until(vacuum) != 0 ||
		 pg_atomic_read_u32(&vacuum->disk_stops) != DISK_NONE ||
		 pg_atomic_read_u32(&guards_shared->lag_stops) != 0) &&
		pg_atomic_read_u32(&vacuum->is_urgent) == 0;
}

/*
 * guards_is_urgent
 *		Is the table so old that autovacuum must come?  Or is any so old that its
 *		workers must not stand still, as their number is limited?
 */
bool
guards_is_urgent(GuardedVacuum *vacuum)
{
	TransactionId next = ReadNextTransactionId();
	TransactionId xid_limit = next - autovacuum_freeze_max_age;
	MultiXactId multi_limit,
				next_multi,
				oldest_multi;

	if (pg_atomic_read_u32(&vacuum->is_urgent) != 0)
		return true;
	if (next - TransamVariables->oldestXid >
		Max(vacuum_failsafe_age, autovacuum_freeze_max_age * 1.05))
		return true;
	ReadMultiXactIdRange(&oldest_multi, &next_multi);
	if (next_multi - oldest_multi >
		Max(vacuum_multixact_failsafe_age, autovacuum_multixact_freeze_max_age * 1.05))
		return true;
	if (!TransactionIdIsNormal(vacuum->relfrozenxid))
		return false;
	/* autovacuum's limit: the more members there are, the lower it is */
	multi_limit = next_multi -
		DEBUG_LIMIT(multixact_limit, MultiXactMemberFreezeThreshold());
	if (xid_limit < FirstNormalTransactionId)
		xid_limit -= FirstNormalTransactionId;
	if (multi_limit < FirstMultiXactId)
		multi_limit -= FirstMultiXactId;
	return TransactionIdPrecedes(vacuum->relfrozenxid, xid_limit) ||
		(MultiXactIdIsValid(vacuum->relminmxid) &&
		 MultiXactIdPrecedes(vacuum->relminmxid, multi_limit));
}

/* guards_nap -- because of a guard. */
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

	Assert(guarded.vacuum != NULL);
	Assert(ms >= 0 && guard < NUM_GUARDS);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 own_wait_event(&wait_events[guard], names[guard]));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * guards_begin_hold
 *		A guard holds this process.  The vacuum is held as long as any of its
 *		processes is.
 */
void
guards_begin_hold(Guard guard)
{
	GuardedVacuum *vacuum = guarded.vacuum;

	Assert(guarded.vacuum != NULL);
	Assert(guard < NUM_GUARDS && !guarded.holds[guard]);

	if (pg_atomic_fetch_add_u32(&vacuum->holds[guard], 1) == 0)
		pg_atomic_write_u64(&vacuum->hold_start[guard], now_ns());
	guarded.holds[guard] = true;
}

/* guards_end_hold -- it does no more. */
void
guards_end_hold(Guard guard)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	uint64		start;
	uint64		now = now_ns();
	uint32		holds;

	/* before the count, as the next hold changes it */
	start = pg_atomic_read_u64(&vacuum->hold_start[guard]);
	pg_read_barrier();
	holds = pg_atomic_read_u32(&vacuum->holds[guard]);
	guarded.holds[guard] = false;
	/* a process that moved rows for the command before may come late */
	do
	{
		if (holds == 0)
			return;
	} while (!pg_atomic_compare_exchange_u32(&vacuum->holds[guard], &holds, holds - 1));
	if (holds == 1 && now > start)
		pg_atomic_fetch_add_u64(&vacuum->held_ns[guard], now - start);
}

/* guards_held_ns -- for how long a guard has held a vacuum, until now. */
uint64
guards_held_ns(GuardedVacuum *vacuum, Guard guard)
{
	uint64		start = pg_atomic_read_u64(&vacuum->hold_start[guard]);
	uint64		now = now_ns();
	uint64		before = pg_atomic_read_u64(&vacuum->held_ns[guard]);

	Assert(guard < NUM_GUARDS);
	return pg_atomic_read_u32(&vacuum->holds[guard]) > 0 && now > start ? before + now - start : before;
}

/*
 * guards_wal_bytes
 *		How much room in the WAL's files this process's records have taken.
 *
 * The server counts the records alone.  Each is padded, by half of what it may be on
 * average, and each page of WAL has a header.
 */
uint64
guards_wal_bytes(void)
{
	uint64		bytes = pgWalUsage.wal_bytes + pgWalUsage.wal_records * (MAXIMUM_ALIGNOF / 2);

	return bytes + bytes / (XLOG_BLCKSZ - SizeOfXLogShortPHD) * SizeOfXLogShortPHD;
}

/* guards_skip_wal -- the WAL that this process has written so far is not a vacuum's. */
void
guards_skip_wal(void)
{
	guarded.wal_bytes = guarded.wal_told = guards_wal_bytes();
}

/* guards_tell_wal -- add what this process has written to what its vacuum has. */
void
guards_tell_wal(void)
{
	uint64		bytes = guards_wal_bytes();

	if (guarded.vacuum != NULL)
		pg_atomic_fetch_add_u64(&guarded.vacuum->wal_written, bytes - guarded.wal_told);
	guarded.wal_told = bytes;
}

/*
 * guards_wal_written -- how much the vacuum has written that the process pid leads; 0
 * if that leads none.
 */
uint64
guards_wal_written(int pid)
{
	Assert(pid != 0);
	for (int i = 0; i < MaxBackends; i++)
	{
		if (guards_shared->vacuums[i].pid == pid)
			return pg_atomic_read_u64(&guards_shared->vacuums[i].wal_written);
	}
	return 0;
}

/* guards_take_wal -- see guards.h. */
uint64
guards_take_wal(void)
{
	if (guarded.vacuum != NULL)
		guards_tell_wal();
	return pg_atomic_exchange_u64(&guards_shared->vacuums[MyProcNumber].wal_written, 0);
}

/* guards_vacuum_name -- of its table, for messages. */
char *
guards_vacuum_name(GuardedVacuum *vacuum)
{
	Oid			relid = pg_atomic_read_u32(&vacuum->relid);
	char	   *name = IsTransactionState() && OidIsValid(relid) ? get_rel_name(relid) : NULL;

	return name != NULL ? psprintf("table \"%s\"", name) : psprintf("a table (process %d)", vacuum->pid);
}
