/*-------------------------------------------------------------------------
 *
 * test_pace_law.c
 *	  The control law of a latency target, in simulation: pace/controller.c.
 *
 * test_pace.py tests the law in a server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pace/controller.c"
#include "pace_simulation.c"
#include "unit.h"

/* simulate one, or take a step of a test's own controller, with these members */
#define QUEUE(...)	queue_run((Queue) {__VA_ARGS__})
#define DISK(...)	disk_run((Disk) {__VA_ARGS__})
#define STEP(...)	step(&controller, (ControllerInput) {__VA_ARGS__})

#define MOST_TICKS	8000
#define SEEDS		12

/* for loads */
static double few;				/* a part of the full one */
static double every;			/* seconds */
static double on;				/* of them */

/* full -- full load. */
static double
full(double now)
{
	return 1;
}

/* steps -- idle, full load, idle, full load. */
static double
steps(double now)
{
	return (now >= 10 && now < 40) || now >= 50;
}

/* full_for_20 -- and few then. */
static double
full_for_20(double now)
{
	return now < 20 ? 1 : few;
}

/* full_for_30 -- and few then. */
static double
full_for_30(double now)
{
	return now < 30 ? 1 : few;
}

/* none_for_20 -- and full load then. */
static double
none_for_20(double now)
{
	return now >= 20;
}

/* constant -- few. */
static double
constant(double now)
{
	return few;
}

/* bursts -- full load for some seconds, and again. */
static double
bursts(double now)
{
	return fmod(now, every) < on;
}

/* grows -- tenfold within a minute. */
static double
grows(double now)
{
	return Min(1, Max(0.1, 0.1 * pow(10, (now - 10) / 60)));
}

/* shrinks -- likewise. */
static double
shrinks(double now)
{
	return grows(80 - now);
}

/*
 * test_steps_of_the_load
 *		Statements are spared within two seconds, and full speed is back within two.
 */
static void
test_steps_of_the_load(void)
{
	for (int per_second = 400; per_second <= 3000; per_second += 2600)
		for (int seed = 1; seed <= 5; seed++)
		{
			unit_case("%d a second, seed %d", per_second, seed);
			QUEUE(.target_ms = 40,.load = steps,.seconds = 70,.per_second = per_second,.seed = seed);
			CHECK_EQ(queue_speed(5, 10), 1);
			CHECK_BETWEEN(0, queue_percentile(12, 14), 44);
			CHECK_BETWEEN(0, queue_percentile(12, 40), 40);
			/* it is held back no more than it has to be */
			CHECK(queue_percentile(20, 40) >= 30);
			CHECK(queue_speed(20, 40) > 0.1);
			CHECK_EQ(queue_speed(42, 50), 1);
			CHECK_BETWEEN(0, queue_percentile(52, 70), 40);
		}
}

/* test_a_vacuum_that_does_not_disturb -- has all that is left. */
static void
test_a_vacuum_that_does_not_disturb(void)
{
	QUEUE(.target_ms = 400,.load = full,.seconds = 30);
	CHECK_EQ(queue_speed(5, 30), 0.5);
}

/* test_the_load_becomes_less -- which is found out. */
static void
test_the_load_becomes_less(void)
{
	few = 0.2;
	QUEUE(.target_ms = 40,.load = full_for_20,.seconds = 40);
	CHECK(queue_speed(10, 20) < 0.4);
	CHECK(queue_speed(25, 40) > 0.7);
}

/* test_few_statements -- are spared, and the VACUUM gets on. */
static void
test_few_statements(void)
{
	for (int seed = 1; seed <= 5; seed++)
	{
		unit_case("seed %d", seed);
		QUEUE(.target_ms = 40,.load = full,.seconds = 60,.per_second = 40,.seed = seed);
		CHECK_BETWEEN(0, queue_percentile(10, 60), 60);
		CHECK(queue_speed(10, 60) > 0.05);
	}
}

/*
 * test_hardly_a_statement
 *		Fast ones are no reason to go slowly, nor is one that ran for long; neither is
 *		what was a while ago.
 */
static void
test_hardly_a_statement(void)
{
	static const int numbers[] = {2, 5, 12};

	for (int i = 0; i < lengthof(numbers); i++)
	{
		double		sum = 0;

		unit_case("%d a second", numbers[i]);
		for (int seed = 1; seed <= 10; seed++)
		{
			QUEUE(.target_ms = 40,.load = full,.seconds = 60,.per_second = numbers[i],
				  .base_ms = 1,.seed = seed);
			CHECK(queue_speed(20, 60) > 0.35);
			sum += queue_speed(20, 60);
		}
		CHECK(sum / 10 > 0.4);	/* of 0.5 */
		few = numbers[i] / 400.0;
		QUEUE(.target_ms = 8,.load = full_for_20,.seconds = 60);
		CHECK(queue_speed(10, 20) < 0.025);
		QUEUE(.target_ms = 30,.load = full_for_20,.seconds = 60);
		CHECK(queue_speed(40, 60) > 0.5);
	}
}

