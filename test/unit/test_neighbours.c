/*-------------------------------------------------------------------------
 *
 * test_neighbours.c
 *	  What the kernel says of other sessions, of which there may be thousands:
 *	  neighbours/neighbours.c, whose laws are in test_parking.c.
 *
 * test_pace.py tests it in a server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "unit.h"

/* a file is known by the process that it is about */
#define open(name, flags)	process_of(name)
#define close(file)			((void) 0)
#define pread(file, text, size, place)	times_of(file, text, size)
static int	process_of(const char *name);
static ssize_t times_of(int file, char *text, size_t size);
#include "neighbours/neighbours.c"

#define MOST				6000
#define BUSY				0.001	/* of its time each runs, and waits for
									 * twice that */

int			MaxBackends = MOST;
int			max_wal_senders = 0;
int			MyProcPid = 1;
ProcNumber	MyProcNumber = 0;
MemoryContext TopMemoryContext = NULL;

static PGPROC procs[MOST];
static PROC_HDR all = {.allProcs = procs};
PROC_HDR   *ProcGlobal = &all;
PGPROC	   *MyProc = procs;
WalSndCtlData *WalSndCtl = NULL;

/* What the kernel tells */
static bool tells = true;
static bool tells_of_others = true;
static const char *tells_nothing = "0 0 0\n";

static uint64 now = 1000 * (uint64) NS_PER_S;

/* process_of -- whose file is it? */
static int
process_of(const char *name)
{
	int			pid = atoi(name + strlen("/proc/"));

	return tells_of_others || pid == MyProcPid ? pid : -1;
}

/* times_of -- this process is always here, and others are a part of the time. */
static ssize_t
times_of(int file, char *text, size_t size)
{
	uint64		ran = file == MyProcPid ? now : (uint64) (now * BUSY);

	if (!tells)
		return snprintf(text, size, tells_nothing);
	return snprintf(text, size, UINT64_FORMAT " " UINT64_FORMAT " 12\n", ran, 2 * ran);
}

static int	ncores = 0;			/* 0: the system doesn't tell */

/* machine_cores -- see ncores. */
int
machine_cores(const char *root)
{
	return ncores;
}

/* MemoryContextAllocZero -- memory. */
void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return palloc0(size);
}

/* look_around -- for some seconds; returns how many cores others use, and in *known for how many seconds that is known. */
static double
look_around(double seconds, double *known)
{
	double		looked = 0;
	double		ran = 0;

	for (int i = 0; i < seconds * 10; i++)
	{
		NeighboursTimes times;

		now += NEIGHBOURS_LOOK_NS;
		CHECK(neighbours_look(now, true, &times));
		CHECK(!times.cores_are_unknown);
		looked += times.looked;
		ran += times.ran;
		CHECK_BETWEEN(1.99 * times.ran, times.waited, 2.01 * times.ran);
	}
	*known = looked / NS_PER_S;
	return looked > 0 ? ran / looked : 0;
}

/*
 * test_many_sessions
 *		Their files are read in turn.  Until each was read, nothing is known, and that is no
 *		reason to believe that nobody runs; then all of it is.  After a gap it begins anew.
 */
UNIT_TEST(test_many_sessions)
{
	static const int numbers[] = {10, 150, 1000, 2500, MOST - 1};

	takes_part = palloc0(MOST * sizeof(pg_atomic_uint32));
	neighbours_prepare();
	procs[0].pid = MyProcPid;
	for (int i = 0; i < lengthof(numbers); i++)
	{
		double		known;

		unit_case("%d sessions", numbers[i]);
		for (int k = 1; k < MOST; k++)
			procs[k].pid = k <= numbers[i] ? 1 + k : 0;
		now += 10 * (uint64) NS_PER_S;
		(void) look_around(1 + numbers[i] / MOST_FILES_A_LOOK / 10, &known);
		CHECK(known < 1);
		CHECK_BETWEEN(0.95 * numbers[i] * BUSY, look_around(60, &known), 1.05 * numbers[i] * BUSY);
		CHECK_BETWEEN(59, known, 60.001);
	}
}

/*
 * test_what_a_look_sees
 *		Of one session in a transaction, whatever it waits for, and where the kernel tells of
 *		no process, or only of this one: then what is seen stands for the time since the last look.
 */
