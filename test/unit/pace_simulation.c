/*-------------------------------------------------------------------------
 *
 * pace_simulation.c
 *	  Servers that the law of the latency target is tried on, in simulation.
 *
 * One has cores, for which others wait the longer the faster a VACUUM is.
 *
 * The other one is on a disk of 2004, with a load as slow as that: transactions in
 * the manner of TPC-C, which come by chance, and a VACUUM from the first minute on.
 * The disk does one operation after the other; who waits goes first, and what is
 * written waits until nobody does, but for who writes when too much of that is
 * waiting.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pace_simulation.h"
#include "unit.h"

/* ---------------------------------------------------------------------------
 * Samples
 * ---------------------------------------------------------------------------
 */

static double normal_kept = NAN;

/* begin_chance -- chance begins anew. */
static void
begin_chance(uint64 seed)
{
	unit_seed(seed == 0 ? 1 : seed);
	normal_kept = NAN;
}

/* exponential -- a number of that mean by chance. */
static double
exponential(double mean)
{
	return -log(1 - unit_chance()) * mean;
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

/* samples_add -- there is one more. */
void
samples_add(Samples *samples, double end, double ms, double weight, int kind)
{
	if (samples->number == samples->size)
	{
		samples->size = Max(2 * samples->size, 1024);
		samples->items = realloc(samples->items, samples->size * sizeof(Sample));
	}
	samples->items[samples->number++] =
		(Sample)
	{
		.end = end,.ms = ms,.weight = weight,.kind = kind
	};
}

/*
 * percentile_ms
 *		That percentile of some samples, by their weights; brings them into another
 *		order.  NAN if there are none.
 */
static double
percentile_ms(Sample *items, int number, double percent)
{
	double		rank = 0;

	for (int i = 0; i < number; i++)
		rank += items[i].weight * percent / 100;
	while (number > 0)
	{
		double		pivot = items[number / 2].ms;
		double		below = 0;
		double		equal = 0;
		int			nbelow = 0;
		int			nupto = 0;

		for (int i = 0; i < number; i++)
		{
			Sample		sample = items[i];

			if (sample.ms > pivot)
				continue;
			items[i] = items[nupto];
			if (sample.ms == pivot)
			{
				items[nupto++] = sample;
				equal += sample.weight;
				continue;
			}
			items[nupto++] = items[nbelow];
			items[nbelow++] = sample;
			below += sample.weight;
		}
		if (nbelow > 0 && rank <= below)
			number = nbelow;
		else if (rank <= below + equal || nupto == number)
			return pivot;
		else
		{
			rank -= below + equal;
			items += nupto;
			number -= nupto;
		}
	}
	return NAN;
}

/*
 * samples_percentile
 *		That percentile of what ended between two times, of one kind, or any (-1).
 */
double
samples_percentile(const Samples *samples, double start, double end, int kind, double percent)
{
	Sample	   *items = palloc(Max(samples->number, 1) * sizeof(Sample));
	int			number = 0;
	double		ms;

	for (int i = 0; i < samples->number; i++)
	{
		const Sample *sample = &samples->items[i];

		if (sample->end >= start && sample->end < end && (kind < 0 || sample->kind == kind))
			items[number++] = *sample;
	}
	ms = percentile_ms(items, number, percent);
	pfree(items);
	return ms;
}

/* ---------------------------------------------------------------------------
 * The cores
 * ---------------------------------------------------------------------------
 */

static Controller controller_of_queue;
static double speeds[10000];	/* by tick */

/* queue_run -- simulate one. */
void
queue_run(Queue queue)
{
	Controller *controller = &controller_of_queue;

	CHECK(queue.seconds / TICK_SECONDS <= lengthof(speeds));
	begin_chance(queue.seed);
	controller_init(controller);
	for (int tick = 0; tick < (int) (queue.seconds / TICK_SECONDS); tick++)
	{
		double		load = queue.load(tick * TICK_SECONDS);
		double		speed = Min(controller_budget(controller), 1 - load / 2);
		double		waited = (0.5 + queue.waits * speed) * (0.9 + 0.2 * unit_chance());
		ControllerInput input = {
			.seconds = TICK_SECONDS,.elapsed = TICK_SECONDS,.awake = speed,.looked = TICK_SECONDS,
			.cores_are_unknown = queue.cores_are_unknown,
			.others_ran = load * TICK_SECONDS * (queue.cores_are_unknown ? 1 + waited : 1),
			.others_waited = queue.cores_are_unknown ? 0 : load * TICK_SECONDS * waited,
		};

		controller_step(controller, &input);
		speeds[tick] = speed;
	}
}

/* queue_speed -- the mean speed between two times, 1 being all that the machine has. */
double
queue_speed(double start, double end)
{
	int			first = (int) (start / TICK_SECONDS);
	int			last = (int) (end / TICK_SECONDS);
	double		sum = 0;

	for (int tick = first; tick < last; tick++)
		sum += speeds[tick];
	return sum / (last - first);
}

/* ---------------------------------------------------------------------------
 * The disk
 * ---------------------------------------------------------------------------
 */

#define TRANSACTIONS_A_SECOND	1.5
#define OPERATION_SECONDS		(1 / 150.0)
#define VACUUM_BEGINS			60
#define MOST_QUEUED				2.0 /* seconds of work */
/* That the VACUUM reads in one go */
#define PAGES					16
#define MOST_EVENTS				1000
#define LOOK_SECONDS			0.1
/* Of a statement, on a core */
#define STATEMENT_SECONDS		0.0015

/* In a hundred, and the reads of each of their statements, on average; 0 is a commit's sync */
static const struct
{
	int			percent;
	int			nstatements;
	double		reads[6];
}			kinds[] = {
	{45, 6, {0, 0, 0, 0, 15, 0}},	/* an order */
	{43, 5, {0, 0, 0, 4, 0}},	/* a payment */
	{12, 1, {60}},				/* a large query */
};

typedef struct Transaction
{
	int			kind;
	int			nstatements;	/* so far */
	double		began;
	int			reads_left;
} Transaction;

/* What is to be called at some time, or after an operation */
typedef struct Event
{
	double		moment;
	int64		number;
	double		operation;		/* seconds */
	void		(*call) (Transaction *transaction, int64 nap);
	Transaction *transaction;
	int64		nap;
} Event;

static Disk disk;
static Controller controller;
static Samples transactions;
static double now;
static Event events[MOST_EVENTS];
static int	nevents;
static int64 number;			/* of events, so far */
static Event waiting[MOST_EVENTS];	/* for the disk, in order */
static int	nwaiting;
static Event operation;			/* that it does */
static bool is_busy;
static double queued;			/* seconds of writing that nobody waits for */
static Transaction *running[MOST_EVENTS];	/* with a statement */
static int	nrunning;
static int	nended;				/* statements, since the last tick */
static double pages;			/* that the VACUUM has done */
static double awake_since;
static double slept;			/* seconds */
static double slept_before;
static double paid;				/* until then */
static bool is_asleep;
static int64 nap;				/* which it is in */
static double nap_began;
static double waited;			/* by statements, since the last tick */

static void next_operation(void);
static void next_statement(Transaction *transaction, int64 unused);
static void read_pages(Transaction *unused, int64 unused_too);

/* at -- call something at some time. */
static void
at(double moment, void (*call) (Transaction *, int64), Transaction *transaction, int64 of_nap)
{
	CHECK(nevents < MOST_EVENTS);
	events[nevents++] = (Event)
	{
		.moment = moment,.number = number++,.call = call,
			.transaction = transaction,.nap = of_nap
	};
}

/* next_event -- take the next one out. */
static Event
next_event(void)
{
	int			next = 0;
	Event		event;

	for (int i = 1; i < nevents; i++)
		if (events[i].moment < events[next].moment ||
			(events[i].moment == events[next].moment && events[i].number < events[next].number))
			next = i;
	event = events[next];
	events[next] = events[--nevents];
	return event;
}

/* operate -- have the disk do something, and call something after it. */
static void
operate(double seconds, void (*call) (Transaction *, int64), Transaction *transaction)
{
	CHECK(nwaiting < MOST_EVENTS);
	waiting[nwaiting++] = (Event)
	{
		.operation = seconds,.call = call,.transaction = transaction
	};
	next_operation();
}

/* end_operation -- the disk has done it. */
static void
end_operation(Transaction *unused, int64 unused_too)
{
	is_busy = false;
	if (operation.call != NULL)
		operation.call(operation.transaction, 0);
	next_operation();
}

/* next_operation -- the disk begins one, if there is one. */
static void
next_operation(void)
{
	if (is_busy || (nwaiting == 0 && queued <= 0))
		return;
	if (nwaiting > 0)
	{
		operation = waiting[0];
		memmove(&waiting[0], &waiting[1], --nwaiting * sizeof(Event));
	}
	else
	{
		operation = (Event)
		{
			.operation = Min(OPERATION_SECONDS, queued)
		};
		queued -= operation.operation;
	}
	is_busy = true;
	at(now + operation.operation, end_operation, NULL, 0);
}

/* arrive -- a transaction begins, and the next one will. */
static void
arrive(Transaction *unused, int64 unused_too)
{
	Transaction *transaction = palloc0(sizeof(Transaction));
	double		share;

	at(now + exponential(1 / TRANSACTIONS_A_SECOND), arrive, NULL, 0);
	share = unit_chance() * 100;
	while (transaction->kind < lengthof(kinds) - 1 && share >= kinds[transaction->kind].percent)
		share -= kinds[transaction->kind++].percent;
	transaction->began = now;
	next_statement(transaction, 0);
}

/* go_on -- a statement reads once more, or ends. */
static void
go_on(Transaction *transaction, int64 unused)
{
	if (transaction->reads_left > 0)
	{
		transaction->reads_left--;
		operate(OPERATION_SECONDS, go_on, transaction);
		return;
	}
	for (int i = 0; i < nrunning; i++)
		if (running[i] == transaction)
			running[i--] = running[--nrunning];
	if (!disk.has_no_vacuum && now >= VACUUM_BEGINS)
		nended++;
	at(now + 0.001, next_statement, transaction, 0);
}

/* next_statement -- a transaction begins it, or ends. */
static void
next_statement(Transaction *transaction, int64 unused)
{
	int			place = transaction->nstatements++;
	double		ms = (now - transaction->began) * 1000;
	double		mean;

	if (place == kinds[transaction->kind].nstatements)
	{
		samples_add(&transactions, now, ms, 1, transaction->kind);
		pfree(transaction);
		return;
	}
	CHECK(nrunning < MOST_EVENTS);
	running[nrunning++] = transaction;
	if (unit_chance() < 0.5)
		queued += OPERATION_SECONDS;	/* what it has changed */
	mean = kinds[transaction->kind].reads[place];
	if (mean > 0)
		transaction->reads_left = (int) (mean / 2 + exponential(mean / 2));
	else if (place == kinds[transaction->kind].nstatements - 1)
		transaction->reads_left = 1;
	else
		transaction->reads_left = unit_chance() < 0.3;
	at(now + 0.0005, go_on, transaction, 0);
}

/* wake -- the VACUUM's nap ends, unless it has become another. */
static void
wake(Transaction *unused, int64 of_nap)
{
	if (!is_asleep || of_nap != nap)
		return;
	slept += now - nap_began;
	awake_since = now;
	is_asleep = false;
	read_pages(NULL, 0);
}

/* take_nap -- until what it has cost is paid for. */
static void
take_nap(void)
{
	is_asleep = true;
	nap++;
	nap_began = now;
	at(paid, wake, NULL, nap);
}

/* pay -- the VACUUM has written its pages. */
static void
pay(Transaction *unused, int64 unused_too)
{
	double		awake = now - awake_since;

	awake_since = now;
	if (isinf(controller_budget(&controller)))
	{
		at(now, read_pages, NULL, 0);
		return;
	}

	/*
	 * what it was awake is over, and a process that is there all the time
	 * doesn't sleep
	 */
	paid = Max(Max(paid, now - 0.05 - awake) + awake / controller_budget(&controller), now);
	take_nap();
}

/* write_pages -- it has read them. */
static void
write_pages(Transaction *unused, int64 unused_too)
{
	double		seconds = PAGES * OPERATION_SECONDS / 3;

	pages += PAGES;
	if (queued + seconds > MOST_QUEUED)
		operate(seconds, pay, NULL);
	else
	{
		queued += seconds;
		pay(NULL, 0);
	}
}

/* read_pages -- the VACUUM goes on. */
static void
read_pages(Transaction *unused, int64 unused_too)
{
	operate(OPERATION_SECONDS * 1.4, write_pages, NULL);
}

/* look -- who has a statement waits for the disk. */
static void
look(Transaction *unused, int64 unused_too)
{
	waited += nrunning * LOOK_SECONDS;
	at(now + LOOK_SECONDS, look, NULL, 0);
}

/* take_tick -- the law takes a step. */
static void
take_tick(Transaction *unused, int64 unused_too)
{
	double		before = controller_budget(&controller);
	double		slept_now = slept + (is_asleep ? now - nap_began : 0);
	ControllerInput input = {
		.seconds = TICK_SECONDS,
		.elapsed = TICK_SECONDS,
		.awake = Max(0, 1 - (slept_now - slept_before) / TICK_SECONDS),
		.looked = TICK_SECONDS,
		.others_ran = nended * STATEMENT_SECONDS,
		.others_waited = waited,
	};

	at(now + TICK_SECONDS, take_tick, NULL, 0);
	controller_step(&controller, &input);
	nended = 0;
	waited = 0;
	slept_before = slept_now;
	if (is_asleep && controller_budget(&controller) != before)
	{
		/* what is left to pay, at the new rate */
		slept = slept_now;
		paid = now + (paid - now) * before / controller_budget(&controller);
		take_nap();
	}
}

/* disk_run -- simulate one. */
void
disk_run(Disk wanted)
{
	disk = wanted;
	begin_chance(disk.seed);
	controller_init(&controller);
	transactions.number = 0;
	nevents = nwaiting = nrunning = nended = 0;
	number = nap = 0;
	now = queued = paid = waited = 0;
	pages = awake_since = slept = slept_before = 0;
	is_busy = is_asleep = false;
	at(0, arrive, NULL, 0);
	if (!disk.has_no_vacuum)
	{
		at(VACUUM_BEGINS, read_pages, NULL, 0);
		at(VACUUM_BEGINS, look, NULL, 0);
		at(VACUUM_BEGINS, take_tick, NULL, 0);
	}
	for (Event event = next_event(); event.moment < disk.seconds; event = next_event())
	{
		now = event.moment;
		event.call(event.transaction, event.nap);
	}
}

/* disk_pages -- how many pages the VACUUM has done. */
double
disk_pages(void)
{
	return pages;
}

/* disk_orders_ms -- that of the transactions that are orders. */
double
disk_orders_ms(double start, double end)
{
	return samples_percentile(&transactions, start, end, 0, 95);
}
