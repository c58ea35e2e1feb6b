/*-------------------------------------------------------------------------
 *
 * budget.c
 *	  A budget that processes share: of cost, or of time awake.
 *
 * A clock, paid_until, says until when everything that they have used is paid for.
 * A process that has used something moves it on by the time that this is worth, and
 * sleeps until then.  So the rate is exact for any number of processes, and for any
 * length of naps and pages.  Of a budget that isn't used, only a moment's worth is saved.
 *
 * A few times a second the process that comes first makes a tick: it finds what was
 * used since the last tick.  No process in particular has this duty.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pace/pace_private.h"

/* budget_init -- for a budget that no process uses yet. */
void
budget_init(Budget *budget)
{
	pg_atomic_init_u64(&budget->paid_until, 0);
	pg_atomic_init_u64(&budget->used, 0);
	pg_atomic_init_u64(&budget->slept, 0);
	pg_atomic_init_u32(&budget->at_work, 0);
	pg_atomic_init_u64(&budget->next_tick, 0);
	pg_atomic_init_u32(&budget->ticking, 0);
	budget_restart(budget, now_ns());
}

/* budget_restart -- forget debts, and what was used so far. */
void
budget_restart(Budget *budget, uint64 now)
{
	pg_atomic_write_u64(&budget->paid_until, now);
	budget->tick_time = now;
	budget->used_before = pg_atomic_read_u64(&budget->used);
	budget->slept_before = pg_atomic_read_u64(&budget->slept);
	pg_atomic_write_u64(&budget->next_tick, now + NS_A_TICK);
}

/* budget_claim_tick -- no process ticks before budget_end_tick, unless one does now. */
bool
budget_claim_tick(Budget *budget)
{
	uint32		not_ticking = 0;

	return pg_atomic_compare_exchange_u32(&budget->ticking, &not_ticking, 1);
}

/* budget_begin_tick -- if a tick is due, and no other process makes it, find what was used since the last one. */
bool
budget_begin_tick(Budget *budget, uint64 now, BudgetUse *use)
{
	uint64		due = pg_atomic_read_u64(&budget->next_tick);
	uint64		used,
				slept;

	if (now < due ||
		!pg_atomic_compare_exchange_u64(&budget->next_tick, &due, now + NS_A_TICK) ||
		!budget_claim_tick(budget))
		return false;
	if (now <= budget->tick_time)
	{
		budget_end_tick(budget);
		return false;
	}
	used = pg_atomic_read_u64(&budget->used);
	slept = pg_atomic_read_u64(&budget->slept);
	use->seconds = (double) (now - budget->tick_time) / NS_PER_S;
	Assert(use->seconds > 0 && used >= budget->used_before);
	use->used = (used - budget->used_before) / use->seconds;
	use->asleep = (slept - budget->slept_before) / use->seconds / NS_PER_S;
	budget->tick_time = now;
	budget->used_before = used;
	budget->slept_before = slept;
	return true;
}

/* budget_end_tick -- other processes may tick again. */
void
budget_end_tick(Budget *budget)
{
	Assert(pg_atomic_read_u32(&budget->ticking) == 1);
	pg_memory_barrier();
	pg_atomic_write_u32(&budget->ticking, 0);
}
