/*-------------------------------------------------------------------------
 *
 * neighbours.h
 *	  Who else wants the cores of the machine.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEIGHBOURS_H
#define CYCLONE_NEIGHBOURS_H

extern uint32 neighbours_law(double others, int cores);
extern bool neighbours_look(uint64 now);
extern uint32 neighbours_room(void);

#endif							/* CYCLONE_NEIGHBOURS_H */
