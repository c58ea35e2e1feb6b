/*-------------------------------------------------------------------------
 *
 * pace_state.h
 *	  What the files of the pace share: the state of one vacuum, of this process
 *	  in it, and of the command that it leads.  Others include pace.h.
 *
 * Who calls whom: pace.c and server_code.c, where processes spend, call
 * pace_tick.c, pace_team.c and pace_command.c (a reload); all of them go by
 * pace_budget.c, which tells pace_team.c of a budget.  A routine said to be safe
 * in a signal handler takes no lock, allocates no memory and raises no error.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PACE_STATE_H
#define CYCLONE_PACE_STATE_H

#include "port/atomics.h"
#include "utils/timestamp.h"

#include "pace/pace.h"
#include "pace/pace_settings.h"
#include "pace/parking.h"
#include "pace/target.h"

/*
 * It is no use to sleep for less, nor good to sleep for longer at a time.  Who
 * wakes up may take the core from somebody, so with a target that is done less
 * often.  What that alone is worth has not been measured.
 */
#define LEAST_NAP_NS		((uint64) NS_PER_MS)
#define LEAST_NAP_WITH_TARGET_NS (5 * (uint64) NS_PER_MS)
/*
 * What one process costs a second without any delay, about: 5 million for 5
 * million rows with two indexes, in 2.5 s by two processes (2 cores).
 */
#define COST_OF_A_PROCESS	1e6
/* As in the server: so many times the limit is paid for at most. */
#define GREATEST_OVERRUN	4

struct PaceShared
{
	/* written by the leader; then version */
	pg_atomic_uint32 version;
	pg_atomic_uint32 cost_limit;
	pg_atomic_uint32 page_hit;
	pg_atomic_uint32 page_miss;
	pg_atomic_uint32 page_dirty;
	pg_atomic_uint64 cost_delay;	/* ms; a double, like the following ones */
	pg_atomic_uint64 latency_target;
	pg_atomic_uint64 latency_percentile;
	pg_atomic_uint32 latency_of;
	pg_atomic_uint32 target;	/* its number plus one; 0: none */
	pg_atomic_uint32 failsafe;	/* is it on, as far as someone has noticed? */
	bool		in_a_hurry;		/* these never change: does no budget count? */
	bool		watches_others; /* can our processes be told from others? */
	Oid			relid;
	int			leader;			/* its slot */
	char		padding[PG_CACHE_LINE_SIZE];

	/* written by all */
	pg_atomic_uint64 paid_until;	/* of the settings' budget */
	pg_atomic_uint64 spent;		/* cost by the settings */
	pg_atomic_uint64 target_cost;	/* cost to a latency target, if there is
									 * one or not */
	pg_atomic_uint64 slept;		/* ns */
	pg_atomic_uint32 at_work;	/* processes */
	pg_atomic_uint32 in_server_code;	/* so many of them */
	pg_atomic_uint64 next_tick;
	pg_atomic_uint32 ticking;	/* is someone in the middle of it? */

	pg_atomic_uint32 has_warned;	/* that the target is out of reach */

	Parking		parking;		/* of its workers, if it may have any */

	/* written by whoever ticks, and with the settings */
	pg_atomic_uint64 exchange;	/* a double: by the settings, what costs a
								 * target 1 */
	/* written by whoever ticks */
	uint64		tick_time;
	uint64		spent_before;
	uint64		target_cost_before;
	uint64		slept_before;
};

/* Pages, by what was done with them */
typedef struct PageCounts
{
	int64		hit;
	int64		miss;
	int64		dirty;
} PageCounts;

/* This process's view of the budget */
typedef struct Pace
{
	PaceShared *shared;			/* NULL: this process isn't vacuuming */
	uint32		version;		/* of the settings below */
	PaceSettings settings;
	LatencyTarget *target;		/* NULL: none */
	uint32		target_version; /* of its budget below */
	double		rate_of_settings;	/* cost a second; INFINITY if unbounded */
	double		rate_of_target;
	double		greatest_cost;	/* by the settings, to be paid for in one go */
	double		greatest_target_cost;	/* likewise, to the target */
	int			charge;			/* look at the budgets when so much is due */
	uint32		calls;			/* of the delay point */
	bool		at_work;
	volatile bool in_server_code;
	volatile bool keeps_timer_out;	/* while it changes what the timer would */
	PageCounts	accounted;		/* of this process so far, and accounted for */
	PageCounts	mix;			/* of late */
} Pace;

/* The command that this process leads */
typedef struct PaceCommand
{
	bool		is_running;
	bool		in_a_hurry;		/* no budget counts */
	bool		is_coordinator; /* of a cluster, of whose nodes it is the pace */
	bool		has_target;		/* as an option, which overrides the setting */
	double		target;
	bool		reload_owed;	/* to the server, which was told to */
	PaceParameters parameters;	/* to be put back */
	PaceSettings settings_at_start; /* the parameters' */
	PaceSettings settings;		/* in force */
	LatencyTarget *latency_target;	/* NULL: none */
	TimestampTz statement;		/* in which it is run, maybe one of many */
	bool		has_warned;		/* in there, that it is out of reach */
	void		(*launch) (void *); /* workers; NULL: there are none to launch */
	void	   *launch_argument;
	bool		workers_asked_for;	/* by PARALLEL n, for the table in hand */
} PaceCommand;

extern Pace my_pace;
extern PaceCommand pace_command;

/* pace.c */
extern void pace_prepare_process(void);
extern void pace_warn_if_out_of_reach(void);

/* pace_command.c */
extern bool pace_is_leader(void);
extern void pace_reload(void);
extern void pace_rebalance(void);
extern void pace_leave_target(void);

/* pace_budget.c; all but budget_publish are safe in a signal handler */
extern void budget_publish(const PaceSettings *settings);
extern void budget_take(void);
extern void budget_take_target(uint32 number);
extern bool budget_has_changed(void);
extern double budget_of_settings(const PaceSettings *settings);
extern bool budget_is_counted(void);
extern bool budget_has_target(const PaceSettings *settings);
extern void budget_account(int64 *cost, int64 *target_cost);
extern void budget_count_pages(PageCounts *pages);
extern int64 budget_cost_by_settings(const PageCounts *pages);
extern int64 budget_cost_to_target(const PageCounts *pages);
extern void budget_set_page_costs(bool of_target);

/* pace_team.c; all but pace_launch_workers are safe in a signal handler */
extern void pace_bound_team(void);
extern void pace_look_around(uint64 now);
extern void pace_launch_workers(void);

/* pace_tick.c; safe in a signal handler */
extern void pace_tick_if_due(uint64 now);

/* pace_view.c; pace_show is safe in a signal handler */
extern void pace_begin_row(PaceShared *shared);
extern void pace_show(PaceShared *shared, double rate, double target_rate, double asleep);
extern void pace_end_row(void);

/* server_code.c */
extern void server_code_prepare(void);
extern void server_code_abandon(void);
extern void server_code_forget_reload(void);

#endif							/* CYCLONE_PACE_STATE_H */
