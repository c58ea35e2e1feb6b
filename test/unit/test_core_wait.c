/*-------------------------------------------------------------------------
 *
 * test_core_wait.c
 *	  How long a session waited for a core before a statement: neighbours/core_wait.c.
 *
 * What a server makes of it is in test_target.py.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "clock.h"
#include "unit.h"

/* The session's time */
static uint64 now;

#define now_ns()		now
#define open(name, flags)	open_or_not(name, flags)
static int	open_or_not(const char *name, int flags);
#include "neighbours/core_wait.c"

#define READING_NS		400
#define MOST_OF_RUN		0.003	/* of what it runs */

/* What the kernel counts of it */
static uint64 ran;
static uint64 waited;

static char name[] = "unit-core-wait-XXXXXX";
static int	nread = 0;

/* What the system allows, and how many files the server believes are open */
static bool may_have_file = true;
static bool may_open = true;
static int	nfiles = 0;

/* AcquireExternalFD -- the server lets us have a file, or not. */
bool
AcquireExternalFD(void)
{
	nfiles += may_have_file;
	return may_have_file;
}

/* ReleaseExternalFD -- we have one less. */
void
ReleaseExternalFD(void)
{
	nfiles--;
}

/* open_or_not -- open what stands for the session's file. */
static int
open_or_not(const char *path, int flags)
{
	CHECK_TEXT(path, "/proc/self/schedstat");
	return may_open ? (open) (name, flags) : -1;
}

/* write_text -- what the file says now. */
static void
write_text(const char *text)
{
	CHECK(ftruncate(file, 0) == 0);
	CHECK_EQ(pwrite(file, text, strlen(text), 0), strlen(text));
}

/* pass -- time passes, of which the session runs and waits for so much. */
static void
pass(uint64 ns, uint64 runs, uint64 waits)
{
	char		text[96];

	now += ns;
	ran += runs;
	waited += waits;
	snprintf(text, sizeof(text), UINT64_FORMAT " " UINT64_FORMAT " 17\n", ran, waited);
	write_text(text);
}

/* begin -- a session that has just begun to be watched. */
static void
begin(void)
{
	now = 1000000;
	ran = 500000;
	waited = 70000;
	if (file < 0)
		file = mkstemp(name);
	core_wait_forget();
	pass(0, 0, 0);
	CHECK_EQ(core_wait_begin(), 0);
}

/*
 * run
 *		A statement ends, and the next begins after an hour in which the session waited for
 *		so long; return what is taken for that.
 */
static uint64
run(uint64 runs, uint64 waits)
{
	bool		reads;

	pass(runs, runs, 0);
	core_wait_end();
	reads = has_end;
	pass(NS_PER_S * UINT64CONST(3600), 0, waits);
	nread += reads ? 2 : 0;
	return core_wait_begin();
}

/* test_each_long_statement -- is told how long it waited. */
static void
test_each_long_statement(void)
{
	begin();
	for (int i = 0; i < 100; i++)
		CHECK_EQ(run(1000000, i * 77), i * 77);
}

/* test_what_waits_in_a_statement -- is part of its time already. */
static void
test_what_waits_in_a_statement(void)
{
	begin();
	(void) run(1000000, 5);
	pass(1000000, 1000000, 40000);
	CHECK_EQ(run(1000000, 5), 5);
}

/* test_it_never_waits_for_longer -- than the time that has passed. */
static void
test_it_never_waits_for_longer(void)
{
	begin();
	core_wait_end();
	pass(1000, 0, 5000);
	CHECK_EQ(core_wait_begin(), 1000);
}

/* test_short_statements -- are seldom read, and those between count like the last one that was. */
static void
test_short_statements(void)
{
	for (uint64 length = 10000; length < 1000000; length += length / 3)
	{
		begin();
		nread = 0;
		unit_case("%g us", length / 1e3);
		for (int i = 0; i < 1000; i++)
			(void) run(length, 4321);
		CHECK_EQ(run(length, 4321), 4321);
		CHECK(nread >= 2 * 1000 / (MOST_UNREAD + 1));
		/* the first two are always read */
		CHECK((nread - 4) * READING_NS <= MOST_OF_RUN * 1000 * length);
	}
}

/* test_long_after_short -- a session whose statements become long is read soon. */
static void
test_long_after_short(void)
{
	begin();
	for (int i = 0; i < 100; i++)
		(void) run(10000, 0);
	for (int i = 0; i <= MOST_UNREAD; i++)
		(void) run(1000000, 99);
	CHECK_EQ(run(1000000, 99), 99);
	CHECK_EQ(run(1000000, 98), 98);
}

/* test_nobody_watched -- so nothing is known of the next statement. */
static void
test_nobody_watched(void)
{
	begin();
	CHECK_EQ(run(1000000, 99), 99);
	pass(1000000, 1000000, 0);
	core_wait_end();
	pass(1000000, 0, 1000);
	core_wait_forget();
	CHECK_EQ(core_wait_begin(), 0);
}

/* test_the_system_does_not_tell -- so nobody waits. */
static void
test_the_system_does_not_tell(void)
{
	static const char *const texts[] = {"", "0 0 0\n", "nonsense", "123"};

	for (int i = 0; i < lengthof(texts); i++)
	{
		unit_case("%s", texts[i]);
		begin();
		for (int statement = 0; statement < 3; statement++)
		{
			write_text(texts[i]);
			core_wait_end();
			now += NS_PER_S;
			CHECK_EQ(core_wait_begin(), 0);
		}
	}
	begin();
	core_wait_end();
	write_text("");
	CHECK_EQ(core_wait_begin(), 0);
}

/* test_opening -- is tried once, and a file that isn't there is given back. */
static void
test_opening(void)
{
	static const struct
	{
		bool		may_have_file;
		bool		may_open;
		int			nfiles;
	}			cases[] = {{true, true, 1}, {true, false, 0}, {false, true, 0}};

	begin();
	for (int i = 0; i < lengthof(cases); i++)
	{
		unit_case("%d", i);
		close(file);
		file = NOT_OPEN;
		nfiles = 0;
		may_have_file = cases[i].may_have_file;
		may_open = cases[i].may_open;
		CHECK_EQ(core_wait_begin(), 0);
		may_have_file = may_open = true;
		core_wait_end();
		now += NS_PER_S;
		CHECK_EQ(core_wait_begin(), 0);
		CHECK_EQ(nfiles, cases[i].nfiles);
		CHECK_EQ(file >= 0, cases[i].nfiles);
	}
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_each_long_statement);
	UNIT_RUN(test_what_waits_in_a_statement);
	UNIT_RUN(test_it_never_waits_for_longer);
	UNIT_RUN(test_short_statements);
	UNIT_RUN(test_long_after_short);
	UNIT_RUN(test_nobody_watched);
	UNIT_RUN(test_the_system_does_not_tell);
	UNIT_RUN(test_opening);
	unlink(name);
	return unit_end();
}
