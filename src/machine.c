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

#include <limits.h>

#include "machine.h"

#define MOST_TEXT	8192

static int	allowed_cores(const char *root);
static int	quota_of_version_2(const char *root, char *group);
static int	quota_of_version_1(const char *root, char *group);
static int64 unused_by_limit(const char *root, const char *folder, char *group,
							 const char *limit_file, const char *usage_file);
static char *group_of(char *text, const char *controller);
static bool leave_group(char *group);
static int	whole_cores(double quota, double period);
static bool read_file(const char *root, const char *folder, const char *group, const char *file,
					  char *text);

/* machine_cores -- see machine.h. */
int
machine_cores(const char *root)
{
	char		text[MOST_TEXT];
	char		groups[MOST_TEXT];
	char	   *group;
	int			cores = allowed_cores(root);
	int			quota = INT_MAX;
	int			quota_1 = INT_MAX;

	Assert(root != NULL);
	if (cores > 0 && read_file(root, "/proc/self", "", "/cgroup", groups))
	{
		strcpy(text, groups);
		if ((group = group_of(text, "")) != NULL)
			quota = quota_of_version_2(root, group);
		strcpy(text, groups);
		if ((group = group_of(text, "cpu")) != NULL)
			quota_1 = quota_of_version_1(root, group);
	}
	return Min(cores, Min(quota, quota_1));
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

/* quota_of_version_2 -- the least of a group and those around it; INT_MAX if there is none. */
static int
quota_of_version_2(const char *root, char *group)
{
	char		text[MOST_TEXT];
	int			least = INT_MAX;

	do
	{
		double		quota,
					period;

		if (read_file(root, "/sys/fs/cgroup", group, "/cpu.max", text) &&
			sscanf(text, "%lf %lf", &quota, &period) == 2)
		{
			int			cores = whole_cores(quota, period);

			least = Min(least, cores);
		}
	} while (leave_group(group));
	return least;
}

/* quota_of_version_1 -- likewise. */
static int
quota_of_version_1(const char *root, char *group)
{
	char		text[MOST_TEXT];
	int			least = INT_MAX;

	do
	{
		double		quota,
					period;

		if (read_file(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_quota_us", text) &&
			sscanf(text, "%lf", &quota) == 1 &&
			read_file(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_period_us", text) &&
			sscanf(text, "%lf", &period) == 1)
		{
			int			cores = whole_cores(quota, period);

			least = Min(least, cores);
		}
	} while (leave_group(group));
	return least;
}

/* machine_unused_memory -- see machine.h. */
int64
machine_unused_memory(const char *root)
{
	char		text[MOST_TEXT];
	char		groups[MOST_TEXT];
	char	   *group,
			   *field;
	double		kilobytes;
	int64		unused;
	int64		by_limit = PG_INT64_MAX;
	int64		by_limit_1 = PG_INT64_MAX;

	Assert(root != NULL);
	if (!read_file(root, "/proc", "", "/meminfo", text) ||
		(field = strstr(text, "\nMemFree:")) == NULL ||
		sscanf(field, " MemFree: %lf kB", &kilobytes) != 1 || !(kilobytes >= 0 && kilobytes < 1e15))
		return -1;
	unused = (int64) (kilobytes * 1024);
	if (!read_file(root, "/proc/self", "", "/cgroup", groups))
		return unused;
	strcpy(text, groups);
	if ((group = group_of(text, "")) != NULL)
		by_limit = unused_by_limit(root, "/sys/fs/cgroup", group, "/memory.max", "/memory.current");
	strcpy(text, groups);
	if ((group = group_of(text, "memory")) != NULL)
		by_limit_1 = unused_by_limit(root, "/sys/fs/cgroup/memory", group,
									 "/memory.limit_in_bytes", "/memory.usage_in_bytes");
	return Min(unused, Min(by_limit, by_limit_1));
}

/*
 * unused_by_limit
 *		What a group and those around it let it have beside what it has; PG_INT64_MAX if
 *		nothing limits it.
 */
static int64
unused_by_limit(const char *root, const char *folder, char *group, const char *limit_file,
				const char *usage_file)
{
	char		text[MOST_TEXT];
	int64		least = PG_INT64_MAX;

	do
	{
		double		limit,
					usage;

		/* "max" is no number, and version 1 has one beyond all memory */
		if (read_file(root, folder, group, limit_file, text) &&
			sscanf(text, "%lf", &limit) == 1 && limit < 1e18 &&
			read_file(root, folder, group, usage_file, text) &&
			sscanf(text, "%lf", &usage) == 1)
			least = Min(least, (int64) Max(limit - usage, 0));
	} while (leave_group(group));
	return least;
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

	Assert(text != NULL && controller != NULL);
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

/* whole_cores -- what a quota of time in each period comes to. */
static int
whole_cores(double quota, double period)
{
	if (quota <= 0 || period <= 0 || quota / period >= INT_MAX)
		return INT_MAX;
	return Max((int) (quota / period), 1);
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
