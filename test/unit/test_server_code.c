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
static Budget of_all;
static bool guard_holds = false;

/* adaptive_time -- of all with an adaptive delay. */
Budget *
adaptive_time(void)
{
	return &of_all;
}

/* adaptive_version -- it never changes. */
uint32
adaptive_version(void)
{
	return 0;
}

/* adaptive_state -- all that anybody asks here. */
void
adaptive_state(bool is_adaptive, AdaptiveState *state)
{
	state->added = state->unrested = is_adaptive ? my_pace.added : 0;
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

/* guards_wait_in_server_code -- does a guard hold it? */
bool
guards_wait_in_server_code(void)
{
	return guard_holds;
}

/* pace_hide_reloads -- nobody reloads anything. */
void
pace_hide_reloads(void)
{
}

/* pace_show_reloads -- nor here. */
void
pace_show_reloads(void)
{
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

/* Cost a second: it would take hours */
#define NEXT_TO_NOTHING	1e-6

/* begin -- a VACUUM to which so much time awake is added, and which is in the server's code. */
static void
begin(double added)
{
	memset(&shared, 0, sizeof(shared));
	memset(&my_pace, 0, sizeof(my_pace));
	memset(&pgBufferUsage, 0, sizeof(pgBufferUsage));
	budget_init(&shared.cost);
	budget_init(&shared.time);
	budget_init(&of_all);
	my_pace.shared = &shared;
	my_pace.settings.is_adaptive = true;
	my_pace.settings.cost_limit = vacuum_cost_limit = 200;
	my_pace.settings.page_miss = VacuumCostPageMiss = 2;
	my_pace.is_adaptive = true;
	my_pace.rate = NEXT_TO_NOTHING;
	my_pace.added = added;
	my_pace.in_server_code = true;
}

/* server_sleeps -- for how long (ms) at its delay point, after pages of this cost; as its own code has it. */
static double
server_sleeps(int cost)
{
	double		ms = 0;

	VacuumCostBalance += cost;
	if (VacuumCostActive && VacuumCostBalance >= vacuum_cost_limit)
		ms = Min(vacuum_cost_delay * VacuumCostBalance / vacuum_cost_limit, 4 * vacuum_cost_delay);
	if (ms > 0)
	{
		VacuumCostBalance = 0;
		/* AutoVacuumUpdateCostLimit */
		if (MyBackendType == B_AUTOVAC_WORKER)
			vacuum_cost_limit = 200;
	}
	return ms;
}

/* look -- a page, and as many entries as make it look at the clock. */
static void
look(void)
{
	pgBufferUsage.shared_blks_read++;
	for (int i = 0; i < CALLS_A_LOOK; i++)
		pace_in_server_code();
}

/*
 * test_it_sleeps_for_what_it_owes
 *		Whatever the page costs that comes before the server's delay point; a process that
 *		sleeps for longer would be awake for longer, as its own clock has it, and owe more.
 */
UNIT_TEST(test_it_sleeps_for_what_it_owes)
{
	static const BackendType types[] = {B_BACKEND, B_AUTOVAC_WORKER};

	for (int i = 0; i < lengthof(types); i++)
	{
		unit_case("%s", i == 0 ? "a session" : "autovacuum");
		begin(0.1);
		MyBackendType = types[i];
		for (int page = 0; page < 20; page++)
		{
			uint64		now = now_ns();

			my_pace.awake_since = now - NS_PER_MS;
			pg_atomic_write_u64(&of_all.paid_until, now);
			look();
			CHECK(vacuum_cost_delay >= 9);
			CHECK_BETWEEN(vacuum_cost_delay, server_sleeps(22), vacuum_cost_delay * 1.001);
			CHECK_EQ(server_sleeps(22), 0);
		}
	}
	MyBackendType = B_BACKEND;
}

/*
 * test_cleanup_has_its_share
 *		By what the vacuum has cost so far, not by a last page that somebody else had a lock
 *		on; an autovacuum worker's, too, after a delete that slept.
 */
UNIT_TEST(test_cleanup_has_its_share)
{
	static const BackendType types[] = {B_BACKEND, B_AUTOVAC_WORKER};

	for (int i = 0; i < lengthof(types); i++)
	{
		double		slept = 0;

		unit_case("%s", i == 0 ? "a session" : "autovacuum");
		begin(0.1);
		my_pace.in_server_code = false;
		MyBackendType = types[i];
		/* 1 us for a cost of 1; then 0.1 s for a page */
		for (int k = 0; k < 1000; k++)
		{
			uint64		now = now_ns();

			my_pace.awake_since = now - 2 * NS_PER_MS;
			pgBufferUsage.shared_blks_read += 1000;
			(void) process_pay(now);
		}
		my_pace.awake_since -= NS_PER_S;
		pgBufferUsage.shared_blks_read++;
		(void) process_pay(now_ns());
		vacuum_cost_limit = ONCE;
		VacuumCostActive = true;
		pace_begin_server_code();
		for (int k = 0; k < 100000; k++)
			slept += server_sleeps(20);
		/* nine times as long as 2,000,000 us */
		CHECK_BETWEEN(16000, slept, 22000);
		/* as soon as it asks for an entry it tells how long */
		CHECK_EQ(pg_atomic_read_u32(&shared.with_server), 1);
		look();
		CHECK_EQ(pg_atomic_read_u32(&shared.with_server), 0);
		pace_end_server_code();
	}
	MyBackendType = B_BACKEND;
}

/* test_a_guard_holds_it -- it sleeps, whatever it owes; and again, if it asks for no entry. */
UNIT_TEST(test_a_guard_holds_it)
{
	begin(1);
	guard_holds = true;
	look();
	guard_holds = false;
	CHECK_BETWEEN(200, server_sleeps(2), 300);
	CHECK_EQ(server_sleeps(2), 0);
	CHECK_BETWEEN(200, server_sleeps(200), 300);
}

/*
 * test_no_sleep_is_long
 *		Nothing wakes a process in the server's delay point, when its adaptive delay has gone,
 *		perhaps.  So it sleeps for a moment each time, until all is paid for.
 */
UNIT_TEST(test_no_sleep_is_long)
{
	begin(0.005);

	/* of which 0.1 s is paid for: 20 s */
	my_pace.awake_since = now_ns() - NS_PER_S;
	look();
	CHECK_BETWEEN(1, vacuum_cost_delay, 1000);
	/* the rest is paid later */
	my_pace.awake_since = now_ns() - NS_PER_US;
	look();
	CHECK_BETWEEN(1, vacuum_cost_delay, 1000);
	CHECK_BETWEEN(19000, (pg_atomic_read_u64(&of_all.paid_until) - now_ns()) / NS_PER_MS, 20100);
}

/*
 * test_a_signal_does_not_shorten_its_sleep
 *		The server's delay point ends for any signal, and reckons that it has slept for all of
 *		the time.  So the process sleeps again, for the rest; once that is over, no more.
 */
UNIT_TEST(test_a_signal_does_not_shorten_its_sleep)
{
	begin(0.001);
	my_pace.awake_since = now_ns() - NS_PER_MS;
	look();
	/* before the delay point has come there is nothing to add */
	look();
	CHECK_BETWEEN(240, server_sleeps(22), 251);
	for (int i = 0; i < 3; i++)
	{
		CHECK_EQ(server_sleeps(22), 0);
		look();
		CHECK_BETWEEN(150, server_sleeps(22), 251);
	}
	my_pace.awake_since = now_ns();
	pg_atomic_write_u64(&of_all.paid_until, my_pace.awake_since);
	look();
	CHECK_EQ(server_sleeps(22), 0);
}

/*
 * test_each_look_goes_by_what_is_in_force
 *		From the first look on it pays by itself, and what was used before isn't paid for.
 *		Another budget is taken; nothing is paid before a slice is over, nothing slept for
 *		what is less than a nap, and nobody sleeps where nothing is in force.
 */
UNIT_TEST(test_each_look_goes_by_what_is_in_force)
{
	begin(0.1);
	my_pace.in_server_code = false;
	pace_begin_server_code();
	CHECK_EQ(pg_atomic_read_u32(&shared.with_server), 1);
	pace_end_server_code();
	CHECK_EQ(pg_atomic_read_u32(&shared.with_server), 0);
	pace_begin_server_code();
	look();
	CHECK_EQ(pg_atomic_read_u32(&shared.with_server), 0);
	CHECK_EQ(vacuum_cost_delay, 0);
	pace_end_server_code();
	CHECK_EQ(pg_atomic_read_u32(&shared.with_server), 0);

	begin(0.1);
	my_pace.settings.cost_delay = 2;
	shared.settings = my_pace.settings;
	shared.needed = 0.5;
	pg_atomic_write_u32(&shared.version, 7);
	vacuum_cost_delay = 5;
	VacuumCostBalance = ONCE;
	my_pace.awake_since = now_ns() + NS_PER_S;
	look();
	CHECK_EQ(my_pace.version, 7);
	CHECK_EQ(my_pace.rate, 1e5);
	CHECK_EQ(my_pace.needed, 0.5);
	CHECK_EQ(my_pace.slice, SLICE_NS);
	CHECK_EQ(vacuum_cost_delay, 5);

	/* the adaptive delay goes, and comes back while nothing was counted */
	my_pace.at_work = true;
	pg_atomic_write_u32(&of_all.at_work, 1);
	shared.settings.is_adaptive = false;
	pg_atomic_write_u32(&shared.version, 8);
	look();
	CHECK(!my_pace.is_adaptive);
	CHECK_EQ(pg_atomic_read_u32(&of_all.at_work), 0);
	shared.settings.is_adaptive = true;
	pg_atomic_write_u32(&shared.version, 9);
	VacuumCostActive = false;
	process_take_budget();
	CHECK(my_pace.is_adaptive);
	CHECK(VacuumCostActive);
	CHECK_EQ(pg_atomic_read_u32(&of_all.at_work), 1);
	CHECK(my_pace.awake_since <= now_ns());

	begin(1e9);
	vacuum_cost_delay = 5;
	my_pace.awake_since = now_ns() - NS_PER_MS;
	pg_atomic_write_u64(&of_all.paid_until, now_ns());
	look();
	CHECK_EQ(vacuum_cost_delay, 0);

	begin(0);
	my_pace.rate = INFINITY;
	vacuum_cost_delay = 5;
	look();
	CHECK(!VacuumCostActive);
	CHECK_EQ(vacuum_cost_delay, 5);
}

/*
 * test_cleanup_has_all_budgets
 *		Of cost, of time that is added, and as much as the table's age asks for: each would
 *		have it sleep for so long, and together they do for less than any.  Or nothing bounds it.
 */
UNIT_TEST(test_cleanup_has_all_budgets)
{
	static const struct
	{
		double		rate;		/* of cost, a second */
		double		added;
		double		needed;
		double		ns;			/* that it sleeps for a cost of 1 */
	}			cases[] = {
		{1e4, 0, 0, 1e5}, {1e4, 0.5, 0, 1e5 / 101}, {1e9, 0.5, 0, 1 / (1 + 1e-3)}, {1e4, 0, 0.25, 1 / (1e-5 + 1 / 3e3)},
		{1e4, 0.5, 0.25, 1 / (1e-5 + 1e-3 + 1 / 3e3)}, {1e4, INFINITY, 0, 0}, {1e4, 0.5, 2, 0}, {INFINITY, 0, 0, 0}
	};

	for (int i = 0; i < lengthof(cases); i++)
	{
		unit_case("rate %g, %g added, %g needed", cases[i].rate, cases[i].added, cases[i].needed);
		begin(cases[i].added);
		my_pace.in_server_code = false;
		my_pace.rate = cases[i].rate;
		my_pace.needed = cases[i].needed;
		pace_begin_server_code();
		CHECK_BETWEEN(cases[i].ns * 0.999, vacuum_cost_delay * NS_PER_MS / vacuum_cost_limit, cases[i].ns * 1.001);
		pace_end_server_code();
	}
}
