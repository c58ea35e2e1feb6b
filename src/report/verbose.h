/*-------------------------------------------------------------------------
 *
 * verbose.h
 *	  The report on a finished VACUUM.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_VERBOSE_H
#define CYCLONE_VERBOSE_H

#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "lib/stringinfo.h"
#include "pgstat.h"
#include "utils/pg_rusage.h"
#include "utils/rel.h"

#include "guards/guards.h"
#include "report/result.h"

/* What the server had counted when the vacuum began. */
typedef struct ReportStart
{
	TimestampTz time;
	PGRUsage	rusage;
	PgStat_Counter read_time;
	PgStat_Counter write_time;
	WalUsage	wal;
	BufferUsage buffers;
	GuardTimes	held;
} ReportStart;

extern bool report_is_wanted(const VacuumParams *params);
extern bool report_command_is_for_log(double seconds);
extern void report_append_command(StringInfo buf, const char *command);
extern void report_append_held(StringInfo buf, const GuardTimes *before);
extern void report_begin(ReportStart *start);
extern void report_end(const ReportStart *start, const VacuumParams *params,
					   Relation rel, const TableResult *result);

#endif							/* CYCLONE_VERBOSE_H */
