/*-------------------------------------------------------------------------
 *
 * controller.c
 *	  The control law that keeps a vacuum to a latency target.
 *
 * The vacuum's budget, in cost a second, is moved so that a percentile of the
 * latency of other sessions' statements stays at the target.  controller_step
 * is called a few times a second with what was measured.  It knows nothing of
 * the server, so that a simulation can drive it (test/unit/test_pace_law.c).
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
 *	 from the floor to full speed; if there were few, after some seconds more.
 * - When nothing ends any more its caller tells only of what runs (target.c).
 * - The floor, a hundredth of full speed, keeps the vacuum moving even if the
 *	 target can't be met that way.
 *
 * A percentile of the statements of a second is noisy.  A miss that may be
 * chance, by the number of statements that are late, makes the budget shrink as
 * gently as it would grow if there was that much room, so that chance averages
 * out; otherwise the vacuum would crawl for fear of it.  And the aim is a little
 * below the target.
 *
 * The fewer statements there are, the longer it takes until they tell anything
 * (telling_seconds).  So with ten a second, as a slow disk may have them, the budget
 * grows as slowly as they tell what it does, and a second without any is nothing
 * special.  Of one or two a second nothing can be told; there is hardly anybody then.
 *
 * A target that is to be learned is a tenth above the percentile measured
 * while the vacuum is at its floor: at first for some seconds, and then again
 * and again for a moment, as the load of an hour ago is not that of now, and
 * neither are the disturbances that have other reasons.  How much the
 * percentile varies by itself is learned as well: statements disturb each other
 * in bursts, and chance is more than their number tells. Where there are no waits
 * for cores to go by the target is lowered by the standard error of their mean,
 * but never so far that what was measured would count as a miss. If a measurement
 * is far from those before, the load may have changed: then the next one comes
 * soon, and if some in a row say so, what was before is forgotten. It may also be
 * the vacuum's own doing that hasn't faded yet; so the more the target has risen,
 * the longer is it held back before it measures. And a vacuum that has come to its
 * floor may as well measure. As such a target is met without the vacuum, one that
 * sleeps nearly all the time isn't to blame for more than the little that it can
 * do: it would crawl because of others.
 *
 * What others wait for a core is only partly in what their statements take
 * (core_waits.c), and varies less.  So where it is known it counts beside a
 * learned target: what others do is to take them longer for that by no more than a
 * tenth, either. The percentile is averaged then, as far as it may be chance, and
 * the target aimed at closely, as chance alone would make the vacuum crawl else;
 * and it is the less above what was learned the more that has risen.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "pace/controller.h"

/*
 * The floor, as a part of the best rate of late, and of the best ever, and at
 * least, a second.  How fast it can go differs from one part of a table to another.
 */
#define FLOOR_SHARE			0.01
#define FLOOR_SHARE_EVER	0.001
#define LEAST_FLOOR			1000.0
#define BEST_RATE_SECONDS	90.0

/* To begin with, when nothing is known, a second; less if little can be known soon */
#define FIRST_BUDGET		20000.0
#define FIRST_SECONDS		1.0

/* What to aim at, as a part of the target; and if waits for cores are known */
#define AIM					0.95
#define CLOSE_AIM			0.98
/* A learned target, as a multiple of what was measured; less if in doubt, or if that has risen */
#define LEARNED_MARGIN		1.1
/* What takes less than this takes nothing. */
#define LEAST_MS			1e-6

/* With fewer statements a percentile is worth less. */
#define FULL_SAMPLES		20.0

/* A miss that can't be chance: by so many standard deviations, and at least */
#define SURE_MISS_NOISE		2.0
#define LEAST_SURE_MISS		0.1
/* Where all are late, however few, it is none if they are by this factor. */
#define FAR_MISS			4.0
#define NEARLY_ALL			0.95

/* Cuts: (percentile / aim) to this power, and at most by this factor */
#define CUT_POWER			1.5
#define DEEPEST_CUT			0.25
#define MAX_SETTLING		1.0

