/*-------------------------------------------------------------------------
 *
 * neighbours.h
 *	  Who else wants the cores of the machine, or its disks.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEIGHBOURS_H
#define CYCLONE_NEIGHBOURS_H

/* So many looks in succession are compared. */
#define NEIGHBOURS_LOOKS	3

/* What was seen so far; zeroed at first */
typedef struct NeighboursSeen
{
	double		average;
	double		seconds;		/* since it was last changed */
	int			looks;			/* that are comparable */
	int			counts[NEIGHBOURS_LOOKS];
} NeighboursSeen;

/* the law, which knows nothing of the server */
extern void neighbours_note(NeighboursSeen *seen, int count, double seconds);
extern uint32 neighbours_law(double others, int cores);

/* a leader */
extern void neighbours_begin(void);
extern bool neighbours_look(uint64 now);
extern uint32 neighbours_room(void);

#endif							/* CYCLONE_NEIGHBOURS_H */
