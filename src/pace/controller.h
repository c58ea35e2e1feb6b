/*-------------------------------------------------------------------------
 *
 * controller.h
 *	  The control law that keeps a vacuum to a latency target.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CONTROLLER_H
#define CYCLONE_CONTROLLER_H

/* What the law is told: what has happened since its last step */
typedef struct ControllerInput
{
	double		seconds;		/* since then, as far as it counts */
	double		elapsed;		/* since then, by the clock */
	double		percentile_ms;	/* of the statements in the window */
	double		percent;		/* which percentile that is */
	double		samples;		/* so many statements are in the window */
	double		late;			/* so many of them took longer than
								 * controller_late_ms says */
	double		ended;			/* statements, since then */
	double		statements;		/* those, and what is late already */
	double		rate;			/* what the vacuum has cost a second */
	double		awake;			/* so many of its processes did not sleep, on
								 * average */
	double		others_ran;		/* seconds that other sessions had a core, all
								 * together, once for each of the vacuums that
								 * look; 0: that isn't known */
	double		others_waited;	/* likewise, that they waited for one */
	bool		some_run;		/* late or not */
	bool		are_transactions;	/* statements are, of which there are less */
} ControllerInput;

/* What keeps the vacuum from going faster */
typedef enum ControllerLimit
{
	LIMIT_NOTHING,				/* all that the machine gives */
	LIMIT_LATENCY,
	LIMIT_LEARNING,				/* how fast statements are without it */
	LIMIT_FLOOR,				/* the target is missed at the slowest pace */
	LIMIT_CLUSTER,				/* the coordinator says so; not of the law */
} ControllerLimit;

/* So many measurements make a learned target, the latest ones. */
#define LEARN_SLICES	12

/* What was measured while the vacuum was held back */
typedef struct Slice
{
	double		percentile_ms;
	double		stretch;		/* by what factor waiting for a core made
								 * longer what others did; 0: that isn't known */
} Slice;

typedef struct Controller
{
	bool		learns_target;
	double		target_ms;		/* 0: not learned yet */
	double		budget;			/* cost a second; INFINITY: no bound */
	ControllerLimit limit;
	bool		forget_window;	/* what is in it says nothing any more */
	bool		learning;

	double		best_rate;		/* the most that it has cost a second, lately */
	double		best_rate_ever; /* likewise, since there is a target */
	double		ceiling;		/* the last budget that was too much */
	double		since_miss;		/* seconds */
	double		settling;		/* seconds to go in which to see nothing */
	double		age;			/* seconds */
	double		idle;			/* seconds without a statement */
	double		silent;			/* seconds in which none has ended */
	double		load;			/* statements a second, of late */
	double		usual_load;		/* likewise, of a longer time */
	double		load_for;		/* seconds, since it began */
	bool		has_load;		/* is there anybody to be spared? */
	double		load_at_miss;	/* what it was then */
	double		awake;			/* processes that were, of late, smoothed */
	double		unused;			/* seconds of using half of the budget at most */
	double		at_floor;		/* seconds of missing the target there, or of
								 * others' waiting for cores */
	double		missed_at_floor;	/* the former ones */
	bool		interrupted;	/* learning, as there was nothing to learn
								 * from */
	double		settling_needed;	/* seconds */
	double		settled_for;	/* seconds, since it began or went on */
	double		learned_for;	/* seconds of measuring */
	int			wanted_slices;	/* in this go */
	double		slice_for;		/* seconds */
	double		slice_statements;
	double		slice_logs;		/* sum of the logarithms of the percentiles
								 * that were measured in it */
	int			slice_steps;
	double		slice_elapsed;	/* likewise, by the clock */
	double		slice_ran;		/* seconds, of other sessions */
	double		slice_waited;
	Slice		slices[LEARN_SLICES];
	int			nslices;
	int			next_slice;		/* the oldest, once there are so many */
	int			strange_slices; /* the latest ones, all far from the others on
								 * one side */
	double		watched;		/* seconds, of late */
	double		ran;			/* of these, other sessions */
	double		waited;
	double		learned_stretch;	/* of slices; 0: that isn't known */
	double		since_waits;	/* seconds, since that was last seen */
	double		log_excess;		/* by what factor a learned target was missed
								 * of late, as a logarithm */
	double		since_learned;	/* seconds */
	double		learn_after;	/* seconds, from then */
	double		learned_ms;		/* the percentile without the vacuum */
	double		least_learned_ms;	/* so far; 0: nothing was learned */
	double		learned_spread; /* its standard deviation, as a part of it */
	double		budget_before_learning;
} Controller;

extern void controller_init(Controller *controller, double target_ms);
extern void controller_restart(Controller *controller);
extern void controller_set_target(Controller *controller, double target_ms);
extern void controller_forget_load(Controller *controller);
extern void controller_step(Controller *controller, const ControllerInput *input);
extern double controller_late_ms(const Controller *controller);
extern double controller_far_ms(const Controller *controller);
extern bool controller_misses_statements(const Controller *controller);
extern double controller_floor(const Controller *controller);
extern bool controller_target_is_out_of_reach(const Controller *controller);

#endif							/* CYCLONE_CONTROLLER_H */
