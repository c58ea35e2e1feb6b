/*-------------------------------------------------------------------------
 *
 * guards.h
 *	  What holds a vacuum back besides cost and latency: a pause, its WAL, standbys
 *	  that lag, and a disk that gets full.
 *
 * See guards.c.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_GUARDS_H
#define CYCLONE_GUARDS_H

#include "datatype/timestamp.h"
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

extern void guards_shmem_request(void);
extern void guards_shmem_init(void);
extern void guards_begin_command(void (*while_held) (void));
extern void guards_hurry(void);
extern void guards_end_command(void);
extern void guards_begin_table(Oid relid, bool is_locked);
extern void guards_reread(ConfigVariable *files);
extern GuardTimes guards_held(void);
extern GuardTimes guards_held_since(const GuardTimes *before);

extern int	guards_leader(void);
extern void guards_join(int leader);
extern void guards_leave(void);
extern void guards_skip_wal(void);

extern bool guards_hold_is_due(void);
extern void guards_point(void);
extern bool guards_wait_in_server_code(void);
extern bool guards_disk_is_short(void);
extern void guards_forget_disk(void);
extern uint64 guards_disk_reserve(uint64 size_bytes);
extern bool guards_pace_is_set(void);
extern void guards_apply_pace(double *cost_delay, int *cost_limit, double *latency_target);
extern uint32 guards_workers(void);

extern void guards_begin_pins(void);
extern void guards_end_pins(void);
extern void guards_drop_stream(void);
extern bool guards_cut_stream(void);
extern Buffer guards_resume_stream(ReadStream *stream, void **per_buffer_data,
								   Buffer *other_pin);

#endif							/* CYCLONE_GUARDS_H */
