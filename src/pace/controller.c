/*-------------------------------------------------------------------------
 *
 * controller.c
 *	  The control law that keeps a vacuum to a latency target.
 *
 * The vacuum's budget, in cost a second, is moved so that a percentile of the
 * latency of other sessions' statements stays at the target.  controller_step
 * is called a few times a second with what was measured.  It knows nothing of
 * the server, so that a simulation can drive it (test/pytest/test_pace.py).
 *
 * What it has to deal with is not linear: as long as there is capacity to
 * spare the budget does not show in the latency at all, and then, within a
 * few per cent, the queue explodes.  So it works on the budget's logarithm,
 * and takes after congestion control in networks, where the same is true:
 *
 * - When the target is missed, the budget is cut at once, the more the worse
 *	 the miss, and what it was is remembered as the ceiling.  Statements that
 *	 had begun by then tell of the old budget, so for about as long as they
 *	 take nothing is looked at, and the window is emptied.
 * - When there is room the budget grows, the more room the faster: slowly
 *	 while a miss is recent, most of all near the ceiling, and fast when it
 *	 has gone well for a while, as the load may have changed.
 * - When there are no statements at all, or hardly any of those that there were
 *	 at the last miss, nobody has to be spared, and a second is enough to get
 *	 from the floor to full speed.
 * - The floor, a hundredth of full speed, keeps the vacuum moving even if the
 *	 target can't be met that way.
 *
 * A percentile of the statements of a second is noisy.  A miss that may be
 * chance makes the budget shrink as gently as it would grow if there was that
 * much room, so that chance averages out; otherwise the vacuum would crawl
 * for fear of it.  And the aim is a little below the target.
 *
 * A target that is to be learned is a tenth above the percentile measured
 * while the vacuum is at its floor: at first for some seconds, and then again
 * and again for a moment, as the load of an hour ago is not that of now, and
 * neither are the disturbances that have other reasons.  How much the
 * percentile varies by itself is learned as well: statements disturb each other
 * in bursts, and chance is more than their number tells.  If a measurement is
 * far from those before, the load may have changed: then the next one comes soon,
 * and if some in a row say so, what was before is forgotten.  It may also be the
 * vacuum's own doing that hasn't faded yet; so the more the target has risen, the
 * longer is it held back before it measures.  And a vacuum that
 * has come to its floor may as well measure.  As such a target
 * is met without the vacuum, one that sleeps nearly all the time isn't to blame
 * for more than the little that it can do: it would crawl because of others.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "pace/controller.h"

/* The floor, as a part of the best rate so far, and at least, a second */
#define FLOOR_SHARE			0.01
#define LEAST_FLOOR			1000.0

/* To begin with, when nothing is known, a second */
#define FIRST_BUDGET		20000.0

/* What to aim at, as a part of the target */
#define AIM					0.93
/* A learned target, as a multiple of what was measured */
#define LEARNED_MARGIN		1.1

/* With fewer statements a percentile is worth less. */
#define FULL_SAMPLES		20.0

/* A miss that can't be chance: by so many standard deviations, and at least */
#define SURE_MISS_NOISE		2.0
#define LEAST_SURE_MISS		0.1

/* Cuts: (percentile / aim) to this power, and at most by this factor */
#define CUT_POWER			1.5
#define DEEPEST_CUT			0.25
#define MAX_SETTLING		1.0

/* Growth a second, as an exponent, with all the room there is */
#define GROWTH_FAST			2.0
#define GROWTH_IN_DOUBT		1.0
#define GROWTH_NEAR_CEILING 0.5
#define GROWTH_IDLE			5.5
/* So much room, as a part of the aim, counts as all. */
#define FULL_ROOM			0.3
#define NEAR_CEILING		0.75
#define CAUTION_SECONDS		2.0

#define IDLE_SECONDS		0.5
/* So small a part of the statements that there were at the last miss is none. */
#define GONE_SHARE			0.25
/* Measurements are smoothed: this part is what was measured before. */
#define SMOOTHING			0.5
/* A budget that is so many times what is used, for so long, is none. */
#define UNUSED_TIMES		2
#define UNUSED_SECONDS		0.5
#define OUT_OF_REACH_SECONDS 10.0

/*
 * Learning: let the vacuum's effects fade, then measure for a few slices of
 * time, but not forever.  What is so much more than their median is a burst.
 */
