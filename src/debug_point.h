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

/*
 * The settings that are numbers: the name behind "cyclone.debug_", what it is at the start, the
 * greatest value, and who may set it when.  0 is as it would be without the setting, if the
 * description says no more.
 */
#define DEBUG_NUMBERS(SETTING) \
	SETTING(arrival_ms, 0, INT_MAX, PGC_SUSET, \
			"How long a leader that has failed waits for workers that are starting, in ms.") \
	SETTING(batch_ms, 0, INT_MAX, PGC_SUSET, \
			"How long VACUUM (FULL INPLACE) moves rows in a transaction, in ms.") \
	SETTING(break_seconds, 0, 7 * 24 * 3600, PGC_SIGHUP, \
			"How long autovacuum leaves a table to PostgreSQL when the engine has failed on it for the first time, in s.") \
	SETTING(btree_parts, 0, INT_MAX, PGC_SUSET, \
			"Into how many parts VACUUM FULL divides each btree that it can.") \
	SETTING(cleaner_wait, 0, INT_MAX, PGC_SUSET, \
			"How long the cleaner waits for others, and until the next one comes, in ms.") \
	SETTING(compaction_held, 0, INT_MAX, PGC_SUSET, \
			"How long a session must hold the horizon to keep tables from being compacted, in ms.") \
	SETTING(compaction_hour, 0, INT_MAX, PGC_SIGHUP, \
			"How long an hour takes in the pauses of compaction, in ms.") \
	SETTING(compaction_least, 0, INT_MAX, PGC_SIGHUP, \
			"How much must be freed for a table to be compacted by itself, in kB.") \
	SETTING(compaction_patience, 0, INT_MAX, PGC_SIGHUP, \
			"How long compaction waits for a lock, and for other transactions, in ms.") \
	SETTING(compaction_turn, 0, INT_MAX, PGC_SIGHUP, \
			"How long compaction is at a table at most, and how long its worker may take to leave one, in ms.") \
	SETTING(compaction_visit, 0, INT_MAX, PGC_SIGHUP, \
			"How often compaction visits a database, in ms.") \
	SETTING(cores, 1000, INT_MAX, PGC_SUSET, \
			"How many cores VACUUM takes the machine to have, to leave others some.") \
	SETTING(failed_probe, 0, INT_MAX, PGC_POSTMASTER, \
			"The probe by which the server is found not to fit, at its start.") \
	SETTING(fed, 1000, INT_MAX, PGC_SUSET, \
			"How many processes each budget is taken to feed.") \
	SETTING(free_disk_mb, 0, INT_MAX, PGC_SUSET, \
			"The free space that VACUUM finds in each file system while it runs, in MB.") \
	SETTING(fsm_blocks, 0, INT_MAX, PGC_SUSET, \
			"How many blocks of a table without indexes are scanned before their free space is offered.") \
	SETTING(horizon_wait, 0, INT_MAX, PGC_SUSET, \
			"How long VACUUM (FULL INPLACE) waits for others, in ms.") \
	SETTING(index_segment, 0, 32767, PGC_SUSET, \
			"From which segment of 1 GB on the blocks of indexes are visited, where what is before is a hole in a file.") \
	SETTING(longest_hold, 0, INT_MAX, PGC_SUSET, \
			"How many ms a guard holds a VACUUM at most.") \
	SETTING(max_duties, 0, INT_MAX, PGC_SUSET, \
			"How many pages of a btree may be due at once, besides a range.") \
	SETTING(max_duty_tries, 0, INT_MAX, PGC_SUSET, \
			"How often a process tries to lock a pinned page of a btree that is due.") \
	SETTING(max_pin_ms, 0, INT_MAX, PGC_SUSET, \
			"How long a process waits for pinned pages of a table, in ms.") \
	SETTING(max_tables, 0, 1000000, PGC_POSTMASTER, \
			"How many tables the view cyclone.autovacuum remembers.") \
	SETTING(max_tree_pages, 0, INT_MAX, PGC_SUSET, \
			"From how many leaf pages on a posting tree of a GIN index is shared out.") \
	SETTING(multixact_limit, 0, INT_MAX, PGC_SUSET, \
			"The age of multixact IDs to which the number of members lowers the limit.") \
	SETTING(parking, 0, INT_MAX, PGC_SUSET, \
			"How many times a worker takes its next piece of work for each time that it is parked by chance. It looks for a place again after the same number of ms. 0 is never.") \
	SETTING(price, 0, INT_MAX, PGC_SUSET, \
			"How many times as long a process sleeps with an adaptive delay. 0 is once.") \
	SETTING(queue_age, 0, INT_MAX, PGC_SUSET, \
			"The age in ms of transactions behind which FULL INPLACE queues for a table's lock.") \
	SETTING(ring_turn, 0, 64, PGC_SUSET, \
			"Write the pages of a ring together after this many visits, whether they were read from disk or not. 0 is the usual number, and only those that were read.") \
	SETTING(seam_fails, 0, 1, PGC_POSTMASTER, \
			"1: heap's table access method can't be changed.") \
	SETTING(server_version, 0, INT_MAX, PGC_POSTMASTER, \
			"The version that the server is taken for, at its start.") \
	SETTING(workers, 0, INT_MAX, PGC_SUSET, \
			"The number of workers that a table calls for, whatever its size.")

#define DEBUG_NUMBER_PLACE(name, boot, most, context, description) DEBUG_NUMBER_##name,
enum
{
	DEBUG_NUMBERS(DEBUG_NUMBER_PLACE)
};
extern int	cyclone_debug_numbers[];
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
	(cyclone_debug_numbers[DEBUG_NUMBER_##name] > 0 ? \
	 cyclone_debug_numbers[DEBUG_NUMBER_##name] : (usual))

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