/* step -- one that nothing but these measurements is told of. */
static void
step(Controller *controller, ControllerInput input)
{
	if (input.seconds == 0)
		input.seconds = TICK_SECONDS;
	if (input.elapsed == 0)
		input.elapsed = input.seconds;
	input.votes = input.ended;
	input.percent = 95;
	controller_step(controller, &input);
}

/*
 * test_a_gap_without_ticks
 *		However long the last step took, one bad percentile is one bad percentile.
 */
static void
test_a_gap_without_ticks(void)
{
	Controller	controller;

	controller_init(&controller, 40);
	for (int tick = 0; tick <= 40; tick++)
		STEP(.seconds = tick == 40 ? 0.5 : TICK_SECONDS,.late = tick == 40 ? 2 : 0,.ended = 25,
			 .awake = 0.5);
	CHECK(controller.budget > 0.25);
	CHECK(!controller_target_is_out_of_reach(&controller));
}

/*
 * test_a_vacuum_never_stops
 *		A target that can't be met: the floor, and it is told; then it can be met, and
 *		all is well again.
 */
static void
test_a_vacuum_never_stops(void)
{
	QUEUE(.target_ms = 8,.load = full,.seconds = 40);
	CHECK_BETWEEN(0.015, queue_speed(20, 40), 0.025);
	CHECK(controller_target_is_out_of_reach(queue_controller()));
	few = 0.1;
	QUEUE(.target_ms = 8,.load = full_for_30,.seconds = 60,.base_ms = 1.5);
	CHECK(!controller_target_is_out_of_reach(queue_controller()));
	CHECK(queue_speed(35, 60) > 0.5);
}

/*
 * test_waits_for_a_core
 *		Statements don't show what the VACUUM does: at full speed others wait for as
 *		long again as it takes them.
 */
