/*-------------------------------------------------------------------------
 *
 * test_wal_room.c
 *	  A disk that gets full of WAL which nobody retains, in simulation: guards/wal_room.c.
 *
 * test_wal_room.py tests it in a server, on a small disk.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "report/pretty_bytes.h"

static int	stat_segment(const char *path, struct stat *status);

/* files of WAL are those of the simulation */
#define stat(path, status)	stat_segment(path, status)
/* and nobody reads the log */
#define pretty_bytes(bytes)	"some"

#include "guards/wal_room.c"
#include "unit.h"

#define SEGMENT		((uint64) 16 << 20)
#define MB			((uint64) 1 << 20)
#define STEP_NS		((uint64) NS_PER_S / 5)

bool		IsUnderPostmaster = true;
int			wal_segment_size = SEGMENT;
GuardsShared *guards_shared;
Guarded		guarded;
static GuardsShared shared;
static GuardedVacuum ours;

/* The server and its disk */
static struct
{
	uint64		free_bytes;
	uint64		insert;
	uint64		redo;			/* of the last checkpoint that is complete */
	uint64		first;			/* the first segment that there is */
	uint64		ahead;			/* segments after the current one */
	uint64		most_ahead;		/* that a checkpoint leaves there */
	uint64		kept;			/* segments that no checkpoint removes */
	uint64		next_redo;		/* of the one that runs; 0: none does */
	int			steps_left;		/* of it */
	int			steps;			/* of each */
	bool		is_asked;
	int			ncheckpoints;
	uint64		now;
}			server;

/* errdetail -- likewise. */
int
errdetail(const char *fmt,...)
{
	return 0;
}

/* GetOldestRestartPoint -- the last checkpoint. */
void
GetOldestRestartPoint(XLogRecPtr *oldrecptr, TimeLineID *oldtli)
{
	*oldrecptr = server.redo;
	*oldtli = 1;
}

/* GetXLogInsertRecPtr -- how far WAL goes. */
XLogRecPtr
GetXLogInsertRecPtr(void)
{
	return server.insert;
}

/* GetFlushRecPtr -- all of it is written. */
XLogRecPtr
GetFlushRecPtr(TimeLineID *insertTLI)
{
	*insertTLI = 1;
	return server.insert;
}

/* RequestCheckpoint -- it comes in the next step. */
void
RequestCheckpoint(int flags)
{
	CHECK((flags & CHECKPOINT_WAIT) == 0);
	server.is_asked = true;
}

/* guards_vacuum_name -- for the log. */
char *
guards_vacuum_name(GuardedVacuum *which)
{
	return "a table";
}

/* stat_segment -- is there this file? */
static int
stat_segment(const char *path, struct stat *status)
{
	const char *name = strrchr(path, '/') + 1;
	unsigned int timeline,
				high,
				low;

	CHECK_EQ(sscanf(name, "%8X%8X%8X", &timeline, &high, &low), 3);
	status->st_blocks = SEGMENT / 512;
	return (uint64) high * 256 + low <= server.insert / SEGMENT + server.ahead ? 0 : -1;
}

/* begin -- a server with this room, whose checkpoints take so many steps. */
static void
begin(uint64 free_bytes, uint64 ahead, uint64 most_ahead, int steps)
{
	memset(&server, 0, sizeof(server));
	memset(&shared, 0, sizeof(shared));
	memset(&ours, 0, sizeof(ours));
	guards_shared = &shared;
	server.free_bytes = free_bytes;
	server.insert = server.redo = 100 * SEGMENT + 5 * MB;
	server.first = 100;
	server.ahead = ahead;
	server.most_ahead = most_ahead;
	server.steps = steps;
	server.now = NS_PER_S;
}

/* write_wal -- a server that finds no room for a file of WAL goes down. */
static void
write_wal(uint64 bytes)
{
	uint64		before = server.insert / SEGMENT;

	server.insert += bytes;
	for (uint64 segment = before; segment < server.insert / SEGMENT; segment++)
	{
		if (server.ahead > 0)
		{
			server.ahead--;
			continue;
		}
		CHECK(server.free_bytes >= SEGMENT);
		server.free_bytes -= SEGMENT;
	}
}

/* checkpoint -- a step of one, if there is one: it removes files when it is complete. */
static void
checkpoint(void)
{
	if (server.next_redo == 0 && server.is_asked)
	{
		server.is_asked = false;
		server.next_redo = server.insert;
		server.steps_left = server.steps;
		server.ncheckpoints++;
	}
	if (server.next_redo == 0 || --server.steps_left > 0)
		return;
	server.redo = server.next_redo;
	server.next_redo = 0;
	while (server.first + server.kept < server.redo / SEGMENT)
	{
		server.first++;
		if (server.ahead < server.most_ahead)
			server.ahead++;
		else
			server.free_bytes += SEGMENT;
	}
}

