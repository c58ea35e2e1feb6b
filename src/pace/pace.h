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

#include "commands/vacuum.h"

#include "guards/guards.h"
#include "report/result.h"

/* What the pace has meant for the tables of this process since pace_begin_summary */
typedef struct PaceSummary
{
	bool		is_known;		/* has it left a table since? */
	double		slept_seconds;	/* by all processes */
	GuardTimes	held;			/* by guards */
} PaceSummary;

/* The budget of one vacuum's processes, in memory that they share */
typedef struct PaceShared PaceShared;

extern void pace_settings_init(void);

/*
 * A command, in the process that leads it.  A command that was begun must be ended, also
 * after an error; pace_end_command does nothing if none was begun.  pace_restart_command is
 * for a command that goes on after an error: nothing of the failed table is left.
 */
extern void pace_shmem_request(void);
extern void pace_shmem_init(void);
extern void pace_begin_command(VacOptValue adaptive_delay);
extern void pace_end_command(void);
extern void pace_restart_command(void);
extern bool pace_command_is_running(void);
extern bool pace_is_worker(void);
extern void pace_hurry(void);
extern int	pace_processes_fed(void);
extern void pace_write_steadily(void);
extern void pace_begin_summary(void);
extern const PaceSummary *pace_summary(void);

/*
 * A table.  The leader creates the shared block in a transaction, and each other process
 * joins.  pace_leave does nothing in a process that hasn't joined.  Places are for workers.
 */
extern Size pace_shared_size(void);
extern void pace_create(PaceShared *shared, Oid relid, bool readers_wait);
extern void pace_join(PaceShared *shared);
extern void pace_leave(void);
extern void pace_join_as_builder(void);
extern void pace_leave_as_builder(void);
extern void pace_set_need(double need);
extern void pace_report(TableResult *result);
extern void pace_allow_workers(int most, bool asked_for, void (*launch) (void *), void *argument);
extern bool pace_is_bounded(void);
extern bool pace_take_place(bool at_any_rate);
extern bool pace_has_place(void);
extern bool pace_give_place(void);
extern void pace_begin_work(void);
extern void pace_end_work(void);
extern void pace_give_up(void);

/*
 * Where it spends.  delay_point and pace_while_waiting serve interrupts or read files, and
 * may raise errors: no LWLock, and no lock on a page, may be held.  Pages may be pinned only
 * between guards_begin_pins and guards_end_pins.  pace_in_server_code is called with a page
 * locked, and doesn't sleep.
 */
extern void delay_point(void);
extern void pace_pages_written(int number);
extern void pace_while_waiting(void);
extern void pace_begin_server_code(void);
extern void pace_in_server_code(void);
extern void pace_end_server_code(void);

#endif							/* CYCLONE_PACE_H */
