/*-------------------------------------------------------------------------
 *
 * test_pace_law.c
 *	  The control law of the adaptive delay, in simulation: pace/controller.c.
 *
 * test_pace.py tests the law in a server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pace/controller.c"
#include "pace/pace_private.h"
#include "unit.h"

#define TICK_SECONDS	0.25

/* take a step of a test's own controller, with these members; one that isn't set is 0, and then means what its comment says */
#define STEP(...)	step(&controller, (ControllerInput) {__VA_ARGS__})

#define MOST_TICKS	8000
#define SEEDS		12

static double normal_kept = NAN;
static double cost_delay = FLOOR_BUDGET;	/* processes that it keeps at work */

/* speed_now -- of VACUUM. */
static double
speed_now(const Controller *controller)
{
	return Min(cost_delay + controller_added(controller), 1);
}

/* begin_chance -- chance begins anew. */
static void
begin_chance(uint64 seed)
{
	unit_seed(seed);
	normal_kept = NAN;
}

/* normal -- a number by chance, of mean 0. */
static double
normal(double deviation)
{
	double		number = normal_kept;

	if (isnan(number))
	{
		double		angle = unit_chance() * 2 * M_PI;
		double		radius = sqrt(-2 * log(1 - unit_chance()));

		number = cos(angle) * radius;
		normal_kept = sin(angle) * radius;
	}
	else
		normal_kept = NAN;
	return number * deviation;
}

/* step -- one that nothing but these measurements is told of. */
static void
step(Controller *controller, ControllerInput input)
{
	if (input.seconds == 0)
		input.seconds = TICK_SECONDS;
	if (input.elapsed == 0)
		input.elapsed = input.seconds;
	controller_step(controller, &input);
}

/* queue_step -- a step beside others who keep a core so busy, 0 to 1, and wait for it the longer the faster VACUUM is; its speed. */
static double
queue_step(Controller *controller, double load, bool cores_are_unknown)
{
	double		speed = Min(speed_now(controller), 1 - load / 2);
	double		waited = (0.5 + 1.5 * speed) * (0.9 + 0.2 * unit_chance());

	step(controller, (ControllerInput) {
		.awake = speed,.looked = TICK_SECONDS,.cores_are_unknown = cores_are_unknown,
		.others_ran = load * TICK_SECONDS * (cores_are_unknown ? 1 + waited : 1),
		.others_waited = cores_are_unknown ? 0 : load * TICK_SECONDS * waited,
	});
	return speed;
}

/* Other sessions whose waits vary by themselves */
typedef struct Waiters
{
	double		ran;			/* on a core, a second */
	double		waits;			/* by themselves, times that */
	double		at_full_speed;	/* likewise, more beside a VACUUM at full
								 * speed */
	double		noise;			/* standard deviation of their logarithm */
	double		lasts;			/* and for how many seconds */
} Waiters;

/*
 * waiters_run
 *		Ten minutes beside them: returns the mean speed, and in *stretch how many times
 *		as long as at the floor they take.
 */
static double
waiters_run(Waiters others, int seed, double *stretch)
{
	double		stays = exp(-TICK_SECONDS / others.lasts);
	double		weather = 0;
	double		speeds = 0;
	double		taken = 0;
	int			nticks = 0;
	Controller	law;

	begin_chance(seed);
	controller_init(&law);
	for (double now = 0; now < 620; now += TICK_SECONDS)
	{
		double		speed = speed_now(&law);
		double		ran = others.ran * TICK_SECONDS;
		double		waited;
		ControllerInput input = {
			.seconds = TICK_SECONDS,.elapsed = TICK_SECONDS,.awake = speed,
			.looked = TICK_SECONDS,.others_ran = ran
		};

		weather = stays * weather + normal(others.noise * sqrt(1 - stays * stays));
		waited = others.waits * exp(weather - others.noise * others.noise / 2) +
			others.at_full_speed * speed;
		input.others_waited = ran * waited;
		controller_step(&law, &input);
		if (now < 20)
			continue;
		speeds += speed;
		taken += 1 + waited;
		nticks++;
	}
	*stretch = taken / nticks / (1 + others.waits + others.at_full_speed * FLOOR_BUDGET);
	return speeds / nticks;
}

