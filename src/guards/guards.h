/*-------------------------------------------------------------------------
 *
 * guards.h
 *	  What holds a vacuum back besides its cost: a pause, its WAL, standbys
 *	  that lag, and a disk that gets full.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_GUARDS_H
#define CYCLONE_GUARDS_H

#include "storage/read_stream.h"
#include "utils/guc.h"

typedef enum Guard
{
	GUARD_PAUSE,
	GUARD_WAL_RATE,
	GUARD_LAG,
	GUARD_DISK,
	NUM_GUARDS
} Guard;

/* For how long any process of a vacuum was held, by each guard */
typedef struct GuardTimes
{
	double		seconds[NUM_GUARDS];
} GuardTimes;

/* What holds a vacuum just now, for people */
typedef struct GuardHold
{
	Oid			relid;			/* of the table, in any case */
	const char *limited_by;		/* NULL: nothing does */
	double		figure;
	double		bound;
	const char *held_by;		/* NULL: no name */
	int			standby_pid;	/* its walsender; 0: none */
} GuardHold;

/*
 * A command, in the process that leads it.  A command that was begun must be ended, also
 * after an error; guards_end_command does nothing if none was begun.  while_held is called
 * now and then while a guard holds the leader, with no page pinned and no lock but those
 * of tables.  It may raise errors.  guards_begin_table must be called in a transaction, and
 * raises an error if there is no room for WAL; readers_wait says that the table is locked so
 * that nobody can even read it, hurries that nothing holds it.  The files of guards_reread are
 * a list, NULL if it is empty.  guards_held is since guards_begin_run.
 */
extern void guards_shmem_request(void);
extern void guards_shmem_init(void);
extern void guards_begin_command(void (*while_held) (void));
extern void guards_end_command(void);
extern void guards_begin_table(Oid relid, bool readers_wait, bool hurries);
extern void guards_reread(ConfigVariable *files);
extern void guards_begin_run(void);
extern GuardTimes guards_held(void);

/*
 * The other processes of a vacuum.  They join by the leader's MyProcNumber.  guards_leave
 * does nothing in a process that hasn't joined.
 */
extern void guards_join(int leader);
extern void guards_leave(void);

/* WAL that was written before guards_skip_wal counts for no rate, and isn't the vacuum's. */
extern void guards_skip_wal(void);

/* What holds the vacuum of that leader just now?  Takes no lock. */
extern void guards_find_hold(int leader, GuardHold *hold);

/*
 * Where it waits.  guards_what_holds is NUM_GUARDS if nothing does.  guards_point serves interrupts, so it may raise errors: no LWLock, and
 * no lock on a page, may be held.  Pages may be pinned only between guards_begin_pins and
 * guards_end_pins.  guards_wait_in_server_code doesn't wait: the caller may hold such
 * locks.  guards_disk_is_short is for commands that can end early; until the run ends
 * nothing waits for room then but what would fill the disk.
 */
extern Guard guards_what_holds(void);
extern void guards_point(void);
extern bool guards_wait_in_server_code(void);
extern bool guards_disk_is_short(void);

/*
 * Read streams, in a loop that begins with guards_begin_pins and ends with
 * guards_end_pins; loops may be nested.  The stream's callback ends the stream where
 * guards_cut_stream says so, and continues later where it stopped.  The loop calls
 * guards_resume_stream when the stream has ended, with nothing pinned but *other_pin.
 * Its per_buffer_data may be NULL, and its other_pin.
 */
extern void guards_begin_pins(void);
extern void guards_end_pins(void);
extern bool guards_cut_stream(void);
extern Buffer guards_resume_stream(ReadStream *stream, void **per_buffer_data,
								   Buffer *other_pin);

/* guards_hold_is_due -- is this process to stand still, where it has no page pinned? */
static inline bool
guards_hold_is_due(void)
{
	return guards_what_holds() != NUM_GUARDS;
}

#endif							/* CYCLONE_GUARDS_H */