/* Growth a second, as an exponent, with all the room there is */
#define GROWTH_FAST			2.0
#define GROWTH_IN_DOUBT		1.0
#define GROWTH_NEAR_CEILING 0.5
#define GROWTH_IDLE			5.5
/* So much room, as a part of the aim, counts as all; and if waits for cores are known */
#define FULL_ROOM			0.3
#define CLOSE_FULL_ROOM		0.15
/* Over so many seconds it is averaged then. */
#define EXCESS_SECONDS		2.0
#define LEAST_EXCESS		0.1
#define NEAR_CEILING		0.75
#define CAUTION_SECONDS		2.0
/*
 * The budget grows by this much, at most, with each statement that the percentile
 * depends on; and faster if the percentile is less than this part of the aim.
 */
#define GROWTH_A_STATEMENT	0.4
#define SHRINKING_A_STATEMENT 0.2
#define LEAST_SHARE			0.03
#define FAR_FROM_AIM		0.3

/*
 * How long others wait for a core is smoothed, by this factor a step; it says
 * nothing if they use less than so many.
 */
#define CORE_SMOOTHING		0.6
#define LEAST_CORES			0.05
/* By what factor that may make longer what others do, beyond what was learned */
#define WAITS_MARGIN		1.1
/* A miss of that which can't be chance; others must have had a core for so many seconds */
#define SURE_WAITS			0.2
#define SURE_SECONDS		0.05
/* After so long without them it isn't known any more. */
#define WAITS_KEPT_SECONDS	5.0

#define IDLE_SECONDS		0.5
/* The usual load is a mean over about so many seconds, so many without it at first. */
#define USUAL_SECONDS		8.0
#define IDLE_SECONDS_BEFORE	1.0
/* So many statements tell something, and if none come for as long, that's the end. */
#define TELLING_STATEMENTS	30.0
#define LONGEST_TELLING		5.0
/*
 * With less than this a second there is hardly anybody to be spared, until there are
 * so many times as many.
 */
#define HARDLY_A_LOAD		1.0
#define HARDLY_TRANSACTIONS	0.25
#define LOAD_AGAIN			2.0
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
#define LEAST_SETTLING		0.375
#define FULL_WINDOW			100.0
#define LONGEST_FILLING		3.0
#define LEARN_MAX_SETTLING	30.0
#define SETTLING_POWER		6.0
#define SLICE_SECONDS		0.5
#define MIN_SLICE_STATEMENTS 40.0
#define LEARN_MAX_SECONDS	8.0
/* or so many, while there are less than so many slices */
#define LEARN_MAX_SECONDS_AT_FIRST 20.0
#define LEARN_LEAST_SLICES	5
/* What is known of less of them: that they differ by so much, or more */
#define SPREAD_OF_FEW		0.3
/* The next slice: after so many seconds, or so many times as long as it took */
#define LEARN_AFTER			8.0
#define LEARN_AFTER_TIMES	8.0
/*
 * After one that is so many times the others, or the others it, and more than
 * chance does, by so many standard deviations: so many seconds
 */
#define STRANGE				1.4
#define STRANGE_SPREADS		2.0
#define LEARN_AFTER_STRANGE 2.0
/* At the floor, where it costs little, after so many seconds */
#define LEARN_AFTER_FLOOR	2.0
/* So many in a row are no chance. */
#define STRANGE_SLICES		3
/* A process awake all the time may make statements slower by this factor. */
#define MOST_HARM			4.0
#define SETTLING_AFTER_LEARNING 0.25

static void judge(Controller *controller, const ControllerInput *input);
static double aim_ms(const Controller *controller);
static bool learn(Controller *controller, const ControllerInput *input);
static void describe(const Controller *controller, double *mean, double *spread);
static void sort(double *values, int n);
static void begin_learning(Controller *controller);
static double time_to_settle(const Controller *controller);
static double time_to_fill(const Controller *controller);
static void begin_slice(Controller *controller);
static void end_slice(Controller *controller);
static int	strangeness(const Controller *controller, const Slice *slice);
static void forget_old_slices(Controller *controller);
static double stretch_of_slices(const Controller *controller);
static void end_learning(Controller *controller);
static double margin(const Controller *controller);
static double rise(const Controller *controller);
static double doubt(const Controller *controller);
static void slow_down(Controller *controller, const ControllerInput *input, double excess);
static bool load_is_gone(const Controller *controller);
static void note_load(Controller *controller, const ControllerInput *input);
static void note_floor(Controller *controller, const ControllerInput *input, double excess);
static double averaged(Controller *controller, const ControllerInput *input, double excess);
static void note_core_waits(Controller *controller, const ControllerInput *input);
static double stretch(double seconds, double ran, double waited);
static bool knows_waits(const Controller *controller);
static double excess_of_waits(const Controller *controller);
static double telling_seconds(const Controller *controller);
static double first_budget(const Controller *controller);
static void be_alone(Controller *controller, const ControllerInput *input);
static void grow(Controller *controller, const ControllerInput *input, double excess);
static void change_gently(Controller *controller, const ControllerInput *input,
						  double growth);