#define BURST				1.5
#define LEARN_SETTLING		0.75
#define LEARN_MAX_SETTLING	30.0
#define SLICE_SECONDS		0.5
#define MIN_SLICE_STATEMENTS 60.0
#define LEARN_MAX_SECONDS	8.0
/* The next slice: after so many seconds, or so many times as long as it took */
#define LEARN_AFTER			8.0
#define LEARN_AFTER_TIMES	8.0
/* After one that is so many times the others, or the others it, so many seconds */
#define STRANGE				1.4
#define LEARN_AFTER_STRANGE 2.0
/* At the floor, where it costs nothing, after so many seconds */
#define LEARN_AFTER_FLOOR	2.0
/* So many in a row are no chance. */
#define STRANGE_SLICES		3
/* A process awake all the time may make statements slower by this factor. */
#define MOST_HARM			4.0
#define SETTLING_AFTER_LEARNING 0.25

static bool learn(Controller *controller, const ControllerInput *input);
static void describe(const Controller *controller, double *mean, double *deviation);
static void begin_learning(Controller *controller);
static double time_to_settle(const Controller *controller);
static void begin_slice(Controller *controller);
static void end_slice(Controller *controller);
static int	strangeness(const Controller *controller, double value);
static void forget_old_slices(Controller *controller);
static void end_learning(Controller *controller);
static void slow_down(Controller *controller, const ControllerInput *input, double excess);
static bool load_is_gone(const Controller *controller);
static void be_alone(Controller *controller, const ControllerInput *input);
static void grow(Controller *controller, const ControllerInput *input, double excess);
static void change_gently(Controller *controller, const ControllerInput *input,
						  double growth);
static double noise(const ControllerInput *input);

/*
 * controller_init
 *		A vacuum begins, slowly; target_ms 0 stands for one that is to be
 *		learned.
 */
void
controller_init(Controller *controller, double target_ms)
{
	memset(controller, 0, sizeof(*controller));
	controller->budget = FIRST_BUDGET;
	controller->ceiling = INFINITY;
	controller_set_target(controller, target_ms);
}

/*
 * controller_restart
 *		A vacuum begins, slowly, after a pause: what was learned about the target and
 *		the machine stays.
 */
void
controller_restart(Controller *controller)
{
	controller->budget = FIRST_BUDGET;
	controller->limit = LIMIT_NOTHING;
	controller->ceiling = INFINITY;
	controller->learning = false;
	controller->interrupted = false;
	controller->idle = 0;
	controller->unused = 0;
	controller->at_floor = 0;
	controller->since_miss = 0;
	controller->settling = 0;
	controller->load = 0;
	controller->load_at_miss = 0;
}

/*
 * controller_set_target
 *		The target has changed; what was learned about the machine stays.
 */
void
controller_set_target(Controller *controller, double target_ms)
{
	if (controller->learning)
		controller->budget = controller->budget_before_learning;
	controller->learns_target = target_ms == 0;
	controller->target_ms = target_ms;
	controller->learned_ms = 0;
	controller->least_learned_ms = 0;
	controller->learned_spread = 0;
	controller->nslices = 0;
	controller->next_slice = 0;
	controller->strange_slices = 0;
	controller->learning = false;
	controller->interrupted = false;
	controller->at_floor = 0;
}

/*
 * controller_forget_load
 *		What there is of statements is counted in another way from now on.
 */
void
controller_forget_load(Controller *controller)
{
	controller->load = 0;
	controller->load_at_miss = 0;
	controller->ceiling = INFINITY;
}

/*
 * controller_step
 *		Move the budget, and say what limits it.
 */
