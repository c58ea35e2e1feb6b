/*-------------------------------------------------------------------------
 *
 * team.h
 *	  The leader and the workers of one VACUUM.
 *
 * README.md says how a team lives.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TEAM_H
#define CYCLONE_TEAM_H

#include "storage/condition_variable.h"
#include "storage/dsm.h"
#include "storage/shm_toc.h"

typedef struct Team Team;

/* What every member of a team does in one phase. */
typedef void (*TeamPhaseRoutine) (void *state, int phase);

/*
 * The leader's side.
 *
 * team_create: outside of parallel mode, which it enters if nworkers > 0.  The shared
 * block is zeroed and MAXALIGNed, and lasts until team_end.  Fewer workers may come,
 * even none.  Without shared memory for them there is a warning, and the leader is alone.
 *
 * team_launch: all that workers read when they join is in the shared block, and no
 * lock on a page is held.
 *
 * team_run: returns when all members are through with the phase, and raises the
 * errors of workers.  Now and then while the leader waits, while_waiting is called.
 *
 * team_end: between phases; it leaves parallel mode.
 *
 * team_give_up: on an error or exit; harmless without a team.  Serves no interrupts.
 */
extern Team *team_create(const char *worker_main, int nworkers,
						 Size shared_size);
extern void team_launch(Team *team);
extern void team_run(Team *team, int phase,
					 TeamPhaseRoutine routine, void *state,
					 void (*while_waiting) (void));
extern void team_give_up(void);
extern void team_end(Team *team);

/* The worker's side */

/* What kind of a worker it is */
typedef struct TeamWorker
{
	/* opens what the phases need, and returns their state */
	void	   *(*join) (void *shared, dsm_segment *segment);
	TeamPhaseRoutine routine;
	void		(*leave) (void *state);

	/*
	 * does its state hold what later phases can't do without?  May be NULL:
	 * no
	 */
	bool		(*is_needed) (void *state);

	/*
	 * has it a place at work, or takes it one?  Else it rests.  May be NULL:
	 * yes
	 */
	bool		(*take_place) (void *state);
	/* has it, or has it given it up in its routine?  May be NULL: it has */
	bool		(*has_place) (void *state);
	/* of the phases, with the state as argument; may be NULL */
	void		(*error_context) (void *state);
} TeamWorker;

/* Called by the worker's main function.  An error in join costs only its help. */
extern void team_work(const TeamWorker *worker, dsm_segment *segment, shm_toc *toc);

/*
 * Either side.  team_sleep is ConditionVariableSleep, in a phase, and without any lock;
 * the caller loops around it and cancels the sleep.
 */
extern void team_sleep(ConditionVariable *changed, uint32 wait_event);
extern void *team_shared(const Team *team);
extern dsm_segment *team_segment(const Team *team);
extern int	team_launched_workers(const Team *team);
extern bool team_lacked_memory(void);

#endif							/* CYCLONE_TEAM_H */