static bool is_no_chance(const ControllerInput *input, double excess);

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
	if (controller->learning)
		controller->budget = controller->budget_before_learning;
	controller->budget = Min(controller->budget, FIRST_BUDGET);
	controller->limit = LIMIT_NOTHING;
	controller->ceiling = INFINITY;
	controller->learning = false;
	controller->interrupted = false;
	controller->log_excess = 0;
	controller->watched = controller->ran = controller->waited = 0;
	controller->idle = 0;
	controller->unused = 0;
	controller->at_floor = 0;
	controller->since_miss = 0;
	controller->settling = 0;
	controller->load = 0;
	controller->usual_load = 0;
	controller->load_for = 0;
	controller->has_load = false;
	controller->silent = 0;
	controller->age = 0;
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
	controller->usual_load = 0;
	controller->load_for = 0;
	controller->has_load = false;
	controller->silent = 0;
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
	bool		load_was_gone;

	if (controller->forget_window)
		controller->watched = controller->ran = controller->waited = 0;
	controller->forget_window = false;
	controller->best_rate = Max(controller->best_rate * exp(-input->seconds / BEST_RATE_SECONDS),
								input->rate);
	controller->best_rate_ever = Max(controller->best_rate_ever, input->rate);
	controller->age += input->seconds;
	controller->since_miss += input->seconds;
	controller->since_learned += input->seconds;
	load_was_gone = load_is_gone(controller);
	note_load(controller, input);
	if (controller->has_load && controller->age <= FIRST_SECONDS)
		controller->budget = Min(controller->budget, first_budget(controller));
	controller->awake = SMOOTHING * controller->awake + (1 - SMOOTHING) * input->awake;
	note_core_waits(controller, input);

	if (controller->idle >= telling_seconds(controller))
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
	if (input->samples > 0)
		judge(controller, input);
}

/* judge -- let the budget grow, or cut it, by what was measured. */
static void
judge(Controller *controller, const ControllerInput *input)
{
	double		excess,
				waits;
	bool		is_sure;

	excess = input->percentile_ms / aim_ms(controller);
	waits = excess_of_waits(controller);
	is_sure = is_no_chance(input, excess);
	if (controller->learns_target)
	{
		double		most = 1 + MOST_HARM * Max(input->awake, controller->awake);

		excess = Min(excess, most);
		waits = Min(waits, most);
	}
	is_sure = is_sure &&
		excess > 1 + Max(SURE_MISS_NOISE * controller->learned_spread, LEAST_SURE_MISS);
	if (is_sure || (waits > 1 + SURE_WAITS && controller->ran >= SURE_SECONDS))
		slow_down(controller, input, is_sure ? Max(excess, waits) : waits);
	else
	{
		double		mean = averaged(controller, input, excess);

		grow(controller, input, Max(mean, waits));
	}
	note_floor(controller, input, excess);
}

/*
 * note_load
 *		How many statements there are a second, of late and usually, and how long there
 *		have been none.  Somebody whose first statement runs isn't late yet, and may be
 *		the only one.
 */
static void
note_load(Controller *controller, const ControllerInput *input)
{
	double		hardly = input->are_transactions ? HARDLY_TRANSACTIONS : HARDLY_A_LOAD;

	if (input->statements > 0 ||
		(input->some_run && (controller->has_load || controller->age <= FIRST_SECONDS)))
	{
		/* a load that begins is known sooner if what was before doesn't count */
		if (controller->idle >= telling_seconds(controller))
		{
			controller->load_for = 0;
			controller->usual_load = 0;
		}
		controller->idle = 0;
	}
	else
		controller->idle += input->elapsed;

	controller->silent = input->ended > 0 ? 0 : controller->silent + input->elapsed;
	controller->load_for += input->elapsed;
	controller->usual_load += input->elapsed /
		Min(controller->load_for + IDLE_SECONDS_BEFORE, USUAL_SECONDS) *
		(input->ended / input->elapsed - controller->usual_load);
	controller->has_load = controller->usual_load >=
		(controller->has_load ? hardly : hardly * LOAD_AGAIN);
	controller->load += Min(input->elapsed / telling_seconds(controller), 1 - SMOOTHING) *
		(input->ended / input->elapsed - controller->load);
}