void
controller_step(Controller *controller, const ControllerInput *input)
{
	double		excess;
	bool		load_was_gone;

	controller->forget_window = false;
	controller->best_rate = Max(controller->best_rate, input->rate);
	controller->since_miss += input->seconds;
	controller->since_learned += input->seconds;
	controller->idle = input->statements > 0 ? 0 : controller->idle + input->seconds;
	load_was_gone = load_is_gone(controller);
	controller->load = SMOOTHING * controller->load +
		(1 - SMOOTHING) * input->statements / input->seconds;
	controller->awake = SMOOTHING * controller->awake + (1 - SMOOTHING) * input->awake;

	if (controller->idle >= IDLE_SECONDS)
	{
		be_alone(controller, input);
		return;
	}

	if (learn(controller, input))
	{
		controller->limit = LIMIT_LEARNING;
		return;
	}

	if (controller->settling > 0)
	{
		controller->settling -= input->seconds;
		controller->forget_window = true;
		return;
	}
	/* what is left of it tells of the load that there was */
	if (load_is_gone(controller) && !load_was_gone)
	{
		controller->forget_window = true;
		controller->ceiling = INFINITY;
		return;
	}
	if (input->samples <= 0)
		return;

	excess = input->percentile_ms / (controller->target_ms * AIM);
	if (controller->learns_target)
		excess = Min(excess, 1 + MOST_HARM * Max(input->awake, controller->awake));
	if (excess > 1 + Max(SURE_MISS_NOISE * Max(noise(input), controller->learned_spread),
						 LEAST_SURE_MISS))
		slow_down(controller, input, excess);
	else
		grow(controller, input, excess);
}

/*
 * be_alone
 *		Nobody else has been there for a while: go faster, and forget what was
 *		learned of limits.
 */
static void
be_alone(Controller *controller, const ControllerInput *input)
{
	if (controller->learning)
	{
		controller->budget = controller->budget_before_learning;
		controller->interrupted = true;
	}
	controller->learning = false;
	controller->ceiling = INFINITY;
	controller->forget_window = true;
	change_gently(controller, input, GROWTH_IDLE);
}

/*
 * grow
 *		Let the budget grow by how far the target is off; or shrink a little, if
 *		it is missed, but not for sure.
 */
static void
grow(Controller *controller, const ControllerInput *input, double excess)
{
	double		room = Max(Min((1 - excess) / FULL_ROOM, 1.0), -1.0);
	double		growth = GROWTH_FAST;
	double		weight = Min(input->samples / FULL_SAMPLES, 1.0);

	if (room < 0)
	{
		growth = GROWTH_IN_DOUBT;
		controller->since_miss = 0;
	}
	else if (load_is_gone(controller))
	{
		growth = GROWTH_IDLE;
		weight = 1;				/* there won't be more of them soon */
	}
	else if (controller->since_miss < CAUTION_SECONDS)
		growth = controller->budget > controller->ceiling * NEAR_CEILING ?
			GROWTH_NEAR_CEILING : GROWTH_IN_DOUBT;
	change_gently(controller, input, growth * room * weight);
}

/*
 * controller_floor
 *		The least budget, in cost a second.
 */
double
controller_floor(const Controller *controller)
{
	return Max(controller->best_rate * FLOOR_SHARE, LEAST_FLOOR);
}

/*
 * controller_target_is_out_of_reach
 *		Has the target been missed for long although the vacuum hardly moves?
 */
bool
controller_target_is_out_of_reach(const Controller *controller)
{
	return controller->at_floor >= OUT_OF_REACH_SECONDS;
}

/* learn -- is this a step of learning the target, or the first? */
static bool
learn(Controller *controller, const ControllerInput *input)
{
	if (!controller->learns_target)
		return false;

	if (!controller->learning)
	{
		if (controller->target_ms > 0 && controller->since_learned < controller->learn_after &&
			Min(controller->at_floor, controller->since_learned) < LEARN_AFTER_FLOOR)
			return false;
		begin_learning(controller);
		return true;
	}

	controller->settled_for += input->seconds;
	if (controller->settled_for < controller->settling_needed)
	{
		/* the window has to fill again, as it does at other times */
		controller->forget_window =
			controller->settled_for < controller->settling_needed - LEARN_SETTLING / 2;
		return true;
	}

	controller->learned_for += input->seconds;
	controller->slice_for += input->seconds;
	controller->slice_statements += input->statements;
	if (input->samples >= 1)
	{
		controller->slice_sum += input->percentile_ms;
		controller->slice_steps++;
	}

	/*
	 * in the midst of a long transaction there is something, but nothing to
	 * measure
	 */
	if (controller->slice_for >= SLICE_SECONDS && controller->slice_steps > 0 &&
		controller->slice_statements >= MIN_SLICE_STATEMENTS)
		end_slice(controller);
	if (controller->wanted_slices > 0 && controller->learned_for < LEARN_MAX_SECONDS)
		return true;
	/* the few there were must do */
	if (controller->wanted_slices > 0 && controller->slice_steps > 0)
		end_slice(controller);
	if (controller->nslices == 0)
		return true;
	end_learning(controller);
	return false;
}

