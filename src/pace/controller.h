/*-------------------------------------------------------------------------
 *
 * controller.h
 *	  The law of the latency target auto: what it is told, and what it keeps in mind.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CONTROLLER_H
#define CYCLONE_CONTROLLER_H

/* Processes, the least there is.  Chosen: a table of a day at full speed takes seven weeks. */
#define LEAST_BUDGET		0.02

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
	LIMIT_LATENCY,
	LIMIT_LEARNING,				/* how fast other sessions are without it */
	LIMIT_FLOOR,				/* others wait, although it is at its slowest
								 * pace */
} ControllerLimit;

typedef struct Controller
{
	double		budget;			/* what was learned */
	double		beside;			/* of its logarithm, for the moment */
	double		in_force;		/* both; see controller_budget */
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
 * For one process at a time: the one that ticks, or the one that has the target's lock while no
 * VACUUM has the target.  They take no lock, look at no clock and raise no error.  In
 * controller_step, seconds is above 0 and at most elapsed, and looked is above 0.
 */
extern void controller_init(Controller *controller);
extern void controller_resume(Controller *controller, double away);
extern void controller_step(Controller *controller, const ControllerInput *input);
extern double controller_budget(const Controller *controller);

#endif							/* CYCLONE_CONTROLLER_H */