/*
 * note_floor
 *		For how long has the target been missed at the slowest pace?  It may be at the
 *		floor for others who wait for a core, with a target that is kept but for chance.
 */
static void
note_floor(Controller *controller, const ControllerInput *input, double excess)
{
	if (controller->at_floor <= 0)
		controller->missed_at_floor = 0;
	else if (excess >= 1)
		controller->missed_at_floor += input->seconds;
	else
		controller->missed_at_floor = Max(controller->missed_at_floor - input->seconds, 0);
}

/*
 * averaged
 *		What to go by, if a learned target is missed by this factor, or by chance: where
 *		waits for cores are known as well the mean over some seconds, as far as it may be
 *		chance.
 */
static double
averaged(Controller *controller, const ControllerInput *input, double excess)
{
	if (!knows_waits(controller) ||
		excess > 1 + SURE_MISS_NOISE * controller->learned_spread)
	{
		controller->log_excess = 0;
		return excess;
	}
	controller->log_excess += (log(Max(excess, LEAST_EXCESS)) - controller->log_excess) *
		Min(input->seconds / EXCESS_SECONDS, 1);
	return exp(controller->log_excess);
}

/* note_core_waits -- what counts of late of the time that others ran, and waited for a core. */
static void
note_core_waits(Controller *controller, const ControllerInput *input)
{
	controller->watched = CORE_SMOOTHING * controller->watched + input->elapsed;
	controller->ran = CORE_SMOOTHING * controller->ran + input->others_ran;
	controller->waited = CORE_SMOOTHING * controller->waited + input->others_waited;
	if (input->others_ran >= LEAST_CORES * input->elapsed)
		controller->since_waits = 0;
	else
		controller->since_waits += input->elapsed;
}

/*
 * stretch
 *		By what factor waiting for a core has made longer what others did in so many
 *		seconds; 0 if that was too little to tell.
 */
static double
stretch(double seconds, double ran, double waited)
{
	return ran <= 0 || ran < LEAST_CORES * seconds ? 0 : (ran + waited) / ran;
}

/* knows_waits -- is it known how long others wait for a core, and did without the vacuum? */
static bool
knows_waits(const Controller *controller)
{
	return controller->learns_target && controller->learned_stretch > 0 &&
		controller->since_waits < WAITS_KEPT_SECONDS;
}

/*
 * excess_of_waits
 *		By what factor have others waited too long for a core, with a learned target?
 *		It is less than 1 if they have not; 0 if nothing is known of it.
 */
static double
excess_of_waits(const Controller *controller)
{
	if (!knows_waits(controller))
		return 0;
	return stretch(controller->watched, controller->ran, controller->waited) /
		(controller->learned_stretch * WAITS_MARGIN * CLOSE_AIM);
}

/*
 * telling_seconds
 *		In how many seconds there are enough statements to tell something; or, if there
 *		are none, that they have come to an end.
 */
static double
telling_seconds(const Controller *controller)
{
	if (!controller->has_load)
		return IDLE_SECONDS;
	return Max(Min(TELLING_STATEMENTS / controller->usual_load, LONGEST_TELLING), IDLE_SECONDS);
}

/* first_budget -- what to begin with.  Of few statements it takes long to see that it is too much. */
static double
first_budget(const Controller *controller)
{
	return Max(FIRST_BUDGET * IDLE_SECONDS / telling_seconds(controller),
			   controller_floor(controller));
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
	controller->log_excess = 0;
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
	double		full_room = knows_waits(controller) ? CLOSE_FULL_ROOM : FULL_ROOM;
	double		room = Max(Min((1 - excess) / full_room, 1.0), -1.0);
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
	if (growth < GROWTH_IDLE && controller->has_load)
		growth = Min(growth, (room < 0 ? SHRINKING_A_STATEMENT : GROWTH_A_STATEMENT) *
					 controller->usual_load * Max(1 - input->percent / 100, LEAST_SHARE) *
					 Max(FAR_FROM_AIM / excess, 1));
	change_gently(controller, input, growth * room * weight);
}