/*
 * test_waits_that_vary_by_themselves
 *		However much they do, VACUUM adds something to its floor, though its aim is far within
 *		what they vary, and doesn't harm by much more than that aim.
 */
UNIT_TEST(test_waits_that_vary_by_themselves)
{
	static const struct
	{
		const char *name;
		Waiters		others;
		double		most;
	}			loads[] = {
		{"a core", {0.4, 0.5, 1.5, 0.06, 0.25}, 1.06},
		{"TPC-C", {0.35, 0.27, 0.31, 0.1, 1}, 1.06},
		{"TPC-C, noisy", {0.35, 0.27, 0.31, 0.6, 1}, 1.06},
		{"weather of 20 s", {0.35, 0.27, 1.2, 0.3, 20}, 1.07},
		{"busy cores", {1.5, 1, 1.2, 0.3, 1}, 1.07},
		{"busy cores, noisy", {1.5, 1, 1.2, 0.6, 1}, 1.08},
		{"a disk as the bottleneck", {0.05, 8, 4, 0.3, 1}, 1.08},
		{"a disk as the bottleneck, noisy", {0.05, 8, 4, 0.8, 2}, 1.15},
		{"nothing that VACUUM makes longer", {0.35, 0.27, 0, 0.3, 1}, 1.02},
	};

	for (int i = 0; i < lengthof(loads); i++)
	{
		const Waiters *others = &loads[i].others;
		double		aim = others->at_full_speed > 0 ?
			Min((1 + others->waits + others->at_full_speed * FLOOR_BUDGET) * (WAIT_MARGIN - 1) / others->at_full_speed, 1) : 1;
		double		speed = 0;
		double		stretch = 0;

		unit_case("%s", loads[i].name);
		for (int seed = 1; seed <= SEEDS; seed++)
		{
			double		of_run;

			speed += waiters_run(*others, seed, &of_run) / SEEDS;
			stretch += of_run / SEEDS;
		}
		CHECK(speed > FLOOR_BUDGET + 0.5 * Min(aim, 1 - FLOOR_BUDGET));
		CHECK_BETWEEN(0.95, stretch, loads[i].most);
	}
}

/*
 * percentile_of_means
 *		The 95th percentile of as many transactions of each of these means, where that of
 *		transactions of mean 1 is 1.  Exactly, so that chance adds nothing to the law's.
 */
static double
percentile_of_means(const double *means, int number)
{
	double		least = 0;
	double		most = 1000;

	for (int i = 0; i < 50; i++)
	{
		double		middle = (least + most) / 2;
		double		above = 0;

		for (int k = 0; k < number; k++)
			above += exp(-middle / means[k]);
		if (above > 0.05 * number)
			least = middle;
		else
			most = middle;
	}
	return least / -log(0.05);
}

/*
 * machine_run
 *		A machine of two cores with 450 transactions of TPC-C a second, as measured
 *		(bench/research-log.md): at a part s of full speed they take 1 + 5.5 s^2 times as
 *		long, others run for 0.347 of a core, and wait for 0.093 + 0.49 s.
 *
 * VACUUM has some seconds of work at full speed.  Its speed is the law's, or this one
 * all the time.  Transactions also take longer now and shorter then for reasons of their
 * own, and others wait so (vary): the weather is the same for all speeds.  Returns the
 * seconds, and in *p95 how many times as long as usual the 95th percentile took.
 */
static double
machine_run(double work, double noise, double vary, int seed, double constant, double *p95)
{
	static double weather[MOST_TICKS];
	static double took[MOST_TICKS]; /* transactions, on average */
	Controller	law;
	double		stays = exp(-TICK_SECONDS / 2);
	int			tick;

	begin_chance(seed);
	for (int i = 0; i < MOST_TICKS; i++)
		weather[i] = (i > 0 ? stays * weather[i - 1] : 0) + normal(sqrt(1 - stays * stays));
	controller_init(&law);
	for (tick = 0; tick < MOST_TICKS && work > 0; tick++)
	{
		double		speed = constant > 0 ? constant : speed_now(&law);
		double		waits = 0.093 * exp(vary * weather[tick] - vary * vary / 2);
		ControllerInput input = {.awake = speed,.looked = TICK_SECONDS};

		work -= speed * TICK_SECONDS;
		took[tick] = exp(noise * weather[tick]) * Min(1 + 5.5 * speed * speed, 4.4);
		if (constant > 0)
			continue;
		input.others_ran = 0.347 * TICK_SECONDS;
		input.others_waited = (waits + 0.49 * speed) * TICK_SECONDS * (0.9 + 0.2 * unit_chance());
		input.seconds = input.elapsed = TICK_SECONDS;
		controller_step(&law, &input);
	}
	*p95 = percentile_of_means(took, tick);
	return tick * TICK_SECONDS;
}

