/*-------------------------------------------------------------------------
 *
 * controller.h
 *	  The law of the adaptive delay: what it is told, and what it keeps in mind.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CONTROLLER_H
#define CYCLONE_CONTROLLER_H

/* Processes, as which the cost delay counts in the law.  Log: the default one keeps 0.05 at work; with 0.1 the law is sooner there. */
#define FLOOR_BUDGET		0.1

/* What has happened since the last step */
typedef struct ControllerInput
{
	double		seconds;		/* as far as it counts */
	double		elapsed;		/* by the clock */
	double		awake;			/* processes of VACUUMs, on average */
	double		looked;			/* seconds for which the following is known */
	double		others_ran;		/* seconds of other sessions on a core */
	double		others_waited;	/* seconds for which they waited for what
								 * VACUUM uses */
	bool		cores_are_unknown;	/* waits for a core are in others_ran */
} ControllerInput;

/* What keeps the vacuum from going faster */
typedef enum ControllerLimit
{
	LIMIT_NOTHING,				/* all that the machine gives */
	LIMIT_OTHERS,
	LIMIT_LEARNING,				/* what other sessions take beside the cost
								 * delay alone */
	LIMIT_FLOOR,				/* nothing is added to the cost delay */
} ControllerLimit;

typedef struct Controller
{
	double		budget;			/* what was learned, FLOOR_BUDGET included */
	double		beside;			/* of its logarithm, for the moment */
	double		in_force;		/* both; see controller_added */
	ControllerLimit limit;

	double		load;			/* sessions at work */
	double		load_for;		/* seconds since the first step */
	double		idle;			/* seconds without a session to be spared */
	double		settling;		/* seconds to go in which it doesn't look */
	bool		alone;			/* there is no session to be spared */

	bool		resting;		/* to learn */
	double		since_rest;		/* seconds */
	double		rest_seconds;	/* in the current or last rest */
	double		rest_ran;		/* by other sessions in it, in seconds */
	double		rest_waited;
	int			nrests;
	double		base_ran;		/* seconds a rest */
	double		base_waited;
	double		ran;			/* by other sessions, averaged over MOMENT */
	double		waited;
} Controller;

/*
 * For one process at a time: the one that ticks, or the one that has the lock of adaptive.c while
 * no VACUUM has an adaptive delay.  They take no lock, look at no clock and raise no error.  In
 * controller_step, seconds is above 0 and at most elapsed, and looked is above 0.
 */
extern void controller_init(Controller *controller);
extern void controller_resume(Controller *controller, double away);
extern void controller_step(Controller *controller, const ControllerInput *input);
extern double controller_added(const Controller *controller);
extern double controller_takes(const Controller *controller);
extern double controller_would_take(const Controller *controller);

#endif							/* CYCLONE_CONTROLLER_H */