/* aim_ms -- what the percentile is to be. */
static double
aim_ms(const Controller *controller)
{
	return controller->target_ms * (knows_waits(controller) ? CLOSE_AIM : AIM);
}

/*
 * controller_late_ms
 *		What takes longer is late, for ControllerInput.
 */
double
controller_late_ms(const Controller *controller)
{
	return aim_ms(controller) * (1 + LEAST_SURE_MISS);
}

/* controller_far_ms -- what takes longer is late by far. */
double
controller_far_ms(const Controller *controller)
{
	return aim_ms(controller) * FAR_MISS;
}

/*
 * controller_misses_statements
 *		Has nothing ended for so long that some of the usual statements should have?
 */
bool
controller_misses_statements(const Controller *controller)
{
	return controller->silent >= telling_seconds(controller);
}

/*
 * controller_floor
 *		The least budget, in cost a second.
 */
double
controller_floor(const Controller *controller)
{
	return Max(Max(controller->best_rate * FLOOR_SHARE, controller->best_rate_ever * FLOOR_SHARE_EVER),
			   LEAST_FLOOR);
}

/*
 * controller_target_is_out_of_reach
 *		Has the target been missed for long although the vacuum hardly moves?
 */
bool
controller_target_is_out_of_reach(const Controller *controller)
{
	return Min(controller->at_floor, controller->missed_at_floor) >= OUT_OF_REACH_SECONDS;
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
			Min(controller->at_floor, controller->since_learned) <
			LEARN_AFTER_FLOOR * telling_seconds(controller) / IDLE_SECONDS)
			return false;
		begin_learning(controller);
		return true;
	}

	controller->settled_for += input->seconds;
	if (controller->settled_for < controller->settling_needed)
	{
		/* the window has to fill again, as it does at other times */
		controller->forget_window =
			controller->settled_for < controller->settling_needed - time_to_fill(controller);
		return true;
	}

	controller->learned_for += input->seconds;
	controller->slice_for += input->seconds;
	controller->slice_statements += input->statements;
	controller->slice_elapsed += input->elapsed;
	controller->slice_ran += input->others_ran;
	controller->slice_waited += input->others_waited;
	if (input->samples >= 1)
	{
		controller->slice_logs += log(Max(input->percentile_ms, LEAST_MS));
		controller->slice_steps++;
	}

	/*
	 * in the midst of a long transaction there is something, but nothing to
	 * measure
	 */
	if (controller->slice_for >= SLICE_SECONDS && controller->slice_steps > 0 &&
		controller->slice_statements >= MIN_SLICE_STATEMENTS)
		end_slice(controller);
	if (controller->wanted_slices > 0 &&
		controller->learned_for < (controller->nslices < LEARN_LEAST_SLICES ?
								   LEARN_MAX_SECONDS_AT_FIRST : LEARN_MAX_SECONDS))
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
 * So the more it is than it once was, the longer we look away.  And of few statements
 * it takes longer until those have ended that had begun before.
 */
static double
time_to_settle(const Controller *controller)
{
	return Min((LEAST_SETTLING + time_to_fill(controller)) * pow(rise(controller), SETTLING_POWER),
			   LEARN_MAX_SETTLING);
}

/*
 * time_to_fill
 *		How long it takes until the window has about as many statements as it has at
 *		other times: of fewer the percentile is less, as a rule.
 */
static double
time_to_fill(const Controller *controller)
{
	return Max(Min(FULL_WINDOW / Max(controller->usual_load, 1), LONGEST_FILLING), LEAST_SETTLING);
}

/* begin_slice -- nothing has been measured yet. */
static void
begin_slice(Controller *controller)
{
	controller->slice_for = 0;
	controller->slice_statements = 0;
	controller->slice_elapsed = 0;
	controller->slice_ran = 0;
	controller->slice_waited = 0;
	controller->slice_logs = 0;
	controller->slice_steps = 0;
}