/*
 * test_somebody_comes_and_goes
 *		Full speed as long as there is nobody, and little harm two seconds after a session has
 *		come.  Where it isn't known how long it waits for a core, nothing is added.
 */
UNIT_TEST(test_somebody_comes_and_goes)
{
	for (int seed = 1; seed <= 6; seed++)
	{
		bool		is_unknown = seed == 6;
		double		soon = 0;
		double		later = 0;
		Controller	controller;

		unit_case("seed %d", seed);
		begin_chance(seed);
		controller_init(&controller);
		for (int tick = 0; tick < 320; tick++)
		{
			bool		is_there = tick >= 80 && tick < 240;
			double		speed = queue_step(&controller, is_there, is_unknown);

			CHECK(tick % 240 < 12 || is_there || speed == 1);
			CHECK(!is_there || tick < 88 || !is_unknown || speed == FLOOR_BUDGET);
			soon += tick >= 88 && tick < 120 ? speed / 32 : 0;
			later += tick >= 120 && is_there ? speed / 120 : 0;
		}
		CHECK_BETWEEN(0.0999, soon, 0.11);
		CHECK_BETWEEN(0.0999, later, 0.17);
	}
}

/*
 * test_no_more_harm_than_a_steady_pace
 *		In no run more than that of a constant budget which takes as long, but for three in
 *		a hundred.  How long it takes is no matter of chance, unless what others wait for
 *		by themselves is; and never longer than by the cost delay alone.
 */
UNIT_TEST(test_no_more_harm_than_a_steady_pace)
{
	static const double works[] = {1.2, 3, 13, 30};
	static const double noises[] = {0, 0.1, 0.2};
	static const struct
	{
		double		vary;
		double		spread;		/* of the seconds, at most */
	}			waits[] = {{0, 1.1}, {0.1, 1.3}, {0.3, 1.8}};

	for (int w = 0; w < 2 * lengthof(works); w++)
		for (int n = 0; n < lengthof(noises); n++)
			for (int v = 0; v < lengthof(waits); v++)
			{
				double		least = INFINITY;
				double		most = 0;
				double		work = works[w / 2];

				cost_delay = w % 2 == 0 ? 0.05 : FLOOR_BUDGET;
				for (int seed = 1; seed <= SEEDS; seed++)
				{
					double		p95,
								steady;
					double		seconds = machine_run(work, noises[n], waits[v].vary, seed, 0, &p95);

					unit_case("work of %g s, cost delay %g, noise %g, waits vary by %g, seed %d",
							  work, cost_delay, noises[n], waits[v].vary, seed);
					(void) machine_run(work, noises[n], 0, seed, work / seconds, &steady);
					CHECK_BETWEEN(0.97, p95 / steady, 1.03);
					least = Min(least, seconds);
					most = Max(most, seconds);
				}
				CHECK_BETWEEN(1, most / least, waits[v].spread);
				CHECK(most <= work / cost_delay + TICK_SECONDS);
			}
	cost_delay = FLOOR_BUDGET;
}

/*
 * slow_disk_run
 *		Ten minutes beside ten statements a second, which come by chance: each takes a core
 *		for 1.5 ms, and waits for the disk, the longer the faster a VACUUM is.  Who waits is
 *		looked for ten times a second.  Returns how many did, on average.
 */
