/*-------------------------------------------------------------------------
 *
 * core_waits.h
 *	  How long other sessions wait for a core.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CORE_WAITS_H
#define CYCLONE_CORE_WAITS_H

/* What other sessions have had of cores, in ns */
typedef struct CoreTimes
{
	uint64		ran;
	uint64		waited;			/* for one, ready to run */
} CoreTimes;

extern void core_waits_prepare(void);
extern bool core_waits_look(uint64 now, bool in_handler, CoreTimes *since);

#endif							/* CYCLONE_CORE_WAITS_H */