/* run -- a vacuum that writes that much a step, beside others; what it has written, and how it ended. */
static uint64
run(uint64 bytes, uint64 others, int steps, DiskHolder *verdict)
{
	uint64		written = 0;

	for (int i = 0; i < steps; i++)
	{
		server.now += STEP_NS;
		*verdict = wal_room_look(&ours, server.free_bytes, server.now);
		if (*verdict == DISK_NONE)
		{
			write_wal(bytes);
			written += bytes;
		}
		write_wal(others);
		checkpoint();
	}
	return written;
}

/* test_goes_on -- whatever the room that there is, the server stays up, and the vacuum gets on. */
static void
test_goes_on(void)
{
	for (int i = 0; i < 2000; i++)
	{
		uint64		free_bytes = unit_number(2 * 16 + 1, 400) * MB;
		uint64		ahead = unit_number(0, 6);
		uint64		most_ahead = unit_number(0, 20);
		int			steps = unit_number(1, 4);
		uint64		bytes = unit_number(1, 4) * MB;
		uint64		others = unit_number(0, 1) * MB;
		DiskHolder	verdict;

		unit_case("%d MB, %d and %d ahead, %d steps, %d and %d MB", (int) (free_bytes / MB),
				  (int) ahead, (int) most_ahead, steps, (int) (bytes / MB), (int) (others / MB));
		begin(free_bytes, ahead, most_ahead, steps);
		CHECK(run(bytes, others, 2000, &verdict) > 1000 * MB);
		CHECK(verdict != DISK_NO_ROOM);
		CHECK_EQ(pg_atomic_read_u32(&ours.has_asked), 1);
	}
}

/* test_much_room -- no checkpoint is asked for that the server would make anyway. */
static void
test_much_room(void)
{
	DiskHolder	verdict;

	begin(2000 * MB, 0, 0, 1);
	CHECK_EQ(run(10 * MB, 0, 90, &verdict), 900 * MB);
	CHECK_EQ(server.ncheckpoints, 0);
	CHECK_EQ(verdict, DISK_NONE);
	/* likewise, in files that are there */
	begin(33 * MB, 60, 60, 1);
	CHECK_EQ(run(10 * MB, 0, 40, &verdict), 400 * MB);
	CHECK_EQ(server.ncheckpoints, 0);
}

/* test_kept -- where checkpoints remove nothing it stops before the disk is full, also while it is ending. */
static void
test_kept(void)
{
	for (int ending = 0; ending <= 1; ending++)
	{
		DiskHolder	verdict;

		unit_case("ending: %d", ending);
		begin(300 * MB, 3, 0, 2);
		server.kept = 1000;
		pg_atomic_write_u32(&ours.is_ending, ending);
		CHECK(run(2 * MB, 0, 500, &verdict) > 200 * MB);
		CHECK(verdict == DISK_NO_ROOM || server.ncheckpoints > 3);
		CHECK(server.free_bytes + SEGMENT > (ending ? 1 : 2) * SEGMENT);
		/* it goes on when they do */
		server.kept = 0;
		CHECK(run(2 * MB, 0, 1000, &verdict) > 200 * MB);
	}
}

/* test_asks_seldom -- once for each checkpoint, and once a minute if there is nothing to remove. */
static void
test_asks_seldom(void)
{
	DiskHolder	verdict;

	begin(20 * MB, 0, 0, 3);
	CHECK_EQ(run(1 * MB, 0, 5, &verdict), 0);
	CHECK_EQ(server.ncheckpoints, 1);
	CHECK_EQ(verdict, DISK_CHECKPOINT);
	CHECK_EQ(run(1 * MB, 0, 60, &verdict), 0);
	CHECK_EQ(verdict, DISK_NO_ROOM);
	CHECK_EQ(run(1 * MB, 0, 5 * 600, &verdict), 0);
	CHECK_BETWEEN(9, server.ncheckpoints, 12);
}

/* test_no_checkpoint_comes -- that is not waited for without end. */
static void
test_no_checkpoint_comes(void)
{
	DiskHolder	verdict;

	begin(20 * MB, 0, 0, 1000000);
	server.redo -= 3 * SEGMENT;
	CHECK_EQ(run(1 * MB, 0, 5 * 500, &verdict), 0);
	CHECK_EQ(verdict, DISK_CHECKPOINT);
	CHECK_EQ(run(1 * MB, 0, 5 * 200, &verdict), 0);
	CHECK_EQ(verdict, DISK_NO_ROOM);
}

/* test_single_user -- a process that has no server beside it makes no checkpoint. */
static void
test_single_user(void)
{
	begin(1 * MB, 0, 0, 1);
	IsUnderPostmaster = false;
	CHECK_EQ(wal_room_look(&ours, server.free_bytes, server.now), DISK_NONE);
	CHECK(!server.is_asked);
	IsUnderPostmaster = true;
}

/* main -- all of them. */
int
main(void)
{
	UNIT_RUN(test_goes_on);
	UNIT_RUN(test_much_room);
	UNIT_RUN(test_kept);
	UNIT_RUN(test_asks_seldom);
	UNIT_RUN(test_no_checkpoint_comes);
	UNIT_RUN(test_single_user);
	return unit_end();
}
