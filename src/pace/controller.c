/*-------------------------------------------------------------------------
 *
 * controller.c
 *	  The law of a latency target: how many processes of VACUUM may be at work.
 *
 * A budget is a number of processes at work on average, from 0.02 to all of them: 0.1
 * is one process that is awake for a tenth of the time.  controller_step moves it
 * four times a second, by what was measured.  It knows nothing of the server, so
 * test/unit/test_pace_law.c drives it in simulations.
 *
 * The harm that VACUUM does grows with the square of its speed: statements of
 * TPC-C took 1.04, 1.17 and 1.91 times as long at 9, 18 and 36 % of full speed.  So
 * a VACUUM that is now fast and now slow does more harm than a steady one.  The law
 * moves the budget's logarithm by small steps, in proportion to the distance from its aim.
 *
 * A target in ms
 * --------------
 * Each statement votes once: it is late, or it isn't.  At the 95th percentile, one
 * late statement weighs as much as nineteen others.  So if one in twenty is late the
 * budget stays, and chance averages out.  The fewer statements there are, the slower
 * they move the budget; they never raise it faster than GROWTH.  A target that is missed
 * by far cuts the budget at once: if all are late, there are twenty times as many late
 * ones as expected.  Statements that had begun before such a cut tell of the old budget,
 * so the law looks at nothing for as long as they take.
 *
 * If no statement ends for as long as thirty of them usually take, those that run and
 * are already late vote (controller_misses_statements).
 *
 * auto
 * ----
 * The caller says how long other sessions had a core, and how long they waited: for a
 * core, a file, a lock on a page.  (ran + waited) / ran says how many times as long as
 * alone on the machine they take.  To measure this without VACUUM, VACUUM rests for a
 * moment, and then goes on for nine times as long, as LEDBAT++ does.  The mean of the last
 * eight rests counts.  The budget grows while others take less than WAIT_MARGIN times as
 * long as in rests, and shrinks while they take longer, slowly and in proportion, so waits
 * that vary by themselves average out.  One rest tells little of them: the first ones come
 * earlier, and until there were 32 the budget moves less.  A rest counts as LEAP times the
 * mean at most, and not if nobody ran.  If waits for a core are unknown, FIRST_BUDGET is
 * the most.  What can't be chance counts at once, while it lasts (beside): VACUUM goes
 * faster if others take less than WAIT_MARGIN times as long as alone; slower beyond 1.25 times a rest.
 *
 * Nobody
 * ------
 * If for a second there was nobody to be spared, nothing bounds VACUUM.  By chance no
 * statement comes for a while, so with a target in ms it takes as long as thirty
 * statements usually do.  A session that only looks now and then is nobody, too.  Nor
 * does anything bound VACUUM if hardly any of the load is left that the last cut was
 * for, unless what is left is late: then the load is held up, not gone.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "pace/pace_private.h"

static void note_load(Controller *controller, const ControllerInput *input);
static bool is_alone(Controller *controller, const ControllerInput *input);
static double pause_seconds(const Controller *controller);
static bool rests(Controller *controller, const ControllerInput *input);
static double base(const Controller *controller);
static double vote_of_statements(const Controller *controller, const ControllerInput *input);
static double vote_of_waits(Controller *controller, const ControllerInput *input);
static void move(Controller *controller, const ControllerInput *input, double step);

/* controller_init -- begin with a target in ms, or 0 for auto. */
void
controller_init(Controller *controller, double target_ms)
{
	Assert(target_ms >= 0);
	memset(controller, 0, sizeof(*controller));
	controller->target_ms = target_ms;
	controller->budget = controller->in_force = FIRST_BUDGET;
	controller->since_rest = INFINITY;
}

/* controller_resume -- nothing was measured for a while, so the load may have changed; what was learned stays. */
void
controller_resume(Controller *controller)
{
	controller->budget = controller->in_force = Min(controller->budget, FIRST_BUDGET);
	controller->beside = 0;
	controller->alone = controller->resting = false;
	controller->ran = controller->waited = 0;
	controller->at_floor = controller->idle = controller->silent = controller->settling = 0;
	controller->owed = controller->held_up = 0;
}

