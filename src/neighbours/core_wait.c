/*-------------------------------------------------------------------------
 *
 * core_wait.c
 *	  How long this session waited for a core before a statement.
 *
 * A session sleeps until its client sends a statement.  If no core is free then, it waits
 * for one before it can read the statement, so its own clocks don't show that time.  Users
 * feel it, and a VACUUM at full speed causes it.  Linux counts for each process how
 * long it was ready to run and had no core.  The count is read when a statement ends
 * and when the next one begins.
 *
 * To read it takes 0.4 microseconds (pread of /proc/self/schedstat; Intel Xeon VM).  Two
 * readings are some per cent of the shortest statements, so it is read once in NS_A_READING
 * that the session runs.  Statements between are taken to have waited for as long as the
 * last one.
 *
 * Where the system doesn't tell, nobody has waited.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "storage/fd.h"

#include "clock.h"
#include "neighbours/neighbours.h"

/* of the session's own time for two readings: 0.25 % */
#define NS_A_READING		((uint64) 300000)
/* so that a session whose statements become long is read soon */
#define MOST_UNREAD			31

#define NOT_OPEN			(-1)
#define NOT_THERE			(-2)

/* What the kernel counts of a process, in ns */
typedef struct Counts
{
	uint64		ran;
	uint64		waited;
} Counts;

static int	file = NOT_OPEN;
static Counts at_end;			/* of the last statement, if has_end */
static uint64 ended_at;
static bool has_end = false;
static uint64 read_at_ran;		/* what it had run when it was read before
								 * that */
static int	nunread = 0;		/* statements since then */
static int	to_skip = 0;		/* statements, until it is read again */
static uint64 last_wait = 0;

static bool open_file(void);

/* core_wait_forget -- see neighbours.h. */
void
core_wait_forget(void)
{
	has_end = false;
	last_wait = 0;
	to_skip = nunread = 0;
	read_at_ran = 0;
}

/* core_wait_end -- see neighbours.h. */
void
core_wait_end(void)
{
	nunread++;
	has_end = false;
	if (to_skip > 0)
		to_skip--;
	else if (file >= 0 && core_wait_read(file, &at_end.ran, &at_end.waited))
	{
		has_end = true;
		ended_at = now_ns();
	}
}

/* core_wait_begin -- see neighbours.h. */
uint64
core_wait_begin(void)
{
	Counts		counts;
	uint64		ran;
	uint64		passed;

	if (!open_file() || !has_end)
		return last_wait;
	has_end = false;
	if (!core_wait_read(file, &counts.ran, &counts.waited))
		return last_wait;
	/* it can't have waited for longer than it has been since */
	passed = now_ns() - ended_at;
	last_wait = Min(counts.waited - at_end.waited, passed);
	ran = counts.ran - read_at_ran;
	if (nunread > 0 && read_at_ran > 0)
		to_skip = (int) Min(NS_A_READING * nunread / Max(ran, 1), MOST_UNREAD);
	read_at_ran = counts.ran;
	nunread = 0;
	return last_wait;
}

/* core_wait_read -- see neighbours.h. */
bool
core_wait_read(int fd, uint64 *ran, uint64 *waited)
{
	char		text[96];
	char	   *end;
	ssize_t		length = pread(fd, text, sizeof(text) - 1, 0);

	Assert(fd >= 0);
	if (length <= 0)
		return false;
	text[length] = '\0';
	*ran = strtou64(text, &end, 10);
	if (*ran == 0 || *end != ' ')
		return false;
	*waited = strtou64(end, NULL, 10);
	return true;
}

/* open_file -- is the file of this session there?  It stays open. */
static bool
open_file(void)
{
	if (file == NOT_OPEN)
	{
		file = NOT_THERE;
		if (AcquireExternalFD())
		{
			file = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
			if (file < 0)
			{
				file = NOT_THERE;
				ReleaseExternalFD();
			}
		}
	}
	return file >= 0;
}