static void
test_waits_for_a_core(void)
{
	static const double noises[] = {0.05, 0.12, 0.2};

	few = 0.4;
	for (int i = 0; i < lengthof(noises); i++)
	{
		double		sum = 0;

		for (int seed = 1; seed <= 40; seed++)
		{
			unit_case("noise %g, seed %d", noises[i], seed);
			QUEUE(.load = constant,.seconds = 300,.per_second = 2000,.harm = 0.02,
				  .noise = noises[i],.seed = seed,.waits = 1.5);
			/* at 0.06 it takes others 1.06 times as long */
			CHECK_BETWEEN(0.03, queue_speed(20, 120), 0.1);
			CHECK_BETWEEN(0.03, queue_speed(120, 300), 0.09);
			sum += queue_speed(120, 300);
		}
		CHECK_BETWEEN(0.05, sum / 40, 0.07);
	}
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
 *		as long as without it they take.
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
	controller_init(&law, 0);
	for (double now = 0; now < 620; now += TICK_SECONDS)
	{
		double		speed = Min(controller_budget(&law), 1);
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
	*stretch = taken / nticks / (1 + others.waits);
	return speeds / nticks;
}

/*
 * test_waits_that_vary_by_themselves
 *		However much they do, VACUUM neither crawls, though its aim is far within what
 *		they vary, nor does it harm by much more than that aim.
 */
static void
test_waits_that_vary_by_themselves(void)
{
	static const struct
	{
		const char *name;
		Waiters		others;
		double		most;
	}			loads[] = {
		{"TPC-C", {0.35, 0.27, 0.31, 0.1, 1}, 1.06},
		{"TPC-C, noisy", {0.35, 0.27, 0.31, 0.6, 1}, 1.06},
		{"weather of 20 s", {0.35, 0.27, 1.2, 0.3, 20}, 1.07},
		{"busy cores", {1.5, 1, 1.2, 0.3, 1}, 1.07},
		{"busy cores, noisy", {1.5, 1, 1.2, 0.6, 1}, 1.08},
		{"a disk as the bottleneck", {0.05, 8, 4, 0.3, 1}, 1.08},
		{"a disk as the bottleneck, noisy", {0.05, 8, 4, 0.8, 2}, 1.13},
		{"nothing that VACUUM makes longer", {0.35, 0.27, 0, 0.3, 1}, 1.02},
	};

	for (int i = 0; i < lengthof(loads); i++)
	{
		const Waiters *others = &loads[i].others;
		double		aim = others->at_full_speed > 0 ?
			Min((1 + others->waits) * (WAIT_MARGIN - 1) / others->at_full_speed, 1) : 1;
		double		speed = 0;
		double		stretch = 0;

		unit_case("%s", loads[i].name);
		for (int seed = 1; seed <= SEEDS; seed++)
		{
			double		of_run;

			speed += waiters_run(*others, seed, &of_run) / SEEDS;
			stretch += of_run / SEEDS;
		}
		CHECK(speed > 0.5 * aim);
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
	controller_init(&law, 0);
	for (tick = 0; tick < MOST_TICKS && work > 0; tick++)
	{
		double		speed = constant > 0 ? constant : Min(controller_budget(&law), 1);
		double		waits = 0.093 * exp(vary * weather[tick] - vary * vary / 2);
		ControllerInput input = {.awake = speed,.looked = TICK_SECONDS};

		work -= speed * TICK_SECONDS;
		took[tick] = exp(noise * weather[tick]) * Min(1 + 5.5 * speed * speed, 4.4);
		if (constant > 0)
			continue;
		input.others_ran = 0.347 * TICK_SECONDS;
		input.others_waited = (waits + 0.49 * speed) * TICK_SECONDS * (0.9 + 0.2 * unit_chance());
		law_step(&law, NULL, 0, NULL, 0, input);
	}
	*p95 = percentile_of_means(took, tick);
	return tick * TICK_SECONDS;
}

/*
 * test_waits_that_are_unknown
 *		Where it isn't known how long others wait for a core, a tenth of a process does
 *		little harm; and when they have gone all is VACUUM's.
 */
static void
test_waits_that_are_unknown(void)
{
	QUEUE(.load = full_for_30,.seconds = 60,.waits = 1.5,.cores_are_unknown = true);
	CHECK_BETWEEN(0.07, queue_speed(5, 30), 0.1);
	QUEUE(.load = none_for_20,.seconds = 40,.waits = 1.5,.cores_are_unknown = true);
	CHECK_EQ(queue_speed(3, 20), 1);
	CHECK_BETWEEN(0.06, queue_speed(22, 40), 0.1);
}

/*
 * test_somebody_comes
 *		Full speed as long as there is nobody, and little harm two seconds after
 *		a session has come.
 */
static void
test_somebody_comes(void)
{
	for (int seed = 1; seed <= 5; seed++)
	{
		unit_case("seed %d", seed);
		QUEUE(.load = none_for_20,.seconds = 60,.waits = 1.5,.seed = seed);
		CHECK_EQ(queue_speed(3, 20), 1);
		CHECK_BETWEEN(0.02, queue_speed(22, 30), 0.1);
		CHECK_BETWEEN(0.02, queue_speed(30, 60), 0.1);
	}
}

/*
 * test_no_more_harm_than_a_steady_pace
 *		In no run more than that of a constant budget which takes as long, but for three in
 *		a hundred.  How long it takes is no matter of chance, unless what others wait for
 *		by themselves is.
 */
static void
test_no_more_harm_than_a_steady_pace(void)
{
	static const double works[] = {1.2, 3, 13, 30};
	static const double noises[] = {0, 0.1, 0.2};
	static const struct
	{
		double		vary;
		double		spread;		/* of the seconds, at most */
	}			waits[] = {{0, 1.1}, {0.1, 1.2}, {0.3, 1.5}};

	for (int w = 0; w < lengthof(works); w++)
		for (int n = 0; n < lengthof(noises); n++)
			for (int v = 0; v < lengthof(waits); v++)
			{
				double		least = INFINITY;
				double		most = 0;

				for (int seed = 1; seed <= SEEDS; seed++)
				{
					double		p95,
								steady;
					double		seconds = machine_run(works[w], noises[n], waits[v].vary, seed, 0, &p95);

					unit_case("work of %g s, noise %g, waits vary by %g, seed %d",
							  works[w], noises[n], waits[v].vary, seed);
					(void) machine_run(works[w], noises[n], 0, seed, works[w] / seconds, &steady);
					CHECK_BETWEEN(0.97, p95 / steady, 1.03);
					least = Min(least, seconds);
					most = Max(most, seconds);
				}
				CHECK_BETWEEN(1, most / least, waits[v].spread);
			}
}

/* test_a_slow_load -- five statements a second. */
static void
test_a_slow_load(void)
{
	for (int seed = 1; seed <= 3; seed++)
	{
		unit_case("seed %d", seed);
		QUEUE(.target_ms = 40,.load = full,.seconds = 120,.per_second = 5,.seed = seed);
		CHECK_BETWEEN(0, queue_percentile(5, 120), 44);
		CHECK(queue_speed(5, 120) > 0.05);
	}
}

/*
 * test_a_fast_load
 *		20,000 statements a second: chance is small, so the target is met, and made
 *		use of.
 */
static void
test_a_fast_load(void)
{
	QUEUE(.target_ms = 40,.load = full,.seconds = 30,.per_second = 20000);
	CHECK_BETWEEN(40 * 0.88, queue_percentile(15, 30), 40 * 1.03);
	CHECK(queue_speed(15, 30) > 0.02);
}

/*
 * test_one_in_eight_is_timed
 *		Of short statements, of which there are a thousand a second or more
 *		(neighbours/latency.c): the target is kept as if all were.
 */
static void
test_one_in_eight_is_timed(void)
{
	static const int numbers[] = {1000, 3000, 20000};

	for (int i = 0; i < lengthof(numbers); i++)
	{
		double		speed = 0;
		double		of_all = 0;

		for (int seed = 1; seed <= 5; seed++)
		{
			unit_case("%d a second, seed %d", numbers[i], seed);
			QUEUE(.target_ms = 40,.load = steps,.seconds = 70,.per_second = numbers[i],.seed = seed);
			of_all += queue_speed(20, 40);
			QUEUE(.target_ms = 40,.load = steps,.seconds = 70,.per_second = numbers[i],.seed = seed,
				  .sample = 8);
			CHECK_BETWEEN(0, queue_percentile(12, 14), 44);
			CHECK_BETWEEN(36, queue_percentile(20, 40), 40.4);
			speed += queue_speed(20, 40);
			CHECK_EQ(queue_speed(42, 50), 1);
		}
		CHECK(speed > 0.85 * of_all);
	}
}

/*
 * test_bursts_of_load
 *		Full load now and then: its first second may pay for it, but no more than
 *		that, and in between it goes fast.
 */
static void
test_bursts_of_load(void)
{
	for (int i = 0; i < 2; i++)
		for (int seed = 1; seed <= 3; seed++)
		{
			on = i == 0 ? 1 : 3;
			every = i == 0 ? 4 : 8;
			unit_case("%g of %g s, seed %d", on, every, seed);
			QUEUE(.target_ms = 40,.load = bursts,.seconds = 60,.per_second = 3000,.seed = seed);
			CHECK_BETWEEN(0, queue_percentile(5, 60), 50);
			CHECK(queue_speed(5, 60) > 0.5 * (1 - on / every));
		}
}

/*
 * test_a_load_that_changes_tenfold
 *		Within a minute, up and down: the target is kept to all along, and what the
 *		load leaves is made use of.
 */
static void
test_a_load_that_changes_tenfold(void)
{
	for (int seed = 1; seed <= 3; seed++)
	{
		unit_case("seed %d", seed);
		QUEUE(.target_ms = 40,.load = grows,.seconds = 90,.seed = seed);
		CHECK(queue_speed(8, 10) > 0.8);
		for (int start = 10; start < 90; start += 20)
			CHECK_BETWEEN(0, queue_percentile(start, start + 20), 44);
		CHECK(queue_speed(70, 90) > 0.1);
		QUEUE(.target_ms = 40,.load = shrinks,.seconds = 90,.seed = seed);
		for (int start = 10; start < 90; start += 20)
			CHECK_BETWEEN(0, queue_percentile(start, start + 20), 44);
		CHECK(queue_speed(70, 90) > 0.8);
	}
}

/*
 * test_a_slow_disk
 *		Ten statements a second, of which one waits for the disk: neither their pauses
 *		nor chance unleash the VACUUM.
 */
static void
test_a_slow_disk(void)
{
	for (int seed = 1; seed <= 4; seed++)
	{
		double		orders_alone,
					target;

		unit_case("seed %d", seed);
		DISK(.seconds = 660,.seed = seed,.has_no_vacuum = true);
		orders_alone = disk_orders_ms(60, 660);
		target = 1.3 * disk_statements_ms(60, 660);
		DISK(.seconds = 660,.seed = seed);
		/* three times as many pages for less harm than the target below */
		CHECK_BETWEEN(0, disk_orders_ms(60, 660), 1.5 * orders_alone);
		CHECK(disk_pages() > 100000);
		DISK(.target_ms = target,.seconds = 660,.seed = seed);
		CHECK_BETWEEN(0, disk_statements_ms(60, 660), target * 1.15);
		CHECK_BETWEEN(0, disk_orders_ms(60, 660), 1.8 * orders_alone);
		CHECK(disk_pages() > 40000);
	}
}

/*
 * hang
 *		Each client has eight fast statements a second, and then all hang: what had
 *		ended before doesn't count for that.
 */
static void
hang(int nclients, double awake)
{
	const int	hangs = 240;
	double		before = 0;
	Controller	controller;

	unit_case("%d clients, awake %g", nclients, awake);
	controller_init(&controller, 200);
	for (int tick = 0; tick < hangs + 22; tick++)	/* of eight a second
													 * thirty don't come in
													 * four */
	{
		bool		is_fast = tick < hangs;
		double		ms[16];
		int			nended = is_fast ? 2 * nclients : 0;
		ControllerInput input = {.awake = awake};

		for (int i = 0; i < 2 * nclients; i++)
			ms[i] = is_fast ? 5 : (tick - hangs) * TICK_SECONDS * 1000;
		law_step(&controller, ms, nended, ms, is_fast ? 0 : nclients, input);
		if (is_fast)
			before = Min(controller_budget(&controller), 1);
	}
	CHECK(before > 0.04);
	CHECK(controller_budget(&controller) < before / 2);
}

/* test_nothing_ends_any_more -- which is noticed. */
static void
test_nothing_ends_any_more(void)
{
	static const int numbers[] = {1, 2, 3, 8};

	for (int i = 0; i < lengthof(numbers); i++)
	{
		hang(numbers[i], 0.3);
		hang(numbers[i], 1);
	}
}

/*
 * test_a_report_is_no_hang
 *		A single session with ten fast statements a second, and a report every ten
 *		seconds.
 */
static void
test_a_report_is_no_hang(void)
{
	for (double seconds = 0.5; seconds <= 2; seconds *= 2)
	{
		Controller	controller;
		double		sum = 0;

		unit_case("%g s", seconds);
		controller_init(&controller, 20);
		for (int tick = 0; tick < 2400; tick++)
		{
			double		of_report = (tick % 40) * TICK_SECONDS;
			double		running = of_report * 1000;
			double		ended[3] = {5, 5, 5};
			int			nended = of_report < seconds ? 0 : of_report == seconds ? 1 : 2 + tick % 2;
			double		speed = Min(controller_budget(&controller), 1);
			ControllerInput input = {.awake = speed};

			if (of_report == seconds)
				ended[0] = seconds * 1000;
			law_step(&controller, ended, nended, &running,
					 of_report > 0 && of_report < seconds ? 1 : 0, input);
			if (tick >= 400)
				sum += speed;
		}
		CHECK(sum / 2000 > 0.9);
	}
}

/*
 * test_a_vacuum_that_waits_for_something_else
 *		What has cost nothing for a moment has not had too large a budget; nor too
 *		small a one.
 */
static void
test_a_vacuum_that_waits_for_something_else(void)
{
	Controller	controller;
	double		before;

	controller_init(&controller, 20);
	for (int tick = 0; tick < 400; tick++)
		STEP(.late = tick % 8 == 0 ? 1 : 0,.ended = 2 + tick % 2,.awake = controller.budget);
	before = controller.budget;
	for (int i = 0; i < 3; i++)
	{
		STEP(.ended = 5,.elapsed = 1);
		CHECK(before / 2 < controller.budget && controller.budget < before * 2);
	}
}

/*
 * test_one_who_takes_long
 *		A single client whose statements take half a minute, back to back, and none is
 *		late: nobody else is there.
 */
static void
test_one_who_takes_long(void)
{
	Controller	controller;

	controller_init(&controller, 60000);
	for (int tick = 0; tick < 480; tick++)
	{
		double		ended = 30000;
		double		running = (tick % 120) * TICK_SECONDS * 1000;
		int			nended = tick % 120 == 119;
		ControllerInput input = {.awake = 1};

		law_step(&controller, &ended, nended, &running, 1, input);
		CHECK(tick < 40 || controller_budget(&controller) > 1);
	}
}

/*
 * test_somebody_who_only_looks
 *		A query every few seconds is nobody to be spared: soon the VACUUM has all that
 *		it leaves.
 */
static void
test_somebody_who_only_looks(void)
{
	static const int seconds[] = {1, 5, 60};

	for (int i = 0; i < lengthof(seconds); i++)
	{
		unit_case("every %d s", seconds[i]);
		every = seconds[i];
		on = TICK_SECONDS;
		QUEUE(.target_ms = 40,.load = bursts,.seconds = 20,.per_second = 4,.base_ms = 0.5);
		CHECK(queue_speed(4, 20) > 0.98 - 0.5 * TICK_SECONDS / every);
	}
}

/* test_somebody_who_watches -- with auto: a hundredth of a second every two seconds. */
static void
test_somebody_who_watches(void)
{
	int			nbounded = 0;
	Controller	controller;

	controller_init(&controller, 0);
	for (int tick = 0; tick < 400; tick++)
	{
		STEP(.looked = TICK_SECONDS,.others_ran = tick % 8 == 0 ? 0.01 : 0,.awake = 1);
		nbounded += tick >= 40 && !isinf(controller_budget(&controller));
	}
	CHECK_EQ(nbounded, 0);
}

/*
 * test_cores_to_spare
 *		Others who hardly wait take no less than that without VACUUM: soon it has all that it
 *		can use, but for as much as makes them wait.
 */
static void
test_cores_to_spare(void)
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
		controller_init(&controller, 0);
		for (int tick = 0; tick < 2400; tick++)
		{
			double		speed = Min(controller_budget(&controller), 1);
			double		ran = 2 * TICK_SECONDS;
			double		takes = 1.01 + 0.01 * unit_chance() + harms[i] * speed;

			STEP(.looked = TICK_SECONDS,.others_ran = ran,.others_waited = ran * (takes - 1),.awake = speed);
			stretch += takes / 1.015 / 2400;
			if (tick >= 80 && tick < 240)
				soon += speed / 160;
		}
		CHECK_BETWEEN(0.99, stretch, 1.08);
		CHECK(soon > 0.6 * Min(0.045 / Max(harms[i], 0.01), 1));
	}
}

