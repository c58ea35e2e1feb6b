/*-------------------------------------------------------------------------
 *
 * target.h
 *	  A latency target, and the budget that keeps to it, of all VACUUMs of the
 *	  server that have it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TARGET_H
#define CYCLONE_TARGET_H

#include "pace/controller.h"
#include "pace/core_waits.h"
#include "pace/latency.h"
#include "pace/pace_settings.h"

/*
 * What a page costs of a target's budget, whatever the settings are: users share it,
 * and none of them is to say what the others pay.  To a disk, a page read is about
 * half of one made dirty, which is written, and so is its WAL.  The server's default
 * for it, 2, is about memory: at a budget of dirty pages, clean ones of a slow disk
 * would have it busy all the time.
 */
#define TARGET_COST_HIT		1
#define TARGET_COST_MISS	10
#define TARGET_COST_DIRTY	20

/* In shared memory */
typedef struct LatencyTarget LatencyTarget;

/* What VACUUMs have cost so far that share a target */
typedef struct TargetCosts
{
	uint64		spent;			/* cost */
	uint64		slept;			/* ns, of all processes */
	int			at_work;		/* processes */
} TargetCosts;

/* What a target says of itself, for views and reports */
typedef struct TargetState
{
	double		target_ms;		/* 0: not learned yet */
	double		latency_ms;		/* as last measured; NaN: there was nothing to
								 * measure */
	double		budget;			/* cost a second; INFINITY: no bound */
	ControllerLimit limit;
	int			vacuums;		/* that share it */
} TargetState;

extern void target_init(void);

extern LatencyTarget *target_join(const PaceSettings *settings, LatencyTarget *before);
extern void target_leave(LatencyTarget *target);
extern int	target_number(const LatencyTarget *target);
extern LatencyTarget *target_by_number(int number);

extern void target_begin_work(LatencyTarget *target);
extern void target_end_work(LatencyTarget *target);
extern int	target_at_work(LatencyTarget *target);
extern void target_begin_server_code(LatencyTarget *target);
extern void target_end_server_code(LatencyTarget *target);
extern int	target_in_server_code(LatencyTarget *target);
extern uint32 target_version(LatencyTarget *target);
extern double target_budget(LatencyTarget *target);
extern uint64 target_pay(LatencyTarget *target, uint64 now, uint64 price);
extern void target_note_cost(LatencyTarget *target, int64 cost);
extern void target_note_sleep(LatencyTarget *target, uint64 ns);
extern bool target_wants_core_waits(const LatencyTarget *target);
extern void target_note_core_waits(LatencyTarget *target, const CoreTimes *since);
extern void target_tick_if_due(LatencyTarget *target, uint64 now);
extern void target_state(LatencyTarget *target, TargetState *state);
extern bool target_is_out_of_reach(LatencyTarget *target);
extern bool target_tell(Oid cluster_user, double value, double budget, TargetCosts *costs);

#endif							/* CYCLONE_TARGET_H */