/*
 * end_slice
 *		One more measurement: the mean of what would have been compared with the
 *		target meanwhile, of its logarithm, as for describe().  The percentile of all
 *		the slice's statements is another.
 */
static void
end_slice(Controller *controller)
{
	Slice		slice = {
		.percentile_ms = exp(controller->slice_logs / controller->slice_steps),
		.stretch = stretch(controller->slice_elapsed, controller->slice_ran, controller->slice_waited)
	};
	int			side = strangeness(controller, &slice);

	controller->strange_slices = side == 0 ? 0 :
		side * controller->strange_slices > 0 ? controller->strange_slices + side : side;
	controller->slices[controller->next_slice] = slice;
	controller->next_slice = (controller->next_slice + 1) % LEARN_SLICES;
	controller->nslices = Min(controller->nslices + 1, LEARN_SLICES);
	controller->wanted_slices--;
	controller->learn_after = Max(side == 0 ? LEARN_AFTER : LEARN_AFTER_STRANGE,
								  LEARN_AFTER_TIMES * controller->slice_for);
	/* one that is less than expected is to be trusted without more patience */
	if (side >= 0)
		controller->learn_after = Max(controller->learn_after, LEARN_AFTER_TIMES *
									  (controller->settling_needed - LEAST_SETTLING - time_to_fill(controller)));
	if (abs(controller->strange_slices) >= STRANGE_SLICES)
		forget_old_slices(controller);
	begin_slice(controller);
}

/*
 * strangeness
 *		Is a measurement, of statements or else of waits for cores, far above what was
 *		learned (1), far below it (-1), or neither?  While there are few nothing is
 *		strange.
 */
static int
strangeness(const Controller *controller, const Slice *slice)
{
	double		value = slice->percentile_ms;
	double		far = Max(STRANGE, 1 + STRANGE_SPREADS * controller->learned_spread);

	if (controller->learned_ms <= 0 || controller->nslices <= STRANGE_SLICES)
		return 0;
	if (value > controller->learned_ms * far)
		return 1;
	if (value < controller->learned_ms / far)
		return -1;
	/* or others wait for a core for longer, or shorter, than they did */
	if (slice->stretch > 0 && controller->learned_stretch > 0)
		return slice->stretch > controller->learned_stretch * STRANGE ? 1 :
			slice->stretch < controller->learned_stretch / STRANGE ? -1 : 0;
	return 0;
}

/* forget_old_slices -- keep the latest ones only. */
static void
forget_old_slices(Controller *controller)
{
	Slice		latest[STRANGE_SLICES];

	for (int i = 0; i < STRANGE_SLICES; i++)
		latest[i] = controller->slices[(controller->next_slice + LEARN_SLICES - STRANGE_SLICES + i) % LEARN_SLICES];
	memcpy(controller->slices, latest, sizeof(latest));
	controller->nslices = STRANGE_SLICES;
	controller->next_slice = STRANGE_SLICES;
	controller->strange_slices = 0;
	/* a slow disk would be busy with what the vacuum has written */
	if (knows_waits(controller))
		controller->least_learned_ms = 0;
}

/*
 * describe
 *		Mean of the slices' percentiles, and their standard deviation as a part of it.
 *
 * Neither the median nor one window's percentile will do as the former: the
 * mean is what the budget's growing and shrinking comes to rest at.  As these are
 * bounded it is that of logarithms: of few statements the percentile is sometimes
 * many times itself.  And a single burst must not spoil it, nor a single lull.
 */
static void
describe(const Controller *controller, double *mean, double *spread)
{
	double		values[LEARN_SLICES];
	int			n = controller->nslices;
	double		median;
	double		sum = 0;
	double		squares = 0;

	for (int i = 0; i < n; i++)
		values[i] = controller->slices[i].percentile_ms;
	sort(values, n);
	median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;

	for (int i = 0; i < n; i++)
	{
		double		value = log(Max(Max(Min(values[i], median * BURST), median / BURST), LEAST_MS));

		sum += value;
		squares += value * value;
	}
	*mean = exp(sum / n);
	*spread = n > 1 ? exp(sqrt(Max(squares - sum * sum / n, 0.0) / (n - 1))) - 1 : 0;
	if (n < LEARN_LEAST_SLICES)
		*spread = Max(*spread, SPREAD_OF_FEW);
}

