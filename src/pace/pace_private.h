/*-------------------------------------------------------------------------
 *
 * pace_private.h
 *	  What the files of the pace know of each other.  Files of other folders include pace.h.
 *
 * From the bottom up: no file calls one that stands further down here.
 *
 * parking.c, controller.c, budget.c, pace_settings.c
 * adaptive.c		what the adaptive delay adds, its law, what is measured for it
 * pace_process.c	a vacuum, and this process in it: what it may spend
 * pace_view.c		the view cyclone.pace
 * pace_team.c		how many processes are at work; ticks
 * pace_command.c	the command, from its settings to its end
 * pace.c, server_code.c	where a process pays and sleeps
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PACE_PRIVATE_H
#define CYCLONE_PACE_PRIVATE_H

#include <math.h>

#include "storage/spin.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "neighbours/neighbours.h"
#include "pace/controller.h"
#include "pace/pace.h"

/* ---- the constants of all files; those of the law are in controller.c ---- */

/* ns between two steps.  Chosen: eight come in the two seconds in which users are promised a change. */
#define NS_A_TICK			(NS_PER_S / 4)
/* Cost a second of a process at full speed.  Log: 5.6 million in 2.6 s for 12 warehouses. */
#define COST_OF_A_PROCESS	1e6
/* ms, the floor of the adaptive delay where there is no cost delay: what autovacuum has by default */
#define FLOOR_DELAY			2.0
/* Processes that sleep for less are busy.  Chosen: what they use varies by half of that in test_parking.c. */
#define BUSY_ASLEEP			0.1

/* The least nap: a latch's unit */
#define LEAST_NAP_NS		((uint64) NS_PER_MS)
/* Pages, or entries of an index, between two looks at the clock */
#define CALLS_A_LOOK		32

/* ---- budget.c: a budget that processes share ---- */

/* In shared memory: of cost, or of time awake (ns) */
typedef struct Budget
{
	/* written by all */
	pg_atomic_uint64 paid_until;
	pg_atomic_uint64 used;
	pg_atomic_uint64 slept;		/* ns */
	pg_atomic_uint32 at_work;	/* processes */
	pg_atomic_uint64 next_tick;
	pg_atomic_uint32 ticking;	/* is a process in the middle of it? */
	/* written by the process that ticks */
	uint64		tick_time;
	uint64		used_before;
	uint64		slept_before;
} Budget;

/* What was used of it between two ticks */
typedef struct BudgetUse
{
	double		seconds;
	double		used;			/* a second */
	double		asleep;			/* processes, on average */
} BudgetUse;

/*
 * No other process has the budget in budget_init, and no other process ticks in budget_restart.
 * Any process may call the other functions at any time.  They take no lock and raise no error.  After
 * budget_claim_tick or budget_begin_tick has returned true no other process ticks before
 * budget_end_tick, which the caller must reach: nothing in between may raise an error.
 */
extern void budget_init(Budget *budget);
extern void budget_restart(Budget *budget, uint64 now);
extern bool budget_claim_tick(Budget *budget);
extern bool budget_begin_tick(Budget *budget, uint64 now, BudgetUse *use);
extern void budget_end_tick(Budget *budget);

/* ---- parking.c: a team no larger than its budget feeds ---- */

/* The number of workers that are wanted if nothing bounds the pace */
#define PARKING_ALL			PG_INT32_MAX

/* The places at work of one team's workers; the leader needs none. */
typedef struct Parking
{
	int			leader;			/* its slot */
	int			most;			/* workers that there can be */
	pg_atomic_uint32 wanted;	/* workers that the budget feeds, or
								 * PARKING_ALL */
	pg_atomic_uint32 room;		/* for how many workers other sessions leave
								 * cores */
	pg_atomic_uint32 taken;		/* places taken by workers */
} Parking;

/* the law, which knows nothing of the server */
extern uint32 parking_law(uint32 wanted, uint32 taken, double asleep);

extern Size parking_shmem_size(void);
extern void parking_shmem_init(void);

