/*-------------------------------------------------------------------------
 *
 * controller.c
 *	  The law of the adaptive delay: how many processes may be at work beyond the cost delay.
 *
 * A budget is a number of processes at work on average: 0.1 is one process that is awake
 * for a tenth of the time.  So much the cost delay has in any case, and the law learns what
 * may be added.  controller_step moves the sum of both four times a second.  The harm that
 * VACUUM does grows with the square of its speed, so one that is now fast and now slow does
 * more of it than a steady one: the law moves the budget's logarithm by small steps, in
 * proportion to the distance from its aim.
 *
 * (ran + waited) / ran of other sessions says how many times as long they take as alone on
 * the machine.  README.md tells what the law makes of that.  It knows nothing of the server,
 * so test/unit/test_pace_law.c drives it in simulations.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "neighbours/neighbours.h"
#include "pace/controller.h"

/*
 * The unit of each number, what it is, and what shows it.  The *log* is bench/research-log.md,
 * Latency.  *Holds* and *fails* are of the tests in test/unit/test_pace_law.c with that number
 * instead.
 */

/* s without other sessions until VACUUM counts as alone; of a rest; of the mean of waits.  Log: 1.75 is no better; 1.5 fails. */
#define MOMENT				1.0
/* s of the mean of the load, of the longest rest.  Chosen: 2.5 holds, 7.5 fails. */
#define PATIENCE			5.0
/* A factor, the most that one measurement is believed.  Log: at full speed other sessions take 4.4 times as long. */
#define LEAP				4.0
/* What other sessions take, times what they take in rests.  Log: so with vacuum_cost_limit = 800 and 2 ms. */
#define WAIT_MARGIN			1.06
/* Of the budget's logarithm, a second, for all that other sessions take.  Chosen: 0.5 holds, 2 fails. */
#define WAIT_GROWTH			1.0
/* Rests that are averaged, and s that they go back.  Log: 16 and 32 are no better. */
#define RESTS				8
#define MEMORY				(RESTS * (RESTS + 2) * MOMENT)

static bool law_is_alone(Controller *controller, const ControllerInput *input);
static bool law_rests(Controller *controller, const ControllerInput *input);
static void law_end_rest(Controller *controller);
static double law_vote(Controller *controller, const ControllerInput *input);
static void law_move(Controller *controller, const ControllerInput *input, double step);

/* controller_init -- nothing is known yet. */
void
controller_init(Controller *controller)
{
	memset(controller, 0, sizeof(*controller));
	controller->budget = controller->in_force = FLOOR_BUDGET;
	controller->limit = LIMIT_LEARNING;
	controller->since_rest = INFINITY;
}

/*
 * controller_resume
 *		Nothing was measured for some seconds, so the load may have changed; what was
 *		learned stays for as long as the mean of rests goes back.
 */
void
controller_resume(Controller *controller, double away)
{
	if (away >= MEMORY)
	{
		controller_init(controller);
		return;
	}
	controller->budget = controller->in_force = FLOOR_BUDGET;
	controller->limit = LIMIT_LEARNING;
	controller->alone = controller->resting = false;
	controller->ran = controller->waited = 0;
	controller->beside = controller->idle = controller->settling = 0;
}

/* controller_step -- move the budget by what has happened since the last step, unless that is long ago. */
void
controller_step(Controller *controller, const ControllerInput *input)
{
	Assert(input->seconds > 0 && input->seconds <= input->elapsed);
	if (input->elapsed >= MEMORY)
		controller_init(controller);
	if (input->elapsed >= PATIENCE)
		return;
	controller->alone = law_is_alone(controller, input);
	if (controller->alone)
	{
		controller->resting = false;
		controller->settling = controller->beside = 0;
		controller->ran = controller->waited = 0;
		/* others who come then may be quite others */
		controller->budget = controller->in_force = FLOOR_BUDGET;
		controller->limit = LIMIT_NOTHING;
	}
	else if (law_rests(controller, input))
		/* at its floor it learns all the time */
		controller->limit = controller->limit == LIMIT_FLOOR && controller->nrests > 0 ? LIMIT_FLOOR : LIMIT_LEARNING;
	else if (controller->settling > 0)
		controller->settling -= input->seconds;
	else
		law_move(controller, input, law_vote(controller, input));
}

/* controller_added -- processes at work on average, beyond the cost delay; INFINITY: no bound. */
double
controller_added(const Controller *controller)
{
	return controller->alone ? INFINITY : controller->resting ? 0 : controller->in_force - FLOOR_BUDGET;
}

/* controller_takes -- how many times as long as alone on the machine others take now, or NAN. */
double
controller_takes(const Controller *controller)
{
	return controller->ran > 0 ? 1 + controller->waited / controller->ran : NAN;
}

/* controller_would_take -- how many times they would take if nothing were added, or NAN: it isn't known. */
double
controller_would_take(const Controller *controller)
{
	return controller->base_ran > 0 ? 1 + controller->base_waited / controller->base_ran : NAN;
}