/*
 * time_to_settle
 *		For how long to let the vacuum's effects fade before a measurement, in seconds.
 *
 * What it has written may make a slow disk busy for longer than a moment; then we
 * learn what we have done ourselves, allow a tenth more, do it, and learn that.
 * So the more it is than it once was, the longer we look away.
 */
static double
time_to_settle(const Controller *controller)
{
	double		times = 1;

	if (controller->least_learned_ms > 0)
		times = controller->learned_ms / controller->least_learned_ms;
	return Min(LEARN_SETTLING * times * times, LEARN_MAX_SETTLING);
}

/* begin_slice -- nothing has been measured yet. */
static void
begin_slice(Controller *controller)
{
	controller->slice_for = 0;
	controller->slice_statements = 0;
	controller->slice_sum = 0;
	controller->slice_steps = 0;
}

/*
 * end_slice
 *		One more measurement: the mean of what would have been compared with the
 *		target meanwhile.  The percentile of all the slice's statements is another.
 */
static void
end_slice(Controller *controller)
{
	double		value = controller->slice_sum / controller->slice_steps;
	int			side = strangeness(controller, value);

	controller->strange_slices = side == 0 ? 0 :
		side * controller->strange_slices > 0 ? controller->strange_slices + side : side;
	controller->slices[controller->next_slice] = value;
	controller->next_slice = (controller->next_slice + 1) % LEARN_SLICES;
	controller->nslices = Min(controller->nslices + 1, LEARN_SLICES);
	controller->wanted_slices--;
	controller->learn_after = Max(side == 0 ? LEARN_AFTER : LEARN_AFTER_STRANGE,
								  LEARN_AFTER_TIMES * controller->slice_for);
	/* one that is less than expected is to be trusted without more patience */
	if (side >= 0)
		controller->learn_after = Max(controller->learn_after, LEARN_AFTER_TIMES *
									  (controller->settling_needed - LEARN_SETTLING));
	if (abs(controller->strange_slices) >= STRANGE_SLICES)
		forget_old_slices(controller);
	begin_slice(controller);
}

/*
 * strangeness
 *		Is a measurement far above what was learned (1), far below it (-1), or
 *		neither?  While there are few nothing is strange.
 */
static int
strangeness(const Controller *controller, double value)
{
	if (controller->learned_ms <= 0 || controller->nslices <= STRANGE_SLICES)
		return 0;
	return value > controller->learned_ms * STRANGE ? 1 :
		value < controller->learned_ms / STRANGE ? -1 : 0;
}

/* forget_old_slices -- keep the latest ones only. */
static void
forget_old_slices(Controller *controller)
{
	double		latest[STRANGE_SLICES];

	for (int i = 0; i < STRANGE_SLICES; i++)
		latest[i] = controller->slices[(controller->next_slice + LEARN_SLICES - STRANGE_SLICES + i) % LEARN_SLICES];
	memcpy(controller->slices, latest, sizeof(latest));
	controller->nslices = STRANGE_SLICES;
	controller->next_slice = STRANGE_SLICES;
	controller->strange_slices = 0;
}

/*
 * describe
 *		Mean and standard deviation of the slices' percentiles.
 *
 * Neither the median nor one window's percentile will do as the former: the
 * mean is what the budget's growing and shrinking comes to rest at.  But
 * a single burst must not spoil it.
 */
static void
describe(const Controller *controller, double *mean, double *deviation)
{
	double		values[LEARN_SLICES];
	int			n = controller->nslices;
	double		median;
	double		sum = 0;
	double		squares = 0;

	memcpy(values, controller->slices, sizeof(values));
	for (int i = 1; i < n; i++)
		for (int j = i; j > 0 && values[j] < values[j - 1]; j--)
		{
			double		greater = values[j - 1];

			values[j - 1] = values[j];
			values[j] = greater;
		}
	median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;

	for (int i = 0; i < n; i++)
	{
		double		value = Min(values[i], median * BURST);

		sum += value;
		squares += value * value;
	}
	*mean = sum / n;
	*deviation = n > 1 ? sqrt(Max(squares - sum * sum / n, 0.0) / (n - 1)) : 0;
}

