/*-------------------------------------------------------------------------
 *
 * window.h
 *	  The hours of the week in which tables are compacted.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_WINDOW_H
#define CYCLONE_WINDOW_H

#include "pgtime.h"

#define MINUTES_PER_DAY		(24 * 60)
#define MINUTES_PER_WEEK	(7 * MINUTES_PER_DAY)

/* A bit for each minute of a week, from Sunday on, as the clock on the wall has it */
typedef struct CompactionWindow
{
	uint8		minutes[MINUTES_PER_WEEK / 8];
} CompactionWindow;

/* The minute of the week that a clock on the wall shows at a moment */
typedef int (*WallClock) (pg_time_t moment);

/*
 * window_parse returns false and sets *problem if the text is no window.  None of these
 * raises an error.  window_next_change looks up to two weeks ahead.
 */
extern bool window_parse(const char *text, CompactionWindow *window, const char **problem);
extern bool window_has(const CompactionWindow *window, int minute);
extern int64 window_next_change(const CompactionWindow *window, pg_time_t moment, WallClock clock);

#endif							/* CYCLONE_WINDOW_H */
