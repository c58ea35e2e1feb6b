/*-------------------------------------------------------------------------
 *
 * pace_simulation.h
 *	  Servers that the law of the latency target is tried on, in simulation.
 *
 * There is one at a time of each kind: the results are those of the last one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PACE_SIMULATION_H
#define CYCLONE_PACE_SIMULATION_H

#include <math.h>

#include "pace/pace_private.h"

#define TICK_SECONDS	0.25

/* Transactions of the disk's load */
typedef struct Sample
{
	double		end;			/* when it ended, in seconds */
	double		ms;
	double		weight;
	int			kind;
} Sample;

typedef struct Samples
{
	int			number;
	int			size;
	Sample	   *items;
} Samples;

/* A member that isn't set is 0, and then means what its comment says */
typedef struct Queue
{
	double		(*load) (double now);	/* how busy others keep a core, 0 to 1 */
	double		seconds;
	double		waits;			/* how much longer others wait for a core at
								 * full speed */
	bool		cores_are_unknown;	/* is it not known for how long? */
	uint64		seed;			/* 1 */
} Queue;

typedef struct Disk
{
	double		seconds;
	bool		has_no_vacuum;
	uint64		seed;			/* 1 */
} Disk;

extern void samples_add(Samples *samples, double end, double ms, double weight, int kind);
extern double samples_percentile(const Samples *samples, double start, double end,
								 int kind, double percent);

extern void queue_run(Queue queue);
extern double queue_speed(double start, double end);

extern void disk_run(Disk disk);
extern double disk_pages(void);
extern double disk_orders_ms(double start, double end);

#endif							/* CYCLONE_PACE_SIMULATION_H */