/* controller_step -- move the budget by what has happened since the last step. */
void
controller_step(Controller *controller, const ControllerInput *input)
{
	bool		is_auto = controller->target_ms == 0;
	double		step;

	Assert(input->seconds > 0 && input->seconds <= input->elapsed);
	note_load(controller, input);
	controller->alone = is_alone(controller, input);
	if (controller->alone)
	{
		controller->resting = false;
		controller->at_floor = controller->settling = controller->owed = controller->beside = 0;
		controller->in_force = controller->budget;
		controller->limit = LIMIT_NOTHING;
		return;
	}
	if (is_auto && rests(controller, input))
	{
		controller->limit = LIMIT_LEARNING;
		return;
	}
	if (controller->settling > 0)
	{
		controller->settling -= input->seconds;
		return;
	}
	step = is_auto ? vote_of_waits(controller, input) : vote_of_statements(controller, input);
	move(controller, input, step);
}

/* controller_budget -- processes at work on average; INFINITY: no bound. */
double
controller_budget(const Controller *controller)
{
	return controller->alone ? INFINITY : controller->resting ? LEAST_BUDGET / LEAP : controller->in_force;
}

/* controller_late_ms -- the time beyond which a statement is late; INFINITY: none is. */
double
controller_late_ms(const Controller *controller)
{
	return controller->target_ms > 0 ? controller->target_ms * AIM : INFINITY;
}

/* controller_misses_statements -- has none ended for long, so that those that run vote? */
bool
controller_misses_statements(const Controller *controller)
{
	return controller->silent >= pause_seconds(controller);
}

/* controller_target_is_out_of_reach -- is it missed although VACUUM hardly moves? */
bool
controller_target_is_out_of_reach(const Controller *controller)
{
	return controller->target_ms > 0 && controller->at_floor >= 2 * PATIENCE;
}

/* note_load -- how many statements there are, and for how long there was nobody. */
static void
note_load(Controller *controller, const ControllerInput *input)
{
	bool		is_auto = controller->target_ms == 0;
	double		load = is_auto ? (input->others_ran + input->others_waited) / input->looked :
		input->ended / input->elapsed;
	double		averaged;
	bool		somebody;

	Assert(input->elapsed > 0 && (!is_auto || input->looked > 0));
	controller->load_for += input->elapsed;
	averaged = Min(controller->load_for + MOMENT, PATIENCE);
	controller->load += (load - controller->load) * Min(input->elapsed / averaged, 1);
	controller->silent = input->ended > 0 ? 0 : controller->silent + input->elapsed;
	if (input->ended > 0)
		controller->usual_load = controller->load;

	somebody = is_auto ? load >= NEIGHBOURS_NOBODY : input->votes > 0 || input->ended > 0 ||
		(input->some_run && controller->usual_load >= NOBODY_A_SECOND);
	controller->idle = somebody ? 0 : controller->idle + input->elapsed;
}

/* is_alone -- is there nobody to be spared? */
static bool
is_alone(Controller *controller, const ControllerInput *input)
{
	double		load = controller->load;
	double		pause = pause_seconds(controller);
	bool		is_gone = controller->silent < pause && load < controller->load_at_cut / LEAP;

	if (controller->target_ms == 0)
		return controller->idle >= MOMENT ||
			(controller->load_for >= PATIENCE && load < NEIGHBOURS_NOBODY);
	/* as many late ones as make the deepest cut, if more than a part is late */
	controller->held_up = is_gone ?
		Max(controller->held_up + input->late - input->votes / LEAP, 0) : 0;
	/* that few statements end says nothing while sessions are stuck */
	return controller->idle >= pause ||
		((controller->idle > 0 || controller->silent < pause) && load < NOBODY_A_SECOND) ||
		(is_gone && controller->held_up * VOTE < log(LEAP));
}

/* pause_seconds -- a time without a statement that is not due to chance. */
static double
pause_seconds(const Controller *controller)
{
	return Max(Min(PAUSE / Max(controller->usual_load, NOBODY_A_SECOND), PATIENCE), MOMENT);
}