static double
slow_disk_run(int seed, bool has_vacuum, double *speed)
{
	double		left[100];		/* to wait, in seconds of the disk */
	double		sum = 0;
	double		waited = 0;
	int			nrunning = 0;
	int			nended = 0;
	const int	nslices = 12000;	/* of 0.05 s */
	Controller	controller;

	begin_chance(seed);
	controller_init(&controller);
	*speed = 0;
	for (int slice = 0; slice < nslices; slice++)
	{
		double		now = has_vacuum ? speed_now(&controller) : FLOOR_BUDGET;

		if (unit_chance() < 0.5)
			left[nrunning++] = -log(1 - unit_chance()) * 0.08;
		for (int i = 0; i < nrunning; i++)
			if ((left[i] -= 0.05 / (1 + 2 * now)) <= 0)
			{
				left[i--] = left[--nrunning];
				nended++;
			}
		sum += nrunning;
		*speed += now / nslices;
		if (slice % 2 == 0)
			waited += nrunning * 0.1;
		if (slice % 5 < 4)
			continue;
		STEP(.looked = TICK_SECONDS,.others_ran = nended * 0.0015,.others_waited = waited,.awake = now);
		nended = 0;
		waited = 0;
	}
	return sum / nslices;
}

/*
 * test_a_slow_disk
 *		Neither the pauses of a few statements nor chance unleash the VACUUM, nor does it crawl.
 */
UNIT_TEST(test_a_slow_disk)
{
	for (int seed = 1; seed <= SEEDS; seed++)
	{
		double		speed;
		double		alone = slow_disk_run(seed, false, &speed);
		double		taken = slow_disk_run(seed, true, &speed) / alone;

		unit_case("seed %d", seed);
		CHECK_BETWEEN(1, taken, 1.25);
		CHECK(speed > FLOOR_BUDGET * 1.2);
	}
}

/* test_somebody_who_watches -- a hundredth of a second every two seconds. */
UNIT_TEST(test_somebody_who_watches)
{
	int			nbounded = 0;
	Controller	controller;

	controller_init(&controller);
	for (int tick = 0; tick < 400; tick++)
	{
		STEP(.looked = TICK_SECONDS,.others_ran = tick % 8 == 0 ? 0.01 : 0,.awake = 1);
		nbounded += tick >= 40 && !isinf(controller_added(&controller));
	}
	CHECK_EQ(nbounded, 0);
}

/*
 * test_cores_to_spare
 *		Others who hardly wait take no less than that without VACUUM: soon it has all that it
 *		can use, but for as much as makes them wait.
 */
UNIT_TEST(test_cores_to_spare)
{
	static const double harms[] = {0, 0.05, 0.6, 1.5};	/* others' waits at full
														 * speed */

	for (int i = 0; i < lengthof(harms); i++)
	{
		double		stretch = 0;
		double		soon = 0;
		Controller	controller;

		unit_case("%g at full speed", harms[i]);
		begin_chance(i);
		controller_init(&controller);
		for (int tick = 0; tick < 2400; tick++)
		{
			double		speed = speed_now(&controller);
			double		ran = 2 * TICK_SECONDS;
			double		takes = 1.01 + 0.01 * unit_chance() + harms[i] * speed;

			STEP(.looked = TICK_SECONDS,.others_ran = ran,.others_waited = ran * (takes - 1),.awake = speed);
			stretch += takes / (1.015 + harms[i] * FLOOR_BUDGET) / 2400;
			if (tick >= 80 && tick < 240)
				soon += speed / 160;
		}
		CHECK_BETWEEN(0.99, stretch, 1.08);
		CHECK(soon > 0.6 * Min(FLOOR_BUDGET + 0.045 / Max(harms[i], 0.01), 1));
	}
}

/*
 * test_a_moment_of_waits
 *		VACUUM makes way at once if others take much longer than in rests, whoever it is
 *		due to, as early as in its first minute.  Soon it adds a third of what it did at least.
 */
UNIT_TEST(test_a_moment_of_waits)
{
	for (int begins = 20; begins <= 300; begins *= 2)
	{
		double		before = 0;
		double		least = INFINITY;
		double		after = 0;
		Controller	controller;

		unit_case("after %d s", begins);
		controller_init(&controller);
		for (double now = 0; now < begins + 30; now += TICK_SECONDS)
		{
			double		speed = speed_now(&controller);
			double		ran = 0.5 * TICK_SECONDS;
			double		waits = now >= begins && now < begins + 4 ? 1.2 : 0.4;

			if (now < begins && !controller.resting)
				before = speed;
			else if (now >= begins + 3 && now < begins + 4)
				least = Min(least, controller.in_force);
			else if (now >= begins + 20)
				after = Max(after, speed);
			STEP(.looked = TICK_SECONDS,.others_ran = ran,.others_waited = ran * (waits + 0.6 * speed),
				 .awake = speed);
		}
		CHECK(before > FLOOR_BUDGET);
		CHECK_BETWEEN(FLOOR_BUDGET, least, FLOOR_BUDGET + (before - FLOOR_BUDGET) / 3);
		CHECK(after > FLOOR_BUDGET + (before - FLOOR_BUDGET) / 3);
	}
}

