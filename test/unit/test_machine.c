/*-------------------------------------------------------------------------
 *
 * test_machine.c
 *	  How many cores there are, and how much unused memory, as Linux tells it in files: machine.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine/machine.c"
#include "unit.h"


#define STATUS(mask)	"Name:\tpostgres\nCpus_allowed:\t" mask "\nCpus_allowed_list:\t0\n"

/* A file of the system, and what is in it */
typedef struct SystemFile
{
	const char *name;
	const char *text;
} SystemFile;

#define MOST_FILES	6

static char root[] = "unit-machine-XXXXXX";

/* write_file -- below the root, with the folders that it is in. */
static void
write_file(const SystemFile *file)
{
	char		path[MAXPGPATH];
	FILE	   *stream;

	snprintf(path, sizeof(path), "%s/%s", root, file->name);
	for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/'))
	{
		*slash = '\0';
		(void) mkdir(path, 0700);
		*slash = '/';
	}
	stream = fopen(path, "w");
	CHECK(stream != NULL);
	CHECK(fputs(file->text, stream) >= 0);
	CHECK_EQ(fclose(stream), 0);
}

/* remove_file -- its folders may stay. */
static void
remove_file(const SystemFile *file)
{
	char		path[MAXPGPATH];

	snprintf(path, sizeof(path), "%s/%s", root, file->name);
	CHECK_EQ(unlink(path), 0);
}