/*
 * The leader sets it up before it has workers.  Only a worker takes, gives or leaves a place,
 * its own, and one that exits must call parking_leave.  Any process of the VACUUM may call the
 * others.  They set other processes' latches, take no lock and raise no error.
 */
extern void parking_set_up(Parking *parking, int leader, int most);
extern void parking_set_bound(Parking *parking, bool is_bounded, double fed);
extern void parking_adjust(Parking *parking, double asleep);
extern void parking_set_room(Parking *parking, uint32 workers);
extern bool parking_wants_workers(Parking *parking);
extern bool parking_take_place(Parking *parking, bool at_any_rate);
extern bool parking_give_place(Parking *parking);
extern void parking_leave(Parking *parking);

/* ---- pace_settings.c ---- */

typedef struct PaceSettings
{
	double		cost_delay;		/* ms */
	int			cost_limit;
	int			page_hit;
	int			page_miss;
	int			page_dirty;
	bool		is_adaptive;	/* this is the floor, and more is added */
} PaceSettings;

/* The server's parameters that a command changes for its duration */
#define PACE_DELAYS			2
#define PACE_COSTS			5
typedef struct PaceParameters
{
	double		delays[PACE_DELAYS];
	int			costs[PACE_COSTS];
} PaceParameters;

/*
 * For the leader of a command.  pace_settings_restore is called after an error, too.
 * pace_settings_reread reads files and changes parameters, so it may raise an error, and
 * so may pace_settings_rebalance, in the server's routine.  The other functions raise none, and
 * none locks anything.
 */
extern void pace_settings_current(PaceSettings *settings);
extern void pace_settings_save(PaceParameters *saved);
extern void pace_settings_restore(const PaceParameters *saved);
extern bool pace_settings_rebalance(PaceSettings *settings);
extern void pace_settings_reread(PaceSettings *settings);

/* settings_rate -- the budget of cost-based delay, in cost a second. */
static inline double
settings_rate(const PaceSettings *settings)
{
	return settings->cost_delay > 0 ?
		settings->cost_limit / settings->cost_delay * 1000 : INFINITY;
}

/* ---- adaptive.c: of all VACUUMs of the server with an adaptive delay ---- */

/* What it says of itself.  The times that others take are as long as alone on the machine; NAN: not known */
typedef struct AdaptiveState
{
	double		added;			/* processes, in all; INFINITY: no bound */
	double		unrested;		/* added without rests and bad moments */
	double		others_at_work; /* at work, or waiting for it */
	double		others_take;
	double		others_would_take;	/* if nothing were added */
	ControllerLimit limit;
	int			vacuums;		/* that share it */
} AdaptiveState;

/*
 * Leaders join and leave, when they exit, too; that takes an LWLock, under which nothing else
 * is locked but a spinlock.  Any process may call the other functions, which take a spinlock at most.
 * Without an adaptive delay the state is that nothing is added.  None raises an error.
 */
extern Size adaptive_shmem_size(void);
extern void adaptive_shmem_init(void);
extern void adaptive_join(void);
extern void adaptive_leave(void);
extern Budget *adaptive_time(void);
extern uint32 adaptive_version(void);
extern void adaptive_note_others(const NeighboursTimes *times);
extern void adaptive_tick_if_due(uint64 now);
extern void adaptive_state(bool is_adaptive, AdaptiveState *state);

/* ---- pace_process.c: a vacuum, and this process in it ---- */

struct PaceShared
{
	/* written by the leader, under the lock; then version */
	slock_t		mutex;
	PaceSettings settings;
	double		needed;			/* processes, more than by the settings */
	pg_atomic_uint32 version;
	pg_atomic_uint32 failsafe;	/* is it on, as far as a process has noticed? */
	/* these never change */
	bool		in_a_hurry;		/* no budget counts */
	Oid			relid;
	int			leader;			/* its slot */
	char		padding[PG_CACHE_LINE_SIZE];

