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

/*
 * Return the wait event of this name, or "Extension" if the server has no room for another
 * name.  *event is 0 before the first call, and belongs to this name.  Raises no error; the
 * caller may have locks, but handles no error, which would be forgotten.
 */
extern uint32 own_wait_event(uint32 *event, const char *name);

#endif							/* CYCLONE_OWN_WAIT_EVENT_H */
