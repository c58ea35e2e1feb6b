/*-------------------------------------------------------------------------
 *
 * latency_reports.h
 *	  Tells nodes how long statements take on this server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_LATENCY_REPORTS_H
#define CYCLONE_LATENCY_REPORTS_H

extern uint64 latency_reports_begin(void);
extern void latency_reports_end(void);

#endif							/* CYCLONE_LATENCY_REPORTS_H */
