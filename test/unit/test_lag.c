/*-------------------------------------------------------------------------
 *
 * test_lag.c
 *	  What standbys let vacuums write, in simulation: guards/lag.c, and the bound of
 *	  disk_free.c.
 *
 * test_guards.py tests both in a server, test_lag_law.c the law.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "machine/disk_free.c"
#include "guards/lag.c"
#include "guards/lag_law.c"
#include "unit.h"

#define MB			((uint64) 1 << 20)
#define STEP_NS		((uint64) NS_PER_S / 4)
#define BOUND_MS	2000
#define STANDBYS	2

GuardsShared *guards_shared;
Guarded		guarded;
WalSndCtlData *WalSndCtl;
int			max_wal_senders = STANDBYS;
static GuardsShared shared;
static LagStandby standbys[STANDBYS];
static GuardedVacuum ours;
static uint64 now;
static XLogRecPtr flushed;
static uint64 written_by_vacuums;

/* GetFlushRecPtr -- how far WAL goes. */
XLogRecPtr
GetFlushRecPtr(TimeLineID *timeline)
{
	return flushed;
}

/* RecoveryInProgress -- this is the primary. */
bool
RecoveryInProgress(void)
{
	return false;
}

/* trial_survived -- not of interest here. */
bool
trial_survived(bool (*call) (void), bool *result)
{
	return false;
}

/* begin -- standbys that have replayed all there is. */
static void
begin(void)
{
	static char walsenders[offsetof(WalSndCtlData, walsnds) + STANDBYS * sizeof(WalSnd)];

	memset(&shared, 0, sizeof(shared));
	memset(standbys, 0, sizeof(standbys));
	memset(&ours, 0, sizeof(ours));
	memset(walsenders, 0, sizeof(walsenders));
	WalSndCtl = (WalSndCtlData *) walsenders;
	guards_shared = &shared;
	shared.standbys = standbys;
	guarded.vacuum = &ours;
	written_by_vacuums = 0;
	flushed = 100 * MB;
	now = 1000 * (uint64) NS_PER_S;
	for (int i = 0; i < STANDBYS; i++)
	{
		WalSndCtl->walsnds[i].pid = i + 1;
		WalSndCtl->walsnds[i].state = WALSNDSTATE_STREAMING;
		WalSndCtl->walsnds[i].apply = flushed;
	}
	(void) look_at_all(now, BOUND_MS);
}

/* step -- vacuums write as they may, others so much a second, and standbys replay so much a second. */
static int
step(uint64 others, uint64 first, uint64 second)
{
	double		rate = read_double(&shared.lag_rate);
	uint64		written = (uint64) Min(rate, 40.0 * MB) / 4;
	uint64		speeds[STANDBYS] = {first, second};

	written_by_vacuums += written;
	flushed += written + others / 4;
	now += STEP_NS;
	for (int i = 0; i < STANDBYS; i++)
	{
		XLogRecPtr *apply = &WalSndCtl->walsnds[i].apply;

		*apply = Min(flushed, *apply + speeds[i] / 4);
	}
	return look_at_all(now, BOUND_MS);
}

/* test_two_standbys_are_no_slower_than_one -- though now the one lags more, and now the other. */
UNIT_TEST(test_two_standbys_are_no_slower_than_one)
{
	uint64		written[2];

	for (int n = 0; n < 2; n++)
	{
		begin();
		if (n == 0)
			WalSndCtl->walsnds[1].pid = 0;
		for (int i = 0; i < 400; i++)
			(void) step(0, i % 2 == 0 ? 25 * MB : 15 * MB, i % 2 == 0 ? 15 * MB : 25 * MB);
		written[n] = written_by_vacuums;
	}
	CHECK_BETWEEN(0.9, (double) written[1] / written[0], 1.1);
}

/* test_a_standby_at_rest -- vacuums stand still for a time, and go on slowly, as the log says once for each. */
UNIT_TEST(test_a_standby_at_rest)
{
	int			stopped = 0,
				told = 0;

	begin();
	for (int i = 0; i < 400; i++)
	{
		/* the other one stops later */
		told += step(MB, 0, i < 60 ? 40 * MB : 0) != 0;
		stopped += read_double(&shared.lag_rate) <= 0;
	}
	CHECK_EQ(told, 2);
	CHECK_BETWEEN(LONGEST_STOP_MS / 250, stopped, 2 * LONGEST_STOP_MS / 250 + 2);
	CHECK_EQ(read_double(&shared.lag_rate), SLOW_RATE);
	/* nothing is forgotten when no vacuum has run for a while */
	now += 100 * (uint64) NS_PER_S;
	for (int i = 0; i < 40; i++)
	{
		CHECK_EQ(step(MB, 0, 0), 0);
		CHECK(read_double(&shared.lag_rate) > 0);
	}
	/* and all is forgotten when they have caught up */
	for (int i = 0; i < 40; i++)
		(void) step(0, 1000 * MB, 1000 * MB);
	CHECK_BETWEEN(2 * SLOW_RATE, read_double(&shared.lag_rate), 1e12);
}

/* test_lag_of_others -- once it has replayed what there was when vacuums stopped, its lag isn't theirs. */
UNIT_TEST(test_lag_of_others)
{
	int			i;

	begin();
	WalSndCtl->walsnds[1].pid = 0;
	for (i = 0; i < 400 && step(30 * MB, 10 * MB, 0) == 0; i++)
		;
	CHECK_BETWEEN(BOUND_MS / 250, i, 399);
	CHECK(WalSndCtl->walsnds[0].apply >= standbys[0].stop_end ||
		  now >= standbys[0].stop_start + LONGEST_STOP_MS * (uint64) NS_PER_MS);
	CHECK_EQ(read_double(&shared.lag_rate), SLOW_RATE);
}

/* test_whom_standbys_slow_down -- one whose lock keeps readers out goes on slowly, one whose table is old at full speed. */
UNIT_TEST(test_whom_standbys_slow_down)
{
	begin();
	shared.next_look.value = now_ns();
	write_double(&shared.lag_rate, 0);
	CHECK_EQ(guards_lag_rate(), 0);
	ours.readers_wait = true;
	CHECK_EQ(guards_lag_rate(), SLOW_RATE);
	ours.hurry.value = HURRY_NO_WAITING;
	CHECK(isinf(guards_lag_rate()));
}

/* test_what_is_to_stay_free -- a share of a large disk isn't a TB. */
UNIT_TEST(test_what_is_to_stay_free)
{
	CHECK_EQ(disk_free_bound(-0.05, 100000 * MB), 5000 * MB);
	CHECK_EQ(disk_free_bound(-0.05, 20 * 1024 * 1024 * MB), 10240 * MB);
	CHECK_EQ(disk_free_bound(50000.0 * MB, 20 * 1024 * 1024 * MB), 50000 * MB);
}