	/* written by all */
	Budget		cost;			/* by the settings */
	Budget		time;			/* awake, of this vacuum alone, as it is needed */
	pg_atomic_uint32 with_server;	/* how many the server makes sleep */
	Parking		parking;		/* of its workers, if it may have any */
};

/* This process in it */
typedef struct Pace
{
	PaceShared *shared;			/* NULL: this process isn't vacuuming */
	uint32		version;		/* of the settings below */
	PaceSettings settings;
	bool		is_adaptive;	/* it spends of what that adds */
	uint32		adaptive_version;	/* of that budget */
	/* what it may spend: the sum of these */
	double		rate;			/* of the settings, cost a second, or INFINITY */
	double		added;			/* by the adaptive delay, processes, or
								 * INFINITY */
	double		needed;			/* processes, as in PaceShared */
	uint64		slice;			/* ns between two looks at the budgets */
	uint32		calls;			/* of the delay point */
	bool		at_work;
	bool		in_server_code;
	bool		with_server;	/* is it counted in with_server? */
	uint64		awake_since;
	int64		accounted;		/* cost of this process that is accounted for */
} Pace;

extern Pace my_pace;

/*
 * process_publish is the leader's, process_be_adaptive is for any process, and the other functions are for
 * one that has joined.  They take a spinlock at most, and raise no error.
 */
extern void process_publish(const PaceSettings *settings);
extern void process_take_budget(void);
extern void process_be_adaptive(bool is_adaptive);
extern bool process_budget_has_changed(void);
extern bool process_is_bounded(void);
extern uint64 process_pay(uint64 now);
extern void process_reset(uint64 now);
extern void process_bound_team(void);

/* ---- pace_view.c ---- */

/*
 * The leader begins its row, and ends it, when it exits, too.  view_show is for the leader and
 * for the process that ticks, once they have joined.  They take a spinlock, and raise no error.
 */
extern Size view_shmem_size(void);
extern void view_shmem_init(void);
extern void view_begin_row(PaceShared *shared);
extern void view_show(PaceShared *shared, double cost, double asleep);
extern void view_end_row(void);

/* ---- pace_command.c: the command that this process leads ---- */

typedef struct PaceCommand
{
	bool		is_running;
	bool		in_a_hurry;		/* no budget counts */
	VacOptValue option;			/* ADAPTIVE_DELAY */
	bool		reload_owed;	/* to the server, which was told to */
	PaceParameters parameters;	/* to be put back */
	PaceSettings settings_at_start; /* of the parameters */
	PaceSettings settings;		/* in force */
	bool		has_joined;		/* those with an adaptive delay */
	void		(*launch) (void *); /* launches workers; NULL: there are none */
	void	   *launch_argument;
	bool		workers_asked_for;	/* by PARALLEL n, for this table */
} PaceCommand;

extern PaceCommand pace_command;

/* pace_is_leader -- does this process lead the vacuum that it takes part in? */
static inline bool
pace_is_leader(void)
{
	return pace_command.is_running;
}

/*
 * What is the leader's does nothing in a worker.  pace_reload, and what calls it when it is due
 * (pace_reload_if_due, pace_hide_reloads), read files and take the lock of adaptive.c.  They
 * may raise an error, as may pace_rebalance; so no spinlock may be held, and no tick be in
 * hand.  pace_show_reloads is called after an error, too, and raises none.
 */
extern void pace_reload(void);
extern void pace_reload_if_due(void);
extern void pace_hide_reloads(void);
extern void pace_show_reloads(void);
extern void pace_rebalance(void);
extern void pace_prepare_process(void);

/*
 * pace_team.c
 *
 * pace_launch_workers runs the caller's routine, in the leader, which holds no lock but on
 * relations.  The other two are for any process that has joined, raise no error, and take a
 * spinlock at most.  pace_look_around, which does nothing in workers, reads small files.
 */
extern void pace_launch_workers(void);
extern void pace_look_around(uint64 now);
extern void pace_tick_if_due(uint64 now);

#endif							/* CYCLONE_PACE_PRIVATE_H */