/* law_is_alone -- is there no session to be spared, or only one that looks now and then? */
static bool
law_is_alone(Controller *controller, const ControllerInput *input)
{
	double		load = (input->others_ran + input->others_waited) / input->looked;
	double		averaged;

	Assert(input->looked > 0);
	controller->load_for += input->elapsed;
	averaged = Min(controller->load_for + MOMENT, PATIENCE);
	controller->load += (load - controller->load) * Min(input->elapsed / averaged, 1);
	controller->idle = load >= NEIGHBOURS_NOBODY ? 0 : controller->idle + input->elapsed;
	return controller->idle >= MOMENT ||
		(controller->load_for >= PATIENCE && controller->load < NEIGHBOURS_NOBODY);
}

/*
 * law_rests
 *		Does VACUUM rest, with nothing added, to learn how fast others are then?
 *
 * The effect of what VACUUM did lasts for a moment, so the first step of a rest doesn't
 * count.  Intervals are uneven, by the golden ratio, or rests would always meet one
 * part of a load that comes as often as they do.
 */
static bool
law_rests(Controller *controller, const ControllerInput *input)
{
	controller->since_rest += input->seconds;
	if (!controller->resting)
	{
		double		uneven = 0.5 + fmod(controller->nrests * 0.618034 + 0.5, 1);

		if (controller->since_rest < (Min(controller->nrests, RESTS) + 1) * uneven * MOMENT)
			return false;
		controller->resting = true;
		controller->rest_seconds = -input->seconds;
		controller->rest_ran = controller->rest_waited = 0;
		return true;
	}
	controller->rest_seconds += input->seconds;
	if (controller->rest_seconds <= 0)
		return true;
	controller->rest_ran += input->others_ran;
	controller->rest_waited += input->others_waited;
	/* the first rest is longer, as there is no mean yet */
	if (controller->rest_seconds < (controller->nrests == 0 ? 2 : 1) * MOMENT ||
		(controller->rest_ran <= 0 && controller->rest_seconds < PATIENCE))
		return true;
	law_end_rest(controller);
	controller->settling = input->seconds;
	return true;
}

/* law_end_rest -- add the rest to the mean; one in which no other session ran says nothing. */
static void
law_end_rest(Controller *controller)
{
	if (controller->rest_ran > 0)
	{
		double		most = controller->rest_ran * (LEAP * controller_would_take(controller) - 1);
		double		weight;

		if (controller->nrests > 0)
			controller->rest_waited = Min(controller->rest_waited, most);
		weight = 1.0 / (Min(controller->nrests, RESTS - 1) + 1);
		controller->nrests++;
		controller->base_ran += (controller->rest_ran - controller->base_ran) * weight;
		controller->base_waited += (controller->rest_waited - controller->base_waited) * weight;
	}
	controller->resting = false;
	controller->since_rest = 0;
	controller->ran = controller->waited = 0;
}

/* law_vote -- by how much the logarithm of the budget is to change: by how much longer others take than in rests. */
static double
law_vote(Controller *controller, const ControllerInput *input)
{
	double		kept = exp(-input->seconds / MOMENT);
	double		trust = WAIT_GROWTH * Min((double) controller->nrests / RESTS, 1);
	double		now = LEAP * input->seconds;
	double		takes,
				longer;

	controller->ran = controller->ran * kept + input->others_ran;
	controller->waited = controller->waited * kept + input->others_waited;
	if (controller->ran <= 0 || controller->nrests == 0)
		return 0;
	takes = controller_takes(controller);
	longer = takes / controller_would_take(controller);
	if (!input->cores_are_unknown && (controller->beside > 0 || takes < WAIT_MARGIN))
		controller->beside = Max(controller->beside + now * (WAIT_MARGIN - takes), 0);
	else
		controller->beside = Min(controller->beside + now * (1 + 1 / LEAP - longer), 0);
	return trust * input->seconds * (WAIT_MARGIN - Min(longer, LEAP / 2));
}

/* law_move -- change the budget's logarithm by a step, or a part of it. */
static void
law_move(Controller *controller, const ControllerInput *input, double step)
{
	double		used = Max(2 * input->awake, FLOOR_BUDGET);

	/* a budget that VACUUM doesn't use shrinks from what it uses */
	if (step < 0 && input->awake > 0 && controller->in_force > used)
		controller->budget = isinf(controller->budget) ? used : controller->budget * used / controller->in_force;
	controller->budget = Max(controller->budget * exp(Max(step, -log(LEAP))), FLOOR_BUDGET);
	if (input->cores_are_unknown)
		controller->budget = FLOOR_BUDGET;
	controller->beside = Max(controller->beside, log(FLOOR_BUDGET / Min(controller->budget, PG_INT32_MAX)));
	controller->beside = Min(controller->beside, Max(log(used / controller->budget), 0));
	controller->in_force = Max(controller->budget * exp(controller->beside), FLOOR_BUDGET);
	/* a budget that is twice what VACUUM uses needs no bound */
	if (controller->in_force > used && controller->budget > 1 && input->awake > 0)
		controller->budget = controller->in_force = INFINITY;
	controller->limit = controller->in_force <= FLOOR_BUDGET ? LIMIT_FLOOR :
		isinf(controller->budget) ? LIMIT_NOTHING : LIMIT_OTHERS;
}
