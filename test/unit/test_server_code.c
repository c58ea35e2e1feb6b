/*-------------------------------------------------------------------------
 *
 * test_server_code.c
 *	  How long a process sleeps in the server's own delay point: pace/server_code.c.
 *
 * test_pace.py tests it in a server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pace/budget.c"
#include "pace/pace_process.c"
#include "pace/server_code.c"
#include "unit.h"

BufferUsage pgBufferUsage;
int			VacuumCostBalance = 0;
int			VacuumCostPageHit = 0;
int			VacuumCostPageMiss = 0;
int			VacuumCostPageDirty = 0;
int			vacuum_cost_limit = 0;
double		vacuum_cost_delay = 0;
bool		VacuumCostActive = false;
bool		VacuumFailsafeActive = false;
BackendType MyBackendType = B_BACKEND;

static PaceShared shared;
static Budget of_target;

/* target_time -- of the only target. */
Budget *
target_time(LatencyTarget *target)
{
	return &of_target;
}

/* target_version -- it never changes. */
uint32
target_version(LatencyTarget *target)
{
	return 0;
}

/* target_state -- nobody asks here. */
void
target_state(LatencyTarget *target, TargetState *state)
{
}

/* target_budget -- nor for that. */
double
target_budget(LatencyTarget *target)
{
	return my_pace.budget;
}

/* parking_set_bound -- there is no team. */
void
parking_set_bound(Parking *parking, bool is_bounded, double fed)
{
}

/* pace_reload_if_due -- nothing is. */
void
pace_reload_if_due(void)
{
}

/* guards_wait_in_server_code -- no guard holds it. */
bool
guards_wait_in_server_code(void)
{
	return false;
}

/* pace_look_around -- there is nobody. */
void
pace_look_around(uint64 now)
{
}

/* pace_tick_if_due -- nothing is measured. */
void
pace_tick_if_due(uint64 now)
{
}

/* s_lock -- nobody else has it. */
int
s_lock(volatile slock_t *lock, const char *file, int line, const char *function)
{
	return 0;
}

/*
 * test_no_sleep_is_long
 *		Nothing wakes a process in the server's delay point, when its target has gone,
 *		perhaps.  So it sleeps for a moment each time, until all is paid for.
 */
static void
test_no_sleep_is_long(void)
{

	budget_init(&shared.cost);
	budget_init(&shared.time);
	budget_init(&of_target);
	my_pace.shared = &shared;
	my_pace.settings.latency_target = LATENCY_TARGET_AUTO;
	my_pace.target = (LatencyTarget *) &of_target;
	my_pace.rate = INFINITY;
	my_pace.budget = LEAST_BUDGET / 4;
	my_pace.in_server_code = true;

	/* of which 0.1 s is paid for: 20 s */
	my_pace.awake_since = now_ns() - NS_PER_S;
	for (int i = 0; i < CALLS_A_LOOK; i++)
		pace_in_server_code();
	CHECK_BETWEEN(1, vacuum_cost_delay, 1000);
	/* the rest is paid later */
	my_pace.awake_since = now_ns() - NS_PER_US;
	for (int i = 0; i < CALLS_A_LOOK; i++)
		pace_in_server_code();
	CHECK_BETWEEN(1, vacuum_cost_delay, 1000);
	CHECK_BETWEEN(19000, (pg_atomic_read_u64(&of_target.paid_until) - now_ns()) / NS_PER_MS, 20100);
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_no_sleep_is_long);
	return unit_end();
}
