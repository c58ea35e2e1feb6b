/*-------------------------------------------------------------------------
 *
 * neighbours.h
 *	  Other sessions of the server: what they do, and how long they wait.
 *
 * It is measured here, for code that spares them; what comes of it is not decided here.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_NEIGHBOURS_H
#define CYCLONE_NEIGHBOURS_H

/* The time between two looks: enough for who waits for as long as it can be felt */
#define NEIGHBOURS_LOOK_NS	(100 * (uint64) NS_PER_MS)
/* The time between two glances at who waits: such waits are short, and seldom more than one at a time. */
#define NEIGHBOURS_GLANCE_NS	(NEIGHBOURS_LOOK_NS / 10)
/* Sessions that together use less than this part of a core, and wait for no longer, don't count. */
#define NEIGHBOURS_NOBODY	0.02
/* The room for workers if no other session is there */
#define NEIGHBOURS_NONE		PG_INT32_MAX
/* This many looks in succession are compared. */
#define NEIGHBOURS_LOOKS	3

/* How many were at work in looks so far; zeroed at first */
typedef struct NeighboursSeen
{
	double		average;
	double		seconds;		/* since it was last changed */
	int			looks;			/* that are comparable */
	int			counts[NEIGHBOURS_LOOKS];
} NeighboursSeen;

/* What other sessions have had since they were looked at last, in ns */
typedef struct NeighboursTimes
{
	uint64		looked;			/* the time that the figures are of */
	uint64		ran;
	uint64		waited;			/* for what VACUUM uses, too */
	bool		cores_are_unknown;	/* the time for which they wait for one is
									 * part of the time that they ran */
} NeighboursTimes;

/* The law, which knows nothing of the server, is neighbours_law and neighbours_note. */

/*
 * A look, this many seconds after the one before, has counted this many other sessions.  Until
 * there are three looks, none more than a second after the one before, the average
 * stays as it was.
 */
extern void neighbours_note(NeighboursSeen *seen, int count, double seconds);

/*
 * Return for how many workers there is room if this many processes of others want one
 * of the cores.
 */
extern uint32 neighbours_law(double others, int cores);

/* This process takes part in a VACUUM, until neighbours_leave or its end. */
extern void neighbours_join(void);

/* It no longer does; harmless if it never did. */
extern void neighbours_leave(void);

/* To be called in a process before it looks. */
extern void neighbours_prepare(void);

/*
 * The leader may have workers: look around now, as often as it takes to know
 * something.  Sleeps for some ms if this process has not looked within the last
 * second.
 */
extern void neighbours_begin(void);

/*
 * Look around, unless this process has done so within the last tenth of a second;
 * return whether it has looked.  With reads_times, *times is what others have had
 * since the last look; then call it as often as NEIGHBOURS_GLANCE_NS, if that can be.
 */
extern bool neighbours_look(uint64 now, bool reads_times, NeighboursTimes *times);

/* Return for how many workers there is room, by the looks so far. */
extern uint32 neighbours_room(void);

extern void neighbours_shmem_request(void);
extern void neighbours_shmem_init(void);

#endif							/* CYCLONE_NEIGHBOURS_H */