/*
 * rests
 *		Is VACUUM at rest, to learn how fast others are without it?
 *
 * The effect of what VACUUM did lasts for a moment, so the first step of a rest doesn't
 * count.  Intervals are uneven, by the golden ratio, or rests would always meet the same
 * part of a load that comes as often as they do.
 */
static bool
rests(Controller *controller, const ControllerInput *input)
{
	double		weight;

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
	if (controller->rest_ran > 0)
	{
		double		most = controller->rest_ran * (LEAP * base(controller) - 1);

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
	controller->settling = input->seconds;
	return true;
}

/* base -- how many times as long as alone on the machine others take in rests. */
static double
base(const Controller *controller)
{
	return 1 + (controller->base_ran > 0 ? controller->base_waited / controller->base_ran : 0);
}

/* vote_of_statements -- by how much the logarithm of the budget is to change. */
static double
vote_of_statements(const Controller *controller, const ControllerInput *input)
{
	double		expected = input->votes * (1 - input->percent / 100);

	if (expected <= 0)
		return 0;
	return Min(VOTE * expected, GROWTH * input->seconds) * (1 - input->late / expected);
}

/* vote_of_waits -- the same, by how much longer others take than in rests. */
static double
vote_of_waits(Controller *controller, const ControllerInput *input)
{
	double		kept = exp(-input->seconds / MOMENT);
	double		trust = WAIT_GROWTH * Min(controller->nrests / (LEAP * RESTS), 1);
	double		now = LEAP * input->seconds;
	double		takes,
				longer;

	controller->ran = controller->ran * kept + input->others_ran;
	controller->waited = controller->waited * kept + input->others_waited;
	if (controller->ran <= 0)
		return 0;
	takes = 1 + controller->waited / controller->ran;
	longer = takes / base(controller);
	if (!input->cores_are_unknown && (controller->beside > 0 || takes < WAIT_MARGIN))
		controller->beside = Max(controller->beside + now * (WAIT_MARGIN - takes), 0);
	else if (controller->nrests > 0)
		controller->beside = Min(controller->beside + now * (1 + 1 / LEAP - longer), 0);
	return trust * input->seconds * (WAIT_MARGIN - Min(longer, LEAP / 2));
}

/* move -- change the budget's logarithm by a step, or a part of it. */
static void
move(Controller *controller, const ControllerInput *input, double step)
{
	double		now = step > 0 ? Max(step - controller->owed, 0) : Max(step, -log(LEAP));
	double		used = Max(2 * input->awake, LEAST_BUDGET);

	if (step > 0)
		controller->owed = Max(controller->owed - step, 0);
	else if (controller->target_ms > 0)
		controller->owed = Min(Max(controller->owed, now - step), GROWTH * PATIENCE);
	/* a budget that VACUUM doesn't use shrinks from what it uses */
	if (step < 0 && input->awake > 0 && controller->in_force > used)
		controller->budget = isinf(controller->budget) ? used : controller->budget * used / controller->in_force;
	controller->budget = Max(controller->budget * exp(now), LEAST_BUDGET);
	if (input->cores_are_unknown)
		controller->budget = Min(controller->budget, FIRST_BUDGET);
	controller->beside = Max(controller->beside, log(LEAST_BUDGET / controller->budget));
	controller->beside = Min(controller->beside, Max(log(used / controller->budget), 0));
	controller->in_force = Max(controller->budget * exp(controller->beside), LEAST_BUDGET);
	/* a budget that is twice what VACUUM uses needs no bound */
	if (controller->in_force > used && controller->budget > 1 && input->awake > 0)
		controller->budget = controller->in_force = INFINITY;

	Assert(controller->budget >= LEAST_BUDGET && controller->in_force >= LEAST_BUDGET);
	if (step < 0)
		controller->load_at_cut = controller->load;
	if (step < log(0.5) && controller->target_ms > 0)
		controller->settling = Min(controller->target_ms / 1000, MOMENT) - input->seconds;
	controller->at_floor = step > 0 || controller->in_force > LEAST_BUDGET ? 0 : controller->at_floor + input->seconds;
	controller->limit = controller->at_floor > 0 ? LIMIT_FLOOR :
		isinf(controller->budget) ? LIMIT_NOTHING : LIMIT_LATENCY;
}