/* test_cores_are_those_that_a_container_has -- and no more than the process may use. */
UNIT_TEST(test_cores_are_those_that_a_container_has)
{
	static const struct
	{
		int			cores;
		SystemFile	files[MOST_FILES];
	}			systems[] = {
		{0, {{NULL}}},
		{8, {{"proc/self/status", STATUS("ff")}}},
		{4, {{"proc/self/status", STATUS("00000001,00000007")}}},
		{4, {{"proc/self/status", STATUS("a5")}}},
		/* version 2: the group of a service */
		{2, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"}}},
		{8, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"}}},
		/* in one that has less */
		{3, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/cpu.max", "500000 100000\n"}, {"sys/fs/cgroup/a/cpu.max", "300000 100000\n"}}},
		{3, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/cpu.max", "300000 100000\n"}, {"sys/fs/cgroup/a/cpu.max", "500000 100000\n"}}},
		/* in a container that doesn't see those around it */
		{1, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "0::/\n"},
		{"sys/fs/cgroup/cpu.max", "50000 100000\n"}}},
		{2, {{"proc/self/status", STATUS("3")}, {"proc/self/cgroup", "0::/a\n"},
		{"sys/fs/cgroup/a/cpu.max", "800000 100000\n"}}},
		/* version 1 has no limit here, also beside version 2 */
		{8, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "4:cpuset:/y\n3:cpu:/x\n"}}},
		{5, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "1:cpu:/x\n0::/a\n"},
		{"sys/fs/cgroup/a/cpu.max", "500000 100000\n"}}},
		/* sixteen are possible, and two are there */
		{2, {{"proc/self/status", STATUS("ffff")}, {"sys/devices/system/cpu/online", "0-1\n"}}},
		{3, {{"proc/self/status", STATUS("ffffffff,ffffffff")}, {"sys/devices/system/cpu/online", "0,32-33\n"}}},
		/* on others it may not run */
		{1, {{"proc/self/status", STATUS("c")}, {"sys/devices/system/cpu/online", "0-2\n"}}},
		{1, {{"proc/self/status", STATUS("ffff")}, {"sys/devices/system/cpu/online", "0-3\n"},
		{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/cpu.max", "150000 100000\n"}}},
		{8, {{"proc/self/status", STATUS("ff")}, {"proc/self/cgroup", "no colons at all\n\n:\n::\n"}}},
	};

	for (int i = 0; i < lengthof(systems); i++)
	{
		unit_case("system %d", i);
		for (int k = 0; k < MOST_FILES && systems[i].files[k].name != NULL; k++)
			write_file(&systems[i].files[k]);
		CHECK_EQ(machine_cores(root), systems[i].cores);
		for (int k = 0; k < MOST_FILES && systems[i].files[k].name != NULL; k++)
			remove_file(&systems[i].files[k]);
	}
}

#define MEMINFO(kilobytes)	"MemTotal:  64000 kB\nMemFree:  " kilobytes " kB\nMemAvailable: 60000 kB\n"

/* test_unused_memory_is_what_a_container_may_still_have -- and no more than the machine has. */
UNIT_TEST(test_unused_memory_is_what_a_container_may_still_have)
{
	static const struct
	{
		int64		bytes;
		SystemFile	files[MOST_FILES];
	}			systems[] = {
		{-1, {{NULL}}},
		{-1, {{"proc/meminfo", "MemTotal:  64000 kB\n"}}},
		{-1, {{"proc/meminfo", MEMINFO("many")}}},
		{-1, {{"proc/meminfo", MEMINFO("-5")}}},
		{-1, {{"proc/meminfo", MEMINFO("nan")}}},
		{-1, {{"proc/meminfo", MEMINFO("1e300")}}},
		{5120, {{"proc/meminfo", MEMINFO("5")}}},
		/* version 2 */
		{5120, {{"proc/meminfo", MEMINFO("5")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/memory.max", "max\n"}, {"sys/fs/cgroup/a/b/memory.current", "900\n"}}},
		{100, {{"proc/meminfo", MEMINFO("5")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/memory.max", "1000\n"}, {"sys/fs/cgroup/a/b/memory.current", "900\n"}}},
		{0, {{"proc/meminfo", MEMINFO("5")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/memory.max", "1000\n"}, {"sys/fs/cgroup/a/b/memory.current", "1100\n"}}},
		/* it is slowed down before */
		{50, {{"proc/meminfo", MEMINFO("5")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/memory.max", "1000\n"}, {"sys/fs/cgroup/a/b/memory.high", "950\n"},
		{"sys/fs/cgroup/a/b/memory.current", "900\n"}}},
		/* in one that has less */
		{7, {{"proc/meminfo", MEMINFO("5")}, {"proc/self/cgroup", "0::/a/b\n"},
		{"sys/fs/cgroup/a/b/memory.max", "1000\n"}, {"sys/fs/cgroup/a/b/memory.current", "900\n"},
		{"sys/fs/cgroup/a/memory.max", "2000\n"}, {"sys/fs/cgroup/a/memory.current", "1993\n"}}},
		/* a machine that has less */
		{1024, {{"proc/meminfo", MEMINFO("1")}, {"proc/self/cgroup", "0::/a\n"},
		{"sys/fs/cgroup/a/memory.max", "1e12\n"}, {"sys/fs/cgroup/a/memory.current", "900\n"}}},
		/* a limit without its usage */
		{5120, {{"proc/meminfo", MEMINFO("5")}, {"proc/self/cgroup", "0::/a\n"},
		{"sys/fs/cgroup/a/memory.max", "1000\n"}}},
	};

	for (int i = 0; i < lengthof(systems); i++)
	{
		unit_case("system %d", i);
		for (int k = 0; k < MOST_FILES && systems[i].files[k].name != NULL; k++)
			write_file(&systems[i].files[k]);
		CHECK_EQ(machine_unused_memory(root), systems[i].bytes);
		for (int k = 0; k < MOST_FILES && systems[i].files[k].name != NULL; k++)
			remove_file(&systems[i].files[k]);
	}
}

/* test_any_text -- may be in the lists of groups and of cores: what matters here is the sanitizer. */
UNIT_TEST(test_any_text)
{
	static const char letters[] = "0:/,\n-7";

	for (int i = 0; i < 100000; i++)
	{
		char		text[20];
		int			length = unit_number(0, lengthof(text) - 1);
		char	   *copy;
		char	   *group;

		for (int k = 0; k < length; k++)
			text[k] = letters[unit_number(0, lengthof(letters) - 2)];
		text[length] = '\0';
		copy = strdup(text);
		unit_case("%s", text);
		(void) machine_is_listed(copy, i % 9);
		group = machine_group_of(copy);
		CHECK(group == NULL || (group > copy && group <= copy + length && strchr(group, '\n') == NULL));
		while (group != NULL && machine_leave_group(group))
			continue;
		free(copy);
	}
}

/* test_cores_of_this_machine -- no more than this process may use. */
UNIT_TEST(test_cores_of_this_machine)
{
	cpu_set_t	usable;

	CHECK_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
	CHECK_BETWEEN(1, machine_cores(""), CPU_COUNT(&usable));
}

/* test_unused_memory_of_this_machine -- it is known. */
UNIT_TEST(test_unused_memory_of_this_machine)
{
	CHECK(machine_unused_memory("") >= 0);
}

/* test_a_long_path -- it is no file. */
UNIT_TEST(test_a_long_path)
{
	char		folder[MAXPGPATH + 1];
	char		text[MOST_TEXT];

	memset(folder, 'x', MAXPGPATH);
	folder[MAXPGPATH] = '\0';
	CHECK(!machine_read_file("", folder, "", "", text));
}

/* unit_set_up -- a folder for the files of a system. */
void
unit_set_up(void)
{
	if (mkdtemp(root) == NULL)
		unit_fail(__FILE__, __LINE__, "there can be no folder");
}
