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

/* Statements, or transactions of the disk's load */
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
	double		target_ms;
	double		(*load) (double now);	/* how busy statements keep it, 0 to 1 */
	double		seconds;
	double		per_second;		/* statements at full load; 400 */
	double		base_ms;		/* they take on average, if there are few; 5 */
	double		harm;			/* how much a VACUUM takes of what is left at
								 * full speed, beside its own; 0.48 */
	double		noise;			/* standard deviation of the logarithm of what
								 * they take */
	double		waits;			/* how much longer others wait for a core at
								 * full speed */
	bool		cores_are_unknown;	/* is it not known for how long? */
	int			sample;			/* by chance one in so many is counted, and as
								 * so many; 1 */
	uint64		seed;			/* 1 */
} Queue;

typedef struct Disk
{
	double		target_ms;
	double		seconds;
	bool		has_no_vacuum;
	uint64		seed;			/* 1 */
} Disk;

extern void samples_add(Samples *samples, double end, double ms, double weight, int kind);
extern double samples_percentile(const Samples *samples, double start, double end,
								 int kind, double percent);

extern void law_step(Controller *controller, const double *ended, int nended,
					 const double *running, int nrunning, ControllerInput input);

extern void queue_run(Queue queue);
extern Controller *queue_controller(void);
extern double queue_percentile(double start, double end);
extern double queue_speed(double start, double end);

extern void disk_run(Disk disk);
extern double disk_pages(void);
extern double disk_statements_ms(double start, double end);
extern double disk_orders_ms(double start, double end);

#endif							/* CYCLONE_PACE_SIMULATION_H */
