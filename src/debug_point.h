/*-------------------------------------------------------------------------
 *
 * debug_point.h
 *	  Named points in the code where a test can make a process wait or fail.
 *
 * In a build with DEBUG_POINTS=1, DEBUG_POINT("name") looks at the setting
 * cyclone.debug_point; in others it does nothing.  DEBUG_LIMIT(name, usual) is the
 * usual number, or that of the setting cyclone.debug_<name> if a test has set it.
 * DEBUG_FAULT("name") is true where a test wants the engine to do something wrong.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DEBUG_POINT_H
#define CYCLONE_DEBUG_POINT_H

#ifdef CYCLONE_DEBUG_POINTS

extern int	cyclone_debug_arrival_ms;
extern int	cyclone_debug_batch_ms;
extern int	cyclone_debug_break_seconds;
extern int	cyclone_debug_btree_parts;
extern int	cyclone_debug_compaction_held;
extern int	cyclone_debug_compaction_hour;
extern int	cyclone_debug_compaction_least;
extern int	cyclone_debug_compaction_visit;
extern int	cyclone_debug_failed_probe;
extern int	cyclone_debug_free_disk_mb;
extern int	cyclone_debug_fsm_blocks;
extern int	cyclone_debug_longest_hold;
extern int	cyclone_debug_max_duties;
extern int	cyclone_debug_max_duty_tries;
extern int	cyclone_debug_horizon_wait;
extern int	cyclone_debug_max_pin_ms;
extern int	cyclone_debug_max_tables;
extern int	cyclone_debug_max_tree_pages;
extern int	cyclone_debug_cores;
extern int	cyclone_debug_fed;
extern int	cyclone_debug_multixact_limit;
extern int	cyclone_debug_parking;
extern int	cyclone_debug_price;
extern int	cyclone_debug_queue_age;
extern int	cyclone_debug_ring_turn;
extern int	cyclone_debug_seam_fails;
extern int	cyclone_debug_server_version;
extern int	cyclone_debug_workers;
extern char *cyclone_debug_fault;
extern char *cyclone_debug_point;

/*
 * debug_point_init defines the settings, while the library is preloaded.  The others are for
 * the macros below.  At a point there may be an error, or a wait that serves interrupts;
 * a fault that is due is only counted.
 */
extern void debug_point_init(void);
extern void debug_point_reached(const char *name);
extern bool debug_fault_is_due(const char *name);

/* The setting is empty most of the time, and this is in hot loops. */
#define DEBUG_POINT(name) \
	do { \
		if (cyclone_debug_point[0] != '\0') \
			debug_point_reached(name); \
	} while (0)

#define DEBUG_FAULT(name) \
	(cyclone_debug_fault[0] != '\0' && debug_fault_is_due(name))

#define DEBUG_LIMIT(name, usual) \
	(cyclone_debug_##name > 0 ? cyclone_debug_##name : (usual))

#else

/* debug_point_init -- a build without debug points has no settings for them. */
static inline void
debug_point_init(void)
{
}

#define DEBUG_POINT(name)	((void) 0)
#define DEBUG_FAULT(name)	false
#define DEBUG_LIMIT(name, usual)	(usual)

#endif							/* CYCLONE_DEBUG_POINTS */

#endif							/* CYCLONE_DEBUG_POINT_H */