/*
 * begin_learning
 *		Hold the vacuum back to see how fast statements are.
 *
 * If there were none for a moment, as is usual with a slow load, what has been
 * measured before that counts; and there won't be enough of them in a row to let
 * effects fade for long.
 */
static void
begin_learning(Controller *controller)
{
	controller->learning = true;
	controller->settled_for = 0;
	controller->settling_needed = controller->interrupted ? LEARN_SETTLING :
		time_to_settle(controller);
	if (!controller->interrupted)
	{
		controller->learned_for = 0;
		controller->wanted_slices = Max(LEARN_SLICES - controller->nslices, 1);
		begin_slice(controller);
	}
	controller->interrupted = false;
	controller->budget_before_learning = controller->budget;
	controller->budget = controller_floor(controller);
	controller->forget_window = true;
}

/* end_learning -- go on, with what was learned as the new target. */
static void
end_learning(Controller *controller)
{
	double		deviation;

	describe(controller, &controller->learned_ms, &deviation);
	controller->learned_spread = controller->learned_ms > 0 ? deviation / controller->learned_ms : 0;
	/* there are too few statements to ask for more of them soon */
	if (controller->wanted_slices > 0)
		controller->learn_after = LEARN_AFTER_TIMES * controller->learned_for;
	if (controller->least_learned_ms <= 0 || controller->learned_ms < controller->least_learned_ms)
		controller->least_learned_ms = controller->learned_ms;
	controller->target_ms = controller->learned_ms * LEARNED_MARGIN;
	controller->learning = false;
	controller->since_learned = 0;
	controller->budget = controller->budget_before_learning;
	controller->unused = 0;
	controller->settling = SETTLING_AFTER_LEARNING;
	controller->forget_window = true;
}

/* slow_down -- the target was missed, by this factor. */
static void
slow_down(Controller *controller, const ControllerInput *input, double excess)
{
	double		floor = controller_floor(controller);
	double		budget = Min(controller->budget, Max(input->rate, floor));

	controller->ceiling = budget;
	controller->load_at_miss = controller->load;
	controller->budget = Max(budget * Max(pow(excess, -CUT_POWER), DEEPEST_CUT), floor);
	controller->since_miss = 0;
	controller->settling = Min(input->percentile_ms / 1000, MAX_SETTLING) - input->seconds;
	controller->forget_window = true;

	if (budget <= floor)
	{
		controller->at_floor += input->seconds;
		controller->settling = 0;
		controller->limit = LIMIT_FLOOR;
	}
	else
	{
		controller->at_floor = 0;
		controller->limit = LIMIT_LATENCY;
	}
}

/* load_is_gone -- are there hardly any statements, compared with the last miss? */
static bool
load_is_gone(const Controller *controller)
{
	return controller->load <= GONE_SHARE * controller->load_at_miss;
}

/*
 * change_gently
 *		Let the budget grow at this rate, or shrink if it is negative.
 */
static void
change_gently(Controller *controller, const ControllerInput *input, double growth)
{
	double		floor = controller_floor(controller);

	/*
	 * without a bound, what it costs is what there is to shrink from;
	 * roughly, as it varies
	 */
	if (growth < 0)
		controller->budget = Min(controller->budget, Max(UNUSED_TIMES * input->rate, floor));
	controller->budget = Max(controller->budget * exp(growth * input->seconds), floor);

	/* It has not been using its budget, and never did more than that. */
	if (controller->budget > controller->best_rate &&
		controller->budget > UNUSED_TIMES * input->rate)
	{
		controller->unused += input->seconds;
		if (controller->unused >= UNUSED_SECONDS || load_is_gone(controller))
			controller->budget = INFINITY;
	}
	else
		controller->unused = 0;

	if (growth < 0 && controller->budget <= floor)
	{
		controller->at_floor += input->seconds;
		controller->limit = LIMIT_FLOOR;
	}
	else
	{
		controller->at_floor = 0;
		controller->limit = isinf(controller->budget) ? LIMIT_NOTHING : LIMIT_LATENCY;
	}
}

/*
 * noise
 *		The standard deviation of the percentile, as a part of it, that is due to
 *		chance if latencies are distributed exponentially.
 */
static double
noise(const ControllerInput *input)
{
	double		below = input->percent / 100;

	return sqrt(below / (input->samples * (1 - below))) / -log(1 - below);
}
