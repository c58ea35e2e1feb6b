/*-------------------------------------------------------------------------
 *
 * cores.c
 *	  How many cores there are for this process.
 *
 * Linux tells in files: those on which the process may run, and what its control
 * groups let it have of them, which is how containers are given two and a half
 * cores of sixty-four.  Part of a core counts for nothing, but for the first.
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

#include "neighbours/neighbours.h"

#define MOST_TEXT	8192

static int	allowed_cores(const char *root);
static int	quota_of_version_2(const char *root, char *group);
static int	quota_of_version_1(const char *root, char *group);
static char *group_of(char *text, const char *controller);
static bool leave_group(char *group);
static int	whole_cores(double quota, double period);
static bool read_file(const char *root, const char *folder, const char *group, const char *file,
					  char *text);

/* cores_for_process -- see neighbours.h. */
int
cores_for_process(const char *root)
{
	char		text[MOST_TEXT];
	char		groups[MOST_TEXT];
	char	   *group;
	int			cores = allowed_cores(root);
	int			quota = INT_MAX;

	Assert(root != NULL);
	if (cores > 0 && read_file(root, "/proc/self", "", "/cgroup", groups))
	{
		strcpy(text, groups);
		if ((group = group_of(text, "")) != NULL)
			quota = quota_of_version_2(root, group);
		strcpy(text, groups);
		if ((group = group_of(text, "cpu")) != NULL)
			quota = Min(quota, quota_of_version_1(root, group));
	}
	return Min(cores, quota);
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
			least = Min(least, whole_cores(quota, period));
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
			least = Min(least, whole_cores(quota, period));
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
