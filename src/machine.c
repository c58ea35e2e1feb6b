/*-------------------------------------------------------------------------
 *
 * machine.c
 *	  How many cores there are for this process, and how much memory nobody uses.
 *
 * Linux tells in files: what the machine has, and what the control groups of this
 * process let it have of that, which is how containers are given two and a half
 * cores of sixty-four.  Part of a core counts for nothing, but for the first.
 *
 * Memory that holds the page cache is in use: a process that reads more files than the
 * unused memory holds pushes others' pages out.  A control group has its own page
 * cache.
 *
 * Nothing here but opens and reads files, as the server does itself.  A filter of
 * system calls may end a process that makes others, even to ask for its cores.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "machine.h"

#define MOST_TEXT	8192

/* Where control groups of a version have a limit, and the number that it goes with */
typedef struct GroupFiles
{
	const char *controller;		/* "" in version 2; NULL at the end */
	const char *folder;
	const char *limit;
	const char *other;			/* NULL: it is in the same file */
} GroupFiles;

static const GroupFiles core_files[] = {
	{"", "/sys/fs/cgroup", "/cpu.max", NULL},
	{"cpu", "/sys/fs/cgroup/cpu", "/cpu.cfs_quota_us", "/cpu.cfs_period_us"},
	{NULL}
};

/* from memory.high on a group's page cache is taken back, before memory.max */
static const GroupFiles memory_files[] = {
	{"", "/sys/fs/cgroup", "/memory.max", "/memory.current"},
	{"", "/sys/fs/cgroup", "/memory.high", "/memory.current"},
	{"memory", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes"},
	{NULL}
};

static int	allowed_cores(const char *root);
static double left_by_groups(const char *root, const GroupFiles *files,
							 double (*left) (double limit, double other));
static bool read_limit(const char *root, const GroupFiles *files, const char *group,
					   double *limit, double *other);
static double whole_cores(double quota, double period);
static double unused_bytes(double limit, double usage);
static char *group_of(char *text, const char *controller);
static bool leave_group(char *group);
static bool read_file(const char *root, const char *folder, const char *group, const char *file,
					  char *text);

/* machine_cores -- see machine.h. */
int
machine_cores(const char *root)
{
	int			cores = allowed_cores(root);
	double		left;

	if (cores == 0)
		return 0;
	left = left_by_groups(root, core_files, whole_cores);
	return left < cores ? (int) left : cores;
}

/* allowed_cores -- on how many this process may run; 0 if that isn't known. */
static int
allowed_cores(const char *root)
{
	char		text[MOST_TEXT];
	char	   *mask;
	int			cores = 0;

	if (!read_file(root, "/proc/self", "", "/status", text) ||
		(mask = strstr(text, "\nCpus_allowed:")) == NULL)
		return 0;
	/* hexadecimal digits, with commas between some */
	for (mask = strchr(mask, ':') + 1; *mask != '\0' && *mask != '\n'; mask++)
	{
		char		digit[2] = {*mask, '\0'};

		for (unsigned long bits = strtoul(digit, NULL, 16); bits != 0; bits &= bits - 1)
			cores++;
	}
	return cores;
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

	if (!read_file(root, "/proc", "", "/meminfo", text) ||
		(field = strstr(text, "\nMemFree:")) == NULL ||
		sscanf(field, " MemFree: %lf kB", &kilobytes) != 1 || !(kilobytes >= 0 && kilobytes < 1e15))
		return -1;
	unused = (int64) (kilobytes * 1024);
	left = left_by_groups(root, memory_files, unused_bytes);
	return left < unused ? (int64) left : unused;
}

/*
 * left_by_groups
 *		The least of what the control groups of this process, and those around them,
 *		leave; infinite if nothing limits it.
 */
static double
left_by_groups(const char *root, const GroupFiles *files,
			   double (*left) (double limit, double other))
{
	char		groups[MOST_TEXT];
	double		least = INFINITY;

	if (!read_file(root, "/proc/self", "", "/cgroup", groups))
		return least;
	for (; files->controller != NULL; files++)
	{
		char		text[MOST_TEXT];
		char	   *group;

		strcpy(text, groups);
		if ((group = group_of(text, files->controller)) == NULL)
			continue;
		do
		{
			double		limit,
						other;

			if (read_limit(root, files, group, &limit, &other))
				least = fmin(least, left(limit, other));
		} while (leave_group(group));
	}
	return least;
}

/* read_limit -- of one group; false if it has none, as a word in place of a number says. */
static bool
read_limit(const char *root, const GroupFiles *files, const char *group, double *limit, double *other)
{
	char		text[MOST_TEXT];

	if (!read_file(root, files->folder, group, files->limit, text))
		return false;
	if (files->other == NULL)
		return sscanf(text, "%lf %lf", limit, other) == 2;
	return sscanf(text, "%lf", limit) == 1 &&
		read_file(root, files->folder, group, files->other, text) &&
		sscanf(text, "%lf", other) == 1;
}

/* whole_cores -- what a quota of time in each period comes to. */
static double
whole_cores(double quota, double period)
{
	return quota > 0 && period > 0 ? fmax(floor(quota / period), 1) : INFINITY;
}

/* unused_bytes -- version 1 has a limit beyond all memory instead of none. */
static double
unused_bytes(double limit, double usage)
{
	return limit < 1e18 ? fmax(limit - usage, 0) : INFINITY;
}

/*
 * group_of
 *		The group for a controller in the text of /proc/self/cgroup, which is changed;
 *		NULL if there is none.
 *
 * A line has a number, controllers with commas between, and the group, with colons
 * between.  Version 2 has no controllers there.
 */
static char *
group_of(char *text, const char *controller)
{
	char	   *line,
			   *next;

	for (line = text; line != NULL; line = next)
	{
		char	   *controllers = strchr(line, ':');
		char	   *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

		if ((next = strchr(line, '\n')) != NULL)
			*next++ = '\0';
		/* the colon may have been behind the end of the line */
		if (group == NULL || (next != NULL && group >= next))
			continue;
		*group++ = '\0';
		controllers++;
		if (*controller == '\0' && *controllers == '\0')
			return group;
		while (*controller != '\0' && *controllers != '\0')
		{
			size_t		length = strcspn(controllers, ",");

			if (length == strlen(controller) && strncmp(controllers, controller, length) == 0)
				return group;
			controllers += length + (controllers[length] == ',');
		}
	}
	return NULL;
}

/* leave_group -- on to the group around it; false if that was the outermost. */
static bool
leave_group(char *group)
{
	char	   *last = strrchr(group, '/');

	if (last == NULL)
		return false;
	*last = '\0';
	return true;
}

/* read_file -- the beginning of a file, as a string; false if it can't be read. */
static bool
read_file(const char *root, const char *folder, const char *group, const char *file, char *text)
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
