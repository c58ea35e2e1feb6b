/*-------------------------------------------------------------------------
 *
 * team_state.h
 *	  What the leader's side of a team (team.c) and that of its workers
 *	  (team_worker.c) share.  Other files include team.h.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TEAM_STATE_H
#define CYCLONE_TEAM_STATE_H

#include "access/parallel.h"
#include "executor/instrument.h"
#include "postmaster/bgworker_internals.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"

#include "compat.h"
#include "team/team.h"

/* Our keys in the segment of a team */
#define TEAM_KEY_CONTROL		UINT64CONST(0xC1C10E0000000001)
#define TEAM_KEY_SHARED			UINT64CONST(0xC1C10E0000000002)
#define TEAM_KEY_QUERY_TEXT		UINT64CONST(0xC1C10E0000000003)
#define TEAM_KEY_BUFFER_USAGE	UINT64CONST(0xC1C10E0000000004)
#define TEAM_KEY_WAL_USAGE		UINT64CONST(0xC1C10E0000000005)

/* How the members find together; in the DSM segment of the team. */
typedef struct TeamControl
{
	slock_t		mutex;			/* of the following */
	int			phase;			/* written by the leader */
	uint32		phase_count;	/* phases begun so far */
	bool		is_running;		/* a phase has begun and not yet ended */
	bool		is_over;		/* there will be no more of them */
	int			attached;		/* workers that have joined */
	int			done;			/* those of them that are through with the
								 * phase */
	int			resting;		/* those of them that take no part, for now */

	ConditionVariable begun;	/* a phase, or the end of the team */
	ConditionVariable over;		/* the team, for those that rest */
	ConditionVariable done_changed;
	/* workers that have found this block: a bit for each number */
	pg_atomic_uint64 arrived[MAX_PARALLEL_WORKER_LIMIT / 64];
	/* set by a leader that fails: its workers are about to be terminated */
	pg_atomic_uint32 given_up;
	/* this never changes */
	compat_query_id query_id;
} TeamControl;

struct Team
{
	ParallelContext *pcxt;		/* NULL in a worker, and without workers */
	TeamControl *control;		/* NULL without workers */
	void	   *shared;
	BufferUsage *buffer_usage;	/* an element for each worker */
	WalUsage   *wal_usage;

	/* a worker's */
	const TeamWorker *worker;
	void	   *state;			/* that the worker's routines get */
	uint32		last_phase;		/* the phase_count of the last one it has run */
	bool		is_resting;
};

/* the wait for the other members to finish a phase */
extern uint32 team_wait_event_phase_end(void);

#endif							/* CYCLONE_TEAM_STATE_H */