/*
 * test_a_moment_of_waits
 *		VACUUM makes way at once if others take much longer than in rests, whoever it is
 *		due to, as early as in its first minute.  Soon it goes on, at a third of its speed at least.
 */
static void
test_a_moment_of_waits(void)
{
	for (int begins = 20; begins <= 300; begins *= 2)
	{
		double		before = 0;
		double		least = INFINITY;
		double		after = 0;
		Controller	controller;

		unit_case("after %d s", begins);
		controller_init(&controller, 0);
		for (double now = 0; now < begins + 30; now += TICK_SECONDS)
		{
			double		speed = Min(controller_budget(&controller), 1);
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
		CHECK(before >= FIRST_BUDGET * 0.9);
		CHECK_BETWEEN(LEAST_BUDGET, least, before / 3);
		CHECK(after > before / 3);
	}
}

/*
 * test_others_come_to_spare_cores
 *		There were cores to spare, and VACUUM had them; who comes now would wait for it.  If
 *		nobody was there in between, nothing of that is left.
 */
static void
test_others_come_to_spare_cores(void)
{
	for (int comes = 30; comes <= 240; comes *= 2)
	{
		double		before = 0;
		double		taken = 0;
		Controller	controller;

		unit_case("after %d s", comes);
		controller_init(&controller, 0);
		for (double now = 0; now < comes + 30; now += TICK_SECONDS)
		{
			double		speed = Min(controller_budget(&controller), 1);
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

	for (int tick = 0; tick < 300; tick++)
	{
		static Controller controller;

		if (tick == 0)
			controller_init(&controller, 0);
		CHECK(tick != 200 || controller_budget(&controller) > 0.5);
		CHECK(tick <= 220 || controller_budget(&controller) <= FIRST_BUDGET * 1.5);
		/* somebody who hardly waits, then nobody for five seconds */
		STEP(.looked = TICK_SECONDS,.others_ran = tick < 200 || tick >= 220 ? 0.5 * TICK_SECONDS : 0,
			 .others_waited = tick < 200 ? 0.005 * TICK_SECONDS : tick >= 220 ? 0.06 * TICK_SECONDS : 0,
			 .awake = Min(controller_budget(&controller), 1));
	}
}

/*
 * test_nobody_ran
 *		Then how long others wait says nothing; and if nobody runs while VACUUM rests, it
 *		doesn't rest for ever.
 */
static void
test_nobody_ran(void)
{
	Controller	controller = {.base_ran = 1};
	ControllerInput input = {.seconds = 1,.others_waited = 1};
	int			nrests = 0;

	CHECK_EQ(vote_of_waits(&controller, &input), 0);
	controller_init(&controller, 0);
	for (int tick = 0; tick < 400; tick++)
	{
		STEP(.looked = TICK_SECONDS,.others_waited = TICK_SECONDS,.awake = controller.budget);
		nrests += controller.resting;
	}
	CHECK_BETWEEN(100, nrests, 350);
	CHECK_BETWEEN(LEAST_BUDGET, controller.budget, 0.1);
}

/*
 * test_all_are_late_or_none
 *		Statements that all take the same: the budget doesn't swing so that more of them
 *		are late than the percentile allows.
 */
static void
test_all_are_late_or_none(void)
{
	static const int numbers[] = {10, 100, 5000};	/* a tick */

	for (int i = 0; i < lengthof(numbers); i++)
	{
		int			nlate = 0;
		double		sum = 0;
		Controller	controller;

		unit_case("%d a tick", numbers[i]);
		controller_init(&controller, 12);
		for (int tick = 0; tick < 2480; tick++)
		{
			double		speed = Min(controller_budget(&controller), 0.5);
			double		ms = 5 / (0.5 - 0.48 * speed);

			if (tick >= 80)
			{
				nlate += ms > 12;
				sum += speed;
			}
			STEP(.ended = numbers[i],.late = ms > controller_late_ms(&controller) ? numbers[i] : 0,
				 .awake = speed);
		}
		CHECK_BETWEEN(0, nlate / 2400.0, 0.055);
		CHECK(sum / 2400 > 0.04);	/* of 0.13, with which none would be late */
	}
}

/*
 * test_a_rest_of_the_load_is_spared
 *		Nothing bounds VACUUM when most of the load has gone, until it makes the rest late.
 */
static void
test_a_rest_of_the_load_is_spared(void)
{
	static const int numbers[] = {1, 2};	/* a tick */

	for (int i = 0; i < lengthof(numbers); i++)
	{
		int			nfast = 0;
		bool		has_all = false;
		Controller	controller;

		unit_case("%d a tick", numbers[i]);
		controller_init(&controller, 40);
		for (int tick = 0; tick < 400; tick++)
		{
			double		ended = tick < 80 ? 100 : numbers[i];
			double		speed = Min(controller_budget(&controller), 1);

			STEP(.ended = ended,.late = tick < 80 ? 10 : speed > 0.4 ? ended : 0,.awake = speed);
			has_all |= isinf(controller_budget(&controller));
			nfast += tick >= 200 && controller_budget(&controller) > 0.4;
		}
		CHECK(has_all);
		CHECK(nfast < 30);
	}
}

/*
 * test_all_are_held_up_in_a_rest
 *		What others take in a single rest isn't what they take without VACUUM.
 */
static void
test_all_are_held_up_in_a_rest(void)
{
	double		taken = 0;
	int			nticks = 0;
	Controller	controller;

	controller_init(&controller, 0);
	for (int tick = 0; tick < 1000; tick++)
	{
		double		speed = Min(controller_budget(&controller), 1);
		double		waited = 0.3 + 1.2 * speed + (controller.resting && controller.nrests == 12 ? 50 : 0);
		double		ran = 0.35 * TICK_SECONDS;

		if (controller.nrests > 12 && nticks < 240)
		{
			taken += 1 + waited;
			nticks++;
		}
		STEP(.looked = TICK_SECONDS,.others_ran = ran,.others_waited = ran * waited,.awake = speed);
	}
	CHECK_BETWEEN(1, taken / nticks / 1.3, 1.35);
}

/*
 * test_a_load_that_comes_as_often_as_rests
 *		Others wait for longer in a part of each period.  Whatever the period is, rests don't
 *		always meet that part, or the other one.
 */
static void
test_a_load_that_comes_as_often_as_rests(void)
{
	int			nruns = 0;
	int			ncrawl = 0;

	for (double period = 5; period <= 21; period += 0.25)
		for (double phase = 0; phase < 1; phase += 0.1)
			for (double part = 0.125; part <= 0.5; part *= 4)
			{
				double		taken = 0;
				double		alone = 0;
				double		sum = 0;
				Controller	controller;

				unit_case("%g of %g s, phase %g", part * period, period, phase);
				controller_init(&controller, 0);
				for (int tick = 0; tick < 2400; tick++)
				{
					double		now = tick * TICK_SECONDS / period + phase;
					double		speed = Min(controller_budget(&controller), 1);
					double		waits = now - floor(now) < part ? 1.5 : 0.27;
					double		ran = 0.35 * TICK_SECONDS;

					STEP(.looked = TICK_SECONDS,.others_ran = ran,
						 .others_waited = ran * (waits + 1.4 * speed),.awake = speed);
					if (tick < 80)
						continue;
					taken += 1 + waits + 1.4 * speed;
					alone += 1 + waits;
					sum += speed;
				}
				CHECK_BETWEEN(1, taken / alone, 1.2);
				CHECK(sum / 2320 > LEAST_BUDGET);
				nruns++;
				ncrawl += sum / 2320 < LEAST_BUDGET * 1.5;
			}
	CHECK(ncrawl < nruns / 50);
}

/*
 * test_the_first_rests_weigh_alike
 *		What others take without VACUUM is the mean of the rests that there were, up to RESTS.
 */
static void
test_the_first_rests_weigh_alike(void)
{
	Controller	controller;
	int			nrests = 0;
	double		all_ran = 0;
	double		all_waited = 0;

	controller_init(&controller, 0);
	for (int tick = 0; tick < 1000 && nrests < RESTS; tick++)
	{
		bool		was_at_rest = controller.resting;
		double		ran = 0.35 * TICK_SECONDS;
		double		waited = 0.3 + 0.1 * nrests;

		STEP(.looked = TICK_SECONDS,.others_ran = ran,.others_waited = ran * waited,.awake = 1);
		if (!was_at_rest || controller.resting)
			continue;
		all_ran += controller.rest_ran;
		all_waited += controller.rest_ran * waited;
		unit_case("%d rests", ++nrests);
		CHECK_BETWEEN(all_waited / all_ran * 0.999, base(&controller) - 1, all_waited / all_ran * 1.001);
	}
	CHECK_EQ(nrests, RESTS);
}

/*
 * test_who_comes_back_begins_slowly
 *		When the last VACUUM ended nobody was there.  Somebody may be now, of whom nothing is
 *		known yet.
 */
static void
test_who_comes_back_begins_slowly(void)
{
	for (int ms = 0; ms <= 40; ms += 40)
	{
		Controller	controller;

		unit_case("target %d", ms);
		controller_init(&controller, ms);
		for (int tick = 0; tick < 40; tick++)
			STEP(.looked = TICK_SECONDS,.awake = 1);
		CHECK(isinf(controller_budget(&controller)));
		controller_resume(&controller);
		CHECK_BETWEEN(LEAST_BUDGET, controller_budget(&controller), FIRST_BUDGET);
		STEP(.looked = TICK_SECONDS,.awake = 0.1);
		CHECK(isinf(controller_budget(&controller)));
	}
}

/* main -- run them all. */
int
main(void)
{
	UNIT_RUN(test_steps_of_the_load);
	UNIT_RUN(test_a_vacuum_that_does_not_disturb);
	UNIT_RUN(test_the_load_becomes_less);
	UNIT_RUN(test_few_statements);
	UNIT_RUN(test_hardly_a_statement);
	UNIT_RUN(test_a_gap_without_ticks);
	UNIT_RUN(test_a_vacuum_never_stops);
	UNIT_RUN(test_waits_for_a_core);
	UNIT_RUN(test_waits_that_vary_by_themselves);
	UNIT_RUN(test_waits_that_are_unknown);
	UNIT_RUN(test_somebody_comes);
	UNIT_RUN(test_no_more_harm_than_a_steady_pace);
	UNIT_RUN(test_a_slow_load);
	UNIT_RUN(test_a_fast_load);
	UNIT_RUN(test_one_in_eight_is_timed);
	UNIT_RUN(test_bursts_of_load);
	UNIT_RUN(test_a_load_that_changes_tenfold);
	UNIT_RUN(test_a_slow_disk);
	UNIT_RUN(test_nothing_ends_any_more);
	UNIT_RUN(test_a_report_is_no_hang);
	UNIT_RUN(test_a_vacuum_that_waits_for_something_else);
	UNIT_RUN(test_one_who_takes_long);
	UNIT_RUN(test_somebody_who_only_looks);
	UNIT_RUN(test_somebody_who_watches);
	UNIT_RUN(test_cores_to_spare);
	UNIT_RUN(test_a_moment_of_waits);
	UNIT_RUN(test_others_come_to_spare_cores);
	UNIT_RUN(test_nobody_ran);
	UNIT_RUN(test_all_are_late_or_none);
	UNIT_RUN(test_a_rest_of_the_load_is_spared);
	UNIT_RUN(test_all_are_held_up_in_a_rest);
	UNIT_RUN(test_a_load_that_comes_as_often_as_rests);
	UNIT_RUN(test_the_first_rests_weigh_alike);
	UNIT_RUN(test_who_comes_back_begins_slowly);
	return unit_end();
}