/*
 * test_others_come_to_spare_cores
 *		There were cores to spare, and VACUUM had them; who comes now would wait for it.
 */
UNIT_TEST(test_others_come_to_spare_cores)
{
	for (int comes = 30; comes <= 240; comes *= 2)
	{
		double		before = 0;
		double		taken = 0;
		Controller	controller;

		unit_case("after %d s", comes);
		controller_init(&controller);
		for (double now = 0; now < comes + 30; now += TICK_SECONDS)
		{
			double		speed = speed_now(&controller);
			double		ran = 0.5 * TICK_SECONDS;
			double		waits = now < comes ? 0.01 : 0.05 + speed;

			if (now < comes && !controller.resting)
				before = speed;
			else if (now >= comes + 5)
				taken += (1 + waits) / 1.05 * TICK_SECONDS / 25;
			STEP(.looked = TICK_SECONDS,.others_ran = ran,.others_waited = ran * waits,.awake = speed);
		}
		CHECK(before > 0.5);
		CHECK_BETWEEN(1, taken, 1.25);
	}
}

/*
 * test_nobody_ran
 *		Then how long others wait says nothing; and if nobody runs while VACUUM rests, it
 *		doesn't rest for ever.
 */
UNIT_TEST(test_nobody_ran)
{
	Controller	controller;
	int			nrests = 0;

	controller_init(&controller);
	for (int tick = 0; tick < 400; tick++)
	{
		STEP(.looked = TICK_SECONDS,.others_waited = TICK_SECONDS,.awake = controller.budget);
		nrests += controller.resting;
	}
	CHECK_BETWEEN(100, nrests, 350);
	CHECK_EQ(controller.budget, FLOOR_BUDGET);
}

/*
 * test_all_are_held_up_in_a_rest
 *		What others take in a single rest isn't what they take without VACUUM.
 */
UNIT_TEST(test_all_are_held_up_in_a_rest)
{
	double		taken = 0;
	int			nticks = 0;
	Controller	controller;

	controller_init(&controller);
	for (int tick = 0; tick < 1000; tick++)
	{
		double		speed = speed_now(&controller);
		double		waited = 0.3 + 1.2 * speed + (controller.resting && controller.nrests == 12 ? 50 : 0);
		double		ran = 0.35 * TICK_SECONDS;

		if (controller.nrests > 12 && nticks < 240)
		{
			taken += 1 + waited;
			nticks++;
		}
		STEP(.looked = TICK_SECONDS,.others_ran = ran,.others_waited = ran * waited,.awake = speed);
	}
	CHECK_BETWEEN(1, taken / nticks / (1.3 + 1.2 * FLOOR_BUDGET), 1.35);
}

/*
 * test_a_load_that_comes_as_often_as_rests
 *		Others wait for longer in a part of each period.  Whatever the period is, rests don't
 *		always meet that part, or the other one.
 */
UNIT_TEST(test_a_load_that_comes_as_often_as_rests)
{
	int			nruns = 0;
	int			nstarve = 0;

	for (double period = 5; period <= 21; period += 0.25)
		for (double phase = 0; phase < 1; phase += 0.1)
			for (double part = 0.125; part <= 0.5; part *= 4)
			{
				double		taken = 0;
				double		alone = 0;
				double		sum = 0;
				Controller	controller;

				unit_case("%g of %g s, phase %g", part * period, period, phase);
				controller_init(&controller);
				for (int tick = 0; tick < 2400; tick++)
				{
					double		now = tick * TICK_SECONDS / period + phase;
					double		speed = speed_now(&controller);
					double		waits = now - floor(now) < part ? 1.5 : 0.27;
					double		ran = 0.35 * TICK_SECONDS;

					STEP(.looked = TICK_SECONDS,.others_ran = ran,
						 .others_waited = ran * (waits + 1.4 * speed),.awake = speed);
					if (tick < 80)
						continue;
					taken += 1 + waits + 1.4 * speed;
					alone += 1 + waits + 1.4 * FLOOR_BUDGET;
					sum += speed;
				}
				CHECK_BETWEEN(1, taken / alone, 1.2);
				nruns++;
				nstarve += sum / 2320 < FLOOR_BUDGET * 1.1;
			}
	CHECK(nstarve < nruns / 50);
}