UNIT_TEST(test_what_a_look_sees)
{
	static const struct
	{
		const char *name;
		uint32		waits_for;
		bool		tells;
		bool		tells_of_others;
		bool		is_walsender;
		double		ran;		/* of the time */
		double		waited;
	}			cases[] = {
		{"it runs", 0, true, true, false, BUSY, 2 * BUSY},
		{"a file", PG_WAIT_IO, true, true, false, BUSY, 1 + 2 * BUSY},
		{"the server's lock", PG_WAIT_LWLOCK, true, true, false, BUSY, 1 + 2 * BUSY},
		{"a table's lock", PG_WAIT_LOCK, true, true, false, BUSY, 2 * BUSY},
		{"its client", PG_WAIT_CLIENT, true, true, false, BUSY, 2 * BUSY},
		{"time", PG_WAIT_TIMEOUT, true, true, false, BUSY, 2 * BUSY},
		{"a walsender", 0, true, true, true, 0, 0},
		{"no kernel tells", 0, false, false, false, 1, 0},
		{"the kernel tells of none, and of a file", PG_WAIT_IO, false, false, false, 1, 1},
		{"the kernel tells of this process", 0, true, false, false, 1, 0},
	};

	WalSndCtl = palloc0(sizeof(WalSndCtlData) + sizeof(WalSnd));
	memset(procs, 0, sizeof(procs));
	procs[0].pid = MyProcPid;
	procs[1].pid = 2;
	procs[1].vxid.lxid = 1;
	for (int i = 0; i < lengthof(cases); i++)
	{
		NeighboursTimes times;
		double		second = NS_PER_S;

		unit_case("%s", cases[i].name);
		procs[1].wait_event_info = cases[i].waits_for;
		tells = cases[i].tells;
		tells_of_others = cases[i].tells_of_others;
		max_wal_senders = cases[i].is_walsender;
		WalSndCtl->walsnds[0].pid = procs[1].pid;
		now += 10 * (uint64) NS_PER_S;
		(void) neighbours_look(now, true, &times);
		CHECK_EQ(times.looked, 0);
		now += NEIGHBOURS_LOOK_NS;
		(void) neighbours_look(now, true, &times);
		now += NEIGHBOURS_LOOK_NS - 1;
		CHECK(!neighbours_look(now, true, &times));
		now += 1;
		CHECK(neighbours_look(now, true, &times));
		CHECK_EQ(times.cores_are_unknown, !cases[i].tells || !cases[i].tells_of_others);
		CHECK_BETWEEN(0.0999, times.looked / second, 0.1001);
		CHECK_BETWEEN(cases[i].ran * 0.0999, times.ran / second, cases[i].ran * 0.1001);
		CHECK_BETWEEN(cases[i].waited * 0.0999, times.waited / second, cases[i].waited * 0.1001);
	}
	max_wal_senders = 0;
	tells = tells_of_others = true;
}

/* test_other_texts_tell_nothing -- of what the kernel has there. */
UNIT_TEST(test_other_texts_tell_nothing)
{
	tells = false;
	for (int i = 0; i < 3; i++)
	{
		NeighboursTimes times;

		tells_nothing = (const char *[])
		{
			"", "12", "twelve 5 6\n"
		}[i];
		unit_case("\"%s\"", tells_nothing);
		now += NEIGHBOURS_LOOK_NS;
		CHECK(neighbours_look(now, true, &times));
		CHECK(times.cores_are_unknown);
	}
	tells = true;
}

/*
 * test_short_waits
 *		A session that waits for 20 ms in each 250 is seen to, though looks come each 100.
 */
UNIT_TEST(test_short_waits)
{
	static const struct
	{
		int			places;
		uint64		step;		/* ms between two calls */
	}			cases[] = {{100, 10}, {100, 5}, {1000, 10}};

	memset(procs, 0, sizeof(procs));
	procs[0].pid = MyProcPid;
	procs[1].pid = 2;
	procs[1].vxid.lxid = 1;
	for (int i = 0; i < lengthof(cases); i++)
	{
		uint64		waited = 0;
		uint64		looked = 0;
		NeighboursTimes times;

		unit_case("%d places, called each %d ms", cases[i].places, (int) cases[i].step);
		MaxBackends = cases[i].places;
		next_process = 0;
		now += 10 * (uint64) NS_PER_S;
		for (uint64 ms = 0; ms < 20000; ms += cases[i].step)
		{
			now += cases[i].step * NS_PER_MS;
			procs[1].wait_event_info = ms % 250 >= 130 && ms % 250 < 150 ? PG_WAIT_LWLOCK : 0;
			if (!neighbours_look(now, true, &times))
				continue;
			waited += times.waited - 2 * times.ran;
			looked += times.looked;
		}
		CHECK_BETWEEN(19.8, (double) looked / NS_PER_S, 20);
		CHECK_BETWEEN(0.075, (double) waited / looked, 0.085);

		/* half a second in which nobody was interested */
		procs[1].wait_event_info = PG_WAIT_LWLOCK;
		now += NS_PER_S / 2;
		CHECK(neighbours_look(now, false, &times));
		now += NEIGHBOURS_LOOK_NS;
		CHECK(neighbours_look(now, true, &times));
		CHECK_EQ(times.looked, NEIGHBOURS_LOOK_NS);
		CHECK_EQ(times.waited - 2 * times.ran, NEIGHBOURS_LOOK_NS);
	}
	MaxBackends = MOST;
}

/* test_cores_come_and_go -- which is noticed after some seconds. */
UNIT_TEST(test_cores_come_and_go)
{
	NeighboursTimes times;

	seen = (NeighboursSeen)
	{
		.average = 1
	};
	memset(procs, 0, sizeof(procs));
	CHECK_EQ(neighbours_room(), ENOUGH_CORES - 2);
	for (ncores = 2; ncores <= 8; ncores *= 2)
	{
		uint32		before = neighbours_room();

		now += NEIGHBOURS_LOOK_NS;
		(void) neighbours_look(now, false, &times);
		seen.average = 1;
		CHECK_EQ(neighbours_room(), before);
		now += NS_CORES_KEPT;
		(void) neighbours_look(now, false, &times);
		seen.average = 1;
		CHECK_EQ(neighbours_room(), ncores - 2);
	}
}
