/*-------------------------------------------------------------------------
 *
 * window.c
 *	  The hours of the week in which tables are compacted.
 *
 * A window is a list of days with hours: 'Mon-Fri 22:00-05:00, Sat-Sun'.  Days
 * without hours are whole days, hours without days are those of each day.  Hours
 * that end before they begin, or as they begin, go over midnight and belong to
 * the day on which they begin.
 *
 * A window is about the clock on the wall: it has a bit for each minute that this clock
 * shows, and nothing is computed across a change of the clock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <strings.h>

#include "compaction/compaction.h"

#define EVERY_DAY		0x7f

static bool read_window_item(const char **at, CompactionWindow *window);
static bool read_window_days(const char **at, int *days);
static int	read_window_day(const char **at);
static bool read_window_hours(const char **at, int *from, int *to);
static int	read_window_time(const char **at);
static void skip_window_spaces(const char **at);
static void add_window_minutes(CompactionWindow *window, int days, int from, int to);

/*
 * window_parse
 *		Read a window; an empty text stands for all hours.  Returns false if the text is
 *		no window.
 */
bool
window_parse(const char *text, CompactionWindow *window)
{
	const char *at = text;

	memset(window, 0, sizeof(*window));
	skip_window_spaces(&at);
	if (*at == '\0')
	{
		memset(window, 0xff, sizeof(*window));
		return true;
	}
	for (;;)
	{
		if (!read_window_item(&at, window))
			return false;
		skip_window_spaces(&at);
		if (*at == '\0')
			return true;
		if (*at++ != ',')
			return false;
	}
}

/* window_has -- is this minute of the week in the window? */
bool
window_has(const CompactionWindow *window, int minute)
{
	Assert(minute >= 0 && minute < MINUTES_PER_WEEK);
	return (window->minutes[minute / 8] & (1 << (minute % 8))) != 0;
}

/* read_window_item -- read days, hours, or both, into the window. */
static bool
read_window_item(const char **at, CompactionWindow *window)
{
	int			days = EVERY_DAY;
	int			from = 0;
	int			to = MINUTES_PER_DAY;

	skip_window_spaces(at);
	if (!isalpha((unsigned char) **at) && !isdigit((unsigned char) **at))
		return false;
	if (isalpha((unsigned char) **at))
	{
		if (!read_window_days(at, &days))
			return false;
		skip_window_spaces(at);
	}
	if (isdigit((unsigned char) **at) && !read_window_hours(at, &from, &to))
		return false;
	add_window_minutes(window, days, from, to);
	return true;
}

/* read_window_days -- read a day, or the first and the last of some, which may go around the week's end. */
static bool
read_window_days(const char **at, int *days)
{
	int			first = read_window_day(at);
	int			last = first;

	skip_window_spaces(at);
	if (first >= 0 && **at == '-')
	{
		(*at)++;
		skip_window_spaces(at);
		last = read_window_day(at);
	}
	if (first < 0 || last < 0)
		return false;
	*days = 1 << first;
	for (int day = first; day != last; day = (day + 1) % 7)
		*days |= 1 << ((day + 1) % 7);
	return true;
}

/* read_window_day -- read a day; returns its number from Sunday on, or -1. */
static int
read_window_day(const char **at)
{
	static const char *const names[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat"};

	for (int day = 0; day < lengthof(names); day++)
	{
		if (strncasecmp(*at, names[day], 3) == 0 && !isalpha((unsigned char) (*at)[3]))
		{
			*at += 3;
			return day;
		}
	}
	return -1;
}

/* read_window_hours -- read hours; from and to are minutes. */
static bool
read_window_hours(const char **at, int *from, int *to)
{
	*from = read_window_time(at);
	skip_window_spaces(at);
	if (*from < 0 || *from >= MINUTES_PER_DAY || **at != '-')
		return false;
	(*at)++;
	skip_window_spaces(at);
	*to = read_window_time(at);
	return *to >= 0 && *to <= MINUTES_PER_DAY;
}

/* read_window_time -- read a time of 00:00 to 24:59; returns its minutes, or -1. */
static int
read_window_time(const char **at)
{
	const char *p = *at;
	int			hour = 0;
	int			minute;

	for (int i = 0; i < 2 && isdigit((unsigned char) *p); i++)
		hour = hour * 10 + *p++ - '0';
	if (p == *at || *p != ':' || !isdigit((unsigned char) p[1]) || !isdigit((unsigned char) p[2]) ||
		isdigit((unsigned char) p[3]))
		return -1;
	minute = (p[1] - '0') * 10 + p[2] - '0';
	*at = p + 3;
	return hour <= 24 && minute < 60 ? hour * 60 + minute : -1;
}

/* skip_window_spaces -- go on to the next character that is no space. */
static void
skip_window_spaces(const char **at)
{
	while (isspace((unsigned char) **at))
		(*at)++;
}

/* add_window_minutes -- these hours of these days are in the window. */
static void
add_window_minutes(CompactionWindow *window, int days, int from, int to)
{
	Assert((days & ~EVERY_DAY) == 0);
	Assert(from >= 0 && from < MINUTES_PER_DAY);
	Assert(to >= 0 && to <= MINUTES_PER_DAY);

	if (to <= from)
		to += MINUTES_PER_DAY;
	for (int day = 0; day < 7; day++)
	{
		for (int i = from; i < to && (days & (1 << day)) != 0; i++)
		{
			int			minute = (day * MINUTES_PER_DAY + i) % MINUTES_PER_WEEK;

			window->minutes[minute / 8] |= 1 << (minute % 8);
		}
	}
}