/*
 * test_the_first_rests_weigh_alike
 *		What others take without VACUUM is the mean of the rests that there were, up to RESTS.
 */
UNIT_TEST(test_the_first_rests_weigh_alike)
{
	Controller	controller;

	controller_init(&controller);
	for (int rest = 1; rest <= RESTS; rest++)
	{
		unit_case("%d rests", rest);
		controller.rest_ran = rest;
		controller.rest_waited = 2 * rest;
		law_end_rest(&controller);
		CHECK_BETWEEN((rest + 1) / 2.0 * 0.999, controller.base_ran, (rest + 1) / 2.0 * 1.001);
		CHECK_BETWEEN((rest + 1) * 0.999, controller.base_waited, (rest + 1) * 1.001);
	}
	CHECK_EQ(controller.nrests, RESTS);
}

/*
 * test_who_comes_back_begins_slowly
 *		When the last VACUUM ended nobody was there.  Somebody may be now, of whom nothing is
 *		known yet, and what was learned and others took before is over; so it is if somebody comes.
 */
UNIT_TEST(test_who_comes_back_begins_slowly)
{
	for (int ends = 0; ends < 2; ends++)
	{
		Controller	controller;

		controller_init(&controller);
		for (int tick = 0; tick < 360; tick++)
		{
			CHECK(tick != 210 || controller_added(&controller) > 0.5);
			/* somebody who hardly waits, then nobody */
			STEP(.looked = TICK_SECONDS,.others_ran = tick < 210 ? 0.1 : 0,.others_waited = tick < 210 ? 0.001 : 0,.awake = 1);
		}
		CHECK(isinf(controller_added(&controller)));
		CHECK(isnan(controller_takes(&controller)));
		controller.since_rest = INFINITY;
		if (ends == 1)
			controller_resume(&controller, 1);
		else
			STEP(.looked = TICK_SECONDS,.others_ran = 0.1,.others_waited = 0.012,.awake = 1);
		CHECK_EQ(controller_added(&controller), 0);
		CHECK_EQ(controller.limit, LIMIT_LEARNING);
		for (int tick = 0; tick < 20; tick++)
			STEP(.looked = TICK_SECONDS,.others_ran = ends == 1 ? 0 : 0.1,.others_waited = ends == 1 ? 0 : 0.012,.awake = 1);
		CHECK(ends == 1 ? isinf(controller_added(&controller)) : controller_added(&controller) < 0.05);
	}
}

/*
 * test_it_comes_back_from_its_floor
 *		However long others have waited for what VACUUM doesn't pay for.
 */
UNIT_TEST(test_it_comes_back_from_its_floor)
{
	Controller	controller = {.budget = INFINITY,.in_force = INFINITY,.nrests = RESTS,.base_ran = 1,.base_waited = 0.1};

	for (int tick = 0; tick < 400; tick++)
	{
		controller.since_rest = 0;
		STEP(.looked = TICK_SECONDS,.others_ran = 0.25,.others_waited = tick < 340 ? 2 : 0.025,.awake = tick < 340 ? 0 : 0.1);
		CHECK(controller.in_force >= FLOOR_BUDGET && controller.beside > -100);
	}
	CHECK(controller_added(&controller) > 0);
}

/*
 * test_what_is_long_ago_says_nothing
 *		A step after a gap is none; and after one that is longer than rests go back nothing is known.
 */
UNIT_TEST(test_what_is_long_ago_says_nothing)
{
	Controller	controller;
	Controller	before;

	controller_init(&controller);
	controller.budget = 0.5;
	controller.nrests = 20;
	before = controller;
	STEP(.seconds = 0.5,.elapsed = PATIENCE,.looked = 1,.others_ran = 1,.others_waited = 1);
	CHECK(memcmp(&before, &controller, sizeof(before)) == 0);
	STEP(.seconds = 0.5,.elapsed = 80,.looked = 1,.others_ran = 1,.others_waited = 1);
	CHECK(controller.budget == FLOOR_BUDGET && controller.nrests == 0);
}