/* sort -- bring a few values into order. */
static void
sort(double *values, int n)
{
	for (int i = 1; i < n; i++)
		for (int j = i; j > 0 && values[j] < values[j - 1]; j--)
		{
			double		greater = values[j - 1];

			values[j - 1] = values[j];
			values[j] = greater;
		}
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
	controller->settling_needed = controller->interrupted ?
		LEAST_SETTLING + time_to_fill(controller) : time_to_settle(controller);
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

/*
 * stretch_of_slices
 *		By what factor waiting for a core has made longer what others did meanwhile, in
 *		the middle one of the slices; 0 if that isn't known of most of them.
 */
static double
stretch_of_slices(const Controller *controller)
{
	double		values[LEARN_SLICES];
	int			n = 0;

	for (int i = 0; i < controller->nslices; i++)
		if (controller->slices[i].stretch > 0)
			values[n++] = controller->slices[i].stretch;
	if (n <= controller->nslices / 2)
		return 0;
	sort(values, n);
	return values[n / 2];
}

/* end_learning -- go on, with what was learned as the new target. */
static void
end_learning(Controller *controller)
{
	bool		is_first = controller->target_ms <= 0;

	describe(controller, &controller->learned_ms, &controller->learned_spread);
	/* there are too few statements to ask for more of them soon */
	if (controller->wanted_slices > 0)
		controller->learn_after = LEARN_AFTER_TIMES * controller->learned_for;
	if (controller->nslices >= LEARN_LEAST_SLICES &&
		(controller->least_learned_ms <= 0 || controller->learned_ms < controller->least_learned_ms))
		controller->least_learned_ms = controller->learned_ms;
	controller->learned_stretch = stretch_of_slices(controller);
	controller->target_ms = controller->learned_ms * margin(controller);
	controller->learning = false;
	controller->log_excess = 0;
	controller->since_learned = 0;
	controller->budget = controller->budget_before_learning;
	if (is_first)
		controller->budget = Min(controller->budget, first_budget(controller));
	controller->unused = 0;
	controller->settling = SETTLING_AFTER_LEARNING;
	controller->forget_window = true;
}

/* margin -- by what factor may statements take longer than was learned? */
static double
margin(const Controller *controller)
{
	/* what is there without the vacuum can't be more than the aim */
	return knows_waits(controller) ?
		Max(LEARNED_MARGIN - (rise(controller) - 1), 1 / CLOSE_AIM) :
		Max(LEARNED_MARGIN * (1 - doubt(controller)), 1 / AIM);
}

/*
 * rise
 *		By what factor is more learned now than the least that once was, beyond doubt?
 */
static double
rise(const Controller *controller)
{
	if (controller->least_learned_ms <= 0)
		return 1;
	return Max(controller->learned_ms / controller->least_learned_ms * (1 - doubt(controller)), 1);
}

/* doubt -- the standard error of what was learned, as a part of it. */
static double
doubt(const Controller *controller)
{
	return controller->learned_spread / sqrt(Max(controller->nslices, 1));
}

/* slow_down -- the target was missed, by this factor. */
static void
slow_down(Controller *controller, const ControllerInput *input, double excess)
{
	double		floor = controller_floor(controller);
	double		budget = Min(controller->budget, Max(input->rate, floor));

	controller->log_excess = 0;
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
	if (growth < 0 && input->rate > 0)
		controller->budget = Min(controller->budget, Max(UNUSED_TIMES * input->rate, floor));
	controller->budget = Max(controller->budget * exp(growth * input->seconds), floor);

	/*
	 * It has not been using its budget, and never did more than that.  If it
	 * has cost nothing it waits for something else.
	 */
	if (controller->budget > controller->best_rate_ever && input->rate > 0 &&
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
 * is_no_chance
 *		Are more statements late than it may happen by chance if the target is kept?
 */
static bool
is_no_chance(const ControllerInput *input, double excess)
{
	double		share = 1 - input->percent / 100;
	double		expected = input->samples * share;

	if (input->late >= input->samples * NEARLY_ALL && excess >= FAR_MISS)
		return true;
	/* else a single one is nothing but chance */
	return input->late - 1 > expected + SURE_MISS_NOISE * sqrt(expected * (1 - share));
}
