/*-------------------------------------------------------------------------
 *
 * own_wait_event.h
 *	  Wait events with names of our own.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_OWN_WAIT_EVENT_H
#define CYCLONE_OWN_WAIT_EVENT_H

#include "utils/wait_event.h"

/*
 * Return the wait event of this name, or "Extension" if the server has no room for another
 * name.  *event is 0 before the first call, and belongs to this name.  Raises no error; the
 * caller may have locks, but handles no error, which would be forgotten.
 */
extern uint32 own_wait_event(uint32 *event, const char *name);

/* own_wait_sleep -- sleep for a few ms, whatever signals come, under the name of a wait event. */
static inline void
own_wait_sleep(uint32 event, int ms)
{
	pgstat_report_wait_start(event);
	pg_usleep(ms * 1000L);
	pgstat_report_wait_end();
}

#endif							/* CYCLONE_OWN_WAIT_EVENT_H */
