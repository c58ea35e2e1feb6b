/*-------------------------------------------------------------------------
 *
 * machine.c
 *	  How many cores there are for this process, and how much memory nobody uses.
 *
 * Linux tells in files: what the machine has, and what the control groups (version 2) of
 * this process let it have of that, which is how containers are given two and a half
 * cores of sixty-four.  Part of a core counts for nothing, but for the first.  A process
 * may be allowed on cores that are possible and not there, so those count that are online.
 *
 * Memory that holds the page cache is in use: a process that reads more files than the
 * unused memory holds pushes other files' pages out.  A control group has its own page cache.
 *
 * Nothing here but opens and reads files, as the server does itself.  A filter of
 * system calls may end a process that makes other calls, even to ask for its cores.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <math.h>

#include "machine/machine.h"

#define MOST_TEXT	8192
#define GROUPS		"/sys/fs/cgroup"

static int	machine_allowed_cores(const char *root);
static bool machine_is_listed(const char *list, int number);
static double machine_left_by_groups(const char *root, double (*left_by) (const char *root, const char *group));
static double machine_group_cores(const char *root, const char *group);
static double machine_group_memory(const char *root, const char *group);
static char *machine_group_of(char *text);
static bool machine_leave_group(char *group);
static bool machine_read_file(const char *root, const char *folder, const char *group, const char *file,
							  char *text);

/* machine_cores -- see machine.h. */
int
machine_cores(const char *root)
{
	int			cores = machine_allowed_cores(root);
	double		left = machine_left_by_groups(root, machine_group_cores);

	return left < cores ? (int) left : cores;
}

/* machine_allowed_cores -- on how many that are online this process may run; 0 if that isn't known. */
static int
machine_allowed_cores(const char *root)
{
	char		text[MOST_TEXT];
	char		online[MOST_TEXT];
	bool		knows_online = machine_read_file(root, "/sys/devices/system/cpu", "", "/online", online);
	int			cores = 0;
	int			first = 0;		/* core of the digit */
	char	   *mask;

	if (!machine_read_file(root, "/proc/self", "", "/status", text) ||
		(mask = strstr(text, "\nCpus_allowed:")) == NULL)
		return 0;
	mask = strchr(mask, ':') + 1;

	/*
	 * hexadecimal digits, with commas between some; the last one is of the
	 * first cores
	 */
	for (char *digit = mask + strcspn(mask, "\n") - 1; digit >= mask; digit--)
	{
		char		word[2] = {*digit, '\0'};
		unsigned long bits = strtoul(word, NULL, 16);

		if (!isxdigit((unsigned char) *digit))
			continue;
		for (int bit = 0; bit < 4; bit++)
			if ((bits >> bit & 1) != 0 && (!knows_online || machine_is_listed(online, first + bit)))
				cores++;
		first += 4;
	}
	return cores;
}

/* machine_is_listed -- is this number in a list like "0-3,8"? */
static bool
machine_is_listed(const char *list, int number)
{
	while (isdigit((unsigned char) *list))
	{
		char	   *end;
		long		from = strtol(list, &end, 10);
		long		to = *end == '-' ? strtol(end + 1, &end, 10) : from;

		if (from <= number && number <= to)
			return true;
		if (*end != ',')
			break;
		list = end + 1;
	}
	return false;
}

/* machine_unused_memory -- see machine.h. */
int64
machine_unused_memory(const char *root)
{
	char		text[MOST_TEXT];
	char	   *field;
	double		kilobytes,
				left;
	int64		unused;

	if (!machine_read_file(root, "/proc", "", "/meminfo", text) ||
		(field = strstr(text, "\nMemFree:")) == NULL ||
		sscanf(field, " MemFree: %lf kB", &kilobytes) != 1 || !(kilobytes >= 0 && kilobytes < 1e15))
		return -1;
	unused = (int64) (kilobytes * 1024);
	left = machine_left_by_groups(root, machine_group_memory);
	return left < unused ? (int64) left : unused;
}

/*
 * machine_left_by_groups
 *		The least of what the control group of this process, and those around it, leave;
 *		infinite if nothing limits it.
 */
static double
machine_left_by_groups(const char *root, double (*left_by) (const char *root, const char *group))
{
	char		text[MOST_TEXT];
	char	   *group;
	double		least = INFINITY;

	if (!machine_read_file(root, "/proc/self", "", "/cgroup", text) || (group = machine_group_of(text)) == NULL)
		return least;
	do
		least = fmin(least, left_by(root, group));
	while (machine_leave_group(group));
	return least;
}

/* machine_group_cores -- what its quota of time in each period comes to; without one there is a word in its place. */
static double
machine_group_cores(const char *root, const char *group)
{
	char		text[MOST_TEXT];
	double		quota,
				period;

	if (!machine_read_file(root, GROUPS, group, "/cpu.max", text) ||
		sscanf(text, "%lf %lf", &quota, &period) != 2 || !(quota > 0 && period > 0))
		return INFINITY;
	return fmax(floor(quota / period), 1);
}

/* machine_group_memory -- from memory.high on its page cache is taken back, before memory.max. */
static double
machine_group_memory(const char *root, const char *group)
{
	static const char *const limits[] = {"/memory.max", "/memory.high"};
	char		text[MOST_TEXT];
	double		least = INFINITY;
	double		limit,
				usage;

	for (int i = 0; i < lengthof(limits); i++)
		if (machine_read_file(root, GROUPS, group, limits[i], text) && sscanf(text, "%lf", &limit) == 1 &&
			machine_read_file(root, GROUPS, group, "/memory.current", text) && sscanf(text, "%lf", &usage) == 1)
			least = fmin(least, fmax(limit - usage, 0));
	return least;
}

/* machine_group_of -- the group in the text of /proc/self/cgroup, which is cut there; NULL if there is none. */
static char *
machine_group_of(char *text)
{
	char	   *line = text;

	/* lines of version 1 have another number, or a name between the colons */
	while (strncmp(line, "0::", 3) != 0)
	{
		line = strchr(line, '\n');
		if (line == NULL)
			return NULL;
		line++;
	}
	line += 3;
	line[strcspn(line, "\n")] = '\0';
	return line;
}

/* machine_leave_group -- on to the group around it; false if that was the outermost. */
static bool
machine_leave_group(char *group)
{
	char	   *last = strrchr(group, '/');

	if (last == NULL)
		return false;
	*last = '\0';
	return true;
}

/* machine_read_file -- the beginning of a file, as a string; false if it can't be read. */
static bool
machine_read_file(const char *root, const char *folder, const char *group, const char *file, char *text)
{
	char		path[MAXPGPATH];
	FILE	   *stream;
	size_t		length;

	if (snprintf(path, sizeof(path), "%s%s%s%s", root, folder, group, file) >= sizeof(path))
		return false;
	if ((stream = fopen(path, "r")) == NULL)
		return false;
	length = fread(text, 1, MOST_TEXT - 1, stream);
	fclose(stream);
	Assert(length < MOST_TEXT);
	text[length] = '\0';
	return length > 0;
}
