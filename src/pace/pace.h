/*-------------------------------------------------------------------------
 *
 * pace.h
 *	  How fast a vacuum may go.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PACE_H
#define CYCLONE_PACE_H

#include "guards/guards.h"
#include "report/result.h"

/* Special values of a latency target; others are in ms. */
#define LATENCY_TARGET_OFF	0.0
#define LATENCY_TARGET_AUTO (-1.0)

/* What the pace has meant for the tables of this process since pace_begin_summary */
typedef struct PaceSummary
{
	bool		is_known;		/* has it been through with one? */
	double		slept_seconds;	/* by all processes */
	bool		has_target;
	double		target_ms;		/* 0: none, or auto */
	double		latency_ms;		/* as last measured; NAN: there was nothing to
								 * measure */
	GuardTimes	held;			/* by guards */
} PaceSummary;

/* The budget of one vacuum's processes, in memory that they share */
typedef struct PaceShared PaceShared;

/* settings */
extern double cyclone_latency_percentile;

extern bool pace_parse_latency_target(const char *value, double *target, const char **problem);
extern void pace_settings_init(void);

/* a command */
extern void pace_shmem_request(void);
extern void pace_shmem_init(void);
extern void pace_begin_command(const double *latency_target);
extern void pace_end_command(void);
extern bool pace_command_is_running(void);
extern bool pace_is_worker(void);
extern void pace_hurry(void);
extern int	pace_processes_fed(void);
extern int	pace_workers_now(void);
extern void pace_write_steadily(void);
extern void pace_begin_summary(void);
extern const PaceSummary *pace_summary(void);

/* a table */
extern Size pace_shared_size(void);
extern void pace_create(PaceShared *shared, Oid relid, bool is_locked);
extern void pace_join(PaceShared *shared);
extern void pace_leave(void);
extern void pace_join_as_builder(void);
extern void pace_leave_as_builder(void);
extern void pace_set_need(double need);
extern void pace_report(TableResult *result);
extern void pace_allow_workers(int most, bool asked_for, void (*launch) (void *), void *argument);
extern void pace_withhold_workers(void);
extern void pace_allow_workers_again(void (*launch) (void *), void *argument);
extern uint32 pace_piece(uint32 usual);
extern bool pace_take_place(bool at_any_rate);
extern bool pace_has_place(void);
extern bool pace_give_place(void);
extern void pace_begin_work(void);
extern void pace_end_work(void);
extern void pace_give_up(void);

/* where it spends */
extern void delay_point(void);
extern void pace_pages_written(int number);
extern void pace_while_waiting(void);
extern void pace_begin_server_code(void);
extern void pace_in_server_code(void);
extern void pace_end_server_code(void);

#endif							/* CYCLONE_PACE_H */
